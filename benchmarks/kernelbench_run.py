"""Runs KernelBench's problems: a worker for each GPU, a window of problems that each prepares ahead, an end in time."""

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_fleet import Fleet
from benchmarks.gpu_worker import Answer, GpuWorker
from benchmarks.kernelbench_lines import Line, Lines, name_of, new_line
from benchmarks.kernelbench_problem import Limits
from benchmarks.kernelbench_text import line_text
from tools.codec import encode

_COMMAND = (sys.executable, "-m", "benchmarks.kernelbench_worker")
_GRACE_S = 6.0
_LEAST_S = 12.0  # before the deadline's grace, or nothing more is begun
_START_S = 180.0
_OVERTIME_S = 45.0  # that a worker may take beyond its own limits before it is ended
_LOST_IN_A_ROW = 5  # problems by which a GPU has lost its judge: then something is wrong with the GPU
_AHEAD = 2  # problems that are prepared and wait, beside those that are being prepared


@dataclass(frozen=True)
class Plan:
    """What is asked of all problems. `width`: problems that each worker prepares at a time; `deadline`: by
    time.monotonic(), when everything has to be over."""

    out: Path
    limits: Limits = field(default_factory=Limits)
    width: int = 1
    deadline: float | None = None
    command: Sequence[str] = _COMMAND
    grace_s: float = _GRACE_S


class Share:
    """One pass over the problems."""

    def __init__(self, plan: Plan, paths: Sequence[Path], gpus: Sequence[str | None]) -> None:
        self._plan, self._lines, self._lock = plan, Lines(plan.out), threading.Lock()
        self._left, self._windows = deque(paths), defaultdict[str, list[Path]](list)
        self._failed: dict[str, int] = defaultdict(int)  # by worker, in a row
        logs = plan.out.with_suffix(".logs")
        self._fleet = Fleet(plan.command, gpus, logs, self._turn, deadline=plan.deadline, grace_s=plan.grace_s)

    def run(self) -> None:
        """Until no problem is left or the deadline has come."""
        self._fleet.run()

    def stop(self) -> None:
        """End what runs, as by Ctrl-C, and start nothing more."""
        self._fleet.stop()

    def _turn(self, worker: GpuWorker) -> bool:
        """The next problem, if there is one and time for it."""
        window = self._window(worker.name)
        if not window or self._fleet.left_s() < self._plan.grace_s + _LEAST_S:
            return False
        if self._failed[worker.name] >= _LOST_IN_A_ROW:
            self._fleet.say(f"{worker.name}: given up after {_LOST_IN_A_ROW} failures in a row")
            with self._lock:
                self._left.extend(self._windows.pop(worker.name))  # for the others
            return False
        path = self._next(worker, window) if self._started(worker) else None
        if path is None:  # no problem's fault, as far as anybody knows
            self._failed[worker.name] += 1
            return not self._fleet.why_end()
        return self._judged(worker, path) if self._claimed(worker.name, path) else True

    def _window(self, name: str) -> list[Path]:
        """What this worker prepares now. When nothing is left, it takes from another that has more than it needs."""
        with self._lock:
            own = self._windows[name]
            while self._left and len(own) < self._plan.width + _AHEAD:
                own.append(self._left.popleft())
            most = max(self._windows.values(), key=len)
            if not own and len(most) > _AHEAD:
                own.append(most.pop())
            return [*own]

    def _claimed(self, name: str, path: Path) -> bool:
        """Whether it is this worker's to judge: another may have taken it meanwhile."""
        with self._lock:
            is_own = path in self._windows[name]
            self._windows[name] = [other for other in self._windows[name] if other != path]
            return is_own

    def _started(self, worker: GpuWorker) -> bool:
        if worker.runs or self._fleet.why_end():
            return worker.runs
        worker.start()
        asked = {"limits": encode(self._plan.limits), "width": self._plan.width, "needs_gpu": worker.gpu is not None}
        answer = worker.ask("start", f"{worker.name}.start", _START_S, **asked)
        self._fleet.say(f"{worker.name}: started after {answer.seconds:.1f} s {answer.why}".rstrip())
        return answer.exit_code == 0

    def _next(self, worker: GpuWorker, window: Sequence[Path]) -> Path | None:
        limit_s = self._plan.limits.prepare_s + _OVERTIME_S
        answer = worker.ask("ready", f"{worker.name}.ready", limit_s, wanted=[str(path) for path in window])
        if answer.exit_code == 0 and "problem" in answer.more:
            return Path(str(answer.more["problem"]))
        self._fleet.say(f"{worker.name}: nothing was prepared: {answer.why}")
        return None

    def _judged(self, worker: GpuWorker, path: Path) -> bool:
        """Its line, unless it was cut short from outside: then it is tried again another time."""
        limits = self._plan.limits
        limit_s = limits.judge_s + _OVERTIME_S
        answer = worker.ask("judge", f"{worker.name}.judge", limit_s, problem=str(path))
        if "line" not in answer.more and self._fleet.why_end():
            return False
        line = self._line(path, answer)
        self._failed[worker.name] = self._failed[worker.name] + 1 if line.get("lost") else 0
        self._lines.add(line)
        self._fleet.say(f"{worker.name}  {line_text(line)}")
        return True

    def _line(self, path: Path, answer: Answer) -> Line:
        if (line := answer.more.get("line")) is not None:
            return dict(line)
        cause = f"the worker was lost: {answer.why or f'exit code {answer.exit_code}'}"
        return new_line(name_of(path), cause) | {"lost": True, "seconds": {"all": answer.seconds}}
