"""A line per event, for pipes, CI and terminals that cannot be redrawn. Escape codes only when colour is asked for."""

from threading import Lock
from types import TracebackType
from typing import Self, TextIO, assert_never

from agent.record.events import (
    Event,
    Judged,
    Progress,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunResumed,
    RunStarted,
    Said,
    Updated,
    Verified,
    Warned,
)
from agent.view import text as words
from agent.view.output import LineWriter
from agent.view.state import (
    QUIET_STAGES,
    AttemptState,
    Spending,
    ViewState,
    fold,
    format_reply,
    format_spending,
    verification,
)
from agent.view.text import verdict_style
from tools.verdict import Status, Verdict


class PlainView:
    """Called with each event; may be called from several threads."""

    def __init__(self, stream: TextIO, *, colour: bool = False) -> None:
        self.state = ViewState()
        self._lines = LineWriter(stream)
        self._colour = colour
        self._lock = Lock()

    def __call__(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        with self._lock:
            self.state = fold(self.state, event)
            if line := plain_line(self.state, event, colour=self._colour):
                self._lines.write(line)

    @property
    def broken(self) -> bool:
        """Whether the reader is gone."""
        return self._lines.broken

    def close(self, text: str) -> None:
        """Write the closing words, line by line."""
        for line in text.splitlines():
            self._lines.write(line)

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
            return words.one_line(_run_line(state, event))
        case Proposed() | Updated() | Judged() | Verified() | Reflected():
            return _attempt_line(state, event, colour)
        case Said():
            spoken = event.final and event.role == "assistant"
            return (
                words.one_line(f"{state.started.author if state.started else 'author'}: {event.text}") if spoken else ""
            )
        case Replied():
            return words.one_line(f"{state.started.author if state.started else 'author'}: {_reply(event)}")
        case Progress(stage="raised"):
            return f"… {_limits(state)}"
        case Progress():
            general = event.attempt_id is None and event.stage not in QUIET_STAGES
            return words.one_line(f"… {event.stage} {event.detail}") if general else ""
        case Warned():
            return words.one_line(f"warning: {event.text}")
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
            return f"run {event.run_id} goes on after {words.plural(event.finished_attempts, 'finished attempt')}"
        case RunEnded():
            best = state.number_of(event.best_attempt_id) if event.best_attempt_id else "none"
            path = f" in {event.best_path}" if event.best_path else ""
            tried = f"{words.plural(event.attempts, 'attempt')}, {event.accepted} accepted"
            return f"run {event.run_id} ended ({event.why}): {tried}, best {best}{path}"


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
            best = "  best so far" if event.best else ""
            status = _status(event.verdict.status, colour)
            return f"{number} {status}  {_tried(state, row)}  {_outcome(row, event.verdict)}{best}"
        case Verified():
            facts = f"{_outcome(row, event.verdict)}; " if event.verdict.accepted else ""
            return words.one_line(f"{number} {verification(event)}  {facts}{event.why}")
        case Reflected():
            return words.one_line(f"{number} reflected: {event.hypothesis}: {event.outcome}")


def _status(status: Status, colour: bool) -> str:
    return f"\x1b[{verdict_style(status).ansi}m{status.value}\x1b[0m" if colour else status.value


def _tried(state: ViewState, row: AttemptState | None) -> str:
    if row is None:
        return "(an attempt of an earlier process)"
    parent = f"  (parent {words.one_line(state.number_of(row.parent_id))})" if row.parent_id else ""
    return words.one_line(row.rationale) + parent


def _outcome(row: AttemptState | None, verdict: Verdict) -> str:
    if not verdict.accepted:
        return words.one_line(verdict.detail)
    if verdict.timing is None:
        return _compiled(row)
    compared = (f"{words.speedup(c)} vs {c.baseline}" for c in words.fastest_first(verdict.comparisons))
    return words.one_line(", ".join((words.timing(verdict.timing), *compared)))


def _compiled(row: AttemptState | None) -> str:
    if row is None or not row.kernels:
        return "no kernel of its own"
    facts = f"regs {words.registers(row.kernels)} spills {words.spill_bytes(row.kernels)}"
    return f"{facts} occ {words.occupancy(row.kernels):.2f}"
