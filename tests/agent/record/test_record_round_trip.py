"""What goes into the record comes out again, in order, equal, and is stored once."""

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.events import (
    Event,
    Judged,
    Note,
    Proposed,
    RunEnded,
    RunResumed,
    Said,
    Stage,
    StageStarted,
    StoredEvent,
    Updated,
    Warned,
)
from kerneltune.agent.record.query import Filter
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import CaseResult, Comparison, Status, Verdict
from tests.agent.record.samples import RUN, arbitrary_run, attempt, started


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def write(store: Store, *events: Event) -> None:
    for event in events:
        store.write(event)


def rows(store: Store, query: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("seed", range(40))
def test_every_field_of_every_event_survives(store: Store, seed: int) -> None:
    events = arbitrary_run(seed)
    write(store, *events)
    assert store.load_events(RUN) == events


def test_the_arbitrary_runs_leave_out_no_kind_that_is_stored() -> None:
    kinds = {cls.kind for cls in get_args(StoredEvent)}
    assert {event.kind for event in arbitrary_run(0)} == kinds


def test_a_store_that_is_opened_again_gives_the_same_events(tmp_path: Path) -> None:
    events = arbitrary_run(1)
    with Store.open(tmp_path) as first:
        write(first, *events)
    with Store.open(tmp_path) as second:
        assert second.load_events(RUN) == events


def test_a_nan_error_stays_a_nan_and_sorts_as_a_failure(store: Store) -> None:
    proposed, updated, judged, _ = attempt(1)
    assert isinstance(judged, Judged)
    case = CaseResult("rows", "own", False, float("nan"), float("nan"))
    write(store, started(), proposed, updated, replace(judged, verdict=Verdict(Status.WRONG, "NaN", (case,))))
    loaded = store.load_events(RUN)[-1]
    assert isinstance(loaded, Judged)
    assert repr(loaded.verdict.cases[0].error_ratio) == "nan"
    assert rows(store, "SELECT count(*) FROM cases WHERE error_ratio > 1") == [(1,)]


def test_events_come_back_in_the_order_in_which_they_were_written(store: Store) -> None:
    first, second = attempt(1), attempt(2)
    mixed = [started(), *[e for pair in zip(first, second, strict=True) for e in pair]]
    write(store, *mixed)
    assert store.load_events(RUN) == mixed


def test_what_is_only_shown_is_not_stored(store: Store) -> None:
    write(
        store,
        started(),
        Note("", "starting"),
        StageStarted(RUN, "r/1", Stage.TRACING),
        Said(RUN, "assistant", "Let", final=False),
    )
    assert len(store.load_events(RUN)) == 1


def test_an_event_that_is_written_twice_is_stored_once(store: Store) -> None:
    events = [*arbitrary_run(3), Warned(RUN, "no GPU")]
    write(store, *events, *events)
    assert store.load_events(RUN) == events


def test_the_same_words_said_twice_are_two_messages_and_one_text(store: Store) -> None:
    said = Said(RUN, "user", "a long prompt " * 100, at=1.0)
    write(store, started(), said, replace(said, at=2.0))
    assert [e.at for e in store.load_events(RUN)[1:]] == [1.0, 2.0]
    assert rows(store, "SELECT count(*), count(DISTINCT text_ref) FROM messages") == [(2, 1)]


def test_a_text_is_stored_once_and_compressed(store: Store) -> None:
    source = "x = tl.load(x_ptr)\n" * 500
    first, second = (e for n in (1, 2) for e in attempt(n) if isinstance(e, Proposed))
    write(store, started(), replace(first, source=source), replace(second, source=source))
    assert rows(store, "SELECT count(*), count(DISTINCT source_ref) FROM attempts") == [(2, 1)]
    assert rows(store, "SELECT max(length(data)) FROM texts")[0][0] < len(source) / 20  # type: ignore[operator]


def test_the_record_of_one_run_says_nothing_of_another(store: Store) -> None:
    events, others = arbitrary_run(5), arbitrary_run(6, "20261121-100000-other-ffff")
    write(store, *[e for pair in zip(events, others, strict=True) for e in pair])
    assert store.load_events(RUN) == events
    assert store.load_events("no such run") == []


def test_a_checked_verdict_can_never_carry_a_time(store: Store) -> None:
    write(store, started(), *attempt(1))
    for column in ("median_us", "low_us", "high_us", "n_blocks", "n_launches", "sol_fraction"):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed: only_correct_has"):
            rows(store, f"UPDATE verdicts SET {column} = 1 WHERE status = 'checked'")
    values = "SELECT seq, 0, '{}', 'eager', 1, 1, 1, 1 FROM verdicts"
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for status, refused in (("checked", "CHECK"), ("correct", "FOREIGN KEY")):
            with pytest.raises(sqlite3.IntegrityError, match=refused):
                connection.execute(f"INSERT INTO comparisons {values.format(status)}")


def test_a_correct_verdict_cannot_lose_its_time(store: Store) -> None:
    write(store, started(), *attempt(1, status=Status.CORRECT))
    with pytest.raises(sqlite3.IntegrityError, match="only_correct_has_timing"):
        rows(store, "UPDATE verdicts SET median_us = NULL")


def test_a_comparison_with_anything_but_correct_is_refused_whole(store: Store) -> None:
    proposed, updated, judged, _ = attempt(1)
    assert isinstance(judged, Judged)
    timed = replace(judged.verdict)
    object.__setattr__(timed, "comparisons", (Comparison("eager", 1.0, 2.0, 1.9, 2.1),))  # past the type's own check
    write(store, started(), proposed, updated)
    with pytest.raises(StoreError, match="only_correct_is_compared"):
        store.write(replace(judged, verdict=timed))
    assert len(store.load_events(RUN)) == 3
    store.write(judged)
    assert len(store.attempts(RUN)) == 1


def test_an_attempt_cannot_be_proposed_with_two_sources(store: Store) -> None:
    proposed = attempt(1)[0]
    assert isinstance(proposed, Proposed)
    write(store, started(), proposed)
    with pytest.raises(StoreError, match=r"open in another process\?$"):
        store.write(replace(proposed, source="other"))


def test_an_event_of_a_run_that_never_began_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.write(Warned("nowhere", "text"))


def test_a_number_that_sqlite_cannot_hold_is_a_clear_error(store: Store) -> None:
    with pytest.raises(StoreError, match="too large"):
        store.write(replace(started(), seed=2**64))


def test_threads_may_write_at_once(store: Store) -> None:
    store.write(started())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write(store, *attempt(number)), range(1, 33)))
    assert sorted(a.number for a in store.attempts(RUN)) == list(range(1, 33))


def test_attempts_are_those_with_a_verdict_and_the_rest_is_unfinished(store: Store) -> None:
    events = attempt(1, status=Status.CORRECT)
    proposed = attempt(2)[0]
    write(store, started(), *events, proposed)
    [found] = store.attempts(RUN)
    assert isinstance(events[0], Proposed)
    assert isinstance(events[1], Updated)
    assert isinstance(events[2], Judged)
    assert (found.attempt_id, found.number, found.parent_id) == (f"{RUN}/1", 1, None)
    assert (found.source, found.origin) == (events[0].source, events[0].origin)
    assert (found.hypothesis, found.prediction) == ("memory-bound", "10% faster")
    assert (found.verdict, found.kernels, found.rank_key) == (events[2].verdict, events[1].kernels, (1.0,))
    assert [a.number for a in store.load_trajectory(RUN).attempts if a.verdict is None] == [2]


def test_an_attempt_is_found_by_its_id_or_the_start_of_it(store: Store) -> None:
    other = "20261121-100000-matmul-77aa"
    write(store, started(), *[e for n in range(1, 13) for e in attempt(n)], started(other), *attempt(1, other)[:1])
    for text, number in ((f"{RUN}/1", 1), (f"{RUN}/12", 12), ("20261121-09/2", 2)):
        run, found = store.find_attempt(text)
        assert (run.run_id, found.number) == (RUN, number)
        assert found.verdict is not None
    run, unjudged = store.find_attempt("20261121-10")
    assert (run.run_id, unjudged.attempt_id, unjudged.verdict) == (other, f"{other}/1", None)


def test_an_unknown_or_ambiguous_attempt_is_one_clear_line(store: Store) -> None:
    write(store, started(), *attempt(1), *attempt(2), *attempt(10))
    for text, words in (
        ("20990101", "no attempt '20990101'"),
        ("%", "no attempt '%'"),
        (f"{RUN}/", "could be 3 attempts: "),
    ):
        with pytest.raises(StoreError, match=words) as caught:
            store.find_attempt(text)
        assert "\n" not in str(caught.value)


def test_runs_are_listed_newest_first_with_their_best(store: Store) -> None:
    write(store, started(), *attempt(1, status=Status.CORRECT, best=True), *attempt(2, status=Status.WRONG))
    write(
        store,
        RunEnded(RUN, StopReason.ATTEMPTS, 2, 1, f"{RUN}/1", None, 9.0),
        replace(started("later", "matmul"), at=0.0),
    )
    later, first = store.runs()
    assert store.run_ids() == [RUN, "later"]
    assert (first.why, first.attempts, first.accepted, first.best_attempt_id) == ("attempts", 2, 1, f"{RUN}/1")
    assert (first.best_us, first.best_speedup) == (134.5, 1.12)
    assert (later.run_id, later.why, later.attempts, later.best_us) == ("later", None, 0, None)
    assert later.started.isoformat() == "1970-01-01T00:00:00+00:00"
    assert [r.run_id for r in store.runs(Filter(limit=1))] == ["later"]
    assert [r.run_id for r in store.runs(Filter(task="softmax"))] == [RUN]


def test_a_resumed_run_has_not_ended(store: Store) -> None:
    write(store, started(), RunEnded(RUN, StopReason.INTERRUPTED, 0, 0, None, None, 1.0), RunResumed(RUN, 0))
    assert store.runs()[0].why is None
