"""A task file from a person's own code: what is taken, what is guessed, and that the file is one that can be read."""

import ast
from pathlib import Path

import pytest

from tools.errors import TaskError
from tools.skeleton.parts import names_in, parts_of
from tools.skeleton.write import TEMPLATE, looks, task_source
from tools.task import read_task

FILE = '''from __future__ import annotations
import json, math
import torch
from torch import nn, Tensor
import torch.nn.functional as F
from functools import partial

try:
    from fast import thing
except ImportError:
    thing = None

SCALE = 0.5; OTHER = open("/nowhere")
act = partial(F.gelu, approximate="tanh")
x = torch.randn(4, 4).cuda()

class Config: pass

def helper(t: Tensor) -> Tensor:
    return act(t) * SCALE

def attend(q, k, v, mask=None, *, causal: bool = False):
    """Attention, "scaled".

    More words."""
    x = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return helper(torch.softmax(x, -1) @ v)

@torch.no_grad()
def project(x, weight, bias, out: int, *, eps: float):
    return F.linear(x, weight, bias) * eps + out

class Block(nn.Module):
    def __init__(self, d_model: int, num_heads: int, cfg: Config = None, dropout=0.1):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads)
    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x, x, x)[0]

class Image(nn.Module):
    def __init__(self, in_channels, kernel_size, depth_factor):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 8, kernel_size)
    def forward(self, x):
        return self.conv(x)

class Model(nn.Module):
    def forward(self, x):
        return x + 1

def uses_model(x):
    return Model()(x)

def look_up(table, idx):
    return table[idx]

async def later(x):
    return x

if __name__ == "__main__":
    SCALE = 2
'''


def made(name: str, tmp_path: Path, source: str = FILE) -> str:
    """The task file of one of the definitions, after the same reader that every command uses has taken it."""
    text = task_source(parts_of(source, name, tmp_path / "mine.py"), f"mine.py:{name}")
    path = tmp_path / f"{name}_task.py"
    path.write_text(text)
    task = read_task(path)
    assert [case.name for case in task.cases] == ["main", "ragged", "narrow", "unseen"]
    assert [case.held_out for case in task.cases] == [False, False, False, True]
    assert task.precision == "float32"
    return text


def test_a_function_brings_what_it_needs_and_nothing_else(tmp_path: Path) -> None:
    text = made("attend", tmp_path)
    assert all(
        part in text for part in ("import math", "def helper", "act = partial", "SCALE = 0.5\n", "from __future__")
    )
    assert not any(
        part in text for part in ("json", "OTHER", ".cuda()", "class Config", "__main__", "thing", "SCALE = 2")
    )
    assert "return attend(q, k, v)" in text
    assert text.count("(BATCH, HEADS, SEQUENCE, HEAD_DIM)") == 3
    assert "# Left at their defaults: mask=None, causal=False." in text
    assert text.startswith('"""Attention, \'scaled\'')


def test_arguments_that_must_be_given_are_given_and_marked(tmp_path: Path) -> None:
    text = made("project", tmp_path)
    assert "return project(x, weight, bias, 1, eps=1e-5)  # LOOK: out, eps" in text.replace("64, eps", "1, eps")
    assert "torch.randn(OUT, COLS)" in text
    assert "@torch.no_grad()\ndef project" in text
    assert any("out" in guess for _, guess in looks(text))


def test_a_module_gets_its_constructor_s_arguments_and_the_task_s_dtype(tmp_path: Path) -> None:
    text = made("Block", tmp_path)
    assert "class Model(Block)" in text
    assert "super().__init__(d_model, num_heads)\n        self.to(getattr(torch, DTYPE))" in text
    assert "return [COLS, HEADS]  # d_model, num_heads" in text
    assert "class Config" in text
    cases = ast.literal_eval(text.partition("CASES = ")[2].partition("\n]")[0] + "]")
    assert all(case["COLS"] % case["HEADS"] == 0 for case in cases)


def test_what_convolves_gets_images_and_what_no_name_tells_is_marked(tmp_path: Path) -> None:
    text = made("Image", tmp_path)
    assert "torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)" in text
    assert "return [CHANNELS, 3, 64]  # in_channels, kernel_size, depth_factor; LOOK: depth_factor" in text


def test_a_module_that_is_called_model_stays_as_it_is(tmp_path: Path) -> None:
    assert made("Model", tmp_path).count("class Model") == 1


def test_indices_are_integers_and_a_shape_that_was_guessed_is_marked(tmp_path: Path) -> None:
    text = made("look_up", tmp_path)
    assert "torch.randint(0, COLS, (ROWS,))" in text
    assert "# table; LOOK: its shape" in text


def test_the_template_is_a_task(tmp_path: Path) -> None:
    assert "def my_op" in made("my_op", tmp_path, TEMPLATE)


def test_a_word_that_ends_a_docstring_does_no_harm(tmp_path: Path) -> None:
    source = 'import torch\ndef f(x):\n    \'a \\\\ """ b\'\n    return x + 1\n'
    made("f", tmp_path, source)


def test_line_ends_of_other_systems_are_read(tmp_path: Path) -> None:
    assert "\r" not in made("attend", tmp_path, FILE.replace("\n", "\r\n"))


def test_an_import_of_a_neighbour_is_marked(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def g(x): return x\n")
    text = made("f", tmp_path, "import torch\nfrom beside import g\ndef f(x):\n    return g(x)\n")
    assert "from beside import g  # LOOK: it lies beside your file" in text


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (FILE, "attned", "did you mean attend?"),
        (FILE, "nothing_like_it", "it has Config, helper"),
        (FILE, "Config", "no forward of its own"),
        (FILE, "later", "async function"),
        (FILE, "uses_model", "needs Model"),
        ("def f(:", "f", "line 1"),
        ("\0", "f", "not a Python file"),
        ("def f():\n    return 1\n", "f", "takes no tensor"),
        ("def f(*args):\n    return 1\n", "f", "takes no tensor"),
    ],
)
def test_what_cannot_become_a_task_says_why(tmp_path: Path, source: str, name: str, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        task_source(parts_of(source, name, tmp_path / "mine.py"), "mine.py")
    assert words in str(caught.value)


def test_functions_and_modules_are_offered_and_helpers_are_not(tmp_path: Path) -> None:
    found = names_in(FILE + "\ndef _private(x): return x\n", tmp_path / "mine.py")
    assert {"attend", "Block"} <= set(found)
    assert not {"_private", "Config", "later"} & set(found)
