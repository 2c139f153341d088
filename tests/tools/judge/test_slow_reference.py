"""A reference whose forward is slow is judged within a time, with less, and what was left out is said."""

import math
from pathlib import Path

import pytest

from kerneltune.tools.judge.correctness import problem as judging
from kerneltune.tools.judge.correctness.comparison import compare_in_parts
from kerneltune.tools.judge.correctness.problem import Problem, describe, expanded, is_small
from kerneltune.tools.judge.correctness.reference_model import without_cudnn
from kerneltune.tools.judge.service.cpu_judge import CpuJudge
from kerneltune.tools.schema.messages import NewInputs, Open
from kerneltune.tools.schema.task import BATTERIES
from kerneltune.tools.schema.verdict import CaseResult, Limitation, LimitationKind, Status, Verdict, concluded
from kerneltune.tools.task.load import TaskFile, find_task, read_task, with_small

SLOW = "for _ in range(5001): a = a.neg()"
LONG = "until = time.thread_time() + {}\n        while time.thread_time() < until: pass"


def task_of(folder: Path, pause: str, *, inputs: str = "torch.randn(8, 64), torch.randn(8, 64)") -> TaskFile:
    """A sum of products; its forward adds a letter to the file `forwards`."""
    (folder / "forwards").touch()
    path = folder / "mine.py"
    path.write_text(
        "import time\nimport torch\nimport torch.nn as nn\nN = 2048\nclass Model(nn.Module):\n"
        "    def forward(self, a, x):\n"
        f"        with open({str(folder / 'forwards')!r}, 'a') as file:\n            file.write('.')\n"
        f"        {pause}\n        return (a * x).cumsum(1)\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )
    return read_task(path)


def forwards(folder: Path) -> int:
    """How many there were since this was asked last."""
    count = len((folder / "forwards").read_text())
    (folder / "forwards").write_text("")
    return count


def test_the_noise_of_a_slow_reference_is_not_measured_and_that_is_said(tmp_path: Path) -> None:
    problem = Problem.load(task_of(tmp_path, SLOW))
    inputs = problem.inputs(1) or ()
    assert problem.slow is LimitationKind.MANY_OPERATORS
    assert forwards(tmp_path) == 1  # no time is looked at
    expectation = problem.expectation(inputs)
    assert forwards(tmp_path) == 2  # in its own dtype and in float64
    result = compare_in_parts(expectation, problem.native(inputs), case="main")
    assert (result.ok, result.limitations) == (True, (Limitation(LimitationKind.MANY_OPERATORS),))
    assert not compare_in_parts(expectation, problem.native(inputs) * 1.01, case="main").ok


def test_a_reference_of_few_operators_is_slow_only_when_it_takes_far_longer_than_many_do(tmp_path: Path) -> None:
    for name, seconds in (("near", 0.2), ("far", 0.55)):
        (tmp_path / name).mkdir()
        problem = Problem.load(task_of(tmp_path / name, LONG.format(seconds)))
        assert problem.slow == {"near": None, "far": LimitationKind.SLOW}[name]
    assert 2 <= forwards(tmp_path / "far") <= 3  # one that seems slow is measured again
    assert problem.in_time == BATTERIES[:3]  # four forwards of a second each, in twelve


def test_an_ordinary_reference_is_judged_with_all_batteries_and_its_noise(tmp_path: Path) -> None:
    problem = Problem.load(task_of(tmp_path, "pass"))
    assert (problem.slow, problem.in_time) == (None, BATTERIES)
    forwards(tmp_path)
    assert problem.expect(problem.inputs(1) or ()).noise is not None
    assert forwards(tmp_path) >= 8


def test_a_slow_reference_has_the_batteries_that_there_is_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "_BATTERIES_S", 2.0)  # each takes 0.8 s: four forwards of 5,002 operators
    task = task_of(tmp_path, SLOW)
    judge = CpuJudge()
    opened = judge.open(Open("mine", str(task.path), task.sha256))
    assert "whether its answer depends on every operand" in " ".join(opened.notes)
    assert forwards(tmp_path) <= 12
    prepared = {b: judge.new_inputs(NewInputs("main", b, "0" * 64))[0] for b in BATTERIES}
    tried = [b for b, found in prepared.items() if not found.short]
    assert tried == list(BATTERIES[:2])
    assert forwards(tmp_path) <= 12
    problem = Problem.load(task)
    assert problem.draw(1, "tiny") is None
    assert problem.left_out == {"tiny": Limitation(LimitationKind.NO_TIME)}


def test_a_verdict_says_what_a_slow_reference_left_no_time_for() -> None:
    slow = CaseResult("main", "own", True, 0.1, 0.0, limitations=(Limitation(LimitationKind.SLOW),))
    other = CaseResult("small", "own", True, 0.1, 0.0)
    found = Verdict(Status.CHECKED, "right", cases=(slow, other), left_out=("main/tiny", "small/huge"))
    assert found.limitations == {
        LimitationKind.LEFT_OUT: ["small/huge"],
        LimitationKind.SLOW: ["main/own"],
        LimitationKind.NO_TIME: ["main/tiny"],
    }
    assert "the reference is too slow for these inputs, left out: main (tiny)" in concluded(found, {}).detail


def test_a_task_is_opened_with_one_forward_without_data(tmp_path: Path) -> None:
    inputs = "torch.randn(2048, 2048), torch.randn(2048, 2048)"
    task = task_of(tmp_path, "pass", inputs=inputs)
    assert is_small(task, "main") is False
    assert forwards(tmp_path) == 1
    assert [case.runs_on_cpu for case in describe(task).cases] == [False]
    assert expanded(task) == task
    tried = forwards(tmp_path)  # with halves of the constant, which nothing depends on
    assert describe(expanded(task)).main.bytes_moved == 3 * 4 * 2048**2
    assert forwards(tmp_path) == 0
    assert tried <= 16


def test_the_constants_of_a_small_case_are_found_once_and_handed_on(tmp_path: Path) -> None:
    task = task_of(tmp_path, "pass", inputs="torch.randn(N, N), torch.randn(N, N)")
    opened = CpuJudge().open(Open("mine", str(task.path), task.sha256))
    assert list(opened.small) == ["N"]
    assert with_small(find_task(str(task.path)), opened.small) == expanded(task)


@pytest.mark.parametrize(
    ("by_cudnn", "without", "chosen"),
    [
        ([0.04], [], False),
        ([2.0, 0.01], [0.02, 0.02], False),  # it was loading libraries
        ([0.9, 0.5], [0.7, 0.04], True),
        ([0.9], [1.2, 0.95], False),
        ([0.9], [math.inf, math.inf], False),  # no memory
    ],
)
def test_float64_convolutions_go_without_cudnn_where_that_is_measured_to_be_faster(
    by_cudnn: list[float], without: list[float], chosen: bool
) -> None:
    measured = {True: iter(by_cudnn), False: iter(without)}
    assert without_cudnn(lambda cudnn: next(measured[cudnn])) is chosen
