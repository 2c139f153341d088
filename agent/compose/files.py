"""`optimize bench`: judges kernels that somebody else wrote, many in one call, and keeps them as a run."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from agent.authors.base import Attempt, Proposal
from agent.compose.run import fan_out, run_started, warn
from agent.compose.session import Session, session, workshop
from agent.compose.sources import read_candidates
from agent.policy import best, rank_key
from agent.record.events import Event, Judged, Progress, Proposed, RunEnded, RunStarted, Warned
from agent.record.folder import ReceiptBook, alive, receipt_path
from agent.record.store import Store
from agent.settings import Environment, Settings
from agent.view.output import choose_view
from agent.view.verdicts import FilesEnd, FilesView, JudgedFile
from agent.workbench import Emit, updated
from tools.codec import Json
from tools.errors import UsageError
from tools.pipeline import Candidate, Judgement, judge_all
from tools.task import find_task
from tools.verdict import Tier

AUTHOR = "files"


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


def bench_opened(
    opened: Session, candidates: Sequence[Candidate], settings: Settings, view: FilesView, store: Store | None
) -> int:
    """Judge candidates on a task that is open, and keep them as a run, if there is a store; the exit code of
    `bench_files`."""
    return _Bench(opened, settings, view, store).run(candidates)


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
    if isinstance(event, Progress):
        view.note(f"… {event.stage}: {event.detail}")


class _Bench:
    """One pass over the candidates."""

    def __init__(self, opened: Session, settings: Settings, view: FilesView, store: Store | None) -> None:
        self._opened, self._settings, self._view = opened, settings, view
        self._tier: Tier = settings.tier or "judged"
        self._asked = self._tier if opened.gpu else None
        self._attempts: list[Attempt] = []
        self._stored = store is not None
        self._emit: Emit = fan_out(store.write if store else _forget, self._show)

    def run(self, candidates: Sequence[Candidate]) -> int:
        """Judge all; whatever ends it, the end is an event and the last thing that is shown."""
        limits: dict[str, Json] = {"max_attempts": len(candidates)}
        event = run_started(self._opened, AUTHOR, f"optimize bench, {len(candidates)} files", limits)
        self._run_id, self._started = event.run_id, time.monotonic()
        folder = self._settings.runs_dir / event.run_id if self._stored else None
        self._folder, self._book = folder, ReceiptBook(folder, self._opened.setting)
        with alive(folder) if folder else contextlib.nullcontext():
            return self._judge(event, candidates)

    def _judge(self, event: RunStarted, candidates: Sequence[Candidate]) -> int:
        self._emit(event)
        warn(self._opened, event.run_id, self._emit)
        why = "failed"
        try:
            for judgement in self._judgements(candidates):
                self._finished(judgement)
            why = "author_done"
        except KeyboardInterrupt:
            why = "interrupted"
        finally:
            self._end(why)
        if why == "interrupted":
            return 130
        return int(not all(a.verdict.accepted for a in self._attempts))

    def _judgements(self, candidates: Sequence[Candidate]) -> Iterator[Judgement]:
        width = self._opened.workshop.width
        return judge_all(
            self._opened.tools, self._proposed(candidates), width=width, tier=self._tier, progress=self._view.stage
        )

    def _proposed(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Each candidate becomes an attempt when its turn comes."""
        for number, candidate in enumerate(candidates, 1):
            facts: dict[str, Json] = {"file": candidate.name}
            if candidate.problem:
                facts["problem"] = candidate.problem
            self._emit(Proposed(self._run_id, self._id(number), number, None, candidate.source, candidate.name, facts))
            yield candidate

    def _id(self, number: int) -> str:
        return f"{self._run_id}/{number}"

    def _finished(self, judgement: Judgement) -> None:
        attempt_id, update, verdict = self._id(judgement.index + 1), judgement.update, judgement.verdict
        receipt = self._book.keep(attempt_id, judgement.source, update, verdict, self._asked)
        kernels = update.kernels_of(update.judged_plan(verdict.variant))
        proposal = Proposal(judgement.source, judgement.name)
        key = rank_key(verdict, update)
        attempt = Attempt(attempt_id, judgement.index + 1, None, proposal, verdict, kernels, key)
        self._attempts.append(attempt)
        self._emit(updated(self._run_id, attempt_id, update))
        is_best = best(self._attempts) is attempt
        self._emit(Judged(self._run_id, attempt_id, verdict, round(judgement.bench_s, 4), is_best, key))
        path = str(receipt_path(self._folder, attempt_id)) if self._folder else None
        known = attempt_id if self._stored else None
        self._view.judged(
            JudgedFile(judgement.index, judgement.name, known, verdict, kernels, key, judgement.seconds, receipt, path)
        )

    def _show(self, event: Event) -> None:
        if isinstance(event, Warned):
            self._view.note(f"warning: {event.text}")

    def _end(self, why: str) -> None:
        leader, elapsed_s = best(self._attempts), round(time.monotonic() - self._started, 3)
        self._emit(
            RunEnded(
                self._run_id,
                why,
                attempts=len(self._attempts),
                accepted=sum(a.verdict.accepted for a in self._attempts),
                best_attempt_id=leader.attempt_id if leader else None,
                best_path=None,
                elapsed_s=elapsed_s,
            )
        )
        gpu = self._opened.gpu.name if self._opened.gpu else None
        end = FilesEnd(self._run_id if self._stored else None, self._opened.task.name, gpu, why, elapsed_s)
        self._view.finish(end)


def _forget(event: Event) -> None:
    """Where events go that are not to be stored."""
