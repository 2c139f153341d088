"""What differences of time the judge can tell apart: kernels timed against themselves, by judge and runner as always.

    python -m benchmarks.aa_resolution [--pairs 30] [--pair-s 0.3] [--json]

For row copies of several sizes: the 99th percentile and the largest |ratio - 1| over the pairs. Needs a GPU.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kerneltune.tools.bench import GpuBench, gpu_bench
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import Open, Opened, Resolved
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update, Updater

SIZES = ((128, 1024), (2048, 1024), (2048, 8192), (8192, 8192), (32768, 8192))
TASK = """
import torch
from torch import nn

ROWS, COLUMNS = {rows}, {columns}


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024, num_warps=4)
        return y
"""


@contextmanager
def opened(machine: Machine, rows: int, columns: int) -> Iterator[tuple[GpuBench, Update]]:
    """A task of that size on the GPU, and the compiled candidate."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "double.py"
        path.write_text(TASK.format(rows=rows, columns=columns))
        task_file = find_task(str(path))
        with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
            body = judge.call(encode(Open(task_file.name, str(path), task_file.sha256)), timeout_s=120).body
        task = decode(Opened, body).task
        assert task is not None, body
        update = Updater(task, "sm_90", machine.tracer, machine.compiler).update(CANDIDATE)
        assert update.failure is None, update.failure
        with gpu_bench(task_file, task, machine, baselines=("eager",)) as bench:
            yield bench, update


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def main() -> int:
    """Print a line per size; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--pair-s", type=float, default=0.3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with workers.started() as machine:
        for rows, columns in SIZES:
            with opened(machine, rows, columns) as (bench, update):
                found = bench.resolution(update, asked.pairs, asked.pair_s)
            print(_line(rows, columns, found, as_json=asked.json), flush=True)
    return 0


def _line(rows: int, columns: int, found: Resolved, *, as_json: bool) -> str:
    if found.problem:
        return f"{rows}x{columns}: {found.problem}"
    sizes = [abs(ratio - 1) for ratio in found.ratios]
    if as_json:
        return json.dumps({"rows": rows, "columns": columns, **encode(found)})
    return (
        f"{rows}x{columns} float32: {found.median_us:8.2f} µs, {found.slots} slots, {len(sizes)} pairs: "
        f"median {percentile(sizes, 0.5):.3%}, p99 {percentile(sizes, 0.99):.3%}, largest {max(sizes):.3%}"
    )


if __name__ == "__main__":
    sys.exit(main())
