"""Kernels of Triton, rewritten and emulated: the results are as each rewrite says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tools.ptx.rewrites.rewriting import Kernel, difference, kernel_of
from tests.tools.ttir import kernels
from tools.ptx.rewrites import CATALOGUE, options

SHOWN = ("division", "trees", "redux", "wider")  # all of their values are tried; of others the first


def softmax(count: int, block: int, warps: int) -> Kernel:
    values: dict[str, Any] = {"x": torch.randn(3, count), "y": torch.zeros(3, count), "n": count, "B": block}
    values["x"][1, 5], values["x"][2] = float("-inf"), -0.0
    return kernel_of(kernels.softmax_row, (3,), values, num_warps=warps)


def layer_norm() -> Kernel:
    values: dict[str, Any] = {name: torch.randn(3, 512) for name in "xy"}
    values |= {"w": torch.randn(512), "b": torch.randn(512), "n": 512, "eps": 1e-5, "B": 512}
    return kernel_of(kernels.layernorm, (3,), values, num_warps=4)


def online() -> Kernel:
    values: dict[str, Any] = {"x": torch.randn(3, 512), "y": torch.zeros(3, 512), "n": 512, "B": 128}
    return kernel_of(kernels.softmax_online, (3,), values, num_warps=2)


KERNELS = {
    "softmax, masks always true": lambda: softmax(1024, 1024, 4),
    "softmax, ragged, 16 warps": lambda: softmax(1000, 1024, 16),
    "softmax of one warp": lambda: softmax(100, 128, 1),
    "layer norm": layer_norm,
    "online softmax with loops": online,
}


@pytest.mark.parametrize("name", KERNELS)
def test_each_rewrite_alone_keeps_what_it_says(name: str) -> None:
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    before = kernel.tensors()
    for rewrite, values in options(kernel.lowered.ptx, kernel.launched).items():
        for value in values if rewrite in SHOWN else values[:1]:
            text, applied = kernel.rewritten({rewrite: value})
            assert applied == (rewrite,)
            assert difference(CATALOGUE[rewrite].keeps, before, kernel.tensors(text)) == "", (rewrite, value)


@pytest.mark.parametrize("name", KERNELS)
def test_all_rewrites_together_stay_within_tolerance(name: str) -> None:
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    chosen = {rewrite: values[0] for rewrite, values in options(kernel.lowered.ptx, kernel.launched).items()}
    text, applied = kernel.rewritten(chosen | {"redux": "floats", "flat": "on"})
    assert len(applied) > 5
    assert difference("tolerance", kernel.tensors(), kernel.tensors(text)) == ""


def test_a_flattened_reduction_waits_once_less_for_each_stage() -> None:
    kernel = softmax(1000, 1024, 4)
    text, applied = kernel.rewritten({"flat": "on"})
    assert applied == ("flat",)
    assert kernel.lowered.ptx.count("bar.sync") - text.count("bar.sync") == 2


def test_a_wrong_rewrite_is_noticed() -> None:
    """What the tests above count on: emulated results differ where a text does."""
    kernel = softmax(100, 128, 1)
    text = kernel.lowered.ptx.replace("ex2.approx.f32", "mov.b32", 1)
    assert difference("tolerance", kernel.tensors(), kernel.tensors(text)) != ""
