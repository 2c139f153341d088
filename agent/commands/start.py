"""Where a run starts, as --from says: nothing, the best stored attempt, any stored attempt, or a file; and the first
attempts that come of it: the start, and its PTX where that is wanted."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kerneltune.agent.attempt import (
    Action,
    ActionResult,
    Actions,
    Attempt,
    Author,
    BenchAction,
    Proposal,
    RunStart,
    UpdateAction,
    best,
    point_of,
)
from kerneltune.agent.events import Warned
from kerneltune.agent.record.query import Filter, RunSummary
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Language
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.languages.ptx.candidate import CannotSay, guessed_candidate
from kerneltune.tools.languages.ptx.ir import PtxError
from kerneltune.tools.languages.ptx.loader import PtxLaunchError, language_of
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import TaskFile
from kerneltune.tools.update import Update

NOTHING, BEST = "nothing", "best"
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
    if path.suffix in _SUFFIXES or path.is_file():
        return _file(path)
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
    any GPU of the architecture, and of those that nothing timed only if there are no others. A run in Triton does not
    start from PTX."""
    fit = [a for a in _leaders(store, where) if where.language == "ptx" or language_of(a.source) == "triton"]
    timed = [a for a in fit if a.timing is not None]
    leader = best(timed or fit)
    return StartingPoint(leader.source, leader.attempt_id, leader.attempt_id) if leader else None


def _leaders(store: Store, where: Where) -> Iterator[Attempt]:
    """The accepted attempts of runs that count."""
    try:
        runs = store.runs(Filter(task=where.task.name, verdict="accepted", limit=_MOST_RUNS))
    except UsageError:  # no run of this task
        return
    for run in runs:
        if _counts(run, where) and store.load_run(run.run_id).task_sha256 == where.task.sha256:
            yield from (a for a in store.attempts(run.run_id) if a.accepted)


def _counts(run: RunSummary, where: Where) -> bool:
    return run.arch == where.arch and (where.gpu is None or run.gpu == where.gpu)


def _file(path: Path) -> StartingPoint:
    try:
        return StartingPoint(path.read_text(), str(path), is_ptx=path.suffix == ".ptx")
    except UnicodeDecodeError as error:
        raise UsageError(f"--from {path}: it is no UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"--from {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Beginning:
    """What a run begins with. `wanted` is --from, `start` what it was found to mean."""

    wanted: str = ""
    language: Language = "triton"
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
        origin = RunStart(beginning.wanted or BEST)
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
