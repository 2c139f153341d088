"""Whether a comparison always or never holds. Pure."""

from collections.abc import Callable

from tools.ptx.ir import Immediate, Instruction, Not, Operand, Register, type_bytes
from tools.ptx.rewrites.span import Span

Of = Callable[[Operand], Span]
Truth = Callable[[Operand], bool | None]


def truth(writer: Instruction, of: Of, known: Truth) -> bool | None:
    """What the instruction that writes a predicate always says, or None."""
    kind, args = writer.modifiers[-1] if writer.modifiers else "", writer.operands[1:]
    match writer.opcode, args:
        case "setp", [a, b] if len(writer.modifiers) == 2 and isinstance(writer.operands[0], Register):
            return _compared(writer.modifiers[0], kind, of(a), of(b))
        case "and", [a, b] if kind == "pred":
            found = (_side(a, known), _side(b, known))
            return False if False in found else True if found == (True, True) else None
        case "or", [a, b] if kind == "pred":
            found = (_side(a, known), _side(b, known))
            return True if True in found else False if found == (False, False) else None
        case "not", [a] if kind == "pred":
            return _opposite(_side(a, known))
        case "xor", [a, b] if kind == "pred":
            left, right = _side(a, known), _side(b, known)
            return None if left is None or right is None else left != right
        case "mov", [a] if kind == "pred":
            return _side(a, known)
    return None


def _side(operand: Operand, known: Truth) -> bool | None:
    match operand:
        case Immediate(value):
            return bool(value)
        case Not(register):
            return _opposite(known(register))
        case Register():
            return known(operand)
    return None


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _compared(how: str, kind: str, a: Span, b: Span) -> bool | None:
    if kind[0] not in "usb" or kind in ("bf16", "bf16x2") or a.base or b.base:
        return None
    signed, bits = kind[0] == "s" and how not in _UNSIGNED, 8 * type_bytes(kind)
    a, b = a.within(bits, signed=signed), b.within(bits, signed=signed)
    match _UNSIGNED.get(how, how):
        case "lt":
            return True if a.hi < b.lo else False if a.lo >= b.hi else None
        case "le":
            return True if a.hi <= b.lo else False if a.lo > b.hi else None
        case "gt":
            return True if a.lo > b.hi else False if a.hi <= b.lo else None
        case "ge":
            return True if a.lo >= b.hi else False if a.hi < b.lo else None
        case "eq":
            return _equal(a, b)
        case "ne":
            return _opposite(_equal(a, b))
    return None


def _equal(a: Span, b: Span) -> bool | None:
    if a.hi < b.lo or b.hi < a.lo:
        return False
    return True if a.step == b.step == 0 else None
