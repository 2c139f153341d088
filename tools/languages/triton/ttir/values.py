"""How values look while a kernel runs, and the few array manipulations that everything shares.

A value of type `tensor<AxBxT>` in a frame of P programs is an array of shape (P, A, B) in which any axis may have size
1 instead: the value is then the same all along that axis. So uniform values are computed once for all programs, and
`tt.splat` and `tt.broadcast` cost nothing. Scalars have shape (P,) or (1,).

The float formats that numpy lacks (bf16, fp8, TF32) are rounded to exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
