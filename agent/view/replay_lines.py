"""A run as lines or as NDJSON, from its beginning until it ends, at its own pace, a multiple of it, or all at once."""

import select
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from agent.record.events import Event
from agent.view.ndjson import JsonView
from agent.view.output import LineWriter
from agent.view.plain import plain_line
from agent.view.player import Player
from agent.view.replay_bar import silence
from agent.view.state import ViewState, fold
from agent.view.summary import NextCommand, summary_text
from agent.view.watch import POLL_S, Source

_ALIVE_EVERY_S = 2.0
_LONGEST_SLEEP_S = 1e8  # three years: more than that is no time for the system


class Lines(Protocol):
    """Where events go. `broken`: nobody reads any more."""

    @property
    def broken(self) -> bool:
        """Whether the reader is gone."""
        ...

    def __call__(self, event: Event) -> None:
        """Write what the event has to say."""
        ...


class PlainLines:
    """A line per event on a stream that is read for its lines, so they are not stderr's."""

    def __init__(self, stream: TextIO, *, colour: bool = False) -> None:
        self.state = ViewState()
        self._lines, self._colour = LineWriter(stream), colour

    @property
    def broken(self) -> bool:
        """Whether the reader is gone."""
        return self._lines.broken

    def __call__(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        self.state = fold(self.state, event)
        if line := plain_line(self.state, event, colour=self._colour):
            self._lines.write(line)

    def close(self, said: str, next_commands: list[NextCommand]) -> None:
        """The closing words; `said`: why it is over without an end."""
        if said:
            self._lines.write(said)
        for line in summary_text(self.state, next_commands).splitlines():
            self._lines.write(line)


def print_lines(lines: Lines, player: Player, source: Source, stream: TextIO) -> None:
    """Until the run is over, its process is gone (or unknown, and the run silent for a minute), or nobody reads
    `stream`. The player's speed counts while it is playing."""
    begun, asked_at = time.monotonic(), -_ALIVE_EVERY_S
    while not (lines.broken or nobody_reads(stream)):
        events = source.more()
        for event in events:
            player.timeline.extend([event])
            if player.playing:
                rest_s = begun + player.timeline.length_s / player.speed - time.monotonic()
                time.sleep(min(max(0.0, rest_s), _LONGEST_SLEEP_S))
            lines(event)
            if lines.broken:
                return
        if events:
            continue
        if time.monotonic() - asked_at >= _ALIVE_EVERY_S or player.timeline.ended:
            player.process, asked_at = source.process(), time.monotonic()
        if player.given_up(time.time()) or (player.timeline.ended and player.process.state != "running"):
            return
        time.sleep(POLL_S)


def nobody_reads(stream: TextIO) -> bool:
    """Whether the other end of a pipe is closed: a silent run would not find out by writing."""
    poll = select.poll()
    try:
        poll.register(stream, 0)
    except (OSError, ValueError):  # not backed by a file descriptor
        return False
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


def print_json(stream: TextIO, player: Player, source: Source) -> None:
    """The events, then exactly one result."""
    with JsonView(stream) as view:
        print_lines(view, player, source, stream)


def print_plain(
    stream: TextIO,
    player: Player,
    source: Source,
    next_commands: Callable[[], list[NextCommand]],
    *,
    colour: bool = False,
) -> None:
    """The lines, then the closing summary with what `next_commands` says once all is read."""
    view = PlainLines(stream, colour=colour)
    print_lines(view, player, source, stream)
    said = silence(player, time.time()) or "no end is recorded"
    view.close("" if player.timeline.ended else said, next_commands())
