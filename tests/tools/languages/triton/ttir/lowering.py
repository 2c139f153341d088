"""Kernels to TTIR without a GPU, and launches of that TTIR on torch CPU tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from kerneltune.tools.languages.triton.ttir.interpreter import RunStats, run
from kerneltune.tools.languages.triton.ttir.ir import parse
from kerneltune.tools.languages.triton.ttir.memory import DescriptorValue, Pointer

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.uint32: "*u32",
    torch.int64: "*i64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}


def lower(kernel: Any, signature: dict[str, str], constants: dict[str, Any], capability: int = 90) -> str:
    """The kernel's TTIR: only the front end and `make_ttir` run, which takes some 20 ms."""
    return _lower(kernel, tuple(signature.items()), tuple(constants.items()), capability)


@lru_cache(maxsize=256)
def _lower(kernel: Any, signature: tuple[Any, ...], constants: tuple[Any, ...], capability: int) -> str:
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    kinds = {**dict(signature), **dict.fromkeys(dict(constants), "constexpr")}
    ordered = {name: kinds[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature=ordered, constexprs=dict(constants), attrs={})
    options = backend.parse_options({"debug": kernel.__name__ == "side_effects"})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    codegen = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, codegen, backend.get_module_map(), context)
    return str(backend.make_ttir(module, {}, options, capability))


def pointer(name: str, tensor: torch.Tensor) -> Pointer:
    """The tensor's own storage, so that the kernel writes into the tensor."""
    storage = torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())
    return Pointer(storage.numpy(), int(tensor.storage_offset()) * tensor.element_size(), name)


def _describe(name: str, value: Any) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype], pointer(name, value)
    if isinstance(value, DescriptorValue):
        block = ", ".join(str(size) for size in value.block_shape)
        return f"tensordesc<{value.dtype.replace('f', 'fp')}[{block}]>", value
    return ("fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"), value


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    capability: int = 90,
    max_ops: int = 50_000_000,
    cooperative: int = False,
    **values: Any,
) -> RunStats:
    """Lowers and runs `kernel`."""
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    constants = {name: value for name, value in values.items() if name in constexprs}
    described = {name: _describe(name, value) for name, value in values.items() if name not in constants}
    text = lower(kernel, {name: kind for name, (kind, _) in described.items()}, constants, capability)
    args = [described[name][1] for name in kernel.arg_names if name not in constants]
    full = (*grid, 1, 1)[:3]
    return run(parse(text), (full[0], full[1], full[2]), args, max_ops=max_ops, cooperative=bool(cooperative))
