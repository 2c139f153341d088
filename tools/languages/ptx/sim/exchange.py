"""Instructions between threads and memory: loads and stores, atomics, exchanges inside a warp, and asynchronous
copies: bulk ones, which barriers in shared memory wait for, and those in groups."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kerneltune.tools.languages.ptx.ir import Address, Operand, Symbol, Vector, bits_of
from kerneltune.tools.languages.ptx.sim.machine import (
    LANE_BITS,
    TENSORS,
    WARP,
    WINDOWS,
    DecodedTensorMap,
    InFlight,
    Ins,
    Lanes,
    Read,
    Run,
    WarpMachine,
)
from kerneltune.tools.languages.ptx.sim.values import (
    POISON,
    UNSIGNED,
    IllFormed,
    Race,
    decode,
    encode,
    is_float,
    place,
    to_format,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array
from kerneltune.tools.languages.triton.ttir.ops_memory import turns
from kerneltune.tools.languages.triton.ttir.values import extreme

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


def in_window(space: str, address: Array) -> Array:
    """Which addresses mean memory that blocks or threads have of their own, though no state space says so."""
    return (address < TENSORS) & (space == "generic")


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
        if space in SMALL or len(address) > 1 or in_window(space, address).any():
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
    if _is_passed(ins):
        return nothing(ins)  # the call itself says what becomes of it
    ins.one_of(ORDERS)
    at, space, kind, items = _accessed(ins, 0)
    readers = [ins.bits(item, kind) for item in items]

    def run(m: WarpMachine) -> None:
        columns = [m.full(reader(m)) for reader in readers]
        raw = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
        m.memory.write(space, m.full(at(m)), raw, ins.ins, m.lanes)

    return run


def _is_passed(ins: Ins) -> bool:
    """Whether it is a value for a call: no memory of the kernel's has that name."""
    target = ins.operands[0] if ins.operands else None
    base = target.base if isinstance(target, Address) else None
    return (
        isinstance(base, Symbol) and base.name not in ins.scope.symbols and ins.scope.spaces.get(base.name) == "param"
    )


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


MEMORY_OPS: dict[str, Callable[[Ins], Run]] = {
    "ld": _load, "ldu": _load, "st": _store, "isspacep": _is_space, "createpolicy": _policy, "mapa": _mapped,
    "fence": _fence,
    **dict.fromkeys(
        ("prefetch", "prefetchu", "applypriority", "membar", "griddepcontrol", "nanosleep",
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
_FLOATS = _INTEGERS | {"min": partial(extreme, np.fmin), "max": partial(extreme, np.fmax)}


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
    block = np.where((space == "shared") | in_window(space, address), lanes.blocks, 0)  # global memory is all blocks'
    old = np.empty(len(address), UNSIGNED[width * 8])
    for mine in turns(address, block):
        with m.memory.shadow.off():
            found = m.memory.read(space, address[mine], width, ins.ins, lanes.only(mine)).view(old.dtype)[:, 0]
            new = combine(decode(found, kind), *(decode(v[mine], kind) for v in values))
            raw = encode(np.asarray(new), kind)
            m.memory.write(space, address[mine], raw[:, None].view(np.uint8), ins.ins, lanes.only(mine))
        old[mine] = found
    return old


MEMORY_OPS |= {"atom": _atomic, "red": _atomic}


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


_REDUCE: dict[str, Any] = {name: _INTEGERS[name] for name in ("add", "min", "max", "and", "or", "xor")}


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
        number = np.bitwise_count((ballots & (~ballots + np.uint32(1))) - np.uint32(1)).astype(np.uint32)
        for write, found in zip(writers, (number, number == m.narrow(m.thread) % WARP), strict=False):
            write(m, found)

    return run


WARP_SYNC: dict[str, tuple[Callable[[Ins], Run], int]] = {  # and the place of the mask among the operands
    "shfl": (_shuffle, 4), "vote": (_vote, 2), "match": (_match, 2), "redux": (_reduce, 2), "elect": (_elect, 1),
    "bar.warp": (nothing, 0),  # being there is all
}  # fmt: skip
MEMORY_OPS["activemask"] = _active_mask


# ---
# mbarriers, and the bulk copies into shared memory that they watch.

SHARED = ("shared", "shared::cta", "shared::cluster")

# The 64 bits of one in shared memory: pending arrivals (20 bits), arrivals of a phase (20 bits), bytes still to come
# (22 bits, signed), phase (the top bit).

_FIELD, _TX = (1 << 20) - 1, (1 << 22) - 1


class _State:
    """One mbarrier, unpacked."""

    def __init__(self, bits: int) -> None:
        self.pending, self.expected = bits & _FIELD, bits >> 20 & _FIELD
        self.bytes = ((bits >> 40 & _TX) + (1 << 21) & _TX) - (1 << 21)
        self.phase = bits >> 63

    @property
    def bits(self) -> int:
        """The 64 bits that shared memory holds."""
        return self.pending | self.expected << 20 | (self.bytes & _TX) << 40 | self.phase << 63


Change = Callable[[_State, int], None]


def _state(m: WarpMachine, ins: Ins, address: int, lane: int) -> _State:
    with m.memory.shadow.off():
        raw = m.memory.read("shared", np.array([address & 0xFFFFFFFF]), 8, ins.ins, m.everyone.only(np.array([lane])))
    return _State(int(raw.view(np.uint64)[0, 0]))


def _change(m: WarpMachine, ins: Ins, address: int, lane: int, change: Change, number: int) -> int:
    """Change an mbarrier, and end its phase when all are there. Return its bits before."""
    state = _state(m, ins, address, lane)
    before = state.bits
    change(state, number)
    if state.pending == 0 and state.bytes == 0:
        state.phase ^= 1
        state.pending = state.expected
    raw, where = np.array([[state.bits]], np.uint64).view(np.uint8), np.array([address & 0xFFFFFFFF])
    with m.memory.shadow.off():
        m.memory.write("shared", where, raw, ins.ins, m.everyone.only(np.array([lane])))
    return before


def _changer(ins: Ins, at: Operand, number: Operand | None, change: Change) -> Callable[[WarpMachine], Array]:
    """Lets each lane at work, one after the other, change the mbarrier at its address by its number (1). Gives what
    each found."""
    where, count = _barrier_address(ins, at), None if number is None else ins.bits(number, "b32")

    def run(m: WarpMachine) -> Array:
        numbers = np.ones(m.n, np.int64) if count is None else m.full(count(m))
        each = zip(m.full(where(m)).tolist(), m.lanes.numbers.tolist(), numbers.tolist(), strict=True)
        return np.array([_change(m, ins, address, lane, change, n) for address, lane, n in each], np.uint64)

    return run


def _barrier_address(ins: Ins, operand: Operand) -> Read:
    if not isinstance(operand, Address):
        raise IllFormed(f"{place(ins.ins)}: the mbarrier stands in brackets")
    return ins.address(operand, small=True)


_OPERATIONS = ("init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx")


def _mbarrier(ins: Ins) -> Run:
    """mbarrier.init, .inval, .arrive, .arrive_drop, .expect_tx, .complete_tx, .test_wait, .try_wait."""
    what = ins.one_of(_OPERATIONS)
    if not what:
        raise unsupported(ins.ins, "this operation of an mbarrier")
    ins.ignore(*SHARED, "release", "acquire", "relaxed", "cta", "cluster", "noComplete")
    if what in ("test_wait", "try_wait"):
        return _wait(ins)
    if what in ("arrive", "arrive_drop"):
        return _arrive(ins, drops=what == "arrive_drop")
    return nothing(ins) if what == "inval" else _set_up(ins, what)


def _set_up(ins: Ins, what: str) -> Run:
    """.init, .expect_tx, .complete_tx."""
    ins.understood()

    def change(state: _State, number: int) -> None:
        if what == "init":
            state.pending = state.expected = number & _FIELD
            state.bytes = state.phase = 0
        else:
            state.bytes += number if what == "expect_tx" else -number

    changed = _changer(ins, ins.operands[0], ins.operands[1], change)

    def run(m: WarpMachine) -> None:
        changed(m)

    return run


def _arrive(ins: Ins, *, drops: bool) -> Run:
    expects = ins.flag("expect_tx")
    ins.understood()
    has_state = not isinstance(ins.operands[0], Address)
    at, *number = ins.operands[1:] if has_state else ins.operands
    write = ins.write_bits(ins.operands[0], "b64") if has_state else None

    def change(state: _State, number: int) -> None:
        state.bytes += number if expects else 0
        state.pending = max(0, state.pending - (1 if expects else number))
        state.expected -= drops

    arrive = _changer(ins, at, number[0] if number else None, change)

    def run(m: WarpMachine) -> None:
        tokens = arrive(m)
        if write is not None:
            write(m, tokens)

    return run


def _wait(ins: Ins) -> Run:
    """True when the phase has ended. Copies that this barrier watches arrive now."""
    by_parity = ins.flag("parity")
    ins.understood()
    at = _barrier_address(ins, ins.operands[1])
    given = ins.bits(ins.operands[2], "b32" if by_parity else "b64")
    write = ins.write_bits(ins.operands[0], "pred")

    def run(m: WarpMachine) -> None:
        address, lanes = m.full(at(m)) & 0xFFFFFFFF, m.lanes
        phase = np.zeros(m.n, np.uint64)
        _, firsts, where = np.unique(lanes.blocks << 32 | address, return_index=True, return_inverse=True)
        for i, first in enumerate(firsts.tolist()):
            _land(m, ins, int(address[first]), int(lanes.blocks[first]))
            phase[where == i] = _state(m, ins, int(address[first]), int(lanes.numbers[first])).phase
        asked = m.full(given(m)).astype(np.uint64)
        done = phase != (asked & np.uint64(1) if by_parity else asked >> np.uint64(63))
        m.memory.shadow.barrier(np.unique(m.lanes.blocks))
        m.yields = not done.any()
        write(m, done)

    return run


def _of_lanes(copies: InFlight) -> Iterator[list[int]]:
    """For each bulk copy of a piece of a tensor its lane and its columns."""
    yield from (list(map(int, row)) for row in zip(copies.lanes, *copies.columns, strict=True))


def _move_boxes(
    m: WarpMachine, copies: InFlight, maps: Mapping[int, DecodedTensorMap], source: str
) -> Iterator[tuple[int, int]]:
    """Boxes of tensors are copied, as `_move` copies pieces of plain memory."""
    for lane, shared, map_at, _, _, *corner in _of_lanes(copies):
        its = maps[map_at]
        at, inside = its.elements(corner)
        lines = its.lines(shared)
        by_line, by_element = (m.everyone.only(np.full(n, lane)) for n in (len(lines), int(inside.sum())))
        with m.memory.shadow.off():
            if source == "global":
                raw = np.full((len(at), its.item), its.fill, np.uint8)
                raw[inside] = m.memory.read("global", at[inside], its.item, copies.ins, by_element)
                m.memory.write("shared", lines, raw.reshape(-1, 16), copies.ins, by_line)
            else:
                raw = m.memory.read("shared", lines, 16, copies.ins, by_line).reshape(-1, its.item)
                m.memory.write("global", at[inside], raw[inside], copies.ins, by_element)
        yield lane, its.nbytes


def _pieces(m: WarpMachine, copies: InFlight) -> Iterator[tuple[int, int, Lanes, Array, Array]]:
    """For each bulk copy its lane, its bytes, and who makes it in accesses of 16 bytes, to and from which addresses."""
    for lane, target, source, nbytes in zip(*(c.tolist() for c in (copies.lanes, *copies.columns[:3])), strict=True):
        steps = np.arange(0, nbytes, 16)
        yield lane, nbytes, m.everyone.only(np.full(nbytes // 16, lane)), target + steps, source + steps


def _move(m: WarpMachine, copies: InFlight, source: str, target: str) -> Iterator[tuple[int, int]]:
    """Bulk copies happen, one after the other. Yields the lane of each, and its bytes."""
    if copies.maps is not None:
        yield from _move_boxes(m, copies, copies.maps, source)
        return
    for lane, nbytes, who, to, at in _pieces(m, copies):
        with m.memory.shadow.off():
            m.memory.write(target, to, m.memory.read(source, at, 16, copies.ins, who), copies.ins, who)
        yield lane, nbytes


def _land(m: WarpMachine, ins: Ins, address: int, block: int) -> None:
    """Copies watched by a barrier happen, and their bytes are counted."""

    def arrive(state: _State, number: int) -> None:
        state.bytes -= number

    for copies in m.bulk.take(lambda one: (m.blocks[one.lanes] == block) & (one.columns[3] == address)):
        for lane, nbytes in _move(m, copies, "global", "shared"):
            _change(m, ins, address, lane, arrive, nbytes)


# ---
# cp.async, mbarriers and bulk copies into shared memory and out of it.
#
# A copy happens as late as PTX allows: at the wait that covers its group, or when somebody waits at its mbarrier. A
# kernel that forgets the wait therefore reads what was there before, or sends what was written there since. Copies into
# shared memory that nobody waits for never happen; those out of it must be waited for.

_ALL = 1 << 30


def _copy(ins: Ins) -> Run:
    """cp.async and what belongs to it."""
    ins.ignore("async")
    if ins.flag("bulk"):
        return _bulk(ins)
    if ins.flag("commit_group"):
        return lambda m: m.copies.commit(m)
    if ins.flag("wait_all"):
        return lambda m: _complete(m, -_ALL)
    if ins.flag("wait_group"):
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _complete(m, int(count(m).flat[0]))
    if ins.flag("mbarrier"):
        return _arrive_after(ins)
    return _start(ins)


def _start(ins: Ins) -> Run:
    """[target in shared memory], [source], bytes {, bytes of the source or a predicate}."""
    ins.ignore(*SHARED, "global")
    operands = without_policy(ins)
    ins.understood()
    target, source = ins.address(operands[0], small=True), ins.address(operands[1])
    size, kept, skipped = ins.bits(operands[2], "b32"), *_source_size(ins, operands)

    def run(m: WarpMachine) -> None:
        width, lanes = int(size(m).flat[0]), m.lanes
        if width not in (4, 8, 16):
            raise IllFormed(f"{place(ins.ins)}: copies 4, 8 or 16 bytes, not {width}")
        to, at = m.full(target(m)), m.full(source(m))
        have = np.full(m.n, width) if kept is None else np.minimum(m.full(kept(m)).astype(np.int64), width)
        if skipped is not None:
            have = np.where(skipped(m), 0, have)
        m.memory.check("shared", to, width, ins.ins, lanes)
        if len(some := np.nonzero(have)[0]):
            m.memory.check("global", at[some], width, ins.ins, lanes.only(some))
        m.copies.begin(m, ins, (to, at, have), width)

    return run


def _source_size(ins: Ins, operands: tuple[Operand, ...]) -> tuple[Read | None, Read | None]:
    """The fourth operand: bytes, or a predicate that leaves the source out."""
    if len(operands) < 4:
        return None, None
    try:
        return ins.bits(operands[3], "b32"), None
    except IllFormed:
        return None, ins.bits(operands[3], "pred")


def _complete(m: WarpMachine, still_open: int) -> None:
    """Make copies of the lanes at work happen: all but their last groups."""
    for one in m.copies.waited(m, still_open):
        lanes, (target, source, kept) = m.everyone.only(one.lanes), one.columns
        raw = np.zeros((len(lanes), one.width), np.uint8)
        if len(some := np.nonzero(kept)[0]):
            raw[some] = m.memory.read("global", source[some], one.width, one.ins, lanes.only(some))
            raw[np.arange(one.width) >= kept[:, None]] = 0
        m.memory.write("shared", target, raw, one.ins, lanes)


def _arrive_after(ins: Ins) -> Run:
    """cp.async.mbarrier.arrive: the lanes' copies so far, then an arrival."""
    counted = not ins.flag("noinc")
    ins.ignore("arrive", *SHARED)
    ins.understood()

    def change(state: _State, number: int) -> None:
        state.pending = max(0, state.pending - (not counted))

    arrive = _changer(ins, ins.operands[0], None, change)

    def run(m: WarpMachine) -> None:
        _complete(m, -_ALL)
        arrive(m)

    return run


# -- bulk copies ------------------------------------------------------------------------------------------------------


def _bulk(ins: Ins) -> Run:
    """cp.async.bulk of plain memory: into shared memory with an mbarrier, or out of it in groups."""
    if ins.flag("commit_group"):
        return lambda m: m.sent.commit(m)
    if ins.flag("wait_group"):
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _deliver(m, int(count(m).flat[0]))
    if ins.flag("tensor"):
        return _tensor(ins)
    inward = ins.ins.modifiers[2:3] != ("global",)
    if inward and "global" not in ins.ins.modifiers:
        raise unsupported(ins.ins, "a copy from shared memory to shared memory")
    ins.ignore(*SHARED, "global", "mbarrier::complete_tx::bytes", "bulk_group")
    operands = without_policy(ins)
    ins.understood()
    target, source = ins.address(operands[0], small=inward), ins.address(operands[1], small=not inward)
    size = ins.bits(operands[2], "b32")
    barrier_at = _barrier_address(ins, operands[3]) if inward else None
    into, out_of = ("shared", "global") if inward else ("global", "shared")

    def run(m: WarpMachine) -> None:
        watch = m.full(barrier_at(m)) & 0xFFFFFFFF if barrier_at is not None else np.zeros(m.n, np.int64)
        columns = (m.full(target(m)), m.full(source(m)), m.full(size(m)), watch)
        copies = (m.bulk if inward else m.sent).begin(m, ins, columns)
        for lane, nbytes, who, to, at in _pieces(m, copies):
            if nbytes % 16:
                raise IllFormed(f"{place(ins.ins)}: {nbytes} bytes are no multiple of 16")
            m.memory.check(into, to, 16, ins.ins, who)
            m.memory.check(out_of, at, 16, ins.ins, who)
            if not inward and nbytes:
                m.memory.shadow.sent(int(m.blocks[lane]), int(at[0]) & 0xFFFFFFFF, nbytes, ins.ins)

    return run


def _tensor(ins: Ins) -> Run:
    """cp.async.bulk.tensor: a box of a tensor, which a tensor map among the parameters describes; what lies outside of
    the tensor is filled in, or stays as it is."""
    inward = ins.ins.modifiers[4:5] != ("global",)
    rank = int(ins.one_of(tuple(f"{n}d" for n in range(1, 6)))[:1] or 0)
    ins.ignore(*SHARED, "global", "mbarrier::complete_tx::bytes", "bulk_group", "tile")
    operands = without_policy(ins)
    ins.understood()
    described, plain = (operands[1], operands[0]) if inward else (operands[0], operands[1])
    corner = described.more[0] if isinstance(described, Address) and described.more else None
    if not isinstance(described, Address) or not isinstance(corner, Vector) or len(corner.items) != rank:
        raise unsupported(ins.ins, "a tensor's box without as many coordinates as it has dimensions")
    places = [ins.bits(item, "b32") for item in corner.items]
    map_at, shared = ins.address(replace(described, more=())), ins.address(plain, small=True)
    barrier_at = _barrier_address(ins, operands[2]) if inward else None

    def run(m: WarpMachine) -> None:
        maps = m.maps
        watch = m.full(barrier_at(m)) & 0xFFFFFFFF if barrier_at is not None else np.zeros(m.n, np.int64)
        where, which = m.full(shared(m)), m.full(map_at(m))
        if unknown := set(which.tolist()) - maps.keys():
            raise unsupported(ins.ins, f"a tensor map at {min(unknown):#x}, which is no argument")
        sizes = np.array([maps[int(at)].nbytes for at in which])
        corners = [m.full(read(m)).astype(np.uint32).view(np.int32).astype(np.int64) for read in places]
        queue = m.bulk if inward else m.sent
        copies = queue.begin(m, ins, (where, which, sizes, watch, *corners), maps=maps)
        for lane, start, map_place, nbytes, *_ in _of_lanes(copies):
            lines = maps[map_place].lines(start)
            if start % 128 or rank != len(maps[map_place].box):
                raise IllFormed(
                    f"{place(ins.ins)}: shared memory at {start:#x} or the number of coordinates does not fit"
                )
            m.memory.check("shared", lines, 16, ins.ins, m.everyone.only(np.full(len(lines), lane)))
            if not inward:
                m.memory.shadow.sent(int(m.blocks[lane]), start & 0xFFFFFFFF, nbytes, ins.ins)

    return run


def _deliver(m: WarpMachine, open_groups: int) -> None:
    """Copies out of shared memory happen: of the lanes at work, all but their last `open_groups` groups. What .read
    waits for less, no thread of the block can tell."""
    for copies in m.sent.waited(m, open_groups):
        for _ in _move(m, copies, "shared", "global"):
            pass


def check_all_sent(m: WarpMachine) -> None:
    """The blocks have ended, and their shared memory with them. Raises Race where a copy had still to read it."""
    if m.sent.items:
        raise Race(
            f"{place(m.sent.items[0].ins)}: the block may end before its shared memory has been read; the thread that "
            "copies needs cp.async.bulk.commit_group and, before it ends, cp.async.bulk.wait_group.read 0"
        )


MEMORY_OPS |= {"cp": _copy, "mbarrier": _mbarrier}
