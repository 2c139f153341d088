"""`optimize verify`: repeats a stored verdict with fresh seeds, here or on another GPU, and says whether it held.

The task is found again as the very same file, or as the source that the run kept.
"""

import contextlib
import json as jsonlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from kerneltune.agent.attempt import Controls, GivenFile
from kerneltune.agent.commands import (
    Arch,
    AsJson,
    MovedTask,
    NoColour,
    RunsDir,
    Tier,
    TrustTask,
    Unsandboxed,
    UseService,
    may_use_service,
    service_answer,
)
from kerneltune.agent.events import Note, RunStarted, Verified
from kerneltune.agent.repeat import unfinished
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import Page, choose_view, columns, standard_page, status_line
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.codec import Json, decode, encode, one_line, parsed
from kerneltune.tools.schema.errors import StoreError, Unfit
from kerneltune.tools.schema.task import Contract, contracts_in_words
from kerneltune.tools.schema.verdict import Verdict, fastest_first

if TYPE_CHECKING:
    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.commands.session import OpenTask, Session, Workshop
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.update import Update

command = App(
    name="verify",
    help_epilogue="""
Examples:
    optimize verify 20260101-120000-softmax-ab12/7
    optimize verify 20260101-120000-softmax-ab12     its best attempt
    optimize verify 20260101-12/7 --tier confirmed --json
""",
)


@command.default
def verify(
    attempt: Annotated[
        str,
        Parameter(help="RUN/NUMBER, a run (its best attempt), or the start of either."),
    ],
    /,
    *,
    task: MovedTask = None,
    trust_task: TrustTask = False,
    tier: Tier = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    json: AsJson = False,
    plain: NoColour = False,
    service: UseService = True,
    allow_unsandboxed: Unsandboxed = None,
) -> int:
    """Judge a stored attempt again, here or on another GPU.

    It gets fresh inputs. The answer is whether its verdict held.

    Exit code 0: it held; 1: it did not; 2: bad input.
    """
    settings = chosen_settings(locals())
    with contextlib.ExitStack() as held:
        status = held.enter_context(status_line())
        from kerneltune.agent.record.store import Store

        store = held.enter_context(Store.open(settings.runs_dir))
        run, found = store.find_attempt(attempt)
        _require_source(found)
        outcome = None
        if service and task is None and not trust_task and may_use_service(settings):
            outcome = _through_service(run, found, settings)
        if outcome is None:
            from kerneltune.agent.commands.session import opened_alone

            alone = opened_alone(settings, status)
            outcome = repeat_stored(store, run, found, settings, alone, task, trust_task=trust_task)
    if json:
        print(jsonlib.dumps(verification_json(outcome), allow_nan=False))
    else:
        choice = choose_view(environment(), is_terminal=sys.stdout.isatty(), plain=plain)
        print_verification(outcome, standard_page(colour=choice.colour))
    return int(not outcome.event.held)


def _require_source(attempt: "Attempt") -> None:
    """Raise StoreError for an attempt that cannot be judged again."""
    if attempt.verdict is None:
        raise StoreError(f"attempt {attempt.attempt_id} never got a verdict, so there is nothing to repeat")
    if isinstance(attempt.origin, GivenFile) and attempt.origin.problem:
        raise StoreError(
            f"attempt {attempt.attempt_id} has no source that could be judged again: {attempt.origin.problem}"
        )


def _through_service(run: RunStarted, attempt: "Attempt", settings: Settings) -> "Verification | None":
    """Have the service of these runs judge; None where it does not. Raises WorkerError when it ends on the way."""
    asked = {"attempt": attempt.attempt_id, "tier": settings.tier, "client": "verify"}
    with service_answer(settings.runs_dir, "/verify", asked) as answer:
        if answer is None:
            return None
        told = parsed(answer.read().decode())
    event = decode(Verified, told["event"])
    return Verification(run, attempt.judged, event, tuple(told["differs"]), told["receipt"], told["receipt_path"])


def repeat_stored(
    store: "Store",
    run: RunStarted,
    attempt: "Attempt",
    settings: Settings,
    open_task: "OpenTask",
    task: str | None = None,
    *,
    trust_task: bool = False,
    controls: Controls | None = None,
) -> "Verification":
    """Judge a stored attempt again on its task as `open_task` opens it, whose judge must not have drawn inputs for
    these plans before. Raises TaskError when the task is not found again, StoreError for an attempt that cannot be
    judged again, and Unfit once `controls` are interrupted."""
    from kerneltune.agent.commands.session import stored_task

    _require_source(attempt)
    with ScratchFolder() as scratch:
        came = store.merged_from(run.run_id)
        its_task, differs = stored_task(run, task, scratch, merged_from=came, trusted=trust_task)
        with open_task(its_task) as opened:
            opened.workshop.show(Note("", "verifying", attempt.attempt_id))
            return _repeat(opened, store, run, attempt, settings, differs, controls or Controls())


def _repeat(
    opened: "Session",
    store: "Store",
    run: RunStarted,
    attempt: "Attempt",
    settings: Settings,
    differs: tuple[str, ...],
    controls: Controls,
) -> "Verification":
    """Judge a stored attempt again, compare, and store the event and the receipt."""
    from kerneltune.agent.attempt import rank_key
    from kerneltune.agent.record.folder import folder_of
    from kerneltune.agent.repeat import repeated

    old, attempt_id, source = attempt.judged, attempt.attempt_id, attempt.source
    tier, place = settings.tier or old.tier or "judged", opened.workshop.place
    controls.connect(lambda _: None, lambda: _ended_workers(opened))
    _insist(controls)
    update = opened.tools.updater.update(source)
    with opened.tools.judging:
        _insist(controls)
        started = time.perf_counter()
        verdict = update.failure or opened.tools.benches.bench(update, tier)
        bench_s = time.perf_counter() - started
    _insist(controls)  # else a worker that was ended would look like a candidate's failure
    outcome = repeated(old, verdict, same_gpu=place.gpu == run.gpu)
    book = opened.receipts(folder_of(settings.runs_dir, run.run_id))
    receipt, path = book.keep_again(attempt_id, source, update, verdict, tier if place.gpu else None)
    event = Verified(
        run.run_id,
        attempt_id,
        "unfinished" if unfinished(old, verdict) else "verify",
        verdict,
        round(bench_s, 4),
        outcome.held,
        outcome.why,
        place.gpu,
        place.machine,
        place.versions,
        rank_key(verdict, opened.tools.ordered(update, verdict)),
    )
    store.write(event)
    differs = (*differs, *_differences(opened.workshop, run, attempt, update, verdict))
    return Verification(run, old, event, differs, receipt, str(path))


def _ended_workers(opened: "Session") -> int:
    """End the workers that have the candidate; how many there were."""
    workers = opened.machine.living()
    for worker in workers:
        worker.kill_soon()
    return len(workers)


def _insist(controls: Controls) -> None:
    if controls.interrupted:
        raise Unfit("the verification was given up and is not stored; ask again")


def _differences(
    shop: "Workshop", run: RunStarted, attempt: "Attempt", update: "Update", verdict: Verdict
) -> Iterator[str]:
    """What is not as it was when the attempt was first judged, one line each."""
    place, old = shop.place, attempt.judged
    if place.gpu != run.gpu:
        yield f"GPU: {run.gpu or 'none'} then, {place.gpu or 'none'} now"
    for name, then in run.versions.items():
        if (now := place.versions.get(name)) != then:
            yield f"{name}: {then} then, {now} now"
    if shop.arch != run.arch:
        yield f"compiled for {run.arch} then, for {shop.arch} now"
    then_plan = attempt.plan_sha256
    if then_plan and update.sha256 and update.sha256 != then_plan:
        yield f"plan: {then_plan[:16]} then, {update.sha256[:16]} now (traced by other versions)"
    if verdict.variant != old.variant:
        yield f"variant: {old.variant or 'default'} then, {verdict.variant or 'default'} now"


_SHOWN_VERSIONS = ("kerneltune", "torch", "triton", "python")


@dataclass(frozen=True)
class Verification:
    """The outcome: the `old` verdict of an attempt of `run`, and the event of the new one. `differs`: what is not as it
    was, one line each."""

    run: RunStarted
    old: Verdict
    event: Verified
    differs: tuple[str, ...]
    receipt: dict[str, Json]
    receipt_path: str


def print_verification(found: Verification, page: Page) -> None:
    """Print a table of both verdicts, the differences, and the conclusion."""
    table = columns("", "stored", "now")
    for row in _compared_rows(found):
        table.add_row(*row)
    page.print(Text(f"attempt {found.event.attempt_id}", style="bold"), table)
    if contracts := decode(tuple[Contract, ...], found.receipt.get("task", {}).get("contracts", [])):
        page.print(Text(f"contract: {one_line(contracts_in_words(contracts))}"))
    page.print(*(Text(one_line(f"differs: {line}"), style="yellow") for line in found.differs))
    word, style = ("held", "green") if found.event.held else ("did not hold", "red")
    if found.event.purpose == "unfinished":
        word, style = "not decided", "yellow"
    page.print(
        Text.assemble((f"{word}: ", f"bold {style}"), one_line(found.event.why)), f"receipt {found.receipt_path}"
    )


def _compared_rows(found: Verification) -> Iterator[tuple[str | Text, str | Text, str | Text]]:
    old, new = found.old, found.event.verdict
    yield "status", words.verdict_label(old.status), words.verdict_label(new.status)
    yield "time", _time_cell(old), _time_cell(new)
    for name in _baselines(old, new):
        yield f"over {name}", _speedup_cell(old, name), _speedup_cell(new, name)
    yield "tier", old.tier or "-", new.tier or "-"
    yield "coverage", _share_cell(old.coverage), _share_cell(new.coverage)
    yield "worst error", _error_cell(old), _error_cell(new)
    yield "GPU", found.run.gpu or "none", found.event.gpu or "none"
    for name in _SHOWN_VERSIONS:
        yield name, found.run.versions.get(name, "?"), found.event.versions.get(name, "?")


def _baselines(old: Verdict, new: Verdict) -> Sequence[str]:
    found = fastest_first((*old.comparisons, *new.comparisons))
    return list(dict.fromkeys(c.baseline for c in found))


def _time_cell(verdict: Verdict) -> str:
    return words.timing(verdict.timing) if verdict.timing else "not timed"


def _speedup_cell(verdict: Verdict, baseline: str) -> str:
    return next((words.speedup(c) for c in verdict.comparisons if c.baseline == baseline), "-")


def _share_cell(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _error_cell(verdict: Verdict) -> str:
    if not verdict.cases:
        return "-"
    return f"{max(c.error_ratio for c in verdict.cases):.2g} of the tolerance, {len(verdict.cases)} input sets"


def verification_json(found: Verification) -> dict[str, Json]:
    """Return the one object of --json, and of a service's answer."""
    event = found.event
    return {
        "type": "verification",
        "schema_version": 1,
        **{name: getattr(event, name) for name in ("attempt_id", "held", "why")},
        "differs": list(found.differs),
        "old": _side(found.old, found.run),
        "new": _side(event.verdict, event),
        "receipt_path": found.receipt_path,
        "receipt": found.receipt,
    }


def _side(verdict: Verdict, where: RunStarted | Verified) -> dict[str, Json]:
    without_receipt = {name: value for name, value in encode(verdict).items() if name != "receipt"}
    return {"verdict": without_receipt, "gpu": where.gpu, "versions": dict(where.versions)}
