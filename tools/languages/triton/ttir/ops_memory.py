"""Pointers, loads and stores, atomics, tensor descriptors and matrix products.

Programs run in lockstep here, so several lanes may hit one address in one atomic op: they take turns.

A descriptor value is an int64 array (programs, 2 + 2 * rank): base address, flags, shape, strides in elements. Being a
plain array, it can be carried through loops and branches like any other value; its block shape comes from its type.

Products accumulate in float32, with the precision that the operands really have on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kerneltune.tools.languages.triton.ttir.frame import Frame, Handler
from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Desc,
    Op,
    Ptr,
    TensorType,
    TtirSyntaxError,
    Type,
    UnsupportedOp,
    element_of,
    is_float,
    raw_dtype,
    scalar_name,
    shape_of,
    stored_dtype,
)
from kerneltune.tools.languages.triton.ttir.memory import SHIFT, AddressSpace
from kerneltune.tools.languages.triton.ttir.values import (
    decode,
    encode,
    materialise,
    poison,
    round_tf32,
    round_to,
    unsigned,
)


def pointee_of(kind: Type) -> Type:
    pointer = element_of(kind)
    if not isinstance(pointer, Ptr):
        raise TtirSyntaxError(f"not a pointer: {kind}")
    if isinstance(pointer.pointee, TensorType):
        raise UnsupportedOp("block pointer", "make_ttir rewrites these; was the TTIR taken before that?")
    return pointer.pointee


def addptr(frame: Frame, op: Op, args: list[Array]) -> Array:
    pointer, offset = args
    size = raw_dtype(pointee_of(op.ins[0])).itemsize
    return pointer + (offset if size == 1 else offset.astype(np.int64) * size)


def ptr_to_int(frame: Frame, op: Op, args: list[Array]) -> Array:
    return args[0]


def int_to_ptr(frame: Frame, op: Op, args: list[Array]) -> Array:
    """Only for numbers that came from our own pointers: a table of real device addresses means nothing here."""
    if not frame.machine.space.regions.keys() & set(np.unique(args[0] >> SHIFT).tolist()):
        raise UnsupportedOp(op.name, "an address that is not one of an argument's")
    return args[0]


def gather(frame: Frame, address: Array, mask: Array | None, other: Array, kind: Type) -> Array:
    """The values at `address`; lanes whose mask is off touch nothing and give `other`."""
    space, dtype = frame.machine.space, raw_dtype(kind)
    if mask is None or mask.all():
        return decode(space.read(address, dtype), kind)
    if not mask.any():
        return np.broadcast_to(other, np.broadcast_shapes(address.shape, mask.shape, other.shape))
    address, mask = np.broadcast_arrays(address, mask)
    # lanes that are off read where an active lane does: cheaper than compressing the array and spreading it again
    harmless = address.flat[int(mask.argmax())]
    found = decode(space.read(np.where(mask, address, harmless), dtype), kind)
    return np.where(mask, found, other)


def load(frame: Frame, op: Op, args: list[Array]) -> Array:
    """Without `other`, Triton leaves masked-off lanes undefined; they get a value that shows if it is used."""
    kind = pointee_of(op.ins[0])
    if isinstance(kind, Ptr):
        raise UnsupportedOp(op.name, "pointers in memory are the device's, not ours")
    mask = args[1] if len(args) > 1 else None
    other = args[2] if len(args) > 2 else poison(kind).reshape((1,) * args[0].ndim)
    return gather(frame, args[0], mask, other, kind)


def scatter(frame: Frame, address: Array, value: Array, mask: Array | None, kind: Type) -> None:
    """Writes active lanes. Where lanes collide, one of them wins, as on the GPU."""
    value = encode(value, kind)
    if mask is None or mask.all():
        address, value = np.broadcast_arrays(address, value)
    elif mask.any():
        address, value, mask = np.broadcast_arrays(address, value, mask)
        address, value = address[mask], value[mask]
    else:
        return
    frame.machine.space.write(address, value)


def store(frame: Frame, op: Op, args: list[Array]) -> None:
    scatter(frame, args[0], args[1], args[2] if len(args) > 2 else None, pointee_of(op.ins[0]))


MEMORY_OPS: dict[str, Handler] = {
    "tt.addptr": addptr,
    "tt.ptr_to_int": ptr_to_int,
    "tt.int_to_ptr": int_to_ptr,
    "tt.load": load,
    "tt.store": store,
}


Combine = Callable[[Array, Array], Array]
UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "fadd": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": np.maximum,
    "umin": np.minimum,
}


def _combiner(kind: str, element: Type) -> Combine:
    if kind == "exch":
        return lambda old, value: value
    ufunc = UFUNCS.get(kind)
    if ufunc is None:
        raise UnsupportedOp("tt.atomic_rmw", kind)
    if kind in ("umax", "umin"):
        return lambda old, value: ufunc(unsigned(old), unsigned(value)).view(old.dtype)
    return lambda old, value: round_to(ufunc(old, value), element)


def update(space: AddressSpace, kind: str, address: Array, value: Array, element: Type) -> None:
    """Applies all lanes when nobody asks for the old values: one unbuffered numpy call for the usual types."""
    dtype, ufunc = raw_dtype(element), UFUNCS.get(kind)
    region = space.single(address, dtype.itemsize)
    seen = space.watched or (region is not None and region.writes is not None)  # somebody looks at each write
    if ufunc and region and dtype == stored_dtype(element) and not seen:
        if kind[0] == "u":
            dtype, value = np.dtype(f"u{dtype.itemsize}"), unsigned(value)
        ufunc.at(region.view(dtype), region.index(address, dtype), value)
        space.written = True
        return
    exchange(space, _combiner(kind, element), address, value, element)


def exchange(space: AddressSpace, combine: Combine, address: Array, value: Array, element: Type) -> Array:
    """Applies all lanes in turn and returns what each found."""
    old = np.empty(address.shape, stored_dtype(element))
    for lanes in turns(address):
        old[lanes] = decode(space.read(address[lanes], raw_dtype(element)), element)
        space.write(address[lanes], encode(combine(old[lanes], value[lanes]), element))
    return old


def turns(*place: Array) -> Iterator[Array]:
    """Groups of lanes at distinct places, which may be an address and the block that it is in; lanes that share one
    appear in their own order."""
    order = np.lexsort(place)
    position = np.arange(len(order))
    starts = np.concatenate([[True], np.logical_or.reduce([np.diff(part[order]) != 0 for part in place])])
    turn = position - np.maximum.accumulate(np.where(starts, position, 0))
    if not turn.any():
        yield position
        return
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


def _sum_in_turn(space: AddressSpace, address: Array, value: Array, element: Type) -> Array:
    """Integer adds whose old values are wanted: prefix sums instead of turns, for the usual single counter."""
    base = decode(space.read(address[:1], raw_dtype(element)), element)
    total = np.cumsum(value, dtype=value.dtype)
    space.write(address[:1], encode(base + total[-1:], element))
    before: Array = base + total - value
    return before


def rmw(frame: Frame, op: Op, args: list[Array]) -> Array:
    kind, element, shape = op.words[0], pointee_of(op.ins[0]), shape_of(op.ins[0])
    # every program and element counts once, even where all of them hold the same value
    full = [materialise(value, shape, frame.size) for value in args]
    active = full[2] if len(full) > 2 else np.ones(full[0].shape, np.bool_)
    old = np.array(
        np.broadcast_to(poison(element).flat[0], full[0].shape)
    )  # where nobody asks, Triton promises nothing
    if not active.any():
        return old
    address, value, space = full[0][active], full[1][active], frame.machine.space
    if not any(name in frame.machine.used for name in op.results):
        update(space, kind, address, value, element)
    elif kind == "add" and int(address.min()) == int(address.max()):
        old[active] = _sum_in_turn(space, address, value, element)
    else:
        old[active] = exchange(space, _combiner(kind, element), address, value, element)
    return old


def cas(frame: Frame, op: Op, args: list[Array]) -> Array:
    element, shape = pointee_of(op.ins[0]), shape_of(op.ins[0])
    address, compare, value = (materialise(part, shape, frame.size).reshape(-1) for part in args)
    # bits are compared, as the hardware does, so -0.0 and 0.0 differ
    expected, space = encode(compare, element), frame.machine.space
    replacement = encode(value, element)
    found = np.empty(address.shape, raw_dtype(element))
    for lanes in turns(address):
        found[lanes] = space.read(address[lanes], found.dtype)
        same = found[lanes].view(f"u{found.dtype.itemsize}") == expected[lanes].view(f"u{found.dtype.itemsize}")
        space.write(address[lanes], np.where(same, replacement[lanes], found[lanes]))
    return decode(found, element).reshape(frame.size, *shape)


def rmw_kind(kind: str, desc: Desc) -> str:
    """The rmw spelling of a descriptor reduction's kind."""
    if desc.unsigned and kind in ("max", "min"):
        return f"u{kind}"
    return "fadd" if kind == "add" and "f" in scalar_name(desc.block.element) else kind


MEMORY_OPS |= {"tt.atomic_rmw": rmw, "tt.atomic_cas": cas}


PAD_NAN = 1


def descriptor_type(kind: Type) -> Desc:
    if isinstance(kind, TensorType):  # tt.make_tensor_descriptor leaves the outer part of its type out
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
    return gather(frame, address, inside, _padding(desc, kind), kind.block.element)


def load_block(frame: Frame, op: Op, args: list[Array]) -> Array:
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


def store_block(frame: Frame, op: Op, args: list[Array]) -> None:
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
        name = rmw_kind(op.words[0], kind)
        update(frame.machine.space, name, address[inside], value[inside], kind.block.element)


MEMORY_OPS |= {
    "tt.make_tensor_descriptor": make,
    "tt.descriptor_load": load_block,
    "tt.descriptor_gather": gather_rows,
    "tt.descriptor_store": store_block,
    "tt.descriptor_scatter": store_block,
    "tt.descriptor_reduce": reduce,
}


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
    """Return each operand and its scales; None for those of an operand of 16 bits."""
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
    """Convert scales to float32: E8M0 bytes, or 8-bit floats as they are."""
    if is_float(kind):
        return codes.astype(np.float32)
    exponent = codes.astype(np.uint8).astype(np.int32)
    return np.where(exponent == 255, np.nan, np.ldexp(np.float32(1), exponent - 127)).astype(np.float32)


def _wide(value: Array, name: str) -> Array:
    """Convert an operand to float32, K last; two values of four bits lie in a byte, the lower one first."""
    if name != "e2m1":
        return value.astype(np.float32, copy=False)
    codes = value.astype(np.uint8)
    pairs: Array = np.stack([_FOUR_BITS[codes & 15], _FOUR_BITS[codes >> 4]], axis=-1)
    return pairs.reshape(*codes.shape[:-1], -1)


def _times(value: Array, scale: Array | None) -> Array:
    return value if scale is None else value * np.repeat(scale, value.shape[-1] // scale.shape[-1], axis=-1)


MEMORY_OPS |= {"tt.dot": dot, "tt.dot_scaled": dot_scaled}
