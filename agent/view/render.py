"""The screen as a pure function of a run's state: which panes there are at a size, and what stands in each.

Every text of a pane goes through `line`, which lets nothing through that a terminal would obey.
"""

import difflib
import math
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import StringIO
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.segment import Segment
from rich.text import Text

from kerneltune.agent.attempt import Attempt, rank_order
from kerneltune.agent.events import GpuReading
from kerneltune.agent.view import text as words
from kerneltune.agent.view.state import (
    LEFT_STAGES,
    Budget,
    LogEntry,
    ViewState,
    format_spending,
    is_slowed,
    throttling,
)
from kerneltune.agent.view.text import LABEL_WIDTH, verdict_style
from kerneltune.tools.schema.codec import one_line, plural, shell_word
from kerneltune.tools.schema.verdict import BEYOND_LIGHT, NOT_TIMED, Comparison, Verdict, fastest_first, losses_in_words

if TYPE_CHECKING:
    from kerneltune.agent.record.query import RunSummary

Tab = Literal["attempt", "source", "diff", "sass", "conversation"]  # a page of one attempt
ScreenPage = Tab | Literal["runs", "run", "help"]
Wish = Literal["pause", "skip", "raise", "slower", "finish", "stop"]
Part = str | tuple[str, str]  # a text, or a text and its style
DIM = "dim"

WIDE = 150  # columns from which on source and log stand beside the attempts
MIDDLE = 110  # from here on they stand beside each other
CURVE_FROM = 72  # narrower screens have no room for the curve
LOW = 12  # lower screens show only the run and its attempts
ROOMY = 30  # from this height on the header also names versions
_BAR_CELLS = 3  # of the bar between two panes
_LEAST_TABLE = 4
_LEAST_KNOWN = 8  # lines about the chosen attempt that are worth taking from the table
_ALL_BASELINES = 17  # lines between head and foot from which on all baselines are named, not only the fastest
_BEST, _LEAST_BEST = 74, 4  # cells and lines of the best attempt's facts
_LEAST_CURVE = 24


# What a person has chosen to look at -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """How a list is shown: only rows that hold all words of `query`, by the `order`-th of its orders."""

    query: str = ""
    order: int = 0


@dataclass(frozen=True)
class Ui:
    """`selected`: an attempt's number, None to follow the newest; `run`: the chosen one of a list of runs, None for its
    first; `opened`: the run whose attempts are shown, where there is such a list; `scroll`: the first line of a page;
    `typing`: what was typed after `/` so far; `keys`: what the run offers in the last line, () when no keys are read;
    `sought`: what to look for once the page is made; `note`: what the last key did; `status`: stands before both;
    `before`: the page that the help lies over."""

    selected: int | None = None
    page: ScreenPage = "run"
    diff: bool = False
    scroll: int = 0
    note: str = ""
    status: str = ""
    keys: tuple[tuple[str, str], ...] = ()
    run: str | None = None
    opened: str | None = None
    runs: Listing = Listing()
    attempts: Listing = Listing()
    typing: str | None = None
    sought: str = ""
    before: ScreenPage = "run"


@dataclass(frozen=True, eq=False)  # the same only where it is this one
class MadePage:
    """A page of an attempt that is made of more than events. `parts`: None while it is being made, since `at` (Unix
    time)."""

    parts: tuple[RenderableType, ...] | None
    at: float = 0.0


@dataclass(frozen=True)
class Library:
    """What can be looked at beside the events of one run: stored `runs`, the latest first, and pages of attempts that
    somebody makes when they are asked for (`offers`), by attempt and page."""

    runs: tuple["RunSummary", ...] = ()
    offers: tuple[Tab, ...] = ()
    made: Mapping[tuple[str, str], MadePage] = field(default_factory=dict)


NO_LIBRARY = Library()
_WISHES: dict[str, Wish] = {
    "p": "pause", "x": "skip", "+": "raise", "=": "raise", "-": "slower", "e": "finish", "q": "stop",
}  # fmt: skip
_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1}
_PAGES = {"pageup": -1, "pagedown": 1, " ": 1}
_ENDS = {"home": -1, "g": -1, "end": 1, "G": 1}
_BACK = ("esc", "backspace")
_TAB_KEYS: dict[str, Tab] = {"enter": "attempt", "o": "source", "d": "diff", "a": "sass", "c": "conversation"}
TABS: tuple[Tab, ...] = ("attempt", "source", "diff", "sass", "conversation")
_END = 1 << 30


def chosen_attempt(state: ViewState, ui: Ui) -> Attempt | None:
    """The attempt whose source is shown: the selected one, else the current, or the first of a list that is sorted."""
    if ui.selected is None and ui.attempts != Listing():
        rows = visible_attempts(state, ui)
        return rows[0 if ui.attempts.order else -1] if rows else None
    return next((a for a in state.attempts if a.number == ui.selected), None) or state.current


def tabs(state: ViewState, ui: Ui, library: Library) -> tuple[Tab, ...]:
    """The pages that there are of the chosen attempt."""
    row = chosen_attempt(state, ui)
    if row is None:
        return ()
    there = {"attempt", "source", *library.offers, *(["diff"] if row.parent_id else [])}
    return tuple(tab for tab in TABS if tab in there and (tab != "conversation" or row.conversation))


def made_page(state: ViewState, ui: Ui, library: Library) -> tuple[str, Tab] | None:
    """The attempt and page that are shown, where somebody has to make it: facts only of a run that is over, whose
    verdicts stay."""
    row = chosen_attempt(state, ui)
    if row is None or ui.page not in library.offers or (ui.page == "attempt" and state.ended is None):
        return None
    return row.attempt_id, ui.page


# Orders of the two lists, each with the name that a person reads; the first is that in which things happened.
_RUN_ORDERS: tuple[tuple[str, Callable[["RunSummary"], Any]], ...] = (
    ("latest", lambda run: 0),
    ("task", lambda run: run.task),
    ("speed-up", lambda run: -(run.best_speedup or 0.0)),
    ("attempts", lambda run: -run.attempts),
)
_ATTEMPT_ORDERS: tuple[tuple[str, Callable[[Attempt], Any]], ...] = (
    ("number", lambda attempt: 0),
    ("rank", lambda attempt: (not attempt.accepted, attempt.accepted and rank_order(attempt))),
    ("error", lambda attempt: -max((c.error_ratio for c in attempt.cases), default=0.0)),
    ("registers", lambda attempt: (not attempt.kernels, sum(k.registers for k in attempt.kernels))),
    ("verdict", lambda attempt: attempt.status or ""),
)


def visible_attempts(state: ViewState, ui: Ui) -> Sequence[Attempt]:
    """The attempts that pass the filter, in the order that was chosen."""
    if ui.attempts == Listing():
        return state.attempts
    asked = ui.attempts.query.lower().split()
    passing = (a for a in state.attempts if all(_holds(a, word) for word in asked))
    return sorted(passing, key=_ATTEMPT_ORDERS[ui.attempts.order][1])


def _holds(attempt: Attempt, word: str) -> bool:
    if word.startswith("#"):
        return word[1:] == str(attempt.number)
    its = (words.short_name(attempt), attempt.status or "", attempt.rationale, attempt.detail, attempt.source)
    return any(word in text.lower() for text in its)


def visible_runs(library: Library, ui: Ui) -> Sequence["RunSummary"]:
    """The runs that pass the filter, in the order that was chosen."""
    asked = ui.runs.query.lower().split()
    passing = (run for run in library.runs if all(word in words.said_of(run) for word in asked))
    return sorted(passing, key=_RUN_ORDERS[ui.runs.order][1])


def press(
    state: ViewState, ui: Ui, key: str, page: Sequence[Text] = (), room: int = 1, library: Library = NO_LIBRARY
) -> tuple[Ui, Wish | None]:
    """The choice after a key, and what the run is asked for. `page`: the lines of the page that is shown; `room`: how
    many fit."""
    ui = replace(ui, note="", sought="")
    if ui.typing is not None:
        asked = made_page(state, ui, library)
        is_there = asked is None or (asked in library.made and library.made[asked].parts is not None)
        return _typed(ui, key, page, is_there), None
    if key == "?":
        if ui.page == "help":
            return replace(ui, page=ui.before, scroll=0), None
        return replace(ui, page="help", before=ui.page, scroll=0), None
    if key in _WISHES:
        return ui, _WISHES[key]
    if key == " " and ui.page == "run":
        return ui, "pause"
    if key == "/" and ui.page != "help":
        return replace(ui, typing=""), None
    if ui.page == "runs":
        return _choose_run(ui, key, room, library), None
    if ui.page == "run":
        return _choose(state, ui, key, room, library), None
    return _read(state, ui, key, len(page), room, library), None


def _typed(ui: Ui, key: str, page: Sequence[Text], is_there: bool) -> Ui:
    """What follows `/`: a filter of a list, which is obeyed at once, or a text to find on a page."""
    said = ui.typing or ""
    if key == "esc" or (key == "backspace" and not said):
        return _filtered(replace(ui, typing=None), "")
    if key == "enter":
        found = replace(ui, typing=None)
        if ui.page in ("runs", "run"):
            return found
        return find(found, said, page) if is_there else replace(found, sought=said, note="the page is being made")
    if key == "backspace":
        said = said[:-1]
    elif len(key) == 1:
        said += key
    return _filtered(replace(ui, typing=said), said)


def _filtered(ui: Ui, query: str) -> Ui:
    if ui.page == "runs":
        return replace(ui, runs=replace(ui.runs, query=query), run=None)
    if ui.page == "run":
        return replace(ui, attempts=replace(ui.attempts, query=query), selected=None)
    return ui


def find(ui: Ui, said: str, page: Sequence[Text]) -> Ui:
    """The next line that holds it, from the one below the first that is shown on, around the end."""
    order = [*range(ui.scroll + 1, len(page)), *range(min(ui.scroll + 1, len(page)))]
    found = next((i for i in order if said.lower() in page[i].plain.lower()), None)
    return replace(ui, note=f"not found: {said}") if found is None else replace(ui, scroll=found)


def _choose_run(ui: Ui, key: str, room: int, library: Library) -> Ui:
    """In the list of runs: move, sort, open one."""
    rows = [run.run_id for run in visible_runs(library, ui)]
    at = rows.index(ui.run) if ui.run in rows else 0
    if key in ("enter", "right") and rows:
        return replace(ui, page="run", opened=rows[at], run=rows[at], selected=None, attempts=Listing())
    if key in _BACK:
        return replace(ui, runs=replace(ui.runs, query=""))
    if key == "s":
        return replace(ui, runs=replace(ui.runs, order=(ui.runs.order + 1) % len(_RUN_ORDERS)), run=None)
    to = _to(key, at, room, len(rows))
    return ui if to is None or not rows else replace(ui, run=rows[max(0, min(to, len(rows) - 1))])


def _to(key: str, at: int, room: int, rows: int) -> int | None:
    """The row that a key leads to, perhaps beyond an end; None for another key."""
    if key in _ENDS:
        return rows if _ENDS[key] > 0 else 0
    step = _STEPS.get(key) or max(1, room // 2) * _PAGES.get(key, 0)
    return at + step if step else None


def _choose(state: ViewState, ui: Ui, key: str, room: int, library: Library) -> Ui:
    """On the main page: move through the attempts, filter, sort, open one."""
    if key == "d":
        return replace(ui, diff=not ui.diff)
    if key == "s":
        order = (ui.attempts.order + 1) % len(_ATTEMPT_ORDERS)
        return replace(ui, attempts=replace(ui.attempts, order=order), selected=None)
    tab = "attempt" if key == "right" else _TAB_KEYS.get(key)
    if (row := chosen_attempt(state, ui)) is not None and tab in tabs(state, ui, library):
        return replace(ui, page=tab, scroll=0, selected=row.number)  # what is read does not change under the eyes
    if key in _BACK or key == "left":
        return _step_back(ui, library)
    return _moved(state, ui, key, room)


def _step_back(ui: Ui, library: Library) -> Ui:
    """Let go of the filter, else of what is selected, else of the run."""
    if ui.attempts.query:
        return replace(ui, attempts=replace(ui.attempts, query=""))
    if ui.selected is None and library.runs:
        return replace(ui, page="runs", opened=None)
    return replace(ui, selected=None)


def _moved(state: ViewState, ui: Ui, key: str, room: int) -> Ui:
    """Another row; none, to follow the newest, below it."""
    rows = visible_attempts(state, ui)
    follows = ui.attempts.order == 0
    at = next((i for i, a in enumerate(rows) if a.number == ui.selected), len(rows) if follows else 0)
    to = _to(key, at, room, len(rows))
    if to is None or not rows:
        return replace(ui, note=f"no such key: {key}; ? lists them") if len(key) == 1 and to is None else ui
    if to >= len(rows) and follows:
        return replace(ui, selected=None)
    return replace(ui, selected=rows[max(0, min(to, len(rows) - 1))].number)


def _read(state: ViewState, ui: Ui, key: str, lines: int, room: int, library: Library) -> Ui:
    """On a page of text: scroll, go to another page or a neighbour, go back."""
    if ui.page == "help":
        return (
            replace(ui, page=ui.before, scroll=0) if key in (*_BACK, "enter", "left") else _scroll(ui, key, lines, room)
        )
    there = tabs(state, ui, library)
    at = there.index(ui.page) if ui.page in there else 0
    if key in _BACK or (key == "left" and at == 0) or _TAB_KEYS.get(key) == ui.page:
        return replace(ui, page="run", scroll=0)
    if key in ("left", "right", "tab"):
        return replace(ui, page=there[(at + (-1 if key == "left" else 1)) % len(there)], scroll=0)
    if (tab := _TAB_KEYS.get(key)) in there:
        return replace(ui, page=tab, scroll=0)
    if key in ("n", "b"):
        row = chosen_attempt(state, ui)
        rows = [a.number for a in visible_attempts(state, ui)]
        if row is not None and row.number in rows:
            to = rows.index(row.number) + (1 if key == "n" else -1)
            return replace(ui, selected=rows[max(0, min(to, len(rows) - 1))], scroll=0)
        return ui
    return _scroll(ui, key, lines, room)


def _scroll(ui: Ui, key: str, lines: int, room: int) -> Ui:
    step = _STEPS.get(key) or max(1, room - 1) * _PAGES.get(key, 0) or _ENDS.get(key, 0) * _END
    if not step and len(key) == 1:
        return replace(ui, note=f"no such key: {key}; ? lists them")
    return replace(ui, scroll=max(0, min(ui.scroll + step, lines - room)))


# Where each pane goes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScreenFrame:
    """A picture of exactly `width` x `height` cells, whatever the size of the console that it is printed on."""

    page: RenderableType
    width: int
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.page, options.update_dimensions(self.width, self.height))
        for made in Segment.set_shape(lines, self.width, self.height):
            yield from made
            yield Segment.line()


def render(
    state: ViewState, size: tuple[int, int], now: float, ui: Ui | None = None, library: Library = NO_LIBRARY
) -> ScreenFrame:
    """One frame of `size` columns and lines. `now` is Unix time in seconds; `ui` what a person has chosen to see."""
    ui = ui or Ui()
    width, height = max(20, size[0]), max(4, size[1])
    if ui.page == "runs" or (ui.page == "help" and ui.before == "runs"):
        top, bottom = [_library_title(library, width)], [_footer(state, width, ui, library)]
    elif ui.page == "run":
        top = _header(state, width, now, facts=height >= ROOMY)[: max(1, height // 3)]
        bottom = _bottom(state, width, height, now, ui, library)
    else:
        top, bottom = [_title(state, width, now)], [_footer(state, width, ui, library)]
    room = height - len(top) - len(bottom)
    match ui.page:
        case "run":
            middle: RenderableType = _middle(state, width, room, now, ui)
        case "runs":
            middle = Pane(_runs(library, ui, width, room))
        case _:
            middle = _page(state, ui, width, room, now, library)
    return ScreenFrame(_stacked((Pane(top), len(top)), (middle, room), (Pane(bottom), len(bottom))), width, height)


@dataclass(frozen=True)
class Pane:
    """Lines below each other, each cut where the pane ends. Rich would wrap each, which takes twice as long."""

    lines: Sequence[Text]

    def fitted(self, height: int) -> list[Text]:
        """Exactly so many lines."""
        return [*self.lines[: max(0, height)], *([Text()] * (height - len(self.lines)))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for made in self.lines:
            if made.cell_len > options.max_width:
                made = made.copy()
                made.truncate(options.max_width, overflow="ellipsis")
            yield from made.render(console)
            yield Segment.line()


def _stacked(*panes: tuple[RenderableType, int]) -> Layout | Pane:
    """Panes below each other, each of so many lines; those of none are left out."""
    if all(isinstance(pane, Pane) for pane, _ in panes):  # each layout inside of another one costs a tenth of a frame
        fitted = (pane.fitted(lines) for pane, lines in panes if isinstance(pane, Pane))
        return Pane([made for lines in fitted for made in lines])
    layout = Layout()
    layout.split_column(*(Layout(pane, size=lines) for pane, lines in panes if lines > 0))
    return layout


def _beside(left: RenderableType, right: RenderableType, right_width: int, height: int) -> Layout:
    """Two panes with a bar between them."""
    layout = Layout()
    bar = Text("\n".join([" │ "] * height), style=DIM)
    layout.split_row(Layout(left), Layout(bar, size=_BAR_CELLS), Layout(right, size=right_width))
    return layout


def _bottom(state: ViewState, width: int, height: int, now: float, ui: Ui, library: Library) -> list[Text]:
    foot = [_footer(state, width, ui, library)]
    if height < LOW:
        return foot if ui.note or ui.status or ui.typing is not None else []
    strips = [_stages(state, width, now)]
    if state.gpu_reading:
        strips.append(_gpu(state.gpu_reading, width))
    return [*strips, *foot]


def _middle(state: ViewState, width: int, height: int, now: float, ui: Ui) -> RenderableType:
    if height < LOW - 3:
        return Pane(_table(state, ui, width, height, now))
    if width >= WIDE:
        return _two_columns(state, width, height, now, ui)
    best, lines = _best_and_curve(state, width, 1 if height < _ALL_BASELINES else 99)
    rest = height - lines
    lower = _lower_height(state, rest)
    attempts = Pane(_table(state, ui, width, rest - lower, now))
    return _stacked((best, lines), (attempts, rest - lower), (_lower(state, width, lower, ui), lower))


def _best_and_curve(state: ViewState, width: int, most: int) -> tuple[RenderableType, int]:
    """The best attempt, the curve beside it where there is room, and how many lines they take."""
    if width < CURVE_FROM:
        facts = best_facts(state, width, most)
        return Pane(facts), len(facts)
    right = max(_LEAST_CURVE, min(64, width - _BEST - _BAR_CELLS))
    facts = best_facts(state, width - right - _BAR_CELLS, most)
    lines = max(len(facts), _LEAST_BEST)
    return _beside(Pane(facts), Pane(_plot(state, right, lines)), right, lines), lines


def _lower_height(state: ViewState, rest: int) -> int:
    """Lines for log and source below the table, which wants as many as it has rows."""
    wanted = len(state.attempts) + 1 + (state.unseen_attempts > 0)
    most = rest * 11 // 20 if rest >= 18 else min(5, rest // 3)
    return min(rest - _LEAST_TABLE, max(most, rest - wanted)) if rest > _LEAST_TABLE + 2 else 0


def _lower(state: ViewState, width: int, height: int, ui: Ui) -> RenderableType:
    if width >= MIDDLE and height >= 8:
        left = width * 11 // 20
        right = width - left - _BAR_CELLS
        source = Pane(_source(state, left, height, ui))
        return _beside(source, Pane(log_lines(state, right, height)), right, height)
    if height >= 14:
        log = max(5, height // 3)
        return _stacked(
            (Pane(_source(state, width, height - log, ui)), height - log), (Pane(log_lines(state, width, log)), log)
        )
    return Pane(log_lines(state, width, height))


def _two_columns(state: ViewState, width: int, height: int, now: float, ui: Ui) -> Layout:
    right = min(124, width * 9 // 20)
    left = width - right - _BAR_CELLS
    best, lines = _best_and_curve(state, left, 99)
    rows = len(visible_attempts(state, ui)) + 1 + (state.unseen_attempts > 0)
    known = min(height - lines - rows, (height - lines) * 2 // 3)  # what the table leaves
    table = height - lines - (known if known >= _LEAST_KNOWN else 0)
    attempts = Pane(_table(state, ui, left, table, now))
    below = Pane(_known_of_chosen(state, ui, left, height - lines - table, now))
    log = max(6, height * 2 // 5)
    source = Pane(_source(state, right, height - log, ui))
    spoken = Pane(log_lines(state, right, log))
    left_pane = _stacked((best, lines), (attempts, table), (below, height - lines - table))
    return _beside(left_pane, _stacked((source, height - log), (spoken, log)), right, height)


# Lines of cells --------------------------------------------------------------------------------------------------


def line(*parts: Part, style: str = "") -> Text:
    """The parts one after the other, safe to show, on one line that is cut with an ellipsis where the pane ends."""
    made = Text(no_wrap=True, overflow="ellipsis", style=style)
    for part in parts:
        raw, name = (part, "") if isinstance(part, str) else part
        made.append(_safe(raw), name)
    return made


@lru_cache(maxsize=1024)
def _safe(text: str) -> str:
    """Without what moves the cursor, or is not as wide as it says; blanks stay where nothing else is wrong."""
    if text.isprintable():
        return text if text.isascii() else words.lines(text)
    cleaned = words.lines(text)
    return cleaned if cleaned.isprintable() else one_line(cleaned)


def _ends(width: int, left: Sequence[Part], right: Sequence[Part]) -> Text:
    """Parts at both ends; the right ones matter more when there is not room for all."""
    begin, end = line(*left), line(*right)
    begin.truncate(max(0, width - end.cell_len - 1), overflow="ellipsis", pad=True)
    return begin.append(" ").append_text(end)


def _rule(width: int, *title: Part) -> Text:
    """A line with a title near its left end: what stands above a pane."""
    made = line(*title)
    made.truncate(max(0, width - 4), overflow="ellipsis")
    made = line(("─ ", DIM)).append_text(made).append(" ")
    return made.append("─" * max(0, width - made.cell_len), DIM)


def wrapped(text: str, width: int) -> list[str]:
    """A paragraph as lines of at most so many cells, broken between words where that is possible."""
    if text.isascii():
        return textwrap.wrap(text, width)
    lines, used = [""], 0
    for word in text.split():
        size = cell_len(word)
        if used and used + 1 + size <= width:
            lines[-1] += f" {word}"
            used += 1 + size
            continue
        pieces = chop_cells(word, width) if size > width else [word]
        lines = [*lines, *pieces] if used else [*lines[:-1], *pieces]
        used = cell_len(lines[-1])
    return lines if used else []


def share_bar(fraction: float, size: int, colour: str = "cyan") -> list[Part]:
    """A share as a bar of cells."""
    used = round(size * min(1.0, max(0.0, fraction)))
    return [("━" * used, colour), ("─" * (size - used), DIM)]


# The header: what runs, where, for how long, and how much of its budget is used ----------------------------------

_FULL_NOTE = 96  # columns from which on the sentence about the missing GPU fits
_SHORT_NOTE = "no GPU: results are `checked`, not timed"
_MOST_GAUGE, _LEAST_GAUGE = 24, 4
_NEARLY = 0.9  # of a budget: from here on its gauge is a warning
_VERSIONS = ("driver", "torch", "triton", "kerneltune")


def _header(state: ViewState, width: int, now: float, *, facts: bool = False) -> list[Text]:
    lines = [_title(state, width, now)]
    if state.started and state.gpu is None:
        lines.append(line(" ", (words.NO_GPU if width >= _FULL_NOTE else _SHORT_NOTE, "yellow")))
    if budgets := state.budgets(now):
        lines.append(_budget_line(budgets, width))
    if facts and state.started:
        lines.append(line(" ", (_versions(state), DIM)))
    return lines


def _title(state: ViewState, width: int, now: float) -> Text:
    left: list[Part] = [(" kerneltune", "bold"), "  ", (one_line(state.task or ""), "bold cyan")]
    if state.started:
        author = "search, no model" if state.started.author == "offline" else state.started.author
        strategy = state.started.limits.get("strategy")
        for fact in filter(None, (state.gpu, author, strategy if isinstance(strategy, str) else None)):
            left += [(" · ", DIM), one_line(fact)]
    left_s = state.left_s(now)
    rest: list[Part] = [] if left_s is None else [(f"  about {words.duration(left_s)} left", DIM)]
    return _ends(width, left, [*_mood(state, now), "  ", (words.duration(state.elapsed_s(now)), "bold"), *rest, " "])


def _mood(state: ViewState, now: float) -> list[Part]:
    if state.ended:
        return [(f"ended: {state.ended.why.replace('_', ' ')}", "bold")]
    if state.paused_at is not None and not state.stopping:
        return [("paused", "bold yellow")]
    spinner = words.SPINNER[int(now * 4) % len(words.SPINNER)]
    doing: Part = ("stopping", "bold yellow") if state.stopping else ("running", "green")
    return [(f"{spinner} ", "cyan"), doing if state.started else one_line(state.stage)]


def _budget_line(budgets: tuple[Budget, ...], width: int) -> Text:
    shown = [(b, f"{b.name} ", f" {_amount(b, b.used)}/{_amount(b, b.limit)}") for b in budgets]
    fixed = sum(len(name) + len(amount) + 3 for _, name, amount in shown)
    each = min(_MOST_GAUGE, (width - fixed) // len(shown))
    parts: list[Part] = []
    for budget, name, amount in shown:
        colour = "yellow" if budget.fraction >= _NEARLY else "cyan"
        gauge = share_bar(budget.fraction, each, colour) if each >= _LEAST_GAUGE else []
        parts += [" ", (name, DIM), *gauge, amount, "  "]
    return line(*parts)


def _amount(budget: Budget, value: float) -> str:
    if budget.name == "cost":
        return words.dollars(value)
    return words.duration(value) if budget.name == "time" else f"{value:.0f}"


def _versions(state: ViewState) -> str:
    if state.started is None:
        return ""
    known = {**state.started.machine, **state.started.versions}
    shown = [f"{name} {known[name]}" for name in _VERSIONS if isinstance(known.get(name), str)]
    why = f"author {state.started.author} ({state.started.author_why})"
    return "   ".join([why, f"compiled for {state.started.arch}", *shown])


# The last lines: stages, the GPU, keys ---------------------------------------------------------------------------

_ALL_STAGES = 100  # columns from which on stages without an attempt are named too
_RATE_WINDOW_S = 300.0
_LEAST_S = 10.0  # before that a rate says nothing
_GPU_GAUGE = 10


_LOOKING = (
    ("↑↓", "choose"), ("enter", "show"), ("o", "source"), ("d", "diff"), ("/", "filter"), ("s", "sort"),
)  # fmt: skip
_READING = (("esc", "back"), ("← →", "pages"), ("↑↓", "scroll"), ("n b", "next, before"), ("/", "find"))
_SHELF = (("↑↓", "choose"), ("enter", "open"), ("/", "filter"), ("s", "sort"), ("?", "help"), ("q", "leave"))


def _keys_of(ui: Ui) -> Sequence[tuple[str, str]]:
    """What is offered on a page: of a run what the run does, too; `?` is never cut off."""
    if ui.page == "runs":
        return _SHELF
    if ui.page == "help":
        return (("esc", "back"), ("↑↓", "scroll"))
    return (*ui.keys[:1], ("?", "help"), *ui.keys[1:], *_LOOKING) if ui.page == "run" else (*_READING, ("?", "help"))


def _footer(state: ViewState, width: int, ui: Ui, library: Library) -> Text:
    """What a person can do now; what the last key did, or is being typed, comes first."""
    parts: list[Part] = [" ", (ui.status, "bold"), "  "] if ui.status else []
    if ui.typing is not None:
        what = "find" if ui.page not in ("run", "runs") else "only rows with"
        return line(" ", (f"{what}: {ui.typing}▏", "bold"), ("  enter keeps it, esc gives it up", DIM))
    if shown := _listing_in_words(state, ui, library):
        parts += [" ", (shown, "cyan"), " "]
    if ui.note:
        return line(*parts, " ", (ui.note, "bold"))
    if not ui.keys:
        resume = f": optimize --resume {shell_word(state.run_id)}" if state.run_id else ""
        stops = "ended; to go on" if state.ended else "Ctrl-C stops; nothing finished is lost"
        return line(*parts) if parts else line(" ", (stops + resume, DIM))
    for key, what in _keys_of(ui):
        more: list[Part] = [" ", (key, "bold"), (f" {what} ", DIM)]
        if line(*parts, *more).cell_len <= width:
            parts += more
    return line(*parts)


def _listing_in_words(state: ViewState, ui: Ui, library: Library) -> str:
    """The filter and the order of the list that is shown, where there are any."""
    if ui.page not in ("run", "runs"):
        return ""
    listing, orders = (ui.runs, _RUN_ORDERS) if ui.page == "runs" else (ui.attempts, _ATTEMPT_ORDERS)
    shown, of = (
        (len(visible_runs(library, ui)), len(library.runs))
        if ui.page == "runs"
        else (len(visible_attempts(state, ui)), len(state.attempts))
    )
    told = [f"/{listing.query}: {shown} of {of}"] if listing.query else []
    return "; ".join([*told, *([f"by {orders[listing.order][0]}"] if listing.order else [])])


def _stages(state: ViewState, width: int, now: float) -> Text:
    """How many attempts are in each stage, whether the model is waited for, and verdicts a minute."""
    counts = Counter(map(state.stage_of, state.working))
    judging = ("checking", "checking") if state.gpu is None else ("on GPU", "timing")
    stages = (
        ("tracing", counts["proposed"] + counts["tracing"]),
        ("compiling", counts["compiling"]),
        ("compiled", counts["updated"]),
        (judging[0], counts[judging[1]]),
    )
    parts: list[Part] = [" "]
    for name, n in stages:
        if n or width >= _ALL_STAGES:
            parts += [(" → ", DIM)] if len(parts) > 1 else []
            parts += [(name, "" if n else DIM), (f" {n}", "bold cyan" if n else DIM)]
    if len(parts) == 1 and not state.asked:
        parts.append(("nothing under way", DIM))
    rate = _judged_per_minute(state, now)
    right = "" if rate is None else f"{rate:.1f} judged/min"
    return _ends(width, [*parts, *_waiting(state, now)], [right, " "])


def _waiting(state: ViewState, now: float) -> Iterator[Part]:
    if state.ended is None and state.is_confirming:
        yield ("   " + one_line(state.stage), "cyan")
    if state.asked:
        since = words.duration(now - min(at for _, at in state.asked))
        many = f"{len(state.asked)} replies" if len(state.asked) > 1 else "the model"
        yield (f"   waiting for {many} {since}", "cyan")


def _judged_per_minute(state: ViewState, now: float) -> float | None:
    """Attempts that got a verdict, a minute, over the last five minutes of this process; None while it is young."""
    if state.process_at is None:
        return None
    end = state.ended.at if state.ended else now
    begin = max(state.process_at, end - _RATE_WINDOW_S)
    if end - begin < _LEAST_S:
        return None
    return sum(row.judged_at >= begin for row in state.attempts) * 60 / (end - begin)


def _gpu(reading: GpuReading, width: int) -> Text:
    """The last sample of the GPU; what is not known is left out."""
    parts: list[Part] = [" ", ("GPU", "bold")]
    for more in _gpu_parts(reading, width):
        parts += ["  ", *more]
    return line(*parts)


def _gpu_parts(now: GpuReading, width: int) -> Iterator[list[Part]]:
    """What matters most comes first: the end of the line may be cut."""
    if now.utilisation_percent is not None:
        gauge = share_bar(now.utilisation_percent / 100, _GPU_GAUGE, "green") if width >= _ALL_STAGES else []
        yield [f"{now.utilisation_percent:3} %", *([" ", *gauge] if gauge else [])]
    if now.sm_clock_mhz is not None:
        memory = "" if now.memory_clock_mhz is None or width < _ALL_STAGES else f", memory {now.memory_clock_mhz} MHz"
        yield [f"{now.sm_clock_mhz} MHz{memory}"]
    if now.memory_used_bytes is not None:
        total = "" if now.memory_total_bytes is None else f" of {now.memory_total_bytes / 2**30:.0f}"
        yield [f"{now.memory_used_bytes / 2**30:.1f}{total} GiB"]
    if now.temperature_c is not None:
        yield [f"{now.temperature_c} °C"]
    if now.power_w is not None:
        yield [f"{now.power_w:.0f} W"]
    if throttled := throttling(now):
        capped = throttled != "not throttled"
        yield [(throttled, "bold red" if is_slowed(now) else "yellow" if capped else DIM)]


# The best attempt, and the curve of the best over attempts -------------------------------------------------------

_ONE_LINE = 74  # columns from which on time, speed of light and coverage fit on one line
_BRAILLE_DOTS = ((0x1, 0x2, 0x4, 0x40), (0x8, 0x10, 0x20, 0x80))  # by column and row of a braille cell
_BLANK = 0x2800


def best_facts(state: ViewState, width: int, most: int = 99) -> list[Text]:
    """A rule that names the best attempt, and a line for each fact; `most` baselines, the fastest first."""
    row = state.best
    if row is None or row.verdict is None:
        return [_rule(width, ("best so far", "bold")), line((" no correct kernel yet", DIM))]
    said = ("best" if state.ended else "best so far") if row.timing else words.FIRST_CHOICE
    head = _rule(width, (f"{said} ", "bold"), (f"#{row.number} {words.short_name(row)}", "bold green"))
    facts = [line(" ", *parts) for parts in verdict_facts(row, width, state.gpu, most)]
    return [head, *facts, *(line(" ", *parts) for parts in _goal_bar(row.verdict, width))]


_MOST_BAR, _LEAST_BAR = 40, 10


def _goal_bar(verdict: Verdict, width: int) -> Iterator[list[Part]]:
    """How far the best has come: from nothing to the speed of light, with a mark at the number to beat, which is the
    time of the fastest baseline. Green is what is gained over it, red what is missing."""
    compared = fastest_first(verdict.comparisons)
    if not compared or not compared[0].speedup > 0:
        return
    reached = compared[0].speedup
    light = reached / verdict.sol_fraction if verdict.sol_fraction and not _skips_work(verdict) else 0.0
    most = max(light, reached, 1.0) if light else 1.25 * max(reached, 1.0)
    told = f"{reached:.2f}x" + (f" of {light:.2f}x at the speed of light" if light else "")
    cells = min(_MOST_BAR, width - len(told) - 5)
    if cells < _LEAST_BAR or not math.isfinite(most):  # a damaged record may hold any number
        return
    at, goal = (min(cells - 1, round(value / most * (cells - 1))) for value in (reached, 1.0))
    won, lost = max(0, at - goal), max(0, goal - at)
    yield [
        ("━" * min(at, goal), "cyan"), ("─" * lost, "red"), ("┃", "bold"), ("━" * won, "green"),
        ("─" * (cells - 1 - max(at, goal)), DIM), "  ", (told, "green" if reached > 1 else "red"),
    ]  # fmt: skip


def _skips_work(verdict: Verdict) -> bool:
    """Whether it is faster than the reference's work at the speed of light: a bound for those alone that do it all."""
    return (verdict.sol_fraction or 0.0) > BEYOND_LIGHT


def verdict_facts(row: Attempt, width: int, gpu: str | None, most: int = 99) -> list[list[Part]]:
    """What is known of an attempt's speed, a list of parts for each line; without a verdict nothing."""
    if (verdict := row.verdict) is None:
        return []
    shown = verdict_style(verdict.status)
    label: Part = (f"{shown.symbol} {verdict.status.value}", shown.colour)
    if verdict.timing is None:
        untimed = f"not timed: {NOT_TIMED[verdict.not_timed]}" if verdict.not_timed else "not timed"
        why: list[Part] = [(f"no GPU, so no time: {words.RANKED_BY}" if gpu is None else untimed, DIM)]
        return [[label, "   ", words.compiler_facts(row.kernels)], why]
    first: list[Part] = [label, "  ", (words.timing(verdict.timing), "bold")]
    more: list[Part] = []
    if verdict.sol_fraction is not None:
        skips = " (skips work of the reference)" * _skips_work(verdict)
        more += [f"{verdict.sol_fraction:.0%} of speed of light{skips}", "  "]
    if verdict.coverage is not None:
        more += [(f"coverage {verdict.coverage:.0%}", DIM)]
    lines = [[*first, "  ", *more]] if width >= _ONE_LINE or not more else [first, more]
    compared = fastest_first(verdict.comparisons)[:most]
    names = max((len(c.baseline) for c in compared), default=0) if width >= _ONE_LINE else 0
    lost: list[list[Part]] = [[(one_line(said), "red")]] if (said := losses_in_words(verdict.case_times)) else []
    return [*lines, *(_against(c, names) for c in compared), *lost]


def _against(compared: Comparison, names: int) -> list[Part]:
    """Green where the whole interval lies above 1, red where it lies below. `names`: cells of the longest name; 0 where
    there is no room for the baseline's time."""
    colour = "green" if compared.low > 1 else "red" if compared.high < 1 else ""
    baseline = f"  vs {one_line(compared.baseline):{names or 1}}"
    time = f"  {words.microseconds(compared.baseline_us):>9}" if names else ""
    return [(f"{words.speedup(compared):<20}", colour), (baseline + time, DIM)]


_MOST_DRAWN = 1e18


@dataclass(frozen=True)
class BestCurve:
    """`values` after each judged attempt, None before there is one. Speed-ups are over the fastest baseline of the run,
    also those of attempts that were timed before it was ready. Without a GPU there is no speed-up: it shows by how many
    bytes, as the static model counts them, the first choice was made."""

    kind: Literal["speed-up", "time", "bytes"]
    values: tuple[float | None, ...]

    def title(self, width: int) -> str:
        """What the curve shows, in so many cells."""
        name = {"speed-up": "best speed-up", "time": "best time", "bytes": "least bytes"}[self.kind]
        whole = f"{name} over {plural(len(self.values), 'attempt')}"
        return whole if len(whole) <= width - 4 else name

    def label(self, value: float) -> str:
        """A value of the axis."""
        if self.kind == "bytes":
            return f"{value / 1e6:.3g} MB"
        return words.microseconds(value) if self.kind == "time" else f"{value:.2f}x"

    def range(self, known: list[float]) -> tuple[float, float]:
        """The least and the greatest value of the axis."""
        low, high = min(known), max(known)
        if self.kind == "speed-up":
            low, high = min(low, 1.0), max(high, 1.0)
        return low, high if high > low else low * 1.01


def curve_of(state: ViewState) -> BestCurve:
    """The run's curve, in the order in which attempts were proposed."""
    judged = [a for a in state.attempts if a.verdict]
    if state.gpu is None:
        moved = (a.rank_key[0] if a.rank_key else math.inf for a in judged)
        least = accumulate(moved, min)
        return BestCurve("bytes", tuple(map(_drawn, least)))
    fastest = next(iter(fastest_first(c for a in judged for c in a.comparisons)), None)
    leaders = _leaders(judged)
    if fastest is None:
        return BestCurve("time", tuple(_drawn(row.timing.median_us) if row and row.timing else None for row in leaders))
    return BestCurve("speed-up", tuple(_drawn(_speedup_over(fastest, row)) if row else None for row in leaders))


def _leaders(judged: Sequence[Attempt]) -> Iterator[Attempt | None]:
    """Who leads after each attempt, by the run's own ranking: the median."""
    led: Attempt | None = None
    for row in judged:
        if row.timing and (led is None or led.timing is None or row.timing.median_us < led.timing.median_us):
            led = row
        yield led


def _speedup_over(fastest: Comparison, row: Attempt) -> float | None:
    """As it was measured, else as the quotient of two medians."""
    measured = (c.speedup for c in row.comparisons if c.baseline == fastest.baseline)
    return next(measured, fastest.baseline_us / row.timing.median_us if row.timing and row.timing.median_us else None)


def _drawn(value: float | None) -> float | None:
    """A value that a curve can have; None for what only a damaged record holds."""
    return value if value is not None and 0.0 <= value < _MOST_DRAWN else None


def _plot(state: ViewState, width: int, height: int) -> list[Text]:
    """A rule with the title, and the curve below it in braille dots."""
    curve = curve_of(state)
    known = [v for v in curve.values if v is not None]
    head = _rule(width, (curve.title(width), "bold"))
    if not known or height < 2:
        return [head, line((" nothing yet", DIM))]
    low, high = curve.range(known)
    names = [""] * (height - 1)
    one = height - 2 - _level(1.0, low, high, (height - 1) * 4) // 4 if curve.kind == "speed-up" else -1
    if one >= 0:
        names[one] = curve.label(1.0)
    names[-1] = names[-1] if height > 2 and low == 1.0 else curve.label(low)
    names[0] = curve.label(high)
    margin = max(map(len, names))
    grid = braille(curve.values, max(1, width - margin - 2), height - 1, low, high)
    return [head, *(_plot_row(names[i], margin, row, dotted=i == one) for i, row in enumerate(grid))]


def _plot_row(name: str, margin: int, row: list[int], *, dotted: bool) -> Text:
    """The curve in green, the line of no speed-up dim."""
    drawn = "".join(chr(_BLANK + cell) if cell else "┈" if dotted else " " for cell in row)
    runs = ("".join(run) for _, run in groupby(drawn, lambda char: char == "┈"))
    return line((f"{name:>{margin}} ", DIM), *((run, DIM if run[0] == "┈" else "green") for run in runs))


def _level(value: float, low: float, high: float, levels: int) -> int:
    return round((value - low) / (high - low) * (levels - 1)) if high > low else 0


def braille(values: tuple[float | None, ...], width: int, height: int, low: float, high: float) -> list[list[int]]:
    """Braille bits of each cell, by row: a step line through the values, spread over the whole width."""
    grid = [[0] * width for _ in range(height)]
    before: int | None = None
    for column in range(2 * width):
        value = values[min(column * len(values) // (2 * width - 1), len(values) - 1)]  # the last one is always shown
        if value is None:
            continue
        level = _level(value, low, high, 4 * height)
        first = level if before is None else before
        for at in range(min(first, level), max(first, level) + 1):
            row, bit = divmod(4 * height - 1 - at, 4)
            grid[row][column // 2] |= _BRAILLE_DOTS[column % 2][bit]
        before = level
    return grid


# The table of attempts: as many columns as the width allows, and always the best and the newest rows -------------

_GAP = 2  # blanks between columns
_GUTTER = 2
_LEAST_WINDOW = 6  # rows from which on some are worth giving to the best and to gaps
_WIDE_PAIR = 36  # the least that "what happened" and "what was tried" need to stand side by side
_TRIED = 24  # the least that "what was tried" needs before another column may come
_STAGE_WORDS = {"proposed": "waiting", "updated": "compiled"}


@dataclass(frozen=True)
class TableColumn:
    """A column: `width` in cells, 0 for one that takes what is left. `rank`: the lower, the sooner it is shown."""

    name: str
    width: int
    rank: int
    cell: Callable[[Any, Any, float], Part]  # of what is around the rows (a state), the row (an attempt), and now
    right: bool = True


@dataclass(frozen=True)
class HiddenRows:
    """Rows that are not shown."""

    count: int
    word: str


def _table(state: ViewState, ui: Ui, width: int, height: int, now: float) -> list[Text]:
    """The head and at most `height` - 1 rows."""
    columns = _fitting_columns(_GPU_COLUMNS if state.gpu else _CPU_COLUMNS, width)
    rest = _rest_of(columns, width)
    head = line(" " * _GUTTER, *_cells(columns, [(c.name, DIM) for c in columns], rest))
    shown = visible_attempts(state, ui)
    at = next((i for i, a in enumerate(shown) if a.number == ui.selected), 0 if ui.attempts.order else len(shown) - 1)
    marked = shown[at].number if shown and ui.attempts.order else ui.selected  # else the newest is followed
    rows = window(state, max(1, height - 1), shown, at)
    if state.attempts and not shown:
        return [head, line((f"    no attempt has: {ui.attempts.query}", DIM))]
    return [head, *(_table_row(state, row, columns, width, rest, now, marked) for row in rows)][:height]


def _rest_of(columns: Sequence["TableColumn"], width: int) -> int:
    """Cells of each column that takes what is left."""
    fixed = sum(c.width for c in columns) + _GAP * (len(columns) - 1) + _GUTTER + 1
    return max(1, (width - fixed) // max(1, sum(c.width == 0 for c in columns)))


def _table_row(
    state: ViewState,
    row: Attempt | HiddenRows,
    columns: Sequence[TableColumn],
    width: int,
    rest: int,
    now: float,
    selected: int | None,
) -> Text:
    if isinstance(row, HiddenRows):
        return line((f"    ⋮ {row.count} {row.word}", DIM))
    best = row.attempt_id == state.best_id
    marks = ("▸" if row.number == selected else " ") + ("★" if best else " ")
    cells = _cells(columns, [c.cell(state, row, now) for c in columns], rest)
    made = line((marks, "green"), *cells, style="bold" if best else "")
    if row.number == selected:
        made.truncate(width, overflow="ellipsis", pad=True)
        made.stylize("reverse")
    return made


def _cells(columns: Sequence[TableColumn], parts: Sequence[Part], rest: int) -> Iterator[Part]:
    """Each part in exactly the width of its column; `rest` for those that take what is left."""
    for i, (column, part) in enumerate(zip(columns, parts, strict=True)):
        raw, style = (part, "") if isinstance(part, str) else part
        text, width = _safe(raw), column.width or rest
        if cell_len(text) > width:
            text = set_cell_size(text, width - 1) + "…"
        pad = " " * (width - cell_len(text))
        yield " " * _GAP * (i > 0) + (pad if column.right else "")
        yield (text, style)
        yield "" if column.right else pad


def window(
    state: ViewState, room: int, rows: Sequence[Attempt] | None = None, at: int | None = None
) -> list[Attempt | HiddenRows]:
    """The rows that fit: those around the one at `at`, the newest without it, and apart from them the best."""
    rows = state.attempts if rows is None else rows
    at = len(rows) - 1 if at is None else at
    if room < _LEAST_WINDOW:
        end = max(at + 1, min(room, len(rows)))
        return list(rows[max(0, end - room) : end])
    best = next((i for i, a in enumerate(rows) if a.attempt_id == state.best_id), None)
    for size in range(min(room, len(rows)), -1, -1):  # until the best and the gaps have room as well
        end = min(len(rows), max(at + 1 + size // 2, size))
        shown = _pieces(rows, end - size, end, best, 0 if len(rows) < len(state.attempts) else state.unseen_attempts)
        if len(shown) <= room:
            break
    return shown


def _pieces(rows: Sequence[Attempt], start: int, end: int, best: int | None, unseen: int) -> list[Attempt | HiddenRows]:
    """A stretch of rows, the best on its side of it, and what is left out."""
    before = [best] if best is not None and best < start else []
    after = [best] if best is not None and best >= end else []
    earlier = start - len(before) + unseen
    later = len(rows) - end - len(after)
    return [
        *(rows[i] for i in before),
        *([HiddenRows(earlier, "earlier")] if earlier else []),
        *rows[start:end],
        *([HiddenRows(later, "later")] if later else []),
        *(rows[i] for i in after),
    ]


def _fitting_columns(columns: Sequence[TableColumn], width: int) -> list[TableColumn]:
    """The columns that fit, in their order on the screen."""
    kept = [c for c in columns if c.rank == 0]
    for column in sorted((c for c in columns if c.rank), key=lambda c: c.rank):
        fixed = sum(c.width + _GAP for c in (*kept, column) if c.width) + _GUTTER
        need = _TRIED if column.width else 2 * _WIDE_PAIR + _GAP
        if width - fixed >= need:
            kept.append(column)
    return [c for c in columns if c in kept]


def _verdict_cell(state: ViewState, row: Attempt, now: float) -> Part:
    """Symbol, word and colour of a verdict; before there is one what is being done, and for how long."""
    if row.verdict is None:
        its = state.under_way[row.attempt_id]
        since = f" {words.duration(now - its.at)}" if its.stage not in LEFT_STAGES and now - its.at >= 1 else ""
        return (f"· {_STAGE_WORDS.get(its.stage, its.stage)}{since}", DIM)
    shown = verdict_style(row.verdict.status)
    return (f"{shown.symbol} {row.verdict.status.value}", shown.colour)


def _parent_cell(state: ViewState, row: Attempt, _: float) -> Part:
    return (one_line(state.number_of(row.parent_id)) if row.parent_id else "-", DIM)


def _spills_cell(_: ViewState, row: Attempt, __: float) -> Part:
    spilled = words.spill_bytes(row.kernels)
    return (words.size(spilled), "yellow" if spilled else "") if row.kernels else ""


def _speedup_cell(_: ViewState, row: Attempt, __: float) -> Part:
    compared = fastest_first(row.comparisons)
    return words.short_speedup(compared[0]) if compared else ""


_NUMBER = TableColumn("#", 4, 0, lambda _, row, __: str(row.number))
_PARENT = TableColumn("parent", 6, 3, _parent_cell)
_RATIONALE = TableColumn("what was tried", 0, 0, lambda _, row, __: words.short_name(row), right=False)
_VERDICT = TableColumn("verdict", LABEL_WIDTH + 2, 0, _verdict_cell, right=False)
_REGISTERS = TableColumn("regs", 5, 4, lambda _, row, __: words.registers(row.kernels))
_SPILLS = TableColumn("spills", 8, 5, _spills_cell)
_DETAIL = TableColumn("what happened", 0, 7, lambda _, row, __: (one_line(row.detail), DIM), right=False)
_FIRST = (_NUMBER, _PARENT, _RATIONALE, _VERDICT)
_TIME = TableColumn("time", 9, 1, lambda _, row, __: words.microseconds(row.timing.median_us) if row.timing else "")
_SPEEDUP = TableColumn("speed-up", 8, 2, _speedup_cell)
_COVERAGE = TableColumn("coverage", 8, 6, lambda _, row, __: "" if row.coverage is None else f"{row.coverage:.0%}")
_OCCUPANCY = TableColumn(
    "occupancy", 9, 6, lambda _, row, __: f"{words.occupancy(row.kernels):.0%}" if row.kernels else ""
)
_GPU_COLUMNS = (*_FIRST, _TIME, _SPEEDUP, _REGISTERS, _SPILLS, _COVERAGE, _DETAIL)
_CPU_COLUMNS = (*_FIRST, _REGISTERS, _SPILLS, _OCCUPANCY, _DETAIL)


# The log: what was said and decided ------------------------------------------------------------------------------

_LOG_COLOURS = {"author": "", "judge": "dim", "reflection": "cyan", "warning": "yellow", "run": "dim"}
_MOST_OF_AN_ENTRY = 4000  # characters that can be seen at most


def log_lines(state: ViewState, width: int, height: int) -> list[Text]:
    """A rule that says whether the author writes and what it has cost, and the last lines, newest at the end."""
    mood = "author is writing…" if state.streaming else "log"
    cost = f" · {format_spending(state.spending)}" if state.spending.replies else ""
    room = max(0, height - 1)
    lines = [line(" ", (text, "italic")) for text in _wrapped_lines(state.streaming, width - 2)]
    for entry in reversed(state.log):
        if len(lines) >= room:
            break
        lines = [*_entry_lines(entry, width), *lines]
    return [_rule(width, (mood + cost, "bold")), *(lines[-room:] if room else [])]


def _entry_lines(entry: LogEntry, width: int) -> list[Text]:
    mark = "! " if entry.who == "warning" else ""
    shown = _wrapped_lines(mark + entry.text[-_MOST_OF_AN_ENTRY:], width - 2)
    return [line(" ", (text, _LOG_COLOURS[entry.who])) for text in shown]


@lru_cache(maxsize=512)
def _wrapped_lines(text: str, width: int) -> tuple[str, ...]:
    lines = words.lines(text).strip().split("\n")
    return tuple(part for found in lines for part in wrapped(found, max(8, width)))


# The source of an attempt, and its difference to its parent's ----------------------------------------------------

_MOST_COMPARED = 1000  # lines of a source; a difference of longer ones may take seconds


def _source(state: ViewState, width: int, height: int, ui: Ui) -> list[Text]:
    """The source from its first kernel on when it is longer than the pane, or the difference to the parent."""
    row = chosen_attempt(state, ui)
    if row is None:
        return [_rule(width, ("source", "bold")), line((" no candidate yet", DIM))]
    room = max(0, height - 1)
    if ui.diff and row.parent_id:
        changes = _difference_lines(state, row)
        more = f", {len(changes)} lines" if len(changes) > room else ""
        title = f"#{row.number} against {state.number_of(row.parent_id)}{more}"
        return [_rule(width, (title, "bold")), *changes[:room]]
    source = words.lines(row.source).rstrip()
    start = first_line(source.split("\n"), room)
    note = f", from line {start + 1} of {source.count(chr(10)) + 1}" if start else ""
    note += "; it has no parent" if ui.diff else ""
    return [_rule(width, (f"source of #{row.number}{note}", "bold")), *_highlighted(source)[start : start + room]]


def first_line(lines: list[str], room: int) -> int:
    """Which line to show first: a kernel is worth more than the imports above it."""
    if len(lines) <= room:
        return 0
    kernels = (i for i, found in enumerate(lines) if found.startswith(("@triton", "PTX", "_PTX", ".visible")))
    return min(next(kernels, 0), max(0, len(lines) - room))


def _difference_lines(state: ViewState, row: Attempt) -> list[Text]:
    """The unified difference to the parent, in colours; + and - say the same without."""
    parent = state.row(row.parent_id)
    if parent is None:
        return [
            line("(it has no parent)" if not row.parent_id else "(the parent's source was not seen by this screen)")
        ]
    changes = _difference(parent.source, row.source)
    return [line((change, words.DIFF_STYLES.get(change[:1], ""))) for change in changes]


@lru_cache(maxsize=8)
def _difference(before: str, after: str) -> tuple[str, ...]:
    old, new = (words.lines(text).rstrip().split("\n") for text in (before, after))
    if max(len(old), len(new)) > _MOST_COMPARED:
        return (f"(too long to compare: {len(old)} and {len(new)} lines)",)
    return tuple(difflib.unified_diff(old, new, lineterm="", n=3))[2:] or ("(the same source)",)


@lru_cache(maxsize=16)  # 2 ms for 60 lines
def _highlighted(source: str) -> list[Text]:
    """The lines of a source that is safe to show, in colours."""
    from rich.syntax import Syntax  # 30 ms that the first frame need not wait for

    code = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(source)
    code.rstrip()
    lines = list(code.split("\n", allow_blank=True))
    for made in lines:
        made.no_wrap, made.overflow = True, "ellipsis"
        if not made.plain.isprintable():
            made.plain = _safe(made.plain)
    return lines


# Whole pages of text: one attempt with everything known of it, its source, help ----------------------------------

_RUN_HELP = (
    ("p space", "pause, or go on: what is under way is finished, nothing new begins, the time limit stands still"),
    ("x", "skip what is being traced, compiled or checked: it gets no verdict; a timing on the GPU is finished"),
    ("+", "a quarter more attempts and time than were given; dollars only with --max-cost"),
    ("q", "stop after what is under way, --resume goes on later; once the run has ended: leave"),
    ("Ctrl-C", "stop now; nothing finished is lost"),
)
_LIST_HELP = (
    ("↑ ↓", "choose; below the newest attempt: follow the newest again (also: k j, page up and down, home, end)"),
    (
        "/",
        "show only rows that hold what you type: words of name, verdict, reason, source; #7 is the seventh",
    ),
    ("s", "sort by the next column"),
    ("enter", "open: a run, or everything known of an attempt"),
    ("o", "its source"),
    ("d", "what differs from its parent; beside the list: in place of the source"),
    ("a", "the machine code that it compiles to, with source lines (it is compiled again: seconds)"),
    ("c", "the conversation that led to it"),
    ("esc", "back: from a page to the list, from a run to all runs"),
)
_PAGE_HELP = (
    ("← →", "on a page: the page before, the next one (also: tab)"),
    ("n b", "the next attempt, the one before"),
    ("/", "find a text"),
    ("Ctrl-L", "draw the whole screen again"),
    ("?", "this page"),
)
_WATCH_HELP = (
    ("p space", "`optimize watch` and `browse` do not touch the run: p stops the playback, or lets it go on"),
    ("+ -", "there: faster, slower"),
    ("e", "there: to the end"),
    ("q", "there: leave; the run goes on"),
)
_NAME_CELLS = 12
_TAB_NAMES: dict[Tab, str] = {
    "attempt": "facts", "source": "source", "diff": "diff", "sass": "machine code", "conversation": "conversation",
}  # fmt: skip


def _page(state: ViewState, ui: Ui, width: int, height: int, now: float, library: Library) -> Pane:
    """The page that is chosen, from its scroll position on, with a rule above it."""
    lines = page_lines(state, ui, width, now, library)
    room = max(1, height - 1)
    start = max(0, min(ui.scroll, len(lines) - room))
    where = f" {start + 1}-{min(len(lines), start + room)} of {len(lines)}" if len(lines) > room else ""
    return Pane([_page_head(state, ui, width, where, library), *lines[start : start + room]])


def _page_head(state: ViewState, ui: Ui, width: int, where: str, library: Library) -> Text:
    """Whose page it is, which others there are, and how much of it is seen."""
    row = chosen_attempt(state, ui)
    if ui.page == "help" or row is None:
        return _rule(width, ("keys" if ui.page == "help" else "attempt", "bold"), (where, DIM))
    best = " ★" if row.attempt_id == state.best_id else ""
    others: list[Part] = [" "]
    for tab in tabs(state, ui, library):
        others += [(f" {_TAB_NAMES[tab]} ", "reverse" if tab == ui.page else DIM)]
    return _ends(
        width, [("─ ", DIM), (f"#{row.number}{best} {words.short_name(row)}", "bold")], [*others, (where, DIM)]
    )


def page_lines(state: ViewState, ui: Ui, width: int, now: float, library: Library = NO_LIBRARY) -> Sequence[Text]:
    """All lines of the page."""
    if ui.page == "help":
        keys = (*_RUN_HELP, *_LIST_HELP, *_PAGE_HELP, *_WATCH_HELP)
        return [made for key, what in keys for made in _named(key, what, width)]
    row = chosen_attempt(state, ui)
    if row is None or state.started is None:
        return [line((" no attempt yet", DIM))]
    match ui.page:
        case "source":
            return _highlighted(words.lines(row.source))
        case "diff":
            return _difference_lines(state, row)
        case _:
            return _page_of(state, row, ui, width, now, library)


def _page_of(state: ViewState, row: Attempt, ui: Ui, width: int, now: float, library: Library) -> Sequence[Text]:
    """A page that may have to be made; facts are shown as the events have them until then."""
    asked = made_page(state, ui, library)
    made = library.made.get(asked) if asked else None
    if made is not None and made.parts is not None:
        return _made_lines(made, width)
    if ui.page == "attempt":
        return _facts_lines(state, row, width, now)
    since = f" {words.duration(time.time() - made.at)}" if made else ""
    return [line((f" {words.SPINNER[int(time.time() * 4) % len(words.SPINNER)]} being made{since}", DIM))]


@lru_cache(maxsize=8)
def _made_lines(made: MadePage, width: int) -> Sequence[Text]:
    """A listing of 3,000 lines takes 0.2 s."""
    return laid_out(made.parts or (), width)


def _facts_lines(state: ViewState, row: Attempt, width: int, now: float) -> Sequence[Text]:
    """Everything known of an attempt, as `optimize show` prints it."""
    from kerneltune.agent.view.attempt import ShownAttempt, known_of  # 60 ms that the first frame need not wait for

    assert state.started is not None
    ancestors, parent = [], state.row(row.parent_id)
    while parent is not None and parent not in ancestors:
        ancestors.append(parent)
        parent = state.row(parent.parent_id)
    shown = ShownAttempt(state.started, row, ancestors)
    under_way = (
        [] if row.verdict else [line(" ", (f"{'stage':{_NAME_CELLS - 2}}", "bold"), _verdict_cell(state, row, now))]
    )
    return [*under_way, *laid_out(known_of(shown), width)]


def laid_out(parts: Iterable[RenderableType], width: int) -> list[Text]:
    """What `optimize show` prints, as lines of the screen."""
    console = Console(file=StringIO(), width=max(20, width - 1), force_terminal=True, color_system="truecolor")
    found = console.render_lines(Group(*parts), pad=False)
    return [line(" ", *((part.text, str(part.style or "")) for part in made)) for made in found]


def _known_of_chosen(state: ViewState, ui: Ui, width: int, height: int, now: float) -> list[Text]:
    """What a wide screen has room for below the table: the chosen attempt's facts."""
    row = chosen_attempt(state, ui)
    if row is None or height < 2:
        return []
    head = _rule(width, (f"#{row.number} ", "bold"), (words.short_name(row), ""))
    return [head, *_facts_lines(state, row, width, now)[: height - 1]]


def _named(name: str, text: str, width: int) -> Iterator[Text]:
    for i, found in enumerate(wrapped(one_line(text), max(10, width - _NAME_CELLS)) or [""]):
        yield line(" ", (f"{'' if i else name:{_NAME_CELLS - 2}}", "bold"), found)


# The list of stored runs -----------------------------------------------------------------------------------------

_RUN_COLUMNS = (
    TableColumn("began", 14, 1, lambda _, run, __: (f"{run.started:%m-%d %H:%M:%S}", DIM), right=False),
    TableColumn("task", 22, 0, lambda _, run, __: one_line(run.task), right=False),
    TableColumn("best", 0, 0, lambda _, run, __: words.best_in_words(run) if run.best_attempt_id else "-", right=False),
    TableColumn("attempts", 8, 2, lambda _, run, __: str(run.attempts)),
    TableColumn("ok", 4, 3, lambda _, run, __: str(run.accepted)),
    TableColumn("author", 14, 4, lambda _, run, __: one_line(run.author), right=False),
    TableColumn("where", 18, 5, lambda _, run, __: (words.where(run), DIM), right=False),
    TableColumn("ended", 12, 6, lambda _, run, __: (run.why or "not yet", DIM), right=False),
)
_RUN_FACTS = 9  # lines about the chosen run


def _library_title(library: Library, width: int) -> Text:
    shown = plural(len(library.runs), "stored run")
    return _ends(width, [(" kerneltune", "bold"), "  ", (shown, "bold cyan")], [" "])


def _runs(library: Library, ui: Ui, width: int, height: int) -> list[Text]:
    """The runs that pass the filter, and what is known of the chosen one below them."""
    rows = visible_runs(library, ui)
    if not rows:
        told = (
            f"no run has: {ui.runs.query}" if library.runs else "no runs yet; start one with: optimize --task softmax"
        )
        return [line((f"    {told}", DIM))]
    columns = _fitting_columns(_RUN_COLUMNS, width)
    rest = _rest_of(columns, width)
    chosen = next((i for i, run in enumerate(rows) if run.run_id == ui.run), 0)
    below = _RUN_FACTS if height >= _RUN_FACTS + 6 else 0
    room = max(1, height - 1 - below)
    start = max(0, min(chosen - room // 2, len(rows) - room))
    head = line(" " * _GUTTER, *_cells(columns, [(c.name, DIM) for c in columns], rest))
    made = [head]
    for i in range(start, min(len(rows), start + room)):
        row = line("▸ " if i == chosen else "  ", *_cells(columns, [c.cell(None, rows[i], 0.0) for c in columns], rest))
        if i == chosen:
            row.truncate(width, overflow="ellipsis", pad=True)
            row.stylize("reverse")
        made.append(row)
    if below:
        made += [Text()] * (height - below - len(made))
        made += [_rule(width, (rows[chosen].run_id, "bold")), *_run_facts(rows[chosen], width)][:below]
    return made


def _run_facts(run: "RunSummary", width: int) -> Iterator[Text]:
    counts = ", ".join(f"{n} {status}" for status, n in run.by_status.items()) or "none"
    told = (
        ("task", f"{run.task}, {words.where(run)}"),
        ("author", run.author),
        ("began", f"{run.started:%Y-%m-%d %H:%M:%S} UTC"),
        ("ended", run.why or "not yet, or its process was killed"),
        ("verdicts", counts),
        ("best", words.best_in_words(run, in_full=True)),
    )
    for name, value in told:
        yield from _named(name, str(value), width)
