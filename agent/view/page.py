"""A page that is printed once: in colour and as wide as the window for a person, else plain lines of any width."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from agent.view import text as words
from agent.view.lines import LineWriter, silence

_TABLE_WIDTH = 130  # at least: a line that a narrow window folds is better than a column that is gone
_ANY_WIDTH = 100_000  # a pipe has no edge at which a line would have to be folded


@dataclass(frozen=True)
class Page:
    """Where a page goes. `terminal`: to a window; otherwise there is neither colour nor folding nor an escape code."""

    stream: TextIO
    terminal: bool
    colour: bool

    def print(self, *parts: RenderableType) -> None:
        """Print the parts one below the other."""
        if self.terminal:
            narrow = Console(file=self.stream, no_color=not self.colour, highlight=False)
            width = max(narrow.width, _TABLE_WIDTH)
            wide = Console(file=self.stream, width=width, no_color=not self.colour, highlight=False)
            for part in parts:
                is_table = isinstance(part, Table) and part.show_header
                (wide if is_table else narrow).print(part)
            return
        page = StringIO()
        console = Console(file=page, width=_ANY_WIDTH, color_system=None, force_terminal=False, highlight=False)
        for part in parts:
            console.print(part)
        lines = LineWriter(self.stream)
        for line in page.getvalue().split("\n")[:-1]:
            lines.write(line.rstrip(" "))

    def write(self, text: str) -> None:
        """Write a text exactly as it is, for a file or another program. To a window send it through `print`."""
        self.stream.flush()
        try:
            self.stream.buffer.write(text.encode("utf-8", "surrogatepass"))
            self.stream.flush()
        except BrokenPipeError:
            silence(self.stream)


def standard_page(*, colour: bool) -> Page:
    """The page on stdout."""
    return Page(sys.stdout, sys.stdout.isatty(), colour)


def columns(*names: str, right: Sequence[str] = (), cut: Sequence[str] = ()) -> Table:
    """A table without lines. In columns in `cut` put what `short` makes: they give way when the window is narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in cut)
    return table


def short(text: str) -> Text:
    """One line of a column that may be cut."""
    return Text(words.one_line(text), no_wrap=True, overflow="ellipsis")


def facts() -> Table:
    """A column of names and one of what there is to say."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def heading(text: str) -> Text:
    """What the next part is."""
    return Text(f"\n{text}", style="bold")
