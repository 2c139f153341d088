"""What was said and decided, with what the author is saying right now at the end."""

from functools import lru_cache

from agent.view import text as words
from agent.view.cells import Line, line, rule, wrapped
from agent.view.state import LogEntry, ViewState, format_spending

_COLOURS = {"author": "", "judge": "dim", "reflection": "cyan", "warning": "yellow", "run": "dim"}
_MOST_OF_AN_ENTRY = 4000  # characters that can be seen at most


def pane(state: ViewState, width: int, height: int) -> list[Line]:
    """A rule and the last lines."""
    return [rule(width, (title(state), "bold")), *_tail(state, width, max(0, height - 1))]


def title(state: ViewState) -> str:
    """Whether the author speaks, and what it has cost."""
    mood = "author is writing…" if state.streaming else "said and judged"
    if state.spending.replies:
        return f"{mood} · {format_spending(state.spending)}"
    return mood


def _tail(state: ViewState, width: int, room: int) -> list[Line]:
    """From the newest entry backwards until the room is full."""
    lines = (
        [line(width, " ", (text, "italic")) for text in _wrapped(state.streaming, width - 2)][-room:] if room else []
    )
    for entry in reversed(state.log):
        if len(lines) >= room:
            break
        lines = [*_entry(entry, width), *lines]
    return lines[-room:] if room else []


def _entry(entry: LogEntry, width: int) -> list[Line]:
    mark = "! " if entry.who == "warning" else ""
    style = _COLOURS[entry.who]
    return [line(width, " ", (text, style)) for text in _wrapped(mark + entry.text[-_MOST_OF_AN_ENTRY:], width - 2)]


@lru_cache(maxsize=512)
def _wrapped(text: str, width: int) -> tuple[str, ...]:
    lines = words.clean(text).strip().split("\n")
    return tuple(part for found in lines for part in wrapped(found, max(8, width)))
