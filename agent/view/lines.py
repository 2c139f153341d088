"""One line at a time into a stream that may be closed at the other end, from several threads."""

import contextlib
import os
from collections.abc import Iterator
from threading import Lock
from typing import IO, TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class LineWriter:
    """Writes and flushes whole lines. When the reader is gone (`| head`), it goes quiet and `broken` turns true."""

    def __init__(self, stream: TextIO) -> None:
        self.broken = False
        self._stream = stream
        self._lock = Lock()

    def write(self, line: str) -> None:
        """Write one line; characters that the stream's encoding lacks become `?`."""
        encoding = self._stream.encoding or "utf-8"
        with self._lock:
            if self.broken:
                return
            try:
                self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
                self._stream.flush()
            except BrokenPipeError:
                self.broken = True
                silence(self._stream)


def silence(stream: IO[str]) -> None:
    """Point a stream whose reader is gone at /dev/null: the interpreter's own last flush must not fail (exit 120)."""
    with contextlib.suppress(OSError, ValueError):  # not backed by a file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextlib.contextmanager
def while_there_is_a_terminal(console: "Console") -> Iterator[None]:
    """A terminal that goes away ends the block, and nothing else. What the console writes to may change meanwhile."""
    try:
        yield
    except OSError:
        silence(console.file)
