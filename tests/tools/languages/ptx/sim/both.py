"""Kernels of Triton lowered twice, to TTIR and to PTX, and both run on the same torch CPU tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from kerneltune.tools.languages.ptx import parse
from kerneltune.tools.languages.ptx.loader import PtxLaunch
from kerneltune.tools.languages.ptx.sim.launch import run
from kerneltune.tools.languages.triton.ttir import interpreter as ttir
from kerneltune.tools.languages.triton.ttir.ir import parse as parse_ttir
from tests.tools.languages.triton.ttir.lowering import POINTERS, pointer


@dataclass(frozen=True)
class Lowered:
    """What Triton makes of a kernel. `shared_bytes` is dynamic shared memory."""

    ttir: str
    ptx: str
    shared_bytes: int
    threads: int


@lru_cache(maxsize=256)
def _lower(kernel: Any, signature: Any, constants: Any, capability: int, num_warps: int, aligned: bool) -> Lowered:
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    kinds = {**dict(signature), **dict.fromkeys(dict(constants), "constexpr")}
    ordered = {name: kinds[name] for name in kernel.arg_names}
    divisible = [["tt.divisibility", 16]] if aligned else []
    attrs = {(i,): divisible for i, name in enumerate(kernel.arg_names) if ordered[name].startswith("*")}
    source = ASTSource(kernel, signature=ordered, constexprs=dict(constants), attrs=attrs)
    options = backend.parse_options({"num_warps": num_warps})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, codegen, backend.get_module_map(), context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    texts = {}
    for name in ("ttir", "ttgir", "llir", "ptx"):
        module = stages[name](module, metadata)
        texts[name] = str(module)
    return Lowered(texts["ttir"], texts["ptx"], int(metadata["shared"]), 32 * num_warps)


def lower(kernel: Any, capability: int = 90, num_warps: int = 4, aligned: bool = True, **values: Any) -> Lowered:
    """TTIR and PTX of a kernel for arguments like these; `aligned`: tensors are known to begin at 16 bytes."""
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    constants = tuple((name, value) for name, value in values.items() if name in constexprs)
    kinds = tuple((name, _kind(value)) for name, value in values.items() if name not in constexprs)
    return _lower(kernel, kinds, constants, capability, num_warps, aligned)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"


def emulate(lowered: Lowered, grid: tuple[int, ...], arguments: dict[str, Any], **options: Any) -> None:
    """Run the PTX; Triton appends parameters of its own, which are 0."""
    args = [pointer(n, v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()]
    args += [0] * (len(parse(lowered.ptx).entries[0].params) - len(args))
    x, y, z = (*grid, 1, 1)[:3]
    block = (lowered.threads, 1, 1)
    run(PtxLaunch(lowered.ptx, "", (x, y, z), block, tuple(args), (), lowered.shared_bytes), **options)


def run_both(
    kernel: Any, grid: tuple[int, ...], *, capability: int = 90, num_warps: int = 4, aligned: bool = True, **values: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors after the PTX and after the TTIR."""
    lowered = lower(kernel, capability, num_warps, aligned, **values)
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    arguments = {name: values[name] for name in kernel.arg_names if name not in constexprs}
    mine, theirs = (
        {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()} for _ in range(2)
    )
    emulate(lowered, grid, mine)
    args = [pointer(n, v) if isinstance(v, torch.Tensor) else v for n, v in theirs.items()]
    x, y, z = (*grid, 1, 1)[:3]
    ttir.run(parse_ttir(lowered.ttir), (x, y, z), args)
    return tuple({n: v for n, v in d.items() if isinstance(v, torch.Tensor)} for d in (mine, theirs))  # type: ignore[return-value]
