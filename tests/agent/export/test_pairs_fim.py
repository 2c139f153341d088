"""The bodies of kernels, cut out so that the three parts are the file again."""

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.events import Proposed, Updated
from kerneltune.agent.export.kernel_formats import Fim, around, kernel_bodies
from kerneltune.agent.export.similarity import SameRows
from kerneltune.tools.schema.verdict import KernelReport, Status
from tests.agent.export.made_runs import rows, run, source, tried

ROOT = Path(__file__).resolve().parents[3]
HEAD = "import triton\nfrom triton import jit\n\n\n"


def middles(text: str) -> list[str]:
    return [text[b.start : b.end] for b in kernel_bodies(text)]


def test_prefix_middle_and_suffix_are_the_file() -> None:
    (row,) = rows(Fim(), run(tried(1, Status.CHECKED)))
    text = source("number 1")
    assert row["prefix"] + row["middle"] + row["suffix"] == text
    assert row["prefix"].endswith('"""One row a program."""\n    # the row stays in registers\n')
    assert row["middle"].startswith("    row = tl.program_id(0)\n")
    assert row["middle"].endswith("mask=cols < n_cols)")
    assert row["suffix"].startswith("\n\n\nclass ModelNew")
    assert row["kernel"] == "softmax_kernel"
    # not the bare body: its indentation would become one token with the line break before it
    assert row["completion"] == [{"role": "assistant", "content": f"```python\n{row['middle']}\n```"}]
    asked = row["prompt"][0]["content"]
    assert row["prefix"].strip() in asked
    assert row["suffix"].strip() in asked
    assert row["middle"] not in asked
    assert "text" not in row


def test_the_question_shows_no_body_that_the_kernel_does_not_need() -> None:
    body = "    x = square(tl.load(p))\n    tl.store(o, x{})"
    jit = "@triton.jit\ndef "
    text = (
        f"{HEAD}{jit}cube(x):\n    return x * square(x)\n\n{jit}base(x): return x + 0.5\n\n{jit}square(x):\n"
        f'    """Of é."""\n    return base(x) * x\n\n{jit}one(p, o):\n{body.format("")}\n\n{jit}any_one(p, o, mask):\n'
        f"{body.format(', mask')}\n\none[(1,)](p, o)\n"
    )
    bodies = kernel_bodies(text)
    (hole,) = (found for found in bodies if found.kernel == "one")
    before, after = around(text, hole, bodies)
    assert before.endswith(f"{jit}one(p, o):\n")
    assert f"{jit}cube(x):\n    ...\n" in before  # which no kernel calls that is asked for
    assert f"{jit}base(x): return x + 0.5\n" in before  # which square calls
    assert '    """Of é."""\n    return base(x) * x\n' in before
    assert after == f"\n\n{jit}any_one(p, o, mask):\n    ...\n\none[(1,)](p, o)\n"


def test_files_that_share_a_kernel_say_it_once() -> None:
    head = "# another file of another task\nLIMIT = 3\n"
    made = [
        replace(event, source=head + event.source) if isinstance(event, Proposed) else event
        for event in tried(2, Status.CHECKED)
    ]
    first, second = rows(Fim(), run(tried(1, Status.CHECKED), made))
    assert first["prefix"] != second["prefix"]
    same = SameRows()
    assert [same.of("fim", [row[name] for name in Fim.says])[1] for row in (first, second)] == [True, False]


def test_only_right_attempts_are_cut() -> None:
    failing = [tried(i, status) for i, status in enumerate((Status.WRONG, Status.UNCHECKED, Status.IMPOSSIBLE), 1)]
    assert rows(Fim(), run(*failing, tried(9, Status.CHECKED, held=False), tried(10, Status.CHECKED)[:1])) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@triton.jit\ndef f(x): return x  # short\n", ["return x  # short"]),
        ("@jit\ndef f(\n    x,\n    y=(1, 2),\n):\n    # why\n    y = x\n\n    # end\n\nz = 1\n", ["    y = x"]),
        ("@triton.jit(do_not_specialize=['n'])\ndef f(n):\n    return n", ["    return n"]),
        ("@triton.autotune(configs=[], key=['n'])\n@triton.jit\ndef f(n):\n    return n\n", ["    return n"]),
        ("@triton.jit\n@other\ndef f(n):\n    return n\n", ["    return n"]),
        ("class A:\n    @triton.jit\n    def f(n):\n        return n\n", ["        return n"]),
        ("if True:\n    @triton.jit\n    def f(n):\n        return n\nelse:\n    f = 1\n", ["        return n"]),
        ('@triton.jit\ndef f(n):\n    """Two\nlines."""\n\n    # why\n    return n\n', ["    return n"]),
        ("@triton.jit\ndef f(n):\n    'short'\n    return n\n", ["    return n"]),
        ('@triton.jit\ndef f(n):\n    """a""" "b"\n    return n\n', ["    return n"]),
        ('@triton.jit\ndef f(n):\n    """Only a docstring."""\n', ['    """Only a docstring."""']),
        ('@triton.jit\ndef f(n):\n    x = """a\nb"""\n    return n\n', ['    x = """a\nb"""\n    return n']),
        ("@triton.jit\ndef f(n):\n    x = (n +\nn)\n    return x\n", ["    x = (n +\nn)\n    return x"]),
        ("@triton.jit\ndef f(n):\n    x = n + \\\nn\n    return x\n", ["    x = n + \\\nn\n    return x"]),
        ("@triton.jit\r\ndef f(n):\r\n    é = '核'; return n\r\n", ["    é = '核'; return n"]),
        ("@triton.jit\ndef 核(n): é = '核'; return n\n", ["é = '核'; return n"]),
        (
            "@triton.jit\ndef f(n):\n\treturn n\n@triton.jit\ndef g(n):\n\treturn n + 1\n",
            ["\treturn n", "\treturn n + 1"],
        ),
        ("def f(n):\n    return n\n", []),
        ("@numba.jit\ndef f(n):\n    return n\n", []),
        ("@triton.jit\ndef f(n:\n", []),
        ("jit\0", []),
        ("", []),
    ],
)
def test_a_body_is_found_in_whatever_form_it_is_written(text: str, expected: list[str]) -> None:
    assert middles(HEAD + text) == expected


def test_a_kernel_inside_of_a_text_is_none() -> None:
    inner = textwrap.dedent("@triton.jit\ndef f(n):\n    return n\n")
    assert middles(f'SOURCE = """\n{inner}"""\n') == []


@pytest.mark.parametrize(
    ("launched", "other", "cut"),
    [
        ("softmax_kernel", "is_floating", ["softmax_kernel"]),
        ("a_kernel_in_ptx", "is_floating", []),
        ("softmax_kernel", "softmax_kernel", []),  # which of the two is not known
    ],
)
def test_of_a_file_s_kernels_those_that_it_launches_are_cut(launched: str, other: str, cut: list[str]) -> None:
    helper = f"@triton.jit\ndef {other}(x):\n    return x.dtype.is_floating()\n"
    text = source("two").replace("@triton.jit", helper + "\n\n@triton.jit")
    report = KernelReport(launched, 32, 0, 0, 0, 0, 4, 1, 1.0, "0" * 64)
    events = [
        replace(e, source=text)
        if isinstance(e, Proposed)
        else replace(e, kernels=(report,))
        if isinstance(e, Updated)
        else e
        for e in tried(1, Status.CHECKED)
    ]
    assert [row["kernel"] for row in rows(Fim(), run(events))] == cut
    assert len(kernel_bodies(text)) == 2
