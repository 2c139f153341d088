"""tt.dot, tt.dot_scaled: float32 accumulation, with the precision that the operands really have on tensor cores."""

from __future__ import annotations

import numpy as np

from tools.ttir.errors import UnsupportedOp
from tools.ttir.floats import round_tf32, round_to
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Op
from tools.ttir.types import Array, Type, is_float, scalar_name, shape_of, stored_dtype
from tools.ttir.values import materialise

# modes that recover (nearly) float32 precision from several narrow products
_FULL = ("ieee", "tf32x3", "bf16x3", "bf16x6")
_NARROW = ("e4m3", "e5m2", "e2m1", "bf16")
_FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def dot(frame: Frame, op: Op, args: list[Array]) -> Array:
    kind, precision = op.ins[0], str(op.attrs.get("inputPrecision", "ieee"))
    if precision != "tf32" and precision not in _FULL:
        raise UnsupportedOp(op.name, f"inputPrecision {precision}")
    tf32 = precision == "tf32" and scalar_name(kind) == scalar_name(op.ins[1]) == "f32"
    left, right = (_operand(value, op.ins[at], tf32) for at, value in enumerate(args[:2]))
    product: Array = np.matmul(left, right)
    target = op.outs[0]
    if not is_float(target):
        total: Array = product.astype(np.int64).astype(stored_dtype(target)) + args[2]
        return total
    return round_to(product + args[2], target)


def _operand(value: Array, kind: Type, tf32: bool) -> Array:
    # integers go through float64: products of int8 are summed exactly there, and BLAS is fast
    wide = np.float64 if not is_float(kind) or scalar_name(kind) == "f64" else np.float32
    value = round_tf32(value) if tf32 else value.astype(wide, copy=False)
    return materialise(value, shape_of(kind))


def dot_scaled(frame: Frame, op: Op, args: list[Array]) -> Array:
    """Narrow floats times powers of two, in float32. Where no tensor core scales, Triton multiplies in bfloat16, which
    is exact for 8 and 4 bits; in float16 it is not, and that is left to a GPU."""
    formats = [str(op.attrs.get(side, "")) for side in ("lhs", "rhs")]
    if unknown := [name for name in formats if name not in _NARROW]:
        raise UnsupportedOp(op.name, f"operands of format {unknown[0]}")
    if any(op.attrs.get(f"{side}_k_pack") is False for side in ("lhs", "rhs")):
        raise UnsupportedOp(op.name, "four-bit operands packed along M or N")
    values = [materialise(value, shape_of(kind)) for value, kind in zip(args, op.ins, strict=False)]
    (left, by), (right, by_right) = _scaled_operands(op, values, formats)
    wide_left, wide_right = _wide(left, formats[0]), _wide(right.swapaxes(-1, -2), formats[1])
    product: Array = np.matmul(_times(wide_left, by), _times(wide_right, by_right).swapaxes(-1, -2))
    return round_to(product + args[-1], op.outs[0])


def _scaled_operands(op: Op, values: list[Array], formats: list[str]) -> list[tuple[Array, Array | None]]:
    """Both operands with their scales, which an operand of 16 bits has none of."""
    scaled = [name != "bf16" for name in formats] if len(values) == 3 else [len(values) == 4] * 2
    if len(values) != 2 + sum(scaled):
        raise UnsupportedOp(op.name, "one operand with a scale and one without")
    found, at = [], 0
    for has_scale in scaled:
        scale = _scale(values[at + 1], op.ins[at + 1]) if has_scale else None
        found.append((values[at], scale))
        at += 1 + has_scale
    return found


def _scale(codes: Array, kind: Type) -> Array:
    """As float32: E8M0 bytes, or 8-bit floats as they are."""
    if is_float(kind):
        return codes.astype(np.float32)
    exponent = codes.astype(np.uint8).astype(np.int32)
    return np.where(exponent == 255, np.nan, np.ldexp(np.float32(1), exponent - 127)).astype(np.float32)


def _wide(value: Array, name: str) -> Array:
    """As float32, K last; two values of four bits lie in a byte, the lower one first."""
    if name != "e2m1":
        return value.astype(np.float32, copy=False)
    codes = value.astype(np.uint8)
    pairs: Array = np.stack([_FOUR_BITS[codes & 15], _FOUR_BITS[codes >> 4]], axis=-1)
    return pairs.reshape(*codes.shape[:-1], -1)


def _times(value: Array, scale: Array | None) -> Array:
    return value if scale is None else value * np.repeat(scale, value.shape[-1] // scale.shape[-1], axis=-1)


OPS: dict[str, Handler] = {"tt.dot": dot, "tt.dot_scaled": dot_scaled}
