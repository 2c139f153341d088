"""The screen as a pure function of the state: where each part goes at this width and height."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.layout import Layout
from rich.segment import Segment

from agent.view import panels
from agent.view.state import ViewState

WIDE = 150  # from here on the source stands beside the attempts, and may be read without being cut
TALL = 18  # lines between head and log from which on the source goes below them
ROOMY = 30  # from this height on the header also names versions
_LOG_SHARE = 5  # the log gets a fifth of the height
_FOOTER_FROM = 12  # lower terminals keep the lines for attempts


@dataclass(frozen=True)
class Frame:
    """A renderable cut and padded to exactly `width` x `height`, whatever the terminal has become meanwhile."""

    body: RenderableType
    width: int
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.body, options.update_dimensions(self.width, self.height))
        for line in Segment.set_shape(lines, self.width, self.height):
            yield from line
            yield Segment.line()


def render(state: ViewState, width: int, height: int, now: float) -> RenderableType:
    """One frame. `now` is Unix time in seconds."""
    width, height = max(20, width), max(4, height)
    top = _top(state, width, height, now)
    bottom = _bottom(state, width, height)
    middle_height = max(1, height - _size(top) - _size(bottom))
    middle = Layout(_middle(state, width, middle_height), size=middle_height)
    screen = Layout()
    screen.split_column(*top, middle, *bottom)
    return Frame(screen, width, height)


def _top(state: ViewState, width: int, height: int, now: float) -> list[Layout]:
    lines = panels.header(state, width, now, facts=height >= ROOMY)[: max(1, height // 3)]
    parts = [Layout(Group(*lines), size=len(lines))]
    if height >= _FOOTER_FROM:
        facts = len(panels.best_lines(state.best)) if state.best else 1
        parts.append(Layout(panels.best(state), size=facts + 2))
    return parts


def _bottom(state: ViewState, width: int, height: int) -> list[Layout]:
    if height < _FOOTER_FROM:
        return []
    log_height = max(4, height // _LOG_SHARE)
    parts = [Layout(panels.log(state, width, log_height), size=log_height)]
    if state.gpu_sample:
        parts.append(Layout(panels.gpu_strip(state), size=1))
    return [*parts, Layout(panels.footer(state, width), size=1)]


def _middle(state: ViewState, width: int, height: int) -> RenderableType:
    """The attempts, and the source where there is room for it."""
    if width >= WIDE and height >= 6:
        return _beside(state, width, height)
    if height >= TALL:
        return _stacked(state, width, height)
    return panels.attempts(state, width, height)


def _beside(state: ViewState, width: int, height: int) -> Layout:
    left = max(width - 92, width // 2)
    both = Layout()
    both.split_row(Layout(panels.attempts(state, left, height), size=left), Layout(panels.source(state, height)))
    return both


def _stacked(state: ViewState, width: int, height: int) -> Layout:
    wanted = min(len(state.attempts) + 2, height // 2)
    both = Layout()
    both.split_column(
        Layout(panels.attempts(state, width, wanted), size=wanted), Layout(panels.source(state, height - wanted))
    )
    return both


def _size(parts: list[Layout]) -> int:
    return sum(part.size or 0 for part in parts)
