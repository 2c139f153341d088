"""Memory that runs out: how it shows, and one more try with room made."""

import gc
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from tools.errors import OutOfMemory

T = TypeVar("T")
_SIGNS = re.compile(r"out of memory|can't allocate memory|_ALLOC_FAILED", re.IGNORECASE)
_ASKED = re.compile(r"(?:tried to allocate|asked for) ([\d.]+ \w+)", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether that is why: torch has an exception for its own GPU allocator only, not for CPUs, cuBLAS or cuDNN."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_SIGNS.search(str(error)))


def asked_for(error: BaseException) -> str:
    """The memory that torch says it wanted; "" where it does not say."""
    found = _ASKED.search(str(error))
    return found[1] if found else ""


def free_cached() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without CUDA


def with_room(make: Callable[[], T], make_room: Callable[[], None]) -> T:
    """What `make` returns, tried once more with room made when there was no memory for it. Raises OutOfMemory."""
    try:
        return make()
    except OutOfMemory:
        pass  # here still, it would hold the tensors of the frames that it came through
    make_room()
    return make()
