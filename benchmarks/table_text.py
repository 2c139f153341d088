"""The table in words: Markdown of all rows with their summary, and one line of one row. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from benchmarks.public_kernels import source_of
from benchmarks.table_rows import Kernel, Row
from tools.verdict import Comparison

BASELINES = {"eager": "eager", "compile": "compile", "compile-max": "max-autotune"}
ATTENTION = ("causal_attention", "gqa_attention")
GEOMEAN, LEAST, COPY, CUBLAS, SDPA, MOST_S = 1.25, 0.98, 0.90, 0.95, 0.90, 180.0
_HEAD = (
    *("task", "timed case", "eager µs", "compile µs", "max-autotune µs", "public µs", "ours µs [95 %]"),
    *("over the best of the three [95 %]", "over public [95 %]", "speed of light", "copy", "own", "attempts", "s"),
)
_NOTES = """
Times are device time of one forward with cold L2, medians with 95 % intervals. "Over the best of the three" is paired
with the fastest of eager, torch.compile and max-autotune. "Over public" is over the fastest public kernel that was
right, ours judged once more in the session that judged it. "Speed of light" is what the verdict says; "copy", of tasks
that memory bounds, is the rate at which the task's bytes moved over the measured rate of a copy. "Own" is the share of
the time in the candidate's own kernels; the rest is the library's. "s" is the search with the confirmation of the best,
without start, baselines and what TorchInductor writes, which is there before. Eager attention is
scaled_dot_product_attention, with the backend that torch chooses.
""".strip()


def table_text(rows: Sequence[Row]) -> str:
    """Markdown: the machine, the table, the summary, and what is missing or was missed and why."""
    parts = [_machine(rows), _table(rows), _NOTES, *_summary(rows)]
    return "\n\n".join(part for part in parts if part)


def line_of(row: Row) -> str:
    """One row as a line of text."""
    if row.verdict is None or row.timing is None:
        status = row.verdict.status.value if row.verdict else "-"
        words = f"{row.attempts} attempts, {row.accepted} accepted" + (f"  {row.why}" if row.why else "")
        return f"{row.task:22} {status:10} {words}{_public_in_short(row)}"
    hardest = row.hardest
    over = f"{_factor(hardest.speedup)} over {_name(hardest.baseline)}" if hardest else ""
    cut = f"  ({row.why})" if row.why else ""
    return f"{row.task:22} {row.timing.median_us:10.2f} us  {over}  {row.attempts} attempts{cut}{_public_in_short(row)}"


def parts_of(parts: Mapping[str, float]) -> str:
    """The seconds of a task's parts, in brackets; "" where none is known."""
    told = ", ".join(f"{name} {seconds:.0f}" for name, seconds in parts.items())
    return f" ({told})" if told else ""


def _public_in_short(row: Row) -> str:
    if not row.public:
        return ""
    right = sum(kernel.status in ("correct", "checked") for kernel in row.public)
    over = "" if row.over_public is None else f", {_factor(row.over_public.speedup)} over the fastest"
    return f"  public: {right} of {len(row.public)} right{over}"


def _machine(rows: Sequence[Row]) -> str:
    """Where this was measured, as far as it is one place."""
    gpus = sorted({row.gpu or "no GPU: checked, nothing is timed" for row in rows if row.run_id})
    names = ("torch", "triton", "python")
    told = {", ".join(f"{n} {row.versions[n]}" for n in names if n in row.versions) for row in rows if row.run_id}
    return "; ".join([*gpus, *sorted(told)])


def _table(rows: Sequence[Row]) -> str:
    lines = [_HEAD, ["---"] * len(_HEAD), *map(_cells, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _cells(row: Row) -> list[str]:
    baselines = [_us(row.baselines_us.get(name)) for name in BASELINES]
    return [
        row.task, row.sizes, *baselines, _public(row), _ours(row), _over(row), _ratio(row.over_public),
        _percent(row.verdict.sol_fraction if row.verdict else None), _percent(row.copy_share),
        _percent(row.verdict.coverage if row.verdict else None), str(row.attempts or ""),
        "" if row.seconds is None else f"{row.seconds:.0f}",
    ]  # fmt: skip


def _ours(row: Row) -> str:
    timing = row.timing
    if timing is not None:
        tier = "" if row.verdict is None or row.verdict.tier == "confirmed" else f" ({row.verdict.tier})"
        return f"**{_us(timing.median_us)}** [{_us(timing.low_us)}, {_us(timing.high_us)}]{tier}"
    if row.verdict is not None:
        return f"{row.verdict.status.value}, not timed"
    return "no result" if row.attempts == 0 else "none accepted"


def _over(row: Row) -> str:
    return f"{_ratio(row.hardest)} {_name(row.hardest.baseline)}" if row.hardest else ""


def _public(row: Row) -> str:
    theirs = row.fastest_public
    if theirs is not None:
        return f"{_us(theirs.timing.median_us if theirs.timing else None)} {source_of(theirs.name)}"
    return ", ".join(f"{source_of(kernel.name)}: {kernel.status}" for kernel in row.public)


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    timed = [row for row in rows if row.hardest]
    yield f"{len(timed)} of {len(rows)} tasks timed." if timed else _checked_only(rows)
    if timed:
        yield _mean(timed)
        yield _list("Goals", _goals(timed, len(rows)))
    if parts := _mean_parts(rows):
        yield f"Seconds of a task, on average over those that have the part: {parts}."
    yield _list("Tasks without a result, or cut short", (f"{row.task}: {row.why}" for row in rows if row.why))
    yield _list("Public kernels that were not judged", (f"{row.task}: {why}" for row in rows for why in row.troubles))
    refused = [(row, kernel) for row in rows for kernel in row.public if kernel.status not in ("correct", "checked")]
    yield _list("Public kernels that were not right", (_refused(row, kernel) for row, kernel in refused))


def _mean_parts(rows: Sequence[Row]) -> str:
    names = dict.fromkeys(name for row in rows for name in row.parts)
    return ", ".join(f"{name} {fmean(row.parts[name] for row in rows if name in row.parts):.1f}" for name in names)


def _checked_only(rows: Sequence[Row]) -> str:
    right = sum(row.accepted > 0 for row in rows)
    return f"Nothing was timed. {right} of {len(rows)} tasks have a kernel that was checked."


def _refused(row: Row, kernel: Kernel) -> str:
    return f"{row.task}, {source_of(kernel.name)}: {kernel.status}, {' '.join(kernel.detail.split())[:200]}"


def _mean(timed: Sequence[Row]) -> str:
    """The geometric mean. Its interval is that of the measurements, not of other tasks that might have been chosen."""
    found = [row.hardest for row in timed if row.hardest]
    middle = fmean(math.log(c.speedup) for c in found)
    half = math.sqrt(sum((math.log(c.high / c.low) / 2) ** 2 for c in found)) / len(found)
    low, high = math.exp(middle - half), math.exp(middle + half)
    kept = sum(c.speedup >= LEAST for c in found)
    words = f"Geometric mean over the best of the three: **{math.exp(middle):.3f}x** [{low:.3f}, {high:.3f}]"
    words += f" (of the measurements); {kept} of {len(found)} at or above {LEAST}x."
    others = [row.over_public.speedup for row in timed if row.over_public]
    if others:
        mean = math.exp(fmean(map(math.log, others)))
        ahead = sum(over >= 1 for over in others)
        words += f" Over the fastest public kernel: {mean:.3f}x on {len(others)} tasks, {ahead} of them ahead."
    return words


def _goals(timed: Sequence[Row], of: int) -> Iterator[str]:
    """Each goal: met, or missed by whom."""
    speedups = {row.task: row.hardest.speedup for row in timed if row.hardest}
    mean = math.exp(fmean(map(math.log, speedups.values())))
    words = f"{mean:.3f}x on {len(timed)} of {of} tasks"
    yield _met(f"geometric mean at least {GEOMEAN}x", mean >= GEOMEAN and len(timed) == of, [words])
    low = {name: s for name, s in speedups.items() if s < LEAST}
    yield _met(f"no task below {LEAST}x", not low, [f"{name} {_factor(s)}" for name, s in low.items()])
    shares = {row.task: row.copy_share for row in timed if row.copy_share is not None}
    slow = [f"{name} {_percent(s)}" for name, s in shares.items() if s < COPY]
    yield _met(f"the {len(shares)} tasks that memory bounds at 90 % of the copy bandwidth", not slow, slow)
    yield from _over_eager(timed, ("matmul_bf16",), CUBLAS, "of cuBLAS")
    yield from _over_eager(timed, ATTENTION, SDPA, "of SDPA")
    late = [f"{row.task} {row.seconds:.0f} s" for row in timed if row.seconds is not None and row.seconds > MOST_S]
    yield _met(f"searches within {MOST_S:.0f} s", not late, late)


def _over_eager(timed: Sequence[Row], tasks: Sequence[str], goal: float, words: str) -> Iterator[str]:
    found = [(row.task, over) for row in timed if row.task in tasks and (over := row.over("eager")) is not None]
    for task, over in found:
        yield _met(f"{task} at least {goal}x {words}", over >= goal, [_factor(over)])


def _met(goal: str, met: bool, culprits: Sequence[str]) -> str:
    return f"{goal}: met" if met else f"{goal}: **missed**: {', '.join(culprits)}"


def _list(title: str, items: Iterable[str]) -> str:
    lines = [f"- {item}" for item in items]
    return "\n".join([f"{title}:", "", *lines]) if lines else ""


def _name(baseline: str) -> str:
    return BASELINES.get(baseline, baseline)


def _factor(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}x"


def _ratio(found: Comparison | None) -> str:
    return "" if found is None else f"{_factor(found.speedup)} [{found.low:.3f}, {found.high:.3f}]"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _us(value: float | None) -> str:
    """Four digits, and at least two places below 100."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
