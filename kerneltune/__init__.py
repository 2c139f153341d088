"""kerneltune: finds the fastest GPU kernel that it can verify. What stands here is the public API.

    import kerneltune

    result = kerneltune.optimize("softmax", max_attempts=12)
    print(result.verdict, result.speedups, result.best_path)
    result = kerneltune.optimize(tail, [x, bias])  # a function or nn.Module of yours
    result.patch(model, "layers.*.norm")
    with kerneltune.capture("Tail") as seen:
        model(batch)
    result = kerneltune.optimize(seen)
    verdict = kerneltune.bench("mine.py", "softmax")
    print(kerneltune.Task.open("softmax").source)

Nothing is imported before it is used: torch alone takes seconds.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerneltune.agent.api import Result, Task, bench, capture, optimize
    from kerneltune.tools.languages.cuda.language import CudaKernel
    from kerneltune.tools.languages.ptx import PtxKernel
    from kerneltune.tools.languages.ptx.loader import PtxLauncher

    __version__: str

__all__ = ["CudaKernel", "PtxKernel", "Result", "Task", "__version__", "bench", "capture", "optimize"]


def __getattr__(name: str) -> object:
    if name in ("Result", "Task", "bench", "capture", "optimize"):
        from kerneltune.agent import api

        return getattr(api, name)
    if name == "__version__":
        from kerneltune.tools.schema.verdict import versions

        return versions()["kerneltune"]
    if name in ("CudaKernel", "PtxKernel"):
        from kerneltune.tools.languages.cuda.language import CudaKernel
        from kerneltune.tools.languages.ptx.loader import PtxKernel, use_by_default

        use_by_default(_gpu_launcher)
        return CudaKernel if name == "CudaKernel" else PtxKernel
    raise AttributeError(f"module 'kerneltune' has no attribute {name!r}")


def _gpu_launcher() -> "PtxLauncher":
    from kerneltune.tools.backends.cuda.ptx_launch import GpuPtxLauncher

    return GpuPtxLauncher()
