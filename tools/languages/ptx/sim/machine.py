"""What instructions change: memory and its races, registers, special registers, and how operands reach both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from kerneltune.tools.languages.ptx.ir import (
    Address,
    Both,
    Immediate,
    Instruction,
    Not,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
    bits_of,
)
from kerneltune.tools.languages.ptx.sim.values import (
    POISON_16,
    UNSIGNED,
    IllFormed,
    Race,
    decode,
    encode,
    is_float,
    is_kind,
    is_signed,
    lane_of,
    parts_of,
    place,
    poison,
    resize,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array, Misaligned, OutOfBounds
from kerneltune.tools.languages.triton.ttir.memory import AddressSpace

# ---
# Which threads there are, which of them are at work, and what they are called. Pure.

WARP = 32


@dataclass(frozen=True)
class Lanes:
    """Threads by number within the batch, the block of each within the batch, its warp within the block."""

    numbers: Array
    blocks: Array
    warps: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def only(self, which: Array) -> Lanes:
        """Return some of the lanes, by index or mask."""
        return Lanes(self.numbers[which], self.blocks[which], self.warps[which])


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
        """The threads of a block."""
        return math.prod(self.block)

    @property
    def padded(self) -> int:
        """Lanes of a block: its threads, padded to whole warps."""
        return -(-self.threads // WARP) * WARP

    def cta(self, block: int) -> tuple[int, int, int]:
        """The place in the grid of a block of the batch."""
        return _place_in(int(self.ctas[block]), self.grid)

    def name(self, lane: int) -> str:
        """A thread by its number within the batch, for messages."""
        block, thread = divmod(lane, self.padded)
        return f"thread {_place_in(thread, self.block)} of CTA {self.cta(block)}"


def _place_in(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)


# ---
# Finds shared memory that two warps use between two barriers, one of them writing.
#
# For each few bytes it keeps who wrote and who read last, and in which stretch between barriers. A write that changes
# nothing is no write: compilers let several warps store the same result. Any barrier of a block, even one of some of
# its warps, begins a new stretch for the block, so that what is reported is a race, and not every race is found.

_SEVERAL = 63  # more than one warp has read
_STEP = 64  # warps of a block and _SEVERAL fit below it


class Shadow:
    """The last accesses of shared memory, to find races. `granule`: bytes that share an entry, the narrowest access of
    the kernel."""

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
        """Note no accesses for a while: atomics do not race with one another."""
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
        """Mark the cells that two warps read in the same instruction."""
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


# ---
# What addresses mean: tensors, variables of the module, shared, local and parameter memory. Every access is checked.
#
# Generic addresses below 2**40 are windows (shared, local, parameters); above lie tensors and module variables, far
# apart.

SHARED, LOCAL, PARAM = 1 << 32, 2 << 32, 3 << 32  # where the windows begin
WINDOWS = {1: "shared", 2: "local", 3: "param"}
TENSORS = 1 << 40
CELLS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)} | {16: np.dtype("c16")}


class _Part(NamedTuple):
    """The lanes of an access that mean one memory: which (None: all), its name, a view of it in elements of the
    access' width, and the places of the elements in it."""

    which: Array | None
    name: str
    cells: Array
    places: Array
    lanes: Lanes


class Memory:
    """All memory of one batch of blocks. `sizes`: bytes of shared (a block), local (a thread) and param memory."""

    def __init__(self, space: AddressSpace, params: Array, sizes: dict[str, int], shape: Shape, granule: int) -> None:
        self.space, self.sizes, self.shape = space, sizes, shape
        blocks = len(shape.ctas)
        self.stride = {name: -(-sizes[name] // 256) * 256 for name in ("shared", "local")}
        self.buffers = {
            "shared": _poisoned(blocks * self.stride["shared"]),
            "local": _poisoned(blocks * shape.padded * self.stride["local"]),
            "param": params,
        }
        self.shadow = Shadow(blocks, self.stride["shared"], granule)

    def read(self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> Array:
        """Bytes at each address, as [addresses, width]. One address for all lanes may give one row."""
        out: Array | None = None
        for part in self._parts(space, address, width, ins, lanes):
            if part.name == "shared":
                self.shadow.read(part.places * width, width, part.lanes, ins)
            raw = part.cells[part.places][:, None].view(np.uint8)
            if part.which is None:
                return raw
            out = np.empty((len(lanes), width), np.uint8) if out is None else out
            out[part.which] = raw
        return np.empty((0, width), np.uint8) if out is None else out

    def write(self, space: str, address: Array, raw: Array, ins: Instruction, lanes: Lanes) -> None:
        """Write raw[lane, byte]; where lanes meet, the last one wins. All are checked before any writes."""
        width = raw.shape[1]
        raw = np.ascontiguousarray(np.broadcast_to(raw, (len(lanes), width)))
        for which, name, cells, index, who in self.check(space, address, width, ins, lanes):
            mine = (raw if which is None else np.ascontiguousarray(raw[which])).view(cells.dtype)[:, 0]
            if name == "param":
                raise OutOfBounds(f"{place(ins)} writes to the kernel's parameters")
            if name != "shared":
                cells[index] = mine
                continue
            changed = _differs(cells[index], mine)
            cells[index] = mine
            self.shadow.wrote(index * width, width, who, ins, changed, _differs(cells[index], mine))

    def check(self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> list[_Part]:
        """What an access of all lanes means. Raises what it would raise."""
        return list(self._parts(space, np.broadcast_to(address, len(lanes)), width, ins, lanes))

    def _parts(self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> Iterator[_Part]:
        for name, which in self._split(space, address, width, ins, lanes):
            mine, who = (address, lanes) if which is None else (address[which], lanes.only(which))
            yield _Part(which, name, *self._cells(name, mine, width, ins, who), who)

    def _split(
        self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes
    ) -> Iterator[tuple[str, Array | None]]:
        """Parts of the lanes by the memory that they mean: its name, and which (None: all)."""
        if not len(address):
            return
        odd = address & (width - 1) if width & (width - 1) == 0 else address * 0
        if odd.any():
            raise self._misaligned(address, odd, width, ins, lanes)
        if space not in ("generic", "global"):
            yield space, None
        elif space != "generic" or int(address.min()) >= TENSORS:
            yield from self._regions(address, width, None)
        else:
            windows = np.where(address < TENSORS, address >> 32, 0)
            for window in np.unique(windows):
                which = np.nonzero(windows == window)[0]
                if int(window) in WINDOWS:
                    yield WINDOWS[int(window)], which
                else:
                    yield from self._regions(address[which], width, which)

    def _regions(self, address: Array, width: int, which: Array | None) -> Iterator[tuple[str, Array | None]]:
        """Split lanes whose addresses are global by the tensor that they lie in."""
        if self.space.single(address, width) is not None:
            yield "global", which
            return
        numbers = address >> 40
        for number in np.unique(numbers):
            mine = np.nonzero(numbers == number)[0]
            yield "global", mine if which is None else which[mine]

    def _cells(self, name: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> tuple[Array, Array]:
        """A view of the memory in elements of `width` bytes, and the elements' indices."""
        if width not in CELLS:
            raise unsupported(ins, f"accesses of {width} bytes")
        shift = width.bit_length() - 1
        if name == "global":
            return self._global_cells(address, width, shift, ins, lanes)
        at = address & 0xFFFFFFFF if name in ("shared", "local") else address - PARAM
        size = self.sizes[name]
        bad = (at < 0) | (at + width > size)
        if bad.any():
            which = int(np.nonzero(bad)[0][0])
            raise OutOfBounds(
                f"{place(ins)}: {self._who(lanes, which)} uses byte {int(at[which])} of {size} bytes of {name} memory"
            )
        if name != "param":
            at = at + (lanes.blocks if name == "shared" else lanes.numbers) * self.stride[name]
        return self.buffers[name].view(CELLS[width]), at >> shift

    def _global_cells(
        self, address: Array, width: int, shift: int, ins: Instruction, lanes: Lanes
    ) -> tuple[Array, Array]:
        region = self.space.single(address, width)
        if region is None:
            for which, value in enumerate(address.tolist()):
                region = self.space.regions.get(value >> 40)
                if region is None or not region.holds(value, value, width):
                    raise self._outside(value, ins, self._who(lanes, which))
        assert region is not None  # the lanes were split by tensor
        return region.view(CELLS[width]), (address - region.base) >> shift

    def _outside(self, address: int, ins: Instruction, who: str) -> OutOfBounds:
        region = self.space.regions.get(address >> 40)
        if region is None:
            return OutOfBounds(f"{place(ins)}: {who} uses address {address:#x}, which is in no tensor")
        used = f"byte {address - region.start} of {region.name}, which has {region.nbytes} bytes"
        return OutOfBounds(f"{place(ins)}: {who} uses {used}")

    def _misaligned(self, address: Array, odd: Array, width: int, ins: Instruction, lanes: Lanes) -> Misaligned:
        which = int(np.nonzero(odd)[0][0])
        value, past = int(address[which]), int(odd[which])
        region = self.space.regions.get(value >> 40) if value >= TENSORS else None
        of = f"byte {value - region.start} of {region.name}" if region else f"address {value & 0xFFFFFFFF:#x}"
        return Misaligned(
            f"{ins.name} needs {width}-byte alignment; {of} is {past} past one; {self._who(lanes, which)}, "
            f"PTX line {ins.line}"
        )

    def _who(self, lanes: Lanes, which: int) -> str:
        return self.shape.name(int(lanes.numbers[min(which, len(lanes) - 1)]))


def _differs(before: Array, after: Array) -> Array:
    """Which elements have other bits."""
    if before.dtype.itemsize == 16:
        before, after = (x.view(np.uint64).reshape(-1, 2) for x in (before, after))
        return np.asarray(np.not_equal(before, after).any(axis=1))
    return np.not_equal(before, after)


def _poisoned(size: int) -> Array:
    return np.full(size // 2, POISON_16, np.uint16).view(np.uint8)


# ---
# The state of a batch of blocks whose threads run together: registers, who is at work, where everyone is.
#
# A register is an array with a lane for each thread, or with one lane where all threads hold the same. Arrays are never
# changed in place, so that registers may share them. Blocks are padded to whole warps with threads that have exited.

RUNNING, AT_WARP, AT_BARRIER, EXITED = range(4)
LANE_BITS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


@dataclass(frozen=True)
class InFlight:
    """What one instruction of some lanes has begun, which a wait of theirs ends: a row of each column for each lane.

    Of cp.async: targets, sources, and how many of the `width` bytes at a target come from the source (the rest is
    zero). Of bulk copies: targets, sources, bytes, and the mbarrier that counts them, if one does; of boxes of tensors
    places in shared memory, of `maps`, bytes, mbarrier, coordinates. Of wgmma: the bits of the registers at `slots`,
    which do not hold their sum yet.
    """

    ins: Instruction
    lanes: Array
    groups: Array  # of each lane
    columns: tuple[Array, ...]
    width: int = 0
    slots: tuple[int, ...] = ()
    maps: Mapping[int, DecodedTensorMap] | None = None

    def only(self, which: Array) -> InFlight:
        """The part of some lanes."""
        columns = tuple(column[which] for column in self.columns)
        return replace(self, lanes=self.lanes[which], groups=self.groups[which], columns=columns)


class InFlightQueue:
    """What lanes have begun and nobody has waited for, in groups that each lane commits for itself."""

    def __init__(self, lanes: int) -> None:
        self.items: list[InFlight] = []
        self._groups = np.zeros(lanes, np.int64)  # that each lane has committed

    def begin(
        self,
        m: WarpMachine,
        ins: Ins,
        columns: tuple[Array, ...],
        width: int = 0,
        slots: tuple[int, ...] = (),
        maps: Mapping[int, DecodedTensorMap] | None = None,
    ) -> InFlight:
        """Let the lanes at work begin something."""
        numbers = m.lanes.numbers
        self.items.append(InFlight(ins.ins, numbers, self._groups[numbers], columns, width, slots, maps))
        return self.items[-1]

    def commit(self, m: WarpMachine) -> None:
        """Close the group of the lanes at work."""
        self._groups[m.lanes.numbers] += 1

    def waited(self, m: WarpMachine, still_open: int) -> list[InFlight]:
        """Take out what the lanes at work have begun, but for the last `still_open` groups of each."""
        limit, numbers = np.full(m.count, -1), m.lanes.numbers
        limit[numbers] = self._groups[numbers] - still_open
        return self.take(lambda one: one.groups < limit[one.lanes])

    def take(self, which: Callable[[InFlight], Array]) -> list[InFlight]:
        """Take out the part of the lanes for which `which` is true."""
        taken: list[InFlight] = []
        left: list[InFlight] = []
        for one in self.items:
            mine = which(one)
            if mine.any():
                taken.append(one if mine.all() else one.only(mine))
            if not mine.all():
                left.append(one.only(~mine) if mine.any() else one)
        self.items = left
        return taken


class WarpMachine:
    """What instructions work on. `idx`: the lanes at work, None for all; `maps`: tensor maps by their address among the
    parameters."""

    def __init__(
        self, shape: Shape, kinds: Sequence[str], memory: Memory, maps: Mapping[int, DecodedTensorMap]
    ) -> None:
        self.shape, self.memory, self.maps = shape, memory, maps
        self.count = len(shape.ctas) * shape.padded
        self.regs: list[Array] = [poison(kind) for kind in kinds]
        self.numbers = np.arange(self.count)
        self.blocks, self.thread = np.divmod(self.numbers, shape.padded)
        self.everyone = Lanes(self.numbers, self.blocks, self.thread // WARP)
        self.status = np.where(self.thread < shape.threads, RUNNING, EXITED).astype(np.uint8)
        self.pcs = np.zeros(self.count, np.int64)
        self.idx: Array | None = None
        self._warps_of: tuple[Array | None, Array, bool] | None = None
        self.carry: Array = np.zeros(1, np.uint64)
        self.specials: dict[str, Array] = {}
        self.barrier_of = np.zeros(self.count, np.int64)  # what a lane at a barrier waits for
        self.wanted: dict[tuple[int, int], int] = {}  # (block, barrier) -> threads it needs, where the text says
        self.arrived: dict[tuple[int, int], int] = {}  # by bar.arrive
        self.copies, self.tensors = InFlightQueue(self.count), InFlightQueue(self.count)  # of cp.async; of wgmma
        self.bulk, self.sent = InFlightQueue(self.count), InFlightQueue(self.count)  # into shared memory; out of it
        self.yields = False  # the group at work waits for others
        self.work = 0

    @property
    def n(self) -> int:
        """How many lanes are at work."""
        return self.count if self.idx is None else len(self.idx)

    @property
    def lanes(self) -> Lanes:
        """The lanes at work."""
        return self.everyone if self.idx is None else self.everyone.only(self.idx)

    def get(self, slot: int) -> Array:
        """Return a register's bits in the lanes at work, or one lane for all."""
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
        """Put other lanes to work for a while."""
        before = self.idx
        self.idx = idx
        try:
            yield
        finally:
            self.idx = before

    def full(self, bits: Array) -> Array:
        """Return an element for each lane at work."""
        return np.broadcast_to(bits, (self.n, *bits.shape[1:])) if len(bits) == 1 else bits

    def spread(self, bits: Array, rest: int = 0) -> Array:
        """Return an element for every lane of the batch, `rest` where nobody works."""
        if self.idx is None:
            return self.full(bits)
        out = np.full(self.count, rest, bits.dtype)
        out[self.idx] = bits
        return out

    def narrow(self, bits: Array) -> Array:
        """Return the elements of the lanes at work, from one for every lane of the batch."""
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
        return self._warps_at_work()[0]

    def _warps_at_work(self) -> tuple[Array, bool]:
        """These, and whether all of their lanes are at work, in order. Remembered for as long as the same lanes are: an
        instruction of matrices asks for each of its registers, which was a quarter of the time of one."""
        if self._warps_of is None or self._warps_of[0] is not self.idx:
            warps = np.arange(self.count // WARP) if self.idx is None else np.unique(self.idx // WARP)
            whole = self.idx is None or np.array_equal(self.idx, (warps[:, None] * WARP + np.arange(WARP)).reshape(-1))
            self._warps_of = (self.idx, warps, whole)
        return self._warps_of[1:]

    def in_warps(self, bits: Array, rest: int = 0) -> Array:
        """Turn one row for each lane at work into [warp at work, lane]."""
        warps, whole = self._warps_at_work()
        return self.full(bits).reshape(-1, WARP) if whole else self.spread(bits, rest).reshape(-1, WARP)[warps]

    def from_warps(self, by_warp: Array) -> Array:
        """Turn [warp at work, lane] into one row for each lane at work."""
        warps, whole = self._warps_at_work()
        if whole:
            return by_warp.reshape(-1)
        out = np.zeros((self.count // WARP, WARP), by_warp.dtype)
        out[warps] = by_warp
        return self.narrow(out.reshape(-1))

    def ballots(self, which: Array) -> Array:
        """For each lane at work the ballot of its warp, from one truth for every lane of the batch."""
        bits = (which.reshape(-1, WARP) * LANE_BITS).sum(axis=1, dtype=np.uint32)
        return self.narrow(np.repeat(bits, WARP))


# ---
# Special registers, of all lanes. Those of time are not among them: time does not pass here as it does there.

_AXES = {"x": 0, "y": 1, "z": 2}


def special(m: WarpMachine, name: str) -> Array | None:
    """Return a special register's bits (32) in all lanes, or in one for all; None: unknown."""
    if name not in m.specials:
        head, _, axis = name.removeprefix("%").partition(".")
        if axis in _AXES and head in _VECTORS:
            found = _VECTORS[head](m, _AXES[axis])
        elif not axis and head in _SCALARS:
            found = _SCALARS[head](m)
        else:
            return None
        m.specials[name] = np.asarray(found).reshape(-1).astype(np.uint32)
    return m.specials[name]


def _coordinate(number: Array, sizes: tuple[int, int, int], axis: int) -> Array:
    return number // math.prod(sizes[:axis]) % sizes[axis]


def _cta(m: WarpMachine, axis: int) -> Array:
    return _coordinate(m.shape.ctas[m.blocks], m.shape.grid, axis)


_VECTORS: dict[str, Callable[[WarpMachine, int], Array | int]] = {
    "tid": lambda m, axis: _coordinate(m.thread, m.shape.block, axis),
    "ntid": lambda m, axis: m.shape.block[axis],
    "ctaid": _cta,
    "nctaid": lambda m, axis: m.shape.grid[axis],
    "clusterid": _cta,
    "nclusterid": lambda m, axis: m.shape.grid[axis],
    "cluster_ctaid": lambda m, axis: 0,
    "cluster_nctaid": lambda m, axis: 1,
}
_SCALARS: dict[str, Callable[[WarpMachine], Array | int]] = {
    "laneid": lambda m: m.thread % WARP,
    "warpid": lambda m: m.thread // WARP,
    "nwarpid": lambda m: m.shape.padded // WARP,
    "smid": lambda m: m.shape.ctas[m.blocks] % 132,
    "nsmid": lambda m: 132,
    "gridid": lambda m: 0,
    "cluster_ctarank": lambda m: 0,
    "cluster_nctarank": lambda m: 1,
    "lanemask_eq": lambda m: 1 << (m.thread % WARP),
    "lanemask_le": lambda m: (2 << (m.thread % WARP)) - 1,
    "lanemask_lt": lambda m: (1 << (m.thread % WARP)) - 1,
    "lanemask_ge": lambda m: (1 << WARP) - (1 << (m.thread % WARP)),
    "lanemask_gt": lambda m: (1 << WARP) - (2 << (m.thread % WARP)),
    "dynamic_smem_size": lambda m: m.shape.shared_bytes,
    "total_smem_size": lambda m: m.shape.total_shared_bytes,
    "aggr_smem_size": lambda m: m.shape.total_shared_bytes,
}


# ---
# Operands as functions of the machine: what reads one as values of a type, what writes a result.

Run = Callable[[WarpMachine], None]
Read = Callable[[WarpMachine], Array]
Write = Callable[[WarpMachine, Array], None]


@dataclass(frozen=True)
class DecodedTensorMap:
    """What a tensor map says, the innermost dimension first: where the tensor begins, bytes of an element, its sizes,
    strides in bytes, the sizes of a box; how lines of 16 bytes are swizzled in shared memory (`swizzle` bits of their
    numbers), and what stands for what lies outside."""

    address: int
    item: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    fill: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of a box."""
        return math.prod(self.box) * self.item

    def elements(self, corner: Sequence[int]) -> tuple[Array, Array]:
        """Of a box at that corner, in the order of shared memory: the address of each element, and whether it lies
        inside of the tensor."""
        number, at = np.arange(math.prod(self.box)), np.full(math.prod(self.box), self.address)
        inside = np.ones(len(number), bool)
        for first, size, stride, width in zip(corner, self.sizes, self.strides, self.box, strict=True):
            place, number = first + number % width, number // width
            inside &= (place >= 0) & (place < size)
            at = at + place * stride
        return at, inside

    def lines(self, address: int) -> Array:
        """Where the box's lines of 16 bytes lie in shared memory."""
        at = address + np.arange(0, self.nbytes, 16)
        return at ^ ((at >> 7 & (1 << self.swizzle) - 1) << 4)


@dataclass
class Scope:
    """What names mean in a function. `slots`, `kinds`: number and type of each register; `labels`: where they stand;
    `symbols`, `spaces`: address and state space of each variable and parameter; `sizes`: bytes of shared memory (a
    block) and local memory (a thread); `maps`: tensor maps, which are a launch's and no part of what an instruction is
    made into; `tables`: labels by the name of their table."""

    slots: Mapping[str, int]
    kinds: Sequence[str]
    labels: Mapping[str, int]
    symbols: dict[str, int] = field(default_factory=dict)
    spaces: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: {"shared": 0, "local": 0})
    maps: dict[int, DecodedTensorMap] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def name(self, variable: Variable, space: str, address: int) -> None:
        """Set the address and state space of a variable."""
        self.symbols[variable.name], self.spaces[variable.name] = address, space


class Ins:
    """One instruction and what its names mean; the builders of operations ask it for their operands."""

    def __init__(self, ins: Instruction, scope: Scope) -> None:
        self.ins, self.scope = ins, scope
        self.opcode, self.operands = ins.opcode, ins.operands
        self.kinds = tuple(m for m in ins.modifiers if is_kind(m))
        self.unread = [m for m in ins.modifiers if not is_kind(m)]

    @property
    def kind(self) -> str:
        """The instruction's type; of several the last."""
        if not self.kinds:
            raise IllFormed(f"{place(self.ins)}: a type is missing")
        return self.kinds[-1]

    def flag(self, *names: str) -> bool:
        """Whether a modifier is there; it counts as understood then."""
        found = [name for name in names if name in self.unread]
        for name in found:
            self.unread.remove(name)
        return bool(found)

    def one_of(self, names: Sequence[str], default: str = "") -> str:
        """The modifier of these that is there; it counts as understood then."""
        found = next((name for name in names if name in self.unread), default)
        if found in self.unread:
            self.unread.remove(found)
        return found

    def ignore(self, *names: str) -> None:
        """Modifiers that change nothing here."""
        self.flag(*names)

    def understood(self) -> None:
        """Raise Unsupported where modifiers are left."""
        if self.unread:
            raise unsupported(self.ins, f"'.{self.unread[0]}' is not emulated")

    def expect(self, *counts: int) -> None:
        """Raise IllFormed unless there are so many operands."""
        if len(self.operands) not in counts:
            raise IllFormed(f"{place(self.ins)}: {len(self.operands)} operands; it takes {counts[0]}")

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        """The elements of a vector; one alone is one."""
        return operand.items if isinstance(operand, Vector) else (operand,)

    def slot(self, operand: Operand) -> int:
        """Number of a register."""
        if isinstance(operand, Register) and operand.name in self.scope.slots:
            return self.scope.slots[operand.name]
        name = operand.name if isinstance(operand, Register | Symbol) else type(operand).__name__.lower()
        raise IllFormed(f"{place(self.ins)}: {name!r} is not a declared register")

    def width(self, operand: Operand) -> int:
        """Return a register's width in bits."""
        return bits_of(self.scope.kinds[self.slot(operand)])

    # -- reading ---------------------------------------------------------------------------------------------------

    def bits(self, operand: Operand, kind: str) -> Read:
        """Reads bits as wide as the type."""
        width = bits_of(kind)
        if isinstance(operand, Immediate):
            return _constant(_immediate(operand, kind))
        if isinstance(operand, Not):
            inner = self.bits(operand.operand, kind)
            return lambda m: ~inner(m)
        if isinstance(operand, Vector):
            return self._packed(operand, width)
        if isinstance(operand, Symbol):
            return _constant(np.array([self.address_of(operand) & (1 << width) - 1], UNSIGNED[width]))
        if not isinstance(operand, Register):
            raise IllFormed(f"{place(self.ins)}: a {type(operand).__name__.lower()} where a number belongs")
        if operand.name.startswith("%") and operand.name not in self.scope.slots:
            return self._special(operand.name, width)
        slot, have = self.slot(operand), self.width(operand)
        if have == width:
            return lambda m: m.get(slot)
        if have < width or have == 128 or width == 1:
            raise IllFormed(f"{place(self.ins)}: the register {operand.name!r} has {have} bits, not {width}")
        return lambda m: resize(m.get(slot), width)

    def _special(self, name: str, width: int) -> Read:
        def read(m: WarpMachine) -> Array:
            found = special(m, name)
            if found is None:
                raise unsupported(self.ins, f"{name} is not emulated")
            return resize(found if len(found) == 1 else m.narrow(found), width)

        return read

    def _packed(self, vector: Vector, width: int) -> Read:
        """Reads {low, high} as one number."""
        part = width // len(vector.items)
        if part not in (8, 16, 32, 64) or width > 64:
            raise unsupported(self.ins, f"packing {len(vector.items)} registers into {width} bits")
        readers = [self.bits(item, f"b{part}") for item in vector.items]

        def read(m: WarpMachine) -> Array:
            total: Array = np.zeros(1, UNSIGNED[width])
            for i, reader in enumerate(readers):
                total = np.bitwise_or(total, reader(m).astype(UNSIGNED[width]) << UNSIGNED[width].type(i * part))
            return total

        return read

    def value(self, operand: Operand, kind: str) -> Read:
        """Reads values of a type."""
        reader = self.bits(operand, kind)
        if not is_float(kind) and not is_signed(kind) and parts_of(kind) == 1:
            return reader
        return lambda m: decode(reader(m), kind)

    def address_of(self, symbol: Symbol) -> int:
        """Return the address of a variable or parameter in its own state space."""
        if symbol.name not in self.scope.symbols:
            raise IllFormed(f"{place(self.ins)}: {symbol.name!r} is not declared")
        return self.scope.symbols[symbol.name] + symbol.offset

    def address(self, operand: Operand, *, small: bool = False) -> Read:
        """Reads addresses as int64. `small`: of a window of 32 bits."""
        if not isinstance(operand, Address):
            raise IllFormed(f"{place(self.ins)}: an address stands in brackets")
        offset = operand.offset
        if operand.base is None:
            return _constant(np.array([offset], np.int64))
        if isinstance(operand.base, Symbol):
            return _constant(np.array([self.address_of(operand.base) + offset], np.int64))
        reader = self.bits(operand.base, f"b{min(64, self.width(operand.base))}")
        mask = 0xFFFFFFFF if small else (1 << 63) - 1

        def read(m: WarpMachine) -> Array:
            at = reader(m).astype(np.int64)
            return (at + offset) & mask if offset or small else at & mask

        return read

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_bits(self, operand: Operand, kind: str) -> Write:
        """Writes bits as wide as the type; a wider register gets them extended."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda m, bits: None
        if isinstance(operand, Vector):
            return self._unpack(operand, bits_of(kind))
        slot, width, signed = self.slot(operand), self.width(operand), is_signed(kind)
        if width == bits_of(kind):
            return lambda m, bits: m.put(slot, bits)
        if width < bits_of(kind) or bits_of(kind) == 1:
            raise IllFormed(f"{place(self.ins)}: the register for the result has {width} bits, not {bits_of(kind)}")
        return lambda m, bits: m.put(slot, resize(bits, width, signed=signed))

    def _unpack(self, vector: Vector, width: int) -> Write:
        part = width // len(vector.items)
        if part not in (8, 16, 32, 64) or width > 64:
            raise unsupported(self.ins, f"unpacking {width} bits into {len(vector.items)} registers")
        writers = [self.write_bits(item, f"b{part}") for item in vector.items]

        def write(m: WarpMachine, bits: Array) -> None:
            for i, writer in enumerate(writers):
                writer(m, (bits >> bits.dtype.type(i * part)).astype(UNSIGNED[part]))

        return write

    def write(self, operand: Operand, kind: str) -> Write:
        """Writes values of a type, which it holds exactly."""
        writer = self.write_bits(operand, kind)
        return lambda m, value: writer(m, encode(value, kind))

    def results(self, *kinds: str) -> list[Write]:
        """What writes the bits of `d|p`, or of d alone."""
        first = self.operands[0]
        operands = (first.first, first.second) if isinstance(first, Both) else (first,)
        return [self.write_bits(operand, kind) for operand, kind in zip(operands, kinds, strict=False)]

    # -- whole instructions ----------------------------------------------------------------------------------------

    def compute(self, fn: Callable[..., Any], kinds: Sequence[str], result: str = "") -> Run:
        """d = fn(operands), with operands as values of some types and d of the last of them, or of `result`."""
        self.understood()
        self.expect(1 + len(kinds))
        readers = [self.value(operand, kind) for operand, kind in zip(self.operands[1:], kinds, strict=True)]
        write = self.write(self.operands[0], result or kinds[-1])
        if len(readers) == 1:
            (only,) = readers
            return lambda m: write(m, fn(only(m)))
        if len(readers) == 2:
            a, b = readers
            return lambda m: write(m, fn(a(m), b(m)))
        return lambda m: write(m, fn(*[reader(m) for reader in readers]))


def _constant(value: Array) -> Read:
    return lambda m: value


def _immediate(operand: Immediate, kind: str) -> Array:
    """Return an immediate as one lane."""
    width, value = bits_of(kind), operand.value
    if width == 1:
        return np.array([bool(value)])
    if isinstance(value, int):
        return lane_of(value, f"b{width}")
    if is_float(kind):
        return lane_of(value, kind)
    if operand.bits:
        return resize(lane_of(value, f"f{operand.bits}"), width)
    return lane_of(value, {16: "f16", 32: "f32", 64: "f64"}[width])
