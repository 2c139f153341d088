"""Ops that make, move or count elements without arithmetic: ranges, shapes, joins, gathers, histograms, program ids."""

from __future__ import annotations

import numpy as np

from tools.ttir.errors import AssertFailed, TtirSyntaxError
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Op
from tools.ttir.types import Array, raw_dtype, shape_of
from tools.ttir.values import materialise

AXES = {"x": 0, "y": 1, "z": 2}


def integer(op: Op, name: str) -> int:
    value = op.attrs.get(name)
    if not isinstance(value, int):
        raise TtirSyntaxError(f"line {op.line}: {op.name} without an integer {name!r}")
    return value


def axis_of(op: Op, rank: int) -> int:
    """The array axis of the op's `axis` attribute (axis 0 of an array is the programs')."""
    axis = integer(op, "axis")
    if not 0 <= axis < rank:
        raise TtirSyntaxError(f"line {op.line}: axis {axis} of a rank {rank} tensor")
    return axis + 1


def program_id(frame: Frame, op: Op, args: list[Array]) -> Array:
    x, y, _ = frame.machine.grid
    axis = AXES[op.words[0]]
    ids = frame.programs // (1, x, x * y)[axis]
    return (ids % frame.machine.grid[axis]).astype(np.int32)


def num_programs(frame: Frame, op: Op, args: list[Array]) -> Array:
    return np.array([frame.machine.grid[AXES[op.words[0]]]], np.int32)


def make_range(frame: Frame, op: Op, args: list[Array]) -> Array:
    start, end = integer(op, "start"), integer(op, "end")
    if shape_of(op.ins[0]) != (end - start,):
        raise TtirSyntaxError(f"line {op.line}: range of {end - start} elements")
    return np.arange(start, end, dtype=np.int32)[None]


def splat(frame: Frame, op: Op, args: list[Array]) -> Array:
    return args[0].reshape(-1, *(1,) * len(shape_of(op.outs[0])))


def unsplat(frame: Frame, op: Op, args: list[Array]) -> Array:
    return args[0].reshape(-1)


def broadcast(frame: Frame, op: Op, args: list[Array]) -> Array:
    return args[0]


def expand_dims(frame: Frame, op: Op, args: list[Array]) -> Array:
    return np.expand_dims(args[0], axis_of(op, args[0].ndim))


def reshape(frame: Frame, op: Op, args: list[Array]) -> Array:
    value, shape = args[0], shape_of(op.outs[0])
    if value.size == value.shape[0]:  # the same element everywhere
        return value.reshape(-1, *(1,) * len(shape))
    return materialise(value, shape_of(op.ins[0])).reshape(value.shape[0], *shape)


def trans(frame: Frame, op: Op, args: list[Array]) -> Array:
    order = op.attrs.get("order")
    if not isinstance(order, tuple):
        raise TtirSyntaxError(f"line {op.line}: {op.name} without an order")
    return args[0].transpose(0, *(int(str(axis)) + 1 for axis in order))


def cat(frame: Frame, op: Op, args: list[Array]) -> Array:
    """Triton may reorder the result; the natural order is one of those it may choose."""
    shape = shape_of(op.ins[0])
    programs = max(value.shape[0] for value in args)
    return np.concatenate([materialise(value, shape, programs) for value in args], axis=1)


def join(frame: Frame, op: Op, args: list[Array]) -> Array:
    return np.stack(np.broadcast_arrays(*args), axis=-1)


def split(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    pair = np.broadcast_to(args[0], (*args[0].shape[:-1], 2))
    return [pair[..., 0], pair[..., 1]]


def gather(frame: Frame, op: Op, args: list[Array]) -> Array:
    source, index = args
    programs = max(source.shape[0], index.shape[0])
    source = materialise(source, shape_of(op.ins[0]), programs)
    index = materialise(index, shape_of(op.ins[1]), programs).astype(np.int64)
    axis = axis_of(op, source.ndim - 1)
    if int(index.min()) < 0 or int(index.max()) >= source.shape[axis]:
        raise AssertFailed(f"line {op.line}: tt.gather with an index outside the tensor")
    return np.take_along_axis(source, index, axis)


def histogram(frame: Frame, op: Op, args: list[Array]) -> Array:
    """Counts per bin; values outside the bins are not counted."""
    bins = shape_of(op.outs[0])[0]
    shape = shape_of(op.ins[0])
    programs = max(value.shape[0] for value in args)
    value = materialise(args[0], shape, programs).astype(np.int64)
    counted = (value >= 0) & (value < bins)
    if len(args) > 1:
        counted &= materialise(args[1], shape, programs)
    rows = np.arange(programs)[:, None] * bins
    flat = np.bincount((value + rows)[counted], minlength=programs * bins)
    return flat.reshape(programs, bins).astype(raw_dtype(op.outs[0]))


def assert_op(frame: Frame, op: Op, args: list[Array]) -> None:
    if not args[0].all():
        raise AssertFailed(f"line {op.line}: {op.words[0] if op.words else 'assertion'}")


def ignore(frame: Frame, op: Op, args: list[Array]) -> None:
    """Printing, barriers and hints: programs run op by op here, so nothing is left to synchronise."""


OPS: dict[str, Handler] = {
    "tt.get_program_id": program_id,
    "tt.get_num_programs": num_programs,
    "tt.make_range": make_range,
    "tt.splat": splat,
    "tt.unsplat": unsplat,
    "tt.broadcast": broadcast,
    "tt.expand_dims": expand_dims,
    "tt.reshape": reshape,
    "tt.trans": trans,
    "tt.cat": cat,
    "tt.join": join,
    "tt.split": split,
    "tt.gather": gather,
    "tt.histogram": histogram,
    "tt.assert": assert_op,
}
_IGNORED = ("tt.print", "gpu.barrier", "ttg.barrier", "ttg.local_barrier", "llvm.intr.assume")
OPS |= dict.fromkeys(_IGNORED, ignore)
