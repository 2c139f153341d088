"""How fast a large record becomes training data, and how much memory that takes. Prints JSON, one object a format.

    python -m benchmarks.store_scale --attempts 1000000 --out DIR       # once: makes the record
    python -m benchmarks.export_scale --runs-dir DIR --format kto --format rl-turns [--no-duplicates]

Rows per second are those of the whole command, imports and both passes included. Memory is the largest
proportional set size of its process, looked at every half second.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOOK_EVERY_S = 0.5


def measured(runs_dir: Path, format_spec: str, flags: Sequence[str]) -> dict[str, Any]:
    """One export into a folder that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="kerneltune-export-") as scratch:
        command = [sys.executable, "-c", "from agent.cli import main; main()", "export", "--json"]
        command += ["--runs-dir", str(runs_dir), "--format", format_spec, "-o", f"{scratch}/out", *flags]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        peak_bytes = 0
        while process.poll() is None:
            peak_bytes = max(peak_bytes, _pss_bytes(process.pid))
            time.sleep(LOOK_EVERY_S)
        seconds = time.perf_counter() - started
        assert process.stdout is not None
        told = json.load(process.stdout)
    rows = sum(sum(splits.values()) for splits in told["rows"].values())
    size = sum(f["bytes"] for f in told["manifest"]["files"])
    return {
        "format": format_spec,
        "flags": list(flags),
        "rows": rows,
        "seconds": round(seconds, 1),
        "rows_per_s": round(rows / seconds),
        "peak_pss_mb": round(peak_bytes / 1e6),
        "written_mb": round(size / 1e6),
    }


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Measure each format in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--format", action="append", required=True)
    asked, flags = parser.parse_known_args()
    for format_spec in asked.format:
        print(
            json.dumps(measured(asked.runs_dir, format_spec, flags) | {"cpus": len(os.sched_getaffinity(0))}),
            flush=True,
        )


if __name__ == "__main__":
    main()
