"""Tiers, ceilings and the probe against kernels that remember, on a GPU. In a process of its own, as its sibling."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_every_check_of_the_timing_self_check_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.selfcheck_timing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
