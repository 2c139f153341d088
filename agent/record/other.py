"""A database that another machine wrote, opened for reading only: checked, and if it is old, upgraded in a copy."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from agent.record.schema import SHIPPED, VERSION_TABLE, Schema, upgrade_copy
from agent.record.store import FILE_NAME
from tools.errors import StoreError

BUSY_TIMEOUT_S = 30.0


@contextlib.contextmanager
def opened_other(given: Path, ours: Path, schema: Schema = SHIPPED) -> Iterator[Path]:
    """A file with all that `given`, a database or the runs directory around it, holds now, in the current schema. The
    file itself is never changed. Raises StoreError, of one line, when it is none of ours, damaged, newer, or `ours`."""
    path = database_at(given)
    if not path.is_file():
        raise StoreError(f"{path}: {'no such file' if not path.exists() else 'not a file'}")
    if ours.exists() and os.path.samefile(path, ours):
        raise StoreError(f"{path} is the database of this runs directory itself")
    with tempfile.TemporaryDirectory(prefix=".merge-", dir=ours.parent) as scratch:  # where there has to be room anyway
        with _one_line(path):
            source = _current(path, Path(scratch), schema)
        yield source


def _current(path: Path, scratch: Path, schema: Schema) -> Path:
    source = _readable(path, scratch)
    with contextlib.closing(connected(source)) as connection:
        revision = _checked(connection, path, schema)
        if revision == schema.head:
            return source
        source = _copied(connection, scratch / "upgraded.db")
    _upgrade(source, schema)
    return source


def database_at(given: Path) -> Path:
    """The database that a person means: the file, or that of the runs directory."""
    return given / FILE_NAME if given.is_dir() else given


def read_only(path: Path) -> str:
    """The URI that opens a database without a right to change it."""
    return f"file:{quote(str(path.absolute()))}?mode=ro"


def connected(path: Path) -> sqlite3.Connection:
    """The database of a path, to be read."""
    return sqlite3.connect(read_only(path), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)


def _readable(path: Path, scratch: Path) -> Path:
    """The path, or a copy: SQLite reads a WAL database in a folder that it may not write only if a reader is there."""
    with contextlib.closing(connected(path)) as connection:
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
            return path
        except sqlite3.OperationalError:
            copy = scratch / FILE_NAME
    for end in ("", "-wal"):
        if (part := Path(f"{path}{end}")).exists():
            shutil.copyfile(part, f"{copy}{end}")
    return copy


def _checked(connection: sqlite3.Connection, path: Path, schema: Schema) -> str:
    """Its revision, if it is one of ours and whole."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() if VERSION_TABLE in names else []
    if "events" not in names or len(found) != 1:
        raise StoreError(f"{path} is not a database of kerneltune's")
    revision = str(found[0][0])
    if revision not in schema.revisions:
        raise StoreError(
            f"{path} has schema {revision}, newer than schema {schema.head} of this kerneltune; upgrade kerneltune"
        )
    problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise StoreError(f"{path} is damaged: {' '.join(str(problem).split())}")
    return revision


def _copied(connection: sqlite3.Connection, copy: Path) -> Path:
    with contextlib.closing(sqlite3.connect(copy)) as target:
        connection.backup(target)
    return copy


def _upgrade(copy: Path, schema: Schema) -> None:
    engine = create_engine(f"sqlite:///{copy}")
    try:
        upgrade_copy(engine, copy, schema)
    finally:
        engine.dispose()


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, SQLAlchemyError) as error:
        why = getattr(error, "orig", None) or error
        raise StoreError(f"{path}: {str(why).partition(chr(10))[0]}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
