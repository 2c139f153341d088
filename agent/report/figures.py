"""The figures of a run's report: the course, the roofline, the spread of the timings, the lineage. Pure.

A verdict's meaning is never in the colour alone: mark, class and words differ too.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Final

from markupsafe import Markup

from kerneltune.agent.record.trajectory import AttemptRecord, Trajectory
from kerneltune.agent.report import chart
from kerneltune.agent.report.data import (
    RunData,
    baseline_name,
    dig,
    finite,
    hardest,
    number,
    plausible,
    ranked,
    timing_of,
)
from kerneltune.agent.report.text import Sanitizer
from kerneltune.agent.view import text as words
from kerneltune.agent.view.text import verdict_style
from kerneltune.tools.schema.gpus import rate_tflops
from kerneltune.tools.schema.verdict import Comparison, Status

# Marks differ for those who cannot tell the colours, on paper too.
MARKS: Final = {
    Status.CORRECT: "circle",
    Status.CHECKED: "circle",
    Status.UNCHECKED: "bar",
    Status.WRONG: "cross",
    Status.IMPOSSIBLE: "diamond",
    Status.CRASHED: "plus",
    Status.TIMED_OUT: "square",
    Status.COMPILE_FAILED: "triangle",
    Status.REJECTED: "bar",
}
_TIERS: Final = {"screened": ("circle", "hollow"), "judged": ("circle", "best"), "confirmed": ("diamond", "best")}


def css_class(status: Status | None) -> str:
    """The class that colours a verdict."""
    return "s-none" if status is None else f"s-{status.value.replace('_', '-')}"


def verdict_mark(status: Status | None) -> str:
    """The shape of a verdict's mark."""
    return "bar" if status is None else MARKS[status]


def verdict_symbol(status: Status | None) -> str:
    """One character for a verdict."""
    return "·" if status is None else verdict_style(status).symbol


def verdict_name(status: Status | None) -> str:
    """A verdict in words."""
    return "never judged" if status is None else status.value.replace("_", " ")


def timed_mark(attempt: AttemptRecord) -> tuple[str, str]:
    """Mark and class of a time, by how thoroughly it was measured."""
    return _TIERS.get(attempt.tier or "judged", _TIERS["judged"])


MOST_TITLED = 120  # marks that say what they are: more would only make the file large
_LOG_SPEEDUPS_FROM = 4.0  # from this ratio of the largest to the smallest on, a logarithm is fairer


Timed = tuple[AttemptRecord, Comparison]  # an attempt and the baseline that was hardest to beat


def curve(material: RunData, width: float) -> Markup:
    """Speed-ups over the hardest baseline by attempt; without any, only the strip of verdicts."""
    attempts = material.trajectory.attempts
    timed = [(a, c) for a in material.timed if a.accepted and (c := hardest(a))]
    others = [a for a in attempts if hardest(a) is None or not a.accepted]
    last = max((a.number for a in attempts), default=1)
    across = chart.Scale(0.5, last + 0.5, 56.0 if timed else 12.0, width - 14)
    body = list(_speedups(timed, across, width)) if timed else []
    strip, height = _strip(others, across, 314.0 if timed else 8.0, width)
    body += [*_numbers(across, last, height + 18, 8 if width > 500 else 4), *strip]
    body.append(chart.text(width - 14, height + 36, "attempt", style="dim", anchor="end"))
    about = f"Verdicts of {words.plural(len(others), 'attempt')}; none has a time."
    if timed:
        best = max(c.speedup for _, c in timed)
        count = words.plural(len(timed), "timed attempt")
        about = f"Speed-ups of {count}, the highest {best:.3f}x; {len(others)} without a time."
    return chart.drawing(width, height + 44, about, body)


def _numbers(across: chart.Scale, last: int, y: float, most: int) -> Iterator[str]:
    """The numbers of attempts below an axis."""
    for tick in chart.Scale(1, max(last, 2), 0, 1).ticks(most):
        if tick == int(tick) and tick <= last:
            yield chart.text(across(tick), y, f"{tick:g}", style="dim", anchor="middle")


def _speedups(timed: Sequence[Timed], across: chart.Scale, width: float) -> Iterator[str]:
    values = [1.0, *(c.speedup for _, c in timed)]
    log = max(values) / min(values) > _LOG_SPEEDUPS_FROM
    tiers = {a.tier or "judged": timed_mark(a) for a, _ in timed}
    key = [(*tiers[tier], tier) for tier in ("screened", "judged", "confirmed") if tier in tiers]
    entries, y = chart.legend([*key, ("line", "stairs", "best so far")], 12, 18, width)
    scale = chart.Scale(*chart.around(values, log=log), 296, y + 22, log)
    yield from entries
    yield from chart.grid_y(scale, across.start, across.end, "g", unit="x")
    name = f"1x = {baseline_name(timed[-1][1].baseline)}"
    yield chart.line(across.start, scale(1.0), across.end, scale(1.0), "one")
    yield chart.text(across.end, scale(1.0) - 6, name, style="dim", anchor="end")
    yield from _stairs(timed, across, scale)
    if len(timed) <= MOST_TITLED:
        for a, c in timed:
            yield chart.line(across(a.number), scale(c.low), across(a.number), scale(c.high), "whisker")
    places = [(across(a.number), scale(c.speedup)) for a, c in timed]
    about = [f"attempt {a.number}: {c.speedup:.3f}x [{c.low:.3f}, {c.high:.3f}], {_time(a)}" for a, c in timed]
    yield from _placed([a for a, _ in timed], places, about)


def _time(attempt: AttemptRecord) -> str:
    return words.microseconds(attempt.timing.median_us) if attempt.timing else "?"


def _stairs(timed: Sequence[Timed], across: chart.Scale, scale: chart.Scale) -> Iterator[str]:
    """The speed-up of the attempt with the shortest time so far, which is how a run ranks what it timed."""
    best_us, corners, (leader, reached) = math.inf, list[tuple[float, float]](), timed[0]
    for a, c in timed:
        us = a.timing.median_us if a.timing else math.inf
        if us < best_us:
            best_us, leader, reached = us, a, c
            corners.append((across(a.number), scale(c.speedup)))
    yield chart.path([*corners, (across.end, corners[-1][1])], "stairs", steps=True)
    at = across(leader.number)
    side = "end" if at > across.end - 90 else "start"
    yield chart.text(at, scale(reached.speedup) - 9, f"attempt {leader.number}", style="ink", anchor=side)


def _placed(
    attempts: Sequence[AttemptRecord], places: Sequence[tuple[float, float]], about: Sequence[str]
) -> Iterator[str]:
    """The marks of timed attempts; each says what it is when pointed at, unless there are too many."""
    if len(attempts) <= MOST_TITLED:
        for a, place, title in zip(attempts, places, about, strict=True):
            kind, style = timed_mark(a)
            yield chart.titled(chart.marks(kind, [place], style, 4.5), title)
        return
    for look in dict.fromkeys(map(timed_mark, attempts)):
        alike = [place for a, place in zip(attempts, places, strict=True) if timed_mark(a) == look]
        yield chart.marks(look[0], alike, look[1], 2.6)


def _strip(others: Sequence[AttemptRecord], across: chart.Scale, top: float, width: float) -> tuple[list[str], float]:
    """A row of marks for each verdict of attempts without a time, the key above, and where it ends. Few share a row."""
    if not others:
        return [], top - 16
    statuses = list(dict.fromkeys(a.status for a in others))
    body, y = chart.legend([(verdict_mark(s), css_class(s), verdict_name(s)) for s in statuses], 12, top + 14, width)
    many = len(others) > MOST_TITLED
    y += 22
    for i, status in enumerate(statuses):
        y += 14 if many and i else 0
        if many or not i:
            body.append(chart.line(across.start, y, across.end, y))
        places = [(across(a.number), y) for a in others if a.status is status]
        body.append(chart.marks(verdict_mark(status), places, css_class(status), 2.2 if many else 4.0))
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
    gpu = words.one_line(material.trajectory.run.gpu or "this GPU")[:60]
    at = f" at {words.one_line(work.precision)[:20]}" if material.gpu and work.precision else ""
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
    across = chart.Scale(min(ridge, ceiling.intensity) / 8, max(ridge, ceiling.intensity) * 4, 62, width - 14, log=True)
    roof_at = [min(ceiling.tflops, i * ceiling.gbps / 1e3) for i in (across.low, ceiling.intensity)]
    low = min(*reached, roof_at[1]) / 3
    up = chart.Scale(low, max(ceiling.tflops, *reached) * 1.6, 300, 20, log=True)
    body = [*chart.grid_y(up, 62, width - 14, "g"), *chart.grid_x(across, 20, 300, "g", most=8 if width > 500 else 5)]
    start = max(across.low, low * 1e3 / ceiling.gbps)
    corners = [(across(start), up(start * ceiling.gbps / 1e3)), (across(ridge), up(ceiling.tflops))]
    body.append(chart.path([*corners, (width - 14, up(ceiling.tflops))], "roof"))
    body += [
        chart.text(width - 16, up(ceiling.tflops) - 7, f"{ceiling.tflops:g} TFLOP/s {ceiling.precision}", anchor="end"),
        chart.text(across(start * 2) + 8, up(start * 2 * ceiling.gbps / 1e3) + 16, f"{ceiling.gbps:g} GB/s"),
        chart.text(62, 14, "TFLOP/s", style="dim"),
        chart.text(width - 14, 336, "FLOP per byte", style="dim", anchor="end"),
        chart.line(across(ceiling.intensity), 300, across(ceiling.intensity), up(roof_at[1]), "one"),
    ]
    places = [(across(ceiling.intensity), up(value)) for value in reached]
    body += _placed(material.timed, places, [_of_light(a) for a in material.timed])
    top = max(reached)
    count = words.plural(len(reached), "attempt")
    about = f"Roofline: {count}, the fastest at {top:.3g} TFLOP/s of {roof_at[1]:.3g} possible"
    return chart.drawing(width, 344, about, body)


def _floor(material: RunData, width: float) -> Markup:
    timed = material.timed
    times = [a.timing.median_us for a in timed if a.timing]
    levels = sorted(_levels(material))
    right = width - (206 if width > 500 else 104)
    last = max(a.number for a in timed)
    across = chart.Scale(0.5, last + 0.5, 52, right)
    values = [*times, *(us for us, _, _ in levels)]
    log = max(values) / min(values) > _LOG_TIMES_FROM
    up = chart.Scale(*chart.around(values, log=log, room=0.1), 290, 22, log)
    body = [chart.text(44, 14, "µs", style="dim", anchor="end"), *chart.grid_y(up, 52, right, "g")]
    places = chart.apart([up(us) for us, _, _ in levels], 30 if width <= 500 else 15)
    for (us, style, key), y in zip(levels, places, strict=True):
        body.append(chart.line(52, up(us), right, up(us), style))
        body.append(chart.line(right, up(us), right + 8, y, "whisker"))
        body += _named(key, us, right + 12, y, wide=width > 500)
    at = [(across(a.number), up(us)) for a, us in zip(timed, times, strict=True)]
    body += _placed(timed, at, [_of_light(a) for a in timed])
    body += _numbers(across, last, 308, 6)
    body.append(chart.text(right, 326, "attempt", style="dim", anchor="end"))
    return chart.drawing(width, 334, f"Times of {words.plural(len(times), 'attempt')} over the speed of light", body)


def _named(key: str, us: float, x: float, y: float, *, wide: bool) -> list[str]:
    """The name of a level and its time, on one line or on two."""
    name = (LIGHT if key == LIGHT else baseline_name(key)).removeprefix("torch.")
    if wide:
        return [chart.text(x, y + 4, f"{name} {words.microseconds(us)}", most=32)]
    short = name.removeprefix("compile ")  # "max-autotune" fits a narrow margin
    return [chart.text(x, y - 1, chart.fitted(short, 92)), chart.text(x, y + 12, words.microseconds(us), style="dim")]


def _levels(material: RunData) -> Iterator[tuple[float, str, str]]:
    if material.light_us is not None:
        yield material.light_us, "roof", LIGHT
    leader = material.best or material.timed[-1]
    for compared in ranked(leader)[:4]:
        yield compared.baseline_us, "level", compared.baseline


def _of_light(attempt: AttemptRecord) -> str:
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
    low, high = chart.around((v for s in rows for v in (s.at(0.02), s.at(0.98))), log=False, room=0.08)
    across = chart.Scale(low, high, 14, width - 14)
    unit = "%" if is_relative(found) else ""
    body = list(chart.grid_x(across, 8, 8 + _SERIES_ROW * len(found), "g", most=8 if width > 500 else 4, unit=unit))
    for i, (row, one) in enumerate(zip(rows, found, strict=True)):
        body += _row(row, one, across, 8 + _SERIES_ROW * i)
    height = 8 + _SERIES_ROW * len(found) + 42
    said = "away from its own median" if is_relative(found) else "µs a forward, cold L2"
    body.append(chart.text(width - 14, height - 6, said, style="dim", anchor="end"))
    about = "; ".join(f"{s.name}: median {s.median_us:.2f} µs of {len(s.times_us)} blocks" for s in found)
    return chart.drawing(width, height, about, body)


def _relative(one: TimingSeries) -> TimingSeries:
    """In per cent of its own median, less 100."""
    return TimingSeries(one.key, one.name, tuple(100 * (us / one.median_us - 1) for us in one.times_us))


def _row(row: TimingSeries, one: TimingSeries, across: chart.Scale, top: float) -> Iterator[str]:
    """`row`: as it is drawn; `one`: the times."""
    middle = top + 42
    inside = [v for v in row.times_us if across.low <= v <= across.high]
    beyond = len(row.times_us) - len(inside)
    more = f" ({beyond} beyond the edge)" if beyond else ""
    label = f"{one.name}  {words.microseconds(one.median_us)}{more}"
    room = across.end - across.start
    yield chart.text(across.start, top + 17, chart.fitted(label, room, bold=True), style="ink", most=300)
    scattered = [(across(v), middle + 11 * (i * 0.618034 % 1.0 - 0.5) * 1.6) for i, v in enumerate(inside)]
    yield chart.marks("circle", scattered, "own block" if one.key == CANDIDATE else "block", 2.2)
    first, third = across(row.at(0.25)), across(row.at(0.75))
    yield chart.rect(first, middle - 11, max(third - first, 1.0), 22, "box")
    yield chart.line(across(row.median_us), middle - 14, across(row.median_us), middle + 14, "median")


MOST_SHOWN = 60


@dataclass(frozen=True)
class Node:
    """A row of the tree. `up`: the row of its parent, None for a first attempt; `hidden`: how many of its descendants
    are not drawn, by verdict."""

    attempt: AttemptRecord
    row: int
    depth: int
    up: int | None
    on_best_line: bool
    hidden: Counter[str] = field(default_factory=Counter)


def ancestors(run: Trajectory, attempt: AttemptRecord) -> list[AttemptRecord]:
    """What it was derived from within the run, nearest first; a circle in a damaged record is left where it closes."""
    found, seen = list[AttemptRecord](), {attempt.attempt_id}
    at = run.parent(attempt)
    while at is not None and at.attempt_id not in seen:
        seen.add(at.attempt_id)
        found.append(at)
        at = run.parent(at)
    return found


def family(run: Trajectory, best: AttemptRecord | None, most: int = MOST_SHOWN) -> list[Node]:
    """The rows from the top. Where there are more attempts than can be drawn, those on the way to the best, the right
    ones and the first ones are."""
    line = {a.attempt_id for a in (best, *ancestors(run, best))} if best else set[str]()
    kept = _kept(run, line, most)
    nodes = list(_walk(run, kept, line))
    rows = {node.attempt.attempt_id: node for node in nodes}
    for attempt in run.attempts:
        if attempt.attempt_id not in rows:
            shown = next((rows[a.attempt_id] for a in ancestors(run, attempt) if a.attempt_id in rows), None)
            if shown is not None:
                shown.hidden[verdict_name(attempt.status)] += 1
    return nodes


def _kept(run: Trajectory, line: set[str], most: int) -> set[str]:
    if len(run.attempts) <= most:
        return {a.attempt_id for a in run.attempts}
    kept = set(line)
    for attempt in sorted(run.attempts, key=_importance):
        its = [attempt.attempt_id, *(a.attempt_id for a in ancestors(run, attempt))]
        if len(kept | set(its)) <= most:
            kept |= set(its)
    return kept


def _importance(attempt: AttemptRecord) -> tuple[bool, bool, tuple[float, ...], int]:
    return not attempt.accepted, not attempt.rank_key, attempt.rank_key, attempt.number


def _walk(run: Trajectory, kept: set[str], line: set[str]) -> Iterator[Node]:
    children: dict[str | None, list[AttemptRecord]] = defaultdict(list)
    for attempt in run.attempts:
        if attempt.attempt_id in kept:
            above = run.parent(attempt)
            children[above.attempt_id if above and above.attempt_id in kept else None].append(attempt)
    waiting: list[tuple[AttemptRecord, int, int | None]] = [
        (a, 0, None) for a in reversed(_ordered(children[None], line))
    ]
    row, seen = 0, set[str]()
    while waiting:
        attempt, depth, up = waiting.pop()
        if attempt.attempt_id in seen:
            continue
        seen.add(attempt.attempt_id)
        yield Node(attempt, row, depth, up, attempt.attempt_id in line)
        below = _ordered(children[attempt.attempt_id], line)
        waiting += [(child, depth + 1, row) for child in reversed(below)]
        row += 1


def _ordered(siblings: Iterable[AttemptRecord], line: set[str]) -> list[AttemptRecord]:
    """By number, the one on the best line last, so that the line is not torn apart by its siblings' descendants."""
    return sorted(siblings, key=lambda a: (a.attempt_id in line, a.number))


_LINEAGE_ROW = 22.0


def lineage(nodes: Sequence[Node], shown: Sanitizer, width: float) -> Markup:
    """Each attempt below what it was derived from; the way to the best is drawn thick."""
    deepest = max((node.depth for node in nodes), default=0)
    step = min(22.0, width * (0.4 if width > 500 else 0.22) / max(deepest, 1))
    best = next((node for node in reversed(nodes) if node.on_best_line), None)
    body: list[str] = []
    for node in sorted(nodes, key=lambda n: n.on_best_line):
        if node.up is not None:
            body.append(_edge(node, nodes[node.up], step))
    for node in nodes:
        body += _drawn(node, shown, step, width, best=node is best)
    about = f"Tree of {words.plural(len(nodes), 'attempt')}" + (f"; the best is {best.attempt.number}" if best else "")
    return chart.drawing(width, _LINEAGE_ROW * len(nodes) + 10, about, body)


def _place(node: Node, step: float) -> tuple[float, float]:
    return 12 + node.depth * step, 16 + node.row * _LINEAGE_ROW


def _edge(node: Node, parent: Node, step: float) -> str:
    (x1, y1), (x2, y2) = _place(parent, step), _place(node, step)
    bend = min(7.0, step / 2)
    drawn = f"M{x1:.1f} {y1:.1f}V{y2 - bend:.1f}Q{x1:.1f} {y2:.1f} {x1 + bend:.1f} {y2:.1f}H{x2:.1f}"
    return f'<path class="{"line-of-best" if node.on_best_line else "edge"}" d="{drawn}"/>'


def _drawn(node: Node, shown: Sanitizer, step: float, width: float, *, best: bool) -> Iterator[str]:
    attempt = node.attempt
    x, y = _place(node, step)
    kind, style = verdict_mark(attempt.status), css_class(attempt.status)
    yield chart.marks(kind, [(x, y)], f"{style} node", 5.0 if node.on_best_line else 4.2)
    label = chart.fitted(shown.line(_label(node), 140), width - x - 14, bold=best)
    yield chart.text(x + 12, y + 4, label, style="strong" if best else "", most=300)


def _label(node: Node) -> str:
    attempt = node.attempt
    against = hardest(attempt)
    result = [f"#{attempt.number}"]
    timing = timing_of(attempt)
    if timing is not None:
        result.append(words.microseconds(timing.median_us))
    if against is not None:
        result.append(f"{against.speedup:.2f}x")
    if timing is None:
        result.append(verdict_name(attempt.status))
    if attempt.parent_id and node.up is None:
        result.append(f"(from {attempt.parent_id})")
    hidden = f" [+{node.hidden.total()} not drawn: {_counted(node)}]" if node.hidden else ""
    return f"{' '.join(result)}{hidden}  {attempt.rationale}"


def _counted(node: Node) -> str:
    return ", ".join(f"{n} {status}" for status, n in node.hidden.most_common(3))
