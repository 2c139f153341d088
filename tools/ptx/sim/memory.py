"""What addresses mean: tensors, variables of the module, shared, local and parameter memory. Every access is checked.

Generic addresses below 2**40 are windows (shared, local, parameters); above lie tensors and module variables, far
apart.
"""

from collections.abc import Iterator

import numpy as np

from tools.ptx.ir import Instruction
from tools.ptx.sim.errors import Misaligned, OutOfBounds, place, unsupported
from tools.ptx.sim.formats import POISON_16
from tools.ptx.sim.lanes import Lanes, Words
from tools.ptx.sim.races import Shadow
from tools.ttir.ir import Array
from tools.ttir.memory import AddressSpace

SHARED, LOCAL, PARAM = 1 << 32, 2 << 32, 3 << 32  # where the windows begin
WINDOWS = {1: "shared", 2: "local", 3: "param"}
_TENSORS = 1 << 40
CELLS = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)} | {16: np.dtype("c16")}


class Memory:
    """All memory of one batch of blocks. `sizes`: bytes of shared (a block), local (a thread) and param memory."""

    def __init__(
        self,
        space: AddressSpace,
        params: Array,
        sizes: dict[str, int],
        blocks: int,
        lanes: int,
        granule: int,
        words: Words,
    ) -> None:
        self.space, self.sizes = space, sizes
        self.words = words
        self.stride = {name: -(-sizes[name] // 256) * 256 for name in ("shared", "local")}
        self.buffers = {
            "shared": _poisoned(blocks * self.stride["shared"]),
            "local": _poisoned(lanes * self.stride["local"]),
            "param": params,
        }
        self.shadow = Shadow(blocks, self.stride["shared"], granule)

    def read(self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> Array:
        """Bytes at each address, as [addresses, width]. One address for all lanes may give one row."""
        out: Array | None = None
        for name, which in self._split(space, address, width, ins, lanes):
            mine, who = (address, lanes) if which is None else (address[which], lanes.only(which))
            part = self._read(name, mine, width, ins, who)
            if which is None:
                return part
            out = np.empty((len(lanes), width), np.uint8) if out is None else out
            out[which] = part
        return np.empty((0, width), np.uint8) if out is None else out

    def write(self, space: str, address: Array, raw: Array, ins: Instruction, lanes: Lanes) -> None:
        """Write raw[lane, byte]; where lanes meet, the last one wins. All are checked before any writes."""
        address = np.broadcast_to(address, len(lanes))
        raw = np.ascontiguousarray(np.broadcast_to(raw, (len(lanes), raw.shape[1])))
        parts = [
            (which, *self._cells(name, address if which is None else address[which], raw.shape[1], ins,
                                 lanes if which is None else lanes.only(which)), name)
            for name, which in self._split(space, address, raw.shape[1], ins, lanes)
        ]  # fmt: skip
        for which, cells, index, name in parts:
            mine = (raw if which is None else np.ascontiguousarray(raw[which])).view(cells.dtype)[:, 0]
            who = lanes if which is None else lanes.only(which)
            if name == "param":
                raise OutOfBounds(f"{place(ins)} writes to the kernel's parameters")
            changed = _differs(cells[index], mine) if name == "shared" else index
            cells[index] = mine
            if name == "shared":
                lost = _differs(cells[index], mine)
                self.shadow.wrote(index * raw.shape[1], raw.shape[1], who, ins, changed, lost)

    def _read(self, name: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> Array:
        cells, index = self._cells(name, address, width, ins, lanes)
        if name == "shared":
            self.shadow.read(index * width, width, lanes, ins)
        return cells[index][:, None].view(np.uint8)

    def check(self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes) -> None:
        """Raise what an access would raise, without one."""
        address = np.broadcast_to(address, len(lanes))
        for name, which in self._split(space, address, width, ins, lanes):
            mine, who = (address, lanes) if which is None else (address[which], lanes.only(which))
            self._cells(name, mine, width, ins, who)

    def _split(
        self, space: str, address: Array, width: int, ins: Instruction, lanes: Lanes
    ) -> Iterator[tuple[str, Array | None]]:
        """Parts of the lanes by the memory that they mean: its name, and which (None: all)."""
        if not len(address):
            return
        odd = address & (width - 1) if width & (width - 1) == 0 else address * 0
        if odd.any():
            raise self._misaligned(address, odd, width, ins, lanes)
        if space not in ("generic", "global", "const"):
            yield space, None
        elif space != "generic" or int(address.min()) >= _TENSORS:
            yield from self._regions(address, width, None)
        else:
            windows = np.where(address < _TENSORS, address >> 32, 0)
            for window in np.unique(windows):
                which = np.nonzero(windows == window)[0]
                if int(window) in WINDOWS:
                    yield WINDOWS[int(window)], which
                else:
                    yield from self._regions(address[which], width, which)

    def _regions(self, address: Array, width: int, which: Array | None) -> Iterator[tuple[str, Array | None]]:
        """Lanes in tensors, by tensor."""
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
        if name in ("global", "const"):
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
        at, size = address - region.base, len(region.buffer)
        return OutOfBounds(f"{place(ins)}: {who} uses byte {at} of {region.name}, which has {size} bytes")

    def _misaligned(self, address: Array, odd: Array, width: int, ins: Instruction, lanes: Lanes) -> Misaligned:
        which = int(np.nonzero(odd)[0][0])
        value, past = int(address[which]), int(odd[which])
        region = self.space.regions.get(value >> 40) if value >= _TENSORS else None
        of = f"byte {value - region.base} of {region.name}" if region else f"address {value & 0xFFFFFFFF:#x}"
        return Misaligned(
            f"{ins.name} needs {width}-byte alignment; {of} is {past} past one; {self._who(lanes, which)}, "
            f"PTX line {ins.line}"
        )

    def _who(self, lanes: Lanes, which: int) -> str:
        return self.words(int(lanes.numbers[min(which, len(lanes) - 1)]))


def _differs(before: Array, after: Array) -> Array:
    """Which elements have other bits."""
    if before.dtype.itemsize == 16:
        before, after = (x.view(np.uint64).reshape(-1, 2) for x in (before, after))
        return np.asarray(np.not_equal(before, after).any(axis=1))
    return np.not_equal(before, after)


def _poisoned(size: int) -> Array:
    return np.full(size // 2, POISON_16, np.uint16).view(np.uint8)
