"""mbarriers, and the bulk copies into shared memory that they watch."""

import numpy as np

from tools.ptx.ir import Address, Operand
from tools.ptx.sim.errors import IllFormed, place, unsupported
from tools.ptx.sim.machine import Bulk, Machine
from tools.ptx.sim.operands import Ins, Read, Run

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


def state_of(m: Machine, ins: Ins, address: int, lane: int) -> _State:
    who = m.everyone.only(np.array([lane]))
    with m.memory.shadow.off():
        raw = m.memory.read("shared", np.array([address & 0xFFFFFFFF]), 8, ins.ins, who)
    return _State(int(raw.view(np.uint64)[0, 0]))


def keep(m: Machine, ins: Ins, address: int, lane: int, state: _State) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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


def move(m: Machine, one: Bulk, source: str, target: str) -> None:
    who = m.everyone.only(np.full(one.nbytes // 16, one.lane))
    steps = np.arange(0, one.nbytes, 16)
    raw = m.memory.read(source, one.source + steps, 16, one.ins, who)
    m.memory.write(target, one.target + steps, raw, one.ins, who)


def _land(m: Machine, ins: Ins, address: int, block: int) -> None:
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
