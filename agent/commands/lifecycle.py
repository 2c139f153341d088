"""A run from its first event to its last, new or resumed: picks its parts, joins them, and ends it in order whatever
happens."""

import contextlib
import functools
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import assert_never

from kerneltune.agent.attempt import (
    Action,
    ActionResult,
    Actions,
    Attempt,
    Author,
    BenchAction,
    Change,
    Controls,
    Lesson,
    Limits,
    Proposal,
    RunStart,
    SearchPoint,
    StopReason,
    UpdateAction,
    best,
    point_of,
    search_tiers,
    tiers_for,
)
from kerneltune.agent.authors.llm.author import LlmAuthor, context_limit, reply_limit
from kerneltune.agent.authors.llm.prompts import RunPrompts, relevant
from kerneltune.agent.authors.search.author import Lower, OfflineAuthor, lowered, through
from kerneltune.agent.authors.search.experts import own_sketch
from kerneltune.agent.authors.search.neighbours import Sketch
from kerneltune.agent.commands.session import (
    USUAL_WIDTH,
    OpenTask,
    Session,
    ceilings_file,
    ended,
    opened_alone,
    run_started,
    stored_task,
    warn,
)
from kerneltune.agent.events import (
    Emit,
    Event,
    LimitsChanged,
    Note,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopping,
    Said,
    UntilEnded,
    Warned,
    attempts_of,
    fan_out,
)
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.models.providers import CLIENTS, KEY_VARIABLES, OFFLINE, PROVIDERS, REPLAY, open_model, parse
from kerneltune.agent.models.scripted import ScriptedModel
from kerneltune.agent.models.types import KeyRejected, LanguageModel, LlmError, NoSuchModel, OutOfCredit, Usage
from kerneltune.agent.record.folder import alive, is_plain, write_best
from kerneltune.agent.record.query import Filter, RunSummary
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Language, Settings
from kerneltune.agent.tracker import AttemptTracker, is_scored
from kerneltune.agent.view.live import gpu_samples
from kerneltune.tools.bench import GpuBench
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.languages.ptx.candidate import CannotSay, guessed_candidate
from kerneltune.tools.languages.ptx.ir import PtxError
from kerneltune.tools.languages.ptx.loader import PtxLaunchError
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.sandbox.workers import Workers
from kerneltune.tools.schema.codec import Json, encode, plural, read_file, shell_word
from kerneltune.tools.schema.errors import GpuLost, UsageError
from kerneltune.tools.schema.gpus import arch_number, load_ceilings
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import TaskFile, find_task
from kerneltune.tools.update import Update

# Where a run starts --------------------------------------------------------------------------------------------------


NOTHING, BEST = "nothing", "best"
TRITON = "triton"
SEARCHED = (TRITON, "ptx")  # what the offline author writes
MOST_TRIES = 6  # of the offline author, until one of its kernels is accepted
_PTX_RATIONALE = "the same kernels as PTX: what Triton made of them, with names; other shapes go through Triton"
_SUFFIXES = (".py", ".ptx")
_MOST_RUNS = 200  # whose best are compared


@dataclass(frozen=True)
class StartingPoint:
    """A candidate that was there before the run. `name`: what a person calls it; `parent_id`: the stored attempt that
    it is; `is_ptx`: the text of a .ptx file, for which host code has to be guessed."""

    source: str
    name: str
    parent_id: str | None = None
    is_ptx: bool = False

    def as_candidate(self, task: TaskSpec) -> "StartingPoint":
        """The same as a Python file that can be judged. Raises UsageError for a text that is no PTX."""
        if not self.is_ptx:
            return self
        try:
            return replace(self, source=guessed_candidate(self.source, task, Path(self.name).name), is_ptx=False)
        except (PtxError, PtxLaunchError) as error:
            raise UsageError(f"--from {self.name}: {error}") from error


@dataclass(frozen=True)
class Where:
    """What a stored attempt has to fit: the task, and the machine that would time it."""

    task: TaskFile
    arch: str
    gpu: str | None
    language: Language


def checked(text: str, store: Store, task: TaskFile) -> StartingPoint | None:
    """What --from names, unless that is `best` or nothing; asked before anything is started. Raises UsageError and
    StoreError."""
    if text in ("", NOTHING, BEST):
        return None
    path = Path(os.path.expanduser(text))  # a ~ of nobody stays, where Path.expanduser would raise
    if path.suffix in _SUFFIXES or os.path.isfile(path):  # where Path.is_file raises for a name of 300 letters
        given = _file(path)
        own_sketch(given.name, given.source)  # what it says of a search is wrong before anything is started
        return given
    run, attempt = store.find_attempt(text)
    if run.task_sha256 != task.sha256:
        raise UsageError(
            f"--from {attempt.attempt_id} is an attempt on another task ({run.task}"
            f"{', an earlier state of its file' if run.task == task.name else ''})"
        )
    if not attempt.source.strip():
        raise UsageError(f"--from {attempt.attempt_id} has no source")
    return StartingPoint(attempt.source, attempt.attempt_id, attempt.attempt_id)


def found(text: str, named: StartingPoint | None, store: Store, where: Where, task: TaskSpec) -> StartingPoint | None:
    """What the run starts from: what was named, or the best stored where that was asked for, or PTX needs one. Raises
    UsageError where the best was asked for and there is none."""
    if named is not None:
        return named.as_candidate(task)
    if text == NOTHING or (not text and where.language != "ptx"):
        return None
    best_one = best_stored(store, where)
    if best_one is None and text == BEST:
        raise UsageError("--from best: no accepted attempt on this task and GPU is stored; leave --from out")
    return best_one


def best_stored(store: Store, where: Where) -> StartingPoint | None:
    """The best attempt on this task and this GPU that any run has stored; None where there is none. Without a GPU: on
    any GPU of the architecture, and of those that nothing timed only if there are no others. A run starts from its own
    language or from Triton."""
    fit = [a for a in _leaders(store, where) if language_of(a.source) in (TRITON, where.language)]
    timed = [a for a in fit if a.timing is not None]
    leader = best(timed or fit)
    return StartingPoint(leader.source, leader.attempt_id, leader.attempt_id) if leader else None


def _leaders(store: Store, where: Where) -> Iterator[Attempt]:
    """The accepted attempts of runs that count, without those that a verification refuted."""
    try:
        runs = store.runs(Filter(task=where.task.name, verdict="accepted", limit=_MOST_RUNS))
    except UsageError:  # no run of this task
        return
    for run in runs:
        if _counts(run, where) and store.load_run(run.run_id).task_sha256 == where.task.sha256:
            yield from (a for a in store.attempts(run.run_id) if a.stands)


def _counts(run: RunSummary, where: Where) -> bool:
    return run.arch == where.arch and (where.gpu is None or run.gpu == where.gpu)


def _file(path: Path) -> StartingPoint:
    try:
        return StartingPoint(read_file(path).decode(), str(path), is_ptx=path.suffix == ".ptx")
    except UnicodeDecodeError as error:
        raise UsageError(f"--from {path}: it is no UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"--from {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Beginning:
    """What a run begins with. `wanted` is --from, `start` what it was found to mean."""

    wanted: str = ""
    language: Language = TRITON
    start: StartingPoint | None = None


def start_of(tracker: AttemptTracker) -> Attempt | None:
    """The attempt that the work begins at: the last accepted one of the start, else the last one, if there is one."""
    made = [a for a in tracker.attempts if isinstance(a.origin, RunStart)]
    return next((a for a in reversed(made) if a.accepted), made[-1] if made else None)


def start_actions(beginning: Beginning, tracker: AttemptTracker, offline: Callable[[], Author]) -> Actions:
    """Make the attempts of the start, as far as the limits go. PTX without a start begins with the first kernel of the
    offline author that is accepted."""
    if (earlier := start_of(tracker)) is not None:
        if beginning.language == "ptx" and _is_all(earlier, tracker):
            yield ()
            yield from _as_ptx(earlier, tracker.tools.updater.update(earlier.source), tracker)
        return None
    if beginning.start is not None:
        start = beginning.start
        its = own_sketch(start.name, start.source) if start.parent_id is None else None  # a person's file
        origin = RunStart(beginning.wanted or BEST, point=SearchPoint(its.name, its.params) if its else None)
        proposal = Proposal(start.source, f"the start: {start.name}", start.parent_id, origin)
        made = yield from _made(tracker, proposal)
    elif beginning.language == "ptx" and not beginning.wanted:
        made = yield from _first_offline(tracker, offline())
    else:
        return None
    if made and beginning.language == "ptx":
        yield ()
        yield from _as_ptx(*made, tracker)
    return None


_Made = Generator[Sequence[Action], Sequence[ActionResult], tuple[Attempt, Update] | None]


def _is_all(start: Attempt, tracker: AttemptTracker) -> bool:
    """Whether the process that made the start ended before it said it in PTX."""
    origin = start.origin
    return tracker.attempts[-1] is start and isinstance(origin, RunStart) and not origin.as_ptx


def _first_offline(tracker: AttemptTracker, author: Author) -> _Made:
    """The first kernel of the offline author that is accepted."""
    for _ in range(MOST_TRIES):
        yield ()
        proposals = author.propose(tracker.task, tracker.attempts, 1)
        if not proposals or not isinstance(proposal := proposals[0], Proposal):
            return None
        origin = RunStart("offline", point=point_of(proposal.origin))
        made = yield from _made(tracker, Proposal(proposal.source, proposal.rationale, proposal.parent_id, origin))
        if made and made[0].accepted:
            return made
    return None


def _made(tracker: AttemptTracker, proposal: Proposal) -> _Made:
    """The candidate as it was judged, and what it was compiled to; None where a person skipped it."""
    (draft,) = yield [UpdateAction(proposal)]
    if not isinstance(draft, Attempt) or draft.update is None:
        return None
    if draft.update.failure is None:
        yield [BenchAction(draft)]
    attempt = tracker.find(draft.attempt_id)
    return (attempt, draft.update) if attempt else None


def _as_ptx(attempt: Attempt, update: Update, tracker: AttemptTracker) -> Actions:
    """The kernels of an accepted attempt as PTX, an attempt of its own; a warning where they cannot be said."""
    source = attempt.source
    if language_of(source) == "ptx" or not attempt.accepted:
        return None
    try:
        ptx = tracker.tools.updater.as_ptx(source, update, attempt.judged.variant or "default")
    except CannotSay as error:
        tracker.emit(Warned(tracker.run_id, f"attempt {attempt.number} cannot be the start in PTX: {error}"))
        return None
    assert isinstance(attempt.origin, RunStart)
    origin = RunStart(attempt.origin.given, as_ptx=True)
    yield from _made(tracker, Proposal(ptx, _PTX_RATIONALE, attempt.attempt_id, origin))
    return None


class ReplayAuthor:
    """`replayed`: attempts of the earlier run. Those whose source this run has already, as a resumed one may, are not
    proposed again."""

    def __init__(self, tracker: AttemptTracker, name: str, replayed: Sequence[Attempt]) -> None:
        self.name, self._tracker = name, tracker
        done = {attempt.source: attempt.attempt_id for attempt in (*tracker.attempts, *tracker.left)}
        self._ids = {a.attempt_id: done[a.source] for a in replayed if a.source in done}
        self._left = sorted((a for a in replayed if a.attempt_id not in self._ids), key=lambda a: a.number)

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """The next ones, with this run's numbers for their parents. The loop numbers them in this order."""
        taken, self._left = self._left[:width], self._left[width:]
        for number, attempt in enumerate(taken, self._tracker.next_number):
            self._ids[attempt.attempt_id] = f"{self._tracker.run_id}/{number}"
        return [self._again(attempt) for attempt in taken]

    def _again(self, made: Attempt) -> Proposal:
        """In words of this run: its parent there, and no conversation, which was the other run's."""
        parent_id, origin = self._ids.get(made.parent_id or ""), point_of(made.origin)
        claim = (made.hypothesis, made.prediction, made.predicted_speedup)
        return Proposal(made.source, made.rationale, parent_id, origin, *claim)


# Who writes the kernels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """`model` is None for the offline author and for a replay. `notes`: what a person should know of the model;
    `replayed`: the run whose attempts are proposed again."""

    name: str
    why: str
    model: LanguageModel | None = None
    notes: tuple[str, ...] = ()
    replayed: str = ""

    @property
    def is_search(self) -> bool:
        """Whether the offline author searches."""
        return self.model is None and not self.replayed

    def close(self) -> None:
        """Let go of connections."""
        if self.model is not None:
            self.model.close()


def chosen(settings: Settings, environment: Environment) -> Choice:
    """The author of a new run. Raises UsageError for a --model that nobody knows, LlmError for one that is no use."""
    if settings.model:
        return named(settings.model, "--model", settings, environment)
    if not environment.keys:
        return named(OFFLINE, f"neither {' nor '.join(KEY_VARIABLES.values())} is set", settings, environment)
    provider = environment.keys[0]
    return named(provider, f"{KEY_VARIABLES[provider]} is set", settings, environment)


def named(name: str, why: str, settings: Settings, environment: Environment) -> Choice:
    """The author of that name, which is asked about itself, so that a key or a name that is wrong shows at once."""
    if name == OFFLINE:
        if settings.language not in SEARCHED:
            raise UsageError(
                f"--language {settings.language} wants a model: name one with --model, or set "
                f"{' or '.join(KEY_VARIABLES.values())}; the search ({OFFLINE}) writes {' and '.join(SEARCHED)}"
            )
        return Choice(OFFLINE, why)
    if name.startswith(f"{REPLAY}:"):
        return Choice(name, why, replayed=name.removeprefix(f"{REPLAY}:"))
    parse(name)
    keys = {"chat": environment.server_key} if environment.server_key else {}
    model = open_model(
        name, keys=keys, base_url=settings.base_url or None, effort=settings.effort, retry_s=settings.retry_time_s
    )
    try:
        facts = model.facts()
    except BaseException:
        model.close()
        raise
    provider = name.partition(":")[0]
    known = name if provider == "scripted" else f"{provider}:{facts.model}"
    notes = facts.notes
    if settings.logprobs and provider != "chat":
        notes += ("--logprobs does nothing: only servers of chat: models tell their tokens",)
    return Choice(known, why, model, notes)


def require_price(choice: Choice, settings: Settings) -> None:
    """A limit on cost needs a price. Raises UsageError."""
    if choice.model is None or settings.max_cost_usd is None:
        return
    if choice.model.price_usd(Usage(1_000, 1_000)) is None:
        raise UsageError(
            f"--max-cost {settings.max_cost_usd:g}: the price of {choice.name} is unknown, so it cannot be enforced; "
            "limit the run by --max-attempts or --max-time instead"
        )


@dataclass
class Started:
    """A run before its first attempt, new or taken up again, and all that it works with. `attempts`, `next_number` and
    `events`: of earlier processes."""

    event: RunStarted
    choice: Choice
    opened: Session
    limits: Limits
    settings: Settings
    store: Store
    show: Emit
    controls: Controls
    beginning: Beginning
    attempts: list[Attempt] = field(default_factory=list)
    next_number: int = 1
    events: tuple[Event, ...] = ()


@contextlib.contextmanager
def ready(started: Started, tracker: AttemptTracker) -> Iterator[Run]:
    """The run with its author; afterwards what that holds is let go of, and its problems are told."""
    choice, width = started.choice, started.opened.workshop.width
    with contextlib.ExitStack() as stack:
        offline = functools.cache(lambda: stack.enter_context(_offline_author(started, tracker)))
        if choice.model is not None:
            author: Author = _llm_author(choice.model, started, tracker)
            width = started.settings.width or USUAL_WIDTH  # conversations are bound by the model, not by cores
        elif choice.replayed:
            author = ReplayAuthor(tracker, choice.name, _replayed(choice, started.store))
        else:
            author = offline()
        start = start_actions(started.beginning, tracker, offline)
        run = Run(tracker, author, started.limits, width, started.controls, start=start)
        if isinstance(author, LlmAuthor):
            author.remaining = run.remaining
        try:
            yield run
        except KeyboardInterrupt:
            choice.close()  # wakes those that wait for a reply
            raise
        finally:
            run.halted.set()


@contextlib.contextmanager
def _offline_author(started: Started, tracker: AttemptTracker) -> Iterator[OfflineAuthor]:
    settings, workshop, updater = started.settings, started.opened.workshop, started.opened.tools.updater

    def told(words: str) -> None:
        tracker.emit(Note(tracker.run_id, "search", words))

    author = OfflineAuthor(
        _lower(started.opened),
        arch_number(workshop.arch),
        started.event.seed,
        started.store.earlier(started.event) if settings.warm_start else [],
        told,
        updater.ptx_of if started.choice.model is None and settings.language == "ptx" else None,
        lambda: _own_of(tracker),
        algebra=settings.algebra,
        emulation=settings.emulation,
    )
    try:
        yield author
    finally:
        for problem in dict.fromkeys(author.problems):
            tracker.emit(Warned(tracker.run_id, problem))


def _own_of(tracker: AttemptTracker) -> Sketch | None:
    """What a search of the start's own parameters searches; None where the run has no such start."""
    start = start_of(tracker)
    if start is None or not isinstance(start.origin, RunStart) or start.origin.point is None:
        return None
    return own_sketch(start.origin.given, start.source) if start.origin.given != OFFLINE else None


def _lower(opened: Session) -> Lower:
    """TorchInductor, which runs the task's own code."""
    return through(functools.partial(opened.workshop.lowering.call, task=opened.file))


def _llm_author(model: LanguageModel, started: Started, tracker: AttemptTracker) -> LlmAuthor:
    """The model's conversations; those of earlier processes count for keys and costs."""
    settings, opened = started.settings, started.opened
    for note in started.choice.notes:
        tracker.emit(Warned(tracker.run_id, note))
    opened_keys = [e.conversation for e in started.events if isinstance(e, Said | Replied)]  # answered or not
    for reply in (e for e in started.events if isinstance(e, Replied)):
        tracker.cost.add(reply.cost_usd)
        if isinstance(model, ScriptedModel):
            model.skip(1, reply.conversation)
    arch, gpu = opened.workshop.arch, opened.gpu
    tracker.predictions += [e for e in started.events if isinstance(e, Reflected) and is_scored(e)]
    bench = opened.tools.benches
    prompts = RunPrompts(
        tracker,
        arch,
        gpu.name if gpu else None,
        settings.language,
        lambda: list(tracker.predictions),
        _lessons(started, tracker) if settings.lessons else [],
        load_ceilings(ceilings_file(settings.cache_dir, gpu)) if gpu else None,
        bench.first_baselines if isinstance(bench, GpuBench) else None,
    )
    return LlmAuthor(
        tracker,
        model,
        prompts,
        arch,
        # The calls of a client belong to one conversation.
        "refine" if started.choice.name.partition(":")[0] in CLIENTS else settings.strategy,
        started.event.seed,
        bool(started.event.limits.get("seeds_model")),
        settings.logprobs,
        settings.context_tokens or context_limit(model.facts()),
        reply_limit(model.facts(), settings.effort),
        finished_keys=max(map(int, filter(str.isdigit, opened_keys)), default=0),
        start=lambda: start_of(tracker),
        inductor=lambda: lowered(_lower(opened), arch_number(arch), opened.task),
    )


def _lessons(started: Started, tracker: AttemptTracker) -> list[Lesson]:
    """Those of earlier runs that this one was begun with; a person is told how many."""
    named = started.event.limits.get("lessons")
    found = {lesson.attempt_id: lesson for lesson in started.store.lessons(started.event)}
    lessons = [found[name] for name in named if name in found] if isinstance(named, dict) else []
    if lessons:
        words = f"the model sees how {plural(len(lessons), 'prediction')} of earlier runs came out"
        tracker.emit(Note(tracker.run_id, "lessons", f"{words}; --no-lessons leaves them out"))
    return lessons


# From the first event to the last ------------------------------------------------------------------------------------


USUAL_ATTEMPTS = 24
SEARCH_ATTEMPTS = 300  # a limit for tiny tasks only: 110 s of screenings at 0.35 s are 310
SEARCH_TIME_S = 110.0  # of 180 s: 16 to 19 s until all is ready on an H200, and what a search judges at its end
LEAST_SEARCH_S = 30.0  # whatever getting ready took
_WHOLE_S, _END_S = 180.0, 55.0  # 45 s of the end, a confirmation under way, start and exit: with 50, 179.0 s in all


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. `described`, `started`: its task, and how it began; `attempts`: how many it has; `best` is its
    best accepted attempt, and `best_path` the file with that kernel."""

    run_id: str
    task: str
    why: StopReason
    described: TaskSpec
    started: RunStarted
    attempts: int
    best: Attempt | None = None
    best_path: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 when something was accepted, 1 when nothing was, unless the run ended in a way that has a code."""
        code = self.why.exit_code
        return int(self.best_path is None) if code is None else code


def run_task(
    task: str,
    settings: Settings,
    environment: Environment,
    show: Emit,
    controls: Controls | None = None,
    warming: Workers | None = None,
    *,
    choice: Choice | None = None,
    open_task: OpenTask | None = None,
) -> RunOutcome:
    """Start a new run on a task, with workers that are `warming` or its own. Raises UsageError before anything is
    written when something is wrong with the task, the settings or the runs directory. `choice`: the author, where that
    is not what the settings say; `open_task`: where the task is opened, if not for this run alone."""
    began_s, task_file = time.monotonic(), find_task(task)
    with (
        contextlib.closing(choice or chosen(settings, environment)) as choice,
        Store.open(settings.runs_dir) as store,
        traced(show, environment) as show,
    ):
        require_price(choice, settings)
        _replayed(choice, store)
        named_start = checked(settings.from_, store, task_file)
        with (open_task or opened_alone(settings, show, warming))(task_file) as opened:
            ready_s = time.monotonic() - began_s
            return run_opened(opened, choice, settings, store, show, controls, named_start, ready_s=ready_s)


def traced(show: Emit, environment: Environment) -> contextlib.AbstractContextManager[Emit]:
    """What is told as `show` is, and sends the run to a collector of OpenTelemetry where the environment names one;
    where that cannot be, it says so once, and the run goes on."""
    if not environment.is_traced:
        return contextlib.nullcontext(show)
    try:
        from kerneltune.agent.view.spans import RunSpans  # of an extra

        return RunSpans(show, has_content=environment.traces_content)
    except ModuleNotFoundError:
        problem = "pip install 'kerneltune[otel]'"
    except ValueError as error:
        problem = f"OpenTelemetry says: {error}"
    began = time.time()

    def told(event: Event) -> None:
        show(event)
        if isinstance(event, RunStarted | RunResumed) and event.at >= began:
            show(Warned(event.run_id, f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but the run is not traced: {problem}"))

    return contextlib.nullcontext(told)


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
    suite: str = "",
) -> RunOutcome:
    """A new run on a task that is open; any number may follow one another. What can be asked before a task is opened
    is the caller's: `require_price`, and `checked` for the start. `ready_s`: what getting ready took;
    `suite`: the one that the run is part of. Raises UsageError."""
    if choice.replayed and settings.max_attempts is None:
        settings = replace(settings, max_attempts=len(_replayed(choice, store)) or 1)
    settings = budgeted(settings, gpu=opened.gpu is not None, search=choice.is_search, ready_s=ready_s)
    limits = limits_of(settings)
    beginning = _beginning(opened, settings, store, named_start)
    facts = encode(asdict(limits)) | manner_of(choice, settings) | ({"suite": suite} if suite else {})
    event = run_started(opened, choice.name, choice.why, facts, settings.seed)
    if choice.model is not None and settings.lessons:
        told = {one.attempt_id: one.task_sha256 for one in relevant(store.lessons(event), opened.task, event.gpu)}
        event = replace(event, limits=event.limits | ({"lessons": told} if told else {}))
    with alive(settings.runs_dir / event.run_id):
        return _drive(Started(event, choice, opened, limits, settings, store, show, controls or Controls(), beginning))


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
    """When a run with these settings ends."""
    return Limits(
        USUAL_ATTEMPTS if settings.max_attempts is None else settings.max_attempts,
        settings.max_time_s,
        settings.patience,
        settings.max_cost_usd,
        settings.target_speedup,
        settings.target_sol,
    )


_SEARCHES = ("warm_start", "algebra", "emulation")  # settings of a search without a model, noted where they are off


def manner_of(choice: Choice, settings: Settings) -> dict[str, Json]:
    """What the kernels are written in and begun with, and how a model is used, beside the limits."""
    manner: dict[str, Json] = {"language": settings.language} if settings.language != TRITON else {}
    manner |= {"from": settings.from_} if settings.from_ else {}
    if choice.model is None:
        return manner | {name: False for name in _SEARCHES if not getattr(settings, name)}
    manner |= {name: True for name in ("seeds_model", "logprobs") if getattr(settings, name)}
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
    *,
    task: str | None = None,
    trust_task: bool = False,
    choice: Choice | None = None,
    open_task: OpenTask | None = None,
) -> RunOutcome:
    """Go on with a stored run: same task, seed and limits. Flags change the limits, and what the run has reached gives
    way; but the limit of cost counts all processes and stays until `--max-cost` changes it. `task`: its file's new
    place; `trust_task`: the source that the record holds may run; `choice`, `open_task`: as for a new run."""
    with (
        Store.open(settings.runs_dir) as store,
        ScratchFolder() as scratch,
        traced(show, environment) as show,
        contextlib.ExitStack() as held,
    ):
        event = _stored(store, run_id)
        held.enter_context(alive(settings.runs_dir / event.run_id))  # what is read from now on nobody else adds to
        events, attempts = store.load_events(event.run_id), store.attempts(event.run_id)
        came = store.merged_from(event.run_id)
        task_file, _ = stored_task(event, task, scratch, merged_from=came, trusted=trust_task, of_record=False)
        settings = limits_as_then(_as_then(settings, event), event, attempts)
        named_start = None if attempts else checked(settings.from_, store, task_file)
        author = choice or named(event.author, event.author_why, settings, environment)
        with contextlib.closing(author) as choice:
            require_price(choice, settings)
            with (open_task or opened_alone(settings, show, warming))(task_file) as opened:
                settings = budgeted(settings, gpu=opened.gpu is not None, search=choice.is_search)
                return _go_on(event, events, choice, opened, settings, store, show, controls, named_start)


def resume_opened(
    opened: Session,
    run_id: str,
    choice: Choice,
    settings: Settings,
    store: Store,
    show: Emit,
    controls: Controls | None = None,
) -> RunOutcome:
    """Go on with a stored run on its task, which is open, in its manner and until the limits of `settings`. Raises
    StoreError where another process runs it."""
    with alive(settings.runs_dir / run_id):
        event = store.load_run(run_id)
        settings = _as_then(settings, event)
        return _go_on(event, store.load_events(run_id), choice, opened, settings, store, show, controls)


def _go_on(
    event: RunStarted,
    events: list[Event],
    choice: Choice,
    opened: Session,
    settings: Settings,
    store: Store,
    show: Emit,
    controls: Controls | None = None,
    named_start: StartingPoint | None = None,
) -> RunOutcome:
    """Drive a stored run, which this process holds, from its `events` on."""
    attempts = store.attempts(event.run_id)
    among_them = Beginning(NOTHING, settings.language)  # the attempts, when there are any
    beginning = among_them if attempts else _beginning(opened, settings, store, named_start)
    numbers = [e.number for e in events if isinstance(e, Proposed)]
    started = Started(
        event, choice, opened, limits_of(settings), settings, store, show, controls or Controls(),
        beginning, attempts, max(numbers, default=0) + 1, tuple(events),
    )  # fmt: skip
    return _drive(started)


def _as_then(settings: Settings, event: RunStarted) -> Settings:
    """The settings with the manner in which the run was begun."""
    names = ("strategy", "effort", "base_url", "language", "logprobs")
    then = {name: value for name in names if (value := event.limits.get(name))}
    if settings.base_url:  # a server may have moved
        then.pop("base_url", None)
    if start := event.limits.get("from"):
        then["from_"] = start
    then |= {name: False for name in _SEARCHES if event.limits.get(name) is False}
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


def _stored(store: Store, run_id: str) -> RunStarted:
    """How a run began that can be resumed. Raises UsageError for others."""
    event = store.load_run(store.find_run(run_id))
    if not is_plain(event.run_id):  # it came with another machine's record
        raise UsageError(f"run {event.run_id!r} has no folder of its own here; start a new run with --task")
    if event.author.partition(":")[0] not in (*PROVIDERS, OFFLINE, REPLAY, *CLIENTS):
        raise UsageError(
            f"run {run_id} judged {event.author}; there is nothing to go on with. Give --task to start a run"
        )
    return event


def _left(events: Sequence[Event]) -> list[Attempt]:
    """The attempts that earlier processes were killed or interrupted over, by number. Where the time was up, what was
    still being compiled was let go of."""
    begun: set[str] = set()
    for event in events:
        if isinstance(event, Proposed):
            begun.add(event.attempt_id)
        elif isinstance(event, RunEnded) and event.why is StopReason.TIME:
            begun.clear()
    return [a for a in attempts_of(events) if a.verdict is None and a.attempt_id in begun]


def _drive(started: Started) -> RunOutcome:
    """Let the author work; whatever ends it, the end is an event and the best kernel is on disk."""
    event, opened, settings, limits = started.event, started.opened, started.settings, started.limits
    show, controls = started.show, started.controls
    emit = UntilEnded(fan_out(started.store.write, show))
    for earlier in started.events:
        show(earlier)
    its = started.choice.name
    other = "" if its == event.author else its
    emit(RunResumed(event.run_id, len(started.attempts), other) if started.events else event)
    if started.events:
        show(LimitsChanged(event.run_id, limits))  # what counts now; the start says what did
    warn(opened, event.run_id, settings, emit, model=started.choice.model is not None)
    tiers = search_tiers if started.choice.is_search else tiers_for
    tracker = AttemptTracker(
        event.run_id, opened.task, opened.tools, emit, started.attempts, started.next_number,
        tiers=tiers(opened.gpu is not None, settings.tier, confirm=settings.confirm),
        keep=opened.receipts(settings.runs_dir / event.run_id).keep,
        place=opened.workshop.place, left=_left(started.events),
    )  # fmt: skip
    listen(controls, tracker, opened, limits, show)
    begun_s, why = controls.clock_s, StopReason.FAILED
    try:
        with gpu_samples(opened.gpu, event.run_id, show), ready(started, tracker) as run:
            why = optimize(run)
    except KeyboardInterrupt:
        why = StopReason.INTERRUPTED
    except LlmError as error:
        emit(Warned(event.run_id, str(error)))
        why = refusal(error)
    except GpuLost as error:
        way = f"once `optimize doctor` finds it again, `optimize --resume {shell_word(event.run_id)}` goes on"
        raise GpuLost(f"{error}. All verdicts so far are stored; {way}") from error
    finally:
        tracker.close()  # the workers end soon, which must not look like failures of the candidates in their hands
        if controls.raises:
            emit(
                Warned(event.run_id, f"limits raised during the run: {_raised(limits, limits.raised(controls.raises))}")
            )
        leader, path = tracker.best, None
        try:
            path = write_best(settings.runs_dir / event.run_id, leader, event, tracker.task) if leader else None
        finally:
            tracker.emit(ended(tracker, why, round(controls.clock_s - begun_s, 3), path))
    return RunOutcome(event.run_id, event.task, why, tracker.task, event, len(tracker.attempts), leader, path)


def refusal(error: LlmError) -> StopReason:
    """Why a run ends whose model failed so."""
    refused = isinstance(error, KeyRejected | OutOfCredit | NoSuchModel)
    return StopReason.NO_ACCESS if refused else StopReason.MODEL_ERROR


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
            worker.kill_soon()
        return skipped

    controls.connect(tell, skip)
