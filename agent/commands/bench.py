"""`optimize bench`: judges kernels that somebody else wrote, many in one call, and keeps them as a run."""

import contextlib
import json as jsonlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from cyclopts import App, Parameter, Token, UnknownOptionError

from kerneltune.agent.attempt import Attempt, Controls, GivenFile, Limits, Proposal, StopReason, rank_order, tiers_for
from kerneltune.agent.commands import (
    Arch,
    AsLines,
    Counters,
    RunsDir,
    Task,
    Tier,
    Unsandboxed,
    UseService,
    Width,
    begun_workers,
    may_use_service,
    service_answer,
)
from kerneltune.agent.events import (
    AttemptEvent,
    Event,
    Judged,
    JudgingAgain,
    Proposed,
    RunEnded,
    RunStarted,
    Stage,
    StageStarted,
    Verified,
    Warned,
    after,
    fan_out,
    proposed_attempt,
)
from kerneltune.agent.record.folder import ReceiptBook, alive, receipt_path
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import LineWriter, StatusLine, choose_view
from kerneltune.tools.schema.codec import (
    MAX_SOURCE_BYTES,
    Json,
    encode,
    leads_within,
    one_line,
    parsed,
    plural,
    shell_word,
)
from kerneltune.tools.schema.errors import Unfit, UsageError, WorkerError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Status, Verdict, fastest_first, losses_in_words
from kerneltune.tools.schema.verdict import Tier as VerdictTier

if TYPE_CHECKING:
    from kerneltune.agent.commands.session import Session
    from kerneltune.agent.loop import Run
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.evaluator import Candidate
    from kerneltune.tools.task.load import TaskFile
    from kerneltune.tools.update import Update

SCHEMA_VERSION = 1
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
    optimize bench mine.py --task softmax --watch     on each save
""",
)


@command.default
def bench(
    *files: Annotated[str, Parameter(help="Kernel files, folders of them, or - for stdin.", allow_leading_hyphen=True)],
    task: Task,
    tier: Tier = None,
    counters: Counters = None,
    width: Width = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    watch: Annotated[bool, Parameter(help="Judge the one file again each time that it is saved.", negative="")] = False,
    no_store: Annotated[bool, Parameter(help="Keep neither record nor receipts.", negative="")] = False,
    json: AsLines = False,
    plain: Annotated[bool, Parameter(help="Progress as lines, no colour.", negative="")] = False,
    service: UseService = True,
    allow_unsandboxed: Unsandboxed = None,
) -> int:
    """Check and time existing kernel files.

    Each file that defines ModelNew is traced, compiled, checked, timed and ranked.

    Exit code 0: all were accepted; 1: some were not; 2: bad input.
    """
    _refuse_misspelt_flags(files)
    settings = chosen_settings(locals())
    from kerneltune.tools.task.load import find_task

    task_file, candidates = find_task(task), None
    if watch:
        from kerneltune.agent.commands.edit_loop import edit_loop

        if len(files) != 1 or no_store or json:
            raise UsageError(
                "--watch is for one file, whose versions are stored: leave out others, --no-store and --json"
            )
        return edit_loop(
            Path(os.path.expanduser(files[0])), _named_for_service(task, task_file), settings, service=service
        )
    if service and not no_store and may_use_service(settings):
        candidates = read_candidates(files)
        name = _named_for_service(task, task_file)
        if (code := _through_service(name, candidates, settings, json=json, plain=plain)) is not None:
            return code
    candidates = candidates or read_candidates(files)
    return _bench(task_file, candidates, settings, json=json, plain=plain, store=not no_store)


def _named_for_service(task: str, file: "TaskFile") -> str:
    """A task as another process finds it."""
    from kerneltune.tools.task.load import builtin_names

    return task if task in builtin_names() else str(file.path.resolve())


def _through_service(
    task: str, candidates: "Sequence[Candidate]", settings: Settings, *, json: bool, plain: bool
) -> int | None:
    """Have the service of these runs judge; None where it does not. Raises Unfit when it cannot go on, as on a
    full disk, and WorkerError when it has a fault."""
    asked = {"task": task, "sources": {c.name: c.source for c in candidates}, "tier": settings.tier, "client": "bench"}
    why_not = "one of the files is no text" if any(c.problem for c in candidates) else ""
    shown = "" if json else "kerneltune.agent.record.store"
    with service_answer(settings.runs_dir, "/bench", asked, why_not, module=shown) as answer:
        if answer is None:
            return None
        view = _view(len(candidates), json=json, plain=plain)
        with view.status:
            return _told(answer.iter_lines(), view, settings.runs_dir, json=json)


def _told(lines: Iterable[str], view: "FilesView", runs_dir: Path, *, json: bool) -> int:
    """Show what a service says of each file: as it does, or what the record has by then."""
    after, accepted, store = 0, False, None
    with contextlib.ExitStack() as held:
        for line in lines:
            told = parsed(line)
            if told["type"] == "error":
                kind = WorkerError if told["status"] == 500 else Unfit  # a fault of its own, or of where it runs
                raise kind(f"the service failed: {told['error']}")
            accepted = told.get("accepted") == told.get("files")
            if json:
                print(line, flush=True)
                continue
            if store is None:
                from kerneltune.agent.record.store import Store

                store = held.enter_context(Store.open(runs_dir, to_look=True))
            run_id = told.get("run_id") or str(told["attempt_id"]).rpartition("/")[0]
            view.folder = runs_dir / run_id
            after, events = store.later_events(run_id, after)
            for event in events:
                view(event)
    return int(not accepted)


def _bench(
    task_file: "TaskFile",
    candidates: "Sequence[Candidate]",
    settings: Settings,
    *,
    json: bool,
    plain: bool,
    store: bool,
) -> int:
    """Judge candidates with workers that warm up while what else is needed is imported."""
    if not candidates:
        raise UsageError("give at least one FILE, a folder, or - for stdin")
    view = _view(len(candidates), json=json, plain=plain)
    with contextlib.ExitStack() as stack:
        stack.enter_context(view.status)
        begun = stack.enter_context(begun_workers(settings))
        from kerneltune.agent.commands.session import Patience, session, workshop
        from kerneltune.agent.record.store import Store

        kept = stack.enter_context(Store.open(settings.runs_dir)) if store else None
        shop = stack.enter_context(workshop(settings, view.status, begun))
        patience = Patience(first_tier=settings.tier or "judged")
        return bench_opened(stack.enter_context(session(shop, task_file, patience)), candidates, settings, view, kept)


def _view(total: int, *, json: bool, plain: bool) -> "FilesView":
    here = environment()
    out, err = (choose_view(here, is_terminal=s.isatty(), plain=plain) for s in (sys.stdout, sys.stderr))
    return FilesView(sys.stdout, sys.stderr, json=json, colour=out.colour, live=err.kind == "live", total=total)


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


def bench_opened(
    opened: "Session",
    candidates: "Sequence[Candidate]",
    settings: Settings,
    view: "FilesView",
    store: "Store | None" = None,
    controls: Controls | None = None,
) -> int:
    """Judge candidates on a task that is open, and keep them as a run, if there is a store. Returns 0 when all are
    accepted, 1 when some are not, 130 after Ctrl-C. `controls`: of somebody who may want no more of it."""
    from kerneltune.agent.commands.session import run_started
    from kerneltune.agent.loop import Run
    from kerneltune.agent.tracker import AttemptTracker

    event = run_started(opened, AUTHOR, f"optimize bench, {len(candidates)} files", {"max_attempts": len(candidates)})
    folder = settings.runs_dir / event.run_id if store else None
    view.folder, view.book, view.task = folder, opened.receipts(folder), opened.task
    emit = fan_out(*([store.write] if store else []), view)
    tracker = AttemptTracker(
        event.run_id, opened.task, opened.tools, emit, keep=view.keep, place=opened.workshop.place,
        tiers=tiers_for(opened.gpu is not None, settings.tier or "judged", confirm=False),
    )  # fmt: skip
    # One more than are compiled side by side: the one that is being judged.
    limits = Limits(len(candidates))
    run = Run(tracker, FilesAuthor(candidates), limits, opened.workshop.width + 1, controls or Controls())
    if controls is not None:
        from kerneltune.agent.commands.lifecycle import listen  # 0.3 s that a bench of one's own need not wait for

        listen(controls, tracker, opened, limits, view)
    with alive(folder) if folder else contextlib.nullcontext():
        why = _judged(run, event, opened, settings)
    if why is StopReason.INTERRUPTED:
        return 130
    return int(not all(a.accepted for a in tracker.attempts))


def _judged(run: "Run", event: RunStarted, opened: "Session", settings: Settings) -> StopReason:
    """Judge all; whatever ends it, the end is an event and the last thing that is shown."""
    from kerneltune.agent.commands.session import ended, warn
    from kerneltune.agent.loop import optimize

    tracker, began_s, why = run.tracker, time.monotonic(), StopReason.FAILED
    tracker.emit(event)
    warn(opened, event.run_id, settings, tracker.emit, model=True)
    try:
        optimize(run)
        why = StopReason.STOPPED if run.controls.stopping else StopReason.AUTHOR_DONE
    except KeyboardInterrupt:
        why = StopReason.INTERRUPTED
    finally:
        tracker.close()
        tracker.emit(ended(tracker, why, round(time.monotonic() - began_s, 3)))
    return why


class FilesView:
    """Shows files as they are judged. Called with each event of their run, and by `keep` with each verdict before its
    event. `live`: stderr is a terminal, where one line is drawn again and again; `total`: the files."""

    folder: Path | None = None  # of the run; None: nothing is kept
    book: ReceiptBook
    task: TaskSpec
    started: RunStarted

    def __init__(
        self, out: TextIO, err: TextIO, *, json: bool = False, colour: bool = False, live: bool = False, total: int = 0
    ) -> None:
        self.attempts: dict[str, Attempt] = {}
        self._out, self._err = LineWriter(out, colour=colour), LineWriter(err)
        self.status = StatusLine(err, live=live)
        self._json, self._colour, self._total = json, colour, total
        self._receipts: dict[str, dict[str, Json]] = {}

    @property
    def judged(self) -> list[Attempt]:
        """The files that have a verdict."""
        return [file for file in self.attempts.values() if file.verdict is not None]

    def keep(self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: VerdictTier | None) -> None:
        """Keep a receipt."""
        made = self._receipts[attempt_id] = self.book.made(attempt_id, source, update, verdict, asked)
        self.book.write(attempt_id, made)  # raises on a full disk, where the verdict is shown all the same

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Proposed):
            self.attempts[event.attempt_id] = proposed_attempt(event)
        elif isinstance(event, AttemptEvent):
            self.attempts[event.attempt_id] = after(self.attempts[event.attempt_id], event)
        match event:
            case RunStarted():
                self.started = event
            case Warned():
                self._show(self._err, one_line(f"warning: {event.text}"))
            case StageStarted() if event.stage in _STAGES:
                self._progress(f"{event.stage} {self.attempts[event.attempt_id].rationale}")
            case JudgingAgain():
                self._progress(f"{self.attempts[event.attempt_id].rationale} again, against all baselines")
            case Judged() | Verified(purpose="confirm"):
                self._verdict(self.attempts[event.attempt_id])
            case RunEnded():
                self.status.show("")
                if self._json:
                    self._show(self._out, jsonlib.dumps(self._summary(event), allow_nan=False))
                else:
                    self._show(self._out, *self._ranking(event))
            case _:
                pass

    def _verdict(self, file: Attempt) -> None:
        """Show the verdict of a file."""
        receipt = self._receipts.pop(file.attempt_id, {})  # none, where an attempt with the same plans was judged again
        made = file_json(file, receipt, self.folder) if self._json else None
        self._show(self._out, jsonlib.dumps(made, allow_nan=False) if made else file_line(file, self._colour))

    def _progress(self, doing: str) -> None:
        self.status.show(f"{len(self.judged)}/{self._total} judged; {doing}")

    def _show(self, where: LineWriter, *lines: str) -> None:
        """Write lines that stay, in place of the progress."""
        with self.status.cleared():
            for line in lines:
                where.write(line)

    def _ranking(self, end: RunEnded) -> Iterator[str]:
        """The accepted files, best first, the counts by status, and where all is kept."""
        yield ""
        files, gpu = self.judged, self.started.gpu
        width = max((len(f.rationale) for f in files), default=0)
        for place, file in enumerate(ranked(files), 1):
            yield f"{place}. {one_line(file.rationale):{width}}  {one_line(_measured(file))}"
        counts = Counter(f.judged.status for f in files)
        shown = ", ".join(f"{n} {status.value}" for status, n in counts.most_common()) or "none judged"
        where = f"timed on {gpu}" if gpu else f"not timed: no GPU; {words.RANKED_BY}"
        what = f"{plural(self._total, 'file')} for {self.started.task} in {words.duration(end.elapsed_s)}"
        yield one_line(f"{what}: {shown}; {where}")
        if end.why is StopReason.INTERRUPTED:
            yield f"interrupted: {self._total - len(files)} not judged"
        if self.folder and end.why is not StopReason.FAILED:
            run = shell_word(end.run_id)
            yield f"kept as run {run}; repeat one with: optimize verify {run}/NUMBER"

    def _summary(self, end: RunEnded) -> dict[str, Json]:
        """The last NDJSON object."""
        files = self.judged
        counts = Counter(f.judged.status.value for f in files)
        return {
            "type": "bench_summary",
            "schema_version": SCHEMA_VERSION,
            "run_id": end.run_id if self.folder else None,
            "task": self.started.task,
            "gpu": self.started.gpu,
            "why": end.why,
            "files": self._total,
            "judged": len(files),
            "accepted": sum(f.accepted for f in files),
            "by_status": {status.value: counts[status.value] for status in Status if counts[status.value]},
            "ranking": [f.rationale for f in ranked(files)],
            "elapsed_s": round(end.elapsed_s, 3),
        }


def file_line(file: Attempt, colour: bool = False) -> str:
    """Format a file's symbol, status, number and name, and its measurement or what is wrong."""
    style = words.verdict_style(file.judged.status)
    label = f"{style.symbol} {file.judged.status.value:{words.LABEL_WIDTH}}"
    shown = f"\x1b[{style.ansi}m{label}\x1b[0m" if colour else label
    facts = file.detail
    if file.accepted:
        facts = _measured(file) + (f"; {facts}" if file.timing is None else "")
    return f"{shown}  #{file.number} {one_line(file.rationale)}  {one_line(facts)}  ({_seconds(file):.1f} s)"


def _seconds(file: Attempt) -> float:
    return sum(filter(None, (file.trace_s, file.compile_s, file.bench_s)))


def _measured(file: Attempt) -> str:
    if file.timing is None:
        return f"regs {words.registers(file.kernels)}, spills {words.spill_bytes(file.kernels)} B"
    fastest = fastest_first(file.comparisons)[:1]
    parts = [words.timing(file.timing), *(f"{words.speedup(c)} vs {c.baseline}" for c in fastest)]
    if file.coverage is not None:
        parts.append(f"coverage {file.coverage:.0%}")
    if lost := losses_in_words(file.case_times):
        parts.append(lost)
    return ", ".join(parts)


def ranked(files: Sequence[Attempt]) -> list[Attempt]:
    """Return the accepted files, best first."""
    return sorted((f for f in files if f.accepted), key=rank_order)


def file_json(file: Attempt, receipt: dict[str, Json], folder: Path | None) -> dict[str, Json]:
    """Return the NDJSON object of one file. `folder`: of the run, where it is stored."""
    verdict = file.judged
    return {
        "type": "judged_file",
        "schema_version": SCHEMA_VERSION,
        "index": file.number - 1,
        "file": file.rationale,
        "attempt_id": file.attempt_id if folder else None,
        "accepted": verdict.accepted,
        "verdict": {k: v for k, v in encode(verdict).items() if k != "receipt"},  # it is in the receipt
        "kernels": receipt["compiled"]["kernels"],  # of the variant that was judged
        "seconds": round(_seconds(file), 4),
        "receipt_path": str(receipt_path(folder, file.attempt_id)) if folder else None,
        "receipt": receipt,
    }


def read_candidates(names: Sequence[str]) -> "list[Candidate]":
    """One candidate for each file; a folder gives its .py files, however deep; "-" is stdin.

    Raises UsageError for a name that cannot be read at all, before anything is judged.
    """
    if names.count(STDIN) > 1:
        raise UsageError("- (stdin) can be read only once")
    return list(dict((c.name, c) for name in names for c in _read(name)).values())


def _read(name: str) -> "Iterator[Candidate]":
    if name == STDIN:
        yield from_bytes("<stdin>", sys.stdin.buffer.read(MAX_SOURCE_BYTES + 1))
        return
    path = Path(os.path.expanduser(name))
    if not path.is_dir():
        yield _candidate(path)
        return
    files = _python_files(path)
    if not files:
        raise UsageError(f"no .py file in the folder {name}")
    for file in files:
        yield _candidate(file) if leads_within(path, file) else _candidate_elsewhere(file)


def _candidate_elsewhere(link: Path) -> "Candidate":
    """Whoever made the folder may have meant a file of ours, which would be judged, kept, and told to a model."""
    from kerneltune.tools.evaluator import Candidate

    return Candidate(str(link), "", "a link that leads out of its folder is not followed; name the file itself")


def _python_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if p.is_file() and not _is_hidden(p.relative_to(folder).parts))


def _is_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") or part in _NOT_SOURCES for part in parts)


def _candidate(path: Path) -> "Candidate":
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
