"""`optimize verify`: repeats a stored verdict with fresh seeds, here or on another GPU, and says whether it held."""

import contextlib
import json as jsonlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kerneltune.agent.attempt import Attempt, GivenFile, rank_key
from kerneltune.agent.commands.session import Session, session, workshop
from kerneltune.agent.commands.stored_task import stored_task
from kerneltune.agent.events import Event, Note, Verified
from kerneltune.agent.record.folder import ReceiptBook, folder_of
from kerneltune.agent.record.store import Store, StoredAttempt
from kerneltune.agent.repeat import repeated, unfinished
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view.output import choose_view
from kerneltune.agent.view.verdicts import Side, Verification, print_verification, verification_json
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import Tier, Verdict
from kerneltune.tools.update import Update


def verify_attempt(
    text: str, task: str | None, settings: Settings, environment: Environment, *, json: bool, plain: bool
) -> int:
    """Judge a stored attempt again; 0 when the verdict held, 1 when it did not. Raises UsageError."""
    with Store.open(settings.runs_dir) as store, tempfile.TemporaryDirectory(prefix="kerneltune-task-") as scratch:
        stored = store.find_attempt(text)
        if stored.finished is None:
            raise StoreError(f"attempt {stored.proposed.attempt_id} never got a verdict, so there is nothing to repeat")
        origin = stored.proposed.origin
        if isinstance(origin, GivenFile) and origin.problem:
            raise StoreError(
                f"attempt {stored.proposed.attempt_id} has no source that could be judged again: {origin.problem}"
            )
        found = stored_task(stored.run, task, Path(scratch))
        with workshop(settings, _starting) as shop, session(shop, found.file) as opened:
            outcome = _Verify(opened, stored, stored.finished, settings, found.differs).run(store)
    if json:
        print(jsonlib.dumps(verification_json(outcome), allow_nan=False))
    else:
        print_verification(outcome, colour=_colour(environment, plain=plain))
    return int(not outcome.held)


def _colour(environment: Environment, *, plain: bool) -> bool:
    choice = choose_view(
        is_terminal=sys.stdout.isatty(),
        term=environment.term,
        no_color=environment.no_color,
        ci=environment.ci,
        plain=plain,
    )
    return choice.colour


def _starting(event: Event) -> None:
    if isinstance(event, Note):
        with contextlib.suppress(BrokenPipeError):
            print(f"… {event.topic}: {event.text}", file=sys.stderr)


class _Verify:
    """One repetition."""

    def __init__(
        self, opened: Session, stored: StoredAttempt, finished: Attempt, settings: Settings, differs: tuple[str, ...]
    ) -> None:
        self._opened, self._stored, self._old, self._differs = opened, stored, finished.verdict, differs
        self._id, self._source = finished.attempt_id, stored.proposed.source
        self._tier: Tier = settings.tier or finished.verdict.tier or "judged"
        folder = folder_of(settings.runs_dir, stored.run.run_id)
        self._folder, self._book = folder, ReceiptBook(folder, opened.setting)

    def run(self, store: Store) -> Verification:
        """Judge, compare, store the event and the receipt."""
        _starting(Note("", "verifying", self._id))
        update = self._opened.tools.updater.update(self._source)
        started = time.perf_counter()
        verdict = update.failure or self._opened.tools.benches.bench(update, self._tier)
        bench_s = time.perf_counter() - started
        place, run = self._opened.workshop.place, self._stored.run
        outcome = repeated(self._old, verdict, same_gpu=place.gpu == run.gpu)
        asked = self._tier if place.gpu else None
        receipt, path = self._book.keep_again(self._id, self._source, update, verdict, asked)
        store.write(
            Verified(
                run.run_id,
                self._id,
                "unfinished" if unfinished(self._old, verdict) else "verify",
                verdict,
                round(bench_s, 4),
                outcome.held,
                outcome.why,
                place.gpu,
                place.machine,
                place.versions,
                rank_key(verdict, update),
            )
        )
        return Verification(
            self._id,
            Side(self._old, run.gpu, run.versions),
            Side(verdict, place.gpu, place.versions),
            outcome.held,
            outcome.why,
            (*self._differs, *self._differences(update, verdict)),
            receipt,
            str(path),
        )

    def _differences(self, update: Update, verdict: Verdict) -> Iterator[str]:
        run, place = self._stored.run, self._opened.workshop.place
        if place.gpu != run.gpu:
            yield f"GPU: {run.gpu or 'none'} then, {place.gpu or 'none'} now"
        for name, then in run.versions.items():
            if (now := place.versions.get(name)) != then:
                yield f"{name}: {then} then, {now} now"
        if self._opened.workshop.arch != run.arch:
            yield f"compiled for {run.arch} then, for {self._opened.workshop.arch} now"
        then_plan = self._stored.updated.plan_sha256 if self._stored.updated else None
        if then_plan and update.sha256 and update.sha256 != then_plan:
            yield f"plan: {then_plan[:16]} then, {update.sha256[:16]} now (traced by other versions)"
        if verdict.variant != self._old.variant:
            yield f"variant: {self._old.variant or 'default'} then, {verdict.variant or 'default'} now"
