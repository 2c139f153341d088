"""The state of a batch of blocks whose threads run together: registers, who is at work, where everyone is.

A register is an array with a lane for each thread, or with one lane where all threads hold the same. Arrays are never
changed in place, so that registers may share them. Blocks are padded to whole warps with threads that have exited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tools.ptx.ir import Instruction
from tools.ptx.sim.formats import poison
from tools.ptx.sim.lanes import Lanes
from tools.ptx.sim.memory import Memory
from tools.ttir.ir import Array

RUNNING, AT_WARP, AT_BARRIER, EXITED = range(4)
WARP = 32
_LANE_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


@dataclass(frozen=True)
class Shape:
    """A launch: threads of a block, blocks of the grid, numbers of the blocks in this batch."""

    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    ctas: Array
    shared_bytes: int = 0  # dynamic
    total_shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def padded(self) -> int:
        """Lanes of a block."""
        return -(-self.threads // WARP) * WARP


@dataclass(frozen=True)
class Copies:
    """What one cp.async of some lanes copies, which has not happened yet. `width`: bytes at each target; of `kept`
    bytes of them comes from the source, the rest is zero."""

    lanes: Array
    groups: Array  # of each lane
    target: Array
    source: Array
    kept: Array
    width: int
    ins: Instruction

    def only(self, which: Array) -> Copies:
        """Those of some lanes."""
        return replace(
            self, lanes=self.lanes[which], groups=self.groups[which], target=self.target[which],
            source=self.source[which], kept=self.kept[which],
        )  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """The sum of one wgmma, which its registers do not hold yet: bits of each register in each of the lanes."""

    slots: tuple[int, ...]
    lanes: Array
    groups: Array
    values: list[Array]

    def only(self, which: Array) -> Tensor:
        """That of some lanes."""
        return Tensor(self.slots, self.lanes[which], self.groups[which], [bits[which] for bits in self.values])


@dataclass(frozen=True)
class Bulk:
    """One cp.async.bulk into shared memory or out of it, which has not happened yet. `barrier`: where its arrival is
    counted, `group`: of its lane, that which waits for it."""

    lane: int
    block: int
    target: int
    source: int
    nbytes: int
    ins: Instruction
    barrier: int = 0
    group: int = 0


class Machine:
    """What instructions work on. `idx`: the lanes at work, None for all."""

    def __init__(self, shape: Shape, kinds: Sequence[str], memory: Memory) -> None:
        self.shape, self.memory = shape, memory
        self.count = len(shape.ctas) * shape.padded
        self.regs: list[Array] = [poison(kind) for kind in kinds]
        self.numbers = np.arange(self.count)
        self.blocks, self.thread = np.divmod(self.numbers, shape.padded)
        self.everyone = Lanes(self.numbers, self.blocks, self.thread // WARP)
        self.status = np.where(self.thread < shape.threads, RUNNING, EXITED).astype(np.uint8)
        self.pcs = np.zeros(self.count, np.int64)
        self.idx: Array | None = None
        self.carry: Array = np.zeros(1, np.uint64)
        self.specials: dict[str, Array] = {}
        self.barrier_of = np.zeros(self.count, np.int64)  # what a lane at a barrier waits for
        self.wanted: dict[tuple[int, int], int] = {}  # (block, barrier) -> threads it needs, where the text says
        self.arrived: dict[tuple[int, int], int] = {}  # by bar.arrive
        self.copies: list[Copies] = []
        self.groups = np.zeros(self.count, np.int64)  # cp.async groups committed
        self.bulk: list[Bulk] = []  # into shared memory
        self.sent: list[Bulk] = []  # out of it
        self.sent_groups = np.zeros(self.count, np.int64)  # bulk groups committed
        self.tensors: list[Tensor] = []
        self.tensor_groups = np.zeros(self.count, np.int64)  # wgmma groups committed
        self.yields = False  # the group at work waits for others
        self.work = 0

    @property
    def n(self) -> int:
        """How many lanes are at work."""
        return self.count if self.idx is None else len(self.idx)

    @property
    def lanes(self) -> Lanes:
        """Those at work."""
        return self.everyone if self.idx is None else self.everyone.only(self.idx)

    def get(self, slot: int) -> Array:
        """Bits of a register in the lanes at work, or one lane for all."""
        bits = self.regs[slot]
        return bits if self.idx is None or len(bits) == 1 else bits[self.idx]

    def put(self, slot: int, bits: Array) -> None:
        """Set a register in the lanes at work."""
        if self.idx is None:
            self.regs[slot] = bits
            return
        old = self.regs[slot]
        new = np.empty((self.count, *old.shape[1:]), old.dtype)
        new[:] = old
        new[self.idx] = bits
        self.regs[slot] = new

    @contextmanager
    def among(self, idx: Array | None) -> Iterator[None]:
        """Others at work for a while."""
        before = self.idx
        self.idx = idx
        try:
            yield
        finally:
            self.idx = before

    def full(self, bits: Array) -> Array:
        """One element for each lane at work."""
        return np.broadcast_to(bits, (self.n, *bits.shape[1:])) if len(bits) == 1 else bits

    def spread(self, bits: Array, rest: int = 0) -> Array:
        """One element for every lane of the batch, `rest` where nobody works."""
        if self.idx is None:
            return self.full(bits)
        out = np.full(self.count, rest, bits.dtype)
        out[self.idx] = bits
        return out

    def narrow(self, bits: Array) -> Array:
        """Of one element for every lane of the batch, those of lanes at work."""
        return bits if self.idx is None else bits[self.idx]

    def active(self) -> Array:
        """Whether each lane of the batch is at work."""
        if self.idx is None:
            return np.ones(self.count, bool)
        out = np.zeros(self.count, bool)
        out[self.idx] = True
        return out

    def warps(self) -> Array:
        """Warps of the batch that have somebody at work."""
        if self.idx is None:
            return np.arange(self.count // WARP)
        return np.unique(self.idx // WARP)

    def in_warps(self, bits: Array, rest: int = 0) -> Array:
        """Elements by warp at work and lane."""
        return self.spread(bits, rest).reshape(-1, WARP)[self.warps()]

    def from_warps(self, by_warp: Array) -> Array:
        """[warp at work, lane] to the lanes at work."""
        out = np.zeros((self.count // WARP, WARP), by_warp.dtype)
        out[self.warps()] = by_warp
        return self.narrow(out.reshape(-1))

    def ballots(self, which: Array) -> Array:
        """Of one truth for every lane of the batch, its warp's bits, for every lane."""
        bits = (which.reshape(-1, WARP) * _LANE_BITS).sum(axis=1, dtype=np.uint32)
        return np.repeat(bits, WARP)
