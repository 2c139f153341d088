"""Stored runs and attempts in short, and which of them a person means: SQL on the driver's own connection.

No text of an attempt is read. SQLAlchemy takes a third of a second to import; the first page uses this without
it. What a run has come to is counted when it is asked for: of 1,000,000 attempts in 33,333 runs, on a busy
machine, the latest 20 take 10 ms, those of a task 50 ms, `--verdict wrong` 0.2 s, a verdict that nobody has 0.4 s and
all runs 7 s.
A table of counts that every writer kept up would save that, and cost 180 lines.
"""

import contextlib
import difflib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from kerneltune.agent.attempt import Earlier, Lesson, Origin, StopReason, point_of
from kerneltune.agent.events import RunStarted
from kerneltune.tools.schema.codec import Json, decode, did_you_mean, parsed
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import RIGHT, Status

VERSION = 8  # of the record; see agent.record.store
ACCEPTED = "accepted"  # as good as a status, where one is asked for
_PAGE_RUNS = 1000  # runs that are counted at a time, where a filter asks for what has to be counted
_RARE = 20_000  # so few verdicts or comparisons are looked up one by one
_BUSY_S = 0.2  # a person waits at a prompt
EXAMPLE = "20261121-093000-softmax-1a2b/7"
LAST = "last"
_FARTHEST = 1 << 31  # run back from the latest
_MOST_DIGITS = 3  # of the number of an attempt that stands alone: longer ones are dates
_AFTER_ALL = "\U0010ffff"  # sorts after whatever may follow the start of an id
_MOST_ALIKE = 200  # ids that are compared letter by letter
_MOST_COUNTED = 1000


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
        return RIGHT if self.verdict == ACCEPTED else (self.verdict,)

    def passes(self, statuses: Iterable[str | None], speedup: float | None) -> bool:
        """Whether any of the statuses is wanted, and the speed-up is enough; a NaN is never enough."""
        fast = self.min_speedup is None or (speedup is not None and speedup >= self.min_speedup)
        return fast and (not self.statuses or any(status in self.statuses for status in statuses))


@dataclass(frozen=True)
class ChosenRun:
    """A run that is to be read. `attempts`: about how many it has."""

    run_id: str
    attempts: int
    task_sha256: str


@dataclass(frozen=True)
class RunSummary:
    """A stored run. `why` is None while it goes on, or when its process was killed. `best_us` (microseconds) and
    `best_speedup` (over the fastest baseline) belong to the best attempt and are None when nothing was timed, the
    speed-up also when not every baseline was there; `verified` says whether the latest verification of it held, and is
    None without one. `by_status` counts attempts by the verdict that counts."""

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
    why: StopReason | None
    verified: bool | None = None
    by_status: Mapping[str, int] = field(default_factory=dict)


def _at(column: str, key: str | int) -> str:
    """SQL for what a document holds there; NULL for one with Infinity or NaN, which is no JSON to SQLite."""
    place = f"$[{key}]" if isinstance(key, int) else f"$.{key}"
    return f"CASE json_valid({column}) WHEN 1 THEN json_extract({column}, '{place}') END"


# Runs ---------------------------------------------------------------------------------------------------------------

# The verdict that counts of an attempt is the last of its tools `bench` and `confirm`. The best attempt is what the
# run's last ending names; of a run that goes on (or was killed), the first in the order of `agent.attempt.rank_order`
# that nothing refuted.
_RUNS = """
WITH chosen AS MATERIALIZED (SELECT * FROM runs WHERE {where} ORDER BY seq DESC LIMIT :most),
counting AS MATERIALIZED (
    SELECT a.run_id, v.status, max(v.seq) AS seq
    FROM chosen AS c CROSS JOIN attempts AS a ON a.run_id = c.run_id
    CROSS JOIN verdicts AS v ON v.attempt_id = a.attempt_id AND v.tool IN ('bench', 'confirm')
    GROUP BY c.seq, a.attempt_id
),
tallies AS (SELECT run_id, status, count(*) AS n FROM counting GROUP BY run_id, status),
counted AS MATERIALIZED (SELECT run_id, json_group_object(status, n) AS statuses FROM tallies GROUP BY run_id),
turns AS (
    SELECT c.*, max(e.seq) AS last
    FROM chosen AS c CROSS JOIN events AS e
        ON e.run_id = c.run_id AND e.kind IN ('run_started', 'run_resumed', 'run_ended')
    GROUP BY c.seq
),
named AS (
    SELECT t.*, d.why, CASE WHEN d.seq IS NOT NULL THEN d.best_attempt_id ELSE (
        SELECT v.attempt_id FROM attempts AS a CROSS JOIN verdicts AS v ON v.seq = (
            SELECT max(w.seq) FROM verdicts AS w WHERE w.attempt_id = a.attempt_id AND w.tool IN ('bench', 'confirm')
        ) LEFT JOIN updates AS u ON u.attempt_id = a.attempt_id
        WHERE a.run_id = t.run_id AND v.status IN ('checked', 'correct') AND coalesce((
            SELECT w.status FROM verdicts AS w WHERE w.attempt_id = a.attempt_id AND w.tool = 'verify'
            ORDER BY w.seq DESC LIMIT 1
        ), v.status) IN ('checked', 'correct')
        ORDER BY v.status = 'checked' AND coalesce(u.library_ops, '[]') != '[]', {rank}, a.number LIMIT 1
    ) END AS best
    FROM turns AS t LEFT JOIN endings AS d ON d.seq = t.last
),
led AS (
    SELECT n.*, (
        SELECT max(v.seq) FROM verdicts AS v WHERE v.attempt_id = n.best AND v.tool IN ('bench', 'confirm')
    ) AS verdict_seq
    FROM named AS n
)
SELECT l.seq, l.run_id, l.task, l.author, l.arch, l.gpu, e.at, coalesce(k.statuses, '{{}}') AS statuses,
    v.attempt_id AS best, v.median_us, l.why,
    CASE WHEN json_extract(v.facts, '$.pending') IS NULL THEN (
        SELECT CASE WHEN max(typeof(x.speedup) = 'text') THEN 'nan' ELSE min(x.speedup) END
        FROM comparisons AS x WHERE x.seq = v.seq
    ) END AS speedup,
    (SELECT w.held FROM verifications AS w WHERE w.attempt_id = v.attempt_id AND w.purpose = 'verify'
        ORDER BY w.seq DESC LIMIT 1) AS held
FROM led AS l JOIN events AS e ON e.seq = l.seq LEFT JOIN counted AS k ON k.run_id = l.run_id
LEFT JOIN verdicts AS v ON v.seq = l.verdict_seq ORDER BY l.seq DESC
"""
_RANK = ", ".join(["json_valid(v.rank_key) IS 0", *(_at("v.rank_key", place) for place in range(4))])
_OF_TASK_AND_AUTHOR = """
seq < :before AND (:task IS NULL OR task = :task) AND (:model IS NULL OR instr(lower(author), lower(:model)) > 0)
"""


def summaries(connection: sqlite3.Connection, wanted: Filter) -> list[RunSummary]:
    """The latest runs that pass, newest first. Raises UsageError for a task or model that no run has."""
    counts = bool(wanted.statuses) or wanted.min_speedup is not None
    most = _PAGE_RUNS if counts else wanted.limit
    asked: dict[str, object] = {"task": _bound(wanted.task), "model": _bound(wanted.model), "most": most}
    asked |= {"before": 2**63 - 1, "speedup": wanted.min_speedup}
    query = _RUNS.format(rank=_RANK, where=_OF_TASK_AND_AUTHOR + _rare(connection, wanted))
    found: list[RunSummary] = []
    while True:
        rows = _rows(connection, query, asked)
        page = map(_summary, rows)
        found += [run for run in page if wanted.passes(run.by_status, run.best_speedup)]
        if len(rows) < most or len(found) >= wanted.limit:
            break
        asked["before"] = rows[-1]["seq"]
    if not found:
        _explain(connection, wanted)
    return found[: wanted.limit]


def _rare(connection: sqlite3.Connection, wanted: Filter) -> str:
    """A condition that leaves out the runs without any attempt that could pass, where few attempts could."""
    conditions = []
    if wanted.statuses:
        listed = ", ".join(f"'{status}'" for status in wanted.statuses)
        conditions.append(f"SELECT seq FROM verdicts WHERE status IN ({listed})")
    if wanted.min_speedup is not None:
        conditions.append("SELECT seq FROM comparisons WHERE typeof(speedup) = 'real' AND speedup >= :speedup")
    added = ""
    for query in conditions:
        counted = f"SELECT count(*) AS n FROM ({query} LIMIT {_RARE + 1})"
        if _rows(connection, counted, {"speedup": wanted.min_speedup})[0]["n"] <= _RARE:
            added += f" AND run_id IN (SELECT run_id FROM events WHERE seq IN ({query}))"
    return added


def summary(connection: sqlite3.Connection, run_id: str) -> RunSummary | None:
    """One run."""
    rows = _rows(connection, _RUNS.format(rank=_RANK, where="run_id = :run_id"), {"run_id": run_id, "most": 1})
    return _summary(rows[0]) if rows else None


def _summary(row: Mapping[str, Any]) -> RunSummary:
    by_status: dict[str, int] = parsed(row["statuses"])
    return RunSummary(
        row["run_id"],
        word(row["task"]),
        word(row["author"]),
        word(row["arch"]),
        word(row["gpu"]),
        datetime.fromtimestamp(float(row["at"]), UTC),
        attempts=sum(by_status.values()),
        accepted=sum(by_status.get(status, 0) for status in RIGHT),
        best_attempt_id=row["best"],
        best_us=_real(row["median_us"]),
        best_speedup=_real(row["speedup"]),
        why=None if row["why"] is None else StopReason(row["why"]),
        verified=None if row["held"] is None else bool(row["held"]),
        by_status=by_status,
    )


def _explain(connection: sqlite3.Connection, wanted: Filter) -> None:
    """Nothing was found: because the store has no such task or model at all?"""
    tasks = [word(row["task"]) for row in _rows(connection, "SELECT DISTINCT task FROM runs", {})]
    if tasks and wanted.task is not None and wanted.task not in tasks:
        raise UsageError(f"--task {wanted.task!r}: no such run is stored; {_close(wanted.task, tasks)}")
    if tasks and wanted.model is not None:
        authors = [word(row["author"]) for row in _rows(connection, "SELECT DISTINCT author FROM runs", {})]
        if not any(wanted.model.lower() in author.lower() for author in authors):
            raise UsageError(f"--model {wanted.model!r}: no run's author has it; {_close(wanted.model, authors)}")


def _close(text: str, known: Sequence[str]) -> str:
    return did_you_mean(text, known, f"known: {', '.join(known[:12])}{', …' * (len(known) > 12)}")


def chosen(
    connection: sqlite3.Connection, tasks: Sequence[str] | None, authors: Sequence[str] | None, until: int | None
) -> list[ChosenRun]:
    """The runs of some tasks and authors (None: of all), oldest first. A task is a name or the hash of its file, an
    author may be a provider alone ("anthropic")."""
    size = "(SELECT coalesce(max(number), 0) FROM attempts AS a WHERE a.run_id = r.run_id)"
    query = f"SELECT run_id, {size}, task_sha256, task, author FROM runs AS r WHERE seq <= ? ORDER BY seq"
    found = (map(word, row) for row in connection.execute(query, (2**63 - 1 if until is None else until,)))
    return [
        ChosenRun(run_id, size, sha256)
        for run_id, size, sha256, task, author in found
        if (tasks is None or task in tasks or sha256 in tasks)
        and (authors is None or author in authors or author.partition(":")[0] in authors)
    ]


def of_suite(connection: sqlite3.Connection, name: str) -> list[str]:
    """The ids of the runs that are part of the suite of that name, oldest first."""
    query = f"SELECT run_id FROM runs WHERE {_at('limits', 'suite')} = ? ORDER BY seq"
    return [run_id for (run_id,) in connection.execute(query, (name,))]


def suites(connection: sqlite3.Connection) -> list[str]:
    """The names of all suites, the latest first."""
    query = f"""
    SELECT {_at("limits", "suite")} AS suite FROM runs
    WHERE suite IS NOT NULL GROUP BY suite ORDER BY max(seq) DESC"""
    return [str(name) for (name,) in connection.execute(query)]


def spending(connection: sqlite3.Connection, run_id: str) -> tuple[int, int, int, int, float, int]:
    """What a run's models were asked: replies, tokens in, cached and out, dollars, and replies of unknown price."""
    tokens = ", ".join(
        f"CAST(total({_at('r.usage', f'{kind}_tokens')}) AS INTEGER)" for kind in ("input", "cached", "output")
    )
    query = f"""
    SELECT count(*), {tokens},
        coalesce(sum(r.cost_usd), 0.0), coalesce(sum(r.cost_usd IS NULL), 0)
    FROM events AS e JOIN replies AS r ON r.seq = e.seq WHERE e.run_id = ?"""
    found: tuple[int, int, int, int, float, int] = connection.execute(query, (run_id,)).fetchone()
    return found


def tasks(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Name, hash of the file and address of the source of every task that was ever run. What was run first comes first,
    also after records of several machines were merged."""
    query = """
    SELECT r.task, r.task_sha256, r.task_source_ref, min(e.at) AS first FROM runs AS r JOIN events AS e ON e.seq = r.seq
    GROUP BY r.task_sha256 ORDER BY first, r.task_sha256"""
    return [(word(task), word(sha256), address) for task, sha256, address, _ in connection.execute(query)]


def machines(connection: sqlite3.Connection) -> list[Json]:
    """What was noted of every machine that ran or verified anything, each once."""
    query = "SELECT machine FROM runs UNION SELECT machine FROM verifications"
    return [None if text is None else parsed(text) for (text,) in connection.execute(query)]


def source_addresses(connection: sqlite3.Connection, run_ids: Sequence[str], until: int) -> list[tuple[str, str]]:
    """(attempt_id, address of its source) of these runs' attempts, in the order of the runs and the attempts."""
    query = """
    SELECT a.attempt_id, a.source_ref FROM json_each(?) AS wanted CROSS JOIN attempts AS a ON a.run_id = wanted.value
    WHERE a.seq <= ? ORDER BY wanted.key, a.number"""
    return list(connection.execute(query, (json.dumps(run_ids), until)))


def connected_to_look(database: Path, timeout_s: float) -> sqlite3.Connection:
    """A connection that changes nothing, and leaves nothing beside the database. One that may only read leaves the
    files of its log there; one that may write takes them away, but would bring into the database what a log holds."""
    mode = "ro" if Path(f"{database}-wal").exists() else "rw"
    address = f"file:{quote(str(database.absolute()))}?mode={mode}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout_s)
    connection.execute("PRAGMA query_only = ON")
    return connection


Found = TypeVar("Found")


def at_once(database: Path, look: Callable[[sqlite3.Connection], Found]) -> Found | None:
    """What `look` finds; None where that takes the store, which makes a record, converts one, waits for one that is
    locked, and says what is wrong with one that is damaged. Its UsageErrors and NotFound pass."""
    with contextlib.ExitStack() as held:
        held.enter_context(contextlib.suppress(sqlite3.Error, UnicodeError, OSError, ValueError))
        connection = connected_to_look(database, _BUSY_S)
        held.callback(connection.close)
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            return look(connection)
    return None


# What a search may learn from earlier runs on the same GPU ------------------------------------------------------------

MOST_RUNS = 40  # of this task first, then the latest: a search of 300 attempts loads 12,000 rows in 0.1 s

# Of each attempt the last verdict counts, as everywhere; a verification by hand, perhaps elsewhere, does not. Only what
# the record held when the run began counts, so that a resumed run sees what it saw then.
_EARLIER = """
WITH now AS (SELECT coalesce((SELECT seq FROM runs WHERE run_id = :run_id), 9223372036854775807) AS seq),
chosen AS MATERIALIZED (
    SELECT r.* FROM runs AS r, now
    WHERE r.gpu = :gpu AND r.arch = :arch AND r.author = 'offline' AND r.seq < now.seq
    ORDER BY r.task_sha256 = :task_sha256 DESC, r.seq DESC LIMIT :most
)
SELECT a.attempt_id, a.origin, a.source_ref, c.task, c.task_sha256, c.versions, v.status, v.median_us
FROM chosen AS c
CROSS JOIN attempts AS a ON a.run_id = c.run_id
CROSS JOIN verdicts AS v ON v.seq = (
    SELECT max(w.seq) FROM verdicts AS w, now
    WHERE w.attempt_id = a.attempt_id AND w.tool IN ('bench', 'confirm') AND w.seq < now.seq
)
ORDER BY a.seq DESC
"""
_ORIGIN = cast(type[Origin | None], Origin | None)
_FAILED = ("wrong", "crashed", "timed_out", "compile_failed", "rejected", "impossible")


def earlier(connection: sqlite3.Connection, run: RunStarted) -> list[Earlier]:
    """The attempts of earlier runs' searches on the GPU of `run`, the latest first; none where it has no GPU."""
    if run.gpu is None:
        return []
    asked = {"run_id": run.run_id, "gpu": run.gpu, "arch": run.arch, "task_sha256": run.task_sha256}
    found = (_earlier(row, run) for row in _rows(connection, _EARLIER, asked | {"most": MOST_RUNS}))
    return [one for one in found if one is not None]


def _earlier(row: Mapping[str, Any], run: RunStarted) -> Earlier | None:
    origin: Origin | None = decode(_ORIGIN, parsed(row["origin"] or "null"))
    point = point_of(origin)
    timed = row["status"] == "correct" and isinstance(row["median_us"], float) and row["median_us"] > 0
    if point is None or not point.sketch or not (timed or row["status"] in _FAILED):
        return None
    return Earlier(
        row["attempt_id"],
        row["task_sha256"] == run.task_sha256,
        parsed(row["versions"]) == run.versions,
        point.sketch,
        point.params,
        row["source_ref"],
        row["median_us"] if timed else None,
        row["task"],
    )


# What a model may be told of earlier runs on the same GPU. The words become part of a prompt: only those count that a
# model of this record's own runs wrote and this record's own clock decided; nothing that came by a merge, nor what was
# replayed, which may be a merged run's.
_LESSONS = f"""
WITH now AS (SELECT coalesce((SELECT seq FROM runs WHERE run_id = :run_id), 9223372036854775807) AS seq),
chosen AS MATERIALIZED (
    SELECT r.* FROM runs AS r, now
    WHERE r.gpu = :gpu AND r.arch = :arch AND r.author NOT IN ('offline', 'files') AND r.seq < now.seq
    AND coalesce({_at("r.limits", "language")}, 'triton') = :language
    ORDER BY r.task_sha256 = :task_sha256 DESC, r.seq DESC LIMIT :most
)
SELECT a.attempt_id, c.task, c.task_sha256, c.task_source_ref, a.rationale, f.hypothesis, f.outcome, f.evidence
FROM chosen AS c
CROSS JOIN attempts AS a ON a.run_id = c.run_id AND json_extract(a.origin, '$.kind') = 'llm_turn'
CROSS JOIN reflections AS f ON f.attempt_id = a.attempt_id AND f.outcome IN ('confirmed', 'refuted')
WHERE f.seq < (SELECT seq FROM now) AND NOT EXISTS (
    SELECT 1 FROM events AS e WHERE e.seq IN (c.seq, a.seq, f.seq) AND e.merged_from IS NOT NULL
)
ORDER BY f.seq DESC
"""


def lessons(connection: sqlite3.Connection, run: RunStarted) -> list[Lesson]:
    """The decided predictions of earlier runs, the latest first; none where `run` has no GPU. `task_source` is the
    address of that text."""
    if run.gpu is None:
        return []
    asked: dict[str, object] = {"run_id": run.run_id, "gpu": run.gpu, "arch": run.arch, "task_sha256": run.task_sha256}
    asked |= {"most": MOST_RUNS, "language": run.language}
    found = (_lesson(row) for row in _rows(connection, _LESSONS, asked))
    return [one for one in found if one is not None]


def _lesson(row: Mapping[str, Any]) -> Lesson | None:
    """None for what no clock decided."""
    evidence = parsed(row["evidence"])
    measured, predicted = evidence.get("measured_speedup"), evidence.get("predicted_speedup")
    if not isinstance(measured, float) or measured <= 0:
        return None
    return Lesson(
        row["attempt_id"],
        word(row["task"]),
        row["task_sha256"],
        row["task_source_ref"],
        word(row["rationale"]),
        word(row["hypothesis"]),
        row["outcome"] == "confirmed",
        measured,
        predicted if isinstance(predicted, float) else None,
        evidence.get("arithmetic_intensity"),
    )


# Values as the driver returns them ----------------------------------------------------------------------------------


def _rows(connection: sqlite3.Connection, query: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
    found = connection.execute(query, values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def word(value: Any) -> Any:
    """A `Words` column of `agent.record.store`: a text with lone surrogates is stored as bytes."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def _bound(text: str | None) -> str | bytes | None:
    """The same, on its way in."""
    if text is None or text.isascii():
        return text
    stored = text.encode("utf-8", "surrogatepass")
    with contextlib.suppress(UnicodeDecodeError):
        return stored.decode()
    return stored


def _real(value: Any) -> float | None:
    """A `Real` column: a NaN is the word 'nan'."""
    return None if value is None else float(value)


# What a person means: an id, the start of one, or a run for its best attempt ------------------------------------------


class NotFound(LookupError):
    """The text names nothing, or several; the message says what would work."""


def _many(ids: Sequence[str]) -> str:
    """How many there are, in words."""
    return f"over {_MOST_COUNTED}" if len(ids) > _MOST_COUNTED else str(len(ids))


def run_named(text: str, connection: sqlite3.Connection) -> str:
    """The id of the run with this id, or the only one whose id starts so; `last` and `-1` are the latest run, `-2` is
    the one before, a task's name is its latest run. Raises NotFound."""
    ids = _Ids(connection)
    text = ids.spelt_out(_sayable(text))
    return _only(text, "run", ids.runs(text), ids)


def attempt_named(text: str, connection: sqlite3.Connection, best_of: Callable[[str], str | None]) -> str:
    """The id of the attempt: RUN/NUMBER, RUN for its best, NUMBER for one of the latest run. `best_of` gives a run's
    best accepted attempt. Raises NotFound."""
    ids = _Ids(connection)
    text = ids.spelt_out(_sayable(text))
    if ids.is_attempt(text):
        return text
    run, slash, number = text.rpartition("/")
    if not slash:
        return _of_run(text, ids, best_of)
    if not number.isdecimal():
        return _only(text, "attempt", ids.attempts(text), ids)
    found, its_run = ids.numbered(run, number), ids.runs(run)
    if not found and len(its_run) == 1:
        raise NotFound(f"no attempt {number} in run {its_run[0]}, which has {_many(ids.attempts_of(its_run[0]))}")
    return _only(text, "attempt", found, ids)


def _of_run(text: str, ids: "_Ids", best_of: Callable[[str], str | None]) -> str:
    run = _only(text, "attempt", ids.runs(text) if text else [], ids)
    its = ids.attempts_of(run)
    leader = best_of(run)
    if leader is not None or len(its) == 1:
        return leader or its[0]
    listed = ", ".join(a.rpartition("/")[2] for a in its[:10])
    hint = f"name one of its attempts: {run}/NUMBER, of {listed}" if its else "it has no attempts"
    raise NotFound(f"run {run} has no accepted attempt; {hint}")


def _only(text: str, wanted: str, found: Sequence[str], ids: "_Ids") -> str:
    if len(found) == 1:
        return found[0]
    if found:
        kind = "attempts" if "/" in found[0] else "runs"
        raise NotFound(f"{text!r} could be {_many(found)} {kind}: {', '.join(found[:3])}{', …' * (len(found) > 3)}")
    close = _alike(text, ids)
    usual = f"an id looks like {EXAMPLE}; `last`, `-2` and a task's name are runs, too; `optimize runs` lists them"
    hint = f"did you mean {' or '.join(close)}?" if close else usual
    raise NotFound(f"no {wanted} {text!r}; {hint}")


def _alike(text: str, ids: "_Ids") -> Sequence[str]:
    """The latest that end so (people copy the end of an id), else those spelt most alike."""
    if not text.strip("/"):
        return ()
    run, slash, number = text.rpartition("/")
    if not slash:
        return ids.runs_ending(text) or difflib.get_close_matches(text, ids.runs_like(text), n=3, cutoff=0.6)
    if not number.isdecimal():
        return ()
    alike = difflib.get_close_matches(run, ids.runs_like(run), n=3, cutoff=0.6)
    return ids.numbered_ending(run, number) or [a for r in alike if ids.is_attempt(a := f"{r}/{number}")]


def is_number(text: str) -> bool:
    """Whether a person means an attempt by its number alone."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def _sayable(text: str) -> str:
    """Bytes of the command line that are no text can be in no id."""
    return text.encode("utf-8", "replace").decode()


class _Ids:
    """The ids in a database, a few at a time. Every question is a range of an index or one scan of the runs' ids, so a
    million attempts are no reason to wait."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def spelt_out(self, text: str) -> str:
        """The same with the id of a run for the short ways to name one."""
        if is_number(text):
            text = f"{LAST}/{text}"
        run, slash, number = text.partition("/")
        which = 1 if run == LAST else int(run[1:]) if run[:1] == "-" and run[1:].isdecimal() else 0
        by_age = "SELECT run_id FROM runs ORDER BY seq DESC LIMIT 1 OFFSET ?"
        of_task = "SELECT run_id FROM runs WHERE task = ? ORDER BY seq DESC LIMIT 1"
        found = self._list(by_age, min(which, _FARTHEST) - 1) if which else ()
        if not (found or self.runs(run)):
            found = self._list(of_task, _bound(run))
        return f"{found[0]}{slash}{number}" if found else text

    def is_attempt(self, text: str) -> bool:
        """Whether there is an attempt with just this id."""
        return bool(self._list("SELECT 1 FROM attempts WHERE attempt_id = ?", text))

    def runs(self, start: str) -> Sequence[str]:
        """The run with this id, else those whose ids start so."""
        whole = self._list("SELECT run_id FROM runs WHERE run_id = ?", start)
        within = "SELECT run_id FROM runs WHERE run_id >= ? AND run_id < ? ORDER BY seq"
        return whole or self._list(within, start, start + _AFTER_ALL)

    def attempts(self, start: str) -> Sequence[str]:
        """The attempts whose ids start so."""
        within = "SELECT attempt_id FROM attempts WHERE attempt_id >= ? AND attempt_id < ? ORDER BY seq"
        return self._list(within, start, start + _AFTER_ALL)

    def attempts_of(self, run_id: str) -> Sequence[str]:
        """The attempts of one run."""
        return self._list("SELECT attempt_id FROM attempts WHERE run_id = ? ORDER BY number", run_id)

    def numbered(self, start: str, number: str) -> Sequence[str]:
        """The attempts with this number of the runs whose ids start so."""
        joined = "attempts AS a ON a.attempt_id = r.run_id || '/' || ?"
        within = f"SELECT a.attempt_id FROM runs AS r CROSS JOIN {joined} WHERE r.run_id >= ? AND r.run_id < ?"
        return self._list(f"{within} ORDER BY r.run_id", number, start, start + _AFTER_ALL)

    def runs_ending(self, end: str) -> Sequence[str]:
        """The latest runs whose ids end so."""
        query = "SELECT run_id FROM runs WHERE substr(run_id, ?) = ? ORDER BY seq DESC LIMIT 3"
        return self._list(query, -len(end), end)

    def numbered_ending(self, end: str, number: str) -> Sequence[str]:
        """The attempts with this number of the latest runs whose ids end so."""
        joined = "attempts AS a ON a.attempt_id = r.run_id || '/' || ?"
        query = f"SELECT a.attempt_id FROM runs AS r CROSS JOIN {joined} WHERE ? = '' OR substr(r.run_id, ?) = ?"
        return self._list(f"{query} ORDER BY r.seq DESC LIMIT 3", number, end, -len(end) or 1, end)

    def runs_like(self, text: str) -> Sequence[str]:
        """The runs that share most of the text's parts, the latest first among equals."""
        parts = [part for part in dict.fromkeys(text.split("-")) if len(part) > 2][:9]
        shared = " + ".join(["(instr(run_id, ?) > 0)"] * len(parts)) or "NULL"
        return self._list(f"SELECT run_id FROM runs ORDER BY {shared} DESC, seq DESC LIMIT {_MOST_ALIKE}", *parts)

    def _list(self, query: str, *values: object) -> list[str]:
        """The first column, of no more rows than are counted."""
        found = self._connection.execute(f"SELECT * FROM ({query}) LIMIT {_MOST_COUNTED + 1}", cast(Any, values))
        return [cast(str, row[0]) for row in found]
