"""How many attempts a minute the whole machinery judges: trace, compile, check, and on a GPU time them.

    python -m benchmarks.throughput                     # 100 candidates; on a GPU at the tier "screened"
    python -m benchmarks.throughput --tier judged --width 4 --limit 30
    python -m benchmarks.throughput --profile           # and where the judge's time goes

Warm-up (imports, inputs, baselines) is told apart and not counted: it is paid once a run. The share of the time that
the GPU was busy is NVML's: each sample says for which percentage of the driver's last period (a sixth of a second to a
second) some kernel was running, anybody's.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kerneltune.tools import evaluator
from kerneltune.tools.backends import gpu_info, gpu_sampler
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.bench import JUDGE, Bench, CpuBench, waiting_judge
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.gpus import DEFAULT_ARCH
from kerneltune.tools.schema.messages import BASELINES, Open, Opened
from kerneltune.tools.schema.verdict import Tier, Verdict, versions
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import UpdateLimits, Updater

HEADER = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n\n"
RIGHT = ("correct", "checked")
SEED = 20261121


@dataclass(frozen=True)
class Candidate:
    """A source for a built-in task. `kind` groups the table; `expected` are the statuses it may end with."""

    name: str
    task: str
    kind: str
    source: str
    expected: tuple[str, ...]


def candidates() -> tuple[Candidate, ...]:
    """All of them, shuffled in an order that never changes: neither kinds nor tasks arrive in blocks."""
    made = [*_softmax(), *_rms_norm(), *_matmul()]
    made += [*_repeated(made)]
    random.Random(SEED).shuffle(made)
    return tuple(made)


# Softmax ----------------------------------------------------------------------------------------------------------

_ROW = """
@triton.jit
def softmax_row(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * cols + c, e / tl.sum(e, axis=0), mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_row[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=WARPS)
        return y
"""
_ONLINE = """
@triton.jit
def softmax_online(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m = -float("inf")
    s = 0.0
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        high = tl.maximum(m, tl.max(v, axis=0))
        s = s * tl.exp(m - high) + tl.sum(tl.exp(v - high), axis=0)
        m = high
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        tl.store(y + row * cols + c, tl.exp(v - m) / s, mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_online[(x.shape[0],)](x, y, x.shape[1], BLOCK=COLUMNS, num_warps=WARPS)
        return y
"""


def _softmax() -> Iterator[Candidate]:
    for warps in (8, 16, 32):
        yield _good("softmax", f"row, {warps} warps", _ROW.replace("WARPS", str(warps)))
    for columns in (1024, 2048, 4096, 8192):
        for warps in (4, 8):
            source = _ONLINE.replace("COLUMNS", str(columns)).replace("WARPS", str(warps))
            yield _good("softmax", f"online, {columns} columns, {warps} warps", source)
    row, online = _ROW.replace("WARPS", "8"), _ONLINE.replace("COLUMNS", "2048").replace("WARPS", "4")
    yield from _wrong_softmax(row, online)
    yield from _broken("softmax", row, "tl.max(v, axis=0)")
    yield from _endless("softmax", row, online)
    yield from _not_kernels("softmax", "(self, x)", "torch.softmax(x, dim=-1)")
    yield _slow_to_compile("softmax", row, "    e = tl.exp(v", 3000)


def _wrong_softmax(row: str, online: str) -> Iterator[Candidate]:
    normalised = "e / tl.sum(e, axis=0)"
    changes = {
        "all zeros": (normalised, "e * 0.0"),
        "one over the columns": (normalised, "e * 0.0 + 1.0 / cols"),
        "exponentials without their sum": (normalised, "e"),
        "a sum of 99.9 %": (normalised, "e / (tl.sum(e, axis=0) * 1.001)"),
        "no maximum taken": ("v - tl.max(v, axis=0)", "v"),
        "the tail counted as zeros": ('other=-float("inf")', "other=0.0"),
        "half precision inside": ("tl.exp(v - tl.max(v, axis=0))", "tl.exp(v - tl.max(v, axis=0)).to(tl.float16)"),
        "every second row": ("tl.program_id(0)", "(tl.program_id(0) // 2 * 2)"),
    }
    for name, (old, new) in changes.items():
        yield _made("softmax", "wrong", name, _changed(row, old, new), "wrong")
    reach = {
        "the sum is not rescaled": ("s * tl.exp(m - high)", "s"),
        "stops early": ("(0, cols, BLOCK)", "(0, 2048, BLOCK)"),
    }
    for name, (old, new) in reach.items():
        yield _made("softmax", "wrong", f"online, {name}", _changed(online, old, new), "wrong")
    unmasked = row.replace(", mask=c < cols)", ")")
    yield _made("softmax", "out of bounds", "stores the whole block", unmasked, "wrong", "crashed", "rejected")
    past = row.replace("mask=c < cols, other", "mask=c <= cols, other").replace("mask=c < cols)", "mask=c <= cols)")
    yield _made("softmax", "out of bounds", "one column too far", past, "wrong", "crashed", "rejected")
    further = _changed(row, "(x.shape[0],)", "(x.shape[0] + 1,)")
    yield _made("softmax", "out of bounds", "one row too far", further, "wrong", "crashed", "rejected")


# RMS norm ---------------------------------------------------------------------------------------------------------

_RMS = """
@triton.jit
def rms_norm(x, w, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + c, mask=c < cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / cols + eps)
    g = tl.load(w + c, mask=c < cols, other=0.0).to(tl.float32)
    tl.store(y + row * cols + c, v * scale * g, mask=c < cols)


class ModelNew(nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        rms_norm[(x.shape[0],)](x, self.weight, y, x.shape[1], self.eps, BLOCK=block, num_warps=WARPS)
        return y
"""


def _rms_norm() -> Iterator[Candidate]:
    for warps in (2, 4, 8, 16):
        source = _RMS.replace("WARPS", str(warps))
        yield _good("rms_norm", f"{warps} warps", source)
        root = _changed(source, "v * scale * g", "v / tl.sqrt(tl.sum(v * v, axis=0) / cols + eps) * g")
        yield _good("rms_norm", f"{warps} warps, by division", root)
    good = _RMS.replace("WARPS", "4")
    changes = {
        "no weight": ("v * scale * g", "v * scale"),
        "no mean": (" / cols + eps", " + eps"),
        "the mean of a power of two": (" / cols + eps", " / BLOCK + eps"),
        "half of it": ("v * scale * g", "v * scale * g * 0.5"),
        "the input": ("v * scale * g", "v"),
        "the first weight for all": ("tl.load(w + c,", "tl.load(w + c * 0,"),
    }
    for name, (old, new) in changes.items():
        yield _made("rms_norm", "wrong", name, _changed(good, old, new), "wrong")
    unmasked = good.replace("v * scale * g, mask=c < cols)", "v * scale * g)")
    yield _made("rms_norm", "out of bounds", "stores the whole block", unmasked, "wrong", "crashed", "rejected")
    yield from _broken("rms_norm", good, "tl.sum(v * v, axis=0)")
    yield from _endless("rms_norm", good, "")


# Matmul -----------------------------------------------------------------------------------------------------------

_MATMUL = """
@triton.jit
def matmul(a, b, bias, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    cols = tl.program_id(1).to(tl.int64) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + rows[:, None] * K + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + cols[None, :], mask=(k[:, None] < K) & (cols[None, :] < N), other=0.0)
        acc = tl.dot(left, right, acc)
    acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    out = tl.maximum(acc, 0.0)
    tl.store(c + rows[:, None] * N + cols[None, :], out, mask=(rows[:, None] < M) & (cols[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, n) * k**-0.5)
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x):
        (m, k), n = x.shape, self.weight.shape[1]
        y = torch.empty((m, n), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(m, ROWS), triton.cdiv(n, COLS))
        tile = dict(BM=ROWS, BN=COLS, BK=DEPTH)
        matmul[grid](x, self.weight, self.bias, y, m, n, k, **tile, num_warps=WARPS, num_stages=STAGES)
        return y
"""
_TILES = [(64, 64, 32, 4, 2), (64, 64, 64, 4, 3), (128, 64, 32, 4, 3), (128, 64, 64, 4, 4), (64, 128, 32, 4, 4)]
_TILES += [(64, 128, 64, 8, 3), (128, 128, 32, 4, 3), (128, 128, 32, 8, 4), (128, 128, 64, 4, 3), (128, 128, 64, 8, 4)]
_TILES += [(128, 256, 32, 8, 3), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3)]


def _tiled(tile: tuple[int, int, int, int, int]) -> str:
    source = _MATMUL
    for name, value in zip(("ROWS", "COLS", "DEPTH", "WARPS", "STAGES"), tile, strict=True):
        source = source.replace(name, str(value))
    return source


def _matmul() -> Iterator[Candidate]:
    for tile in _TILES:
        yield _good("matmul_bias_relu", "tile {}x{}x{}, {} warps, {} stages".format(*tile), _tiled(tile))
    good = _tiled((64, 64, 32, 4, 3))
    changes = {
        "no bias": ("    acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]\n", ""),
        "no relu": ("tl.maximum(acc, 0.0)", "acc"),
        "the last tile of K left out": ("(0, K, BK)", "(0, K - BK, BK)"),
        "the bias of a row": ("bias + cols, mask=cols < N", "bias + rows, mask=rows < N"),
        "transposed weight": ("k[:, None] * N + cols[None, :], mask=(k", "cols[None, :] * K + k[:, None], mask=(k"),
        "float8 operands": ("tl.dot(left, right, acc)", "tl.dot(left.to(tl.float8e5), right.to(tl.float8e5), acc)"),
    }
    for name, (old, new) in changes.items():
        yield _made("matmul_bias_relu", "wrong", name, _changed(good, old, new), "wrong")
    unmasked = _changed(good, "out, mask=(rows[:, None] < M) & (cols[None, :] < N))", "out)")
    yield _made("matmul_bias_relu", "out of bounds", "stores whole tiles", unmasked, "wrong", "crashed", "rejected")
    huge = _tiled((256, 256, 128, 8, 4))
    yield _made("matmul_bias_relu", "broken", "too much shared memory", huge, "compile_failed")
    yield from _broken("matmul_bias_relu", good, "tl.maximum(acc, 0.0)")
    yield _slow_to_compile("matmul_bias_relu", good, "    out = tl.max", 2000)


# Of every task ----------------------------------------------------------------------------------------------------


def _broken(task: str, good: str, expression: str) -> Iterator[Candidate]:
    """What models get wrong before anything runs."""
    changes = {
        "syntax error": ("class ModelNew", "class ModelNew(", "crashed"),
        "a name that does not exist": (expression, "not_defined", "compile_failed"),
        "a function that Triton lacks": (expression, "tl.softplus_fast(0.0)", "compile_failed"),
        "shapes that do not fit": (expression, f"({expression} + tl.arange(0, 3))", "compile_failed"),
        "no ModelNew": ("class ModelNew", "class Model", "rejected"),
        "a missing package": ("class ModelNew", "import flash_kernels_that_nobody_has\n\n\nclass ModelNew", "crashed"),
        "an option that does not exist": ("num_warps=", "warps_per_block=", "crashed"),
    }
    for name, (old, new, status) in changes.items():
        yield _made(task, "broken", name, good.replace(old, new, 1), status, "crashed", "compile_failed", "rejected")


def _endless(task: str, row: str, online: str) -> Iterator[Candidate]:
    source = _changed(row, "class ModelNew", "while True:\n    pass\n\n\nclass ModelNew")
    yield _made(task, "timeout", "an endless import", source, "timed_out")
    if online:
        loop = _changed(online, "    for start in range(0, cols, BLOCK):\n", "    start = 0\n    while start < cols:\n")
        yield _made(task, "timeout", "a kernel that never ends", loop, "timed_out")


def _not_kernels(task: str, parameters: str, expression: str) -> Iterator[Candidate]:
    def model(body: str) -> str:
        return f"class ModelNew(nn.Module):\n    def forward{parameters}:\n        {body}\n"

    yield _made(task, "library only", "the reference itself", model(f"return {expression}"), "rejected", *RIGHT)
    steps = "e = torch.exp(x - x.amax(-1, keepdim=True)); return e / e.sum(-1, keepdim=True)"
    yield _made(task, "library only", "its steps in torch", model(steps), "rejected", *RIGHT)
    yield _made(
        task, "rejected", "torch.compile", model(f"return torch.compile(lambda x: {expression})(x)"), "rejected"
    )
    reads = f"if x.max().item() > 1: return {expression}\n        return x"
    yield _made(task, "rejected", "reads a value on the host", model(reads), "rejected")


def _slow_to_compile(task: str, good: str, before: str, steps: int) -> Candidate:
    value = "v" if task == "softmax" else "acc"
    unrolled = f"    for i in tl.static_range({steps}):\n        {value} = {value} * 1.0 + 0.0 * i\n"
    source = _changed(good, before, unrolled + before)
    return _made(task, "slow to compile", f"{steps} steps unrolled", source, *RIGHT, "timed_out", "wrong")


def _repeated(made: list[Candidate]) -> Iterator[Candidate]:
    """What a model says again: word by word, or with another comment."""
    good = [c for c in made if c.kind == "good"]
    for index in range(100 - len(made)):
        first = good[index * 5 % len(good)]
        said = first.source if index % 2 else f"# attempt {index}\n{first.source}"
        yield replace(first, name=f"{first.name} (again)", kind="repeated", source=said)


def _good(task: str, name: str, source: str) -> Candidate:
    return _made(task, "good", name, source, *RIGHT)


def _made(task: str, kind: str, name: str, source: str, *expected: str) -> Candidate:
    return Candidate(name, task, kind, HEADER + source.strip("\n") + "\n", expected)


def _changed(source: str, old: str, new: str) -> str:
    """Raises ValueError when there is nothing to change: a wrong candidate that is not wrong would spoil the table."""
    if old not in source:
        raise ValueError(f"no {old!r} in the template")
    return source.replace(old, new)


SAMPLES_HZ = 20.0
DESCRIBE_TIMEOUT_S = 120.0
WATCHED_JUDGE = "benchmarks.judge_profile:main"


@dataclass(frozen=True)
class Limits:
    """When a candidate counts as endless; shorter than the product's 60 s and 120 s, so that three endless candidates
    do not decide the figure."""

    trace_s: float = 10.0
    replay_s: float = 20.0  # in the interpreter, without a GPU


@dataclass(frozen=True)
class JudgeOptions:
    """The judge's entry on a GPU, and the baselines that it builds."""

    entry: str = JUDGE
    baselines: tuple[str, ...] = BASELINES


@contextlib.contextmanager
def opened(
    task_name: str, machine: Machine, gpu: GpuInfo | None, limits: Limits, options: JudgeOptions
) -> Iterator[Evaluator]:
    """The tools of one task, warm. Raises TaskError."""
    task_file = find_task(task_name)
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        request = Open(task_file.name, str(task_file.path), task_file.sha256)
        body = judge.call(encode(request), timeout_s=DESCRIBE_TIMEOUT_S).body
        task = decode(Opened, body).task
        if task is None:
            raise TaskError(f"{task_name} cannot be used")
        update_limits = UpdateLimits(trace_s=limits.trace_s, max_variants=16 if gpu else 4)
        arch = f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH
        updater = Updater(task, arch, machine.tracer, machine.compiler, update_limits)
        if gpu is None:
            updater.compile_cases = [task.main.name]
            bench: Bench = CpuBench(task, judge, machine.interpreter, case_timeout_s=limits.replay_s)
            yield Evaluator(updater, bench, "checking")
            return
        confined_to = task_file if options.entry == JUDGE else None  # a watched judge is a benchmark's own
        with waiting_judge(machine, options.entry, task_file=confined_to) as timed:
            timed.prepare()
            timed.open(task_file, task, baselines=options.baselines)
            timed.warm()
            yield Evaluator(updater, timed, "timing")


class BusyWatch:
    """Samples NVML's utilisation in a thread while used as a context manager."""

    def __init__(self, gpu: GpuInfo | None) -> None:
        self._gpu, self._stop = gpu, threading.Event()
        self.percents: list[int] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        with gpu_sampler(self._gpu.uuid if self._gpu else None) as sampler:
            while not self._stop.wait(1 / SAMPLES_HZ):
                sample = sampler.sample()
                if sample is not None and sample.utilisation_percent is not None:
                    self.percents.append(sample.utilisation_percent)

    def __enter__(self) -> "BusyWatch":
        if self._gpu is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


@dataclass
class Tally:
    """What a pass over the candidates of all tasks came to."""

    width: int
    tier: Tier
    warm_up_s: float = 0.0
    wall_s: float = 0.0
    judged: list[tuple[Candidate, evaluator.Judgement]] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)  # of the bench for each of them, until it had a plan
    busy_percents: list[int] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """The figures; seconds of stages are summed over workers, shares are of the wall time of one worker."""
        done = [judged for _, judged in self.judged]
        benched = [judged.bench_s for judged in done if judged.bench_s]
        stages = {
            "trace": sum(j.update.trace_s for j in done),
            "compile": sum(j.update.compile_s for j in done),
            "judge": sum(benched),
        }
        busy = self.busy_percents
        return {
            "candidates": len(done),
            "accepted": sum(j.verdict.accepted for j in done),
            "tier": self.tier,
            "width": self.width,
            "warm_up_s": round(self.warm_up_s, 2),
            "wall_s": round(self.wall_s, 2),
            "attempts_per_minute": round(60 * len(done) / self.wall_s, 1) if self.wall_s else None,
            "stage_s": {name: round(seconds, 2) for name, seconds in stages.items()},
            "stage_share_of_wall": {name: round(seconds / self.wall_s, 3) for name, seconds in stages.items()},
            "median_trace_s": _median([j.update.trace_s for j in done if j.update.trace_s]),
            "median_compile_s": _median([j.update.compile_s for j in done if j.update.compile_s]),
            "median_judge_s": _median(benched),
            "bench_waited_s": round(sum(self.waits_s), 2),
            "last_wait_s": round(self.waits_s[-1], 2) if self.waits_s else None,
            "gpu_samples": len(busy),
            "gpu_busy_share_of_samples": round(sum(p > 0 for p in busy) / len(busy), 3) if busy else None,
            "gpu_mean_utilisation_percent": round(statistics.fmean(busy), 1) if busy else None,
        }

    def unexpected(self) -> list[str]:
        """Candidates that ended otherwise than they were made to."""
        return [
            f"{c.task} / {c.kind} / {c.name}: {j.verdict.status.value} instead of {c.expected[0]}: {_line(j.verdict)}"
            for c, j in self.judged
            if j.verdict.status.value not in c.expected
        ]

    def table(self) -> Iterator[str]:
        """Statuses by kind."""
        kinds: dict[str, Counter[str]] = defaultdict(Counter)
        for candidate, judged in self.judged:
            kinds[candidate.kind][judged.verdict.status.value] += 1
        for kind, counts in sorted(kinds.items()):
            yield f"  {kind:16} " + ", ".join(f"{n} {status}" for status, n in counts.most_common())


def _median(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds), 4) if seconds else None


def _line(verdict: Verdict) -> str:
    return verdict.detail.strip().partition("\n")[0][:160]


def measure(
    chosen: Sequence[Candidate], *, width: int, tier: Tier, limits: Limits, options: JudgeOptions = JudgeOptions()
) -> Tally:
    """Judge the candidates of all tasks in one line, in their order, on one set of workers."""
    gpu, tally = gpu_info(), Tally(width, tier)
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        warming = stack.enter_context(workers.begun(cache_dir=Path(tempfile.gettempdir()) / "kerneltune-benchmarks"))
        machine = warming.machine()
        for role, held in machine.enforced().items():
            print(f"{role}: confined {held.confined}, bubblewrap {held.bubblewrap_version or 'no'}", file=sys.stderr)
        tasks = sorted({c.task for c in chosen})
        tools = {task: stack.enter_context(opened(task, machine, gpu, limits, options)) for task in tasks}
        begun = time.perf_counter()
        tally.warm_up_s = begun - started
        with BusyWatch(gpu) as watch:
            line = [evaluator.Candidate(c.task, c.source, evaluator=tools[c.task]) for c in chosen]
            before = begun
            for judged in evaluator.judge_all(tools[tasks[0]], line, width=width, tier=tier):
                now = time.perf_counter()
                tally.judged.append((chosen[judged.index], judged))
                tally.waits_s.append(now - before - judged.bench_s)
                before = now
        tally.wall_s = time.perf_counter() - begun
        tally.busy_percents = watch.percents
    return tally


def main() -> int:
    """Measure, print; 1 when a candidate ended otherwise than it was made to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=["screened", "judged"], default="screened")
    parser.add_argument("--width", type=int, default=max(2, (os.cpu_count() or 2) - 2))
    parser.add_argument("--limit", type=int, default=100, help="the first so many candidates")
    parser.add_argument("--task", action="append", help="only this task; may be repeated")
    parser.add_argument("--trace-seconds", type=float, default=Limits.trace_s, help="when tracing counts as endless")
    parser.add_argument("--replay-seconds", type=float, default=Limits.replay_s, help="the same, of the interpreter")
    parser.add_argument("--no-endless", action="store_true", help="leave out what never ends by itself")
    parser.add_argument("--profile", action="store_true", help="watch the judge, and print where its time goes")
    parser.add_argument("--baselines", nargs="+", choices=BASELINES, default=list(BASELINES))
    parser.add_argument("--json", metavar="FILE", help="write the summary and every verdict there")
    given = parser.parse_args()
    chosen = [c for c in candidates() if not given.task or c.task in given.task][: given.limit]
    chosen = [c for c in chosen if not (given.no_endless and c.kind == "timeout")]
    limits = Limits(given.trace_seconds, given.replay_seconds)
    options = JudgeOptions(WATCHED_JUDGE if given.profile else JUDGE, tuple(given.baselines))
    tally = measure(chosen, width=given.width, tier=given.tier, limits=limits, options=options)
    _print(tally)
    if given.profile:
        print(*profile(tally), sep="\n")
    if given.json:
        report = {"summary": tally.summary(), "versions": versions(), "verdicts": [_row(c, j) for c, j in tally.judged]}
        Path(given.json).write_text(json.dumps(report, indent=1))
    return int(bool(tally.unexpected()))


def profile(tally: Tally) -> Iterator[str]:
    """Where the judge's time went, and what it and the other workers waited for."""
    kinds: dict[tuple[str, bool], list[tuple[Candidate, evaluator.Judgement]]] = defaultdict(list)
    for candidate, judged in tally.judged:
        if judged.bench_s:
            kinds[judged.verdict.status.value, bool(judged.verdict.receipt.get("reused"))].append((candidate, judged))
    for (status, reused), rows in sorted(kinds.items()):
        known = " (known already)" * reused
        yield f"\n{status}{known}: {len(rows)}; bench {_spread([j.bench_s for _, j in rows])}"
        if watched := [j for _, j in rows if "profile" in j.verdict.receipt and not reused]:
            yield from _parts(watched)
    yield "\nlongest waits of the bench for a plan (s), and what came then"
    waits = sorted(zip(tally.waits_s, tally.judged, strict=True), key=lambda row: -row[0])
    for waited_s, (candidate, judged) in waits[:8]:
        place = next(i for i, row in enumerate(tally.judged) if row[1] is judged)
        spent = f"traced {judged.update.trace_s:.2f}, compiled {judged.update.compile_s:.2f}"
        which = f"{candidate.task} {candidate.name}"
        yield f"  {waited_s:7.3f}  as {place + 1:3}. (given as {judged.index + 1:3}.) {spent}: {which}"
    yield "\nslowest to trace and compile (s)"
    for candidate, judged in sorted(tally.judged, key=lambda r: -r[1].update.trace_s - r[1].update.compile_s)[:8]:
        yield f"  {judged.update.trace_s:7.2f} {judged.update.compile_s:7.2f}  {candidate.task} {candidate.name}"
    for stage in ("trace_s", "compile_s"):
        yield f"{stage}: {_spread([s for _, j in tally.judged if (s := getattr(j.update, stage))])}"


def _spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds) or [0.0]
    return (
        f"sum {sum(ordered):.2f} s, median {statistics.median(ordered) * 1e3:.1f} ms, "
        f"p95 {ordered[int(0.95 * (len(ordered) - 1))] * 1e3:.1f} ms"
    )


def _parts(rows: Sequence[evaluator.Judgement]) -> Iterator[str]:
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for judged in rows:
        for name, (seconds, count) in judged.verdict.receipt["profile"].items():
            found[name].append((seconds, count))
    whole_s = sum(seconds for seconds, _ in found.pop("", []))
    spent_s = sum(judged.bench_s for judged in rows)
    yield f"  {'sum s':>8} {'share':>6} {'median ms':>10} {'p95 ms':>8} {'calls':>6}  of {len(rows)} attempts"
    for name, made in sorted(found.items(), key=lambda item: -sum(s for s, _ in item[1])):
        seconds = sorted(s for s, _ in made)
        total_s = sum(seconds)
        if total_s > 0.002 * whole_s:
            calls = sum(n for _, n in made) / len(rows)
            middle, high = statistics.median(seconds), seconds[int(0.95 * (len(seconds) - 1))]
            figures = f"{total_s:8.3f} {total_s / whole_s:6.1%} {middle * 1e3:10.2f} {high * 1e3:8.2f} {calls:6.1f}"
            yield f"  {figures}  {name}"
    yield f"  {spent_s - whole_s:8.3f} {'':33}  beside it: messages, plans and cubins on their way"


def _row(candidate: Candidate, judged: evaluator.Judgement) -> dict[str, Any]:
    said = {"status": judged.verdict.status.value, "detail": _line(judged.verdict), "judge_s": round(judged.bench_s, 4)}
    spent = {"trace_s": round(judged.update.trace_s, 4), "compile_s": round(judged.update.compile_s, 4)}
    return {"task": candidate.task, "kind": candidate.kind, "name": candidate.name} | said | spent


def _print(tally: Tally) -> None:
    for name, value in tally.summary().items():
        print(f"{name:28} {value}")
    print(*tally.table(), sep="\n")
    for line in tally.unexpected():
        print(f"UNEXPECTED {line}")


if __name__ == "__main__":
    sys.exit(main())
