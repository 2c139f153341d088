"""Accesses whose address cannot be aligned, read off the text. Pure.

Followed are addresses that are a pointer parameter or a shared variable plus a constant; the others are seen when the
kernel runs.
"""

from collections.abc import Iterator

from tools.ptx.ir import Address, Function, Instruction, Module, Operand, Register, Symbol, type_bytes

_POINTER_ALIGN = 16  # of what torch allocates; a tensor's own offset may make it less
_COPIES = ("mov", "cvta", "ld")


def misaligned(module: Module, function: Function) -> Iterator[tuple[int, str]]:
    """Line and words of each access that no address of its form can satisfy."""
    bases = _bases(module, function)
    for instruction in function.instructions:
        if instruction.opcode not in ("ld", "st", "atom", "red"):
            continue
        nbytes = _access_bytes(instruction)
        for operand in instruction.operands:
            if isinstance(operand, Address) and (known := _known(operand, bases)) is not None:
                offset, align = known
                if align >= nbytes and offset % nbytes:
                    yield (
                        instruction.line,
                        f"{instruction.name} needs {nbytes}-byte alignment, and this address is {offset % nbytes} "
                        f"bytes past it; use a narrower access or another offset",
                    )


def _access_bytes(instruction: Instruction) -> int:
    vector = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    try:
        return vector * type_bytes(instruction.modifiers[-1])
    except (ValueError, IndexError):
        return 1


def _bases(module: Module, function: Function) -> dict[str, tuple[int, int]]:
    """Registers and variables whose address is a known base: (offset from it, its alignment)."""
    known = {p.name: (0, _POINTER_ALIGN) for p in function.params if p.type in ("u64", "b64", "s64")}
    for variable in (*module.variables, *function.variables):
        known[variable.name] = (0, variable.align or type_bytes(variable.type) * variable.vector)
    assigned: dict[str, int] = {}
    for instruction in function.instructions:
        if instruction.operands and isinstance(instruction.operands[0], Register):
            name = instruction.operands[0].name
            assigned[name] = assigned.get(name, 0) + 1
    for instruction in function.instructions:
        _follow(instruction, known, assigned)
    return known


def _follow(instruction: Instruction, known: dict[str, tuple[int, int]], assigned: dict[str, int]) -> None:
    if len(instruction.operands) < 2 or not isinstance(instruction.operands[0], Register):
        return
    target, source = instruction.operands[0].name, instruction.operands[1]
    if assigned[target] != 1 or instruction.guard is not None:
        return
    if instruction.opcode == "ld" and instruction.modifiers[:1] != ("param",):
        return
    if instruction.opcode in _COPIES and (found := _known(source, known)) is not None:
        known[target] = found


def _known(operand: Operand, known: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    inner = operand.base if isinstance(operand, Address) else operand
    if not isinstance(inner, Register | Symbol) or inner.name not in known:
        return None
    offset, align = known[inner.name]
    return offset + getattr(inner, "offset", 0) + (operand.offset if isinstance(operand, Address) else 0), align
