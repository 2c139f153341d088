"""`optimize show`: a stored run, or one of its attempts, from the record and the files beside it."""

import json as jsonlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from kerneltune.agent.events import Proposed, Verified
from kerneltune.agent.record.folder import folder_of, receipt_path
from kerneltune.agent.record.query import Filter
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import Conversation, trajectory
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view.output import Page, choose_view, standard_page
from kerneltune.agent.view.show import (
    ShownAttempt,
    ShownRun,
    attempt_json,
    compiled_json,
    diff_text,
    print_attempt,
    print_conversations,
    print_run,
    ptx_change,
    ptx_in_window,
    ptx_of,
    run_and_attempts_json,
    sass_change,
    sass_of,
    source_text,
)
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.errors import StoreError, UsageError


@dataclass(frozen=True)
class Parts:
    """What of an attempt was asked for by name; nothing stands for all but the conversation and what it compiles to.
    `against`: another attempt, from which `sass` and `ptx` are told apart."""

    source: bool = False
    diff: bool = False
    conversation: bool = False
    receipt: bool = False
    sass: bool = False
    ptx: bool = False
    against: str | None = None

    @property
    def of_attempt(self) -> bool:
        """Whether only an attempt has it: of a run, its best is meant."""
        return self.source or self.diff or self.receipt or self.is_compiled

    @property
    def is_compiled(self) -> bool:
        """Whether the attempt has to be compiled again for it."""
        return self.sass or self.ptx


def show_stored(
    text: str, parts: Parts, wanted: Filter, settings: Settings, environment: Environment, *, json: bool
) -> int:
    """Print the run or attempt that `text` names. Raises UsageError."""
    if parts.against is not None and not parts.is_compiled:
        raise UsageError("--against compares what two attempts compile to: give --sass or --ptx with it")
    choice = choose_view(
        is_terminal=sys.stdout.isatty(), term=environment.term, no_color=environment.no_color, ci=environment.ci
    )
    page = standard_page(colour=choice.colour)
    filtered = wanted != Filter()
    with Store.open(settings.runs_dir) as store:
        if "/" not in text and not parts.of_attempt:
            _show_run(store, store.find_run(text), parts, wanted, page, json=json)
            return 0
        if filtered:
            raise UsageError("--verdict and --min-speedup choose attempts of a run: give them with a run's id alone")
        attempt_id = store.find_attempt_id(text)
        if parts.is_compiled:
            _show_compiled(store, attempt_id, parts, settings, page, json=json)
        else:
            _show_attempt(store, attempt_id, parts, page, json=json)
    return 0


def _show_run(store: Store, run_id: str, parts: Parts, wanted: Filter, page: Page, *, json: bool) -> None:
    if parts.conversation and not json:
        found = _conversations(store, run_id)
        if not found:
            raise StoreError(f"run {run_id} held no conversation: its author is not a model")
        return print_conversations(found, page)
    summary = store.run_summary(run_id)
    if summary is None:
        raise StoreError(f"{store.path}: run {run_id} is gone")
    best = folder_of(store.path.parent, run_id) / "best.py"
    attempts = store.attempt_summaries(run_id, wanted)
    shown = ShownRun(store.load_run(run_id), summary, attempts, str(best) if best.is_file() else None)
    if not json:
        return print_run(shown, page)
    told = {"conversations": encode(_conversations(store, run_id))} if parts.conversation else {}
    return print(jsonlib.dumps(run_and_attempts_json(shown) | told, allow_nan=False))


def _show_attempt(store: Store, attempt_id: str, parts: Parts, page: Page, *, json: bool) -> None:
    shown = _shown(store, attempt_id)
    if json:
        conversation = _until(store, shown) if parts.conversation and shown.record.conversation else None
        return print(jsonlib.dumps(attempt_json(shown, conversation), allow_nan=False))
    if parts == Parts():
        return print_attempt(shown, page)
    if parts.source:
        _exactly(shown.record.source, page, source=True)
    if parts.diff:
        _exactly(shown.diff, page)
    if parts.receipt:
        _exactly(_receipt(shown), page)
    if parts.conversation:
        print_conversations([_until(store, shown)], page)
    return None


def _show_compiled(store: Store, attempt_id: str, parts: Parts, settings: Settings, page: Page, *, json: bool) -> None:
    if parts.source or parts.diff or parts.receipt or parts.conversation:
        raise UsageError(
            "--sass and --ptx are shown by themselves, without --source, --diff, --receipt, --conversation"
        )
    others = [store.find_attempt_id(parts.against)] if parts.against is not None else []
    from kerneltune.agent.commands.compiled import compiled_attempts  # brings the workers

    shown, *rest = compiled_attempts(store, [attempt_id, *others], settings)
    against = rest[0] if rest else None
    if json:
        asked = [name for name in ("sass", "ptx") if getattr(parts, name)]
        return print(jsonlib.dumps(compiled_json(shown, asked, against), allow_nan=False))
    shown_ptx = ptx_in_window(shown) if page.terminal else ptx_of(shown)
    if parts.sass:
        _exactly(sass_change(against, shown) if against else sass_of(shown), page)
    if parts.ptx:
        _exactly(ptx_change(against, shown) if against else shown_ptx, page)
    return None


def _exactly(text: str, page: Page, *, source: bool = False) -> None:
    """To a file or a program byte for byte; to a window in colour, and without what a terminal would obey."""
    if page.terminal:
        page.print(source_text(text, page) if source else diff_text(text))
    else:
        page.write(text)


def _receipt(shown: ShownAttempt) -> str:
    if shown.receipt_path is None:
        raise StoreError(
            f"no receipt of {shown.record.attempt_id} lies here; the machine that judged it may have it, "
            "and `optimize merge` copies receipts"
        )
    return Path(shown.receipt_path).read_text(errors="replace")


def _shown(store: Store, attempt_id: str) -> ShownAttempt:
    events = store.load_attempt(attempt_id)
    run = store.load_run(events[0].run_id)
    record = trajectory([run, *events]).attempts[0]
    parents = store.load_attempt(record.parent_id) if record.parent_id else []
    path = receipt_path(folder_of(store.path.parent, run.run_id), attempt_id)
    return ShownAttempt(
        run,
        record,
        store.ancestors(attempt_id),
        next((e.source for e in parents if isinstance(e, Proposed)), None),
        [e for e in events if isinstance(e, Verified) and e.purpose == "verify"],
        str(path) if path.is_file() else None,
    )


def _conversations(store: Store, run_id: str) -> tuple[Conversation, ...]:
    return trajectory(store.load_messages(run_id)).conversations


def _until(store: Store, shown: ShownAttempt) -> Conversation:
    """The attempt's conversation as far as the reply that proposed it."""
    record = shown.record
    found = _conversations(store, shown.run.run_id)
    its = next((c for c in found if c.key == record.conversation), None)
    if its is None or record.turn is None:
        raise StoreError(f"attempt {record.attempt_id} was not written in a conversation with a model")
    ends = [i for i, m in enumerate(its.messages) if m.turn == record.turn]
    return replace(its, messages=its.messages[: ends[-1] + 1 if ends else None])
