"""The screen as a pure function of a run's state: which panes there are at a size, and what stands in each.

Every text of a pane goes through `line`, which lets nothing through that a terminal would obey.
"""

import difflib
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Literal

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.layout import Layout
from rich.segment import Segment
from rich.text import Text

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import GpuReading
from kerneltune.agent.view import text as words
from kerneltune.agent.view.state import (
    LEFT_STAGES,
    Budget,
    LogEntry,
    ViewState,
    expectation_of,
    format_spending,
    is_slowed,
    throttling,
)
from kerneltune.agent.view.text import LABEL_WIDTH, SPINNER, verdict_style
from kerneltune.tools.schema.codec import one_line, shell_word
from kerneltune.tools.schema.verdict import NOT_TIMED, Comparison, Verdict, light_in_words

ScreenPage = Literal["run", "attempt", "source", "help"]
Wish = Literal["pause", "skip", "raise", "slower", "stop"]
Part = str | tuple[str, str]  # a text, or a text and its style
DIM = "dim"

WIDE = 150  # columns from which on source and log stand beside the attempts
MIDDLE = 110  # from here on they stand beside each other
CURVE_FROM = 72  # narrower screens have no room for the curve
LOW = 12  # lower screens show only the run and its attempts
ROOMY = 30  # from this height on the header also names versions
_BAR_CELLS = 3  # of the bar between two panes
_LEAST_TABLE = 4
_ALL_BASELINES = 17  # lines between head and foot from which on all baselines are named, not only the fastest
_BEST, _LEAST_BEST = 74, 4  # cells and lines of the best attempt's facts
_LEAST_CURVE = 24


# What a person has chosen to look at -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ui:
    """`selected`: an attempt's number, None to follow the newest; `scroll`: the first line of a page; `keys`: what is
    offered in the last line, () when no keys are read; `note`: what the last key did; `status`: stands before both."""

    selected: int | None = None
    page: ScreenPage = "run"
    diff: bool = False
    scroll: int = 0
    note: str = ""
    status: str = ""
    keys: tuple[tuple[str, str], ...] = ()


_WISHES: dict[str, Wish] = {"p": "pause", "s": "skip", "+": "raise", "=": "raise", "-": "slower", "q": "stop"}
_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1}
_PAGES = {"pageup": -1, "pagedown": 1, " ": 1}
_BACK = ("esc", "left", "backspace")
_END = 1 << 30


def chosen_attempt(state: ViewState, ui: Ui) -> Attempt | None:
    """The attempt whose source is shown: the selected one, else the newest."""
    return next((a for a in state.attempts if a.number == ui.selected), None) or state.current


def press(state: ViewState, ui: Ui, key: str, lines: int = 0, room: int = 1) -> tuple[Ui, Wish | None]:
    """The choice after a key, and what the run is asked for. `lines`: of the page that is shown; `room`: those that
    fit."""
    ui = replace(ui, note="")
    if key == " " and ui.page == "run":
        return ui, "pause"
    if key in _WISHES:
        return ui, _WISHES[key]
    if key == "?":
        return replace(ui, page="run" if ui.page == "help" else "help", scroll=0), None
    if key == "d":
        return replace(ui, diff=not ui.diff, scroll=0), None
    return (_choose(state, ui, key, room) if ui.page == "run" else _scroll(state, ui, key, lines, room)), None


def _choose(state: ViewState, ui: Ui, key: str, room: int) -> Ui:
    """On the main page: move through the attempts, open one."""
    if key in ("enter", "o", "right") and chosen_attempt(state, ui):
        return replace(ui, page="source" if key == "o" else "attempt", scroll=0)
    if key in _BACK or key in ("end", "G"):
        return replace(ui, selected=None)
    if key in ("home", "g") and state.attempts:
        return replace(ui, selected=state.attempts[0].number)
    step = _STEPS.get(key) or max(1, room // 2) * _PAGES.get(key, 0)
    return replace(ui, selected=_moved(state, ui, step)) if step and state.attempts else ui


def _moved(state: ViewState, ui: Ui, step: int) -> int | None:
    """The number of the attempt so many rows away; None, to follow, below the newest."""
    rows = state.attempts
    at = next((i for i, a in enumerate(rows) if a.number == ui.selected), len(rows))
    to = at + step
    return None if to >= len(rows) else rows[max(0, to)].number


def _scroll(state: ViewState, ui: Ui, key: str, lines: int, room: int) -> Ui:
    """On a page of text: scroll, go to the neighbour, go back."""
    if key in _BACK or key == "enter":
        return replace(ui, page="run", scroll=0)
    if key == "o" and ui.page != "help":
        return replace(ui, page="attempt" if ui.page == "source" else "source", scroll=0)
    if key in ("n", "b") and ui.page != "help":
        row = chosen_attempt(state, ui)
        here = replace(ui, selected=row.number) if row else ui
        return replace(ui, selected=_moved(state, here, 1 if key == "n" else -1), scroll=0)
    step = _STEPS.get(key) or max(1, room - 1) * _PAGES.get(key, 0)
    step = step or {"home": -_END, "g": -_END, "end": _END, "G": _END}.get(key, 0)
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


def render(state: ViewState, size: tuple[int, int], now: float, ui: Ui | None = None) -> ScreenFrame:
    """One frame of `size` columns and lines. `now` is Unix time in seconds; `ui` what a person has chosen to see."""
    ui = ui or Ui()
    width, height = max(20, size[0]), max(4, size[1])
    top = _header(state, width, now, facts=height >= ROOMY)[: max(1, height // 3)]
    bottom = _bottom(state, width, height, now, ui)
    room = height - len(top) - len(bottom)
    middle = _page(state, ui, width, room, now) if ui.page != "run" else _middle(state, width, room, now, ui)
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


def _bottom(state: ViewState, width: int, height: int, now: float, ui: Ui) -> list[Text]:
    foot = [_footer(state, width, ui)]
    if height < LOW:
        return foot if ui.note or ui.status else []
    strips = [_stages(state, width, now)]
    if state.gpu_reading:
        strips.append(_gpu(state.gpu_reading, width))
    return [*strips, *foot]


def _middle(state: ViewState, width: int, height: int, now: float, ui: Ui) -> RenderableType:
    if height < LOW - 3:
        return Pane(_table(state, width, height, now, ui.selected))
    if width >= WIDE:
        return _two_columns(state, width, height, now, ui)
    best, lines = _best_and_curve(state, width, 1 if height < _ALL_BASELINES else 99)
    rest = height - lines
    lower = _lower_height(state, rest)
    attempts = Pane(_table(state, width, rest - lower, now, ui.selected))
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
    right = min(110, width * 9 // 20)
    left = width - right - _BAR_CELLS
    best, lines = _best_and_curve(state, left, 99)
    attempts = Pane(_table(state, left, height - lines, now, ui.selected))
    log = max(6, height * 2 // 5)
    source = Pane(_source(state, right, height - log, ui))
    spoken = Pane(log_lines(state, right, log))
    left_pane = _stacked((best, lines), (attempts, height - lines))
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
        author = state.started.author + (" author" if state.started.author == "offline" else "")
        strategy = state.started.limits.get("strategy")
        for fact in filter(None, (state.gpu, author, strategy if isinstance(strategy, str) else None)):
            left += [(" · ", DIM), one_line(fact)]
    return _ends(width, left, [*_mood(state, now), "  ", (words.duration(state.elapsed_s(now)), "bold"), " "])


def _mood(state: ViewState, now: float) -> list[Part]:
    if state.ended:
        return [(f"ended: {state.ended.why.replace('_', ' ')}", "bold")]
    if state.paused_at is not None and not state.stopping:
        return [("paused", "bold yellow")]
    spinner = SPINNER[int(now * 4) % len(SPINNER)]
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


def _footer(state: ViewState, width: int, ui: Ui) -> Text:
    """What a person can do now; what the last key did comes first."""
    parts: list[Part] = [" ", (ui.status, "bold"), "  "] if ui.status else []
    if ui.note:
        return line(*parts, " ", (ui.note, "bold"))
    if not ui.keys:
        resume = f": optimize --resume {shell_word(state.run_id)}" if state.run_id else ""
        stops = "ended" if state.ended else "Ctrl-C stops; nothing finished is lost"
        return line(*parts) if parts else line(" ", (stops + resume, DIM))
    for key, what in ui.keys:
        more: list[Part] = [" ", (key, "bold"), (f" {what} ", DIM)]
        if line(*parts, *more).cell_len <= width:
            parts += more
    return line(*parts)


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
    said = "best so far" if row.timing else words.FIRST_CHOICE
    head = _rule(width, (f"{said} ", "bold"), (f"#{row.number} {one_line(row.rationale)}", "bold green"))
    return [head, *(line(" ", *parts) for parts in verdict_facts(row, width, state.gpu, most))]


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
        more += [f"{verdict.sol_fraction:.0%} of speed of light", "  "]
    if verdict.coverage is not None:
        more += [(f"coverage {verdict.coverage:.0%}", DIM)]
    lines = [[*first, "  ", *more]] if width >= _ONE_LINE or not more else [first, more]
    compared = words.fastest_first(verdict.comparisons)[:most]
    names = max((len(c.baseline) for c in compared), default=0) if width >= _ONE_LINE else 0
    return [*lines, *(_against(c, names) for c in compared)]


def _against(compared: Comparison, names: int) -> list[Part]:
    """Green where the whole interval lies above 1, red where it lies below. `names`: cells of the longest name; 0 where
    there is no room for the baseline's time."""
    colour = "green" if compared.low > 1 else "red" if compared.high < 1 else ""
    baseline = f"  vs {one_line(compared.baseline):{names or 1}}"
    time = f"  {words.microseconds(compared.baseline_us):>9}" if names else ""
    return [(f"{words.speedup(compared):<19}", colour), (baseline + time, DIM)]


@dataclass(frozen=True)
class BestCurve:
    """`values` after each judged attempt, None before there is one; speed-ups are over the fastest baseline. Without a
    GPU there is no speed-up, so it counts the attempts that are right."""

    kind: Literal["speed-up", "time", "right"]
    values: tuple[float | None, ...]

    def title(self, width: int) -> str:
        """What the curve shows, in so many cells."""
        name = {"speed-up": "best speed-up", "time": "best time", "right": "right so far"}[self.kind]
        whole = f"{name} over {words.plural(len(self.values), 'attempt')}"
        return whole if len(whole) <= width - 4 else name

    def label(self, value: float) -> str:
        """A value of the axis."""
        if self.kind == "right":
            return f"{value:.0f}"
        return words.microseconds(value) if self.kind == "time" else f"{value:.2f}x"

    def range(self, known: list[float]) -> tuple[float, float]:
        """The least and the greatest value of the axis."""
        low, high = min(known), max(known)
        if self.kind == "right":
            return 0.0, max(high, 1.0)
        if self.kind == "speed-up":
            low, high = min(low, 1.0), max(high, 1.0)
        return low, high if high > low else low * 1.01


def curve_of(state: ViewState) -> BestCurve:
    """The run's curve, in the order in which attempts were proposed."""
    judged = [a for a in state.attempts if a.verdict]
    if state.gpu is None:
        return BestCurve("right", tuple(accumulate(float(a.accepted) for a in judged)))
    timed = any(_best_speedup(a) is not None for a in judged)
    values = tuple(_of_leaders(judged, _best_speedup if timed else _median_us))
    return BestCurve("speed-up" if timed else "time", values)


def _of_leaders(judged: Sequence[Attempt], value: Callable[[Attempt], float | None]) -> Iterator[float | None]:
    """A value of who leads after each attempt, by the run's own ranking: the median."""
    led_us = math.inf
    shown: float | None = None
    for row in judged:
        time_us = _median_us(row)
        if time_us is not None and time_us < led_us:
            led_us, shown = time_us, value(row)
        yield shown


def _median_us(row: Attempt) -> float | None:
    return row.timing.median_us if row.timing else None


def _best_speedup(row: Attempt) -> float | None:
    """An attempt's speed-up over the baseline that is hardest to beat."""
    compared = words.fastest_first(row.comparisons)
    return compared[0].speedup if compared else None


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
    cell: Callable[[ViewState, Attempt, float], Part]
    right: bool = True


@dataclass(frozen=True)
class HiddenRows:
    """Rows that are not shown."""

    count: int
    word: str


def _table(state: ViewState, width: int, height: int, now: float, selected: int | None = None) -> list[Text]:
    """The head and at most `height` - 1 rows."""
    columns = _fitting_columns(state, width)
    fixed = sum(c.width for c in columns) + _GAP * (len(columns) - 1) + _GUTTER + 1
    rest = max(1, (width - fixed) // sum(c.width == 0 for c in columns))
    head = line(" " * _GUTTER, *_cells(columns, [(c.name, DIM) for c in columns], rest))
    rows = window(state, max(1, height - 1), selected)
    return [head, *(_table_row(state, row, columns, width, rest, now, selected) for row in rows)][:height]


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


def window(state: ViewState, room: int, selected: int | None = None) -> list[Attempt | HiddenRows]:
    """The rows that fit: the newest, or those around the selected one, and apart from them the best."""
    rows = state.attempts
    at = next((i for i, a in enumerate(rows) if a.number == selected), len(rows) - 1)
    if room < _LEAST_WINDOW:
        end = max(at + 1, min(room, len(rows)))
        return list(rows[max(0, end - room) : end])
    best = next((i for i, a in enumerate(rows) if a.attempt_id == state.best_id), None)
    for size in range(min(room, len(rows)), -1, -1):  # until the best and the gaps have room as well
        end = min(len(rows), max(at + 1 + size // 2, size))
        shown = _pieces(state, end - size, end, best)
        if len(shown) <= room:
            break
    return shown


def _pieces(state: ViewState, start: int, end: int, best: int | None) -> list[Attempt | HiddenRows]:
    """A stretch of rows, the best on its side of it, and what is left out."""
    rows = state.attempts
    before = [best] if best is not None and best < start else []
    after = [best] if best is not None and best >= end else []
    earlier = start - len(before) + state.unseen_attempts
    later = len(rows) - end - len(after)
    return [
        *(rows[i] for i in before),
        *([HiddenRows(earlier, "earlier")] if earlier else []),
        *rows[start:end],
        *([HiddenRows(later, "later")] if later else []),
        *(rows[i] for i in after),
    ]


def _fitting_columns(state: ViewState, width: int) -> list[TableColumn]:
    """The columns that fit, in their order on the screen."""
    columns = _GPU_COLUMNS if state.gpu else _CPU_COLUMNS
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
    compared = words.fastest_first(row.comparisons)
    return words.short_speedup(compared[0]) if compared else ""


_NUMBER = TableColumn("#", 4, 0, lambda _, row, __: str(row.number))
_PARENT = TableColumn("parent", 6, 3, _parent_cell)
_RATIONALE = TableColumn("what was tried", 0, 0, lambda _, row, __: one_line(row.rationale), right=False)
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
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


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
        return [line("(the parent's source was not seen by this screen)")]
    changes = _difference(parent.source, row.source)
    return [line((change, _DIFF_COLOURS.get(change[:1], ""))) for change in changes]


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

_HELP = (
    ("p space", "pause, or go on: what is under way is finished, nothing new begins, the time limit stands still"),
    ("s", "skip what is being traced, compiled or checked: it gets no verdict; a timing on the GPU is finished"),
    ("+", "a quarter more attempts and time than were given; dollars only with --max-cost"),
    ("q", "stop after what is under way; --resume goes on later"),
    ("Ctrl-C", "stop now; nothing finished is lost"),
    ("↑ ↓", "choose an attempt; below the newest: follow the newest again (also: k j, page up and down, home, end)"),
    ("enter", "everything known of the chosen attempt; again, or esc: back"),
    ("o", "its source on the whole screen"),
    ("d", "the difference to its parent in place of the source, or back"),
    ("n b", "on a page: the next attempt, the one before"),
    ("Ctrl-L", "draw the whole screen again"),
    ("?", "this page"),
)
_WATCH_HELP = (
    ("p space", "`optimize watch` does not touch the run: p stops the playback, or lets it go on"),
    ("+ -", "there: faster, slower"),
    ("s", "there: to the end"),
    ("q", "there: leave; the run goes on"),
)
_NAME_CELLS = 12


def _page(state: ViewState, ui: Ui, width: int, height: int, now: float) -> Pane:
    """The page that is chosen, from its scroll position on, with a rule above it."""
    lines = page_lines(state, ui, width, now)
    room = max(1, height - 1)
    start = max(0, min(ui.scroll, len(lines) - room))
    where = f"  lines {start + 1}-{min(len(lines), start + room)} of {len(lines)}" if len(lines) > room else ""
    head = _rule(width, (_page_title(state, ui), "bold"), (f"{where}  esc: back", DIM))
    return Pane([head, *lines[start : start + room]])


def page_lines(state: ViewState, ui: Ui, width: int, now: float) -> list[Text]:
    """All lines of the page."""
    row = chosen_attempt(state, ui)
    if ui.page == "help":
        return [made for key, what in (*_HELP, *_WATCH_HELP) for made in _named(key, what, width)]
    if row is None:
        return [line((" no attempt yet", DIM))]
    code = _difference_lines(state, row) if ui.diff and row.parent_id else _highlighted(words.lines(row.source))
    return [*([] if ui.page == "source" else _attempt_facts(state, row, width, now)), *code]


def _page_title(state: ViewState, ui: Ui) -> str:
    if ui.page == "help":
        return "keys"
    row = chosen_attempt(state, ui)
    what = "difference of" if ui.diff and row and row.parent_id else "source of" if ui.page == "source" else "attempt"
    return f"{what} #{row.number}" if row else "attempt"


def _attempt_facts(state: ViewState, row: Attempt, width: int, now: float) -> Iterator[Text]:
    yield from _named("tried", row.rationale, width)
    if row.parent_id:
        yield from _named("parent", state.number_of(row.parent_id), width)
    yield line(" ", (f"{'verdict':{_NAME_CELLS - 2}}", "bold"), _verdict_cell(state, row, now))
    for name, value in (*(_measured(row.verdict) if row.verdict else ()), *_compiled(row)):
        yield from _named(name, value, width)
    if (said := expectation_of(row)) is not None and said.hypothesis:
        yield from _named("reflected", f"{said.hypothesis}: {said.outcome}", width)
    yield line()


def _compiled(row: Attempt) -> Iterator[tuple[str, str]]:
    for kernel in row.kernels:
        yield (
            "kernel",
            f"{kernel.name}: {kernel.registers} registers, spills {words.size(kernel.spill_bytes)}, shared "
            f"{words.size(kernel.shared_bytes)}, {kernel.num_warps} warps, {kernel.num_stages} stages, occupancy "
            f"{kernel.occupancy:.0%}",
        )
    if row.library_ops:
        yield "library", ", ".join(row.library_ops)


def _measured(verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "", verdict.detail
    if timing := verdict.timing:
        tier = f", {verdict.tier}" if verdict.tier else ""
        launches = f"{timing.n_launches} launches in {words.plural(timing.n_blocks, 'block')}{tier}"
        yield "time", f"{words.timing(timing)}, median and 95 % interval; {launches}"
    for compared in words.fastest_first(verdict.comparisons):
        time = words.microseconds(compared.baseline_us)
        yield "speed-up", f"{words.speedup(compared)} vs {compared.baseline}, {time}"
    if verdict.sol_fraction is not None:
        yield "light", light_in_words(verdict.sol_fraction)
    if verdict.coverage is not None:
        yield "coverage", f"{verdict.coverage:.0%} of the GPU time is in its own kernels"
    if verdict.cases:
        worst = max(c.error_ratio for c in verdict.cases)
        yield "checked", f"{words.plural(len(verdict.cases), 'input set')}; worst error {worst:.2g} of the tolerance"


def _named(name: str, text: str, width: int) -> Iterator[Text]:
    for i, found in enumerate(wrapped(one_line(text), max(10, width - _NAME_CELLS)) or [""]):
        yield line(" ", (f"{'' if i else name:{_NAME_CELLS - 2}}", "bold"), found)
