"""Charts as SVG: scales, ticks, marks, labels and legends, which take their colours from the page's classes. Pure.

Every chart is drawn for a width, so that its letters keep their size: once for a wide page, once for a narrow one.
Words that come in must be plain and without secrets (`Sanitizer.line`); they are made plain, cut and escaped here.
"""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from kerneltune.tools.schema.codec import plain

WIDE, NARROW = 840, 350
_LETTER = 6.7  # width of a letter of 12 pixels
_MARKS = {
    "circle": "m-{r} 0a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0z",
    "square": "m-{r}-{r}h{d}v{d}h-{d}z",
    "diamond": "m0-{t}l{t} {t}l-{t} {t}l-{t}-{t}z",
    "triangle": "m0-{t}l{t} {u}h-{v}z",
    "cross": "m-{r}-{r}l{d} {d}m0-{d}l-{d} {d}",
    "plus": "m-{t} 0h{v}m-{t}-{t}v{v}",
    "bar": "m0-{t}v{v}",
}


def short(text: str, most: int) -> str:
    """At most so many columns of a text; wide characters take two."""
    line, used, out = " ".join(plain(text).split()), 0, ""
    for character in line:
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > most:
            return out[:-1] + "…"
        out += character
    return out


@dataclass(frozen=True)
class Scale:
    """From values to places. `log`: the values must be positive."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; what lies outside is put on the edge."""
        value = min(max(value, self.low), self.high)
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5)

    def ticks(self, most: int) -> list[float]:
        """Round values between the ends, at most so many."""
        found = _decades(self.low, self.high, most) if self.log else _even(self.low, self.high, most)
        return found if len(found) > 2 or not self.log else _even(self.low, self.high, most)


def _even(low: float, high: float, most: int) -> list[float]:
    span = high - low
    if not span > 0:
        return [low]
    rough = span / max(most, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**p for p in powers for m in steps if low * 0.999 <= m * 10.0**p <= high * 1.001]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def around(values: Iterable[float], *, log: bool, room: float = 0.06) -> tuple[float, float]:
    """Ends of a scale that holds all values, with some room at both."""
    known = list(values)
    low, high = min(known), max(known)
    if log:
        more = max((high / low) ** room, 1.04)
        return low / more, high * more
    more = (high - low) * room or abs(high) * 0.05 or 1.0
    return low - more, high + more


def apart(places: Sequence[float], least: float) -> list[float]:
    """Places of labels, given from below (a large y) upwards, moved up where they would touch."""
    found = list[float]()
    for y in places:
        found.append(min(y, found[-1] - least) if found else y)
    return found


def fitted(words: str, room: float, *, bold: bool = False) -> str:
    """As much of a text as has room in so many pixels; fonts differ, so letters are taken for wide ones."""
    used, factor = 0.0, 1.12 if bold else 1.0
    for i, letter in enumerate(words):
        used += factor * (12.6 if letter in "WMm@%" or ord(letter) > 0x2000 else 8.6 if letter.isupper() else 6.9)
        if used > room:
            return words[: max(i - 1, 0)].rstrip() + "…"
    return words


def text(x: float, y: float, words: str, *, style: str = "", anchor: str = "start", most: int = 90) -> str:
    """Words at a place."""
    shown = escape(short(words, most))
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{_of(style)}{where}>{shown}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> str:
    """A line."""
    return f'<path{_of(style)} d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def path(points: Sequence[tuple[float, float]], style: str, *, steps: bool = False) -> str:
    """A line through points, as stairs with `steps`."""
    start, *rest = points
    drawn = "".join(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}" for x, y in rest)
    return f'<path{_of(style)} d="M{start[0]:.1f} {start[1]:.1f}{drawn}"/>'


def rect(x: float, y: float, width: float, height: float, style: str) -> str:
    """A filled box."""
    return f'<rect{_of(style)} x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"/>'


def marks(kind: str, places: Iterable[tuple[float, float]], style: str, r: float = 4.0) -> str:
    """The same mark at many places, as one path."""
    sizes = {"r": r, "d": 2 * r, "t": 1.25 * r, "u": 2.2 * r, "v": 2.5 * r}
    shape = _MARKS[kind].format(**{name: f"{size:g}" for name, size in sizes.items()})
    drawn = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in places)
    return f'<path{_of(style)} d="{drawn}"/>' if drawn else ""


def titled(mark: str, about: str) -> str:
    """A mark that says what it is when pointed at."""
    return f"<g>{mark}<title>{escape(short(about, 200))}</title></g>"


def _of(style: str) -> str:
    return f' class="{style}"' if style else ""


def legend(entries: Sequence[tuple[str, str, str]], x: float, y: float, width: float) -> tuple[list[str], float]:
    """(mark, style, words) beside each other in as many rows as they need; and where the last row stands."""
    out, at = [], x
    for kind, style, words in entries:
        need = 24 + _LETTER * len(words)
        if at + need > width and at > x:
            at, y = x, y + 19
        drawn = line(at, y - 4, at + 12, y - 4, style) if kind == "line" else marks(kind, [(at + 6, y - 4)], style)
        out += [drawn, text(at + 17, y, words, style="dim")]
        at += need + 8
    return out, y


def grid_y(scale: Scale, left: float, right: float, form: str, *, most: int = 6, unit: str = "") -> Iterator[str]:
    """Horizontal lines with their values at the left."""
    for value in scale.ticks(most):
        y = scale(value)
        yield line(left, y, right, y)
        yield text(left - 8, y + 4, f"{value:{form}}{unit}", style="dim", anchor="end")


def grid_x(scale: Scale, top: float, bottom: float, form: str, *, most: int = 8, unit: str = "") -> Iterator[str]:
    """Vertical lines with their values below."""
    for value in scale.ticks(most):
        x = scale(value)
        yield line(x, top, x, bottom)
        yield text(x, bottom + 17, f"{value:{form}}{unit}", style="dim", anchor="middle")


def drawing(width: float, height: float, about: str, body: Iterable[str]) -> Markup:
    """A whole chart. `about` says in words what it shows, for those who cannot see it."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    inside = "".join(body)
    return Markup(f'<svg {size} role="img" aria-label="{escape(short(about, 400))}">{inside}</svg>')
