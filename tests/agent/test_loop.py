"""The loop with small real parts: an author that reads from a list, an updater and a bench that need no worker."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kerneltune.agent.attempt import (
    Attempt,
    Limits,
    Proposal,
    Tiers,
    best,
    deserves_judging,
    faster_in_a_case,
    next_finalist,
    next_to_confirm,
    rank_key,
    tiers_for,
)
from kerneltune.agent.commands.lifecycle import ReplayAuthor
from kerneltune.agent.events import Event, Judged, Proposed, Reflected, Updated, Verified, attempts_of
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.record.store import Store
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.reflect import outcome
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import CaseTime, Comparison, Status, Tier, Timing, Verdict
from kerneltune.tools.update import Update
from tests.agent.record.samples import started

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

    def update(self, source: str, told: object = None) -> Update:
        """No worker is needed for a source that says how it ends."""
        if source == "ctrl-c":
            raise KeyboardInterrupt
        if source == "broken":
            return Update(failure=Verdict(Status.CRASHED, "it broke"))
        return Update(trace_s=float(source))

    def effective_bytes(self, update: Update) -> float | None:
        """There is no kernel."""
        return None


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
    tools = Evaluator(NoteUpdater(), NoteBench(), "timing")  # type: ignore[arg-type]
    limit = Limits(**{"max_attempts": 10, **limits})
    return Run(AttemptTracker("r", TASK, tools, log), ListAuthor(sources), limit), log


def test_a_run_ends_at_its_limit_and_knows_the_best() -> None:
    running, log = run(["5", "3", "4", "1"], max_attempts=3)
    assert optimize(running) == "attempts"
    leader = best(running.tracker.attempts)
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
    assert [a.status for a in running.tracker.attempts] == [Status.CRASHED, Status.CORRECT]


def test_what_a_killed_process_left_is_judged_first_under_its_number_and_told_once() -> None:
    before, log = run(["7", "5", "3"], max_attempts=3)
    optimize(before)
    stored = [e for e in log.events if not (isinstance(e, Judged | Reflected) and e.attempt_id != "r/1")]
    stored = [e for e in stored if not (isinstance(e, Updated) and e.attempt_id == "r/3")]
    judged, compiled, proposed = attempts_of(stored)
    running, log = run(["9"])
    tracker = replace(running.tracker, attempts=[judged], next_number=4, left=[compiled, proposed])
    assert (tracker.begun, compiled.verdict, proposed.verdict) == (3, None, None)
    seen: list[list[int]] = []

    class Author(ListAuthor):
        def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
            seen.append([a.number for a in history])
            return super().propose(task, history, width)

    assert optimize(Run(tracker, Author(["9"]), Limits(4))) == "attempts"
    assert seen[0] == [1, 2, 3]
    assert [(a.number, a.timing.median_us) for a in tracker.attempts if a.timing] == [(1, 7), (2, 5), (3, 3), (4, 9)]
    assert [(type(e), e.attempt_id) for e in log.events if isinstance(e, Proposed | Updated | Judged)] == [
        (Judged, "r/2"), (Updated, "r/3"), (Judged, "r/3"), (Proposed, "r/4"), (Updated, "r/4"), (Judged, "r/4"),
    ]  # fmt: skip


def test_a_draft_that_an_interrupted_process_left_is_held_against_the_speed_up_that_it_predicted(
    tmp_path: Path,
) -> None:
    running, log = run([])
    parent = running.tracker.bench(running.tracker.update(Proposal("100", "a start")))
    claim = ("bound by latency", "2 times as fast as #1", 2.0)
    running.tracker.update(Proposal("98", "two rows", parent.attempt_id, None, *claim))
    with Store.open(tmp_path) as store:
        for event in (started("r"), *log.events):
            store.write(event)
        judged, draft = attempts_of(store.load_events("r"))
    again, log = run([])
    tracker = replace(again.tracker, attempts=[judged], next_number=3, left=[draft])
    tracker.bench(tracker.update(draft))
    (said,) = [e for e in log.events if isinstance(e, Reflected)]
    assert (said.outcome, said.evidence["predicted_speedup"]) == ("open", 2.0)  # the right direction, and much less
    (replayed,) = ReplayAuthor(again.tracker, "replay:r", [draft]).propose(TASK, [], 1)
    assert (replayed.hypothesis, replayed.prediction, replayed.predicted_speedup) == claim


def test_what_was_left_counts_as_an_attempt_and_no_more_are_made_than_the_limit() -> None:
    before, log = run(["7"])
    optimize(before)
    left = attempts_of([e for e in log.events if isinstance(e, Proposed)])
    running, log = run(["1", "2"], max_attempts=2)
    running = Run(replace(running.tracker, next_number=2, left=left), running.author, running.limits)
    assert optimize(running) == "attempts"
    assert [a.number for a in running.tracker.attempts] == [1, 2]


def test_patience_counts_attempts_since_the_best() -> None:
    running, _ = run(["1", "2", "3", "4", "5"], patience=2)
    assert optimize(running) == "patience"
    assert len(running.tracker.attempts) == 3


def test_hypotheses_are_confirmed_or_refuted_by_the_measurement() -> None:
    running, log = run(["4", "2", "3", "broken", "1.999"])
    optimize(running)
    outcomes = [e.outcome for e in log.events if isinstance(e, Reflected)]
    assert outcomes == ["open", "confirmed", "refuted", "refuted", "open"]


@dataclass
class NoClock:
    """Right and not timed; a negative number is wrong."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Each is better than the one before it, by what a compiler says."""
        return Verdict(Status.WRONG, "no") if update.trace_s < 0 else Verdict(Status.CHECKED, "right")


def test_without_a_clock_a_hypothesis_about_speed_stays_open() -> None:
    running, log = run(["4", "2", "-1", "broken"])
    running.tracker.tools = Evaluator(NoteUpdater(), NoClock(), "checking")  # type: ignore[arg-type]
    optimize(running)
    assert {e.outcome for e in log.events if isinstance(e, Reflected)} == {"open"}
    assert [outcome(us, 6.0) for us in (5.0, 5.99, 7.0, None)] == ["confirmed", "open", "refuted", "refuted"]


def test_ctrl_c_passes_through_and_keeps_what_is_finished() -> None:
    running, log = run(["3", "ctrl-c", "1"])
    with pytest.raises(KeyboardInterrupt):
        optimize(running)
    assert [e.attempt_id for e in log.events if isinstance(e, Judged)] == ["r/1"]


def test_without_a_time_the_order_is_what_the_compiler_and_the_plan_say() -> None:
    checked = Verdict(Status.CHECKED, "right")
    assert rank_key(checked, Update()) == (0.0, 0.0, -0.0, 0.0)
    assert rank_key(Verdict(Status.WRONG, "no"), Update()) == ()


def timed(us: float, tier: Tier = "judged", width: float = 0.1) -> Verdict:
    return Verdict(Status.CORRECT, "right", timing=Timing(us, us - width, us + width, 1, 1), tier=tier)


@dataclass
class TieredBench:
    """The source said how long it takes; `confirmed` says what a confirmation of it finds instead."""

    confirmed: dict[float, Verdict] = field(default_factory=dict)
    asked: list[tuple[float, Tier]] = field(default_factory=list)

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """A number is a time in microseconds; a screening is 1 us off."""
        us = update.trace_s
        self.asked.append((us, tier))
        if tier == "confirmed" and us in self.confirmed:
            return self.confirmed[us]
        return timed(us, tier, width=0.5 if tier == "screened" else 0.1)


def tiered(bench: TieredBench, sources: list[str], tiers: Tiers) -> tuple[Run, Log]:
    log = Log()
    tools = Evaluator(NoteUpdater(), bench, "timing")  # type: ignore[arg-type]
    return Run(AttemptTracker("r", TASK, tools, log, tiers=tiers), ListAuthor(sources), Limits(len(sources))), log


def test_what_cannot_be_the_best_is_only_screened() -> None:
    bench = TieredBench()
    running, log = tiered(bench, ["10", "20", "10.4", "5"], tiers_for(gpu=True, confirm=False))
    optimize(running)
    assert [a for a in bench.asked if a[1] == "judged"] == [(10.0, "judged"), (10.4, "judged"), (5.0, "judged")]
    judged = [e for e in log.events if isinstance(e, Judged)]
    assert [e.verdict.tier for e in judged] == ["judged", "screened", "judged", "judged"]
    assert len({e.attempt_id for e in judged}) == len(judged)


def test_the_best_is_confirmed_once_at_the_end_and_its_verdict_counts() -> None:
    bench = TieredBench({5.0: timed(5.05, "confirmed")})
    running, log = tiered(bench, ["10", "5"], tiers_for(gpu=True))
    assert optimize(running) == "attempts"
    assert [a for a in bench.asked if a[1] == "confirmed"] == [(5.0, "confirmed")]
    (again,) = [e for e in log.events if isinstance(e, Verified)]
    assert (again.attempt_id, again.purpose, again.held) == ("r/2", "confirm", True)
    leader = best(running.tracker.attempts)
    assert leader is not None
    assert leader.timing is not None
    assert (leader.tier, leader.timing.median_us) == ("confirmed", 5.05)
    assert best(attempts_of(log.events)) == leader


@pytest.mark.parametrize("found", [Verdict(Status.WRONG, "one element"), timed(12.0, "confirmed")])
def test_when_the_best_is_not_confirmed_the_next_best_is_tried(found: Verdict) -> None:
    bench = TieredBench({5.0: found})
    running, log = tiered(bench, ["10", "5"], tiers_for(gpu=True))
    optimize(running)
    assert [e.held for e in log.events if isinstance(e, Verified)] == [False, True]
    leader = best(running.tracker.attempts)
    assert leader is not None
    assert (leader.attempt_id, leader.tier) == ("r/1", "confirmed")


def test_no_more_than_three_are_tried() -> None:
    wrong = Verdict(Status.WRONG, "one element")
    bench = TieredBench({us: wrong for us in (10.0, 9.0, 8.0, 7.0)})
    running, _ = tiered(bench, ["10", "9", "8", "7"], tiers_for(gpu=True))
    optimize(running)
    assert [us for us, tier in bench.asked if tier == "confirmed"] == [7.0, 8.0, 9.0]


def test_ctrl_c_while_confirming_keeps_the_verdict_that_was_there() -> None:
    class Interrupted(TieredBench):
        def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
            if tier == "confirmed":
                raise KeyboardInterrupt
            return super().bench(update, tier)

    running, _ = tiered(Interrupted(), ["10", "5"], tiers_for(gpu=True))
    with pytest.raises(KeyboardInterrupt):
        optimize(running)
    assert [a.tier for a in running.tracker.attempts] == ["judged", "judged"]


def test_a_confirmed_best_is_not_confirmed_again_when_its_run_goes_on() -> None:
    running, _ = tiered(TieredBench(), ["10"], tiers_for(gpu=True))
    optimize(running)
    assert next_to_confirm(running.tracker.attempts, ()) is None


def test_without_a_gpu_there_is_one_way_to_judge() -> None:
    assert tiers_for(gpu=False) == tiers_for(gpu=False, tier="confirmed") == Tiers()
    bench = TieredBench()
    running, log = tiered(bench, ["10", "5"], tiers_for(gpu=False))
    optimize(running)
    assert [tier for _, tier in bench.asked] == ["judged", "judged"]
    assert not [e for e in log.events if isinstance(e, Verified)]


def test_a_tier_that_was_asked_for_is_every_attempt_s() -> None:
    assert tiers_for(gpu=True, tier="screened") == Tiers("screened", promote=False, confirm=True)
    assert tiers_for(gpu=True, tier="confirmed") == Tiers("confirmed", promote=False, confirm=False)


def test_a_screened_time_is_promising_when_its_interval_reaches_the_best() -> None:
    running, _ = run(["10"])
    optimize(running)
    leader = best(running.tracker.attempts)
    assert deserves_judging(timed(10.05, width=0.1), leader)
    assert not deserves_judging(timed(10.2, width=0.1), leader)
    assert deserves_judging(timed(99.0), None)
    assert not deserves_judging(Verdict(Status.CHECKED, "right"), leader)


def test_every_verdict_leaves_a_receipt_also_that_of_a_confirmation() -> None:
    kept: list[tuple[str, Status, Tier | None]] = []
    running, _ = tiered(TieredBench(), ["10", "broken"], tiers_for(gpu=True))
    running.tracker.keep = lambda attempt, _source, _update, verdict, tier: kept.append((attempt, verdict.status, tier))
    optimize(running)
    assert kept == [
        ("r/1", Status.CORRECT, "screened"),
        ("r/2", Status.CRASHED, "screened"),
        ("r/1", Status.CORRECT, "confirmed"),
    ]


def test_a_run_ends_before_a_request_that_its_budget_cannot_bear() -> None:
    limits = Limits(10, max_cost_usd=1.0)
    assert limits.why_stop([], 0.0, cost_usd=0.8, next_usd=0.1) is None
    assert limits.why_stop([], 0.0, cost_usd=0.8, next_usd=0.3) == "cost"


def test_a_goal_is_reached_by_the_lower_end_of_the_interval_against_the_fastest_baseline() -> None:
    def attempt(*lows: float, sol: float | None = None, pending: tuple[str, ...] = ()) -> Attempt:
        compared = tuple(Comparison(f"b{i}", 10.0, low + 0.1, low, low + 0.2) for i, low in enumerate(lows))
        verdict = replace(timed(5.0), comparisons=compared, sol_fraction=sol, pending=pending)
        return Attempt("s", "", attempt_id="r/1", number=1, verdict=verdict, rank_key=(5.0,))

    assert Limits(10, target_speedup=1.5).why_stop([attempt(2.0, 1.45)], 0.0) is None
    assert Limits(10, target_speedup=1.5).why_stop([attempt(2.0, 1.5)], 0.0) == "goal"
    assert Limits(10, target_speedup=1.5).why_stop([attempt()], 0.0) is None
    assert Limits(10, target_speedup=1.5).why_stop([attempt(2.0, pending=("compile",))], 0.0) is None
    assert Limits(10, target_sol=0.9).why_stop([attempt(sol=0.91)], 0.0) == "goal"


def with_cases(number: int, tier: Tier, **us: float) -> Attempt:
    """An attempt that takes so long in each weighted case, and on average."""
    cases = tuple(CaseTime(name, 1.0, Timing(its, its - 0.1, its + 0.1, 1, 1)) for name, its in us.items())
    verdict = replace(timed(sum(us.values()) / len(us), tier), case_times=cases)
    key = rank_key(verdict, Update())
    return Attempt("", "", attempt_id=f"r/{number}", number=number, verdict=verdict, tool="bench", rank_key=key)


def test_an_attempt_that_is_the_fastest_in_a_weighted_case_is_judged_in_full_and_found_beside_the_best() -> None:
    leader, slower = with_cases(1, "judged", main=5.0, decode=3.0), with_cases(2, "screened", main=9.0, decode=3.0)
    fast = with_cases(3, "screened", main=9.0, decode=1.0)
    assert [deserves_judging(a, leader) for a in (slower, fast)] == [False, True]
    tiers = replace(tiers_for(gpu=True), finalists=3)
    assert next_finalist([leader, slower, fast], tiers, ()) == fast
    assert next_finalist([leader, slower, fast], tiers, ("r/3",)) is None
    assert faster_in_a_case(leader, [leader, slower, fast]) == []  # a screening's time does not compare
    judged = with_cases(3, "judged", main=9.0, decode=1.0)
    assert faster_in_a_case(leader, [leader, slower, judged]) == [judged]
    alike = with_cases(4, "judged", main=4.9, decode=2.9)  # intervals overlap
    assert faster_in_a_case(leader, [leader, alike]) == []
