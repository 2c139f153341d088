"""Finds shared memory that two warps use between two barriers, one of them writing.

For each few bytes it keeps who wrote and who read last, and in which stretch between barriers. A write that changes
nothing is no write: compilers let several warps store the same result. Any barrier of a block, even one of some of its
warps, begins a new stretch for the block, so that what is reported is a race, and not every race is found.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tools.ptx.ir import Instruction
from tools.ptx.sim.errors import Race, place
from tools.ptx.sim.lanes import Lanes
from tools.ttir.ir import Array

_SEVERAL = 63  # more than one warp has read
_STEP = 64  # warps of a block and _SEVERAL fit below it


class Shadow:
    """Who touched what. `granule`: bytes that are kept account of together, the narrowest access of the kernel."""

    def __init__(self, blocks: int, stride: int, granule: int) -> None:
        self.granule = granule
        size = blocks * stride // granule
        self._writer, self._reader = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._line = np.zeros(size, np.int32)  # of the last access
        self._unfenced = np.zeros((blocks, stride // granule), bool)  # stored, and copies may not see it yet
        self._stretch = np.ones(blocks, np.int64)
        self._on = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Atomics do not race with one another."""
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def barrier(self, blocks: Array | slice) -> None:
        """A new stretch begins for some blocks (each number once)."""
        self._stretch[blocks] += 1

    def fence(self, blocks: Array) -> None:
        """What threads of some blocks have stored is seen by bulk copies."""
        self._unfenced[np.unique(blocks)] = False

    def sent(self, block: int, at: int, nbytes: int, ins: Instruction) -> None:
        """A bulk copy is about to read a block's memory. Raises Race where it may see what was there before."""
        part = slice(at // self.granule, (at + nbytes) // self.granule)
        if (unseen := np.flatnonzero(self._unfenced[block, part])).size:
            line = self._line[block * self._unfenced.shape[1] + part.start + int(unseen[0])]
            raise Race(
                f"{place(ins)}: bulk copies need not see what threads have stored (PTX line {int(line)}); after the "
                "store each thread needs fence.proxy.async.shared::cta, then a barrier"
            )

    def read(self, at: Array, width: int, lanes: Lanes, ins: Instruction) -> None:
        """Lanes read `width` bytes at `at` of the memory of all blocks."""
        if not self._on:
            return
        cells, mark, warps = self._cells(at, width, lanes)
        foreign = (self._writer[cells] // _STEP == mark // _STEP) & (self._writer[cells] != mark)
        if foreign.any():
            self._report(cells, foreign, warps, ins, "reads", "wrote")
        before = self._reader[cells]
        several = (before // _STEP == mark // _STEP) & (before != mark)
        self._reader[cells] = np.where(several, mark // _STEP * _STEP + _SEVERAL, mark)
        self._mixed(cells, mark)
        self._line[cells] = ins.line

    def _mixed(self, cells: Array, mark: Array) -> None:
        """Two warps may read one cell in the same instruction."""
        lost = self._reader[cells] != mark
        self._reader[cells[lost]] = mark[lost] // _STEP * _STEP + _SEVERAL

    def wrote(self, at: Array, width: int, lanes: Lanes, ins: Instruction, changed: Array, lost: Array) -> None:
        """Lanes wrote `width` bytes at `at`: whether that changed them, and whether another lane's write won."""
        if not (self._on and len(at)):
            return
        cells, mark, warps = self._cells(at, width, lanes)
        self._unfenced.reshape(-1)[cells] = True
        changed, lost = (np.repeat(which, max(1, width // self.granule)) for which in (changed, lost))
        for kept, done in ((self._writer, "wrote"), (self._reader, "read")):
            foreign = changed & (kept[cells] // _STEP == mark // _STEP) & (kept[cells] != mark)
            if foreign.any():
                self._report(cells, foreign, warps, ins, "writes", done)
        self._writer[cells[changed]] = mark[changed]
        if (clash := self._writer[cells] != mark).any():
            if (clash & lost).any():
                self._report(cells, clash & lost, warps, ins, "writes", "writes")
            self._writer[cells[clash]] = 0  # several warps wrote the same: each may read it
        self._line[cells] = ins.line

    def _cells(self, at: Array, width: int, lanes: Lanes) -> tuple[Array, Array, Array]:
        count = max(1, width // self.granule)
        cells = (at // self.granule)[:, None] + np.arange(count)
        mark = self._stretch[lanes.blocks] * _STEP + lanes.warps
        return cells.reshape(-1), np.repeat(mark, count), np.repeat(lanes.warps, count)

    def _report(self, cells: Array, bad: Array, warps: Array, ins: Instruction, now: str, before: str) -> None:
        which = int(np.nonzero(bad)[0][0])
        cell, warp = int(cells[which]), int(warps[which])
        other = int(self._writer[cell] if before != "read" else self._reader[cell]) % _STEP
        whose = "another warp" if other in (_SEVERAL, warp) else f"warp {other}"
        line = f" (PTX line {int(self._line[cell])})" if before != "writes" else " in the same instruction"
        raise Race(
            f"{place(ins)}: warp {warp} {now} shared memory that {whose} {before}{line}, and no barrier lies between"
        )
