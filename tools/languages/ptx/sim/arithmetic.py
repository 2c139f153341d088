"""Instructions on registers alone: integers, bits, floating point, comparisons, conversions."""

from collections.abc import Callable

import numpy as np

from kerneltune.tools.languages.ptx.ir import Symbol
from kerneltune.tools.languages.ptx.sim.machine import Ins, Read, Run, WarpMachine
from kerneltune.tools.languages.ptx.sim.values import (
    UNSIGNED,
    base_of,
    bits_of,
    flush,
    fma_f64,
    is_float,
    is_signed,
    nearest,
    odd_fma,
    odd_sum,
    parts_of,
    resize,
    saturate,
    to_format,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array

# ---
# Integer arithmetic, and the comparison of numbers of every type.

Binary = Callable[[Array, Array], Array]


def wide_of(x: Array) -> Array:
    """Return values in twice the width (at most 64 bits)."""
    return x.astype(f"{x.dtype.kind}{min(8, x.dtype.itemsize * 2)}")


def high(a: Array, b: Array) -> Array:
    """Return the upper half of a product."""
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
    """Divide toward zero; by zero gives all bits set, as on GPUs."""
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
    """Divide the lowest number, whose |a| does not exist: floor division, moved toward zero."""
    floor = a // b
    return np.where((floor * b != a) & ((a < 0) != (b < 0)), floor + 1, floor)


def remainder(a: Array, b: Array) -> Array:
    """Return the remainder, with the sign of the dividend; by zero the dividend."""
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

    def run(m: WarpMachine) -> None:
        x, y = np.broadcast_arrays(a(m), b(m))
        extra = (read_carry(m) if carry_in else np.zeros(1, np.uint64)).astype(UNSIGNED[width])
        first = x - y if minus else x + y
        total = first - extra if minus else first + extra
        if sets:
            out = (x < y) | (first < extra) if minus else (first < x) | (total < first)
            set_carry(m, out)
        write(m, total)

    return run


def read_carry(m: WarpMachine) -> Array:
    """The condition code of the lanes at work."""
    return m.carry if m.idx is None or len(m.carry) == 1 else m.carry[m.idx]


def set_carry(m: WarpMachine, out: Array) -> None:
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

    def run(m: WarpMachine) -> None:
        value = product(a(m), b(m))
        if c is not None:
            value = _add(m, value, c(m), sets=sets, chained=chained, sat=sat)
        write(m, value.reshape(-1))

    return run


def _add(m: WarpMachine, x: Array, y: Array, *, sets: bool, chained: bool, sat: bool) -> Array:
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

    def run(m: WarpMachine) -> None:
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

    def run(m: WarpMachine) -> None:
        x = _pieces(a(m), left, 4 if four else 2)
        y = _pieces(b(m), right, 4)
        y = y if four else y[:, 2:] if upper else y[:, :2]
        write(m, c(m) + (x * y).sum(axis=1).astype(np.uint32))

    return run


def _pieces(bits: Array, kind: str, count: int) -> Array:
    sign = "i" if is_signed(kind) else "u"
    return np.ascontiguousarray(bits).view(f"{sign}{4 // count}").reshape(-1, count).astype(np.int64)


INT_OPS = {
    "add": binary, "sub": binary, "div": binary, "rem": binary, "min": binary, "max": binary,
    "addc": with_carry, "subc": with_carry,
    "mul": multiply, "mad": multiply, "madc": multiply, "mul24": multiply, "mad24": multiply,
    "sad": sad, "abs": unary, "neg": unary, "dp4a": dot_product, "dp2a": dot_product,
}  # fmt: skip


# ---
# Bits: logic, shifts, fields, permutations, moves.


def _simple(ins: Ins, fn: Callable[..., Array], kinds: list[str], result: str) -> Run:
    """d = fn(operands), with operands as bits of some types."""
    ins.expect(1 + len(kinds))
    ins.understood()
    readers = [ins.bits(operand, kind) for operand, kind in zip(ins.operands[1:], kinds, strict=True)]
    write = ins.write_bits(ins.operands[0], result)
    if len(readers) == 1:
        only = readers[0]
        return lambda m: write(m, fn(only(m)))
    if len(readers) == 2:
        a, b = readers
        return lambda m: write(m, fn(a(m), b(m)))
    return lambda m: write(m, fn(*np.broadcast_arrays(*(reader(m) for reader in readers))))


_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def logic(ins: Ins) -> Run:
    """and, or, xor."""
    return _simple(ins, _LOGIC[ins.opcode], [ins.kind] * 2, ins.kind)


def invert(ins: Ins) -> Run:
    """not, cnot."""
    fn = np.invert if ins.opcode == "not" else lambda x: (x == 0).astype(x.dtype)
    return _simple(ins, fn, [ins.kind], ins.kind)


def shift(ins: Ins) -> Run:
    """shl, shr: by more than the width is by the width."""
    kind = ins.kind
    width = bits_of(kind)
    left, signed = ins.opcode == "shl", is_signed(kind)

    def run(x: Array, by: Array) -> Array:
        by = np.minimum(by, width - 1 if signed else width).astype(x.dtype)
        if signed:
            return np.asarray(x.view(f"i{width // 8}") >> by.view(f"i{width // 8}")).view(x.dtype)
        amount = np.minimum(by, width - 1).astype(x.dtype)
        moved = x << amount if left else x >> amount
        return np.asarray(np.where(by >= width, x.dtype.type(0), moved))

    return _simple(ins, run, [kind, "u32"], kind)


def funnel(ins: Ins) -> Run:
    """shf: 32 bits out of 64."""
    left = ins.one_of(("l", "r")) == "l"
    clamp = ins.one_of(("wrap", "clamp")) == "clamp"

    def run(low: Array, up: Array, by: Array) -> Array:
        amount = (np.minimum(by, 32) if clamp else by & 31).astype(np.uint64)
        both = up.astype(np.uint64) << np.uint64(32) | low
        return ((both << amount >> np.uint64(32)) if left else both >> amount).astype(np.uint32)

    return _simple(ins, run, ["b32", "b32", "u32"], "b32")


def lookup(ins: Ins) -> Run:
    """lop3: any function of three bits."""
    if ins.flag("and", "or"):
        raise unsupported(ins.ins, "lop3 with a predicate")

    def run(a: Array, b: Array, c: Array, table: Array) -> Array:
        out = np.zeros(a.shape, np.uint32)
        for i in range(8):
            if int(table.flat[0]) >> i & 1:
                out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return out

    return _simple(ins, run, ["b32", "b32", "b32", "u32"], "b32")


_SHIFT_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


def permute(ins: Ins) -> Run:
    """prmt: four bytes out of eight, or their signs."""
    mode = ins.one_of(_SHIFT_MODES)

    def run(a: Array, b: Array, c: Array) -> Array:
        eight = np.stack([a, b], axis=1).astype(np.uint32).view(np.uint8)
        choice = _selectors(c, mode)
        picked = np.take_along_axis(eight, (choice & 7).astype(np.int64), axis=1)
        signs = np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0))
        return np.ascontiguousarray(np.where(choice & 8, signs, picked).astype(np.uint8)).view(np.uint32).reshape(-1)

    return _simple(ins, run, ["b32", "b32", "b32"], "b32")


def _selectors(c: Array, mode: str) -> Array:
    """[lane, 4]: which byte, and 8 where its sign is meant."""
    if not mode:
        return np.stack([c >> np.uint32(4 * i) & np.uint32(15) for i in range(4)], axis=1)
    low, i = (c & 3).astype(np.int64)[:, None], np.arange(4)
    if mode in ("f4e", "b4e"):
        return (low + i) % 8 if mode == "f4e" else (low - i) % 8
    if mode == "rc8":
        return np.repeat(low, 4, axis=1)
    if mode == "rc16":
        return (low & 1) * 2 + i % 2
    return np.maximum(low, i) if mode == "ecl" else np.minimum(low, i)


def extract(ins: Ins) -> Run:
    """bfe: a field of bits."""
    kind = ins.kind
    width, signed = bits_of(kind), is_signed(kind)

    def run(x: Array, start: Array, length: Array) -> Array:
        at, count = (start & 255).astype(np.int64), (length & 255).astype(np.int64)
        one = x.dtype.type(1)
        end = np.minimum(at + count, width)
        moved = np.where(at >= width, x.dtype.type(0), x >> np.minimum(at, width - 1).astype(x.dtype))
        have = np.clip(end - at, 0, width)
        mask = np.where(have >= width, ~x.dtype.type(0), (one << np.minimum(have, width - 1).astype(x.dtype)) - one)
        field: Array = moved & mask
        if not signed:
            return field
        top = np.clip(np.minimum(at + count - 1, width - 1), 0, width - 1).astype(x.dtype)
        negative = (x >> top & one).astype(bool) & (count > 0)
        return np.asarray(np.where(negative, field | ~mask, field))

    return _simple(ins, run, [kind, "u32", "u32"], kind)


def insert(ins: Ins) -> Run:
    """bfi: a field of bits put into others."""
    kind = ins.kind
    width = bits_of(kind)

    def run(a: Array, b: Array, start: Array, length: Array) -> Array:
        at, count = (start & 255).astype(np.int64), (length & 255).astype(np.int64)
        one = a.dtype.type(1)
        have = np.clip(np.minimum(at + count, width) - at, 0, width)
        mask = np.where(have >= width, ~a.dtype.type(0), (one << np.minimum(have, width - 1).astype(a.dtype)) - one)
        by = np.minimum(at, width - 1).astype(a.dtype)
        mask = np.where(at >= width, a.dtype.type(0), mask << by)
        return np.asarray(b & ~mask | (a << by) & mask)

    return _simple(ins, run, [kind, kind, "u32", "u32"], kind)


def _bit_matrix(x: Array) -> Array:
    """[lane, bit], the lowest bit first."""
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
    return np.unpackbits(raw, axis=1, bitorder="little")


def reverse(x: Array) -> Array:
    """brev."""
    flipped = np.packbits(_bit_matrix(x)[:, ::-1], axis=1, bitorder="little")
    return np.ascontiguousarray(flipped).view(x.dtype).reshape(-1)


def leading_zeros(x: Array) -> Array:
    """clz."""
    bits = _bit_matrix(x)[:, ::-1]
    return np.asarray(np.where(x == 0, bits.shape[1], bits.argmax(axis=1)), np.uint32)


def ones(x: Array) -> Array:
    """popc."""
    return np.asarray(_bit_matrix(x).sum(axis=1, dtype=np.uint32))


def find_leading(ins: Ins) -> Run:
    """bfind: the place of the highest bit that is not the sign; all ones where there is none."""
    amount = ins.flag("shiftamt")
    kind = ins.kind
    width = bits_of(kind)

    def run(x: Array) -> Array:
        if is_signed(kind):
            x = np.where(x >> x.dtype.type(width - 1), ~x, x)
        zeros = leading_zeros(x)
        place = zeros if amount else np.uint32(width - 1) - zeros
        return np.where(x == 0, np.uint32(0xFFFFFFFF), place).astype(np.uint32)

    return _simple(ins, run, [kind], "u32")


def count(ins: Ins) -> Run:
    """popc, clz."""
    return _simple(ins, ones if ins.opcode == "popc" else leading_zeros, [ins.kind], "u32")


def mirror(ins: Ins) -> Run:
    """brev."""
    return _simple(ins, reverse, [ins.kind], ins.kind)


def mask(ins: Ins) -> Run:
    """bmsk: ones from a place on."""
    wrap = ins.one_of(("clamp", "wrap")) == "wrap"

    def run(start: Array, length: Array) -> Array:
        at, many = (start & 31, length & 31) if wrap else (np.minimum(start, 32), np.minimum(length, 32))
        one = np.uint64(1)
        all_ones = (one << many.astype(np.uint64)) - one
        return (all_ones << at.astype(np.uint64)).astype(np.uint32)

    return _simple(ins, run, ["b32", "b32"], "b32")


def move(ins: Ins) -> Run:
    """mov: registers, numbers, addresses; packing and unpacking of {…}."""
    source = ins.operands[1] if len(ins.operands) == 2 else None
    if isinstance(source, Symbol) and source.name in ins.scope.labels:
        raise unsupported(ins.ins, "the address of a label")
    return _simple(ins, lambda x: x, [ins.kind], ins.kind)


def window(ins: Ins) -> Run:
    """cvta: between a window's addresses and generic ones."""
    to = ins.flag("to")
    space = ins.one_of(
        ("shared", "shared::cta", "shared::cluster", "local", "global", "const", "param", "param::entry")
    )
    base = {"shared": 1 << 32, "shared::cta": 1 << 32, "shared::cluster": 1 << 32, "local": 2 << 32}.get(space, 0)
    kind = ins.kind

    def run(x: Array) -> Array:
        at = x.astype(np.uint64)
        moved = at & np.uint64(0xFFFFFFFF) if to and base else at if to else at + np.uint64(base)
        return resize(moved, bits_of(kind))

    return _simple(ins, run, [kind], kind)


BIT_OPS = {
    **dict.fromkeys(_LOGIC, logic),
    "not": invert, "cnot": invert, "shl": shift, "shr": shift, "shf": funnel, "lop3": lookup, "prmt": permute,
    "bfe": extract, "bfi": insert, "bfind": find_leading, "popc": count, "clz": count, "brev": mirror, "bmsk": mask,
    "mov": move, "cvta": window,
}  # fmt: skip


# ---
# Arithmetic on floats of every width, plain and packed.
#
# Sums, products, fused products, quotients and roots are rounded once, as the modifier says (fma.f64 and the directed
# modes of f64: about). The `.approx` and `.full` functions are computed in float64 and rounded once: a GPU's differ
# from that by the few last bits that PTX allows. NaNs have other payloads than on a GPU.

Fn = Callable[..., Array]
_FLOAT_MODES = ("rn", "rz", "rm", "rp")


class Style:
    """How operands are taken and the result is given: .ftz, .sat, .relu, rounding."""

    def __init__(self, ins: Ins) -> None:
        self.kind = ins.kind
        self.base = base_of(self.kind)
        self.mode = ins.one_of(_FLOAT_MODES, "rn")
        self.ftz = ins.flag("ftz") and self.base == "f32"
        self.sat = ins.flag("sat")
        self.relu = ins.flag("relu")

    def build(self, ins: Ins, fn: Fn, count: int) -> Run:
        """d = fn(operands), where fn gives values that the format holds."""
        ins.expect(1 + count)
        ins.understood()
        readers = [ins.value(operand, self.kind) for operand in ins.operands[1:]]
        write = ins.write(ins.operands[0], self.kind)
        if not (self.ftz or self.sat or self.relu):
            if count == 2:
                a, b = readers
                return lambda m: write(m, fn(a(m), b(m)))
            return lambda m: write(m, fn(*(reader(m) for reader in readers)))
        return lambda m: write(m, self._finish(fn(*(self._start(reader(m)) for reader in readers))))

    def _start(self, x: Array) -> Array:
        return flush(x) if self.ftz else x

    def _finish(self, x: Array) -> Array:
        if self.ftz:
            x = flush(x)
        if self.sat:
            x = saturate(x)
        return np.where(x > 0, x, np.where(np.isnan(x), x, x.dtype.type(0))) if self.relu else x

    def rounded(self, plain: Fn, exact: Fn) -> Fn:
        """`plain` rounds to nearest in the operands' own type (float32 for bf16); `exact` is in float64."""
        kind, mode = self.base, self.mode
        if mode != "rn":
            return lambda *xs: to_format(exact(*(x.astype(np.float64) for x in xs)), kind, mode)
        if kind == "bf16":
            return lambda *xs: nearest(plain(*xs), kind)
        return plain


_EXACT: dict[str, Fn] = {
    "add": odd_sum,
    "sub": lambda a, b: odd_sum(a, -b),
    "mul": lambda a, b: odd_fma(a, b, np.zeros(1)),
    "div": np.divide,  # never so near to a number of the format that float64 would hide on which side it lies
}
_PLAIN: dict[str, Fn] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def arithmetic(ins: Ins) -> Run:
    """add, sub, mul, div."""
    style = Style(ins)
    ins.ignore("approx", "full")
    return style.build(ins, style.rounded(_PLAIN[ins.opcode], _EXACT[ins.opcode]), 2)


def fused(ins: Ins) -> Run:
    """fma, and mad of floats."""
    style = Style(ins)
    kind, mode = style.base, style.mode
    if kind == "f64":
        return style.build(ins, fma_f64, 3)
    return style.build(ins, lambda a, b, c: to_format(odd_fma(a, b, c), kind, mode), 3)


def extreme(ins: Ins) -> Run:
    """min and max: of a number and a NaN the number, but .NaN; -0 is below +0. .xorsign.abs: of magnitudes, with the
    product's sign."""
    style = Style(ins)
    keeps_nan = ins.flag("NaN")
    crossed = ins.flag("xorsign", "abs")
    least = ins.opcode == "min"
    fn = (np.minimum if least else np.maximum) if keeps_nan else (np.fmin if least else np.fmax)

    def run(*xs: Array) -> Array:
        if crossed:
            signs = np.signbit(xs[0]) != np.signbit(xs[1])
            found = fn(np.abs(xs[0]), np.abs(xs[1]))
            return np.where(signs, -found, found)
        found = fn(xs[0], xs[1])
        for x in xs[2:]:
            found = fn(found, x)
        zero = found == 0
        if zero.any():
            negative = [np.signbit(x) & (x == 0) for x in xs]
            minus = (
                np.logical_or.reduce(np.broadcast_arrays(*negative))
                if least
                else np.logical_and.reduce(np.broadcast_arrays(*negative))
            )
            found = np.where(zero, np.where(minus, found.dtype.type(-0.0), found.dtype.type(0)), found)
        return found

    return style.build(ins, run, len(ins.operands) - 1)


def sign(ins: Ins) -> Run:
    """neg, abs."""
    style = Style(ins)
    return style.build(ins, np.negative if ins.opcode == "neg" else np.abs, 1)


def copy_sign(ins: Ins) -> Run:
    """copysign d, a, b: |b| with the sign of a."""
    style = Style(ins)
    return style.build(ins, lambda a, b: np.copysign(b, a), 2)


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def function(ins: Ins) -> Run:
    """rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh: through float64, rounded once."""
    style = Style(ins)
    ins.ignore("approx")
    fn, kind, mode = _FUNCTIONS[ins.opcode], style.base, style.mode

    def run(x: Array) -> Array:
        wide = fn(x.astype(np.float64))
        return nearest(wide, kind) if mode == "rn" else to_format(wide, kind, mode)

    return style.build(ins, run, 1)


FLOAT_OPS = {
    **dict.fromkeys(_PLAIN, arithmetic), **dict.fromkeys(_FUNCTIONS, function),
    "fma": fused, "mad": fused, "min": extreme, "max": extreme, "neg": sign, "abs": sign, "copysign": copy_sign,
}  # fmt: skip


# ---
# Comparisons and choices: setp, set, selp, slct.

Test = Callable[[Array, Array], Array]
_ORDERED: dict[str, Test] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLS: dict[str, Test] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_TESTS = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _test(name: str, *, floats: bool) -> Test:
    if name == "nan":
        return _unordered
    if name == "num":
        return lambda a, b: ~_unordered(a, b)
    if name == "ne" and floats:  # ordered: false where there is a NaN
        return lambda a, b: np.not_equal(a, b) & ~_unordered(a, b)
    if name in _ORDERED:
        return _ORDERED[name]
    plain = _ORDERED[name[:2]]
    return lambda a, b: plain(a, b) | _unordered(a, b)


def _comparison(ins: Ins, kind: str) -> Callable[[WarpMachine], Array]:
    """The truth of `a op b`, combined with a predicate where the modifier says so."""
    name = ins.one_of(_TESTS)
    if not name:
        raise unsupported(ins.ins, "no comparison that is known")
    combine = ins.one_of(tuple(_BOOLS))
    ftz = ins.flag("ftz")
    ins.understood()
    ins.expect(4 if combine else 3)
    test = _test(name, floats=is_float(kind))
    a, b = ins.value(ins.operands[1], kind), ins.value(ins.operands[2], kind)
    if ftz:
        a, b = _flushed(a), _flushed(b)
    if not combine:
        return lambda m: test(a(m), b(m))
    third, both = ins.bits(ins.operands[3], "pred"), _BOOLS[combine]
    return lambda m: both(test(a(m), b(m)), third(m))


def _flushed(reader: Read) -> Read:
    return lambda m: flush(reader(m))


def set_predicate(ins: Ins) -> Run:
    """setp: p = a op b, and q = its opposite; for packed types p and q of the two parts."""
    first, second = ins.results()
    kind = ins.kind
    negated = len(ins.operands) == 4 and second is not None
    if negated:
        raise unsupported(ins.ins, "two results with a third operand")
    compare = _comparison(ins, kind)
    p = ins.write_bits(first, "pred")
    q = None if second is None else ins.write_bits(second, "pred")
    packed = parts_of(kind) == 2

    def run(m: WarpMachine) -> None:
        truth = compare(m)
        p(m, truth[:, 0] if packed else truth)
        if q is not None:
            q(m, truth[:, 1] if packed else ~truth)

    return run


def set_value(ins: Ins) -> Run:
    """set: all ones, or 1.0."""
    result, kind = ins.kinds[0], ins.kinds[1]
    if parts_of(kind) == 2 or result not in ("u32", "s32", "f32"):
        raise unsupported(ins.ins, f"set of {result} by {kind}")
    compare = _comparison(ins, kind)
    write = ins.write_bits(ins.operands[0], result)
    yes = np.uint32(0x3F800000 if result == "f32" else 0xFFFFFFFF)
    return lambda m: write(m, np.where(compare(m), yes, np.uint32(0)))


def select(ins: Ins) -> Run:
    """selp: one of two by a predicate."""
    ins.expect(4)
    ins.understood()
    kind = ins.kind
    a, b = ins.bits(ins.operands[1], kind), ins.bits(ins.operands[2], kind)
    p, write = ins.bits(ins.operands[3], "pred"), ins.write_bits(ins.operands[0], kind)
    return lambda m: write(m, np.where(p(m), a(m), b(m)))


def select_by_sign(ins: Ins) -> Run:
    """slct: one of two by the sign of a third."""
    ins.expect(4)
    ftz = ins.flag("ftz")
    ins.understood()
    kind, by = ins.kinds
    a, b = ins.bits(ins.operands[1], kind), ins.bits(ins.operands[2], kind)
    c, write = ins.value(ins.operands[3], by), ins.write_bits(ins.operands[0], kind)
    if ftz:
        c = _flushed(c)
    return lambda m: write(m, np.where(c(m) >= 0, a(m), b(m)))


def test_property(ins: Ins) -> Run:
    """testp: finite, infinite, number, notanumber, normal, subnormal."""
    ins.expect(2)
    what, kind = ins.one_of(("finite", "infinite", "number", "notanumber", "normal", "subnormal")), ins.kind
    ins.understood()
    a, write = ins.value(ins.operands[1], kind), ins.write_bits(ins.operands[0], "pred")
    smallest = 2.0 ** (-126 if bits_of(kind) == 32 else -1022)
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= smallest),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < smallest),
    }
    return lambda m: write(m, tests[what](a(m)))


COMPARE_OPS = {"setp": set_predicate, "set": set_value, "selp": select, "slct": select_by_sign, "testp": test_property}


# ---
# cvt: between all types, with PTX's rounding.

Values = Callable[[Array], Array]
_CONVERT_MODES = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(ins: Ins) -> Run:
    """cvt of every kind."""
    if len(ins.kinds) != 2:
        raise unsupported(ins.ins, "cvt takes two types")
    target, source = ins.kinds
    mode = ins.one_of(_CONVERT_MODES)
    ftz, sat, relu, finite = ins.flag("ftz"), ins.flag("sat"), ins.flag("relu"), ins.flag("satfinite")
    ins.understood()
    change = _Change(target, source, mode, sat=sat, finite=finite or target in ("e4m3x2", "e5m2x2"))

    def whole(x: Array) -> Array:
        if ftz and x.dtype == np.float32:
            x = flush(x)
        out = change(x)
        if ftz and base_of(target) == "f32":
            out = flush(out)
        return np.where((out > 0) | np.isnan(out), out, out.dtype.type(0)) if relu else out

    return _packing(ins, target, source, whole) if len(ins.operands) == 3 else _single(ins, target, source, whole)


class _Change:
    """Values of one type to values of another."""

    def __init__(self, target: str, source: str, mode: str, *, sat: bool, finite: bool) -> None:
        self.target, self.source, self.mode, self.sat, self.finite = base_of(target), base_of(source), mode, sat, finite

    def __call__(self, x: Array) -> Array:
        if is_float(self.source):
            return self._to_float(x) if is_float(self.target) else self._to_whole(x)
        return self._number(x) if is_float(self.target) else self._clamp(x)

    def _to_float(self, x: Array) -> Array:
        if self.mode in _WHOLE:
            x = _WHOLE[self.mode](x)
        mode = self.mode if self.mode in ("rz", "rm", "rp", "rna") else "rn"
        if bits_of(self.target) > bits_of(self.source):
            out = x.astype(np.float64 if self.target == "f64" else np.float16 if self.target == "f16" else np.float32)
        elif self.target == "bf16" and mode == "rn" and not self.finite and x.dtype == np.float32:
            out = nearest(x, "bf16")
        else:
            out = to_format(x.astype(np.float64), self.target, mode, satfinite=self.finite)
        return saturate(out) if self.sat else out

    def _to_whole(self, x: Array) -> Array:
        """Clamped to what the type holds; NaN is 0, or the lowest bit pattern with only the top bit for 64 bits."""
        bits, signed = bits_of(self.target), is_signed(self.target)
        whole = _WHOLE.get(self.mode, np.trunc)(x.astype(np.float64))
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        over, under, nan = whole >= float(high), whole <= float(low), np.isnan(whole)
        inside = np.where(over | under | nan, 0.0, whole)
        kind = np.int64 if signed else np.uint64
        out = np.where(over, kind(high), np.where(under, kind(low), inside.astype(kind)))
        top = bits == 64 or self.source == "f64"
        return np.where(nan, kind(low) if signed and top else kind(2 ** (bits - 1) if top else 0), out)

    def _number(self, x: Array) -> Array:
        if self.target in ("f32", "f64") and self.mode in ("rn", ""):
            out = x.astype(f"f{bits_of(self.target) // 8}")
        else:
            wide = x.astype(np.int64) if is_signed(self.source) else x.astype(np.uint64)
            out = to_format(_odd(wide), self.target, self.mode or "rn")
        return saturate(out) if self.sat else out

    def _clamp(self, x: Array) -> Array:
        wide = x.astype(np.int64) if is_signed(self.source) else x.astype(np.uint64)
        if not self.sat:
            return wide.view(np.uint64)
        bits, signed = bits_of(self.target), is_signed(self.target)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if wide.dtype == np.uint64:
            return np.minimum(wide, np.uint64(high))
        return np.clip(wide, low, min(high, 2**63 - 1)).view(np.uint64)


def _odd(x: Array) -> Array:
    """Whole numbers as float64, rounded to odd where they have more than 53 bits."""
    near = x.astype(np.float64)
    large = np.abs(near) >= 2.0**53
    if not large.any():
        return near
    sticky = (x & x.dtype.type(0x7FF)) != 0
    cut = x >> x.dtype.type(11) << x.dtype.type(11) | sticky.astype(x.dtype) << x.dtype.type(11)
    return np.where(large, cut.astype(np.float64), near)


def _single(ins: Ins, target: str, source: str, change: Values) -> Run:
    ins.expect(2)
    if parts_of(target) != parts_of(source):
        raise unsupported(ins.ins, "cvt between a packed type and another")
    read, write = ins.value(ins.operands[1], source), ins.write(ins.operands[0], target)
    return lambda m: write(m, change(read(m)))


def _packing(ins: Ins, target: str, source: str, change: Values) -> Run:
    """d = {a above, b below}."""
    if parts_of(target) != 2 or parts_of(source) != 1:
        raise unsupported(ins.ins, "cvt of two operands to one number")
    above, below = (ins.value(operand, source) for operand in ins.operands[1:])
    write = ins.write(ins.operands[0], target)

    def run(m: WarpMachine) -> None:
        write(m, change(np.stack(np.broadcast_arrays(below(m), above(m)), axis=1)))

    return run


CONVERT_OPS = {"cvt": convert}
