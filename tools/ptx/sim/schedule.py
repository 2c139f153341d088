"""Who runs when. Threads at the same place run together; of several places the first in the text comes first, so that
threads which went different ways meet again where the ways join. Warp-wide instructions wait for all lanes of their
mask, barriers for their threads; where nobody can go on, that is a deadlock."""

from collections.abc import Sequence

import numpy as np

from tools.ptx.sim.errors import Deadlock, StepLimit, place, unsupported
from tools.ptx.sim.machine import AT_BARRIER, AT_WARP, EXITED, RUNNING, Machine
from tools.ptx.sim.program import BARRIER, BRANCH, FULL_WARP, PLAIN, SYNC, Barrier, Step
from tools.ttir.ir import Array

SPINS = 256  # jumps back of one group before others get their turn: they may be what it waits for
LANES_PER_WORK = 1 << 13
_BARRIERS = 64


class Schedule:
    """Runs one batch to its end. `limit`: how much work, in instructions, may be done."""

    def __init__(self, machine: Machine, steps: Sequence[Step], limit: int) -> None:
        self.m, self.steps, self.limit = machine, steps, limit
        self.alone, self.until = True, len(steps)
        self.spins, self.pushed_back = 0, -1

    def run(self) -> None:
        """Until all threads have ended. Raises SimError."""
        while (pc := self._choose()) is not None:
            self._straight(pc)

    def _straight(self, pc: int) -> None:
        """From one place on, until the group splits, waits, ends or meets others."""
        m, steps = self.m, self.steps
        cost = 1 + m.n // LANES_PER_WORK
        while 0 <= pc < self.until:
            step = steps[pc]
            m.work += cost
            if m.work > self.limit:
                raise StepLimit(f"no end in sight after {m.work} instructions; the last was {place(step.ins)}")
            if step.kind == PLAIN:
                step.run(m)
                pc += 1
            elif step.kind == BRANCH:
                pc = self._branch(step, pc)
            elif step.kind == SYNC:
                pc = self._sync(step, pc)
            elif step.kind == BARRIER:
                pc = self._barrier(step, pc)
            else:
                pc = self._exit(step, pc)
        if pc >= 0:
            m.pcs[m.lanes.numbers] = pc

    # -- choosing --------------------------------------------------------------------------------------------------

    def _choose(self) -> int | None:
        m = self.m
        running = m.status == RUNNING
        if not running.any():
            return self._stuck()
        pc = int(m.pcs[running].min())
        if pc == self.pushed_back and (others := running & (m.pcs != pc)).any():
            pc = int(m.pcs[others].min())
        self.pushed_back = -1
        group = (m.pcs == pc) & (m.status <= AT_WARP)
        m.status[group] = RUNNING
        rest = m.pcs[(m.status <= AT_WARP) & ~group]
        self.alone = not len(rest)
        later = rest[rest > pc]
        self.until = int(later.min()) if len(later) else len(self.steps)
        m.idx = None if group.all() else np.flatnonzero(group)
        return pc

    def _stuck(self) -> int | None:
        """Nobody runs: all have ended, or a lane that others waited for has, or it is a deadlock."""
        m = self.m
        waiting = m.status == AT_WARP
        for pc in np.unique(m.pcs[waiting]):
            group = waiting & (m.pcs == pc)
            m.idx = np.flatnonzero(group)
            complete = self._complete(self.steps[pc], m.idx)
            if complete.any():
                m.status[m.idx[complete]] = RUNNING
                return self._choose()
        if (m.status == EXITED).all():
            return None
        raise self._deadlock()

    def _deadlock(self) -> Deadlock:
        m = self.m
        lane = int(np.flatnonzero((m.status == AT_BARRIER) | (m.status == AT_WARP))[0])
        mine = m.blocks == m.blocks[lane]
        at_warp = m.status[lane] == AT_WARP
        pc = int(m.pcs[lane]) - (not at_warp)
        here = int((mine & (m.status == m.status[lane]) & (m.pcs == m.pcs[lane])).sum())
        ended = int((mine & (m.status == EXITED)).sum()) - (m.shape.padded - m.shape.threads)
        lines = [
            f"{int((mine & (m.pcs == other) & (m.status != EXITED)).sum())} at PTX line {self._line(int(other), m)}"
            for other in np.unique(m.pcs[mine & (m.status != EXITED)])
            if other != m.pcs[lane]
        ]
        rest = ", ".join([*lines, *([f"{ended} have ended"] if ended else [])])
        return Deadlock(
            f"{place(self.steps[pc].ins)}: {here} of {m.shape.threads} threads of CTA "
            f"{m.memory.words.ctas[int(m.blocks[lane])]} wait there for others that "
            f"never come ({rest or 'all are there, it wants more'})"
        )

    def _line(self, pc: int, m: Machine) -> int:
        waits = bool(((m.pcs == pc) & (m.status == AT_BARRIER)).any())
        return self.steps[max(0, pc - waits)].ins.line

    # -- going on ----------------------------------------------------------------------------------------------------

    def _taking(self, step: Step) -> Array | None:
        """Positions of the lanes at work whose guard holds; None for all."""
        if step.guard is None:
            return None
        truth = step.guard(self.m)
        if len(truth) == 1:
            return None if truth[0] else np.zeros(0, np.int64)
        return None if truth.all() else np.flatnonzero(truth)

    def _branch(self, step: Step, pc: int) -> int:
        m, taking = self.m, self._taking(step)
        if taking is not None and not len(taking):
            return pc + 1
        numbers = m.lanes.numbers
        if taking is None:
            if self.alone or pc < step.target <= self.until:
                return step.target
            m.pcs[numbers] = step.target
        else:
            m.pcs[numbers] = pc + 1
            m.pcs[numbers[taking]] = step.target
        self._count_spin(step, pc)
        return -1

    def _count_spin(self, step: Step, pc: int) -> None:
        if step.target > pc:
            return
        self.spins += 1
        if self.spins > SPINS or self.m.yields:
            self.pushed_back, self.spins, self.m.yields = step.target, 0, False

    def _complete(self, step: Step, numbers: Array) -> Array:
        """Whether all lanes of the mask are there, for each of `numbers`, which are."""
        m = self.m
        mask = np.full(1, FULL_WARP, np.uint32) if step.mask is None else step.mask(m)
        with m.among(numbers):
            here = m.narrow(m.ballots(m.active()))
            gone = m.narrow(m.ballots(m.status == EXITED))
        return np.asarray((mask & ~gone & ~here) == 0)

    def _sync(self, step: Step, pc: int) -> int:
        m, taking = self.m, self._taking(step)
        if taking is not None and not len(taking):
            return pc + 1
        if m.idx is None and taking is None:
            step.run(m)
            return pc + 1
        everyone = m.lanes.numbers
        numbers = everyone if taking is None else everyone[taking]
        with m.among(numbers):
            complete = self._complete(step, numbers)
            there = numbers if complete.all() else numbers[np.broadcast_to(complete, len(numbers))]
            if len(there):
                m.idx = there
                step.run(m)
        if len(there) == len(numbers):
            return pc + 1
        m.pcs[everyone] = pc + 1
        waiting = numbers[~complete]
        m.pcs[waiting], m.status[waiting] = pc, AT_WARP
        return -1

    def _exit(self, step: Step, pc: int) -> int:
        m, taking = self.m, self._taking(step)
        if taking is not None and not len(taking):
            return pc + 1
        numbers = m.lanes.numbers
        m.pcs[numbers] = pc + 1
        m.status[numbers if taking is None else numbers[taking]] = EXITED
        self._release()
        return -1

    # -- barriers ----------------------------------------------------------------------------------------------------

    def _barrier(self, step: Step, pc: int) -> int:
        m, taking, barrier = self.m, self._taking(step), step.barrier
        assert barrier is not None
        if taking is not None and not len(taking):
            return pc + 1
        everyone = m.lanes.numbers
        numbers = everyone if taking is None else everyone[taking]
        with m.among(None if taking is None and m.idx is None else numbers):
            number, count = self._named(barrier, step)
            whole = len(numbers) == int((m.status != EXITED).sum())
            if whole and barrier.waits and (count is None or (len(count) == 1 and count[0] == m.shape.threads)):
                m.memory.shadow.barrier(slice(None))
                if barrier.reduce:
                    barrier.reduce(m)
                return pc + 1
            if barrier.reduce:
                raise unsupported(step.ins, "a block whose threads reach it at different times")
            self._arrive(barrier, numbers, m.full(number), None if count is None else m.full(count))
        m.pcs[everyone] = pc + 1
        self._release()
        return -1

    def _named(self, barrier: Barrier, step: Step) -> tuple[Array, Array | None]:
        number = barrier.number(self.m)
        count = None if barrier.count is None else barrier.count(self.m)
        if (number > 15).any():
            raise unsupported(step.ins, f"barrier {int(number.max())}: there are 16")
        return number.astype(np.int64), count

    def _arrive(self, barrier: Barrier, numbers: Array, number: Array, count: Array | None) -> None:
        m = self.m
        keys = m.blocks[numbers] * _BARRIERS + number
        if count is not None:
            firsts = np.unique(keys, return_index=True)[1]
            for key, n in zip(keys[firsts].tolist(), count[firsts].tolist(), strict=True):
                m.wanted[divmod(key, _BARRIERS)] = n
        if barrier.waits:
            m.status[numbers], m.barrier_of[numbers] = AT_BARRIER, number
            return
        for key, n in zip(*(found.tolist() for found in np.unique(keys, return_counts=True)), strict=True):
            at = divmod(key, _BARRIERS)
            m.arrived[at] = m.arrived.get(at, 0) + n

    def _release(self) -> None:
        """Let threads go on whose barrier has what it wants."""
        m = self.m
        waiting = np.flatnonzero(m.status == AT_BARRIER)
        if not len(waiting):
            return
        keys = m.blocks[waiting] * _BARRIERS + m.barrier_of[waiting]
        found, where, counts = np.unique(keys, return_inverse=True, return_counts=True)
        live = np.bincount(m.blocks[m.status != EXITED], minlength=len(m.shape.ctas))
        needs = live[found // _BARRIERS]
        for i, key in enumerate(found.tolist()) if m.wanted or m.arrived else ():
            at = divmod(key, _BARRIERS)
            needs[i] = m.wanted.get(at, needs[i])
            counts[i] += m.arrived.get(at, 0)
        full = counts >= needs
        if not full.any():
            return
        m.status[waiting[full[where]]] = RUNNING
        m.memory.shadow.barrier(np.unique(found[full] // _BARRIERS))
        for key in found[full].tolist():
            m.wanted.pop(divmod(key, _BARRIERS), None)
            m.arrived.pop(divmod(key, _BARRIERS), None)
