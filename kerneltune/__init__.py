"""kerneltune: finds the fastest GPU kernel that it can verify. What stands here is the public API.

    import kerneltune

    outcome = kerneltune.optimize("softmax", max_attempts=12)
    print(outcome.best.verdict.status, outcome.best_path)
    verdict = kerneltune.bench("mine.py", "softmax")
    print(kerneltune.Task.open("softmax").source)

Nothing is imported before it is used: torch alone takes seconds.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerneltune.agent.api import Task, bench, optimize
    from kerneltune.tools.languages.cuda.loader import CudaKernel
    from kerneltune.tools.languages.ptx import PtxKernel
    from kerneltune.tools.languages.ptx.loader import PtxLauncher

    __version__: str

__all__ = ["CudaKernel", "PtxKernel", "Task", "__version__", "bench", "optimize"]


def __getattr__(name: str) -> object:
    if name in ("Task", "bench", "optimize"):
        from kerneltune.agent import api

        return getattr(api, name)
    if name == "__version__":
        from importlib import metadata

        return metadata.version("kerneltune")
    if name in ("CudaKernel", "PtxKernel"):
        from kerneltune.tools.languages.cuda.loader import CudaKernel
        from kerneltune.tools.languages.ptx.loader import PtxKernel, use_by_default

        use_by_default(_gpu_launcher)
        return CudaKernel if name == "CudaKernel" else PtxKernel
    raise AttributeError(f"module 'kerneltune' has no attribute {name!r}")


def _gpu_launcher() -> "PtxLauncher":
    from kerneltune.tools.backends.cuda.ptx_launch import GpuPtxLauncher

    return GpuPtxLauncher()
