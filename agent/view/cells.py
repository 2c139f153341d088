"""Lines of terminal cells: what the screen is built of. A line is exactly as wide as its block, whatever is put in.

Rich's own layout costs 20 ms a frame, five times what a screen that is redrawn four times a second may cost.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from agent.view import text as words

Part = str | tuple[str, str]  # a text, or a text and its style
Line = tuple[Segment, ...]
DIM = "dim"


@lru_cache(maxsize=256)
def style(name: str) -> Style:
    """A rich style by its words, such as "bold cyan"."""
    return Style.parse(name)


def cells(text: str) -> int:
    """How many cells a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def width_of(parts: Iterable[Part]) -> int:
    """How many cells some parts take."""
    return sum(cells(part if isinstance(part, str) else part[0]) for part in parts)


def line(width: int, *parts: Part) -> Line:
    """The parts one after the other: padded with blanks, or cut with an ellipsis."""
    made: list[Segment] = []
    left = width
    for part in parts:
        raw, name = (part, "") if isinstance(part, str) else part
        text = raw if raw.isascii() and raw.isprintable() else _safe(raw)
        size = cells(text)
        if size > left == 0 and made:
            last = made.pop()
            made.append(Segment(set_cell_size(last.text, last.cell_length - 1) + "…", last.style))
            return tuple(made)
        if size > left:
            cut = set_cell_size(text, left - 1) + "…" if left > 1 else "…"[:left]
            made.append(Segment(cut, style(name)))
            return tuple(made)
        if text:
            made.append(Segment(text, style(name)))
            left -= size
    if left:
        made.append(Segment(" " * left, style("")))
    return tuple(made)


@lru_cache(maxsize=1024)
def _safe(text: str) -> str:
    """Without what moves the cursor, or is not as wide as it says; blanks stay where nothing else is wrong."""
    cleaned = words.clean(text)
    return cleaned if cleaned.isprintable() else words.one_line(cleaned)


def wrapped(text: str, width: int) -> list[str]:
    """A paragraph as lines of at most so many cells, broken between words where that is possible."""
    if text.isascii():
        return textwrap.wrap(text, width)
    lines, used = [""], 0
    for word in text.split():
        size = cells(word)
        if used and used + 1 + size <= width:
            lines[-1] += f" {word}"
            used += 1 + size
            continue
        pieces = chop_cells(word, width) if size > width else [word]
        lines = [*lines, *pieces] if used else [*lines[:-1], *pieces]
        used = cells(lines[-1])
    return lines if used else []


def ends(width: int, left: Sequence[Part], right: Sequence[Part]) -> Line:
    """Parts at both ends; the right ones matter more when there is not room for all."""
    room = max(0, width - width_of(right) - 1)
    return line(width, *joined(line(room, *left)), *([" "] if room < width else []), *right)


def joined(made: Line) -> Iterator[Part]:
    """A line's parts again."""
    return ((segment.text, str(segment.style or "")) for segment in made)


def rule(width: int, *title: Part) -> Line:
    """A line with a title near its left end: what stands above a block."""
    room = max(0, width - 4)
    shown = line(min(room, width_of(title)), *title)
    used = sum(segment.cell_length for segment in shown)
    head = [("─ ", DIM), *joined(shown), " "] if used else [("──", DIM)]
    return line(width, *head, ("─" * max(0, width - used - 3), DIM))


def marked(made: Line, name: str) -> Line:
    """The line in another style on top of its own."""
    return tuple(Segment(s.text, (s.style or style("")) + style(name)) for s in made)


def block(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """Exactly `height` lines."""
    blank = line(width)
    return [*lines[:height], *([blank] * (height - len(lines)))]


def beside(left: Sequence[Line], right: Sequence[Line]) -> list[Line]:
    """Two blocks of one height with a bar between them."""
    bar = Segment(" │ ", style(DIM))
    return [(*a, bar, *b) for a, b in zip(left, right, strict=True)]


BAR = 3  # cells of the bar between two blocks


@dataclass(frozen=True)
class Frame:
    """A picture of exactly `width` x `height` cells; rich can print and export it."""

    lines: tuple[Line, ...]
    width: int
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for made in self.lines:
            yield from made
            yield Segment.line()
