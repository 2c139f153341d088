"""Runs the tasks of the table: a worker for each GPU, which is asked for one step after the other, and an end in time.

Knows steps and how they ended; what a run found is in its record, which `benchmarks.table_rows` reads.
"""

import json
import queue
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_fleet import GRACE_S, Fleet, next_of
from benchmarks.gpu_worker import Answer, GpuWorker
from benchmarks.public_kernels import OURS, PublicFolders, written
from benchmarks.table_rows import JOURNAL, Row, parts_in, rows_of
from benchmarks.table_text import line_of, parts_of
from tools.codec import Json

_COMMAND = (sys.executable, "-m", "benchmarks.table_worker")
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
    command: Sequence[str] = _COMMAND
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
        self._lock, self._parsing = threading.Lock(), threading.Lock()
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
        with self._parsing:  # which CPython 3.11 cannot do in two threads at a time
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
