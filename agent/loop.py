"""THE loop, for every author: the page to read first.

    author -> update -> bench -> reflect -> author … -> conclude

An author proposes candidates, which the loop has updated, benched and reflected on; or lines of work (a conversation
with a model), which ask for these three themselves and are told what came of them. Limits, what a person asks for while
a run is going on, and what is judged again at its end are the loop's, whoever writes the kernels. The tracker emits
events and nothing else does; the store, the screen and the exports are folds over them.
"""

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from kerneltune.agent.attempt import (
    CONFIRMATION,
    NO_ROOM,
    Action,
    ActionResult,
    Actions,
    Attempt,
    Author,
    BenchAction,
    Controls,
    Declined,
    Limits,
    Proposal,
    ReflectAction,
    Remaining,
    StopReason,
    UpdateAction,
    lasting,
    next_finalist,
    next_to_confirm,
)
from kerneltune.agent.models.types import LlmError
from kerneltune.agent.tracker import AttemptTracker, GivenUp

T = TypeVar("T")
_POLL_S = 0.2  # between two looks for Ctrl-C


@dataclass
class Run:
    """A run in progress. `width`: candidates or conversations that are under way at a time; `start`: what is made
    before the author is asked."""

    tracker: AttemptTracker
    author: Author
    limits: Limits
    width: int = 1
    controls: Controls = field(default_factory=Controls)
    overtaken_after_s: float = 10.0  # tracing and compiling take 1.1 s; a minute is a kernel of thousands of steps
    grace_s: float = 5.0  # for conversations that are under way when another ends the run; a reply may take minutes
    start: Actions | None = None

    def __post_init__(self) -> None:
        self.started = self.controls.clock_s
        self.halted = threading.Event()  # by Ctrl-C or an error: nobody asks a model again
        self.drafts: list[dict[str, Attempt]] = []  # of each line of work: compiled and not benched yet, by attempt

    @property
    def limits_now(self) -> Limits:
        """As given, or as raised since."""
        return self.limits.raised(self.controls.raises)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, without pauses."""
        return self.controls.clock_s - self.started

    def remaining(self) -> Remaining:
        """What may still be used."""
        limits = self.limits_now
        time_s = math.inf if limits.max_time_s is None else limits.max_time_s - self.elapsed_s
        cost_usd = math.inf if limits.max_cost_usd is None else limits.max_cost_usd - self.tracker.cost.cost_usd
        return Remaining(self.room, time_s, cost_usd, self.why_stop() is not None)

    @property
    def room(self) -> int:
        """How many attempts may still begin."""
        return self.limits_now.max_attempts - self.tracker.begun

    def why_stop(self) -> StopReason | None:
        """The limit that is reached, STOPPED when a person wants no more, or None."""
        if self.halted.is_set() or self.controls.interrupted:
            return StopReason.INTERRUPTED
        if self.controls.stopping:
            return StopReason.STOPPED
        cost = self.tracker.cost
        return self.limits_now.why_stop(list(self.tracker.attempts), self.elapsed_s, cost.cost_usd, cost.next_usd)


def optimize(run: Run) -> StopReason:
    """Drive a run until a limit is reached or the author has nothing left, and conclude it; returns why it ended.

    KeyboardInterrupt and a model's LlmError pass through: every finished attempt has been emitted by then, and after an
    LlmError, which says nothing against the kernels, the run has been concluded.
    """
    try:
        _judge_left(run)
        why = (_hold(run, run.start) if run.start else None) or _attempt_all(run)
    except BaseException as error:
        run.halted.set()
        for drafts in list(run.drafts) if isinstance(error, Exception) else ():
            bench_rest(run, drafts)
        if isinstance(error, LlmError):
            conclude(run.tracker)
        raise
    if why is not StopReason.INTERRUPTED:
        conclude(run.tracker)
    return why


def _judge_left(run: Run) -> None:
    """Judge what an earlier process of this run was killed over, as far as the limits go: it was paid for, and whoever
    writes the next one is told of it."""
    for attempt in run.tracker.left:
        if run.why_stop() is None:
            with contextlib.suppress(GivenUp):
                _judge(run, run.tracker.update(attempt))


@dataclass
class _UnderWay:
    """What was begun and is not finished. Candidates: in the order of their numbers, and those that kept the judge
    waiting for too long, once. (Waiting again at each turn for the same one cost 10 s a verdict while it was compiled,
    96 s of a search of 120.) Lines of work: in no order. `ended`: why the last of these did."""

    overtaken_after_s: float
    waiting: list[Future[Attempt]] = field(default_factory=list)
    overtaken: list[Future[Attempt]] = field(default_factory=list)
    held: list[Future[StopReason | None]] = field(default_factory=list)
    ended: StopReason | None = None

    def __len__(self) -> int:
        return len(self.waiting) + len(self.overtaken) + len(self.held)

    def pop(self) -> Future[Attempt] | Future[StopReason | None] | None:
        """Whose turn it is: a line of work that has ended; an overtaken candidate that is ready by now, else the first.
        None when that one is overtaken now, so that its place is free; where nobody takes it, the first overtaken one
        to be ready."""
        if self.held:
            return _first_done(self.held)
        if not self.waiting or any(late.done() for late in self.overtaken):
            return _first_done(self.overtaken)
        first = self.waiting.pop(0)
        if wait([first], self.overtaken_after_s).done:
            return first
        self.overtaken.append(first)
        return None

    def room(self, left: int, width: int) -> int:
        """How many more may begin, where `left` attempts may."""
        held = len(self.held)
        return min(left - held, width - held - len(self.waiting), 2 * width - len(self))


def _first_done(futures: list[Future[T]]) -> Future[T]:
    ready: set[Future[T]] = set()
    while (
        not ready
    ):  # by turns: a Ctrl-C that comes just before an endless wait begins would be noticed at its end only
        ready = wait(futures, _POLL_S, return_when=FIRST_COMPLETED).done
    return futures.pop(next(at for at, future in enumerate(futures) if future in ready))


def _attempt_all(run: Run) -> StopReason:
    """Keep `width` candidates or conversations under way, and judge candidates in the order of their numbers.

    So the judge works while the next ones are compiled, and what is proposed depends on no clock: the n-th proposal
    knows the verdicts of all but the `width - 1` before it, however long each takes. Only a candidate that keeps the
    judge waiting for `overtaken_after_s` leaves the line: another takes its place, and it is judged once it is ready.
    Conversations share the judge as they come: the GPU works on the candidates of one while the model thinks about
    another.
    """
    pool = ThreadPoolExecutor(2 * run.width, thread_name_prefix="attempt")
    under_way = _UnderWay(run.overtaken_after_s)
    try:
        while True:
            run.controls.wait()
            if (why := run.why_stop()) is None:
                _begin(run, pool, under_way)
            elif why is StopReason.TIME and not under_way.held:
                run.controls.skip()  # what is still being compiled might take minutes
            if not under_way:
                return why or under_way.ended or StopReason.AUTHOR_DONE
            if (ready := under_way.pop()) is not None:
                _finish(run, ready, under_way)
    except Exception:  # of a model's provider: what other conversations have had a reply for is carried out first
        run.halted.set()
        wait(under_way.held, run.grace_s)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for what is being compiled


def _begin(run: Run, pool: ThreadPoolExecutor, under_way: _UnderWay) -> None:
    """Begin what the author wants next, as far as there is room."""
    room = under_way.room(run.room, run.width)
    proposed = run.author.propose(run.tracker.task, run.tracker.attempts, room) if room > 0 else []
    numbered = [run.tracker.propose(p) for p in proposed[:room] if isinstance(p, Proposal)]
    under_way.waiting += [pool.submit(run.tracker.update, attempt) for attempt in numbered if attempt]
    under_way.held += [pool.submit(_hold, run, work) for work in proposed[:room] if not isinstance(work, Proposal)]


def _finish(run: Run, ready: Future[Attempt] | Future[StopReason | None], under_way: _UnderWay) -> None:
    """Bench a candidate; one given up is left. Or note why a line of work has ended."""
    try:
        done = ready.result()
        if not isinstance(done, Attempt):
            under_way.ended = done
            return
        _judge(run, done)
    except GivenUp:
        return


def _judge(run: Run, updated: Attempt) -> None:
    """Bench a candidate, and see whether the best so far has to be judged in full. Raises GivenUp."""
    run.tracker.bench(updated)
    if (best := lasting(run.tracker.attempts, run.tracker.tiers)) is not None:  # much has been built on it
        run.tracker.judge_again(best, "judged")


def _hold(run: Run, work: Actions) -> StopReason | None:
    """Carry out what a line of work wants until it ends or the run does, which is the reason that is returned; what it
    had compiled and never benched is judged then, so that nothing is lost: here, or by `optimize` after an error."""
    drafts: dict[str, Attempt] = {}
    run.drafts.append(drafts)
    results: Sequence[ActionResult] = ()
    try:
        wanted = next(work)
        while wanted or (why := _between(run)) is None:
            results = carry_out(run, wanted, drafts)
            wanted = work.send(results)
    except StopIteration as end:
        why = end.value
    finally:
        work.close()
    if not run.controls.interrupted:  # else whoever takes the run up again has them judged first
        bench_rest(run, drafts)
    return why


def _between(run: Run) -> StopReason | None:
    """Between two requests to a model: wait while the run is paused, then ask whether it is over."""
    run.controls.wait(run.halted.is_set)
    return run.why_stop()


def carry_out(run: Run, wanted: Sequence[Action], drafts: dict[str, Attempt]) -> tuple[ActionResult, ...]:
    """A result for every action, in order. Updates run side by side, before the others. `drafts`: not benched yet."""
    updated = _updated(run, [action.proposal for action in wanted if isinstance(action, UpdateAction)])
    results: list[ActionResult] = []
    for action in wanted:
        match action:
            case UpdateAction():
                made = updated.pop(0)
                if isinstance(made, Attempt):
                    drafts[made.attempt_id] = made
                    if made.tool == "update":  # it failed: there is nothing to wait for
                        made = made if isinstance(done := _benched(run, made, drafts), Attempt) else done
                results.append(made)
            case BenchAction():
                results.append(_benched(run, action.attempt, drafts))
            case ReflectAction():
                run.tracker.note(action.attempt, action.hypothesis)
                results.append(action.attempt)
    return tuple(results)


def _updated(run: Run, proposals: Sequence[Proposal]) -> list[Attempt | Declined]:
    """Each compiled, or why not. Numbers are given before the threads begin; Ctrl-C does not wait for those."""
    numbered = [run.tracker.propose(p, run.limits_now.max_attempts) for p in proposals]
    if len(numbered) <= 1:
        return [_updated_one(run, attempt) for attempt in numbered]
    pool = ThreadPoolExecutor(max(1, run.width), thread_name_prefix="update")
    try:
        return [f.result() for f in [pool.submit(_updated_one, run, attempt) for attempt in numbered]]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _updated_one(run: Run, attempt: Attempt | None) -> Attempt | Declined:
    if attempt is None:
        return Declined(NO_ROOM)
    try:
        return run.tracker.update(attempt)
    except GivenUp as given_up:
        return Declined(str(given_up), attempt.number)


def _benched(run: Run, draft: Attempt, drafts: dict[str, Attempt]) -> Attempt | Declined:
    if drafts.pop(draft.attempt_id, None) is None and run.halted.is_set():
        return Declined("the run is over", draft.number)  # and another thread has it
    try:
        return run.tracker.bench(draft)
    except GivenUp as given_up:
        return Declined(str(given_up), draft.number)


def bench_rest(run: Run, drafts: dict[str, Attempt]) -> None:
    """Judge what was written and never benched."""
    for draft in list(drafts.values()):
        if draft.attempt_id in drafts:
            _benched(run, draft, drafts)


def conclude(tracker: AttemptTracker) -> None:
    """Judge the best of a search in full, as many as the tiers and the time allow, and confirm the best of all. Where
    nothing is confirmed, what was judged before all baselines were ready is judged again, against all."""
    tiers, took_s = tracker.tiers, 0.0
    ends = time.perf_counter() + tiers.final_s
    tried: set[str] = set()
    while (attempt := next_finalist(tracker.attempts, tiers, tried)) is not None:
        if time.perf_counter() + took_s * (1 + CONFIRMATION * tiers.confirm) > ends:
            break
        tried.add(attempt.attempt_id)
        took_s = max(took_s, tracker.judge_again(attempt, "judged"))
    if tiers.confirm:
        _confirm(tracker, ends)
    elif tiers.first == "judged":
        for attempt in [a for a in tracker.attempts if a.accepted and a.judged.pending]:
            tracker.judge_again(attempt, "judged")  # the judge builds what was pending before it answers again


def _confirm(tracker: AttemptTracker, ends: float) -> None:
    """Judge the best again, in fresh processes; when it does not hold, or is no longer the best, the next best, if that
    too ends in time (by perf_counter)."""
    tried: set[str] = set()
    took_s = 0.0
    while (attempt := next_to_confirm(tracker.attempts, tried)) is not None:
        if tried and time.perf_counter() + took_s > ends:
            break
        tried.add(attempt.attempt_id)
        took_s = tracker.judge_again(attempt, "confirmed")
