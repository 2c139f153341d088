"""Memory that runs out: how it shows, and one more try with room made."""

import gc
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from tools.errors import TooLarge

T = TypeVar("T")
_SIGNS = re.compile(r"out of memory|can't allocate memory|_ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether that is why: torch has an exception for its own GPU allocator only, not for CPUs, cuBLAS or cuDNN."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_SIGNS.search(str(error)))


def free_cached() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without CUDA


def with_room(make: Callable[[], T], make_room: Callable[[], None]) -> T:
    """What `make` returns, tried once more with room made when there was no memory for it. Raises TooLarge."""
    try:
        return make()
    except TooLarge:
        pass  # here still, it would hold the tensors of the frames that it came through
    gc.collect()  # from Python 3.12 on those frames are a cycle: a context manager raised that error from another
    make_room()
    return make()
