"""A run from its first event to its last, new or resumed: picks its parts, joins them, and ends it in order whatever
happens."""

import contextlib
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import assert_never

from kerneltune.agent.attempt import Attempt, Limits, StopReason, search_tiers, tiers_for
from kerneltune.agent.commands.author import Choice, Work, chosen, named, ready, require_price
from kerneltune.agent.commands.session import Session, UntilEnded, ended, fan_out, run_started, session, warn, workshop
from kerneltune.agent.commands.start import NOTHING, Beginning, StartingPoint, Where, checked, found
from kerneltune.agent.controls import Change, Controls
from kerneltune.agent.events import (
    Event,
    LimitsChanged,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopping,
    Warned,
)
from kerneltune.agent.loop import optimize
from kerneltune.agent.models.errors import LlmError
from kerneltune.agent.models.providers import OFFLINE, PROVIDERS, REPLAY
from kerneltune.agent.record.folder import ReceiptBook, alive, is_plain, write_best
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.tracker import AttemptTracker, Emit
from kerneltune.agent.view.live import gpu_samples
from kerneltune.tools.sandbox.workers import Workers
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import GpuLost, TaskError, UsageError
from kerneltune.tools.task.load import find_task

USUAL_ATTEMPTS = 24
SEARCH_ATTEMPTS = 300  # a limit for tiny tasks only: 110 s of screenings at 0.35 s are 310
SEARCH_TIME_S = 110.0  # of 180 s: 16 to 19 s until all is ready on an H200, and what a search judges at its end
LEAST_SEARCH_S = 30.0  # whatever getting ready took
_WHOLE_S, _END_S = 180.0, 55.0  # 45 s of the end, a confirmation under way, start and exit: with 50, 179.0 s in all


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. `best` is its best accepted attempt, and `best_path` the file with that kernel."""

    run_id: str
    task: str
    why: StopReason
    best: Attempt | None = None
    best_path: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 when something was accepted, 1 when nothing was, 130 after Ctrl-C."""
        return 130 if self.why is StopReason.INTERRUPTED else int(self.best_path is None)


@dataclass
class Started:
    """A run before its first attempt: new, or taken up again."""

    event: RunStarted
    attempts: list[Attempt] = field(default_factory=list)
    next_number: int = 1
    events: tuple[Event, ...] = ()  # of the earlier process
    beginning: Beginning = field(default_factory=Beginning)


def run_task(
    task: str,
    settings: Settings,
    environment: Environment,
    show: Emit,
    controls: Controls | None = None,
    warming: Workers | None = None,
) -> RunOutcome:
    """Start a new run on a task, with workers that are `warming` or its own. Raises UsageError before anything is
    written when something is wrong with the task, the settings or the runs directory."""
    began_s, task_file = time.monotonic(), find_task(task)
    limits_of(settings)
    with contextlib.closing(chosen(settings, environment)) as choice, Store.open(settings.runs_dir) as store:
        require_price(choice, settings)
        _replayed(choice, store)
        named_start = checked(settings.from_, store, task_file)
        with workshop(settings, show, warming) as shop, session(shop, task_file) as opened:
            ready_s = time.monotonic() - began_s
            return run_opened(opened, choice, settings, store, show, controls, named_start, ready_s=ready_s)


def run_opened(
    opened: Session,
    choice: Choice,
    settings: Settings,
    store: Store,
    show: Emit,
    controls: Controls | None = None,
    named_start: StartingPoint | None = None,
    *,
    ready_s: float = 0.0,
) -> RunOutcome:
    """A new run on a task that is open; any number may follow one another. What can be asked before a task is opened
    is the caller's: `limits_of`, `require_price`, and `checked` for the start. `ready_s`: what getting ready took.
    Raises UsageError."""
    if choice.replayed and settings.max_attempts is None:
        settings = replace(settings, max_attempts=len(_replayed(choice, store)) or 1)
    settings = budgeted(settings, gpu=opened.gpu is not None, search=choice.is_search, ready_s=ready_s)
    limits = limits_of(settings)
    beginning = _beginning(opened, settings, store, named_start)
    facts = encode(asdict(limits)) | _manner(choice, settings)
    event = run_started(opened, choice.name, choice.why, facts, settings.seed)
    started = Started(event, beginning=beginning)
    with alive(settings.runs_dir / event.run_id):
        return _drive(started, choice, opened, limits, settings, store, show, controls or Controls())


def _replayed(choice: Choice, store: Store) -> list[Attempt]:
    """The attempts that a replay proposes again. Raises StoreError for a run that is not there."""
    return store.attempts(store.find_run(choice.replayed)) if choice.replayed else []


def budgeted(settings: Settings, *, gpu: bool, search: bool, ready_s: float = 0.0) -> Settings:
    """The settings with limits for a new run. A search on a GPU ends within three minutes, final judgements included,
    of which `ready_s` have passed; with a limit of one's own on time, attempts are as many as it has room for."""
    if settings.max_attempts is not None:
        return settings
    if not (gpu and search):
        return replace(settings, max_attempts=USUAL_ATTEMPTS)
    if settings.max_time_s is None:
        time_s = max(LEAST_SEARCH_S, min(SEARCH_TIME_S, round(_WHOLE_S - _END_S - ready_s, 1)))
        return replace(settings, max_attempts=SEARCH_ATTEMPTS, max_time_s=time_s)
    room = int(settings.max_time_s / SEARCH_TIME_S * SEARCH_ATTEMPTS)
    return replace(settings, max_attempts=max(SEARCH_ATTEMPTS, room))


def limits_of(settings: Settings) -> Limits:
    """When a run with these settings ends. Raises UsageError for what no run can keep to."""
    attempts = USUAL_ATTEMPTS if settings.max_attempts is None else settings.max_attempts
    if attempts < 1:
        raise UsageError(f"--max-attempts {attempts}: a run needs at least 1 attempt")
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
        attempts,
        settings.max_time_s,
        settings.patience,
        settings.max_cost_usd,
        settings.target_speedup,
        settings.target_sol,
    )


def _manner(choice: Choice, settings: Settings) -> dict[str, Json]:
    """What the kernels are written in and begun with, and how a model is used, beside the limits."""
    manner: dict[str, Json] = {"language": "ptx"} if settings.language == "ptx" else {}
    manner |= {"from": settings.from_} if settings.from_ else {}
    if choice.model is None:
        return manner | ({} if settings.warm_start else {"warm_start": False})
    return manner | {"strategy": settings.strategy, "effort": settings.effort, "base_url": settings.base_url or None}


def _beginning(opened: Session, settings: Settings, store: Store, named_start: StartingPoint | None) -> Beginning:
    where = Where(opened.file, opened.workshop.arch, opened.gpu.name if opened.gpu else None, settings.language)
    start = found(settings.from_, named_start, store, where, opened.task)
    return Beginning(settings.from_, settings.language, start)


def resume_run(
    run_id: str,
    settings: Settings,
    environment: Environment,
    show: Emit,
    controls: Controls | None = None,
    warming: Workers | None = None,
) -> RunOutcome:
    """Go on with a stored run: same task, seed and limits. Flags change the limits, and what the run has reached gives
    way; but the limit of cost counts all processes and stays until `--max-cost` changes it."""
    with Store.open(settings.runs_dir) as store:
        started = _stored(store, run_id)
        event = started.event
        task_file = find_task(str(event.machine.get("task_path") or event.task))
        if task_file.sha256 != event.task_sha256:
            raise TaskError(f"{task_file.path} has changed since run {event.run_id}; start a new run with --task")
        settings = limits_as_then(_as_then(settings, event), event, started.attempts)
        named_start = None if started.attempts else checked(settings.from_, store, task_file)
        with (
            alive(settings.runs_dir / event.run_id),
            contextlib.closing(named(event.author, event.author_why, settings, environment)) as choice,
        ):
            require_price(choice, settings)
            with workshop(settings, show, warming) as shop, session(shop, task_file) as opened:
                settings = budgeted(settings, gpu=opened.gpu is not None, search=choice.is_search)
                limits = limits_of(settings)
                begun = Beginning(NOTHING, settings.language)  # what it began with is among its attempts
                started.beginning = begun if started.attempts else _beginning(opened, settings, store, named_start)
                return _drive(started, choice, opened, limits, settings, store, show, controls or Controls())


def _as_then(settings: Settings, event: RunStarted) -> Settings:
    """The settings with the manner in which the run was begun."""
    then = {name: value for name in ("strategy", "effort", "base_url", "language") if (value := event.limits.get(name))}
    if settings.base_url:  # a server may have moved
        then.pop("base_url", None)
    if start := event.limits.get("from"):
        then["from_"] = start
    if event.limits.get("warm_start") is False:
        then["warm_start"] = False
    return replace(settings, **then)


def limits_as_then(settings: Settings, event: RunStarted, attempts: list[Attempt]) -> Settings:
    """The settings with the run's limits where none is given, but those that would end it again at once: then it may
    make as many attempts again, and patience or goal are no more."""
    names = ("max_time_s", "patience", "max_cost_usd", "target_speedup", "target_sol")
    then: dict[str, Json] = {
        name: value for name in names if getattr(settings, name) is None and (value := event.limits.get(name))
    }
    most = event.limits.get("max_attempts")
    if settings.max_attempts is None and isinstance(most, int):
        then["max_attempts"] = most if len(attempts) < most else max(USUAL_ATTEMPTS, len(attempts) + most)
    kept = replace(settings, **then)
    match limits_of(kept).why_stop(attempts, 0.0):
        case StopReason.GOAL:
            return replace(kept, target_speedup=settings.target_speedup, target_sol=settings.target_sol)
        case StopReason.PATIENCE:
            return replace(kept, patience=settings.patience)
        case _:
            return kept


def _stored(store: Store, run_id: str) -> Started:
    events = store.load_events(store.find_run(run_id))
    event = next(e for e in events if isinstance(e, RunStarted))
    if not is_plain(event.run_id):  # it came with another machine's record
        raise UsageError(f"run {event.run_id!r} has no folder of its own here; start a new run with --task")
    if event.author.partition(":")[0] not in (*PROVIDERS, OFFLINE, REPLAY):
        raise UsageError(
            f"run {run_id} judged {event.author}; there is nothing to go on with. Give --task to start a run"
        )
    numbers = [e.number for e in events if hasattr(e, "number")]
    return Started(event, store.attempts(event.run_id), max(numbers, default=0) + 1, tuple(events))


def _drive(
    started: Started,
    choice: Choice,
    opened: Session,
    limits: Limits,
    settings: Settings,
    store: Store,
    show: Emit,
    controls: Controls,
) -> RunOutcome:
    """Let the author work; whatever ends it, the end is an event and the best kernel is on disk."""
    event = started.event
    emit = UntilEnded(fan_out(store.write, show))
    for earlier in started.events:
        show(earlier)
    emit(RunResumed(event.run_id, len(started.attempts)) if started.events else event)
    if started.events:
        show(LimitsChanged(event.run_id, limits))  # what counts now; the start says what did
    warn(opened, event.run_id, emit)
    tracker = AttemptTracker(
        event.run_id, opened.task, opened.tools, emit, started.attempts, started.next_number,
        tiers=(search_tiers if choice.is_search else tiers_for)(
            opened.gpu is not None, settings.tier, confirm=settings.confirm
        ),
        keep=ReceiptBook(settings.runs_dir / event.run_id, opened.setting).keep,
        place=opened.workshop.place,
    )  # fmt: skip
    listen(controls, tracker, opened, limits, show)
    work = Work(
        opened, tracker, limits, settings, event.seed, started.events, controls, started.beginning,
        store.earlier(event) if settings.warm_start else [], _replayed(choice, store),
    )  # fmt: skip
    begun_s, why = controls.clock_s, StopReason.FAILED
    try:
        with gpu_samples(opened.gpu, event.run_id, show), ready(choice, work) as run:
            why = optimize(run)
    except KeyboardInterrupt:
        why = StopReason.INTERRUPTED
    except LlmError as error:
        emit(Warned(event.run_id, str(error)))
        why = StopReason.MODEL_ERROR
    except GpuLost as error:
        way = f"once `optimize doctor` finds it again, `optimize --resume {event.run_id}` goes on"
        raise GpuLost(f"{error}. All verdicts so far are stored; {way}") from error
    finally:
        tracker.close()  # the workers end soon, which must not look like failures of the candidates in their hands
        if controls.raises:
            emit(
                Warned(event.run_id, f"limits raised during the run: {_raised(limits, limits.raised(controls.raises))}")
            )
        leader = tracker.best
        path = write_best(settings.runs_dir / event.run_id, leader, event, tracker.task) if leader else None
        tracker.emit(ended(tracker, why, round(controls.clock_s - begun_s, 3), path))
    return RunOutcome(event.run_id, event.task, why, leader, path)


def _raised(before: Limits, after: Limits) -> str:
    told = f"{before.max_attempts} to {after.max_attempts} attempts"
    return told if before.max_time_s is None else f"{told}, {before.max_time_s:g} to {after.max_time_s:g} s"


def listen(controls: Controls, tracker: AttemptTracker, opened: Session, limits: Limits, show: Emit) -> None:
    """Let a person's wishes reach this run, and show that they did."""

    def tell(change: Change) -> None:
        match change:
            case "raised":
                show(LimitsChanged(tracker.run_id, limits.raised(controls.raises)))
            case "stopping":
                show(RunStopping(tracker.run_id))
            case "paused" | "resumed":
                show(RunPaused(tracker.run_id, paused=change == "paused"))
            case _:
                assert_never(change)

    def skip() -> int:
        workers = opened.machine.living()  # before the attempts are marked: one that begins later keeps its worker
        skipped = tracker.skip()
        for worker in workers if skipped else ():
            threading.Thread(target=worker.kill, daemon=True).start()  # waits until the process is gone
        return skipped

    controls.connect(tell, skip)
