"""The public Python API, and what stays out of its way: other packages of the same names, and the wheel's top level."""

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import kerneltune
from kerneltune.agent.attempt import Attempt, StopReason
from kerneltune.agent.commands.lifecycle import RunOutcome
from kerneltune.agent.events import Event, Judged
from kerneltune.agent.view.state import ViewState
from kerneltune.tools.schema.errors import TaskError, UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Comparison, Status, Timing, Verdict
from tests.agent.record.samples import started
from tests.agent.shell import ROOT, env, optimize
from tests.test_house import HEAVY

SOFTMAX = """import torch, triton
import triton.language as tl

@triton.jit
def rows(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    at = tl.program_id(0).to(tl.int64) * n + i
    v = tl.load(x + at, mask=i < n, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.shape[-1]
        rows[(x.numel() // n,)](x, y, n, B=triton.next_power_of_2(n))
        return y
"""
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)

def get_inputs():
    return [torch.randn(16, 96)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def among_namesakes(tmp_path: Path) -> Path:
    """A folder with a task, a candidate, and a user's own packages of our names, which must not be imported."""
    for name in ("agent", "tools", "prompts", "tests", "corpus"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the user's own {name} was imported')\n")
    (tmp_path / "mytask.py").write_text(TASK)
    (tmp_path / "mine.py").write_text(SOFTMAX)
    return tmp_path


def run_python(code: str, cwd: Path) -> str:
    """What `python -c` prints with `cwd` first on its path, as in a user's own folder."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env(), capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_kerneltune_loads_nothing_heavy(tmp_path: Path) -> None:
    loaded = run_python("import sys, kerneltune; kerneltune.Task; print(*sys.modules)", tmp_path).split()
    assert {*HEAVY, "rich", "cyclopts", "httpx"} & set(loaded) == set()


def test_what_is_exported_is_there_and_the_version_is_that_of_the_package() -> None:
    assert all(hasattr(kerneltune, name) for name in kerneltune.__all__)
    assert optimize("--version", cwd=ROOT).stdout.strip() == kerneltune.__version__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kerneltune.nonsense  # noqa: B018


def test_a_task_is_opened_as_data(among_namesakes: Path) -> None:
    task = kerneltune.Task.open(among_namesakes / "mytask.py")
    assert (task.name, task.path, task.source) == ("mytask", among_namesakes / "mytask.py", TASK)
    assert kerneltune.Task.open("softmax").path.name == "softmax.py"
    with pytest.raises(TaskError, match="did you mean softmax"):
        kerneltune.Task.open("sotfmax")


@pytest.mark.usefixtures("forked_workers")
def test_bench_judges_a_source_and_a_file_and_keeps_what_it_is_told_to(among_namesakes: Path) -> None:
    task = kerneltune.Task.open(among_namesakes / "mytask.py")
    assert kerneltune.bench(SOFTMAX, task).accepted
    wrong = among_namesakes / "wrong.py"
    wrong.write_text(SOFTMAX.replace("tl.sum(e, 0)", "(tl.sum(e, 0) + 1)"))
    assert kerneltune.bench(wrong, task, runs_dir=among_namesakes / "kept").status is Status.WRONG
    assert [p.name for p in (among_namesakes / "kept").glob("*/receipts/*.json")] == ["1.json"]
    with pytest.raises(UsageError, match="cannot be read"):
        kerneltune.bench("nowhere.py", task)


@pytest.mark.usefixtures("forked_workers")
def test_optimize_stores_a_run_and_returns_its_best(tmp_path: Path) -> None:
    seen: list[Event] = []
    outcome = kerneltune.optimize(
        "softmax", model="offline", max_attempts=1, runs_dir=tmp_path / "runs", on_event=seen.append
    )
    assert outcome.best is not None
    assert outcome.best.accepted
    assert outcome.best_path is not None
    assert "class ModelNew" in outcome.best_path.read_text()
    assert [e.attempt_id for e in seen if isinstance(e, Judged)] == [outcome.best.attempt_id]
    assert (tmp_path / "runs" / "runs.db").is_file()
    with pytest.raises(UsageError, match="at least 1 attempt"):
        kerneltune.optimize("softmax", max_attempts=0, runs_dir=tmp_path / "other")


CODE = """import torch

class Tail(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))
    def forward(self, x):
        x = x.unflatten(1, (4, 8)).flatten(1, 2)  # 32 rows and no others
        return x * self.weight * 2
"""


@pytest.mark.usefixtures("forked_workers")
def test_a_module_is_optimised_as_it_is_called_and_the_kernel_goes_into_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tail_of_mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    tail = importlib.import_module("tail_of_mine").Tail
    x = torch.randn(4, 32, 64)
    result = kerneltune.optimize(tail(64), {"x": x}, model="offline", max_attempts=1, runs_dir=tmp_path / "runs")
    assert isinstance(result, kerneltune.Result)
    assert result.verdict is not None
    assert (result.verdict.status, result.speedups, result.task) == (Status.CHECKED, {}, "tail_task")
    assert result.source == result.best.source if result.best else False
    assert "✓ checked" in repr(result)
    assert result._repr_html_().startswith("<svg")
    path = result.package(tmp_path / "my_tail.py")
    assert "from my_tail import" in path.read_text()
    model = torch.nn.ModuleList([tail(64), tail(64)]).eval()
    assert list(result.patch(model, "*")) == ["0", "1"]
    with torch.no_grad(), pytest.warns(UserWarning, match="the reference runs"):
        assert torch.equal(model[0](x), x * 2)
    words: dict[str, Any] = {"model": "offline", "max_attempts": 1, "runs_dir": tmp_path / "runs"}
    gradients = kerneltune.optimize(tail(64), {"x": x}, backward=True, **words)
    assert gradients.task == "tail_backward_task"
    assert "backward=True" in result.package(path, backward=gradients).read_text()
    assert [entry.backward for entry in result.packaged(backward=gradients).VERIFIED] == [False, True, True, True]
    with pytest.raises(UsageError, match="give the inputs"):
        kerneltune.optimize(tail(64), runs_dir=tmp_path / "runs")


def test_speed_ups_come_with_their_intervals_and_a_run_without_a_kernel_has_none() -> None:
    timed = Verdict(
        Status.CORRECT,
        "",
        timing=Timing(10.0, 9.9, 10.1, 12, 4800),
        comparisons=(Comparison("eager", 28.0, 2.8, 2.7, 2.9),),
        tier="judged",
    )
    best = Attempt("class ModelNew: ...", "", attempt_id="r/1", number=1, verdict=timed, rank_key=(1.0,))
    spec = TaskSpec("t", "0" * 64, "float32", "", ())
    result = kerneltune.Result(RunOutcome("r", "t", StopReason.GOAL, spec, started("t"), 1, best), ViewState())
    assert [(k, v.speedup, v.low, v.high) for k, v in result.speedups.items()] == [("eager", 2.8, 2.7, 2.9)]
    nothing = kerneltune.Result(RunOutcome("r", "t", StopReason.TIME, spec, started("t"), 0), ViewState())
    assert (nothing.verdict, nothing.source, nothing.speedups) == (None, None, {})
    with pytest.raises(UsageError, match="no accepted kernel"):
        nothing.package("x.py")


def test_importing_is_immediate(tmp_path: Path) -> None:
    code = "import time; t = time.process_time(); import kerneltune; print(time.process_time() - t)"
    assert min(float(run_python(code, tmp_path)) for _ in range(3)) < 0.2


OURS = """
import sys
import kerneltune
outcome = kerneltune.optimize("./mytask.py", model="offline", max_attempts=1, runs_dir="runs")
print(outcome.best.accepted)
from kerneltune.agent.cli import main
sys.argv[1:] = ["bench", "mine.py", "--task", "mytask.py", "--no-store", "--plain"]
main()
"""


def test_packages_of_our_names_beside_a_task_are_not_imported(among_namesakes: Path) -> None:
    """By no process of a run from Python, nor by one of the command's; none of them is forked from a warm one."""
    told = run_python(OURS, among_namesakes).splitlines()
    assert told[0] == "True"
    assert any(line.startswith("✓ checked") for line in told), told


def test_the_wheel_holds_one_package_with_the_corpus_as_data(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    checkout = tmp_path / "checkout"  # a copy, since building leaves folders beside the sources
    for name in ("agent", "tools", "prompts", "corpus", "kerneltune"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n.partition("/")[0] for n in names} == {"kerneltune", f"kerneltune-{kerneltune.__version__}.dist-info"}
    sources = [path for room in ("agent", "tools", "prompts", "corpus") for path in (checkout / room).rglob("*.py")]
    assert {f"kerneltune/{path.relative_to(checkout)}" for path in sources} <= names
