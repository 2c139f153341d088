"""The database is made, upgraded or refused; the migrations lead to the tables."""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect
from sqlmodel import SQLModel

from agent.record.schema import SHIPPED, Schema
from agent.record.store import FILE_NAME, Store
from tests.agent.record.samples import RUN, arbitrary_run, attempt, started
from tools.errors import StoreError

LATER = '''"""A later schema."""
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "0006", "0005", None, None
def upgrade() -> None:
    with op.batch_alter_table("attempts", recreate="always") as table:
        table.add_column(sa.Column("mood", sa.Text(), nullable=True))
    {more}
'''


def later(tmp_path: Path, more: str = "") -> Schema:
    """The shipped schema and one more revision, which makes `attempts` anew, as SQLite needs for most changes."""
    scripts = shutil.copytree(SHIPPED.scripts, tmp_path / "100% later" / "migrations")
    (scripts / "versions" / "0006_later.py").write_text(LATER.format(more=more))
    return Schema((*SHIPPED.revisions, "0006"), scripts)


def stamp(folder: Path, revision: str) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.commit()
    connection.close()


def stored(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def migrated(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(SHIPPED.scripts))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def shape(connection: Connection) -> dict[str, Any]:
    """Columns, keys and constraints of every table."""
    look = inspect(connection)
    parts = (
        look.get_columns,
        look.get_unique_constraints,
        look.get_check_constraints,
        look.get_foreign_keys,
        look.get_indexes,
    )
    return {
        name: [sorted(map(repr, part(name))) for part in parts]
        + [repr(look.get_pk_constraint(name)["constrained_columns"])]
        for name in sorted(set(look.get_table_names()) - {"alembic_version"})
    }


def test_the_migrations_lead_to_the_tables() -> None:
    engine, fresh = create_engine("sqlite://"), create_engine("sqlite://")
    with engine.connect() as by_migration, fresh.connect() as by_metadata:
        migrated(by_migration)
        SQLModel.metadata.create_all(by_metadata)
        assert compare_metadata(MigrationContext.configure(by_migration), SQLModel.metadata) == []
        assert shape(by_migration) == shape(by_metadata)
    engine.dispose()
    fresh.dispose()


def test_the_known_revisions_are_the_shipped_migrations() -> None:
    scripts = ScriptDirectory(str(SHIPPED.scripts))
    assert tuple(s.revision for s in scripts.walk_revisions())[::-1] == SHIPPED.revisions


def test_a_current_database_is_opened_without_alembic(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from agent.record.store import Store\n"
        f"for _ in range(2): Store.open(Path({str(tmp_path)!r})).close()\n"
        "assert 'alembic' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert stored(tmp_path / FILE_NAME, "SELECT version_num FROM alembic_version") == [(SHIPPED.head,)]
    assert stored(tmp_path / FILE_NAME, "PRAGMA journal_mode") == [("wal",)]


def test_the_events_load_neither_the_database_nor_its_libraries() -> None:
    code = "import sys, agent.record.events; assert not {'sqlalchemy', 'sqlmodel', 'alembic'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_old_database_is_backed_up_and_upgraded(tmp_path: Path) -> None:
    events, runs_dir = arbitrary_run(2), tmp_path / "runs"
    with Store.open(runs_dir) as store:
        for event in events:
            store.write(event)
    with Store.open(runs_dir, later(tmp_path)) as store:
        assert store.load_events(RUN) == events
        store.write(attempt(7)[0])
    path = runs_dir / FILE_NAME
    assert stored(path, "SELECT version_num FROM alembic_version") == [("0006",)]
    assert stored(path, "SELECT count(mood), count(*) FROM attempts") == [(0, 4)]
    backup = path.with_name("runs.db.bak-0005")
    assert stored(backup, "SELECT version_num, count(*) FROM alembic_version, attempts") == [("0005", 3)]
    assert stored(path, "PRAGMA foreign_key_check") == []


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    runs_dir = tmp_path / "runs"
    with Store.open(runs_dir) as store:
        store.write(started())
        store.write(attempt(1)[0])
    for more, words in (
        ("op.execute('nonsense')", "nonsense"),
        ("op.execute('DELETE FROM runs')", "breaks a reference"),
    ):
        shutil.rmtree(tmp_path / "100% later", ignore_errors=True)
        with pytest.raises(StoreError, match=words) as caught:
            Store.open(runs_dir, later(tmp_path, more))
        assert "\n" not in str(caught.value)
    with Store.open(runs_dir) as store:
        assert len(store.load_events(RUN)) == 2


def test_a_newer_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    stamp(tmp_path, "0999")
    with pytest.raises(StoreError, match=rf"runs\.db has schema 0999, newer than schema {SHIPPED.head} .*; upgrade"):
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


UNPRIVILEGED = """
import os, sys
from pathlib import Path
import agent.record.store, sqlalchemy.dialects.sqlite.pysqlite
if os.geteuid() == 0: os.setuid(65534)
try: agent.record.store.Store.open(Path(sys.argv[1]))
except agent.record.store.StoreError as error: print("StoreError:", error)
"""
