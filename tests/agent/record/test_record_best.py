"""best.py: the candidate word for word under a header that is comments whatever its items hold."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import RunStarted
from kerneltune.agent.record.folder import write_best
from kerneltune.tools.package.write import VerifiedKernel, packaged
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Comparison, KernelReport, Status, Timing, Verdict
from tests.agent.record.samples import started

HOSTILE = [
    "first\nopen('/tmp/x', 'w').write('x')\n# last",
    *(f"a{end}import os" for end in ("\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0")),
    "lone \ud83d half",
    "-*- coding: utf-7 -*-",
    "vim: set fileencoding=latin-1 :",
    "\x1b]52;c;aGk=\x07\x1b[2J\u202eevil",
    '"""',
    "\\",
]
SOURCES = [
    "class ModelNew:\n    pass\n",
    '"""A docstring."""\nfrom __future__ import annotations\nx = "\u2028é核"\n',
    "# -*- coding: latin-1 -*-\nx = 'é'\n",
    "\ufeffx = 1\r\ny = 2\rz = 3\n\x0c\nw = 4",
]


def attempt_with(text: str, source: str, status: Status = Status.CORRECT) -> Attempt:
    """An attempt with `text` in every text of it, past what verdict and kernel clean of theirs."""
    kernel = KernelReport("k", 40, 0, 0, 0, 1024, 8, 3, 0.75, "ab" * 32)
    timing = Timing(134.5, 134.1, 134.9, 12, 4800) if status is Status.CORRECT else None
    comparisons = (Comparison(text, 280.0, 2.08, 2.07, 2.09),) if timing else ()
    verdict = Verdict(status, "", timing=timing, comparisons=comparisons, tier="judged" if timing else None)
    object.__setattr__(verdict, "detail", text)
    object.__setattr__(kernel, "name", text)
    return Attempt(
        source, text, attempt_id=f"r/{text}/1", number=1, verdict=verdict, kernels=(kernel,), rank_key=(1.0,)
    )


def task(name: str) -> TaskSpec:
    return TaskSpec(name, "0" * 64, name, "", ())


def run_with(text: str) -> RunStarted:
    versions = {"torch": text, "triton": text, "kerneltune": text}
    return replace(started(text), gpu=text, arch=text, task_sha256=text, versions=versions)


@pytest.mark.parametrize("status", [Status.CORRECT, Status.CHECKED])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("text", HOSTILE)
def test_what_runs_in_best_py_is_the_candidate_and_nothing_else(
    text: str, source: str, status: Status, tmp_path: Path
) -> None:
    path = write_best(tmp_path, attempt_with(text, source, status), run_with(text), task(text))
    data = path.read_bytes()
    assert ast.dump(ast.parse(data)) == ast.dump(ast.parse(source.removeprefix("\ufeff")))
    header = data.decode().removesuffix(source.removeprefix("\ufeff"))
    lines = header.split("\n")
    assert all(line.startswith("#") for line in lines[:-2])
    assert header.replace("\n", "").isprintable()


TASK = '''"""Adds one."""
import torch
class Model(torch.nn.Module):
    def forward(self, x): return x + 1
def get_inputs(): return [torch.randn(4)]
'''


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("text", HOSTILE)
def test_the_file_to_put_into_a_model_holds_both_sources_and_the_rest_is_ours(
    text: str, source: str, tmp_path: Path
) -> None:
    leaf = {"$tensor": {"shape": [4], "dtype": "float32", "stride": None}}
    spec = TaskSpec(text, "0" * 64, text, TASK + f"# {text!r}\n", (CaseSpec("main", (leaf,), (), leaf),))
    write_best(tmp_path, attempt_with(text, source), run_with(text), spec)
    (path,) = set(tmp_path.glob("*_op.py")) - {tmp_path / "best.py"}
    made, plain = (
        ast.parse(path.read_bytes()),
        ast.parse(packaged([VerifiedKernel(spec, "")], arch="sm_90", header="")),
    )
    (kernel,) = (n for n in ast.walk(made) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "PackagedKernel")
    held = {k.arg: ast.literal_eval(k.value) for k in kernel.keywords}
    assert (held["source"], held["reference"]) == (source.removeprefix("\ufeff"), spec.source)
    for node in (n for tree in (made, plain) for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign)):
        if ast.unparse(getattr(node, "target", None) or node.targets[0]) in ("KERNELS", "NAME", "OP", "ARCH"):  # type: ignore[union-attr]
            node.value = ast.Constant(None)
    assert ast.dump(ast.Module(made.body[1:], [])) == ast.dump(ast.Module(plain.body[1:], []))  # but for the docstring


def test_the_header_shows_what_was_not_printable(tmp_path: Path) -> None:
    path = write_best(tmp_path, attempt_with("one\ntwo\x1b[2J", "x = 1\n"), run_with("H200"), task("softmax"))
    assert "(one two)" in path.read_text()
