"""cp.async, mbarriers and bulk copies into shared memory and out of it.

A copy happens as late as PTX allows: at the wait that covers its group, or when somebody waits at its mbarrier. A
kernel that forgets the wait therefore reads what was there before, or sends what was written there since. Copies into
shared memory that nobody waits for never happen; those out of it must be waited for.
"""

from dataclasses import replace

import numpy as np

from tools.ptx.ir import Operand
from tools.ptx.sim.errors import IllFormed, Race, place
from tools.ptx.sim.machine import Bulk, Copies, Machine
from tools.ptx.sim.mbarriers import SHARED, barrier, barrier_address, keep, move, state_of
from tools.ptx.sim.operands import Ins, Read, Run
from tools.ptx.sim.ops_memory import ignore_hints
from tools.ttir.ir import Array

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

    def run(m: Machine) -> None:
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


def _commit(m: Machine) -> None:
    """Close the group of the lanes at work."""
    m.groups[m.lanes.numbers] += 1


def _complete(m: Machine, numbers: Array, open_groups: int, *, committed: bool) -> None:
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


def _perform(m: Machine, copies: Copies) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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


def _commit_sent(m: Machine) -> None:
    """Close the bulk group of the lanes at work."""
    m.sent_groups[m.lanes.numbers] += 1


def _deliver(m: Machine, numbers: Array, open_groups: int) -> None:
    """Copies out of shared memory happen: of some lanes, all but their last `open_groups` groups. What .read waits for
    less, no thread of the block can tell."""
    limit = np.full(m.count, -1)
    limit[numbers] = m.sent_groups[numbers] - open_groups
    for one in (ready := [one for one in m.sent if one.group < limit[one.lane]]):
        with m.memory.shadow.off():
            move(m, one, "shared", "global")
    m.sent = [one for one in m.sent if one not in ready]


def check_all_sent(m: Machine) -> None:
    """The blocks have ended, and their shared memory with them. Raises Race where a copy had still to read it."""
    if m.sent:
        raise Race(
            f"{place(m.sent[0].ins)}: the block may end before its shared memory has been read; the thread that copies "
            "needs cp.async.bulk.commit_group and, before it ends, cp.async.bulk.wait_group.read 0"
        )


def _check_bulk(m: Machine, one: Bulk, *, inward: bool) -> None:
    if one.nbytes % 16:
        raise IllFormed(f"{place(one.ins)}: {one.nbytes} bytes are no multiple of 16")
    who = m.everyone.only(np.full(one.nbytes // 16, one.lane))
    steps = np.arange(0, one.nbytes, 16)
    m.memory.check("shared" if inward else "global", one.target + steps, 16, one.ins, who)
    m.memory.check("global" if inward else "shared", one.source + steps, 16, one.ins, who)


OPS = {"cp": copy, "mbarrier": barrier}
