"""Device memory that two processes share, and the rights that each has to it.

Whole pages, so that a mapping shows nothing else. Where the driver can (CUDA's virtual memory management), each buffer
lies between unmapped guards and is handed on as a file descriptor; elsewhere it is plain device memory, opened by an
IPC handle.

On both sides of the pages the range stays unmapped, so that an access beyond them faults. Another process maps the
same pages through a file descriptor, with rights of its own: what a runner maps for reading only, no kernel of it can
change.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from kerneltune.tools.backends.cuda import driver
from kerneltune.tools.backends.cuda.driver import DriverError, check, cu
from kerneltune.tools.backends.runner_messages import Shared
from kerneltune.tools.replay.replay import aligned

GRANULE_BYTES = 2 << 20
GUARD_BYTES = 1 << 30  # on each side; address space costs nothing


class Pages:
    """Whole pages of the current GPU, mapped between two guards at `address`; `times` over, one behind the other, so
    that what lies in the first is read and written in all."""

    def __init__(self, handle: Any, nbytes: int, *, writable: bool, times: int = 1) -> None:
        self.nbytes, self._piece_bytes, self._handle = times * nbytes, nbytes, handle
        span = self.nbytes + 2 * GUARD_BYTES
        try:
            self._range = int(check("cuMemAddressReserve", cu.cuMemAddressReserve(span, 0, 0, 0)))
        except DriverError:
            cu.cuMemRelease(handle)
            raise
        self.address = self._range + GUARD_BYTES
        self._mapped = 0
        try:
            for number in range(times):
                check("cuMemMap", cu.cuMemMap(self.address + number * nbytes, nbytes, 0, handle, 0))
                self._mapped += 1
            self.allow(writable=writable)
        except DriverError:
            self.close()
            raise

    @classmethod
    def create(cls, nbytes: int, times: int = 1) -> "Pages":
        """New pages that can be read and written here; `nbytes` is a multiple of GRANULE_BYTES. Raises DriverError."""
        return cls(check("cuMemCreate", cu.cuMemCreate(nbytes, _properties(), 0)), nbytes, writable=True, times=times)

    @classmethod
    def open(cls, fd: int, nbytes: int, *, writable: bool) -> "Pages":
        """Another process's pages; the descriptor stays the caller's to close. Raises DriverError."""
        imported = cu.cuMemImportFromShareableHandle(fd, _as_descriptor())
        return cls(check("cuMemImportFromShareableHandle", imported), nbytes, writable=writable)

    def allow(self, *, writable: bool) -> None:
        """Set what kernels of this process may do with the pages; reading they always may."""
        access = cu.CUmemAccessDesc()
        _locate(access.location)
        flags = cu.CUmemAccess_flags
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        check("cuMemSetAccess", cu.cuMemSetAccess(self.address, self.nbytes, [access], 1))

    def export(self) -> int:
        """A file descriptor by which another process maps these pages; the caller closes it."""
        exported = cu.cuMemExportToShareableHandle(self._handle, _as_descriptor(), 0)
        return int(check("cuMemExportToShareableHandle", exported))

    def close(self) -> None:
        """Unmap. The pages are freed when no process maps them and no descriptor is open. Nothing may use them."""
        if self._range:
            for number in range(self._mapped):
                at = self.address + number * self._piece_bytes
                check("cuMemUnmap", cu.cuMemUnmap(at, self._piece_bytes))
            check("cuMemAddressFree", cu.cuMemAddressFree(self._range, self.nbytes + 2 * GUARD_BYTES))
            check("cuMemRelease", cu.cuMemRelease(self._handle))
        self._range = 0


@functools.cache
def usable() -> bool:
    """Whether pages can be made, handed on and mapped for reading only here: tried once, with pages of our own."""
    with contextlib.suppress(DriverError, AttributeError):  # AttributeError: bindings that are too old, or missing
        pages = Pages.create(GRANULE_BYTES)
        try:
            return _handed_on(pages)
        finally:
            pages.close()
    return False


def _handed_on(pages: Pages) -> bool:
    fd = pages.export()
    try:
        Pages.open(fd, pages.nbytes, writable=False).close()
    finally:
        os.close(fd)
    return True


def _properties() -> Any:
    wanted = cu.CUmemAllocationProp()
    wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = _as_descriptor()
    _locate(wanted.location)
    return wanted


def _locate(location: Any) -> None:
    location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = int(check("cuCtxGetDevice", cu.cuCtxGetDevice()))


def _as_descriptor() -> Any:
    return cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


PAGE_BYTES = GRANULE_BYTES  # plain allocations too: smaller ones would share their page with others


class NotMapped(RuntimeError):
    """Another process's memory could not be mapped here."""


class _Exposed:
    """Device memory in the words of the CUDA array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (nbytes,), "typestr": "|u1", "strides": None, "version": 2,
        }  # fmt: skip


def seen(address: int, nbytes: int) -> torch.Tensor:
    """Device memory as a flat uint8 tensor; torch neither owns nor frees it."""
    exposed: Any = _Exposed(address, nbytes)
    tensor = torch.as_tensor(exposed, device="cuda")
    if tensor.data_ptr() != address:
        raise RuntimeError("torch copied device memory instead of viewing it")
    return tensor


class DeviceBuffer:
    """Bytes on the GPU: our own allocation, or another process's that we mapped."""

    def __init__(self, address: int, nbytes: int, free: Callable[[], None], pages: Pages | None = None) -> None:
        self.address, self.nbytes, self._free, self._pages = address, nbytes, free, pages
        self.tensor: torch.Tensor = seen(address, nbytes)

    @classmethod
    def allocate(cls, nbytes: int) -> "DeviceBuffer":
        """A dedicated allocation of whole pages; `tensor` shows all of it, slack included. Raises DriverError."""
        allocate = cls._paged if usable() else cls.plain
        try:
            return allocate(nbytes)
        except driver.DriverError:  # torch keeps freed memory for itself
            torch.cuda.empty_cache()
            return allocate(nbytes)

    @classmethod
    def _paged(cls, nbytes: int) -> "DeviceBuffer":
        return cls._of(Pages.create(aligned(nbytes, PAGE_BYTES)))

    @classmethod
    def plain(cls, nbytes: int) -> "DeviceBuffer":
        """The same without guards: what there is where `vmm` is not usable."""
        whole = aligned(nbytes, PAGE_BYTES)
        address = driver.allocate(whole)
        return cls(address, whole, lambda: driver.free(address))

    @classmethod
    def repeated(cls, nbytes: int, piece_bytes: int) -> "DeviceBuffer":
        """At least `nbytes` of addresses behind which the same `piece_bytes`, a multiple of PAGE_BYTES, lie again and
        again. Raises DriverError."""
        return cls._of(Pages.create(piece_bytes, times=-(-nbytes // piece_bytes)))

    @classmethod
    def _of(cls, pages: Pages) -> "DeviceBuffer":
        return cls(pages.address, pages.nbytes, pages.close, pages)

    @classmethod
    def open(cls, shared: Shared, fds: list[int]) -> "DeviceBuffer":
        """Map another process's buffer; takes the next descriptor of `fds` where it comes as one (the caller closes
        them all). Raises NotMapped."""
        try:
            if not shared.handle:
                return cls._of(Pages.open(fds.pop(0), shared.nbytes, writable=shared.writable))
            address = driver.open_exported(bytes.fromhex(shared.handle))
        except (driver.DriverError, IndexError) as error:
            raise NotMapped(f"the judge's memory cannot be mapped: {error}") from error
        return cls(address, shared.nbytes, lambda: driver.close_exported(address))

    @property
    def guarded(self) -> bool:
        """Whether an access just outside faults, and a reader's mapping cannot be written to."""
        return self._pages is not None

    def share(self, fds: list[int], *, writable: bool) -> Shared:
        """What another process opens it by. A new descriptor may be appended to `fds`; the caller closes it."""
        if self._pages is None:
            return Shared(self.nbytes, driver.export(self.address).hex(), writable)
        fds.append(self._pages.export())
        return Shared(self.nbytes, "", writable)

    def protect(self) -> None:
        """No kernel of this process can write to it any more, where the driver can do that."""
        if self._pages is not None:
            torch.cuda.synchronize()
            self._pages.allow(writable=False)

    def close(self) -> None:
        """Free or unmap. Nothing may use the memory any more."""
        if self.address:
            self.address = 0
            self._free()


def protected_copy(tensor: torch.Tensor) -> DeviceBuffer:
    """A copy of a flat uint8 tensor at the start of a buffer that no kernel of this process can change."""
    buffer = DeviceBuffer.allocate(tensor.numel())
    buffer.tensor[: tensor.numel()].copy_(tensor)
    buffer.protect()
    return buffer


def torch_memory() -> list[torch.Tensor]:
    """All memory that torch holds in this process, used or kept for later, as flat uint8 tensors."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return [seen(int(segment["address"]), int(segment["total_size"])) for segment in segments]


def settle() -> None:
    """Wait until the device has done everything; nothing to do where there is none."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Bump:
    """Hands out pieces of one buffer, so that poisoning the whole buffer leaves no hidden corner."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self._end = tensor, 0

    def take(self, nbytes: int) -> torch.Tensor:
        """The next piece; memory of its own from torch when the buffer is used up."""
        start = self._end
        if start + nbytes > self.tensor.numel():
            return torch.empty(nbytes, dtype=torch.uint8, device=self.tensor.device)
        self._end = start + aligned(nbytes)
        return self.tensor[start : start + nbytes]
