"""The curve of a run: what the best was after each attempt, in braille dots. Without a GPU there is no speed-up, so
it counts the attempts that are right."""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from agent.view import text as words
from agent.view.cells import DIM, Line, Part, line, rule
from agent.view.state import AttemptRow, ViewState

_DOTS = ((0x1, 0x2, 0x4, 0x40), (0x8, 0x10, 0x20, 0x80))  # by column and row of a braille cell
_BLANK = 0x2800


@dataclass(frozen=True)
class Curve:
    """`values` after each judged attempt, None before there is one; speed-ups are over the fastest baseline."""

    kind: Literal["speed-up", "time", "right"]
    values: tuple[float | None, ...]

    def title(self, width: int) -> str:
        """What the curve shows, in so many cells."""
        name = {"speed-up": "best speed-up", "time": "best time", "right": "right so far"}[self.kind]
        whole = f"{name} over {words.plural(len(self.values), 'attempt')}"
        return whole if len(whole) <= width - 4 else name

    def label(self, value: float) -> str:
        """A value of the axis."""
        if self.kind == "right":
            return f"{value:.0f}"
        return words.microseconds(value) if self.kind == "time" else f"{value:.2f}x"


def curve_of(state: ViewState) -> Curve:
    """The run's curve, in the order in which attempts were proposed."""
    judged = [a for a in state.attempts if a.verdict]
    if state.gpu is None:
        return Curve("right", tuple(accumulate(float(_is_right(a)) for a in judged)))
    leaders = _leaders(judged)
    if any(speedup(a) is not None for a in judged):
        return Curve("speed-up", tuple(speedup(a) if a else None for a in leaders))
    return Curve("time", tuple(_time_us(a) if a else None for a in leaders))


def _leaders(judged: list[AttemptRow]) -> list[AttemptRow | None]:
    """Who leads after each attempt, by the run's own ranking: the median."""
    leaders: list[AttemptRow | None] = []
    leader: AttemptRow | None = None
    best_us = math.inf
    for row in judged:
        time_us = _time_us(row)
        if time_us is not None and time_us < best_us:
            leader, best_us = row, time_us
        leaders.append(leader)
    return leaders


def _is_right(row: AttemptRow) -> bool:
    return row.verdict is not None and row.verdict.accepted


def _time_us(row: AttemptRow) -> float | None:
    return row.verdict.timing.median_us if row.verdict and row.verdict.timing else None


def speedup(row: AttemptRow) -> float | None:
    """An attempt's speed-up over the baseline that is hardest to beat."""
    compared = words.fastest_first(row.verdict.comparisons) if row.verdict else []
    return compared[0].speedup if compared else None


def plot(state: ViewState, width: int, height: int) -> list[Line]:
    """A rule with the title, and the curve below it."""
    curve = curve_of(state)
    known = [v for v in curve.values if v is not None]
    head = rule(width, (curve.title(width), "bold"))
    if not known or height < 2:
        return [head, line(width, (" nothing yet" if height > 1 else "", DIM))][:height]
    low, high = _range(curve, known)
    return [head, *_rows(curve, low, high, width, height - 1)]


def _range(curve: Curve, known: list[float]) -> tuple[float, float]:
    low, high = min(known), max(known)
    if curve.kind == "right":
        return 0.0, max(high, 1.0)
    if curve.kind == "speed-up":
        low, high = min(low, 1.0), max(high, 1.0)
    return low, high if high > low else low * 1.01


def _rows(curve: Curve, low: float, high: float, width: int, height: int) -> list[Line]:
    names = _axis(curve, low, high, height)
    margin = max(map(len, names))
    grid = dots(curve.values, max(1, width - margin - 2), height, low, high)
    rows = []
    for i, cells in enumerate(grid):
        is_one = names[i] == curve.label(1.0) and curve.kind == "speed-up"
        drawn = "".join(chr(_BLANK + c) if c else "┈" if is_one else " " for c in cells)
        parts: list[Part] = [(f"{names[i]:>{margin}} ", DIM), *_painted(drawn)]
        rows.append(line(width, *parts))
    return rows


def _painted(drawn: str) -> list[Part]:
    """The curve in green, the line of no speed-up dim."""
    parts: list[Part] = []
    for char in drawn:
        colour = DIM if char == "┈" else "green"
        if parts and parts[-1][1] == colour:
            parts[-1] = (parts[-1][0] + char, colour)
        else:
            parts.append((char, colour))
    return parts


def _axis(curve: Curve, low: float, high: float, height: int) -> list[str]:
    """A label for the top row, one for the bottom row, and one where the speed-up is 1."""
    names = [""] * height
    if curve.kind == "speed-up":
        names[_row_of(1.0, low, high, height)] = curve.label(1.0)
    names[-1] = names[-1] if height > 1 and low == 1.0 else curve.label(low)
    names[0] = curve.label(high)
    return names


def _row_of(value: float, low: float, high: float, height: int) -> int:
    return height - 1 - _level(value, low, high, height * 4) // 4


def _level(value: float, low: float, high: float, levels: int) -> int:
    return round((value - low) / (high - low) * (levels - 1)) if high > low else 0


def dots(values: tuple[float | None, ...], width: int, height: int, low: float, high: float) -> list[list[int]]:
    """Braille bits of each cell, by row: a step line through the values, spread over the whole width."""
    grid = [[0] * width for _ in range(height)]
    before: int | None = None
    for column in range(2 * width):
        value = values[min(column * len(values) // (2 * width - 1), len(values) - 1)]  # the last one is always shown
        if value is None:
            continue
        level = _level(value, low, high, 4 * height)
        first = level if before is None else before
        for at in range(min(first, level), max(first, level) + 1):
            row, bit = divmod(4 * height - 1 - at, 4)
            grid[row][column // 2] |= _DOTS[column % 2][bit]
        before = level
    return grid
