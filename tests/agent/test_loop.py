"""The loop with small real parts: an author that reads from a list, an updater and a bench that need no worker."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agent.authors.base import Attempt, Proposal
from agent.loop import Run, optimize
from agent.policy import Limits, best, rank_key
from agent.record.events import Event, Judged, Proposed, Reflected, Updated
from tools.spec import CaseSpec, TaskSpec
from tools.tooling import Tools
from tools.update import Update
from tools.verdict import Status, Tier, Timing, Verdict

TASK = TaskSpec("t", "0" * 64, "float32", "", (CaseSpec("main", (), (), None),))


@dataclass
class ListAuthor:
    """Proposes the given sources, a few at a time."""

    sources: list[str]
    name: str = "list"

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """The next ones; the parent is the best so far."""
        leader = best(history)
        parent = leader.attempt_id if leader else None
        taken, self.sources = self.sources[:width], self.sources[width:]
        return [Proposal(s, f"try {s}", parent, hypothesis="it is faster", prediction="fewer us") for s in taken]


class NoteUpdater:
    """Fails on the source "broken", and interrupts on "ctrl-c"."""

    def update(self, source: str) -> Update:
        """No worker is needed for a source that says how it ends."""
        if source == "ctrl-c":
            raise KeyboardInterrupt
        if source == "broken":
            return Update(failure=Verdict(Status.CRASHED, "it broke"))
        return Update(trace_s=float(source))


class NoteBench:
    """The source said how long it takes."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """A number is a time in microseconds."""
        us = update.trace_s
        return Verdict(Status.CORRECT, "right", timing=Timing(us, us, us, 1, 1))


@dataclass
class Log:
    """Keeps events."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Keep one."""
        self.events.append(event)


def run(sources: list[str], **limits: int) -> tuple[Run, Log]:
    log = Log()
    tools = Tools(NoteUpdater(), NoteBench(), "timing")  # type: ignore[arg-type]
    limit = Limits(**{"max_attempts": 10, **limits})
    return Run("r", TASK, ListAuthor(sources), tools, limit, log), log


def test_a_run_ends_at_its_limit_and_knows_the_best() -> None:
    running, log = run(["5", "3", "4", "1"], max_attempts=3)
    assert optimize(running) == "attempts"
    leader = best(running.attempts)
    assert leader is not None
    assert leader.attempt_id == "r/2"
    assert [e.best for e in log.events if isinstance(e, Judged)] == [True, True, False]


def test_every_attempt_is_proposed_updated_judged_and_reflected_in_that_order() -> None:
    running, log = run(["5"])
    optimize(running)
    kinds = [type(e) for e in log.events if isinstance(e, Proposed | Updated | Judged | Reflected)]
    assert kinds == [Proposed, Updated, Judged, Reflected]


def test_a_candidate_that_fails_does_not_end_the_run() -> None:
    running, _ = run(["broken", "2"])
    assert optimize(running) == "author_done"
    assert [a.verdict.status for a in running.attempts] == [Status.CRASHED, Status.CORRECT]


def test_patience_counts_attempts_since_the_best() -> None:
    running, _ = run(["1", "2", "3", "4", "5"], patience=2)
    assert optimize(running) == "patience"
    assert len(running.attempts) == 3


def test_hypotheses_are_confirmed_or_refuted_by_the_measurement() -> None:
    running, log = run(["4", "2", "3", "broken", "1.999"])
    optimize(running)
    outcomes = [e.outcome for e in log.events if isinstance(e, Reflected)]
    assert outcomes == ["open", "confirmed", "refuted", "refuted", "open"]


def test_ctrl_c_passes_through_and_keeps_what_is_finished() -> None:
    running, log = run(["3", "ctrl-c", "1"])
    with pytest.raises(KeyboardInterrupt):
        optimize(running)
    assert [e.attempt_id for e in log.events if isinstance(e, Judged)] == ["r/1"]


def test_without_a_time_the_order_is_what_the_compiler_and_the_plan_say() -> None:
    checked = Verdict(Status.CHECKED, "right")
    assert rank_key(checked, Update()) == (0.0, 0.0, -0.0, 0.0)
    assert rank_key(Verdict(Status.WRONG, "no"), Update()) == ()
