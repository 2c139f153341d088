"""The made-up store is one that the program itself could have written."""

import ast
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.record.events import Event, Judged, Proposed, Replied, Said
from agent.record.store import Store
from benchmarks.made_runs import ATTEMPTS_A_RUN, AUTHORS, SHARES, task_sources
from benchmarks.made_texts import near_duplicate, templates
from benchmarks.store_scale import events, fill, measured
from tools.task import builtin_tasks
from tools.verdict import Status

ATTEMPTS = 12 * ATTEMPTS_A_RUN + 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made")
    fill(made, ATTEMPTS, seed=3, jobs=1)
    return made


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store.open(folder) as opened:
        yield opened


def made(runs: int) -> list[Event]:
    return [event for index in range(runs) for event in events(index, seed=3)]


def test_it_holds_what_store_write_would_have_stored(store: Store) -> None:
    ids = store.run_ids()
    assert len(ids) == 13
    for index in (0, 5, 12):
        assert store.load_events(ids[index]) == events(index, 3, ATTEMPTS)


def test_it_lists_its_runs_as_a_store_that_was_written_event_by_event(store: Store, tmp_path: Path) -> None:
    with Store.open(tmp_path) as written:
        for index in range(13):
            for event in events(index, 3, ATTEMPTS):
                written.write(event)
        assert written.runs() == store.runs() != []


def test_no_reference_dangles_and_no_constraint_is_broken(folder: Path) -> None:
    with sqlite3.connect(folder / "runs.db") as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (ATTEMPTS,)
    connection.close()


def test_the_same_seed_makes_the_same_runs_and_another_seed_others() -> None:
    assert events(4, seed=3) == events(4, seed=3) != events(4, seed=4)


def test_a_database_is_never_overwritten(folder: Path) -> None:
    with pytest.raises(FileExistsError):
        fill(folder, ATTEMPTS, seed=3)


def test_every_status_every_author_and_every_task_happens() -> None:
    some = made(150)
    statuses = Counter(e.verdict.status for e in some if isinstance(e, Judged))
    assert set(statuses) == {*SHARES, Status.CHECKED, Status.UNCHECKED} == set(Status)
    assert 0.3 < statuses[Status.CORRECT] / statuses.total() < 0.5
    assert {e.author for e in some if e.kind == "run_started"} == set(AUTHORS)
    assert len(task_sources()) == 4 * len(builtin_tasks())
    assert any(isinstance(e, Said) and e.raw and e.raw.get("history") for e in some)
    assert {len(e.calls) for e in some if isinstance(e, Replied)} == {2}


def test_sources_are_real_python_of_the_usual_size_and_mostly_unlike_each_other() -> None:
    sources = [e.source for e in made(20) if isinstance(e, Proposed)]
    for source in sources[:200]:
        compile(source, "candidate.py", "exec")
    assert 1000 < sum(map(len, sources)) / len(sources) < 3000
    assert 0.02 < 1 - len(set(sources)) / len(sources) < 0.10


def test_a_near_duplicate_differs_in_one_constant_only() -> None:
    rng = random.Random(0)
    source = templates()[0].fill(rng, "a")
    other = near_duplicate(source, rng)
    pairs = zip(ast.walk(ast.parse(source)), ast.walk(ast.parse(other)), strict=True)
    changed = [(a, b) for a, b in pairs if isinstance(a, ast.Constant) and ast.dump(a) != ast.dump(b)]
    assert len(changed) == 1


def test_the_figures_say_what_is_there_and_what_a_write_costs(folder: Path) -> None:
    figures = measured(folder, seed=3, write_runs=1)
    assert figures["attempts"] == ATTEMPTS
    assert (
        sum(figures["by_table"].values()) == pytest.approx(figures["bytes_per_attempt"], rel=0.01)
        or not figures["by_table"]
    )
    assert figures["write_ms"]["judged"]["n"] == ATTEMPTS_A_RUN
    assert 0 < figures["write_ms"]["judged"]["median"] <= figures["write_ms"]["judged"]["p95"]
    read, whole = figures["trajectories"], figures["trajectories_whole"]
    assert read["attempts"] == whole["attempts"] == ATTEMPTS + ATTEMPTS_A_RUN
    assert read["attempts_per_cpu_s"] > whole["attempts_per_cpu_s"] > 0
