"""All built-in tasks in one table: eager, torch.compile, max-autotune, public kernels, ours, intervals, speed of light.

    python -m benchmarks.table --runs-dir DIR --gpus 0,1 --deadline 570 --public liger=LIGER
    python -m benchmarks.table --runs-dir DIR --render [--earlier DIR2] > table.md

Each GPU has a worker, a process that starts once and opens each task once: then it does what `optimize --task T --model
offline` does, and what `optimize bench` does with the kernel that was found and the public ones
(`benchmarks.public_kernels` says which), so that all of them are timed in one session. Both are recorded as by the
commands; but beside that TorchInductor is asked and public kernels are compiled (`benchmarks.table`), so that a
search has its time for itself. A worker takes the next task when it is done with one, and a new worker takes over when
one ends. What is recorded in DIR is all that the table is made from; DIR/table.jsonl keeps how each step ended and what
it took, DIR/logs what it printed.

The same command again goes on: a task whose run ended of itself is not run again, and neither is its session of public
kernels, unless there are more of them now (or --again asks for it; a search then begins with what was found before).
At --deadline whatever runs is ended as by Ctrl-C, and keeps its best.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.gpu_fleet import (
    GRACE_S,
    Answer,
    Fleet,
    GpuWorker,
    More,
    Request,
    Step,
    ended_of_itself,
    gpus_of,
    names_of,
    next_of,
    said,
    served,
    tenths,
)
from benchmarks.public_kernels import OURS, SOURCES, PublicFolders, source_of, written
from kerneltune.agent.attempt import Attempt, best
from kerneltune.agent.authors.search.author import OfflineAuthor, through
from kerneltune.agent.commands.bench import FilesView, bench_opened, read_candidates
from kerneltune.agent.commands.doctor import measure_ceilings
from kerneltune.agent.commands.lifecycle import checked, chosen, run_opened
from kerneltune.agent.commands.session import (
    Patience,
    Session,
    Workshop,
    open_task,
    session,
    updater_for,
    workshop,
)
from kerneltune.agent.events import Event, Judged, RunEnded, RunStarted, fan_out
from kerneltune.agent.models.providers import OFFLINE
from kerneltune.agent.record.folder import folder_of, receipt_path
from kerneltune.agent.record.query import Filter, RunSummary
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.agent.view.plain import PlainView, summary_text
from kerneltune.tools.bench import CPU_JUDGE, Bench, GpuBench
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.gpus import arch_number
from kerneltune.tools.schema.verdict import Comparison, Tier, Timing, Verdict
from kerneltune.tools.task.load import TaskFile, builtin_names, find_task
from kerneltune.tools.update import Update, Updater

JOURNAL = "table.jsonl"
FILES = "files"  # the author of runs of files that are judged as they are
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
    ours = leader.source if leader else ""
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
        idea=leader.rationale if leader else "",
        verdict=leader.verdict if leader else None,
        receipt=_first_receipt(receipts),
    )


def _failures(attempts: Sequence[Attempt]) -> str:
    """How attempts ended that were all refused, and the last one's words."""
    if not attempts:
        return ""
    statuses = [a.judged.status.value for a in attempts]
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses))
    return f"none accepted ({counts}); the last: {attempts[-1].detail[:160]}"


def _with_public(row: Row, sessions: Sequence[tuple[str, Sequence[Attempt]]], ours: str) -> Row:
    """The verdict on each public kernel, and the second one on ours: of the session that judged this best, whose file
    ends in the source `ours`, and most beside it; of others, the latest first, what that one lacks."""
    beside = [run_id for run_id, attempts in sessions if ours and any(_is_ours(a, ours) for a in attempts)]
    ordered = sorted(sessions, key=lambda its: (its[0] not in beside, -len(its[1]) * (its[0] in beside)))
    found: dict[str, Kernel] = {}
    for run_id, attempts in ordered:
        for attempt in attempts:
            name, verdict = _file(attempt), attempt.judged
            kernel = Kernel(name, run_id, verdict.status.value, verdict.detail, verdict.timing)
            found.setdefault(name, kernel)
    again = found.pop(_OURS, None)
    return replace(row, ours_again=again, public=tuple(found.values()), beside=ordered[0][0] if beside else None)


def _file(attempt: Attempt) -> str:
    """The name of the file that was judged, without its folder."""
    return Path(attempt.rationale).stem


def _is_ours(attempt: Attempt, source: str) -> bool:
    return _file(attempt) == _OURS and attempt.source.endswith(source)


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


BASELINES = {"eager": "eager", "compile": "compile", "compile-max": "max-autotune"}
ATTENTION = ("causal_attention", "gqa_attention")
GEOMEAN, LEAST, COPY, CUBLAS, SDPA, MOST_S = 1.25, 0.98, 0.90, 0.95, 0.90, 180.0
_HEAD = (
    *("task", "timed case", "eager µs", "compile µs", "max-autotune µs", "public µs", "ours µs [95 %]"),
    *("over the best of the three [95 %]", "over public [95 %]", "speed of light", "copy", "own", "attempts", "s"),
)
_NOTES = """
Times are device time of one forward with cold L2, medians with 95 % intervals. "Over the best of the three" is paired
with the fastest of eager, torch.compile and max-autotune. "Over public" is over the fastest public kernel that was
right, ours judged once more in the session that judged it. "Speed of light" is what the verdict says; "copy", of tasks
that memory bounds, is the rate at which the task's bytes moved over the measured rate of a copy. "Own" is the share of
the time in the candidate's own kernels; the rest is the library's. "s" is the search with the confirmation of the best,
without start, baselines and what TorchInductor writes, which is there before. Eager attention is
scaled_dot_product_attention, with the backend that torch chooses.
""".strip()


def table_text(rows: Sequence[Row]) -> str:
    """Markdown: the machine, the table, the summary, and what is missing or was missed and why."""
    parts = [_machine(rows), _table(rows), _NOTES, *_summary(rows)]
    return "\n\n".join(part for part in parts if part)


def line_of(row: Row) -> str:
    """One row as a line of text."""
    if row.verdict is None or row.timing is None:
        status = row.verdict.status.value if row.verdict else "-"
        words = f"{row.attempts} attempts, {row.accepted} accepted" + (f"  {row.why}" if row.why else "")
        return f"{row.task:22} {status:10} {words}{_public_in_short(row)}"
    hardest = row.hardest
    over = f"{_factor(hardest.speedup)} over {_name(hardest.baseline)}" if hardest else ""
    cut = f"  ({row.why})" if row.why else ""
    return f"{row.task:22} {row.timing.median_us:10.2f} us  {over}  {row.attempts} attempts{cut}{_public_in_short(row)}"


def parts_of(parts: Mapping[str, float]) -> str:
    """The seconds of a task's parts, in brackets; "" where none is known."""
    told = ", ".join(f"{name} {seconds:.0f}" for name, seconds in parts.items())
    return f" ({told})" if told else ""


def _public_in_short(row: Row) -> str:
    if not row.public:
        return ""
    right = sum(kernel.status in ("correct", "checked") for kernel in row.public)
    over = "" if row.over_public is None else f", {_factor(row.over_public.speedup)} over the fastest"
    return f"  public: {right} of {len(row.public)} right{over}"


def _machine(rows: Sequence[Row]) -> str:
    """Where this was measured, as far as it is one place."""
    gpus = sorted({row.gpu or "no GPU: checked, nothing is timed" for row in rows if row.run_id})
    names = ("torch", "triton", "python")
    told = {", ".join(f"{n} {row.versions[n]}" for n in names if n in row.versions) for row in rows if row.run_id}
    return "; ".join([*gpus, *sorted(told)])


def _table(rows: Sequence[Row]) -> str:
    lines = [_HEAD, ["---"] * len(_HEAD), *map(_cells, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _cells(row: Row) -> list[str]:
    baselines = [_us(row.baselines_us.get(name)) for name in BASELINES]
    return [
        row.task, row.sizes, *baselines, _public(row), _ours(row), _over(row), _ratio(row.over_public),
        _percent(row.verdict.sol_fraction if row.verdict else None), _percent(row.copy_share),
        _percent(row.verdict.coverage if row.verdict else None), str(row.attempts or ""),
        "" if row.seconds is None else f"{row.seconds:.0f}",
    ]  # fmt: skip


def _ours(row: Row) -> str:
    timing = row.timing
    if timing is not None:
        tier = "" if row.verdict is None or row.verdict.tier == "confirmed" else f" ({row.verdict.tier})"
        return f"**{_us(timing.median_us)}** [{_us(timing.low_us)}, {_us(timing.high_us)}]{tier}"
    if row.verdict is not None:
        return f"{row.verdict.status.value}, not timed"
    return "no result" if row.attempts == 0 else "none accepted"


def _over(row: Row) -> str:
    return f"{_ratio(row.hardest)} {_name(row.hardest.baseline)}" if row.hardest else ""


def _public(row: Row) -> str:
    theirs = row.fastest_public
    if theirs is not None:
        return f"{_us(theirs.timing.median_us if theirs.timing else None)} {source_of(theirs.name)}"
    return ", ".join(f"{source_of(kernel.name)}: {kernel.status}" for kernel in row.public)


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    timed = [row for row in rows if row.hardest]
    yield f"{len(timed)} of {len(rows)} tasks timed." if timed else _checked_only(rows)
    if timed:
        yield _mean(timed)
        yield _list("Goals", _goals(timed, len(rows)))
    if parts := _mean_parts(rows):
        yield f"Seconds of a task, on average over those that have the part: {parts}."
    yield _list("Tasks without a result, or cut short", (f"{row.task}: {row.why}" for row in rows if row.why))
    yield _list("Public kernels that were not judged", (f"{row.task}: {why}" for row in rows for why in row.troubles))
    refused = [(row, kernel) for row in rows for kernel in row.public if kernel.status not in ("correct", "checked")]
    yield _list("Public kernels that were not right", (_refused(row, kernel) for row, kernel in refused))


def _mean_parts(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(name for row in rows for name in row.parts)
    return ", ".join(f"{name} {fmean(row.parts[name] for row in rows if name in row.parts):.1f}" for name in names)


def _checked_only(rows: Sequence[Row]) -> str:
    right = sum(row.accepted > 0 for row in rows)
    return f"Nothing was timed. {right} of {len(rows)} tasks have a kernel that was checked."


def _refused(row: Row, kernel: Kernel) -> str:
    return f"{row.task}, {source_of(kernel.name)}: {kernel.status}, {' '.join(kernel.detail.split())[:200]}"


def _mean(timed: Sequence[Row]) -> str:
    """The geometric mean. Its interval is that of the measurements, not of other tasks that might have been chosen."""
    found = [row.hardest for row in timed if row.hardest]
    middle = fmean(math.log(c.speedup) for c in found)
    half = math.sqrt(sum((math.log(c.high / c.low) / 2) ** 2 for c in found)) / len(found)
    low, high = math.exp(middle - half), math.exp(middle + half)
    kept = sum(c.speedup >= LEAST for c in found)
    words = f"Geometric mean over the best of the three: **{math.exp(middle):.3f}x** [{low:.3f}, {high:.3f}]"
    words += f" (of the measurements); {kept} of {len(found)} at or above {LEAST}x."
    others = [row.over_public.speedup for row in timed if row.over_public]
    if others:
        mean = math.exp(fmean(map(math.log, others)))
        ahead = sum(over >= 1 for over in others)
        words += f" Over the fastest public kernel: {mean:.3f}x on {len(others)} tasks, {ahead} of them ahead."
    return words


def _goals(timed: Sequence[Row], of: int) -> Iterator[str]:
    """Each goal: met, or missed by whom."""
    speedups = {row.task: row.hardest.speedup for row in timed if row.hardest}
    mean = math.exp(fmean(map(math.log, speedups.values())))
    words = f"{mean:.3f}x on {len(timed)} of {of} tasks"
    yield _met(f"geometric mean at least {GEOMEAN}x", mean >= GEOMEAN and len(timed) == of, [words])
    low = {name: s for name, s in speedups.items() if s < LEAST}
    yield _met(f"no task below {LEAST}x", not low, [f"{name} {_factor(s)}" for name, s in low.items()])
    shares = {row.task: row.copy_share for row in timed if row.copy_share is not None}
    slow = [f"{name} {_percent(s)}" for name, s in shares.items() if s < COPY]
    yield _met(f"the {len(shares)} tasks that memory bounds at 90 % of the copy bandwidth", not slow, slow)
    yield from _over_eager(timed, ("matmul_bf16",), CUBLAS, "of cuBLAS")
    yield from _over_eager(timed, ATTENTION, SDPA, "of SDPA")
    late = [f"{row.task} {row.seconds:.0f} s" for row in timed if row.seconds is not None and row.seconds > MOST_S]
    yield _met(f"searches within {MOST_S:.0f} s", not late, late)


def _over_eager(timed: Sequence[Row], tasks: Sequence[str], goal: float, words: str) -> Iterator[str]:
    found = [(row.task, over) for row in timed if row.task in tasks and (over := row.over("eager")) is not None]
    for task, over in found:
        yield _met(f"{task} at least {goal}x {words}", over >= goal, [_factor(over)])


def _met(goal: str, met: bool, culprits: Sequence[str]) -> str:
    return f"{goal}: met" if met else f"{goal}: **missed**: {', '.join(culprits)}"


def _list(title: str, items: Iterable[str]) -> str:
    lines = [f"- {item}" for item in items]
    return "\n".join([f"{title}:", "", *lines]) if lines else ""


def _name(baseline: str) -> str:
    return BASELINES.get(baseline, baseline)


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}x"


def _ratio(found: Comparison | None) -> str:
    return "" if found is None else f"{_factor(found.speedup)} [{found.low:.3f}, {found.high:.3f}]"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _us(value: float | None) -> str:
    """Four digits, and at least two places below 100."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


_COMPILED_AT_A_TIME = 2  # the search has the other cores


class Ahead:
    """At work from the start, in threads and workers of its own: what ends the search's workers does not end these.
    `sources`: of the candidates that will be judged; `lower`: whether there will be a search. Close it in the end."""

    def __init__(self, shop: Workshop, task_file: TaskFile, sources: Sequence[str], *, lower: bool) -> None:
        self._shop, self._machine = shop, shop.machine.apart()
        self._pool = ThreadPoolExecutor(_COMPILED_AT_A_TIME + 1, thread_name_prefix="ahead")
        self._updater = self._pool.submit(self._described, task_file)  # the first thread's, and the others wait for it
        self._lowered = self._pool.submit(self._lower, task_file) if lower else None
        self._updates = {source: self._pool.submit(self._update, source) for source in dict.fromkeys(sources)}

    def wait_lowered(self) -> None:
        """Until TorchInductor has answered: no search may begin before. Two threads must not parse Python at a time:
        CPython 3.11 then fails in one of them ("AST constructor recursion depth mismatch")."""
        if self._lowered is not None:
            wait([self._lowered])

    def tools(self, opened: Session) -> Evaluator:
        """That of a session of public kernels: the session's own, but for what is begun already."""
        own = opened.tools
        return Evaluator(Begun(own.updater, self._updates), Anew(own.benches), own.bench_stage)

    def close(self) -> None:
        """Let go of what is not done; the threads end when their workers have."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._machine.living():
            worker.kill()
        if self._lowered is not None and not self._lowered.done():
            self._shop.lowering.close()

    def _described(self, task_file: TaskFile) -> Updater:
        with self._shop.machine.task(CPU_JUDGE, [task_file.path]) as desk:
            task, *_ = open_task(desk, task_file)
        return updater_for(self._shop, task, self._machine, Patience())

    def _lower(self, task_file: TaskFile) -> None:
        """Ask TorchInductor all that the search will ask it. What fails here fails there, too, and is told there."""
        call = functools.partial(self._shop.lowering.call, task=task_file)
        author = OfflineAuthor(through(call), arch_number(self._shop.arch))
        author.sketches(self._updater.result().task)

    def _update(self, source: str) -> Update:
        return self._updater.result().update(source)


class Begun(Updater):
    """The updater of a session that compares ours with public kernels: what was begun is waited for."""

    def __init__(self, own: Updater, begun: Mapping[str, Future[Update]]) -> None:
        self._own, self._begun = own, begun

    def update(self, source: str, told: Callable[[str], None] = lambda _: None) -> Update:
        """As it was begun, else now."""
        begun = self._begun.get(source)
        return self._own.update(source, told) if begun is None else begun.result()


@dataclass(frozen=True)
class Anew:
    """The bench of such a session. No verdict of the search before it is given again: the best of many was chosen by
    it, so that it tells too short a time."""

    own: Bench

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Judge a compiled candidate anew."""
        if isinstance(self.own, GpuBench):
            return self.own.bench(update, tier, reuse=False)
        return self.own.bench(update, tier)  # draws new inputs each time


WORKER = (sys.executable, "-m", "benchmarks.table", "--worker")
_OPENING_S, _ENDING_S = 10.0, 30.0  # of a task, beside its search: left to a search that the deadline makes shorter
_LEAST_SEARCH_S = 8.0
_LEAST_BENCH_S = 20.0
_CALIBRATE_S = 120.0  # at most; 10 are usual


@dataclass(frozen=True)
class Plan:
    """What is asked of all tasks. `time_s`: of a task's search; `warm_up_s`: what a step may take beside it; `again`:
    tasks that are done are run, too; `deadline`: by time.monotonic(), when everything has to be over; `public`: folders
    by source; `command`: the worker's; `grace_s`: between Ctrl-C and the end by force, which a run needs to store its
    end."""

    runs_dir: Path
    time_s: float
    deadline: float | None = None
    warm_up_s: float = 300.0
    width: int = 2
    max_attempts: int = 1000
    seed: int = 0
    again: bool = False
    public: PublicFolders = field(default_factory=dict)
    command: Sequence[str] = field(kw_only=True)
    grace_s: float = GRACE_S


@dataclass(frozen=True)
class Ended:
    """How a step ended: "start" and "calibrate" of a worker; "open", "ours", which is the search, and "public" of a
    task; "table" for a fault of this program. `exit_code` is None for one that never started; `why` is "" where nothing
    is to be said."""

    task: str
    step: str
    gpu: str | None
    exit_code: int | None
    seconds: float
    why: str = ""


class Table:
    """One pass over the tasks."""

    def __init__(self, plan: Plan, tasks: Sequence[str], gpus: Sequence[str | None]) -> None:
        self._plan = plan
        self._tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
        for task in tasks:
            self._tasks.put(task)
        self._lock = threading.Lock()
        logs = plan.runs_dir / "logs"
        self._fleet = Fleet(plan.command, gpus, logs, self._turn, deadline=plan.deadline, grace_s=plan.grace_s)
        self._calibrated: set[str] = set()
        self._parts: dict[str, dict[str, float]] = {}  # by worker: the seconds of its task, so far

    def run(self) -> None:
        """Until no task is left or the deadline has come."""
        (self._plan.runs_dir / "public").mkdir(parents=True, exist_ok=True)
        self._fleet.run()

    def stop(self) -> None:
        """End what runs, as by Ctrl-C, and start nothing more. A second Ctrl-C ends it at once."""
        self._fleet.stop()

    def _turn(self, worker: GpuWorker) -> bool:
        """The next task, if there is one."""
        if (task := next_of(self._tasks)) is None:
            return False
        try:
            self._task(task, worker)
        except Exception as error:  # noqa: BLE001  a fault of ours in one task must not end the table
            worker.end()
            ended = Ended(task, "table", worker.gpu, None, 0.0, f"{type(error).__name__}: {error}")
            self._journal(ended)
            self._fleet.say(f"{task}: {ended.why}")
        return True

    def _task(self, task: str, worker: GpuWorker) -> None:
        begun, row, self._parts[worker.name] = time.monotonic(), self._row(task), {}
        search = self._plan.again or not row.finished
        made, problems = written(task, self._plan.public, self._plan.runs_dir / "public" / task)
        for problem in problems:
            self._journal(Ended(task, "public", worker.gpu, None, 0.0, problem))
        if search or self._are_new(made, row):
            self._steps(task, worker, made, search=search)
        where = "" if worker.gpu is None else f"GPU {worker.gpu}  "
        row = self._row(task)
        self._fleet.say(f"{where}{time.monotonic() - begun:5.0f} s{parts_of(self._parts[worker.name])}  {line_of(row)}")

    def _are_new(self, made: Sequence[Path], row: Row) -> bool:
        """Whether there are public kernels that no session has judged beside the best of this row."""
        judged = {kernel.name for kernel in row.public if row.best_path is None or kernel.session == row.beside}
        return not {path.stem for path in made} <= judged

    def _steps(self, task: str, worker: GpuWorker, made: Sequence[Path], *, search: bool) -> None:
        """Open the task, search, and judge ours beside the public kernels: as far as each is possible."""
        step = "ours" if search else "public"
        least_s = min(_LEAST_SEARCH_S, self._plan.time_s) if search else _LEAST_BENCH_S
        if self._fleet.left_s() < _OPENING_S + least_s + _ENDING_S * search:
            self._journal(Ended(task, step, worker.gpu, None, 0.0, "not started: the deadline came first"))
            return
        if not self._opened(task, worker, made, search=search) or (search and not self._searched(task, worker)):
            return
        row = self._row(task)
        if made and (search or self._are_new(made, row)):
            self._public(task, worker, made, row)

    def _opened(self, task: str, worker: GpuWorker, made: Sequence[Path], *, search: bool) -> bool:
        """Open the task. What ends a worker that has done others may be what one of those did: then a new one tries."""
        has_done_others, files = worker.runs, [str(path) for path in made]
        if not self._ready(task, worker):
            return False
        limit_s, asked = self._plan.warm_up_s, {"task": task, "files": files, "search": search}
        answer = self._asked(task, worker, "open", "open", limit_s, **asked)
        if answer.exit_code == 0 or worker.runs or not has_done_others or answer.why.startswith("ended: "):
            return answer.exit_code == 0
        return self._opened(task, worker, made, search=search)

    def _ready(self, task: str, worker: GpuWorker) -> bool:
        """A worker that has started, on a GPU whose ceilings, which the speed of light is told by, were measured."""
        plan = self._plan
        if worker.runs or self._fleet.why_end():
            return worker.runs
        worker.start()
        flags: dict[str, Json] = {
            "runs_dir": str(plan.runs_dir), "width": plan.width, "max_attempts": plan.max_attempts, "seed": plan.seed,
        }  # fmt: skip
        started = worker.ask("start", f"{worker.name}.start", plan.warm_up_s, flags=flags)
        self._journal(Ended("", "start", worker.gpu, started.exit_code, started.seconds, started.why))
        if started.exit_code != 0:
            self._journal(Ended(task, "open", worker.gpu, None, 0.0, f"no worker: {started.why}"))
            return False
        if worker.gpu is not None and worker.gpu not in self._calibrated:
            self._calibrated.add(worker.gpu)
            ended = worker.ask("calibrate", f"{worker.name}.calibrate", _CALIBRATE_S)
            self._journal(Ended("", "calibrate", worker.gpu, ended.exit_code, ended.seconds, ended.why))
            what = f"not calibrated: {ended.why}" if ended.exit_code else "calibrated"
            self._fleet.say(f"GPU {worker.gpu}: started ({started.seconds:.0f} s), {what} ({ended.seconds:.0f} s)")
        return self._ready(task, worker)

    def _searched(self, task: str, worker: GpuWorker) -> bool:
        """Search; whether the worker can go on with the task."""
        plan = self._plan
        time_s = round(min(plan.time_s, self._fleet.left_s() - _ENDING_S), 1)
        if time_s < min(_LEAST_SEARCH_S, plan.time_s) / 2:  # opening took longer than it was given
            self._journal(Ended(task, "ours", worker.gpu, None, 0.0, "not started: the deadline came first"))
            return False
        ended = self._asked(task, worker, "ours", "search", time_s + plan.warm_up_s, time_s=time_s)
        return ended.exit_code in (0, 1) and worker.runs

    def _public(self, task: str, worker: GpuWorker, made: Sequence[Path], row: Row) -> None:
        """Ours and the public kernels in one session."""
        plan = self._plan
        if self._fleet.left_s() < _LEAST_BENCH_S:
            self._journal(Ended(task, "public", worker.gpu, None, 0.0, "not started: the deadline came first"))
            return
        if row.best_path is not None:
            made = [Path(shutil.copyfile(row.best_path, made[0].with_name(OURS))), *made]
        files: list[Json] = [str(path) for path in made]
        self._asked(task, worker, "public", "public", plan.warm_up_s + 30.0 * len(made), files=files)

    def _asked(self, task: str, worker: GpuWorker, step: str, what: str, limit_s: float, /, **asked: Json) -> Answer:
        answer = worker.ask(what, f"{task}.{step}", limit_s, **asked)
        ended = Ended(task, step, worker.gpu, answer.exit_code, answer.seconds, answer.why)
        self._parts[worker.name] |= parts_in(vars(ended) | dict(answer.more))
        self._journal(ended, answer.more)
        return answer

    def _row(self, task: str) -> Row:
        return rows_of(self._plan.runs_dir, [task])[0]

    def _journal(self, ended: Ended, more: Mapping[str, Json] | None = None) -> None:
        line: Mapping[str, Json] = vars(ended) | dict(more or {}) | {"at": round(time.time(), 1)}
        with self._lock, (self._plan.runs_dir / JOURNAL).open("a") as file:
            file.write(json.dumps(line) + "\n")


class TableWorker:
    """What has been opened, and the steps."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self._held, self._task = held, contextlib.ExitStack()
        self._settings = Settings()
        self._shop: Workshop | None = None
        self._opened: Session | None = None
        self._ahead: Ahead | None = None
        self.steps: Mapping[str, Step] = {
            "start": self._start, "calibrate": self._calibrate, "open": self._open, "search": self._search,
            "public": self._public,
        }  # fmt: skip

    def _start(self, asked: Request, _more: More) -> int:
        flags = asked["flags"] | {"runs_dir": Path(asked["flags"]["runs_dir"]), "model": OFFLINE}
        self._settings = chosen_settings(flags)
        self._shop = self._held.enter_context(workshop(self._settings, said))
        self._held.enter_context(self._task)
        self._shop.machine.enforced()  # waits until all zygotes are warm
        return 0

    def _calibrate(self, _asked: Request, _more: More) -> int:
        shop = self._started()
        if shop.gpu is None:
            print("there is no GPU to calibrate here")
            return 1
        print(measure_ceilings(shop.machine, shop.gpu, self._settings.cache_dir))
        return 0

    def _open(self, asked: Request, _more: More) -> int:
        shop, task_file = self._started(), find_task(asked["task"])
        self._opened = self._ahead = None
        self._task.close()
        sources = [candidate.source for candidate in read_candidates(asked["files"]) if not candidate.problem]
        self._ahead = Ahead(shop, task_file, sources, lower=asked["search"])
        self._task.callback(self._ahead.close)
        self._opened = self._task.enter_context(session(shop, task_file))
        self._ahead.wait_lowered()
        return 0

    def _search(self, asked: Request, more: More) -> int:
        """As `optimize --task T --model offline --plain --max-time S`."""
        settings, began_s = replace(self._settings, max_time_s=asked["time_s"]), time.monotonic()
        judged_s: list[float] = []  # when each was; what comes after the last is the end

        def clock(event: Event) -> None:
            judged_s.extend([time.monotonic()] * isinstance(event, Judged))

        view, opened = PlainView(sys.stderr), self._open_task()
        with contextlib.closing(chosen(settings, environment())) as choice, Store.open(settings.runs_dir) as store:
            try:
                start = checked(settings.from_, store, opened.file)
                outcome = run_opened(opened, choice, settings, store, fan_out(view, clock), named_start=start)
            finally:
                now_s = time.monotonic()
                last_s = judged_s[-1] if judged_s else now_s
                more |= {"search_s": tenths(last_s - began_s), "end_s": tenths(now_s - last_s)}
        print(summary_text(view.state), end="")
        return outcome.exit_code

    def _public(self, asked: Request, _more: More) -> int:
        """As `optimize bench FILES --task T --tier judged --plain`."""
        opened, ahead = self._open_task(), self._ahead
        candidates = read_candidates(asked["files"])
        if ahead is not None:
            candidates = [replace(candidate, evaluator=ahead.tools(opened)) for candidate in candidates]
        settings = replace(self._settings, tier="judged")
        with Store.open(settings.runs_dir) as store:
            view = FilesView(sys.stdout, sys.stderr, total=len(candidates))
            return bench_opened(opened, candidates, settings, view, store)

    def _started(self) -> Workshop:
        if self._shop is None:
            raise RuntimeError("start first")
        return self._shop

    def _open_task(self) -> Session:
        if self._opened is None:
            raise RuntimeError("open a task first")
        return self._opened


def serve() -> int:
    """A worker: answer until there are no more requests."""
    return served(lambda held: TableWorker(held).steps)


def main(argv: Sequence[str] | None = None) -> int:
    """Run or render: 0; 1 when some task has no row with a result; 2 for a mistake; 130 after Ctrl-C."""
    if argv is None and sys.argv[1:] == ["--worker"]:
        return serve()
    parser = _parser()
    given = parser.parse_args(argv)
    tasks = names_of(given.tasks) or builtin_names()
    if unknown := sorted(set(tasks) - set(builtin_names())):
        parser.error(f"no built-in task {unknown[0]!r}; known: {', '.join(builtin_names())}")
    if given.earlier and not given.render:
        parser.error("--earlier is for --render: what was measured earlier is shown, not run")
    if given.render:
        folders = [given.runs_dir, *given.earlier]
        for folder in folders:
            if not (folder / "runs.db").is_file():
                parser.error(f"{folder}: there is no runs.db in it")
        print(table_text(rows_of_all(folders, tasks)))
        return 0
    return _run(given, tasks, _folders(parser, given.public))


def _run(given: argparse.Namespace, tasks: Sequence[str], public: PublicFolders) -> int:
    started = time.monotonic()
    gpus = gpus_of(given.gpus)
    plan = Plan(
        given.runs_dir.resolve(),
        given.time,
        deadline=started + given.deadline if given.deadline else None,
        warm_up_s=given.warm_up,
        width=given.width or max(2, min(12, (os.cpu_count() or 2) // len(gpus) - 2)),
        max_attempts=given.max_attempts,
        seed=given.seed,
        again=given.again,
        public=public,
        command=WORKER,
    )
    table = Table(plan, tasks, gpus)
    if not ended_of_itself(table.run, table.stop):
        return 130
    rows = rows_of(plan.runs_dir, tasks)
    good = sum(row.accepted > 0 for row in rows)
    print(f"{good} of {len(rows)} tasks have a kernel after {time.monotonic() - started:.0f} s", flush=True)
    return int(good < len(rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs-dir", type=Path, required=True, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--render", action="store_true", help="print the table of DIR in Markdown, run nothing")
    parser.add_argument(
        "--earlier", action="append", default=[], type=Path, metavar="DIR",
        help="with --render: where tasks are looked up that --runs-dir has no time of; may be repeated",
    )  # fmt: skip
    parser.add_argument("--tasks", default="", metavar="A,B", help="these tasks; else all that are built in")
    parser.add_argument("--again", action="store_true", help="also tasks that are done; the latest run of each counts")
    parser.add_argument("--gpus", default="", metavar="0,1", help="a worker each; else one, on whatever there is")
    parser.add_argument("--time", type=_seconds, default=25.0, metavar="S", help="search time of a task; 25")
    parser.add_argument("--deadline", type=_seconds, metavar="S", help="be done with everything after so many seconds")
    parser.add_argument(
        "--warm-up", type=_seconds, default=300.0, metavar="S", help="what a step may take beside a search"
    )
    parser.add_argument("--max-attempts", type=int, default=1000, metavar="N", help="of a task")
    parser.add_argument("--width", type=int, metavar="N", help="candidates compiled side by side; else by the cores")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--public", action="append", default=[], metavar="SOURCE=DIR",
        help=f"where a public source lies; may be repeated. Sources: {', '.join(SOURCES)}",
    )  # fmt: skip
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def _folders(parser: argparse.ArgumentParser, given: Sequence[str]) -> PublicFolders:
    found: dict[str, Path] = {}
    for text in given:
        name, _, folder = text.partition("=")
        if name not in SOURCES or not Path(folder).is_dir() or not folder:
            parser.error(f"--public {text}: give SOURCE=DIR, a folder that is there; sources: {', '.join(SOURCES)}")
        found[name] = Path(folder).resolve()
    return found


if __name__ == "__main__":
    sys.exit(main())
