"""Keys of the terminal, read in a thread. The terminal's mode is put back whatever happens."""

import contextlib
import os
import select
import termios
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

_NAMES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "pageup", b"\x1b[6~": "pagedown", b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home",
    b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end", b"\r": "enter", b"\n": "enter", b"\x7f": "backspace",
    b"\x08": "backspace", b"\x0c": "redraw", b"\x1b": "esc",
}  # fmt: skip
_PASTE, _PASTED = b"\x1b[200~", b"\x1b[201~"
_SPLIT_S = 0.05  # how long the rest of an escape sequence may take
_LFLAG, _CC = 3, 6  # places in what tcgetattr gives


def decode(data: bytes) -> Iterator[str]:
    """The keys in some bytes. What is pasted is no key, nor are sequences that nobody knows."""
    while data:
        if data.startswith(_PASTE):
            data = data.partition(_PASTED)[2]
            continue
        size = _length(data)
        key, data = data[:size], data[size:]
        if name := _NAMES.get(key):
            yield name
        elif size == 1 and key[0] >= 0x20 and key[0] < 0x7F:
            yield key.decode()


def _length(data: bytes) -> int:
    """Bytes of the first key."""
    if data[:1] != b"\x1b" or len(data) == 1 or data[1:2] not in (b"[", b"O"):
        return 1
    if data[1:2] == b"O":
        return min(3, len(data))
    end = next((i for i in range(2, len(data)) if 0x40 <= data[i] <= 0x7E), len(data) - 1)
    return end + 1


def _is_whole(data: bytes) -> bool:
    """Whether no escape sequence and no paste is cut off at the end."""
    if _PASTE in data and _PASTED not in data.rpartition(_PASTE)[2]:
        return False
    tail = data[data.rfind(b"\x1b") :] if b"\x1b" in data else b""
    return not tail or tail == b"\x1b" or (len(tail) > 2 and _length(tail) <= len(tail) and 0x40 <= tail[-1] <= 0x7E)


class Keyboard:
    """Calls `pressed` with the name of each key while it is open. `fd` is a terminal that this process may read."""

    def __init__(self, fd: int, pressed: Callable[[str], None]) -> None:
        self.fd, self._pressed = fd, pressed
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
        mode = termios.tcgetattr(self.fd)
        mode[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
        mode[_CC] = list(mode[_CC])
        mode[_CC][termios.VMIN], mode[_CC][termios.VTIME] = 1, 0
        mode[_CC][termios.VQUIT] = b"\x00"
        termios.tcsetattr(self.fd, termios.TCSANOW, mode)

    def restore(self) -> None:
        """The mode that the terminal had."""
        if self._before is not None:
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
                for key in decode(data):
                    self._pressed(key)

    def _next(self) -> bytes:
        """Some bytes that end with a whole key; empty when it is over."""
        ready, _, _ = select.select([self.fd, self._wake_r], [], [])
        if self._wake_r in ready:
            return b""
        data = os.read(self.fd, 1024)
        while data and not _is_whole(data) and select.select([self.fd], [], [], _SPLIT_S)[0]:
            more = os.read(self.fd, 4096)
            if not more:
                break
            data += more
        return data


def may_read(fd: int) -> bool:
    """Whether keys can be read there: a terminal, and this process in its foreground (another one would be stopped)."""
    try:
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
