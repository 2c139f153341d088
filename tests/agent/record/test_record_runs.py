"""Where each run stands is what its events say; runs are listed and filtered by it."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.attempt import best as leader
from kerneltune.agent.events import Event, Judged, Proposed, Replied, RunEnded, RunResumed, Verified
from kerneltune.agent.record import query
from kerneltune.agent.record.query import Filter
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Comparison, Status, Verdict
from tests.agent.record.samples import arbitrary, attempt, started
from tests.agent.record.test_record_receipts import verified

RUNS = [f"20261121-09{n:02}00-softmax-{n:04x}" for n in range(8)]


def interleaved(runs: list[list[Event]], seed: int) -> Iterator[Event]:
    """The events of several runs, each in its order."""
    rng, left = random.Random(seed), [list(run) for run in runs]
    while left := [run for run in left if run]:
        yield rng.choice(left).pop(0)


def lively_run(run_id: str, seed: int) -> list[Event]:
    """A plain run with many statuses, a best that changes, confirmations that fail, an ending and a resumption."""
    rng = random.Random(seed)
    events: list[Event] = [started(run_id, rng.choice(("softmax", "matmul")))]
    for number in range(1, 9):
        status = rng.choice(list(Status))
        best = status in (Status.CORRECT, Status.CHECKED) and rng.random() < 0.5
        events += attempt(number, run_id, status, best=best)
        if rng.random() < 0.4:
            again = verified(rng.randint(1, number), rng.choice(("confirm", "verify")), held=rng.random() < 0.5)
            verdict = Verdict(Status.WRONG, "x") if rng.random() < 0.5 else again.verdict
            its = again.attempt_id.rpartition("/")[2]
            events.append(replace(again, run_id=run_id, attempt_id=f"{run_id}/{its}", verdict=verdict, at=2e9 + number))
        if rng.random() < 0.2:
            named = rng.choice((None, f"{run_id}/{rng.randint(1, number)}"))
            events.append(RunEnded(run_id, StopReason.INTERRUPTED, number, 1, named, None, 1.0))
            if rng.random() < 0.7:
                events.append(RunResumed(run_id, number))
    return events


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(6))
def test_a_run_in_short_is_what_the_fold_over_its_events_says(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_PAGE_RUNS", 3)
    store.write_all(interleaved([lively_run(run_id, seed * 10 + i) for i, run_id in enumerate(RUNS)], seed))
    assert store.runs(Filter(verdict="accepted")) == [run for run in store.runs() if run.accepted]
    for summary in store.runs():
        events = store.load_events(summary.run_id)
        folded = trajectory(events)
        judged = [a for a in folded.attempts if a.status is not None]
        assert summary.by_status == Counter(a.status.value for a in judged if a.status)
        assert (summary.attempts, summary.accepted) == (len(judged), sum(a.accepted for a in judged))
        turns = [e for e in events if e.kind in ("run_started", "run_resumed", "run_ended")]
        last = turns[-1]
        assert summary.why == (last.why if isinstance(last, RunEnded) else None)
        later = {e.attempt_id: e.verdict.accepted for e in events if isinstance(e, Verified) and e.purpose == "verify"}
        led = leader(a for a in folded.attempts if later.get(a.attempt_id, True))
        named = last.best_attempt_id if isinstance(last, RunEnded) else led and led.attempt_id
        assert summary.best_attempt_id == named
        best = next((a for a in folded.attempts if a.attempt_id == named), None)
        assert summary.best_speedup == (best.speedup if best else None)
        assert summary.verified == (best.held if best else None)


def timed(run_id: str, number: int, speedup: float, *, best: bool) -> list[Event]:
    """A correct attempt that is so much faster than the fastest of two baselines."""
    proposed, updated, judged, reflected = attempt(number, run_id, Status.CORRECT, best=best)
    assert isinstance(judged, Judged)
    compared = (Comparison("eager", 300.0, 9.0, 8.9, 9.1), Comparison("compile", 150.0, speedup, speedup, speedup))
    return [proposed, updated, replace(judged, verdict=replace(judged.verdict, comparisons=compared)), reflected]


def test_a_speed_up_is_over_the_fastest_baseline_or_not_said_while_one_is_pending(store: Store) -> None:
    events = timed(RUNS[0], 1, 3.0, best=True)
    judged = events[2]
    assert isinstance(judged, Judged)
    early = replace(judged, verdict=replace(judged.verdict, pending=("compile-max",)))
    store.write_all([started(RUNS[0]), *events[:2], early])
    assert [(run.best_us, run.best_speedup) for run in store.runs()] == [(134.5, None)]
    assert store.attempts(RUNS[0])[0].speedup is None
    assert store.runs(Filter(min_speedup=1.0)) == []


@pytest.fixture
def mixed(store: Store) -> Store:
    """Four runs: of two tasks, by two authors, at several speeds, with several verdicts."""
    first, second, third, fourth = RUNS[:4]
    for event in (
        *(started(first), *timed(first, 1, 1.2, best=True), *attempt(2, first, Status.WRONG)),
        *(replace(started(second, "matmul"), author="anthropic:claude-Opus"), *timed(second, 1, 2.5, best=True)),
        *timed(second, 2, 7.0, best=False),  # faster over the baseline, but not the best
        *(started(third, "matmul"), *attempt(1, third, Status.IMPOSSIBLE)),
        *(started(fourth), *timed(fourth, 1, float("nan"), best=True)),
    ):
        store.write(event)
    return store


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), [3, 2, 1, 0]),
        (Filter(limit=2), [3, 2]),
        (Filter(task="softmax"), [3, 0]),
        (Filter(model="OPUS"), [1]),
        (Filter(model="e"), [3, 2, 1, 0]),
        (Filter(verdict="wrong"), [0]),
        (Filter(verdict="accepted"), [3, 1, 0]),
        (Filter(verdict="accepted", task="matmul"), [1]),
        (Filter(verdict="unchecked"), []),
        (Filter(min_speedup=1.2), [1, 0]),
        (Filter(min_speedup=2.5), [1]),
        (Filter(min_speedup=3.0), []),  # not a NaN either
        (Filter("matmul", "opus", "correct", 2.0, 1), [1]),
    ],
)
def test_runs_are_filtered_by_task_author_verdict_and_speed(mixed: Store, wanted: Filter, found: list[int]) -> None:
    assert [RUNS.index(run.run_id) for run in mixed.runs(wanted)] == found


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Filter(task="sofmax"), "--task 'sofmax': no such run is stored; did you mean softmax?"),
        (Filter(task="zzz"), "known: softmax, matmul"),
        (Filter(task="%"), "no such run is stored"),
        (Filter(model="gpt"), "no run's author has it; known: offline, anthropic:claude-Opus"),
    ],
)
def test_a_task_or_a_model_that_nobody_ran_is_told(mixed: Store, wanted: Filter, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        mixed.runs(wanted)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_store_lists_no_run_and_blames_no_filter(store: Store) -> None:
    assert store.runs(Filter(task="softmax", model="x")) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"verdict": "wrnog"}, "did you mean wrong?"),
        ({"verdict": ""}, "known: accepted, rejected"),
        ({"verdict": "Correct"}, "did you mean correct?"),
        ({"min_speedup": float("nan")}, "above 0"),
        ({"min_speedup": float("inf")}, "above 0"),
        ({"min_speedup": -1.0}, "above 0"),
        ({"limit": 0}, "at least 1"),
        ({"limit": -3}, "at least 1"),
        ({"limit": 2**70}, "at least 1"),
    ],
)
def test_a_filter_that_can_be_none_is_one_clear_line(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        Filter(**wrong)


def test_the_attempts_of_a_run_come_with_the_verdict_that_counts(store: Store) -> None:
    run_id = RUNS[0]
    for event in (started(run_id), *timed(run_id, 1, 1.5, best=True), *attempt(2, run_id), attempt(3, run_id)[0]):
        store.write(event)
    failed = replace(verified(1, "confirm", held=False), run_id=run_id, attempt_id=f"{run_id}/1")
    store.write(replace(failed, verdict=Verdict(Status.WRONG, "one element")))
    first, second, third = store.load_trajectory(run_id).attempts
    assert (first.status, first.detail, first.timing, first.speedup) == ("wrong", "one element", None, None)
    assert (second.status, [k.registers for k in second.kernels], second.parent_id) == ("checked", [40], f"{run_id}/1")
    assert (third.status, third.kernels) == (None, ())
    assert [a.number for a in store.ancestors(third)] == [2, 1]


def test_parents_that_go_round_in_a_circle_end_somewhere(store: Store) -> None:
    run_id = RUNS[0]
    store.write(started(run_id))
    for number, parent in ((1, 3), (2, 1), (3, 2)):
        proposed = attempt(number, run_id)[0]
        assert isinstance(proposed, Proposed)
        store.write(replace(proposed, parent_id=f"{run_id}/{parent}"))
    assert [a.number for a in store.ancestors(store.load_trajectory(run_id).attempts[2])] == [2, 1]


def test_numbers_that_no_json_has_hide_no_suite_and_no_spending(store: Store) -> None:
    limits: list[dict[str, Any]] = [{"suite": "mine"}, {"max_time_s": float("inf")}, {"max_time_s": float("nan")}]
    for run_id, its in zip(RUNS, limits, strict=False):
        store.write(replace(started(run_id), limits=its))
    for seed, tokens in enumerate((float("inf"), 2**62, 2**62)):
        usage = {"input_tokens": tokens}
        store.write(arbitrary(Replied, random.Random(seed), run_id=RUNS[0], usage=usage))
    assert (store.suites(), store.of_suite("mine")) == (["mine"], [RUNS[0]])
    assert store.spending(RUNS[0])[:2] == (3, 2**63 - 1)
    assert all(fold(ViewState(), event).budgets(0) == () for event in store.load_events(RUNS[1]))
