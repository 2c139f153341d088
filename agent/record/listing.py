"""Stored runs and attempts in short, for `optimize runs` and `optimize show`. No text of an attempt is read."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, or_, select

from agent.record import tables as t
from tools.errors import UsageError
from tools.verdict import Status, Tier

EVENTS, RUNS, ATTEMPTS, UPDATES = (t.table(m) for m in (t.EventRow, t.RunRow, t.AttemptRow, t.UpdateRow))
VERDICTS, COMPARISONS, KERNELS = (t.table(m) for m in (t.VerdictRow, t.ComparisonRow, t.KernelRow))
STANDINGS = t.table(t.StandingRow)
ACCEPTED = "accepted"  # as good as a status, where one is asked for
_OF_VERDICT = ("status", "detail", "tier", "median_us", "low_us", "high_us")
_ACCEPTED = (Status.CHECKED.value, Status.CORRECT.value)


@dataclass(frozen=True)
class Filter:
    """Which runs to list, or which attempts of a run. `task` is a whole name, `model` a part of the author's; `verdict`
    is a status, or `accepted`; `min_speedup` is over the fastest baseline. Raises UsageError for what is no such."""

    task: str | None = None
    model: str | None = None
    verdict: str | None = None
    min_speedup: float | None = None
    limit: int = 20

    def __post_init__(self) -> None:
        known = [ACCEPTED, *(status.value for status in Status)]
        if self.verdict is not None and self.verdict not in known:
            raise UsageError(f"--verdict {self.verdict!r}: {_close(self.verdict, known)}")
        if self.min_speedup is not None and not (math.isfinite(self.min_speedup) and self.min_speedup > 0):
            raise UsageError(f"--min-speedup {self.min_speedup:g}: give a number above 0, such as 1.5")
        if not 0 < self.limit < 2**63:
            raise UsageError(f"--limit {self.limit}: give at least 1")

    @property
    def statuses(self) -> tuple[str, ...]:
        """Those that `verdict` stands for; none when it was not given."""
        if self.verdict is None:
            return ()
        return _ACCEPTED if self.verdict == ACCEPTED else (self.verdict,)


@dataclass(frozen=True)
class ChosenRun:
    """A run that is to be read. `attempts`: about how many it has."""

    run_id: str
    attempts: int
    task_sha256: str


@dataclass(frozen=True)
class RunSummary:
    """A stored run. `why` is None while it goes on, or when its process was killed. `best_us` and `best_speedup` (over
    the best baseline) belong to the best attempt and are None when nothing was timed; `verified` says whether the
    latest verification of it held, and is None without one. `by_status` counts attempts by the verdict that counts."""

    run_id: str
    task: str
    author: str
    arch: str
    gpu: str | None
    started: datetime  # UTC
    attempts: int
    accepted: int
    best_attempt_id: str | None
    best_us: float | None
    best_speedup: float | None
    why: str | None
    verified: bool | None = None
    by_status: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptSummary:
    """A stored attempt with the verdict that counts; `status` is None when it has none yet. Device times in
    microseconds; the speed-up is over the fastest baseline. Registers are per thread of each kernel, spills bytes."""

    attempt_id: str
    number: int
    parent_id: str | None
    rationale: str
    status: str | None = None
    detail: str = ""
    tier: Tier | None = None
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    registers: tuple[int, ...] = ()
    spill_bytes: int = 0


def chosen(
    connection: Connection, tasks: Sequence[str] | None, authors: Sequence[str] | None, until: int | None
) -> list[ChosenRun]:
    """The runs of some tasks and authors (None: of all), oldest first. A task is a name or the hash of its file, an
    author may be a provider alone ("anthropic")."""
    size = select(func.max(ATTEMPTS.c.number)).where(ATTEMPTS.c.run_id == RUNS.c.run_id).scalar_subquery()
    query = select(RUNS.c.run_id, size, RUNS.c.task_sha256, RUNS.c.task, RUNS.c.author).order_by(RUNS.c.seq)
    if until is not None:
        query = query.where(RUNS.c.seq <= until)
    return [
        ChosenRun(run_id, size or 0, sha256)
        for run_id, size, sha256, task, author in connection.execute(query)
        if (tasks is None or task in tasks or sha256 in tasks)
        and (authors is None or author in authors or author.partition(":")[0] in authors)
    ]


def summaries(connection: Connection, wanted: Filter) -> list[RunSummary]:
    """The latest runs that pass, newest first. Raises UsageError for a task or model that no run has."""
    s = STANDINGS.c
    query = _runs()
    if wanted.task is not None:
        query = query.where(s.task == wanted.task)
    if wanted.model is not None:
        query = query.where(func.instr(func.lower(s.author), wanted.model.lower()) > 0)
    if wanted.statuses:
        query = query.where(or_(*(func.json_extract(s.statuses, f"$.{name}") > 0 for name in wanted.statuses)))
    if wanted.min_speedup is not None:  # 'nan' is above every number
        query = query.where(s.best_speedup >= wanted.min_speedup, func.typeof(s.best_speedup) == "real")
    found = [_summary(row) for row in connection.execute(query.order_by(s.seq.desc()).limit(wanted.limit))]
    if not found:
        _explain(connection, wanted)
    return found


def summary(connection: Connection, run_id: str) -> RunSummary | None:
    """One run."""
    row = connection.execute(_runs().where(STANDINGS.c.run_id == run_id)).first()
    return _summary(row) if row else None


def _runs() -> Select[Any]:
    # runs are looked up by seq after the small rows of `standings` have been filtered
    joined = STANDINGS.join(RUNS, RUNS.c.seq == STANDINGS.c.seq).join(EVENTS, EVENTS.c.seq == STANDINGS.c.seq)
    return select(STANDINGS, RUNS.c.arch, RUNS.c.gpu, EVENTS.c.at).select_from(joined)


def _summary(row: Any) -> RunSummary:
    return RunSummary(
        row.run_id,
        row.task,
        row.author,
        row.arch,
        row.gpu,
        datetime.fromtimestamp(row.at, UTC),
        attempts=row.judged,
        accepted=row.accepted,
        best_attempt_id=row.best_attempt_id,
        best_us=row.best_us,
        best_speedup=row.best_speedup,
        why=row.why,
        verified=row.held,
        by_status=row.statuses,
    )


def _explain(connection: Connection, wanted: Filter) -> None:
    """Nothing was found: because the store has no such task or model at all?"""
    tasks = list(connection.scalars(select(STANDINGS.c.task).distinct()))
    if tasks and wanted.task is not None and wanted.task not in tasks:
        raise UsageError(f"--task {wanted.task!r}: no run of it is stored; {_close(wanted.task, tasks)}")
    if tasks and wanted.model is not None:
        authors = list(connection.scalars(select(STANDINGS.c.author).distinct()))
        if not any(wanted.model.lower() in author.lower() for author in authors):
            raise UsageError(f"--model {wanted.model!r}: no run's author has it; {_close(wanted.model, authors)}")


def _close(text: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(text, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known[:12])}{', …' * (len(known) > 12)}"


def attempt_summaries(connection: Connection, run_id: str, wanted: Filter | None = None) -> list[AttemptSummary]:
    """The attempts of a run that pass, by number."""
    query = select(ATTEMPTS.c.seq).where(ATTEMPTS.c.run_id == run_id)
    wanted = wanted or Filter()
    return [a for a in _attempts(connection, query) if _passes(a, wanted)]


def best_accepted(connection: Connection, run_id: str) -> str | None:
    """The best attempt of a run, if what counts of it is still a verdict that accepts it."""
    named = select(STANDINGS.c.best_attempt_id).where(STANDINGS.c.run_id == run_id).scalar_subquery()
    found = _attempts(connection, select(ATTEMPTS.c.seq).where(ATTEMPTS.c.attempt_id == named))
    return next((a.attempt_id for a in found if a.status in _ACCEPTED), None)


def ancestors(connection: Connection, attempt_id: str) -> list[AttemptSummary]:
    """Whom an attempt was derived from: its parent, that one's parent, and so on, as far as they are stored."""
    found: list[AttemptSummary] = []
    seen = {attempt_id}
    parent = connection.scalar(select(ATTEMPTS.c.parent_id).where(ATTEMPTS.c.attempt_id == attempt_id))
    while parent is not None and parent not in seen:
        seen.add(parent)
        query = select(ATTEMPTS.c.seq).where(ATTEMPTS.c.attempt_id == parent)
        its = _attempts(connection, query)
        found += its
        parent = its[0].parent_id if its else None
    return found


def _passes(attempt: AttemptSummary, wanted: Filter) -> bool:
    fast = wanted.min_speedup is None or (attempt.speedup is not None and attempt.speedup >= wanted.min_speedup)
    return fast and (not wanted.statuses or attempt.status in wanted.statuses)


def _attempts(connection: Connection, seqs: Select[Any]) -> list[AttemptSummary]:
    a = ATTEMPTS.c
    rows = connection.execute(
        select(a.attempt_id, a.number, a.parent_id, a.rationale).where(a.seq.in_(seqs)).order_by(a.number)
    ).all()
    ids = select(a.attempt_id).where(a.seq.in_(seqs))
    facts: dict[str, dict[str, Any]] = {row.attempt_id: {} for row in rows}
    for row in _compiled(connection, ids):
        its = facts[row.attempt_id]
        its["registers"] = (*its.get("registers", ()), row.registers)
        its["spill_bytes"] = its.get("spill_bytes", 0) + row.spill_store_bytes + row.spill_load_bytes
    verdicts = {v.attempt_id: v._asdict() for v in _judged(connection, ids)}  # the last one stays
    hardest = {c.seq: c for c in _compared(connection, ids)}
    for attempt_id, verdict in verdicts.items():
        compared = hardest.get(verdict["seq"])
        facts[attempt_id] |= {name: verdict[name] for name in _OF_VERDICT}
        if compared is not None:
            speedup = {"speedup": compared.speedup, "speedup_low": compared.low, "speedup_high": compared.high}
            facts[attempt_id] |= speedup
    return [AttemptSummary(*row, **facts[row.attempt_id]) for row in rows]


def _compiled(connection: Connection, ids: Select[Any]) -> Sequence[Any]:
    k = KERNELS.c
    columns = (UPDATES.c.attempt_id, k.registers, k.spill_store_bytes, k.spill_load_bytes)
    joined = UPDATES.join(KERNELS, k.seq == UPDATES.c.seq)
    query = select(*columns).select_from(joined).where(UPDATES.c.attempt_id.in_(ids))
    return connection.execute(query.order_by(k.seq, k.position)).all()


def _judged(connection: Connection, ids: Select[Any]) -> Sequence[Row[Any]]:
    columns = (VERDICTS.c.seq, VERDICTS.c.attempt_id, *(VERDICTS.c[name] for name in _OF_VERDICT))
    return connection.execute(select(*columns).where(_counts(ids)).order_by(VERDICTS.c.seq)).all()


def _compared(connection: Connection, ids: Select[Any]) -> Sequence[Any]:
    """Of each verdict, last comes the baseline that was hardest to beat."""
    c = COMPARISONS.c
    query = select(c.seq, c.speedup, c.low, c.high).where(c.seq.in_(select(VERDICTS.c.seq).where(_counts(ids))))
    return connection.execute(query.order_by(c.seq, c.speedup.desc())).all()


def _counts(ids: Select[Any]) -> ColumnElement[bool]:
    return VERDICTS.c.attempt_id.in_(ids) & VERDICTS.c.tool.in_(("bench", "confirm"))
