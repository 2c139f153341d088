"""A task file from a person's own code: what is taken, what is guessed, and that the file is one that can be read."""

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest

from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import read_task
from kerneltune.tools.task.module_source import names_in, parts_of
from kerneltune.tools.task.write import TEMPLATE, looks, task_source

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
    assert "return project(x, weight, bias, out=64, eps=1e-5)  # LOOK: out, eps" in text
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
        ("from mine import CASES\ndef f(x):\n    return x + CASES", "f", "needs CASES"),
        ("def get_inputs(x):\n    return x", "get_inputs", "means something else in a task"),
        ("class Model:\n    def forward(self, x, n: int):\n        return x * n", "Model", "rename it first"),
        ("class Model:\n    def forward(self, *, x):\n        return x", "Model", "rename it first"),
        ("class Model:\n    def __init__(self, *, d): ...\n    def forward(self, x): return x", "Model", "rename it"),
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


def answer(text: str, case: str = "narrow") -> Any:
    """What the task's Model returns in one of the small cases."""
    names: dict[str, Any] = {}
    exec(compile(text, "task", "exec"), names)
    names |= next(c for c in names["CASES"] if c["name"] == case)
    return names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())


def module(body: str, bases: str = "nn.Module") -> str:
    return f"import torch\nfrom torch import nn\nclass M({bases}):\n" + textwrap.indent(textwrap.dedent(body), "    ")


def test_what_a_constructor_wants_by_name_is_given_by_name(tmp_path: Path) -> None:
    body = """
        def __init__(self, dim, /, out_dim, *, hidden_dim, num_layers: int, bias=True):
            super().__init__()
            self.a, self.b = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, out_dim)
        def forward(self, x):
            return self.b(self.a(x))
    """
    text = made("M", tmp_path, module(body))
    assert "super().__init__(dim, out_dim, hidden_dim=hidden_dim, num_layers=num_layers)" in text
    assert "def forward(self, x: torch.Tensor)" not in text  # its own will do
    assert answer(text).shape == (63, 65)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("x, n: int", "x, n=64"),
        ("x, n: 'int', y", "x, n=64, y=y"),
        ("x, n: int, /, y", "x, 64, y"),
        ("x, *, y", "x, y=y"),
        ("x, n: int, eps: float = 1.0, *, y, causal: bool", "x, n=64, y=y, causal=False"),
        ("x, *rest, y, **more", "x, y=y"),
    ],
)
def test_what_a_forward_must_be_given_beside_tensors_is_given_and_marked(
    tmp_path: Path, arguments: str, given: str
) -> None:
    used = "x" + " * n" * ("n:" in arguments) + " + y" * ("y" in arguments)
    text = made("M", tmp_path, module(f"def forward(self, {arguments}):\n    return {used}"))
    assert f"return super().forward({given})" in text
    assert any(words == "n" or words == "n, causal" for _, words in looks(text)) == ("n:" in arguments)
    assert answer(text).shape == (63, 129)
    function = made("f", tmp_path, f"import torch\ndef f({arguments}):\n    return {used}\n")
    assert f"return f({given})" in function
    assert answer(function).shape == (63, 129)


def test_a_constructor_s_argument_and_a_forward_s_of_one_name_are_two(tmp_path: Path) -> None:
    body = """
        def __init__(self, dim):
            super().__init__()
            self.a = nn.Linear(dim, dim)
        def forward(self, x, dim: int):
            return self.a(x).softmax(dim)
    """
    text = made("M", tmp_path, module(body))
    assert "return [COLS]  # dim\n" in text
    assert "super().forward(x, dim=-1)  # LOOK: dim" in text
    assert answer(text).shape == (63, 129)


DIAMOND = """
import torch
from torch import nn
class Root(nn.Module):
    def __init__(self):
        super().__init__()
class Left(Root): pass
class Right(Root):
    def __init__(self, in_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 4, 3)
class M(Left, Right):
    def forward(self, x):
        return self.conv(x)
"""


def test_a_constructor_is_inherited_as_python_inherits_it(tmp_path: Path) -> None:
    text = made("M", tmp_path, DIAMOND)
    assert "return [CHANNELS]  # in_channels" in text
    assert "torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)" in text
    assert answer(text).shape == (1, 4, 6, 7)
    generic = "from typing import Generic, TypeVar\nT = TypeVar('T')\n" + DIAMOND.replace(
        "class Right(Root)", "class Right(Root, Generic[T])"
    ).replace("Left, Right", "Left, Right[int]")
    assert answer(made("M", tmp_path, generic)).shape == (1, 4, 6, 7)


def test_classes_that_inherit_in_a_circle_end(tmp_path: Path) -> None:
    source = "class A(M): pass\nclass M(A, M, nowhere.B, C[int]):\n    def forward(self, x):\n        return x\n"
    assert parts_of(source, "M", tmp_path / "mine.py").init == ()


def test_names_that_are_taken_in_a_person_s_code_stay_theirs(tmp_path: Path) -> None:
    source = """
import torch
from math import pi as ROWS
COLS, TASK_COLS = 3, 4
DTYPE = torch.float64
def f(x):
    return (x * COLS * ROWS + TASK_COLS).to(DTYPE)
"""
    text = made("f", tmp_path, source)
    assert any("DTYPE and ROWS and COLS" in words and "TASK_TASK_COLS" in words for _, words in looks(text))
    assert answer(text).shape == (63, 129)
    assert str(answer(text, "ragged").dtype) == "torch.float64"
    body = """
        def __init__(self, DTYPE: str, COLS: int, heads):
            super().__init__()
        def forward(self, x, *, HEADS: int):
            return x
    """
    clashing = made("M", tmp_path, module(body))
    assert "return ['', 64, TASK_HEADS]".replace("''", '""') in clashing
    assert "the small cases keep TASK_COLS a multiple of it" in clashing
    assert answer(clashing).shape == (1, 64, 64)


def test_a_name_that_the_task_does_not_need_is_no_clash(tmp_path: Path) -> None:
    assert "TASK_" not in made("f", tmp_path, "HEADS = 4\ndef f(x):\n    return x * HEADS\n")


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("def f(a, b): return a @ b", (63, 65)),
        ("def f(a, b): return torch.mm(a, b)", (63, 65)),
        ("def f(a, b): return a.matmul(b)", (63, 65)),
        ("def f(a, b): return torch.matmul(a, other=b)", (63, 65)),
        ("def f(a, B): return a @ B.T", (63, 65)),
        ("def f(w, x): return w @ x", (63, 65)),
        ("def f(g, x): return g * x", (63, 129)),
        ("def f(x, w, b): return x @ w + b", (63, 65)),
        ("def f(x, w, b): return torch.addmm(b, x, w)", (63, 65)),
        ("def f(x, w, bias): return x @ w.t() + bias", (63, 65)),
        ("def f(x, weight, bias): return F.linear(x, weight, bias)", (63, 65)),
        ("def f(x, proj_weight, proj_bias): return F.linear(x, weight=proj_weight, bias=proj_bias)", (63, 65)),
        ("def f(x, w, weight, bias): return F.layer_norm(x, x.shape[-1:], weight, bias) @ w", (63, 65)),
        ("def f(x, gamma, bias): return x * gamma + bias", (63, 129)),
    ],
)
def test_the_shapes_of_a_product_fit_and_one_letter_is_never_sure(
    tmp_path: Path, code: str, shape: tuple[int, ...]
) -> None:
    text = made("f", tmp_path, f"import torch\nimport torch.nn.functional as F\n{code}\n")
    assert answer(text).shape == shape
    arguments = code.partition("(")[2].partition(")")[0].split(", ")
    assert [f"# {name}; LOOK: its shape" in text for name in arguments] == [len(name) == 1 for name in arguments]


def test_of_several_matrices_none_is_sure(tmp_path: Path) -> None:
    text = made("f", tmp_path, "import torch\ndef f(x, w1, w2):\n    return torch.relu(x @ w1) @ w2\n")
    assert all(f"# {name}; LOOK: its shape" in text for name in ("w1", "w2"))


def test_functions_and_modules_are_offered_and_helpers_are_not(tmp_path: Path) -> None:
    found = names_in(FILE + "\ndef _private(x): return x\n", tmp_path / "mine.py")
    assert {"attend", "Block"} <= set(found)
    assert not {"_private", "Config", "later"} & set(found)
