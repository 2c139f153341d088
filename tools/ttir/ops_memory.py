"""Pointers, loads and stores."""

from __future__ import annotations

import numpy as np

from tools.ttir.errors import TtirSyntaxError, UnsupportedOp
from tools.ttir.floats import decode, encode
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Op
from tools.ttir.memory import SHIFT
from tools.ttir.types import Array, Ptr, Tensor, Type, element_of, raw_dtype
from tools.ttir.values import poison


def pointee_of(kind: Type) -> Type:
    pointer = element_of(kind)
    if not isinstance(pointer, Ptr):
        raise TtirSyntaxError(f"not a pointer: {kind}")
    if isinstance(pointer.pointee, Tensor):
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


OPS: dict[str, Handler] = {
    "tt.addptr": addptr,
    "tt.ptr_to_int": ptr_to_int,
    "tt.int_to_ptr": int_to_ptr,
    "tt.load": load,
    "tt.store": store,
}
