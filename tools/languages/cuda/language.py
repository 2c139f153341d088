"""CUDA C++ as a language: candidates launch __global__ functions by `CudaKernel`; their PTX is what a plan holds."""

from pathlib import Path
from typing import Any

from kerneltune.tools.languages.base import LaunchRecorder
from kerneltune.tools.languages.cuda.loader import CudaKernel
from kerneltune.tools.languages.cuda.nvrtc import lowered
from kerneltune.tools.languages.ptx.loader import imports_loader
from kerneltune.tools.schema.messages import Failure, Lowered, Program, Refused

HOST_CODE = (
    "{what} builds C++ host code, which no launch plan can hold. Keep the __global__ functions as text, launch them by "
    "CudaKernel (from kerneltune import CudaKernel; kernel[grid](*args, block=…)), and write the launcher in Python; "
    "`optimize convert FILE` does that for the common form"
)


class CudaLanguage:
    """See `languages.base.Language`."""

    name = "CUDA C++"
    imports = "`kerneltune` (`CudaKernel`)"

    def wrote(self, source: str) -> bool:
        return imports_loader(source, CudaKernel.__name__)

    def record(self, log: LaunchRecorder, target: Any) -> None:
        """Launches go where those of PTX go. What builds C++ says what to write instead."""
        import torch.cuda
        from torch.utils import cpp_extension

        def refuse(what: str) -> Any:
            def refused(*_: object, **__: object) -> None:
                raise Refused(HOST_CODE.format(what=what))

            return refused

        for name in ("load", "load_inline"):
            setattr(cpp_extension, name, refuse(f"torch.utils.cpp_extension.{name}"))
        torch.cuda._compile_kernel = refuse("torch.cuda._compile_kernel")

    def describe(self, error: BaseException, source: str) -> Failure | None:
        return None  # a text that does not compile raises NotCompiled

    def lower(self, program: Program, arch: str, folder: Path) -> Lowered:
        return Lowered(lowered(program, arch))


LANGUAGE = CudaLanguage()
