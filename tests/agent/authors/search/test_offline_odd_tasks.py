"""Task files that are not the usual float32 in, float32 out: each gets a right candidate, or a reason in words."""

import importlib
import json
import math
from functools import cache

import pytest
import torch

from kerneltune.tools.schema.codec import Json
from tests.agent.authors.search.offline_bench import checked, run
from tests.agent.authors.search.test_offline_candidates import HEAD

PLAIN = "def get_init_inputs(): return []\n"
RIGHT = {
    "integers": """
class Model(nn.Module):
    def forward(self, x, y): return (x // 3 + y % 7) ^ (x >> 1), (x * y).sum(-1), x.max()
def get_inputs(): return [torch.randint(0, 100, (33, 70)), torch.randint(-50, 50, (33, 70), dtype=torch.int32)]
"""
    + PLAIN,
    "booleans": """
class Model(nn.Module):
    def forward(self, mask, x): return torch.where(mask, x, -x), mask.sum(), mask.any(-1), ~mask & (x > 0)
def get_inputs(): return [torch.rand(17, 90) > 0.5, torch.randn(17, 90)]
"""
    + PLAIN,
    "many_outputs": """
class Model(nn.Module):
    def forward(self, x):
        y = x.exp()
        return {"sum": y.sum(-1), "pair": (y, x.argmax(-1)), "view": y.t()}
def get_inputs(): return [torch.randn(19, 64)]
"""
    + PLAIN,
    "writes_into_its_own": """
class Model(nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, 3:9] += 1
        y.clamp_(min=0).mul_(3)
        y[y > 5] = 0
        return y
def get_inputs(): return [torch.randn(19, 64)]
"""
    + PLAIN,
    "recurrent": """
LENGTH = 3
CASES = [{"name": "long", "LENGTH": 4}]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stacked = nn.LSTM(16, 20, 2, batch_first=True)
        self.both = nn.GRU(20, 12, bidirectional=True, batch_first=True, bias=False)
        self.stacked_gru = nn.GRU(24, 8, 2, batch_first=True)
        self.lstm_both = nn.LSTM(8, 7, bidirectional=True, batch_first=True)
        self.relu = nn.RNN(14, 8, nonlinearity="relu", batch_first=True)
        self.tanh = nn.RNN(8, 8, 2, bidirectional=True, batch_first=True)
    def forward(self, x, h):
        y, (h, c) = self.stacked(x, (h, h * 2))
        z, g = self.both(y)
        u, v = self.lstm_both(self.stacked_gru(z)[0])
        r, s = self.tanh(self.relu(u)[0])
        return y, h, c, z, g, u, *v, r, s
def get_inputs(): return [torch.randn(4, LENGTH, 16), torch.randn(2, 4, 20)]
"""
    + PLAIN,
    "sorts": """
class Model(nn.Module):
    def forward(self, x): return torch.sort(torch.relu(x) + x, dim=-1)[0] * 2
def get_inputs(): return [torch.randn(19, 64)]
"""
    + PLAIN,
    "a_number_becomes_a_tensor": """
class Model(nn.Module):
    def forward(self, x): return torch.min(x, torch.tensor(0.25, device=x.device)) + 1
def get_inputs(): return [torch.randn(19, 64)]
"""
    + PLAIN,
    "branches_by_shape": """
COLS = 64
CASES = [{"name": "wide", "COLS": 300}]
class Model(nn.Module):
    def forward(self, x):
        if x.shape[1] > 100:
            return x * 2
        for i in range(x.shape[0] % 3):
            x = x + i
        return torch.relu(x)
def get_inputs(): return [torch.randn(20, COLS)]
"""
    + PLAIN,
    "a_fraction_of_the_constructor": """
SCALE = 0.5
CASES = [{"name": "other", "SCALE": 2.5}]
class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def forward(self, x): return torch.softmax(x * self.scale, -1)
def get_inputs(): return [torch.randn(20, 64)]
def get_init_inputs(): return [SCALE]
""",
    "a_number_of_the_constructor": """
STEP, GROUPS = 10, 4
CASES = [{"name": "one", "STEP": 1}, {"name": "unseen", "STEP": 77, "GROUPS": 8, "held_out": True},
         {"name": "groups", "GROUPS": 2}]
class Model(nn.Module):
    def __init__(self, step, groups):
        super().__init__()
        self.step, self.groups = step, groups
        self.weight = nn.Parameter(torch.randn(16))
    def forward(self, x): return F.group_norm(x / (1 - 0.9**self.step), self.groups, self.weight)
def get_inputs(): return [torch.randn(3, 16, 5, 7)]
def get_init_inputs(): return [STEP, GROUPS]
""",
    "arguments_by_name": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))
    def forward(self, x):
        x = F.linear(input=x, weight=self.weight, bias=self.bias)
        x = F.layer_norm(input=x, normalized_shape=[8], weight=self.weight[0], bias=self.bias, eps=1e-5)
        x = F.group_norm(input=x, num_groups=2, weight=None, bias=None, eps=1e-5)
        x = F.rms_norm(input=x, normalized_shape=[8], weight=self.weight[0], eps=1e-5)
        return F.pad(input=x, pad=(1, 1), mode="constant", value=0.5) * torch.tensor(data=2.0, device=x.device)
def get_inputs(): return [torch.randn(3, 4, 8)]
"""
    + PLAIN,
    "a_group_a_channel": """
CHANNELS, GROUPS = 32, 8
CASES = [{"name": "alone", "CHANNELS": 16, "GROUPS": 16}]
class Model(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.norm = nn.GroupNorm(groups, channels)
    def forward(self, x): return F.silu(self.norm(self.up(x)))
def get_inputs(): return [torch.randn(2, CHANNELS, 6, 5)]
def get_init_inputs(): return [CHANNELS, GROUPS]
""",
    "a_table_of_another_dtype": """
ROWS, DTYPE = 40, "bfloat16"
CASES = [{"name": "wide", "ROWS": 55, "DTYPE": "float32"}, {"name": "unseen", "ROWS": 33, "held_out": True}]
class Model(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, 24).to(getattr(torch, DTYPE)))
    def forward(self, tokens): return F.embedding(tokens, self.weight) * 2
def get_inputs(): return [torch.randint(0, ROWS, (ROWS + 10,))]
def get_init_inputs(): return [ROWS]
""",
    "a_number_and_a_flag_among_the_inputs": """
FACTOR, IS_CUT = 2.0, True
CASES = [{"name": "other", "FACTOR": 3.0}, {"name": "whole", "IS_CUT": False}]
class Model(nn.Module):
    def forward(self, x, how, mask=None, *, more=1):
        return (torch.relu(x) if how["is_cut"] else x) * how["factor"] + more
def get_inputs(): return [torch.rand(20, 64) + 0.5, {"factor": FACTOR, "is_cut": IS_CUT}]
"""
    + PLAIN,
    "settings_that_are_no_numbers": """
SCALE, ACT, CUT = 0.5, "relu", "relu"
CASES = [{"name": "scale", "SCALE": 2.5}, {"name": "module", "ACT": "tanh"}, {"name": "function", "CUT": "tanh"}]
class Settings:
    def __init__(self, scale): self.scale = scale
class Model(nn.Module):
    def __init__(self, scale, act, cut):
        super().__init__()
        self.held, self.settings = {"scale": scale}, Settings(scale)
        self.act = nn.ReLU() if act == "relu" else nn.Tanh()
        self.cut = getattr(torch, cut)
    def forward(self, x): return self.act(x * self.held["scale"]) + self.cut(x * self.settings.scale)
def get_inputs(): return [torch.randn(20, 64)]
def get_init_inputs(): return [SCALE, ACT, CUT]
""",
    "names_that_are_no_identifiers": """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleDict({"1x1": nn.LayerNorm(64), "3x3": nn.Linear(64, 64)})
    def forward(self, x):
        return {"{x}": torch.relu(self.branches["1x1"](x)) + 1, "y": torch.relu(self.branches["3x3"](x))}
def get_inputs(): return [torch.randn(20, 64)]
"""
    + PLAIN,
    "arguments_that_are_called_like_inductors_own": """
class Model(nn.Module):
    def forward(self, buf0, buf1, arg0_1, view, max):
        return torch.softmax(buf1 @ arg0_1, -1) + buf0, (torch.relu(view) * max).t().reshape(-1, 40)[:, 3:] * 2
def get_inputs(): return [torch.randn(*s) for s in ((20, 20), (20, 64), (64, 20), (20, 64), (20, 64))]
"""
    + PLAIN,
    "padded_sequences": """
LENGTH = 50
CASES = [{"name": "unseen", "LENGTH": 31, "held_out": True}]
class Model(nn.Module):
    def forward(self, x): return F.pad(x, (3, 1)) * 2
def get_inputs(): return [torch.randn(4, LENGTH)]
"""
    + PLAIN,
}
REFUSED = {
    "looks_at_values": (
        "    def forward(self, x): return x * 2 if x.sum() > 0 else x - 1",
        "torch.where computes both",
    ),
    "result_of_any_shape": ("    def forward(self, x): return torch.nonzero(x > 0)", "depends on a tensor's values"),
    "random": ("    def forward(self, x): return x + torch.randn_like(x)", "random numbers"),
    "only_views": ("    def forward(self, x): return x.t()", "nothing but views"),
    "only_a_library": ("    def forward(self, x): return torch.linalg.inv(x)", "only library calls (linalg_inv_ex"),
}
SQUARE = "def get_inputs(): return [torch.randn(16, 16)]\n" + PLAIN


@cache
def proposed() -> dict[str, Json]:
    found: dict[str, Json] = run("propose_inductor", {name: HEAD + text for name, text in RIGHT.items()})
    return found


@cache
def refused() -> dict[str, Json]:
    tasks = {name: f"{HEAD}class Model(nn.Module):\n{text}\n{SQUARE}" for name, (text, _) in REFUSED.items()}
    found: dict[str, Json] = run("propose_inductor", tasks)
    return found


@cache
def judged() -> list[tuple[str, str, str, str]]:
    return checked(proposed())


@pytest.mark.parametrize("task", RIGHT)
def test_the_candidate_is_right_in_every_case_also_in_those_it_was_not_made_for(task: str) -> None:
    rows = [row for row in judged() if row[0] == task]
    assert rows, json.dumps(proposed()[task]["problems"])
    assert [row for row in rows if row[3]] == []
    if "held_out" in RIGHT[task]:
        assert "unseen" in {row[2] for row in rows}


def test_code_for_all_shapes_that_takes_too_long_is_asked_for_once_not_for_each_case() -> None:
    assert [problem for problem in proposed()["recurrent"]["problems"] if "for all shapes" in problem][1:] == []


@pytest.mark.parametrize("task", REFUSED)
def test_what_cannot_be_lowered_is_told_in_words(task: str) -> None:
    assert refused()[task]["candidates"] == {}
    assert any(REFUSED[task][1] in problem for problem in refused()[task]["problems"])


def test_a_task_that_writes_into_its_input_gets_a_candidate_that_does_not() -> None:
    source = "class Model(nn.Module):\n    def forward(self, x):\n        x.add_(1)\n        return x * 2\n" + SQUARE
    job = run("propose_inductor", {"writes": HEAD + source})["writes"]
    (plan,) = run("trace", {"writes": job})[0][2]
    inputs = [index for index, storage in enumerate(plan["storages"]) if storage["origin"] == "input"]
    source_of, target = (argument["tensor"]["storage"] for argument in plan["run"][-1]["args"][:2])
    assert (source_of in inputs, target in inputs) == (True, False)
    assert plan["outputs"]["$tensor"]["storage"] == target


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when Inductor is imported
def test_attributes_that_differ_between_cases_are_found_by_path() -> None:
    import torch
    from torch import nn

    from kerneltune.agent.authors.search.inductor import different_tensors, plain, varying

    class Block(nn.Module):
        def __init__(self, groups: int, limit: float) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(groups, 12)
            self.limit, self.name, self.layers = limit, "block", nn.Sequential(nn.Linear(groups, 3))

    models = {"a": Block(3, 1.0), "b": Block(4, float("inf"))}
    assert varying(models)["b"]["norm.num_groups"] == "4"
    assert varying(models)["b"]["limit"] == 'float("inf")'
    assert set(varying(models)["a"]) == {"norm.num_groups", "limit"}  # parameters tell the linear layer's sizes
    assert different_tensors(models.values()) == ["layers.0.weight"]
    assert "training" not in plain(models["a"])
    assert varying({}) == {}
    assert different_tensors([]) == []
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as TorchInductor is imported
@pytest.mark.parametrize("eps", [1e-6, None])
def test_gradients_of_rms_norm_are_lowered_so_that_huge_inputs_have_them(eps: float | None) -> None:
    """As the operator that PyTorch has on a GPU. A kernel of a CPU's, with the cube of 1/rms, was wrong on an H200."""
    inductor = importlib.import_module("kerneltune.agent.authors.search.inductor")
    torch.manual_seed(0)
    x, weight, gradient = torch.randn(8, 77) * 2.0**50, torch.randn(77), torch.randn(8, 77)

    def gradients(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *primals, cotangent = given
        pull = torch.func.vjp(lambda x, w: torch.nn.functional.rms_norm(x, (77,), w, eps), *primals)[1]
        found: tuple[torch.Tensor, ...] = pull(cotangent)
        return found

    wanted = gradients(x.double(), weight.double(), gradient.double())
    with inductor.written_out():
        found = gradients(x, weight, gradient)
    for one, other in zip(found, wanted, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max()) < 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as TorchInductor is imported
def test_a_pair_of_limits_that_differs_between_cases_is_text_that_can_be_run() -> None:
    inductor = importlib.import_module("kerneltune.agent.authors.search.inductor")

    def clamped(*limits: float) -> torch.nn.Module:
        model = torch.nn.Module()
        model.limits = limits  # type: ignore[assignment]
        return model

    found = inductor.varying({"main": clamped(0.0, math.inf), "small": clamped(-math.inf, 1.0)})
    limits = {name: eval(values["limits"]) for name, values in found.items()}
    assert limits == {"main": (0.0, math.inf), "small": (-math.inf, 1.0)}
