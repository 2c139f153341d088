"""The frame of a replay: the screen as it was, and instead of its last line where in the run that is."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from agent.view import text as words
from agent.view.player import SILENT_S, Player
from agent.view.render import render
from agent.view.replay import numbers

KEYS = "space pause  ←→ attempt  +- speed  home end  q quit"
FEWER_KEYS = "space ←→ +- home end q"
_HAS_FOOTER_FROM = 12  # below this height the screen has no footer that the bar could take the place of
_BAR = (8, 40)  # cells, least and most
_GAP = "   "


@dataclass(frozen=True)
class ReplayFrame:
    """A page, cut to make room for one line below it."""

    page: RenderableType
    bar: Text
    width: int
    height: int
    page_height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        lines = console.render_lines(self.page, options.update_dimensions(self.width, self.page_height))
        bar = console.render_lines(self.bar, options.update_dimensions(self.width, 1))
        for line in Segment.set_shape([*lines[: self.height - 1], *bar], self.width, self.height):
            yield from line
            yield Segment.line()


def replay_frame(player: Player, width: int, height: int, real_now: float, *, keys: bool = True) -> ReplayFrame:
    """One frame of `width` x `height` cells. `real_now`: Unix time in seconds, for a run that goes on; `keys`: tell
    what they do."""
    page_height = height if height >= _HAS_FOOTER_FROM else height - 1
    page = render(player.state, width, page_height, player.now(real_now))
    return ReplayFrame(page, bar(player, width, real_now, keys=keys), width, height, page_height)


def bar(player: Player, width: int, real_now: float, *, keys: bool = True) -> Text:
    """Whether it plays, where, what the keys do; what there is no room for is left out from the right."""
    mark, style, word = _doing(player, real_now) if keys else _filmed(player)
    line = Text(no_wrap=True, overflow="ellipsis").append(f" {mark} {word}", style=style)
    line.append(_GAP + _time(player))
    told = _attempts(player)
    shown = next((k for k in (KEYS, FEWER_KEYS) if keys and _fits(line, told, k, width)), "")
    room = width - line.cell_len - len(_GAP) * 2 - len(told) - (len(_GAP) + len(shown) if shown else 0) - 1
    if room >= _BAR[0]:
        line.append(_GAP).append_text(_progress(player, min(room, _BAR[1] if keys else width)))
    line.append(_GAP + told)
    if shown:
        line.append(_GAP + shown, style="dim")
    line.truncate(width, overflow="ellipsis")
    return line


def _fits(line: Text, told: str, keys: str, width: int) -> bool:
    return line.cell_len + len(_GAP) * 3 + _BAR[0] + len(told) + len(keys) <= width


def _doing(player: Player, real_now: float) -> tuple[str, str, str]:
    """Symbol, style and word."""
    if player.reading:
        return "…", "bold", "reading"
    if player.live:
        return _live(player, real_now)
    if player.at_end and player.timeline.ended:
        return "■", "bold", "the end"
    if player.playing:
        return "▶", "bold cyan", speed_words(player.speed)
    return "‖", "bold yellow", f"paused ({speed_words(player.speed)})"


def _filmed(player: Player) -> tuple[str, str, str]:
    """The same in a film, which follows nothing: where it stops is all that there was."""
    if player.at_end and not (player.playing or player.timeline.ended):
        return "■", "bold yellow", "no end is recorded"
    return _doing(player, 0.0)


def _live(player: Player, real_now: float) -> tuple[str, str, str]:
    if said := silence(player, real_now):
        return "■" if player.process.state == "gone" else "●", "bold yellow", said
    return "●", "bold green", "live"


def silence(player: Player, real_now: float) -> str:
    """What there is to say of a run that says nothing; empty while it is too soon for that."""
    quiet_s = real_now - player.timeline.last_at
    state = player.process.state
    if state == "gone":
        return f"no event for {words.duration(quiet_s)}; its process is not running"
    if quiet_s < SILENT_S or not len(player.timeline):
        return ""
    knows = "its process runs" if state == "running" else "whether its process runs is not known here"
    return f"no event for {words.duration(quiet_s)}; {knows}"


def speed_words(speed: float) -> str:
    """10x, 0.5x, max."""
    return "max" if math.isinf(speed) else f"{speed:.3g}x"


def _time(player: Player) -> str:
    timeline = player.timeline
    here = timeline.elapsed_s(player.shown_s)
    return f"{_clock(here)} / {_clock(timeline.elapsed_s(timeline.length_s))}"


def _clock(seconds: float) -> str:
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _attempts(player: Player) -> str:
    known = len(numbers(player.timeline))
    done = sum(mark <= player.place for mark in player.timeline.marks)
    return f"{done} of {words.plural(known, 'attempt')}"


def _progress(player: Player, cells: int) -> Text:
    length_s = player.timeline.length_s
    done = round((cells - 1) * (player.shown_s / length_s)) if length_s > 0 else cells - 1
    return Text("━" * done, style="cyan").append("●", style="bold cyan").append("─" * (cells - 1 - done), style="dim")
