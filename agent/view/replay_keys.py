"""Keys of a terminal, one at a time, without Return. Ctrl-C still interrupts; the terminal is given back as it was."""

import contextlib
import os
import re
import select
import termios
import tty
from collections.abc import Iterator
from typing import IO, Literal

Key = Literal["pause", "left", "right", "home", "end", "faster", "slower", "quit"]
_KEYS: dict[bytes, Key] = {
    b" ": "pause", b"p": "pause", b"k": "pause",
    b"\x1b[D": "left", b"\x1bOD": "left", b"h": "left", b",": "left",
    b"\x1b[C": "right", b"\x1bOC": "right", b"l": "right", b".": "right",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[7~": "home", b"g": "home", b"0": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end", b"\x1b[8~": "end", b"G": "end", b"$": "end",
    b"+": "faster", b"=": "faster", b"]": "faster", b"\x1b[A": "faster",
    b"-": "slower", b"_": "slower", b"[": "slower", b"\x1b[B": "slower",
    b"q": "quit", b"Q": "quit",
}  # fmt: skip
_ONE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])|\x1b(?=\x1b)|[^\x1b]", re.DOTALL)
_LONGEST = 64  # an unfinished escape sequence is not waited for beyond this


class Keys:
    """What is typed at a terminal. `open` is False once nobody can type any more."""

    def __init__(self, descriptor: int) -> None:
        self.open = True
        self._descriptor = descriptor
        self._rest = b""

    def wait(self, timeout_s: float) -> list[Key]:
        """The keys that come within a time; unknown ones are left out. Returns as soon as there is something."""
        if not select.select([self._descriptor], [], [], max(0.0, timeout_s))[0]:
            return []
        try:
            data = os.read(self._descriptor, 1024)
        except OSError:  # the terminal is gone
            data = b""
        self.open = bool(data)
        return self._take(data)

    def _take(self, data: bytes) -> list[Key]:
        """The keys in what was typed; the beginning of a sequence is kept until the rest of it comes."""
        text = self._rest + data
        found = list(_ONE.finditer(text))
        end = found[-1].end() if found else 0
        self._rest = text[end:] if len(text) - end < _LONGEST else b""
        return [key for match in found if (key := _KEYS.get(match[0]))]


@contextlib.contextmanager
def keys_of(stream: IO[str]) -> Iterator[Keys | None]:
    """The keys of a terminal for the length of a block; None when the stream is no terminal. Nothing is echoed, and
    Ctrl-Z is off: a stopped program could not give the screen back."""
    if not stream.isatty():
        yield None
        return
    descriptor = stream.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        during = termios.tcgetattr(descriptor)
        during[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(descriptor, termios.TCSANOW, during)
        yield Keys(descriptor)
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
