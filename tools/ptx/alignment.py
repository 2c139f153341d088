"""Accesses whose address cannot be aligned, read off the text. Pure.

Followed are addresses that are a pointer parameter or a shared variable plus a constant; the others are seen when the
kernel runs.
"""

from collections.abc import Iterator

from tools.ptx.ir import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    Symbol,
    leaves,
    type_bytes,
)

_POINTER_ALIGN = 16  # of what torch allocates; a view that begins elsewhere is declared `.ptr .global .align 4`
_COPIES = ("mov", "cvta", "ld")


def misaligned(module: Module, function: Function) -> Iterator[tuple[int, str]]:
    """Line and words of each access that no address of its form can satisfy."""
    declared, lasting = _declared(module, function), _lasting(function)
    known = dict(declared)
    for item in function.body:
        if isinstance(item, Label):  # reached from elsewhere too: what holds is what never changes again
            known = {name: place for name, place in known.items() if name in lasting or name in declared}
        elif isinstance(item, Instruction):
            if (offset := _off(item, known)) is not None:
                nbytes = _access_bytes(item)
                yield (
                    item.line,
                    f"{item.name} needs {nbytes}-byte alignment, and this address is {offset} bytes past it; use a "
                    "narrower access or another offset",
                )
            _follow(item, known)


def _off(instruction: Instruction, known: dict[str, tuple[int, int]]) -> int | None:
    """Bytes past what the access needs; None where that is nothing, or not known."""
    if instruction.opcode not in ("ld", "st", "atom", "red"):
        return None
    place = next((operand for operand in instruction.operands if isinstance(operand, Address)), None)
    if place is None or place.more or (found := _known(place, known)) is None:
        return None  # what follows the first is the barrier of st.async, which has another size
    nbytes, (offset, align) = _access_bytes(instruction), found
    return (offset % nbytes or None) if align >= nbytes else None


def _access_bytes(instruction: Instruction) -> int:
    vector = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    try:
        return vector * type_bytes(instruction.modifiers[-1])
    except (ValueError, IndexError):
        return 1


def _declared(module: Module, function: Function) -> dict[str, tuple[int, int]]:
    """Parameters and variables: (offset from a base, the base's alignment)."""
    known = {p.name: (0, p.align or _POINTER_ALIGN) for p in function.params if p.type in ("u64", "b64", "s64")}
    for variable in (*module.variables, *function.variables):
        known[variable.name] = (0, variable.align or type_bytes(variable.type) * variable.vector)
    return known


def _lasting(function: Function) -> set[str]:
    """What is not written again behind the first label, or only once in all: its value is the same wherever it has
    one."""
    times: dict[str, int] = {}
    behind: set[str] = set()
    label = False
    for item in function.body:
        label |= isinstance(item, Label)
        for name in _written(item) if isinstance(item, Instruction) else ():
            times[name] = times.get(name, 0) + 1
            behind |= {name} if label else set()
    return {name for name, count in times.items() if count == 1 or name not in behind}


def _written(instruction: Instruction) -> Iterator[str]:
    for operand in instruction.operands[:1]:
        if not isinstance(operand, Address):
            yield from (leaf.name.partition(".")[0] for leaf in leaves(operand) if isinstance(leaf, Register))


def _follow(instruction: Instruction, known: dict[str, tuple[int, int]]) -> None:
    """What the results are from now on."""
    source = instruction.operands[1] if len(instruction.operands) > 1 else None
    found = None
    if instruction.guard is None and isinstance(source, Address | Register | Symbol):
        if instruction.opcode in _COPIES and (instruction.opcode != "ld" or instruction.modifiers[:1] == ("param",)):
            found = _known(source, known)
        elif instruction.opcode == "add" and isinstance(more := instruction.operands[-1], Immediate):
            base = _known(source, known)
            found = (base[0] + int(more.value), base[1]) if base and not more.bits else None
    for name in _written(instruction):
        known.pop(name, None)
        if found is not None and isinstance(instruction.operands[0], Register):
            known[name] = found


def _known(operand: Operand, known: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    inner = operand.base if isinstance(operand, Address) else operand
    if not isinstance(inner, Register | Symbol) or inner.name not in known:
        return None
    offset, align = known[inner.name]
    return offset + getattr(inner, "offset", 0) + (operand.offset if isinstance(operand, Address) else 0), align
