"""How values look while a kernel runs, and the few array manipulations that everything shares.

A value of type `tensor<AxBxT>` in a frame of P programs is an array of shape (P, A, B) in which any axis may have size
1 instead: the value is then the same all along that axis. So uniform values are computed once for all programs, and
`tt.splat` and `tt.broadcast` cost nothing. Scalars have shape (P,) or (1,).

The float formats that numpy lacks (bf16, fp8, TF32) are rounded to exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Literal,
    StepLimit,
    TtirSyntaxError,
    Type,
    bit_width,
    is_float,
    raw_dtype,
    scalar_name,
    shape_of,
    stored_dtype,
)


@dataclass(frozen=True)
class Mini:
    """An 8-bit format. `ieee` formats have infinities; `fnuz` formats have one NaN where -0 would be."""

    mantissa: int
    bias: int
    ieee: bool = False
    fnuz: bool = False


MINIS = {
    "f8E4M3FN": Mini(3, 7),
    "f8E5M2": Mini(2, 15, ieee=True),
    "f8E4M3FNUZ": Mini(3, 8, fnuz=True),
    "f8E5M2FNUZ": Mini(2, 16, fnuz=True),
}


@lru_cache(maxsize=8)
def decode_table(name: str) -> Array:
    """The float32 value of each of the 256 codes."""
    mini = MINIS[name]
    code = np.arange(128)
    exponent, mantissa = code >> mini.mantissa, code & ((1 << mini.mantissa) - 1)
    fraction = mantissa / (1 << mini.mantissa)
    normal = np.ldexp(1 + fraction, exponent - mini.bias)
    value = np.where(exponent > 0, normal, np.ldexp(fraction, 1 - mini.bias))
    if mini.ieee:
        value = np.where(exponent == exponent[-1], np.where(mantissa > 0, np.nan, np.inf), value)
    elif not mini.fnuz:
        value[127] = np.nan
    table = np.concatenate([value, -value]).astype(np.float32)
    if mini.fnuz:
        table[128] = np.nan
    return table


@lru_cache(maxsize=8)
def _finite(name: str) -> Array:
    positive = decode_table(name)[:128]
    return positive[np.isfinite(positive)].astype(np.float64)


ROUNDED = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}  # to whole numbers


def round_to_grid(x: Array, grid: tuple[int, int, float], mode: str, *, satfinite: bool = False) -> Array:
    """Float64 rounded to a format's numbers, as PTX's modifiers say it. `grid`: bits of the mantissa without the
    leading one, the exponent of the smallest normal number (subnormals have its spacing), the largest number."""
    mantissa, lowest, top = grid
    _, exponent = np.frexp(x)
    spacing = np.ldexp(1.0, np.maximum(exponent - 1, lowest) - mantissa)
    steps = x / spacing
    whole = np.copysign(np.floor(np.abs(steps) + 0.5), steps) if mode == "rna" else ROUNDED[mode](steps)
    rounded = np.where(np.isfinite(x), whole * spacing, x)
    rounded = np.where(rounded == 0, np.copysign(0.0, x), rounded)
    over = np.abs(rounded) > top
    if not over.any():
        return rounded
    toward_zero = (mode == "rz") | ((mode == "rm") & (x > 0)) | ((mode == "rp") & (x < 0))
    finite = satfinite | (np.isfinite(x) & toward_zero)
    return np.where(over, np.copysign(np.where(finite, top, np.inf), x), rounded)


def round_mini(x: Array, name: str, toward_zero: bool = False) -> Array:
    """Nearest fp8 number, ties to even, saturating as `cvt.rn.satfinite` does on the hardware; NaN stays NaN."""
    mini, mode = MINIS[name], "rz" if toward_zero else "rn"
    grid = (mini.mantissa, 1 - mini.bias, float(_finite(name)[-1]))
    return round_to_grid(x.astype(np.float64), grid, mode, satfinite=True).astype(np.float32)


def encode_mini(x: Array, name: str) -> Array:
    """Codes of numbers that the format represents exactly."""
    mini, nan = MINIS[name], np.isnan(x)
    code = np.searchsorted(_finite(name), np.abs(np.where(nan, 0, x)).astype(np.float64)).astype(np.uint8)
    code |= (np.signbit(x) & ~nan).astype(np.uint8) << np.uint8(7)
    if mini.fnuz:
        code[code == 128] = 0
    code[nan] = 0x80 if mini.fnuz else 0x7F
    return code


def _bits32(x: Array) -> Array:
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def round_bf16(x: Array, toward_zero: bool = False) -> Array:
    """Nearest bf16 number as float32, ties to even."""
    bits = _bits32(x)
    out = bits if toward_zero else bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    out = (out & np.uint32(0xFFFF0000)).view(np.float32)
    nan = np.isnan(x)
    # the carry out of a NaN's payload would turn it into a number
    return np.where(nan, np.float32(np.nan), out) if nan.any() else out


def round_tf32(x: Array) -> Array:
    """Nearest TF32 number (10-bit mantissa), ties away from zero like `cvt.rna.tf32.f32`."""
    bits = _bits32(x)
    out = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), out, x)


def round_to(x: Array, kind: Type, toward_zero: bool = False) -> Array:
    """`x` rounded to the element format of `kind`, in its stored dtype."""
    name = scalar_name(kind)
    if name in MINIS:
        return round_mini(x, name, toward_zero)
    if name == "bf16":
        return round_bf16(x.astype(np.float32, copy=False), toward_zero)
    if name == "f16" and toward_zero:
        return round_to_grid(x.astype(np.float64), (10, -14, 65504.0), "rz").astype(np.float16)
    return x.astype(stored_dtype(kind), copy=False)


def flush(x: Array) -> Array:
    """.ftz: subnormal numbers become zeros of their sign."""
    small = (np.abs(x) < np.finfo(x.dtype).tiny) & (x != 0)
    return np.where(small, np.copysign(x.dtype.type(0), x), x) if small.any() else x


def saturate(x: Array) -> Array:
    """.sat: into [0, 1]; NaN and -0 become +0."""
    inside: Array = np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))
    return inside


def quiet(x: Array) -> Array:
    """Every NaN as one that does not signal: the fmin of numpy (2.4) of a number and a signalling one is NaN in arrays
    of some lengths and the number in others; of GPUs it is the number."""
    nan = np.isnan(x)
    return np.where(nan, x.dtype.type(np.nan), x) if nan.any() else x


def extreme(function: Callable[..., Array], *values: Array) -> Array:
    """Numpy's minimum, maximum, fmin or fmax of floats, with -0 below +0 as on GPUs, where numpy takes either."""
    found = reduce(function, map(quiet, values))
    return ordered_zeros(function, found, lambda least: reduce(np.logical_or, [is_zero(x, least) for x in values]))


def ordered_zeros(function: Callable[..., Array], found: Array, preferred: Callable[[bool], Array]) -> Array:
    """What an extreme found, zeros with the right sign. `preferred`: where there was a zero with that sign."""
    if not (zero := found == 0).any():
        return found
    least = function in (np.minimum, np.fmin)
    sign = np.where(preferred(least) == least, found.dtype.type(-0.0), found.dtype.type(0))
    return np.where(zero, sign, found)


def is_zero(value: Array, negative: bool) -> Array:
    """Where there is a zero with that sign."""
    found: Array = (value == 0) & (np.signbit(value) == negative)
    return found


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, *rounded to odd*: a sum that is not exact gets an odd last bit, so that rounding it once more,
    in any direction, to far fewer bits is what rounding the exact one would have been."""
    total, error = _two_sum(a, b)
    bits = np.ascontiguousarray(total).view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & (bits & 1 == 0)
    if not inexact.any():
        return total
    away = (error > 0) == (total > 0)  # the exact result is further from zero
    moved: Array = np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)
    return moved


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and what rounding it lost, exactly (Knuth)."""
    total = np.asarray(a + b)
    back = total - a
    return total, (a - (total - back)) + (b - back)


def odd_fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64, rounded to odd; exact before it for factors of 26 bits or fewer."""
    a, b, c = (x.astype(np.float64, copy=False) for x in (a, b, c))
    return odd_sum(a * b, c)


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64, rounded once: by Boldo and Melquiond (2008), and in whole numbers where parts of theirs
    might overflow or be subnormal."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    lost = al * bl - (((product - ah * bh) - al * bh) - ah * bl)  # exact (Dekker)
    near, rest = _two_sum(c, np.where(np.isfinite(lost), lost, 0.0))
    total, error = _two_sum(product, near)
    fixed = total + odd_sum(rest, error)
    found = np.where(np.isfinite(fixed) & (fixed != 0), fixed, product + c)
    largest = np.max(np.abs([a, b, c, product]), axis=0)
    hard = (a != 0) & (b != 0) & ((largest > 2.0**990) | (np.abs(product) < 2.0**-900))
    hard &= np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    if hard.any():
        found[hard] = np.frompyfunc(_fma_exactly, 3, 1)(a[hard], b[hard], c[hard])
    return found


def _split(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


_UNIT = 1074  # every finite float64 is a whole multiple of 2**-1074


def _whole(x: float) -> int:
    """A float64 in units of 2**-1074; an infinity is more than any sum or product of the others."""
    if math.isinf(x):
        return 1 << 9000 if x > 0 else -1 << 9000
    number, parts = x.as_integer_ratio()
    return number << _UNIT + 1 - parts.bit_length()


def _fma_exactly(a: float, b: float, c: float) -> float:
    """a * b + c of three finite numbers; the quotient of whole numbers is rounded to nearest, ties to even."""
    exact = _whole(a) * _whole(b) + (_whole(c) << _UNIT)
    try:
        return exact / (1 << 2 * _UNIT)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def sign_of_sum(a: Array, b: Array | float, c: Array | float, d: Array | float) -> Array:
    """The sign of a * b + c + d, of float64 that are not NaN: -1, 0 or 1, exact."""

    def sign(a: float, b: float, c: float, d: float) -> int:
        exact = _whole(a) * _whole(b) + (_whole(c) + _whole(d) << _UNIT)
        return (exact > 0) - (exact < 0)

    return np.asarray(np.frompyfunc(sign, 4, 1)(a, b, c, d), np.int8)


def decode(raw: Array, kind: Type) -> Array:
    """Memory (or register) bits to stored values."""
    name = scalar_name(kind)
    if name == "bf16":
        bits: Array = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    if name in MINIS:
        return decode_table(name)[raw.view(np.uint8)]
    if name == "i1":
        return np.not_equal(raw.view(np.uint8), 0)
    return raw.view(stored_dtype(kind))


def encode(value: Array, kind: Type) -> Array:
    """Stored values to the bits that memory holds."""
    name = scalar_name(kind)
    if name == "bf16":
        return (_bits32(value) >> np.uint32(16)).astype(np.uint16)
    if name in MINIS:
        return encode_mini(value, name)
    return np.ascontiguousarray(value).astype(raw_dtype(kind), copy=False)


def float_to_int(value: Array, bits: int, signed: bool, rounding: Callable[[Array], Array] = np.trunc) -> Array:
    """Whole numbers, clamped to what so many bits hold, like PTX's `cvt`. NaN becomes 0, or the highest bit alone where
    either side has 64 bits."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    whole, nan = rounding(value.astype(np.float64)), np.isnan(value)
    # the largest double below `high` keeps the cast itself in range; what was clipped becomes the maximum exactly
    inside = np.clip(np.where(nan, 0, whole), low, np.nextafter(float(high), 0))
    inside = inside.astype(f"{'ui'[signed]}{bits // 8}")
    found = np.where(whole >= high, inside.dtype.type(high - 1), inside)
    of_nan = 1 << bits - 1 if 64 in (bits, value.dtype.itemsize * 8) else 0
    return np.where(nan, np.array(of_nan, f"u{bits // 8}").view(found.dtype), found)


def unsigned(value: Array) -> Array:
    """Integers seen without a sign."""
    return value if value.dtype == np.bool_ else value.view(f"u{value.dtype.itemsize}")


def divide(a: Array, b: Array) -> Array:
    """Divide toward zero, where numpy floors; by zero gives all bits set, as on GPUs."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    floor = a // safe  # the lowest number by -1 is itself, wrapped around
    if a.dtype.kind == "i":
        floor = np.where((floor * safe != a) & ((a < 0) != (safe < 0)), floor + floor.dtype.type(1), floor)
    return np.where(b == 0, ~a.dtype.type(0), floor)


def shift(op: np.ufunc, value: Array, by: Array) -> Array:
    """`value` shifted by an unsigned `by`; by more than the width is by the width in PTX, and poison in LLVM."""
    width = value.dtype.itemsize * 8
    moved: Array = op(value, np.minimum(by, width - 1).astype(value.dtype))
    keeps_sign = op is np.right_shift and value.dtype.kind == "i"
    return moved if keeps_sign else np.where(by >= width, value.dtype.type(0), moved)


def multiply_high(a: Array, b: Array, signed: bool) -> Array:
    """The upper half of the double-width product of integers that are held signed."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        left, right = (a, b) if signed else (unsigned(a), unsigned(b))
        wide = f"{'i' if signed else 'u'}8"
        product: Array = left.astype(wide) * right.astype(wide)
        upper: Array = np.right_shift(product, product.dtype.type(bits)).astype(a.dtype)
        return upper
    x, y = unsigned(a), unsigned(b)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    x_high, x_low, y_high, y_low = x >> half, x & mask, y >> half, y & mask
    cross = (x_low * y_low >> half) + (x_high * y_low & mask) + x_low * y_high
    high: Array = np.asarray(x_high * y_high + (x_high * y_low >> half) + (cross >> half)).view(np.int64)
    return np.subtract(high, np.where(a < 0, b, 0) + np.where(b < 0, a, 0)) if signed else high


def leading_zeros(value: Array) -> Array:
    """How many bits above the highest one, as the value's type."""
    width = value.dtype.itemsize * 8
    left, count = unsigned(value), np.zeros(value.shape, value.dtype)
    for step in (32, 16, 8, 4, 2, 1):
        if step < width:
            empty = left < left.dtype.type(1) << left.dtype.type(width - step)
            count += empty * value.dtype.type(step)
            left = np.where(empty, left << left.dtype.type(step), left)
    total: Array = np.add(count, left == 0)
    return total


_LITERAL = re.compile(r"true|false|0x[0-9A-Fa-f]+|[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
# well above any tensor's size and the size of a batch of programs
MAX_VALUE = 1 << 24
# an address in no region: poison pointers fault when they are used
_POISON_INT = 0x5A5A5A5A5A5A5A5A


def check_size(size: int) -> None:
    """Refuses values that only text whose types contradict each other can ask for."""
    if size > MAX_VALUE:
        raise StepLimit(f"a value of {size} elements")


def broadcast_size(values: Sequence[Array]) -> int:
    """The size of the values' combination, or 0 if it is clearly harmless or they do not combine."""
    if math.prod(max(1, value.size) for value in values) <= MAX_VALUE:
        return 0
    rank = max(value.ndim for value in values)
    if any(value.ndim != rank for value in values):
        return 0
    return math.prod(map(max, zip(*(value.shape for value in values), strict=True)))


def take(value: Array, picks: Array) -> Array:
    """The value for the picked programs only."""
    return value if value.shape[0] == 1 else value[picks]


def materialise(value: Array, shape: tuple[int, ...], programs: int = 0) -> Array:
    """A (read-only) array with every axis at full size; the program axis too if `programs` is given."""
    check_size((programs or value.shape[0]) * math.prod(shape))
    return np.broadcast_to(value, (programs or value.shape[0], *shape))


def widen_axis(value: Array, axis: int, size: int) -> Array:
    return np.broadcast_to(value, (*value.shape[:axis], size, *value.shape[axis + 1 :]))


def merge(full: Array | None, part: Array, picks: Array, programs: int) -> Array:
    """`full` with the picked programs replaced by `part`; a missing `full` is about to be overwritten piecemeal."""
    if full is None:
        full = np.zeros((1,) * part.ndim, part.dtype)
    if len(picks) == programs and bool((picks == np.arange(programs)).all()):
        return part
    out = np.empty((programs, *np.broadcast_shapes(full.shape[1:], part.shape[1:])), part.dtype)
    out[:] = full
    out[picks] = part
    return out


def uniform_bool(condition: Array) -> bool | None:
    """The condition if all programs agree on it."""
    if condition.all():
        return True
    return None if condition.any() else False


def poison(kind: Type) -> Array:
    """A value that shows up as wrong wherever it is used."""
    dtype = stored_dtype(kind)
    shape = (1,) * (1 + len(shape_of(kind)))
    if is_float(kind):
        return np.full(shape, np.nan, dtype)
    return np.full(shape, _POISON_INT, np.int64).astype(dtype)


def wrap(number: int, kind: Type) -> int:
    """A Python integer reduced to the signed range of `kind`."""
    bits = bit_width(kind)
    if bits == 1:
        return number & 1
    half = 1 << (bits - 1)
    return ((number + half) & ((1 << bits) - 1)) - half


def scalar_array(number: int | float, kind: Type) -> Array:
    if is_float(kind):
        return round_to(np.array([number], np.float64), kind)
    return np.array([wrap(int(number), kind)], stored_dtype(kind))


def constant(literal: Literal, kind: Type) -> Array:
    """The value of `arith.constant`, kept at one element where it is a splat."""
    shape, text = shape_of(kind), literal.text
    if text.startswith("dense<"):
        text = text[len("dense<") : -1].strip()
    if text.startswith('"'):
        return _blob(text, kind)
    parts = [_element(found[0], kind) for found in _LITERAL.finditer(text)]
    if len(parts) == 1:
        return parts[0].reshape((1,) * (1 + len(shape)))
    return np.concatenate(parts).reshape(1, *shape)


def _element(text: str, kind: Type) -> Array:
    if text in ("true", "false"):
        return np.array([text == "true"], stored_dtype(kind))
    try:
        if not is_float(kind):
            return np.array([wrap(int(text, 0), kind)], stored_dtype(kind))
        if text.startswith("0x"):
            bits = int(text, 16) & ((1 << bit_width(kind)) - 1)
            return decode(np.array([bits], f"u{bit_width(kind) // 8}"), kind)
        return round_to(np.array([float(text)], np.float64), kind)
    except ValueError as error:
        raise TtirSyntaxError(f"not a {scalar_name(kind)}: {text[:40]!r}") from error


def _blob(text: str, kind: Type) -> Array:
    """`dense<"0x...">`: the elements' bytes, as MLIR prints large constants."""
    try:
        raw = np.frombuffer(bytes.fromhex(text.strip('"').removeprefix("0x")), np.uint8)
    except ValueError as error:
        raise TtirSyntaxError("dense<...> with a malformed hex string") from error
    if scalar_name(kind) == "i1":
        raise TtirSyntaxError("bit-packed constants are not supported")
    return decode(raw.view(raw_dtype(kind)), kind).reshape(1, *shape_of(kind))
