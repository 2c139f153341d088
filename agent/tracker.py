"""Tracks the attempts of one run through update, bench and reflect: numbers, verdicts, predictions, cost, events.

Each call says what happens as events and remembers what it led to. Any number of threads may work side by side: updates
overlap, and one bench at a time has the judge. When they are made is the loop's business.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import log
from typing import Literal

from kerneltune.agent.attempt import (
    FINALISTS,
    Attempt,
    GivenFile,
    Outcome,
    Proposal,
    Tiers,
    best,
    deserves_judging,
    key_again,
    rank_key,
    rank_order,
    twins,
)
from kerneltune.agent.events import (
    AttemptSkipped,
    Emit,
    Judged,
    JudgingAgain,
    Proposed,
    Reflected,
    Stage,
    StageStarted,
    Updated,
    Verified,
    Warned,
    after,
    proposed_attempt,
)
from kerneltune.agent.repeat import repeated, unfinished
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.reflect import FLAT, evidence, outcome
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.update import Update

Keep = Callable[[str, str, Update, Verdict, Tier | None], object]  # of attempt id, source, …: keeps the receipt


_RECENT = 4  # replies
_GROWTH = 1.5  # prompts grow from reply to reply
_OUTPUTS = 20  # replies whose lengths tell that of the next
_FIRST_OUTPUT = 1_500  # tokens: a design and its words


class GivenUp(Exception):
    """An attempt is left without a verdict: a person skipped it, or the run is over. It says nothing about the
    candidate, so nothing of it is stored."""


@dataclass(frozen=True)
class Place:
    """Where a verdict is reached."""

    gpu: str | None = None
    machine: dict[str, Json] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


class CostTracker:
    """What the replies of a run have cost so far, and what is likely to be asked for next. Any thread may use it. A
    reply of unknown cost counts as much as the dearest of the last few, so that a limit holds all the same; nothing
    where no price is known at all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._outputs: deque[int] = deque(maxlen=_OUTPUTS)
        self._expected: dict[str, float] = {}
        self.replies = 0
        self.cost_usd = 0.0
        self.unpriced = 0

    def add(self, cost_usd: float | None, output_tokens: int | None = None) -> None:
        """Count a reply of that cost and length; None when it is unknown."""
        with self._lock:
            self.replies += 1
            self.unpriced += cost_usd is None
            if cost_usd is None:
                cost_usd = max(self._recent, default=0.0)
            self.cost_usd += cost_usd
            self._recent.append(cost_usd)
            if output_tokens is not None:
                self._outputs.append(output_tokens)

    def expect(self, conversation: str, usd: float | None) -> None:
        """Keep what the next request of a conversation is likely to cost, until it is known: half as much again as the
        dearest of the last few where `usd` is None, 0 when there will be none."""
        with self._lock:
            self._expected[conversation] = _GROWTH * max(self._recent, default=0.0) if usd is None else usd

    @property
    def next_usd(self) -> float:
        """What all conversations are likely to be billed for the requests that are under way or come next."""
        with self._lock:
            return sum(self._expected.values())

    def expected(self, conversation: str) -> float:
        """The part of one conversation in that."""
        with self._lock:
            return self._expected.get(conversation, 0.0)

    @property
    def output_tokens(self) -> int:
        """How long the next reply is likely to be at most: as nine in ten of the last ones; a guess before there are
        any."""
        with self._lock:
            longest = sorted(self._outputs)
        return longest[(9 * len(longest) - 1) // 10] if longest else _FIRST_OUTPUT


@dataclass
class AttemptTracker:
    """`attempts` are the finished ones in the order of their verdicts, also those of an earlier process; `left`: those
    that it began and was killed over."""

    run_id: str
    task: TaskSpec
    tools: Evaluator
    emit: Emit
    attempts: list[Attempt] = field(default_factory=list)
    next_number: int = 1
    tiers: Tiers = field(default_factory=Tiers)
    keep: Keep = lambda *_: None
    place: Place = field(default_factory=Place)
    cost: CostTracker = field(default_factory=CostTracker)
    left: list[Attempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbering, self._ending = threading.Lock(), threading.Lock()
        self._open = {attempt.attempt_id for attempt in self.left}
        self._busy: set[str] = set()  # being traced, compiled or checked now
        self._given_up: set[str] = set()
        self._closed = False
        self._leading: dict[str, Update] = {}  # of the best, which are judged again
        self.predictions: list[Reflected] = []  # those that were held against a verdict, as `is_scored` says
        self.bench_s = 0.0  # time that the judge was busy

    @property
    def begun(self) -> int:
        """Attempts that are finished or begun, each once, also those that a killed process left."""
        with self._numbering:
            return len(self.attempts) + len(self._open)

    @property
    def best(self) -> Attempt | None:
        """The best so far."""
        return best(list(self.attempts))

    def find(self, attempt_id: str | None) -> Attempt | None:
        """A finished attempt."""
        return next((a for a in list(self.attempts) if a.attempt_id == attempt_id), None)

    def skip(self) -> int:
        """Give up the attempts that are being traced, compiled or checked, or wait for the judge; says how many. What
        the GPU is timing is finished: that takes seconds, and stopping it would cost the runner."""
        with self._numbering:
            self._given_up |= self._busy
            return len(self._busy)

    def close(self) -> None:
        """No verdict counts from now on: workers that end with the run must not look like failures of candidates."""
        with self._ending:
            self._closed = True

    @contextlib.contextmanager
    def _at_work(self, attempt_id: str) -> Iterator[None]:
        with self._numbering:
            self._busy.add(attempt_id)
        try:
            self._insist(attempt_id)
            yield
        except GivenUp:
            with self._numbering:
                self._open.discard(attempt_id)
            if not self._closed:
                self.emit(AttemptSkipped(self.run_id, attempt_id))
            raise
        finally:
            with self._numbering:
                self._busy.discard(attempt_id)

    def _insist(self, attempt_id: str) -> None:
        """Raise GivenUp when whatever came of the attempt no longer counts."""
        if self._closed:
            raise GivenUp("the run is over")
        if attempt_id in self._given_up:
            number = attempt_id.rpartition("/")[2]
            raise GivenUp(f"attempt {number} was skipped by a person and has no verdict; try something else")

    def propose(self, proposal: Proposal, most: int | None = None) -> Attempt | None:
        """Give a candidate its number; None when `most` have begun."""
        with self._numbering:
            if most is not None and len(self.attempts) + len(self._open) >= most:
                return None
            number = self.next_number
            self.next_number += 1
            attempt_id = f"{self.run_id}/{number}"
            self._open.add(attempt_id)
        proposed = Proposed(
            self.run_id, attempt_id, number, proposal.parent_id, proposal.source, proposal.rationale, proposal.origin,
            proposal.hypothesis, proposal.prediction, proposal.predicted_speedup,
        )  # fmt: skip
        self.emit(proposed)
        return proposed_attempt(proposed)

    def update(self, proposal: Proposal) -> Attempt:
        """Trace and compile a candidate, or an attempt that `propose` made of it; a failure is part of the result.
        Raises GivenUp."""
        attempt = proposal if isinstance(proposal, Attempt) else self.propose(proposal)
        assert attempt is not None
        attempt_id, origin = attempt.attempt_id, attempt.origin

        def told(stage: str) -> None:
            self.emit(StageStarted(self.run_id, attempt_id, Stage(stage)))

        with self._at_work(attempt_id):
            if isinstance(origin, GivenFile) and origin.problem:
                update = Update(failure=Verdict(Status.REJECTED, origin.problem))
            else:
                update = self.tools.updater.update(attempt.source, told)
            self._insist(attempt_id)
            event = updated(self.run_id, attempt_id, update)
            if attempt.trace_s is None:  # else an earlier process has stored it
                self.emit(event)
        # where attempts are judged again, plans tell which are the same: it takes milliseconds
        plans_sha256 = update.plans_sha256 if self.tiers.again else ""
        return replace(after(attempt, event), update=update, plans_sha256=plans_sha256)

    def bench(self, attempt: Attempt) -> Attempt:
        """Check and time what `update` returned; afterwards the attempt is finished, and what it claimed is held
        against its verdict. Raises GivenUp."""
        update = attempt.update
        assert update is not None
        with self._at_work(attempt.attempt_id):
            if update.failure:  # waits for nobody's turn: of 84 answers of a trainer 32 did, up to 20 s each
                return self._finish(attempt, update, update.failure, 0.0)
            with self.tools.judging:
                self._insist(attempt.attempt_id)
                started = time.perf_counter()
                looks = self._judge(attempt, update)
                bench_s = time.perf_counter() - started
                self.bench_s += bench_s
            left = len(looks) > 1 and unfinished(looks[0], looks[-1])
            attempt = self._finish(attempt, update, looks[0] if left else looks[-1], bench_s)
            if left:
                self._stands_beside(attempt, looks[-1], update, 0.0)
            return attempt

    def _judge(self, attempt: Attempt, update: Update) -> list[Verdict]:
        """The verdicts of the tiers that it was put through, one or two."""
        self.emit(StageStarted(self.run_id, attempt.attempt_id, Stage(self.tools.bench_stage)))
        if self.tools.bench_stage == "timing":
            with self._numbering:
                self._busy.discard(attempt.attempt_id)
        verdict = self.tools.benches.bench(update, self.tiers.first or "judged")
        if self.tiers.promote and deserves_judging(verdict, self.best):
            return [verdict, self.tools.benches.bench(update, "judged")]
        return [verdict]

    def _finish(self, attempt: Attempt, update: Update, verdict: Verdict, bench_s: float) -> Attempt:
        update = self.tools.ordered(update, verdict)
        key = rank_key(verdict, update)
        with self._ending:
            self._insist(attempt.attempt_id)
            judged = Judged(self.run_id, attempt.attempt_id, verdict, round(bench_s, 4), False, key)
            finished = replace(after(attempt, judged), update=None)
            judged = replace(judged, best=best([*self.attempts, finished]) is finished)
            try:
                self.keep(attempt.attempt_id, attempt.source, update, verdict, self.tiers.first)
            except StoreError:  # a receipt that finds no room on the disk hides no verdict
                self.emit(judged)
                raise
            self.emit(judged)
            with self._numbering:  # after it is stored, and at no moment both finished and under way
                self.attempts.append(finished := replace(finished, best=judged.best))
                self._open.discard(attempt.attempt_id)
            self._remember(finished, update)
            self._reflect(finished)
        return finished

    def _remember(self, attempt: Attempt, update: Update) -> None:
        """Keep what the best were compiled to, so that no judge waits while that is done again."""
        self._leading[attempt.attempt_id] = update
        leaders = sorted((a for a in self.attempts if a.attempt_id in self._leading and a.rank_key), key=rank_order)
        self._leading = {a.attempt_id: self._leading[a.attempt_id] for a in leaders[: 2 * FINALISTS]}

    def _note(self, event: Verified | Reflected) -> None:
        """Emit an event of a finished attempt, and change the attempt by it."""
        self.emit(event)
        with self._numbering:
            self.attempts[:] = [after(a, event) if a.attempt_id == event.attempt_id else a for a in self.attempts]

    def note(self, attempt: Attempt, hypothesis: str) -> None:
        """Keep what is thought to limit an attempt: open, as no verdict on it decides that."""
        self._note(self._reflected(attempt, hypothesis, "", None))

    def _reflect(self, attempt: Attempt) -> None:
        """Hold what an attempt claimed about its parent against its verdict."""
        if not attempt.hypothesis:
            return
        parent = self.find(attempt.parent_id)
        said = self._reflected(
            attempt, attempt.hypothesis, attempt.prediction, attempt.predicted_speedup, self._outcome(attempt, parent)
        )
        if attempt.timing and parent and parent.timing:
            speedup = round(parent.timing.median_us / attempt.timing.median_us, 4)
            said = replace(said, evidence=said.evidence | {"measured_speedup": speedup})
        if is_scored(said):
            self.predictions.append(said)
        self._note(said)

    def _outcome(self, attempt: Attempt, parent: Attempt | None) -> Outcome:
        """Whether an attempt is as much faster than its parent as it claimed, or right where that one was not; open
        where nobody could look, as at a speed-up over a parent without a time."""
        if parent is None or Status.UNCHECKED in (attempt.status, parent.status):
            return "open"
        if not parent.accepted:
            of_speed = abs(log(attempt.predicted_speedup or 1.0)) >= FLAT
            return "refuted" if not attempt.accepted else "open" if of_speed else "confirmed"
        if parent.timing is None or (attempt.accepted and attempt.timing is None):
            return "open"  # without a clock nobody knows which is faster
        us = attempt.rank_key[0] if attempt.accepted else None
        return outcome(us, parent.rank_key[0], attempt.predicted_speedup)

    def _reflected(
        self, attempt: Attempt, hypothesis: str, prediction: str, speedup: float | None, held: Outcome = "open"
    ) -> Reflected:
        parent = self.find(attempt.parent_id)
        facts = evidence(self.task, attempt.judged, attempt.kernels, parent.verdict if parent else None)
        return Reflected(
            self.run_id, attempt.attempt_id, hypothesis, prediction, facts | {"predicted_speedup": speedup}, held
        )

    def judge_again(self, attempt: Attempt, tier: Tier) -> float:
        """More thoroughly than before; that verdict counts from now on, if the look came to an end. Returns its
        seconds."""
        self.emit(JudgingAgain(self.run_id, attempt.attempt_id, tier))
        source = attempt.source
        update = self._leading.get(attempt.attempt_id) or self.tools.updater.update(source)
        with self.tools.judging:
            started = time.perf_counter()
            verdict = update.failure or self.tools.benches.bench(update, tier)
            bench_s = time.perf_counter() - started
            self.bench_s += bench_s
        if unfinished(attempt.judged, verdict):
            self._stands_beside(attempt, verdict, update, bench_s)
            return bench_s
        update = self.tools.ordered(update, verdict)
        self.keep(attempt.attempt_id, source, update, verdict, tier)
        self._count(attempt, verdict, update, bench_s)
        for twin in twins(self.attempts, attempt) if not verdict.accepted else ():
            told = replace(verdict, detail=f"as attempt {attempt.number}, which has the same plans: {verdict.detail}")
            self._count(twin, told, update, 0.0)
        return bench_s

    def _count(self, attempt: Attempt, verdict: Verdict, update: Update, bench_s: float) -> None:
        key = key_again(self.attempts, attempt, verdict, update, self.tiers)
        self._note(self._verified(attempt, "confirm", verdict, key, bench_s))

    def _stands_beside(self, attempt: Attempt, verdict: Verdict, update: Update, bench_s: float) -> None:
        """A later look that came to no end takes nothing away: it is kept beside what counts, and a person is told."""
        said = self._verified(attempt, "unfinished", verdict, rank_key(verdict, update), bench_s)
        self._note(said)
        counts = attempt.tier or attempt.judged.status.value
        self.emit(Warned(self.run_id, f"attempt {attempt.number} {said.why}; its {counts} verdict counts"))

    def _verified(
        self,
        before: Attempt,
        purpose: Literal["confirm", "unfinished"],
        verdict: Verdict,
        key: tuple[float, ...],
        bench_s: float,
    ) -> Verified:
        found = repeated(before.judged, verdict)
        return Verified(
            self.run_id,
            before.attempt_id,
            purpose,
            verdict,
            round(bench_s, 4),
            found.held,
            found.why,
            self.place.gpu,
            self.place.machine,
            self.place.versions,
            key,
        )


def is_scored(said: Reflected) -> bool:
    """Whether a hypothesis was held against a measurement or a failure."""
    return said.outcome != "open" or said.evidence.get("measured_speedup") is not None


def updated(run_id: str, attempt_id: str, update: Update) -> Updated:
    """The event of an update."""
    plan = update.main_plan
    return Updated(
        run_id,
        attempt_id,
        plan=encode(plan) if plan else None,
        plan_sha256=update.sha256,
        kernels=update.kernels,
        library_ops=plan.library_ops if plan else (),
        variants=len(update.plans.get(update.main_case, ())),
        trace_s=round(update.trace_s, 4),
        compile_s=round(update.compile_s, 4),
        failure=update.failure,
    )
