"""Tiers, ceilings and the probe against kernels that remember, on a GPU. In a process of its own, as its sibling."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.shell import env
from tests.gpu.selfcheck_timing import ROW_A_PROGRAM, WEIGHTED

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_every_check_of_the_timing_self_check_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.selfcheck_timing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


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
