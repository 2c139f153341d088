"""Formats values for people. Pure functions."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from kerneltune.agent.attempt import GivenFile, point_of
from kerneltune.tools.schema.codec import Json, one_line, plain
from kerneltune.tools.schema.verdict import (
    NOT_TIMED,
    CaseTime,
    Comparison,
    KernelReport,
    Status,
    Timing,
    Verdict,
    fastest_first,
)

if TYPE_CHECKING:
    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.events import RunStarted
    from kerneltune.agent.record.query import RunSummary
    from kerneltune.agent.record.trajectory import Message

DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}  # by how a line of a difference begins
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
RANKED_BY = "ranked by effective bytes, spills, occupancy, registers"  # where nothing is timed
FIRST_CHOICE = "first choice, not timed"
NO_GPU = "no GPU: results are `checked`, not timed — run on a machine with an NVIDIA GPU to get times"


def lines(text: str) -> str:
    """Make a text of several lines plain, tabs as blanks: where tabs end differs between terminals."""
    return plain(text, None).expandtabs(4)


def duration(seconds: float) -> str:
    """Format a wall-clock time: 7s, 1m 02s, 2h 03m. A damaged record may hold any number."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def size(n_bytes: int) -> str:
    """Format bytes as compilers do: 0 B, 528 B, 33 KiB."""
    return f"{n_bytes} B" if n_bytes < 1024 else f"{n_bytes / 1024:.3g} KiB"


def microseconds(us: float) -> str:
    """Format a device time in µs with four digits."""
    return f"{_digits(us)} µs"


def timing(measured: Timing) -> str:
    """Format a median and its 95 % interval."""
    return f"{microseconds(measured.median_us)} ({_digits(measured.low_us)}-{_digits(measured.high_us)})"


def speedup(comparison: Comparison) -> str:
    """Format a speed-up with its interval, or that there is no difference."""
    places = 3 if comparison.high < 10 else 2
    factor, low, high = (f"{value:.{places}f}" for value in (comparison.speedup, comparison.low, comparison.high))
    return f"{'no difference' if comparison.low <= 1.0 <= comparison.high else f'{factor}x'} ({low}-{high})"


def case_time(its: CaseTime) -> str:
    """Format one weighted case: "12.30 µs (12.10-12.50), 0.910x (0.900-0.920) vs compile"."""
    compared = (f"{speedup(c)} vs {c.baseline}" for c in fastest_first(its.comparisons)[:1])
    return one_line(", ".join((timing(its.timing), *compared)))


def short_speedup(comparison: Comparison) -> str:
    """Format a speed-up for a column of a table."""
    return "no diff." if comparison.low <= 1.0 <= comparison.high else f"{comparison.speedup:.2f}x"


def error(verdict: Verdict) -> str:
    """Format the largest error of an accepted attempt; "" of others."""
    if not (verdict.accepted and verdict.cases):
        return ""
    return f"error {max(c.error_ratio for c in verdict.cases):.2g} of tolerance"


def outcome(verdict: Verdict) -> str:
    """Format a verdict in a line of a log: "ok, error 0.21 of tolerance, 126.6 µs, 1.02x"; of what is not accepted, its
    status and why."""
    if not verdict.accepted:
        return f"{verdict.status.value}: {verdict.detail}"
    told = ["ok", *filter(None, [error(verdict)])]
    if verdict.timing is not None:
        told.append(microseconds(verdict.timing.median_us))
    told += [short_speedup(c) for c in fastest_first(verdict.comparisons)[:1]]
    if verdict.not_timed is not None:
        told.append(f"not timed: {NOT_TIMED[verdict.not_timed]}")
    return ", ".join(told)


def registers(kernels: Sequence[KernelReport]) -> str:
    """Format registers per thread of each kernel: 40, or 40+32; "" before it is compiled."""
    shown = "+".join(str(k.registers) for k in kernels[:3])
    return shown + "+…" * (len(kernels) > 3)


def spill_bytes(kernels: Sequence[KernelReport]) -> int:
    """Sum the bytes spilled per thread, stores and loads of all kernels."""
    return sum(k.spill_bytes for k in kernels)


def occupancy(kernels: Sequence[KernelReport]) -> float:
    """Return resident warps / maximum of the least occupied kernel."""
    return min((k.occupancy for k in kernels), default=0.0)


def shared_bytes(kernels: Sequence[KernelReport]) -> int:
    """Return the largest shared memory per block, in bytes."""
    return max((k.shared_bytes for k in kernels), default=0)


def compiler_facts(kernels: Sequence[KernelReport]) -> str:
    """Format registers, spills, occupancy and shared memory."""
    if not kernels:
        return "no kernel compiled"
    return "   ".join(
        (
            f"registers {registers(kernels)}",
            f"spills {size(spill_bytes(kernels))}",
            f"occupancy {occupancy(kernels):.0%}",
            f"shared {size(shared_bytes(kernels))}",
        )
    )


def tokens(n: int) -> str:
    """Format tokens in three digits: 812, 5.1k, 1.2M."""
    return f"{n}" if n < 1000 else f"{n / 1000:.3g}k" if n < 999_500 else f"{n / 1e6:.3g}M"


def dollars(usd: float) -> str:
    """Format dollars with as many digits as they need."""
    return f"${usd:.2f}" if usd >= 1 else f"${usd:.3f}" if usd >= 0.01 else f"${usd:.4f}"


def _digits(us: float) -> str:
    return f"{us:.0f}" if us >= 1000 else f"{us:.1f}" if us >= 100 else f"{us:.2f}" if us >= 10 else f"{us:.3f}"


@dataclass(frozen=True)
class VerdictStyle:
    """One row of the table. `symbol` is one cell wide; `ansi` is the colour's SGR code for plain lines; `mark`:
    of charts, where marks differ for those who cannot tell the colours, on paper too."""

    symbol: str
    colour: str
    ansi: int
    mark: str


_TABLE = {
    Status.CORRECT: VerdictStyle("✔", "green", 32, "circle"),
    Status.CHECKED: VerdictStyle("✓", "cyan", 36, "circle"),
    Status.UNCHECKED: VerdictStyle("?", "yellow", 33, "bar"),
    Status.WRONG: VerdictStyle("✗", "red", 31, "cross"),
    Status.IMPOSSIBLE: VerdictStyle("!", "red", 31, "diamond"),
    Status.CRASHED: VerdictStyle("†", "red", 31, "plus"),
    Status.TIMED_OUT: VerdictStyle("◔", "yellow", 33, "square"),
    Status.COMPILE_FAILED: VerdictStyle("⊗", "magenta", 35, "triangle"),
    Status.REJECTED: VerdictStyle("⊘", "magenta", 35, "bar"),
}
LABEL_WIDTH = max(len(status.value) for status in Status)


def verdict_style(status: Status) -> VerdictStyle:
    """Return the style of a status."""
    return _TABLE[status]


def limits_in_words(limits: Mapping[str, Json]) -> str:
    """Format how a run was begun: "max_attempts 24, strategy refine, lessons 3"; "" for nothing."""
    told = {name: len(value) if isinstance(value, dict) else value for name, value in limits.items()}
    return ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)


def verdict_label(status: Status, *, padded: bool = True) -> Text:
    """Format a status as symbol and word, in its colour."""
    style = verdict_style(status)
    word = status.value.ljust(LABEL_WIDTH) if padded else status.value
    return Text(f"{style.symbol} {word}", style=style.colour, no_wrap=True)


def where(run: "RunSummary | RunStarted") -> str:
    """Format the GPU, or that there was none."""
    return run.gpu or f"no GPU ({run.arch})"


def said_of(run: "RunSummary") -> str:
    """What a filter of runs looks at, in small letters."""
    return f"{run.run_id} {run.task} {run.author} {where(run)} {' '.join(run.by_status)}".lower()


def best_in_words(run: "RunSummary", *, in_full: bool = False) -> str:
    """Format the best attempt: its number, time and speed-up over the fastest baseline, and its last verification.
    `in_full`: also what a column beside it would say."""
    if run.best_attempt_id is None:
        return "none"
    time = microseconds(run.best_us) if run.best_us is not None else f"({FIRST_CHOICE})" if in_full else ""
    over = " over the fastest baseline" if in_full else ""
    speedup = f", {run.best_speedup:.2f}x{over}" if run.best_speedup is not None else ""
    held = {None: "", True: " (verified)", False: " (did not hold)"}[run.verified]
    return one_line(f"#{run.best_attempt_id.rpartition('/')[2]} {time}{speedup}{held}")


def parent_name(attempt_id: str, parent_id: str | None) -> str:
    """Format the attempt that one was derived from: its number, or its id where it is of another run; "" for none."""
    run, _, number = (parent_id or "").rpartition("/")
    return f"#{number}" if number and run == attempt_id.rpartition("/")[0] else parent_id or ""


_MOST_OF_A_CLAUSE = 48  # characters of what an author says that become a name
_CLAUSE = re.compile(r"[.;:] ")
_SHORT = {"WARPS": "w", "STAGES": "s"}  # as kernels' authors abbreviate them


def short_name(attempt: "Attempt") -> str:
    """Name an attempt in few words: a point of a search by its parameters ("softmax_row tile=8192 w16"), a file by its
    name, others by the first clause of what their author said."""
    if (point := point_of(attempt.origin)) is not None and point.sketch:
        return one_line(" ".join([point.sketch, *_parameters(point.params)]))
    if isinstance(attempt.origin, GivenFile):
        return one_line(attempt.origin.name.rpartition("/")[2])
    said = one_line(attempt.rationale)
    clause = _CLAUSE.split(said, maxsplit=1)[0]
    return clause if len(clause) <= _MOST_OF_A_CLAUSE else f"{clause[: _MOST_OF_A_CLAUSE - 1]}…"


def _parameters(params: Mapping[str, int]) -> Iterator[str]:
    """Launch parameters without what all of their names begin with, which is the kernel's name."""
    parts, cut = [name.split("_") for name in params], 0
    while len(parts) > 1 and all(len(its) > cut + 1 for its in parts) and len({its[cut] for its in parts}) == 1:
        cut += 1
    for its, value in zip(parts, params.values(), strict=True):
        name = "_".join(its[cut:]).removeprefix("NUM_")
        short = _SHORT.get(name)
        shorter = name.removesuffix("BLOCK").removeprefix("BLOCK_").strip("_") or name
        yield f"{short}{value}" if short else f"{shorter.lower()}={value}"


def message_facts(message: "Message") -> Iterator[str]:
    """Format what is known of a message beside its words."""
    if message.turn is not None:
        yield f"turn {message.turn}"
    if message.model:
        yield message.model
    if message.seconds is not None:
        yield f"{message.seconds:.1f} s"
    counted = [((message.usage or {}).get(f"{kind}put_tokens"), kind) for kind in ("in", "out")]
    if told := [f"{tokens(n)} {kind}" for n, kind in counted if isinstance(n, int)]:
        yield "tokens " + ", ".join(told)
    if message.cost_usd is not None:
        yield dollars(message.cost_usd)
    if message.stop not in ("", "end", "tools"):
        yield f"ended by {message.stop}"
    if message.is_error:
        yield "an error"
    if message.history:
        yield "a history that took the place of what was said before"


def argument(value: object, most: int | None = None) -> str:
    """Format an argument of a call, several lines below each other with a rule beside them; at most so many characters
    of it."""
    shown = str(value)[:most].strip("\n")
    return "\n" + "\n".join(f"   | {line}" for line in shown.splitlines()) if "\n" in shown else shown
