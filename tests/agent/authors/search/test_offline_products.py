"""Products of float32 as three of float16: our functions take the places of library calls, and are right."""

import contextlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from kerneltune.agent.authors.search import experts
from kerneltune.agent.authors.search.author import OfflineAuthor, through
from kerneltune.agent.commands.session import Lowering
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.sandbox.workers import started_base
from kerneltune.tools.schema.codec import Json, decode
from kerneltune.tools.schema.plan import Launch, Plan
from kerneltune.tools.task.load import read_task
from tests import shared_fork_server
from tests.agent.authors.search.offline_bench import checked, run

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(70, 40)
    def forward(self, x): return F.relu(self.linear(x)) * 0.5
def get_inputs(): return [torch.randn(24, 70)]
def get_init_inputs(): return []
"""
PRODUCT = """
class Model(nn.Module):
    def forward(self, a, b): return torch.{name}(a, b)
def get_inputs(): return [torch.randn({a}), torch.randn({b})]
def get_init_inputs(): return []
"""
CONVOLUTION = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.{layer}
    def forward(self, x): return self.conv(x)
def get_inputs(): return [torch.randn({x})]
def get_init_inputs(): return []
"""
LAYERS = {
    "strided": ("Conv2d(9, 20, 5, stride=2, padding=2)", "2, 9, 13, 14"),
    "dilated": ("Conv2d(16, 20, 3, stride=3, padding=1, dilation=2)", "2, 16, 9, 13"),
    "grouped_3d": ("Conv3d(16, 24, (3, 2, 3), stride=(2, 1, 2), padding=1, groups=2)", "1, 16, 5, 6, 7"),
    "transposed": ("ConvTranspose2d(16, 20, (3, 5), padding=(1, 2))", "2, 16, 5, 6"),
    "spaced": ("ConvTranspose2d(16, 20, 3, stride=2, padding=1, output_padding=1)", "2, 16, 5, 6"),
    "depthwise": ("Conv2d(6, 12, 3, padding=1, groups=6)", "2, 6, 9, 37"),
    "single": ("Conv3d(6, 6, (3, 1, 3), padding=(1, 0, 2), dilation=(1, 1, 2), groups=6)", "1, 6, 4, 5, 7"),
    "columns": ("Conv3d(3, 6, (2, 3, 1), padding=(0, 1, 0), dilation=(1, 2, 1))", "2, 3, 4, 7, 5"),
    "few": ("ConvTranspose3d(3, 20, 3, stride=(2, 1, 2), padding=1, output_padding=(1, 0, 1))", "2, 3, 4, 5, 6"),
    "few_grouped": ("ConvTranspose2d(16, 12, 3, padding=1, groups=4)", "2, 16, 5, 6"),
    "unreached": ("ConvTranspose1d(16, 20, 3, stride=2, padding=1, dilation=2)", "2, 16, 9"),
}
MADE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 3, 3, 3))
    def forward(self, x): return F.conv2d(x, self.weight * 2)
def get_inputs(): return [torch.randn(2, 3, 9, 13)]
def get_init_inputs(): return []
"""
SPOILT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 20, 3)
    def forward(self, x): return torch.nan_to_num(self.conv(x), 0.0, 0.0, 0.0)
def get_inputs():
    x = torch.randn(2, 16, 9, 13)
    x[0, 3, 4, 5], x[1, 2, 7, 7] = float("inf"), float("nan")
    return [x]
def get_init_inputs(): return []
"""
MOBILE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(20, 20, 3, stride=2, padding=1, groups=20)
        self.pointwise = nn.Conv2d(20, 24, 1)
        self.linear, self.last = nn.Linear(24, 16), nn.Linear(16, 3)
    def forward(self, x):
        x = self.pointwise(self.depthwise(x))
        return self.last(F.relu(self.linear(x.transpose(1, 3).reshape(-1, 24))))
def get_inputs(): return [torch.randn(2, 20, 9, 13)]
def get_init_inputs(): return []
"""
BLOCK = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.grouped = nn.Conv2d(16, 20, 3), nn.Conv2d(20, 32, 3, groups=2)
    def forward(self, x): return F.relu(self.grouped(F.relu(self.conv(x)))) * 0.5
def get_inputs(): return [torch.randn(2, 16, 9, 13)]
def get_init_inputs(): return []
"""
STEPS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.LSTM(16, 20, 2)
    def forward(self, x): return self.layers(x)[0]
def get_inputs(): return [torch.randn(3, 16, 16)]
def get_init_inputs(): return []
"""
LEFT = {  # to libraries, which are faster
    "depthwise_strided": CONVOLUTION.format(layer="Conv2d(6, 12, 3, stride=2, groups=6)", x="2, 6, 9, 37"),
    "narrow": PRODUCT.format(name="matmul", a="40, 70", b="70, 12"),
    "few_rows": PRODUCT.format(name="bmm", a="3, 8, 70", b="3, 70, 33"),
}
TASKS = {
    "linear_relu": LINEAR,
    "matmul": PRODUCT.format(name="matmul", a="40, 70", b="70, 50"),
    "long_matmul": PRODUCT.format(name="matmul", a="32, 2400", b="2400, 32"),
    "batched": PRODUCT.format(name="bmm", a="3, 20, 70", b="3, 70, 33"),
    **{name: CONVOLUTION.format(layer=layer, x=x) for name, (layer, x) in LAYERS.items()},
    "made": MADE,
    "spoilt": SPOILT,  # what an infinity or a NaN does not reach is as ever
}


@cache
def proposed() -> dict[str, Json]:
    recurrent = {"steps": STEPS, "relu_steps": STEPS.replace("LSTM(16, 20, 2)", "RNN(16, 20, 2, nonlinearity='relu')")}
    tasks = TASKS | LEFT | recurrent | {"mobile": MOBILE, "block": BLOCK}
    found: dict[str, Json] = run("propose", {name: HEAD + text for name, text in tasks.items()})
    return found


def test_library_products_of_float32_give_way_to_three_products_of_float16_that_are_right() -> None:
    for name in TASKS:
        job = proposed()[name]
        assert job["problems"] == []  # nothing is amiss where TorchInductor has only the library call
        source = job["candidates"]["split_products"]
        assert not any(
            f"torch.{called}(" in source.partition("class ModelNew")[2] for called in ("mm", "convolution")
        ), name
    found = checked(proposed())
    assert [row for row in found if row[3]] == []
    assert {task for task, sketch, _, _ in found if sketch == "split_products"} == {
        *(*TASKS, "mobile", "steps", "relu_steps", "block")
    }


def test_what_a_library_does_better_stays_with_it_and_nothing_is_proposed_where_all_of_it_does() -> None:
    forward = proposed()["mobile"]["candidates"]["split_products"].partition("def forward_case_0(")[2]
    called = re.findall(r"(?:torch|split)[._](?:convolution|addmm|mm)", forward)
    assert called == ["torch.convolution", "split_convolution", "split_mm", "torch.addmm"]
    for name in LEFT:
        assert "split_products" not in proposed()[name]["candidates"], name
        assert not any("split_products" in problem for problem in proposed()[name]["problems"]), name


def test_a_library_s_convolutions_come_first_where_some_are_depthwise_and_ours_elsewhere() -> None:
    order = {name: list(proposed()[name]["candidates"])[:2] for name in ("mobile", "block", "linear_relu")}
    ours_first = ["split_products", "inductor"]
    assert order == {"mobile": ours_first[::-1], "block": ours_first, "linear_relu": ours_first}


MANY = """
SIZE = 80
CASES = [{"name": "other", "SIZE": 90, "held_out": HELD_OUT}]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)

    def forward(self, x):
        x = self.conv(x)
        return [torch.relu(x[..., : at + 1]) for at in range(COUNT)]


def get_inputs():
    return [torch.randn(1, 8, 5, SIZE)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("count", "held_out"), [(66, False), (10, True)])
def test_of_many_kernels_those_beside_a_library_come_first_and_no_shapes_but_known_ones_are_asked_for_unless_held_out(
    tmp_path: Path, count: int, held_out: bool
) -> None:
    path, asked = tmp_path / "many.py", list[Json]()
    path.write_text(HEAD + MANY.replace("COUNT", str(count)).replace("HELD_OUT", str(held_out)))
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:

        def call(body: dict[str, Json]) -> dict[str, Json]:
            asked.append(body["overrides"])
            return lowering.call(body, 120.0)

        names = [sketch.name for sketch in OfflineAuthor(through(call), 90).sketches(describe(read_task(path)))]
    assert names == (["split_products", "inductor"] if held_out else ["inductor", "split_products"])
    assert any("dynamic" in overrides for overrides in asked) == held_out
    assert any(overrides["SIZE"] == 90 for overrides in asked if "SIZE" in overrides) != held_out


def test_products_of_recurrent_steps_are_split_beside_those_of_a_library_and_plain_elsewhere() -> None:
    called = {
        sketch: re.findall(r"recurrent\(.*?\)\n", source.partition("class ModelNew")[2], re.DOTALL)
        for sketch, source in proposed()["steps"]["candidates"].items()
    }
    assert {sketch: ["split=True" in call for call in calls] for sketch, calls in called.items()} == {
        "split_products": [True],
        "inductor": [False],
    }


def test_all_steps_of_an_lstm_are_one_launch_of_programs_that_wait_and_those_of_relu_a_launch_each() -> None:
    work = {name: dict(proposed()[name]) for name in ("steps", "relu_steps")}
    for job in work.values():
        job["candidates"] = {"split_products": job["candidates"]["split_products"]}
    launched = {}
    for name, _, plans, _ in run("trace", work):
        plan = decode(Plan, plans[0])
        launches = [step for step in plan.run if isinstance(step, Launch)]
        named = [(plan.kernels[step.kernel].name, step.cooperative) for step in launches]
        launched[name] = [one for one in named if one[0] in ("layers_kernel", "recurrent_kernel")]
    steps_and_layers = 3 + 2
    assert launched == {
        "steps": [("layers_kernel", True)],
        "relu_steps": [("recurrent_kernel", False)] * (steps_and_layers - 1),
    }


DIRECT = {"depthwise", "single", "columns", "few", "few_grouped", "unreached", "made"}


def test_only_parameters_that_a_convolution_is_launched_by_are_searched() -> None:
    for name in (*LAYERS, "made"):
        space = proposed()[name]["spaces"]["split_products"]
        uses = {key.partition("_")[0] for key in space} & {"BLOCK", "NUM", "CONV", "DIRECT"}
        assert uses == ({"DIRECT"} if name in DIRECT else {"CONV"}), name


def test_what_is_made_of_a_weight_is_kept_and_the_whole_is_left_out_on_demand_and_for_other_precisions(
    tmp_path: Path,
) -> None:
    path, half = tmp_path / "mine.py", tmp_path / "half.py"
    path.write_text(HEAD + LINEAR)
    half.write_text(HEAD + LINEAR.replace("randn(24, 70)", "randn(24, 70).half()").replace("70, 40)", "70, 40).half()"))
    with shared_fork_server.forked(started_base()) as machine, contextlib.closing(Lowering(machine)) as lowering:
        lower = through(lambda body: lowering.call(body, 120.0))
        task = describe(read_task(path))
        sketch = OfflineAuthor(lower, 90).sketches(task)[0]
        assert sketch.name == "split_products"
        assert "keep=(self, 'view(self.linear.weight" in sketch.source
        assert {"BLOCK_M", "NUM_STAGES"} < set(sketch.space)
        assert "CONV_M" not in sketch.space  # there is no convolution to search for
        assert sketch.says.startswith("float32 products as three of float16")
        names = [one.name for one in OfflineAuthor(lower, 90, emulation=False).sketches(task)]
        assert names
        assert "split_products" not in names
        assert "split_products" not in [
            one.name for one in OfflineAuthor(lower, 90).sketches(describe(read_task(half)))
        ]


def test_what_is_made_of_a_weight_is_made_again_once_the_weight_has_changed() -> None:
    source = (files(experts) / "split_products.py").read_text()
    kept = source.partition("\ndef kept(")[2].partition("\ndef ")[0]
    scope: dict[str, Callable[..., torch.Tensor]] = {"pairs": lambda b: b + 0}
    exec(f"def kept({kept}", scope)
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        first = scope["kept"](layer.weight.t(), (layer, "weight"))
        assert scope["kept"](layer.weight.t(), (layer, "weight")) is first
        layer.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
        assert torch.equal(scope["kept"](layer.weight.t(), (layer, "weight")), torch.ones(3, 2))
        layer.weight.data = torch.zeros(2, 3)  # other memory, which is no change of the tensor to torch
        assert torch.equal(scope["kept"](layer.weight.t(), (layer, "weight")), torch.zeros(3, 2))
    with torch.inference_mode():
        weight = torch.ones(3, 2)
        assert torch.equal(scope["kept"](weight, (layer, "weight")), torch.ones(3, 2))
