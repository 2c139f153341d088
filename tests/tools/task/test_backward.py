"""The task of a task's gradients: what autograd gives, for any outputs and whatever has a gradient."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import builtin_names, described, find_task, read_task
from kerneltune.tools.task.write import backward_source

OP = """
from __future__ import annotations
import torch
SIZE = 4
CASES = [{"name": "more", "SIZE": 6, "cpu": True}, {"name": "hidden", "SIZE": 5, "held_out": True, "cpu": True}]
class Part(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.unused = torch.nn.Parameter(torch.rand(n)), torch.nn.Parameter(torch.rand(2))
        self.register_buffer("shift", torch.ones(n))
class Model(Part):  # Model in a comment stays
    def forward(self, x, index, y):
        z = x * self.weight + self.shift
        return {"a": (z[index], index), "b": z * y.sin()}
def get_inputs(): return [torch.randn(3, SIZE), torch.tensor([2, 0]), torch.randn(SIZE)]
def get_init_inputs(): return [SIZE]
"""


SCALED = """
# a page\x0c of Model
import torch.nn as nn
from torch import randn
class Model(nn.Module):
    def forward(self, x, factor): return nn.functional.relu(x) * factor
def get_inputs(): return [randn(3, 4), 3.0]
"""


def gradients(tmp_path: Path, source: str) -> tuple[str, dict[str, Any]]:
    """The task's text, and what it defines; it is one that can be described."""
    path = tmp_path / "op.py"
    path.write_text(source)
    text = backward_source(describe(read_task(path)), source)
    (tmp_path / "op_backward.py").write_text(text)
    assert describe(read_task(tmp_path / "op_backward.py")).cases
    names: dict[str, Any] = {}
    exec(compile(text, "task", "exec"), names)
    return text, names


def test_it_gives_what_autograd_gives_for_inputs_and_parameters(tmp_path: Path) -> None:
    text, names = gradients(tmp_path, OP)
    assert "class Forward(Part):  # Model in a comment stays" in text
    assert '"held_out": True' in text
    torch.manual_seed(0)
    model = names["Model"](*names["get_init_inputs"]()).double()
    x, index, y, *cotangents = names["get_inputs"]()
    x, y, cotangents = x.double(), y.double(), [c.double() for c in cotangents]
    with torch.no_grad():
        found = model(x, index, y, *cotangents)
    inner, leaves = model.forward_model, [x.clone().requires_grad_(), y.clone().requires_grad_()]
    out = inner(leaves[0], index, leaves[1])
    asked = [*leaves, *inner.parameters()]
    wanted = torch.autograd.grad([out["a"][0], out["b"]], asked, cotangents, materialize_grads=True)
    assert len(found) == 4
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_it_needs_no_name_of_the_file_and_keeps_what_is_no_tensor(tmp_path: Path) -> None:
    text, names = gradients(tmp_path, SCALED)
    assert "# a page\x0c of Model" in text
    x, factor, gradient = names["get_inputs"]()
    (found,) = names["Model"]()(x, factor, gradient)
    torch.testing.assert_close(found, torch.where(x > 0, 3 * gradient, 0))


LISTED = {
    "(self, x, index, y):": "(self, listed, index, y):\n        x = listed[0]",
    "return [torch.randn(3, SIZE)": "return [[torch.randn(3, SIZE)]",
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"return {": "return (x > 0).int() if True else {"}, "no output or no input with a gradient"),
        ({"x, index, y)": "x, index, *rest)", "y.sin()": "rest[0]"}, "keyword-only arguments"),
        ({"class Part(": "Forward = 1\nclass Part("}, "uses the name Forward"),
        (LISTED, "takes tensors in a list"),
    ],
)
def test_what_has_no_gradients_says_so(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    source = OP
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    with pytest.raises(TaskError, match=words):
        gradients(tmp_path, source)


PAIR = SCALED.replace("nn.functional.relu(x) * factor", "(y := nn.functional.relu(x)) * factor, [y.sum(1)]")


def test_a_training_step_gives_the_outputs_and_then_the_gradients(tmp_path: Path) -> None:
    path = tmp_path / "op.py"
    path.write_text(PAIR)
    task = describe(read_task(path))
    (tmp_path / "step.py").write_text(text := backward_source(task, PAIR, step=True))
    assert "#     return (*outputs, *self.gradients(saved, gradient_0, gradient_1))" in text
    assert len(describe(read_task(tmp_path / "step.py")).cases) == len(task.cases)
    names: dict[str, Any] = {}
    exec(compile(text, "task", "exec"), names)
    x, factor, *gradients = names["get_inputs"]()
    scaled, sums, found = names["Model"]()(x, factor, *gradients)
    torch.testing.assert_close((scaled, sums), (3 * x.relu(), x.relu().sum(1)))
    torch.testing.assert_close(found, torch.where(x > 0, 3 * gradients[0] + gradients[1][:, None], 0))


def test_a_training_step_of_outputs_without_gradients_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "op.py"
    path.write_text(OP)
    with pytest.raises(TaskError, match="outputs without a gradient"):
        backward_source(describe(read_task(path)), OP, step=True)


def test_all_built_in_tasks_with_a_floating_output_have_one(tmp_path: Path) -> None:
    refused = []
    for name in builtin_names():
        file = find_task(name)
        task = described(file)
        assert task
        try:
            text = backward_source(task, file.source)
        except TaskError:
            refused.append(name)
            continue
        path = tmp_path / f"{name}_backward.py"
        path.write_text(text)
        assert len(describe(read_task(path)).cases) == len(task.cases), name
    assert refused == ["argmax"]
