"""The live screen of a run: redraws the rendered state four times a second, hears keys, gives the terminal back."""

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from io import StringIO
from threading import Event as Flag
from threading import Lock, Thread, current_thread, main_thread
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live

from kerneltune.agent.attempt import Controls
from kerneltune.agent.events import Event, GpuReading, GpuSampled, RunSuspended
from kerneltune.agent.view.output import JsonView, PlainConsole, ViewChoice, while_there_is_a_terminal
from kerneltune.agent.view.plain import NextCommand, PlainView, summary, summary_text
from kerneltune.agent.view.render import (
    NO_LIBRARY,
    MadePage,
    Tab,
    Ui,
    Wish,
    find,
    made_page,
    page_lines,
    press,
    render,
)
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.tools.backends import gpu_sampler
from kerneltune.tools.backends.base import GpuInfo

if TYPE_CHECKING:
    from kerneltune.agent.view.watch import Playback

# The terminal --------------------------------------------------------------------------------------------------------


_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # a terminal that knows them shows the whole draw at once
_MODES, _RESTORE = "\x1b[?7l\x1b[?2004h", "\x1b[?2004l\x1b[?7h\x1b[0m"  # no wrapping of lines, pastes are marked
_NAMES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown", b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home",
    b"\x1b[4~": "end", b"\x1b[7~": "home", b"\x1b[8~": "end",
    b"\x1bOH": "home", b"\x1bOF": "end", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace",
    b"\x08": "backspace", b"\x0c": "redraw", b"\x1b": "esc", b"\t": "tab",
}  # fmt: skip
_PASTE, _PASTED = b"\x1b[200~", b"\x1b[201~"
# An escape sequence, also one without its end; ESC with another byte is one key, Alt with that key; else a byte.
_KEY = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]?|O.?|[^\[O\x1b])?|.", re.DOTALL)
_CUT = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)\Z")
_SPLIT_S = 0.05  # how long the rest of an escape sequence may take
_AWAY_S = 0.2  # between two looks whether the terminal is ours again
_LFLAG, _CC = 3, 6  # places in what tcgetattr gives


class Decoder:
    """Turns what a terminal sends into the names of keys. What is pasted is no key, nor are sequences that nobody
    knows. A paste may come in any number of pieces."""

    def __init__(self) -> None:
        self._pasting = False
        self._end = b""  # of the last piece of a paste: its closing mark may be cut

    def decode(self, data: bytes) -> Iterator[str]:
        """The keys in some bytes, which continue the ones before."""
        while data:
            if self._pasting:
                data = self._after_paste(data)
                continue
            key = data[: _KEY.match(data).end()]  # type: ignore[union-attr]  # any byte is a key
            self._pasting, data = key == _PASTE, data[len(key) :]
            if name := _NAMES.get(key) or (key.decode() if key.isascii() and key.decode().isprintable() else None):
                yield name

    def is_whole(self, data: bytes) -> bool:
        """Whether no escape sequence is cut off at the end; a paste need not be over."""
        return self._pasting or _PASTE in data or not _CUT.search(data)

    def _after_paste(self, data: bytes) -> bytes:
        _, mark, rest = (self._end + data).partition(_PASTED)
        self._pasting = not mark
        self._end = b"" if mark else (self._end + data)[-len(_PASTED) + 1 :]
        return rest


class Keyboard:
    """Calls `pressed` with the name of each key while it is open. `fd` is a terminal that this process may read."""

    def __init__(self, fd: int, pressed: Callable[[str], None]) -> None:
        self.fd, self._pressed = fd, pressed
        self._decoder = Decoder()
        self._before: list[Any] | None = None
        self._thread: Thread | None = None
        self._wake_r = self._wake_w = -1

    def start(self) -> None:
        """Read keys one by one, unseen. Ctrl-C and Ctrl-Z still send their signals; Ctrl-\\ is switched off, since it
        would leave the terminal as it is."""
        self._before = termios.tcgetattr(self.fd)
        self.listen()
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC)
        self._thread = Thread(target=self._read, name="keys", daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Switch the terminal to single keys (again, after somebody else had it)."""
        self._decoder = Decoder()
        mode = termios.tcgetattr(self.fd)
        mode[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
        mode[_CC] = list(mode[_CC])
        mode[_CC][termios.VMIN], mode[_CC][termios.VTIME] = 1, 0
        mode[_CC][termios.VQUIT] = b"\x00"
        termios.tcsetattr(self.fd, termios.TCSANOW, mode)

    def restore(self) -> None:
        """Set the mode that the terminal had. From the background the attempt would stop us."""
        if self._before is not None and may_read(self.fd):
            with contextlib.suppress(termios.error, OSError):  # the terminal is gone
                termios.tcsetattr(self.fd, termios.TCSANOW, self._before)

    def stop(self) -> None:
        """Put the mode back and end the thread."""
        self.restore()
        if self._thread is not None:
            os.write(self._wake_w, b"x")
            self._thread.join(1.0)
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._thread = None

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            while data := self._next():
                for key in self._decoder.decode(data):
                    self._pressed(key)

    def _next(self) -> bytes:
        """Read some bytes that end with a whole key; empty when it is over."""
        if not self._is_ready():
            return b""
        data = os.read(self.fd, 1024)
        while data and not self._decoder.is_whole(data) and select.select([self.fd], [], [], _SPLIT_S)[0]:
            more = os.read(self.fd, 4096) if may_read(self.fd) else b""
            if not more:
                break
            data += more
        return data

    def _is_ready(self) -> bool:
        """Wait for keys that are ours: read from the background they would stop the process. False: it is over."""
        while self._wake_r not in (ready := select.select([self.fd, self._wake_r], [], [])[0]):
            if ready and may_read(self.fd):
                return True
            if select.select([self._wake_r], [], [], _AWAY_S)[0]:
                return False
        return False


def may_read(fd: int) -> bool:
    """Whether keys can be read there: a terminal, and this process in its foreground (another one would be stopped)."""
    try:
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


class TerminalScreen:
    """The alternate screen of the terminal behind a console. Not thread-safe: one thread draws."""

    def __init__(self, console: Console) -> None:
        console.file = console.file  # the file of now: what others print to stderr may be held back meanwhile
        self._console = console
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self.entered = False

    def size(self) -> tuple[int, int]:
        """Columns and lines now; whatever COLUMNS says, since a frame of another size is garbled."""
        try:
            size = os.get_terminal_size(self._console.file.fileno())
        except (OSError, ValueError):
            return self._console.size.width, self._console.size.height
        return (size.columns, size.lines) if size.columns and size.lines else (80, 24)

    def is_in_front(self) -> bool:
        """Whether no other job has the terminal now; also when it cannot be told."""
        try:
            return os.tcgetpgrp(self._console.file.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            return True

    def enter(self) -> None:
        """Take the terminal."""
        self.entered = True
        self._live.start()
        self._write(_MODES)

    def leave(self) -> None:
        """Give the terminal back as it was, with the cursor where it was."""
        if self.entered:
            self.entered = False
            self._write(_RESTORE)
            self._live.stop()

    def draw(self, frame: RenderableType, size: tuple[int, int]) -> None:
        """Show a frame of that size."""
        self._console.size = ConsoleDimensions(*size)
        self._write(_BEGIN)
        self._live.update(frame, refresh=True)
        self._write(_END)

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


# The screen ----------------------------------------------------------------------------------------------------------


PERIOD_S = 0.25
TURNING_S, RUNNING_S = 0.25, 0.5  # a frame of the spinner, before the run has begun and after
GPU_PERIOD_S = 1.0
_LAST_FRAME_LINES = 24  # what stays in the scroll-back: enough for the best attempt and the last ones
_JOIN_S = 2.0  # a terminal that was stopped (Ctrl-S) does not hold up the end
_NOTE_S = 4.0


class RunSteering:
    """What the keys do to the run of this process, through its controls, and what a person is told of that."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def keys(self, state: ViewState) -> Sequence[tuple[str, str]]:
        """Stop, pause, skip, raise."""
        pause = "go on" if state.paused_at is not None else "pause"
        return (("q", "stop after this"), ("p", pause), ("x", "skip"), ("+", "budget"))

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
            case "slower" | "finish":
                return ""


class Leaving:
    """What the keys do where nothing runs, as once a run has ended and its screen stays: only to leave it."""

    def __init__(self, status: str = "") -> None:
        self.left, self._status = Flag(), status

    def keys(self, state: ViewState) -> Sequence[tuple[str, str]]:
        """Leave."""
        return (("q", "leave"),)

    def status(self) -> str:
        """What is so."""
        return self._status

    def now(self, state: ViewState) -> float:
        """When it ended."""
        return state.ended.at if state.ended else time.time()

    def grant(self, wish: Wish, state: ViewState) -> str:
        """Leave, when that is asked for."""
        if wish == "stop":
            self.left.set()
        return ""


class LiveView:
    """Called with each event, from any thread; draws from a thread of its own while the context is open.

    The alternate screen is used, so that nothing above is overwritten; on the way out the last frame is printed below
    what was there. A terminal that is gone, or a frame that cannot be drawn, ends the drawing, not the run. `steering`
    hears of the keys, read from `keys_fd` when that is a terminal; `controls` of a pause by Ctrl-Z. `ask` is told
    the attempt and the page that `library` offers and somebody has to make, who calls `keep` with it.
    """

    def __init__(
        self,
        console: Console,
        *,
        controls: Controls | None = None,
        keys_fd: int | None = None,
        steering: "RunSteering | Leaving | Playback | None" = None,
        leaves_frame: bool = True,
    ) -> None:
        self.state = ViewState()
        self.ui = Ui()
        self.library = NO_LIBRARY
        self.ask: Callable[[str, Tab], None] | None = None
        self._console, self._screen, self._leaves_frame = console, TerminalScreen(console), leaves_frame
        self._controls = controls or Controls()
        self.steering: RunSteering | Leaving | Playback = steering or RunSteering(self._controls)
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
        is_list = self.ui.page in ("run", "runs")
        lines = () if is_list else page_lines(self.state, self.ui, width, time.time(), self.library)
        ui, wish = press(self.state, self.ui, key, lines, max(1, height - 8), self.library)
        if wish:
            ui = replace(ui, note=self.steering.grant(wish, self.state))
        if ui.note:
            self._noted_at = time.monotonic()
        self.ui = ui
        self._ask_for_page()
        self._wake.set()

    def _ask_for_page(self) -> None:
        asked = made_page(self.state, self.ui, self.library)
        if self.ask is not None and asked is not None and asked not in self.library.made:
            self.keep(*asked, MadePage(None, time.time()))
            self.ask(*asked)

    def keep(self, attempt_id: str, page: Tab, made: MadePage) -> None:
        """Take in a page that was made; from any thread."""
        with self._fold:
            self.library = replace(self.library, made={**self.library.made, (attempt_id, page): made})
        if made.parts and self.ui.sought and made_page(self.state, self.ui, self.library) == (attempt_id, page):
            self._noted_at = time.monotonic()
            lines = page_lines(self.state, self.ui, self._screen.size()[0], time.time(), self.library)
            self.ui = find(replace(self.ui, sought="", note=""), self.ui.sought, lines)
        self._wake.set()

    @property
    def is_drawn(self) -> bool:
        """Whether somebody can see it: the terminal is still there."""
        return self._thread.is_alive()

    def stay(self) -> None:
        """Show the end until a person leaves; at once where nobody can press a key, or the terminal is gone."""
        leaving = Leaving("■ ended")
        if not self.hears_keys:
            return
        self.steering = leaving
        self._wake.set()
        with contextlib.suppress(KeyboardInterrupt):  # another way to leave
            while self.is_drawn and not leaving.left.wait(PERIOD_S):
                pass

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
                frame = render(self.state, size, self.steering.now(self.state))
                self._console.print(frame)
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
        state, size, now = self.state, self._screen.size(), self.steering.now(self.state)
        keys = tuple(self.steering.keys(state)) if self._keyboard else ()
        ui = replace(self.ui, status=self.steering.status(), keys=keys)
        turns_s = TURNING_S if state.started is None else RUNNING_S
        making = any(made.parts is None for made in self.library.made.values())
        looks = (ui, int(now / turns_s), size, id(self.library), int(time.time() / TURNING_S) if making else 0)
        if self._drawn and state is self._drawn[0] and looks == self._drawn[1]:
            return
        with self._drawing:
            if not self._screen.entered:
                return
            self._screen.draw(self.frame(size, now, ui), size)
        self._drawn = (state, looks)

    def frame(self, size: tuple[int, int], now: float, ui: Ui) -> RenderableType:
        """One frame of that size."""
        return render(self.state, size, now, ui, self.library)


View = LiveView | PlainView | JsonView


def open_view(choice: ViewChoice, controls: Controls | None = None) -> View:
    """The screen and the lines go to stderr, where people look, so that stdout is free for data: NDJSON, or the closing
    summary."""
    if choice.kind == "json":
        return JsonView(sys.stdout)
    if choice.kind == "plain":
        return PlainView(sys.stderr, colour=choice.colour)
    return LiveView(PlainConsole(stderr=True, no_color=not choice.colour), controls=controls, keys_fd=keys_fd())


def keys_fd() -> int | None:
    """Where keys may come from; None when stdin is closed, or no file."""
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def close_view(choice: ViewChoice, view: View, next_commands: Sequence[NextCommand], took_s: float) -> None:
    """Print the closing summary to stdout; NDJSON has had its `result` already. `took_s`: the whole command."""
    if choice.kind == "live" and sys.stdout.isatty():
        PlainConsole(no_color=not choice.colour).print(summary(view.state, next_commands, took_s))
    elif choice.kind != "json":
        print(summary_text(view.state, next_commands, took_s), end="")


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
