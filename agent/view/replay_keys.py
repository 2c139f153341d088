"""Keys of a terminal, one at a time, without Return. Ctrl-C still interrupts; the terminal is given back as it was."""

import contextlib
import os
import select
import termios
import tty
from collections.abc import Iterator
from typing import IO, Literal

from agent.view.keys import Decoder

Key = Literal["pause", "left", "right", "home", "end", "faster", "slower", "quit"]
_KEYS: dict[str, Key] = {
    " ": "pause", "p": "pause", "k": "pause",
    "left": "left", "h": "left", ",": "left",
    "right": "right", "l": "right", ".": "right",
    "home": "home", "g": "home", "0": "home",
    "end": "end", "G": "end", "$": "end",
    "+": "faster", "=": "faster", "]": "faster", "up": "faster",
    "-": "slower", "_": "slower", "[": "slower", "down": "slower",
    "q": "quit", "Q": "quit",
}  # fmt: skip
_LONGEST = 64  # an unfinished escape sequence is not waited for beyond this


class Keys:
    """What is typed at a terminal. `open` is False once nobody can type any more."""

    def __init__(self, descriptor: int) -> None:
        self.open = True
        self._descriptor = descriptor
        self._decoder = Decoder()
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
        cut = text.endswith(b"\x1b") or not self._decoder.is_whole(text)
        end = text.rfind(b"\x1b") if cut else len(text)
        self._rest = text[end:] if len(text) - end < _LONGEST else b""
        return [key for name in self._decoder.decode(text[:end]) if (key := _KEYS.get(name))]


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
