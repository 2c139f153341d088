"""All runs as trajectories: equal to the fold over their events, however strange these are, and whatever is written."""

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.events import Event, Judged, Proposed, Replied, RunEnded, Said, Verified
from kerneltune.agent.record import store as store_module
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import CaseResult, Status, Verdict
from tests.agent.random_runs import RunMaker
from tests.agent.record.samples import RUN, arbitrary_run, attempt, started

CALLS: tuple[Any, ...] = (
    [],
    [{"call_id": "c1", "name": "update", "arguments": {"parent": 1, "source": "x\ud800"}, "problem": ""}],
    [{"call_id": "c2", "name": "bench"}, {"call_id": "", "name": "", "arguments": {}, "problem": "no JSON"}],
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def write(store: Store, *events: Event) -> None:
    store.write_all(events)


def strange_run(seed: int, run_id: str = RUN) -> list[Event]:
    """An arbitrary run, but for calls that are calls."""
    rng = random.Random(seed)
    events = arbitrary_run(seed, run_id)
    return [replace(e, calls=rng.choice(CALLS)) if isinstance(e, Replied) else e for e in events]


def folded(store: Store) -> list[Trajectory]:
    return [without(trajectory(store.load_events(run_id)), receipt={}) for run_id in store.run_ids()]


def without(run: Trajectory, **nothing: Any) -> Trajectory:
    """Without these parts of its verdicts."""
    attempts = tuple(replace(a, verdict=a.verdict and replace(a.verdict, **nothing)) for a in run.attempts)
    best = next((a for a in attempts if run.best and a.attempt_id == run.best.attempt_id), None)
    return replace(run, attempts=attempts, best=best)


def bare(run: Trajectory) -> Trajectory:
    """Without what is only read when asked for."""
    return replace(without(run, cases=(), receipt={}), conversations=())


@pytest.mark.parametrize("seed", range(40))
def test_every_run_equals_the_fold_over_its_events(store: Store, seed: int) -> None:
    write(store, *strange_run(seed))
    [found] = store.trajectories(conversations=True, cases=True)
    assert found == without(trajectory(store.load_events(RUN)), receipt={})
    assert [bare(found)] == list(store.trajectories())


@pytest.mark.parametrize("seed", range(5))
def test_runs_that_were_written_at_once_come_apart(store: Store, seed: int) -> None:
    runs = [strange_run(10 * seed + i, f"run-{i}") for i in range(4)]
    rng = random.Random(seed)
    write(store, *(run.pop(0) for run in runs))
    while alive := [run for run in runs if run]:
        write(store, rng.choice(alive).pop(0))
    assert list(store.trajectories(conversations=True, cases=True)) == folded(store)


def test_a_made_up_store_equals_its_fold_in_batches_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path) as store:
        for index in range(7):
            write(store, *RunMaker(index, seed=5, attempts=30 if index == 6 else 50).events())
        expected = folded(store)
        assert len(expected) == 7
        for size in (1, 120, 10_000):
            monkeypatch.setattr(store_module, "_BATCH_ATTEMPTS", size)
            assert list(store.trajectories(conversations=True, cases=True)) == expected
            assert list(store.trajectories()) == [bare(run) for run in expected]


def test_the_first_verdict_counts_until_the_latest_confirmation_does(store: Store) -> None:
    proposed, updated, judged, _ = attempt(1)
    assert isinstance(judged, Judged)
    other = Verdict(Status.WRONG, "off by one")
    again = [
        Verified(
            RUN, judged.attempt_id, "confirm", replace(other, detail=text), 1.0, True, "", None, {}, {}, (at,), at=at
        )
        for text, at in (("first", 1.0), ("latest", 2.0))
    ]
    write(store, started(), proposed, updated, judged, replace(judged, verdict=other, at=judged.at + 1))
    [found] = store.trajectories()
    assert (found.attempts[0].status, found.attempts[0].tool) == (Status.CHECKED, "bench")
    write(store, *again)
    [found] = store.trajectories()
    assert (found.attempts[0].detail, found.attempts[0].tool, found.attempts[0].rank_key) == (
        "latest",
        "confirm",
        (2.0,),
    )
    assert found == bare(trajectory(store.load_events(RUN)))


def test_the_best_of_a_run_that_goes_on_is_the_fastest_whichever_was_judged_last(store: Store) -> None:
    faster, slower = (attempt(number, best=True) for number in (1, 2))  # smaller numbers rank first in the samples
    for event in (started(), *faster[:2], *slower, *faster[2:]):
        store.write(event)
    best = store.load_trajectory(RUN).best
    assert best is not None
    assert (best.attempt_id, store.find_attempt_id(RUN)) == (f"{RUN}/1", f"{RUN}/1")
    assert store.runs()[0].best_attempt_id == f"{RUN}/1"


def test_numbers_that_are_none_survive(store: Store) -> None:
    proposed, updated, judged, _ = attempt(1)
    assert isinstance(judged, Judged)
    case = CaseResult("rows", "own", False, float("nan"), float("inf"))
    write(
        store, started(), proposed, updated, replace(judged, verdict=Verdict(Status.WRONG, "NaN", (case,)), bench_s=0.0)
    )
    [found] = store.trajectories(cases=True)
    assert repr(found) == repr(trajectory(store.load_events(RUN)))
    assert repr(found.attempts[0].cases[0].error_ratio) == "nan"


def test_an_empty_store_and_a_run_without_attempts(store: Store) -> None:
    assert list(store.trajectories()) == []
    write(store, started())
    [found] = store.trajectories(conversations=True)
    assert (found.attempts, found.best, found.why, found.conversations) == ((), None, None, ())


def test_attempts_come_by_number_and_an_unjudged_one_has_no_status(store: Store) -> None:
    first, second = attempt(1), attempt(2)
    write(store, started(), *second[:1], *first)
    [found] = store.trajectories()
    assert [(a.number, a.status, a.tool) for a in found.attempts] == [(1, Status.CHECKED, "bench"), (2, None, None)]


def test_a_state_of_the_record_stays_as_it_was_while_runs_go_on(store: Store) -> None:
    write(store, started(), *attempt(1, best=True), *attempt(2)[:2])
    before, until = folded(store), store.last_seq()
    write(store, *attempt(2)[2:], *attempt(3), Said(RUN, "user", "more", conversation="1"))
    write(store, RunEnded(RUN, StopReason.ATTEMPTS, 3, 3, f"{RUN}/3", None, 1.0), started("later"))
    assert list(store.trajectories(conversations=True, cases=True, until=until)) == before
    assert len(list(store.trajectories())) == 2


def test_a_reader_that_pauses_holds_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two runs the whole WAL can be written back, so it does not grow during a slow export."""
    monkeypatch.setattr(store_module, "_BATCH_ATTEMPTS", 1)
    for i in range(3):
        write(store, started(f"run-{i}"), *attempt(1, f"run-{i}"))
    slow = store.trajectories()
    assert next(slow).run.run_id == "run-0"
    write(store, *attempt(2, "run-1"))
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        busy, pages, done = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert (busy, pages - done) == (0, 0)
    assert store.path.with_name("runs.db-wal").stat().st_size == 0
    assert [len(run.attempts) for run in slow] == [1, 1]  # as it was when the reader began


def damage(store: Store, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(store.path)) as connection, connection:
        assert connection.execute(statement).rowcount == 1


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "UPDATE texts SET data = x'00' WHERE sha256 = (SELECT source_ref FROM attempts)",
            "data is damaged",
        ),
        ("DELETE FROM texts WHERE sha256 = (SELECT source_ref FROM attempts)", "is missing"),
        ("UPDATE verdicts SET status = 'splendid'", "splendid"),
        ("UPDATE attempts SET origin = '{'", "Expecting property name"),
        ("UPDATE attempts SET origin = '[]'", "wanted a LlmTurn"),
        ("UPDATE kernels SET occupancy = 'much'", "could not convert"),
    ],
)
def test_damage_is_one_clear_line(store: Store, statement: str, words: str) -> None:
    write(store, started(), *attempt(1))
    damage(store, statement)
    with pytest.raises(StoreError, match=r"runs\.db: reading: ") as caught:
        list(store.trajectories(cases=True))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_reader_s_caller_does_wrong_is_not_blamed_on_the_record(store: Store) -> None:
    write(store, started(), *attempt(1))
    with pytest.raises(UnicodeError):
        list(map(lambda _: "\ud800".encode(), store.trajectories()))


def test_runs_are_chosen_by_task_and_by_author_or_provider(store: Store) -> None:
    for i, (task, author) in enumerate(
        (("softmax", "offline"), ("matmul", "anthropic:opus"), ("matmul", "anthropic-x"))
    ):
        write(store, replace(started(f"run-{i}", task), author=author))

    def ids(tasks: list[str] | None = None, authors: list[str] | None = None) -> list[str]:
        return [run.run.run_id for run in store.trajectories(store.choose(tasks, authors))]

    assert ids() == ["run-0", "run-1", "run-2"]
    assert ids(tasks=["matmul"]) == ["run-1", "run-2"]
    assert ids(authors=["anthropic"]) == ids(authors=["anthropic:opus"]) == ["run-1"]
    assert ids(tasks=["matmul"], authors=["offline"]) == ids(tasks=[]) == ids(authors=["'; --"]) == []


def test_sources_come_alone_in_the_order_of_the_attempts(store: Store) -> None:
    write(store, started(), *attempt(2), *attempt(1))
    proposed = [e for number in (1, 2) for e in attempt(number) if isinstance(e, Proposed)]
    assert list(store.sources(store.choose())) == [(e.attempt_id, e.source) for e in proposed]
