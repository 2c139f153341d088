"""The screen of a terminal: redraws the rendered state four times a second and leaves the terminal as it found it."""

import contextlib
import time
from collections.abc import Iterator
from threading import Event as Flag
from threading import Lock, Thread
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live

from agent.record.events import Event
from agent.view.lines import silence
from agent.view.render import render
from agent.view.state import ViewState, fold

PERIOD_S = 0.25
_LAST_FRAME_LINES = 24  # what stays in the scroll-back: enough for the best attempt and the last ones


class LiveView:
    """Called with each event, from any thread; draws from a thread of its own while the context is open.

    The alternate screen is used, so that nothing above is overwritten; on the way out the last frame is printed below
    what was there. A terminal that is gone ends the drawing, not the run.
    """

    def __init__(self, console: Console, *, period_s: float = PERIOD_S) -> None:
        self.state = ViewState()
        self._console = console
        self._period_s = period_s
        self._live = Live(console=console, screen=True, auto_refresh=False, get_renderable=self._frame)
        self._fold = Lock()
        self._stop = Flag()
        self._thread = Thread(target=self._draw_until_stopped, name="view", daemon=True)
        self._drawn_state: ViewState | None = None
        self._drawn_at: tuple[int, ConsoleDimensions] | None = None

    def __call__(self, event: Event) -> None:
        """Take in an event; the next redraw shows it."""
        with self._fold:
            self.state = fold(self.state, event)

    def __enter__(self) -> Self:
        try:
            self._live.start()
            self._thread.start()
        except BaseException:
            self._stop.set()
            self._live.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._while_there_is_a_terminal():
            try:
                self._stop.set()
                self._thread.join()
            finally:
                self._live.stop()
            self._console.print(self._last_frame())

    @contextlib.contextmanager
    def _while_there_is_a_terminal(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            silence(self._console.file)

    def _draw_until_stopped(self) -> None:
        with self._while_there_is_a_terminal():
            while not self._stop.is_set():
                self._draw()
                self._stop.wait(self._period_s)

    def _draw(self) -> None:
        """Draw when something has changed: an event, a second, the size of the terminal."""
        state, at = self.state, (int(time.time()), self._console.size)
        if state is not self._drawn_state or at != self._drawn_at:
            self._live.refresh()
            self._drawn_state, self._drawn_at = state, at

    def _frame(self) -> RenderableType:
        width, height = self._console.size
        return render(self.state, width, height, time.time())

    def _last_frame(self) -> RenderableType:
        width, height = self._console.size
        return render(self.state, width, min(height - 1, _LAST_FRAME_LINES), time.time())
