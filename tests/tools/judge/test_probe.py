"""One-hot operands tell how many bits a contraction keeps, however it is written and however long its sums are."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kerneltune.tools.judge.correctness.comparison import compare, judge
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.schema.task import PROBES
from kerneltune.tools.task.load import find_task, read_task


def to_tf32(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def cut_to_tf32(x: Tensor) -> Tensor:
    """As tensor cores do with float32 operands that nobody rounded."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def to_float16(x: Tensor) -> Tensor:
    return x.half().float()


def problem_of(folder: Path, source: str, precision: str = "float32") -> Problem:
    path = folder / "mine.py"
    path.write_text(f"import torch\nimport torch.nn as nn\n{source}\nPRECISION = {precision!r}\n")
    return Problem.load(read_task(path))


def matmul(folder: Path, *, terms: int, draw: str = "randn", precision: str = "float32") -> Problem:
    source = "class Model(nn.Module):\n    def forward(self, a, b): return a @ b\n"
    source += f"def get_inputs(): return [torch.{draw}(64, {terms}), torch.{draw}({terms}, 96)]"
    return problem_of(folder, source, precision)


def probed(problem: Problem, battery: str) -> Drawn:
    drawn = problem.draw(7, battery)
    assert drawn is not None
    return drawn


@pytest.mark.parametrize("terms", [64, 4096])
@pytest.mark.parametrize("draw", ["randn", "rand"])
def test_a_float32_matmul_in_tf32_or_bfloat16_is_told_so_whatever_its_length(
    tmp_path: Path, terms: int, draw: str
) -> None:
    problem = matmul(tmp_path, terms=terms, draw=draw)
    for battery in PROBES:
        a, b = probed(problem, battery).inputs
        expected = problem.expect((a, b))
        assert compare(expected, a @ b).error_ratio == 0
        for narrower in (to_tf32, cut_to_tf32):
            result = compare(expected, narrower(a) @ narrower(b))
            assert result.error_ratio > 100
            assert result.detail.startswith("your kernel computes in TF32 (11 bits), this task is float32 (24 bits): ")
            assert "input_precision='ieee'" in result.detail
        assert "bfloat16 (8 bits)" in compare(expected, to_bfloat16(a) @ to_bfloat16(b)).detail


@pytest.mark.parametrize("cut", [to_tf32, cut_to_tf32])
def test_three_tf32_products_pass_for_float32(tmp_path: Path, cut: Callable[[Tensor], Tensor]) -> None:
    problem = matmul(tmp_path, terms=512)
    for battery in PROBES:
        a, b = probed(problem, battery).inputs
        high, low = (cut(a), cut(b)), (cut(a - cut(a)), cut(b - cut(b)))
        three = (low[0] @ high[1] + high[0] @ low[1]) + high[0] @ high[1]
        assert compare(problem.expect((a, b)), three).ok


def test_rounding_one_operand_is_found_by_the_probe_of_the_other_side(tmp_path: Path) -> None:
    problem = matmul(tmp_path, terms=512)
    verdicts = {}
    for battery in PROBES:
        a, b = probed(problem, battery).inputs
        verdicts[battery] = compare(problem.expect((a, b)), to_tf32(a) @ b).ok
    assert verdicts == {"one_hot_left": True, "one_hot_right": False}


@pytest.mark.parametrize(
    ("precision", "passes", "fails"),
    [
        ("tf32_ok", to_tf32, to_bfloat16),
        ("tf32_ok", cut_to_tf32, to_bfloat16),
        ("tf32_ok", to_float16, to_bfloat16),
        ("bfloat16", to_bfloat16, lambda x: x.to(torch.float8_e4m3fn).float()),
    ],
)
def test_the_declared_precision_decides(
    tmp_path: Path, precision: str, passes: Callable[[Tensor], Tensor], fails: Callable[[Tensor], Tensor]
) -> None:
    problem = matmul(tmp_path, terms=512, precision=precision)
    for battery in PROBES:
        a, b = probed(problem, battery).inputs
        expected = problem.expect((a, b))
        assert compare(expected, passes(a) @ passes(b)).ok
        assert not compare(expected, fails(a) @ fails(b)).ok


def test_the_operands_of_half_precision_tasks_must_not_become_narrower() -> None:
    problem = Problem.load(find_task("matmul_bias_relu"), "ragged_float16")
    for battery in PROBES:
        drawn = probed(problem, battery)
        expected = problem.expect(drawn.inputs)
        x, weight, bias = drawn.inputs[0].float(), drawn.state["weight"].float(), drawn.state["bias"].float()
        assert compare(expected, torch.relu(x @ weight + bias).half()).ok
        result = compare(expected, torch.relu(to_bfloat16(x) @ to_bfloat16(weight) + bias).half())
        assert "your kernel computes in bfloat16 (8 bits), this task is float16 (11 bits)" in result.detail


WRITTEN = {
    "bmm": ("a, b: return torch.bmm(a, b)", "[torch.rand(3, 20, 40), torch.rand(3, 40, 30)]"),
    "transposed": ("a, b: return a.mT @ b.mT", "[torch.rand(40, 20), torch.rand(30, 40)]"),
    "einsum": ("a, b: return torch.einsum('bijl,lk->bijk', a, b)", "[torch.rand(2, 5, 6, 40), torch.rand(40, 30)]"),
    "a repeated operand": ("a, b: return a @ b", "[torch.rand(4, 20, 40), torch.rand(40, 30)]"),
    "a vector": ("a, b: return a @ b", "[torch.rand(64, 40), torch.rand(40)]"),
    "a slice": ("a, b: return a[:, 3:35] @ b", "[torch.rand(20, 40), torch.rand(32, 30)]"),
    "a convolution": (
        "a, b: return nn.functional.conv2d(a, b, padding=1)", "[torch.rand(2, 4, 12, 12), torch.rand(6, 4, 3, 3)]"),
    "a strided convolution": (
        "a, b: return nn.functional.conv1d(a, b, stride=2, groups=2)", "[torch.rand(2, 4, 40), torch.rand(6, 2, 3)]"),
    "a transposed convolution": (
        "a, b: return nn.functional.conv_transpose1d(a, b, stride=2)", "[torch.rand(2, 4, 19), torch.rand(4, 6, 3)]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_it_needs_no_help_to_find_the_operands(tmp_path: Path, name: str) -> None:
    forward, inputs = WRITTEN[name]
    arguments, _, body = forward.partition(":")
    source = f"class Model(nn.Module):\n    def forward(self, {arguments}):\n        {body}\n"
    problem = problem_of(tmp_path, f"{source}def get_inputs(): return {inputs}")
    for battery in PROBES:
        drawn = probed(problem, battery)
        assert drawn.regime.bits == 20
        expected = problem.expect(drawn.inputs)
        assert compare(expected, problem.native(drawn.inputs)).ok
        downgraded = problem.native(tuple(map(to_bfloat16, drawn.inputs)))
        assert "bfloat16" in compare(expected, downgraded).detail


LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(40, 30)
    def forward(self, x): return {}(self.linear(x))
def get_inputs(): return [torch.rand(20, 40)]
"""


def test_the_weights_of_a_layer_are_one_hot_in_the_drawn_state_and_its_bias_is_silent(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, LINEAR.format("torch.relu"))
    drawn = probed(problem, "one_hot_right")
    assert bool(((drawn.state["linear.weight"] != 0).sum(1) == 1).all())
    assert not bool(drawn.state["linear.bias"].any())
    assert "state:linear.weight" in drawn.blobs()
    own = problem.draw(7)
    assert own is not None
    assert bool((own.state["linear.weight"] != 0).all())
    result = judge(problem, drawn, torch.relu(drawn.inputs[0] @ drawn.state["linear.weight"].T), case="c", battery="b")
    assert result.ok  # although another draw came between
    again = problem.draw(7)
    assert again is not None
    assert torch.equal(again.state["linear.weight"], own.state["linear.weight"])


def test_what_follows_a_contraction_widens_the_gate_but_not_up_to_tf32(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, LINEAR.format("nn.functional.gelu"))
    for battery in PROBES:
        drawn = probed(problem, battery)
        assert drawn.regime.bits is None
        weight, bias = drawn.state["linear.weight"], drawn.state["linear.bias"]
        expected = problem.expect(drawn.inputs)
        assert compare(expected, nn_gelu(drawn.inputs[0] @ weight.T + bias)).ok
        assert not compare(expected, nn_gelu(to_tf32(drawn.inputs[0]) @ to_tf32(weight).T + bias)).ok


def nn_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.70710678))


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("x: return torch.softmax(x, -1)", "[torch.rand(20, 40)]"),
        ("x: return x @ x.mT", "[torch.rand(20, 40)]"),
        ("p, v: return p @ v", "[torch.rand(20, 40).softmax(-1), torch.rand(40, 8).cumsum(0)]"),
        ("n: return n * 2", "[torch.arange(20)]"),
    ],
)
def test_it_does_not_apply_where_no_operand_can_be_one_hot(tmp_path: Path, forward: str, inputs: str) -> None:
    arguments, _, body = forward.partition(":")
    source = f"class Model(nn.Module):\n    def forward(self, {arguments}):\n        {body}\n"
    problem = problem_of(tmp_path, f"{source}def get_inputs(): return {inputs}")
    assert [problem.draw(1, battery) for battery in PROBES] == [None, None]
    assert problem.draw(1) is not None


def test_a_narrow_accumulator_fails_on_whole_numbers_and_is_told_so(tmp_path: Path) -> None:
    problem = matmul(tmp_path, terms=1024, precision="tf32_ok")
    drawn = probed(problem, "integers")
    assert drawn.regime.exact_operands
    a, b = drawn.inputs
    total = torch.zeros(64, 96).half()
    for at in range(0, 1024, 16):
        total = (total.float() + a[:, at : at + 16] @ b[at : at + 16]).half()
    result = compare(problem.expect((a, b)), total.float())
    assert not result.ok
    assert "the accumulator is too narrow" in result.detail
    assert compare(problem.expect((a, b)), to_tf32(a) @ to_tf32(b)).error_ratio == 0


@pytest.mark.parametrize("draw", ["randn", "rand"])
@pytest.mark.parametrize("terms", [64, 512])
@pytest.mark.parametrize(("narrower", "name"), [(to_tf32, "TF32"), (to_bfloat16, "bfloat16")])
def test_the_arithmetic_is_named_on_the_task_s_own_inputs_too(
    tmp_path: Path, draw: str, terms: int, narrower: Callable[[Tensor], Tensor], name: str
) -> None:
    problem = matmul(tmp_path, terms=terms, draw=draw)
    a, b = probed(problem, "own").inputs
    result = compare(problem.expect((a, b)), narrower(a) @ narrower(b))
    assert not result.ok
    assert f"looks like {name}" in result.detail
