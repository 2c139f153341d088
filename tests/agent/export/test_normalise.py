import ast
import threading
import time
from pathlib import Path

import pytest

from agent.export.normalise import MOST_CHARACTERS, Forms
from agent.export.trees import parse, tree_form

ROOT = Path(__file__).resolve().parents[3]
KERNEL = '''"""What it is."""
import torch

@triton.jit
def k(x, y, n, BLOCK: tl.constexpr):
    """Doc."""
    i = tl.arange(0, BLOCK)  # lanes
    v = tl.load(x + i, mask=i < n, other=float("-inf"))
    if n > 1: tl.store(y + i, v); return
    tl.store(y + i, v * 1e-5)

class ModelNew(nn.Module):
    def forward(self, x):
        k[(n,)](x, y, n, BLOCK=1024)
        return (x, y)
'''
SAME = '''import torch
@triton.jit
def k(
    x,
    y,
    n,
    BLOCK: tl.constexpr,
):
  i = tl.arange( 0, BLOCK )
  v = tl.load(
      x + i,
      mask=i < n, other = float('-inf'),
  )
  if n > 1:
     tl.store(y + i, v)
     return
  else:
     pass
  tl.store(y + i, v * \\
     0.00001)


class ModelNew(nn.Module):
\t"""Another."""
\tdef forward(self, x):
\t\tk[n,](x, y, n, BLOCK=0x400)
\t\treturn x, y
'''.replace("  else:\n     pass\n", "")
HOSTILE = {
    "open brackets": "(" * 1_000_000,
    "nested brackets": "(" * 90_000 + ")" * 90_000,
    "null bytes": "a\0b = '\0'\n" * 100,
    "lone surrogates": "x = '\ud800' + \udfff\n",
    "unary": "-" * 190_000 + "1",
    "unary, one a line": "(\n" + "-\n" * 90_000 + "1)",
    "lambdas": "lambda:" * 25_000 + "1",
    "powers": "(\n" + "2**\n" * 40_000 + "1)",
    "calls": "(f\n" + "()\n" * 60_000 + ")",
    "open quotes": "'\\" * 90_000,
    "open triple quotes": "'''" + '"""' * 60_000,
    "continued for ever": "\\\n" * 90_000,
    "deep blocks": "".join(" " * i + "if a:\n" for i in range(600)),
    "decorators": "@a\n" * 60_000 + "def f(): pass",
    "f-strings in f-strings": "x=" + "f'{" * 3000 + "1" + "}'" * 3000,
    "binary": bytes(range(256)).decode("latin-1") * 500,
    "only spaces": " " * 500_000,
    "many lines": "\n" * 500_000,
    "nothing": "",
}


def kernels() -> list[Path]:
    folders = ("tests/exploits/honest", "tools/tasks", "agent/authors/offline/library")
    return [p for f in folders for p in sorted((ROOT / f).glob("*.py")) if p.name != "__init__.py"]


def test_layout_comments_docstrings_quotes_and_numbers_do_not_count() -> None:
    forms = Forms()
    assert forms.of(KERNEL).text == forms.of(SAME).text
    assert forms.of(KERNEL).words == forms.of(SAME).words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = a + b", "x = a - b"),
        ("x = (a,)", "x = (a)"),
        ("x = [(a, b)]", "x = [a, b]"),
        ("k[a,](x)", "k[a](x)"),
        ("assert (a, b)", "assert a, b"),
        ("x = 1", "x = 1.0"),
        ("x = 'a b'", "x = 'a  b'"),
        ("x = '#a'", "x = '#b'"),
        ("if a:\n    b()\nc()", "if a:\n    b()\n    c()"),
        ("if a:\n    if b:\n        c()\n    d()", "if a:\n    if b:\n        c()\n        d()"),
        ("f(\n    x)\ny", "f(x, y)"),
        ("x = '''\n# a\n'''", "x = '''\n# b\n'''"),
        ("def f(x): return x", "def g(x): return x"),
        ("x = rb'a'", "x = b'a'"),
        ("return (yield x)", "return yield_(x)"),
    ],
)
def test_what_differs_in_meaning_differs_in_form(one: str, other: str) -> None:
    assert Forms().of(one).text != Forms().of(other).text


@pytest.mark.parametrize("path", kernels(), ids=lambda p: p.stem)
def test_every_kernel_keeps_its_form_when_it_is_indented_otherwise(path: Path) -> None:
    source, forms = path.read_text(), Forms()
    wider = "\n".join(
        " " * (len(line) - len(line.lstrip(" "))) + line if not _inside_text(source) else line
        for line in source.split("\n")
    )
    assert forms.of(wider).text == forms.of(source).text
    assert forms.of(source.replace("\n", "\r\n")).text == forms.of(source).text


def _inside_text(source: str) -> bool:
    """Whether the source has texts of several lines, whose indentation means something."""
    strings = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return any("\n" in str(n.value) for n in strings)


def test_kernels_keep_their_form_but_for_brackets_when_python_writes_them_anew() -> None:
    """Brackets that only show precedence are kept, and Python's writer has its own idea of them; nothing else differs.
    PTX is left out: its lines become one."""
    forms = Forms()
    for source in (p.read_text() for p in kernels()):
        if "PtxKernel(" not in source:
            ours, anew = (forms.of(text).text for text in (source, ast.unparse(ast.parse(source))))
            assert _without_brackets(ours) == _without_brackets(anew)


def _without_brackets(form: str) -> list[str]:
    return form.replace("(", "").replace(")", "").split()


def test_the_tree_knows_what_python_writes_anew_and_renamed_local_variables() -> None:
    for path in kernels():
        source = path.read_text()
        assert tree_form(source) == tree_form(ast.unparse(ast.parse(source))), path
    renamed = KERNEL.replace("v = ", "loaded = ").replace(", v", ", loaded")
    assert tree_form(KERNEL) == tree_form(renamed)
    assert tree_form(KERNEL) != tree_form(KERNEL.replace("BLOCK", "SIZE")), "callers name parameters"
    assert tree_form(KERNEL) != tree_form(KERNEL.replace("1024", "512"))
    assert tree_form(KERNEL, constants=False) == tree_form(KERNEL.replace("1024", "512"), constants=False)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_source_crashes_it_or_keeps_it_busy(name: str) -> None:
    begin = time.monotonic()
    form = Forms().of(HOSTILE[name])
    form.text.encode("utf-8", "surrogatepass")
    tree_form(HOSTILE[name])
    assert time.monotonic() - begin < 20


def test_hostile_sources_are_survived_in_a_thread_with_its_smaller_stack() -> None:
    done: list[str] = []

    def go() -> None:
        for name, source in HOSTILE.items():
            tree_form(source)
            done.append(name)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    assert done == list(HOSTILE)


def test_broken_python_has_a_form_that_layout_does_not_change() -> None:
    broken = "def f(x:\n    return (x +\nclass"
    assert parse(broken) is None
    assert Forms().of(broken).text == Forms().of(broken.replace("    ", "  ") + "  # why\n").text != ""


def test_an_unfinished_line_does_not_spoil_the_same_line_where_it_goes_on() -> None:
    forms, whole = Forms(), "f(\n    x)\n"
    expected = Forms().of(whole).text
    forms.of("f(")
    assert forms.of(whole).text == expected
    forms.of("    x)")
    assert forms.of(whole).text == expected


def test_long_strings_count_as_their_words() -> None:
    """Two PTX kernels in the same host code are not alike."""
    host = "PTX = '''{}'''\nlaunch(PTX)\n"
    forms = Forms()
    assert forms.of(host.format("add.f32 %f1, %f2, %f3;\n" * 100)).n_tokens > 500
    assert forms.of("x" * (MOST_CHARACTERS + 1)).n_tokens == 1
