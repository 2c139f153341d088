"""What was found for KernelBench's problems, in words: a line while it runs, and the report in Markdown."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.kernelbench_lines import LEVELS, RIGHT, STAGES, Line

NOT_SLOWER = 0.98
_HEAD = ["level", "tried", "candidate", "traces", "compiles"]
_TIMED_HEAD = ["beats eager", "beats torch.compile", f"at least {NOT_SLOWER} of torch.compile", "geometric mean"]
_PARTS = ("prepared", "freed", "waited", "open", "load", "judge", "end", "all")


def line_text(line: Line) -> str:
    """One problem: what came of it, and the seconds of its parts."""
    best = best_of(line)
    over = [f"{c[0]:.3f}x {name}" for name, c in best["over"].items()] if best else []
    seconds = ", ".join(f"{name} {line['seconds'][name]:.1f}" for name in _PARTS if name in line["seconds"])
    words = [line["stage"] or "unreadable", line["problem"], *over, f"{len(line['attempts'])} judged", seconds]
    return "  ".join([*words, line["cause"][:160]]).rstrip()


def report(lines: Mapping[str, Line]) -> Iterator[str]:
    """The shares by level, the failures by cause, and what was measured."""
    if not lines:
        yield "Nothing is stored."
        return
    is_timed = any(best_of(line) for line in lines.values())
    yield from _table(lines, is_timed=is_timed)
    yield from _listed("Not right, by cause", lines, lambda line: [] if line["stage"] in RIGHT else [line["cause"]])
    if is_timed:
        yield from _listed("Baselines, notes", lines, lambda line: line.get("notes", []))
    yield from ("", _measured(list(lines.values())))


def best_of(line: Line) -> Line | None:
    """The fastest of the candidates that are right and timed."""
    timed = [attempt for attempt in line["attempts"] if attempt.get("us")]
    return min(timed, key=lambda attempt: float(attempt["us"][0]), default=None)


def _table(lines: Mapping[str, Line], *, is_timed: bool) -> Iterator[str]:
    head = [*_HEAD, f"`{RIGHT[is_timed]}`", *(_TIMED_HEAD if is_timed else [])]
    yield _row(head)
    yield _row(["---"] * len(head))
    for level in (*LEVELS, ""):
        own = [line for name, line in lines.items() if name.startswith(level)]
        if own:
            yield _row([level or "both", str(len(own)), *_reached(own), *(_compared(own) if is_timed else [])])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _reached(lines: Sequence[Line]) -> list[str]:
    ranks = Counter(STAGES.index(line["stage"] or STAGES[0]) for line in lines)
    return [str(sum(n for rank, n in ranks.items() if rank >= STAGES.index(stage))) for stage in STAGES[1:5]]


def _compared(lines: Sequence[Line]) -> list[str]:
    """How many of those that have the baseline beat it, and by how much the faster one of both is."""
    found = [best["over"] for line in lines if (best := best_of(line))]
    eager, compiled = ([over[name] for over in found if name in over] for name in ("eager", "compile"))
    both = [min(over["eager"][0], over["compile"][0]) for over in found if {"eager", "compile"} <= over.keys()]
    mean = f"{math.exp(fmean(map(math.log, both))):.3f}x ({len(both)})" if both else ""
    beats = [f"{sum(low > 1 for _, low, _ in arms)} of {len(arms)}" for arms in (eager, compiled)]
    kept = f"{sum(speedup >= NOT_SLOWER for speedup, _, _ in compiled)} of {len(compiled)}"
    return [*beats, kept, mean]


def _listed(title: str, lines: Mapping[str, Line], words_of: Callable[[Line], Sequence[str]]) -> Iterator[str]:
    """Problems by what is said of them, the most frequent first."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, line in lines.items():
        for words in dict.fromkeys(map(kind_of, words_of(line))):
            kinds[words].append(re.sub(r"level(\d)/(\d+)_.*", r"\1/\2", name))
    if kinds:
        yield from ("", f"{title}:", "")
    for words, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
        yield f"- {len(names)}: {words}: {', '.join(names)}"


def kind_of(cause: str) -> str:
    """A cause without the numbers and names that are this problem's own."""
    return re.sub(r"\d[\d.,e+-]*", "#", " ".join(cause.split()))[:160]


def _measured(lines: Sequence[Line]) -> str:
    """Where, by what, how thoroughly, and what a problem took."""
    attempts = [attempt for line in lines for attempt in line["attempts"]]
    gpus = _unique(line.get("gpu") or "no GPU: checked on small cases, nothing is timed" for line in lines)
    names = ("torch", "triton", "python")
    told = _unique(", ".join(f"{n} {line['versions'][n]}" for n in names) for line in lines if "versions" in line)
    words = [*gpus, *told]
    if tiers := _unique(a["tier"] for a in attempts if a.get("tier")):
        most = max(len(line["attempts"]) for line in lines)
        words.append(f"tier {'/'.join(tiers)}, the fastest of up to {most}, none confirmed in other processes")
    if slots := [int(a["slots"]) for a in attempts if a.get("slots")]:
        words.append(
            f"slots {min(slots)} to {max(slots)}, median {median(slots):g}; {slots.count(1)} timed in one slot"
        )
    library = sum(bool((best_of(line) or _right(line)).get("library")) for line in lines)
    words.append(f"a library does part of the work in {library} of those that are right")
    return "; ".join([*words, f"seconds of a problem, median (most): {_seconds(lines)}"]) + "."


def _right(line: Line) -> Line:
    return next((attempt for attempt in line["attempts"] if attempt["stage"] in RIGHT), {})


def _seconds(lines: Sequence[Line]) -> str:
    told = [line["seconds"] for line in lines if isinstance(line.get("seconds"), dict)]
    parts = [(name, [one[name] for one in told if name in one]) for name in _PARTS]
    return ", ".join(f"{name} {median(found):.1f} ({max(found):.1f})" for name, found in parts if found)


def _unique(words: Any) -> list[str]:
    return sorted(set(words))
