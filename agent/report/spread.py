"""How the timings of the best attempt and of the baselines are distributed, from the blocks in its receipt."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from agent.report import axes
from agent.report.material import Material, baseline_name, dig, number, plausible
from agent.view import text as words

CANDIDATE = "candidate"
_MOST_SERIES, _MOST_VALUES = 8, 3_000
_ROW = 62.0
_FAR = 1.3


@dataclass(frozen=True)
class Series:
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


def series(material: Material) -> list[Series]:
    """The candidate first, then the baselines, the fastest first; empty without a receipt that holds blocks."""
    found: dict[str, list[float]] = defaultdict(list)
    for block in _rounds(dig(material.receipt, "evidence")):
        for key, times in block.items():
            if isinstance(times, list) and (key in found or len(found) < _MOST_SERIES):
                found[str(key)] += [us for t in times if (us := number(t)) is not None and plausible(us)]
    number_of = f"attempt {material.best.number}" if material.best else "candidate"
    made = [
        Series(key, number_of if key == CANDIDATE else baseline_name(key), tuple(times[:_MOST_VALUES]))
        for key, times in found.items()
        if times
    ]
    return sorted(made, key=lambda s: (s.key != CANDIDATE, s.median_us))


def _rounds(evidence: object) -> Iterator[Mapping[str, object]]:
    processes = dig(evidence, "processes")
    for told in processes if isinstance(processes, list) else [evidence]:
        rounds = dig(told, "rounds")
        yield from (r for r in rounds if isinstance(r, Mapping)) if isinstance(rounds, list) else ()


def is_relative(found: Sequence[Series]) -> bool:
    """Whether the medians lie so far apart that one axis would show them as points."""
    medians = [s.median_us for s in found]
    return max(medians) / min(medians) > _FAR


def spread(found: Sequence[Series], width: float) -> Markup:
    """A row for each: every block a dot, a box from the first to the third quartile, the median a line; each around its
    own median where the medians lie far apart.

    The axis spans the 2nd to the 98th percentile of all rows, and a row says how many of its blocks lie beyond."""
    rows = [_relative(s) for s in found] if is_relative(found) else list(found)
    low, high = axes.around((v for s in rows for v in (s.at(0.02), s.at(0.98))), log=False, room=0.08)
    across = axes.Scale(low, high, 14, width - 14)
    unit = "%" if is_relative(found) else ""
    body = list(axes.grid_x(across, 8, 8 + _ROW * len(found), "g", most=8 if width > 500 else 4, unit=unit))
    for i, (row, one) in enumerate(zip(rows, found, strict=True)):
        body += _row(row, one, across, 8 + _ROW * i)
    height = 8 + _ROW * len(found) + 42
    said = "away from its own median" if is_relative(found) else "µs a forward, cold L2"
    body.append(axes.text(width - 14, height - 6, said, style="dim", anchor="end"))
    about = "; ".join(f"{s.name}: median {s.median_us:.2f} µs of {len(s.times_us)} blocks" for s in found)
    return axes.drawing(width, height, about, body)


def _relative(one: Series) -> Series:
    """In per cent of its own median, less 100."""
    return Series(one.key, one.name, tuple(100 * (us / one.median_us - 1) for us in one.times_us))


def _row(row: Series, one: Series, across: axes.Scale, top: float) -> Iterator[str]:
    """`row`: as it is drawn; `one`: the times."""
    middle = top + 42
    inside = [v for v in row.times_us if across.low <= v <= across.high]
    beyond = len(row.times_us) - len(inside)
    more = f" ({beyond} beyond the edge)" if beyond else ""
    label = f"{one.name}  {words.microseconds(one.median_us)}{more}"
    room = across.end - across.start
    yield axes.text(across.start, top + 17, axes.fitted(label, room, bold=True), style="ink", most=300)
    scattered = [(across(v), middle + 11 * (i * 0.618034 % 1.0 - 0.5) * 1.6) for i, v in enumerate(inside)]
    yield axes.marks("circle", scattered, "own block" if one.key == CANDIDATE else "block", 2.2)
    first, third = across(row.at(0.25)), across(row.at(0.75))
    yield axes.rect(first, middle - 11, max(third - first, 1.0), 22, "box")
    yield axes.line(across(row.median_us), middle - 14, across(row.median_us), middle + 14, "median")
