"""`optimize show`: a stored run, or one of its attempts, from the record and the files beside it.

What an attempt compiles to is not stored: its plan is compiled again, confined, for the GPU of its run.
"""

import contextlib
import difflib
import json as jsonlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.console import RenderableType
from rich.text import Text

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.commands import AsJson, MinSpeedup, RunsDir, TrustTask, Verdict
from kerneltune.agent.events import RunStarted, Updated, Verified
from kerneltune.agent.record.folder import folder_of, receipt_path
from kerneltune.agent.record.query import Filter, RunSummary, is_number
from kerneltune.agent.record.trajectory import Conversation, trajectory
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.agent.view import text as words
from kerneltune.agent.view.attempt import (
    ShownAttempt,
    attempts_table,
    diff_text,
    known_of,
    label,
    speedup_words,
    spoken,
    time_words,
    unified,
)
from kerneltune.agent.view.output import (
    Page,
    choose_view,
    columns,
    facts,
    heading,
    run_json,
    say,
    short,
    standard_page,
    status_line,
)
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode, one_line, plural, read_file
from kerneltune.tools.schema.errors import StoreError, UsageError
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.sass import (
    LEGEND,
    KernelFacts,
    Sass,
    changes,
    facts_in_words,
    kernel_facts,
    listing,
    numbered_ptx,
)
from kerneltune.tools.schema.verdict import KernelReport, Status

if TYPE_CHECKING:
    from kerneltune.agent.commands.session import Workshop
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.task.load import TaskFile
    from kerneltune.tools.update import Artefact, KernelCompiler

_MOST_PTX_LINES = 8_000  # of two texts that are compared: the time grows with their product
_PTX_NUMBER = re.compile(r"(%[a-z]+|\$L__[A-Za-z_]+)\d+(?:_\d+)?")

command = App(
    name="show",
    help_epilogue="""
Examples:
    optimize show last                        the latest run and its attempts
    optimize show softmax --verdict wrong     the latest run of that task
    optimize show 20260101-12/7               an attempt; the start of an id does
    optimize show 7 --against 1               two attempts of the latest run
    optimize show last/7 --source > mine.py
    optimize show last/7 --conversation
    optimize show last/7 --sass --against 3
    optimize show last --ptx > best.ptx
""",
)


@command.default
def show(
    name: Annotated[
        str,
        Parameter(help="A run, or RUN/NUMBER for an attempt: an id or its start, last, -2, a task's name."),
    ],
    /,
    *,
    source: Annotated[bool, Parameter(help="Only the source, exactly as it is.", negative="")] = False,
    diff: Annotated[bool, Parameter(help="Only the diff to the parent.", negative="")] = False,
    conversation: Annotated[bool, Parameter(help="Only the conversation, up to that attempt.", negative="")] = False,
    receipt: Annotated[bool, Parameter(help="Only the receipt.", negative="")] = False,
    sass: Annotated[
        bool, Parameter(help="Only its machine instructions, counted, with source lines.", negative="")
    ] = False,
    ptx: Annotated[bool, Parameter(help="Only the PTX that its kernels are assembled from.", negative="")] = False,
    trust_task: TrustTask = False,
    against: Annotated[
        str | None,
        Parameter(metavar="ATTEMPT", help="Compare with this one; with --sass or --ptx, what both compile to."),
    ] = None,
    verdict: Verdict = None,
    min_speedup: MinSpeedup = None,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Show a stored run, or all that is known of one attempt.

    --source, --diff, --receipt, --sass and --ptx of a run are those of its best attempt. For --sass and --ptx the
    kernels are compiled again, on any machine; the first lines say whether they match those that were judged.
    """
    settings = chosen_settings(locals())
    from kerneltune.agent.record.store import Store

    parts = Parts(source, diff, conversation, receipt, sass, ptx, against)
    wanted = Filter(verdict=verdict, min_speedup=min_speedup)
    page = standard_page(colour=choose_view(environment(), is_terminal=sys.stdout.isatty()).colour)
    with Store.open(settings.runs_dir, to_look=True) as store:
        if not ("/" in name or is_number(name) or parts.of_attempt):
            _show_run(store, store.find_run(name), parts, wanted, page, json=json)
            return 0
        if wanted != Filter():
            raise UsageError("--verdict and --min-speedup choose attempts of a run: give them with a run's id alone")
        attempt_id = store.find_attempt_id(name)
        if against is not None:
            parts = replace(parts, against=store.find_attempt_id(_in_run_of(attempt_id, against)))
        if parts.is_compiled:
            _show_compiled(store, attempt_id, parts, settings, page, json=json, trust_task=trust_task)
        else:
            _show_attempt(store, attempt_id, parts, page, json=json)
    return 0


def _in_run_of(attempt_id: str, named: str) -> str:
    """An attempt as a person named it beside another: a number alone is one of the same run."""
    return f"{attempt_id.rpartition('/')[0]}/{named}" if named.isdecimal() else named


@dataclass(frozen=True)
class Parts:
    """What of an attempt was asked for by name; nothing stands for all but the conversation and what it compiles to.
    `against`: the id of another attempt, with which it is compared."""

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
        return self.source or self.diff or self.receipt or self.is_compiled or self.against is not None

    @property
    def is_compiled(self) -> bool:
        """Whether the attempt has to be compiled again for it."""
        return self.sass or self.ptx


def _show_run(store: "Store", run_id: str, parts: Parts, wanted: Filter, page: Page, *, json: bool) -> None:
    if parts.conversation and not json:
        found = _conversations(store, run_id)
        if not found:
            raise StoreError(f"run {run_id} held no conversation: its author is not a model")
        return page.print(*spoken(found))
    summary = store.run_summary(run_id)
    if summary is None:
        raise StoreError(f"{store.path}: run {run_id} is gone")
    best = folder_of(store.path.parent, run_id) / "best.py"
    run = store.load_trajectory(run_id)
    attempts = [a for a in run.attempts if wanted.passes([a.status], a.speedup)]
    about = (run.run, summary, str(best) if best.is_file() else None, store.merged_from(run_id))
    if json:
        told = _run_json(*about) | {"attempts_shown": list(map(line_json, attempts))}
        if parts.conversation:
            told["conversations"] = encode(_conversations(store, run_id))
        return print(jsonlib.dumps(told, allow_nan=False))
    left_out = f" of {summary.attempts}" if summary.attempts > len(attempts) else ""
    page.print(facts(_run_facts(*about)), heading(f"{plural(len(attempts), 'attempt')}{left_out}"))
    if attempts:
        page.print(attempts_table(attempts, summary.best_attempt_id))
    return None


def _show_attempt(store: "Store", attempt_id: str, parts: Parts, page: Page, *, json: bool) -> None:
    shown = shown_attempt(store, attempt_id)
    if parts.against is not None:
        return _show_comparison(store.find_attempt(parts.against)[1], shown.record, parts, page, json=json)
    if json:
        spoke = parts.conversation and shown.record.conversation
        conversation = said_until(store, shown.record) if spoke else None
        path = _receipt_path(store, attempt_id)
        return print(jsonlib.dumps(attempt_json(shown, path, conversation), allow_nan=False))
    if parts == Parts():
        page.print(*known_of(shown))
        if shown.record.parent_id:
            page.print(heading(f"diff to {one_line(shown.record.parent_id)}"), diff_text(shown.diff))
        return page.print(heading("source"), _source_text(shown.record.source, page))
    if parts.source:
        _exactly(shown.record.source, page, source=True)
    if parts.diff:
        _exactly(shown.diff, page)
        if not shown.record.parent_id:
            say(
                f"attempt {one_line(attempt_id)} has no parent, so there is no diff; --against RUN/NUMBER names another"
            )
    if parts.receipt:
        _exactly(_receipt(store, attempt_id), page)
    if parts.conversation:
        page.print(*spoken([said_until(store, shown.record)]))
    return None


def _show_comparison(other: Attempt, record: Attempt, parts: Parts, page: Page, *, json: bool) -> None:
    """Two attempts beside each other, and what differs in their sources."""
    if parts.source or parts.receipt or parts.conversation:
        raise UsageError("--against goes with --diff, --sass, --ptx or nothing")
    diff = unified(other.source, record.source, other.attempt_id, record.attempt_id)
    if json:
        told = {"type": "comparison", "schema_version": 1, "diff": diff}
        told["attempts"] = list(map(line_json, (other, record)))
        return print(jsonlib.dumps(told, allow_nan=False))
    if parts.diff:
        return _exactly(diff, page)
    own_run = other.attempt_id.startswith(record.attempt_id.rpartition("/")[0])
    names = [f"#{a.number}" if own_run else a.attempt_id for a in (other, record)]
    table = columns("", *names, cut=names)
    for name, before, after in zip(_COMPARED, _compared(other), _compared(record), strict=True):
        table.add_row(Text(name, style="bold"), before, after)
    return page.print(table, heading("what differs in the source"), diff_text(diff))


_COMPARED = ("tried", "verdict", "time", "speed-up", "registers", "spills", "occupancy", "shared")


def _compared(attempt: Attempt) -> Iterator[RenderableType]:
    kernels = attempt.kernels
    yield short(words.short_name(attempt))
    yield label(attempt.status)
    yield time_words(attempt)
    yield speedup_words(attempt)
    yield words.registers(kernels) or "-"
    yield words.size(words.spill_bytes(kernels)) if kernels else "-"
    yield f"{words.occupancy(kernels):.0%}" if kernels else "-"
    yield words.size(words.shared_bytes(kernels)) if kernels else "-"


def _show_compiled(
    store: "Store", attempt_id: str, parts: Parts, settings: Settings, page: Page, *, json: bool, trust_task: bool
) -> None:
    if parts.source or parts.diff or parts.receipt or parts.conversation:
        raise UsageError(
            "--sass and --ptx are shown by themselves, without --source, --diff, --receipt, --conversation"
        )
    others = [parts.against] if parts.against is not None else []

    @contextlib.contextmanager
    def opened() -> "Iterator[Workshop]":
        from kerneltune.agent.commands.session import workshop

        with status_line() as status, workshop(settings, status) as shop:
            yield shop

    shown, *rest = compiled_attempts(store, [attempt_id, *others], opened, trust_task=trust_task)
    against = rest[0] if rest else None
    if json:
        asked = [name for name in ("sass", "ptx") if getattr(parts, name)]
        return print(jsonlib.dumps(compiled_json(shown, asked, against), allow_nan=False))
    if parts.sass:
        _exactly(sass_change(against, shown) if against else sass_of(shown), page)
    if parts.ptx:
        _exactly(ptx_change(against, shown) if against else ptx_of(shown, numbered=page.terminal), page)
    return None


def _exactly(text: str, page: Page, *, source: bool = False) -> None:
    """Print to a file or a program byte for byte; to a window in colour, and without what a terminal would obey."""
    if page.terminal:
        page.print(_source_text(text, page) if source else diff_text(text))
    else:
        page.write(text)


def _source_text(source: str, page: Page) -> RenderableType:
    """Highlight a source where the page has colours."""
    shown = words.lines(source).rstrip("\n")
    if not (page.terminal and page.colour):
        return Text(shown)
    from rich.syntax import Syntax  # 100 ms for its lexers

    return Syntax(shown, "python", theme="ansi_dark", background_color="default", word_wrap=True)


def _receipt(store: "Store", attempt_id: str) -> str:
    path = _receipt_path(store, attempt_id)
    if path is None:
        raise StoreError(
            f"no receipt of {attempt_id} lies here; the machine that judged it may have it, "
            "and `optimize merge` copies receipts"
        )
    return read_file(path).decode(errors="replace")


def _receipt_path(store: "Store", attempt_id: str) -> Path | None:
    path = receipt_path(folder_of(store.path.parent, attempt_id.rpartition("/")[0]), attempt_id)
    return path if path.is_file() else None


def shown_attempt(store: "Store", attempt_id: str) -> ShownAttempt:
    """An attempt with all that the record has of it. Raises StoreError."""
    run, record = store.find_attempt(attempt_id)
    events = store.load_attempt(attempt_id)
    ancestors = store.ancestors(record)
    path = _receipt_path(store, attempt_id)
    return ShownAttempt(
        run,
        record,
        ancestors,
        [e for e in events if isinstance(e, Verified) and e.purpose == "verify"],
        str(path or "no file here; the record keeps its evidence"),
        _facts_of(record, next((e for e in events if isinstance(e, Updated)), None)),
    )


def _facts_of(record: Attempt, updated: Updated | None) -> tuple[KernelFacts, ...]:
    """What the compiler did; nothing where the plan that is stored is another variant's, or cannot be read."""
    variant = record.variant
    try:
        plan = decode(Plan, updated.plan) if updated and updated.plan else None
        if plan is None or variant not in ("", plan.variant) or len(plan.kernels) != len(record.kernels):
            return ()
        return tuple(kernel_facts(k, its, plan) for k, its in zip(plan.kernels, record.kernels, strict=True))
    except (DecodeError, KeyError):
        return ()


def _conversations(store: "Store", run_id: str) -> tuple[Conversation, ...]:
    """What was said in a run. Raises StoreError where a reply's calls are none."""
    try:
        return trajectory(store.load_messages(run_id)).conversations
    except DecodeError as error:
        raise StoreError(f"{store.path}: a reply of run {run_id} is damaged: {error}") from error


def said_until(store: "Store", attempt: Attempt) -> Conversation:
    """The attempt's conversation as far as the reply that proposed it. Raises StoreError where there is none."""
    record, found = attempt, _conversations(store, attempt.attempt_id.rpartition("/")[0])
    its = next((c for c in found if c.key == record.conversation), None)
    if its is None or record.turn is None:
        raise StoreError(f"attempt {record.attempt_id} was not written in a conversation with a model")
    ends = [i for i, m in enumerate(its.messages) if m.turn == record.turn]
    return replace(its, messages=its.messages[: ends[-1] + 1 if ends else None])


def compiled_attempts(
    store: "Store",
    attempt_ids: Sequence[str],
    opened: "Callable[[], contextlib.AbstractContextManager[Workshop]]",
    *,
    trust_task: bool = False,
) -> "list[CompiledAttempt]":
    """Each attempt's kernels, compiled and disassembled: those of the variant that was timed. Raises StoreError for an
    attempt that has no plan, or whose plan does not compile here."""
    from kerneltune.agent.commands.session import stored_task
    from kerneltune.tools.sandbox.scratch import ScratchFolder

    found = [store.find_attempt(attempt_id) for attempt_id in attempt_ids]
    plans = [_stored_plan(store, attempt) for _, attempt in found]  # what cannot work is said before the workers start
    with ScratchFolder() as scratch:
        tasks: list[TaskFile | None] = []
        for (run, its), plan in zip(found, plans, strict=True):
            task = None
            if not _is_timed(plan, its):
                came = store.merged_from(run.run_id)
                task, _ = stored_task(run, None, scratch, merged_from=came, trusted=trust_task)
            tasks.append(task)
        with opened() as shop:
            parts = zip(found, plans, tasks, strict=True)
            return [_compiled(run, its, plan, task, shop) for (run, its), plan, task in parts]


def _is_timed(plan: Plan, attempt: Attempt) -> bool:
    """Whether the plan that is stored is that of the variant that was timed."""
    return attempt.variant in ("", plan.variant)


def _compiled(
    run: RunStarted, attempt: Attempt, plan: Plan, task: "TaskFile | None", shop: "Workshop"
) -> "CompiledAttempt":
    """The plan of the variant that was timed, compiled again, confined, for the GPU of its run; traced again before
    that, on that task, where the plan is another variant's."""
    from kerneltune.tools.update import KernelCompiler, UpdateLimits

    variant = attempt.variant
    if task is not None:
        plan = _traced_again(run, attempt, task, shop) or plan
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
        same_cubins=judged == {a.compiled.report.cubin_sha256 for a in artefacts} if task is None else None,
        ptx=tuple(k.text if k.language == "ptx" else its.ptx for k, its in zip(kernels, reply.kernels, strict=True)),
        facts=tuple(kernel_facts(k, a.compiled.report, plan) for k, a in zip(kernels, artefacts, strict=True)),
        sass=reply.kernels,
    )


def _stored_plan(store: "Store", attempt: Attempt) -> Plan:
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


def _traced_again(run: RunStarted, attempt: Attempt, task: "TaskFile", shop: "Workshop") -> Plan | None:
    """The plan of another variant than the one that is stored; None where it does not come of the source here."""
    from kerneltune.agent.commands.session import session

    with session(replace(shop, arch=run.arch), task) as opened:
        plan = opened.tools.updater.update(attempt.source).judged_plan(attempt.variant)
    return plan if plan is not None and plan.variant == attempt.variant else None


def _artefacts(attempt_id: str, compiling: "KernelCompiler", kernels: list[Kernel], arch: str) -> "list[Artefact]":
    """What the kernels compile to, in their order. Raises StoreError."""
    from kerneltune.tools.update import needs_too_much

    built = compiling.compile([kernels])
    too_large = (needs_too_much(k, arch, built.too_large[k.sha256]) for k in kernels if k.sha256 in built.too_large)
    problem = built.failure.detail if built.failure else next(too_large, "")
    if problem:
        raise StoreError(f"attempt {attempt_id} does not compile here: {problem[:1000]}")
    return [built.artefacts[kernel.sha256] for kernel in kernels]


def _run_json(
    started: RunStarted, summary: RunSummary, best_path: str | None, merged_from: str | None
) -> dict[str, Json]:
    """Return the one object of --json, but for the attempts."""
    facts_of = _listed("author_why task_sha256 machine limits seed versions", started)
    return {
        "type": "run",
        "schema_version": 1,
        **run_json(summary),
        **facts_of,
        "best_path": best_path,
        "merged_from": merged_from,
    }


def _listed(names: str, of: object) -> dict[str, Json]:
    """Those properties, as JSON; None for each where there is nothing to have them."""
    return {name: None if of is None else encode(getattr(of, name)) for name in names.split()}


def line_json(attempt: Attempt) -> dict[str, Json]:
    """An attempt of a list. Times in microseconds, registers per thread of each kernel, spills in bytes."""
    compared = _listed("speedup low high", None if attempt.pending else attempt.hardest)
    return {
        **_listed("attempt_id number parent_id rationale status detail tier", attempt),
        **_listed("median_us low_us high_us", attempt.timing),
        **{name if name == "speedup" else f"speedup_{name}": value for name, value in compared.items()},
        "registers": [k.registers for k in attempt.kernels],
        "spill_bytes": words.spill_bytes(attempt.kernels),
    }


def _run_facts(
    started: RunStarted, summary: RunSummary, best_path: str | None, merged_from: str | None
) -> Iterator[tuple[str, str | Text]]:
    yield "run", summary.run_id
    yield "task", f"{summary.task} (sha256 {started.task_sha256[:16]})"
    if merged_from is not None:
        yield "came with", merged_from
    yield "author", f"{summary.author} ({started.author_why})"
    yield "where", words.where(summary)
    yield "began", f"{summary.started:%Y-%m-%d %H:%M:%S} UTC"
    yield "ended", summary.why or "not yet, or its process was killed"
    yield "versions", ", ".join(f"{k} {v}" for k, v in started.versions.items())
    yield "limits", words.limits_in_words(started.limits) or "none"
    yield "verdicts", _counts(summary)
    untimed = summary.best_attempt_id is not None and summary.best_us is None
    yield "chosen" if untimed else "best", words.best_in_words(summary, in_full=True)
    if best_path:
        yield "kernel", Text(one_line(best_path), style="bold")


def _counts(run: RunSummary) -> Text:
    counts = Text()
    for status in Status:
        if n := run.by_status.get(status.value):
            counts.append_text(words.verdict_label(status, padded=False)).append(f" {n}   ")
    return counts if run.by_status else Text("none yet")


def attempt_json(
    shown: ShownAttempt, receipt: Path | None, conversation: Conversation | None = None
) -> dict[str, Json]:
    """Return the one object of --json."""
    return {
        "type": "attempt",
        "schema_version": 2,
        **_listed(_RECORD, shown.record),
        "tool": shown.record.tool if shown.record.verdict else None,
        "run": _listed("run_id task task_sha256 author arch gpu versions", shown.run),
        "ancestors": list(map(line_json, shown.ancestors)),
        "diff": shown.diff or None,
        "verifications": [_verification(v) for v in shown.verifications],
        "receipt_path": None if receipt is None else str(receipt),
        "messages": None if conversation is None else encode(conversation.messages),
    }


_RECORD = (
    "attempt_id number parent_id at source rationale origin status tool detail timing comparisons case_times"
    " coverage sol_fraction variant tier best kernels library_ops trace_s compile_s bench_s expectations held cases"
    " rank_key lines pending"
)


def _verification(verified: Verified) -> dict[str, Json]:
    verdict = {name: value for name, value in encode(verified.verdict).items() if name != "receipt"}
    return _listed("at gpu held why versions", verified) | {"verdict": verdict}


@dataclass(frozen=True)
class CompiledAttempt:
    """An attempt's kernels, compiled again. `versions_then`: of the run; `same_cubins`: whether they are those that
    were judged, byte for byte; None where nobody knows. `ptx`, `facts` and `sass` have one entry per kernel."""

    attempt_id: str
    variant: str
    timed_variant: str
    arch: str
    versions_then: Mapping[str, str]
    versions_now: Mapping[str, str]
    assembler: str
    disassembler: str
    same_cubins: bool | None
    ptx: tuple[str, ...]
    facts: tuple[KernelFacts, ...]
    sass: tuple[Sass, ...]

    @property
    def reports(self) -> tuple[KernelReport, ...]:
        """The compiler's report of each kernel."""
        return tuple(facts.report for facts in self.facts)

    @property
    def provenance(self) -> Iterator[str]:
        """What was compiled by what, and whether that is what was judged, in lines."""
        now, then = self.versions_now.get("triton"), self.versions_then.get("triton")
        yield (
            f"attempt {self.attempt_id}, variant {self.variant}: compiled for {self.arch} by triton {now} "
            f"with {self.assembler}, disassembled by {self.disassembler}"
        )
        if self.variant != self.timed_variant:
            yield f"the variant that was timed, {self.timed_variant}, does not come of the source here"
        if self.same_cubins:
            yield "the same cubins, byte for byte, as those that were judged"
        elif self.same_cubins is False:
            yield f"other cubins than those that were judged, which triton {then} compiled"


def sass_of(shown: CompiledAttempt) -> str:
    """Return the SASS listing of every kernel below its provenance and what the compiler did."""
    head = [f"// {line}" for line in shown.provenance]
    did = [f"// {facts_in_words(*its)}" for its in zip(shown.facts, shown.sass, strict=True)]
    return "\n".join([*head, *did, LEGEND, "", *(listing(kernel) for kernel in shown.sass)])


def ptx_of(shown: CompiledAttempt, *, numbered: bool = False) -> str:
    """Return the PTX of the only kernel unchanged, ready to assemble; of several, one below the other. `numbered`: for
    a window, with line numbers, below its provenance."""
    if len(shown.ptx) == 1 and not numbered:
        return shown.ptx[0]
    head = [f"// {line}" for line in shown.provenance] if numbered else []
    texts = map(numbered_ptx, shown.ptx) if numbered else shown.ptx
    named = zip(shown.reports, texts, strict=True)
    return "\n".join([*head, *(f"// kernel {report.name}\n{text}" for report, text in named)])


def sass_change(before: CompiledAttempt, after: CompiledAttempt) -> str:
    """Compare two attempts' SASS: resources first, then the hot loops."""
    told = (*_provenance_lines(before, after), "", *_resource_changes(before, after))
    return "\n".join([*told, changes(before.sass, after.sass), ""])


def ptx_change(before: CompiledAttempt, after: CompiledAttempt) -> str:
    """Compare two attempts' PTX, leaving out the numbers of registers and labels."""
    texts = (ptx_of(before), ptx_of(after))
    found = _ptx_difference(*texts, before.attempt_id, after.attempt_id)
    return found or "the same PTX but for the numbers of registers and labels\n"


def _ptx_difference(before: str, after: str, from_name: str, to_name: str) -> str:
    """The lines of PTX that differ by more than numbers of registers and labels, as they are, in the form of a diff;
    empty where none does."""
    old, new = (_ptx_lines(text) for text in (before, after))
    if len(old) + len(new) > _MOST_PTX_LINES:
        return f"# {len(old)} and {len(new)} lines: too many to compare\n"
    keys = [[_PTX_NUMBER.sub(r"\1", line) for line in lines] for lines in (old, new)]
    told: list[str] = []
    for group in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_grouped_opcodes(3):
        told.append(f"@@ -{group[0][1] + 1} +{group[0][3] + 1} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                told += [f" {line}" for line in new[j1:j2]]
            else:
                told += [*(f"-{line}" for line in old[i1:i2]), *(f"+{line}" for line in new[j1:j2])]
    return "".join(f"{line}\n" for line in [f"--- {from_name}", f"+++ {to_name}", *told]) if told else ""


def _ptx_lines(text: str) -> list[str]:
    """Without comments and debug lines."""
    lines = (line.partition("//")[0].strip() for line in text.split("\n"))
    return [" ".join(line.split()) for line in lines if line and not line.startswith((".loc", ".file"))]


def _provenance_lines(before: CompiledAttempt, after: CompiledAttempt) -> Iterator[str]:
    for sign, shown in (("-", before), ("+", after)):
        first, *rest = shown.provenance
        yield f"{sign * 3} {first}"
        yield from (f"    {line}" for line in rest)


def _resource_changes(before: CompiledAttempt, after: CompiledAttempt) -> Iterator[str]:
    old = {report.name: report for report in before.reports}
    for report in after.reports:
        if (other := old.get(report.name)) is not None:
            yield f"{report.name}: {_resources(other)} -> {_resources(report)}"


def _resources(report: KernelReport) -> str:
    return (
        f"{report.registers} registers, {report.spill_bytes} B spilled, {report.shared_bytes} B shared, "
        f"{plural(report.num_warps, 'warp')}, occupancy {report.occupancy:.0%}"
    )


def compiled_json(shown: CompiledAttempt, parts: Sequence[str], against: CompiledAttempt | None) -> dict[str, Json]:
    """Return the one object of --json. `parts`: "sass", "ptx" or both."""
    found: dict[str, Json] = {
        "type": "compiled",
        "schema_version": 2,
        **_listed("attempt_id variant timed_variant arch assembler disassembler same_cubins", shown),
        "versions": dict(shown.versions_now),
        "kernels": encode(shown.reports),
    }
    if "sass" in parts:
        found["sass"] = [_sass_json(kernel) for kernel in shown.sass]
    if "ptx" in parts:
        found["ptx"] = list(shown.ptx)
    if against is not None:
        found["against"] = against.attempt_id
        found["difference"] = {
            name: change(against, shown)
            for name, change in (("sass", sass_change), ("ptx", ptx_change))
            if name in parts
        }
    return found


def _sass_json(kernel: Sass) -> dict[str, Json]:
    return {name: value for name, value in encode(kernel).items() if name != "ptx"}
