"""One problem of KernelBench as far as it needs no GPU: described, lowered, first candidates traced and compiled."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent.attempt import Proposal
from agent.authors.offline.author import OfflineAuthor, through
from agent.compose.lowering import Lowering
from agent.compose.session import open_task
from benchmarks.kernelbench_lines import name_of, new_line
from tools.children import Children
from tools.codec import Json
from tools.device import GpuInfo
from tools.errors import KerneltuneError, TaskError
from tools.gpu_bench import EARLY_JUDGE, GpuBench, waiting_judge
from tools.gpus import DEFAULT_ARCH, arch_number
from tools.machine import Machine
from tools.spec import TaskSpec
from tools.task import TaskFile, find_task
from tools.update import Update, UpdateLimits, Updater
from tools.workers import Worker

OTHER_SETTING = "another setting"
PROPOSALS = 12  # more than any task has sketches, so that the first of each kind is among them
_MOST_VARIANTS = 4
Held = TypeVar("Held")
_parsing = threading.Lock()  # two threads must not parse Python at a time: CPython 3.11 then fails in one of them


@dataclass(frozen=True)
class Limits:
    """Of one problem: seconds beside the GPU and on it; how many candidates are judged, and how many at `most`, when
    none of those is right, or none is fast and the GPU has worked on the problem for less than `share_s`."""

    prepare_s: float = 120.0
    judge_s: float = 40.0
    attempts: int = 2
    most: int = 6
    share_s: float = 12.0


@dataclass(frozen=True)
class Place:
    """Where problems are judged, within which limits, and by which judge on a GPU."""

    machine: Machine
    limits: Limits
    gpu: GpuInfo | None = None
    judge: str = EARLY_JUDGE

    @property
    def arch(self) -> str:
        """What candidates are compiled for."""
        return f"sm_{self.gpu.arch}" if self.gpu else DEFAULT_ARCH


class Deadline:
    """Ends the workers of one problem when its time is up; whoever waits for one of them is told that it died."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._children = Children()
        self._ends: list[Callable[[], None]] = []
        self._timer = threading.Timer(seconds, self.now)
        self._timer.daemon = True

    @property
    def left_s(self) -> float:
        """Seconds that remain; at least a tenth, so that a call with it is a call."""
        return max(0.1, self._end_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end_s

    def of(self, new: Callable[[], Worker]) -> Callable[[], Worker]:
        """The same factory; what it makes ends with the time."""
        remembered = self._children.of(new)

        def make() -> Worker:
            worker = remembered()
            if self.over:
                worker.kill()
            return worker

        return make

    def kills(self, end: Callable[[], None]) -> None:
        """Call that, too, when the time is up."""
        self._ends.append(end)
        if self.over:
            end()

    def now(self) -> None:
        """The time is up."""
        self._end_s = min(self._end_s, time.monotonic())
        for end in (*(worker.kill for worker in self._children.now()), *self._ends):
            end()

    def __enter__(self) -> "Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class AsItComes(Lowering):
    """Only Inductor's kernels as they come: its other settings are the same kernels launched otherwise."""

    def call(self, body: dict[str, Json], timeout_s: float) -> dict[str, Json]:
        """The same for a request without settings; a refusal for others."""
        return {"error": OTHER_SETTING} if body["overrides"].get("config") else super().call(body, timeout_s)


@dataclass(frozen=True)
class OpenedProblem:
    """A problem's file, and what the judge's desk, which knows its answers, says of it."""

    file: TaskFile
    task: TaskSpec
    desk: Worker


@dataclass(frozen=True)
class Candidate:
    """What was proposed, and what came of it but for a verdict."""

    opened: OpenedProblem
    proposal: Proposal
    update: Update


class Problem:
    """From its file to its first candidates, by `prepare`, in a thread of its own; judged in another one meanwhile.
    Close it in the end, from any thread. `tell`: called when there is something to judge, or it is known why not."""

    def __init__(self, path: Path, place: Place) -> None:
        self.path, self.name, self.line = path, name_of(path), new_line(name_of(path))
        self.waiting: GpuBench | None = None  # a judge that nobody has asked anything yet
        self.ready = threading.Event()
        self._place, self._held, self._lock = place, contextlib.ExitStack(), threading.Lock()
        self._made: queue.SimpleQueue[Candidate | None] = queue.SimpleQueue()
        self._enough, self._deadline = threading.Event(), Deadline(place.limits.prepare_s)

    def prepare(self, lowering: Lowering, tell: Callable[[], None]) -> None:
        """Describe it, have it lowered, trace and compile candidates until there are enough."""
        started_s = time.monotonic()
        limit_s = self._place.limits.prepare_s
        self._deadline = Deadline(limit_s)
        with self._deadline as deadline:
            try:
                for candidate in self._candidates(lowering, deadline):
                    self.line.setdefault("prepared_s", round(time.monotonic() - started_s, 1))
                    self._made.put(candidate)
                    self._is_ready(tell)
            except KerneltuneError as error:
                late = f"more than {limit_s:g} s" if deadline.over else ""
                told = late or f"{type(error).__name__}: {error}"
                self.line["cause"] = f"after {self.line['stage'] or 'reading'}: {told}"
            except Exception as error:  # noqa: BLE001  a fault of ours in one problem must not end the others
                self.line["cause"] = f"internal failure: {type(error).__name__}: {error}"
            finally:
                self.line.setdefault("prepared_s", round(time.monotonic() - started_s, 1))
                self._made.put(None)
                self._is_ready(tell)

    def candidate(self, timeout_s: float) -> Candidate | None:
        """The next one; None when there are no more, or none has come by then."""
        with contextlib.suppress(queue.Empty):
            return self._made.get(timeout=timeout_s)
        return None

    def close(self) -> None:
        """No more candidates are wanted; whatever still runs for it ends."""
        self._enough.set()
        self._deadline.now()
        with self._lock:
            self._held.close()

    def _is_ready(self, tell: Callable[[], None]) -> None:
        if not self.ready.is_set():
            self.ready.set()
            tell()

    def _candidates(self, lowering: Lowering, deadline: Deadline) -> Iterator[Candidate]:
        opened = self._described(deadline)
        proposals, problems = proposed(lowering, opened.task, self._place.arch, deadline)
        self.line |= {"problems": problems, "sketches": list(dict.fromkeys(p.params["sketch"] for p in proposals))}
        if not proposals and deadline.over:
            raise TaskError("it took too long")
        if not proposals:
            self.line["cause"] = (problems or ["no expert fits, and Inductor adds nothing"])[0]
            return
        self.line["stage"] = "proposed"
        if self._place.gpu:
            self.waiting = self._hold(waiting_judge(self._place.machine, self._place.judge))
        for proposal in worth_trying(proposals, self._place.limits.most):
            if self._enough.is_set():
                return
            update = self._updated(opened.task, proposal, deadline)
            if deadline.over and update.failure:  # its workers were killed in the middle
                raise TaskError("it took too long")
            yield Candidate(opened, proposal, update)

    def _described(self, deadline: Deadline) -> OpenedProblem:
        desk = self._hold(self._place.machine.trusted("tools.judge.desk:main"))
        with _parsing:
            file = find_task(str(self.path))
        task, _ = open_task(desk, file, deadline.left_s)
        cases = [case.name for case in task.cases if case.runs_on_cpu or self._place.gpu]
        self.line |= {"stage": "described", "cases": cases}
        return OpenedProblem(file, task, desk)

    def _updated(self, task: TaskSpec, proposal: Proposal, deadline: Deadline) -> Update:
        machine, limits = self._place.machine, UpdateLimits(deadline.left_s, deadline.left_s, _MOST_VARIANTS)
        tracer, compiler = deadline.of(machine.tracer), deadline.of(machine.compiler)
        updater = Updater(task, self._place.arch, tracer, compiler, limits)
        if self._place.gpu is None:
            updater.compile_cases = [task.main.name]  # the small cases are interpreted, not compiled
        return updater.update(proposal.source)

    def _hold(self, manager: contextlib.AbstractContextManager[Held]) -> Held:
        """Until this is closed, or not at all when it has been."""
        with self._lock:
            if self._enough.is_set():
                raise TaskError("nobody wants it any more")
            return self._held.enter_context(manager)


def proposed(lowering: Lowering, task: TaskSpec, arch: str, deadline: Deadline) -> tuple[list[Proposal], list[str]]:
    """What the offline author would begin with, and why Inductor's kernels are missing where they are."""

    def call(body: dict[str, Json]) -> dict[str, Json]:
        _parsing.release()  # others go on while Inductor's process works
        try:
            return lowering.call(body, deadline.left_s)
        finally:
            _parsing.acquire()

    author = OfflineAuthor(through(call), arch=arch_number(arch))
    with _parsing:
        proposals = author.propose(task, [], PROPOSALS)
    return proposals, [problem for problem in author.problems if OTHER_SETTING not in problem]


def worth_trying(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """Inductor's first and the experts' first, then what further sketches begin with, then other points of them all."""
    kinds: dict[bool, Proposal] = {}
    sketches: dict[Json, Proposal] = {}
    for proposal in proposals:
        kinds.setdefault(str(proposal.params["sketch"]).startswith("inductor"), proposal)
        sketches.setdefault(proposal.params["sketch"], proposal)
    chosen = list(kinds.values())
    chosen += [p for p in sketches.values() if p not in chosen]
    return [*chosen, *(p for p in proposals if p not in chosen)][:count]
