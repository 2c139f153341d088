"""The screen of a terminal: redraws the rendered state four times a second and leaves the terminal as it found it."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from threading import Event as Flag
from threading import Lock, Thread, current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console

from agent.controls import Controls
from agent.record.events import Event, Progress
from agent.view.cells import Frame
from agent.view.keys import Keyboard, may_read
from agent.view.output import while_there_is_a_terminal
from agent.view.pages import page_lines
from agent.view.render import render
from agent.view.screen import Screen
from agent.view.state import SUSPENDED_STAGE, ViewState, fold
from agent.view.ui import Ui, Wish, press

PERIOD_S = 0.25
_LAST_FRAME_LINES = 24  # what stays in the scroll-back: enough for the best attempt and the last ones
_HEAL_EVERY = 20  # frames between two full draws: whatever else wrote on the screen is gone then
_JOIN_S = 2.0  # a terminal that was stopped (Ctrl-S) does not hold up the end
_NOTE_S = 4.0


class LiveView:
    """Called with each event, from any thread; draws from a thread of its own while the context is open.

    The alternate screen is used, so that nothing above is overwritten; on the way out the last frame is printed below
    what was there. A terminal that is gone, or a frame that cannot be drawn, ends the drawing, not the run. `controls`
    hears of the keys, read from `keys_fd` when that is a terminal.
    """

    def __init__(
        self,
        console: Console,
        *,
        controls: Controls | None = None,
        keys_fd: int | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self.state = ViewState()
        self.ui = Ui()
        self._console, self._screen, self._period_s = console, Screen(console), period_s
        self._controls = controls or Controls()
        self._fold, self._drawing = Lock(), Lock()
        self._stop, self._wake = Flag(), Flag()
        self._thread = Thread(target=self._draw_until_stopped, name="view", daemon=True)
        self._keyboard = Keyboard(keys_fd, self.press) if keys_fd is not None and may_read(keys_fd) else None
        self._held = StringIO()  # what others print meanwhile
        self._drawn: tuple[object, object] | None = None
        self._frames = 0
        self._noted_at = 0.0
        self._away = False  # the terminal is not ours until the shell gives it back
        self._suspended_s = 0.0  # not told yet
        self._stack = contextlib.ExitStack()

    def __call__(self, event: Event) -> None:
        """Take in an event; the next redraw shows it."""
        with self._fold:
            self.state = fold(self.state, event)

    def press(self, key: str) -> None:
        """Take in a key."""
        if key == "redraw":
            with self._drawing:
                self._screen.forget()
        width, height = self._screen.size()
        lines = len(page_lines(self.state, self.ui, width, time.time())) if self.ui.page != "run" else 0
        ui, wish = press(self.state, self.ui, key, lines, max(1, height - 8))
        if wish:
            ui = replace(ui, note=self._grant(wish))
            self._noted_at = time.monotonic()
        self.ui = ui
        self._wake.set()

    def _grant(self, wish: Wish) -> str:
        match wish:
            case "pause":
                paused = self._controls.pause()
                return "paused: what is under way is finished, nothing new begins" if paused else "going on"
            case "skip":
                skipped = self._controls.skip()
                return f"skipped: {skipped} under way" if skipped else "nothing under way can be skipped"
            case "raise":
                if self.state.is_ending:
                    return "no more attempts begin: there is no limit to raise"
                self._controls.raise_limits()
                return "limits raised by a quarter of what was given"
            case "stop":
                self._controls.stop()
                return "stopping after what is under way; --resume goes on later"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._screen.leave)
            self._away = not self._screen.is_in_front()  # begun with `&`: until `fg`
            if not self._away:
                self._screen.enter()
            if self._keyboard:
                stack.callback(self._keyboard.stop)
                self._keyboard.start()
                self.ui = replace(self.ui, keys=True)
            stack.enter_context(self._others_held())
            self._draw()  # the first frame is there before anything else happens, also a Ctrl-Z in the middle of it
            stack.enter_context(self._stoppable())
            self._thread.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with while_there_is_a_terminal(self._console):
            self._stop.set()
            self._wake.set()
            with self._stack:
                self._thread.join(_JOIN_S)
            if self.state.started:  # else an error has come first, and has its own words
                self._console.print(self._last_frame())
            if self._held.getvalue():
                print(self._held.getvalue(), end="", file=sys.stderr)

    @contextlib.contextmanager
    def _others_held(self) -> Iterator[None]:
        """Keep what warnings and libraries print until the screen is gone; a file or a pipe gets it at once."""
        with contextlib.ExitStack() as stack:
            if sys.stderr.isatty():
                stack.enter_context(contextlib.redirect_stderr(self._held))
            if sys.stdout.isatty():
                stack.enter_context(contextlib.redirect_stdout(self._held))
            yield

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Ctrl-Z gives the terminal back, `fg` takes it again. Signals reach the main thread only."""
        if current_thread() is not main_thread():
            yield
            return
        before = signal.signal(signal.SIGTSTP, self._suspend)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, before)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        with self._drawing:
            self._screen.leave()
            if self._keyboard:
                self._keyboard.restore()
            before: Any = signal.signal(number, signal.SIG_DFL)
            since = time.monotonic()
            os.kill(os.getpid(), number)  # returns when the process goes on
            seconds = time.monotonic() - since
            signal.signal(number, before)
            self._controls.suspended(seconds)
            self._suspended_s += seconds
            self._away = True
        self._wake.set()

    def _come_back(self) -> None:
        """Take the terminal again once the process is in its foreground: after `fg` at once, after `bg` it is others'.

        Polled, since no signal tells of a later `fg` of a process that runs.
        """
        if self._suspended_s:
            told, self._suspended_s = self._suspended_s, 0.0
            self(Progress(self.state.run_id or "", SUSPENDED_STAGE, data={"seconds": told}))
        with self._drawing:
            if not self._screen.is_in_front():
                return
            self._away = False
            if self._keyboard and may_read(self._keyboard.fd):
                self._keyboard.listen()
            self._screen.enter()
            self._drawn = None

    def _draw_until_stopped(self) -> None:
        with while_there_is_a_terminal(self._console):
            try:
                while not self._stop.is_set():
                    if self._away:
                        self._come_back()
                    self._draw()
                    self._wake.wait(self._period_s)
                    self._wake.clear()
            finally:  # a fault of the screen must not cost a run: threading tells of it on stderr, held until the end
                if not self._stop.is_set():
                    self._give_back()

    def _give_back(self) -> None:
        """Nobody sees the run any more, nor can press a key: what is paused goes on."""
        if self._keyboard:
            self._keyboard.stop()
            if self._controls.paused:
                self._controls.pause()
        with self._drawing:
            self._screen.leave()

    def _draw(self) -> None:
        """Draw when something has changed: an event, a key, a second, the size of the terminal."""
        if self.ui.note and time.monotonic() - self._noted_at > _NOTE_S:
            self.ui = replace(self.ui, note="")
        shown = (self.state, (self.ui, int(time.time()), self._screen.size()))
        if self._drawn and shown[0] is self._drawn[0] and shown[1] == self._drawn[1]:
            return
        with self._drawing:
            if not self._screen.entered:
                return
            self._frames += 1
            if self._frames % _HEAL_EVERY == 0:
                self._screen.heal()
            self._screen.draw(self._frame())
        self._drawn = shown

    def _frame(self) -> Frame:
        width, height = self._screen.size()
        return render(self.state, width, height, time.time(), self.ui)

    def _last_frame(self) -> Frame:
        width, height = self._screen.size()
        return render(self.state, width, max(4, min(height - 1, _LAST_FRAME_LINES)), time.time())
