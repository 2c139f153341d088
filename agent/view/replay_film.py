"""The frames of a film of a run, and of a picture of one moment."""

import math
from collections.abc import Iterator

from agent.view import text as words
from agent.view.picture import FilmFrame, film, picture
from agent.view.player import Player
from agent.view.render import render
from agent.view.replay import Timeline
from agent.view.replay_bar import replay_frame

FILM_S, _SHORT_S = 20.0, 30.0  # how long a film is unless a speed is given, or the run is short
_FRAMES_A_SECOND = 4
_MOST_FRAMES, _FEWEST_FRAMES = 160, 16
_MOST_BYTES = 800_000  # web pages show it as it is
_LAST_S = 4.0  # the end stays for a while before it begins again


def still_svg(player: Player, width: int, height: int) -> str:
    """The screen as it was at the player's place."""
    page = render(player.state, width, height, player.now(0.0))
    return picture(page, width, height, _title(player))


def film_svg(player: Player, width: int, height: int, speed: float | None) -> str:
    """The run from the beginning to the player's place. `speed` None: in some 20 seconds. A film that would be too
    large has fewer frames."""
    length_s = player.shown_s
    speed = speed or (length_s / FILM_S if length_s > _SHORT_S else 1.0)
    frames = min(_MOST_FRAMES, max(1, math.ceil(length_s / speed * _FRAMES_A_SECOND)))
    while True:
        text = film(list(_frames(player, width, height, speed, frames)), width, height, _title(player))
        if len(text.encode()) <= _MOST_BYTES or frames <= _FEWEST_FRAMES:
            return text
        frames //= 2


def _frames(player: Player, width: int, height: int, speed: float, n: int) -> Iterator[FilmFrame]:
    length_s = player.shown_s
    lasts_s = length_s / speed
    for i in range(n + 1):
        shown_s = length_s * i / n
        place = player.timeline.place_at(shown_s) if i < n else player.place
        moment = Player(player.timeline, speed, place=place, shown_s=shown_s, playing=i < n, reading=False)
        yield FilmFrame(
            replay_frame(moment, width, height, 0.0, keys=False), max(lasts_s / n, 0.05) if i < n else _LAST_S
        )


def _title(player: Player) -> str:
    return title(player.timeline)


def title(timeline: Timeline) -> str:
    """What a picture of a run is called."""
    started = timeline.state(len(timeline)).started
    if started is None:
        return "kerneltune"
    return words.one_line(f"kerneltune · {started.task} · {started.gpu or f'no GPU, compiled for {started.arch}'}")
