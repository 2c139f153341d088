"""The chart of a report as SVG: the speed-up of each attempt, and what became of those without one. Pure; colours are
those of the page's classes, and a verdict's meaning is never in the colour alone.

It is drawn for a width, so that its letters keep their size: once for a wide page, once for a narrow one.
All its words are ours: numbers, verdicts, tiers and the names of our baselines.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.report.data import (
    RunData,
    baseline_name,
    hardest,
)
from kerneltune.agent.view import text as words
from kerneltune.agent.view.text import verdict_style
from kerneltune.tools.schema.codec import plural
from kerneltune.tools.schema.verdict import Comparison, Status

WIDE, NARROW = 840, 350
_LETTER = 6.7  # width of a letter of 12 pixels
_ROOM = 0.06  # at both ends of a scale, as a share of what it shows
_MARKS = {
    "circle": "m-{r} 0a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0z",
    "square": "m-{r}-{r}h{d}v{d}h-{d}z",
    "diamond": "m0-{t}l{t} {t}l-{t} {t}l-{t}-{t}z",
    "triangle": "m0-{t}l{t} {u}h-{v}z",
    "cross": "m-{r}-{r}l{d} {d}m0-{d}l-{d} {d}",
    "plus": "m-{t} 0h{v}m-{t}-{t}v{v}",
    "bar": "m0-{t}v{v}",
}


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


def around(values: Iterable[float], *, log: bool) -> tuple[float, float]:
    """Ends of a scale that holds all values, with some room at both."""
    known = list(values)
    low, high = min(known), max(known)
    if log:
        more = max((high / low) ** _ROOM, 1.04)
        return low / more, high * more
    more = (high - low) * _ROOM or abs(high) * 0.05 or 1.0
    return low - more, high + more


def text(x: float, y: float, said: str, *, style: str = "", anchor: str = "start") -> str:
    """Words at a place."""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{_of(style)}{where}>{escape(said)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> str:
    """A line."""
    return f'<path{_of(style)} d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def stairs(points: Sequence[tuple[float, float]]) -> str:
    """A line from point to point as stairs."""
    start, *rest = points
    drawn = "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
    return f'<path class="stairs" d="M{start[0]:.1f} {start[1]:.1f}{drawn}"/>'


def marks(kind: str, places: Iterable[tuple[float, float]], style: str, r: float = 4.0) -> str:
    """The same mark at many places, as one path."""
    sizes = {"r": r, "d": 2 * r, "t": 1.25 * r, "u": 2.2 * r, "v": 2.5 * r}
    shape = _MARKS[kind].format(**{name: f"{size:g}" for name, size in sizes.items()})
    drawn = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in places)
    return f'<path{_of(style)} d="{drawn}"/>' if drawn else ""


def titled(mark: str, about: str, row: int) -> str:
    """A mark that says what it is when pointed at, and leads to the row of its attempt in the table; by keyboard the
    table itself is the way."""
    return f'<a href="#a{row}" tabindex="-1">{mark}<title>{escape(about)}</title></a>'


def _of(style: str) -> str:
    return f' class="{style}"' if style else ""


_LEGEND_X = 12.0


def legend(entries: Sequence[tuple[str, str, str]], y: float, width: float) -> tuple[list[str], float]:
    """(mark, style, words) beside each other in as many rows as they need; and where the last row stands."""
    out, at = [], _LEGEND_X
    for kind, style, said in entries:
        need = 24 + _LETTER * len(said)
        if at + need > width and at > _LEGEND_X:
            at, y = _LEGEND_X, y + 19
        drawn = line(at, y - 4, at + 12, y - 4, style) if kind == "line" else marks(kind, [(at + 6, y - 4)], style)
        out += [drawn, text(at + 17, y, said, style="dim")]
        at += need + 8
    return out, y


def grid_y(scale: Scale, left: float, right: float, form: str) -> Iterator[str]:
    """Horizontal lines with their factors at the left."""
    for value in scale.ticks(6):
        y = scale(value)
        yield line(left, y, right, y)
        yield text(left - 8, y + 4, f"{value:{form}}x", style="dim", anchor="end")


def drawing(width: float, height: float, about: str, body: Iterable[str]) -> Markup:
    """A whole chart. `about` says in words what it shows, for those who cannot see it."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    inside = "".join(body)
    role = "group" if "<a " in inside else "img"  # what is in an image cannot be chosen
    made = f'<svg {size} role="{role}" aria-label="{escape(about)}">{inside}</svg>'
    return Markup(made)  # noqa: S704 - words were escaped


# What the chart shows ------------------------------------------------------------------------------------------------

_TIERS: Final = {"screened": ("circle", "hollow"), "judged": ("circle", "best"), "confirmed": ("diamond", "best")}


class VerdictLook(NamedTuple):
    """How a page shows a verdict: the shape of its mark, the class of its colour, one character, its name."""

    mark: str
    css: str
    symbol: str
    name: str


def look(status: Status | None) -> VerdictLook:
    """Return the look of a verdict; None: the attempt never had one."""
    if status is None:
        return VerdictLook("bar", "s-none", "·", "never judged")
    css = f"s-{status.value.replace('_', '-')}"
    return VerdictLook(verdict_style(status).mark, css, verdict_style(status).symbol, status.value.replace("_", " "))


def timed_mark(attempt: Attempt) -> tuple[str, str]:
    """Mark and class of a time, by how thoroughly it was measured."""
    return _TIERS.get(attempt.tier or "judged", _TIERS["judged"])


MOST_TITLED = 120  # marks that say what they are: more would only make the file large
_LOG_SPEEDUPS_FROM = 4.0  # from this ratio of the largest to the smallest on, a logarithm is fairer


Timed = tuple[Attempt, Comparison]  # an attempt and the baseline that was hardest to beat


def curve(material: RunData, width: float) -> Markup:
    """Speed-ups over the hardest baseline by attempt; without any, only the strip of verdicts."""
    attempts = material.trajectory.attempts
    timed = [(a, c) for a in material.timed if a.accepted and (c := hardest(a))]
    others = [a for a in attempts if hardest(a) is None or not a.accepted]
    last = max((a.number for a in attempts), default=1)
    across = Scale(0.5, last + 0.5, 56.0 if timed else 12.0, width - 14)
    body = list(_speedups(timed, across, width)) if timed else []
    strip, height = _strip(others, across, 314.0 if timed else 8.0, width)
    body += [*_numbers(across, last, height + 18, 8 if width > 500 else 4), *strip]
    body.append(text(width - 14, height + 36, "attempt", style="dim", anchor="end"))
    about = f"Verdicts of {plural(len(others), 'attempt')}; none has a time."
    if timed:
        best = max(c.speedup for _, c in timed)
        count = plural(len(timed), "timed attempt")
        about = f"Speed-ups of {count}, the highest {best:.3f}x; {len(others)} without a time."
    return drawing(width, height + 44, about, body)


def _numbers(across: Scale, last: int, y: float, most: int) -> Iterator[str]:
    """The numbers of attempts below an axis."""
    for tick in Scale(1, max(last, 2), 0, 1).ticks(most):
        if tick == int(tick) and tick <= last:
            yield text(across(tick), y, f"{tick:g}", style="dim", anchor="middle")


def _speedups(timed: Sequence[Timed], across: Scale, width: float) -> Iterator[str]:
    values = [1.0, *(c.speedup for _, c in timed)]
    log = max(values) / min(values) > _LOG_SPEEDUPS_FROM
    tiers = {a.tier or "judged": timed_mark(a) for a, _ in timed}
    key = [(*tiers[tier], tier) for tier in ("screened", "judged", "confirmed") if tier in tiers]
    entries, y = legend([*key, ("line", "stairs", "best so far")], 18, width)
    scale = Scale(*around(values, log=log), 296, y + 22, log)
    yield from entries
    yield from grid_y(scale, across.start, across.end, "g")
    name = f"1x = {baseline_name(timed[-1][1].baseline)}"
    yield line(across.start, scale(1.0), across.end, scale(1.0), "one")
    below = _leader(timed)[1].speedup >= 1.0  # the best attempt's name is on the other side of the line
    yield text(across.end, scale(1.0) + (15 if below else -6), name, style="dim", anchor="end")
    yield from _stairs(timed, across, scale)
    if len(timed) <= MOST_TITLED:
        for a, c in timed:
            yield line(across(a.number), scale(c.low), across(a.number), scale(c.high), "whisker")
    places = [(across(a.number), scale(c.speedup)) for a, c in timed]
    about = [f"attempt {a.number}: {c.speedup:.3f}x [{c.low:.3f}, {c.high:.3f}], {_time(a)}" for a, c in timed]
    yield from _placed([a for a, _ in timed], places, about)


def _time(attempt: Attempt) -> str:
    return words.microseconds(attempt.timing.median_us) if attempt.timing else "?"


def _leader(timed: Sequence[Timed]) -> Timed:
    """The attempt with the shortest time."""
    return min(timed, key=lambda one: one[0].timing.median_us if one[0].timing else math.inf)


def _stairs(timed: Sequence[Timed], across: Scale, scale: Scale) -> Iterator[str]:
    """The speed-up of the attempt with the shortest time so far, which is how a run ranks what it timed."""
    best_us, corners, (leader, reached) = math.inf, list[tuple[float, float]](), timed[0]
    for a, c in timed:
        us = a.timing.median_us if a.timing else math.inf
        if us < best_us:
            best_us, leader, reached = us, a, c
            corners.append((across(a.number), scale(c.speedup)))
    yield stairs([*corners, (across.end, corners[-1][1])])
    at = across(leader.number)
    side = "end" if at > across.end - 90 else "start"
    beside = -9 if reached.speedup >= 1.0 else 18
    yield text(at, scale(reached.speedup) + beside, f"attempt {leader.number}", style="ink", anchor=side)


def _placed(attempts: Sequence[Attempt], places: Sequence[tuple[float, float]], about: Sequence[str]) -> Iterator[str]:
    """The marks of timed attempts; each says what it is when pointed at, unless there are too many."""
    if len(attempts) <= MOST_TITLED:
        for a, place, title in zip(attempts, places, about, strict=True):
            kind, style = timed_mark(a)
            yield titled(marks(kind, [place], style, 4.5), title, a.number)
        return
    for kind, style in dict.fromkeys(map(timed_mark, attempts)):
        alike = [place for a, place in zip(attempts, places, strict=True) if timed_mark(a) == (kind, style)]
        yield marks(kind, alike, style, 2.6)


def _strip(others: Sequence[Attempt], across: Scale, top: float, width: float) -> tuple[list[str], float]:
    """A row of marks for each verdict of attempts without a time, the key above, and where it ends. Few share a row."""
    if not others:
        return [], top - 16
    statuses = list(dict.fromkeys(a.status for a in others))
    body, y = legend([(look(s).mark, look(s).css, look(s).name) for s in statuses], top + 14, width)
    many = len(others) > MOST_TITLED
    y += 22
    for i, status in enumerate(statuses):
        y += 14 if many and i else 0
        if many or not i:
            body.append(line(across.start, y, across.end, y))
        alike = [a for a in others if a.status is status]
        its = look(status)
        if many:
            body.append(marks(its.mark, [(across(a.number), y) for a in alike], its.css, 2.2))
        else:
            body += [
                titled(marks(its.mark, [(across(a.number), y)], its.css), f"attempt {a.number}: {its.name}", a.number)
                for a in alike
            ]
    return body, y + 8
