"""Evaluates the candidates of one task: its update and bench together, and many candidates one after the other.

`judge_all` traces and compiles `width` at a time while the bench, which is one, works on those before.

    for judgement in judge_all(evaluator, [Candidate("a.py", source), ...], width=4, tier="screened"):
        print(judgement.index, judgement.verdict.status, judgement.seconds)

Judgements come in the order in which they are ready; `index` is their place in the input. At most `4 * width`
candidates are under way or waiting for the bench, so that compiled kernels do not pile up, and candidates are taken
from an iterator only when there is room. Leaving the loop early, by `break` or Ctrl-C, cancels the rest.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kerneltune.tools.schema.verdict import Status, Tier, Verdict

if TYPE_CHECKING:
    from kerneltune.tools.bench import Bench
    from kerneltune.tools.update import Update, Updater


@dataclass(frozen=True)
class Evaluator:
    """`update` and `bench` of one open task on this machine (`reflect` is pure: see `tools.reflect`). `bench_stage`:
    what a bench does to a candidate here; `judging`: held by the thread that benches, as the bench takes one at a
    time."""

    updater: "Updater"
    benches: "Bench"
    bench_stage: Literal["checking", "timing"]
    judging: AbstractContextManager[Any] = field(default_factory=threading.Lock)

    def ordered(self, update: "Update", verdict: Verdict | None = None) -> "Update":
        """With what orders it among others that nobody times, if the verdict (None: not known yet) lets it count: its
        kernels are disassembled for that, which takes 0.4 s of a processor for each."""
        counts = verdict.accepted if verdict else update.failure is None
        if not counts or self.bench_stage == "timing" or update.effective_bytes is not None:
            return update
        return replace(update, effective_bytes=self.updater.effective_bytes(update))


@dataclass(frozen=True)
class Candidate:
    """A source by name. `problem`: why it is no text, for which it is rejected untraced; `evaluator`: that of its task,
    where candidates of several tasks are judged together."""

    name: str
    source: str
    problem: str = ""
    evaluator: Evaluator | None = None


@dataclass(frozen=True)
class Judgement:
    """What came of a candidate. `index` is its place in the input, from 0."""

    index: int
    update: "Update"
    verdict: Verdict
    bench_s: float

    @property
    def seconds(self) -> float:
        """Time spent on it: tracing, compiling and judging."""
        return self.update.trace_s + self.update.compile_s + self.bench_s


def judge_all(
    evaluator: Evaluator, candidates: Iterable[Candidate], *, width: int = 2, tier: Tier = "judged"
) -> Iterator[Judgement]:
    """Judge each candidate once. A candidate's failure is its verdict; our own failures are raised as they are."""
    left, waiting = enumerate(candidates), dict["Future[Update]", tuple[int, Evaluator]]()
    pool = ThreadPoolExecutor(width, thread_name_prefix="update")

    def fill() -> None:
        # with half as many, one of 28 s was begun after 10 s, 14 side by side, and was waited for at the end
        while len(waiting) < 4 * width and (following := next(left, None)):
            index, candidate = following
            its = candidate.evaluator or evaluator
            waiting[pool.submit(_update, its, candidate)] = (index, its)

    try:
        fill()
        while waiting:
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            future = min(ready, key=lambda one: waiting[one][0])
            index, its = waiting.pop(future)
            fill()  # before the bench: the others go on meanwhile
            update, began_s = future.result(), time.perf_counter()
            verdict = update.failure or its.benches.bench(update, tier)
            yield Judgement(index, update, verdict, time.perf_counter() - began_s)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _update(evaluator: Evaluator, candidate: Candidate) -> "Update":
    if candidate.problem:
        from kerneltune.tools.update import Update  # a client of the service only names candidates

        return Update(failure=Verdict(Status.REJECTED, candidate.problem))
    return evaluator.updater.update(candidate.source)
