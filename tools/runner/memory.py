"""Device memory that two processes share: allocations of whole pages, so that a mapping shows nothing else."""

from typing import Any

import torch

from tools.plan.outputs import aligned
from tools.runner import driver

PAGE_BYTES = 2 << 20  # the granularity of cuMemAlloc: smaller allocations would share their page with others


class _Exposed:
    """Device memory in the words of the CUDA array interface."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (nbytes,), "typestr": "|u1", "strides": None, "version": 2,
        }  # fmt: skip


class DeviceBuffer:
    """Bytes on the GPU: our own allocation, or another process's that we mapped."""

    def __init__(self, address: int, nbytes: int, *, mapped: bool) -> None:
        self.address, self.nbytes, self._mapped = address, nbytes, mapped
        exposed: Any = _Exposed(address, nbytes)
        self.tensor: torch.Tensor = torch.as_tensor(exposed, device="cuda")
        if self.tensor.data_ptr() != address:
            raise RuntimeError("torch copied device memory instead of viewing it")

    @classmethod
    def allocate(cls, nbytes: int) -> "DeviceBuffer":
        """A dedicated allocation of whole pages; `tensor` shows all of it, slack included."""
        whole = aligned(nbytes, PAGE_BYTES)
        try:
            address = driver.allocate(whole)
        except driver.DriverError:  # torch keeps freed memory for itself
            torch.cuda.empty_cache()
            address = driver.allocate(whole)
        return cls(address, whole, mapped=False)

    @classmethod
    def open(cls, handle: bytes, nbytes: int) -> "DeviceBuffer":
        """Map another process's allocation."""
        return cls(driver.open_exported(handle), nbytes, mapped=True)

    @property
    def handle(self) -> bytes:
        """What another process opens it by."""
        return driver.export(self.address)

    def close(self) -> None:
        """Free or unmap. Nothing may use the memory any more."""
        if self.address:
            (driver.close_exported if self._mapped else driver.free)(self.address)
            self.address = 0


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
