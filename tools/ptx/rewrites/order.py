"""Loads of memory that nothing writes, moved up in their block: over barriers and stores too, which the compiler may
not do. Pure."""

from tools.ptx.ir import Instruction
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.flow import reads, results
from tools.ptx.rewrites.memory import Memory, parts


def _hoist(work: Work, value: str) -> None:
    memory, flow = Memory(work), work.flow
    for block in flow.blocks:
        moved: set[int] = set()
        for number in range(block.start, block.end):
            load = flow.instructions[number]
            if not memory.is_plain_load(load) or not memory.is_read_only(load):
                continue
            group = _group(work, load, number, block.start)
            if group is None or not work.all_free(group):
                continue
            place = _earliest(work, group, number, block.start)
            if _worth(flow.instructions[place:number], group):
                work.before(flow.instructions[place], *group)
                for each in group:
                    work.replace(each)
                    moved.add(flow.number[id(each)])


def _group(work: Work, load: Instruction, number: int, start: int) -> list[Instruction] | None:
    """The load and the moves that give its registers their defaults; None where others write or read them before."""
    flow, defaults = work.flow, list[Instruction]()
    for name in parts(load) or ("",):
        writers = [i for i in flow.writers.get(name, []) if i != number]
        if not parts(load) or len(writers) > 1 or (writers and not start <= writers[0] < number):
            return None
        for writer in writers:
            move = flow.instructions[writer]
            if move.opcode != "mov" or move.guard is not None:
                return None
            defaults.append(move)
        first = min(writers, default=number)
        if any(first < reader < number for reader in flow.readers.get(name, [])):
            return None
        if any(start <= reader < first for reader in flow.readers.get(name, [])) and load.guard is None and writers:
            return None
    return [*defaults, load]


def _earliest(work: Work, group: list[Instruction], number: int, start: int) -> int:
    """The number of the first instruction before which a group may stand: behind all that writes what it reads, and all
    that reads what it writes."""
    flow = work.flow
    inside = {flow.number[id(each)] for each in group}
    needed = {name for each in group for name in reads(each)}
    filled = {name for each in group for name in results(each)}
    place = start
    for i in range(start, number):
        if i in inside:
            continue
        other = flow.instructions[i]
        if (
            needed & set(results(other))
            or filled & {*reads(other), *results(other)}
            or other.opcode == "griddepcontrol"
        ):
            place = i + 1
    while place in inside:
        place += 1
    return place


def _worth(passed: list[Instruction], group: list[Instruction]) -> bool:
    """Whether a load overtakes what the compiler keeps it behind: a barrier, a store, a shuffle."""
    lines = {each.line for each in group}
    return any(i.opcode in ("bar", "barrier", "st", "shfl", "cp") for i in passed if i.line not in lines)


REWRITES = (
    Rewrite(
        "hoist", ("on",), "bits", "loads of memory that nothing writes move up, over barriers and stores",
        "what the second half of a kernel needs is on its way while the first half works", "more bytes in flight",
        _hoist,
    ),
)  # fmt: skip
