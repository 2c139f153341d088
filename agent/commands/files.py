"""`optimize bench`: judges kernels that somebody else wrote, many in one call, and keeps them as a run."""

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kerneltune.agent.attempt import Attempt, GivenFile, Limits, Proposal, StopReason, tiers_for
from kerneltune.agent.commands.run import ended, fan_out, run_started, warn
from kerneltune.agent.commands.session import Session, session, workshop
from kerneltune.agent.commands.sources import read_candidates
from kerneltune.agent.events import Event, Judged, Note, Proposed, RunStarted, Stage, StageStarted, Warned
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.record.folder import ReceiptBook, alive, receipt_path
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.tracker import AttemptTracker, Emit
from kerneltune.agent.view.output import choose_view
from kerneltune.agent.view.verdicts import FilesEnd, FilesView, JudgedFile
from kerneltune.tools.evaluator import Candidate
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Tier, Verdict
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update

AUTHOR = "files"
_STAGES = (Stage.TRACING, Stage.CHECKING, Stage.TIMING)  # that are shown


def bench_files(
    names: Sequence[str],
    task: str,
    settings: Settings,
    environment: Environment,
    *,
    json: bool,
    plain: bool,
    keep: bool,
) -> int:
    """Judge the files; 0 when all are accepted, 1 when some are not, 130 after Ctrl-C. Raises UsageError."""
    task_file = find_task(task)
    candidates = read_candidates(names)
    if not candidates:
        raise UsageError("give at least one FILE, a folder, or - for stdin")
    view = _view(environment, json=json, plain=plain, total=len(candidates))
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(settings.runs_dir)) if keep else None
        shop = stack.enter_context(workshop(settings, lambda event: _starting(view, event)))
        opened = stack.enter_context(session(shop, task_file))
        return bench_opened(opened, candidates, settings, view, store)


def _view(environment: Environment, *, json: bool, plain: bool, total: int) -> FilesView:
    out, err = (
        choose_view(
            is_terminal=stream.isatty(),
            term=environment.term,
            no_color=environment.no_color,
            ci=environment.ci,
            plain=plain,
        )
        for stream in (sys.stdout, sys.stderr)
    )
    return FilesView(sys.stdout, sys.stderr, json, out.colour, err.kind == "live", total)


def _starting(view: FilesView, event: Event) -> None:
    if isinstance(event, Note):
        view.note(f"… {event.topic}: {event.text}")


class FilesAuthor:
    """Proposes candidates that are written already, in their order."""

    name = AUTHOR

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._left = list(candidates)

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """The next ones."""
        taken, self._left = self._left[:width], self._left[width:]
        return [Proposal(c.source, c.name, origin=GivenFile(c.name, c.problem)) for c in taken]


def bench_opened(
    opened: Session, candidates: Sequence[Candidate], settings: Settings, view: FilesView, store: Store | None
) -> int:
    """Judge candidates on a task that is open, and keep them as a run, if there is a store; the exit code of
    `bench_files`."""
    event = run_started(opened, AUTHOR, f"optimize bench, {len(candidates)} files", {"max_attempts": len(candidates)})
    folder = settings.runs_dir / event.run_id if store else None
    shown = _Shown(view, folder, ReceiptBook(folder, opened.setting))
    emit: Emit = fan_out(*([store.write] if store else []), shown)
    tracker = AttemptTracker(
        event.run_id, opened.task, opened.tools, emit, keep=shown.keep, place=opened.workshop.place,
        tiers=tiers_for(opened.gpu is not None, settings.tier or "judged", confirm=False),
    )  # fmt: skip
    # One more than are compiled side by side: the one that is being judged.
    run = Run(tracker, FilesAuthor(candidates), Limits(len(candidates)), opened.workshop.width + 1)
    with alive(folder) if folder else contextlib.nullcontext():
        why = _judged(run, event, opened, view, is_stored=store is not None)
    if why is StopReason.INTERRUPTED:
        return 130
    return int(not all(a.verdict.accepted for a in tracker.attempts))


def _judged(run: Run, event: RunStarted, opened: Session, view: FilesView, *, is_stored: bool) -> StopReason:
    """Judge all; whatever ends it, the end is an event and the last thing that is shown."""
    tracker, began_s, why = run.tracker, time.monotonic(), StopReason.FAILED
    tracker.emit(event)
    warn(opened, event.run_id, tracker.emit)
    try:
        optimize(run)
        why = StopReason.AUTHOR_DONE
    except KeyboardInterrupt:
        why = StopReason.INTERRUPTED
    finally:
        tracker.close()
        elapsed_s = round(time.monotonic() - began_s, 3)
        tracker.emit(ended(tracker, why, elapsed_s))
        gpu = opened.gpu.name if opened.gpu else None
        view.finish(FilesEnd(event.run_id if is_stored else None, opened.task.name, gpu, why, elapsed_s))
    return why


class _Shown:
    """Shows what happens to the files, and keeps their receipts in `folder`, if there is one."""

    def __init__(self, view: FilesView, folder: Path | None, book: ReceiptBook) -> None:
        self._view, self._folder, self._book = view, folder, book
        self._names: dict[str, str] = {}
        self._files: dict[str, JudgedFile] = {}  # by attempt, until the event says that it is judged

    def keep(self, attempt_id: str, source: str, update: Update, verdict: Verdict, asked: Tier | None) -> None:
        """Keep a receipt."""
        receipt = self._book.keep(attempt_id, source, update, verdict, asked)
        self._files[attempt_id] = JudgedFile(
            index=int(attempt_id.rpartition("/")[2]) - 1,
            name=self._names[attempt_id],
            attempt_id=attempt_id if self._folder else None,
            verdict=verdict,
            kernels=update.kernels_of(update.judged_plan(verdict.variant)),
            rank_key=(),
            seconds=update.trace_s + update.compile_s,
            receipt=receipt,
            receipt_path=str(receipt_path(self._folder, attempt_id)) if self._folder else None,
        )

    def __call__(self, event: Event) -> None:
        """Show an event."""
        match event:
            case Warned():
                self._view.note(f"warning: {event.text}")
            case Proposed():
                self._names[event.attempt_id] = event.rationale
            case StageStarted() if event.stage in _STAGES:
                self._view.stage(self._names[event.attempt_id], event.stage)
            case Judged():
                file = self._files.pop(event.attempt_id)
                self._view.judged(replace(file, rank_key=event.rank_key, seconds=file.seconds + event.bench_s))
