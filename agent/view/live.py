"""The live screen of a run: redraws the rendered state four times a second, hears keys, gives the terminal back."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from io import StringIO
from threading import Event as Flag
from threading import Lock, Thread, current_thread, main_thread
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from rich.console import Console

from kerneltune.agent.controls import Controls
from kerneltune.agent.events import Event, GpuReading, GpuSampled, RunSuspended
from kerneltune.agent.view.output import JsonView, ViewChoice, while_there_is_a_terminal
from kerneltune.agent.view.plain import NextCommand, PlainView, summary, summary_text
from kerneltune.agent.view.render import Ui, Wish, page_lines, press, render
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.agent.view.terminal import Keyboard, TerminalScreen, may_read
from kerneltune.tools.backends import gpu_sampler
from kerneltune.tools.backends.base import GpuInfo

PERIOD_S = 0.25
GPU_PERIOD_S = 1.0
_LAST_FRAME_LINES = 24  # what stays in the scroll-back: enough for the best attempt and the last ones
_JOIN_S = 2.0  # a terminal that was stopped (Ctrl-S) does not hold up the end
_NOTE_S = 4.0


class Steering(Protocol):
    """What the keys do to what is shown, and what a person is told of that."""

    def keys(self, state: ViewState) -> Sequence[tuple[str, str]]:
        """The keys of the last line, and what each does now."""
        ...

    def status(self) -> str:
        """What stands before them; "" for nothing."""
        ...

    def now(self, state: ViewState) -> float:
        """The Unix time by which a frame tells elapsed time."""
        ...

    def grant(self, wish: Wish, state: ViewState) -> str:
        """Do what a key asks for; returns what was done."""
        ...


_LOOKING = (("?", "help"), ("↑↓", "choose"), ("enter", "show"), ("d", "diff"), ("o", "source"))


class RunSteering:
    """Steers the run of this process through its controls."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def keys(self, state: ViewState) -> Sequence[tuple[str, str]]:
        """Pause, skip, raise, stop, and what there is to look at."""
        pause = "go on" if state.paused_at is not None else "pause"
        return (("p", pause), ("s", "skip"), ("+", "budget"), ("q", "stop after this"), *_LOOKING)

    def status(self) -> str:
        """Nothing: the header says it."""
        return ""

    def now(self, state: ViewState) -> float:
        """The clock."""
        return time.time()

    def grant(self, wish: Wish, state: ViewState) -> str:
        """Ask the run for it."""
        match wish:
            case "pause":
                paused = self._controls.pause()
                return "paused: what is under way is finished, nothing new begins" if paused else "going on"
            case "skip":
                skipped = self._controls.skip()
                return f"skipped: {skipped} under way" if skipped else "nothing under way can be skipped"
            case "raise":
                if state.is_ending:
                    return "no more attempts begin: there is no limit to raise"
                self._controls.raise_limits()
                return "limits raised by a quarter of what was given"
            case "stop":
                self._controls.stop()
                return "stopping after what is under way; --resume goes on later"
            case "slower":
                return ""


class LiveView:
    """Called with each event, from any thread; draws from a thread of its own while the context is open.

    The alternate screen is used, so that nothing above is overwritten; on the way out the last frame is printed below
    what was there. A terminal that is gone, or a frame that cannot be drawn, ends the drawing, not the run. `steering`
    hears of the keys, read from `keys_fd` when that is a terminal; `controls` of a pause by Ctrl-Z.
    """

    def __init__(
        self,
        console: Console,
        *,
        controls: Controls | None = None,
        keys_fd: int | None = None,
        steering: Steering | None = None,
        leaves_frame: bool = True,
    ) -> None:
        self.state = ViewState()
        self.ui = Ui()
        self._console, self._screen, self._leaves_frame = console, TerminalScreen(console), leaves_frame
        self._controls = controls or Controls()
        self._steering: Steering = steering or RunSteering(self._controls)
        self._fold, self._drawing = Lock(), Lock()
        self._stop, self._wake = Flag(), Flag()
        self._thread = Thread(target=self._draw_until_stopped, name="view", daemon=True)
        self._keyboard = Keyboard(keys_fd, self.press) if keys_fd is not None and may_read(keys_fd) else None
        self._held = StringIO()  # what others print meanwhile
        self._drawn: tuple[object, object] | None = None
        self._noted_at = 0.0
        self._away = False  # the terminal is not ours until the shell gives it back
        self._suspended_s = 0.0  # not shown yet
        self._stack = contextlib.ExitStack()

    def __call__(self, event: Event) -> None:
        """Take in an event; the next redraw shows it."""
        with self._fold:
            self.state = fold(self.state, event)

    @property
    def hears_keys(self) -> bool:
        """Whether a person can press keys."""
        return self._keyboard is not None

    def press(self, key: str) -> None:
        """Take in a key."""
        if key == "redraw":
            self._drawn = None
        width, height = self._screen.size()
        lines = len(page_lines(self.state, self.ui, width, time.time())) if self.ui.page != "run" else 0
        ui, wish = press(self.state, self.ui, key, lines, max(1, height - 8))
        if wish:
            ui = replace(ui, note=self._steering.grant(wish, self.state))
            self._noted_at = time.monotonic()
        self.ui = ui
        self._wake.set()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._screen.leave)
            self._away = not self._screen.is_in_front()  # begun with `&`: until `fg`
            if not self._away:
                self._screen.enter()
            if self._keyboard:
                stack.callback(self._keyboard.stop)
                self._keyboard.start()
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
            if self.state.started and self._leaves_frame:  # else an error has come first, and has its own words
                width, height = self._screen.size()
                size = (width, max(4, min(height - 1, _LAST_FRAME_LINES)))
                frame = render(self.state, size, self._steering.now(self.state))
                self._console.print(self._screen.readable(frame))
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
            seconds, self._suspended_s = self._suspended_s, 0.0
            self(RunSuspended(self.state.run_id or "", seconds))
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
                    self._wake.wait(PERIOD_S)
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
        state, size, now = self.state, self._screen.size(), self._steering.now(self.state)
        keys = tuple(self._steering.keys(state)) if self._keyboard else ()
        ui = replace(self.ui, status=self._steering.status(), keys=keys)
        looks = (ui, int(now), size)
        if self._drawn and state is self._drawn[0] and looks == self._drawn[1]:
            return
        with self._drawing:
            if not self._screen.entered:
                return
            self._screen.draw(render(state, size, now, ui), size)
        self._drawn = (state, looks)


View = LiveView | PlainView | JsonView


def open_view(choice: ViewChoice, controls: Controls | None = None) -> View:
    """The screen and the lines go to stderr, where people look, so that stdout is free for data: NDJSON, or the closing
    summary."""
    if choice.kind == "json":
        return JsonView(sys.stdout)
    if choice.kind == "plain":
        return PlainView(sys.stderr, colour=choice.colour)
    return LiveView(Console(stderr=True, no_color=not choice.colour), controls=controls, keys_fd=keys_fd())


def keys_fd() -> int | None:
    """Where keys may come from; None when stdin is closed, or no file."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def close_view(choice: ViewChoice, view: View, next_commands: Sequence[NextCommand]) -> None:
    """Print the closing summary to stdout; NDJSON has had its `result` already."""
    if choice.kind == "live" and sys.stdout.isatty():
        Console(no_color=not choice.colour).print(summary(view.state, next_commands))
    elif choice.kind != "json":
        print(summary_text(view.state, next_commands), end="")


@contextlib.contextmanager
def gpu_samples(gpu: GpuInfo | None, run_id: str, show: Callable[[Event], None]) -> Iterator[None]:
    """Sample the GPU once a second in a thread for the length of a block; nothing without a GPU."""
    if gpu is None:
        yield
        return
    stop = Flag()

    def sample_until_stopped() -> None:
        with gpu_sampler(gpu.uuid) as sampler:
            while not stop.wait(GPU_PERIOD_S):
                if (sample := sampler.sample()) is not None:
                    show(GpuSampled(run_id, GpuReading(**asdict(sample), memory_total_bytes=gpu.memory_bytes)))

    thread = Thread(target=sample_until_stopped, name="gpu-samples", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
