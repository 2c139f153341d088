"""Barriers in shared memory and asynchronous copies: bulk ones, which such barriers wait for, and those in groups."""

from dataclasses import replace

import numpy as np

from kerneltune.tools.languages.ptx.ir import Address, Operand
from kerneltune.tools.languages.ptx.sim.exchange import ignore_hints
from kerneltune.tools.languages.ptx.sim.machine import Bulk, Copies, Ins, Read, Run, WarpMachine
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
        """Packed."""
        return self.pending | self.expected << 20 | (self.bytes & _TX) << 40 | self.phase << 63

    def settle(self) -> None:
        """End the phase when all are there."""
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.expected


def state_of(m: WarpMachine, ins: Ins, address: int, lane: int) -> _State:
    who = m.everyone.only(np.array([lane]))
    with m.memory.shadow.off():
        raw = m.memory.read("shared", np.array([address & 0xFFFFFFFF]), 8, ins.ins, who)
    return _State(int(raw.view(np.uint64)[0, 0]))


def keep(m: WarpMachine, ins: Ins, address: int, lane: int, state: _State) -> None:
    raw = np.array([[state.bits]], np.uint64).view(np.uint8)
    with m.memory.shadow.off():
        m.memory.write("shared", np.array([address & 0xFFFFFFFF]), raw, ins.ins, m.everyone.only(np.array([lane])))


def barrier(ins: Ins) -> Run:
    """mbarrier.init, .inval, .arrive, .arrive_drop, .expect_tx, .complete_tx, .test_wait, .try_wait."""
    what = ins.one_of(tuple(_BARRIER))
    if not what:
        raise unsupported(ins.ins, "this operation of an mbarrier")
    ins.ignore(*SHARED, "release", "acquire", "relaxed", "cta", "cluster", "noComplete")
    return _BARRIER[what](ins)


def barrier_address(ins: Ins, operand: Operand) -> Read:
    if not isinstance(operand, Address):
        raise IllFormed(f"{place(ins.ins)}: the mbarrier stands in brackets")
    return ins.address(operand, small=True)


def _init(ins: Ins) -> Run:
    at, count = barrier_address(ins, ins.operands[0]), ins.bits(ins.operands[1], "b32")

    def run(m: WarpMachine) -> None:
        for lane, address, n in zip(m.lanes.numbers, m.full(at(m)), m.full(count(m)), strict=True):
            state = _State(0)
            state.pending = state.expected = int(n) & _FIELD
            keep(m, ins, int(address), int(lane), state)

    return run


def _arrive(ins: Ins) -> Run:
    expects, drops = ins.flag("expect_tx"), "arrive_drop" in ins.ins.modifiers
    ins.understood()
    has_state = not isinstance(ins.operands[0], Address)
    operands = ins.operands[1:] if has_state else ins.operands
    at = barrier_address(ins, operands[0])
    number = ins.bits(operands[1], "b32") if len(operands) > 1 else None
    write = ins.write_bits(ins.operands[0], "b64") if has_state else None

    def run(m: WarpMachine) -> None:
        tokens = np.zeros(m.n, np.uint64)
        many = np.ones(m.n, np.int64) if number is None else m.full(number(m)).astype(np.int64)
        for i, (lane, address) in enumerate(zip(m.lanes.numbers, m.full(at(m)), strict=True)):
            state = state_of(m, ins, int(address), int(lane))
            tokens[i] = state.bits
            state.bytes += int(many[i]) if expects else 0
            state.pending = max(0, state.pending - (1 if expects else int(many[i])))
            state.expected -= drops
            state.settle()
            keep(m, ins, int(address), int(lane), state)
        if write is not None:
            write(m, tokens)

    return run


def _transaction(ins: Ins) -> Run:
    sign = 1 if "expect_tx" in ins.ins.modifiers else -1
    at, number = barrier_address(ins, ins.operands[0]), ins.bits(ins.operands[1], "b32")

    def run(m: WarpMachine) -> None:
        for lane, address, n in zip(m.lanes.numbers, m.full(at(m)), m.full(number(m)), strict=True):
            state = state_of(m, ins, int(address), int(lane))
            state.bytes += sign * int(n)
            state.settle()
            keep(m, ins, int(address), int(lane), state)

    return run


def _wait(ins: Ins) -> Run:
    """True when the phase has ended. Copies that this barrier watches arrive now."""
    by_parity = ins.flag("parity")
    ins.understood()
    at = barrier_address(ins, ins.operands[1])
    given = ins.bits(ins.operands[2], "b32" if by_parity else "b64")
    write = ins.write_bits(ins.operands[0], "pred")

    def run(m: WarpMachine) -> None:
        address, lanes = m.full(at(m)) & 0xFFFFFFFF, m.lanes
        phase = np.zeros(m.n, np.uint64)
        _, firsts, where = np.unique(lanes.blocks << 32 | address, return_index=True, return_inverse=True)
        for i, first in enumerate(firsts.tolist()):
            _land(m, ins, int(address[first]), int(lanes.blocks[first]))
            phase[where == i] = state_of(m, ins, int(address[first]), int(lanes.numbers[first])).phase
        asked = m.full(given(m)).astype(np.uint64)
        done = phase != (asked & np.uint64(1) if by_parity else asked >> np.uint64(63))
        m.memory.shadow.barrier(np.unique(m.lanes.blocks))
        m.yields = not done.any()
        write(m, done)

    return run


def _nothing(ins: Ins) -> Run:
    return lambda m: None


_BARRIER = {
    "init": _init, "inval": _nothing, "arrive": _arrive, "arrive_drop": _arrive, "expect_tx": _transaction,
    "complete_tx": _transaction, "test_wait": _wait, "try_wait": _wait,
}  # fmt: skip


def move(m: WarpMachine, one: Bulk, source: str, target: str) -> None:
    who = m.everyone.only(np.full(one.nbytes // 16, one.lane))
    steps = np.arange(0, one.nbytes, 16)
    raw = m.memory.read(source, one.source + steps, 16, one.ins, who)
    m.memory.write(target, one.target + steps, raw, one.ins, who)


def _land(m: WarpMachine, ins: Ins, address: int, block: int) -> None:
    """Copies watched by a barrier happen, and their bytes are counted."""
    mine = [one for one in m.bulk if (one.block, one.barrier) == (block, address)]
    if not mine:
        return
    m.bulk = [one for one in m.bulk if one not in mine]
    for one in mine:
        with m.memory.shadow.off():
            move(m, one, "global", "shared")
        state = state_of(m, ins, address, one.lane)
        state.bytes -= one.nbytes
        state.settle()
        keep(m, ins, address, one.lane, state)


# ---
# cp.async, mbarriers and bulk copies into shared memory and out of it.
#
# A copy happens as late as PTX allows: at the wait that covers its group, or when somebody waits at its mbarrier. A
# kernel that forgets the wait therefore reads what was there before, or sends what was written there since. Copies into
# shared memory that nobody waits for never happen; those out of it must be waited for.

_ALL = 1 << 30


def copy(ins: Ins) -> Run:
    """cp.async and what belongs to it."""
    ins.ignore("async")
    if ins.flag("bulk"):
        return _bulk(ins)
    if ins.flag("commit_group"):
        return _commit
    if ins.flag("wait_all"):
        return lambda m: _complete(m, m.lanes.numbers, 0, committed=False)
    if ins.flag("wait_group"):
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _complete(m, m.lanes.numbers, int(count(m).flat[0]), committed=True)
    if ins.flag("mbarrier"):
        return _arrive_after(ins)
    return _start(ins)


def _start(ins: Ins) -> Run:
    """[target in shared memory], [source], bytes {, bytes of the source or a predicate}."""
    ins.ignore(*SHARED, "global")
    hinted = ignore_hints(ins)
    ins.understood()
    operands = ins.operands[: len(ins.operands) - hinted]
    target, source = ins.address(operands[0], small=True), ins.address(operands[1])
    size, kept, skipped = ins.bits(operands[2], "b32"), *_source_size(ins, operands)
    bare = ins.ins

    def run(m: WarpMachine) -> None:
        width, lanes = int(size(m).flat[0]), m.lanes
        if width not in (4, 8, 16):
            raise IllFormed(f"{place(bare)}: copies 4, 8 or 16 bytes, not {width}")
        to, at = m.full(target(m)), m.full(source(m))
        have = np.full(m.n, width) if kept is None else np.minimum(m.full(kept(m)).astype(np.int64), width)
        if skipped is not None:
            have = np.where(skipped(m), 0, have)
        m.memory.check("shared", to, width, bare, lanes)
        if len(some := np.nonzero(have)[0]):
            m.memory.check("global", at[some], width, bare, lanes.only(some))
        m.copies.append(Copies(lanes.numbers, m.groups[lanes.numbers], to, at, have, width, bare))

    return run


def _source_size(ins: Ins, operands: tuple[Operand, ...]) -> tuple[Read | None, Read | None]:
    """The fourth operand: bytes, or a predicate that leaves the source out."""
    if len(operands) < 4:
        return None, None
    try:
        return ins.bits(operands[3], "b32"), None
    except IllFormed:
        return None, ins.bits(operands[3], "pred")


def _commit(m: WarpMachine) -> None:
    """Close the group of the lanes at work."""
    m.groups[m.lanes.numbers] += 1


def _complete(m: WarpMachine, numbers: Array, open_groups: int, *, committed: bool) -> None:
    """Make copies of some lanes happen: all but those of the last `open_groups` groups."""
    limit = np.full(m.count, -1)
    limit[numbers] = m.groups[numbers] - open_groups if committed else _ALL
    left: list[Copies] = []
    for copies in m.copies:
        ready = copies.groups < limit[copies.lanes]
        if ready.any():
            _perform(m, copies if ready.all() else copies.only(ready))
        if not ready.all():
            left.append(copies.only(~ready))
    m.copies = left


def _perform(m: WarpMachine, copies: Copies) -> None:
    lanes = m.everyone.only(copies.lanes)
    raw = np.zeros((len(lanes), copies.width), np.uint8)
    some = np.nonzero(copies.kept)[0]
    if len(some):
        raw[some] = m.memory.read("global", copies.source[some], copies.width, copies.ins, lanes.only(some))
        raw[np.arange(copies.width) >= copies.kept[:, None]] = 0
    m.memory.write("shared", copies.target, raw, copies.ins, lanes)


def _arrive_after(ins: Ins) -> Run:
    """cp.async.mbarrier.arrive: the lanes' copies so far, then an arrival."""
    counted = not ins.flag("noinc")
    ins.ignore("arrive", *SHARED)
    ins.understood()
    at = barrier_address(ins, ins.operands[0])

    def run(m: WarpMachine) -> None:
        _complete(m, m.lanes.numbers, 0, committed=False)
        for lane, address in zip(m.lanes.numbers, m.full(at(m)), strict=True):
            state = state_of(m, ins, int(address), int(lane))
            state.pending = max(0, state.pending - (not counted))
            state.settle()
            keep(m, ins, int(address), int(lane), state)

    return run


# -- bulk copies ------------------------------------------------------------------------------------------------------


def _bulk(ins: Ins) -> Run:
    """cp.async.bulk of plain memory: into shared memory with an mbarrier, or out of it in groups."""
    if ins.flag("commit_group"):
        return _commit_sent
    if ins.flag("wait_group"):
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _deliver(m, m.lanes.numbers, int(count(m).flat[0]))
    hinted = ignore_hints(ins)
    inward = ins.ins.modifiers[2:3] != ("global",)
    ins.ignore(*SHARED, "global", "mbarrier::complete_tx::bytes", "bulk_group")
    ins.understood()
    operands = ins.operands[: len(ins.operands) - hinted]
    target, source = ins.address(operands[0], small=inward), ins.address(operands[1], small=not inward)
    size = ins.bits(operands[2], "b32")
    barrier_at = barrier_address(ins, operands[3]) if inward else None

    def run(m: WarpMachine) -> None:
        rows = (m.lanes.numbers, m.full(target(m)), m.full(source(m)), m.full(size(m)))
        places = m.full(barrier_at(m)) if barrier_at is not None else np.zeros(m.n, np.int64)
        for lane, to, at, nbytes, watch in zip(*rows, places, strict=True):
            one = Bulk(int(lane), int(m.blocks[lane]), int(to), int(at), int(nbytes), ins.ins)
            _check_bulk(m, one, inward=inward)
            if inward:
                m.bulk.append(replace(one, barrier=int(watch) & 0xFFFFFFFF))
            else:
                m.memory.shadow.sent(one.block, one.source & 0xFFFFFFFF, one.nbytes, ins.ins)
                m.sent.append(replace(one, group=int(m.sent_groups[lane])))

    return run


def _commit_sent(m: WarpMachine) -> None:
    """Close the bulk group of the lanes at work."""
    m.sent_groups[m.lanes.numbers] += 1


def _deliver(m: WarpMachine, numbers: Array, open_groups: int) -> None:
    """Copies out of shared memory happen: of some lanes, all but their last `open_groups` groups. What .read waits for
    less, no thread of the block can tell."""
    limit = np.full(m.count, -1)
    limit[numbers] = m.sent_groups[numbers] - open_groups
    for one in (ready := [one for one in m.sent if one.group < limit[one.lane]]):
        with m.memory.shadow.off():
            move(m, one, "shared", "global")
    m.sent = [one for one in m.sent if one not in ready]


def check_all_sent(m: WarpMachine) -> None:
    """The blocks have ended, and their shared memory with them. Raises Race where a copy had still to read it."""
    if m.sent:
        raise Race(
            f"{place(m.sent[0].ins)}: the block may end before its shared memory has been read; the thread that copies "
            "needs cp.async.bulk.commit_group and, before it ends, cp.async.bulk.wait_group.read 0"
        )


def _check_bulk(m: WarpMachine, one: Bulk, *, inward: bool) -> None:
    if one.nbytes % 16:
        raise IllFormed(f"{place(one.ins)}: {one.nbytes} bytes are no multiple of 16")
    who = m.everyone.only(np.full(one.nbytes // 16, one.lane))
    steps = np.arange(0, one.nbytes, 16)
    m.memory.check("shared" if inward else "global", one.target + steps, 16, one.ins, who)
    m.memory.check("global" if inward else "shared", one.source + steps, 16, one.ins, who)


ASYNC_OPS = {"cp": copy, "mbarrier": barrier}
