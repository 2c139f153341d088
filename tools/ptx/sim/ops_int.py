"""Integer arithmetic, and the comparison of numbers of every type."""

from collections.abc import Callable

import numpy as np

from tools.ptx.sim.formats import UNSIGNED, bits_of, is_signed
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.operands import Ins, Run
from tools.ttir.ir import Array

Binary = Callable[[Array, Array], Array]


def wide_of(x: Array) -> Array:
    """In twice the width (at most 64 bits)."""
    return x.astype(f"{x.dtype.kind}{min(8, x.dtype.itemsize * 2)}")


def high(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    size = a.dtype.itemsize
    if size < 8:
        return np.asarray(wide_of(a) * wide_of(b) >> (size * 8)).astype(a.dtype)
    upper = _high_64(a.view(np.uint64), b.view(np.uint64))
    if a.dtype.kind == "i":
        upper = (
            upper - np.where(a < 0, b.view(np.uint64), np.uint64(0)) - np.where(b < 0, a.view(np.uint64), np.uint64(0))
        )
    return upper.view(a.dtype)


def _high_64(a: Array, b: Array) -> Array:
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    al, ah, bl, bh = a & low, a >> half, b & low, b >> half
    middle = (al * bl >> half) + (ah * bl & low) + (al * bh & low)
    return np.asarray(ah * bh + (ah * bl >> half) + (al * bh >> half) + (middle >> half))


def divide(a: Array, b: Array) -> Array:
    """Toward zero; by zero: all bits set, as GPUs do."""
    a, b = np.broadcast_arrays(a, b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a // safe)
    lowest = (a == np.iinfo(a.dtype).min) & (safe == -1)
    safe = np.where(lowest, a.dtype.type(1), safe)
    quotient = np.abs(a) // np.abs(safe)
    signed = np.where((a < 0) != (safe < 0), -quotient, quotient)
    signed = np.where(a == np.iinfo(a.dtype).min, _lowest(a, safe), signed)
    return np.where(b == 0, a.dtype.type(-1), signed).astype(a.dtype)


def _lowest(a: Array, b: Array) -> Array:
    """Where |a| does not exist: floor division, moved toward zero."""
    floor = a // b
    return np.where((floor * b != a) & ((a < 0) != (b < 0)), floor + 1, floor)


def remainder(a: Array, b: Array) -> Array:
    """With the sign of the dividend; by zero: the dividend."""
    a, b = np.broadcast_arrays(a, b)
    return np.where(b == 0, a, a - divide(a, b) * b)


def saturated(fn: Binary) -> Binary:
    """.sat of s32."""

    def run(a: Array, b: Array) -> Array:
        wide = fn(a.astype(np.int64), b.astype(np.int64))
        return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)

    return run


_BINARY: dict[str, Binary] = {
    "add": np.add,
    "sub": np.subtract,
    "div": divide,
    "rem": remainder,
    "min": np.minimum,
    "max": np.maximum,
}


def binary(ins: Ins) -> Run:
    """d = a op b, with the carry where .cc says so."""
    ins.expect(3)
    kind, fn = ins.kind, _BINARY[ins.opcode]
    if ins.flag("cc") or ins.opcode in ("addc", "subc"):
        return _carrying(ins, carry_in=False, sets=True)
    if ins.flag("sat"):
        fn = saturated(fn)
    if ins.flag("relu"):
        plain = fn
        fn = lambda a, b: np.maximum(plain(a, b), 0)  # noqa: E731
    ins.understood()
    return _apply(ins, kind, fn)


def _apply(ins: Ins, kind: str, fn: Binary) -> Run:
    a, b, write = ins.value(ins.operands[1], kind), ins.value(ins.operands[2], kind), ins.write(ins.operands[0], kind)
    if parts(kind) == 1:
        return lambda m: write(m, fn(a(m), b(m)).reshape(-1))
    return lambda m: write(m, fn(a(m), b(m)))


def parts(kind: str) -> int:
    """2 of packed types."""
    return 2 if kind.endswith("x2") else 1


def with_carry(ins: Ins) -> Run:
    """addc, subc."""
    ins.expect(3)
    return _carrying(ins, carry_in=True, sets=ins.flag("cc"))


def _carrying(ins: Ins, *, carry_in: bool, sets: bool) -> Run:
    """The carry is that of the addition; a subtraction adds the complement, so that its borrow is the carry's absence,
    and is kept as 1 where there is a borrow."""
    ins.understood()
    width, minus = bits_of(ins.kind), ins.opcode in ("sub", "subc")
    a, b = ins.bits(ins.operands[1], ins.kind), ins.bits(ins.operands[2], ins.kind)
    write = ins.write_bits(ins.operands[0], ins.kind)

    def run(m: Machine) -> None:
        x, y = np.broadcast_arrays(a(m), b(m))
        extra = (read_carry(m) if carry_in else np.zeros(1, np.uint64)).astype(UNSIGNED[width])
        first = x - y if minus else x + y
        total = first - extra if minus else first + extra
        if sets:
            out = (x < y) | (first < extra) if minus else (first < x) | (total < first)
            set_carry(m, out)
        write(m, total)

    return run


def read_carry(m: Machine) -> Array:
    """The condition code of the lanes at work."""
    return m.carry if m.idx is None or len(m.carry) == 1 else m.carry[m.idx]


def set_carry(m: Machine, out: Array) -> None:
    """Set the condition code of the lanes at work."""
    if m.idx is None:
        m.carry = out.astype(np.uint64)
        return
    new = np.array(np.broadcast_to(m.carry, m.count))
    new[m.idx] = out
    m.carry = new


def multiply(ins: Ins) -> Run:
    """mul and mad of integers: .lo, .hi, .wide, and the 24-bit forms."""
    kind, part = ins.kind, ins.one_of(("lo", "hi", "wide"), "lo")
    mad, narrow = ins.opcode.startswith("mad"), ins.opcode.endswith("24")
    ins.expect(4 if mad else 3)
    sets, chained, sat = ins.flag("cc"), ins.opcode == "madc", ins.flag("sat")
    ins.understood()
    wide = f"{kind[0]}{bits_of(kind) * 2}" if part == "wide" else kind
    a, b = ins.value(ins.operands[1], kind), ins.value(ins.operands[2], kind)
    c = ins.value(ins.operands[3], wide) if mad else None
    write = ins.write(ins.operands[0], wide)

    def product(x: Array, y: Array) -> Array:
        if narrow:
            return _product_24(x, y, part)
        if part == "wide":
            return wide_of(x) * wide_of(y)
        return high(*np.broadcast_arrays(x, y)) if part == "hi" else x * y

    def run(m: Machine) -> None:
        value = product(a(m), b(m))
        if c is not None:
            value = _add(m, value, c(m), sets=sets, chained=chained, sat=sat)
        write(m, value.reshape(-1))

    return run


def _add(m: Machine, x: Array, y: Array, *, sets: bool, chained: bool, sat: bool) -> Array:
    if sat:
        return saturated(np.add)(x, y)
    if not (sets or chained):
        return x + y
    kept = x.dtype
    x, y = (np.ascontiguousarray(v).view(f"u{kept.itemsize}") for v in np.broadcast_arrays(x, y))
    extra = (read_carry(m) if chained else np.zeros(1, np.uint64)).astype(x.dtype)
    first = x + y
    total = first + extra
    if sets:
        set_carry(m, (first < x) | (total < first))
    return np.asarray(total).view(kept)


def _product_24(x: Array, y: Array, part: str) -> Array:
    """The 48-bit product of the lower 24 bits, its lower or its upper 32 bits."""
    x, y = ((v.astype(np.int64) << 40) >> 40 if v.dtype.kind == "i" else v.astype(np.int64) & 0xFFFFFF for v in (x, y))
    return (x * y >> (16 if part == "hi" else 0)).astype(np.uint32)


def sad(ins: Ins) -> Run:
    """c + |a - b|"""
    ins.expect(4)
    ins.understood()
    kind = ins.kind
    a, b, c = (ins.value(operand, kind) for operand in ins.operands[1:])
    write = ins.write(ins.operands[0], kind)

    def run(m: Machine) -> None:
        x, y = a(m), b(m)
        write(m, c(m) + np.where(x < y, y - x, x - y))

    return run


def unary(ins: Ins) -> Run:
    """abs and neg."""
    ins.expect(2)
    ins.understood()
    fn = {"abs": np.abs, "neg": np.negative}[ins.opcode]
    a, write = ins.value(ins.operands[1], ins.kind), ins.write(ins.operands[0], ins.kind)
    return lambda m: write(m, fn(a(m)))


def dot_product(ins: Ins) -> Run:
    """dp4a and dp2a: products of bytes (and halves) added up."""
    ins.expect(4)
    four = ins.opcode == "dp4a"
    upper = not four and ins.one_of(("lo", "hi")) == "hi"
    ins.understood()
    left, right = ins.kinds[0], ins.kinds[1]
    signed = is_signed(left) or is_signed(right)
    a, b = ins.bits(ins.operands[1], left), ins.bits(ins.operands[2], right)
    c, write = ins.bits(ins.operands[3], "b32"), ins.write_bits(ins.operands[0], "s32" if signed else "u32")

    def run(m: Machine) -> None:
        x = _pieces(a(m), left, 4 if four else 2)
        y = _pieces(b(m), right, 4)
        y = y if four else y[:, 2:] if upper else y[:, :2]
        write(m, c(m) + (x * y).sum(axis=1).astype(np.uint32))

    return run


def _pieces(bits: Array, kind: str, count: int) -> Array:
    sign = "i" if is_signed(kind) else "u"
    return np.ascontiguousarray(bits).view(f"{sign}{4 // count}").reshape(-1, count).astype(np.int64)


OPS = {
    "add": binary, "sub": binary, "div": binary, "rem": binary, "min": binary, "max": binary,
    "addc": with_carry, "subc": with_carry,
    "mul": multiply, "mad": multiply, "madc": multiply, "mul24": multiply, "mad24": multiply,
    "sad": sad, "abs": unary, "neg": unary, "dp4a": dot_product, "dp2a": dot_product,
}  # fmt: skip
