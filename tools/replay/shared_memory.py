"""Large tensors that processes hold in one memory. Of one that repeats, a part is held once and mapped again and again:
6 GB of random values take 64 MB.

The owner seals its memory; whoever gets the descriptor maps it for itself, and what it writes there stays its own.
"""

import ctypes
import fcntl
import functools
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kerneltune.tools.schema.messages import MemoryPart
from kerneltune.tools.schema.task import extent

# Elements after which values repeat: whole pages of any dtype. 4,099 is prime, so that addresses which are off by a
# power of two (an index that has overflowed) hold other values.
PERIOD = mmap.PAGESIZE * 4099
_PRIVATE, _ANONYMOUS, _FIXED, _NORESERVE = 0x02, 0x20, 0x10, 0x4000
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    return libc


def mapped(fd: int, part: MemoryPart) -> np.ndarray[Any, Any]:
    """The bytes of a part, for as long as this process lives. Raises MemoryError."""
    size, step = _pages(part.nbytes), _pages(part.period)
    base = _map(None, size, _PRIVATE | _ANONYMOUS | _NORESERVE, -1, 0)
    for at in range(0, size, step):
        _map(base + at, min(step, size - at), _PRIVATE | _FIXED, fd, part.offset)
    array: Any = (ctypes.c_uint8 * part.nbytes).from_address(base)
    return np.ctypeslib.as_array(array)


def _map(address: int | None, size: int, flags: int, fd: int, offset: int) -> int:
    found = _libc().mmap(address, size, _READ_WRITE, flags, fd, offset)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise MemoryError(f"{size} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    return int(found)


def _pages(nbytes: int) -> int:
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


@dataclass(frozen=True)
class _Held:
    """A tensor of this memory: its part, and where that repeats the values once."""

    part: MemoryPart
    once: Tensor | None = None


class SharedMemory:
    """A growing memory of tensors, until it is sealed."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("inputs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._end = 0
        self._held: dict[int, _Held] = {}  # by the address of a tensor

    @property
    def nbytes(self) -> int:
        """How much it holds."""
        return os.fstat(self.fd).st_blocks * 512

    def spread(self, once: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor of that shape whose elements are those of `once`, PERIOD of them, again and again."""
        count = 1
        for size in shape:
            count *= size
        return self._kept(once.contiguous(), shape, count * once.element_size(), once)

    def _kept(self, values: Tensor, shape: tuple[int, ...], nbytes: int, once: Tensor | None) -> Tensor:
        raw = values.reshape(-1).view(torch.uint8).numpy()
        part = MemoryPart("", self._end, nbytes, max(1, len(raw)))
        done = 0
        while done < len(raw):
            done += os.pwrite(self.fd, raw[done:].data, part.offset + done)
        self._end = part.offset + _pages(len(raw))
        os.ftruncate(self.fd, self._end)
        tensor = torch.from_numpy(mapped(self.fd, part)).view(values.dtype).reshape(shape)
        self._held[tensor.data_ptr()] = _Held(part, once)
        return tensor

    def once(self, tensor: Tensor) -> Tensor | None:
        """The values that a tensor repeats; None for one that does not, or is a part or a rearrangement of one."""
        held = self._held.get(tensor.data_ptr())
        if held is None or held.once is None or not tensor.is_contiguous():
            return None
        return held.once if tensor.numel() * tensor.element_size() == held.part.nbytes else None

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is this one."""
        return tensor.untyped_storage().data_ptr() in self._held

    def share(self, name: str, tensor: Tensor, behind: int = 0) -> tuple[MemoryPart, Tensor]:
        """The tensor's bytes from its first element to its last under that name, and the tensor in this memory. So many
        bytes `behind` it can be read, too: NaN, or where the tensor repeats its values, more of them."""
        elements = extent(tensor.shape, tensor.stride())
        held = self._held.get(tensor.data_ptr())
        if held is None or held.part.nbytes < elements * tensor.element_size():
            flat = tensor.as_strided((elements,), (1,), tensor.storage_offset())
            raw = torch.full((flat.numel() * flat.element_size() + behind,), 0xFF, dtype=torch.uint8)
            raw[: len(raw) - behind].copy_(flat.view(torch.uint8))
            kept = self._kept(raw, tuple(raw.shape), len(raw), None)
            held, flat = self._held[kept.data_ptr()], kept[: len(raw) - behind].view(flat.dtype)
            tensor = flat.as_strided(tensor.shape, tensor.stride()) if tensor.numel() else tensor
            return MemoryPart(name, held.part.offset, held.part.nbytes, held.part.period), tensor
        part = held.part
        return MemoryPart(name, part.offset, part.nbytes + behind, part.period), tensor

    def seal(self, kept: list[MemoryPart]) -> None:
        """Let nobody write to it any more, and give back what is not of these parts."""
        offsets = {part.offset for part in kept}
        for held in self._held.values():
            if held.part.offset not in offsets:
                length = _pages(held.part.period)
                _libc().fallocate(self.fd, _PUNCH_HOLE | _KEEP_SIZE, held.part.offset, length)
        self._held.clear()
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
