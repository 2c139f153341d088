"""What is seen of a running program's calls, and the task that it makes."""

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch

from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.capture import Watch, made_with, named, seen_call, task_of
from kerneltune.tools.task.load import read_task
from kerneltune.tools.task.write import SeenTensor, looks
from tests.test_house import HEAVY
from tests.tools.task.test_skeleton import run_small_cases

CODE = """
import torch
from torch import nn

def tail(x, bias=None, *, scale=1.0):
    return x * scale if bias is None else x * scale + bias

def same(x):
    return x

class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))
    def forward(self, x):
        return x * self.weight

class Mlp(nn.Module):
    def __init__(self, width, hidden: int = 32, act="gelu"):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
    def forward(self, hidden_states, mask=None):
        return self.down(self.up(hidden_states))

class Rotary(nn.Module):
    def __init__(self, length, head_dim):
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), torch.arange(0, head_dim, 2).float())
        self.register_buffer("cos", angles.cos(), persistent=False)
    def forward(self, q):
        a, b = q.chunk(2, dim=-1)
        return torch.cat((a * self.cos, b * self.cos), dim=-1)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[ModuleType]:
    """A module of a person's, which is loaded."""
    path = tmp_path / "mine_to_watch.py"
    path.write_text(CODE)
    spec = importlib.util.spec_from_file_location("mine_to_watch", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["mine_to_watch"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mine_to_watch"]


def test_calls_are_told_apart_by_their_form_and_counted_and_the_program_is_as_it_was(mine: ModuleType) -> None:
    before = mine.tail, vars(mine.Mlp)["forward"]
    model = mine.Mlp(8)
    with Watch("Mlp") as seen, Watch(mine.tail) as functions:
        for rows in (4, 4, 1, 4):
            model(torch.randn(rows, 8))
        assert torch.equal(mine.tail(torch.ones(2), scale=2.0), torch.full((2,), 2.0))
        with pytest.raises(TypeError):
            mine.tail()
    assert [(call.times, call.arguments["hidden_states"].shape) for call in seen.calls] == [(3, (4, 8)), (1, (1, 8))]
    assert [call.arguments["scale"] for call in functions.calls] == [2.0]
    assert (mine.tail, vars(mine.Mlp)["forward"]) == before


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda: torch.eye(8).to_sparse(), "x is a sparse_coo tensor"),
        (lambda: torch.empty(8, dtype=torch.uint32), "x is a uint32 tensor"),
        (lambda: torch.empty(8, device="meta"), "x is a meta tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(8)], layout=torch.jagged), "x is a NestedTensor tensor"),
    ],
)
def test_a_program_goes_on_whatever_it_gives_and_what_was_not_captured_says_why(
    mine: ModuleType, given: Callable[[], torch.Tensor], why: str
) -> None:
    tensor = given()
    with Watch("same") as seen:
        assert mine.same(tensor) is tensor
        with pytest.raises(TaskError, match=f"no call of same was seen that can be captured: {why}"):
            seen.source()
        mine.same(torch.ones(8))
    assert ([call.times for call in seen.calls], seen.missed) == ([1], {why: 1})


def test_a_program_is_compiled_and_mapped_as_if_nobody_watched(mine: ModuleType) -> None:
    model = mine.Norm(8)
    with Watch(model) as seen:
        assert torch.compile(model, backend="eager", fullgraph=True)(torch.ones(8)).shape == (8,)  # type: ignore[no-untyped-call]
        assert torch.func.vmap(model)(torch.ones(3, 8)).shape == (3, 8)
    assert [why.partition(":")[0] for why in seen.missed] == ["RuntimeError"]


def test_what_is_seen_becomes_a_task_with_weights_and_what_the_module_was_made_with(
    mine: ModuleType, tmp_path: Path
) -> None:
    model = mine.Mlp(8, 64)
    with Watch(model) as seen:
        mine.Mlp(16)(torch.randn(3, 16))  # another one
        for rows in (4, 4, 1):
            model(hidden_states=torch.randn(2, rows, 8, dtype=torch.float64).float())
    path = tmp_path / "mlp_task.py"
    path.write_text(seen.source())
    cases = {case.name: case for case in read_task(path).cases}
    assert (cases["main"].weight, cases["seen_2"].weight, dict(cases["seen_2"].overrides)) == (2, 1, {"SEQUENCE": 1})
    assert "return [COLS, 64]  # width, hidden" in path.read_text()


def test_a_size_that_only_half_of_is_seen_in_the_module_is_that_of_the_call(mine: ModuleType, tmp_path: Path) -> None:
    with Watch(mine.Rotary) as seen:
        mine.Rotary(40, 48)(torch.randn(2, 3, 40, 48))
    path = tmp_path / "rotary_task.py"
    path.write_text(seen.source())
    assert "return [SEQUENCE, HEAD_DIM]  # length, head_dim" in path.read_text()
    run_small_cases(path)


def test_values_are_drawn_as_they_were_seen() -> None:
    call = seen_call({"x": torch.rand(100) * 9, "i": torch.tensor([3, 7]), "y": torch.randn(64) + 50, "flag": True})
    x, i, y = (call.arguments[name] for name in ("x", "i", "y"))
    assert isinstance(x, SeenTensor)
    assert isinstance(i, SeenTensor)
    assert isinstance(y, SeenTensor)
    assert (x.least >= 0, (i.low, i.high), 49 < y.mean < 51) == (True, (3, 8), True)


@pytest.mark.parametrize(
    "seen",
    [
        [torch.randn(4, 6).t()],
        [torch.randn(8, 1, 5).expand(8, 4, 5).transpose(0, 1)],
        [torch.ones(6, dtype=torch.bool).expand(4, 6), torch.ones(3, dtype=torch.bool).expand(9, 3)],
        [torch.randn(5, 2 * width).chunk(2, -1)[1] for width in (64, 128)],
        [torch.randn(2, 64, 3, 8)[:, :length].transpose(1, 2) for length in (10, 50)],
        [torch.arange(40).view(5, 8)[:, ::2]],
        [torch.tensor(3)],
    ],
)
def test_tensors_of_a_task_lie_in_memory_as_those_that_were_seen(mine: ModuleType, seen: list[torch.Tensor]) -> None:
    with Watch(mine.same) as calls:
        for tensor in seen:
            mine.same(tensor)
    names: dict[str, Any] = {}
    exec(source := calls.source(), names)
    made = [(x.dtype, x.shape, x.stride()) for case in ({}, *names["CASES"]) for x in inputs_of(source, case)]
    assert {(x.dtype, x.shape, x.stride()) for x in seen} <= set(made)
    assert looks(source) == []


def test_strides_that_no_case_has_are_to_be_looked_at(mine: ModuleType) -> None:
    with Watch(mine.same) as calls:
        for tensor in (torch.randn(20).unfold(0, 4, 2), torch.randn(20).unfold(0, 4, 2), torch.randn(5, 5)):
            mine.same(tensor)
    told = [words for _, words in looks(calls.source())]
    assert "its strides were (2, 1), and are not here" in told
    with Watch(mine.same) as calls:
        for tensor in (torch.randn(8, 6), torch.randn(6, 8).t()):
            mine.same(tensor)
    assert "1 of the calls that were seen had other dtypes" in looks(calls.source())[0][1]


def inputs_of(source: str, case: dict[str, Any]) -> list[torch.Tensor]:
    """What a task's file makes in one of its cases."""
    names: dict[str, Any] = {}
    exec(source, names)
    names.update(case)
    made: list[torch.Tensor] = names["get_inputs"]()
    return made


def test_numbers_that_are_no_literals_become_expressions(mine: ModuleType) -> None:
    with Watch(mine.tail) as calls:
        mine.tail(torch.ones(8), bias=float("-inf"), scale=numpy.float64(0.5))
    assert 'tail(x, bias=float("-inf"), scale=0.5)' in calls.source()


def test_the_expressions_of_a_task_give_such_values(mine: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(0)
    calls = [seen_call({"x": torch.rand(64, 128) * 90, "bias": torch.randn(128) * 0.01 + 5})]
    names: dict[str, object] = {}
    exec(task_of(mine.tail, calls, None), names)
    x, bias = names["get_inputs"]()  # type: ignore[operator]
    assert (float(x.min()) >= 0, 25 < float(x.square().mean().sqrt()) < 100) == (True, True)
    assert 4.9 < float(bias.mean()) < 5.1


def test_arguments_of_a_constructor_are_found_in_the_module_or_by_trying(mine: ModuleType) -> None:
    assert made_with(mine.Norm(24, 1e-3)) == {"eps": 1e-3, "dim": 24}
    assert made_with(mine.Mlp(8)) == {"width": 8}
    assert made_with(mine.Mlp(8, 24)) == {"width": 8, "hidden": 24}
    assert made_with(mine.Rotary(40, 48), [torch.zeros(2, 40, 48)]) == {"length": 40, "head_dim": 48}
    model = mine.Norm(4)
    model.extra = torch.nn.Linear(3, 3)
    with pytest.raises(TaskError, match=r"made_with=\{'dim': …\}"):
        made_with(model)


def test_a_constructor_that_is_tried_draws_nothing_and_takes_its_time_only(
    mine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawn(mine.Norm):  # type: ignore[name-defined, misc]
        def __init__(self, dim: int) -> None:
            super().__init__(dim)
            random.random()
            numpy.random.random()
            torch.rand(1, device="cpu")

    model = Drawn(8)
    before = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()
    assert made_with(model) == {"dim": 8}
    assert (random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()) == before
    monkeypatch.setattr("kerneltune.tools.task.capture._MOST_SECONDS", -1.0)
    with pytest.raises(TaskError, match="say what Drawn was made with"):
        made_with(model)


def test_a_name_is_that_of_a_person_s_own_before_a_library_s(mine: ModuleType) -> None:
    assert named("Mlp") is named("mine_to_watch.Mlp") is named("mine_to_watch:Mlp") is mine.Mlp
    with pytest.raises(TaskError, match="nothing that is loaded is called Nothing"):
        Watch("Nothing").__enter__()
    with pytest.raises(TaskError, match="dict has no forward"):
        Watch(dict).__enter__()
    with Watch("tail") as seen:
        pass
    with pytest.raises(TaskError, match="no call of tail was seen"):
        seen.source()


def test_nothing_heavy_comes_into_the_watched_program() -> None:
    code = "import sys, kerneltune.tools.task.capture; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {*HEAVY, "rich", "cyclopts", "jinja2", "numpy"} & set(loaded) == set()
