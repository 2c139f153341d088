"""A run as text when it is over: what was verified, where, the best attempt, and what to type next."""

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from agent.view import text as words
from agent.view.state import AttemptState, ViewState, format_spending
from agent.view.text import verdict_label, verdict_style
from tools.verdict import Status, Verdict


def best_lines(row: AttemptState) -> list[Text]:
    """Format the best attempt's facts, one a line, the most important first."""
    verdict = row.verdict
    if verdict is None:
        return []
    line = verdict_label(verdict.status, padded=False)
    if verdict.timing is None:
        return [line.append("   " + compiler_facts(row), style="default")]
    line.append(f"   {words.timing(verdict.timing)}", style="bold default")
    if verdict.sol_fraction is not None:
        line.append(f"   {verdict.sol_fraction:.0%} of speed of light", style="default")
    if verdict.coverage is not None:
        line.append(f"   coverage {verdict.coverage:.0%}", style="default")
    return [line, *_speedups(verdict)]


def _speedups(verdict: Verdict) -> list[Text]:
    compared = words.fastest_first(verdict.comparisons)
    names = max((len(c.baseline) for c in compared), default=0)
    lines = (f"vs {c.baseline:{names}} {words.microseconds(c.baseline_us):>9}   {words.speedup(c)}" for c in compared)
    return [Text(words.clean(line), no_wrap=True, overflow="ellipsis") for line in lines]


def compiler_facts(row: AttemptState) -> str:
    """Format registers, spills, occupancy and shared memory."""
    if not row.kernels:
        return "no kernel compiled"
    return "   ".join(
        (
            f"registers {words.registers(row.kernels)}",
            f"spills {words.size(words.spill_bytes(row.kernels))}",
            f"occupancy {words.occupancy(row.kernels):.0%}",
            f"shared {words.size(words.shared_bytes(row.kernels))}",
        )
    )


_WHY = {
    "attempts": "the limit of attempts is reached",
    "time": "the limit of time is reached",
    "patience": "no improvement for as long as the limit allows",
    "interrupted": "interrupted; every finished attempt is kept",
    "author_done": "the author has nothing left to try",
    "cost": "the limit of cost is reached",
    "goal": "the goal is reached",
    "stopped": "stopped by a person; --resume goes on",
    "model_error": "the model could not be asked any more; --resume goes on",
    "failed": "failed",
}


class NextCommand(NamedTuple):
    """A command to type, and what it is good for."""

    command: str
    purpose: str


class SummaryLine(NamedTuple):
    """One line of the summary."""

    name: str
    value: Text


def summary(state: ViewState, next_commands: Sequence[NextCommand] = ()) -> RenderableType:
    """Return the closing summary for a terminal of any width."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for fact in _facts(state, next_commands):
        table.add_row(fact.name, fact.value)
    return table


def summary_text(state: ViewState, next_commands: Sequence[NextCommand] = (), *, width: int = 200) -> str:
    """Return the closing summary without escape codes, for pipes and logs."""
    page = StringIO()
    Console(file=page, width=width, color_system=None, force_terminal=False).print(summary(state, next_commands))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _facts(state: ViewState, next_commands: Sequence[NextCommand]) -> Iterator[SummaryLine]:
    yield SummaryLine("run", Text(words.one_line(f"{state.task or '?'}  {state.run_id or ''}  {_why(state)}")))
    yield SummaryLine("proved", Text(_proved(state)))
    if best := state.best:
        yield from _best_facts(best)
    if state.ended and state.ended.best_path:
        yield SummaryLine("kernel", Text(words.one_line(state.ended.best_path), style="bold"))
    if state.by_status:
        yield SummaryLine("verdicts", _counts(state))
    if state.spending.replies:
        yield SummaryLine("model", Text(_spent(state)))
    for warning in dict.fromkeys(state.warnings):
        yield SummaryLine("warning", Text(words.one_line(warning), style="yellow"))
    yield from _next(next_commands)


def _why(state: ViewState) -> str:
    if state.ended is None:
        return "stopped before it ended"
    why = _WHY.get(state.ended.why, state.ended.why)
    return f"ended after {words.duration(state.elapsed_s(state.ended.at))}: {why}"


def _proved(state: ViewState) -> str:
    verdict = state.best.verdict if state.best else None
    if verdict is None or not verdict.accepted:
        return f"nothing: none of {words.plural(state.finished, 'attempt')} was right"
    if verdict.status is Status.CORRECT:
        how = f"{verdict.tier}; " if verdict.tier else ""
        return f"right and timed on {words.one_line(state.gpu or 'a GPU')}: {how}{_evidence(verdict)}"
    return f"right in the CPU interpreter, not timed (no GPU): {_evidence(verdict)}"


def _evidence(verdict: Verdict) -> str:
    if not verdict.cases:
        return words.one_line(verdict.detail)
    shapes = words.plural(len({c.case for c in verdict.cases}), "case")
    worst = max(c.error_ratio for c in verdict.cases)
    checked = f"{shapes}, {words.plural(len(verdict.cases), 'input set')}; worst error {worst:.2g} of the tolerance"
    return f"{checked}; not checked in full (see its verdict)" if verdict.limitations else checked


def _best_facts(best: AttemptState) -> Iterator[SummaryLine]:
    yield SummaryLine("best", Text(words.one_line(f"#{best.number} {best.rationale}")))
    for line in best_lines(best):
        line.no_wrap = False
        yield SummaryLine("", line)


def _counts(state: ViewState) -> Text:
    counts = Text()
    for status, n in state.by_status.items():
        style = verdict_style(Status(status))
        counts.append(f"{style.symbol} {status} {n}   ", style=style.colour)
    return counts


def _spent(state: ViewState) -> str:
    spent = state.spending
    replies = f"{spent.replies} {'reply' if spent.replies == 1 else 'replies'}"
    usd, better = spent.usd, state.improvements
    each = f"; {words.dollars(usd / better)} per improvement" if usd and better else ""
    judge = f"; {'GPU' if state.gpu else 'judge'} busy {words.duration(state.judge_s)}"
    return f"{replies}: {format_spending(spent)}{each}{judge}"


def _next(next_commands: Sequence[NextCommand]) -> Iterator[SummaryLine]:
    width = max((len(c.command) for c in next_commands), default=0)
    for i, entry in enumerate(next_commands):
        line = Text(f"{entry.command:{width}}", style="cyan").append(f"   {entry.purpose}", style="default")
        yield SummaryLine("" if i else "next", line)
