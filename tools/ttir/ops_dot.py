"""tt.dot: float32 accumulation, with the precision that the operands really have on tensor cores."""

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


OPS: dict[str, Handler] = {"tt.dot": dot}
