"""The judge with a watch: where the time of an attempt goes, as an entry of each verdict's receipt ("profile").

    python -m benchmarks.throughput --profile

Seconds by part, each without the parts inside it, so that they add up to the judge's time on the attempt. What is
enqueued on the GPU counts where the judge waits for it. `main` is a worker's entry, in place of the judge's own.
"""

import functools
import importlib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kerneltune.tools.judge.service import session

# module (below `kerneltune.tools`), owner in it ("" for the module itself), its functions
PARTS: tuple[tuple[str, str, str], ...] = (
    ("judge.service.session", "", "name_of images_of"),
    ("judge.service.tiers", "", "build_verdict plan_hash concluded"),
    ("judge.service.tiers", "QuickCheck", "verdict _case renew"),
    ("judge.execution.correctness_run", "PlanChecker", "_load _repeated _looked_into close"),
    ("judge.execution.correctness_run", "", "compare_in_parts same_bits images_for"),
    ("judge.execution.guard_pages", "GuardedMemory", "__init__ share lay harmed kept outputs close"),
    ("judge.execution.device_buffers", "InputBuffers", "fill harmed shared"),
    ("judge.execution.device_buffers", "OutputBuffers", "__init__ close poisoned judged"),
    ("judge.execution.runner_link", "RunnerLink", "_fresh distrust"),
    ("judge.timing.benchmark_setup", "BenchmarkSetup", "fill_for refresh expected verify settle place"),
    ("judge.timing.benchmark_setup", "", "compare_in_parts"),
    ("judge.execution.device_buffers", "", "same_bits"),
    ("judge.timing.baselines", "Baseline", "block"),
    ("judge.timing.gpu_use", "GpuWatch", "seen looked wait"),
    ("judge.timing.timing_run", "TimingRun", "_start _capture _measure_slope _probe _rounds _check_clocks"),
    ("judge.correctness.problem", "LoadedCase", "draw inputs expectation"),
    ("backends.base", "ClockWatch", "__enter__ __exit__ clocks reasons since"),
)  # fmt: skip


class Spans:
    """Seconds by name, without those of what ran inside."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.counts: dict[str, int] = defaultdict(int)
        self._inside: list[float] = [0.0]

    def timed(self, name_of: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed under the name that its arguments give."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            name, began_s = name_of(*args), time.perf_counter()
            self._inside.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                spent_s = time.perf_counter() - began_s
                self.seconds[name] += spent_s - self._inside.pop()
                self.counts[name] += 1
                self._inside[-1] += spent_s

        return call

    def taken(self) -> dict[str, list[float]]:
        """Seconds and calls by name since the last time; forgets them."""
        found = {name: [round(s, 6), self.counts[name]] for name, s in self.seconds.items()}
        self.seconds.clear()
        self.counts.clear()
        return found


def watch(spans: Spans) -> None:
    """Put the watch around the parts."""
    for where, owner, names in PARTS:
        module = importlib.import_module(f"kerneltune.tools.{where}")
        held = getattr(module, owner) if owner else module
        for name in names.split():
            label = f"{owner or where.rpartition('.')[2]}.{name}"
            setattr(held, name, spans.timed(lambda *_, label=label: label, getattr(held, name)))
    link = importlib.import_module("kerneltune.tools.judge.execution.runner_link").RunnerLink
    link.ask = spans.timed(lambda _, request, *rest: f"runner: {request.kind}", link.ask)
    torch.cuda.synchronize = spans.timed(lambda *_: "torch.cuda.synchronize", torch.cuda.synchronize)
    torch.cuda.empty_cache = spans.timed(lambda *_: "torch.cuda.empty_cache", torch.cuda.empty_cache)


def main(channel: Any) -> None:
    """The judge's entry, watched."""
    spans = Spans()
    watch(spans)
    judging = session.JudgeSession._bench

    def bench(self: session.JudgeSession, request: Any, blobs: list[bytes]) -> Any:
        spans.taken()
        began_s = time.perf_counter()
        verdict = spans.timed(lambda *_: "the judge's other code", judging)(self, request, blobs)
        profile = {**spans.taken(), "": [time.perf_counter() - began_s, 1]}
        return replace(verdict, receipt={**verdict.receipt, "profile": profile})

    setattr(session.JudgeSession, "_bench", bench)  # noqa: B010 - a method replaced on purpose
    session.main(channel)
