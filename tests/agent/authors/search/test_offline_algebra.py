"""Rewrites of formulas: the rewritten graph's numbers in float64, and kernels that come of it."""

import contextlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from kerneltune.agent.authors.search import algebra
from kerneltune.agent.authors.search.author import OfflineAuthor, through
from kerneltune.agent.commands.session import Lowering
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.sandbox.workers import started_base
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.task.load import read_task
from tests import shared_fork_server
from tests.agent.authors.search.offline_bench import checked, run

Forward = Callable[..., torch.Tensor]
OUTPUTS, ROWS = "over a product's outputs", "over a product's rows"
POSITIONS, ONE = "over a convolution's positions", "reduction of one element"


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def after(
    forward: Forward, *args: torch.Tensor, sizes: Literal["real", "symbolic"] = "real"
) -> tuple[list[str], torch.fx.GraphModule]:
    """The rewrites' names, and the graph that they leave. `sizes`: "symbolic" for a graph of any sizes."""

    def trace(function: Forward) -> torch.fx.GraphModule:
        with warnings.catch_warnings(action="ignore"):
            table = select_decomp_table()
            made: torch.fx.GraphModule = make_fx(function, decomposition_table=table, tracing_mode=sizes)(*args)
        return made

    plain = trace(forward)
    graph, names = algebra.rewritten(plain, trace)
    assert bool(names) == bool(algebra.allowed(plain))
    return names, graph


def operators(graph: torch.fx.GraphModule) -> str:
    return " ".join(str(node.target) for node in graph.graph.nodes if node.op == "call_function")


X, W, B = seeded(4, 5), seeded(6, 5), seeded(6)
X3 = seeded(3, 4, 5)
LINEAR: dict[str, tuple[Forward, tuple[torch.Tensor, ...], list[str]]] = {
    "divided": (lambda x, w: ((x @ w.T) / 2).sum(1, keepdim=True) * 1.5, (X, W), [f"sum {OUTPUTS}"]),
    "all": (lambda x, w, b: functional.linear(x, w, b).sum(), (X, W, B), [f"sum {OUTPUTS}"]),
    "minus": (lambda x, w, b, s: (s - functional.linear(x, w, b)).mean(1), (X, W, B, seeded(6)), [f"mean {OUTPUTS}"]),
    "residual": (lambda x, w, r: (x @ w.T * 3 + r).sum(1), (X, W, seeded(4, 6)), [f"sum {OUTPUTS}"]),
    "layers": (lambda x, w, b: functional.linear(x, w, b).mean(-1), (X3, W, B), [f"mean {OUTPUTS}"]),
    "times": (lambda x, w, b: functional.linear(x, w, b).mean(1), (X3, W, B), [f"mean {ROWS}"]),
    "scaled": (lambda x, w, b: (functional.linear(x, w, b) * b + 7).sum(1), (X3, W, B), [f"sum {ROWS}"]),
    "twice": (lambda x, w: (x @ w.T).sum(0).sum(0) + 1, (X, W), [f"sum {ROWS}", f"sum {OUTPUTS}"]),
    "pooled": (
        lambda x, w, b: functional.avg_pool1d(functional.linear(x, w, b).unsqueeze(1), 3, 2, 1).squeeze(1),
        (X, W, B),
        ["pooling over a product's outputs"],
    ),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_sum_over_a_linear_layer_is_the_same_without_the_layer(name: str) -> None:
    forward, args, rewrites = LINEAR[name]
    names, graph = after(forward, *args)
    assert names == rewrites
    torch.testing.assert_close(graph(*args), forward(*args))
    if rewrites == [f"sum {OUTPUTS}"] or rewrites == [f"mean {OUTPUTS}"]:
        assert "mm" not in operators(graph)


GEOMETRIES: list[dict[str, Any]] = [
    {}, {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2}, {"stride": 3, "groups": 2},
]  # fmt: skip


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_a_mean_over_a_convolutions_positions_is_the_same_from_sums_of_its_input(geometry: dict[str, Any]) -> None:
    x, bias, scale, groups = seeded(2, 4, 9, 8), seeded(6), seeded(6, 1, 1), geometry.get("groups", 1)
    w, transposed = seeded(6, 4 // groups, 3, 2), seeded(4, 6 // groups, 3, 2)

    def everywhere(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (functional.conv2d(x, w, bias, **geometry) * 2).mean((2, 3))

    def along_one(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, bias, **geometry).sum(2)

    def of_transposed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = functional.conv_transpose2d(x, w, bias, output_padding=geometry.get("stride", 1) - 1, **geometry)
        return (y * scale + 1).sum((2, 3), keepdim=True)

    for forward, args in (
        (everywhere, (x, w, bias)),
        (along_one, (x, w, bias)),
        (of_transposed, (x, transposed, bias, scale)),
    ):
        names, graph = after(forward, *args)
        assert [name.partition(" ")[2] for name in names] == [POSITIONS]
        torch.testing.assert_close(graph(*args), forward(*args))
        for node in graph.graph.nodes:
            assert node.target != torch.ops.aten.convolution.default or node.meta["val"].numel() <= 2 * 6 * 12


def test_means_of_means_are_joined_and_reductions_of_one_element_leave_no_trace() -> None:
    x, column = seeded(3, 4, 5, 6), seeded(3, 1)
    names, graph = after(lambda x: (x.mean((1, 3)) * 3).mean(1, keepdim=True), x)
    assert (names, operators(graph).count("mean")) == (["mean of means"], 1)
    torch.testing.assert_close(graph(x), x.mean((1, 2, 3), keepdim=True)[..., 0, 0] * 3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return (
            x.amax(1, keepdim=True)
            .max(1, keepdim=True)[0]
            .mean(1, keepdim=True)
            .logsumexp(1, keepdim=True)
            .logsumexp(1)
        )

    names, graph = after(forward, column)
    assert (names, operators(graph)) == ([ONE], "aten.squeeze.dims")
    for odd in (column, column * float("inf"), column * float("nan")):  # exact there, too
        torch.testing.assert_close(graph(odd), forward(odd), equal_nan=True)
    names, graph = after(lambda x: torch.softmax(x, 1) + functional.gelu(x - x.mean(1, keepdim=True)), column)
    assert names == [ONE, "difference of equals"]
    torch.testing.assert_close(graph(column * 1e300), torch.ones_like(column))


def test_a_bound_below_the_other_is_a_constant() -> None:
    names, graph = after(lambda x: x.clamp_max(0.0).clamp(0.0, 1.0).exp(), X)
    assert names == ["clamp to a constant"]
    torch.testing.assert_close(graph(X), torch.ones_like(X))
    assert after(lambda x: x.clamp_max(0.5).clamp(0.0, 1.0), X)[0] == []


@pytest.mark.parametrize(
    "forward",
    [
        lambda x, w: (lambda y: y.sum(1, keepdim=True) + y)(x @ w.T),  # needed anyway
        lambda x, w: (x @ w.T).relu().sum(1),
        lambda x, w: ((x @ w.T) * w[:, 0]).sum(1),  # not the same along what is summed
        lambda x, w: (2 / (x @ w.T)).sum(1),
        lambda x, w: ((x @ w.T) * (x @ w.T)).sum(1),
        lambda x, w: (x @ w.T).amax(1),
        lambda x, w: torch.where(x.abs() == float("inf"), 0.0, x) + w.sum(),
        lambda x, w: x.mean(1).sum() + w.sum(),
        lambda x, w: x.clamp_max(0.5).clamp_min(0.0) @ w.T,
    ],
)
def test_what_is_no_such_formula_is_left_alone(forward: Forward) -> None:
    assert after(forward, X, W)[0] == []


def test_half_precision_is_summed_in_float32_and_any_sizes_are_served() -> None:
    x, w = (torch.full(shape, 200.0, dtype=torch.float16) for shape in ((3, 64), (512, 64)))

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w.T * 1e-5).mean(1)

    names, graph = after(forward, x, w)
    assert (names, graph(x, w).dtype) == ([f"mean {OUTPUTS}"], torch.float16)
    torch.testing.assert_close(graph(x, w), torch.full((3,), 25.6, dtype=torch.float16))
    names, graph = after(lambda x, w, b: functional.linear(x, w, b).sum(1), X, W, B, sizes="symbolic")
    assert names == [f"sum {OUTPUTS}"]
    more = seeded(7, 5), seeded(9, 5), seeded(9)
    torch.testing.assert_close(graph(*more), functional.linear(*more).sum(1))


HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
TASKS = {
    "sum_of_linear": """
ROWS = 9
CASES = [{"name": "other", "ROWS": 5, "cpu": True}]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 48)
    def forward(self, x): return torch.logsumexp((self.linear(x) / 2).sum(1, keepdim=True), 1, keepdim=True)
def get_inputs(): return [torch.randn(ROWS, 64)]
def get_init_inputs(): return []
""",
    "mean_of_conv_transpose": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1)
    def forward(self, x): return torch.tanh((self.conv(x) * 0.5).mean((2, 3), keepdim=True).mean((2, 3)))
def get_inputs(): return [torch.randn(2, 4, 12, 10)]
def get_init_inputs(): return []
""",
    "pooled_linear": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 80)
        self.pool = nn.AvgPool1d(4)
    def forward(self, x): return F.gelu(self.pool(self.linear(x).unsqueeze(1)).squeeze(1)).amax(1)
def get_inputs(): return [torch.randn(24, 32)]
def get_init_inputs(): return []
""",
}


def test_kernels_of_rewritten_formulas_compile_and_are_right_in_every_case() -> None:
    proposed: dict[str, Json] = run("propose", {name: HEAD + text for name, text in TASKS.items()})
    for job in proposed.values():
        assert job["problems"] == []
        assert '"""algebraic: ' in job["candidates"]["inductor_algebraic"]
        assert "algebraic" not in job["candidates"]["inductor"]
    found = checked(proposed)
    assert [row for row in found if row[3]] == []
    assert {(task, case) for task, sketch, case, _ in found if sketch == "inductor_algebraic"} == {
        ("sum_of_linear", "main"),
        ("sum_of_linear", "other"),
        ("mean_of_conv_transpose", "main"),
        ("pooled_linear", "main"),
    }
    # products that the rewritten formula still has; a sum over all outputs has one of a single column
    left = {name: job["candidates"].get("split_algebraic", "") for name, job in proposed.items()}
    called = {name: re.findall(r"split_\w+", text.partition("class ModelNew")[2]) for name, text in left.items()}
    wanted = {"sum_of_linear": [], "mean_of_conv_transpose": ["split_convolution"], "pooled_linear": ["split_mm"]}
    assert called == wanted
    assert left["pooled_linear"].startswith('"""algebraic: ')
    assert {task for task, sketch, *_ in found if sketch == "split_algebraic"} == {
        "mean_of_conv_transpose",
        "pooled_linear",
    }


def test_the_rewritten_formula_comes_first_with_its_rewrites_and_is_left_out_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(HEAD + TASKS["sum_of_linear"])
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:
        lower = through(lambda body: lowering.call(body, 120.0))
        task = describe(read_task(path))
        sketch, plain = OfflineAuthor(lower, 90, emulation=False).sketches(task)[:2]
        assert sketch.algebraic == ("sum over a product's outputs", "reduction of one element")
        assert sketch.says.startswith(
            "algebraic: sum over a product's outputs, reduction of one element; TorchInductor's"
        )
        assert (plain.name, plain.algebraic) == ("inductor", ())
        names = [one.name for one in OfflineAuthor(lower, 90, algebra=False).sketches(task)]
        assert "inductor_algebraic" not in names
