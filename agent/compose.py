"""The one place that picks the parts and joins them: workers, tools, author, store, view, loop."""

import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from agent.authors.base import Attempt
from agent.authors.offline.author import OfflineAuthor, through
from agent.loop import Emit, Run, optimize
from agent.policy import Limits, best
from agent.record.best import write_best
from agent.record.events import Event, Progress, RunEnded, RunResumed, RunStarted, Warned
from agent.record.store import Store
from agent.settings import Environment, Settings
from agent.view.choose import choose_view
from agent.view.gpu_line import gpu_line
from agent.view.listing import print_runs, print_tasks
from agent.view.open import close_view, open_view
from agent.view.summary import NextCommand
from tools import machine as machines
from tools.bench import Bench, CpuBench
from tools.codec import Json, decode, encode
from tools.device import GpuInfo, gpu_info
from tools.errors import StoreError, TaskError, UsageError
from tools.gpu_bench import gpu_bench
from tools.gpus import DEFAULT_ARCH
from tools.judge.protocol import Open, Opened
from tools.machine import Machine
from tools.sandbox import Enforced, available
from tools.spec import TaskSpec
from tools.task import TaskFile, builtin_tasks, find_task
from tools.tooling import Tools
from tools.update import UpdateLimits, Updater
from tools.versions import versions
from tools.workers import Worker

DESCRIBE_TIMEOUT_S = 120.0
LOWER_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for the exit code and the closing lines."""

    run_id: str
    task: str
    why: str
    best_path: Path | None

    @property
    def exit_code(self) -> int:
        """0 when something was accepted, 1 when nothing was, 130 after Ctrl-C."""
        return 130 if self.why == "interrupted" else int(self.best_path is None)


def show_run(
    task: str | None, resume: str | None, settings: Settings, environment: Environment, *, json: bool, plain: bool
) -> int:
    """Run or resume, shown in the way that fits whoever looks; returns the exit code."""
    choice = choose_view(
        is_terminal=sys.stdout.isatty(),
        term=environment.term,
        no_color=environment.no_color,
        ci=environment.ci,
        json=json,
        plain=plain,
    )
    if task is not None:
        find_task(task)  # a misspelt task should not clear the screen first
    with open_view(choice) as view:
        if task is not None:
            outcome = run_task(task, settings, environment, view)
        else:
            outcome = resume_run(str(resume), settings, environment, view)
    close_view(choice, view, _next_commands(outcome, settings))
    return outcome.exit_code


def _next_commands(outcome: Outcome, settings: Settings) -> list[NextCommand]:
    commands = [NextCommand(f"optimize --resume {outcome.run_id}", "go on with this run")]
    if outcome.best_path:
        commands.insert(0, NextCommand(f"less {outcome.best_path}", "the best kernel, with what was proved"))
    return [*commands, NextCommand("optimize runs", "all runs"), NextCommand("optimize tasks", "other tasks")]


def list_tasks(*, json: bool) -> int:
    """Print the built-in tasks; describing them takes a worker with torch."""
    with machines.started_base() as machine, machine.trusted("tools.judge.desk:main") as desk:
        specs = [_open_task(desk, task_file) for task_file in builtin_tasks()]
    print_tasks(specs, json=json)
    return 0


def list_runs(runs_dir: Path, *, json: bool) -> int:
    """Print the latest stored runs."""
    with Store.open(runs_dir) as store:
        print_runs(store.runs(), json=json)
    return 0


@dataclass
class Started:
    """A run before its first attempt: new, or taken up again."""

    event: RunStarted
    attempts: list[Attempt] = field(default_factory=list)
    next_number: int = 1
    events: tuple[Event, ...] = ()  # of the earlier process


def run_task(task: str, settings: Settings, environment: Environment, show: Emit) -> Outcome:
    """Start a new run on a task. Raises UsageError before anything is written when something is wrong with the task,
    the settings or the runs directory."""
    task_file = find_task(task)
    limits = _limits(settings)
    with Store.open(settings.runs_dir) as store, _tools(task_file, settings, show) as parts:
        event = _run_started(parts, settings, environment, limits)
        return _drive(Started(event), parts, limits, settings, store, show)


def resume_run(run_id: str, settings: Settings, environment: Environment, show: Emit) -> Outcome:
    """Go on with a stored run: same task, seed and limits (flags may raise the limits)."""
    with Store.open(settings.runs_dir) as store:
        started = _stored(store, run_id)
        event = started.event
        task_file = find_task(str(event.machine.get("task_path") or event.task))
        if task_file.sha256 != event.task_sha256:
            raise TaskError(f"{task_file.path} has changed since run {event.run_id}; start a new run with --task")
        with _tools(task_file, settings, show) as parts:
            return _drive(started, parts, _limits(settings), settings, store, show)


def _stored(store: Store, run_id: str) -> Started:
    events = store.load_events(run_id)
    event = next((e for e in events if isinstance(e, RunStarted)), None)
    if event is None:
        known = ", ".join(store.run_ids()[-5:]) or "none yet"
        raise StoreError(f"no run {run_id!r}; the latest are: {known}")
    numbers = [e.number for e in events if hasattr(e, "number")]
    return Started(event, store.attempts(event.run_id), max(numbers, default=0) + 1, tuple(events))


def _limits(settings: Settings) -> Limits:
    if settings.max_attempts < 1:
        raise UsageError(f"--max-attempts {settings.max_attempts}: a run needs at least 1 attempt")
    if settings.max_time_s is not None and settings.max_time_s <= 0:
        raise UsageError(f"--max-time {settings.max_time_s:g}: give a number of seconds above 0")
    if settings.patience is not None and settings.patience < 1:
        raise UsageError(f"--patience {settings.patience}: give at least 1 attempt")
    if not 1 <= settings.width <= 64:
        raise UsageError(f"--width {settings.width}: give 1 to 64 candidates")
    return Limits(settings.max_attempts, settings.max_time_s, settings.patience)


@dataclass(frozen=True)
class _Parts:
    machine: Machine
    file: TaskFile
    task: TaskSpec
    tools: Tools
    gpu: GpuInfo | None
    sandbox: Enforced
    arch: str


@contextlib.contextmanager
def _tools(task_file: TaskFile, settings: Settings, show: Emit) -> Iterator[_Parts]:
    """Start the workers, load the task, and pick the bench that this machine allows."""
    sandbox = available()
    if not sandbox.confined and not settings.allow_unsandboxed:
        raise UsageError(
            "this machine cannot confine LLM-written code (" + "; ".join(sandbox.notes or ("no Landlock",)) + "). "
            "Pass --allow-unsandboxed to run it anyway, with your files within its reach"
        )
    gpu = gpu_info()
    show(Progress("", "starting", "importing torch and triton, once"))
    with (
        machines.started(allow_unconfined=settings.allow_unsandboxed) as machine,
        machine.trusted("tools.judge.desk:main") as desk,
    ):
        task = _open_task(desk, task_file)
        arch = settings.arch or (f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH)
        updater = Updater(task, arch, machine.tracer, machine.compiler, UpdateLimits(max_variants=16 if gpu else 4))
        with _bench(task_file, task, machine, desk, gpu, updater) as bench:
            tools = Tools(updater, bench, "timing" if gpu else "checking")
            yield _Parts(machine, task_file, task, tools, gpu, sandbox, arch)


def _open_task(desk: Worker, task_file: TaskFile) -> TaskSpec:
    body = desk.call(encode(Open(task_file.name, str(task_file.path))), timeout_s=DESCRIBE_TIMEOUT_S).body
    opened = decode(Opened, body)
    if opened.task is None:
        raise TaskError(opened.problem or f"{task_file.path} cannot be used as a task")
    return opened.task


@contextlib.contextmanager
def _bench(
    task_file: TaskFile, task: TaskSpec, machine: Machine, desk: Worker, gpu: GpuInfo | None, updater: Updater
) -> Iterator[Bench]:
    if gpu is None:
        updater.compile_cases = [task.main.name]  # the small cases are interpreted, not compiled
        yield CpuBench(task, desk, machine.interpreter)
        return
    with gpu_bench(task_file, task, machine) as bench:
        yield bench


def _run_started(parts: _Parts, settings: Settings, environment: Environment, limits: Limits) -> RunStarted:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    machine: dict[str, Json] = {"sandbox": encode(parts.sandbox), "task_path": str(parts.file.path)}
    machine |= {"gpu": encode(parts.gpu)}
    return RunStarted(
        run_id=f"{stamp}-{parts.file.name}-{secrets.token_hex(2)}",
        task=parts.file.name,
        task_sha256=parts.file.sha256,
        task_source=parts.task.source,  # without the held-out cases
        author="offline",
        author_why=_why_offline(settings, environment),
        arch=parts.arch,
        gpu=parts.gpu.name if parts.gpu else None,
        machine=machine,
        limits=encode(asdict(limits)),
        seed=settings.seed,
        versions=versions(),
    )


def _why_offline(settings: Settings, environment: Environment) -> str:
    if settings.model:
        return "--model offline"
    if environment.keys:
        return f"a key for {environment.keys[0]} is set, but LLM authors are not part of this version yet"
    return "neither ANTHROPIC_API_KEY nor OPENAI_API_KEY is set"


def _author(parts: _Parts, lowering: Worker, seed: int) -> OfflineAuthor:
    arch = int(parts.arch.removeprefix("sm_"))

    def call(body: dict[str, Json]) -> dict[str, Json]:
        return lowering.call(body, timeout_s=LOWER_TIMEOUT_S).body

    return OfflineAuthor(through(call), arch=arch, seed=seed)


def _drive(started: Started, parts: _Parts, limits: Limits, settings: Settings, store: Store, show: Emit) -> Outcome:
    """Run the loop; whatever ends it, the end is an event and the best kernel is on disk."""
    event = started.event
    emit = _fan_out(store.write, show)
    for earlier in started.events:
        show(earlier)
    emit(RunResumed(event.run_id, len(started.attempts)) if started.events else event)
    if parts.gpu is None:
        emit(Warned(event.run_id, "no NVIDIA GPU: kernels are compiled and checked, not timed"))
    lowering = parts.machine.trusted("agent.authors.offline.inductor:main")
    author = _author(parts, lowering, event.seed)
    run = Run(
        event.run_id, parts.task, author, parts.tools, limits, emit, settings.width,
        started.attempts, started.next_number,
    )  # fmt: skip
    why = "failed"
    try:
        with gpu_line(parts.gpu, event.run_id, show):
            why = optimize(run)
    except KeyboardInterrupt:
        why = "interrupted"
    finally:
        lowering.close()
        for problem in dict.fromkeys(author.problems):
            emit(Warned(event.run_id, problem))
        path = _finish(run, why, event, settings, emit)
    return Outcome(event.run_id, event.task, why, path)


def _fan_out(*sinks: Callable[[Event], None]) -> Emit:
    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit


def _finish(run: Run, why: str, event: RunStarted, settings: Settings, emit: Emit) -> Path | None:
    leader = best(run.attempts)
    path = write_best(settings.runs_dir / event.run_id, leader, event, run.task) if leader else None
    emit(
        RunEnded(
            run.run_id,
            why,
            attempts=len(run.attempts),
            accepted=sum(a.verdict.accepted for a in run.attempts),
            best_attempt_id=leader.attempt_id if leader else None,
            best_path=str(path) if path else None,
            elapsed_s=round(time.monotonic() - run.started, 3),
        )
    )
    return path
