"""Tensor descriptors: blocks addressed by coordinates, clipped at the tensor's edges.

A descriptor value is an int64 array (programs, 2 + 2 * rank): base address, flags, shape, strides in elements. Being a
plain array, it can be carried through loops and branches like any other value; its block shape comes from its type.
"""

from __future__ import annotations

import numpy as np

from tools.ttir.errors import TtirSyntaxError
from tools.ttir.floats import round_tf32
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Op
from tools.ttir.ops_atomic import rmw_kind, update
from tools.ttir.ops_memory import gather, scatter
from tools.ttir.types import Array, Desc, Tensor, Type, is_float, raw_dtype, shape_of, stored_dtype
from tools.ttir.values import materialise

PAD_NAN, ROUND_TF32 = 1, 2


def descriptor_type(kind: Type) -> Desc:
    if isinstance(kind, Tensor):  # tt.make_tensor_descriptor leaves the outer part of its type out
        return Desc(kind)
    if not isinstance(kind, Desc):
        raise TtirSyntaxError(f"not a tensor descriptor: {kind}")
    return kind


def make(frame: Frame, op: Op, args: list[Array]) -> Array:
    desc = descriptor_type((op.outs or op.ins)[-1])
    rank = len(desc.block.shape)
    if len(args) != 1 + 2 * rank:
        raise TtirSyntaxError(f"line {op.line}: a rank {rank} descriptor with {len(args)} operands")
    # the attribute is Triton's PaddingOption: 1 is zero, 2 is NaN
    flags = np.array([PAD_NAN if op.attrs.get("padding") == 2 else 0])
    parts = [args[0], flags, *args[1:]]
    return np.stack(np.broadcast_arrays(*(part.astype(np.int64) for part in parts)), axis=-1)


def place(desc: Array, starts: list[Array], kind: Desc) -> tuple[Array, Array]:
    """Addresses and in-bounds mask of the block at `starts` (whose axis d may already hold one start per element)."""
    rank = len(kind.block.shape)
    size = raw_dtype(kind.block.element).itemsize

    def field(at: int) -> Array:
        return desc[:, at].reshape(-1, *(1,) * rank)

    address, inside = field(0), np.ones((1,) * (rank + 1), np.bool_)
    for axis, start in enumerate(starts):
        along = [1] * rank
        along[axis] = -1
        at = start.astype(np.int64).reshape(start.shape[0], *along)
        if start.ndim == 1:
            at = at + np.arange(kind.block.shape[axis]).reshape(1, *along)
        inside = inside & (at >= 0) & (at < field(2 + axis))
        address = address + at * field(2 + rank + axis) * size
    return address, inside


def _padding(desc: Array, kind: Desc) -> Array:
    element = kind.block.element
    rank = len(kind.block.shape)
    if not is_float(element):
        return np.zeros((1,) * (rank + 1), stored_dtype(element))
    nan = (desc[:, 1] & PAD_NAN) != 0
    return np.where(nan, np.nan, 0).astype(stored_dtype(element)).reshape(-1, *(1,) * rank)


def _read(frame: Frame, op: Op, args: list[Array], kind: Desc) -> Array:
    desc, *starts = args
    address, inside = place(desc, starts, kind)
    found = gather(frame, address, inside, _padding(desc, kind), kind.block.element)
    if stored_dtype(kind.block.element) == np.float32 and (desc[:, 1] & ROUND_TF32).any():
        found = np.where((desc[:, 1] & ROUND_TF32).reshape(-1, *(1,) * (found.ndim - 1)) != 0, round_tf32(found), found)
    return found


def load(frame: Frame, op: Op, args: list[Array]) -> Array:
    kind = descriptor_type(op.ins[0])
    found, shape = _read(frame, op, args, kind), shape_of(op.outs[0])
    if shape == kind.block.shape:
        return found
    # leading dimensions of size 1 may be dropped
    return materialise(found, kind.block.shape).reshape(found.shape[0], *shape)


def gather_rows(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _read(frame, op, args, descriptor_type(op.ins[0]))


def _block(value: Array, op: Op, kind: Desc) -> Array:
    shape = shape_of(op.ins[-1])
    if shape == kind.block.shape or value.ndim == len(kind.block.shape) + 1:
        return value
    return materialise(value, shape).reshape(value.shape[0], *kind.block.shape)


def store(frame: Frame, op: Op, args: list[Array]) -> None:
    """descriptor_store and descriptor_scatter."""
    kind = descriptor_type(op.ins[0])
    desc, *starts, value = args
    address, inside = place(desc, starts, kind)
    scatter(frame, address, _block(value, op, kind), inside, kind.block.element)


def reduce(frame: Frame, op: Op, args: list[Array]) -> None:
    kind = descriptor_type(op.ins[0])
    desc, *starts, value = args
    parts = *place(desc, starts, kind), _block(value, op, kind)
    address, inside, value = (materialise(part, kind.block.shape, frame.size) for part in parts)
    if inside.any():
        name = rmw_kind(op.words[0], kind.block.element)
        update(frame.machine.space, name, address[inside], value[inside], kind.block.element)


OPS: dict[str, Handler] = {
    "tt.make_tensor_descriptor": make,
    "tt.descriptor_load": load,
    "tt.descriptor_gather": gather_rows,
    "tt.descriptor_store": store,
    "tt.descriptor_scatter": store,
    "tt.descriptor_reduce": reduce,
}
