"""Constant expressions of PTX (`4*2+1`, `(.s64)3`, `1<<4`), which stand wherever a number may. Pure.

Whole numbers have 64 bits: signed, unless written with U or too large for that; one unsigned side makes both so.
"""

import operator
from collections.abc import Callable

from tools.ptx.ir import Immediate

Number = int | float
CASTS = (".s64", ".u64")
WARP = "WARP_SZ"


class NoValue(ValueError):
    """An expression that has no value: a division by zero, a fraction where only whole numbers are."""


class Value:
    """A number of an expression, with the type that decides how it goes on. `bits` as in `Immediate`."""

    def __init__(self, number: Number, *, unsigned: bool = False, bits: int = 0) -> None:
        self.unsigned, self.bits = unsigned and isinstance(number, int), bits
        self.number = _wrapped(number, self.unsigned) if isinstance(number, int) else number

    @property
    def immediate(self) -> Immediate:
        """As an operand."""
        return Immediate(self.number, self.bits)


def literal(number: Immediate, *, unsigned: bool) -> Value:
    """A number as it is written; one that no signed number can hold is unsigned."""
    large = isinstance(number.value, int) and number.value >= 1 << 63
    return Value(number.value, unsigned=unsigned or large, bits=number.bits)


def _wrapped(number: int, unsigned: bool) -> int:
    number &= (1 << 64) - 1
    return number if unsigned or number < 1 << 63 else number - (1 << 64)


def _divided(a: Number, b: Number) -> Number:
    if not b:
        raise NoValue("a division by zero")
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - b * int(_divided(a, b))


_ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided,
}  # fmt: skip
_WHOLE: dict[str, Callable[[int, int], int]] = {
    "%": _remainder, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
_SHIFTS: dict[str, Callable[[int, int], int]] = {
    "<<": lambda a, b: a << b % 64, ">>": lambda a, b: a >> b % 64,
}  # fmt: skip
_COMPARED: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "&&": lambda a, b: bool(a) and bool(b), "||": lambda a, b: bool(a) or bool(b),
}  # fmt: skip
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
          ("*", "/", "%"))  # fmt: skip


def binary(mark: str, a: Value, b: Value) -> Value:
    """`a mark b`. Raises NoValue."""
    unsigned = a.unsigned or b.unsigned
    left, right = a.number, b.number
    unsigned |= mark == "%"
    if unsigned and isinstance(left, int) and isinstance(right, int) and mark not in _SHIFTS:
        left, right = _wrapped(left, True), _wrapped(right, True)
    if mark in _COMPARED:
        return Value(int(_COMPARED[mark](left, right)))
    if mark in _ARITHMETIC:
        return Value(_ARITHMETIC[mark](left, right), unsigned=unsigned)
    if not isinstance(left, int) or not isinstance(right, int):
        raise NoValue(f"{mark!r} takes whole numbers")
    if mark in _WHOLE:
        return Value(_WHOLE[mark](left, right), unsigned=unsigned)
    return Value(_SHIFTS[mark](left, _wrapped(right, True)), unsigned=a.unsigned)


def unary(mark: str, a: Value) -> Value:
    """`mark a`: + - ! ~ (which ptxas takes for unsigned), or a cast. Raises NoValue."""
    if mark == "+":
        return a
    if mark == "-":
        return Value(-a.number, unsigned=a.unsigned, bits=a.bits)
    if mark == "!":
        return Value(int(not a.number))
    if not isinstance(a.number, int):
        raise NoValue(f"{mark!r} takes a whole number")
    return Value(~a.number, unsigned=True) if mark == "~" else Value(a.number, unsigned=mark == ".u64")


def chosen(condition: Value, a: Value, b: Value) -> Value:
    """`condition ? a : b`."""
    return a if condition.number else b
