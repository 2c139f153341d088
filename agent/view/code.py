"""A candidate's source as lines: highlighted, or as the difference to its parent."""

import difflib
from functools import lru_cache
from io import StringIO

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from agent.view import text as words
from agent.view.cells import DIM, Line, Part, line, rule
from agent.view.state import AttemptRow, ViewState

_MOST_COMPARED = 1000  # lines of a source; a difference of longer ones may take seconds
_CONTEXT = 3
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def pane(state: ViewState, row: AttemptRow | None, width: int, height: int, *, diff: bool = False) -> list[Line]:
    """The source from its first kernel on when it is longer than the pane, or the difference to the parent."""
    if row is None:
        return [rule(width, ("source", "bold")), line(width, (" no candidate yet", DIM))][:height]
    room = max(0, height - 1)
    if diff and row.parent_id:
        changes = difference(state, row)
        more = f", {len(changes)} lines" if len(changes) > room else ""
        title = f"#{row.number} against {state.number_of(row.parent_id)}{more}"
        return [rule(width, (title, "bold")), *(_change_line(c, width) for c in changes[:room])][:height]
    lines = source_lines(row)
    start = first_line(lines, room)
    note = f", from line {start + 1} of {len(lines)}" if start else ""
    note += "; it has no parent" if diff else ""
    return [rule(width, (f"source of #{row.number}{note}", "bold")), *highlighted(lines[start : start + room], width)]


def source_lines(row: AttemptRow) -> list[str]:
    """The source, made safe to show."""
    return words.clean(row.source).rstrip().split("\n")


def first_line(lines: list[str], room: int) -> int:
    """Which line to show first: a kernel is worth more than the imports above it."""
    if len(lines) <= room:
        return 0
    kernels = (i for i, found in enumerate(lines) if found.startswith(("@triton", "PTX", "_PTX", ".visible")))
    return min(next(kernels, 0), max(0, len(lines) - room))


def difference(state: ViewState, row: AttemptRow) -> tuple[str, ...]:
    """The unified difference to the parent, or one line that says why there is none."""
    parent = state.row(row.parent_id)
    if parent is None:
        return ("(the parent's source was not seen by this screen)",)
    return _difference(parent.source, row.source)


@lru_cache(maxsize=8)
def _difference(before: str, after: str) -> tuple[str, ...]:
    old, new = (words.clean(text).rstrip().split("\n") for text in (before, after))
    if max(len(old), len(new)) > _MOST_COMPARED:
        return (f"(too long to compare: {len(old)} and {len(new)} lines)",)
    changes = list(difflib.unified_diff(old, new, lineterm="", n=_CONTEXT))[2:]
    return tuple(changes) or ("(the same source)",)


def _change_line(change: str, width: int) -> Line:
    return line(width, (change, _COLOURS.get(change[:1], "")))


def change_lines(changes: tuple[str, ...], width: int) -> list[Line]:
    """A difference in colours; + and - say the same without."""
    return [_change_line(change, width) for change in changes]


def highlighted(lines: list[str], width: int) -> list[Line]:
    """Python in colours."""
    return [line(width, *parts) for parts in _parts("\n".join(lines))]


@lru_cache(maxsize=16)  # 2 ms for 60 lines
def _parts(code: str) -> tuple[tuple[Part, ...], ...]:
    from rich.syntax import Syntax  # 30 ms that the first frame need not wait for

    text = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(code)
    text.rstrip()
    console = Console(file=StringIO(), color_system="truecolor", force_terminal=True)
    return tuple(tuple(map(_part, _segments(found, console))) for found in text.split("\n", allow_blank=True))


def _segments(found: Text, console: Console) -> list[Segment]:
    found.end = ""
    return list(found.render(console))


def _part(segment: Segment) -> Part:
    name = str(segment.style) if segment.style else ""
    return segment.text, name.replace("on default", "").strip() or "none"
