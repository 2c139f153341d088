"""What `optimize show` shows of a run: what it is, how it ended, and its attempts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agent.record.events import RunStarted
from agent.record.query import AttemptSummary, RunSummary
from agent.view import text as words
from agent.view.listing import run_json, where
from agent.view.page import Page, columns, facts, heading, short
from agent.view.styles import verdict_label
from tools.codec import Json, encode
from tools.verdict import Comparison, Status, Timing

SCHEMA_VERSION = 1
_MOST_DETAIL = 160  # characters of what was wrong, in a line of a table
_RIGHT = (Status.CORRECT, Status.CHECKED)


@dataclass(frozen=True)
class ShownRun:
    """A run, those of its attempts that were asked for, and the file with its best kernel, if that is here."""

    started: RunStarted
    summary: RunSummary
    attempts: Sequence[AttemptSummary]
    best_path: str | None


def print_run(run: ShownRun, page: Page) -> None:
    """Facts, then a line an attempt."""
    page.print(_facts(run), heading(f"{words.plural(len(run.attempts), 'attempt')}{_of(run)}"))
    if run.attempts:
        page.print(attempts_table(run.attempts, run.summary.best_attempt_id))


def run_and_attempts_json(run: ShownRun) -> dict[str, Json]:
    """The one object of --json."""
    about = ("author_why", "task_sha256", "machine", "limits", "seed", "versions")
    return {
        "type": "run",
        "schema_version": SCHEMA_VERSION,
        **run_json(run.summary),
        **{name: encode(getattr(run.started, name)) for name in about},
        "best_path": run.best_path,
        "attempts_shown": encode(run.attempts),
    }


def _of(run: ShownRun) -> str:
    left_out = run.summary.attempts - len(run.attempts)
    return f" of {run.summary.attempts}" if left_out > 0 else ""


def _facts(run: ShownRun) -> Table:
    table, summary, started = facts(), run.summary, run.started
    table.add_row("run", words.one_line(summary.run_id))
    table.add_row("task", words.one_line(f"{summary.task}  (sha256 {started.task_sha256[:16]})"))
    table.add_row("author", words.one_line(f"{summary.author}  ({started.author_why})"))
    table.add_row("where", words.one_line(where(summary)))
    table.add_row("began", f"{summary.started:%Y-%m-%d %H:%M:%S} UTC")
    table.add_row("ended", summary.why or "not yet, or its process was killed")
    table.add_row("versions", words.one_line(", ".join(f"{k} {v}" for k, v in started.versions.items())))
    limits = ", ".join(f"{k} {v}" for k, v in started.limits.items() if v is not None)
    table.add_row("limits", words.one_line(limits) or "none")
    table.add_row("verdicts", _counts(summary))
    table.add_row("best", words.one_line(best_words(summary)))
    if run.best_path:
        table.add_row("kernel", Text(words.one_line(run.best_path), style="bold"))
    return table


def best_words(run: RunSummary) -> str:
    """The best attempt in short."""
    if run.best_attempt_id is None:
        return "none"
    speedup = f", {run.best_speedup:.2f}x over the fastest baseline" if run.best_speedup is not None else ""
    time = f"  {words.microseconds(run.best_us)}{speedup}" if run.best_us is not None else "  not timed"
    held = {None: "", True: "; verified", False: "; the last verification did not hold"}[run.verified]
    return f"#{run.best_attempt_id.rpartition('/')[2]}{time}{held}"


def _counts(run: RunSummary) -> Text:
    counts = Text()
    for status in Status:
        if n := run.by_status.get(status.value):
            counts.append_text(verdict_label(status, padded=False)).append(f" {n}   ")
    return counts if run.by_status else Text("none yet")


def attempts_table(attempts: Sequence[AttemptSummary], best_id: str | None = None) -> Table:
    """A line an attempt: what it was derived from, what was tried, and what came of it."""
    shown = ("#", "parent", "verdict", "time", "speed-up", "regs", "spills", "tried")
    table = columns(*shown, right=("#", "parent", "spills"), cut=("tried",))
    for attempt in attempts:
        table.add_row(*_row(attempt), style="bold" if attempt.attempt_id == best_id else "")
    return table


def _row(attempt: AttemptSummary) -> Iterator[RenderableType]:
    yield str(attempt.number)
    yield words.one_line(parent_words(attempt))
    yield label(attempt.status)
    yield time_words(attempt)
    yield speedup_words(attempt)
    yield "+".join(map(str, attempt.registers[:3])) + "+…" * (len(attempt.registers) > 3) or "-"
    yield f"{attempt.spill_bytes}" if attempt.registers else "-"
    why = "" if attempt.status in (None, *_RIGHT) else f"  [{words.one_line(attempt.detail)[:_MOST_DETAIL]}]"
    yield short(attempt.rationale + why)


def label(status: str | None) -> Text:
    """A verdict's symbol and word, or that there is none."""
    if status is None:
        return Text("· no verdict", style="dim")
    made = verdict_label(Status(status), padded=False)
    made.no_wrap = False
    return made


def parent_words(attempt: AttemptSummary) -> str:
    """The parent's number, or its id when it is of another run."""
    if attempt.parent_id is None:
        return "-"
    run, _, number = attempt.parent_id.rpartition("/")
    return f"#{number}" if run == attempt.attempt_id.rpartition("/")[0] else attempt.parent_id


def time_words(attempt: AttemptSummary) -> str:
    """Median and interval."""
    if attempt.median_us is None or attempt.low_us is None or attempt.high_us is None:
        return "-"
    return words.timing(Timing(attempt.median_us, attempt.low_us, attempt.high_us, 0, 0))


def speedup_words(attempt: AttemptSummary) -> str:
    """Over the baseline that was hardest to beat, with its interval."""
    if attempt.speedup is None or attempt.speedup_low is None or attempt.speedup_high is None:
        return "-"
    return words.speedup(Comparison("", 0.0, attempt.speedup, attempt.speedup_low, attempt.speedup_high))
