"""What `optimize verify` shows: the stored verdict and the new one side by side, and whether it held."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.view import text as words
from agent.view.styles import verdict_label
from tools.codec import Json, encode
from tools.verdict import Status, Verdict

SCHEMA_VERSION = 1
_SHOWN_VERSIONS = ("kerneltune", "torch", "triton", "python")


@dataclass(frozen=True)
class Side:
    """One of the two verdicts, and where it was reached."""

    verdict: Verdict
    gpu: str | None
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Verification:
    """The outcome. `differs`: what is not as it was, one line each."""

    attempt_id: str
    old: Side
    new: Side
    held: bool
    why: str
    differs: tuple[str, ...]
    receipt: dict[str, Json]
    receipt_path: str


def print_verification(found: Verification, *, colour: bool) -> None:
    """A table, then the differences, then the conclusion."""
    console = Console(no_color=not colour, highlight=False)
    console = Console(no_color=not colour, highlight=False, width=max(100, console.width))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "stored", "now"):
        table.add_column(name, overflow="fold")
    for row in _rows(found):
        table.add_row(*row)
    console.print(Text(f"attempt {found.attempt_id}", style="bold"))
    console.print(table)
    for line in found.differs:
        console.print(Text(words.one_line(f"differs: {line}"), style="yellow"))
    word, style = ("held", "green") if found.held else ("did not hold", "red")
    if found.old.verdict.accepted and found.new.verdict.status is Status.UNCHECKED:
        word, style = "not decided", "yellow"
    console.print(Text.assemble((f"{word}: ", f"bold {style}"), words.one_line(found.why)))
    console.print(Text(f"receipt {found.receipt_path}"))


def _rows(found: Verification) -> Iterator[tuple[str | Text, str | Text, str | Text]]:
    old, new = found.old, found.new
    yield "status", verdict_label(old.verdict.status), verdict_label(new.verdict.status)
    yield "time", _time(old.verdict), _time(new.verdict)
    for name in _baselines(old.verdict, new.verdict):
        yield f"over {name}", _speedup(old.verdict, name), _speedup(new.verdict, name)
    yield "tier", old.verdict.tier or "-", new.verdict.tier or "-"
    yield "coverage", _share(old.verdict.coverage), _share(new.verdict.coverage)
    yield "worst error", _error(old.verdict), _error(new.verdict)
    yield "GPU", old.gpu or "none", new.gpu or "none"
    for name in _SHOWN_VERSIONS:
        yield name, old.versions.get(name, "?"), new.versions.get(name, "?")


def _baselines(old: Verdict, new: Verdict) -> Sequence[str]:
    found = words.fastest_first((*old.comparisons, *new.comparisons))
    return list(dict.fromkeys(c.baseline for c in found))


def _time(verdict: Verdict) -> str:
    return words.timing(verdict.timing) if verdict.timing else "not timed"


def _speedup(verdict: Verdict, baseline: str) -> str:
    return next((words.speedup(c) for c in verdict.comparisons if c.baseline == baseline), "-")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _error(verdict: Verdict) -> str:
    if not verdict.cases:
        return "-"
    return f"{max(c.error_ratio for c in verdict.cases):.2g} of the tolerance, {len(verdict.cases)} input sets"


def verification_json(found: Verification) -> dict[str, Json]:
    """The one object of --json."""
    return {
        "type": "verification",
        "schema_version": SCHEMA_VERSION,
        "attempt_id": found.attempt_id,
        "held": found.held,
        "why": found.why,
        "differs": list(found.differs),
        "old": _side(found.old),
        "new": _side(found.new),
        "receipt_path": found.receipt_path,
        "receipt": found.receipt,
    }


def _side(side: Side) -> dict[str, Json]:
    verdict = {k: v for k, v in encode(side.verdict).items() if k != "receipt"}
    return {"verdict": verdict, "gpu": side.gpu, "versions": dict(side.versions)}
