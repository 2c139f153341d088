"""A terminal: its keys, read one by one in a thread, and its alternate screen, drawn on through rich's Live.

Whatever ends a run, the terminal is given back as it was.
"""

import contextlib
import os
import re
import select
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Thread
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # a terminal that knows them shows the whole draw at once
_MODES, _RESTORE = "\x1b[?7l\x1b[?2004h", "\x1b[?2004l\x1b[?7h\x1b[0m"  # no wrapping of lines, pastes are marked
_ASCII = str.maketrans(
    {"─": "-", "━": "=", "│": "|", "┈": ".", "★": "*", "▸": ">", "✔": "+", "✓": "+", "✗": "x", "†": "t", "◔": "o",
     "⊗": "x", "⊘": "x", "⋮": ":", "·": ".", "→": ">", "…": "~", "µ": "u", "°": " ", "↑": "^", "↓": "v", "‖": "=",
     "▶": ">", "■": "#", "●": "o", "—": "-"}
)  # fmt: skip
_NAMES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown", b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home",
    b"\x1b[4~": "end", b"\x1b[7~": "home", b"\x1b[8~": "end",
    b"\x1bOH": "home", b"\x1bOF": "end", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace",
    b"\x08": "backspace", b"\x0c": "redraw", b"\x1b": "esc",
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
        self._is_utf8 = "utf" in (console.encoding or "").lower()
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
        self._live.update(self.readable(frame), refresh=True)
        self._write(_END)

    def readable(self, frame: RenderableType) -> RenderableType:
        """The frame in characters that the terminal's encoding has."""
        return frame if self._is_utf8 else _Ascii(frame)

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


@dataclass(frozen=True)
class _Ascii:
    """A frame in the nearest plain characters, for terminals that do not speak UTF-8."""

    frame: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in console.render_lines(self.frame, options):
            yield from (Segment("".join(map(_as_ascii, s.text)), s.style, s.control) for s in line)
            yield Segment.line()


def _as_ascii(char: str) -> str:
    if char < "\x80":
        return char
    plain = char.translate(_ASCII)
    return plain if plain < "\x80" else "#" if "\u2800" <= char <= "\u28ff" else "?"
