"""The shape of the database: one row of `events` for each stored event, in order, and a typed row beside it.

Rows are only ever added, never changed. A column bears the name of the field that it holds; `<field>_ref` is the sha256
of that field's text in `texts`, `<field>_json_ref` the same for a JSON value. `at` is Unix time in seconds (UTC). A
column that is added needs a `server_default` where it may not be NULL, and a new `VERSION` in `agent.record.schema`, so
that databases without it are converted. Knows no connection.
"""

import json
import math
from collections.abc import Callable
from typing import Any, ClassVar

from sqlalchemy import CheckConstraint, Dialect, Float, ForeignKeyConstraint, Table, Text, UniqueConstraint
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from kerneltune.tools.schema.codec import Json

TIMING_COLUMNS = ("median_us", "low_us", "high_us", "n_blocks", "n_launches")


class Words(TypeDecorator[str]):
    """Any Python string. One with lone surrogates (models and hostile processes write them) becomes a BLOB."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """Text where UTF-8 can say it."""
        if value is None or value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
        return value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """The string as it was."""
        return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


class Real(Float[float]):
    """Any float. SQLite would turn NaN into NULL; the word 'nan' stays, and sorts above every number, as a failure."""

    def bind_processor(self, dialect: Dialect) -> Callable[[float | None], Any]:
        """A number, or 'nan'."""
        return lambda value: "nan" if value is not None and math.isnan(value) else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], float | None]:
        """The float as it was."""
        return lambda value: None if value is None else float(value)


class Document(TypeDecorator[Json]):
    """A small JSON value, as text; None is NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Json, dialect: Dialect) -> str | None:
        """JSON in ASCII, keys in their order."""
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Json:
        """The value as it was."""
        return None if value is None else json.loads(value)


def table(model: type[SQLModel]) -> Table:
    """The SQLAlchemy table of a model."""
    return SQLModel.metadata.tables[str(model.__tablename__)]


def _text_ref(**options: Any) -> Any:
    return Field(foreign_key="texts.sha256", **options)


def _seq() -> Any:
    return Field(primary_key=True, foreign_key="events.seq")


class TextRow(SQLModel, table=True):
    """A long text, stored once: zlib-compressed UTF-8 under the sha256 of the uncompressed bytes."""

    __tablename__: ClassVar[str] = "texts"
    sha256: str = Field(primary_key=True)
    data: bytes


class EventRow(SQLModel, table=True):
    """The order of what happened. `digest` tells an event that is already stored."""

    __tablename__: ClassVar[str] = "events"
    __table_args__: ClassVar[Any] = (
        ForeignKeyConstraint(["run_id"], ["runs.run_id"], deferrable=True, initially="DEFERRED"),
    )
    seq: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(index=True)
    attempt_id: str | None = Field(default=None, index=True)
    kind: str
    at: float = Field(sa_type=Real)
    digest: str = Field(unique=True)


class RunRow(SQLModel, table=True):
    """RunStarted. No foreign key to `events`, which refers to this table."""

    __tablename__: ClassVar[str] = "runs"
    seq: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    run_id: str = Field(unique=True)
    task: str = Field(sa_type=Words)
    task_sha256: str = Field(sa_type=Words)
    task_source_ref: str = _text_ref()
    author: str = Field(sa_type=Words)
    author_why: str = Field(sa_type=Words)
    arch: str = Field(sa_type=Words)
    gpu: str | None = Field(sa_type=Words)
    machine: Json = Field(sa_type=Document)
    limits: Json = Field(sa_type=Document)
    seed: int
    versions: Json = Field(sa_type=Document)


class ResumptionRow(SQLModel, table=True):
    """RunResumed."""

    __tablename__: ClassVar[str] = "resumptions"
    seq: int = _seq()
    finished_attempts: int


class EndingRow(SQLModel, table=True):
    """RunEnded; a resumed run has several."""

    __tablename__: ClassVar[str] = "endings"
    seq: int = _seq()
    why: str = Field(sa_type=Words)
    attempts: int
    accepted: int
    best_attempt_id: str | None = Field(sa_type=Words)
    best_path: str | None = Field(sa_type=Words)
    elapsed_s: float = Field(sa_type=Real)


class WarningRow(SQLModel, table=True):
    """Warned."""

    __tablename__: ClassVar[str] = "warnings"
    seq: int = _seq()
    text: str = Field(sa_type=Words)


class MessageRow(SQLModel, table=True):
    """Said: one final message to a model."""

    __tablename__: ClassVar[str] = "messages"
    seq: int = _seq()
    role: str
    text_ref: str = _text_ref()
    usage: Json = Field(sa_type=Document, nullable=True)
    raw_json_ref: str | None = _text_ref(default=None)
    conversation: str = Field(default="", sa_type=Words, sa_column_kwargs={"server_default": ""})


class ReplyRow(SQLModel, table=True):
    """Replied: one reply of a model, with what it cost and the provider's own items."""

    __tablename__: ClassVar[str] = "replies"
    seq: int = _seq()
    conversation: str = Field(sa_type=Words)
    turn: int
    text_ref: str = _text_ref()
    thinking_ref: str = _text_ref()
    calls_json_ref: str = _text_ref()
    stop: str = Field(sa_type=Words)
    detail: str = Field(sa_type=Words)
    usage: Json = Field(sa_type=Document, nullable=True)
    cost_usd: float | None = Field(sa_type=Real)
    model: str = Field(sa_type=Words)
    seconds: float = Field(sa_type=Real)
    raw_json_ref: str | None = _text_ref(default=None)


class AttemptRow(SQLModel, table=True):
    """Proposed. A parent may be of another run."""

    __tablename__: ClassVar[str] = "attempts"
    __table_args__: ClassVar[Any] = (UniqueConstraint("run_id", "number"),)
    seq: int = _seq()
    attempt_id: str = Field(unique=True)
    run_id: str = Field(foreign_key="runs.run_id")
    number: int
    parent_id: str | None = Field(sa_type=Words)
    source_ref: str = _text_ref()
    rationale: str = Field(sa_type=Words)
    hypothesis: str = Field(sa_type=Words)
    prediction: str = Field(sa_type=Words)
    origin: Json = Field(sa_type=Document, nullable=True)


class UpdateRow(SQLModel, table=True):
    """Updated. Its failure, if any, is the row of `verdicts` with the same seq."""

    __tablename__: ClassVar[str] = "updates"
    seq: int = _seq()
    attempt_id: str = Field(unique=True, foreign_key="attempts.attempt_id")
    plan_json_ref: str | None = _text_ref(default=None)
    plan_sha256: str | None = Field(sa_type=Words)
    library_ops: Json = Field(sa_type=Document)
    variants: int
    trace_s: float = Field(sa_type=Real)
    compile_s: float = Field(sa_type=Real)


class KernelRow(SQLModel, table=True):
    """The compiler's report on one kernel of an update."""

    __tablename__: ClassVar[str] = "kernels"
    seq: int = Field(primary_key=True, foreign_key="updates.seq")
    position: int = Field(primary_key=True)
    name: str = Field(sa_type=Words)
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    num_stages: int
    occupancy: float = Field(sa_type=Real)
    cubin_sha256: str = Field(sa_type=Words)
    compile_s: float = Field(sa_type=Real)


def _timing_belongs_to_correct() -> list[CheckConstraint]:
    filled = [f"({c} IS NOT NULL) = (status = 'correct')" for c in TIMING_COLUMNS]
    share = "sol_fraction IS NULL OR status = 'correct'"
    return [
        CheckConstraint(" AND ".join(filled), name="only_correct_has_timing"),
        CheckConstraint(share, name="only_correct_has_sol_fraction"),
    ]


class VerdictRow(SQLModel, table=True):
    """Judged (`tool` = 'bench'), the failure of an Updated ('update'), or a Verified ('confirm', 'verify'), of which an
    attempt may have several. `bench_s` and `rank_key` are not of an update, `best` is of Judged alone."""

    __tablename__: ClassVar[str] = "verdicts"
    __table_args__: ClassVar[Any] = (
        UniqueConstraint("seq", "status"),
        *_timing_belongs_to_correct(),
    )
    seq: int = _seq()
    attempt_id: str = Field(foreign_key="attempts.attempt_id", index=True)
    tool: str
    status: str
    detail: str = Field(sa_type=Words)
    median_us: float | None = Field(sa_type=Real)
    low_us: float | None = Field(sa_type=Real)
    high_us: float | None = Field(sa_type=Real)
    n_blocks: int | None
    n_launches: int | None
    coverage: float | None = Field(sa_type=Real)
    sol_fraction: float | None = Field(sa_type=Real)
    variant: str = Field(sa_type=Words)
    tier: str | None
    facts: Json = Field(sa_type=Document, nullable=True)  # further fields of a verdict that has some
    receipt_json_ref: str = _text_ref()
    bench_s: float | None = Field(sa_type=Real)
    best: bool | None
    rank_key: Json = Field(sa_type=Document, nullable=True)


class VerificationRow(SQLModel, table=True):
    """Verified; its verdict is the row of `verdicts` with the same seq."""

    __tablename__: ClassVar[str] = "verifications"
    seq: int = _seq()
    attempt_id: str = Field(foreign_key="attempts.attempt_id", index=True)
    purpose: str
    held: bool
    why: str = Field(sa_type=Words)
    gpu: str | None = Field(sa_type=Words)
    machine: Json = Field(sa_type=Document)
    versions: Json = Field(sa_type=Document)


class CaseRow(SQLModel, table=True):
    """One comparison of a verdict with the float64 reference ("case" needs its quotes in SQL)."""

    __tablename__: ClassVar[str] = "cases"
    seq: int = Field(primary_key=True, foreign_key="verdicts.seq")
    position: int = Field(primary_key=True)
    case: str = Field(sa_type=Words)
    inputs: str = Field(sa_type=Words)
    ok: bool
    error_ratio: float = Field(sa_type=Real)
    max_abs_error: float = Field(sa_type=Real)
    detail: str = Field(sa_type=Words)
    limitations: Json = Field(sa_type=Document, nullable=True)


class ComparisonRow(SQLModel, table=True):
    """A paired time against one baseline. `status` is there so that the database can refuse it to any other verdict."""

    __tablename__: ClassVar[str] = "comparisons"
    __table_args__: ClassVar[Any] = (
        ForeignKeyConstraint(["seq", "status"], ["verdicts.seq", "verdicts.status"]),
        CheckConstraint("status = 'correct'", name="only_correct_is_compared"),
    )
    seq: int = Field(primary_key=True)
    position: int = Field(primary_key=True)
    status: str
    baseline: str = Field(sa_type=Words)
    baseline_us: float = Field(sa_type=Real)
    speedup: float = Field(sa_type=Real)
    low: float = Field(sa_type=Real)
    high: float = Field(sa_type=Real)


class ReflectionRow(SQLModel, table=True):
    """Reflected; an attempt may have several (open first, confirmed or refuted later)."""

    __tablename__: ClassVar[str] = "reflections"
    seq: int = _seq()
    attempt_id: str = Field(foreign_key="attempts.attempt_id", index=True)
    hypothesis: str = Field(sa_type=Words)
    prediction: str = Field(sa_type=Words)
    evidence: Json = Field(sa_type=Document)
    outcome: str
