"""Draws frames on a terminal's alternate screen: only the lines that changed, each draw in one write."""

import os
from collections.abc import Sequence

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment

from agent.view.cells import Frame, Line

_BEGIN = "\x1b[?2026h"  # a terminal that knows it shows the whole draw at once; others ignore it
_END = "\x1b[?2026l"
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h"  # alternate screen, no cursor, no wrapping, pastes are marked
_LEAVE = "\x1b[?2004l\x1b[?7h\x1b[0m\x1b[?1049l\x1b[?25h"
_CLEAR = "\x1b[2J"
_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}
_ASCII = str.maketrans(
    {"─": "-", "━": "=", "│": "|", "┈": ".", "★": "*", "▸": ">", "✔": "+", "✓": "+", "✗": "x", "†": "t", "◔": "o",
     "⊗": "x", "⊘": "x", "⋮": ":", "·": ".", "→": ">", "…": "~", "µ": "u", "°": " ", "↑": "^", "↓": "v"}
)  # fmt: skip


class Screen:
    """The terminal behind a console. Not thread-safe: one thread draws."""

    def __init__(self, console: Console) -> None:
        self._console, self._file = console, console.file  # the file of now: others' prints may be held back
        self._systems = _SYSTEMS.get(console.color_system or "")
        self._plain = "utf" not in (console.encoding or "").lower()
        self._shown: list[str] = []
        self._size = (0, 0)
        self.entered = False

    def size(self) -> tuple[int, int]:
        """Columns and lines now; whatever COLUMNS says, since a frame of another size is garbled."""
        try:
            size = os.get_terminal_size(self._file.fileno())
        except (OSError, ValueError):
            return self._console.size.width, self._console.size.height
        return (size.columns, size.lines) if size.columns and size.lines else (80, 24)

    def is_in_front(self) -> bool:
        """Whether no other job has the terminal now; also when it cannot be told."""
        try:
            return os.tcgetpgrp(self._file.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            return True

    def enter(self) -> None:
        """Take the terminal."""
        self.entered = True
        self._write(_ENTER)
        self.forget()

    def leave(self) -> None:
        """Give the terminal back as it was, with the cursor where it was."""
        if self.entered:
            self.entered = False
            self._write(_LEAVE)

    def heal(self) -> None:
        """Write every line the next time, without clearing first: somebody else may have written on the screen."""
        self._shown = []

    def forget(self) -> None:
        """Clear and draw everything the next time."""
        self._shown, self._size = [], (0, 0)

    def draw(self, frame: Frame) -> None:
        """Show a frame."""
        lines = [self._ansi(line) for line in frame.lines]
        fresh = self._size != (frame.width, frame.height)
        before = [] if fresh else self._shown
        changed = [f"\x1b[{i + 1};1H{made}" for i, made in enumerate(lines) if i >= len(before) or before[i] != made]
        self._shown, self._size = lines, (frame.width, frame.height)
        if changed:
            self._write("".join([_BEGIN, _CLEAR if fresh else "", *changed, _END]))

    def _ansi(self, line: Line) -> str:
        segments: Sequence[Segment] = line
        if self._console.no_color:
            segments = list(Segment.remove_color(line))
        text = "".join(s.style.render(s.text, color_system=self._systems) if s.style else s.text for s in segments)
        return text if not self._plain else "".join(_as_ascii(c) for c in text)

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def _as_ascii(char: str) -> str:
    """The nearest plain character, for terminals that do not speak UTF-8."""
    if char < "\x80":
        return char
    told = char.translate(_ASCII)
    return told if told < "\x80" else "#" if "\u2800" <= char <= "\u28ff" else "?"
