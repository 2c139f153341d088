"""An attempt as people read it: facts, tables, difference and conversation, for a window, a pipe, a page of the screen.
Knows no terminal and no database."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kerneltune.agent.attempt import Attempt, GivenFile, RunStart, point_of
from kerneltune.agent.events import RunStarted, Verified
from kerneltune.agent.models.types import ToolCall
from kerneltune.agent.record.trajectory import Conversation, Message
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import columns, facts, heading, short
from kerneltune.tools.reflect import evidence_in_words
from kerneltune.tools.schema.codec import one_line, plural, unified_diff
from kerneltune.tools.schema.sass import KernelFacts, facts_in_words
from kerneltune.tools.schema.verdict import RIGHT, CaseResult, Status, fastest_first

_MOST_DETAIL = 160  # characters of what was wrong, in a line of a table


def attempts_table(attempts: Sequence[Attempt], best_id: str | None = None) -> Table:
    """Return a table with a row per attempt: parent, verdict, times, registers, rationale."""
    timed = ("time", "speed-up") if any(a.timing for a in attempts) else ()
    shown = ("#", "parent", "verdict", *timed, "regs", "spills", "tried")
    table = columns(*shown, right=("#", "parent", "spills"), cut=("tried",), spare=("spills", "regs", "parent"))
    for attempt in attempts:
        table.add_row(*_row(attempt, timed=bool(timed)), style="bold" if attempt.attempt_id == best_id else "")
    return table


def _row(attempt: Attempt, *, timed: bool) -> Iterator[RenderableType]:
    yield str(attempt.number)
    yield words.parent_name(attempt.attempt_id, attempt.parent_id) or "-"
    yield label(attempt.status)
    if timed:
        yield from (time_words(attempt), speedup_words(attempt))
    yield words.registers(attempt.kernels) or "-"
    yield f"{words.spill_bytes(attempt.kernels)}" if attempt.kernels else "-"
    why = "" if attempt.status in (None, *RIGHT) else f"  [{one_line(attempt.detail)[:_MOST_DETAIL]}]"
    yield short(words.short_name(attempt) + why)


def label(status: str | None) -> Text:
    """Format a verdict's symbol and word, or that there is none."""
    if status is None:
        return Text("· no verdict", style="dim")
    made = words.verdict_label(Status(status), padded=False)
    made.no_wrap = False
    return made


def time_words(attempt: Attempt) -> str:
    """Format the median and its 95 % interval."""
    return words.timing(attempt.timing) if attempt.timing else "-"


def speedup_words(attempt: Attempt) -> str:
    """Format the speed-up over the fastest baseline, with its interval."""
    return words.speedup(attempt.hardest) if attempt.hardest and not attempt.pending else "-"


_WORST = 5
_MOST_LINES = 20_000  # of two sources that are compared: the time grows with their product


@dataclass(frozen=True)
class ShownAttempt:
    """An attempt and what is known beside it. `ancestors`: nearest first; `receipt`: where its receipt is, in words;
    `facts`: of its kernels, where they are known."""

    run: RunStarted
    record: Attempt
    ancestors: Sequence[Attempt] = ()
    verifications: Sequence[Verified] = ()
    receipt: str = ""
    facts: Sequence[KernelFacts] = ()

    @property
    def diff(self) -> str:
        """The source against its parent's; empty without a parent."""
        if not self.ancestors or self.record.parent_id is None:
            return ""
        return unified(self.ancestors[0].source, self.record.source, self.record.parent_id, self.record.attempt_id)


def unified(before: str, after: str, from_name: str, to_name: str) -> str:
    """Return a unified diff, or that there is too much to compare."""
    old, new = before.count("\n"), after.count("\n")
    if old + new > _MOST_LINES:
        return f"# {old} and {new} lines: too many to compare\n"
    return unified_diff(before, after, from_name, to_name)


def known_of(shown: ShownAttempt) -> Iterator[RenderableType]:
    """Everything known of an attempt but its source, its difference and its conversation: a table of facts, and others
    below it."""
    yield facts(fact_rows(shown))
    yield from _tables(shown)


def diff_text(diff: str) -> Text:
    """Colour a diff."""
    text = Text()
    for line in words.lines(diff or "the same source").splitlines():
        text.append(line + "\n", style=words.DIFF_STYLES.get(line[:1], ""))
    text.rstrip()
    return text


def fact_rows(shown: ShownAttempt) -> Iterator[tuple[str, str | Text]]:
    """What is known of an attempt, each with its name."""
    record, run = shown.record, shown.run
    yield "attempt", record.attempt_id
    yield "run", f"{run.task} by {run.author}, {words.where(run)}"
    yield "proposed", f"{_time(record.at)}{_in_conversation(record)}"
    yield "tried", record.rationale
    match record.origin:
        case RunStart(given):
            yield "start", f"--from {given}"
        case GivenFile(name):
            yield "file", name
    if point := point_of(record.origin):
        yield "parameters", ", ".join(f"{k} {v}" for k, v in ({"sketch": point.sketch} | point.params).items())
    tier = f", {record.tier}" if record.tier else ""
    yield "verdict", label(record.status).append(f"{tier}  {one_line(record.detail)}", style="default")
    yield from _measured(record)
    for one in shown.facts:
        yield "compiled", facts_in_words(one)
    if record.library_ops:
        yield "library", ", ".join(record.library_ops)
    spent = {"trace": record.trace_s, "compile": record.compile_s, "judge": record.bench_s}
    yield "took", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items() if seconds is not None) or "-"
    for verified in shown.verifications:
        held = "not decided" if verified.purpose == "unfinished" else "held" if verified.held else "did not hold"
        yield "verified", f"{_time(verified.at)} on {verified.gpu or 'no GPU'}: {held}: {verified.why}"
    if shown.receipt:
        yield "receipt", shown.receipt


def _in_conversation(record: Attempt) -> str:
    return f", conversation {record.conversation} turn {record.turn}" if record.conversation else ""


def _measured(record: Attempt) -> Iterator[tuple[str, str]]:
    if record.timing:
        timing = record.timing
        how = f"cold L2, {timing.n_blocks} blocks, {timing.n_launches} launches"
        yield "time", f"{words.timing(timing)}, {how}"
    for compared in fastest_first(record.comparisons):
        yield f"over {compared.baseline}", f"{words.speedup(compared)} of {words.microseconds(compared.baseline_us)}"
    for its in record.case_times:
        yield f"case {one_line(its.case)}", f"{words.case_time(its)}, weight {its.weight:g}"
    if record.sol_fraction is not None:
        yield "speed of light", f"{record.sol_fraction:.1%}"
    if record.coverage is not None:
        yield "coverage", f"{record.coverage:.0%} of the GPU's time in its own kernels"
    if record.variant:
        yield "variant", record.variant
    if record.verdict:
        yield from evidence_in_words(record.verdict)


def _tables(shown: ShownAttempt) -> Iterator[RenderableType]:
    record = shown.record
    if record.cases:
        right = sum(case.ok for case in record.cases)
        yield heading(f"worst cases ({right} of {plural(len(record.cases), 'input set')} right)")
        yield _cases(record.cases)
    if record.kernels:
        yield heading("kernels")
        yield _kernels(record)
    if record.expectations:
        yield heading("hypotheses")
        yield _expectations(record)
    if shown.ancestors:
        yield heading("derived from")
        yield attempts_table(shown.ancestors)


def _cases(cases: Sequence[CaseResult]) -> Table:
    names = ("", "case", "inputs", "error / tolerance", "largest error", "detail")
    table = columns(*names, cut=("detail",), spare=("largest error", "detail"))
    for case in worst(cases):
        mark = Text("✓", style="green") if case.ok else Text("✗", style="red")
        errors = (f"{case.error_ratio:.3g}", f"{case.max_abs_error:.3g}")
        table.add_row(mark, case.case, case.inputs, *errors, short(case.sentence))
    return table


def worst(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the worst cases: failed ones first, then by error; NaN is the worst."""
    return sorted(cases, key=lambda c: (c.ok, c.error_ratio == c.error_ratio, -c.error_ratio))[:_WORST]


def _kernels(record: Attempt) -> Table:
    names = ("kernel", "registers", "spilled B", "stack B", "shared B", "warps", "stages", "occupancy")
    table = columns(*names, right=names[1:], spare=("stages", "stack B", "warps"))
    for k in record.kernels:
        numbers = (k.registers, k.spill_bytes, k.stack_bytes, k.shared_bytes, k.num_warps, k.num_stages)
        table.add_row(k.name, *map(str, numbers), f"{k.occupancy:.2f}")
    return table


def _expectations(record: Attempt) -> Table:
    table = columns("outcome", "hypothesis", "prediction", cut=("hypothesis", "prediction"))
    for said in record.expectations:
        table.add_row(said.outcome, short(said.hypothesis), short(said.prediction))
    return table


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def spoken(conversations: Sequence[Conversation]) -> Iterator[Text]:
    """Every message in order, below a line with its role."""
    for conversation in conversations:
        yield Text(one_line(f"conversation {conversation.key}"), style="bold")
        for message in conversation.messages:
            yield _message_head(message)
            yield from _message_body(message)


def _message_head(message: Message) -> Text:
    told = one_line("; ".join((message.role, *words.message_facts(message))))
    return Text(f"\n[{told}]", style=f"bold {_STYLES[message.role]}")


def _message_body(message: Message) -> Iterator[Text]:
    if message.thinking.strip():
        yield Text(words.lines(message.thinking).strip("\n"), style="dim italic")
    if message.text.strip():
        yield Text(words.lines(message.text).strip("\n"))
    for call in message.calls:
        yield _call(call)


def _call(call: ToolCall) -> Text:
    text = Text(f"-> {one_line(call.name)}", style="bold")
    for name, value in call.arguments.items():
        text.append(f"\n   {one_line(name)}: ", style="bold")
        text.append(words.argument(words.lines(str(value))), style="default")
    if call.problem:
        text.append(f"\n   {one_line(call.problem)}", style="red")
    return text
