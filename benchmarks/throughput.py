"""How many attempts a minute the whole machinery judges: trace, compile, check, and on a GPU time them.

    python -m benchmarks.throughput                     # 100 candidates; on a GPU at the tier "screened"
    python -m benchmarks.throughput --tier judged --width 4 --limit 30

Warm-up (imports, inputs, baselines) is told apart and not counted: it is paid once a run. The share of the time that
the GPU was busy is NVML's: each sample says for which percentage of the driver's last period (a sixth of a second to a
second) some kernel was running, anybody's.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.candidates import Candidate, candidates
from tools import machine as machines
from tools import pipeline
from tools.bench import Bench, CpuBench
from tools.codec import decode, encode
from tools.device import GpuInfo, Sampler, gpu_info
from tools.errors import TaskError
from tools.gpu_bench import gpu_bench
from tools.gpus import DEFAULT_ARCH
from tools.judge.service.protocol import Open, Opened
from tools.machine import Machine
from tools.task import find_task
from tools.tooling import Tools
from tools.update import UpdateLimits, Updater
from tools.verdict import Tier, Verdict
from tools.versions import versions

SAMPLES_HZ = 20.0
DESCRIBE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Limits:
    """When a candidate counts as endless; shorter than the product's 60 s and 120 s, so that three endless candidates
    do not decide the figure."""

    trace_s: float = 10.0
    replay_s: float = 20.0  # in the interpreter, without a GPU


@contextlib.contextmanager
def opened(task_name: str, machine: Machine, gpu: GpuInfo | None, limits: Limits) -> Iterator[Tools]:
    """The tools of one task, warm. Raises TaskError."""
    task_file = find_task(task_name)
    with machine.trusted("tools.judge.service.cpu_judge:main") as judge:
        body = judge.call(encode(Open(task_file.name, str(task_file.path))), timeout_s=DESCRIBE_TIMEOUT_S).body
        task = decode(Opened, body).task
        if task is None:
            raise TaskError(f"{task_name} cannot be used")
        update_limits = UpdateLimits(trace_s=limits.trace_s, max_variants=16 if gpu else 4)
        arch = f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH
        updater = Updater(task, arch, machine.tracer, machine.compiler, update_limits)
        if gpu is None:
            updater.compile_cases = [task.main.name]
            bench: Bench = CpuBench(task, judge, machine.interpreter, case_timeout_s=limits.replay_s)
            yield Tools(updater, bench, "checking")
            return
        with gpu_bench(task_file, task, machine) as timed:
            yield Tools(updater, timed, "timing")


class BusyWatch:
    """Samples NVML's utilisation in a thread while used as a context manager."""

    def __init__(self, gpu: GpuInfo | None) -> None:
        self._gpu, self._stop = gpu, threading.Event()
        self.percents: list[int] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        with Sampler(self._gpu.uuid if self._gpu else None) as sampler:
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
    judged: list[tuple[Candidate, pipeline.Judgement]] = field(default_factory=list)
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


def measure(chosen: Sequence[Candidate], *, width: int, tier: Tier, limits: Limits) -> Tally:
    """Judge the candidates of all tasks in one line, in their order, on one set of workers."""
    gpu, tally = gpu_info(), Tally(width, tier)
    started = time.perf_counter()
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(machines.started())
        for role, held in machine.enforced().items():
            print(f"{role}: confined {held.confined}, bubblewrap {held.bubblewrap_version or 'no'}", file=sys.stderr)
        tasks = sorted({c.task for c in chosen})
        tools = {task: stack.enter_context(opened(task, machine, gpu, limits)) for task in tasks}
        begun = time.perf_counter()
        tally.warm_up_s = begun - started
        with BusyWatch(gpu) as watch:
            line = [pipeline.Candidate(c.task, c.source, tools=tools[c.task]) for c in chosen]
            for judged in pipeline.judge_all(tools[tasks[0]], line, width=width, tier=tier):
                tally.judged.append((chosen[judged.index], judged))
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
    parser.add_argument("--json", metavar="FILE", help="write the summary and every verdict there")
    given = parser.parse_args()
    chosen = [c for c in candidates() if not given.task or c.task in given.task][: given.limit]
    chosen = [c for c in chosen if not (given.no_endless and c.kind == "timeout")]
    limits = Limits(given.trace_seconds, given.replay_seconds)
    tally = measure(chosen, width=given.width, tier=given.tier, limits=limits)
    _print(tally)
    if given.json:
        report = {"summary": tally.summary(), "versions": versions(), "verdicts": [_row(c, j) for c, j in tally.judged]}
        Path(given.json).write_text(json.dumps(report, indent=1))
    return int(bool(tally.unexpected()))


def _row(candidate: Candidate, judged: pipeline.Judgement) -> dict[str, Any]:
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
