"""Triton kernels for the tests of the disassembly, and what they compile to. No GPU is needed."""

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

FILE = "sass_kernels.py"


@triton.jit  # type: ignore[untyped-decorator]
def row_sum(out, x, n, B: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    row = tl.program_id(0)
    acc = tl.zeros((B,), tl.float32)
    for start in range(0, n, B):
        i = start + tl.arange(0, B)
        acc += tl.exp(tl.load(x + row * n + i, mask=i < n, eviction_policy="evict_first"))  # the loop's body
    tl.store(out + row, tl.sum(acc, 0))


@triton.jit  # type: ignore[untyped-decorator]
def copy(out, x, B: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i))


@triton.jit  # type: ignore[untyped-decorator]
def product(a, b, c, n, B: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, N803
    i = tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, n, B):
        acc = tl.dot(
            tl.load(a + i[:, None] * n + (k + i)[None, :]), tl.load(b + (k + i)[:, None] * B + i[None, :]), acc
        )
    tl.store(c + i[:, None] * B + i[None, :], acc)


def compiled(kernel: Any, types: str, block: int, *, aligned: bool = True, arch: int = 90, **options: Any) -> bytes:
    """The cubin of a kernel above whose arguments have these types, and divide by 16 if `aligned`."""
    names = kernel.arg_names[:-1]
    signature = dict(zip(names, types.split(), strict=True)) | {"B": "constexpr"}
    attributes = {(n,): [["tt.divisibility", 16]] for n in range(len(names))} if aligned else {}
    source = ASTSource(kernel, signature, {"B": block}, attributes)
    return bytes(triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["cubin"])
