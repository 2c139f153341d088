"""Lines, bars and Braille dots of a terminal as SVG paths: fonts lack some, place some elsewhere, and leave gaps."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_LIGHT, _HEAVY = 1.4, 3.2
_LEFT, _RIGHT, _UP, _DOWN = 1, 2, 4, 8
_ARMS: Mapping[str, int] = {
    "─": _LEFT | _RIGHT, "━": _LEFT | _RIGHT, "│": _UP | _DOWN, "┃": _UP | _DOWN, "╭": _RIGHT | _DOWN,
    "┌": _RIGHT | _DOWN, "╮": _LEFT | _DOWN, "┐": _LEFT | _DOWN, "╰": _RIGHT | _UP, "└": _RIGHT | _UP,
    "╯": _LEFT | _UP, "┘": _LEFT | _UP, "├": _UP | _DOWN | _RIGHT, "┤": _UP | _DOWN | _LEFT,
    "┬": _LEFT | _RIGHT | _DOWN, "┴": _LEFT | _RIGHT | _UP, "┼": _LEFT | _RIGHT | _UP | _DOWN,
}  # fmt: skip
_THICK = "━┃"
_EIGHTHS = "▁▂▃▄▅▆▇█"
_BRAILLE = "\u2800"
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))  # column and row of each bit
SHAPE = re.compile(f"([{''.join(_ARMS)}{_EIGHTHS}\u2800-\u28ff])\\1*")


class Cell(NamedTuple):
    """The size of one cell."""

    width: float
    height: float


def path(run: str, x: float, cell: Cell) -> str:
    """The `d` of a path that draws a run of one character, of those that SHAPE finds, from `x` on."""
    return "".join(f"M{_n(a)} {_n(b)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for a, b, w, h in _boxes(run, x, cell))


def _boxes(run: str, x: float, cell: Cell) -> Iterator[tuple[float, float, float, float]]:
    char = run[0]
    if char in _EIGHTHS:
        height = cell.height * (_EIGHTHS.index(char) + 1) / len(_EIGHTHS)
        yield x, cell.height - height, cell.width * len(run), height
    elif char in "─━":
        thick = _HEAVY if char in _THICK else _LIGHT
        yield x, (cell.height - thick) / 2, cell.width * len(run), thick
    else:
        for i in range(len(run)):
            yield from (
                _dots(char, x + i * cell.width, cell) if char >= _BRAILLE else _arms(char, x + i * cell.width, cell)
            )


def _arms(char: str, x: float, cell: Cell) -> Iterator[tuple[float, float, float, float]]:
    arms, thick = _ARMS[char], _HEAVY if char in _THICK else _LIGHT
    middle_x, middle_y = x + (cell.width - thick) / 2, (cell.height - thick) / 2
    if arms & (_LEFT | _RIGHT):
        begin = x if arms & _LEFT else middle_x
        yield begin, middle_y, (x + cell.width if arms & _RIGHT else middle_x + thick) - begin, thick
    if arms & (_UP | _DOWN):
        begin = 0.0 if arms & _UP else middle_y
        yield middle_x, begin, thick, (cell.height + 0.25 if arms & _DOWN else middle_y + thick) - begin


def _dots(char: str, x: float, cell: Cell) -> Iterator[tuple[float, float, float, float]]:
    bits, size = ord(char) - ord(_BRAILLE), cell.width / 5
    for bit, (column, row) in enumerate(_DOTS):
        if bits >> bit & 1:
            yield (
                x + cell.width * (0.25 + 0.5 * column) - size / 2, cell.height * (row + 0.5) / 4 - size / 2, size, size
            )  # fmt: skip


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
