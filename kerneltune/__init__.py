"""kerneltune: finds the fastest GPU kernel that it can verify. What stands here is the public API.

Nothing is imported before it is used: torch alone takes seconds.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerneltune.tools.languages.ptx import PtxKernel
    from kerneltune.tools.languages.ptx.launch import Backend

__all__ = ["PtxKernel"]


def __getattr__(name: str) -> object:
    if name == "PtxKernel":
        from kerneltune.tools.languages.ptx import loader

        loader.use_by_default(_gpu_backend)
        return loader.PtxKernel
    raise AttributeError(f"module 'kerneltune' has no attribute {name!r}")


def _gpu_backend() -> "Backend":
    from kerneltune.tools.backends.cuda.ptx_launch import GpuBackend

    return GpuBackend()
