"""Atomics. Programs run in lockstep here, so several lanes may hit one address in one op: they take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tools.ttir.errors import UnsupportedOp
from tools.ttir.floats import decode, encode, round_to
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Op
from tools.ttir.memory import Space
from tools.ttir.ops_arith import unsigned
from tools.ttir.ops_memory import pointee_of
from tools.ttir.types import Array, Type, raw_dtype, scalar_name, shape_of, stored_dtype
from tools.ttir.values import materialise

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


def update(space: Space, kind: str, address: Array, value: Array, element: Type) -> None:
    """Applies all lanes when nobody asks for the old values: one unbuffered numpy call for the usual types."""
    dtype, ufunc = raw_dtype(element), UFUNCS.get(kind)
    region = space.single(address, dtype.itemsize)
    if ufunc and region and dtype == stored_dtype(element):
        if kind[0] == "u":
            dtype, value = np.dtype(f"u{dtype.itemsize}"), unsigned(value)
        index = region.index(address, dtype)
        if index is not None:
            ufunc.at(region.view(dtype), index, value)
            return
    exchange(space, _combiner(kind, element), address, value, element)


def exchange(space: Space, combine: Combine, address: Array, value: Array, element: Type) -> Array:
    """Applies all lanes in turn and returns what each found."""
    old = np.empty(address.shape, stored_dtype(element))
    for lanes in turns(address):
        old[lanes] = decode(space.read(address[lanes], raw_dtype(element)), element)
        space.write(address[lanes], encode(combine(old[lanes], value[lanes]), element))
    return old


def turns(address: Array) -> Iterator[Array]:
    """Groups of lanes with distinct addresses; lanes that share one appear in their own order."""
    order = np.argsort(address, kind="stable")
    ordered = address[order]
    position = np.arange(len(order))
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    turn = position - np.maximum.accumulate(np.where(starts, position, 0))
    if not turn.any():
        yield position
        return
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


def _sum_in_turn(space: Space, address: Array, value: Array, element: Type) -> Array:
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
    old = np.zeros(full[0].shape, stored_dtype(element))
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


def rmw_kind(kind: str, element: Type) -> str:
    """The rmw spelling of a descriptor reduction's kind."""
    return "fadd" if kind == "add" and "f" in scalar_name(element) else kind


OPS: dict[str, Handler] = {"tt.atomic_rmw": rmw, "tt.atomic_cas": cas}
