"""Many runs as trajectories, quickly: straight from the columns, past the strict decoder of `agent.record.rows`.

Equal to `trajectory(events)` of every run. Rows are only ever added and `seq` follows the order of commits, so "all
rows up to this seq" is the same view of the record in every batch, pass and process, whatever is written meanwhile.
That is why no transaction has to last: each batch of runs is read in one of its own, which ends before the first run of
the batch is handed out. No writer waits, and its WAL can be checkpointed between batches, however slow the caller is.
"""

import itertools
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from agent.record.columns import (
    STATUSES,
    UNJUDGED,
    Row,
    case,
    comparison,
    expectation,
    json_of,
    kernel,
    numbers,
    real,
    record,
    replied_message,
    said_message,
    started,
    text_of,
    words,
)
from agent.record.trajectory import AttemptRecord, Conversation, Trajectory, best_of, conversations, proposer
from tools.codec import DecodeError, Json
from tools.verdict import CaseResult, Status, Timing

BATCH_ATTEMPTS = 500
Reading = Callable[[], AbstractContextManager[sqlite3.Connection]]

# Every query takes {"runs" or "seqs": a JSON list, "until": the last seq to see}.
_RUN_IDS = "(SELECT value FROM json_each(:runs))"
_SEQS = "(SELECT value FROM json_each(:seqs))"
_RUNS = f"""
SELECT r.run_id, r.task, r.task_sha256, t.data, r.author, r.author_why, r.arch, r.gpu, r.machine, r.limits, r.seed,
       r.versions, e.at
FROM runs r JOIN events e ON e.seq = r.seq LEFT JOIN texts t ON t.sha256 = r.task_source_ref
WHERE r.run_id IN {_RUN_IDS}"""
_ATTEMPTS = f"""
SELECT a.run_id, a.attempt_id, a.number, a.parent_id, e.at, t.data, a.rationale, a.params,
       u.seq, f.seq, u.library_ops, u.trace_s, u.compile_s,
       v.seq, v.tool, v.bench_s, v.best, v.status, v.detail, v.median_us, v.low_us, v.high_us, v.n_blocks, v.n_launches,
       v.coverage, v.sol_fraction, v.variant, v.tier, v.rank_key, v.facts
FROM attempts a JOIN events e ON e.seq = a.seq LEFT JOIN texts t ON t.sha256 = a.source_ref
LEFT JOIN updates u ON u.attempt_id = a.attempt_id AND u.seq <= :until
LEFT JOIN verdicts f ON f.seq = u.seq
LEFT JOIN verdicts v ON v.attempt_id = a.attempt_id AND v.tool IN ('bench', 'confirm') AND v.seq <= :until
WHERE a.run_id IN {_RUN_IDS} AND a.seq <= :until
ORDER BY a.run_id, a.number"""
_WITHOUT_SOURCES = _ATTEMPTS.replace("t.data", "NULL").replace("LEFT JOIN texts t ON t.sha256 = a.source_ref", "")
_SOURCES = f"""
SELECT a.run_id, a.attempt_id, t.data FROM attempts a LEFT JOIN texts t ON t.sha256 = a.source_ref
WHERE a.run_id IN {_RUN_IDS} AND a.seq <= :until ORDER BY a.run_id, a.number"""
_ID, _UPDATE_SEQ, _VERDICT_SEQ, _TOOL, _BENCH_S, _BEST, _STATUS, _RANK_KEY, _FACTS = 1, 8, 13, 14, 15, 16, 17, 28, 29
_KERNELS = f"""
SELECT seq, name, registers, spill_store_bytes, spill_load_bytes, stack_bytes, shared_bytes, num_warps, num_stages,
       occupancy, cubin_sha256, compile_s
FROM kernels WHERE seq IN {_SEQS} ORDER BY seq, position"""
_COMPARISONS = f"""
SELECT seq, baseline, baseline_us, speedup, low, high FROM comparisons WHERE seq IN {_SEQS} ORDER BY seq, position"""
_CASES = f"""
SELECT seq, "case", inputs, ok, error_ratio, max_abs_error, detail, limitations FROM cases WHERE seq IN {_SEQS}
ORDER BY seq, position"""
_REFLECTIONS = f"""
SELECT x.attempt_id, x.hypothesis, x.prediction, x.outcome, x.evidence
FROM attempts a CROSS JOIN reflections x ON x.attempt_id = a.attempt_id
WHERE a.run_id IN {_RUN_IDS} AND x.seq <= :until ORDER BY x.seq"""
_VERIFICATIONS = f"""
SELECT x.attempt_id, x.held FROM attempts a CROSS JOIN verifications x ON x.attempt_id = a.attempt_id
WHERE a.run_id IN {_RUN_IDS} AND x.purpose = 'verify' AND x.seq <= :until ORDER BY x.seq"""
_ENDINGS = f"""
SELECT e.run_id, x.why, x.best_attempt_id FROM events e LEFT JOIN endings x ON x.seq = e.seq
WHERE e.run_id IN {_RUN_IDS} AND e.kind IN ('run_ended', 'run_resumed') AND e.seq <= :until
ORDER BY e.seq"""  # the last one counts: a run that goes on has no ending
_SAID = f"""
SELECT e.run_id, e.seq, m.conversation, m.role, text.data, e.at, raw.data
FROM events e CROSS JOIN messages m ON m.seq = e.seq
LEFT JOIN texts text ON text.sha256 = m.text_ref LEFT JOIN texts raw ON raw.sha256 = m.raw_json_ref
WHERE e.run_id IN {_RUN_IDS} AND e.seq <= :until"""
_REPLIED = f"""
SELECT e.run_id, e.seq, r.conversation, text.data, e.at, thinking.data, calls.data, r.turn, r.stop, r.model, r.seconds,
       r.usage, r.cost_usd
FROM events e CROSS JOIN replies r ON r.seq = e.seq
LEFT JOIN texts text ON text.sha256 = r.text_ref LEFT JOIN texts thinking ON thinking.sha256 = r.thinking_ref
LEFT JOIN texts calls ON calls.sha256 = r.calls_json_ref
WHERE e.run_id IN {_RUN_IDS} AND e.seq <= :until"""


@dataclass(frozen=True)
class ChosenRun:
    """A run that is to be read. `attempts`: about how many it has."""

    run_id: str
    attempts: int
    task_sha256: str


@dataclass(frozen=True)
class Wanted:
    """Which runs, in this order, and what of them. `until`: the last seq that is seen."""

    runs: Sequence[ChosenRun]
    until: int
    conversations: bool = False
    cases: bool = False
    sources: bool = True


def harvested(reading: Reading, wanted: Wanted) -> Iterator[Trajectory]:
    """The trajectories of the wanted runs, oldest first. `reading` opens a transaction. Raises DecodeError, zlib.error
    and sqlite3.Error for what is damaged."""
    for batch in _batches(wanted.runs):
        with reading() as connection:
            read = _Batch(connection, batch, wanted)
        yield from map(read.trajectory, batch)


def sources(reading: Reading, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """(attempt_id, source) of the wanted runs' attempts, in the order of the runs and the attempts."""
    for batch in _batches(wanted.runs):
        with reading() as connection:
            bound = {"runs": json.dumps(batch), "until": wanted.until}
            found = _grouped(connection.execute(_SOURCES, bound))
        for run_id in batch:
            yield from ((attempt_id, text_of(data)) for _, attempt_id, data in found.get(run_id, ()))


def chosen(
    connection: sqlite3.Connection, until: int, tasks: Sequence[str] | None, authors: Sequence[str] | None
) -> list[ChosenRun]:
    """The runs of some tasks and authors (None: of all), oldest first. A task is a name or the hash of its file, an
    author may be a provider alone ("anthropic")."""
    where, values = ["seq <= ?"], list[Any]((until,))
    provider = "substr(author, 1, instr(author || ':', ':') - 1)"
    for asked, columns in ((tasks, ("task", "task_sha256")), (authors, ("author", provider))):
        if asked is not None:
            names = json.dumps(list(asked))
            where.append(f"({' OR '.join(f'{c} IN (SELECT value FROM json_each(?))' for c in columns)})")
            values += [names] * len(columns)
    size = "(SELECT max(number) FROM attempts a WHERE a.run_id = runs.run_id)"
    query = f"SELECT run_id, {size}, task_sha256 FROM runs WHERE {' AND '.join(where)} ORDER BY seq"
    return [ChosenRun(run_id, size or 0, words(task)) for run_id, size, task in connection.execute(query, values)]


def task_sources(connection: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Name and source of every task that was ever run, by the hash of its file; what was run first comes first, also
    after records of several machines were merged."""
    query = """
SELECT r.task_sha256, r.task, t.data, min(e.at) AS first FROM runs r JOIN events e ON e.seq = r.seq
JOIN texts t ON t.sha256 = r.task_source_ref GROUP BY r.task_sha256 ORDER BY first, r.task_sha256"""
    return {words(sha256): (words(task), text_of(data)) for sha256, task, data, _ in connection.execute(query)}


def machines(connection: sqlite3.Connection) -> list[Json]:
    """What was noted of every machine that ran or verified anything, each once."""
    query = "SELECT machine FROM runs UNION SELECT machine FROM verifications"
    return [json_of(text) for (text,) in connection.execute(query)]


def _batches(runs: Iterable[ChosenRun]) -> Iterator[list[str]]:
    """Runs in order, as many together as have some BATCH_ATTEMPTS attempts: memory stays flat, queries stay few."""
    batch: list[str] = []
    held = 0
    for run in runs:
        if batch and (held + run.attempts > BATCH_ATTEMPTS or len(batch) == BATCH_ATTEMPTS):
            yield batch
            batch, held = [], 0
        batch.append(run.run_id)
        held += run.attempts
    if batch:
        yield batch


class _Batch:
    """What is stored of some runs, read whole; `trajectory` builds one of them, and only then unpacks its texts."""

    def __init__(self, connection: sqlite3.Connection, run_ids: Sequence[str], wanted: Wanted) -> None:
        self._connection = connection
        self._bound = {"runs": json.dumps(run_ids), "until": wanted.until}
        self._runs = {row[0]: row for row in self._rows(_RUNS)}
        attempts = _folded(self._rows(_ATTEMPTS if wanted.sources else _WITHOUT_SOURCES))
        self._source = text_of if wanted.sources else _left_out
        self._attempts = {run: list(its) for run, its in itertools.groupby(attempts, key=lambda folded: folded[0][0])}
        judged = [verdict for _, _, verdict in attempts if verdict]
        self._kernels = self._beside(_KERNELS, [row[_UPDATE_SEQ] for row, _, _ in attempts if row[_UPDATE_SEQ]])
        timed = [verdict[_VERDICT_SEQ] for verdict in judged if verdict[_STATUS] == Status.CORRECT]
        self._comparisons = self._beside(_COMPARISONS, timed)
        self._cases = self._beside(_CASES, [verdict[_VERDICT_SEQ] for verdict in judged] if wanted.cases else [])
        self._reflections = _grouped(self._rows(_REFLECTIONS))
        self._held = {attempt_id: bool(held) for attempt_id, held in self._rows(_VERIFICATIONS)}
        self._endings = {run_id: (why, best) for run_id, why, best in self._rows(_ENDINGS)}
        self._said = _grouped(self._rows(_SAID) if wanted.conversations else [])
        self._replied = _grouped(self._rows(_REPLIED) if wanted.conversations else [])
        del self._connection  # the transaction ends here

    def _rows(self, query: str) -> list[Row]:
        return self._connection.execute(query, self._bound).fetchall()

    def _beside(self, query: str, seqs: Sequence[int]) -> dict[Any, list[Row]]:
        """Rows that belong to these verdicts or updates."""
        return _grouped(self._connection.execute(query, {"seqs": json.dumps(seqs)})) if seqs else {}

    def trajectory(self, run_id: str) -> Trajectory:
        """One of the runs."""
        try:
            attempts = tuple(itertools.starmap(self._attempt, self._attempts.get(run_id, ())))
            why, best = map(words, self._endings.get(run_id, (None, None)))
            held = self._conversations(run_id)
            return Trajectory(started(self._runs[run_id]), attempts, held, best_of(attempts, best), why)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DecodeError(f"run {run_id}: {error}") from error

    def _attempt(self, row: Row, judged: Row | None, counts: Row | None) -> AttemptRecord:
        """`judged` is the row with the first verdict of the attempt, `counts` the one with the verdict that counts."""
        _, attempt_id, number, parent, at, data, rationale, params, updated, failed, ops, trace_s, compile_s, *_ = row
        params = json.loads(params)
        found: tuple[Any, ...] = UNJUDGED
        if counts is not None:
            tool = "bench" if counts[_TOOL] == "bench" and failed is None else "update"
            found = self._verdict(counts, "confirm" if counts[_TOOL] == "confirm" else tool)
        return record(
            attempt_id,
            number,
            words(parent),
            real(at),
            self._source(data),
            words(rationale),
            params,
            *proposer(params),
            *found,
            judged is not None and bool(judged[_BEST]),
            tuple(map(kernel, self._kernels.get(updated, ()))),
            () if ops is None or ops == "[]" else tuple(json.loads(ops)),
            real(trace_s),
            real(compile_s),
            real(judged[_BENCH_S]) if judged is not None else None,
            tuple(map(expectation, self._reflections.get(attempt_id, ()))),
            self._held.get(attempt_id),
            self._cases_of(counts) if self._cases and counts is not None else (),
            numbers(counts[_RANK_KEY]) if counts is not None else (),
            tuple(json.loads(counts[_FACTS]).get("lines", ())) if counts is not None and counts[_FACTS] else (),
        )

    def _verdict(self, row: Row, tool: str) -> tuple[Any, ...]:
        """The fields from `status` to `tier`."""
        seq, _, _, _, status, detail, *timing, coverage, sol_fraction, variant, tier, _, _ = row[_VERDICT_SEQ:]
        clock = None if timing[0] is None else Timing(*map(real, timing[:3]), *timing[3:])
        against = tuple(map(comparison, self._comparisons.get(seq, ())))
        share, light = real(coverage), real(sol_fraction)
        return STATUSES[status], tool, words(detail), clock, against, share, light, words(variant), tier

    def _cases_of(self, verdict: Row) -> tuple[CaseResult, ...]:
        return tuple(map(case, self._cases.get(verdict[_VERDICT_SEQ], ())))

    def _conversations(self, run_id: str) -> tuple[Conversation, ...]:
        rows = [(row, said_message) for row in self._said.get(run_id, ())]
        rows += [(row, replied_message) for row in self._replied.get(run_id, ())]
        rows.sort(key=lambda pair: pair[0][1])
        return conversations([(words(row[2]), message(row)) for row, message in rows])


# Rows that belong together -----------------------------------------------------------------------------------------


def _left_out(_: bytes | None) -> str:
    return ""


def _folded(rows: Iterable[Row]) -> list[tuple[Row, Row | None, Row | None]]:
    """For each attempt: a row of it, the one with its first verdict, and the one with the verdict that counts."""
    its: list[Row] = []
    found: list[tuple[Row, Row | None, Row | None]] = []
    for row in [*rows, None]:
        if its and (row is None or row[_ID] != its[0][_ID]):
            found.append(_counted(its))
            its = []
        if row is not None:
            its.append(row)
    return found


def _counted(its: list[Row]) -> tuple[Row, Row | None, Row | None]:
    if len(its) == 1 and its[0][_TOOL] != "confirm":  # nearly all
        judged = its[0] if its[0][_TOOL] else None
        return its[0], judged, judged
    its.sort(key=itemgetter(_VERDICT_SEQ))
    judged = next((row for row in its if row[_TOOL] == "bench"), None)
    confirmed = next((row for row in reversed(its) if row[_TOOL] == "confirm"), None)
    return its[0], judged, confirmed or judged


def _grouped(rows: Iterable[Row]) -> dict[Any, list[Row]]:
    """By the first column."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[0]].append(row)
    return groups
