"""The tolerance lets honest arithmetic of the declared precision through and nothing else, and failures teach."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kerneltune.tools.judge.correctness import gates
from kerneltune.tools.judge.correctness.comparison import (
    WholeExpectation,
    compare,
    compare_drawn,
    judge,
    native_holds,
)
from kerneltune.tools.judge.correctness.gates import Expected
from kerneltune.tools.judge.correctness.problem import Problem, describe
from kerneltune.tools.judge.correctness.tree import Tree
from kerneltune.tools.schema.task import BATTERIES, PROBES, batteries_of
from kerneltune.tools.schema.verdict import LimitationKind
from kerneltune.tools.task.load import builtin_tasks, find_task, read_task
from tests.tools.tasks import honest

Kernel = Callable[..., Tree]
LOG2E = 1.4426950408889634


def pieces(x: Tensor, size: int, *, dim: int) -> list[Tensor]:
    """Consecutive slices; the last may be shorter."""
    return [x.narrow(dim, at, min(size, x.shape[dim] - at)) for at in range(0, x.shape[dim], size)]


def block_sum(x: Tensor, block: int = 64) -> Tensor:
    """Sum over the last dimension one block after another, as a looping kernel does: float32 all the way."""
    total = torch.zeros(x.shape[:-1])
    for part in pieces(x.float(), block, dim=-1):
        total = total + part.sum(-1)
    return total


def sequential_sum(x: Tensor) -> Tensor:
    """The noisiest honest order: one element after another."""
    return block_sum(x, block=1)


def online_softmax(x: Tensor, block: int = 128) -> Tensor:
    largest, total = torch.full(x.shape[:-1], -math.inf), torch.zeros(x.shape[:-1])
    for part in pieces(x.float(), block, dim=-1):
        new = torch.maximum(largest, part.amax(-1))
        total = total * torch.exp2((largest - new) * LOG2E) + torch.exp2((part - new[..., None]) * LOG2E).sum(-1)
        largest = new
    return (torch.exp2((x.float() - largest[..., None]) * LOG2E) / total[..., None]).to(x.dtype)


def layer_norm(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    mean = block_sum(x) / x.shape[-1]
    centred = x.float() - mean[..., None]
    scale = (block_sum(centred * centred) / x.shape[-1] + 1e-5).rsqrt()
    return (centred * scale[..., None] * weight.float() + bias.float()).to(x.dtype)


def rms_norm(x: Tensor, *, weight: Tensor) -> Tensor:
    scale = (block_sum(x.float() ** 2) / x.shape[-1] + 1e-6).rsqrt()
    return (x.float() * scale[..., None] * weight.float()).to(x.dtype)


def gelu_bias(x: Tensor, *, bias: Tensor) -> Tensor:
    z = x.float() + bias.float()
    return (0.5 * z * (1 + torch.erf(z * 0.70710678))).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    g = gate.float()
    return (g / (1 + torch.exp2(-g * LOG2E)) * up.float()).to(gate.dtype)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    largest = logits.amax(-1)
    total = block_sum(torch.exp(logits - largest[:, None]))
    return torch.log(total) + largest - logits.gather(1, target[:, None])[:, 0]


def matmul_bias_relu(x: Tensor, *, weight: Tensor, bias: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0], weight.shape[1])
    for a, b in zip(pieces(x.float(), 32, dim=1), pieces(weight.float(), 32, dim=0), strict=True):
        total = total + a @ b
    return torch.relu(total + bias.float()).to(x.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def rotate(x: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos.float() - b * sin.float(), b * cos.float() + a * sin.float()), -1).to(x.dtype)

    return rotate(q), rotate(k)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores in float32, probabilities rounded to the storage format before the second product, as on tensor cores."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(mask, -math.inf)
    weights = torch.exp2((scores - scores.amax(-1, keepdim=True)) * LOG2E)
    products = weights.to(v.dtype).float() @ v.float()
    return (products / weights.sum(-1, keepdim=True)).to(q.dtype)


HONEST: dict[str, Kernel] = {
    "softmax": online_softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "gelu_bias": gelu_bias,
    "swiglu": swiglu,
    "cross_entropy": cross_entropy,
    "matmul_bias_relu": matmul_bias_relu,
    "rope": rope,
    "row_sum": sequential_sum,
    "causal_attention": causal_attention,
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes_every_case_and_battery(name: str) -> None:
    task = find_task(name)
    spec = describe(task)
    here = replace(spec, cases=tuple(c for c in spec.cases if c.runs_on_cpu))
    for case in here.cases:
        problem = Problem.load(task, case.name)
        for seed, battery in enumerate(batteries_of(here, case.name, "confirmed")):
            if (drawn := problem.draw(seed, battery)) is None:
                continue
            result = compare(problem.expect(drawn.inputs), HONEST[name](*drawn.inputs, **drawn.state))
            assert result.ok, (case.name, battery, result)
            assert result.error_ratio < 0.7, (case.name, battery, result)


def test_there_is_an_honest_kernel_for_every_built_in_task() -> None:
    assert sorted({*HONEST, *honest.HONEST}) == [task.name for task in builtin_tasks()]


LINEAR = """
import torch
K = 1024
class Model(torch.nn.Module):
    def forward(self, a, b): return a @ b
def get_inputs(): return [torch.DRAW(64, K), torch.DRAW(K, 96)]
"""


def linear(folder: Path, draw: str = "randn", precision: str = "float32") -> Problem:
    path = folder / "linear.py"
    path.write_text(LINEAR.replace("DRAW", draw) + f"PRECISION = {precision!r}\n")
    return Problem.load(read_task(path))


def to_tf32(x: Tensor) -> Tensor:
    """Round to 10 bits of mantissa."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def sequential_matmul(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def three_tf32(a: Tensor, b: Tensor) -> Tensor:
    a_high, b_high = to_tf32(a), to_tf32(b)
    return (to_tf32(a - a_high) @ b_high + a_high @ to_tf32(b - b_high)) + a_high @ b_high


@pytest.mark.parametrize("draw", ["randn", "rand"])
def test_float32_matmul_in_any_honest_order_passes_and_tf32_or_bfloat16_does_not(tmp_path: Path, draw: str) -> None:
    problem = linear(tmp_path, draw)
    inputs = problem.inputs(5)
    assert inputs is not None
    a, b = inputs
    expected = problem.expect(inputs)
    assert compare(expected, sequential_matmul(a, b)).ok
    assert compare(expected, three_tf32(a, b)).ok
    downgraded = compare(expected, to_tf32(a) @ to_tf32(b))
    assert not downgraded.ok
    assert not compare(expected, (a.bfloat16().float() @ b.bfloat16().float())).ok
    if draw == "randn":
        assert "looks like TF32" in downgraded.detail
        assert downgraded.error_ratio > 10


SCORES = """
import torch
PRECISION = "float32"
class Model(torch.nn.Module):
    def forward(self, q, k, v): return torch.softmax((q / 32) @ k.mT, -1) @ v
def get_inputs(): return [torch.randn(128, 1024) for _ in range(3)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(("matmul", "fits"), [(sequential_matmul, True), (lambda a, b: to_tf32(a) @ to_tf32(b), False)])
def test_sums_of_equal_terms_may_be_as_imprecise_as_adding_them_in_turn_is(
    tmp_path: Path, matmul: Callable[[Tensor, Tensor], Tensor], fits: bool
) -> None:
    (tmp_path / "scores.py").write_text(SCORES)
    problem = Problem.load(read_task(tmp_path / "scores.py"))
    for seed in range(6):
        drawn = problem.draw(seed, "structure")
        assert drawn is not None
        q, k, v = drawn.inputs
        got = torch.softmax(matmul(q / 32, k.mT.contiguous()), -1) @ v
        assert judge(problem, drawn, got, case="main", battery="structure").ok is fits


def test_tf32_passes_where_the_task_allows_it(tmp_path: Path) -> None:
    problem = linear(tmp_path, precision="tf32_ok")
    a, b = problem.inputs(5) or ()
    expected = problem.expect((a, b))
    assert compare(expected, to_tf32(a) @ to_tf32(b)).ok
    assert not compare(expected, a.bfloat16().float() @ b.bfloat16().float()).ok


def test_float8_operands_do_not_pass_for_bfloat16(tmp_path: Path) -> None:
    task = find_task("matmul_bias_relu")
    problem = Problem.load(task, "small")
    drawn = problem.draw(3)
    assert drawn is not None
    weight = drawn.state["weight"].to(torch.float8_e4m3fn).float()
    x = drawn.inputs[0].to(torch.float8_e4m3fn).float()
    assert not compare(problem.expect(drawn.inputs), matmul_bias_relu(x, weight=weight, bias=drawn.state["bias"])
                       .bfloat16()).ok  # fmt: skip


@pytest.mark.parametrize("draw", ["randn", "rand"])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float8_e4m3fn, "e4m3"), (torch.float8_e5m2, "e5m2")])
def test_a_product_of_float8_operands_is_called_one(tmp_path: Path, draw: str, dtype: torch.dtype, name: str) -> None:
    problem = linear(tmp_path, draw)
    drawn = problem.draw(5)
    assert drawn is not None
    a, b = (t.to(dtype).float() for t in drawn.inputs)
    assert f"looks like float8 operands ({name}" in compare(problem.expect(drawn.inputs), a @ b).detail
    probe = problem.draw(5, "one_hot_left")
    assert probe is not None
    a, b = (t.to(dtype).float() for t in probe.inputs)
    result = compare(problem.expect(probe.inputs), a @ b)
    assert f"your kernel computes in float8 {name}" in result.detail


def test_a_divisor_that_is_too_large_is_not_called_an_arithmetic() -> None:
    problem = Problem.load(find_task("softmax"), "narrow")
    drawn = problem.draw(1)
    assert drawn is not None
    powers = torch.exp(drawn.inputs[0] - drawn.inputs[0].amax(-1, keepdim=True))
    detail = compare(problem.expect(drawn.inputs), powers / (powers.sum(-1, keepdim=True) + 1)).detail
    assert "nearly all are too small: check what they are divided by" in detail
    assert "looks like" not in detail


def test_the_tanh_form_of_gelu_is_not_the_exact_one() -> None:
    problem = Problem.load(find_task("gelu_bias"), "ragged")
    drawn = problem.draw(1)
    assert drawn is not None
    z = drawn.inputs[0] + drawn.state["bias"]
    assert not compare(problem.expect(drawn.inputs), torch.nn.functional.gelu(z, approximate="tanh")).ok


def test_softmax_without_subtracting_the_maximum_fails_on_scaled_inputs() -> None:
    problem = Problem.load(find_task("softmax"), "ragged")
    drawn = problem.draw(1, "scaled")
    assert drawn is not None
    naive = torch.exp(drawn.inputs[0])
    result = compare(problem.expect(drawn.inputs), naive / naive.sum(-1, keepdim=True))
    assert not result.ok
    assert "NaN" in result.detail


def expected_of(values: Tensor, *, dtype: torch.dtype = torch.float32, precision: str = "float32") -> Expected:
    exact = values.double() if values.is_floating_point() else values
    return Expected(exact, values.to(dtype) if values.is_floating_point() else values, precision, 8)


VALUES = torch.randn(40, 100, generator=torch.Generator().manual_seed(1)) + 3


def changed(change: Callable[[Tensor], object]) -> Tensor:
    result = VALUES.clone()
    change(result)
    return result


@pytest.mark.parametrize(
    ("actual", "hint"),
    [
        (torch.full_like(VALUES, math.nan), "all NaN"),
        (torch.zeros_like(VALUES), "the output is all zeros"),
        (torch.ones_like(VALUES), "the output is 1 everywhere"),
        (changed(lambda t: t[:, 96:].zero_()), "only columns 96..99 are wrong, the tail of each row; check the mask"),
        (changed(lambda t: t[32:].zero_()), "only rows 32..39 are wrong"),
        (changed(lambda t: t[7].zero_()), "1 of 40 rows are wrong throughout, the first is row 7"),
        (changed(lambda t: t[3, 5].fill_(math.nan)), "1 of them are NaN"),
        (VALUES * 2, "every element is 2 times the right value"),
        (VALUES + 7, "every element is off by 7"),
        (VALUES.bfloat16().float(), "looks like bfloat16"),
    ],
)
def test_a_failure_names_the_pattern(actual: Tensor, hint: str) -> None:
    result = compare(expected_of(VALUES), actual)
    assert not result.ok
    assert hint in result.detail


def test_a_failure_shows_the_worst_element() -> None:
    result = compare(expected_of(VALUES), changed(lambda t: t[3, 5].fill_(1000.0)))
    assert result.detail.startswith("1 of 4000 elements wrong (0.025 %); worst at [3, 5]: expected ")
    assert "got 1000" in result.detail
    assert result.error_ratio > 1
    assert result.max_abs_error == pytest.approx(1000 - float(VALUES[3, 5]))


def test_a_transposed_square_is_recognised() -> None:
    square = VALUES[:40, :40].contiguous()
    assert "transposed" in compare(expected_of(square), square.T.contiguous()).detail


def test_what_was_never_written_is_told_from_what_is_wrong() -> None:
    poison = torch.full_like(VALUES, -1e30)
    actual = VALUES.clone()
    actual[:, 64:] = poison[:, 64:]
    detail = compare(expected_of(VALUES), actual, poison=poison).detail
    assert "100 % of the wrong elements were never written: only columns 64..99" in detail


@pytest.mark.parametrize(
    ("actual", "detail"),
    [
        (VALUES[:1], "expected a float32 tensor of shape (40, 100), got a float32 tensor of shape (1, 100)"),
        (VALUES.double(), "got a float64 tensor"),
        ((VALUES,), "expected a float32 tensor of shape (40, 100), got a tuple of 1"),
        ({"y": VALUES}, "got a dict with keys y"),
        (None, "got None"),
    ],
)
def test_structure_shape_and_dtype_must_be_exact(actual: Tree, detail: str) -> None:
    result = compare(expected_of(VALUES), actual)
    assert not result.ok
    assert result.error_ratio == math.inf
    assert detail in result.detail


def test_infinities_and_nans_must_be_where_the_reference_has_them() -> None:
    values = VALUES.clone()
    values[0, 0], values[1, 1], values[2, 2] = math.nan, math.inf, -math.inf
    expected = expected_of(values)
    assert compare(expected, values.clone()).ok
    flipped = values.clone()
    flipped[1, 1] = -math.inf
    assert not compare(expected, flipped).ok
    assert not compare(expected, torch.nan_to_num(values)).ok


def test_one_wrong_element_of_a_million_fails() -> None:
    values = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(1))
    actual = values.clone()
    actual[999, 999] += 1e-3
    assert not compare(expected_of(values), actual).ok


def test_integers_must_be_exact() -> None:
    values = torch.arange(100).reshape(10, 10)
    assert compare(expected_of(values), values.clone()).ok
    result = compare(expected_of(values), values + (values == 42))
    assert not result.ok
    assert "worst at [4, 2]: expected 42, got 43" in result.detail


def test_each_of_several_outputs_is_named() -> None:
    both = (VALUES, VALUES[0])
    expected = Expected(tuple(t.double() for t in both), both, "float32", 8)
    assert compare(expected, [VALUES.clone(), VALUES[0].clone()]).ok
    assert compare(expected, (VALUES, VALUES[1])).detail.startswith("output 1: ")


def test_an_empty_output_and_a_single_number_can_be_compared() -> None:
    assert compare(expected_of(torch.empty(0, 5)), torch.empty(0, 5)).ok
    assert compare(expected_of(torch.tensor(2.5)), torch.tensor(2.5)).ok
    assert not compare(expected_of(torch.tensor(2.5)), torch.tensor(2.6)).ok


def test_a_tile_that_is_imprecise_fails_although_its_rows_pass() -> None:
    values = torch.randn(256, 8192, generator=torch.Generator().manual_seed(1))
    signs = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).sign()
    actual = values.clone()
    actual[64:128, 640:704] += 9e-7 * signs
    result = compare(expected_of(values), actual)
    assert not result.ok
    assert "too imprecise in 1 of 512 tiles of 64 x 64, the first at rows 64.. and columns 640.." in result.detail
    actual[64:128, 640:704] = values[64:128, 640:704] + 4e-7 * signs
    assert compare(expected_of(values), actual).ok


def test_errors_that_lean_to_one_side_are_remarked_on_and_pass() -> None:
    values = torch.randn(200, 1000, generator=torch.Generator().manual_seed(1)).double()
    shrunk = (values * (1 - 2.0**-23)).float()
    expected = Expected(values, values.float(), "float32", 1000)
    result = compare(expected, shrunk)
    assert result.ok
    assert "errors lean towards zero" in result.detail
    assert compare(expected, values.float()).detail == ""


def test_minus_zero_is_zero_and_a_fully_masked_row_may_be_nan() -> None:
    values = VALUES.clone()
    values[0] = 0.0
    values[1] = math.nan
    actual = values.clone()
    actual[0] = -0.0
    assert compare(expected_of(values), actual).ok
    assert not compare(expected_of(values), torch.nan_to_num(actual)).ok


def test_flushing_denormals_is_allowed_as_far_as_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "scale.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x * 2.0**60\n"
        "def get_inputs(): return [torch.randn(64, 640)]\nPRECISION = 'float32'\n"
    )
    problem = Problem.load(read_task(path))
    drawn = problem.draw(1, "tiny")
    assert drawn is not None
    x = drawn.inputs[0]
    flushed = torch.where(x.abs() < torch.finfo(torch.float32).tiny, 0.0, x)
    assert not torch.equal(flushed, x)
    expected = problem.expect((x,))
    assert compare(expected, flushed * 2.0**60).ok
    assert not compare(expected, torch.zeros_like(x)).ok


ONE_PASS = {
    "two passes": lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1),
    "one pass": lambda x: (x * x).mean(-1) - x.mean(-1) ** 2,
}


@pytest.mark.parametrize("passes", ONE_PASS)
def test_a_variance_in_one_pass_fails_on_a_common_offset(tmp_path: Path, passes: str) -> None:
    path = tmp_path / "variance.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.var(-1, correction=0)\n"
        "def get_inputs(): return [torch.randn(64, 1000)]\nPRECISION = 'float32'\n"
    )
    problem = Problem.load(read_task(path))
    verdicts = {}
    for battery in ("own", "offset"):
        drawn = problem.draw(1, battery)
        assert drawn is not None
        verdicts[battery] = compare(problem.expect(drawn.inputs), ONE_PASS[passes](drawn.inputs[0])).ok
    assert verdicts == {"own": True, "offset": passes == "two passes"}


def test_a_kernel_may_flush_an_intermediate_that_a_large_input_multiplies(tmp_path: Path) -> None:
    path = tmp_path / "gradient.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, g, x):\n"
        "        y = torch.softmax(x, -1)\n        return y * (g - (y * g).sum(-1, keepdim=True))\n"
        "def get_inputs(): return [torch.randn(63, 129), torch.randn(63, 129)]\nPRECISION = 'float32'\n"
    )
    problem = Problem.load(read_task(path))
    gradient, x = torch.randn(63, 129), torch.full((63, 129), -300.0)
    x[:, 0], gradient[:, 0] = 0.0, 1000.0  # y is one there, and the answer elsewhere is a thousand times y
    x[:, 1:9] = torch.linspace(-92, -80, 8)
    expected = problem.expect((gradient, x))
    for least, fits in ((2.0**-126, True), (2.0**-100, False)):  # tl.exp2's, and one that drops what float32 holds
        y = torch.softmax(x, -1)
        y = torch.where(y < least, 0.0, y)
        got = y * gradient - y * (y * gradient).sum(-1, keepdim=True)
        assert compare(expected, got).ok is fits


def test_trees_of_numbers_integers_empty_and_zero_dimensional_outputs_are_compared_leaf_by_leaf() -> None:
    values = {"y": VALUES, "n": torch.tensor(3), "none": None, "pair": [torch.empty(0, 4), 2.5], "flag": True}
    expected = Expected(
        {**values, "y": VALUES.double()}, values, "float32", 8,
    )  # fmt: skip
    assert compare(expected, dict(values)).ok
    for key, wrong in (("n", torch.tensor(4)), ("none", 0), ("pair", [torch.empty(0, 5), 2.5]), ("flag", False)):
        assert not compare(expected, {**values, key: wrong}).ok


@pytest.mark.parametrize(("precision", "fits"), [("tf32_ok", True), ("float32", False)])
def test_a_single_truncated_term_in_a_row_fits_where_operands_may_be_tf32(precision: str, fits: bool) -> None:
    row = torch.zeros(1, 64, dtype=torch.float64)
    row[0, 5] = 1.3
    expected = Expected(row, row.float(), precision, 64, one_hot=True)
    assert compare(expected, (row * (1 - 1.2 * 2.0**-10)).float()).ok is fits


@pytest.mark.parametrize(("shape", "fits"), [((1,), True), ((64, 1024), False)])
def test_a_small_output_may_be_a_sum_over_everything_and_a_large_one_beside_it_is_not(
    shape: tuple[int, ...], fits: bool
) -> None:
    exact = torch.rand(shape, dtype=torch.float64) + 1
    expected = Expected(exact, exact.float(), "float32", 1024, read=64 * 1024 * 32)
    assert compare(expected, (exact * (1 + 2.0**-13)).float()).ok is fits


def test_noise_that_a_few_samples_found_too_low_is_lifted_to_what_is_typical_in_its_row() -> None:
    values = torch.full((4, 64), 1e-3, dtype=torch.float64)
    noise = torch.full((4, 64), 40.0, dtype=torch.float64)
    noise[2, 5] = 1.0
    got = values.float()
    got[2, 5] += 100 * 2.0**-24  # two and a half of the noise that its neighbours have
    expected = replace(expected_of(values), noise=noise)
    assert compare(expected, got).ok
    alone = replace(expected, noise=torch.ones_like(noise))
    assert not compare(alone, got).ok


def test_an_answer_for_many_comparisons_says_of_each_what_a_fresh_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "CHUNK", 1 << 13)  # two blocks of 64 rows
    values = torch.randn(128, 100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact = {"small": values * 1e-3, "large": values * 1e3}
    noise = {name: 2.0 ** torch.arange(128.0, dtype=torch.float64)[:, None].expand(128, 100) for name in exact}
    native = {name: answer.float() for name, answer in exact.items()}
    kept = WholeExpectation(Expected(exact, native, "float32", 8, noise)).for_many().expected
    for change in (0.0, 1e-6, 1e-3, 0.0, math.inf, math.nan):
        for name in exact:
            got = {**native, name: (exact[name] + change).float()}
            assert compare(kept, got) == compare(Expected(exact, native, "float32", 8, noise), got)
    assert kept.kept is not None
    assert {name: len(blocks) for name, blocks in kept.kept.items()} == {"small": 2, "large": 2}


def test_one_element_that_cancels_widens_no_other_of_its_row() -> None:
    values = torch.full((4, 64), 1e-3, dtype=torch.float64)
    noise = torch.full((4, 64), 1e-3, dtype=torch.float64)
    noise[2, 5] = 1e6
    got = values.float()
    got[2, 6] += 100 * 2.0**-24
    assert not compare(replace(expected_of(values), noise=noise), got).ok


GROUP_NORM = """
import torch
PRECISION = "float32"
class Model(torch.nn.Module):
    def forward(self, x): return torch.nn.functional.group_norm(x, 2)
def get_inputs(): return [torch.randn(2, 32, 128, 32)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(("rounding", "fits"), [(torch.Tensor.float, True), (torch.Tensor.half, False)])
def test_a_sum_over_more_than_the_last_dimension_may_be_as_imprecise_as_a_warp_adds_it_up(
    tmp_path: Path, rounding: Callable[[Tensor], Tensor], fits: bool
) -> None:
    (tmp_path / "group.py").write_text(GROUP_NORM)
    problem = Problem.load(read_task(tmp_path / "group.py"))
    drawn = problem.draw(0, "scaled")
    assert drawn is not None
    groups = drawn.inputs[0].reshape(4, -1, 32)
    mean = sequential_sum(groups.mT).sum(-1) / groups[0].numel()
    centred = groups - mean[:, None, None]
    variance = sequential_sum(centred.square().mT).sum(-1) / groups[0].numel()
    got = rounding(centred * (variance + 1e-5).rsqrt()[:, None, None]).float().reshape(2, 32, 128, 32)
    assert compare(problem.expect(drawn.inputs), got).ok is fits


GELU = """
import torch
PRECISION = "float32"
class Model(torch.nn.Module):
    def forward(self, x): return torch.nn.functional.gelu(x)
def get_inputs(): return [torch.randn(8, 64)]
def get_init_inputs(): return []
"""


def test_a_kernel_may_be_right_where_float64_loses_the_answer_beside_one(tmp_path: Path) -> None:
    (tmp_path / "gelu.py").write_text(GELU)
    problem = Problem.load(read_task(tmp_path / "gelu.py"))
    x = torch.full((8, 64), 90.0)
    x[:, ::2] = -9.0  # 1 + erf(-6.4) is 0 in float64, and erfc(6.4) is 1e-19
    x[7] = -9.0
    expected = problem.expect((x,))
    assert float(expected.values[0, 0]) == 0
    got = 0.5 * x * torch.special.erfc(-x * 0.5**0.5)
    assert float(got[0, 0]) < 0
    assert compare(expected, got).ok
    assert not compare(expected, got - 1e-11).ok
    x[:, ::2] = -4.5
    assert not compare(problem.expect((x,)), torch.where(x < 0, 0.0, x), battery="scaled").ok


POINTWISE = """
import torch
from torch import nn
from torch.nn import functional as F
PRECISION = "float32"
class Model(nn.Module):
    def forward(self, x): return FORMULA
def get_inputs(): return [torch.randn(9, 47)]
def get_init_inputs(): return []
"""


def by_exp(x: Tensor) -> Tensor:
    return 1 - 2 / (torch.exp(2 * x) + 1)


def log_of_one_plus_exp(x: Tensor) -> Tensor:
    return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))


AS_DOCUMENTED: dict[str, tuple[Kernel, Kernel]] = {  # as PyTorch's documentation writes it, and what is not the same
    "F.gelu(x)": (lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)), lambda x: functional.gelu(x, approximate="tanh")),
    "F.gelu(x, approximate='tanh')": (
        lambda x: 0.5 * x * (1 + by_exp(0.7978845608 * (x + 0.044715 * x * x * x))),
        lambda x: x * torch.sigmoid(1.702 * x),
    ),
    "F.elu(x)": (lambda x: torch.where(x > 0, x, torch.exp(x) - 1), lambda x: torch.where(x > 0, x, x.clamp_min(-1))),
    "F.elu(x, inplace=True)": (lambda x: torch.where(x > 0, x, torch.exp(x) - 1), torch.relu),
    "F.celu(x, 1.5)": (lambda x: torch.where(x > 0, x, 1.5 * (torch.exp(x / 1.5) - 1)), functional.elu),
    "torch.tanh(x)": (lambda x: 2 * torch.sigmoid(2 * x) - 1, lambda x: torch.tanh(x.half()).float()),
    "F.softplus(x)": (log_of_one_plus_exp, torch.relu),
    "F.mish(x)": (lambda x: x * by_exp(log_of_one_plus_exp(x)), functional.silu),
    "F.logsigmoid(x)": (lambda x: x.clamp_max(0) - torch.log(1 + torch.exp(-x.abs())), lambda x: x.clamp_max(0)),
}


@pytest.mark.parametrize("formula", AS_DOCUMENTED)
def test_what_a_single_operation_hides_beside_one_may_be_lost_as_in_its_documented_formula(
    tmp_path: Path, formula: str
) -> None:
    (tmp_path / "pointwise.py").write_text(POINTWISE.replace("FORMULA", formula))
    honest_kernel, another = AS_DOCUMENTED[formula]
    problem = Problem.load(read_task(tmp_path / "pointwise.py"))
    told = []
    for seed, battery in enumerate(BATTERIES):
        if battery in PROBES or (drawn := problem.draw(seed, battery)) is None:
            continue
        expected = problem.expect(drawn.inputs)
        result = compare(expected, honest_kernel(drawn.inputs[0].clone()))
        assert result.ok, (battery, result)
        assert result.error_ratio < 0.5, (battery, result)
        told.append(compare(expected, another(drawn.inputs[0].clone())).ok)
    assert not told[BATTERIES.index("own")]


def test_a_gelu_that_loses_its_tail_beside_one_is_right_where_torchs_own_does_not_lose_it(tmp_path: Path) -> None:
    (tmp_path / "gelu.py").write_text(GELU)
    problem = Problem.load(read_task(tmp_path / "gelu.py"))
    x = torch.full((8, 64), -5.42216)
    expected = problem.expect((x,))
    got = 0.5 * x * (1 + torch.erf(x * 0.5**0.5))
    assert float(got[0, 0]) == 0
    assert float((functional.gelu(x) - expected.values).abs().max()) < 2e-9 < 1.5e-7 < -float(expected.values[0, 0])
    assert compare(expected, got).ok
    assert not compare(expected, got - 1e-5).ok


GROUP_NORM_OF_TWO = """
import torch
PRECISION = "float32"
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1024, 1024)
    def forward(self, x): return torch.nn.functional.group_norm(self.linear(x), 512)
def get_inputs(): return [torch.randn(512, 1024)]
def get_init_inputs(): return []
"""


def test_huge_inputs_are_left_out_where_the_reference_itself_is_beyond_the_tolerance(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(GROUP_NORM_OF_TWO)
    problem = Problem.load(read_task(tmp_path / "two.py"))
    inputs = problem.inputs(1, "huge")
    assert inputs is not None
    assert not native_holds(problem.expect(inputs))
    assert problem.draw(1, "huge") is None
    assert native_holds(problem.expect(problem.inputs(1) or ()))


WIDE_HEADS = """
import torch
from torch import nn
INPUTS = {"q": "any", "k": "any", "v": "any"}
class Model(nn.Module):
    def forward(self, q, k, v): return nn.functional.scaled_dot_product_attention(q, k, v)
def get_inputs(): return [torch.rand(2, 8, 32, 1024) for _ in range(3)]
def get_init_inputs(): return []
"""


def by_pieces(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose operands are scaled, as TorchInductor's are, and whose products are sums of sums."""
    scale = q.shape[-1] ** -0.25
    pairs = zip(pieces(q * scale, 32, dim=-1), pieces(k * scale, 32, dim=-1), strict=True)
    return torch.softmax(torch.stack([a @ b.mT for a, b in pairs]).sum(0), -1) @ v


def test_a_miss_where_torch_misses_by_as_much_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "attention.py").write_text(WIDE_HEADS)
    problem = Problem.load(read_task(tmp_path / "attention.py"))
    for battery in ("own", "offset", "scaled", "spikes", "structure", "integers"):
        for seed in range(2):
            drawn = problem.draw(seed, battery)
            assert drawn is not None
            assert judge(problem, drawn, by_pieces(*drawn.inputs), case="main", battery=battery).ok, (battery, seed)
    drawn = problem.draw(1, "offset")
    assert drawn is not None
    right = judge(problem, drawn, by_pieces(*drawn.inputs), case="main", battery="offset")
    assert [limitation.kind for limitation in right.limitations] == [LimitationKind.NATIVE_MISSES]
    far = by_pieces(*drawn.inputs) + 100.0
    assert not judge(problem, drawn, far, case="main", battery="offset").ok
    assert not judge(problem, drawn, torch.full_like(far, torch.nan), case="main", battery="offset").ok


def the_first_value(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v[..., :1, :].expand_as(q).contiguous()


def the_mean_of_the_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.mean(-2, keepdim=True).expand_as(q).contiguous()


def in_eight_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).float()


@pytest.mark.parametrize("wrong", [the_first_value, the_mean_of_the_values, in_eight_bits])
def test_where_torch_misses_in_a_few_rows_missing_by_as_much_in_all_is_no_excuse(
    tmp_path: Path, wrong: Callable[..., Tensor]
) -> None:
    (tmp_path / "attention.py").write_text(WIDE_HEADS)
    problem = Problem.load(read_task(tmp_path / "attention.py"))
    drawn = problem.draw(1, "offset")
    assert drawn is not None
    expected, actual = problem.expect(drawn.inputs), wrong(*drawn.inputs)
    right = by_pieces(*drawn.inputs)
    worst = [compare(expected, t, battery="offset").max_abs_error for t in (expected.native, right, actual)]
    assert worst[2] < 4 * worst[0]
    assert not judge(problem, drawn, actual, case="main", battery="offset").ok


def excuse(expected: Expected, actual: Tree, battery: str = "offset") -> bool:
    """Whether a miss is let pass."""
    assert not compare(expected, actual, battery=battery).ok
    return compare_drawn(expected, actual, battery=battery).ok


def with_changes(tensor: Tensor, changes: dict[tuple[int, int], float]) -> Tensor:
    """The tensor as float32 with other elements."""
    changed = tensor.float()
    for place, value in changes.items():
        changed[place] = value
    return changed


def test_a_miss_on_the_tasks_own_inputs_is_never_excused() -> None:
    exact = torch.full((16, 64), 1.0, dtype=torch.float64)
    expected = Expected(exact, with_changes(exact, {(1, 2): 2.0}), "float32", 1)
    near = with_changes(exact, {(3, 4): 3.0})
    assert {name: excuse(expected, near, name) for name in ("own", "one_hot_left", "offset", "huge")} == {
        "own": False,
        "one_hot_left": False,
        "offset": True,
        "huge": True,
    }
    assert not excuse(expected, with_changes(exact, {(3, 4): 6.0}))  # too far off
    assert not excuse(expected, with_changes(exact, {(row, 4): 2.0 for row in range(6)}))  # in too many rows


def test_where_torch_misses_everywhere_missing_by_more_is_no_excuse() -> None:
    """What it misses is allowed for already, row by row."""
    exact = torch.full((16, 64), 1.0, dtype=torch.float64)
    expected = Expected(exact, exact.float() + 0.1, "float32", 1)
    assert compare(expected, exact.float() + 0.19, battery="offset").ok
    assert not excuse(expected, exact.float() + 0.3)


def test_what_torch_misses_in_one_output_excuses_no_other() -> None:
    exact = torch.full((16, 64), 1.0, dtype=torch.float64)
    native = with_changes(exact, {(1, 2): 1e6})
    expected = Expected((exact, exact), (native, exact.float()), "float32", 1)
    off = with_changes(exact, {(3, 4): 3.0})
    assert excuse(expected, (off, exact.float()))
    assert not excuse(expected, (exact.float(), off))
    assert not excuse(expected, (off, off))
    assert not excuse(expected, (exact.float(),))


def test_an_index_that_torch_misses_excuses_as_many_and_not_all() -> None:
    exact = torch.arange(64)
    native = exact.clone()
    native[1] = 60
    expected = Expected(exact, native, "float32", 1)
    other = exact.clone()
    other[2] = 9
    assert excuse(expected, other)
    assert not excuse(expected, torch.zeros_like(exact))


def test_of_many_rows_a_rare_one_may_miss_its_estimated_budget_by_a_little() -> None:
    values = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(1)) + 3

    def ok(rows: int, times: float, of: int = 20_000) -> bool:
        expected = expected_of(values[:of])
        step = 1e-5  # in every element of a row, whose root mean square is judged
        row = values[:1].clone() * (1 + step)
        once = compare(expected_of(values[:1]), row).error_ratio
        got = values[:of].clone()
        got[:rows] *= 1 + step * times / once
        return compare(expected, got).ok

    assert ok(2, 1.5)
    assert not ok(3, 1.5)
    assert not ok(2, 2.5)
    assert not ok(1, 1.5, of=8000)


AFFINE_SOFTMAX = """
import torch
from torch import nn
INPUTS = {"x": "any"}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(256)), nn.Parameter(torch.randn(256))
    def forward(self, x): return torch.softmax(self.scale * x + self.shift, 1)
def get_inputs(): return [torch.rand(64, 256) * 20]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("battery", ["own", "scaled"])
def test_a_softmax_may_work_its_argument_out_twice_and_contract_the_second(tmp_path: Path, battery: str) -> None:
    (tmp_path / "affine.py").write_text(AFFINE_SOFTMAX)
    problem = Problem.load(read_task(tmp_path / "affine.py"))
    drawn = problem.draw(0, battery)
    assert drawn is not None
    x, scale, shift = drawn.inputs[0], drawn.state["scale"], drawn.state["shift"]
    stored = x * scale + shift
    largest = stored.amax(1, keepdim=True)
    contracted = (x.double() * scale.double() + shift.double() - largest.double()).float()  # of one rounding

    def off(by: float) -> bool:
        got = torch.exp(contracted * (1 + by)) / torch.exp(stored - largest).sum(1, keepdim=True)
        return judge(problem, drawn, got, case="main", battery=battery).ok

    assert off(0.0)
    assert not off(2.0**-11)  # as TF32 or half would be
