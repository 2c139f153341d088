"""Tiers, ceilings and the probe against kernels that remember, on a GPU. In a process of its own, as its sibling."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.shell import env

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_every_check_of_the_timing_self_check_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.selfcheck_timing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


WEIGHTED = """
import torch
from torch import nn

ROWS, COLUMNS = 8192, 8192
WEIGHT = 3
CASES = [
    {"name": "narrow", "ROWS": 262144, "COLUMNS": 32, "weight": 1},
    {"name": "small", "ROWS": 5, "COLUMNS": 33, "held_out": True},
]


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""
ROW_A_PROGRAM = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rows(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    x = tl.load(x_ptr + at, mask=inside, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + at, e / tl.sum(e, axis=0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=8192, num_warps=16)
        return y
"""


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tier", ["screened", "confirmed"])
def test_a_kernel_that_is_fast_at_one_weighted_shape_and_slow_at_another_is_told_so(tmp_path: Path, tier: str) -> None:
    """A program for each row, of 8,192 lanes: right for wide rows, and 256 times too many lanes for narrow ones."""
    (tmp_path / "rows_task.py").write_text(WEIGHTED)
    (tmp_path / "rows.py").write_text(ROW_A_PROGRAM)
    # an interpreter of its own: workers of the process that all tests share see no GPU
    command = [sys.executable, "-c", "from kerneltune.agent.cli import main; main()"]
    asked = ["bench", "rows.py", "--task", "rows_task.py", "--tier", tier, "--json", "--no-store"]
    done = subprocess.run([*command, *asked], cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=300)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    verdict = next(line["verdict"] for line in told if line["type"] == "judged_file")
    assert (verdict["status"], verdict["tier"]) == ("correct", tier), verdict["detail"]
    main, narrow = verdict["case_times"]
    assert (main["case"], main["weight"], narrow["case"], narrow["weight"]) == ("main", 3.0, "narrow", 1.0)
    assert main["comparisons"][0]["speedup"] > 0.9
    assert narrow["comparisons"][0]["speedup"] < 0.5
    score_us = (3 * main["timing"]["median_us"] + narrow["timing"]["median_us"]) / 4
    assert verdict["timing"]["median_us"] == pytest.approx(score_us, rel=0.01)
    assert verdict["timing"]["low_us"] <= score_us <= verdict["timing"]["high_us"]
    fastest = verdict["comparisons"][0]
    assert fastest["speedup"] == pytest.approx(fastest["baseline_us"] / score_us, rel=0.03)
    assert "slower than" in verdict["detail"]
    assert "in case narrow" in verdict["detail"]


AROUND = """tl.store(room_ptr + at, e, mask=inside)
    e = tl.load(room_ptr + at, mask=inside, other=0.0)
    """
ROOM = """room = torch.empty(6 << 30, dtype=torch.float32, device=x.device)
        """


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_a_kernel_is_timed_whose_workspace_does_not_fit_once_for_each_slot(tmp_path: Path) -> None:
    """24 GiB, of which half of an H200 holds two and of an H100 one; there are three slots at least."""
    (tmp_path / "rows_task.py").write_text(WEIGHTED.partition("WEIGHT = 3")[0] + WEIGHTED.partition("]\n")[2])
    (tmp_path / "rows.py").write_text(
        ROW_A_PROGRAM.replace("y_ptr, columns", "y_ptr, room_ptr, columns")
        .replace("tl.store(y_ptr", f"{AROUND}tl.store(y_ptr")
        .replace("rows[(x.shape[0],)](x, y,", f"{ROOM}rows[(x.shape[0],)](x, y, room,")
    )
    command = [sys.executable, "-c", "from kerneltune.agent.cli import main; main()"]
    asked = ["bench", "rows.py", "--task", "rows_task.py", "--tier", "judged", "--json", "--no-store"]
    done = subprocess.run([*command, *asked], cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=500)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    verdict = next(line["verdict"] for line in told if line["type"] == "judged_file")
    assert verdict["status"] == "correct", verdict["detail"]
