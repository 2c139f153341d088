"""Stored runs in short, for `optimize runs`."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, func, select

from agent.record import tables as t

EVENTS, RUNS, ATTEMPTS = t.table(t.EventRow), t.table(t.RunRow), t.table(t.AttemptRow)
VERDICTS, COMPARISONS, ENDINGS = t.table(t.VerdictRow), t.table(t.ComparisonRow), t.table(t.EndingRow)
VERIFICATIONS = t.table(t.VerificationRow)


@dataclass(frozen=True)
class RunSummary:
    """A stored run. `why` is None while it goes on, or when its process was killed. `best_us` and `best_speedup` (over
    the best baseline) belong to the best attempt and are None when nothing was timed; `verified` says whether the
    latest verification of it held, and is None without one."""

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


def summaries(connection: Connection, limit: int, task: str | None) -> list[RunSummary]:
    """The latest runs, newest first."""
    query = select(RUNS, EVENTS.c.at).join(EVENTS, EVENTS.c.seq == RUNS.c.seq)
    if task is not None:
        query = query.where(RUNS.c.task == task)
    rows = connection.execute(query.order_by(RUNS.c.seq.desc()).limit(limit)).all()
    return [_summary(connection, row) for row in rows]


def _summary(connection: Connection, run: Row[Any]) -> RunSummary:
    judged = VERDICTS.join(ATTEMPTS, VERDICTS.c.attempt_id == ATTEMPTS.c.attempt_id)
    of_run = (ATTEMPTS.c.run_id == run.run_id) & (VERDICTS.c.tool == "bench")
    accepted = func.count().filter(VERDICTS.c.status.in_(("checked", "correct")))
    counts = connection.execute(select(func.count(), accepted).select_from(judged).where(of_run)).one()
    why = _why(connection, run.run_id)
    best = _best(connection, run.run_id, ended=why is not None)
    return RunSummary(
        run.run_id,
        run.task,
        run.author,
        run.arch,
        run.gpu,
        datetime.fromtimestamp(run.at, UTC),
        attempts=counts[0],
        accepted=counts[1],
        best_attempt_id=best.attempt_id if best else None,
        best_us=best.median_us if best else None,
        best_speedup=_speedup(connection, best.seq) if best else None,
        why=why,
        verified=_verified(connection, best.attempt_id) if best else None,
    )


def _best(connection: Connection, run_id: str, *, ended: bool) -> Row[Any] | None:
    """The verdict that counts of the best attempt: as the run's last ending says, or as far as it has come."""
    last = (
        select(ENDINGS.c.best_attempt_id).join(EVENTS, EVENTS.c.seq == ENDINGS.c.seq).where(EVENTS.c.run_id == run_id)
    )
    of_run = select(VERDICTS.c.attempt_id).join(ATTEMPTS, VERDICTS.c.attempt_id == ATTEMPTS.c.attempt_id)
    so_far = of_run.where(ATTEMPTS.c.run_id == run_id, VERDICTS.c.tool == "bench", VERDICTS.c.best)
    query = last.order_by(ENDINGS.c.seq.desc()) if ended else so_far.order_by(VERDICTS.c.seq.desc())
    counts = VERDICTS.c.tool.in_(("bench", "confirm"))
    verdicts = select(VERDICTS).where(VERDICTS.c.attempt_id == connection.scalar(query.limit(1)), counts)
    return connection.execute(verdicts.order_by(VERDICTS.c.seq.desc()).limit(1)).first()


def _verified(connection: Connection, attempt_id: str) -> bool | None:
    held = select(VERIFICATIONS.c.held).where(
        VERIFICATIONS.c.attempt_id == attempt_id, VERIFICATIONS.c.purpose == "verify"
    )
    return connection.scalar(held.order_by(VERIFICATIONS.c.seq.desc()).limit(1))


def _speedup(connection: Connection, seq: int) -> float | None:
    least = connection.scalar(select(func.min(COMPARISONS.c.speedup)).where(COMPARISONS.c.seq == seq))
    return None if least is None else float(least)


def _why(connection: Connection, run_id: str) -> str | None:
    """Why the run ended; None when nothing ended it since it was last started or resumed."""
    turns = EVENTS.c.kind.in_(("run_started", "run_resumed", "run_ended"))
    last = select(func.max(EVENTS.c.seq)).where(EVENTS.c.run_id == run_id, turns).scalar_subquery()
    return connection.scalar(select(ENDINGS.c.why).where(ENDINGS.c.seq == last))
