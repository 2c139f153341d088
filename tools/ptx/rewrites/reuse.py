"""What was loaded is kept: a second load of the same place, which nothing writes, becomes copies of registers. Pure."""

from tools.ptx.ir import Instruction, Operand
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.memory import Memory, parts
from tools.ptx.rewrites.modifiers import words
from tools.ptx.rewrites.written import operand


def _reuse(work: Work, value: str) -> None:
    memory = Memory(work)
    loads = [
        i for i in work.instructions if memory.is_plain_load(i) and memory.is_read_only(i) and words(i) is not None
    ]
    for n, second in enumerate(loads):
        first = next((f for f in loads[:n] if _same(work, memory, f, second)), None)
        if first is not None and work.free(second):
            kind = second.modifiers[-1]
            bits = f"b{kind[1:]}" if kind[0] in "usb" else kind
            moves = [f"mov.{bits} {b}, {a};" for a, b in zip(parts(first), parts(second), strict=True)]
            work.replace(second, *moves)


def _same(work: Work, memory: Memory, first: Instruction, second: Instruction) -> bool:
    """Whether the registers that `first` fills hold, when `second` runs, what that would load."""
    flow, (one, two) = work.flow, (words(first), words(second))
    if one is None or two is None or (one.vector, one.kind) != (two.vector, two.kind) or first.guard != second.guard:
        return False
    place = memory.place(first.operands[1])
    if place is None or place != memory.place(second.operands[1]) or not parts(first):
        return False
    names = [place.root] if place.root in flow.writers else []
    if first.guard is not None:
        names.append(first.guard.register)
    if not flow.unchanged(names, first, second) or any(flow.only_writer(name) is None for name in names):
        return False
    return all(_keeps(work, a, b, first, second) for a, b in zip(parts(first), parts(second), strict=True))


def _keeps(work: Work, a: str, b: str, first: Instruction, second: Instruction) -> bool:
    """Whether `a` holds what it was loaded with, or the same default as `b` has where nothing is loaded."""
    flow = work.flow
    if first.guard is None:
        return flow.only_writer(a) is first
    mine, other = _default(work, a, first), _default(work, b, second)
    return mine is not None and other is not None and operand(mine) == operand(other) and _constant(work, mine)


def _default(work: Work, name: str, load: Instruction) -> Operand | None:
    """What a register holds where its guarded load does not load: it is written by that load and one move before."""
    flow = work.flow
    writers = [flow.instructions[i] for i in flow.writers[name]]
    match writers:
        case [Instruction("mov", _, (_, source), _, None) as move, last] if last is load:
            return source if flow.block(move) == flow.block(load) else None
    return None


def _constant(work: Work, source: Operand) -> bool:
    """Whether a default is the same wherever it is read."""
    span = work.spans.of(source)
    return span.step == 0


REWRITES = (
    Rewrite(
        "reuse", ("on",), "bits", "what was loaded once stays in registers; the second load of the same place goes",
        "a second pass over the row asks the caches for what the threads had", "fewer loads, more registers", _reuse,
    ),
)  # fmt: skip
