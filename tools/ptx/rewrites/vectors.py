"""Neighbouring accesses become one wider access, where the address is known to be a multiple of its size. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tools.ptx.ir import Address, Instruction, Register, Vector, type_bytes
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.flow import reads, registers_in, results
from tools.ptx.rewrites.memory import Memory, Place, parts
from tools.ptx.rewrites.modifiers import Words, with_words, words

_MOST_BYTES = 16


def _wider(work: Work, value: str) -> None:
    memory = Memory(work)
    groups: dict[tuple[object, ...], list[tuple[Place, Instruction]]] = defaultdict(list)
    for i in work.instructions:
        found, place = words(i), memory.place(_address(i)) if words(i) else None
        if found is None or place is None or not parts(i) or not work.free(i):
            continue
        policy = i.operands[2:] if found.policy else ()
        key = (i.opcode, replace(found, vector=""), len(parts(i)), policy, i.guard, place.root, work.flow.block(i))
        groups[key].append((place, i))
    for accesses in groups.values():
        _join(work, sorted(accesses, key=lambda found: found[0].offset), int(value[1:]))


def _address(i: Instruction) -> Address | Register:
    found = next((o for o in i.operands if isinstance(o, Address)), None)
    return found if found is not None else Register("")


def _join(work: Work, accesses: Sequence[tuple[Place, Instruction]], most: int) -> None:
    """Join runs of neighbours, from the lowest address on."""
    at = 0
    while at < len(accesses):
        joined = next((n for n in (4, 2) if _fits(work, accesses[at : at + n], n, most)), 1)
        if joined > 1:
            _replace(work, [i for _, i in accesses[at : at + joined]])
        at += joined


def _fits(work: Work, run: Sequence[tuple[Place, Instruction]], count: int, most: int) -> bool:
    if len(run) != count:
        return False
    first = run[0][1]
    found = words(first)
    if found is None:
        return False
    size = type_bytes(found.kind) * len(parts(first))
    total = count * len(parts(first))
    if total > most or size * count > _MOST_BYTES or found.kind not in ("b32", "f32", "u32", "s32", "b64", "b16"):
        return False
    in_a_row = all(b.offset - a.offset == size for (a, _), (b, _) in pairwise(run))
    known = work.spans.aligned(work.spans.of(_address(first)))
    return in_a_row and known % (size * count) == 0 and _together(work, [i for _, i in run])


_ORDERED = frozenset("st atom red bar barrier cp fence membar griddepcontrol".split())


def _together(work: Work, run: Sequence[Instruction]) -> bool:
    """Whether all may happen where the last of them stands in the text, `run[0]`'s address being the lowest."""
    flow = work.flow
    numbers = sorted(flow.number[id(i)] for i in run)
    ordered = _ORDERED | {"ld"} if run[0].opcode == "st" else _ORDERED
    between = [flow.instructions[i] for i in range(numbers[0], numbers[-1]) if i not in numbers]
    filled = [name for i in run for name in results(i)]
    if len(set(filled)) != len(filled) or any(i.opcode in ordered for i in between):
        return False
    return all(_may_wait(work, i, numbers, lowest=i is run[0]) for i in run)


def _may_wait(work: Work, access: Instruction, numbers: Sequence[int], *, lowest: bool) -> bool:
    """Whether what an access reads is the same where the last one stands, and nothing asks for its result before."""
    flow, filled = work.flow, set(results(access))
    own = flow.number[id(access)]
    needed = set(reads(access)) - filled
    if not lowest:
        needed -= set(registers_in(_address(access)))
        needed |= {access.guard.register} if access.guard else set()
    for number in range(own + 1, numbers[-1] + 1):
        other = flow.instructions[number]
        asks = set() if number in numbers else set(reads(other))
        if needed & set(results(other)) or filled & (asks | set(results(other))):
            return False
    return True


def _replace(work: Work, run: list[Instruction]) -> None:
    flow, first = work.flow, run[0]
    ordered = sorted(run, key=lambda i: flow.number[id(i)])
    names = [Register(name) for i in run for name in parts(i)]
    new = with_words(first, replace(words(first) or Words(), vector=f"v{len(names)}"))
    value = Vector(tuple(names))
    if first.opcode == "st":
        joined = replace(new, operands=(new.operands[0], value, *new.operands[2:]))
    else:
        joined = replace(new, operands=(value, *new.operands[1:]))
    place = ordered[-1]
    for i in run:
        work.replace(i, *([joined] if i is place else []))


REWRITES = (
    Rewrite(
        "wider", ("v4", "v2"), "bits", "neighbouring accesses of a thread become one ({value})",
        "one instruction and one request take the place of several", "fewer and wider global accesses", _wider,
    ),
)  # fmt: skip
