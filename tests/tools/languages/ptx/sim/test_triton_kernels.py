"""PTX that Triton writes, emulated, against the TTIR that it comes from, interpreted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kerneltune.tools.languages.ptx.sim.values import Race
from tests.tools.languages.ptx.sim.both import Lowered, emulate, lower, run_both
from tests.tools.languages.triton.ttir import kernels

Values = dict[str, Any]


def rows(dtype: torch.dtype = torch.float32, count: int = 9, width: int = 100) -> torch.Tensor:
    return torch.randn(count, width).to(dtype)


def whole(*shape: int, low: int = -1000, high: int = 1000, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(low, high, shape).to(dtype)


def softmax() -> Values:
    return {"x": rows(), "y": rows(), "n": 100, "B": 128}


def online() -> Values:
    return {"x": rows(), "y": rows(), "n": 100, "B": 32}


def norm(dtype: torch.dtype) -> Callable[[], Values]:
    return lambda: {
        "x": rows(dtype),
        "w": torch.randn(100),
        "b": torch.randn(100),
        "y": rows(dtype),
        "n": 100,
        "eps": 1e-5,
        "B": 128,
    }


def matmul(dtype: torch.dtype, precision: str = "tf32") -> Callable[[], Values]:
    sizes = {"M": 70, "N": 50, "K": 90, "sam": 90, "sak": 1, "sbk": 50, "sbn": 1, "scm": 50, "scn": 1}
    blocks = {"BM": 16, "BN": 16, "BK": 32, "G": 2, "PREC": precision}
    return lambda: {
        "a": torch.randn(70, 90).to(dtype),
        "b": torch.randn(90, 50).to(dtype),
        "c": torch.zeros(70, 50),
        **sizes,
        **blocks,
    }


def big_matmul() -> Values:
    sizes = {"M": 128, "N": 128, "K": 128, "sam": 128, "sak": 1, "sbk": 128, "sbn": 1, "scm": 128, "scn": 1}
    return {
        "a": torch.randn(128, 128).half(),
        "b": torch.randn(128, 128).half(),
        "c": torch.zeros(128, 128),
        **sizes,
        "BM": 64,
        "BN": 64,
        "BK": 32,
        "G": 2,
        "PREC": "tf32",
    }


def wide_matmul() -> Values:
    same = {
        "BM": 128,
        "BN": 128,
        "BK": 64,
        "a": torch.randn(128, 128).bfloat16(),
        "b": torch.randn(128, 128).bfloat16(),
    }
    return {**big_matmul(), **same}


def wide_attention(causal: bool) -> Callable[[], Values]:
    heads = {name: torch.randn(2, 100, 64).half() for name in "qkvo"}
    return lambda: {**heads, "T": 100, "scale": 0.2, "D": 64, "BM": 64, "BN": 64, "CAUSAL": causal}


def split_k() -> Values:
    return {
        "a": torch.randn(32, 64),
        "b": torch.randn(64, 32),
        "c": torch.zeros(32, 32),
        "M": 32,
        "N": 32,
        "K": 64,
        "BM": 16,
        "BN": 16,
        "BK": 16,
        "S": 2,
    }


def persistent() -> Values:
    return {
        "a": torch.randn(48, 32).bfloat16(),
        "b": torch.randn(32, 48).bfloat16(),
        "c": torch.zeros(48, 48),
        "M": 48,
        "N": 48,
        "K": 32,
        "BM": 16,
        "BN": 16,
        "BK": 16,
        "P": 4,
    }


def attention(causal: bool) -> Callable[[], Values]:
    return lambda: {
        **{name: torch.randn(2, 100, 32).half() for name in "qkvo"},
        "T": 100,
        "scale": 0.2,
        "D": 32,
        "BM": 32,
        "BN": 32,
        "CAUSAL": causal,
    }


def cumsum(reverse: bool) -> Callable[[], Values]:
    return lambda: {"x": rows(), "y": rows(), "n": 100, "B": 128, "REVERSE": reverse}


def ties() -> torch.Tensor:
    return whole(20, 100, low=0, high=10).float()


def cross_entropy() -> Values:
    labels = torch.randint(0, 100, (8,))
    labels[3] = -100
    return {"x": rows(torch.bfloat16, 8), "labels": labels, "loss": torch.zeros(8), "n": 100, "B": 32}


EXACT, CLOSE, LOOSE = 0.0, 2e-6, 2e-3
CASES: dict[str, tuple[Any, tuple[int, ...], Callable[[], Values], float, dict[str, Any]]] = {
    "softmax": (kernels.softmax_row, (9,), softmax, CLOSE, {}),
    "softmax of unaligned tensors, one warp": (
        kernels.softmax_row,
        (9,),
        softmax,
        CLOSE,
        {"aligned": False, "num_warps": 1},
    ),
    "softmax, eight warps": (kernels.softmax_row, (9,), softmax, CLOSE, {"num_warps": 8}),
    "softmax online": (kernels.softmax_online, (9,), online, CLOSE, {}),
    "layernorm": (kernels.layernorm, (9,), norm(torch.float32), CLOSE, {}),
    "layernorm of fp16": (kernels.layernorm, (9,), norm(torch.float16), LOOSE, {}),
    "layernorm of bf16": (kernels.layernorm, (9,), norm(torch.bfloat16), 1e-2, {"num_warps": 2}),
    "matmul of fp16 by mma.sync": (kernels.matmul, (20,), matmul(torch.float16), 1e-4, {"capability": 80}),
    "matmul of bf16 by mma.sync": (kernels.matmul, (20,), matmul(torch.bfloat16), 1e-4, {"capability": 80}),
    "matmul of tf32 by mma.sync": (kernels.matmul, (20,), matmul(torch.float32), 5e-2, {"capability": 80}),
    "matmul of fp32 without tensor cores": (kernels.matmul, (20,), matmul(torch.float32, "ieee"), 1e-4, {}),
    "matmul of 64 x 64 tiles with ldmatrix": (kernels.matmul, (4,), big_matmul, 1e-4, {"capability": 80}),
    "matmul on sm_90": (kernels.matmul, (20,), matmul(torch.float16), 1e-4, {"num_warps": 2}),
    "matmul of fp16 by wgmma": (kernels.matmul, (4,), big_matmul, 1e-4, {}),
    "matmul of bf16 by wgmma, two warp groups": (kernels.matmul, (1,), wide_matmul, 1e-4, {"num_warps": 8}),
    "attention by wgmma": (kernels.attention, (2, 2), wide_attention(False), LOOSE, {}),
    "causal attention by wgmma": (kernels.attention, (2, 2), wide_attention(True), LOOSE, {}),
    "split-K matmul with atomics": (kernels.matmul_split_k, (2, 2, 2), split_k, 1e-4, {}),
    "persistent matmul": (kernels.matmul_persistent, (4,), persistent, 1e-4, {"capability": 80}),
    "attention": (kernels.attention, (4, 2), attention(False), LOOSE, {"capability": 80}),
    "causal attention": (kernels.attention, (4, 2), attention(True), LOOSE, {"capability": 80}),
    "cumsum": (kernels.cumsum, (9,), cumsum(False), 1e-5, {}),
    "cumsum backwards": (kernels.cumsum, (9,), cumsum(True), 1e-5, {}),
    "argmax": (
        kernels.argmax,
        (20,),
        lambda: {"x": ties(), "yv": torch.zeros(20), "yi": torch.zeros(20, dtype=torch.int32), "n": 100, "B": 128},
        EXACT,
        {},
    ),
    "total by atomics": (
        kernels.total,
        (8,),
        lambda: {"x": torch.randn(1000), "y": torch.zeros(1), "n": 1000, "B": 128},
        1e-5,
        {},
    ),
    "atomics of every kind": (
        kernels.atomic_kinds,
        (4,),
        lambda: {"x": whole(100, low=0), "bins": whole(24, low=0), "n": 100, "B": 32},
        EXACT,
        {},
    ),
    "tickets": (
        kernels.ticket,
        (16,),
        lambda: {"counter": torch.zeros(2, dtype=torch.int32), "y": torch.zeros(16, dtype=torch.int32)},
        EXACT,
        {},
    ),
    "compare and swap": (
        kernels.compare_and_swap,
        (8,),
        lambda: {"lock": torch.zeros(1, dtype=torch.int32), "y": torch.zeros(8, dtype=torch.int32)},
        EXACT,
        {},
    ),
    "float max by atomics": (
        kernels.float_atomic_max,
        (8,),
        lambda: {"x": torch.randn(1000), "y": torch.full((1,), -9.0), "n": 1000, "B": 128},
        EXACT,
        {},
    ),
    "sort": (
        kernels.sort_rows,
        (6,),
        lambda: {"x": torch.randn(6, 32), "y": torch.zeros(6, 32), "B": 32, "DESC": False},
        EXACT,
        {},
    ),
    "cross entropy": (kernels.cross_entropy, (8,), cross_entropy, 1e-5, {}),
    "rope in place": (
        kernels.rope,
        (5,),
        lambda: {"x": torch.randn(5, 64), "cos": torch.randn(5, 32), "sin": torch.randn(5, 32), "n": 64, "H": 32},
        CLOSE,
        {},
    ),
    "int8 quantisation": (
        kernels.quantise_int8,
        (7,),
        lambda: {
            "x": rows(count=7),
            "q": whole(7, 100, low=0, high=1, dtype=torch.int8),
            "s": torch.zeros(7),
            "n": 100,
            "B": 128,
        },
        CLOSE,
        {},
    ),
    "philox": (
        kernels.philox_words,
        (1,),
        lambda: {"y": torch.zeros(64, dtype=torch.int32), "seed": 7, "B": 64},
        EXACT,
        {},
    ),
    "dropout": (
        kernels.dropout,
        (8,),
        lambda: {"x": torch.randn(1000), "y": torch.zeros(1000), "n": 1000, "p": 0.25, "seed": 42, "B": 128},
        EXACT,
        {},
    ),
    "collatz": (
        kernels.collatz,
        (29,),
        lambda: {"x": torch.arange(1, 30, dtype=torch.int32), "y": torch.zeros(29, dtype=torch.int32)},
        EXACT,
        {},
    ),
    "triangular loops": (
        kernels.triangular,
        (40,),
        lambda: {"x": torch.randn(40), "y": torch.zeros(40), "n": 40},
        1e-5,
        {},
    ),
    "early return": (
        kernels.early_return,
        (6,),
        lambda: {"x": torch.randn(6, 16), "y": torch.zeros(6, 16), "n": 4, "B": 16},
        EXACT,
        {},
    ),
    "welford": (
        kernels.welford,
        (6,),
        lambda: {"x": rows(count=6), "mean": torch.zeros(6), "var": torch.zeros(6), "n": 100, "B": 128},
        1e-5,
        {},
    ),
    "scan of pairs": (
        kernels.linear_recurrence,
        (3,),
        lambda: {"a": torch.rand(3, 32), "b": torch.randn(3, 32), "y": torch.zeros(3, 32), "B": 32},
        1e-5,
        {},
    ),
    "gather and histogram": (
        kernels.gather_histogram,
        (1,),
        lambda: {
            "x": torch.randn(32),
            "idx": whole(32, low=0, high=16),
            "y": torch.zeros(32),
            "h": torch.zeros(16, dtype=torch.int32),
            "B": 32,
            "BINS": 16,
        },
        EXACT,
        {},
    ),
    "transpose": (
        kernels.transpose,
        (1,),
        lambda: {"x": torch.randn(16, 32), "y": torch.zeros(32, 16), "M": 16, "N": 32},
        EXACT,
        {},
    ),
    "integer reductions": (
        kernels.reduce_kinds,
        (4,),
        lambda: {"x": whole(4, 32), "y": torch.zeros(4, 4, dtype=torch.int32), "B": 32},
        EXACT,
        {},
    ),
    "batched dots": (
        kernels.batched_dot,
        (1,),
        lambda: {
            "a": torch.randn(4, 16, 16),
            "b": torch.randn(4, 16, 16),
            "c": torch.zeros(4, 16, 16),
            "L": 4,
            "B": 16,
        },
        5e-2,
        {},
    ),
    "int8 dot": (
        kernels.dot_int8,
        (1,),
        lambda: {
            "a": whole(32, 32, low=-128, high=128, dtype=torch.int8),
            "b": whole(32, 32, low=-128, high=128, dtype=torch.int8),
            "c": torch.zeros(32, 32, dtype=torch.int32),
            "B": 32,
        },
        EXACT,
        {"capability": 80},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_triton_compiles_computes_what_its_ttir_says(name: str) -> None:
    torch.manual_seed(0)
    kernel, grid, values, tolerance, options = CASES[name]
    mine, theirs = run_both(kernel, grid, **options, **values())
    for tensor, wanted in theirs.items():
        torch.testing.assert_close(mine[tensor], wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "result", "missing"),
    [
        ("matmul of fp16 by wgmma", "c", "wgmma.wait_group"),
        ("matmul of 64 x 64 tiles with ldmatrix", "c", "mma.sync"),
        ("matmul of 64 x 64 tiles with ldmatrix", "c", "ldmatrix"),
        ("attention", "o", "cp.async.wait_group"),
        ("softmax", "y", "shfl.sync"),
    ],
)
def test_a_kernel_that_lacks_one_kind_of_instruction_comes_to_another_result(
    name: str, result: str, missing: str
) -> None:
    torch.manual_seed(0)
    kernel, grid, values, _, options = CASES[name]
    given = values()
    lowered, arguments = both(kernel, given, options)
    right = torch.zeros_like(given[result])
    emulate(lowered, grid, {**arguments, result: right})
    found = torch.zeros_like(given[result])
    emulate(without(lowered, missing), grid, {**arguments, result: found})
    assert not torch.allclose(found, right, rtol=1e-2, atol=1e-2)


def test_a_kernel_without_its_barriers_races() -> None:
    kernel, grid, values, _, options = CASES["matmul of 64 x 64 tiles with ldmatrix"]
    lowered, arguments = both(kernel, values(), options)
    with pytest.raises(Race, match="no barrier lies between"):
        emulate(without(lowered, "bar.sync"), grid, arguments)


def both(kernel: Any, values: Values, options: dict[str, Any]) -> tuple[Lowered, Values]:
    """A kernel's texts, and its arguments without the constants."""
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    return lower(kernel, **options, **values), {n: v for n, v in values.items() if n not in constexprs}


def without(lowered: Lowered, opcode: str) -> Lowered:
    lines = lowered.ptx.split("\n")
    kept = [line for line in lines if not line.strip().startswith(opcode)]
    assert len(kept) < len(lines)
    return replace(lowered, ptx="\n".join(kept))
