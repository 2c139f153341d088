"""How long a report of a long run takes, and how large it is. Prints JSON.

    python -m benchmarks.report_scale --attempts 1000

The run is made up (`benchmarks.made_runs`): a model's, on a GPU, with its conversation, texts of the size of real ones
and a receipt with blocks of timings. What is measured is the whole command in a process of its own, imports included.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent.record.folder import receipt_path
from agent.record.store import Store
from agent.record.trajectory import AttemptRecord, trajectory
from benchmarks.made_runs import RunMaker
from tools.codec import Json, encode

_ROUNDS, _PROCESSES = 60, 3


def made(folder: Path, attempts: int, seed: int = 0) -> str:
    """Store such a run in `folder`, and return its id."""
    index = next(i for i in range(1000) if _fits(RunMaker(i, seed, attempts=attempts)))
    events = list(RunMaker(index, seed, attempts=attempts).events())
    with Store.open(folder) as store:
        for event in events:
            store.write(event)
    run = trajectory(events)
    if run.best is not None and run.best.timing is not None:
        path = receipt_path(folder / run.run.run_id, run.best.attempt_id)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(_receipt(run.best, random.Random(seed))))
    return run.run.run_id


def _fits(maker: RunMaker) -> bool:
    return maker.gpu is not None and maker.is_model


def _receipt(best: AttemptRecord, rng: random.Random) -> Json:
    """A receipt as far as a report reads it."""
    assert best.timing is not None
    centres = {"candidate": best.timing.median_us} | {c.baseline: c.baseline_us for c in best.comparisons}
    blocks = [
        {name: [round(us * rng.gauss(1, 0.002), 4) for _ in range(2)] for name, us in centres.items()}
        for _ in range(_ROUNDS)
    ]
    cases = [{"name": "main", "bytes_moved": 1 << 29, "flops": 1 << 40}]
    return {
        "schema_version": 1,
        "attempt_id": best.attempt_id,
        "task": {"precision": "bfloat16", "cases": cases},
        "verdict": {"timing": encode(best.timing)},
        "evidence": {"processes": [{"rounds": blocks} for _ in range(_PROCESSES)]},
    }


def measured(folder: Path, run_id: str) -> dict[str, Json]:
    """Seconds and bytes of one report."""
    out = folder / "report.html"
    command = [sys.executable, "-c", "from agent.cli import main; main()", "report", run_id]
    started, before = time.perf_counter(), os.times()
    subprocess.run([*command, "--runs-dir", str(folder), "-o", str(out)], check=True, capture_output=True)
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "bytes": out.stat().st_size}


def main() -> None:
    """Measure three times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="keep the run and the report in this folder")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.keep or Path(scratch)
        run_id = made(folder, asked.attempts)
        reports = [measured(folder, run_id) for _ in range(3)]
        print(json.dumps({"attempts": asked.attempts, "reports": reports}, indent=1))


if __name__ == "__main__":
    main()
