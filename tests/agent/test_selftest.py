"""`selftest` over a stand-in corpus, through the real evaluator."""

import json
from pathlib import Path

import pytest

from kerneltune.agent.commands.selftest import SpecimenResult, is_clean, run_corpus, tallies
from kerneltune.agent.settings import Settings
from kerneltune.tools import corpus
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status, Verdict

pytestmark = pytest.mark.usefixtures("forked_workers")
TASK = '''"""Doubled."""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0

def get_inputs():
    return [torch.randn(24, 40)]

def get_init_inputs():
    return []
'''
KERNEL = '''"""{says}"""
import torch, triton
import triton.language as tl

SPECIMEN = {specimen}

@triton.jit
def double(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, {value}, mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), B=256)
        return y
'''
RIGHT, WRONG = "tl.load(x + i, mask=i < n) * 2.0", "tl.load(x + i, mask=i < n) * 2.01"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two attacks, one of which is a right kernel after all, one that needs a GPU, an honest kernel and a twin."""
    folder = tmp_path / "exploits"
    specimens = {
        "attacks/lazy/constant.py": ("Writes nearly the answer.", {"task": "doubled"}, WRONG),
        "attacks/caching/disguised.py": ("The twin in disguise.", {"task": "doubled", "twin": "honest_twin"}, RIGHT),
        "attacks/timing/clock.py": ("Slows the clock.", {"task": "doubled", "needs_gpu": True}, RIGHT),
        "honest/plain.py": ("As it should be.", {"task": "doubled"}, RIGHT),
        "twins/honest_twin.py": ("The twin.", {}, RIGHT),
    }
    for name, (says, specimen, value) in specimens.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(KERNEL.format(says=says, specimen=specimen, value=value))
    (folder / "tasks").mkdir()
    (folder / "tasks" / "doubled.py").write_text(TASK)
    return folder


def run(root: Path, *families: str, only_list: bool = False, json: bool = True) -> int:
    return run_corpus(corpus.load_corpus(root), Settings(), families=families, json=json, only_list=only_list)


def test_every_attack_is_stopped_or_its_honest_twin_and_no_honest_kernel_is_rejected(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["gpu"]) == (True, None)
    assert {s["name"]: s["outcome"] for s in found["specimens"]} == {
        "constant": "stopped",
        "disguised": "stopped",
        "clock": "skipped",
        "plain": "right",
    }


def test_an_attack_that_gets_through_and_an_honest_kernel_that_is_rejected_are_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attack, honest = root / "attacks" / "lazy" / "constant.py", root / "honest" / "plain.py"
    attack.write_text(attack.read_text().replace("2.01", "2.0"))
    honest.write_text(honest.read_text().replace("* 2.0", "* 2.5"))
    assert run(root, json=False) == 1
    shown = capsys.readouterr().out
    assert "NOT STOPPED lazy/constant: Writes nearly the answer.; checked: right on" in shown
    assert "FALSE ALARM honest/plain: As it should be.; wrong:" in shown
    assert "1 of 2 attacks stopped, 1 of 1 honest kernels rejected; 1 skipped (no GPU); without a GPU" in shown


def test_one_class_can_be_chosen_and_an_unknown_one_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, "lazy") == 0
    assert [s["name"] for s in json.loads(capsys.readouterr().out)["specimens"]] == ["constant"]
    with pytest.raises(UsageError, match="no class 'nonsense'; the corpus has caching, honest, lazy, timing"):
        run(root, "nonsense")


def test_the_corpus_is_listed_without_running_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, only_list=True, json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert any(line.startswith("timing") and "clock (GPU): Slows the clock." in line for line in lines)


def result(kind: str, outcome: str, family: str = "lazy") -> SpecimenResult:
    specimen = corpus.Specimen("x", Path("x.py"), kind, family, "softmax", "", (), (), False, None)  # type: ignore[arg-type]
    return SpecimenResult(specimen, outcome, Verdict(Status.WRONG, ""))  # type: ignore[arg-type]


def test_nothing_that_ran_is_not_a_pass() -> None:
    assert not is_clean([])
    assert not is_clean([result("attack", "skipped")])
    assert is_clean([result("attack", "stopped"), result("attack", "skipped")])


def test_the_counts_of_a_class_add_up() -> None:
    (row,) = tallies([result("attack", "stopped"), result("attack", "accepted"), result("honest", "false_alarm")])
    assert tuple(row.values()) == ("lazy", 2, 1, 1, 1, 0)
