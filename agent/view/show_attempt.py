"""What `optimize show` shows of an attempt: why it was tried, what it came to, where it comes from, and its source."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent.record.events import RunStarted, Verified
from agent.record.listing import AttemptSummary
from agent.record.trajectory import AttemptRecord, Conversation
from agent.view import text as words
from agent.view.page import Page, columns, facts, heading, short
from agent.view.show import SCHEMA_VERSION, attempts_table, label
from tools.codec import Json, encode
from tools.verdict import CaseResult

_WORST = 5
_MOST_LINES = 20_000  # of two sources that are compared: the time grows with their product
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class ShownAttempt:
    """An attempt and what is known beside it. `ancestors`: nearest first; `receipt_path`: None without a file."""

    run: RunStarted
    record: AttemptRecord
    ancestors: Sequence[AttemptSummary]
    parent_source: str | None
    verifications: Sequence[Verified]
    receipt_path: str | None

    @property
    def diff(self) -> str:
        """The source against its parent's; empty without a parent."""
        if self.parent_source is None or self.record.parent_id is None:
            return ""
        return unified(self.parent_source, self.record.source, self.record.parent_id, self.record.attempt_id)


def unified(before: str, after: str, from_name: str, to_name: str) -> str:
    """What changed, in the form that `patch` takes."""
    old, new = (re.findall("[^\n]*\n|[^\n]+", source) for source in (before, after))
    if len(old) + len(new) > _MOST_LINES:
        return f"# {len(old)} and {len(new)} lines: too many to compare\n"
    lines = difflib.unified_diff(old, new, from_name, to_name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def print_attempt(shown: ShownAttempt, page: Page) -> None:
    """Everything but the conversation."""
    page.print(_facts(shown), *_tables(shown))
    if shown.record.parent_id:
        page.print(heading(f"diff to {words.one_line(shown.record.parent_id)}"), diff_text(shown.diff))
    page.print(heading("source"), source_text(shown.record.source, page))


def diff_text(diff: str) -> Text:
    """A diff for a person."""
    text = Text()
    for line in words.clean(diff or "the same source").splitlines():
        text.append(line + "\n", style=_DIFF_STYLES.get(line[:1], ""))
    text.rstrip()
    return text


def source_text(source: str, page: Page) -> RenderableType:
    """A source for a person."""
    shown = words.clean(source).rstrip("\n")
    if not (page.terminal and page.colour):
        return Text(shown)
    return Syntax(shown, "python", theme="ansi_dark", background_color="default", word_wrap=True)


def _facts(shown: ShownAttempt) -> Table:
    table = facts()
    for name, value in _rows(shown):
        table.add_row(name, Text(words.one_line(value)) if isinstance(value, str) else value)
    return table


def _rows(shown: ShownAttempt) -> Iterator[tuple[str, str | Text]]:
    record, run = shown.record, shown.run
    yield "attempt", record.attempt_id
    yield "run", f"{run.task} by {run.author}, {run.gpu or f'no GPU ({run.arch})'}"
    yield "proposed", f"{_time(record.at)}{_said_in(record)}"
    yield "tried", record.rationale
    if chosen := {k: v for k, v in record.params.items() if k not in ("conversation", "turn")}:
        yield "parameters", ", ".join(f"{k} {v}" for k, v in chosen.items())
    tier = f", {record.tier}" if record.tier else ""
    yield "verdict", label(record.status).append(f"{tier}  {words.one_line(record.detail)}", style="default")
    yield from _measured(record)
    if record.library_ops:
        yield "library", ", ".join(record.library_ops)
    spent = {"trace": record.trace_s, "compile": record.compile_s, "judge": record.bench_s}
    yield "took", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items() if seconds is not None) or "-"
    for verified in shown.verifications:
        held = "not decided" if verified.purpose == "unfinished" else "held" if verified.held else "did not hold"
        yield "verified", f"{_time(verified.at)} on {verified.gpu or 'no GPU'}: {held}: {verified.why}"
    yield "receipt", shown.receipt_path or "no file here; the record keeps its evidence"


def _said_in(record: AttemptRecord) -> str:
    return f", conversation {record.conversation} turn {record.turn}" if record.conversation else ""


def _measured(record: AttemptRecord) -> Iterator[tuple[str, str]]:
    if record.timing:
        timing = record.timing
        how = f"cold L2, {timing.n_blocks} blocks, {timing.n_launches} launches"
        yield "time", f"{words.timing(timing)}, {how}"
    for compared in words.fastest_first(record.comparisons):
        yield f"over {compared.baseline}", f"{words.speedup(compared)} of {words.microseconds(compared.baseline_us)}"
    if record.sol_fraction is not None:
        yield "speed of light", f"{record.sol_fraction:.1%}"
    if record.coverage is not None:
        yield "coverage", f"{record.coverage:.0%} of the GPU's time in its own kernels"
    if record.variant:
        yield "variant", record.variant


def _tables(shown: ShownAttempt) -> Iterator[RenderableType]:
    record = shown.record
    if record.cases:
        right = sum(case.ok for case in record.cases)
        yield heading(f"worst cases ({right} of {words.plural(len(record.cases), 'input set')} right)")
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
    table = columns("", "case", "inputs", "error / tolerance", "largest error", "detail", cut=("detail",))
    for case in worst(cases):
        mark = Text("✓", style="green") if case.ok else Text("✗", style="red")
        errors = (f"{case.error_ratio:.3g}", f"{case.max_abs_error:.3g}")
        table.add_row(mark, *map(words.one_line, (case.case, case.inputs)), *errors, short(case.detail))
    return table


def worst(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Those that failed first, then by error; NaN is the worst."""
    return sorted(cases, key=lambda c: (c.ok, c.error_ratio == c.error_ratio, -c.error_ratio))[:_WORST]


def _kernels(record: AttemptRecord) -> Table:
    names = ("kernel", "registers", "spilled B", "stack B", "shared B", "warps", "stages", "occupancy")
    table = columns(*names, right=names[1:])
    for k in record.kernels:
        spilled = k.spill_store_bytes + k.spill_load_bytes
        numbers = (k.registers, spilled, k.stack_bytes, k.shared_bytes, k.num_warps, k.num_stages)
        table.add_row(words.one_line(k.name), *map(str, numbers), f"{k.occupancy:.2f}")
    return table


def _expectations(record: AttemptRecord) -> Table:
    table = columns("outcome", "hypothesis", "prediction", cut=("hypothesis", "prediction"))
    for said in record.expectations:
        table.add_row(said.outcome, short(said.hypothesis), short(said.prediction))
    return table


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def attempt_json(shown: ShownAttempt, conversation: Conversation | None = None) -> dict[str, Json]:
    """The one object of --json."""
    about = ("run_id", "task", "task_sha256", "author", "arch", "gpu", "versions")
    return {
        "type": "attempt",
        "schema_version": SCHEMA_VERSION,
        **encode(shown.record),
        "run": {name: encode(getattr(shown.run, name)) for name in about},
        "ancestors": encode(shown.ancestors),
        "diff": shown.diff or None,
        "verifications": [_verification(v) for v in shown.verifications],
        "receipt_path": shown.receipt_path,
        "messages": None if conversation is None else encode(conversation.messages),
    }


def _verification(verified: Verified) -> dict[str, Json]:
    verdict = {name: value for name, value in encode(verified.verdict).items() if name != "receipt"}
    facts = {name: encode(getattr(verified, name)) for name in ("at", "gpu", "held", "why", "versions")}
    return facts | {"verdict": verdict}
