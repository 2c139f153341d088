"""The version of the database: made when there is none, upgraded when it is old, refused when it is newer than we are.

The usual case, a current one, costs one query; Alembic (0.3 s to import) is loaded only to upgrade.
"""

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlmodel import SQLModel

from agent.record import tables as _tables  # registers the tables
from tools.errors import StoreError

VERSION_TABLE = "alembic_version"


@dataclass(frozen=True)
class Schema:
    """The revisions that this program knows, oldest first, and the folder of the migrations that lead to them."""

    revisions: tuple[str, ...]
    scripts: Path

    @property
    def head(self) -> str:
        """The revision that this program writes."""
        return self.revisions[-1]


SHIPPED = Schema(("0001", "0002", "0003", "0004", "0005"), Path(_tables.__file__).with_name("migrations"))


def prepare(engine: Engine, path: Path, schema: Schema = SHIPPED) -> None:
    """Leave the database at `path` at the schema's head, in WAL mode. The caller holds the lock of the runs directory,
    for two processes may find the same old or missing database. Raises StoreError."""
    with engine.begin() as connection:
        found = _revision(connection, path)
    if found not in (None, *schema.revisions):
        raise StoreError(
            f"{path} has schema {found}, newer than schema {schema.head} of this kerneltune; "
            "upgrade kerneltune, or give another runs directory"
        )
    _pragma(engine, "journal_mode = WAL")  # a property of the file: nothing to do when it has it
    if found is None:
        _create(engine, schema)
    elif found != schema.head:
        _backup(engine, path.with_name(f"{path.name}.bak-{found}"))
        _upgrade(engine, path, schema)


def upgrade_copy(engine: Engine, path: Path, schema: Schema = SHIPPED) -> None:
    """Bring a copy that nobody else opens, of a known revision, to the schema's head. Raises StoreError."""
    _upgrade(engine, path, schema)


def _revision(connection: Connection, path: Path) -> str | None:
    """The stored revision; None for an empty database."""
    names = set(connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars())
    if not names:
        return None
    if {VERSION_TABLE, "events"} <= names:
        found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars().all()
        if len(found) == 1:
            return str(found[0])
    raise StoreError(f"{path} is an SQLite database, but not one of kerneltune's; give another runs directory")


def _create(engine: Engine, schema: Schema) -> None:
    """All tables at once, stamped as Alembic would."""
    with engine.begin() as connection:
        SQLModel.metadata.create_all(connection, checkfirst=False)
        connection.exec_driver_sql(
            f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
            f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES (?)", (schema.head,))


def _backup(engine: Engine, copy: Path) -> None:
    """A whole copy of the database: complete, or not there."""
    aside = copy.with_name(copy.name + ".part")
    aside.unlink(missing_ok=True)
    with engine.connect() as connection, contextlib.closing(sqlite3.connect(aside)) as target:
        source = connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        source.backup(target)
    aside.replace(copy)


def _pragma(engine: Engine, text: str) -> None:
    """Some pragmas do nothing inside a transaction, so this goes past SQLAlchemy to the driver."""
    with engine.connect() as connection:
        connection.connection.cursor().execute(f"PRAGMA {text}").close()


def _upgrade(engine: Engine, path: Path, schema: Schema) -> None:
    """Migrate in one transaction. Foreign keys are off meanwhile: SQLite changes a table by copying and dropping it."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.scripts).replace("%", "%%"))
    with engine.connect() as connection:
        connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
        try:
            with connection.begin():
                config.attributes["connection"] = connection
                command.upgrade(config, schema.head)
                if broken := connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                    raise StoreError(f"{path}: the upgrade to schema {schema.head} breaks a reference: {broken}")
        finally:
            connection.invalidate()  # the pool must not get it back without foreign keys
