"""A stored run in a few words and as JSON: what several commands say of one."""

from dataclasses import fields
from typing import TYPE_CHECKING

from kerneltune.agent.view import text as words
from kerneltune.tools.schema.codec import Json, encode, one_line

if TYPE_CHECKING:
    from kerneltune.agent.record.query import RunSummary


def where(run: "RunSummary") -> str:
    """Format the GPU, or that there was none."""
    return run.gpu or f"no GPU ({run.arch})"


def best_in_words(run: "RunSummary", *, in_full: bool = False) -> str:
    """Format the best attempt: its number, time and speed-up over the fastest baseline, and its last verification.
    `in_full`: also what a column beside it would say."""
    if run.best_attempt_id is None:
        return "none"
    time = words.microseconds(run.best_us) if run.best_us is not None else f"({words.FIRST_CHOICE})" if in_full else ""
    over = " over the fastest baseline" if in_full else ""
    speedup = f", {run.best_speedup:.2f}x{over}" if run.best_speedup is not None else ""
    held = {None: "", True: " (verified)", False: " (did not hold)"}[run.verified]
    return one_line(f"#{run.best_attempt_id.rpartition('/')[2]} {time}{speedup}{held}")


def parent_name(attempt_id: str, parent_id: str | None) -> str:
    """Format the attempt that one was derived from: its number, or its id where it is of another run; "" for none."""
    run, _, number = (parent_id or "").rpartition("/")
    return f"#{number}" if number and run == attempt_id.rpartition("/")[0] else parent_id or ""


def run_json(run: "RunSummary") -> dict[str, Json]:
    """Return a run as one JSON object."""
    facts = {f.name: getattr(run, f.name) for f in fields(run)}
    return {name: encode(v) for name, v in facts.items() if name != "started"} | {"started": str(run.started)}
