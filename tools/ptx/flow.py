"""Loops that cannot end, and loops that wait for others, read off the text of a function. Pure."""

from collections.abc import Iterator

from tools.ptx.ir import Function, Instruction, Item, Label, Register, Symbol

_LEAVES = frozenset({"ret", "exit", "trap", "brx", "call"})
_FROM_OTHERS = frozenset({"volatile", "acquire", "relaxed"})
_MOST_LOOKED_AT = 1 << 20  # items of loops within loops
_ENDLESS = "this loop has no way out: the branch back is unconditional and nothing inside leaves it"
_SPIN = (
    "this loop waits for memory that another block writes: unless all blocks run at once (cooperative=True), it may "
    "wait for ever"
)


def loops(function: Function) -> Iterator[tuple[int, int]]:
    """(first, last): places in the body of each label and a branch back to it; no more of them than can be looked at
    in a second."""
    places: dict[str, int] = {}
    looked_at = 0
    for place, item in enumerate(function.body):
        if isinstance(item, Label):
            places[item.name] = place
        elif isinstance(item, Instruction) and (target := target_of(item)) in places:
            first = places[str(target)]
            looked_at += place - first
            if looked_at > _MOST_LOOKED_AT:
                return
            yield first, place


def target_of(item: Item) -> str | None:
    """Where a branch goes."""
    if isinstance(item, Instruction) and item.opcode == "bra" and item.operands:
        target = item.operands[-1]
        return target.name if isinstance(target, Symbol | Register) else None
    return None


def endless(function: Function) -> Iterator[tuple[int, str]]:
    """Line and words of loops that nothing can leave."""
    for first, last in loops(function):
        inside = function.body[first : last + 1]
        labels = {item.name for item in inside if isinstance(item, Label)}
        back = inside[-1]
        if isinstance(back, Instruction) and back.guard is None and not any(_leaves(item, labels) for item in inside):
            yield back.line, _ENDLESS


def _leaves(item: Item, labels: set[str]) -> bool:
    if not isinstance(item, Instruction):
        return False
    target = target_of(item)
    return item.opcode in _LEAVES or (target is not None and target not in labels)


def spins(function: Function) -> Iterator[tuple[int, str]]:
    """Line and words of short loops whose way out depends on memory that others write."""
    for first, last in loops(function):
        inside = [item for item in function.body[first : last + 1] if isinstance(item, Instruction)]
        waits = any(_reads_others(instruction) for instruction in inside)
        works = any(i.opcode in ("st", "red", "fma", "mma", "wgmma", "bar", "barrier") for i in inside)
        if waits and not works and inside:
            yield inside[-1].line, _SPIN


def _reads_others(instruction: Instruction) -> bool:
    shared = any(m.startswith("shared") for m in instruction.modifiers)
    if instruction.opcode == "atom":
        return not shared
    return instruction.opcode == "ld" and not shared and bool(_FROM_OTHERS & set(instruction.modifiers))


def waits(function: Function) -> bool:
    """Whether a launch that may begin early waits for the launch before it, whatever else it does."""
    return any(i.name == "griddepcontrol.wait" and i.guard is None for i in function.instructions)
