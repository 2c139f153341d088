"""Rounding as PTX's modifiers say it. Pure.

Sums and products are made in float64 *rounded to odd*: a result that is not exact gets an odd last bit, so that
rounding it once more to 24 bits or fewer, in any direction, is what rounding the exact result would have been.
"""

import numpy as np

from tools.ttir.ir import Array
from tools.ttir.values import MINIS, round_bf16

MODES = ("rn", "rz", "rm", "rp", "rna")
# bits of the mantissa without the leading one, and the exponent of the smallest normal number
_SHAPES = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126), "tf32": (10, -126), "f64": (52, -1022)}
_TOPS = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127"), "f32": float.fromhex("0x1.fffffep127"),
         "tf32": float.fromhex("0x1.ffcp127"), "f64": float.fromhex("0x1.fffffffffffffp1023")}  # fmt: skip
_TOPS |= {"e4m3": 448.0, "e5m2": 57344.0}
_SHAPES |= {"e4m3": (MINIS["f8E4M3FN"].mantissa, -6), "e5m2": (MINIS["f8E5M2"].mantissa, -14)}


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)  # exact (Knuth)
    return _to_odd(total, error)


def _to_odd(total: Array, error: Array) -> Array:
    """`total`, which is rounded to nearest, moved to the odd neighbour on the side of its error."""
    total = np.ascontiguousarray(total)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & (bits & 1 == 0)
    if not inexact.any():
        return total
    away = (error > 0) == (total > 0)  # the exact result is further from zero
    moved: Array = np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)
    return moved


def odd_fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64, rounded to odd; exact before it for factors of 26 bits or fewer."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded about once: the product's error is kept (Dekker), so that in rare ties the last bit differs."""
    product = a * b
    error = _product_error(a, b, product)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back) + error
    fixed = total + rest
    return np.where(np.isfinite(fixed), fixed, total)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    (ah, al), (bh, bl) = _split(a), _split(b)
    error: Array = al * bl - (((product - ah * bh) - al * bh) - ah * bl)
    return np.where(np.isfinite(error), error, 0.0)


def _split(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def to_format(x: Array, kind: str, mode: str = "rn", *, satfinite: bool = False) -> Array:
    """Float64 values rounded to the format, as values (float32 for bf16, tf32 and 8 bits)."""
    if mode == "rn" and not satfinite:
        if kind == "f64":
            return x
        if kind in ("f32", "f16"):
            return x.astype(np.float32 if kind == "f32" else np.float16)
    return _stored(_grid(x, kind, mode, satfinite), kind)


def _stored(x: Array, kind: str) -> Array:
    return x if kind == "f64" else x.astype(np.float16 if kind == "f16" else np.float32)


def _grid(x: Array, kind: str, mode: str, satfinite: bool) -> Array:
    """On the format's grid, in float64."""
    mantissa, lowest = _SHAPES[kind]
    _, exponent = np.frexp(x)
    spacing = np.ldexp(1.0, np.maximum(exponent - 1, lowest) - mantissa)
    steps = x / spacing
    rounded = _whole(steps, mode) * spacing
    rounded = np.where(np.isfinite(x), rounded, x)
    rounded = np.where(rounded == 0, np.copysign(0.0, x), rounded)
    return _overflow(rounded, x, _TOPS[kind], mode, satfinite)


def _overflow(rounded: Array, x: Array, top: float, mode: str, satfinite: bool) -> Array:
    over = np.abs(rounded) > top
    if not over.any():
        return rounded
    toward_zero = (mode == "rz") | ((mode == "rm") & (x > 0)) | ((mode == "rp") & (x < 0))
    finite = satfinite | (np.isfinite(x) & toward_zero)
    return np.where(over, np.copysign(np.where(finite, top, np.inf), x), rounded)


def _whole(steps: Array, mode: str) -> Array:
    if mode == "rna":
        away: Array = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
        return away
    rounders = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}
    return np.asarray(rounders[mode[:2]](steps))


def nearest(x: Array, kind: str) -> Array:
    """A float32 or float64 result, exact or rounded far finer than the format, to nearest."""
    if kind == "bf16":
        return round_bf16(x) if x.dtype == np.float32 else to_format(_through_f32(x), kind)
    return to_format(x, kind)


def _through_f32(x: Array) -> Array:
    return x.astype(np.float64, copy=False)


def flush(x: Array) -> Array:
    """.ftz: subnormal float32 numbers become zeros of their sign."""
    small = (np.abs(x) < np.float32(2.0**-126)) & (x != 0)
    return np.where(small, np.copysign(np.float32(0), x), x) if small.any() else x


def saturate(x: Array) -> Array:
    """.sat: into [0, 1]; NaN becomes 0."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)).astype(x.dtype, copy=False)
