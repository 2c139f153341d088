"""What a person asks of a run that is going on. Set from one thread, read by the loop between attempts.

Knows no terminal and no loop: the screen calls `pause`, `skip`, `raise_limits` and `stop`; the loop asks `wait`,
`stopping`, `raises` and `clock_s`.
"""

import threading
import time
from collections.abc import Callable
from typing import Literal

Change = Literal["paused", "resumed", "raised", "stopping"]
_POLL_S = 0.2


class Controls:
    """Safe to use from any thread. Nobody listens before `connect`, and a change made by then is told there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._raises = 0
        self._stopping = False
        self._tell: Callable[[Change], None] = lambda _: None
        self._skip: Callable[[], int] = lambda: 0

    def connect(self, tell: Callable[[Change], None], skip: Callable[[], int]) -> None:
        """Give a run's ears: `tell` hears of each change, `skip` gives up what is under way and says how much."""
        with self._changed:
            self._tell, self._skip = tell, skip
            earlier: list[tuple[bool, Change]] = [
                (self.paused, "paused"), (self._raises > 0, "raised"), (self._stopping, "stopping"),
            ]  # fmt: skip
        for made, change in earlier:
            if made:
                tell(change)

    @property
    def paused(self) -> bool:
        """Whether nothing new may begin."""
        return self._paused_at is not None

    @property
    def stopping(self) -> bool:
        """Whether the run shall end when what is under way is finished."""
        return self._stopping

    @property
    def raises(self) -> int:
        """How often the limits were raised."""
        return self._raises

    @property
    def paused_s(self) -> float:
        """Seconds spent paused or suspended so far; the time limit does not count them."""
        with self._changed:
            since = 0.0 if self._paused_at is None else time.monotonic() - self._paused_at
            return self._paused_s + since

    @property
    def clock_s(self) -> float:
        """A monotonic clock that stands still while the run is paused or suspended."""
        with self._changed:
            return time.monotonic() - self.paused_s

    def suspended(self, seconds: float) -> None:
        """Count so many seconds, just over, in which the process was stopped by its shell (Ctrl-Z)."""
        with self._changed:
            if self._paused_at is None:  # else the pause counts them
                self._paused_s += seconds

    def pause(self) -> bool:
        """Pause, or go on; says whether the run is paused now. What is under way is finished either way."""
        with self._changed:
            if self._paused_at is None:
                self._paused_at = time.monotonic()
            else:
                self._paused_s += time.monotonic() - self._paused_at
                self._paused_at = None
            paused = self.paused
            self._changed.notify_all()
        self._tell("paused" if paused else "resumed")
        return paused

    def raise_limits(self) -> None:
        """A quarter more attempts and time than were given."""
        with self._changed:
            self._raises += 1
        self._tell("raised")

    def stop(self) -> None:
        """End the run after what is under way, also when it is paused."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._tell("stopping")

    def skip(self) -> int:
        """Give up the attempts that are being traced, compiled or checked; says how many those are."""
        return self._skip()

    def wait(self, over: Callable[[], bool] = lambda: False) -> None:
        """Return at once, or when the run is no longer paused, shall stop, or is `over`."""
        with self._changed:
            while self.paused and not self._stopping and not over():
                self._changed.wait(_POLL_S)
