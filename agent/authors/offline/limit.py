"""Ends a computation of our own that takes too much processor time."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class TooLong(BaseException):
    """Not an Exception, so that nobody on the way takes it for one of his own."""


@contextlib.contextmanager
def processor_time(limit_s: float) -> Iterator[None]:
    """Raise TooLong in the block after so many seconds of this process's processor time, however busy the machine is
    with other things. Only in the main thread; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
