"""The screen as a pure function of the state: where each part goes at this width and height."""

from agent.view import best, code, said
from agent.view.attempts import table
from agent.view.cells import BAR, Frame, Line, beside, block
from agent.view.curve import plot
from agent.view.header import footer, header
from agent.view.pages import page
from agent.view.state import ViewState
from agent.view.strips import gpu_strip, pipeline
from agent.view.ui import Ui, looked_at

WIDE = 150  # from here on source and words stand beside the attempts
MIDDLE = 110  # from here on they stand beside each other
CURVE_FROM = 72  # narrower screens have no room for the curve
LOW = 12  # lower screens show only the run and its attempts
ROOMY = 30  # from this height on the header also names versions, and the source is shown
_LEAST_TABLE = 4
_ALL_BASELINES = 17  # lines between head and foot from which on all baselines are named, not only the fastest
_BEST, _LEAST_BEST = 74, 4  # cells and lines of the best attempt's facts
_LEAST_CURVE = 24
FOLLOWING = Ui()


def render(state: ViewState, width: int, height: int, now: float, ui: Ui = FOLLOWING) -> Frame:
    """One frame. `now` is Unix time in seconds; `ui` what a person has chosen to look at."""
    width, height = max(20, width), max(4, height)
    top = header(state, width, now, facts=height >= ROOMY)[: max(1, height // 3)]
    bottom = _bottom(state, width, height, now, ui)
    room = height - len(top) - len(bottom)
    middle = page(state, ui, width, room, now) if ui.page != "run" else _middle(state, width, room, now, ui)
    return Frame((*top, *block(middle, width, room), *bottom), width, height)


def _bottom(state: ViewState, width: int, height: int, now: float, ui: Ui) -> list[Line]:
    foot = [footer(state, width, ui.note, keys=ui.keys)]
    if height < LOW:
        return foot if ui.note else []
    strips = [pipeline(state, width, now)]
    if state.gpu_sample or state.gpu_reading:
        strips.append(gpu_strip(state, width))
    return [*strips, *foot]


def _middle(state: ViewState, width: int, height: int, now: float, ui: Ui) -> list[Line]:
    if height < LOW - 3:
        return table(state, width, height, now, ui.selected)
    if width >= WIDE:
        return _two_columns(state, width, height, now, ui)
    top = _best(state, width, 1 if height < _ALL_BASELINES else 99)
    rest = height - len(top)
    lower = _lower_height(state, width, rest)
    return [*top, *block(table(state, width, rest - lower, now, ui.selected), width, rest - lower),
            *_lower(state, width, lower, ui)]  # fmt: skip


def _best(state: ViewState, width: int, most: int) -> list[Line]:
    """The best attempt, and the curve beside it where there is room."""
    if width < CURVE_FROM:
        return best.best_block(state, width, most)
    right = max(_LEAST_CURVE, min(64, width - _BEST - BAR))
    left = width - right - BAR
    facts = best.best_block(state, left, most)
    size = max(len(facts), _LEAST_BEST)
    return beside(block(facts, left, size), block(plot(state, right, size), right, size))


def _lower_height(state: ViewState, width: int, rest: int) -> int:
    """Lines for words and source below the table, which wants as many as it has rows."""
    wanted = len(state.attempts) + 1 + (state.unseen_attempts > 0)
    most = rest * 11 // 20 if rest >= 18 else min(5, rest // 3)
    return min(rest - _LEAST_TABLE, max(most, rest - wanted)) if rest > _LEAST_TABLE + 2 else 0


def _lower(state: ViewState, width: int, height: int, ui: Ui) -> list[Line]:
    if height <= 0:
        return []
    row = looked_at(state, ui)
    if width >= MIDDLE and height >= 8:
        left = width * 11 // 20
        right = width - left - BAR
        source = block(code.pane(state, row, left, height, diff=ui.diff), left, height)
        return beside(source, block(said.pane(state, right, height), right, height))
    if height >= 14:
        words = max(5, height // 3)
        source = block(code.pane(state, row, width, height - words, diff=ui.diff), width, height - words)
        return [*source, *said.pane(state, width, words)]
    return said.pane(state, width, height)


def _two_columns(state: ViewState, width: int, height: int, now: float, ui: Ui) -> list[Line]:
    right = min(100, width * 2 // 5)
    left = width - right - BAR
    top = _best(state, left, 99)
    rows = table(state, left, height - len(top), now, ui.selected)
    words = max(6, height * 2 // 5)
    source = block(code.pane(state, looked_at(state, ui), right, height - words, diff=ui.diff), right, height - words)
    spoken = block(said.pane(state, right, words), right, words)
    return beside(block([*top, *rows], left, height), [*source, *spoken])
