"""What a reference rounds at its end may go either way near a half, and nowhere else."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kerneltune.tools.judge.correctness.comparison import compare, judge
from kerneltune.tools.judge.correctness.float64 import half_step
from kerneltune.tools.judge.correctness.gates import Expected
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.task.load import find_task, read_task


def expected_of(folder: Path, forward: str, x: Tensor) -> Expected:
    path = folder / "mine.py"
    path.write_text(
        f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        {forward}\n"
        "def get_inputs(): return [torch.randn(3, 5)]\nPRECISION = 'float32'\n"
    )
    return Problem.load(read_task(path)).expect((x,))


X = torch.tensor([[2.5, -2.5, 2.4, 126.7, -126.7]])


@pytest.mark.parametrize("forward", [
    "return torch.round(x).to(torch.int8)", "return x.round().clamp(-127, 127).to(torch.int32)",
    "return (x * 1.0).round().clamp(min=-127).clamp_max(127).to(torch.int8).clone()",
    "return x.double().round().int()",
])  # fmt: skip
def test_both_neighbours_of_a_half_are_right_and_nothing_else(tmp_path: Path, forward: str) -> None:
    expected = expected_of(tmp_path, forward, X)
    for row, right in (([2, -2, 2, 127, -127], True), ([3, -3, 2, 127, -127], True), ([3, -2, 2, 127, -127], True),
                       ([2, -2, 3, 127, -127], False), ([1, -2, 2, 127, -127], False),
                       ([2, -2, 2, 126, -127], False)):  # fmt: skip
        assert compare(expected, torch.tensor([row]).to(expected.native.dtype)).ok == right, row


def test_a_clamp_is_no_half(tmp_path: Path) -> None:
    expected = expected_of(tmp_path, "return (x * 10).round().clamp(-128, 127).to(torch.int8)", torch.tensor([[13.0]]))
    assert compare(expected, torch.tensor([[127]], dtype=torch.int8)).ok
    assert not compare(expected, torch.tensor([[126]], dtype=torch.int8)).ok


@pytest.mark.parametrize("forward", [
    "return torch.floor(x).to(torch.int8)", "return x.to(torch.int8)", "return x.round().to(torch.int8) + 1",
    "y = x.round()\n        y += 1\n        return y.to(torch.int8)",
])  # fmt: skip
def test_all_other_integers_stay_exact(tmp_path: Path, forward: str) -> None:
    expected = expected_of(tmp_path, forward, X)
    right = expected.native
    assert compare(expected, right.clone()).ok
    for place in range(X.numel()):
        other = right.clone()
        other.view(-1)[place] += 1
        assert not compare(expected, other).ok


def neighbours(value: Tensor) -> Tensor:
    """The next float8 number above each."""
    return (value.view(torch.uint8) + 1).view(value.dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_half_a_step_is_half_of_the_way_to_the_next_number(dtype: torch.dtype) -> None:
    numbers = torch.arange(0x70, dtype=torch.uint8).view(dtype)
    gaps = neighbours(numbers).double() - numbers.double()
    assert torch.equal(half_step(numbers.double(), dtype), gaps / 2)
    assert torch.equal(half_step(numbers.double() + gaps / 4, dtype), gaps / 2)


def test_float8_is_rounded_to_the_nearest(tmp_path: Path) -> None:
    x = torch.randn(64, 100, generator=torch.Generator().manual_seed(1)) * 20
    expected = expected_of(tmp_path, "return x.to(torch.float8_e4m3fn)", x)
    right = x.to(torch.float8_e4m3fn)
    assert compare(expected, right).ok
    assert not compare(expected, neighbours(right)).ok
    one_off = right.clone()
    one_off.view(torch.uint8)[7, 9] ^= 1
    result = compare(expected, one_off)
    assert not result.ok
    assert "1 of 6400 elements wrong" in result.detail
    assert not compare(expected, torch.full_like(right, float("nan"))).ok


def test_a_small_float8_is_not_hidden_by_a_large_one_in_its_row(tmp_path: Path) -> None:
    x = torch.tensor([[448.0, *[0.01] * 63]])
    expected = expected_of(tmp_path, "return x.to(torch.float8_e4m3fn)", x)
    assert not compare(expected, torch.tensor([[448.0, *[0.0] * 63]]).to(torch.float8_e4m3fn)).ok


@pytest.mark.parametrize("kind", ["nearest", "towards zero"])
def test_an_honest_tf32_product_is_not_refused_by_a_noisy_estimate(kind: str) -> None:
    problem = Problem.load(find_task("matmul_tf32"), "ragged")
    half = 0x1000 if kind == "nearest" else 0

    def tf32(x: Tensor) -> Tensor:
        return ((x.view(torch.int32) + half) & ~0x1FFF).view(torch.float32)

    for seed in range(4):
        drawn = problem.draw(seed)
        assert drawn is not None
        x, residual = drawn.inputs
        result = compare(problem.expect(drawn.inputs), tf32(x) @ tf32(drawn.state["weight"]) + residual)
        assert result.error_ratio < 0.9, result


CONSTANT_ROWS = """
import torch
PRECISION = 'bfloat16'
class Model(torch.nn.Module):
    def forward(self, x, r):
        h = x + r
        return torch.nn.functional.layer_norm(h, h.shape[-1:]) * torch.linspace(0.1, 1.5, 1024).bfloat16(), h
def get_inputs(): return [torch.full((64, 1024), -1.8203125).bfloat16(), torch.full((64, 1024), -0.1875).bfloat16()]
"""


def test_a_kernel_that_rounds_a_sum_in_one_place_and_not_in_another_is_refused_by_no_luck_of_few_samples(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(CONSTANT_ROWS)
    problem = Problem.load(read_task(tmp_path / "mine.py"))
    drawn = problem.draw(0, "own")
    assert drawn is not None
    x, r = drawn.inputs
    moments = (x.float() + r.float()).mean(-1, keepdim=True)  # of the sum that is not rounded: -2.0078125, not -2
    off = ((x + r).float() - moments) * 1e-5**-0.5 * torch.linspace(0.1, 1.5, 1024)  # up to 3.7 in the place of 0
    assert not compare(problem.expect(drawn.inputs), (off.bfloat16(), x + r)).ok
    assert judge(problem, drawn, (off.bfloat16(), x + r), case="main", battery="own").ok
    assert not judge(problem, drawn, ((8 * off).bfloat16(), x + r), case="main", battery="own").ok
