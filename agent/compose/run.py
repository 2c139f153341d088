"""`optimize --task` and `--resume`: picks the parts of a run, joins them, and ends it in order whatever happens."""

import contextlib
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from agent.authors.base import Attempt
from agent.compose.choice import OFFLINE, Choice, chosen, named, require_price
from agent.compose.session import Session, session, workshop
from agent.compose.writers import Work, writing
from agent.llm.choose import PROVIDERS
from agent.llm.errors import LlmError
from agent.policy import Limits, tiers_for
from agent.record.alive import alive
from agent.record.best import write_best
from agent.record.events import Event, RunEnded, RunResumed, RunStarted, Warned
from agent.record.receipts import ReceiptBook
from agent.record.store import Store
from agent.settings import Environment, Settings
from agent.view.choose import choose_view
from agent.view.gpu_line import gpu_line
from agent.view.open import close_view, open_view
from agent.view.summary import NextCommand
from agent.workbench import Emit, Workbench
from tools.codec import Json, encode
from tools.errors import TaskError, UsageError
from tools.task import find_task


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for the exit code and the closing lines."""

    run_id: str
    task: str
    why: str
    best_path: Path | None
    best_id: str | None = None

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
    close_view(choice, view, _next_commands(outcome))
    if json and outcome.why == "interrupted":  # the other views end in what to type next
        print(f"optimize: interrupted; go on with: optimize --resume {outcome.run_id}", file=sys.stderr)
    return outcome.exit_code


def _next_commands(outcome: Outcome) -> list[NextCommand]:
    resume = NextCommand(f"optimize --resume {outcome.run_id}", "go on with this run")
    commands = [] if outcome.why == "interrupted" else [resume]
    if outcome.best_path:
        commands.insert(0, NextCommand(f"less {outcome.best_path}", "the best kernel, with what was proved"))
        commands.insert(1, NextCommand(f"optimize verify {outcome.best_id}", "judge it again, here or elsewhere"))
    if outcome.why == "interrupted":
        commands.insert(0, resume)
    return [*commands, NextCommand("optimize runs", "all runs"), NextCommand("optimize tasks", "other tasks")]


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
    with contextlib.closing(chosen(settings, environment)) as choice, Store.open(settings.runs_dir) as store:
        require_price(choice, settings)
        with workshop(settings, show) as shop, session(shop, task_file) as opened:
            facts = encode(asdict(limits)) | _manner(choice, settings)
            event = run_started(opened, choice.name, choice.why, facts, settings.seed)
            with alive(settings.runs_dir / event.run_id):
                return _drive(Started(event), choice, opened, limits, settings, store, show)


def _manner(choice: Choice, settings: Settings) -> dict[str, Json]:
    """How a model is used, beside the limits."""
    if choice.model is None:
        return {}
    return {"strategy": settings.strategy, "effort": settings.effort, "base_url": settings.base_url or None}


def resume_run(run_id: str, settings: Settings, environment: Environment, show: Emit) -> Outcome:
    """Go on with a stored run: same task, seed and limits (flags may raise the limits)."""
    with Store.open(settings.runs_dir) as store:
        started = _stored(store, run_id)
        event = started.event
        task_file = find_task(str(event.machine.get("task_path") or event.task))
        if task_file.sha256 != event.task_sha256:
            raise TaskError(f"{task_file.path} has changed since run {event.run_id}; start a new run with --task")
        settings = _as_then(settings, event)
        with (
            alive(settings.runs_dir / event.run_id),
            contextlib.closing(named(event.author, event.author_why, settings, environment)) as choice,
        ):
            require_price(choice, settings)
            with workshop(settings, show) as shop, session(shop, task_file) as opened:
                return _drive(started, choice, opened, _limits(settings), settings, store, show)


def _as_then(settings: Settings, event: RunStarted) -> Settings:
    """The settings with the manner in which the run was begun."""
    then = {name: value for name in ("strategy", "effort", "base_url") if (value := event.limits.get(name))}
    if settings.base_url:  # a server may have moved
        del then["base_url"]
    return replace(settings, **then)


def _stored(store: Store, run_id: str) -> Started:
    events = store.load_events(store.find_run(run_id))
    event = next(e for e in events if isinstance(e, RunStarted))
    if event.author != OFFLINE and event.author.partition(":")[0] not in PROVIDERS:
        raise UsageError(
            f"run {run_id} judged {event.author}; there is nothing to go on with. Give --task to start a run"
        )
    numbers = [e.number for e in events if hasattr(e, "number")]
    return Started(event, store.attempts(event.run_id), max(numbers, default=0) + 1, tuple(events))


def _limits(settings: Settings) -> Limits:
    if settings.max_attempts < 1:
        raise UsageError(f"--max-attempts {settings.max_attempts}: a run needs at least 1 attempt")
    if settings.max_time_s is not None and not settings.max_time_s > 0:
        raise UsageError(f"--max-time {settings.max_time_s:g}: give a number of seconds above 0")
    if settings.patience is not None and settings.patience < 1:
        raise UsageError(f"--patience {settings.patience}: give at least 1 attempt")
    for flag, value in (
        ("--max-cost", settings.max_cost_usd),
        ("--target-speedup", settings.target_speedup),
        ("--target-sol", settings.target_sol),
    ):
        if value is not None and not value > 0:
            raise UsageError(f"{flag} {value:g}: give a number above 0")
    return Limits(
        settings.max_attempts,
        settings.max_time_s,
        settings.patience,
        settings.max_cost_usd,
        settings.target_speedup,
        settings.target_sol,
    )


def run_started(opened: Session, author: str, why: str, limits: dict[str, Json], seed: int = 0) -> RunStarted:
    """The first event of a run of whatever kind."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    place = opened.workshop.place
    return RunStarted(
        run_id=f"{stamp}-{opened.file.name}-{secrets.token_hex(2)}",
        task=opened.file.name,
        task_sha256=opened.file.sha256,
        task_source=opened.task.source,  # without the held-out cases
        author=author,
        author_why=why,
        arch=opened.workshop.arch,
        gpu=place.gpu,
        machine=place.machine | {"task_path": str(opened.file.path)},
        limits=limits,
        seed=seed,
        versions=place.versions,
    )


def _drive(
    started: Started, choice: Choice, opened: Session, limits: Limits, settings: Settings, store: Store, show: Emit
) -> Outcome:
    """Let the author work; whatever ends it, the end is an event and the best kernel is on disk."""
    event = started.event
    emit = fan_out(store.write, show)
    for earlier in started.events:
        show(earlier)
    emit(RunResumed(event.run_id, len(started.attempts)) if started.events else event)
    warn(opened, event.run_id, emit)
    bench = Workbench(
        event.run_id, opened.task, opened.tools, emit, started.attempts, started.next_number,
        tiers=tiers_for(opened.gpu is not None, settings.tier, confirm=settings.confirm),
        keep=ReceiptBook(settings.runs_dir / event.run_id, opened.setting).keep,
        place=opened.workshop.place,
    )  # fmt: skip
    begun, why = time.monotonic(), "failed"
    try:
        with (
            gpu_line(opened.gpu, event.run_id, show),
            writing(choice, Work(opened, bench, limits, settings, event.seed, started.events)) as drive,
        ):
            why = drive()
    except KeyboardInterrupt:
        why = "interrupted"
    except LlmError as error:
        emit(Warned(event.run_id, str(error)))
        why = "model_error"
    finally:
        outcome = _finish(bench, why, event, settings, round(time.monotonic() - begun, 3))
    return outcome


def warn(opened: Session, run_id: str, emit: Emit) -> None:
    """Say what the user must know of this machine and this task."""
    for text in opened.warnings:
        emit(Warned(run_id, text))
    if opened.gpu is None:
        emit(Warned(run_id, "no NVIDIA GPU: kernels are compiled and checked, not timed"))


def fan_out(*sinks: Callable[[Event], None]) -> Emit:
    """One sink that hands each event to all, in this order."""

    def emit(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return emit


def _finish(bench: Workbench, why: str, event: RunStarted, settings: Settings, elapsed_s: float) -> Outcome:
    leader = bench.best
    path = write_best(settings.runs_dir / event.run_id, leader, event, bench.task) if leader else None
    best_id = leader.attempt_id if leader else None
    bench.emit(
        RunEnded(
            event.run_id,
            why,
            attempts=len(bench.attempts),
            accepted=sum(a.verdict.accepted for a in bench.attempts),
            best_attempt_id=best_id,
            best_path=str(path) if path else None,
            elapsed_s=elapsed_s,
        )
    )
    return Outcome(event.run_id, event.task, why, path, best_id)
