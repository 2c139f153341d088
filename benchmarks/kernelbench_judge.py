"""The verdicts on one problem's first candidates: screened on a GPU, or replayed on a CPU where there is none."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from benchmarks.kernelbench_lines import RIGHT, STAGES, Line
from benchmarks.kernelbench_problem import Candidate, Deadline, OpenedProblem, Place, Problem
from tools.bench import CpuBench
from tools.codec import Json
from tools.device import Sampler
from tools.errors import GpuLost, KerneltuneError, TaskError
from tools.gpu_bench import GpuBench, waiting_judge
from tools.update import Update
from tools.verdict import Status, Verdict

BASELINES = ("eager", "compile")
_OPENED_AT_MOST = 2  # judges for one problem: one more when one candidate has ended the first
_LEFT_OVER_BYTES = 2 << 30  # that the GPU may hold of the problem before, whose processes have ended
_FREED_WITHIN_S = 5.0


class Bench(Protocol):
    """Judges a problem's candidates; `parts`: seconds of what it did beside that; `facts`: what it found."""

    parts: dict[str, float]
    facts: Line

    def bench(self, candidate: Candidate) -> Verdict:
        """The verdict on one that compiled."""
        ...


class OnCpu:
    """In the interpreter, on the cases that are small enough. No times."""

    def __init__(self, place: Place, deadline: Deadline) -> None:
        self.parts: dict[str, float] = {}
        self.facts: Line = {}
        self._new, self._deadline = deadline.of(place.machine.interpreter), deadline

    def bench(self, candidate: Candidate) -> Verdict:
        """Replayed and compared with float64."""
        opened = candidate.opened
        self._deadline.kills(opened.judge.kill)
        bench = CpuBench(opened.task, opened.judge, self._new, case_timeout_s=self._deadline.left_s)
        return bench.bench(candidate.update)


class OnGpu:
    """By a judge of its own, which is opened for the first candidate and again when one has ended it."""

    def __init__(self, place: Place, problem: Problem, deadline: Deadline, held: contextlib.ExitStack) -> None:
        self.parts: dict[str, float] = {"open": 0.0}
        self.facts: Line = {}
        self._place, self._waiting, self._deadline, self._held = place, problem.waiting, deadline, held
        self._limit_s, self._opened = place.limits.judge_s / 2, 0  # of one baseline: the rest needs time, too
        self._judge: GpuBench | None = None

    def bench(self, candidate: Candidate) -> Verdict:
        """Screened, against both baselines. Raises TaskError when the problem does not fit, GpuLost with the judge."""
        if self._judge is None:
            self._judge = self._open(candidate.opened)
        try:
            return self._judge.bench(candidate.update, "screened", all_baselines=True)
        except GpuLost as error:
            self._judge.kill()
            self._judge.close()  # with the runners, which hold memory of the GPU, too
            self._judge = None
            if self._deadline.over or self._opened >= _OPENED_AT_MOST:
                raise
            return Verdict(Status.CRASHED, str(error))

    def _open(self, opened: OpenedProblem) -> GpuBench:
        started_s = time.monotonic()
        self._opened += 1
        judge, self._waiting = self._waiting or self._started(), None
        self._deadline.kills(judge.kill)
        try:
            judge.open(opened.file, opened.task, baselines=BASELINES, baseline_limit_s=self._limit_s)
            self.parts["load"] = _since(started_s)
            found = judge.warm()
        finally:
            self.parts["open"] = round(self.parts["open"] + _since(started_s), 2)
        self.facts = {"baselines_us": dict(found.times_us), "build_s": dict(found.build_s), "notes": list(found.notes)}
        return judge

    def _started(self) -> GpuBench:
        return self._held.enter_context(waiting_judge(self._place.machine, self._place.judge))


class Judging:
    """Problems on this machine, one after the other."""

    def __init__(self, place: Place) -> None:
        self._place, self._gpu, self._limits = place, place.gpu, place.limits
        self._sampler = Sampler() if place.gpu else None
        self._used_bytes = self._now_used_bytes()

    def line(self, problem: Problem) -> Line:
        """One problem up to its end, whatever that is. Closes it."""
        started_s = time.monotonic()
        used_bytes = self._freed()
        parts: dict[str, float] = {"freed": _since(started_s)}
        with contextlib.closing(problem):
            line = self._judged(problem, parts)
            closing_s = time.monotonic()
        parts["end"] = _since(closing_s)
        parts["all"] = _since(started_s)
        if used_bytes is not None:
            line["used_before_mib"] = used_bytes >> 20
        return line | {"seconds": {"prepared": line.pop("prepared_s", 0.0), **parts}}

    def _judged(self, problem: Problem, parts: dict[str, float]) -> Line:
        started_s = time.monotonic()
        attempts: list[Line] = []
        parts["waited"] = 0.0
        more: Line = {"attempts": attempts, "lost": False}
        with contextlib.ExitStack() as held, Deadline(self._limits.judge_s) as deadline:
            bench: Bench = OnCpu(self._place, deadline)
            if self._gpu is not None:
                bench = OnGpu(self._place, problem, deadline, held)
            try:
                while candidate := self._next(problem, attempts, deadline, parts):
                    problem.line["stage"] = max(problem.line["stage"], stage_of(candidate.update), key=_rank)
                    attempt = _attempt(candidate, bench)
                    if deadline.over and attempt["stage"] not in RIGHT:  # its workers were killed in the middle
                        more["cause"] = self._late(bench)
                        break
                    attempts.append(attempt)
                    if not self._goes_on(attempts, time.monotonic() - started_s):
                        break
            except KerneltuneError as error:
                is_lost = isinstance(error, GpuLost) and not deadline.over
                more |= {"cause": self._why(error, bench, deadline), "lost": is_lost}
        parts |= bench.parts
        parts["judge"] = round(_since(started_s) - parts["waited"] - parts.get("open", 0.0), 2)
        return _line(problem, more | bench.facts)

    def _next(
        self, problem: Problem, attempts: Sequence[Line], deadline: Deadline, parts: dict[str, float]
    ) -> Candidate | None:
        """The next candidate. When there is one that is right, the GPU waits no longer than for a fair share of it."""
        started_s = time.monotonic()
        is_right = any(a["stage"] in RIGHT for a in attempts)
        share_s = max(0.0, self._limits.share_s - (self._limits.judge_s - deadline.left_s))
        candidate = problem.candidate(share_s if is_right else deadline.left_s)
        parts["waited"] = round(parts["waited"] + _since(started_s), 2)
        return candidate

    def _goes_on(self, attempts: Sequence[Line], seconds: float) -> bool:
        """Whether another candidate is worth its time."""
        right = [a for a in attempts if a["stage"] in RIGHT]
        if self._gpu is None and right:
            return False
        if len(attempts) < self._limits.attempts:
            return True
        fast = any(all(low > 1 for _, low, _ in a["over"].values()) for a in right)
        worth = not right or (not fast and seconds < self._limits.share_s)
        return worth and len(attempts) < self._limits.most

    def _why(self, error: KerneltuneError, bench: Bench, deadline: Deadline) -> str:
        if deadline.over:
            return self._late(bench)
        return str(error) if isinstance(error, TaskError) else f"{self._doing(bench)}: {type(error).__name__}: {error}"

    def _late(self, bench: Bench) -> str:
        return f"{self._doing(bench)}: more than {self._limits.judge_s:g} s"

    def _doing(self, bench: Bench) -> str:
        return "judging" if bench.facts or self._gpu is None else "opening"

    def _now_used_bytes(self) -> int | None:
        sample = self._sampler.sample() if self._sampler else None
        return sample.memory_used_bytes if sample else None

    def _freed(self) -> int | None:
        """What the GPU holds once the problem before has let go of its memory, or did not in time."""
        until_s = time.monotonic() + _FREED_WITHIN_S
        while (used := self._now_used_bytes()) is not None:
            if used <= (self._used_bytes or 0) + _LEFT_OVER_BYTES or time.monotonic() > until_s:
                return used
            time.sleep(0.05)
        return None


def _attempt(candidate: Candidate, bench: Bench) -> Line:
    started_s, update = time.monotonic(), candidate.update
    verdict = update.failure or bench.bench(candidate)
    times = {c.baseline: [c.speedup, c.low, c.high] for c in verdict.comparisons}
    timing = verdict.timing
    return {
        "sketch": candidate.proposal.params["sketch"],
        "stage": verdict.status.value if verdict.accepted else stage_of(update),
        "status": verdict.status.value,
        "detail": verdict.detail.strip().partition("\n")[0][:400],
        "seconds": [round(update.trace_s, 1), round(update.compile_s, 1), _since(started_s)],
        "library": list(dict.fromkeys(update.main_plan.library_ops)) if update.main_plan else [],
        "us": [timing.median_us, timing.low_us, timing.high_us] if timing else None,
        "over": times,
        "tier": verdict.tier,
        "slots": verdict.receipt.get("slots"),
        "coverage": verdict.coverage,
        "source": candidate.proposal.source,
    }


def stage_of(update: Update) -> str:
    """How far a candidate has come without a judge."""
    if update.failure is None:
        return "compiled"
    return "traced" if update.plans and update.failure.status is not Status.REJECTED else "proposed"


def _line(problem: Problem, more: Mapping[str, Any]) -> Line:
    """What is known of a problem: as it was prepared, and what was judged."""
    attempts = more["attempts"]
    line = {**problem.line, **more}
    line["stage"] = max([problem.line["stage"], *(a["stage"] for a in attempts)], key=_rank)
    if line["stage"] in RIGHT:
        return line | {"cause": "", "cut": more.get("cause", "")}
    told = "; ".join(dict.fromkeys(f"{a['status']}: {a['detail']}" for a in attempts))
    return line | {"cause": more.get("cause") or told or problem.line["cause"] or "no candidate came in time"}


def _rank(stage: Json) -> int:
    return STAGES.index(stage) if stage in STAGES else -1


def _since(started_s: float) -> float:
    return round(time.monotonic() - started_s, 2)
