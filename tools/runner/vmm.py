"""Device pages in an address range of their own (CUDA's virtual memory management).

On both sides of the pages the range stays unmapped, so that an access beyond them faults. Another process maps the
same pages through a file descriptor, with rights of its own: what a runner maps for reading only, no kernel of it can
change.
"""

import contextlib
import functools
import os
from typing import Any

from tools.cuda.driver import DriverError, check, cu

GRANULE_BYTES = 2 << 20
GUARD_BYTES = 1 << 30  # on each side; address space costs nothing


class Pages:
    """Whole pages of the current GPU, mapped between two guards at `address`."""

    def __init__(self, handle: Any, nbytes: int, *, writable: bool) -> None:
        self.nbytes, self._handle = nbytes, handle
        span = nbytes + 2 * GUARD_BYTES
        try:
            self._range = int(check("cuMemAddressReserve", cu.cuMemAddressReserve(span, 0, 0, 0)))
        except DriverError:
            cu.cuMemRelease(handle)
            raise
        self.address = self._range + GUARD_BYTES
        self._mapped = False
        try:
            check("cuMemMap", cu.cuMemMap(self.address, nbytes, 0, handle, 0))
            self._mapped = True
            self.allow(writable=writable)
        except DriverError:
            self.close()
            raise

    @classmethod
    def create(cls, nbytes: int) -> "Pages":
        """New pages that can be read and written here; `nbytes` is a multiple of GRANULE_BYTES. Raises DriverError."""
        return cls(check("cuMemCreate", cu.cuMemCreate(nbytes, _properties(), 0)), nbytes, writable=True)

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
            if self._mapped:
                check("cuMemUnmap", cu.cuMemUnmap(self.address, self.nbytes))
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
