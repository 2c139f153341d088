"""The offline author's candidates, from a task's text to compiled kernels and numbers, without a GPU."""

import ast
from functools import cache
from pathlib import Path

import pytest

from kerneltune.tools.schema.codec import Json
from tests.agent.authors.search.offline_bench import checked, run

ROOT = Path(__file__).resolve().parents[4]
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
TASKS = {
    "softmax": """
ROWS, COLS = 33, 1000
DTYPE = "float32"
CASES = [{"name": "ragged", "ROWS": 7, "COLS": 129}, {"name": "half", "ROWS": 5, "COLS": 300, "DTYPE": "bfloat16"},
         {"name": "unseen", "ROWS": 3, "COLS": 2053, "held_out": True}]
class Model(nn.Module):
    def forward(self, x): return torch.softmax(x, dim=-1)
def get_inputs(): return [torch.randn(ROWS, COLS).to(getattr(torch, DTYPE))]
def get_init_inputs(): return []
""",
    "layer_norm": """
ROWS, COLS = 33, 1000
CASES = [{"name": "unseen", "ROWS": 3, "COLS": 77, "held_out": True}]
class Model(nn.Module):
    def __init__(self, cols):
        super(Model, self).__init__()
        self.weight = nn.Parameter(torch.randn(cols))
        self.bias = nn.Parameter(torch.randn(cols))
    def forward(self, x): return F.layer_norm(x, self.weight.shape, self.weight, self.bias)
def get_inputs(): return [torch.randn(ROWS, COLS)]
def get_init_inputs(): return [COLS]
""",
    "gelu_bias": """
class Model(nn.Module):
    def __init__(self, cols, approximate):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))
        self.approximate = approximate
    def forward(self, x): return F.gelu(x + self.bias, approximate=self.approximate)
def get_inputs(): return [torch.randn(9, 300)]
def get_init_inputs(): return [300, "tanh"]
""",
    "linear_relu": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
    def forward(self, x): return self.layers(x)
def get_inputs(): return [torch.randn(16, 64)]
def get_init_inputs(): return []
""",
    "cross_entropy": """
CASES = [{"name": "mean"}]
class Model(nn.Module):
    def forward(self, logits, target): return F.cross_entropy(logits, target)
def get_inputs(): return [torch.randn(17, 1003), torch.randint(0, 1003, (17,))]
def get_init_inputs(): return []
""",
    "scan_and_norm": """
class Model(nn.Module):
    def forward(self, pair, scale=2.0):
        x, y = pair
        return {"sum": torch.cumsum(x, 1), "norm": torch.tanh(y) / y.norm(dim=0, keepdim=True) * scale}
def get_inputs(): return [[torch.randn(5, 200), torch.randn(70, 9)]]
def get_init_inputs(): return []
""",
    "attention": """
LENGTH = 33
CASES = [{"name": "unseen", "LENGTH": 50, "held_out": True}]
class Model(nn.Module):
    def forward(self, q, k, v): return F.scaled_dot_product_attention(q, k, v, is_causal=True)
def get_inputs(): return [torch.randn(1, 2, LENGTH, 16) for _ in range(3)]
def get_init_inputs(): return []
""",
    "attention_gradients": """
LENGTH = 33
CASES = [{"name": "unseen", "LENGTH": 50, "held_out": True}]
class Model(nn.Module):
    def forward(self, q, k, v, gradient):
        return torch.func.vjp(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), q, k, v)[1](gradient)
def get_inputs(): return [torch.randn(1, 2, LENGTH, 16) for _ in range(4)]
def get_init_inputs(): return []
""",
    "conv2d_relu": """
class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
    def forward(self, x): return torch.relu(self.conv(x)), x.mean()
def get_inputs(): return [torch.randn(2, 3, 16, 16)]
def get_init_inputs(): return [8]
""",
    "interpolated": """
class Model(nn.Module):
    def forward(self, x):
        pairs = [F.interpolate(x, scale_factor=2, mode=mode) for mode in ("bilinear", "bicubic")]
        return *pairs, F.interpolate(x[None], size=(4, 7, 9), mode="trilinear", align_corners=True)
def get_inputs(): return [torch.randn(2, 3, 8, 6)]
def get_init_inputs(): return []
""",
}


@cache
def proposed() -> dict[str, Json]:
    found: dict[str, Json] = run("propose", {name: HEAD + text for name, text in TASKS.items()})
    return found


@cache
def judged() -> list[tuple[str, str, str, str]]:
    return checked(proposed())


@pytest.mark.parametrize("task", TASKS)
def test_a_candidate_is_self_contained_python(task: str) -> None:
    job = proposed()[task]
    assert "inductor" in job["candidates"]
    assert job["problems"] == []
    for source in job["candidates"].values():
        ast.parse(source)
        assert "_inductor" not in source
        assert "class ModelNew(nn.Module)" in source


@pytest.mark.parametrize("task", TASKS)
def test_candidates_trace_compile_for_the_target_and_compute_what_torch_computes(task: str) -> None:
    rows = [row for row in judged() if row[0] == task]
    assert {row[1] for row in rows} == set(proposed()[task]["candidates"])
    assert [row for row in rows if row[3]] == []


def test_inductors_candidate_serves_shapes_that_the_author_never_saw() -> None:
    rows = [row for row in judged() if row[2] == "unseen" and row[1] == "inductor"]
    assert {row[0] for row in rows} == {"softmax", "layer_norm", "attention", "attention_gradients"}


def test_what_inductor_would_time_of_a_reduction_over_a_middle_dimension_are_whole_points_of_the_candidate() -> None:
    largest = """
class Model(nn.Module):
    def forward(self, x): return torch.argmax(x, dim=1)
def get_inputs(): return [torch.empty(64, 1024, 1000)]
def get_init_inputs(): return []
"""
    (points,) = run("starts", {"largest": HEAD + largest}).values()
    assert len({tuple(point) for point in points}) == len(points) >= 2
    assert {tuple(line.split(" = ")[0] for line in point) for point in points} == {
        ("LARGEST_XBLOCK", "LARGEST_R0_BLOCK", "LARGEST_NUM_WARPS", "LARGEST_NUM_STAGES")
    }
