"""Instructions between threads and memory: loads and stores, atomics, and exchanges inside a warp."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltune.tools.languages.ptx.ir import Address, Operand, Symbol, bits_of
from kerneltune.tools.languages.ptx.sim.arithmetic import ones
from kerneltune.tools.languages.ptx.sim.machine import LANE_BITS, WARP, WINDOWS, Ins, Read, Run, WarpMachine
from kerneltune.tools.languages.ptx.sim.values import (
    POISON,
    UNSIGNED,
    IllFormed,
    decode,
    encode,
    is_float,
    place,
    to_format,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array

# ---
# Loads, stores, and what orders them.

SPACES = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "shared", "local": "local",
    "const": "global", "param": "param", "param::entry": "param",
}  # fmt: skip
SMALL = ("shared", "local")  # windows of 32 bits
ORDERS = ("weak", "relaxed", "volatile", "acquire", "release", "acq_rel", "mmio")
_SYNCHRONISING = ("volatile", "acquire", "acq_rel", "relaxed")
_HINTS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified", "cta", "cluster", "gpu", "sys")


def space_of(ins: Ins) -> str:
    """The state space; "generic" without one."""
    return SPACES.get(ins.one_of(tuple(SPACES)), "generic")


def without_policy(ins: Ins) -> tuple[Operand, ...]:
    """The operands but for a cache policy. It, caches and scopes change no value."""
    ins.ignore(*_HINTS)
    hinted = ins.flag("L2::cache_hint")
    ins.unread = [w for w in ins.unread if not w.startswith(("L1::", "L2::"))]
    return ins.operands[: len(ins.operands) - hinted]


def place_of(ins: Ins, operand: Operand, space: str) -> tuple[Read, str]:
    """Addresses of an operand in brackets, and their state space: where none is said, that of the name in it."""
    if space == "generic" and isinstance(operand, Address) and isinstance(operand.base, Symbol):
        space = ins.scope.spaces.get(operand.base.name, space)
    return ins.address(operand, small=space in SMALL), space


def _vector(ins: Ins) -> int:
    return int(ins.one_of(("v2", "v4", "v8"), "v1")[1:])


def _accessed(ins: Ins, place_at: int) -> tuple[Read, str, str, tuple[Operand, ...]]:
    """Of ld and st: addresses, their space, the type, the registers."""
    operands, space, vector = without_policy(ins), space_of(ins), _vector(ins)
    ins.understood()
    items = ins.items(ins.operands[1 - place_at])
    if len(items) != vector:
        raise IllFormed(f"{place(ins.ins)}: {len(items)} registers where {vector} belong")
    ins.expect(2 + len(ins.operands) - len(operands))
    if bits_of(ins.kind) == 128:
        raise unsupported(ins.ins, "128-bit registers")
    return *place_of(ins, operands[place_at], space), ins.kind, items


def _load(ins: Ins) -> Run:
    """ld, ldu."""
    orders = ins.one_of(ORDERS) in _SYNCHRONISING
    at, space, kind, items = _accessed(ins, 1)
    width = bits_of(kind) // 8 * len(items)
    writers = [ins.write_bits(item, kind) for item in items]

    def run(m: WarpMachine) -> None:
        address, lanes = at(m), m.lanes
        if space in SMALL or len(address) > 1:
            address = m.full(address)
        else:
            lanes = lanes.only(np.zeros(1, np.int64))  # one for all
        raw = m.memory.read(space, address, width, ins.ins, lanes)
        if orders and space != "global":
            m.memory.shadow.barrier(np.unique(lanes.blocks))
        parts = raw.view(UNSIGNED[bits_of(kind)])
        for i, write in enumerate(writers):
            write(m, np.ascontiguousarray(parts[:, i]))

    return run


def _store(ins: Ins) -> Run:
    """st."""
    ins.one_of(ORDERS)
    at, space, kind, items = _accessed(ins, 0)
    readers = [ins.bits(item, kind) for item in items]

    def run(m: WarpMachine) -> None:
        columns = [m.full(reader(m)) for reader in readers]
        raw = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
        m.memory.write(space, m.full(at(m)), raw, ins.ins, m.lanes)

    return run


def nothing(ins: Ins) -> Run:
    """Hints and fences: threads here see memory in one order. What cp.async copies, no fence completes."""
    return lambda m: None


def _fence(ins: Ins) -> Run:
    """fence.proxy.async lets bulk copies see what threads have stored; the others tell nobody anything new."""
    if not ins.flag("proxy") or not ins.flag("async"):
        return nothing(ins)
    return lambda m: m.memory.shadow.fence(m.lanes.blocks)


def _policy(ins: Ins) -> Run:
    """createpolicy: a number that only hints use."""
    write = ins.write_bits(ins.operands[0], "b64")
    return lambda m: write(m, np.zeros(1, np.uint64))


def _is_space(ins: Ins) -> Run:
    """isspacep: which window a generic address lies in."""
    window = {name: number for number, name in WINDOWS.items()}.get(space_of(ins))
    high = np.uint64(32)
    return ins.compute(lambda a: a >> high == window if window else a >> high >= 256, ["b64"], "pred")


def _mapped(ins: Ins) -> Run:
    """mapa: the address in another block of the cluster; there is one."""
    ins.ignore("shared::cluster")

    def run(a: Array, rank: Array) -> Array:
        if rank.any():
            raise unsupported(ins.ins, "clusters of several blocks")
        return a

    return ins.compute(run, [ins.kind, "u32"], ins.kind)


MEMORY_OPS = {
    "ld": _load, "ldu": _load, "st": _store, "isspacep": _is_space, "createpolicy": _policy, "mapa": _mapped,
    "fence": _fence,
    **dict.fromkeys(
        ("prefetch", "prefetchu", "applypriority", "discard", "membar", "griddepcontrol", "nanosleep",
         "setmaxnreg", "pmevent"), nothing),
}  # fmt: skip


# ---
# atom and red: threads take turns, by number.

Combine = Callable[..., Any]  # of arrays
_INTEGERS: dict[str, Combine] = {  # the new value from the old one, and the operands
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": lambda old, b: np.where(old >= b, 0, old + 1),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - 1),
}
_FLOATS = _INTEGERS | {"min": np.fmin, "max": np.fmax}


def _atomic(ins: Ins) -> Run:
    """atom and red of one element, or of a vector of elements."""
    ins.one_of(ORDERS)
    operands, space, name, vector = without_policy(ins), space_of(ins), ins.one_of(tuple(_INTEGERS)), _vector(ins)
    ins.ignore("noftz")
    ins.understood()
    results, operands = ((), operands) if ins.opcode == "red" else (ins.items(operands[0]), operands[1:])
    at, space = place_of(ins, operands[0], space)
    kind = ins.kind
    if not name or bits_of(kind) == 128:
        raise unsupported(ins.ins, "this atomic operation")
    width, combine = bits_of(kind) // 8, (_FLOATS if is_float(kind) else _INTEGERS)[name]
    if kind in ("bf16", "bf16x2") and name == "add":
        combine = lambda old, b: to_format(old + b, "bf16")  # noqa: E731
    readers = [[ins.bits(item, kind) for item in ins.items(operand)] for operand in operands[1:]]
    writers = [ins.write_bits(item, kind) for item in results]

    def run(m: WarpMachine) -> None:
        address = m.full(at(m))
        if writers:  # may be a lock: what it guards does not race
            m.memory.shadow.barrier(np.unique(m.lanes.blocks))
        m.memory.check(space, address, width * vector, ins.ins, m.lanes)
        for i in range(vector):
            values = [m.full(reader[i](m)) for reader in readers]
            old = _in_turns(m, space, address + i * width, values, kind, combine, ins)
            if writers:
                writers[i](m, old)

    return run


def _in_turns(
    m: WarpMachine, space: str, address: Array, values: list[Array], kind: str, combine: Combine, ins: Ins
) -> Array:
    """What each lane found. Lanes with one address go one after the other."""
    width, lanes = bits_of(kind) // 8, m.lanes
    block = lanes.blocks if space in ("shared", "generic") else np.zeros(len(lanes), np.int64)
    order = np.lexsort((np.arange(len(address)), address, block))
    same = (np.diff(address[order]) == 0) & (np.diff(block[order]) == 0)
    starts = np.concatenate([[True], ~same])
    turn = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    old = np.empty(len(address), UNSIGNED[width * 8])
    by_turn = order[np.argsort(turn, kind="stable")]
    for mine in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
        with m.memory.shadow.off():
            found = m.memory.read(space, address[mine], width, ins.ins, lanes.only(mine)).view(old.dtype)[:, 0]
            new = combine(decode(found, kind), *(decode(v[mine], kind) for v in values))
            raw = encode(np.asarray(new), kind)
            m.memory.write(space, address[mine], raw[:, None].view(np.uint8), ins.ins, lanes.only(mine))
        old[mine] = found
    return old


ATOMIC_OPS = {"atom": _atomic, "red": _atomic}


# ---
# What the threads of a warp tell one another: shfl, vote, match, redux, elect. All lanes of a mask are there.

_LANE = np.arange(WARP)


def _shuffle(ins: Ins) -> Run:
    """shfl.sync: another lane's value; a lane that is not there gives what nothing has written."""
    ins.ignore("sync")
    mode = ins.one_of(("up", "down", "bfly", "idx"))
    ins.understood()
    ins.expect(5)
    a, b, c = (ins.bits(operand, "b32") for operand in ins.operands[1:4])
    writers = ins.results("b32", "pred")

    def run(m: WarpMachine) -> None:
        source, inside = _source(mode, m.in_warps(b(m)).astype(np.int64), m.in_warps(c(m)).astype(np.int64))
        values = m.in_warps(a(m), POISON & 0xFFFFFFFF)
        found = (np.take_along_axis(values, source, axis=1), inside)
        for write, by_warp in zip(writers, found, strict=False):
            write(m, m.from_warps(by_warp))

    return run


def _source(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """[warp, lane]: whose value, and whether that is within the segment (else its own)."""
    segment, clamp, by = c >> 8 & 31, c & 31, b & 31
    low = _LANE & segment
    end = low | clamp & ~segment
    at = {"up": _LANE - by, "down": _LANE + by, "bfly": _LANE ^ by, "idx": low | by & ~segment}[mode]
    inside = at >= end if mode == "up" else (at >= 0) & (at <= end)
    return np.where(inside, at, _LANE + 0 * b), inside


def _vote(ins: Ins) -> Run:
    """vote.sync: all, any, uni, ballot."""
    ins.ignore("sync")
    mode = ins.one_of(("all", "any", "uni", "ballot"))
    ins.understood()
    p, mask = ins.bits(ins.operands[1], "pred"), ins.bits(ins.operands[-1], "b32")
    write = ins.write_bits(ins.operands[0], "b32" if mode == "ballot" else "pred")

    def run(m: WarpMachine) -> None:
        yes = m.ballots(m.spread(p(m))) & m.full(mask(m))
        here = m.ballots(m.active()) & m.full(mask(m))
        write(m, {"ballot": yes, "all": yes == here, "any": yes != 0, "uni": (yes == here) | (yes == 0)}[mode])

    return run


def _match(ins: Ins) -> Run:
    """match.sync: which lanes hold the same."""
    ins.ignore("sync")
    mode = ins.one_of(("any", "all"))
    ins.understood()
    a, mask, writers = ins.bits(ins.operands[1], ins.kind), ins.bits(ins.operands[2], "b32"), ins.results("b32", "pred")

    def run(m: WarpMachine) -> None:
        values, there = m.in_warps(a(m)), m.in_warps(m.full(mask(m)))
        active = m.active().reshape(-1, WARP)[m.warps()]
        same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        bits = (same * LANE_BITS).sum(axis=2, dtype=np.uint32) & there
        whole = bits == (active * LANE_BITS).sum(axis=1, dtype=np.uint32)[:, None] & there
        found = (bits if mode == "any" else np.where(whole, bits, np.uint32(0)), whole)
        for write, by_warp in zip(writers, found, strict=False):
            write(m, m.from_warps(by_warp))

    return run


_REDUCE: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _reduce(ins: Ins) -> Run:
    """redux.sync: over the lanes of the mask."""
    ins.ignore("sync")
    name, kind = ins.one_of(tuple(_REDUCE)), ins.kind
    if is_float(kind) or not name:
        raise unsupported(ins.ins, "a reduction of floats")
    ins.understood()
    a, mask = ins.bits(ins.operands[1], kind), ins.bits(ins.operands[2], "b32")
    write = ins.write_bits(ins.operands[0], kind)

    def run(m: WarpMachine) -> None:
        values, masks = m.in_warps(a(m)), m.in_warps(m.full(mask(m)))
        active = m.active().reshape(-1, WARP)[m.warps()]
        out = np.zeros(values.shape, np.uint32)
        for warp in range(len(values)):
            for one in np.unique(masks[warp][active[warp]]):
                mine = active[warp] & (masks[warp] == one)
                out[warp, mine] = encode(_REDUCE[name].reduce(decode(values[warp, mine], kind), keepdims=True), kind)
        write(m, m.from_warps(out))

    return run


def _active_mask(ins: Ins) -> Run:
    """activemask."""
    write = ins.write_bits(ins.operands[0], "b32")
    return lambda m: write(m, m.ballots(m.active()))


def _elect(ins: Ins) -> Run:
    """elect.sync: the lowest lane leads."""
    ins.ignore("sync")
    ins.understood()
    writers = ins.results("b32", "pred")

    def run(m: WarpMachine) -> None:
        ballots = m.ballots(m.active())
        number = ones((ballots & (~ballots + np.uint32(1))) - np.uint32(1))
        for write, found in zip(writers, (number, number == m.narrow(m.thread) % WARP), strict=False):
            write(m, found)

    return run


WARP_SYNC: dict[str, tuple[Callable[[Ins], Run], int]] = {  # and the place of the mask among the operands
    "shfl": (_shuffle, 4), "vote": (_vote, 2), "match": (_match, 2), "redux": (_reduce, 2), "elect": (_elect, 1),
    "bar.warp": (nothing, 0),  # being there is all
}  # fmt: skip
WARP_OPS = {"activemask": _active_mask}
