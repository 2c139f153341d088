"""Barriers in shared memory and asynchronous copies: bulk ones, which such barriers wait for, and those in groups."""

from collections.abc import Callable, Iterator

import numpy as np

from kerneltune.tools.languages.ptx.ir import Address, Operand
from kerneltune.tools.languages.ptx.sim.exchange import nothing, without_policy
from kerneltune.tools.languages.ptx.sim.machine import InFlight, Ins, Lanes, Read, Run, WarpMachine, parted
from kerneltune.tools.languages.ptx.sim.values import IllFormed, Race, place, unsupported
from kerneltune.tools.languages.triton.ttir.ir import Array

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


def _pieces(m: WarpMachine, copies: InFlight) -> Iterator[tuple[int, int, Lanes, Array, Array]]:
    """For each bulk copy its lane, its bytes, and who makes it in accesses of 16 bytes, to and from which addresses."""
    for lane, target, source, nbytes in zip(*(c.tolist() for c in (copies.lanes, *copies.columns[:3])), strict=True):
        steps = np.arange(0, nbytes, 16)
        yield lane, nbytes, m.everyone.only(np.full(nbytes // 16, lane)), target + steps, source + steps


def _move(m: WarpMachine, copies: InFlight, source: str, target: str) -> Iterator[tuple[int, int]]:
    """Bulk copies happen, one after the other. Yields the lane of each, and its bytes."""
    for lane, nbytes, who, to, at in _pieces(m, copies):
        with m.memory.shadow.off():
            m.memory.write(target, to, m.memory.read(source, at, 16, copies.ins, who), copies.ins, who)
        yield lane, nbytes


def _land(m: WarpMachine, ins: Ins, address: int, block: int) -> None:
    """Copies watched by a barrier happen, and their bytes are counted."""

    def arrive(state: _State, number: int) -> None:
        state.bytes -= number

    mine, m.bulk = parted(m.bulk, lambda one: (m.blocks[one.lanes] == block) & (one.columns[3] == address))
    for copies in mine:
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
        return lambda m: m.commit(m.groups)
    if ins.flag("wait_all"):
        return lambda m: _complete(m, _ALL)
    if ins.flag("wait_group"):
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _complete(m, m.groups[m.lanes.numbers] - int(count(m).flat[0]))
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
        m.copies.append(InFlight(ins.ins, lanes.numbers, m.groups[lanes.numbers], (to, at, have), width))

    return run


def _source_size(ins: Ins, operands: tuple[Operand, ...]) -> tuple[Read | None, Read | None]:
    """The fourth operand: bytes, or a predicate that leaves the source out."""
    if len(operands) < 4:
        return None, None
    try:
        return ins.bits(operands[3], "b32"), None
    except IllFormed:
        return None, ins.bits(operands[3], "pred")


def _complete(m: WarpMachine, before: Array | int) -> None:
    """Make copies of the lanes at work happen: those of groups before some number."""
    limit = np.full(m.count, -1)
    limit[m.lanes.numbers] = before
    ready, m.copies = parted(m.copies, lambda one: one.groups < limit[one.lanes])
    for one in ready:
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
        _complete(m, _ALL)
        arrive(m)

    return run


# -- bulk copies ------------------------------------------------------------------------------------------------------


def _bulk(ins: Ins) -> Run:
    """cp.async.bulk of plain memory: into shared memory with an mbarrier, or out of it in groups."""
    if ins.flag("commit_group"):
        return lambda m: m.commit(m.sent_groups)
    if ins.flag("wait_group"):
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _deliver(m, int(count(m).flat[0]))
    inward = ins.ins.modifiers[2:3] != ("global",)
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
        copies = InFlight(ins.ins, m.lanes.numbers, m.sent_groups[m.lanes.numbers], columns)
        for lane, nbytes, who, to, at in _pieces(m, copies):
            if nbytes % 16:
                raise IllFormed(f"{place(ins.ins)}: {nbytes} bytes are no multiple of 16")
            m.memory.check(into, to, 16, ins.ins, who)
            m.memory.check(out_of, at, 16, ins.ins, who)
            if not inward and nbytes:
                m.memory.shadow.sent(int(m.blocks[lane]), int(at[0]) & 0xFFFFFFFF, nbytes, ins.ins)
        (m.bulk if inward else m.sent).append(copies)

    return run


def _deliver(m: WarpMachine, open_groups: int) -> None:
    """Copies out of shared memory happen: of the lanes at work, all but their last `open_groups` groups. What .read
    waits for less, no thread of the block can tell."""
    numbers, limit = m.lanes.numbers, np.full(m.count, -1)
    limit[numbers] = m.sent_groups[numbers] - open_groups
    ready, m.sent = parted(m.sent, lambda one: one.groups < limit[one.lanes])
    for copies in ready:
        for _ in _move(m, copies, "shared", "global"):
            pass


def check_all_sent(m: WarpMachine) -> None:
    """The blocks have ended, and their shared memory with them. Raises Race where a copy had still to read it."""
    if m.sent:
        raise Race(
            f"{place(m.sent[0].ins)}: the block may end before its shared memory has been read; the thread that copies "
            "needs cp.async.bulk.commit_group and, before it ends, cp.async.bulk.wait_group.read 0"
        )


ASYNC_OPS = {"cp": _copy, "mbarrier": _mbarrier}
