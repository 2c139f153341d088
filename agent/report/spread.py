"""How the timings of the best attempt and of the baselines are distributed, from the blocks in its receipt."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from agent.report import axes
from agent.report.material import Material, baseline_name, dig, number
from agent.view import text as words

CANDIDATE = "candidate"
_MOST_SERIES, _MOST_VALUES = 8, 3_000
_ROW = 62.0


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
                found[str(key)] += [us for t in times if (us := number(t)) is not None and us > 0]
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


def spread(found: Sequence[Series], width: float) -> Markup:
    """A row for each: every block a dot, a box from the first to the third quartile, the median a line. The axis ends at
    the 2nd and 98th percentile of all rows and a margin, and says how many blocks lie beyond."""
    low, high = axes.around((v for s in found for v in (s.at(0.02), s.at(0.98))), log=False, room=0.08)
    across = axes.Scale(low, high, 14, width - 14)
    body = list(axes.grid_x(across, 8, 8 + _ROW * len(found), "g", most=8 if width > 500 else 4))
    for i, one in enumerate(found):
        body += _row(one, across, 8 + _ROW * i, own=one.key == CANDIDATE)
    height = 8 + _ROW * len(found) + 42
    body.append(axes.text(width - 14, height - 6, "µs a forward, cold L2", style="dim", anchor="end"))
    about = "; ".join(f"{s.name}: median {s.median_us:.2f} µs of {len(s.times_us)} blocks" for s in found)
    return axes.drawing(width, height, about, body)


def _row(one: Series, across: axes.Scale, top: float, *, own: bool) -> Iterator[str]:
    middle = top + 42
    inside = [v for v in one.times_us if across.low <= v <= across.high]
    beyond = len(one.times_us) - len(inside)
    more = f", {beyond} of {len(one.times_us)} blocks beyond the edge" if beyond else ""
    yield axes.text(
        across.start, top + 17, f"{one.name}  {words.microseconds(one.median_us)}{more}", style="ink", most=54
    )
    scattered = [(across(v), middle + 11 * (i * 0.618034 % 1.0 - 0.5) * 1.6) for i, v in enumerate(inside)]
    yield axes.marks("circle", scattered, "own block" if own else "block", 2.2)
    first, third = across(one.at(0.25)), across(one.at(0.75))
    yield axes.rect(first, middle - 11, max(third - first, 1.0), 22, "box")
    yield axes.line(across(one.median_us), middle - 14, across(one.median_us), middle + 14, "median")
