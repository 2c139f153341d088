"""Where text goes: which view fits, lines into a stream that may be closed, and pages that are printed once."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from threading import Lock
from typing import IO, Any, Literal, TextIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kerneltune.agent.settings import Environment
from kerneltune.tools.schema.codec import one_line


class LineWriter:
    """Writes and flushes whole lines. When the reader is gone (`| head`), it goes quiet and `broken` turns true."""

    def __init__(self, stream: TextIO) -> None:
        self.broken = False
        self._stream = stream
        self._lock = Lock()

    def write(self, line: str) -> None:
        """Write one line; characters that the stream's encoding lacks become `?`."""
        encoding = self._stream.encoding or "utf-8"
        with self._lock:
            if self.broken:
                return
            try:
                self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
                self._stream.flush()
            except BrokenPipeError:
                self.broken = True
                silence(self._stream)


def silence(stream: IO[str]) -> None:
    """Point a stream whose reader is gone at /dev/null: the interpreter's own last flush must not fail (exit 120)."""
    with contextlib.suppress(OSError, ValueError):  # not backed by a file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def while_there_is_a_terminal(console: Console) -> Iterator[None]:
    """Leave the block quietly when the terminal goes away. The console's file may change meanwhile."""
    try:
        yield
    except OSError:
        silence(console.file)


ViewKind = Literal["live", "plain", "json"]
_NO_CURSOR = ("", "dumb", "unknown")  # a terminal that cannot be redrawn


@dataclass(frozen=True)
class ViewChoice:
    """The view, and whether it may use colour."""

    kind: ViewKind
    colour: bool


def choose_view(environment: Environment, *, is_terminal: bool, json: bool = False, plain: bool = False) -> ViewChoice:
    """Choose how to show a command's output. `json` wins over `plain`; the live screen needs a terminal that can be
    redrawn and a person before it."""
    can_redraw = environment.term not in _NO_CURSOR
    colour = is_terminal and can_redraw and not environment.no_color
    if json:
        return ViewChoice("json", colour=False)
    if plain or environment.ci or not is_terminal or not can_redraw:
        return ViewChoice("plain", colour)
    return ViewChoice("live", colour)


_TABLE_WIDTH = 130  # at least: a line that a narrow window folds is better than a column that is gone
_LITERAL: Any = {"highlight": False, "markup": False, "emoji": False}  # "[link=…]" in a task's name is no link
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
            narrow = Console(file=self.stream, no_color=not self.colour, **_LITERAL)
            wide = Console(
                file=self.stream, width=max(narrow.width, _TABLE_WIDTH), no_color=not self.colour, **_LITERAL
            )
            for part in parts:
                is_table = isinstance(part, Table) and part.show_header
                (wide if is_table else narrow).print(part)
            return
        page = StringIO()
        console = Console(file=page, width=_ANY_WIDTH, color_system=None, force_terminal=False, **_LITERAL)
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
    """Return a page on stdout."""
    return Page(sys.stdout, sys.stdout.isatty(), colour)


def columns(*names: str, right: Sequence[str] = (), cut: Sequence[str] = ()) -> Table:
    """Return a table without rules. Columns in `cut` hold what `short` makes: they give way in a narrow window."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in cut)
    return table


def short(text: str) -> Text:
    """Return one line for a column that may be cut."""
    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def facts() -> Table:
    """Return an empty table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def heading(text: str) -> Text:
    """Return the heading of the next part."""
    return Text(f"\n{text}", style="bold")
