"""A stored run as it happened: its events at their pace or at once, followed while the run goes on; a picture of it."""

import math
import re
import select
import time
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import TextIO

from rich.console import Console

from kerneltune.agent.attempt import Controls
from kerneltune.agent.events import Event, RunEnded, RunResumed
from kerneltune.agent.record.folder import RunProcess
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import JsonView
from kerneltune.agent.view.plain import PlainView
from kerneltune.agent.view.render import ScreenFrame, Wish
from kerneltune.agent.view.state import ViewState
from kerneltune.tools.schema.codec import one_line

POLL_S = 0.4
MAX_SPEED = 1000.0  # more is "max": all at once
_IDLE_LIMIT_S = 5.0  # of a playback: a longer silence of the run lasts only so long, before its speed divides it
_STEP_S = 0.05  # of a playback: so soon it obeys a key
_ALIVE_EVERY_S = 2.0
_BETWEEN_PROCESSES_S = 1.0  # of the time in which nobody worked on the run
_SILENT_S = 30.0  # a shorter silence says nothing
_GIVEN_UP_S = 60.0  # of silence, where nobody can know whether a process runs the run
_LATEST = 1e11  # Unix time: beyond it, a clock is damaged


class Playback:
    """Gives a stored run's events one by one. `more` gives those that are new, at most a page; `process` says who runs
    the run. `speed`: so many times as fast as it was, in which long silences are short; None: at once. `controls` pause
    it and end it."""

    def __init__(
        self,
        more: Callable[[], Sequence[Event]],
        process: Callable[[], RunProcess],
        *,
        speed: float | None = None,
        controls: Controls | None = None,
    ) -> None:
        self.speed, self.controls = speed, controls or Controls()
        self.process = RunProcess("unknown")
        self.last_at = 0.0  # the recorded clock of the latest event
        self.ended = False  # by the last event that says so; a resumed run goes on
        self.reading = True  # the record holds more than was given
        self._more, self._process = more, process
        self._clock = 0.0  # the recorded clock, which goes on between two events
        self._stays = False  # at the end of a run that was over, somebody looks at it

    def events(self, nobody_watches: Callable[[], bool], *, hears_keys: bool = False) -> Iterator[Event]:
        """What happened, until the run is over, its process is gone (or unknown, and the run silent for a minute), or
        nobody watches. Who can press keys leaves a run that has no end, or was over from the start, by a key."""

        def is_left() -> bool:
            return self.controls.stopping or nobody_watches()

        asked_at = -math.inf
        while not is_left():
            found = self._more()
            for event in found:
                self._wait_for(event)
                if is_left():
                    return
                self._take(event)
                yield event
            if found:
                continue
            if self.reading:
                self.reading, self._stays = False, self.ended and self.speed is None
            if time.monotonic() - asked_at >= _ALIVE_EVERY_S or self.ended:
                self.process, asked_at = self._process(), time.monotonic()
            if self._is_over(hears_keys):
                return
            time.sleep(POLL_S)

    def _is_over(self, hears_keys: bool) -> bool:
        if self.ended and self.process.state != "running":
            return not (hears_keys and self._stays)
        return not hears_keys and self.given_up(time.time())

    def _take(self, event: Event) -> None:
        self.last_at = self._clock = self._at(event)
        if isinstance(event, RunEnded | RunResumed):
            self.ended = isinstance(event, RunEnded)

    def _at(self, event: Event) -> float:
        at = event.at if event.at < _LATEST else 0.0  # a record from elsewhere may say anything
        return max(self.last_at, at)

    @property
    def _pace(self) -> float | None:
        """How many times as fast as it was; None: at once, also in the present of a run that goes on."""
        speed = self.speed  # a key may change it meanwhile
        return None if speed is None or math.isinf(speed) or not self.reading else speed

    def _wait_for(self, event: Event) -> None:
        """Until it is the event's time. A pause, also one by Ctrl-Z, does not count."""
        self.controls.wait()
        gap_s = self._at(event) - self.last_at if self.last_at else 0.0
        limit_s = _BETWEEN_PROCESSES_S if self.ended or isinstance(event, RunResumed) else _IDLE_LIMIT_S
        played_s, lasts_s = 0.0, min(gap_s, limit_s)
        while played_s < lasts_s and (speed := self._pace):
            before_s = self.controls.clock_s
            time.sleep(max(0.0, min(_STEP_S, (lasts_s - played_s) / speed)))
            played_s += (self.controls.clock_s - before_s) * speed
            self._clock = self.last_at + gap_s * min(1.0, played_s / lasts_s)
            self.controls.wait()
            if self.controls.stopping:
                return

    def given_up(self, real_now: float) -> bool:
        """Whether nothing more is to be waited for: its process is gone, or nobody knows of one and it is silent."""
        state = self.process.state
        silent = abs(real_now - self.last_at) >= _GIVEN_UP_S  # a clock that is ahead is another machine's
        return state == "gone" or (state == "unknown" and silent and not self.ended)

    def silence(self, real_now: float) -> str:
        """What there is to say of a run that says nothing; empty while it is too soon for that."""
        quiet_s = real_now - self.last_at
        state = self.process.state
        if state == "gone":
            return f"no event for {words.duration(quiet_s)}; its process is not running"
        if quiet_s < _SILENT_S or not self.last_at:
            return ""
        knows = "its process runs" if state == "running" else "whether its process runs is not known here"
        return f"no event for {words.duration(quiet_s)}; {knows}"

    def keys(self, state: ViewState) -> Sequence[tuple[str, str]]:
        """Leave, pause, speed."""
        if self.ended and not self.reading:
            return (("q", "leave"),)
        pause = "go on" if self.controls.paused else "pause"
        speed = (("+-", "speed"), ("e", "to the end")) if self.speed is not None and self.reading else ()
        return (("q", "leave"), ("p", pause), *speed)

    def status(self) -> str:
        """Whether it plays, follows, or is over."""
        if self.controls.paused:
            return "‖ paused"
        if self.reading:
            return f"▶ {_speed_words(self.speed)}" if self.speed else "… reading"
        if self.ended:
            return "■ the end"
        if silence := self.silence(time.time()):
            return f"{'■' if self.process.state == 'gone' else '●'} {silence}"
        return "● live"

    def now(self, state: ViewState) -> float:
        """The recorded clock; the real one while the run goes on. Where nobody knows that, it stops soon."""
        if self.reading or self.ended or self.process.state == "gone":
            return self._clock
        latest = math.inf if self.process.state == "running" else self.last_at + _SILENT_S
        return min(max(time.time(), self.last_at), latest)

    def grant(self, wish: Wish, state: ViewState) -> str:
        """Obey a key; the run is not touched."""
        match wish:
            case "stop":
                self.controls.stop()
            case "pause":
                self.controls.pause()
            case "finish":
                self.speed = math.inf
            case "raise" | "slower" if self.speed:
                faster = self.speed * (2.0 if wish == "raise" else 0.5)
                self.speed = min(MAX_SPEED, max(1 / 16, faster)) if math.isfinite(faster) else MAX_SPEED
        return ""


def _speed_words(speed: float) -> str:
    """10x, 0.5x, max."""
    return "max" if math.isinf(speed) else f"{speed:.3g}x"


def print_events(view: PlainView | JsonView, playback: Playback, stream: TextIO) -> None:
    """Into a view that writes lines on `stream`, until all is over or nobody reads them."""
    for event in playback.events(lambda: view.broken or _nobody_reads(stream)):
        view(event)


def _nobody_reads(stream: TextIO) -> bool:
    """Whether the other end of a pipe is closed: a silent run would not find out by writing."""
    poll = select.poll()
    try:
        poll.register(stream, 0)
    except (OSError, ValueError):  # not backed by a file descriptor
        return False
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


_ILLEGAL = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML, even as an entity
_BLANK, _CELL = "&#160;", 12.2  # as rich writes a blank, and how wide
_PADDED = re.compile(
    r'x="([^"]*)" y="([^"]*)" textLength="([^"]*)"([^>]*)>((?:&#160;)*)([^<]*?)((?:&#160;)*)</text>'
)  # fmt: skip
_CLIP = re.compile(r'(-clip-terminal">\s*<rect [^>]*height=")([\d.]+)')
_BELOW = 4  # pixels: rich's clip ends above an underscore of the last line
# of rich's template: a link to its makers, and fonts from the net
_FOREIGN = re.compile(r"<!--.*?-->|@font-face \{.*?\}", re.DOTALL)


def picture(frame: ScreenFrame, state: ViewState) -> str:
    """A frame as SVG. It loads nothing, and the same frame gives the same bytes."""
    started = state.started
    title = "kerneltune"
    if started is not None:
        title += f" · {started.task} · {started.gpu or f'no GPU, compiled for {started.arch}'}"
    console = Console(
        file=StringIO(), record=True, width=frame.width, height=frame.height, force_terminal=True,
        color_system="truecolor", no_color=False, legacy_windows=False,
    )  # fmt: skip
    console.print(frame, end="")
    title = one_line(_ILLEGAL.sub("\ufffd", title))
    svg = _FOREIGN.sub("", console.export_svg(title=title, unique_id="kt"), count=3)  # all stand before any text
    svg = _CLIP.sub(lambda found: f"{found[1]}{float(found[2]) + _BELOW:g}", svg, count=1)
    return _ILLEGAL.sub("\ufffd", _PADDED.sub(_without_blanks, svg))


def _without_blanks(found: re.Match[str]) -> str:
    """A text without the blanks at its ends: what draws SVG may drop them and stretch the rest."""
    x, y, length, more, before, text, after = found.groups()
    left, right = (len(blanks) // len(_BLANK) * _CELL for blanks in (before, after))
    return f'x="{float(x) + left:g}" y="{y}" textLength="{float(length) - left - right:g}"{more}>{text}</text>'
