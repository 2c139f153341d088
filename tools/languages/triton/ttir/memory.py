"""The kernel's address space: caller-owned byte buffers at synthetic addresses, with every access bounds-checked.

Regions lie 2**40 bytes apart and their buffers start in the middle, so a pointer that strays from its tensor, in either
direction, is still recognised as that tensor's and can be named in the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from kerneltune.tools.languages.triton.ttir.ir import Array, Misaligned, OutOfBounds

SHIFT = 40


@dataclass(frozen=True)
class Pointer:
    """An argument that points `offset` bytes into `buffer`, a 1-D uint8 array shared with the caller, whose first
    `lead` bytes are not the tensor's: they keep it from beginning at a multiple of 16. Where what is written to it is
    added to `writes`: byte offsets in `buffer`, and the size of the elements there."""

    buffer: Array
    offset: int
    name: str
    writes: list[tuple[Array, int]] | None = None
    lead: int = 0


@dataclass(frozen=True)
class DescriptorValue:
    """A host-made tensor descriptor; `strides` count elements and `dtype` is the element's TTIR name (`f32`)."""

    base: Pointer
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    dtype: str
    padding: str = "zero"


Argument: TypeAlias = "Pointer | int | float | bool | DescriptorValue"


@dataclass
class MemoryRegion:
    name: str
    base: int
    buffer: Array
    views: dict[np.dtype[Any], Array] = field(default_factory=dict)
    writes: list[tuple[Array, int]] | None = None
    lead: int = 0

    @property
    def start(self) -> int:
        """The address of the tensor's first byte."""
        return self.base + self.lead

    @property
    def nbytes(self) -> int:
        """Of the tensor."""
        return len(self.buffer) - self.lead

    def holds(self, low: int, high: int, size: int) -> bool:
        return self.base + self.lead <= low and high + size <= self.base + len(self.buffer)

    def view(self, dtype: np.dtype[Any]) -> Array:
        if dtype not in self.views:
            whole = len(self.buffer) // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.buffer[:whole].view(dtype)
        return self.views[dtype]

    def index(self, address: Array, dtype: np.dtype[Any]) -> Array:
        """Element indices into `view`. Raises Misaligned if an address is not a multiple of the element's size."""
        offset, size = address - self.base, dtype.itemsize
        if size > 1 and int(np.bitwise_or.reduce(offset, axis=None)) & (size - 1):
            at = int(offset[offset & (size - 1) != 0].flat[0]) - self.lead
            raise Misaligned(f"{size} bytes at byte offset {at} of argument {self.name!r}: no multiple of {size}")
        return offset >> (size.bit_length() - 1)

    def read(self, address: Array, dtype: np.dtype[Any]) -> Array:
        return self.view(dtype).take(self.index(address, dtype))

    def write(self, address: Array, raw: Array) -> None:
        if self.writes is not None:
            self.writes.append(((address - self.base).reshape(-1), raw.dtype.itemsize))
        self.view(raw.dtype)[self.index(address, raw.dtype)] = raw


class AddressSpace:
    """All regions of one launch. Addresses given to `read` and `write` are those of active lanes only. Where memory is
    `watched`, `changes` counts the writes that changed something. `written`: whether anything was."""

    def __init__(self) -> None:
        self.watched, self.changes = False, 0
        self.written = False
        self.regions: dict[int, MemoryRegion] = {}
        self._known: dict[tuple[int, int], MemoryRegion] = {}

    def place(self, pointer: Pointer) -> int:
        """The synthetic address of `pointer`; the same buffer always gets the same region, so pointers alias."""
        buffer = pointer.buffer
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
            raise TypeError(f"argument {pointer.name!r}: a buffer is a contiguous 1-D uint8 array")
        key = (buffer.ctypes.data, len(buffer))
        if key not in self._known:
            number = len(self.regions) + 1
            base = (number << SHIFT) + (1 << (SHIFT - 1))
            region = MemoryRegion(pointer.name, base, buffer, writes=pointer.writes, lead=pointer.lead)
            self.regions[number] = self._known[key] = region
        return self._known[key].base + pointer.offset

    def single(self, address: Array, size: int) -> MemoryRegion | None:
        """The region that holds every access, if one does."""
        low, high = int(address.min()), int(address.max())
        region = self.regions.get(low >> SHIFT)
        return region if region and region.holds(low, high, size) else None

    def split(self, address: Array, size: int, what: str) -> Iterator[tuple[MemoryRegion, Array]]:
        """Yield each region with the lanes that fall into it."""
        numbers = address >> SHIFT
        for number in np.unique(numbers):
            lanes = numbers == number
            region = self.regions.get(int(number))
            mine = address[lanes]
            if region is None or not region.holds(int(mine.min()), int(mine.max()), size):
                raise self._blame(region, mine, size, what)
            yield region, lanes

    def _blame(self, region: MemoryRegion | None, address: Array, size: int, what: str) -> OutOfBounds:
        if region is None:
            return OutOfBounds(f"{what} outside argument '(no argument)': byte offset {int(address.flat[0])} of 0")
        offset, nbytes = address - region.start, region.nbytes
        bad = offset[(offset < 0) | (offset + size > nbytes)]
        at = int(bad.flat[0])
        element = f", element {at // size} of {nbytes // size}" if size > 1 else ""
        return OutOfBounds(f"{what} outside argument {region.name!r}: byte offset {at} of {nbytes}{element}")

    def overwrote(self) -> bool:
        """Whether an element was written more than once, where writes are kept."""
        kept = [[at for at, _ in region.writes] for region in self.regions.values() if region.writes]
        return any(bool((np.diff(np.sort(np.concatenate(offsets))) == 0).any()) for offsets in kept)

    def read(self, address: Array, dtype: np.dtype[Any]) -> Array:
        if region := self.single(address, dtype.itemsize):
            return region.read(address, dtype)
        out = np.empty(address.shape, dtype)
        for region, lanes in self.split(address, dtype.itemsize, "load"):
            out[lanes] = region.read(address[lanes], dtype)
        return out

    def write(self, address: Array, raw: Array) -> None:
        self.written = True
        if region := self.single(address, raw.dtype.itemsize):
            if self.watched and region.read(address, raw.dtype).tobytes() != np.ascontiguousarray(raw).tobytes():
                self.changes += 1
            region.write(address, raw)
            return
        self.changes += 1
        # every lane is checked before any is written, so that a bad store changes nothing
        for region, lanes in list(self.split(address, raw.dtype.itemsize, "store")):
            region.write(address[lanes], raw[lanes])
