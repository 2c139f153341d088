"""The figures of a dataset card, as SVG: what the statistics look like. Pure."""

import math
from collections.abc import Callable, Sequence

from agent.export import svg
from agent.export.statistics import SPEEDUP_BINS, Statistics, edges
from agent.export.svg import WIDTH, Bar, Part, label, line
from tools.verdict import Status

MOST_TASKS = 20
# Told apart by people who see colours otherwise (after Okabe and Ito): what is right is blue.
COLOURS = {
    Status.CORRECT.value: "#0072b2",
    Status.CHECKED.value: "#56b4e9",
    Status.UNCHECKED.value: "#9aa5b1",
    Status.WRONG.value: "#d55e00",
    Status.COMPILE_FAILED.value: "#e69f00",
    Status.CRASHED.value: "#cc79a7",
    Status.TIMED_OUT.value: "#8c6bb1",
    Status.REJECTED.value: "#b5a642",
    Status.IMPOSSIBLE.value: "#a51c30",
    "unjudged": "#c3c9d0",
}
_SPLITS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#9aa5b1")
_OTHER = "#808890"
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, WIDTH - 30, 70, 300
_TICKS = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def figures(statistics: Statistics) -> dict[str, str]:
    """All figures by file name."""
    return {
        "verdicts.svg": verdicts(statistics),
        "speedups.svg": speedups(statistics),
        "best.svg": best_by_attempt(statistics),
        "turns.svg": right_by_turn(statistics),
        "rows.svg": rows(statistics),
    }


def verdicts(statistics: Statistics) -> str:
    """How attempts ended, by task: the tasks with the most attempts, the others together."""
    title = "Verdicts by task, as shares of its attempts"
    tasks = [str(task) for (task,) in statistics.by("verdicts", 0)]
    if not tasks:
        return svg.empty(title, "This export holds no attempts.")
    counts: dict[str, dict[str, int]] = {}
    named = set(tasks[:MOST_TASKS])
    others = f"{len(tasks) - MOST_TASKS:,} other tasks"
    for (task, status), n in statistics.table("verdicts").items():
        of_task = counts.setdefault(str(task) if task in named else others, {})
        of_task[str(status)] = of_task.get(str(status), 0) + n
    found = [str(status) for (status,) in statistics.by("verdicts", 1)]
    order = [*(s for s in COLOURS if s in found), *sorted(s for s in found if s not in COLOURS)]
    stacked = [_verdicts_of(task, counts[task], order) for task in (*tasks[:MOST_TASKS], others) if task in counts]
    return svg.bars(title, _said(stacked), stacked, [(s, COLOURS.get(s, _OTHER)) for s in order], shares=True)


def _verdicts_of(task: str, counts: dict[str, int], order: list[str]) -> Bar:
    parts = [Part(status, counts.get(status, 0), COLOURS.get(status, _OTHER)) for status in order]
    return Bar(task, parts, f"{sum(counts.values()):,}")


def rows(statistics: Statistics) -> str:
    """Rows per format, stacked by split."""
    title = "Rows by format and split"
    table = {key: n for key, n in statistics.table("rows").items() if n}
    if not table:
        return svg.empty(title, "This export holds no rows.")
    splits = sorted({str(split) for _, split in table}, key=_split_order)
    colours = {split: _SPLITS[min(i, len(_SPLITS) - 1)] for i, split in enumerate(splits)}
    stacked = []
    for name in sorted({str(name) for name, _ in table}):
        parts = [Part(split, table.get((name, split), 0), colours[split]) for split in splits]
        stacked.append(Bar(name, parts, f"{sum(part.value for part in parts):,}"))
    return svg.bars(title, _said(stacked), stacked, list(colours.items()))


def _said(stacked: Sequence[Bar]) -> str:
    """The bars in words."""
    return "; ".join(f"{bar.name}: {', '.join(f'{p.name} {p.value}' for p in bar.parts if p.value)}" for bar in stacked)


def _split_order(split: str) -> tuple[int, str]:
    usual = ("train", "validation", "test")
    return (usual.index(split) if split in usual else len(usual), split)


def speedups(statistics: Statistics) -> str:
    """How many kernels came to which speed-up, on a scale of octaves."""
    title = "Speed-up of right, timed kernels over the fastest baseline"
    table, total = statistics.table("speedups"), statistics.total("speedups")
    if not total:
        return svg.empty(title, "Nothing in this export was timed on a GPU, so there are no speed-ups.")
    most = max(table.values())
    width = (_RIGHT - _LEFT) / SPEEDUP_BINS
    body = [label(_LEFT, 52, f"{total:,} kernels; each bar is a quarter of an octave", "dim small"), *_grid(most)]
    for (index,), n in sorted(table.items()):
        low, high = edges(int(index))
        height = n / most * (_BOTTOM - _TOP)
        colour = "#0072b2" if low >= 1.0 else "#d55e00"
        x = _LEFT + int(index) * width
        body.append(svg.box(x, _BOTTOM - height, width, height, colour, f"{_times(low)} to {_times(high)}: {n:,}"))
    for tick in _TICKS:
        x = _LEFT + (1 + (math.log2(tick) + 4) * 4) * width
        body.append(label(x, _BOTTOM + 18, _times(tick), "ink small", "middle"))
    body += svg.legend([("slower", "#d55e00"), ("faster", "#0072b2")], _LEFT, _BOTTOM + 44)[0]
    about = "; ".join(f"{_times(edges(int(i))[0])} and above: {n}" for (i,), n in sorted(table.items()))
    return svg.page(title, about, body, _BOTTOM + 60)


def best_by_attempt(statistics: Statistics) -> str:
    """What a run has come to after N attempts."""
    title = "Best speed-up so far, by attempt"
    points = statistics.curve()
    if not points or points[-1][1] <= 1.0:
        why = "No run on a GPU." if not points else "No run on a GPU found a kernel that is faster than the baseline."
        return svg.empty(title, why)
    runs = statistics.total("reached")
    note = f"geometric mean over {runs:,} runs on a GPU; PyTorch itself (1x) is kept until it is beaten"
    about = "; ".join(f"after {n} attempts {value:.3f}x" for n, value in points)
    return _curve(title, note, "attempts of a run", about, points, (1.0, max(value for _, value in points)), _times)


def right_by_turn(statistics: Statistics) -> str:
    """The share of attempts that are right, by the turn of the conversation."""
    title = "Share of attempts that are right, by turn of the conversation"
    attempts = {int(turn): n for (turn,), n in statistics.by("by_turn", 0).items()}
    if not attempts:
        return svg.empty(title, "No attempt in this export was written by a model in a conversation.")
    table = statistics.table("by_turn")
    points = [(turn, table.get((turn, 1), 0) / n) for turn, n in sorted(attempts.items())]
    about = "; ".join(f"turn {turn}: {share:.0%} of {attempts[turn]}" for turn, share in points)
    note = f"{sum(attempts.values()):,} attempts; later turns are those of conversations that went on"
    return _curve(title, note, "turn", about, points, (0.0, 1.0), lambda share: f"{share:.0%}")


def _curve(
    title: str,
    note: str,
    axis: str,
    about: str,
    points: Sequence[tuple[int, float]],
    scale: tuple[float, float],
    shown: Callable[[float], str],
) -> str:
    """Points over a logarithmic axis of counts, joined."""
    low, high = scale
    octaves = math.log2(points[-1][0]) or 1.0
    places = [
        (_LEFT + 30 + math.log2(n) / octaves * (_RIGHT - _LEFT - 60), _height((value - low) / (high - low)))
        for n, value in points
    ]
    body = [label(_LEFT, 52, note, "dim small")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _height(share)
        body += [line(_LEFT, y, _RIGHT, y), label(_LEFT - 8, y + 4, shown(low + share * (high - low)), "dim", "end")]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    body.append(f'<path class="curve" fill="none" stroke-width="2" d="M{path}"/>')
    last = -math.inf
    for (n, value), (x, y) in zip(points, places, strict=True):
        body.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{n}: {shown(value)}</title></circle>')
        if x - last >= 26:  # room for a number
            body.append(label(x, _BOTTOM + 18, str(n), "ink small", "middle"))
            last = x
    body.append(label(_RIGHT, _BOTTOM + 36, axis, "dim small", "end"))
    return svg.page(title, about, body, _BOTTOM + 50)


def _grid(most: int) -> list[str]:
    step = _round_step(most)
    out = []
    for n in range(0, most + 1, step):
        y = _height(n / most)
        out += [line(_LEFT, y, _RIGHT, y), label(_LEFT - 8, y + 4, f"{n:,}", "dim small", "end")]
    return out


def _round_step(most: int) -> int:
    """1, 2 or 5 times a power of ten, so that there are at most five steps."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if most <= 5 * factor * power:
                return factor * power
        power *= 10


def _height(share: float) -> float:
    return _BOTTOM - share * (_BOTTOM - _TOP)


def _times(value: float) -> str:
    return f"{value:.3g}x"
