"""`optimize capture`: a program runs as it is, and a task of its calls is written."""

import json
import sys
from pathlib import Path

import pytest

from kerneltune.tools.task.load import read_task
from tests.agent.shell import optimize

MODEL = """
import torch
from torch import nn
def scaled(x, factor: float = 2.0):
    return x * factor
class Tail(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
    def forward(self, x, residual):
        return self.norm(x + residual)
"""
TRAIN = """
import sys, torch
from mymodel import Tail, scaled
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tail = Tail(16)
    def forward(self, x):
        return self.tail(x, residual=scaled(x, factor=3.0))
net = Net()
for rows in (8, 8, 8, 1):
    net(torch.randn(2, rows, 16))
print("trained", *sys.argv[1:], "kerneltune" in sys.path, file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mymodel.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.argv_was_seen = True\n")  # a person's own
    return tmp_path


def test_a_module_s_calls_become_a_task_with_weighted_cases(place: Path) -> None:
    done = optimize("capture", "--of", "Tail", "--json", "--", sys.executable, "train.py", "0", cwd=place)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["path"], told["calls"], told["kinds"]) == ("tail_task.py", 4, 2)
    assert "trained 0 False" in done.stderr
    cases = {case.name: case for case in read_task(place / "tail_task.py").cases}
    assert (cases["main"].weight, cases["seen_2"].weight, dict(cases["seen_2"].overrides)) == (3, 1, {"SEQUENCE": 1})
    assert "return [COLS]  # dim" in (place / "tail_task.py").read_text()
    assert optimize("tasks", "tail_task.py", "--check", cwd=place).returncode == 0
    again = optimize("capture", "--of", "Tail", "--", sys.executable, "train.py", "0", cwd=place)
    assert (again.returncode, "--overwrite" in again.stderr) == (2, True)


def test_a_function_that_is_imported_is_watched_and_a_program_that_fails_is_told_of(place: Path) -> None:
    words = ("capture", "--of", "mymodel.scaled", "-o", "s.py", "--", sys.executable, "train.py", "3")
    done = optimize(*words, cwd=place)
    assert (done.returncode, "exit code 3" in done.stderr) == (0, True), done.stderr
    assert "scaled(x, factor=3.0)" in (place / "s.py").read_text()


def test_without_a_name_the_classes_are_listed_with_those_that_work_most_first(place: Path) -> None:
    done = optimize("capture", "--", sys.executable, "train.py", "0", cwd=place)
    lines = done.stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["Tail", "4", "2"], ["Net", "4", "2"]]
    assert lines[-1].startswith("next: optimize capture --of Tail -- ")


def test_what_cannot_be_watched_says_so(place: Path) -> None:
    nothing = optimize("capture", "--of", "Nothing", "--", sys.executable, "train.py", "0", cwd=place)
    assert (nothing.returncode, "no call of Nothing was seen" in nothing.stderr) == (1, True)
    assert optimize("capture", "--of", "Tail", cwd=place).returncode == 2
    assert "cannot be run" in optimize("capture", "--of", "Tail", "--", "nowhere", cwd=place).stderr


def test_classes_of_one_name_are_told_apart_and_what_was_not_captured_is_told_of(place: Path) -> None:
    (place / "other.py").write_text("""
import torch
class Tail(torch.nn.Module):
    def forward(self, x):
        return x * 9
def made():
    class Tail(torch.nn.Module):
        def forward(self, x):
            return x * 7
    return Tail()
""")
    program = """
import torch, mymodel, other
mymodel.Tail(16)(torch.ones(2, 16), torch.ones(2, 16))
for made in (other.Tail(), other.Tail(), other.made(), other.made(), other.made()):
    made(torch.ones(4, 16))
other.Tail()(torch.eye(4).to_sparse())
"""
    for name, own, words in (
        ("mymodel.Tail", "self.norm(x + residual)", ""),
        ("Tail", "x * 9", "this is other.Tail, and not mymodel.Tail; --of MODULE.NAME chooses"),
    ):
        command = ("capture", "--of", name, "--overwrite", "--", sys.executable, "-c", program)
        done = optimize(*command, cwd=place)
        assert own in (place / "tail_task.py").read_text()
        assert words in done.stderr
    assert "1 call of Tail not captured: x is a sparse_coo tensor" in done.stderr


def test_a_person_s_function_is_watched_although_a_library_has_one_of_that_name(place: Path) -> None:
    (place / "mine.py").write_text("def relu(x):\n    return x.clamp(min=0) + 1\n")
    program = "import torch.nn.functional, mine; mine.relu(torch.ones(4, 16))"
    done = optimize("capture", "--of", "relu", "--", sys.executable, "-c", program, cwd=place)
    assert "x.clamp(min=0) + 1" in (place / "relu_task.py").read_text(), done.stderr


def test_a_forked_process_counts_its_own_calls_alone(place: Path) -> None:
    program = "import os, torch, mymodel; x = torch.ones(2, 16); tail = mymodel.Tail(16); tail(x, x); tail(x, x)\n"
    program += "if child := os.fork(): os.waitpid(child, 0)\ntail(x, x)"
    done = optimize("capture", "--of", "Tail", "--json", "--", sys.executable, "-c", program, cwd=place)
    assert json.loads(done.stdout)["calls"] == 4, done.stderr
