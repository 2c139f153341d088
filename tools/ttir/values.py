"""How values look while a kernel runs, and the few array manipulations that everything shares.

A value of type `tensor<AxBxT>` in a frame of P programs is an array of shape (P, A, B) in which any axis may have size
1 instead: the value is then the same all along that axis. So uniform values are computed once for all programs, and
`tt.splat` and `tt.broadcast` cost nothing. Scalars have shape (P,) or (1,).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tools.ttir.errors import StepLimit, TtirSyntaxError
from tools.ttir.floats import decode, round_to
from tools.ttir.ir import Literal
from tools.ttir.types import Array, Type, bit_width, is_float, raw_dtype, scalar_name, shape_of, stored_dtype

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
