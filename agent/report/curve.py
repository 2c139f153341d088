"""The course of a run: the speed-up of every attempt, the best so far, and what became of those without a time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from agent.record.trajectory import AttemptRecord
from agent.report import axes, looks
from agent.report.material import Material, baseline_name, hardest
from agent.view import text as words
from tools.verdict import Status

_MOST_TOLD = 120  # marks that say what they are: more would only make the file large
_LOG_FROM = 4.0  # from this ratio of the largest to the smallest on, a logarithm is fairer


@dataclass(frozen=True)
class _Point:
    number: int
    speedup: float
    low: float
    high: float
    attempt: AttemptRecord


def curve(material: Material, width: float) -> Markup:
    """Speed-ups over the hardest baseline by attempt; without any, only the strip of verdicts."""
    attempts = material.trajectory.attempts
    points = [_Point(a.number, c.speedup, c.low, c.high, a) for a in material.timed if a.accepted and (c := hardest(a))]
    others = [a for a in attempts if hardest(a) is None or not a.accepted]
    last = max((a.number for a in attempts), default=1)
    left = 56.0 if points else 12.0
    across = axes.Scale(0.5, last + 0.5, left, width - 14)
    body = list(_plot(points, across, width)) if points else []
    top = 314.0 if points else 8.0
    many = len(attempts) > _MOST_TOLD
    strip, height = _bars(attempts, across, top, width) if many else _strip(others, across, top, width)
    ticks = [t for t in axes.Scale(1, max(last, 2), 0, 1).ticks(8 if width > 500 else 4) if t == int(t) and t <= last]
    body += [axes.text(across(t), height + 18, f"{t:g}", style="dim", anchor="middle") for t in ticks]
    body += strip
    body.append(axes.text(width - 14, height + 36, "attempt", style="dim", anchor="end"))
    return axes.drawing(width, height + 44, _about(points, others), body)


def _plot(points: Sequence[_Point], across: axes.Scale, width: float) -> Iterator[str]:
    values = [v for p in points for v in (p.speedup, 1.0)]
    log = max(values) / min(values) > _LOG_FROM
    entries, y = axes.legend(_key(points), 12, 18, width)
    scale = axes.Scale(*axes.around(values, log=log), 296, y + 22, log)
    yield from entries
    yield from axes.grid_y(scale, across.start, across.end, "g", unit="x")
    against = points[-1].attempt
    compared = hardest(against)
    yield axes.line(across.start, scale(1.0), across.end, scale(1.0), "one")
    if compared is not None:
        name = f"1x = {baseline_name(compared.baseline)}"
        yield axes.text(across.end, scale(1.0) - 6, name, style="dim", anchor="end")
    yield from _stairs(points, across, scale)
    if len(points) <= _MOST_TOLD:
        for p in points:
            yield axes.line(across(p.number), scale(p.low), across(p.number), scale(p.high), "whisker")
    yield from _dots(points, across, scale)


def _key(points: Sequence[_Point]) -> list[tuple[str, str, str]]:
    tiers = dict.fromkeys(p.attempt.tier or "judged" for p in points)
    known = [tier for tier in looks.TIER_WORDS if tier in tiers]
    return [
        *((*looks.timed_mark(next(p.attempt for p in points if (p.attempt.tier or "judged") == t)), t) for t in known),
        ("line", "stairs", "best so far"),
    ]


def _stairs(points: Sequence[_Point], across: axes.Scale, scale: axes.Scale) -> Iterator[str]:
    """The speed-up of the attempt with the shortest time so far, which is how a run ranks what it timed."""
    best_us, corners, leader = math.inf, list[tuple[float, float]](), points[0]
    for p in points:
        us = p.attempt.timing.median_us if p.attempt.timing else math.inf
        if us < best_us:
            best_us, leader = us, p
            corners.append((across(p.number), scale(p.speedup)))
    yield axes.path([*corners, (across.end, corners[-1][1])], "stairs", steps=True)
    at = across(leader.number)
    side = "end" if at > across.end - 90 else "start"
    yield axes.text(at, scale(leader.speedup) - 9, f"attempt {leader.number}", style="ink", anchor=side)


def _dots(points: Sequence[_Point], across: axes.Scale, scale: axes.Scale) -> Iterator[str]:
    size = 4.5 if len(points) <= _MOST_TOLD else 2.6
    if len(points) > _MOST_TOLD:
        for look in dict.fromkeys(looks.timed_mark(p.attempt) for p in points):
            alike = [(across(p.number), scale(p.speedup)) for p in points if looks.timed_mark(p.attempt) == look]
            yield axes.marks(look[0], alike, look[1], size)
        return
    for p in points:
        kind, style = looks.timed_mark(p.attempt)
        us = words.microseconds(p.attempt.timing.median_us) if p.attempt.timing else ""
        drawn = axes.marks(kind, [(across(p.number), scale(p.speedup))], style, size)
        yield axes.told(drawn, f"attempt {p.number}: {p.speedup:.3f}x [{p.low:.3f}, {p.high:.3f}], {us}")


def _strip(others: Sequence[AttemptRecord], across: axes.Scale, top: float, width: float) -> tuple[list[str], float]:
    """A row of marks for attempts without a time, its key above it, and where it ends."""
    if not others:
        return [], top - 16
    kinds = list(dict.fromkeys((_mark(a.status), a.status) for a in others))
    key = [(mark, looks.css_class(status), looks.name(status)) for mark, status in kinds]
    body, y = axes.legend(key, 12, top + 14, width)
    y += 22
    body.append(axes.line(across.start, y, across.end, y))
    for mark, status in kinds:
        places = [(across(a.number), y) for a in others if a.status is status]
        body.append(axes.marks(mark, places, looks.css_class(status)))
    return body, y + 8


def _mark(status: Status | None) -> str:
    return looks.MARKS.get(status, "bar") if status else "bar"


def _bars(all_of: Sequence[AttemptRecord], across: axes.Scale, top: float, width: float) -> tuple[list[str], float]:
    """What became of attempts, some at a time: stacked bars, for more of them than could be told apart as marks."""
    statuses = [s for s in (*Status, None) if any(a.status is s for a in all_of)]
    body, y = axes.legend([("square", f"f-{_css(s)}", looks.name(s)) for s in statuses], 12, top + 14, width)
    y, tall = y + 14, 64.0
    n = 60 if width > 500 else 28
    size = -(-max(a.number for a in all_of) // n)
    for start in range(0, n * size, size):
        its = [a.status for a in all_of if start < a.number <= start + size]
        left, right, at = across(start + 0.5), across(start + size + 0.5), y
        for status in statuses:
            part = tall * its.count(status) / size
            if part:
                body.append(axes.rect(left, at, right - left - 0.8, part, f"f-{_css(status)}"))
            at += part
    return body, y + tall


def _css(status: Status | None) -> str:
    return looks.css_class(status).removeprefix("s-")


def _about(points: Sequence[_Point], others: Sequence[AttemptRecord]) -> str:
    if not points:
        return f"Verdicts of {words.plural(len(others), 'attempt')}; none has a time."
    best = max(p.speedup for p in points)
    timed = words.plural(len(points), "timed attempt")
    return f"Speed-ups of {timed}, the highest {best:.3f}x; {len(others)} without a time."
