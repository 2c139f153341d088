"""Gluon as a language: @gluon.jit functions are lowered to TTGIR in the tracer, and to PTX, which is what a plan holds,
by a confined compiler."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerneltune.tools.languages.base import LaunchRecorder
from kerneltune.tools.languages.ptx.loader import imports_loader
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import arch_number
from kerneltune.tools.schema.messages import Failure, Lowered, Program

_IMPORTS = re.compile(r"^\s*(?:from|import)\s+triton\.experimental\b", re.MULTILINE)
_SCRATCH = ("global_scratch_size", "profile_scratch_size")


class GluonLanguage:
    """See `languages.base.Language`."""

    name = "Gluon"
    imports = ""

    def wrote(self, source: str) -> bool:
        """Not where only its descriptors and layouts are used, for a text in PTX."""
        return _IMPORTS.search(source) is not None and not imports_loader(source, "PtxKernel")

    def record(self, log: LaunchRecorder, target: Any) -> None:
        """Kernels of Gluon come to where the recording Triton has its compiler."""
        from kerneltune.tools.languages.gluon.recorder import install

        install(log, target)

    def describe(self, error: BaseException, source: str) -> Failure | None:
        return None  # Triton's exceptions

    def lower(self, program: Program, arch: str, folder: Path) -> Lowered:
        """TTGIR, with the compile options of its kernel as JSON, by Triton. Scratch memory is in bytes a block."""
        ptx, metadata = _ptx(program, arch, folder)
        launch: dict[str, Json] = {"block": [32 * int(metadata["num_warps"]), 1, 1], "shared_bytes": metadata["shared"]}
        launch["scratch_bytes"] = [int(metadata.get(name) or 0) for name in _SCRATCH]
        return Lowered(ptx, launch)


def _ptx(program: Program, arch: str, folder: Path) -> tuple[str, Mapping[str, Any]]:
    """The later half of triton.compile, but for ptxas; without what debuggers read, which names lines."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import IRSource, make_backend

    path = folder / f"{hashlib.sha256(program.text.encode()).hexdigest()[:16]}.ttgir"
    path.write_text(program.text)
    target = GPUTarget("cuda", arch_number(arch), 32)
    backend, context = make_backend(target), ir.context()
    source = IRSource(str(path), context, backend)
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(program.options[0]).items()}
    parsed = backend.parse_options(options | source.parse_options())
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    module: Any = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    metadata: dict[str, Any] = {"target": target, **parsed.__dict__}
    for stage in ("llir", "ptx"):
        module = stages[stage](module, metadata)
    return str(module).partition("\t.section")[0], metadata


LANGUAGE = GluonLanguage()
