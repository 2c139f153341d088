"""`optimize bench`: judges kernels that somebody else wrote, many in one call, and keeps them as a run."""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from cyclopts import App, Parameter, Token, UnknownOptionError

from kerneltune.agent.attempt import Attempt, GivenFile, Limits, Proposal, StopReason, tiers_for
from kerneltune.agent.commands import Arch, AsLines, RunsDir, Task, Tier, Unsandboxed, Width
from kerneltune.agent.events import Event, Judged, Note, Proposed, RunStarted, Stage, StageStarted, Warned
from kerneltune.agent.record.folder import ReceiptBook, alive, receipt_path
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Tier as VerdictTier
from kerneltune.tools.schema.verdict import Verdict

if TYPE_CHECKING:
    from kerneltune.agent.commands.session import Session
    from kerneltune.agent.loop import Run
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.verdicts import FilesView, JudgedFile
    from kerneltune.tools.evaluator import Candidate
    from kerneltune.tools.update import Update

AUTHOR = "files"
STDIN = "-"
_STAGES = (Stage.TRACING, Stage.CHECKING, Stage.TIMING)  # that are shown
_NOT_SOURCES = ("__pycache__", "__init__.py")

command = App(
    name="bench",
    help_epilogue="""
Examples:
    optimize bench mine.py --task softmax
    optimize bench kernels/ other.py --task rms_norm --width 4 --json | tail -1
    cat mine.py | optimize bench - --task path/to/23_Softmax.py --no-store
    optimize bench kernels/ --task softmax --tier screened     a first look
""",
)


@command.default
def bench(
    *files: Annotated[str, Parameter(help="Kernel files, folders of them, or - for stdin.", allow_leading_hyphen=True)],
    task: Task,
    tier: Tier = None,
    width: Width = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    no_store: Annotated[bool, Parameter(help="Keep neither record nor receipts.", negative="")] = False,
    json: AsLines = False,
    plain: Annotated[bool, Parameter(help="Progress as lines, no colour.", negative="")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Judge kernel files that are written already.

    Each file that defines ModelNew is traced, compiled, checked, timed and ranked.

    Exit code 0: all were accepted; 1: some were not; 2: bad input.
    """
    _refuse_misspelt_flags(files)
    flags = {"tier": tier, "width": width, "arch": arch, "runs_dir": runs_dir}
    settings = chosen_settings(flags | {"allow_unsandboxed": allow_unsandboxed or None})
    from kerneltune.agent.commands.session import session, workshop
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.output import choose_view
    from kerneltune.agent.view.verdicts import FilesView
    from kerneltune.tools.task.load import find_task

    task_file, candidates = find_task(task), read_candidates(files)
    if not candidates:
        raise UsageError("give at least one FILE, a folder, or - for stdin")
    here = environment()
    out, err = (choose_view(here, is_terminal=s.isatty(), plain=plain) for s in (sys.stdout, sys.stderr))
    view = FilesView(sys.stdout, sys.stderr, json, out.colour, err.kind == "live", len(candidates))

    def starting(event: Event) -> None:
        if isinstance(event, Note):
            view.note(f"… {event.topic}: {event.text}")

    with contextlib.ExitStack() as stack:
        store = None if no_store else stack.enter_context(Store.open(settings.runs_dir))
        shop = stack.enter_context(workshop(settings, starting))
        return bench_opened(stack.enter_context(session(shop, task_file)), candidates, settings, view, store)


def _refuse_misspelt_flags(words: Sequence[str]) -> None:
    """Raise UnknownOptionError for a flag that was taken for a file, as may be since - alone is one."""
    if flag := next((word for word in words if word.startswith("-") and word != "-"), None):
        known = command.assemble_argument_collection()
        raise UnknownOptionError(token=Token(value=flag), argument_collection=known, command_chain=command.name)


class FilesAuthor:
    """Proposes candidates that are written already, in their order."""

    name = AUTHOR

    def __init__(self, candidates: "Sequence[Candidate]") -> None:
        self._left = list(candidates)

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """The next ones."""
        taken, self._left = self._left[:width], self._left[width:]
        return [Proposal(c.source, c.name, origin=GivenFile(c.name, c.problem)) for c in taken]


def _facts(candidate: "Candidate") -> dict[str, Json]:
    return {"file": candidate.name} | ({"problem": candidate.problem} if candidate.problem else {})


def bench_opened(
    opened: "Session",
    candidates: "Sequence[Candidate]",
    settings: Settings,
    view: "FilesView",
    store: "Store | None" = None,
) -> int:
    """Judge candidates on a task that is open, and keep them as a run, if there is a store. Returns 0 when all are
    accepted, 1 when some are not, 130 after Ctrl-C."""
    from kerneltune.agent.commands.lifecycle import fan_out, run_started
    from kerneltune.agent.loop import Run
    from kerneltune.agent.tracker import AttemptTracker

    event = run_started(opened, AUTHOR, f"optimize bench, {len(candidates)} files", {"max_attempts": len(candidates)})
    folder = settings.runs_dir / event.run_id if store else None
    shown = _Shown(view, folder, ReceiptBook(folder, opened.setting))
    emit = fan_out(*([store.write] if store else []), shown)
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
    return int(not all(a.accepted for a in tracker.attempts))


def _judged(run: "Run", event: RunStarted, opened: "Session", view: "FilesView", *, is_stored: bool) -> StopReason:
    """Judge all; whatever ends it, the end is an event and the last thing that is shown."""
    from kerneltune.agent.commands.lifecycle import ended, warn
    from kerneltune.agent.loop import optimize
    from kerneltune.agent.view.verdicts import FilesEnd

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

    def __init__(self, view: "FilesView", folder: Path | None, book: ReceiptBook) -> None:
        self._view, self._folder, self._book = view, folder, book
        self._names: dict[str, str] = {}
        self._files: dict[str, JudgedFile] = {}  # by attempt, until the event says that it is judged

    def keep(self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: VerdictTier | None) -> None:
        """Keep a receipt."""
        from kerneltune.agent.view.verdicts import JudgedFile

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


def read_candidates(names: Sequence[str], stdin: BinaryIO | None = None) -> "list[Candidate]":
    """One candidate for each file; a folder gives its .py files, however deep; "-" is stdin.

    Raises UsageError for a name that cannot be read at all, before anything is judged.
    """
    if names.count(STDIN) > 1:
        raise UsageError("- (stdin) can be read only once")
    return list(dict((c.name, c) for name in names for c in _read(name, stdin)).values())


def _read(name: str, stdin: BinaryIO | None) -> "Iterator[Candidate]":
    from kerneltune.tools.update import MAX_SOURCE_BYTES

    if name == STDIN:
        yield from_bytes("<stdin>", (stdin or sys.stdin.buffer).read(MAX_SOURCE_BYTES + 1))
        return
    path = Path(name).expanduser()
    files = _python_files(path) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"no .py file in the folder {name}")
    for file in files:
        yield _candidate(file)


def _python_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if p.is_file() and not _is_hidden(p.relative_to(folder).parts))


def _is_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") or part in _NOT_SOURCES for part in parts)


def _candidate(path: Path) -> "Candidate":
    from kerneltune.tools.update import MAX_SOURCE_BYTES

    try:
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
            n_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return from_bytes(str(path), data, n_bytes)


def from_bytes(name: str, data: bytes, n_bytes: int = 0) -> "Candidate":
    """A candidate of what a file begins with; `n_bytes` is the whole file's size, when it is known. What is no text
    becomes a candidate with a problem: it gets a verdict too."""
    from kerneltune.tools.evaluator import Candidate
    from kerneltune.tools.update import MAX_SOURCE_BYTES

    if len(data) > MAX_SOURCE_BYTES:
        size = f"{n_bytes} bytes" if n_bytes > len(data) else f"more than {MAX_SOURCE_BYTES} bytes"
        return Candidate(name, "", f"the file has {size}; the limit for a candidate is 1 MiB ({MAX_SOURCE_BYTES})")
    try:
        return Candidate(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        what = "binary, not Python text" if b"\0" in data else "not UTF-8"
        line = data.count(b"\n", 0, error.start) + 1
        return Candidate(
            name, "", f"the file is {what} (byte {data[error.start]:#04x} in line {line}); save it as UTF-8"
        )
