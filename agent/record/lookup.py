"""Which run or attempt does a person mean? An id, the start of one, or a run for its best attempt.

Every question is a range of an index or one scan of `standings`, so a million attempts are no reason to wait.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

EXAMPLE = "20261121-093000-softmax-1a2b/7"
_AFTER_ALL = "\U0010ffff"  # sorts after whatever may follow the start of an id
_MOST_ALIKE = 200  # ids that are compared letter by letter
_MOST_COUNTED = 1000


class NotFound(LookupError):
    """The text names nothing, or several; the message says what would work."""


@dataclass(frozen=True)
class Found:
    """Ids in their order, no more than are shown, and how many there are, as far as they were counted."""

    first: Sequence[str]
    count: int

    @property
    def many(self) -> str:
        """How many, in words."""
        return f"over {_MOST_COUNTED}" if self.count > _MOST_COUNTED else str(self.count)


def run_named(text: str, connection: Connection) -> str:
    """The id of the run with this id, or the only one whose id starts so. Raises NotFound."""
    ids = _Ids(connection)
    text = _sayable(text)
    found = ids.runs(text)
    return _only(text, "run", found, ids)


def attempt_named(text: str, connection: Connection, best_of: Callable[[str], str | None]) -> str:
    """The id of the attempt. `best_of` gives a run's best accepted attempt. Raises NotFound."""
    ids = _Ids(connection)
    text = _sayable(text)
    if ids.is_attempt(text):
        return text
    run, slash, number = text.rpartition("/")
    if not slash:
        return _of_run(text, ids, best_of)
    if not number.isdecimal():
        return _only(text, "attempt", ids.attempts(text), ids)
    found, its_run = ids.numbered(run, number), ids.runs(run)
    if not found.count and its_run.count == 1:
        its = ids.attempts_of(its_run.first[0])
        raise NotFound(f"no attempt {number} in run {its_run.first[0]}, which has {its.many}")
    return _only(text, "attempt", found, ids)


def _of_run(text: str, ids: "_Ids", best_of: Callable[[str], str | None]) -> str:
    run = _only(text, "attempt", ids.runs(text) if text else Found((), 0), ids)
    its = ids.attempts_of(run)
    leader = best_of(run)
    if leader is not None or its.count == 1:
        return leader or its.first[0]
    listed = ", ".join(a.rpartition("/")[2] for a in its.first)
    hint = f"name one of its attempts: {run}/NUMBER, of {listed}" if its.count else "it has no attempts"
    raise NotFound(f"run {run} has no accepted attempt; {hint}")


def _only(text: str, wanted: str, found: Found, ids: "_Ids") -> str:
    if found.count == 1:
        return found.first[0]
    if found.count:
        more = ", …" * (found.count > 3)
        kind = "attempts" if "/" in found.first[0] else "runs"
        raise NotFound(f"{text!r} could be {found.many} {kind}: {', '.join(found.first[:3])}{more}")
    close = _close(text, ids)
    hint = f"did you mean {' or '.join(close)}?" if close else f"an id looks like {EXAMPLE}; `optimize runs` lists runs"
    raise NotFound(f"no {wanted} {text!r}; {hint}")


def _close(text: str, ids: "_Ids") -> Sequence[str]:
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


def _sayable(text: str) -> str:
    """Bytes of the command line that are no text can be in no id."""
    return text.encode("utf-8", "replace").decode()


class _Ids:
    """The ids in a database, a few at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_attempt(self, text: str) -> bool:
        """Whether there is an attempt with just this id."""
        return bool(self._list("SELECT 1 FROM attempts WHERE attempt_id = ?", text))

    def runs(self, start: str) -> Found:
        """The run with this id, else those whose ids start so."""
        if self._list("SELECT 1 FROM runs WHERE run_id = ?", start):
            return Found((start,), 1)
        return self._found("run_id FROM runs WHERE run_id >= ? AND run_id < ?", "seq", start, start + _AFTER_ALL)

    def attempts(self, start: str) -> Found:
        """The attempts whose ids start so."""
        within = "attempt_id FROM attempts WHERE attempt_id >= ? AND attempt_id < ?"
        return self._found(within, "seq", start, start + _AFTER_ALL)

    def attempts_of(self, run_id: str) -> Found:
        """The attempts of one run."""
        return self._found("attempt_id FROM attempts WHERE run_id = ?", "number", run_id)

    def numbered(self, start: str, number: str) -> Found:
        """The attempts with this number of the runs whose ids start so."""
        joined = "attempts AS a ON a.attempt_id = r.run_id || '/' || ?"
        within = f"a.attempt_id FROM runs AS r CROSS JOIN {joined} WHERE r.run_id >= ? AND r.run_id < ?"
        return self._found(within, "r.run_id", number, start, start + _AFTER_ALL)

    def runs_ending(self, end: str) -> Sequence[str]:
        """The latest runs whose ids end so."""
        query = "SELECT run_id FROM standings WHERE substr(run_id, ?) = ? ORDER BY seq DESC LIMIT 3"
        return self._list(query, -len(end), end)

    def numbered_ending(self, end: str, number: str) -> Sequence[str]:
        """The attempts with this number of the latest runs whose ids end so."""
        joined = "attempts AS a ON a.attempt_id = s.run_id || '/' || ?"
        query = f"SELECT a.attempt_id FROM standings AS s CROSS JOIN {joined} WHERE ? = '' OR substr(s.run_id, ?) = ?"
        return self._list(f"{query} ORDER BY s.seq DESC LIMIT 3", number, end, -len(end) or 1, end)

    def runs_like(self, text: str) -> Sequence[str]:
        """The runs that share most of the text's parts, the latest first among equals."""
        parts = [part for part in dict.fromkeys(text.split("-")) if len(part) > 2][:9]
        shared = " + ".join(["(instr(run_id, ?) > 0)"] * len(parts)) or "NULL"
        return self._list(f"SELECT run_id FROM standings ORDER BY {shared} DESC, seq DESC LIMIT {_MOST_ALIKE}", *parts)

    def _found(self, within: str, order: str, *values: object) -> Found:
        first = self._list(f"SELECT {within} ORDER BY {order} LIMIT 10", *values)
        if len(first) < 10:
            return Found(first, len(first))
        counted = f"SELECT count(*) FROM (SELECT {within} LIMIT {_MOST_COUNTED + 1})"
        return Found(first, int(self._list(counted, *values)[0]))

    def _list(self, query: str, *values: object) -> list[str]:
        return list(self._connection.exec_driver_sql(query, values).scalars())
