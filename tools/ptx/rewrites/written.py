"""Operands and instructions as PTX text, the parser's inverse. Pure."""

import struct

from tools.ptx.ir import (
    Address,
    Both,
    Group,
    Guard,
    Immediate,
    Instruction,
    Not,
    Operand,
    Register,
    Symbol,
    Vector,
)


def operand(value: Operand) -> str:
    """One operand."""
    match value:
        case Register(name):
            return name
        case Symbol(name, offset):
            return name + _plus(offset)
        case Immediate():
            return number(value)
        case Address(base, offset, more):
            inner = str(offset) if base is None else operand(base) + _plus(offset)
            return f"[{', '.join([inner, *map(operand, more)])}]"
        case Vector(items):
            return "{" + ", ".join(map(operand, items)) + "}"
        case Group(items):
            return "(" + ", ".join(map(operand, items)) + ")"
        case Not(register):
            return f"!{register.name}"
        case Both(first, second):
            return f"{operand(first)}|{operand(second)}"


def number(value: Immediate) -> str:
    """A constant; floats of a given width by their bits."""
    if value.bits == 32:
        return "0f" + struct.pack(">f", value.value).hex().upper()
    if value.bits == 64:
        return "0d" + struct.pack(">d", value.value).hex().upper()
    return str(value.value)


def instruction(value: Instruction) -> str:
    """One statement with its semicolon."""
    head = f"@{'!' if value.guard.negated else ''}{value.guard.register} " if value.guard else ""
    rest = ", ".join(map(operand, value.operands))
    return f"{head}{value.name} {rest};" if rest else f"{head}{value.name};"


def guarded(guard: Guard | None, statement: str) -> str:
    """A statement under a predicate, or as it is."""
    return f"@{'!' if guard.negated else ''}{guard.register} {statement}" if guard else statement


def _plus(offset: int) -> str:
    return f"{offset:+d}" if offset else ""
