"""Instructions on registers alone: integers, bits, floating point, comparisons, conversions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kerneltune.tools.languages.ptx.ir import Operand, Symbol, bits_of
from kerneltune.tools.languages.ptx.sim.machine import LOCAL, SHARED, Ins, Read, Run, WarpMachine
from kerneltune.tools.languages.ptx.sim.values import (
    MODES,
    UNSIGNED,
    base_of,
    directed,
    is_float,
    is_signed,
    parts_of,
    rectify,
    resize,
    to_format,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array
from kerneltune.tools.languages.triton.ttir.values import (
    ROUNDED,
    divide,
    extreme,
    float_to_int,
    flush,
    fma_f64,
    leading_zeros,
    multiply_high,
    odd_fma,
    odd_sum,
    saturate,
    shift,
    sign_of_sum,
)

Fn = Callable[..., Any]  # of arrays
Builder = Callable[[Ins], Run]

# ---
# Integer arithmetic.


def _wide(x: Array) -> Array:
    """Values in twice the width (at most 64 bits)."""
    return x.astype(f"{x.dtype.kind}{min(8, x.dtype.itemsize * 2)}")


def _high(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    held = f"i{a.dtype.itemsize}"
    return multiply_high(a.view(held), b.view(held), a.dtype.kind == "i").view(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    """The remainder, with the sign of the dividend; by zero the dividend."""
    return np.where(b == 0, a, a - divide(a, b) * b)


def _saturated(fn: Fn) -> Fn:
    """.sat of s32."""
    return lambda a, b: np.clip(fn(a.astype(np.int64), b.astype(np.int64)), -(2**31), 2**31 - 1).astype(np.int32)


_TWO: dict[str, Fn] = {
    "add": np.add, "sub": np.subtract, "div": divide, "rem": _remainder, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _binary(ins: Ins) -> Run:
    """d = a op b, with the carry where .cc says so."""
    if ins.flag("cc"):
        return _carrying(ins, sets=True)
    fn = _TWO[ins.opcode]
    if ins.flag("sat"):
        fn = _saturated(fn)
    if ins.flag("relu"):
        plain = fn
        fn = lambda a, b: np.maximum(plain(a, b), 0)  # noqa: E731
    return ins.compute(fn, [ins.kind] * 2)


def _with_carry(ins: Ins) -> Run:
    """addc, subc."""
    return _carrying(ins, sets=ins.flag("cc"))


def _carrying(ins: Ins, *, sets: bool) -> Run:
    ins.expect(3)
    ins.understood()
    a, b = ins.bits(ins.operands[1], ins.kind), ins.bits(ins.operands[2], ins.kind)
    write, minus, chained = ins.write_bits(ins.operands[0], ins.kind), ins.opcode[:3] == "sub", ins.opcode[3:] == "c"
    return lambda m: write(m, _summed(m, a(m), b(m), minus=minus, chained=chained, sets=sets))


def _summed(m: WarpMachine, x: Array, y: Array, *, minus: bool = False, chained: bool, sets: bool) -> Array:
    """A sum, or a difference, of bits, with the carry of the lanes at work as a third summand (`chained`). Its own
    carry is kept (`sets`): 1 where a subtraction borrows."""
    x, y = np.broadcast_arrays(x, y)
    before = m.carry if m.idx is None or len(m.carry) == 1 else m.carry[m.idx]
    extra = before.astype(x.dtype) if chained else np.zeros(1, x.dtype)
    first = x - y if minus else x + y
    total = first - extra if minus else first + extra
    if sets:
        out = (x < y) | (first < extra) if minus else (first < x) | (total < first)
        if m.idx is None:
            m.carry = out.astype(np.uint64)
        else:
            m.carry = np.array(np.broadcast_to(m.carry, m.count))
            m.carry[m.idx] = out
    return np.asarray(total)


def _multiply(ins: Ins) -> Run:
    """mul and mad of integers: .lo, .hi, .wide, the 24-bit forms, and mad with the carry."""
    kind, part = ins.kind, ins.one_of(("lo", "hi", "wide"), "lo")
    sets, chained, sat = ins.flag("cc"), ins.opcode == "madc", ins.flag("sat")
    wide = f"{kind[0]}{bits_of(kind) * 2}" if part == "wide" else kind
    product: Fn = np.multiply
    if ins.opcode.endswith("24"):
        product = lambda x, y: _product_24(x, y, part)  # noqa: E731
    elif part == "wide":
        product = lambda x, y: _wide(x) * _wide(y)  # noqa: E731
    elif part == "hi":
        product = _high
    if not ins.opcode.startswith("mad"):
        return ins.compute(product, [kind, kind], wide)
    if sets or chained:
        return _multiply_carrying(ins, product, kind, wide, chained=chained, sets=sets)
    add = _saturated(np.add) if sat else np.add
    return ins.compute(lambda x, y, z: add(product(x, y), z), [kind, kind, wide])


def _multiply_carrying(ins: Ins, product: Fn, kind: str, wide: str, *, chained: bool, sets: bool) -> Run:
    ins.expect(4)
    ins.understood()
    a, b = ins.value(ins.operands[1], kind), ins.value(ins.operands[2], kind)
    c, write = ins.bits(ins.operands[3], wide), ins.write_bits(ins.operands[0], wide)
    bits = UNSIGNED[bits_of(wide)]
    return lambda m: write(m, _summed(m, product(a(m), b(m)).view(bits), c(m), chained=chained, sets=sets))


def _product_24(x: Array, y: Array, part: str) -> Array:
    """The 48-bit product of the lower 24 bits, its lower or its upper 32 bits."""
    x, y = ((v.astype(np.int64) << 40) >> 40 if v.dtype.kind == "i" else v.astype(np.int64) & 0xFFFFFF for v in (x, y))
    return (x * y >> (16 if part == "hi" else 0)).astype(np.int32)


def _dot_product(ins: Ins) -> Run:
    """dp4a and dp2a: products of bytes (and halves) added up."""
    four = ins.opcode == "dp4a"
    upper = not four and ins.one_of(("lo", "hi")) == "hi"
    left, right = ins.kinds[0], ins.kinds[1]

    def run(a: Array, b: Array, c: Array) -> Array:
        x, y = _pieces(a, left, 4 if four else 2), _pieces(b, right, 4)
        y = y if four else y[:, 2:] if upper else y[:, :2]
        return np.asarray(c + (x * y).sum(axis=1).astype(np.uint32))

    return ins.compute(run, [left, right, "b32"])


def _pieces(bits: Array, kind: str, count: int) -> Array:
    sign = "i" if is_signed(kind) else "u"
    return np.ascontiguousarray(bits).view(f"{sign}{4 // count}").reshape(-1, count).astype(np.int64)


def _of_kind(fn: Fn, count: int, result: str = "") -> Builder:
    """d = fn(operands), all of the instruction's type; d may have another."""
    return lambda ins: ins.compute(fn, [ins.kind] * count, result or ins.kind)


REGISTER_OPS: dict[str, Builder] = {
    **dict.fromkeys(_TWO, _binary), **dict.fromkeys(("addc", "subc"), _with_carry),
    **dict.fromkeys(("mul", "mad", "madc", "mul24", "mad24"), _multiply),
    **dict.fromkeys(("dp4a", "dp2a"), _dot_product),
    "abs": _of_kind(np.abs, 1), "neg": _of_kind(np.negative, 1),
    "sad": _of_kind(lambda a, b, c: c + np.where(a < b, b - a, a - b), 3),
}  # fmt: skip


# ---
# Bits: logic, shifts, fields, permutations, moves.


def _shift(ins: Ins) -> Run:
    """shl, shr: by more than the width is by the width."""
    op = np.left_shift if ins.opcode == "shl" else np.right_shift
    return ins.compute(partial(shift, op), [ins.kind, "u32"], ins.kind)


def _funnel(ins: Ins) -> Run:
    """shf: 32 bits out of 64."""
    left = ins.one_of(("l", "r")) == "l"
    clamp = ins.one_of(("wrap", "clamp")) == "clamp"

    def run(low: Array, up: Array, by: Array) -> Array:
        amount = (np.minimum(by, 32) if clamp else by & 31).astype(np.uint64)
        both = up.astype(np.uint64) << np.uint64(32) | low
        return ((both << amount >> np.uint64(32)) if left else both >> amount).astype(np.uint32)

    return ins.compute(run, ["b32", "b32", "u32"], "b32")


def _lookup(ins: Ins) -> Run:
    """lop3: any function of three bits."""
    if ins.flag("and", "or"):
        raise unsupported(ins.ins, "lop3 with a predicate")

    def run(a: Array, b: Array, c: Array, table: Array) -> Array:
        out: Array = np.zeros(1, np.uint32)
        for i in range(8):
            if int(table.flat[0]) >> i & 1:
                out = out | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return out

    return ins.compute(run, ["b32", "b32", "b32", "u32"], "b32")


# [lane, 4]: which byte, by the lower two bits of the selector (in one column) and the byte's place
_SELECTORS: dict[str, Callable[[Array, Array], Array]] = {
    "f4e": lambda low, i: (low + i) % 8,
    "b4e": lambda low, i: (low - i) % 8,
    "rc8": lambda low, i: low + 0 * i,
    "rc16": lambda low, i: (low & 1) * 2 + i % 2,
    "ecl": np.maximum,
    "ecr": np.minimum,
}


def _permute(ins: Ins) -> Run:
    """prmt: four bytes out of eight, or their signs."""
    mode = ins.one_of(tuple(_SELECTORS))

    def run(a: Array, b: Array, c: Array) -> Array:
        a, b, c = np.broadcast_arrays(a, b, c)
        eight = np.stack([a, b], axis=1).view(np.uint8)
        if mode:
            choice = _SELECTORS[mode]((c & 3).astype(np.int64)[:, None], np.arange(4))
        else:  # 4 bits for each byte; the highest says that its sign is meant
            choice = c[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
        picked = np.take_along_axis(eight, (choice & 7).astype(np.int64), axis=1)
        signs = np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0))
        return np.ascontiguousarray(np.where(choice & 8, signs, picked)).view(np.uint32).reshape(-1)

    return ins.compute(run, ["b32", "b32", "b32"])


def _field(start: Array, length: Array, width: int) -> tuple[Array, Array]:
    """Where a field of bits begins, and how many bits lie above one of its length. Of 32 bits the lowest byte says so.
    The manual says the same of 64, but an H200, for which ptxas makes shifts of those, takes place and length whole."""
    at, count = (start & 255, length & 255) if width == 32 else (start, length)
    return at, width - np.minimum(count, width)


def _extract(ins: Ins) -> Run:
    """bfe: a field of bits; beyond the last one are zeros, or the sign."""
    kind = ins.kind

    def run(x: Array, start: Array, length: Array) -> Array:
        at, above = _field(start, length, bits_of(kind))
        field = shift(np.right_shift, x, at)
        return shift(np.right_shift, shift(np.left_shift, field, above), above)

    return ins.compute(run, [kind, "u32", "u32"], kind)


def _insert(ins: Ins) -> Run:
    """bfi: a field of bits put into others."""
    kind = ins.kind

    def run(a: Array, b: Array, start: Array, length: Array) -> Array:
        at, above = _field(start, length, bits_of(kind))
        ones = shift(np.right_shift, ~a.dtype.type(0), above)
        return shift(np.left_shift, a & ones, at) | b & ~shift(np.left_shift, ones, at)

    return ins.compute(run, [kind, kind, "u32", "u32"], kind)


def _mask(ins: Ins) -> Run:
    """bmsk: ones from a place on."""
    wrap = ins.one_of(("clamp", "wrap")) == "wrap"

    def run(start: Array, length: Array) -> Array:
        at, many = (start & 31, length & 31) if wrap else (np.minimum(start, 32), np.minimum(length, 32))
        one = np.uint64(1)
        return (((one << many.astype(np.uint64)) - one) << at.astype(np.uint64)).astype(np.uint32)

    return ins.compute(run, ["b32", "b32"])


_REVERSED_BYTES = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def _reversed(x: Array) -> Array:
    return _REVERSED_BYTES[np.ascontiguousarray(x).view(np.uint8)].view(x.dtype).byteswap()


def _find_leading(ins: Ins) -> Run:
    """bfind: the place of the highest bit that is not the sign; all ones where there is none."""
    amount, kind = ins.flag("shiftamt"), ins.kind

    def run(x: Array) -> Array:
        x = np.where(x < 0, ~x, x)
        zeros = leading_zeros(x)
        place = zeros if amount else np.uint32(bits_of(kind) - 1) - zeros
        return np.where(x == 0, np.uint32(0xFFFFFFFF), place)

    return ins.compute(run, [kind], "u32")


def _move(ins: Ins) -> Run:
    """mov: registers, numbers, addresses; packing and unpacking of {…}."""
    source = ins.operands[1] if len(ins.operands) == 2 else None
    if isinstance(source, Symbol) and source.name in ins.scope.labels:
        raise unsupported(ins.ins, "the address of a label")
    ins.understood()
    ins.expect(2)
    read, write = ins.bits(ins.operands[1], ins.kind), ins.write_bits(ins.operands[0], ins.kind)
    return lambda m: write(m, read(m))


_WINDOWS = {"shared": SHARED, "shared::cta": SHARED, "shared::cluster": SHARED, "local": LOCAL}


def _window(ins: Ins) -> Run:
    """cvta: between a window's addresses and generic ones."""
    to = ins.flag("to")
    base = _WINDOWS.get(ins.one_of((*_WINDOWS, "global", "const", "param", "param::entry")), 0)
    kind = ins.kind

    def run(x: Array) -> Array:
        at = x.astype(np.uint64)
        return resize(at + np.uint64(base) if not to else at & np.uint64(0xFFFFFFFF) if base else at, bits_of(kind))

    return ins.compute(run, [kind])


REGISTER_OPS |= {
    "and": _of_kind(np.bitwise_and, 2), "or": _of_kind(np.bitwise_or, 2), "xor": _of_kind(np.bitwise_xor, 2),
    "not": _of_kind(np.invert, 1), "cnot": _of_kind(lambda x: x == 0, 1),
    "popc": _of_kind(np.bitwise_count, 1, "u32"), "clz": _of_kind(leading_zeros, 1, "u32"),
    "brev": _of_kind(_reversed, 1),
    "shl": _shift, "shr": _shift, "shf": _funnel, "lop3": _lookup, "prmt": _permute, "bfe": _extract, "bfi": _insert,
    "bfind": _find_leading, "bmsk": _mask, "mov": _move, "cvta": _window,
}  # fmt: skip


# ---
# Arithmetic on floats of every width, plain and packed.
#
# Sums, products, fused products, quotients and roots are rounded once, as the modifier says. The `.approx` and `.full`
# functions are computed in float64 and rounded once: a GPU's differ from that by the few last bits that PTX allows.
# NaNs have other payloads than on a GPU.

# how many operands; exactly or rounded to odd in float64; rounded to nearest in the operands' own type (bf16: float32)
_ROUNDED_OPS: dict[str, tuple[int, Fn, Fn | None]] = {
    "add": (2, odd_sum, np.add),
    "sub": (2, lambda a, b: odd_sum(a, -b), np.subtract),
    "mul": (2, np.multiply, np.multiply),  # of 24 bits or fewer, exact in float64
    "div": (2, np.divide, np.divide),  # never so near to a number that float64 would hide on which side of it it lies
    "fma": (3, odd_fma, None),
    "rcp": (1, lambda x: 1 / x, None),
    "sqrt": (1, np.sqrt, None),
    "rsqrt": (1, lambda x: 1 / np.sqrt(x), None),
    "ex2": (1, np.exp2, None),
    "lg2": (1, np.log2, None),
    "sin": (1, np.sin, None),
    "cos": (1, np.cos, None),
    "tanh": (1, np.tanh, None),
}


# of float64 operands and the nearest number to their sum, product … the sign of what that one misses
_MISSED: dict[str, Fn] = {
    "add": lambda near, a, b: sign_of_sum(a, 1.0, b, -near),
    "sub": lambda near, a, b: sign_of_sum(a, 1.0, -b, -near),
    "mul": lambda near, a, b: sign_of_sum(a, b, -near, 0.0),
    "fma": lambda near, a, b, c: sign_of_sum(a, b, c, -near),
    "div": lambda near, a, b: sign_of_sum(-near, b, a, 0.0) * np.sign(b),
    "rcp": lambda near, a: sign_of_sum(-near, a, 1.0, 0.0) * np.sign(a),
    "sqrt": lambda near, a: sign_of_sum(-near, near, a, 0.0),
}


def _rounded(opcode: str, kind: str, mode: str, *xs: Array) -> Array:
    """An operation on float64 numbers, rounded once to a format."""
    if mode == "rm" and opcode in ("add", "sub", "fma"):  # what is exactly 0 is -0 then: the mirror image of "rp"
        return -_rounded(opcode, kind, "rp", -xs[0], *xs[1:-1], -xs[-1])
    count, exact, nearest = _ROUNDED_OPS[opcode]
    if kind != "f64":
        return to_format(exact(*xs), kind, mode)
    near = fma_f64(*xs) if count == 3 else (nearest or exact)(*xs)
    if mode == "rn":
        return near
    near, *operands = np.broadcast_arrays(near, *xs)
    known = np.logical_and.reduce([np.isfinite(x) for x in operands]) & ~np.isnan(near)
    missed = np.zeros(near.shape)
    missed[known] = _MISSED[opcode](near[known], *(x[known] for x in operands))
    return directed(near, missed, mode)


def _rounding(ins: Ins) -> Run:
    """d = fn(operands), rounded as the modifier says."""
    opcode = "fma" if ins.opcode == "mad" else ins.opcode
    count, _, plain = _ROUNDED_OPS[opcode]
    kind, mode = base_of(ins.kind), ins.one_of(MODES, "rn")
    if count < 3:
        ins.ignore("approx", "full")

    def run(*xs: Array) -> Array:
        if plain is not None and mode == "rn":
            return to_format(plain(*xs), kind)
        return _rounded(opcode, kind, mode, *(x.astype(np.float64, copy=False) for x in xs))

    return _floating(ins, run, count)


def _floating(ins: Ins, fn: Fn, count: int) -> Run:
    """d = fn(operands), where fn gives values that the format holds; with .ftz, .sat and .relu."""
    ftz, sat, relu = ins.flag("ftz"), ins.flag("sat"), ins.flag("relu")

    def styled(*xs: Array) -> Array:
        out = flush(fn(*map(flush, xs))) if ftz else fn(*xs)
        out = saturate(out) if sat else out
        return rectify(out) if relu else out

    return ins.compute(styled if ftz or sat or relu else fn, [ins.kind] * count)


def _extreme(ins: Ins) -> Run:
    """min and max: of a number and a NaN the number, but .NaN; -0 is below +0. .xorsign.abs: of magnitudes, with the
    product's sign."""
    keeps_nan, crossed, least = ins.flag("NaN"), ins.flag("xorsign", "abs"), ins.opcode == "min"
    fn = (np.minimum if least else np.maximum) if keeps_nan else (np.fmin if least else np.fmax)

    def run(*xs: Array) -> Array:
        if crossed:
            found = extreme(fn, np.abs(xs[0]), np.abs(xs[1]))
            return np.where(np.signbit(xs[0]) != np.signbit(xs[1]), -found, found)
        return extreme(fn, *xs)

    return _floating(ins, run, len(ins.operands) - 1)


FLOAT_OPS: dict[str, Builder] = {
    **dict.fromkeys((*_ROUNDED_OPS, "mad"), _rounding), "min": _extreme, "max": _extreme,
    "neg": lambda ins: _floating(ins, np.negative, 1), "abs": lambda ins: _floating(ins, np.abs, 1),
    "copysign": lambda ins: _floating(ins, lambda a, b: np.copysign(b, a), 2),
}  # fmt: skip


# ---
# Comparisons and choices: setp, set, selp, slct, testp.

_ORDERED: dict[str, Fn] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLS: dict[str, Fn] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


_TESTS: dict[str, Fn] = {
    **_ORDERED, "num": lambda a, b: ~_unordered(a, b), "nan": _unordered,
    **{f"{name}u": lambda a, b, fn=_ORDERED[name]: fn(a, b) | _unordered(a, b)
       for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}  # fmt: skip


def _comparison(ins: Ins, kind: str) -> Read:
    """The truth of `a op b`, combined with a predicate where the modifier says so."""
    name = ins.one_of(tuple(_TESTS))
    if not name:
        raise unsupported(ins.ins, "no comparison that is known")
    combine = ins.one_of(tuple(_BOOLS))
    ftz = ins.flag("ftz")
    ins.understood()
    ins.expect(4 if combine else 3)
    test = _TESTS[name]
    if name == "ne" and is_float(kind):  # ordered: false where there is a NaN
        test = lambda a, b: np.not_equal(a, b) & ~_unordered(a, b)  # noqa: E731
    a, b = (_read(ins, operand, kind, ftz=ftz) for operand in ins.operands[1:3])
    if not combine:
        return lambda m: test(a(m), b(m))
    third, both = ins.bits(ins.operands[3], "pred"), _BOOLS[combine]
    return lambda m: both(test(a(m), b(m)), third(m))


def _read(ins: Ins, operand: Operand, kind: str, *, ftz: bool) -> Read:
    reader = ins.value(operand, kind)
    return (lambda m: flush(reader(m))) if ftz else reader


def _set_predicate(ins: Ins) -> Run:
    """setp: p = a op b, and q = its opposite; for packed types p and q of the two parts."""
    kind, packed = ins.kind, parts_of(ins.kind) == 2
    writers = ins.results("pred", "pred")
    if len(writers) == 2 and len(ins.operands) == 4:
        raise unsupported(ins.ins, "two results with a third operand")
    compare = _comparison(ins, kind)

    def run(m: WarpMachine) -> None:
        truth = compare(m)
        for write, found in zip(writers, truth.T if packed else (truth, ~truth), strict=False):
            write(m, found)

    return run


def _set_value(ins: Ins) -> Run:
    """set: all ones, or 1.0."""
    result, kind = ins.kinds[0], ins.kinds[1]
    if parts_of(kind) == 2 or result not in ("u32", "s32", "f32"):
        raise unsupported(ins.ins, f"set of {result} by {kind}")
    compare = _comparison(ins, kind)
    write = ins.write_bits(ins.operands[0], result)
    yes = np.uint32(0x3F800000 if result == "f32" else 0xFFFFFFFF)
    return lambda m: write(m, np.where(compare(m), yes, np.uint32(0)))


def _select_by_sign(ins: Ins) -> Run:
    """slct: one of two by the sign of a third."""
    ftz, (kind, by) = ins.flag("ftz"), ins.kinds
    return ins.compute(lambda a, b, c: np.where((flush(c) if ftz else c) >= 0, a, b), [kind, kind, by], kind)


def _test_property(ins: Ins) -> Run:
    """testp: finite, infinite, number, notanumber, normal (so are zeros), subnormal."""
    tests: dict[str, Fn] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (flush(x) == x),
        "subnormal": lambda x: (x != 0) & (flush(x) == 0),
    }
    what = ins.one_of(tuple(tests))
    if not what:
        raise unsupported(ins.ins, "no property that is known")
    return ins.compute(tests[what], [ins.kind], "pred")


REGISTER_OPS |= {
    "setp": _set_predicate, "set": _set_value, "slct": _select_by_sign, "testp": _test_property,
    "selp": lambda ins: ins.compute(lambda a, b, p: np.where(p, a, b), [ins.kind, ins.kind, "pred"], ins.kind),
}  # fmt: skip


# ---
# cvt: between all types, with PTX's rounding.

_WHOLE = {f"{mode}i": fn for mode, fn in ROUNDED.items()}


def _convert(ins: Ins) -> Run:
    """cvt of every kind."""
    if len(ins.kinds) != 2:
        raise unsupported(ins.ins, "cvt takes two types")
    target, source = ins.kinds
    mode = ins.one_of((*MODES, *_WHOLE))
    ftz, sat, relu, finite = ins.flag("ftz"), ins.flag("sat"), ins.flag("relu"), ins.flag("satfinite")
    change = _conversion(base_of(target), base_of(source), mode, sat, finite or target in ("e4m3x2", "e5m2x2"))

    def whole(x: Array) -> Array:
        if ftz and x.dtype == np.float32:
            x = flush(x)
        out = change(x)
        if ftz and base_of(target) == "f32":
            out = flush(out)
        return rectify(out) if relu else out

    if len(ins.operands) != 3:
        if parts_of(target) != parts_of(source):
            raise unsupported(ins.ins, "cvt between a packed type and another")
        return ins.compute(whole, [source], target)
    if parts_of(target) != 2 or parts_of(source) != 1:
        raise unsupported(ins.ins, "cvt of two operands to one number")
    packed = lambda above, below: whole(np.stack(np.broadcast_arrays(below, above), axis=1))  # noqa: E731
    return ins.compute(packed, [source, source], target)


def _conversion(target: str, source: str, mode: str, sat: bool, finite: bool) -> Fn:
    """Values of one type to values of another."""
    if not is_float(target):
        if is_float(source):
            return lambda x: float_to_int(x, bits_of(target), is_signed(target), _WHOLE.get(mode, np.trunc))
        return lambda x: _clamped(x, target) if sat else x
    rounding = mode if mode in MODES else "rn"

    def to_float(x: Array) -> Array:
        if x.dtype.kind == "f" and mode in _WHOLE:
            x = _WHOLE[mode](x)
        if x.dtype.kind == "f" and bits_of(target) > bits_of(source):
            out = to_format(x, target if target in ("f16", "f64") else "f32")  # exact
        elif x.dtype.kind == "f":
            out = to_format(x, target, rounding, satfinite=finite)
        elif rounding == "rn" and target in ("f32", "f64"):
            out = x.astype(f"f{bits_of(target) // 8}")
        else:
            wide = x.astype(f"{x.dtype.kind}8")
            low = wide & wide.dtype.type(0x7FF)  # each of the two parts is exact in float64
            out = _rounded("add", target, rounding, (wide - low).astype(np.float64), low.astype(np.float64))
        return saturate(out) if sat else out

    return to_float


def _clamped(x: Array, target: str) -> Array:
    """.sat of integers."""
    bits = bits_of(target)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed(target) else (0, 2**bits - 1)
    if x.dtype.kind == "u":
        return np.minimum(x.astype(np.uint64), np.uint64(high))
    return np.clip(x.astype(np.int64), low, min(high, 2**63 - 1))


REGISTER_OPS["cvt"] = _convert
