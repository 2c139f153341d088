"""Where a viewer stands in a run, and what a key or passing time does to that. Knows no terminal and no clock."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.record.events import Event, Progress
from agent.record.folder import RunProcess
from agent.view.replay import Place, Timeline
from agent.view.replay_keys import Key
from agent.view.state import ViewState, fold

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, math.inf)
SILENT_S = 30.0  # a shorter silence says nothing
GIVEN_UP_S = 60.0  # of silence, where nobody can know whether a process runs the run
_MAX_FRAMES = 300  # in which a run is over at speed "max"
Target = Callable[[Timeline], Place]


@dataclass
class Player:
    """A place in a timeline. `touched`: a person has moved, so the end of the run is no reason to leave."""

    timeline: Timeline
    speed: float = 1.0
    playing: bool = False
    following: bool = False  # at the end, wherever that moves
    process: RunProcess = field(default_factory=lambda: RunProcess("unknown"))
    place: int = 0
    shown_s: float = 0.0
    touched: bool = False
    left: bool = False  # a person wants out
    reading: bool = True  # the record holds more than the timeline
    target: Target | None = None  # where to stand once all is read
    reading_of_gpu: Progress | None = None  # the GPU of a run that goes on here, as it is now

    @property
    def state(self) -> ViewState:
        """What there is to see."""
        state = self.timeline.state(self.place)
        return fold(state, self.reading_of_gpu) if self.live and self.reading_of_gpu else state

    @property
    def at_end(self) -> bool:
        """Whether nothing known comes after this."""
        return self.place >= len(self.timeline)

    @property
    def live(self) -> bool:
        """Whether this is the present of a run that may still go on."""
        return self.following and self.at_end and not self.timeline.ended

    def given_up(self, real_now: float) -> bool:
        """Whether nothing more is to be waited for: its process is gone, or nobody knows of one and it is silent."""
        state = self.process.state
        silent = abs(real_now - self.timeline.last_at) >= GIVEN_UP_S  # a clock that is ahead is another machine's
        return state == "gone" or (state == "unknown" and silent and not self.timeline.ended)

    def now(self, real_now: float) -> float:
        """The clock by which a frame tells elapsed time. Where nobody knows whether the run goes on, it stops soon."""
        last_at = self.timeline.last_at
        if self.live and self.process.state == "running":
            return max(real_now, last_at)
        if self.live and self.process.state == "unknown":
            return min(max(real_now, last_at), last_at + SILENT_S)
        return last_at if self.at_end else self.timeline.clock(self.shown_s)

    def overhear(self, event: Event) -> None:
        """Take in a reading of the GPU, from any thread. It is of the present, not of the record."""
        if isinstance(event, Progress):
            self.reading_of_gpu = event

    def read_all(self) -> None:
        """The timeline has all that the record has, for now. Who looks at a run that was over then means to look."""
        self.touched = self.touched or (self.reading and self.timeline.ended and not self.playing)
        self.reading = False
        if self.target is not None:
            self._stand(*self.target(self.timeline))
            self.target = None

    def pass_time(self, seconds: float) -> None:
        """So much time has passed before the screen."""
        if self.following:
            self._stand(len(self.timeline))
        elif self.playing:
            self._play(seconds)

    def _play(self, seconds: float) -> None:
        if math.isinf(self.speed):
            self._stand(self.place + math.ceil(len(self.timeline) / _MAX_FRAMES))
        else:
            self.shown_s = min(self.timeline.length_s, self.shown_s + seconds * self.speed)
            self.place = max(self.place, self.timeline.place_at(self.shown_s))
        if self.at_end and not self.reading:
            self.playing, self.following = False, True

    def press(self, key: Key) -> None:
        """A key was pressed."""
        match key:
            case "quit":
                self.left = True
            case "faster" | "slower":
                self.speed = _other_speed(self.speed, key == "faster")
            case "pause":
                self._toggle()
            case "left" | "right" | "home":
                self.touched, self.playing, self.following = True, False, False
                self._stand(self._place_of(key))
            case "end":
                self.touched, self.playing, self.following = True, False, True
                self._stand(len(self.timeline))

    def _place_of(self, key: Key) -> int:
        if key == "home":
            return min(1, len(self.timeline))
        return self.timeline.previous_mark(self.place) if key == "left" else self.timeline.next_mark(self.place)

    def _toggle(self) -> None:
        """Stop, or go on; at the end of a run that is over, begin again, as players do."""
        self.touched = True
        if self.playing or self.live:
            self.playing = self.following = False
            return
        if self.at_end and self.timeline.ended:
            self._stand(min(1, len(self.timeline)))
        self.playing, self.following = not self.at_end, self.at_end

    def _stand(self, place: int, shown_s: float | None = None) -> None:
        self.place = max(0, min(place, len(self.timeline)))
        self.shown_s = self.timeline.shown_at(self.place) if shown_s is None else shown_s


def _other_speed(speed: float, faster: bool) -> float:
    others = [s for s in SPEEDS if (s > speed if faster else s < speed)]
    return speed if not others else min(others) if faster else max(others)
