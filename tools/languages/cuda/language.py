"""CUDA C++ as a language: candidates launch __global__ functions by `CudaKernel`; their PTX is what a plan holds."""

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kerneltune.tools.languages.base import LaunchRecorder
from kerneltune.tools.languages.cuda.nvrtc import lowered
from kerneltune.tools.languages.ptx.ir import Function, parse
from kerneltune.tools.languages.ptx.loader import PtxKernel, PtxLaunchError, entry_of, imports_loader, in_charge
from kerneltune.tools.schema.messages import Failure, Lowered, Program, Refused

HOST_CODE = (
    "{what} builds C++ host code, which no launch plan can hold. Keep the __global__ functions as text, launch them by "
    "CudaKernel (from kerneltune import CudaKernel; kernel[grid](*args, block=…)), and write the launcher in Python; "
    "`optimize convert FILE` does that for the common form"
)
_BUILDING = "torch.utils.cpp_extension"
_OF_A_LAUNCH = ("block", "shared_bytes")  # what a config says beside macros
_NAME = re.compile(r"[A-Za-z_]\w*")


class CudaKernel(PtxKernel):
    """A __global__ function of a CUDA C++ text, to be launched as a Triton kernel is: `kernel[grid](*args, block=256)`.

    A launch takes what a launch of a PtxKernel takes.

    Args:
        text: Device code: functions and what they need, no host code.
        name: The function as C++ names it, "scale" or "scale<float, BLOCK>"; may be left out where the text has one
            function that is no template.
        configs: Dicts of macros, as -D defines them. Each makes another kernel, and the fastest is used. Grid, block
            and shared_bytes may be functions of the config; "block" and "shared_bytes" in a config are no macros, but
            stand for arguments that a launch leaves out.
        options: Options of NVRTC: see `nvrtc.OPTIONS`.

    Raises:
        NotCompiled: at the first launch, with the lines: the text does not compile.
        PtxLaunchError: the values do not fit the function.
    """

    def __init__(
        self,
        text: str,
        name: str | None = None,
        *,
        configs: Sequence[Mapping[str, Any]] = (),
        options: Sequence[str] = (),
    ) -> None:
        if not isinstance(text, str):
            raise PtxLaunchError(f"CudaKernel takes CUDA C++ as a str, not {type(text).__name__}")
        super().__init__(text, entry=name, configs=configs)
        self.options = tuple(map(str, options))

    def _entry(self, config: Mapping[str, Any]) -> tuple[str, Function]:
        macros = tuple(_macro(name, value) for name, value in config.items() if name not in _OF_A_LAUNCH)
        ptx = in_charge().lowered(Program("cuda", self.text, self.entry or "", (*self.options, *macros))).ptx
        # its lines are the compiler's, not the author's
        entry = entry_of(parse(ptx), None)
        return ptx, replace(entry, params=tuple(replace(param, line=0) for param in entry.params))


def _macro(name: str, value: Any) -> str:
    if not _NAME.fullmatch(str(name)):
        raise PtxLaunchError(f"a config names macros: {name!r:.60} is no name of one")
    text = str(int(value)) if isinstance(value, bool) else str(value)
    return f"-D{name}={text}"


def _imported_when_used(ours: Mapping[str, Any]) -> ModuleType:
    """What stands for torch's module until something else than `ours` is asked of it: setuptools comes with it, 0.05 s
    of each tracer."""

    @cache
    def imported() -> ModuleType:
        sys.modules.pop(_BUILDING, None)
        module = importlib.import_module(_BUILDING)
        vars(module).update(ours)
        return module

    def asked(name: str) -> Any:
        if name.startswith("__"):  # as `inspect` asks every module for its __file__
            raise AttributeError(name)
        return getattr(imported(), name)

    stand_in = ModuleType(_BUILDING)
    vars(stand_in).update(ours, __getattr__=asked)
    return stand_in


class CudaLanguage:
    """See `languages.base.Language`."""

    name = "CUDA C++"
    imports = "`kerneltune` (`CudaKernel`)"

    def wrote(self, source: str) -> bool:
        return imports_loader(source, CudaKernel.__name__)

    def record(self, log: LaunchRecorder, target: Any) -> None:
        """Launches go where those of PTX go. What builds C++ says what to write instead."""
        import torch.cuda
        import torch.utils

        def refuse(what: str) -> Any:
            def refused(*_: object, **__: object) -> None:
                raise Refused(HOST_CODE.format(what=what))

            return refused

        ours = {name: refuse(f"{_BUILDING}.{name}") for name in ("load", "load_inline")}
        if _BUILDING in sys.modules:
            vars(sys.modules[_BUILDING]).update(ours)
        else:
            sys.modules[_BUILDING] = torch.utils.cpp_extension = _imported_when_used(ours)  # type: ignore[attr-defined]
        torch.cuda._compile_kernel = refuse("torch.cuda._compile_kernel")

    def describe(self, error: BaseException, source: str) -> Failure | None:
        return None  # a text that does not compile raises NotCompiled

    def lower(self, program: Program, arch: str, folder: Path) -> Lowered:
        return Lowered(lowered(program, arch))


LANGUAGE = CudaLanguage()
