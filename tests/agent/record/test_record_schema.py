"""The database is made, converted or refused."""

import contextlib
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import GivenFile, LlmTurn, Origin, RunStart, SearchPoint
from kerneltune.agent.events import Event, Replied, RunResumed, Said
from kerneltune.agent.record.query import VERSION
from kerneltune.agent.record.store import FILE_NAME, Store, digest_of, origin_of
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.tools.schema.errors import StoreError
from tests.agent.record.samples import RUN, arbitrary_run, attempt, made_old, started
from tests.agent.shell import ROOT


def stamp(folder: Path, version: int) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def stored(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def of_then(event: Event) -> Event:
    """The event as the older database holds it."""
    return replace(event, conversation="") if isinstance(event, Said) else event


def test_a_new_database_is_ours_and_in_wal_mode(tmp_path: Path) -> None:
    for _ in range(2):
        Store.open(tmp_path).close()
    assert stored(tmp_path / FILE_NAME, "PRAGMA user_version") == [(VERSION,)]
    assert stored(tmp_path / FILE_NAME, "PRAGMA journal_mode") == [("wal",)]


def test_the_events_load_neither_the_database_nor_its_libraries() -> None:
    code = "import sys, kerneltune.agent.events; assert not {'sqlalchemy', 'sqlmodel', 'sqlite3'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_columns_change_only_with_the_version(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    tables = "sqlite_master AS t JOIN pragma_table_info(t.name) AS c"
    columns = 't.name, c.name, c.type, c."notnull", c.pk'
    shape = stored(tmp_path / FILE_NAME, f"SELECT {columns} FROM {tables} ORDER BY 1, 2")
    assert (VERSION, hashlib.sha256(repr(shape).encode()).hexdigest()[:16]) == (8, "1df10e61096a1f63")


def test_an_old_database_is_backed_up_and_converted(tmp_path: Path) -> None:
    events, path = arbitrary_run(2), tmp_path / "runs" / FILE_NAME
    for folder in (tmp_path / "runs", tmp_path / "new"):
        with Store.open(folder) as store:
            for event in events:
                store.write(of_then(event) if folder.name == "new" else event)
    made_old(path)
    with Store.open(path.parent) as store:
        assert store.load_events(RUN) == [of_then(e) for e in events]
        store.write(attempt(7)[0])
    assert stored(path, "PRAGMA user_version") == [(VERSION,)]
    assert stored(path, "PRAGMA foreign_key_check") == []
    shape = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    assert stored(path, shape) == stored(tmp_path / "new" / FILE_NAME, shape)
    digests = "SELECT digest FROM events ORDER BY seq LIMIT 30"
    assert stored(path, digests) == stored(tmp_path / "new" / FILE_NAME, digests)
    backup = path.with_name("runs.db.bak-0004")
    assert stored(backup, "SELECT version_num, count(*) FROM alembic_version, attempts") == [("0004", 3)]


@pytest.mark.parametrize(("demo", "schema"), [("demo", 5), ("demo-ptx", 3)])
def test_replies_stored_before_their_tokens_were_kept_open_with_the_digests_they_had(
    demo: str, schema: int, tmp_path: Path
) -> None:
    path = Path(shutil.copy(ROOT / "docs" / demo / FILE_NAME, tmp_path))
    assert stored(path, "PRAGMA user_version") == [(schema,)]
    digests = "SELECT digest FROM events ORDER BY run_id, seq"
    before = stored(path, digests)
    with Store.open(tmp_path) as store:
        events = [event for run_id in sorted(store.run_ids()) for event in store.load_events(run_id)]
    assert stored(path, digests) == before == [(digest_of(event),) for event in events]
    replies = [event for event in events if isinstance(event, Replied)]
    assert replies
    assert {(reply.token_ids, reply.logprobs) for reply in replies} == {(None, None)}
    assert digest_of(replace(replies[0], token_ids=(1,))) != digest_of(replies[0])


def test_a_resumption_by_the_run_s_own_author_has_the_digest_it_had_before_others_were_kept() -> None:
    fields = {"run_id": RUN, "at": 9.0, "finished_attempts": 3, "kind": "run_resumed"}
    before = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    assert digest_of(RunResumed(RUN, 3, at=9.0)) == before
    assert digest_of(RunResumed(RUN, 3, "http:me", at=9.0)) != before


def test_where_a_run_came_from_is_known_of_its_events_after_the_conversion(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for run_id in (RUN, f"{RUN}-2"):
            store.write_all([started(run_id), *attempt(1, run_id)])
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.executescript(
            "ALTER TABLE events DROP COLUMN merged_from; ALTER TABLE runs ADD COLUMN merged_from TEXT;"
            f"UPDATE runs SET merged_from = '/b' WHERE run_id = '{RUN}'; PRAGMA user_version = 4"
        )
    with Store.open(tmp_path) as store:
        assert [store.merged_from(run_id) for run_id in (RUN, f"{RUN}-2")] == ["/b", None]
    marked = stored(tmp_path / FILE_NAME, "SELECT DISTINCT run_id, merged_from FROM events ORDER BY run_id")
    assert marked == [(RUN, "/b"), (f"{RUN}-2", None)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE attempts SET run_id = 'nowhere'", "breaks a reference"),
        ("UPDATE attempts SET params = '{'", "in order, or give another"),
    ],
)
def test_a_conversion_that_fails_changes_nothing(tmp_path: Path, damage: str, words: str) -> None:
    with Store.open(tmp_path) as store:
        store.write(started())
        store.write(attempt(1)[0])
    path = tmp_path / FILE_NAME
    made_old(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    with pytest.raises(StoreError, match=words) as caught:
        Store.open(tmp_path)
    assert "\n" not in str(caught.value)
    assert stored(path, "SELECT version_num, count(*) FROM alembic_version, attempts, standings") == [("0004", 1)]


@pytest.mark.parametrize(
    ("params", "origin"),
    [
        ({}, None),
        ({"conversation": "2", "turn": 3}, LlmTurn("2", 3)),
        ({"sketch": "inductor", "NUM_WARPS": 8}, SearchPoint("inductor", {"NUM_WARPS": 8})),
        ({"BLOCK": 8}, SearchPoint("", {"BLOCK": 8})),
        ({"from": "best"}, RunStart("best")),
        ({"from": "best", "as": "ptx"}, RunStart("best", as_ptx=True)),
        ({"sketch": "s", "BLOCK": 8, "from": "offline"}, RunStart("offline", point=SearchPoint("s", {"BLOCK": 8}))),
        ({"file": "a.py"}, GivenFile("a.py")),
        ({"file": "a.py", "problem": "it is a folder"}, GivenFile("a.py", "it is a folder")),
    ],
)
def test_the_params_of_older_attempts_become_their_origin(params: dict[str, Any], origin: Origin | None) -> None:
    assert origin_of(params) == origin


@pytest.mark.parametrize("demo", ["demo", "demo-ptx"])
def test_a_recorded_demo_still_opens_by_copy(tmp_path: Path, demo: str) -> None:
    shutil.copy(ROOT / "docs" / demo / FILE_NAME, tmp_path / FILE_NAME)
    with Store.open(tmp_path) as store:
        runs = store.runs()
        assert len(runs) >= 3
        assert all(run.accepted > 0 and run.best_speedup is not None for run in runs)
        assert all(trajectory(store.load_events(run.run_id)).best is not None for run in runs)
        by_model = {run.run_id: run.author.startswith("scripted:") for run in runs}
        assert all(isinstance(a.origin, LlmTurn) == by_model[run] for run in by_model for a in store.attempts(run))


def test_a_newer_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    stamp(tmp_path, 999)
    with pytest.raises(StoreError, match=rf"runs\.db has schema 999, newer than schema {VERSION} .*; upgrade"):
        Store.open(tmp_path)


def test_a_database_of_another_program_is_refused_unharmed(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreError, match="not one of kerneltune's"):
        Store.open(tmp_path)
    assert stored(tmp_path / FILE_NAME, "SELECT name FROM sqlite_master") == [("theirs",)]


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    with Store.open(tmp_path) as store:
        assert store.run_ids() == []


@pytest.mark.parametrize("damage", ["text", "header", "tables"])
def test_a_corrupt_file_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    with Store.open(tmp_path) as store:
        for event in arbitrary_run(1):
            store.write(event)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(
        {"text": b"not a database\n" * 999, "header": whole[:50], "tables": whole[:4096] + b"\xff" * 90_000}[damage]
    )
    with (
        pytest.raises(StoreError, match=r"in order, or give another runs directory$") as caught,
        Store.open(tmp_path) as store,
    ):
        store.load_events(RUN)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_runs_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "runs", Path("/proc/kerneltune")):
        with pytest.raises(StoreError, match=r"give another runs directory$") as caught:
            Store.open(folder)
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_place_without_write_permission_is_one_clear_line(what: str) -> None:
    """Root may write anywhere, so a child without rights tries."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if what == "file":
            Store.open(folder).close()
            (folder / FILE_NAME).chmod(0o444)
        folder.chmod(0o555)
        done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, name], capture_output=True, text=True)
        folder.chmod(0o755)
    assert done.stdout.startswith("StoreError: "), done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("older", [False, True])
def test_a_record_that_may_not_be_written_can_be_looked_at(older: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Store.open(folder) as store:
            store.write_all([started(), *attempt(1)])
            if older:
                store.close()
                made_old(folder / FILE_NAME)
            for path in folder.iterdir():
                path.chmod(0o444)
            folder.chmod(0o555)
            before = sorted(p.name for p in folder.iterdir())
            done = subprocess.run([sys.executable, "-c", LOOKING, name], capture_output=True, text=True)
            assert sorted(p.name for p in folder.iterdir()) == before
        folder.chmod(0o755)
    assert done.stdout == f"{RUN} 1\n", done.stderr


LOOKING = """
import os, sys
from pathlib import Path
import sqlalchemy.dialects.sqlite.pysqlite
from kerneltune.agent.record.store import Store
if os.geteuid() == 0: os.setuid(65534)
with Store.open(Path(sys.argv[1]), to_look=True) as store:
    assert store.path.parent == Path(sys.argv[1])
    for run in store.runs(): print(run.run_id, run.attempts)
"""
UNPRIVILEGED = """
import os, sys
from pathlib import Path
import sqlalchemy.dialects.sqlite.pysqlite
from kerneltune.agent.record.store import Store, StoreError
if os.geteuid() == 0: os.setuid(65534)
try: Store.open(Path(sys.argv[1]))
except StoreError as error: print("StoreError:", error)
"""
