"""The version of the database: made when there is none, converted when it is older, refused when it is newer.

The version is SQLite's `user_version`. An older database is converted whole: its tables are made anew as they are now,
and every column that both have is copied; a new column has its default. Before version 2 an attempt had `params`,
launch parameters and private keys in one object, which become its origin; before version 3 a verdict had no cause.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlmodel import SQLModel

from kerneltune.agent.attempt import GivenFile, LlmTurn, Origin, RunStart, SearchPoint
from kerneltune.agent.record.rows import digest_of, read_events
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import StoreError

VERSION = 3
_BEFORE_1 = "0004"  # in a table `alembic_version`: the last schema before the first release
_PAGE_EVENTS = 1000


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Leave the database at `path` at our version, in WAL mode. The caller holds the lock of the runs directory, for
    two processes may find the same old or missing database. Raises StoreError."""
    found = version(connection, path)
    connection.execute("PRAGMA journal_mode = WAL").close()  # a property of the file: nothing to do when it has it
    if found is None:
        with transaction(connection):
            _create(connection)
    elif found != str(VERSION):
        _backup(connection, path.with_name(f"{path.name}.bak-{found}"))
        convert(connection)


def version(connection: sqlite3.Connection, path: Path) -> str | None:
    """The stored version, ours or one that can be converted; None for an empty database. Raises StoreError."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names:
        return None
    if "alembic_version" in names:
        found = ", ".join(str(row[0]) for row in connection.execute("SELECT version_num FROM alembic_version"))
    else:
        found = str(connection.execute("PRAGMA user_version").fetchone()[0])
    if "events" not in names or found in ("", "0"):
        raise StoreError(f"{path} is an SQLite database, but not one of kerneltune's; give another runs directory")
    if found not in (_BEFORE_1, *map(str, range(1, VERSION + 1))):
        raise StoreError(
            f"{path} has schema {found}, newer than schema {VERSION} of this kerneltune; "
            "upgrade kerneltune, or give another runs directory"
        )
    return found


def convert(connection: sqlite3.Connection) -> None:
    """Bring a database of an older version to ours, in one transaction. Foreign keys are off meanwhile. An event's
    digest is that of all its fields, so it is made anew where there are more of them."""
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA legacy_alter_table = ON")  # a renamed table is not followed by those that refer to it
    try:
        with transaction(connection):
            _copy_tables(connection)
            _renew_digests(connection)
            if broken := connection.execute("PRAGMA foreign_key_check").fetchone():
                raise StoreError(f"the conversion to schema {VERSION} breaks a reference: {broken}")
    finally:
        connection.execute("PRAGMA legacy_alter_table = OFF")
        connection.execute("PRAGMA foreign_keys = ON")


def _copy_tables(connection: sqlite3.Connection) -> None:
    stored = "SELECT name FROM sqlite_master WHERE type = ? AND sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    for (name,) in connection.execute(stored, ("index",)).fetchall():
        connection.execute(f"DROP INDEX {_quoted(name)}")
    names = [name for (name,) in connection.execute(stored, ("table",))]
    for name in names:
        connection.execute(f"ALTER TABLE {_quoted(name)} RENAME TO {_quoted('old_' + name)}")
    _create(connection)
    for table in SQLModel.metadata.sorted_tables:
        if table.name in names:
            old = {row[1] for row in connection.execute(f"PRAGMA table_info({_quoted('old_' + table.name)})")}
            both = ", ".join(_quoted(column.name) for column in table.columns if column.name in old)
            connection.execute(f"INSERT INTO {table.name} ({both}) SELECT {both} FROM {_quoted('old_' + table.name)}")
            if table.name == "attempts" and "params" in old:
                found = connection.execute("SELECT params, seq FROM old_attempts").fetchall()
                origins = [(json.dumps(encode(origin_of(json.loads(params)))), seq) for params, seq in found]
                connection.executemany("UPDATE attempts SET origin = nullif(?, 'null') WHERE seq = ?", origins)
    for name in names:
        connection.execute(f"DROP TABLE {_quoted('old_' + name)}")


def origin_of(params: dict[str, Json]) -> Origin | None:
    """What the `params` of an attempt of version 1 say of its origin."""
    numbers = {name: value for name, value in params.items() if type(value) is int}
    match params:
        case {"conversation": str(key), "turn": int(turn)}:
            return LlmTurn(key, turn)
        case {"from": str(given)}:
            point = SearchPoint(str(params["sketch"]), numbers) if "sketch" in params else None
            return RunStart(given, "as" in params, point)
        case {"file": str(name)}:
            return GivenFile(name, str(params.get("problem", "")))
    return SearchPoint(str(params.get("sketch", "")), numbers) if params else None


def _renew_digests(connection: sqlite3.Connection) -> None:
    last = connection.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
    for start in range(0, last, _PAGE_EVENTS):
        page = {"start": start, "end": start + _PAGE_EVENTS}
        found = read_events(connection, "seq > :start AND seq <= :end", page)
        renewed = [(digest_of(event), seq) for seq, event in found]
        connection.executemany("UPDATE events SET digest = ? WHERE seq = ?", renewed)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _create(connection: sqlite3.Connection) -> None:
    for table in SQLModel.metadata.sorted_tables:
        connection.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(str(CreateIndex(index).compile(dialect=sqlite.dialect())))
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _backup(connection: sqlite3.Connection, copy: Path) -> None:
    """A whole copy of the database: complete, or not there."""
    beside = copy.with_name(copy.name + ".part")
    beside.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(beside)) as target:
        connection.backup(target)
    beside.replace(copy)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that writes, of a connection that begins none by itself."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
