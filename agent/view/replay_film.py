"""The frames of a film of a run, and of a picture of one moment."""

import math
from collections.abc import Iterator

from agent.view.picture import FilmFrame, film, picture
from agent.view.player import Player
from agent.view.render import render
from agent.view.replay import Timeline
from agent.view.replay_bar import replay_frame

FILM_S = 20.0  # how long a film is unless a speed is given
_FRAMES_A_SECOND = 4
_MOST_FRAMES = 160
_LAST_S = 4.0  # the end stays for a while before it begins again


def still_svg(player: Player, width: int, height: int) -> str:
    """The screen as it was at the player's place."""
    page = render(player.state, width, height, player.now(0.0))
    return picture(page, width, height, _title(player))


def film_svg(player: Player, width: int, height: int, speed: float | None) -> str:
    """The run from the beginning to the player's place. `speed` None: in some 20 seconds."""
    length_s = player.shown_s
    frames = list(_frames(player, width, height, speed or max(1.0, length_s / FILM_S), length_s))
    return film(frames, width, height, _title(player))


def _frames(player: Player, width: int, height: int, speed: float, length_s: float) -> Iterator[FilmFrame]:
    lasts_s = length_s / speed
    n = max(1, min(_MOST_FRAMES, math.ceil(lasts_s * _FRAMES_A_SECOND)))
    for i in range(n + 1):
        shown_s = length_s * i / n
        place = player.timeline.place_at(shown_s) if i < n else player.place
        moment = Player(
            player.timeline, speed, place=place, shown_s=shown_s, playing=i < n, reading=False, following=i == n
        )
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
    return " · ".join(("kerneltune", started.task, started.gpu or f"no GPU, compiled for {started.arch}"))
