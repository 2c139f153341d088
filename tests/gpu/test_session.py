"""Judge and runner on a GPU, as a supervisor drives them: right, wrong, scribbling, out of bounds, endless.

In a process of its own: the self-check forks judge and runners, and this process may have touched CUDA already.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_every_check_of_the_gpu_self_check_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.selfcheck_runner", "--quick"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.timeout(120)
def test_what_no_graph_can_hold_is_seen_beforehand_or_leaves_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.selfcheck_capture"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
