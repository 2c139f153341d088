"""A report on tiers, clocks and the memory probe: `python -m tests.gpu.selfcheck_timing [CHECK…]` in the root.

Goes the product's own way: candidates as source, traced, compiled and judged in confined workers. Ends with status 1
when a check failed.
"""

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.aa_resolution import CANDIDATE, TASK
from kerneltune.tools.bench import GpuBench, calibrate, gpu_bench
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.gpus import Ceilings
from kerneltune.tools.schema.messages import Open, Opened
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.task.load import TaskFile, find_task
from kerneltune.tools.update import Update, Updater

SOFTMAX = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rows(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=float("-inf"))
    raised = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * n + at, raised / tl.sum(raised, 0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.shape[1]
        rows[(x.shape[0],)](x, y, n, BLOCK=triton.next_power_of_2(n), num_warps=@WARPS@, num_stages=@STAGES@)
        return y
"""
WAVES_TASK = """
import torch
from torch import nn

ROWS, COLUMNS = 2048, 1024
CASES = [{"name": "odd", "ROWS": 257, "COLUMNS": 100}, {"name": "even", "ROWS": 64, "COLUMNS": 256}]


class Model(nn.Module):
    def forward(self, x):
        for _ in range(24):
            x = torch.sin(x) * 0.5 + x * 0.25
        return x.sum(dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""
WAVES = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def wave_sum(x, row, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0.0)
    for _ in range(24):
        values = tl.sin(values) * 0.5 + values * 0.25
    return tl.sum(values, 0)


@triton.jit
def honest(x, y, memo, n, BLOCK: tl.constexpr, ENTRIES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.store(y + row, wave_sum(x, row, n, BLOCK))


@triton.jit
def remembering(x, y, memo, n, BLOCK: tl.constexpr, ENTRIES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(x + row * n).to(tl.int32, bitcast=True)
    second = tl.load(x + row * n + 1).to(tl.int32, bitcast=True)
    entry = memo + (((first >> 3) & (ENTRIES - 1)) * tl.num_programs(0) + row) * 3
    if (tl.load(entry) == first) & (tl.load(entry + 1) == second):
        tl.store(y + row, tl.load(entry + 2).to(tl.float32, bitcast=True))
    else:
        answer = wave_sum(x, row, n, BLOCK)
        tl.store(y + row, answer)
        tl.store(entry, first)
        tl.store(entry + 1, second)
        tl.store(entry + 2, answer.to(tl.int32, bitcast=True))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.memo = torch.zeros(64 * 2048 * 3, dtype=torch.int32, device="cuda")

    def forward(self, x):
        y = torch.empty(x.shape[0], device=x.device)
        n = x.shape[1]
        @KERNEL@[(x.shape[0],)](x, y, self.memo, n, BLOCK=triton.next_power_of_2(n), ENTRIES=64, num_warps=4)
        return y
"""
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


class Bed:
    """One task opened on the GPU; what its `sources` came to, which were traced and compiled meanwhile."""

    def __init__(self, bench: GpuBench, updates: Sequence[Update]) -> None:
        self.bench, self.updates = bench, updates

    def judged(self, number: int, tier: Tier = "judged") -> Verdict:
        """The verdict on a source."""
        return self.bench.bench(self.updates[number], tier)


def spec_of(machine: Machine, task_file: TaskFile) -> TaskSpec:
    """The task as the supervisor knows it."""
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        body = judge.call(encode(Open(task_file.name, str(task_file.path), task_file.sha256)), timeout_s=120).body
    task = decode(Opened, body).task
    assert task is not None, body
    return task


def updated(updater: Updater, source: str) -> Update:
    """Trace and compile. Raises AssertionError when that fails."""
    update = updater.update(source)
    assert update.failure is None, update.failure.detail
    return update


@contextmanager
def opened(
    machine: Machine,
    task: str,
    cache_dir: Path,
    baselines: tuple[str, ...],
    sources: Sequence[str] = (),
    ceilings: Ceilings | None = None,
) -> Iterator[Bed]:
    """The task on the GPU, with its baselines built, and beside that all sources traced and compiled, as many at a time
    as there are processors for: nothing is compiled while something is timed."""
    task_file = find_task(task)
    spec = spec_of(machine, task_file)
    updater = Updater(spec, "sm_90", machine.tracer, machine.compiler)
    started = time.monotonic()
    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        under_way = [pool.submit(updated, updater, source) for source in sources]
        with gpu_bench(task_file, spec, machine, baselines=baselines, ceilings=ceilings, cache_dir=cache_dir) as bench:
            print(f"     {task_file.name}: judge and baselines {baselines} after {time.monotonic() - started:.2f} s")
            updates = [update.result() for update in under_way]
            print(f"     {len(updates)} candidates compiled after {time.monotonic() - started:.2f} s")
            yield Bed(bench, updates)


def said(verdict: Verdict) -> str:
    """A verdict in a line."""
    ratios = ", ".join(f"{c.baseline} {c.speedup:.4f} [{c.low:.4f}, {c.high:.4f}]" for c in verdict.comparisons)
    t = verdict.timing
    us = f"{t.median_us:.3f} µs [{t.low_us:.3f}, {t.high_us:.3f}]; " if t else ""
    size = len(json.dumps(verdict.receipt))
    return f"{verdict.status.value} {verdict.tier}: {verdict.detail}; {us}{ratios}; receipt {size} bytes"


def softmax(machine: Machine, folder: Path) -> None:
    """Throughput of screening, then the other tiers."""
    sources = [
        SOFTMAX.replace("@STAGES@", str(stages)).replace("@WARPS@", str(warps))
        for stages in (1, 2, 3, 4, 5, 6)
        for warps in (8, 16)
    ]
    with opened(machine, "softmax", folder, ("eager", "compile", "compile-max"), sources) as bed:
        walls: list[float] = []
        for update in bed.updates:
            started = time.monotonic()
            verdict = bed.bench.bench(update, "screened")
            walls.append(time.monotonic() - started)
            assert verdict.status is Status.CORRECT, verdict
            facts = {k: verdict.receipt[k] for k in ("checks_s", "wall_s", "phases_s", "n_rounds")}
            print(f"     {walls[-1]:.3f} s {verdict.detail} {facts}", flush=True)
        print(
            f"     median {sorted(walls)[len(walls) // 2]:.3f} s, {60 / (sum(walls[1:]) / len(walls[1:])):.0f} a minute"
        )
        tiers: tuple[Tier, ...] = ("judged", "confirmed", "screened")
        for tier in tiers:
            started = time.monotonic()
            verdict = bed.judged(0, tier)
            print(f"     {time.monotonic() - started:.2f} s {said(verdict)}", flush=True)
            assert verdict.status is Status.CORRECT, verdict
            if tier == "judged":
                print("     ", verdict.receipt["phases_s"], verdict.receipt["memory_probe"])
            if tier == "confirmed":
                for process in verdict.receipt["processes"]:
                    print("     ", process["median_us"], process["speedups"], process["n_rounds"], process["phases_s"])


def waves(machine: Machine, folder: Path) -> None:
    """An honest kernel is correct, one that remembers is not."""
    path = folder / "waves.py"
    path.write_text(WAVES_TASK)
    stopped = (Status.IMPOSSIBLE, Status.WRONG)  # wrong: among whole numbers two rows may begin alike
    kernels = {"honest": (Status.CORRECT,), "remembering": stopped}
    sources = [WAVES.replace("@KERNEL@", kernel) for kernel in kernels]
    # with torch.compile its 24 steps take 30 s and change nothing
    with opened(machine, str(path), folder, ("eager",), sources) as bed:
        tiers: tuple[Tier, ...] = ("screened", "judged")
        for number, (kernel, wanted) in enumerate(kernels.items()):
            for tier in tiers:
                started = time.monotonic()
                verdict = bed.judged(number, tier)
                probe = verdict.receipt.get("memory_probe")
                print(f"     {kernel} {time.monotonic() - started:.2f} s {said(verdict)} probe {probe}", flush=True)
                print(f"      {verdict.receipt.get('phases_s')} checks {verdict.receipt.get('checks_s')}")
                assert verdict.status in wanted, verdict.detail


def weighted(machine: Machine, folder: Path) -> None:
    """A kernel that is fast at one weighted shape and slow at another is told so, screened and confirmed: a program for
    each row, of 8,192 lanes, is right for wide rows, and has 256 times too many lanes for narrow ones."""
    path = folder / "rows_task.py"
    path.write_text(WEIGHTED)
    with opened(machine, str(path), folder, ("eager", "compile", "compile-max"), [ROW_A_PROGRAM]) as bed:
        tiers: tuple[Tier, ...] = ("screened", "confirmed")
        for tier in tiers:
            started = time.monotonic()
            verdict = bed.judged(0, tier)
            print(f"     {time.monotonic() - started:.2f} s {said(verdict)}", flush=True)
            assert (verdict.status, verdict.tier) == (Status.CORRECT, tier), verdict.detail
            main, narrow = verdict.case_times
            assert (main.case, main.weight, narrow.case, narrow.weight) == ("main", 3.0, "narrow", 1.0)
            assert main.comparisons[0].speedup > 0.9
            assert narrow.comparisons[0].speedup < 0.5
            assert verdict.timing is not None
            score_us = (3 * main.timing.median_us + narrow.timing.median_us) / 4
            assert abs(verdict.timing.median_us / score_us - 1) < 0.01
            assert verdict.timing.low_us <= score_us <= verdict.timing.high_us
            fastest = verdict.comparisons[0]
            assert abs(fastest.speedup * score_us / fastest.baseline_us - 1) < 0.03
            assert "slower than" in verdict.detail
            assert "in case narrow" in verdict.detail


def small(machine: Machine, folder: Path, ceilings: Ceilings) -> None:
    """A launch of two microseconds: honest, credible, and measured ceilings in use."""
    path = folder / "double.py"
    path.write_text(TASK.format(rows=128, columns=1024))
    with opened(machine, str(path), folder, ("eager",), [CANDIDATE], ceilings) as bed:
        started = time.monotonic()
        verdict = bed.judged(0, "confirmed")
        facts = {k: verdict.receipt.get(k) for k in ("memory_probe", "null_us", "floor_us", "aa_resolution", "notes")}
        print(f"     {time.monotonic() - started:.2f} s {said(verdict)} {facts}", flush=True)
        assert verdict.status is Status.CORRECT, verdict.detail
        assert verdict.receipt["speed_of_light"]["source"] == "measured on this GPU"


def matmul(machine: Machine, folder: Path) -> None:
    """Baselines of a contraction: tuning takes long the first time, and is kept."""
    for _ in range(2):
        with opened(machine, "matmul_bias_relu", folder, ("eager", "compile", "compile-max")) as bed:
            told = bed.bench.warm()
            print(f"     {told.times_us} built in {told.build_s} s, notes {told.notes}")


def main() -> int:
    """Run all checks; the number of failures."""
    failures = 0
    with workers.started() as machine, tempfile.TemporaryDirectory() as folder:
        ceilings = functools.cache(lambda: calibrate(machine))
        checks: dict[str, Callable[[], object]] = {
            "calibrate": lambda: print(json.dumps(encode(ceilings()))),
            "softmax": lambda: softmax(machine, Path(folder)),
            "waves": lambda: waves(machine, Path(folder)),
            "weighted": lambda: weighted(machine, Path(folder)),
            "small": lambda: small(machine, Path(folder), ceilings()),
            "matmul": lambda: matmul(machine, Path(folder)),
        }
        for name, check in checks.items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            started = time.monotonic()
            try:
                check()
                print(f"ok   {name} {time.monotonic() - started:.1f} s", flush=True)
            except Exception as error:  # noqa: BLE001 - a report goes on
                failures += 1
                print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    return min(1, failures)


if __name__ == "__main__":
    sys.exit(main())
