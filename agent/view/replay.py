"""A run in time: what there was to see at any moment of it, without folding everything again. Knows no terminal.

Three measures of a place in a run: how many events have happened (`place`), the recorded clock (Unix time), and the
time that a replay at speed 1 takes to get there (`shown_s`), in which long silences are short.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.record.events import Event, Judged, RunEnded, RunResumed, RunStarted
from agent.view.state import ViewState, fold

IDLE_LIMIT_S = 5.0
_BETWEEN_PROCESSES_S = 1.0  # of the time in which nobody worked on the run
_SNAPSHOT_EVERY = 64
_LATEST = 1e11  # Unix time: beyond it, a clock is damaged


class Place(NamedTuple):
    """After so many events, at a moment of the replay that is not before the last of them."""

    place: int
    shown_s: float


class Timeline:
    """Grows by `extend`; everything else asks. Not for several threads."""

    def __init__(self, idle_limit_s: float = IDLE_LIMIT_S) -> None:
        self.events: list[Event] = []
        self.marks: list[int] = []  # places at which an attempt has just got its verdict
        self.ended = False  # by the last event that says so; a resumed run goes on
        self.on_gpu = False  # the run is timed
        self._idle_limit_s = idle_limit_s
        self._clock: list[float] = []  # of each event, never going back
        self._shown_s: list[float] = []
        self._snapshots: list[ViewState] = [ViewState()]  # at each multiple of _SNAPSHOT_EVERY that was reached
        self._near = (0, ViewState())

    def __len__(self) -> int:
        return len(self.events)

    def extend(self, events: Iterable[Event]) -> None:
        """Add what happened next."""
        for event in events:
            self._add(event)

    def _add(self, event: Event) -> None:
        at = event.at if abs(event.at) < _LATEST else 0.0  # also NaN: a record from elsewhere may say anything
        before = self._clock[-1] if self._clock else at
        limit_s = _BETWEEN_PROCESSES_S if self.ended or isinstance(event, RunResumed) else self._idle_limit_s
        self._clock.append(max(before, at))
        earlier_s = self._shown_s[-1] if self._shown_s else 0.0
        self._shown_s.append(earlier_s + min(limit_s, self._clock[-1] - before))
        self.events.append(event)
        if isinstance(event, Judged):
            self.marks.append(len(self.events))
        if isinstance(event, RunEnded | RunResumed):
            self.ended = isinstance(event, RunEnded)
        if isinstance(event, RunStarted):
            self.on_gpu = event.gpu is not None

    @property
    def length_s(self) -> float:
        """How long a replay at speed 1 takes."""
        return self._shown_s[-1] if self._shown_s else 0.0

    @property
    def last_at(self) -> float:
        """The recorded clock of the latest event, 0 before there is one."""
        return self._clock[-1] if self._clock else 0.0

    def place_at(self, shown_s: float) -> int:
        """How many events have happened by then."""
        return bisect_right(self._shown_s, shown_s)

    def shown_at(self, place: int) -> float:
        """When a replay gets to a place."""
        return self._shown_s[place - 1] if place > 0 and self._shown_s else 0.0

    def shown_after(self, elapsed_s: float) -> float:
        """When a replay gets to so many seconds after the beginning, by the recorded clock."""
        if not self._clock:
            return 0.0
        at = self._clock[0] + elapsed_s
        place = bisect_right(self._clock, at)
        if place >= len(self._clock):
            return self.length_s
        before, after = self._clock[place - 1], self._clock[place]
        share = (at - before) / (after - before)
        return self._shown_s[place - 1] + share * (self._shown_s[place] - self._shown_s[place - 1])

    def clock(self, shown_s: float) -> float:
        """The recorded clock at a moment of the replay; it runs faster where a silence was shortened."""
        place = self.place_at(shown_s)
        if not 0 < place < len(self._clock):
            return self._clock[max(0, place - 1)] if self._clock else 0.0
        begin_s, end_s = self._shown_s[place - 1], self._shown_s[place]
        share = (shown_s - begin_s) / (end_s - begin_s)
        return self._clock[place - 1] + share * (self._clock[place] - self._clock[place - 1])

    def elapsed_s(self, shown_s: float) -> float:
        """Seconds since the beginning by the recorded clock."""
        return self.clock(shown_s) - self._clock[0] if self._clock else 0.0

    def next_mark(self, place: int) -> int:
        """Where the next attempt has its verdict; the end after the last."""
        found = bisect_right(self.marks, place)
        return self.marks[found] if found < len(self.marks) else len(self)

    def previous_mark(self, place: int) -> int:
        """Where the attempt before had its verdict; the beginning before the first."""
        found = bisect_left(self.marks, place)
        return self.marks[found - 1] if found else min(1, len(self))

    def place_of(self, number: int) -> int | None:
        """Where the attempt of that number got its verdict; None when it has none."""
        return next((mark for mark in self.marks if _number(self.events[mark - 1]) == number), None)

    def state(self, place: int) -> ViewState:
        """What there was to see after that many events. From the nearest known state before it, so a step costs a fold
        and a jump at most 64; the first way to a place is folded once."""
        place = max(0, min(place, len(self)))
        begin, state = self._near
        known = min(place // _SNAPSHOT_EVERY, len(self._snapshots) - 1)
        if begin > place or begin < known * _SNAPSHOT_EVERY:
            begin, state = known * _SNAPSHOT_EVERY, self._snapshots[known]
        for at in range(begin, place):
            state = fold(state, self.events[at])
            if at + 1 == len(self._snapshots) * _SNAPSHOT_EVERY:
                self._snapshots.append(state)
        self._near = (place, state)
        return state


def _number(event: Event) -> int | None:
    number = event.attempt_id.rpartition("/")[2] if isinstance(event, Judged) else ""
    return int(number) if number.isdecimal() else None


def numbers(timeline: Timeline) -> Sequence[int]:
    """The attempts that have a verdict, in its order."""
    return [number for mark in timeline.marks if (number := _number(timeline.events[mark - 1])) is not None]
