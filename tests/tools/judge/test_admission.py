"""Null kernels fail every case of every task that ships; a task that they pass is found out."""

from pathlib import Path

import pytest
import torch

from tools.judge.admission import admit, unsound
from tools.judge.compare import compare
from tools.judge.reference import Problem
from tools.task import builtin_tasks, find_task, read_task


@pytest.mark.parametrize("name", [task.name for task in builtin_tasks()])
def test_null_kernels_fail_every_small_case_of_every_task_with_every_battery(name: str) -> None:
    results = admit(find_task(name))
    assert {r.case for r in results} >= {case.name for case in find_task(name).cases if case.cpu}
    assert {"zeros", "ones", "mean", "row_means", "last_tile_zero", "first_input", "previous_answer"} <= {
        r.null_kernel for r in results
    }
    assert [r for r in results if not r.refused] == []
    assert min(r.error_ratio for r in results) > 10  # no near misses either


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
    path.write_text(KERNELBENCH_SOFTMAX.replace("batch_size = 2", "batch_size = 4096"))
    results = admit(read_task(path))
    assert {r.case for r in results} == {"small"}
    assert {r.battery for r in results} == {"own", "zero_mean", "scaled"}
    assert all(r.refused for r in results)


def test_a_task_whose_answer_is_always_zero_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "collapsed.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        y = x.amax(1, keepdim=True)\n        return y - y.mean(1, keepdim=True)\n"
        "def get_inputs(): return [torch.randn(64, 50)]\n"
    )
    assert "main: zeros" in unsound(admit(read_task(path)))


def test_a_null_kernel_that_one_battery_catches_does_not_spoil_a_task(tmp_path: Path) -> None:
    path = tmp_path / "relu.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return torch.relu(x)\n"
        "def get_inputs(): return [torch.rand(64, 50)]\n"
    )
    results = admit(read_task(path))
    assert [r.null_kernel for r in results if not r.refused and r.battery == "own"] == ["first_input"]
    assert unsound(results) == []
