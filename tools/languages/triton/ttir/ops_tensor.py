"""Ops that make, move or count elements without arithmetic, and reductions.

A region of one known op becomes one numpy call. Any other region is run on whole arrays, each element posing as one
program, so that control flow and calls inside the region need no code of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kerneltune.tools.languages.triton.ttir.frame import Frame, Handler
from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    AssertFailed,
    Op,
    TtirSyntaxError,
    raw_dtype,
    scalar_name,
    shape_of,
)
from kerneltune.tools.languages.triton.ttir.values import (
    is_zero,
    materialise,
    ordered_zeros,
    quiet,
    unsigned,
    widen_axis,
)

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


TENSOR_OPS: dict[str, Handler] = {
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
TENSOR_OPS |= dict.fromkeys(_IGNORED, ignore)


UFUNCS: dict[str, np.ufunc] = {
    "arith.addf": np.add,
    "arith.mulf": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": np.maximum,
    "arith.minui": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}
_FLOAT_EXTREMES = (np.maximum, np.minimum, np.fmax, np.fmin)
_ROUNDS = ("arith.addf", "arith.mulf")
# ops whose results follow from their operands alone, and the ends of regions
_PURE = ("arith.", "math.", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return")


def known_combiner(op: Op) -> tuple[np.ufunc, bool] | None:
    """The region's ufunc, and whether it is on unsigned integers, if the region is one op on its two arguments."""
    block = op.regions[0].blocks[0]
    if len(block.args) != 2 or len(block.ops) != 2:
        return None
    inner, end = block.ops
    if inner.name not in UFUNCS or end.operands != list(inner.results) or set(inner.operands) != set(block.args):
        return None
    name = scalar_name(op.ins[0])
    # narrow sums are rounded after each step on the GPU; i1 sums are xors
    if name == "i1" or (inner.name in _ROUNDS and name not in ("f32", "f64")):
        return None
    return UFUNCS[inner.name], inner.name.endswith("ui")


def combine(frame: Frame, op: Op, args: Sequence[Array]) -> list[Array]:
    """The region applied to arrays of one shape, element by element; axis 0 is the programs'."""
    shape = np.broadcast_shapes(*(value.shape for value in args))
    # a value that all programs share needs to be computed for one of them only, unless the region uses another
    programs, per_program = shape[0], math.prod(shape[1:])
    base = np.arange(frame.size) if programs == frame.size else np.zeros(programs, np.int64)
    if programs == 1 < frame.size and not _is_closed(frame, op):
        base, programs = np.arange(frame.size), frame.size
        shape = (programs, *shape[1:])
    inner = frame.child(np.repeat(base, per_program))
    flat = [np.broadcast_to(value, shape).reshape(-1) for value in args]
    results = inner.run_region(op.regions[0], flat)
    return [np.broadcast_to(value, (programs * per_program,)).reshape(shape) for value in results]


def _is_closed(frame: Frame, op: Op) -> bool:
    """Whether the region uses only its arguments and values that are the same for all programs."""
    block = op.regions[0].blocks[0]
    local = set(block.args)
    for inner in block.ops:
        if inner.regions or not inner.name.startswith(_PURE):
            return False
        outside = [name for name in inner.operands if name not in local]
        if any(frame.get(name).shape[0] != 1 for name in outside):
            return False
        local.update(inner.results)
    return True


def reduce(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    shape = shape_of(op.ins[0])
    axis = axis_of(op, len(shape))
    values = [widen_axis(value, axis, shape[axis - 1]) for value in args]
    if known := known_combiner(op):
        return [_folded(known, "reduce", values[0], axis)]
    return [value.take(0, axis) for value in _tree(frame, op, values, axis)]


def _folded(combiner: tuple[np.ufunc, bool], how: str, value: Array, axis: int) -> Array:
    """The combiner's `reduce` or `accumulate` along an axis."""
    ufunc, is_unsigned = combiner
    if value.dtype.kind == "f" and ufunc in _FLOAT_EXTREMES:
        found = getattr(ufunc, how)(quiet(value), axis=axis)
        return ordered_zeros(ufunc, found, lambda least: getattr(np.logical_or, how)(is_zero(value, least), axis=axis))
    held = unsigned(value) if is_unsigned else value
    folded: Array = getattr(ufunc, how)(held, axis=axis, dtype=held.dtype)
    return folded.view(value.dtype)


def _tree(frame: Frame, op: Op, values: list[Array], axis: int) -> list[Array]:
    """Combines neighbours, which keeps the order of operands for combiners that are not commutative."""
    values = list(np.broadcast_arrays(*values)) if len(values) > 1 else values
    while (size := values[0].shape[axis]) > 1:
        even = [_slice(value, axis, 0, size // 2 * 2, 2) for value in values]
        odd = [_slice(value, axis, 1, size, 2) for value in values]
        last = [_slice(value, axis, size // 2 * 2, size) for value in values]
        values = combine(frame, op, [*even, *odd])
        if size % 2:
            pairs = zip(values, last, strict=True)
            values = [np.concatenate([value, _match(rest, value)], axis) for value, rest in pairs]
    return values


def _match(rest: Array, value: Array) -> Array:
    return np.broadcast_to(rest, (value.shape[0], *rest.shape[1:]))


def _slice(value: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    return value[(slice(None),) * axis + (slice(start, stop, step),)]


def scan(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    shape = shape_of(op.ins[0])
    axis = axis_of(op, len(shape))
    values = [widen_axis(value, axis, shape[axis - 1]) for value in args]
    if op.attrs.get("reverse") is True:
        values = [np.flip(value, axis) for value in values]
    if known := known_combiner(op):
        values = [_folded(known, "accumulate", values[0], axis)]
    else:
        values = _prefixes(frame, op, values, axis)
    return [np.flip(value, axis) for value in values] if op.attrs.get("reverse") is True else values


def _prefixes(frame: Frame, op: Op, values: list[Array], axis: int) -> list[Array]:
    """Kogge-Stone: after round k each element has absorbed the 2**k elements before it."""
    values = list(np.broadcast_arrays(*values)) if len(values) > 1 else values
    size, distance = values[0].shape[axis], 1
    while distance < size:
        earlier = [_slice(value, axis, 0, size - distance) for value in values]
        later = [_slice(value, axis, distance, size) for value in values]
        done = [_slice(value, axis, 0, distance) for value in values]
        tail = combine(frame, op, [*earlier, *later])
        values = [np.concatenate([_match(a, b), b], axis) for a, b in zip(done, tail, strict=True)]
        distance *= 2
    return values


def map_elementwise(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    pack = op.attrs.get("pack", 1)
    if pack == 1:
        return combine(frame, op, args)
    # with packing, the region takes `pack` neighbouring elements of each operand at once
    shape = shape_of(op.ins[0])
    if not isinstance(pack, int) or pack < 1 or math.prod(shape) % pack:
        raise TtirSyntaxError(f"line {op.line}: pack {pack!r}")
    programs = max(value.shape[0] for value in args)
    flat = [np.broadcast_to(value, (programs, *shape)).reshape(programs, -1, pack) for value in args]
    results = combine(frame, op, [value[..., lane] for value in flat for lane in range(pack)])
    groups = [results[start : start + pack] for start in range(0, len(results), pack)]
    return [np.stack(group, axis=-1).reshape(-1, *shape) for group in groups]


TENSOR_OPS |= {"tt.reduce": reduce, "tt.scan": scan, "tt.map_elementwise": map_elementwise}
