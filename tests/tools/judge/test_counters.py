"""Hardware counters: the process that is watched."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kerneltune.tools.judge.timing.counters import CounterReader, CountersUnavailable, find_ncu
from kerneltune.tools.schema.plan import Plan

PLAN = Plan(
    case="main", arch="sm_90", variant="default", storages=(), kernels=(), prepare=(), run=(), outputs={"$tuple": []}
)
# Runs what ncu would run, and looks at nothing.
BLIND = '#!/bin/sh\nwhile [ "$1" != "--export" ]; do shift; done\nshift 2\nexec "$@"\n'


@pytest.fixture
def blind_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called ncu, first on the PATH, that starts its target and writes no report."""
    program = tmp_path / "ncu"
    program.write_text(BLIND)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


def test_a_process_that_has_no_gpu_says_so_through_ncu(blind_ncu: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.py"
    task.write_text("import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n")
    assert find_ncu() == blind_ncu
    with CounterReader() as reader:
        process, folder = reader._process, reader._folder
        with pytest.raises(CountersUnavailable, match="Error: "):
            reader.read(PLAN, [], [], task)
    assert process.returncode is not None
    assert not folder.exists()


def test_a_reader_that_is_closed_before_it_was_asked_leaves_nothing(blind_ncu: Path) -> None:
    with CounterReader() as reader:
        process, folder = reader._process, reader._folder
    assert process.returncode is not None
    assert not folder.exists()


# What a driver that keeps its counters for others makes ncu say.
REFUSED = '#!/bin/sh\necho "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"\nexit 1\n'


def test_an_ncu_that_is_refused_is_quoted(blind_ncu: Path, tmp_path: Path) -> None:
    blind_ncu.write_text(REFUSED)
    with CounterReader() as reader, pytest.raises(CountersUnavailable, match="ERR_NVGPUCTRPERM"):
        reader.read(PLAN, [], [], tmp_path / "task.py")


HONEST = Path(__file__).parents[3] / "corpus" / "honest" / "associative_scan.py"


def receipt_with_counters(path: str, source: Path = HONEST, task: str = "cumsum") -> str:
    """What `bench` of an honest kernel prints, with that PATH."""
    command = [sys.executable, "-c", "from kerneltune.agent.cli import main; main()", "bench", str(source), "--json"]
    environment = os.environ | {"KERNELTUNE_COUNTERS": "true", "PYTHONPATH": os.pathsep.join(sys.path), "PATH": path}
    done = subprocess.run([*command, "--task", task, "--no-store"], capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr


@pytest.mark.gpu
def test_counters_of_a_judged_kernel_are_in_its_receipt() -> None:
    if find_ncu() is None:
        pytest.skip("ncu is not installed")
    assert "dram_read_bytes" in receipt_with_counters(os.environ["PATH"])


@pytest.mark.gpu
def test_where_ncu_is_refused_probes_are_in_the_receipt(blind_ncu: Path) -> None:
    blind_ncu.write_text(REFUSED)
    told = receipt_with_counters(os.environ["PATH"])
    assert "ERR_NVGPUCTRPERM" in told
    assert re.search(r'"resident_us": ?\d', told), told


PAIRS = """
import torch
ROWS = 32768  # whole pages: what may be read behind them lies in others
CASES = [{"name": "small", "ROWS": 3, "cpu": True}]
PRECISION = "float32"
INPUTS = {"x": {"values": "any", "slack": 1}}
class Model(torch.nn.Module):
    def forward(self, x): return x + torch.nn.functional.pad(x[1:], (0, 1))
def get_inputs(): return [torch.randn(ROWS * 1024)]
"""
READS_ITS_NEIGHBOUR = """
import torch, triton, triton.language as tl
@triton.jit
def pairs(x, y, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i) + tl.where(i + 1 < n, tl.load(x + i + 1), 0.0))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        pairs[(x.numel() // 1024,)](x, y, x.numel(), B=1024)
        return y
"""


@pytest.mark.gpu
def test_what_a_contract_lets_a_kernel_read_is_there_when_it_is_checked_timed_and_probed(
    blind_ncu: Path, tmp_path: Path
) -> None:
    blind_ncu.write_text(REFUSED)
    (tmp_path / "pairs.py").write_text(PAIRS)
    (tmp_path / "kernel.py").write_text(READS_ITS_NEIGHBOUR)
    told = receipt_with_counters(os.environ["PATH"], tmp_path / "kernel.py", str(tmp_path / "pairs.py"))
    assert '"correct"' in told
    assert re.search(r'"resident_us": ?\d', told), told
