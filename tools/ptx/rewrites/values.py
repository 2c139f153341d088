"""What one instruction makes of the numbers it reads. Pure."""

from collections.abc import Callable
from math import gcd

from tools.ptx.ir import Instruction, Operand, Register, type_bytes
from tools.ptx.rewrites.span import UNKNOWN, Span

Of = Callable[[Operand], Span]
Truth = Callable[[Operand], bool | None]


def evaluate(instruction: Instruction, of: Of, truth: Truth) -> Span:
    """What an instruction that has one result can yield."""
    kind = instruction.modifiers[-1] if instruction.modifiers else ""
    try:
        bits = 8 * type_bytes(kind)
    except ValueError:
        return UNKNOWN
    if kind.startswith("f") or kind in ("bf16", "tf32", "pred") or not isinstance(instruction.operands[0], Register):
        return UNKNOWN
    signed = kind.startswith("s")
    values = [of(o) for o in instruction.operands[1:]]
    if instruction.opcode in ("and", "or", "xor", "shl", "shr"):
        return _bitwise(instruction.opcode, values, bits, signed=signed)
    if instruction.opcode in ("add", "sub", "mul", "mad"):
        return _sum_or_product(instruction, values, bits, signed=signed)
    match instruction.opcode, values:
        case "mov" | "cvta", [a]:
            return a
        case "cvt", [a] if len(instruction.modifiers) == 2:
            return _converted(instruction, a)
        case "selp", [a, b, _]:
            return _selected(a, b, truth(instruction.operands[3]))
        case "min" | "max", [a, b]:
            pick = min if instruction.opcode == "min" else max
            a, b = a.within(bits, signed=signed), b.within(bits, signed=signed)
            return Span(pick(a.lo, b.lo), pick(a.hi, b.hi))
    return UNKNOWN


def _sum_or_product(instruction: Instruction, values: list[Span], bits: int, *, signed: bool) -> Span:
    match instruction.opcode, values:
        case "add", [a, b]:
            return a.plus(b)
        case "sub", [a, b] if not b.base:
            return a.plus(Span(-b.hi, -b.lo, b.step))
        case "mul", [a, b]:
            return _product(instruction, a, b, bits, signed=signed)
        case "mad", [a, b, c]:
            return _product(instruction, a, b, bits, signed=signed).plus(c)
    return UNKNOWN


def _bitwise(opcode: str, values: list[Span], bits: int, *, signed: bool) -> Span:
    a, b = values
    if opcode in ("and", "or", "xor"):
        a, b = a.within(bits, signed=False), b.within(bits, signed=False)
        return _and(a, b) if opcode == "and" else _or(a, b, bits)
    if b.step or not 0 <= b.lo < bits:
        return UNKNOWN
    return a.times(Span(1 << b.lo, 1 << b.lo, 0)) if opcode == "shl" else _shifted(a.within(bits, signed=signed), b.lo)


def _selected(a: Span, b: Span, held: bool | None) -> Span:
    if held is not None:
        return a if held else b
    return _either(a, b)


def _product(instruction: Instruction, a: Span, b: Span, bits: int, *, signed: bool) -> Span:
    if "wide" in instruction.modifiers:
        return a.within(bits, signed=signed).times(b.within(bits, signed=signed))
    return a.times(b) if "lo" in instruction.modifiers else UNKNOWN


def _shifted(a: Span, count: int) -> Span:
    exact = a.zeros >= 1 << count
    return Span(a.lo >> count, a.hi >> count, a.step >> count if exact else 1)


def _and(a: Span, b: Span) -> Span:
    """Of numbers that are not negative."""
    value, mask = (a, b) if b.step == 0 else (b, a)
    if mask.step == 0:
        reach = (1 << value.hi.bit_length()) - 1 & ~(min(value.zeros, 1 << 63) - 1)
        if reach & ~mask.lo == 0:
            return value
        low = max(mask.lo & -mask.lo, 1)
        return Span(0, min(mask.lo, value.hi), max(low, min(value.zeros, 1 << 31)) if mask.lo else 0)
    return Span(0, min(a.hi, b.hi))


def _or(a: Span, b: Span, bits: int) -> Span:
    """Of numbers that are not negative: a sum where no bit can be set in both; exclusive or is the same there."""
    if a.zeros > b.hi or b.zeros > a.hi:
        return a.plus(b)
    return Span(0, min((1 << max(a.hi.bit_length(), b.hi.bit_length())) - 1, (1 << bits) - 1))


def _either(a: Span, b: Span) -> Span:
    if a.base != b.base:
        return UNKNOWN
    return Span(min(a.lo, b.lo), max(a.hi, b.hi), gcd(a.step, b.step, abs(a.lo - b.lo)), a.base)


def _converted(instruction: Instruction, a: Span) -> Span:
    to, source = instruction.modifiers
    if to[0] not in "usb" or source[0] not in "usb":
        return UNKNOWN
    if a.base and type_bytes(to) == type_bytes(source) == 8:
        return a
    value = a.within(8 * type_bytes(source), signed=source[0] == "s")
    return value if type_bytes(to) >= type_bytes(source) else value.within(8 * type_bytes(to), signed=to[0] == "s")
