"""The rows of the table, read from a runs directory alone: the record, the receipts, and how each step ended."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agent.attempt import Attempt, best
from agent.record.alive import folder_of
from agent.record.events import RunEnded, RunStarted
from agent.record.listing import Filter, RunSummary
from agent.record.receipts import receipt_path
from agent.record.store import Store
from benchmarks.public_kernels import OURS
from tools.codec import Json
from tools.errors import UsageError
from tools.verdict import Comparison, Timing, Verdict

JOURNAL = "table.jsonl"
OFFLINE, FILES = "offline", "files"  # authors of the two kinds of runs
_NOT_OF_ITSELF = ("interrupted", "failed")
_OURS = Path(OURS).stem
PARTS = ("open", "search", "end", "public")  # of a task's time
_MOST_RUNS = 200
_MEMORY_BOUND = 1.02  # the speed of light is then no more than what moving the bytes takes


@dataclass(frozen=True)
class Kernel:
    """A kernel of a session of public kernels. `timing` is None for one that was not right, or not timed."""

    name: str
    session: str
    status: str
    detail: str
    timing: Timing | None = None


@dataclass(frozen=True)
class Row:
    """One task. `finished`: its search ended of itself; `why`: what came in the way of it; `receipt`: that of ours, or
    of any attempt where none was right; `beside`: the session that judged public kernels beside this best; `parts`:
    seconds of the latest steps by name; `troubles`: which public kernels were not even judged. Times in microseconds,
    `seconds` of the search and its end."""

    task: str
    why: str = ""
    gpu: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    attempts: int = 0
    accepted: int = 0
    seconds: float | None = None
    run_id: str | None = None
    best_path: Path | None = None
    number: int | None = None
    idea: str = ""
    verdict: Verdict | None = None
    receipt: Mapping[str, Any] = field(default_factory=dict)
    ours_again: Kernel | None = None
    public: tuple[Kernel, ...] = ()
    beside: str | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    @property
    def timing(self) -> Timing | None:
        """Of ours."""
        return self.verdict.timing if self.verdict else None

    @property
    def baselines_us(self) -> dict[str, float]:
        """By name; what ours was compared with, or what a receipt of the run says."""
        if self.verdict and self.verdict.comparisons:
            return {c.baseline: c.baseline_us for c in self.verdict.comparisons}
        return dict(self._evidence.get("baselines_us") or {})

    @property
    def hardest(self) -> Comparison | None:
        """The comparison with the fastest baseline."""
        return min(self.verdict.comparisons, key=lambda c: c.speedup, default=None) if self.verdict else None

    def over(self, baseline: str) -> float | None:
        """The speed-up over one baseline; None where it was not measured."""
        found = self.verdict.comparisons if self.verdict else ()
        return next((c.speedup for c in found if c.baseline == baseline), None)

    @property
    def copy_share(self) -> float | None:
        """Of a task that memory bounds: the rate at which it moves its bytes over the measured rate of a copy."""
        copy_gbps, case = self._evidence.get("copy_gbps"), self._main
        if self.timing is None or not copy_gbps or not case.get("bytes_moved"):
            return None
        copy_us = case["bytes_moved"] / (copy_gbps * 1e3)
        light_us = (self._evidence.get("speed_of_light") or {}).get("us", 0.0)
        return copy_us / self.timing.median_us if light_us <= _MEMORY_BOUND * copy_us else None

    @property
    def sizes(self) -> str:
        """Shapes and dtypes of the timed case's inputs, equal ones together: `2 x 8192x8192 bfloat16`."""
        told = [_tensor(spec) for spec in self._main.get("inputs", ()) if isinstance(spec, dict)]
        counts = {text: told.count(text) for text in told}
        return ", ".join(text if n == 1 else f"{n} x {text}" for text, n in counts.items())

    @property
    def fastest_public(self) -> Kernel | None:
        """Of those that were right and timed."""
        timed = [(k.timing.median_us, k) for k in self.public if k.timing]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None

    @property
    def over_public(self) -> Comparison | None:
        """Ours over the fastest public kernel, both in one session; the interval is that of both times."""
        theirs, ours = self.fastest_public, self.ours_again
        if not (theirs and theirs.timing and ours and ours.timing) or theirs.session != ours.session:
            return None
        speedup = theirs.timing.median_us / ours.timing.median_us
        spread = math.exp(math.hypot(_half(theirs.timing), _half(ours.timing)))
        return Comparison(theirs.name, theirs.timing.median_us, speedup, speedup / spread, speedup * spread)

    @cached_property
    def _main(self) -> Mapping[str, Any]:
        cases = self.receipt.get("task", {}).get("cases", ())
        return next((case for case in cases if case.get("name") == "main"), {})

    @cached_property
    def _evidence(self) -> Mapping[str, Any]:
        return self.receipt.get("evidence") or {}


def rows_of(runs_dir: Path, tasks: Sequence[str]) -> list[Row]:
    """A row a task, in this order. Raises StoreError for a record that cannot be read."""
    journal = _journal(runs_dir / JOURNAL)
    with Store.open(runs_dir) as store:
        return [_row(store, runs_dir, task, journal) for task in tasks]


def rows_of_all(folders: Sequence[Path], tasks: Sequence[str]) -> list[Row]:
    """A row a task: of the first folder that has a time of it, else of the first. Raises as `rows_of`."""
    each = zip(*(rows_of(folder, tasks) for folder in folders), strict=True)
    return [next((row for row in rows if row.timing), rows[0]) for rows in each]


def _row(store: Store, runs_dir: Path, task: str, journal: Sequence[Mapping[str, Any]]) -> Row:
    try:
        runs = store.runs(Filter(task=task, limit=_MOST_RUNS))  # the latest first
    except UsageError:  # no run of this task
        runs = []
    run, why = _chosen([run for run in runs if run.author == OFFLINE]), _why(journal, task)
    if run is None:
        row, leader = Row(task, why or "no run of it is stored"), None
    else:
        attempts = store.attempts(run.run_id)
        leader = best(attempts)
        row = _searched(store, runs_dir, run, attempts, why)
    ours = leader.proposal.source if leader else ""
    row = _with_public(row, [(run.run_id, store.attempts(run.run_id)) for run in runs if run.author == FILES], ours)
    return replace(row, parts=_parts(journal, task), troubles=_troubles(journal, task))


def _chosen(runs: Sequence[RunSummary]) -> RunSummary | None:
    """The latest run that ended of itself, else the latest that found something, else the latest."""
    ended = [run for run in runs if run.why is not None and run.why not in _NOT_OF_ITSELF]
    return next(iter([*ended, *(run for run in runs if run.accepted), *runs]), None)


def _searched(store: Store, runs_dir: Path, run: RunSummary, attempts: Sequence[Attempt], why: str) -> Row:
    folder = folder_of(runs_dir, run.run_id)
    leader = best(attempts)
    finished = run.why is not None and run.why not in _NOT_OF_ITSELF
    receipts = [receipt_path(folder, a.attempt_id) for a in ([leader] if leader else reversed(attempts))]
    course = store.load_course(run.run_id)
    versions = next(e.versions for e in course if isinstance(e, RunStarted))
    elapsed = [e.elapsed_s for e in course if isinstance(e, RunEnded)]
    if leader is None:
        why = _failures(attempts) or why
    return Row(
        run.task,
        "" if finished and leader else (why or f"the run ended as {run.why or 'killed'}"),
        gpu=run.gpu,
        versions=versions,
        finished=finished,
        attempts=run.attempts,
        accepted=run.accepted,
        seconds=sum(elapsed) if elapsed else None,
        run_id=run.run_id,
        best_path=folder / "best.py" if leader and (folder / "best.py").is_file() else None,
        number=leader.number if leader else None,
        idea=leader.proposal.rationale if leader else "",
        verdict=leader.verdict if leader else None,
        receipt=_first_receipt(receipts),
    )


def _failures(attempts: Sequence[Attempt]) -> str:
    """How attempts ended that were all refused, and the last one's words."""
    if not attempts:
        return ""
    statuses = [a.verdict.status.value for a in attempts]
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses))
    return f"none accepted ({counts}); the last: {attempts[-1].verdict.detail[:160]}"


def _with_public(row: Row, sessions: Sequence[tuple[str, Sequence[Attempt]]], ours: str) -> Row:
    """The verdict on each public kernel, and the second one on ours: of the session that judged this best, whose file
    ends in the source `ours`, and most beside it; of others, the latest first, what that one lacks."""
    beside = [run_id for run_id, attempts in sessions if ours and any(_is_ours(a, ours) for a in attempts)]
    ordered = sorted(sessions, key=lambda its: (its[0] not in beside, -len(its[1]) * (its[0] in beside)))
    found: dict[str, Kernel] = {}
    for run_id, attempts in ordered:
        for attempt in attempts:
            name, verdict = _file(attempt), attempt.verdict
            kernel = Kernel(name, run_id, verdict.status.value, verdict.detail, verdict.timing)
            found.setdefault(name, kernel)
    again = found.pop(_OURS, None)
    return replace(row, ours_again=again, public=tuple(found.values()), beside=ordered[0][0] if beside else None)


def _file(attempt: Attempt) -> str:
    """The name of the file that was judged, without its folder."""
    return Path(attempt.proposal.rationale).stem


def _is_ours(attempt: Attempt, source: str) -> bool:
    return _file(attempt) == _OURS and attempt.proposal.source.endswith(source)


def _first_receipt(paths: Iterable[Path]) -> Mapping[str, Any]:
    for path in paths:
        try:
            read = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(read, dict):
            return read
    return {}


def _journal(path: Path) -> list[Mapping[str, Any]]:
    """How each command ended; a last line that was cut off is left out."""
    lines: list[Mapping[str, Any]] = []
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def _why(journal: Sequence[Mapping[str, Any]], task: str) -> str:
    """Of the last step towards a search."""
    its = [line for line in journal if line.get("task") == task and line.get("step") in ("open", "ours", "table")]
    return str(its[-1]["why"]) if its else ""


def parts_in(line: Mapping[str, Any]) -> dict[str, float]:
    """What a line of the journal tells of the seconds of a task's parts, by name."""
    step, seconds = line.get("step"), line.get("seconds")
    if line.get("exit_code") is None or seconds is None:
        return {}
    if step != "ours":
        return {step: float(seconds)} if step in PARTS else {}
    end = {"end": float(line["end_s"])} if "end_s" in line else {}  # of one that was ended by force nobody knows it
    return {"search": float(line.get("search_s", seconds))} | end


def _parts(journal: Sequence[Mapping[str, Any]], task: str) -> dict[str, float]:
    """Of the latest steps that were made."""
    found: dict[str, float] = {}
    for told in (parts_in(line) for line in journal if line.get("task") == task):
        if "search" in told:
            found.pop("end", None)
        found |= told
    return {name: found[name] for name in PARTS if name in found}


def _troubles(journal: Sequence[Mapping[str, Any]], task: str) -> tuple[str, ...]:
    """Why public kernels were not judged: those that could not be made, and a session that was ended."""
    its = [line for line in journal if line.get("task") == task and line.get("step") == "public"]
    told = [str(line["why"]) for line in its if line.get("exit_code") is None or "ended: " in str(line["why"])]
    return tuple(dict.fromkeys(told))


def _half(timing: Timing) -> float:
    """Half of the interval's width, in logarithms."""
    return math.log(timing.high_us / timing.low_us) / 2


def _tensor(spec: Mapping[str, Json]) -> str:
    found: Any = spec.get("$tensor")
    if not isinstance(found, dict):
        return "a structure"
    return f"{'x'.join(map(str, found['shape'])) or 'a number'} {found['dtype']}"
