"""The charts of reports as SVG: scales, ticks, marks and legends, the course of a run, its roofline, the spread of its
timings. Pure; colours are those of the page's classes, and a verdict's meaning is never in the colour alone.

Every chart is drawn for a width, so that its letters keep their size: once for a wide page, once for a narrow one.
Words that come in must be plain and without secrets (`Sanitizer.line`); they are made plain, cut and escaped here.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, NamedTuple

from markupsafe import Markup, escape
from rich.cells import cell_len, set_cell_size

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.report.data import (
    RunData,
    baseline_name,
    dig,
    finite,
    hardest,
    number,
    plausible,
    ranked,
)
from kerneltune.agent.view import text as words
from kerneltune.agent.view.text import verdict_style
from kerneltune.tools.schema.codec import one_line
from kerneltune.tools.schema.gpus import rate_tflops
from kerneltune.tools.schema.verdict import Comparison, Status

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
    """At most so many columns of a text on one line; wide characters take two."""
    line = one_line(text)
    return line if cell_len(line) <= most else set_cell_size(line, most - 1).rstrip() + "…"


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


def fitted(said: str, room: float, *, bold: bool = False) -> str:
    """As much of a text as has room in so many pixels; fonts differ, so letters are taken for wide ones."""
    used, factor = 0.0, 1.12 if bold else 1.0
    for i, letter in enumerate(said):
        used += factor * (12.6 if letter in "WMm@%" or ord(letter) > 0x2000 else 8.6 if letter.isupper() else 6.9)
        if used > room:
            return said[: max(i - 1, 0)].rstrip() + "…"
    return said


def text(x: float, y: float, said: str, *, style: str = "", anchor: str = "start", most: int = 90) -> str:
    """Words at a place."""
    shown = escape(short(said, most))
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
    for kind, style, said in entries:
        need = 24 + _LETTER * len(said)
        if at + need > width and at > x:
            at, y = x, y + 19
        drawn = line(at, y - 4, at + 12, y - 4, style) if kind == "line" else marks(kind, [(at + 6, y - 4)], style)
        out += [drawn, text(at + 17, y, said, style="dim")]
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
    return Markup(f'<svg {size} role="img" aria-label="{escape(short(about, 400))}">{inside}</svg>')  # noqa: S704 - words were escaped


# What the charts show ------------------------------------------------------------------------------------------------

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
    about = f"Verdicts of {words.plural(len(others), 'attempt')}; none has a time."
    if timed:
        best = max(c.speedup for _, c in timed)
        count = words.plural(len(timed), "timed attempt")
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
    entries, y = legend([*key, ("line", "stairs", "best so far")], 12, 18, width)
    scale = Scale(*around(values, log=log), 296, y + 22, log)
    yield from entries
    yield from grid_y(scale, across.start, across.end, "g", unit="x")
    name = f"1x = {baseline_name(timed[-1][1].baseline)}"
    yield line(across.start, scale(1.0), across.end, scale(1.0), "one")
    yield text(across.end, scale(1.0) - 6, name, style="dim", anchor="end")
    yield from _stairs(timed, across, scale)
    if len(timed) <= MOST_TITLED:
        for a, c in timed:
            yield line(across(a.number), scale(c.low), across(a.number), scale(c.high), "whisker")
    places = [(across(a.number), scale(c.speedup)) for a, c in timed]
    about = [f"attempt {a.number}: {c.speedup:.3f}x [{c.low:.3f}, {c.high:.3f}], {_time(a)}" for a, c in timed]
    yield from _placed([a for a, _ in timed], places, about)


def _time(attempt: Attempt) -> str:
    return words.microseconds(attempt.timing.median_us) if attempt.timing else "?"


def _stairs(timed: Sequence[Timed], across: Scale, scale: Scale) -> Iterator[str]:
    """The speed-up of the attempt with the shortest time so far, which is how a run ranks what it timed."""
    best_us, corners, (leader, reached) = math.inf, list[tuple[float, float]](), timed[0]
    for a, c in timed:
        us = a.timing.median_us if a.timing else math.inf
        if us < best_us:
            best_us, leader, reached = us, a, c
            corners.append((across(a.number), scale(c.speedup)))
    yield path([*corners, (across.end, corners[-1][1])], "stairs", steps=True)
    at = across(leader.number)
    side = "end" if at > across.end - 90 else "start"
    yield text(at, scale(reached.speedup) - 9, f"attempt {leader.number}", style="ink", anchor=side)


def _placed(attempts: Sequence[Attempt], places: Sequence[tuple[float, float]], about: Sequence[str]) -> Iterator[str]:
    """The marks of timed attempts; each says what it is when pointed at, unless there are too many."""
    if len(attempts) <= MOST_TITLED:
        for a, place, title in zip(attempts, places, about, strict=True):
            kind, style = timed_mark(a)
            yield titled(marks(kind, [place], style, 4.5), title)
        return
    for kind, style in dict.fromkeys(map(timed_mark, attempts)):
        alike = [place for a, place in zip(attempts, places, strict=True) if timed_mark(a) == (kind, style)]
        yield marks(kind, alike, style, 2.6)


def _strip(others: Sequence[Attempt], across: Scale, top: float, width: float) -> tuple[list[str], float]:
    """A row of marks for each verdict of attempts without a time, the key above, and where it ends. Few share a row."""
    if not others:
        return [], top - 16
    statuses = list(dict.fromkeys(a.status for a in others))
    body, y = legend([(look(s).mark, look(s).css, look(s).name) for s in statuses], 12, top + 14, width)
    many = len(others) > MOST_TITLED
    y += 22
    for i, status in enumerate(statuses):
        y += 14 if many and i else 0
        if many or not i:
            body.append(line(across.start, y, across.end, y))
        places = [(across(a.number), y) for a in others if a.status is status]
        body.append(marks(look(status).mark, places, look(status).css, 2.2 if many else 4.0))
    return body, y + 8


LIGHT = "speed of light"
_LOG_TIMES_FROM = 1.8  # from this ratio of the largest time to the smallest on


@dataclass(frozen=True)
class Roof:
    """What the chart is, how to read it, and its drawing at a width."""

    title: str
    note: str
    draw: Callable[[float], Markup]


@dataclass(frozen=True)
class _Ceiling:
    """Bytes and flops a second at most, and the task's work."""

    gbps: float
    tflops: float
    precision: str
    intensity: float
    flops: float
    gpu: str


def roof(material: RunData) -> Roof | None:
    """None when nothing was timed."""
    if not material.timed:
        return None
    if (ceiling := _ceiling(material)) is not None:
        note = (
            f"Both roofs are the data sheet's for {ceiling.gpu}. The intensity is the task's, {ceiling.intensity:.4g}"
            " FLOP for each byte (inputs, parameters and outputs once), and therefore the same for every attempt: it"
            " says what must be done, not what was measured on the way to memory."
        )
        return Roof("Roofline", note, partial(_roofline, material, ceiling))
    return Roof("Time over the floor", _why(material), partial(_floor, material))


def _why(material: RunData) -> str:
    reason = _missing(material)
    floor = "" if material.light_us else " The speed of light was not noted either."
    return f"{reason} Shown instead: each time, above the least time that the GPU's bandwidth allows.{floor}"


def _missing(material: RunData) -> str:
    """What a roofline lacks."""
    work = material.work
    if work.flops == 0.0:
        return (
            "This task multiplies nothing that would count as a contraction, so memory alone is its roof: a roofline"
            " would have one slope and no ridge."
        )
    if work.flops is None or work.flops < 0:
        return "How many FLOP the task takes was not noted with this run, so no roofline can be drawn."
    if work.bytes_moved is None or work.bytes_moved <= 0:
        return "How many bytes the task moves was not noted with this run, so no roofline can be drawn."
    gpu = one_line(material.trajectory.run.gpu or "this GPU")[:60]
    at = f" at {one_line(work.precision)[:20]}" if material.gpu and work.precision else ""
    return f"The rates of {gpu}{at} are not known here, so no roofline can be drawn."


def _ceiling(material: RunData) -> _Ceiling | None:
    work, gpu = material.work, material.gpu
    if not (work.bytes_moved and work.flops and gpu and work.precision):
        return None
    if work.bytes_moved < 0 or work.flops < 0:
        return None
    try:
        tflops = rate_tflops(gpu, work.precision)
    except KeyError:
        return None
    intensity = work.flops / work.bytes_moved
    return _Ceiling(gpu.bandwidth_gbps, tflops, work.precision, intensity, work.flops, gpu.name)


def _roofline(material: RunData, ceiling: _Ceiling, width: float) -> Markup:
    ridge = ceiling.tflops * 1e3 / ceiling.gbps
    reached = [ceiling.flops / (a.timing.median_us * 1e6) for a in material.timed if a.timing]
    across = Scale(min(ridge, ceiling.intensity) / 8, max(ridge, ceiling.intensity) * 4, 62, width - 14, log=True)
    roof_at = [min(ceiling.tflops, i * ceiling.gbps / 1e3) for i in (across.low, ceiling.intensity)]
    low = min(*reached, roof_at[1]) / 3
    up = Scale(low, max(ceiling.tflops, *reached) * 1.6, 300, 20, log=True)
    body = [*grid_y(up, 62, width - 14, "g"), *grid_x(across, 20, 300, "g", most=8 if width > 500 else 5)]
    start = max(across.low, low * 1e3 / ceiling.gbps)
    corners = [(across(start), up(start * ceiling.gbps / 1e3)), (across(ridge), up(ceiling.tflops))]
    body.append(path([*corners, (width - 14, up(ceiling.tflops))], "roof"))
    body += [
        text(width - 16, up(ceiling.tflops) - 7, f"{ceiling.tflops:g} TFLOP/s {ceiling.precision}", anchor="end"),
        text(across(start * 2) + 8, up(start * 2 * ceiling.gbps / 1e3) + 16, f"{ceiling.gbps:g} GB/s"),
        text(62, 14, "TFLOP/s", style="dim"),
        text(width - 14, 336, "FLOP per byte", style="dim", anchor="end"),
        line(across(ceiling.intensity), 300, across(ceiling.intensity), up(roof_at[1]), "one"),
    ]
    places = [(across(ceiling.intensity), up(value)) for value in reached]
    body += _placed(material.timed, places, [_of_light(a) for a in material.timed])
    top = max(reached)
    count = words.plural(len(reached), "attempt")
    about = f"Roofline: {count}, the fastest at {top:.3g} TFLOP/s of {roof_at[1]:.3g} possible"
    return drawing(width, 344, about, body)


def _floor(material: RunData, width: float) -> Markup:
    timed = material.timed
    times = [a.timing.median_us for a in timed if a.timing]
    levels = sorted(_levels(material))
    right = width - (206 if width > 500 else 104)
    last = max(a.number for a in timed)
    across = Scale(0.5, last + 0.5, 52, right)
    values = [*times, *(us for us, _, _ in levels)]
    log = max(values) / min(values) > _LOG_TIMES_FROM
    up = Scale(*around(values, log=log, room=0.1), 290, 22, log)
    body = [text(44, 14, "µs", style="dim", anchor="end"), *grid_y(up, 52, right, "g")]
    places = apart([up(us) for us, _, _ in levels], 30 if width <= 500 else 15)
    for (us, style, key), y in zip(levels, places, strict=True):
        body.append(line(52, up(us), right, up(us), style))
        body.append(line(right, up(us), right + 8, y, "whisker"))
        body += _named(key, us, right + 12, y, wide=width > 500)
    at = [(across(a.number), up(us)) for a, us in zip(timed, times, strict=True)]
    body += _placed(timed, at, [_of_light(a) for a in timed])
    body += _numbers(across, last, 308, 6)
    body.append(text(right, 326, "attempt", style="dim", anchor="end"))
    return drawing(width, 334, f"Times of {words.plural(len(times), 'attempt')} over the speed of light", body)


def _named(key: str, us: float, x: float, y: float, *, wide: bool) -> list[str]:
    """The name of a level and its time, on one line or on two."""
    name = (LIGHT if key == LIGHT else baseline_name(key)).removeprefix("torch.")
    if wide:
        return [text(x, y + 4, f"{name} {words.microseconds(us)}", most=32)]
    brief = name.removeprefix("compile ")  # "max-autotune" fits a narrow margin
    return [text(x, y - 1, fitted(brief, 92)), text(x, y + 12, words.microseconds(us), style="dim")]


def _levels(material: RunData) -> Iterator[tuple[float, str, str]]:
    if material.light_us is not None:
        yield material.light_us, "roof", LIGHT
    leader = material.best or material.timed[-1]
    for compared in ranked(leader)[:4]:
        yield compared.baseline_us, "level", compared.baseline


def _of_light(attempt: Attempt) -> str:
    fraction = finite(attempt.sol_fraction)
    share = f", {fraction:.0%} of the speed of light" if fraction is not None else ""
    return f"attempt {attempt.number}: {_time(attempt)}{share}"


CANDIDATE = "candidate"
_MOST_SERIES, _MOST_VALUES = 8, 3_000
_SERIES_ROW = 62.0
_FAR = 1.3


@dataclass(frozen=True)
class TimingSeries:
    """The times of one contestant, one a block, in microseconds."""

    key: str
    name: str
    times_us: tuple[float, ...]

    def at(self, share: float) -> float:
        """A quantile."""
        ordered = sorted(self.times_us)
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def median_us(self) -> float:
        """The middle one."""
        return median(self.times_us)


def series(material: RunData) -> list[TimingSeries]:
    """The candidate first, then the baselines, the fastest first; empty without a receipt that holds blocks."""
    found: dict[str, list[float]] = defaultdict(list)
    for block in _rounds(dig(material.receipt, "evidence")):
        for key, times in block.items():
            if isinstance(times, list) and (key in found or len(found) < _MOST_SERIES):
                found[str(key)] += [us for t in times if (us := number(t)) is not None and plausible(us)]
    number_of = f"attempt {material.best.number}" if material.best else "candidate"
    made = [
        TimingSeries(key, number_of if key == CANDIDATE else baseline_name(key), tuple(times[:_MOST_VALUES]))
        for key, times in found.items()
        if times
    ]
    return sorted(made, key=lambda s: (s.key != CANDIDATE, s.median_us))


def _rounds(evidence: object) -> Iterator[Mapping[str, object]]:
    processes = dig(evidence, "processes")
    for told in processes if isinstance(processes, list) else [evidence]:
        rounds = dig(told, "rounds")
        yield from (r for r in rounds if isinstance(r, Mapping)) if isinstance(rounds, list) else ()


def is_relative(found: Sequence[TimingSeries]) -> bool:
    """Whether the medians lie so far apart that one axis would show them as points."""
    medians = [s.median_us for s in found]
    return max(medians) / min(medians) > _FAR


def spread(found: Sequence[TimingSeries], width: float) -> Markup:
    """A row for each: every block a dot, a box from the first to the third quartile, the median a line; each around its
    own median where the medians lie far apart.

    The axis spans the 2nd to the 98th percentile of all rows, and a row says how many of its blocks lie beyond."""
    rows = [_relative(s) for s in found] if is_relative(found) else list(found)
    low, high = around((v for s in rows for v in (s.at(0.02), s.at(0.98))), log=False, room=0.08)
    across = Scale(low, high, 14, width - 14)
    unit = "%" if is_relative(found) else ""
    body = list(grid_x(across, 8, 8 + _SERIES_ROW * len(found), "g", most=8 if width > 500 else 4, unit=unit))
    for i, (row, one) in enumerate(zip(rows, found, strict=True)):
        body += _row(row, one, across, 8 + _SERIES_ROW * i)
    height = 8 + _SERIES_ROW * len(found) + 42
    said = "away from its own median" if is_relative(found) else "µs a forward, cold L2"
    body.append(text(width - 14, height - 6, said, style="dim", anchor="end"))
    about = "; ".join(f"{s.name}: median {s.median_us:.2f} µs of {len(s.times_us)} blocks" for s in found)
    return drawing(width, height, about, body)


def _relative(one: TimingSeries) -> TimingSeries:
    """In per cent of its own median, less 100."""
    return TimingSeries(one.key, one.name, tuple(100 * (us / one.median_us - 1) for us in one.times_us))


def _row(row: TimingSeries, one: TimingSeries, across: Scale, top: float) -> Iterator[str]:
    """`row`: as it is drawn; `one`: the times."""
    middle = top + 42
    inside = [v for v in row.times_us if across.low <= v <= across.high]
    beyond = len(row.times_us) - len(inside)
    more = f" ({beyond} beyond the edge)" if beyond else ""
    label = f"{one.name}  {words.microseconds(one.median_us)}{more}"
    room = across.end - across.start
    yield text(across.start, top + 17, fitted(label, room, bold=True), style="ink", most=300)
    scattered = [(across(v), middle + 11 * (i * 0.618034 % 1.0 - 0.5) * 1.6) for i, v in enumerate(inside)]
    yield marks("circle", scattered, "own block" if one.key == CANDIDATE else "block", 2.2)
    first, third = across(row.at(0.25)), across(row.at(0.75))
    yield rect(first, middle - 11, max(third - first, 1.0), 22, "box")
    yield line(across(row.median_us), middle - 14, across(row.median_us), middle + 14, "median")
