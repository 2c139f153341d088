"""Plays a run on a terminal: draws when something has changed, obeys keys, gives the terminal back as it was."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.live import Live

from agent.record.events import Event
from agent.record.folder import RunProcess
from agent.view.lines import while_there_is_a_terminal
from agent.view.player import Player
from agent.view.replay_bar import ReplayFrame, replay_frame
from agent.view.replay_keys import Keys, keys_of
from agent.view.replay_steps import with_steps

POLL_S = 0.4
FRAME_S = 0.1
_ALIVE_EVERY_S = 2.0
_IDLE_SHARE = 2.0  # after a frame, rest for so many times what it took: at most a third of a core


@dataclass(frozen=True)
class Source:
    """Where events come from: `more` gives those that are new, at most a page; `process` says who runs the run."""

    more: Callable[[], Sequence[Event]]
    process: Callable[[], RunProcess]


def watch_on(console: Console, player: Player, source: Source, *, stdin: IO[str] = sys.stdin) -> None:
    """Until the run is over, or a person leaves. Raises KeyboardInterrupt on Ctrl-C, with the terminal restored."""
    with keys_of(stdin) as keys, while_there_is_a_terminal(console):
        screen = _Screen(console, player)
        with Live(console=console, screen=True, auto_refresh=False, get_renderable=screen.frame) as live:
            _Loop(player, source, keys, screen, live).run()


class _Screen:
    """What is drawn, and whether that would change anything."""

    def __init__(self, console: Console, player: Player) -> None:
        self._console, self._player = console, player
        self._drawn: tuple[object, ...] = ()

    def frame(self) -> ReplayFrame:
        """The frame for the terminal as it is now."""
        width, height = self._console.size
        return replay_frame(self._player, max(20, width), max(4, height), time.time())

    def changed(self) -> bool:
        """Whether a new frame would look different from the last one asked for."""
        player = self._player
        second = int(time.time()) if player.live else int(player.now(0.0))
        known = (len(player.timeline), player.reading, player.process)
        looks = (player.place, second, player.speed, player.playing, player.following, self._console.size, known)
        changed, self._drawn = looks != self._drawn, looks
        return changed


class _Loop:
    """One thread does all: it waits for a key, the next frame or the next look into the record."""

    def __init__(self, player: Player, source: Source, keys: Keys | None, screen: _Screen, live: Live) -> None:
        self._player, self._source, self._keys, self._screen, self._live = player, source, keys, screen, live
        self._poll_at = self._alive_at = self._frame_at = 0.0
        self._then = time.monotonic()

    def run(self) -> None:
        """Until it is over."""
        while not self._is_over():
            now = time.monotonic()
            self._look(now)
            self._player.pass_time(now - self._then)
            self._then = now
            self._draw(now)
            self._wait()

    def _is_over(self) -> bool:
        player = self._player
        if player.left or (self._keys and not self._keys.open):
            return True
        at_end = player.at_end and player.following and not player.reading
        if not self._keys:  # nobody can move it
            stands = not (player.reading or player.playing or player.following)
            return stands or (at_end and (player.timeline.ended or player.given_up(time.time())))
        return at_end and player.timeline.ended and player.process.state != "running" and not player.touched

    def _look(self, now: float) -> None:
        """What is new in the record; at once again when there may be more."""
        if now < self._poll_at:
            return
        found = self._source.more()
        timeline = self._player.timeline
        timeline.extend(with_steps(found, on_gpu=timeline.on_gpu))
        self._poll_at = now if found else now + POLL_S
        if not found:
            self._player.read_all()
        if not found and now >= self._alive_at:
            self._player.process = self._source.process()
            self._alive_at = now + _ALIVE_EVERY_S

    def _draw(self, now: float) -> None:
        if now < self._frame_at or not self._screen.changed():
            return
        self._live.refresh()
        took = time.monotonic() - now
        self._frame_at = now + max(FRAME_S, took * (1 + _IDLE_SHARE))

    def _wait(self) -> None:
        drawn_soon = self._player.playing or time.monotonic() < self._frame_at
        until = min(self._poll_at, self._frame_at if drawn_soon else math.inf)
        timeout_s = max(0.0, min(until - time.monotonic(), POLL_S))
        if self._keys is None:
            time.sleep(timeout_s)
            return
        for key in self._keys.wait(timeout_s):
            self._player.press(key)
