"""Runs the tasks of the table: a thread for each GPU, a process for each command, and an end in time whatever happens.

Knows commands and how they ended; what a run found is in its record, which `benchmarks.table_rows` reads.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.public_kernels import OURS, PublicFolders, written
from benchmarks.table_rows import JOURNAL, Row, rows_of
from benchmarks.table_text import line_of
from tools.codec import Json

_COMMAND = (sys.executable, "-c", "from agent.cli import main; main()")
_ROOT = Path(__file__).resolve().parents[1]
_GRACE_S = 12.0
_AFTER_SEARCH_S = 40.0  # start, confirmation of the best, end: left to a run that the deadline makes shorter
_LEAST_SEARCH_S = 8.0
_LEAST_BENCH_S = 30.0
_TICK_S = 0.2


@dataclass(frozen=True)
class Plan:
    """What is asked of all tasks. `time_s`: of a task's search; `warm_up_s`: what a command may take beside it;
    `again`: tasks that are done are run, too; `deadline`: by time.monotonic(), when everything has to be over;
    `public`: folders by source; `command`: `optimize`; `grace_s`: between Ctrl-C and the end by force, which a run
    needs to store its end."""

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
    grace_s: float = _GRACE_S

    def left_s(self) -> float:
        """Until everything has to be over; infinite without a deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()


@dataclass(frozen=True)
class Ended:
    """How a command ended. `exit_code` is None for one that never started; `why` is "" where nothing is to be said."""

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
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = threading.Semaphore(0)
        self._workers = [threading.Thread(target=self._worker, args=(gpu,), daemon=True) for gpu in gpus]

    def run(self) -> None:
        """Until no task is left or the deadline has come."""
        for folder in ("logs", "public"):
            (self._plan.runs_dir / folder).mkdir(parents=True, exist_ok=True)
        for worker in self._workers:
            worker.start()
        for _ in self._workers:  # no join, which Ctrl-C would break: Python 3.11 then takes the thread for ended
            while not self._over.acquire(timeout=_TICK_S):
                pass

    def stop(self) -> None:
        """End what runs, as by Ctrl-C, and start nothing more. A second Ctrl-C ends it at once."""
        self._stopping.set()
        try:
            for worker in self._workers:
                worker.join(self._plan.grace_s + 5.0)
        finally:
            for process in tuple(self._running):
                _kill(process)

    def _worker(self, gpu: str | None) -> None:
        try:
            self._work(gpu)
        finally:
            self._over.release()

    def _work(self, gpu: str | None) -> None:
        self._calibrate(gpu)
        while not self._stopping.is_set():
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return
            try:
                self._task(task, gpu)
            except Exception as error:  # noqa: BLE001  a fault of ours in one task must not end the table
                ended = Ended(task, "table", gpu, None, 0.0, f"{type(error).__name__}: {error}")
                self._journal(ended)
                self._say(f"{task}: {ended.why}")

    def _calibrate(self, gpu: str | None) -> None:
        """Measure this GPU's ceilings, which the speed of light is told by; without a GPU the command says so."""
        if gpu is not None and self._plan.left_s() > _LEAST_BENCH_S:
            ended = self._command("", "calibrate", gpu, ["doctor", "--calibrate"], limit_s=120.0)
            what = f"not calibrated: {ended.why}" if ended.exit_code else "calibrated"
            self._say(f"GPU {gpu}: {what} ({ended.seconds:.0f} s)")

    def _task(self, task: str, gpu: str | None) -> None:
        begun = time.monotonic()
        row = self._row(task)
        if self._plan.again or not row.finished:
            self._search(task, gpu)
            row = self._row(task)
        self._public(task, gpu, row)
        where = "" if gpu is None else f"GPU {gpu}  "
        self._say(f"{where}{time.monotonic() - begun:5.0f} s  {line_of(self._row(task))}")

    def _search(self, task: str, gpu: str | None) -> None:
        plan = self._plan
        time_s = min(plan.time_s, plan.left_s() - _AFTER_SEARCH_S)
        if time_s < min(_LEAST_SEARCH_S, plan.time_s):
            self._journal(Ended(task, "ours", gpu, None, 0.0, "not started: the deadline came first"))
            return
        words = ["--task", task, "--model", "offline", "--plain", "--max-time", f"{time_s:.1f}"]
        words += ["--max-attempts", str(plan.max_attempts), "--seed", str(plan.seed)]
        self._command(task, "ours", gpu, [*words, *self._shared()], limit_s=time_s + plan.warm_up_s)

    def _public(self, task: str, gpu: str | None, row: Row) -> None:
        """Ours and the public kernels in one session."""
        plan, folder = self._plan, self._plan.runs_dir / "public" / task
        made, problems = written(task, plan.public, folder)
        for problem in problems:
            self._journal(Ended(task, "public", gpu, None, 0.0, problem))
        judged = {kernel.name for kernel in row.public}
        if not made or self._stopping.is_set() or ({path.stem for path in made} <= judged and not plan.again):
            return
        if plan.left_s() < _LEAST_BENCH_S:
            self._journal(Ended(task, "public", gpu, None, 0.0, "not started: the deadline came first"))
            return
        if row.best_path is not None:
            made = [Path(shutil.copyfile(row.best_path, folder / OURS)), *made]
        words = ["bench", *map(str, made), "--task", task, "--tier", "judged", "--plain"]
        self._command(task, "public", gpu, [*words, *self._shared()], limit_s=plan.warm_up_s + 30.0 * len(made))

    def _shared(self) -> list[str]:
        return ["--width", str(self._plan.width), "--runs-dir", str(self._plan.runs_dir)]

    def _command(self, task: str, step: str, gpu: str | None, words: Sequence[str], limit_s: float) -> Ended:
        """Run one command to its end, or end it. All that it prints goes into a file."""
        log = self._plan.runs_dir / "logs" / f"{task or f'gpu{gpu}'}.{step}.txt"
        begun = time.monotonic()
        with log.open("w") as out:
            process = subprocess.Popen(
                [*self._plan.command, *words], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=_ROOT, env=_environment(gpu), start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
            told = self._watched(process, limit_s)
            self._running.discard(process)
        why = told or ("" if process.returncode == 0 else _last_line(log))
        ended = Ended(task, step, gpu, process.returncode, round(time.monotonic() - begun, 1), why)
        self._journal(ended)
        return ended

    def _watched(self, process: subprocess.Popen[bytes], limit_s: float) -> str:
        """Wait for it. Returns why it was ended; "" when it ended of itself."""
        until = time.monotonic() + limit_s
        while process.poll() is None:
            told = self._why_end(until, limit_s)
            if told:
                return _ended(process, told, self._plan.grace_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TICK_S)
        _kill(process)  # what it may have left behind
        return ""

    def _why_end(self, until: float, limit_s: float) -> str:
        if self._stopping.is_set():
            return "ended: interrupted"
        if self._plan.left_s() < self._plan.grace_s:
            return "ended: the deadline came"
        return f"ended: it took more than {limit_s:.0f} s" if time.monotonic() > until else ""

    def _row(self, task: str) -> Row:
        return rows_of(self._plan.runs_dir, [task])[0]

    def _journal(self, ended: Ended) -> None:
        line: Mapping[str, Json] = vars(ended) | {"at": round(time.time(), 1)}
        with self._lock, (self._plan.runs_dir / JOURNAL).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _say(self, text: str) -> None:
        with self._lock:
            print(text, flush=True)


def _environment(gpu: str | None) -> dict[str, str]:
    """This process's, with the GPU, and with this checkout where the command is imported from."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TERM": "dumb"}
    return env if gpu is None else env | {"CUDA_VISIBLE_DEVICES": gpu}


def _ended(process: subprocess.Popen[bytes], why: str, grace_s: float) -> str:
    """End it as Ctrl-C does, so that it stores what it has; then by force."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        why += ", by force"
    _kill(process)
    process.wait()
    return why


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "it said nothing"
