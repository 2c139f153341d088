"""`optimize show`: a stored run, or one of its attempts, from the record and the files beside it.

What an attempt compiles to is not stored: its plan is compiled again, confined, for the GPU of its run.
"""

import json as jsonlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.commands import AsJson, MinSpeedup, RunsDir, Verdict
from kerneltune.agent.events import RunStarted, Updated, Verified
from kerneltune.agent.record.folder import folder_of, receipt_path
from kerneltune.agent.record.trajectory import Conversation, trajectory
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.tools.schema.codec import DecodeError, decode, encode
from kerneltune.tools.schema.errors import StoreError, UsageError
from kerneltune.tools.schema.plan import Kernel, Plan

if TYPE_CHECKING:
    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.commands.session import Workshop
    from kerneltune.agent.record.query import Filter
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.output import Page
    from kerneltune.agent.view.show import CompiledAttempt, ShownAttempt
    from kerneltune.tools.update import Artefact, KernelCompiler

command = App(
    name="show",
    help_epilogue="""
Examples:
    optimize show 20260101-120000-softmax-ab12       a run and its attempts
    optimize show 20260101-12 --verdict wrong        the start of an id does
    optimize show 20260101-120000-softmax-ab12/7     an attempt
    optimize show 20260101-120000-softmax-ab12/7 --source > mine.py
    optimize show 20260101-120000-softmax-ab12/7 --conversation
    optimize show 20260101-120000-softmax-ab12/7 --sass --against 20260101-120000-softmax-ab12/3
    optimize show 20260101-120000-softmax-ab12 --ptx > best.ptx
""",
)


@command.default
def show(
    name: Annotated[
        str,
        Parameter(help="A run, or RUN/NUMBER for an attempt, or the start of either.", completer=complete.attempts),
    ],
    /,
    *,
    source: Annotated[bool, Parameter(help="Only the source, exactly as it is.", negative="")] = False,
    diff: Annotated[bool, Parameter(help="Only the diff to the parent.", negative="")] = False,
    conversation: Annotated[bool, Parameter(help="Only what was said, up to that attempt.", negative="")] = False,
    receipt: Annotated[bool, Parameter(help="Only the receipt.", negative="")] = False,
    sass: Annotated[bool, Parameter(help="Only its instructions, with source lines, counted.", negative="")] = False,
    ptx: Annotated[bool, Parameter(help="Only the PTX that its kernels are assembled from.", negative="")] = False,
    against: Annotated[
        str | None,
        Parameter(
            metavar="ATTEMPT", help="With --sass or --ptx: what differs from this one.", completer=complete.attempts
        ),
    ] = None,
    verdict: Verdict = None,
    min_speedup: MinSpeedup = None,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Show a stored run, or all that is known of one attempt.

    --source, --diff, --receipt, --sass and --ptx of a run are those of its best attempt. For --sass and --ptx the
    kernels are compiled again, on any machine, and it is said whether they are those that were judged.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.record.query import Filter
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.output import choose_view, standard_page

    parts = Parts(source, diff, conversation, receipt, sass, ptx, against)
    wanted = Filter(verdict=verdict, min_speedup=min_speedup)
    if against is not None and not parts.is_compiled:
        raise UsageError("--against compares what two attempts compile to: give --sass or --ptx with it")
    page = standard_page(colour=choose_view(environment(), is_terminal=sys.stdout.isatty()).colour)
    with Store.open(settings.runs_dir) as store:
        if "/" not in name and not parts.of_attempt:
            _show_run(store, store.find_run(name), parts, wanted, page, json=json)
            return 0
        if wanted != Filter():
            raise UsageError("--verdict and --min-speedup choose attempts of a run: give them with a run's id alone")
        attempt_id = store.find_attempt_id(name)
        if parts.is_compiled:
            _show_compiled(store, attempt_id, parts, settings, page, json=json)
        else:
            _show_attempt(store, attempt_id, parts, page, json=json)
    return 0


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


def _show_run(store: "Store", run_id: str, parts: Parts, wanted: "Filter", page: "Page", *, json: bool) -> None:
    from kerneltune.agent.view.show import ShownRun, print_conversations, print_run, run_and_attempts_json

    if parts.conversation and not json:
        found = _conversations(store, run_id)
        if not found:
            raise StoreError(f"run {run_id} held no conversation: its author is not a model")
        return print_conversations(found, page)
    summary = store.run_summary(run_id)
    if summary is None:
        raise StoreError(f"{store.path}: run {run_id} is gone")
    best = folder_of(store.path.parent, run_id) / "best.py"
    run = store.load_trajectory(run_id)
    attempts = [a for a in run.attempts if wanted.passes([a.status], a.speedup)]
    shown = ShownRun(run.run, summary, attempts, str(best) if best.is_file() else None)
    if not json:
        return print_run(shown, page)
    told = {"conversations": encode(_conversations(store, run_id))} if parts.conversation else {}
    return print(jsonlib.dumps(run_and_attempts_json(shown) | told, allow_nan=False))


def _show_attempt(store: "Store", attempt_id: str, parts: Parts, page: "Page", *, json: bool) -> None:
    from kerneltune.agent.view.show import attempt_json, print_attempt, print_conversations

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


def _show_compiled(
    store: "Store", attempt_id: str, parts: Parts, settings: Settings, page: "Page", *, json: bool
) -> None:
    from kerneltune.agent.view.show import compiled_json, ptx_change, ptx_in_window, ptx_of, sass_change, sass_of

    if parts.source or parts.diff or parts.receipt or parts.conversation:
        raise UsageError(
            "--sass and --ptx are shown by themselves, without --source, --diff, --receipt, --conversation"
        )
    others = [store.find_attempt_id(parts.against)] if parts.against is not None else []
    shown, *rest = _compiled_attempts(store, [attempt_id, *others], settings)
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


def _exactly(text: str, page: "Page", *, source: bool = False) -> None:
    """Print to a file or a program byte for byte; to a window in colour, and without what a terminal would obey."""
    from kerneltune.agent.view.show import diff_text, source_text

    if page.terminal:
        page.print(source_text(text, page) if source else diff_text(text))
    else:
        page.write(text)


def _receipt(shown: "ShownAttempt") -> str:
    if shown.receipt_path is None:
        raise StoreError(
            f"no receipt of {shown.record.attempt_id} lies here; the machine that judged it may have it, "
            "and `optimize merge` copies receipts"
        )
    return Path(shown.receipt_path).read_text(errors="replace")


def _shown(store: "Store", attempt_id: str) -> "ShownAttempt":
    from kerneltune.agent.view.show import ShownAttempt

    run, record = store.find_attempt(attempt_id)
    events = store.load_attempt(attempt_id)
    ancestors = store.ancestors(record)
    path = receipt_path(folder_of(store.path.parent, run.run_id), attempt_id)
    return ShownAttempt(
        run,
        record,
        ancestors,
        ancestors[0].source if ancestors else None,
        [e for e in events if isinstance(e, Verified) and e.purpose == "verify"],
        str(path) if path.is_file() else None,
    )


def _conversations(store: "Store", run_id: str) -> tuple[Conversation, ...]:
    return trajectory(store.load_messages(run_id)).conversations


def _until(store: "Store", shown: "ShownAttempt") -> Conversation:
    """The attempt's conversation as far as the reply that proposed it."""
    record = shown.record
    found = _conversations(store, shown.run.run_id)
    its = next((c for c in found if c.key == record.conversation), None)
    if its is None or record.turn is None:
        raise StoreError(f"attempt {record.attempt_id} was not written in a conversation with a model")
    ends = [i for i, m in enumerate(its.messages) if m.turn == record.turn]
    return replace(its, messages=its.messages[: ends[-1] + 1 if ends else None])


def _compiled_attempts(store: "Store", attempt_ids: Sequence[str], settings: Settings) -> "list[CompiledAttempt]":
    """Each attempt's kernels, compiled and disassembled: those of the variant that was timed. Raises StoreError for an
    attempt that has no plan, or whose plan does not compile here."""
    from kerneltune.agent.commands.session import print_progress, workshop

    found = [store.find_attempt(attempt_id) for attempt_id in attempt_ids]
    plans = [_stored_plan(store, attempt) for _, attempt in found]  # what cannot work is said before the workers start
    with workshop(settings, print_progress) as shop:
        return [_compiled(run, its, plan, shop) for (run, its), plan in zip(found, plans, strict=True)]


def _compiled(run: RunStarted, attempt: "Attempt", plan: Plan, shop: "Workshop") -> "CompiledAttempt":
    """The plan of the variant that was timed, compiled again, confined, for the GPU of its run."""
    from kerneltune.agent.view.show import CompiledAttempt
    from kerneltune.tools.update import KernelCompiler, UpdateLimits

    variant = attempt.verdict.variant if attempt.verdict else ""
    is_stored = variant in ("", plan.variant)
    if not is_stored:
        plan = _traced_again(run, attempt, variant, shop) or plan
    kernels = list({kernel.sha256: kernel for kernel in plan.kernels}.values())
    compiling = KernelCompiler(shop.machine.compiler, run.arch, compile_s=UpdateLimits().compile_s)
    artefacts = _artefacts(attempt.attempt_id, compiling, kernels, run.arch)
    reply = compiling.sass(artefacts)
    if reply.problem:
        raise StoreError(f"attempt {attempt.attempt_id} cannot be disassembled here: {reply.problem}")
    judged = {report.cubin_sha256 for report in attempt.kernels}
    return CompiledAttempt(
        attempt_id=attempt.attempt_id,
        variant=plan.variant,
        timed_variant=variant or plan.variant,
        arch=run.arch,
        versions_then=run.versions,
        versions_now=shop.place.versions,
        assembler=reply.assembler,
        disassembler=reply.disassembler,
        same_cubins=judged == {a.compiled.report.cubin_sha256 for a in artefacts} if is_stored else None,
        ptx=tuple(k.text if k.language == "ptx" else its.ptx for k, its in zip(kernels, reply.kernels, strict=True)),
        reports=tuple(a.compiled.report for a in artefacts),
        sass=reply.kernels,
    )


def _stored_plan(store: "Store", attempt: "Attempt") -> Plan:
    """The plan of the default variant. Raises StoreError."""
    attempt_id = attempt.attempt_id
    updated = next((e for e in store.load_attempt(attempt_id) if isinstance(e, Updated)), None)
    if updated is None or updated.plan is None:
        why = f"its verdict is {updated.failure.status.value}" if updated and updated.failure else "it was never traced"
        raise StoreError(f"attempt {attempt_id} has no kernels that could be compiled: {why}")
    try:
        plan = decode(Plan, updated.plan)
    except DecodeError as error:
        raise StoreError(f"the stored plan of attempt {attempt_id} cannot be read: {error}") from error
    if not plan.kernels:
        raise StoreError(f"attempt {attempt_id} launches no kernel of its own")
    return plan


def _traced_again(run: RunStarted, attempt: "Attempt", variant: str, shop: "Workshop") -> Plan | None:
    """The plan of another variant than the one that is stored; None where it does not come of the source here."""
    from kerneltune.agent.commands.session import session
    from kerneltune.agent.commands.verify import stored_task

    with tempfile.TemporaryDirectory(prefix="kerneltune-task-") as scratch:
        found = stored_task(run, None, Path(scratch))
        with session(replace(shop, arch=run.arch), found.file) as opened:
            plan = opened.tools.updater.update(attempt.source).judged_plan(variant)
    return plan if plan is not None and plan.variant == variant else None


def _artefacts(attempt_id: str, compiling: "KernelCompiler", kernels: list[Kernel], arch: str) -> "list[Artefact]":
    """What the kernels compile to, in their order. Raises StoreError."""
    from kerneltune.tools.update import needs_too_much

    built = compiling.compile([kernels])
    too_large = (needs_too_much(k, arch, built.too_large[k.sha256]) for k in kernels if k.sha256 in built.too_large)
    problem = built.failure.detail if built.failure else next(too_large, "")
    if problem:
        raise StoreError(f"attempt {attempt_id} does not compile here: {problem[:1000]}")
    return [built.artefacts[kernel.sha256] for kernel in kernels]
