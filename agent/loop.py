"""One run, from the first proposal to the last verdict: the page to read first.

    author -> update -> bench -> reflect -> author … -> confirm

The loop emits events and nothing else; the store, the screen and the exports are folds over them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from agent.authors.base import Attempt, Author, Proposal
from agent.policy import Limits, Tiers, best, deserves_judging, judged_again, next_to_confirm, rank_key
from agent.record.events import Event, Judged, Progress, Proposed, Reflected, Updated, Verified
from agent.repeat import repeated
from tools.codec import Json, encode
from tools.reflect import evidence, outcome
from tools.spec import TaskSpec
from tools.tooling import Tools
from tools.update import Update
from tools.verdict import Tier, Verdict

Emit = Callable[[Event], None]
Keep = Callable[[str, str, Update, Verdict, Tier | None], object]  # of attempt id, source, …: keeps the receipt


@dataclass(frozen=True)
class Place:
    """Where a verdict is reached."""

    gpu: str | None = None
    machine: dict[str, Json] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """A run in progress. `attempts` are the finished ones, also those of an earlier process when resuming."""

    run_id: str
    task: TaskSpec
    author: Author
    tools: Tools
    limits: Limits
    emit: Emit
    width: int = 1
    attempts: list[Attempt] = field(default_factory=list)
    next_number: int = 1
    started: float = field(default_factory=time.monotonic)
    tiers: Tiers = field(default_factory=Tiers)
    keep: Keep = lambda *_: None
    place: Place = field(default_factory=Place)

    def why_stop(self) -> str | None:
        """The limit that is reached, or None."""
        return self.limits.why_stop(self.attempts, time.monotonic() - self.started)


def optimize(run: Run) -> str:
    """Drive a run until a limit is reached or the author has nothing left, and confirm its best; returns why it ended.

    KeyboardInterrupt passes through: every finished attempt has been emitted by then.
    """
    why = _attempt_all(run)
    if run.tiers.confirm:
        _confirm(run)
    return why


def _attempt_all(run: Run) -> str:
    with ThreadPoolExecutor(run.width, thread_name_prefix="update") as pool:
        while not (why := run.why_stop()):
            proposals = run.author.propose(run.task, run.attempts, _room(run))
            if not proposals:
                return "author_done"
            try:
                _round(run, pool, proposals[: _room(run)])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return why


def _room(run: Run) -> int:
    return max(1, min(run.width, run.limits.max_attempts - len(run.attempts)))


def _round(run: Run, pool: ThreadPoolExecutor, proposals: Sequence[Proposal]) -> None:
    """Update all proposals side by side; bench each as it becomes ready; reflect on it."""
    waiting = {pool.submit(_update, run, attempt): attempt for attempt in _number(run, proposals)}
    for future in as_completed(waiting):
        proposed = waiting[future]
        update = future.result()
        started = time.perf_counter()
        verdict = _bench(run, proposed, update)
        attempt = _finish(run, proposed, update, verdict, time.perf_counter() - started)
        _reflect(run, attempt)


def _number(run: Run, proposals: Sequence[Proposal]) -> Iterator[tuple[str, int, Proposal]]:
    for proposal in proposals:
        number = run.next_number
        run.next_number += 1
        attempt_id = f"{run.run_id}/{number}"
        run.emit(
            Proposed(
                run.run_id,
                attempt_id,
                number,
                proposal.parent_id,
                proposal.source,
                proposal.rationale,
                proposal.params,
                proposal.hypothesis,
                proposal.prediction,
            )
        )
        yield attempt_id, number, proposal


def _update(run: Run, proposed: tuple[str, int, Proposal]) -> Update:
    attempt_id, _, proposal = proposed
    run.emit(Progress(run.run_id, "tracing", attempt_id=attempt_id))
    update = run.tools.update(proposal.source)
    run.emit(updated(run.run_id, attempt_id, update))
    return update


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


def _bench(run: Run, proposed: tuple[str, int, Proposal], update: Update) -> Verdict:
    if update.failure:
        return update.failure
    run.emit(Progress(run.run_id, run.tools.bench_stage, attempt_id=proposed[0]))
    verdict = run.tools.bench(update, run.tiers.first or "judged")
    if run.tiers.promote and deserves_judging(verdict, best(run.attempts)):
        return run.tools.bench(update, "judged")
    return verdict


def _finish(run: Run, proposed: tuple[str, int, Proposal], update: Update, verdict: Verdict, bench_s: float) -> Attempt:
    attempt_id, number, proposal = proposed
    key = rank_key(verdict, update)
    attempt = Attempt(attempt_id, number, proposal.parent_id, proposal, verdict, update.kernels, key)
    run.keep(attempt_id, proposal.source, update, verdict, run.tiers.first)
    run.attempts.append(attempt)
    is_best = best(run.attempts) is attempt
    run.emit(Judged(run.run_id, attempt_id, verdict, round(bench_s, 4), is_best, key))
    return attempt


def _reflect(run: Run, attempt: Attempt) -> None:
    """Hold the hypothesis against what happened; an attempt without one has nothing to reflect on."""
    proposal = attempt.proposal
    if not proposal.hypothesis:
        return
    parent = next((a for a in run.attempts if a.attempt_id == attempt.parent_id), None)
    facts = evidence(run.task, attempt.verdict, attempt.kernels, parent.verdict if parent else None)
    held = outcome(attempt.rank_key, parent.rank_key if parent else ())
    run.emit(Reflected(run.run_id, attempt.attempt_id, proposal.hypothesis, proposal.prediction, facts, held))


def _confirm(run: Run) -> None:
    """Judge the best again, in fresh processes; when it does not hold, or is no longer the best, the next best."""
    tried: set[str] = set()
    while (attempt := next_to_confirm(run.attempts, tried)) is not None:
        tried.add(attempt.attempt_id)
        run.emit(Progress(run.run_id, "confirming", f"#{attempt.number}"))
        source = attempt.proposal.source
        update = run.tools.update(source)
        started = time.perf_counter()
        verdict = update.failure or run.tools.bench(update, "confirmed")
        bench_s = time.perf_counter() - started
        run.keep(attempt.attempt_id, source, update, verdict, "confirmed")
        again = judged_again(attempt, verdict, update)
        run.attempts[run.attempts.index(attempt)] = again
        run.emit(_confirmed(run, attempt, again, bench_s))


def _confirmed(run: Run, before: Attempt, after: Attempt, bench_s: float) -> Verified:
    found = repeated(before.verdict, after.verdict)
    return Verified(
        run.run_id,
        before.attempt_id,
        "confirm",
        after.verdict,
        round(bench_s, 4),
        found.held,
        found.why,
        run.place.gpu,
        run.place.machine,
        run.place.versions,
        after.rank_key,
    )
