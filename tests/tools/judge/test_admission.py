"""Null kernels fail every case of every task that ships; a task that they pass is found out."""

from pathlib import Path

import pytest
import torch

from kerneltune.tools.judge.correctness.comparison import compare
from kerneltune.tools.judge.correctness.problem import Problem, describe, expanded, is_small
from kerneltune.tools.judge.service.admission import AdmissionResult, operands_that_matter, passing, tried, warnings_of
from kerneltune.tools.schema.task import CORE
from kerneltune.tools.task.load import TaskFile, find_task, read_task
from tests.tools.judge.test_compare import HONEST

FIRST_TASKS = sorted(HONEST)  # tests/tools/tasks has the others


def admit(task: TaskFile) -> list[AdmissionResult]:
    """What becomes of the null kernels in every case that a CPU can run."""
    task = expanded(task)
    cases = [case for case in task.cases if case.cpu or is_small(task, case.name)]
    return [result for case in cases for result in tried(Problem.load(task, case.name))]


@pytest.mark.parametrize("name", FIRST_TASKS)
def test_null_kernels_fail_every_small_case_of_every_task_with_every_battery(name: str) -> None:
    results = admit(find_task(name))
    assert {r.case for r in results} >= {case.name for case in find_task(name).cases if case.cpu}
    assert {"zeros", "ones", "mean", "row_means", "last_tile_zero", "first_input", "previous_answer"} <= {
        r.null_kernel for r in results
    }
    core = [r for r in results if r.battery in CORE]
    assert [r for r in core if not r.refused] == []
    assert min(r.error_ratio for r in core) > 10  # no near misses either
    assert passing(results) == []


KERNELBENCH_SOFTMAX = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1)

batch_size = 2
dim = 393216

def get_inputs():
    x = torch.rand(batch_size, dim)
    return [x]

def get_init_inputs():
    return []
"""


def test_all_zeros_fail_kernelbench_s_softmax_whose_own_check_they_pass(tmp_path: Path) -> None:
    path = tmp_path / "23_Softmax.py"
    path.write_text(KERNELBENCH_SOFTMAX)
    problem = Problem.load(read_task(path))
    drawn = problem.draw(1, "own")
    assert drawn is not None
    right = problem.native(drawn.inputs)
    assert torch.allclose(torch.zeros_like(right), right, atol=1e-4, rtol=1e-4)  # KernelBench's rule
    result = compare(problem.expect(drawn.inputs), torch.zeros_like(right))
    assert not result.ok
    assert result.error_ratio > 100
    assert "all zeros" in result.detail


def test_the_small_case_of_a_foreign_task_is_sound_too(tmp_path: Path) -> None:
    path = tmp_path / "23_Softmax.py"
    path.write_text(KERNELBENCH_SOFTMAX.replace("batch_size = 2", "batch_size = 4096").replace("393216", "65536"))
    results = admit(read_task(path))
    assert {r.case for r in results} == {"small"}
    assert {r.battery for r in results} >= {"own", "zero_mean", "scaled", "structure"}
    assert all(r.refused for r in results if r.battery in CORE)


def test_a_task_whose_answer_is_always_zero_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "collapsed.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        y = x.amax(1, keepdim=True)\n        return y - y.mean(1, keepdim=True)\n"
        "def get_inputs(): return [torch.randn(64, 50)]\n"
    )
    assert ("main", "zeros") in passing(admit(read_task(path)))


def test_a_null_kernel_that_one_battery_catches_does_not_spoil_a_task(tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)\n"
        "def get_inputs(): return [torch.rand(64, 50)]\n"
    )
    results = admit(read_task(path))
    assert [r.null_kernel for r in results if not r.refused and r.battery == "own"] == ["first_input"]
    assert passing(results) == []


@pytest.mark.parametrize("name", FIRST_TASKS)
def test_every_operand_of_every_built_in_task_matters(name: str) -> None:
    task = find_task(name)
    assert warnings_of(task, describe(task)) == []
    for case in [c.name for c in task.cases if c.cpu]:
        found = operands_that_matter(Problem.load(task, case))
        assert found, case
        assert all(found.values()), (case, found)


def written(folder: Path, forward: str, inputs: str = "torch.rand(64, 50), torch.rand(50)") -> TaskFile:
    path = folder / "mine.py"
    arguments, _, body = forward.partition(":")
    source = f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, {arguments}):\n        {body}\n"
    path.write_text(f"{source}def get_inputs(): return [{inputs}]\n")
    return expanded(read_task(path))


def notes_of(task: TaskFile) -> list[str]:
    return warnings_of(task, describe(task))


def test_an_operand_that_the_tolerance_swallows_is_named(tmp_path: Path) -> None:
    notes = notes_of(written(tmp_path, "x, bias: return (x + 1e-9 * bias).sum(-1)"))
    assert notes == ["the answer of case main does not depend on input:1: a kernel may leave that out"]


def test_an_unused_operand_and_an_integer_one_are_told_apart(tmp_path: Path) -> None:
    inputs = "torch.rand(64, 50), torch.randint(0, 50, (64,)), torch.randint(0, 50, (64,))"
    task = written(tmp_path, "x, used, unused: return x[torch.arange(64), used]", inputs)
    matters = operands_that_matter(Problem.load(task))
    assert matters == {"input:0": True, "input:1": True, "input:2": False}


def test_a_collapsed_task_gets_one_note_that_names_a_null_kernel(tmp_path: Path) -> None:
    task = written(tmp_path, "x, b: y = (x + b).amax(1, keepdim=True); return y - y.mean(1, keepdim=True)")
    notes = notes_of(task)
    assert len(notes) == 2
    assert notes[0].startswith("a kernel that writes zeros passes case main with all inputs (and ")
    assert "does not depend on input:0, input:1:" in notes[1]


def test_what_only_another_battery_refuses_needs_no_note(tmp_path: Path) -> None:
    assert notes_of(written(tmp_path, "x, b: return torch.relu(x) + b * 0.1")) == []


def test_an_operand_of_little_weight_matters_all_the_same(tmp_path: Path) -> None:
    task = written(tmp_path, "x, b: return x + 1e-4 * b")
    assert operands_that_matter(Problem.load(task)) == {"input:0": True, "input:1": True}


DEEP = """
import torch

class Model(torch.nn.Module):
    runs = 0

    def __init__(self):
        super().__init__()
        block = lambda: torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh())
        self.blocks = torch.nn.ModuleList(block() for _ in range(LAYERS))
        self.unread, self.swallowed = (torch.nn.Parameter(torch.randn(32)) for _ in range(2))
        self.seems_read = torch.nn.Parameter(torch.randn(32))

    def forward(self, x):
        Model.runs += 1
        for block in self.blocks:
            x = x + block(x)
        return FORMULA

def get_inputs():
    return [torch.randn(16, 32)]
"""


def runs_and_dead(folder: Path, layers: int, formula: str) -> tuple[int, list[str]]:
    """How often the reference of a deep net is run to see which operands matter, and those that do not."""
    path = folder / "deep.py"
    path.write_text(DEEP.replace("LAYERS", str(layers)).replace("FORMULA", formula))
    problem = Problem.load(read_task(path))
    before: int = vars(type(problem.model))["runs"]
    matters = operands_that_matter(problem)
    assert len(matters) == 1 + 6 * layers + 3
    return vars(type(problem.model))["runs"] - before, [name for name, does in matters.items() if not does]


DEAD = ["state:unread", "state:swallowed", "state:seems_read"]


def test_the_operands_of_a_deep_net_take_no_more_runs_than_those_of_a_shallow_one(tmp_path: Path) -> None:
    shallow, dead = runs_and_dead(tmp_path, 4, "x + 1e-9 * self.swallowed")
    assert dead == DEAD
    deep, dead = runs_and_dead(tmp_path, 32, "x + 1e-9 * self.swallowed")
    assert dead == DEAD
    assert deep <= shallow < 30


@pytest.mark.parametrize("formula", ["x + self.seems_read - self.seems_read.detach()", "x.detach()"])
def test_what_matters_does_not_hang_on_gradients_that_are_not_those_of_the_values(tmp_path: Path, formula: str) -> None:
    assert runs_and_dead(tmp_path, 2, formula)[1] == DEAD


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        ("torch.dropout(x, 0.5, True) + b", "forward draws random numbers"),
        ("x[x > 0.5] * b.sum()", "the shape of what forward returns depends on the values of its inputs"),
        ("float((x + b).sum())", "forward returns no tensor"),
        ("None", "forward returns no tensor"),
    ],
)
def test_a_reference_without_an_answer_that_a_kernel_could_give_is_found_out(
    tmp_path: Path, forward: str, why: str
) -> None:
    assert notes_of(written(tmp_path, f"x, b: return {forward}")) == [f"{why}, so that no kernel can be right"]


def test_a_reference_that_drops_out_in_training_only_is_sound(tmp_path: Path) -> None:
    assert notes_of(written(tmp_path, "x, b: return torch.dropout(x, 0.5, self.training) + b")) == []
