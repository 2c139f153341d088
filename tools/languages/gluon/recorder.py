"""The recording Gluon: kernels are lowered to TTGIR, and to PTX by a compiler that is asked. Their launches are written
down; nothing runs. In the jail."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton.compiler.compiler import make_backend
from triton.experimental.gluon._runtime import GluonASTSource

from kerneltune.tools.languages.base import LaunchRecorder
from kerneltune.tools.languages.ptx.loader import parameters_of
from kerneltune.tools.languages.triton.recorder import (
    TracedKernel,
    front_half,
    grid3,
    kernel_name,
    plain_options,
    signature_of,
)
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import Program, Refused
from kerneltune.tools.schema.plan import Kernel

_OF_THE_ASSEMBLER = ("ptx_options", "enable_fp_fusion")
_OF_A_LAUNCH = ("launch_cooperative_grid", "launch_pdl")


class GluonKernel(TracedKernel):
    """A kernel of Gluon, whose PTX has two parameters more than it: scratch memory of all blocks and for a profiler."""

    def __init__(self, src: GluonASTSource, kernel: Kernel, scratch_bytes: Sequence[int], log: LaunchRecorder) -> None:
        super().__init__(src, kernel, None, log)
        self._scratch_bytes = scratch_bytes

    def _record(self, grid: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        x, y, z = grid3(grid)
        x *= math.prod(self.kernel_text.options.get("cluster", (1,)))  # Gluon counts clusters
        scratch = [
            torch.empty(n * x * y * z, dtype=torch.uint8, device="cuda") if n else 0 for n in self._scratch_bytes
        ]
        types = [*self.src.signature.values(), *self.kernel_text.signature[-len(scratch) :]]
        self._log.launch(self.kernel_text, (x, y, z), (*values, *scratch), types)


def install(log: LaunchRecorder, target: Any) -> None:
    """Make Gluon's kernels go into `log`, in front of the recording Triton. For a process that will do nothing else."""
    of_triton = triton.compiler.compile
    known: dict[tuple[str, str], tuple[Kernel, Sequence[int]]] = {}

    def compile(src: Any, target: Any = target, options: Any = None, _env_vars: Any = None) -> Any:
        if not isinstance(src, GluonASTSource):
            return of_triton(src, target, options, _env_vars)
        key = (src.hash(), repr(sorted((options or {}).items())))
        if key not in known:
            known[key] = _lowered(src, target, options or {}, log)
        return GluonKernel(src, *known[key], log)

    triton.compiler.compile = triton.compile = compile


def _lowered(
    src: GluonASTSource, target: Any, options: dict[str, Any], log: LaunchRecorder
) -> tuple[Kernel, Sequence[int]]:
    """The kernel as a plan holds it, and its scratch memory in bytes a block."""
    text, parsed, metadata = front_half(src, target, options)
    kept = plain_options(parsed, make_backend(target).parse_options({}))
    if given := next((name for name in _OF_THE_ASSEMBLER if name in kept), None):
        raise Refused(f"the compile option {given} of a Gluon kernel: its PTX is assembled as all PTX is; leave it out")
    made = log.lowered(Program("gluon", text, kernel_name(text, src.name), (json.dumps(kept),)))
    scratch_bytes = made.launch.pop("scratch_bytes")
    launch: dict[str, Json] = {**made.launch, **{name: True for name in _OF_A_LAUNCH if kept.get(name)}}
    if (cluster := kept.get("cluster_dims") or [kept["num_ctas"], 1, 1]) != [1, 1, 1]:
        launch["cluster"] = cluster
    if described := metadata.get("tensordesc_meta"):
        launch["tensordesc_meta"] = described
    signature, name = signature_of(src), kernel_name(text, src.name)
    names = _parameters(src, signature)
    ptx = re.sub(rf"\b{re.escape(name)}_param_(\d+)\b", lambda m: names.get(int(m[1]), m[0]), made.ptx)
    scratch = ("*i8" if nbytes else "i64" for nbytes in scratch_bytes)
    return Kernel(name, "ptx", ptx, (*signature, *scratch), launch), scratch_bytes


def _parameters(src: GluonASTSource, signature: Sequence[str]) -> dict[int, str]:
    """Names for the parameters of the PTX, those of the function's arguments; none where tuples are among them."""
    arguments = [name for name, kind in src.signature.items() if kind != "constexpr"]
    parts = parameters_of(signature)
    if len(arguments) != len(parts) or not all(name.isascii() for name in arguments):
        return {}
    pairs = zip(arguments, parts, strict=True)
    found = [f"{name}_{i}" if i else name for name, its in pairs for i in range(len(its))]
    return dict(enumerate(found)) if len(set(found)) == len(found) else {}
