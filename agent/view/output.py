"""Where text goes: which view fits, lines into a stream that may be closed, pages that are printed once, and a run's
events as NDJSON for programs: one object per stored event, then exactly one `result`, also when the run dies.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from io import StringIO
from pathlib import Path
from threading import Event as Flag
from threading import Lock, Thread
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, Self, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text

from kerneltune.agent.attempt import Attempt, StopReason
from kerneltune.agent.events import Event, Note, is_stored
from kerneltune.agent.record.folder import receipt_path
from kerneltune.agent.settings import Environment, environment
from kerneltune.agent.view import text as words
from kerneltune.agent.view.state import ViewState, fold, format_note
from kerneltune.tools.schema.codec import Json, encode, one_line, plain

if TYPE_CHECKING:
    from kerneltune.agent.record.query import RunSummary


_COLOURS = re.compile("(\x1b\\[(?:0|3[0-7])m)")  # that lines of ours may have


class LineWriter:
    """Writes and flushes whole lines, made plain. When the reader is gone (`| head`), it goes quiet and `broken` turns
    true. `colour`: its lines may hold the codes of colours."""

    def __init__(self, stream: TextIO, *, colour: bool = False) -> None:
        self.broken = False
        self._stream = stream
        self._colour = colour
        self._lock = Lock()

    def write(self, line: str) -> None:
        """Write one line; characters that the stream's encoding lacks become `?`."""
        encoding = self._stream.encoding or "utf-8"
        parts = _COLOURS.split(line) if self._colour else [line]  # a text, a code, a text, …
        parts[::2] = [plain(text, None).replace("\n", " ") for text in parts[::2]]
        line = "".join(parts)
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


def say(text: str) -> None:
    """Write a line to stderr, whether or not anybody reads it."""
    LineWriter(sys.stderr).write(text)


TURN_S = 0.1  # between two of its pictures


class StatusLine:
    """What is being done, for a person who waits: in a terminal (`live`) one line that turns and counts seconds while
    the context is open, `doing` that at first; elsewhere a line each time that it changes. Called with events, it shows
    the notes."""

    def __init__(self, stream: TextIO, *, live: bool, doing: str = "starting") -> None:
        self._lines = LineWriter(stream)
        self._terminal = stream if live else None
        self._lock, self._over = Lock(), Flag()
        self._doing, self._since_s = doing, time.monotonic()
        self._thread = Thread(target=self._turn, name="status line", daemon=True)

    def __call__(self, event: Event) -> None:
        """Show a note; other events are not for a line."""
        if isinstance(event, Note):
            self.show(format_note(event))

    def show(self, doing: str) -> None:
        """Say what is being done now; "" for nothing."""
        self._doing, self._since_s = one_line(doing), time.monotonic()
        if self._terminal is not None:
            with self._lock:
                self._draw()
        elif doing:
            self._lines.write(f"… {self._doing}")

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Keep the line away while others write on the same terminal."""
        with self._lock:
            self._write("\r\x1b[K")
            yield
            if self._thread.is_alive():
                self._draw()

    def __enter__(self) -> Self:
        if self._terminal is not None:
            with self._lock:
                self._draw()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
            self._write("\r\x1b[K")

    def _turn(self) -> None:
        while not self._over.wait(TURN_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if not self._doing:
            self._write("\r\x1b[K")
        else:
            waited_s = time.monotonic() - self._since_s
            since = f" {words.duration(waited_s)}" if waited_s >= 1 else ""
            sign = words.SPINNER[int(time.monotonic() / TURN_S) % len(words.SPINNER)]
            self._write(f"\r{self._cut(f'{sign} {self._doing}{since}')}\x1b[K")

    def _cut(self, text: str) -> str:
        """As much as fits: a line that is folded could not be drawn over."""
        try:
            most = os.get_terminal_size(self._terminal.fileno()).columns if self._terminal else 0
        except (OSError, ValueError):
            most = 0
        most = (most or 80) - 1
        return text if cell_len(text) <= most else set_cell_size(text, most - 1) + "…"

    def _write(self, text: str) -> None:
        if self._terminal is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._terminal.write(text)
                self._terminal.flush()


def status_line(doing: str = "starting") -> StatusLine:
    """On stderr, as it can be shown there."""
    choice = choose_view(environment(), is_terminal=can_show_screen(sys.stderr))
    return StatusLine(sys.stderr, live=choice.kind == "live", doing=doing)


_FAILURES = (None, StopReason.FAILED, StopReason.MODEL_ERROR, StopReason.NO_ACCESS)
RUN_SCHEMA_VERSION = 2  # of every line of a run; docs/commands.md says what may change without another
Subtype = Literal["success", "interrupted", "error"]


class JsonView:
    """Called with each event. `finish`, or leaving the context, writes the result; a second finish does nothing.
    `since`: events from before then (Unix time) count for the result and are not written."""

    def __init__(self, stream: TextIO, *, since: float = 0.0) -> None:
        self.state = ViewState()
        self._since = since
        self._lines = LineWriter(stream)
        self._lock = Lock()
        self._finished = False

    @property
    def broken(self) -> bool:
        """Whether the reader is gone."""
        return self._lines.broken

    def __call__(self, event: Event) -> None:
        """Write a stored event; keep the others for the result."""
        with self._lock:
            self.state = fold(self.state, event)
            if is_stored(event) and event.at >= self._since and not self._finished:
                self._write({"type": event.kind, "schema_version": RUN_SCHEMA_VERSION, **encode(event)})

    def finish(self, error: BaseException | None = None) -> None:
        """Write the result. `error` is what ended the run early, when something did."""
        with self._lock:
            if not self._finished:
                self._finished = True
                self._write(result(self.state, error, now=time.time()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error)

    def _write(self, value: dict[str, Json]) -> None:
        self._lines.write(json.dumps(value, allow_nan=False))


def result(state: ViewState, error: BaseException | None, *, now: float) -> dict[str, Json]:
    """Return the last object. `success`: the run ended by its own limits, whether or not something was verified."""
    subtype = _subtype(state, error)
    ended = state.ended
    failed = subtype == "error"
    return {
        "type": "result",
        "schema_version": RUN_SCHEMA_VERSION,
        "subtype": subtype,
        "is_error": failed,
        "error": _message(state, error) if failed else None,
        "run_id": state.run_id,
        "task": state.task,
        "attempts": ended.attempts if ended else state.finished,
        "accepted": ended.accepted if ended else state.accepted,
        "by_status": state.by_status,
        "best": _best(state.best, ended.best_path if ended else None) if state.best else None,
        "spending": encode(state.spending) if state.spending.replies else None,
        "judge_s": round(state.judge_s, 3),
        "internal_errors": int(failed),
        "elapsed_s": round(state.elapsed_s(now), 3),
    }


def _subtype(state: ViewState, error: BaseException | None) -> Subtype:
    why = state.ended.why if state.ended else None
    if isinstance(error, KeyboardInterrupt) or (error is None and why is StopReason.INTERRUPTED):
        return "interrupted"
    return "error" if error is not None or why in _FAILURES else "success"


def _message(state: ViewState, error: BaseException | None) -> str:
    if error is not None:
        return words.lines(f"{type(error).__name__}: {error}")
    if state.ended and state.ended.why in (StopReason.MODEL_ERROR, StopReason.NO_ACCESS) and state.warnings:
        return words.lines(state.warnings[-1])
    return "the run failed" if state.ended else "the run stopped before it ended"


def _best(row: Attempt, path: str | None) -> dict[str, Json]:
    verdict = row.verdict
    return {
        "attempt_id": row.attempt_id,
        "number": row.number,
        "path": path,
        "receipt_path": str(receipt_path(Path(path).parent, row.attempt_id)) if path else None,
        "rationale": row.rationale,
        "verdict": verdict.status.value if verdict else None,
        "detail": verdict.detail if verdict else None,
        "tier": verdict.tier if verdict else None,
        "kernels": encode(row.kernels),
        "timing": encode(verdict.timing) if verdict else None,
        "comparisons": encode(verdict.comparisons) if verdict else [],
        "case_times": encode(verdict.case_times) if verdict else [],
        "coverage": verdict.coverage if verdict else None,
        "sol_fraction": verdict.sol_fraction if verdict else None,
    }


ViewKind = Literal["live", "plain", "json"]
_NO_CURSOR = ("", "dumb", "unknown")  # a terminal that cannot be redrawn


@dataclass(frozen=True)
class ViewChoice:
    """The view, and whether it may use colour."""

    kind: ViewKind
    colour: bool


def can_show_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal, and has the characters that the live screen is drawn with."""
    return stream.isatty() and "utf" in (stream.encoding or "").lower()


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


_LEAST_CUT = 16  # cells of a column that may be cut
_LITERAL: Any = {"highlight": False, "markup": False, "emoji": False}  # "[link=…]" in a task's name is no link
_ANY_WIDTH = 100_000  # a pipe has no edge at which a line would have to be folded


class PlainConsole(Console):
    """A console on which a text can do nothing but be read: what a terminal would obey is the console's own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make the text of each segment plain."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else plain(text, None), style, control)


@dataclass(frozen=True)
class Page:
    """Where a page goes. `terminal`: to a window; otherwise there is neither colour nor folding nor an escape code."""

    stream: TextIO
    terminal: bool
    colour: bool

    def print(self, *parts: RenderableType) -> None:
        """Print the parts one below the other; one that is a string is one line of plain text."""
        parts = tuple(map(_as_text, parts))
        if self.terminal:
            window = PlainConsole(file=self.stream, no_color=not self.colour, **_LITERAL)
            for part in parts:
                window.print(part)
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


def _as_text(part: RenderableType) -> RenderableType:
    return Text(one_line(part)) if isinstance(part, str) else part


class TextTable(Table):
    """A table of which a cell that is a string is one line of plain text, whoever wrote it. In a window that is too
    narrow, the columns in `spare` are left out, the first of them first."""

    spare: Sequence[str] = ()

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        """Add a row."""
        super().add_row(
            *(None if cell is None else _as_text(cell) for cell in cells), style=style, end_section=end_section
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = copy(self)
        for name in self.spare:
            if fitting._needs(console, options) <= options.max_width:
                break
            fitting.columns = [replace(column) for column in fitting.columns if column.header != name]
            for i, column in enumerate(fitting.columns):
                column._index = i
        return Table.__rich_console__(fitting, console, options)

    def _needs(self, console: Console, options: ConsoleOptions) -> int:
        """The least cells in which nothing is cut but what may be."""
        widths = [self._column_width(column, console, options) for column in self.columns]
        return sum(widths) + 2 * (len(widths) - 1)

    def _column_width(self, column: Column, console: Console, options: ConsoleOptions) -> int:
        cells = (Measurement.get(console, options, cell).maximum for cell in (column.header, *column.cells))
        width = max(cells, default=0)
        return width if column.no_wrap else min(width, _LEAST_CUT)


def columns(*names: str, right: Sequence[str] = (), cut: Sequence[str] = (), spare: Sequence[str] = ()) -> TextTable:
    """Return a table without rules. In a narrow window columns in `cut`, which hold what `short` makes, give way first,
    then those in `spare` go."""
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    table.spare = spare
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in cut)
    return table


def short(text: str) -> Text:
    """Return one line for a column that may be cut."""
    return Text(one_line(text), no_wrap=True, overflow="ellipsis")


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return a table of names and values."""
    table = TextTable.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def heading(text: str) -> Text:
    """Return the heading of the next part."""
    return Text(f"\n{text}", style="bold")


def run_json(run: "RunSummary") -> dict[str, Json]:
    """Return a stored run as one JSON object."""
    values = {f.name: getattr(run, f.name) for f in fields(run)}
    return {name: encode(v) for name, v in values.items() if name != "started"} | {"started": str(run.started)}
