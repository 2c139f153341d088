"""The top of the screen: what runs, where, for how long, and how much of its budget is used."""

from collections.abc import Iterator

from agent.view import text as words
from agent.view.cells import DIM, Line, Part, ends, line, width_of
from agent.view.state import Budget, ViewState

_FULL_NOTE = 96  # from this width on the sentence about the missing GPU fits
_SHORT_NOTE = "no GPU: results are `checked`, not timed"
_MOST_BAR, _LEAST_BAR = 24, 4
_NEARLY = 0.9  # of a budget: from here on its bar is a warning
_FACTS = ("driver", "torch", "triton", "kerneltune")


def header(state: ViewState, width: int, now: float, *, facts: bool = False) -> list[Line]:
    """One line about the run, one about its budget, and where they matter one about the missing GPU and versions."""
    lines = [_title(state, width, now)]
    if state.started and state.gpu is None:
        lines.append(line(width, " ", (words.NO_GPU if width >= _FULL_NOTE else _SHORT_NOTE, "yellow")))
    if budgets := state.budgets(now):
        lines.append(_budget_line(budgets, width))
    if facts and state.started:
        lines.append(line(width, " ", (_versions(state), DIM)))
    return lines


def _title(state: ViewState, width: int, now: float) -> Line:
    left: list[Part] = [(" kerneltune", "bold"), "  ", (words.one_line(state.task or ""), "bold cyan")]
    for fact in _who(state):
        left += [(" · ", DIM), words.one_line(fact)]
    return ends(width, left, [*_mood(state), "  ", (words.duration(state.elapsed_s(now)), "bold"), " "])


def _who(state: ViewState) -> Iterator[str]:
    if state.started is None:
        return
    if state.gpu:
        yield state.gpu
    yield state.started.author + (" author" if state.started.author == "offline" else "")
    strategy = state.started.limits.get("strategy")
    if isinstance(strategy, str):
        yield strategy


def _mood(state: ViewState) -> list[Part]:
    if state.ended:
        return [(f"ended: {state.ended.why.replace('_', ' ')}", "bold")]
    if state.stopping:
        return [("stopping", "bold yellow")]
    if state.paused_at is not None:
        return [("paused", "bold yellow")]
    return [("running", "green")] if state.started else [(words.one_line(state.stage), "")]


def _budget_line(budgets: tuple[Budget, ...], width: int) -> Line:
    told = [(b, f"{b.name} ", f" {_amount(b, b.used)}/{_amount(b, b.limit)}") for b in budgets]
    fixed = sum(len(name) + len(amount) + 3 for _, name, amount in told)
    each = min(_MOST_BAR, (width - fixed) // len(told))
    parts: list[Part] = []
    for budget, name, amount in told:
        parts += [
            " ",
            (name, DIM),
            *(bar(budget.fraction, each, _colour(budget)) if each >= _LEAST_BAR else ()),
            amount,
            "  ",
        ]
    return line(width, *parts)


def _colour(budget: Budget) -> str:
    return "yellow" if budget.fraction >= _NEARLY else "cyan"


def bar(fraction: float, size: int, colour: str = "cyan") -> list[Part]:
    """A share as a bar of cells."""
    used = round(size * min(1.0, max(0.0, fraction)))
    return [("━" * used, colour), ("─" * (size - used), DIM)]


def _amount(budget: Budget, value: float) -> str:
    if budget.name == "cost":
        return words.dollars(value)
    return words.duration(value) if budget.name == "time" else f"{value:.0f}"


def _versions(state: ViewState) -> str:
    if state.started is None:
        return ""
    known = {**state.started.machine, **state.started.versions}
    shown = [f"{name} {known[name]}" for name in _FACTS if isinstance(known.get(name), str)]
    why = f"author {state.started.author} ({state.started.author_why})"
    return "   ".join([why, f"compiled for {state.started.arch}", *shown])


def footer(state: ViewState, width: int, note: str, *, keys: bool) -> Line:
    """What a person can do now; what the last key did comes first."""
    if note:
        return line(width, " ", (note, "bold"))
    if not keys:
        resume = f": optimize --resume {state.run_id}" if state.run_id else ""
        told = "ended" if state.ended else "Ctrl-C stops; nothing finished is lost"
        return line(width, " ", (told + resume, DIM))
    parts: list[Part] = []
    for key, what in _keys(state):
        more: list[Part] = [" ", (key, "bold"), (f" {what} ", DIM)]
        if width_of([*parts, *more]) <= width:
            parts += more
    return line(width, *parts)


def _keys(state: ViewState) -> Iterator[tuple[str, str]]:
    yield "p", "go on" if state.paused_at is not None else "pause"
    yield "s", "skip"
    yield "+", "budget"
    yield "q", "stop after this"
    yield "?", "help"
    yield "↑↓", "choose"
    yield "enter", "show"
    yield "d", "diff"
    yield "o", "source"
