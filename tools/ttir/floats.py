"""Exact rounding to and bit patterns of the float formats that numpy lacks (bf16, fp8, TF32)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tools.ttir.types import Array, Type, raw_dtype, scalar_name, stored_dtype


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


def round_mini(x: Array, name: str, toward_zero: bool = False) -> Array:
    """Nearest fp8 number, ties to even, saturating as `cvt.rn.satfinite` does on the hardware; NaN stays NaN."""
    mini, wide = MINIS[name], x.astype(np.float64)
    _, exponent = np.frexp(wide)
    # the spacing of the format's numbers around each value; subnormals share the spacing of the smallest normals
    spacing = np.ldexp(1.0, np.maximum(exponent, 2 - mini.bias) - 1 - mini.mantissa)
    steps = wide / spacing
    rounded = (np.trunc(steps) if toward_zero else np.rint(steps)) * spacing
    top = _finite(name)[-1]
    clipped: Array = np.clip(rounded, -top, top).astype(np.float32)
    return clipped


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


def _f16_toward_zero(x: Array) -> Array:
    near = x.astype(np.float16)
    over = np.abs(near.astype(np.float64)) > np.abs(x)
    return np.where(over, np.nextafter(near, np.float16(0)), near)


def round_to(x: Array, kind: Type, toward_zero: bool = False) -> Array:
    """`x` rounded to the element format of `kind`, in its stored dtype."""
    name = scalar_name(kind)
    if name in MINIS:
        return round_mini(x, name, toward_zero)
    if name == "bf16":
        return round_bf16(x.astype(np.float32, copy=False), toward_zero)
    if name == "f16" and toward_zero:
        return _f16_toward_zero(x)
    return x.astype(stored_dtype(kind), copy=False)


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
