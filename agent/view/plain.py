"""A run as text: a line per event for pipes, CI and terminals that cannot be redrawn, and the closing summary."""

from collections.abc import Iterator, Sequence
from io import StringIO
from threading import Lock
from types import TracebackType
from typing import NamedTuple, Self, TextIO, assert_never

from rich.console import Console, RenderableType
from rich.text import Text

from kerneltune.agent.attempt import Attempt, StopReason
from kerneltune.agent.events import (
    AttemptSkipped,
    Event,
    GpuSampled,
    Judged,
    JudgingAgain,
    LimitsChanged,
    ModelAsked,
    ModelBusy,
    Note,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopping,
    RunSuspended,
    Said,
    ShownEvent,
    StageStarted,
    Updated,
    Verified,
    Warned,
)
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import LineWriter, facts
from kerneltune.agent.view.render import line, verdict_facts
from kerneltune.agent.view.state import (
    Spending,
    ViewState,
    fold,
    format_note,
    format_reply,
    format_spending,
    judging_again,
    model_busy,
    verification,
)
from kerneltune.agent.view.text import verdict_style
from kerneltune.tools.schema.codec import one_line, plural
from kerneltune.tools.schema.verdict import NOT_TIMED, Status, Verdict, fastest_first, losses_in_words


class PlainView:
    """Called with each event; may be called from several threads."""

    def __init__(self, stream: TextIO, *, colour: bool = False) -> None:
        self.state = ViewState()
        self._lines = LineWriter(stream, colour=colour)
        self._colour = colour
        self._lock = Lock()

    def __call__(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        with self._lock:
            self.state = fold(self.state, event)
            if text := plain_line(self.state, event, colour=self._colour):
                self._lines.write(text)

    @property
    def broken(self) -> bool:
        """Whether the reader is gone."""
        return self._lines.broken

    def close(self, text: str) -> None:
        """Write the closing words, line by line."""
        for one in text.splitlines():
            self._lines.write(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to restore."""


def plain_line(state: ViewState, event: Event, *, colour: bool = False) -> str:
    """Format an event, given the state after it; "" when it has nothing new for a log."""
    match event:
        case RunStarted() | RunResumed() | RunEnded():
            return one_line(_run_line(state, event))
        case Proposed() | Updated() | Judged() | Verified() | Reflected():
            return _attempt_line(state, event, colour)
        case Said():
            spoken = event.final and event.role == "assistant"
            return one_line(f"{state.started.author if state.started else 'author'}: {event.text}") if spoken else ""
        case Replied():
            return one_line(f"{state.started.author if state.started else 'author'}: {_reply(event)}")
        case Warned():
            return one_line(f"warning: {event.text}")
        case _:
            shown = _shown_line(state, event)
            return one_line(f"… {shown}") if shown else ""


def _shown_line(state: ViewState, event: ShownEvent) -> str:
    match event:
        case StageStarted() | AttemptSkipped() | ModelAsked() | GpuSampled():
            return ""  # many, and of no use in a log
        case JudgingAgain():
            return judging_again(event)
        case ModelBusy():
            return model_busy(event)
        case LimitsChanged():
            return _limits(state)
        case RunPaused():
            return "paused" if event.paused else "resumed"
        case RunSuspended():
            return "suspended"
        case RunStopping():
            return "stopping"
        case Note():
            return format_note(event)
        case _:
            assert_never(event)


def _reply(event: Replied) -> str:
    cost = format_spending(Spending().and_(event)) if event.usage else "usage unknown"
    return f"{format_reply(event)}  [{event.conversation}.{event.turn}: {cost}]"


def _run_line(state: ViewState, event: RunStarted | RunResumed | RunEnded) -> str:
    match event:
        case RunStarted():
            machine = f"GPU {event.gpu}" if event.gpu else words.NO_GPU
            author = f"author {event.author} ({event.author_why})"
            return f"run {event.run_id}: {event.task}, {author}, for {event.arch}, {_limits(state)}; {machine}"
        case RunResumed():
            return f"run {event.run_id} goes on after {plural(event.finished_attempts, 'finished attempt')}"
        case RunEnded():
            first = state.number_of(event.best_attempt_id) if event.best_attempt_id else "none"
            said = words.FIRST_CHOICE if state.best and not state.best.timing else "best"
            path = f" in {event.best_path}" if event.best_path else ""
            tried = f"{plural(event.attempts, 'attempt')}, {event.accepted} accepted"
            return f"run {event.run_id} ended ({event.why}): {tried}, {said} {first}{path}"


def _limits(state: ViewState) -> str:
    shown = (f"{b.name} {words.duration(b.limit) if b.name == 'time' else f'{b.limit:.0f}'}" for b in state.budgets(0))
    return "limits: " + (" ".join(shown) or "none")


def _attempt_line(state: ViewState, event: Proposed | Updated | Judged | Verified | Reflected, colour: bool) -> str:
    number = state.number_of(event.attempt_id)
    row = state.row(event.attempt_id)
    match event:
        case Proposed():
            return f"{number} proposed  {_tried(state, row)}"
        case Updated():
            return "" if event.failure else f"{number} compiled  {_compiled(row)}"
        case Judged():
            said = "best so far" if event.verdict.timing else words.FIRST_CHOICE
            best = f"  {said}" if event.best else ""
            status = _status(event.verdict.status, colour)
            known = ", ".join(filter(None, [words.error(event.verdict), _outcome(row, event.verdict)]))
            return f"{number} {status}  {_tried(state, row, in_short=True)}  {known}{best}"
        case Verified():
            facts = f"{_outcome(row, event.verdict)}; " if event.verdict.accepted else ""
            return one_line(f"{number} {verification(event)}  {facts}{event.why}")
        case Reflected():
            return one_line(f"{number} reflected: {event.hypothesis}: {event.outcome}")


def _status(status: Status, colour: bool) -> str:
    return f"\x1b[{verdict_style(status).ansi}m{status.value}\x1b[0m" if colour else status.value


def _tried(state: ViewState, row: Attempt | None, *, in_short: bool = False) -> str:
    if row is None:
        return "(an attempt of an earlier process)"
    parent = f"  (parent {one_line(state.number_of(row.parent_id))})" if row.parent_id else ""
    return (words.short_name(row) if in_short else one_line(row.rationale)) + parent


def _outcome(row: Attempt | None, verdict: Verdict) -> str:
    if not verdict.accepted:
        return one_line(verdict.detail)
    if verdict.not_timed is not None:
        return f"not timed: {NOT_TIMED[verdict.not_timed]}"
    if verdict.timing is None:
        return _compiled(row)
    compared = (f"{words.speedup(c)} vs {c.baseline}" for c in fastest_first(verdict.comparisons))
    lost = filter(None, [losses_in_words(verdict.case_times)])
    return one_line(", ".join((words.timing(verdict.timing), *compared, *lost)))


def _compiled(row: Attempt | None) -> str:
    if row is None or not row.kernels:
        return "no kernel of its own"
    facts = f"regs {words.registers(row.kernels)} spills {words.spill_bytes(row.kernels)}"
    return f"{facts} occ {words.occupancy(row.kernels):.2f}"


_SUMMARY_WIDTH = 100  # cells; a narrower terminal folds its lines
_WHY = {
    StopReason.ATTEMPTS: "the limit of attempts is reached",
    StopReason.TIME: "the limit of time is reached, and what was under way by then is finished",
    StopReason.PATIENCE: "no improvement for as long as the limit allows",
    StopReason.INTERRUPTED: "interrupted; every finished attempt is kept",
    StopReason.AUTHOR_DONE: "the author has nothing left to try",
    StopReason.COST: "the limit of cost is reached",
    StopReason.GOAL: "the goal is reached",
    StopReason.STOPPED: "stopped with q; --resume continues it",
    StopReason.MODEL_ERROR: "the model no longer answers; --resume continues",
    StopReason.NO_ACCESS: "the provider refuses the key, the account or the model; --resume continues",
    StopReason.FAILED: "failed",
    StopReason.REFUSED: "the model will not write kernels",
}


class NextCommand(NamedTuple):
    """A command to type, and what it is good for."""

    command: str
    purpose: str


def summary(state: ViewState, next_commands: Sequence[NextCommand] = (), took_s: float | None = None) -> RenderableType:
    """Return the closing summary for a terminal of any width. `took_s`: the whole command, its start and its end
    included, where that is over."""
    return facts(_facts(state, next_commands, took_s))


def summary_text(
    state: ViewState, next_commands: Sequence[NextCommand] = (), took_s: float | None = None, *, width: int = 200
) -> str:
    """Return the closing summary without escape codes, for pipes and logs."""
    page = StringIO()
    Console(file=page, width=width, color_system=None, force_terminal=False).print(
        summary(state, next_commands, took_s)
    )
    return "\n".join(one.rstrip() for one in page.getvalue().splitlines()) + "\n"


def _facts(state: ViewState, next_commands: Sequence[NextCommand], took_s: float | None) -> Iterator[tuple[str, Text]]:
    yield "run", Text(one_line(f"{state.task or '?'}  {state.run_id or ''}  {_why(state, took_s)}"))
    yield "verified", Text(_verified(state))
    if best := state.best:
        label, said = ("best", "") if best.timing else ("chosen", f" ({words.FIRST_CHOICE})")
        yield label, Text(one_line(f"#{best.number}{said} {best.rationale}"))
        for parts in verdict_facts(best, _SUMMARY_WIDTH, state.gpu)[
            : None if best.verdict and best.verdict.timing else 1
        ]:
            made = line(*parts)
            made.no_wrap = False
            yield "", made
    if state.ended and state.ended.best_path:
        yield "kernel", Text(one_line(state.ended.best_path), style="bold")
    if state.by_status:
        yield "verdicts", _counts(state)
    if state.spending.replies:
        yield "model", Text(_spent(state))
    for warning in dict.fromkeys(state.warnings):
        yield "warning", Text(one_line(warning), style="yellow")
    yield from _next(next_commands)


def _why(state: ViewState, took_s: float | None) -> str:
    if state.ended is None:
        return "stopped before it ended"
    all_s = state.elapsed_s(state.ended.at) if took_s is None else state.earlier_s + took_s
    return f"ended after {words.duration(all_s)}: {_WHY[state.ended.why]}"


def _verified(state: ViewState) -> str:
    verdict = state.best.verdict if state.best else None
    if verdict is None or not verdict.accepted:
        return f"nothing: none of {plural(state.finished, 'attempt')} was right" if state.finished else "nothing"
    if verdict.status is Status.CORRECT:
        how = f"{verdict.tier}; " if verdict.tier else ""
        return f"right and timed on {one_line(state.gpu or 'a GPU')}: {how}{_evidence(verdict)}"
    if verdict.not_timed is not None:
        return f"right, not timed ({NOT_TIMED[verdict.not_timed]}): {_evidence(verdict)}"
    return f"right in the CPU interpreter, not timed (no GPU): {_evidence(verdict)}"


def _evidence(verdict: Verdict) -> str:
    if not verdict.cases:
        return one_line(verdict.detail)
    shapes = plural(len({c.case for c in verdict.cases}), "case")
    worst = max(c.error_ratio for c in verdict.cases)
    checked = f"{shapes}, {plural(len(verdict.cases), 'input set')}; worst error {worst:.2g} of the tolerance"
    return f"{checked}; not checked in full (see its verdict)" if verdict.limitations else checked


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


def _next(next_commands: Sequence[NextCommand]) -> Iterator[tuple[str, Text]]:
    width = max((len(c.command) for c in next_commands), default=0)
    for i, entry in enumerate(next_commands):
        made = Text(f"{entry.command:{width}}", style="cyan").append(f"   {entry.purpose}", style="default")
        yield "" if i else "next", made
