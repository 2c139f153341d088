"""What `optimize selftest` shows: a table of attack classes, and a line for each failure."""

import json as jsonlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.view import text as words
from tools.codec import Json
from tools.corpus import Kind, Outcome, Specimen
from tools.verdict import Verdict

SCHEMA_VERSION = 1
FAILURES = ("accepted", "false_alarm")


@dataclass(frozen=True)
class Result:
    """What became of one specimen. `verdict` is None when it was skipped."""

    name: str
    kind: Kind
    family: str
    says: str
    outcome: Outcome
    verdict: Verdict | None


@dataclass(frozen=True)
class Tally:
    """The counts of one class."""

    family: str
    attacks: int
    stopped: int
    honest: int
    false_alarms: int
    skipped: int


def is_clean(results: Sequence[Result]) -> bool:
    """Whether every attack was stopped and no honest kernel rejected. Nothing run at all is not clean."""
    ran = [r for r in results if r.outcome != "skipped"]
    return bool(ran) and not any(r.outcome in FAILURES for r in ran)


def tallies(results: Sequence[Result]) -> list[Tally]:
    """The counts by class, in alphabetical order."""
    return [
        _tally(family, [r for r in results if r.family == family]) for family in sorted({r.family for r in results})
    ]


def _tally(family: str, results: Sequence[Result]) -> Tally:
    def count(**wanted: str) -> int:
        return sum(all(getattr(r, name) == value for name, value in wanted.items()) for r in results)

    return Tally(
        family,
        attacks=count(kind="attack"),
        stopped=count(outcome="stopped"),
        honest=count(kind="honest"),
        false_alarms=count(outcome="false_alarm"),
        skipped=count(outcome="skipped"),
    )


def print_results(results: Sequence[Result], gpu: str | None) -> None:
    """The table, a line for each failure, and the conclusion."""
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(100, console.width))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("class")
    for name in ("attacks", "stopped", "honest", "false alarms", "skipped"):
        table.add_column(name, justify="right")
    rows = tallies(results)
    for row in rows:
        table.add_row(row.family, *map(str, (row.attacks, row.stopped, row.honest, row.false_alarms, row.skipped)))
    console.print(table)
    for line in _failures(results):
        console.print(Text(line, style="red"), soft_wrap=True)
    console.print(Text(_conclusion(results, gpu)), soft_wrap=True)


def told(result: Result) -> str:
    """One line while the corpus runs; of a failure also the verdict, since a run may not live to print its table."""
    line = f"{result.family}/{result.name}: {result.outcome}"
    return f"{line} ({_verdict(result.verdict)})" if result.outcome in FAILURES and result.verdict else line


def _failures(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.outcome in FAILURES and result.verdict is not None:
            what = "NOT STOPPED" if result.kind == "attack" else "FALSE ALARM"
            yield words.one_line(f"{what}  {result.family}/{result.name}: {result.says}; {_verdict(result.verdict)}")


def _verdict(verdict: Verdict) -> str:
    return f"{verdict.status.value}: {verdict.detail}"


def _conclusion(results: Sequence[Result], gpu: str | None) -> str:
    ran = [r for r in results if r.outcome != "skipped"]
    attacks, honest = (sum(r.kind == kind for r in ran) for kind in ("attack", "honest"))
    stopped, alarms = (sum(r.outcome == outcome for r in ran) for outcome in ("stopped", "false_alarm"))
    skipped = len(results) - len(ran)
    missing = f"; {skipped} skipped ({'this machine cannot tell' if gpu else 'no GPU'})" if skipped else ""
    where = f"on {gpu}" if gpu else "without a GPU"
    return f"{stopped} of {attacks} attacks stopped, {alarms} of {honest} honest kernels rejected{missing}; {where}"


def results_json(results: Sequence[Result], gpu: str | None) -> dict[str, Json]:
    """The one object of --json."""
    return {
        "type": "selftest",
        "schema_version": SCHEMA_VERSION,
        "ok": is_clean(results),
        "gpu": gpu,
        "classes": [vars(t) for t in tallies(results)],
        "specimens": [_specimen_json(r) for r in results],
    }


def _specimen_json(result: Result) -> dict[str, Json]:
    return {
        "name": result.name,
        "kind": result.kind,
        "class": result.family,
        "outcome": result.outcome,
        "status": result.verdict.status.value if result.verdict else None,
        "detail": result.verdict.detail if result.verdict else None,
    }


def list_specimens(specimens: Sequence[Specimen], *, json: bool) -> None:
    """The corpus without running it."""
    if json:
        names = ("name", "kind", "family", "says", "needs_gpu")
        version = {"schema_version": SCHEMA_VERSION}
        print(jsonlib.dumps([version | {name: getattr(s, name) for name in names} for s in specimens]))
        return
    for s in sorted(specimens, key=lambda s: (s.family, s.kind, s.name)):
        print(words.one_line(f"{s.family:16} {s.kind:6} {s.name}{' (GPU)' if s.needs_gpu else ''}: {s.says}"))
