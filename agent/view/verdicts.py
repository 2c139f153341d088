"""What the commands that judge show: files (`bench`), a stored attempt again (`verify`), the corpus (`selftest`)."""

import json
import json as jsonlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.repeat import unfinished
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import LineWriter
from kerneltune.agent.view.text import LABEL_WIDTH, verdict_label, verdict_style
from kerneltune.tools.corpus import Kind, Outcome, Specimen
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.verdict import KernelReport, Status, Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class JudgedFile:
    """A file and what came of it. `attempt_id` is None when nothing is stored; `rank_key` is () unless accepted."""

    index: int
    name: str
    attempt_id: str | None
    verdict: Verdict
    kernels: tuple[KernelReport, ...]
    rank_key: tuple[float, ...]
    seconds: float
    receipt: dict[str, Json]
    receipt_path: str | None


@dataclass(frozen=True)
class FilesEnd:
    """The end of `optimize bench`."""

    run_id: str | None
    task: str
    gpu: str | None
    why: StopReason
    elapsed_s: float


@dataclass
class FilesView:
    """Shows judged files as they come. Called from one thread, but for `stage`."""

    out: TextIO
    err: TextIO
    json: bool = False
    colour: bool = False
    live: bool = False  # stderr is a terminal: redraw one line instead of writing many
    total: int = 0
    files: list[JudgedFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._out, self._err = LineWriter(self.out), LineWriter(self.err)

    def stage(self, name: str, stage: str) -> None:
        """Show that a file enters a stage."""
        self._tell(f"{len(self.files)}/{self.total} judged; {stage} {name}")

    def note(self, text: str) -> None:
        """Write a line to stderr that stays."""
        self._clear()
        self._err.write(words.one_line(text))

    def judged(self, file: JudgedFile) -> None:
        """Show the verdict of a file."""
        self.files.append(file)
        self._clear()
        self._out.write(json.dumps(file_json(file), allow_nan=False) if self.json else file_line(file, self.colour))

    def finish(self, end: FilesEnd) -> None:
        """Write the ranking, or the last object."""
        self._clear()
        if self.json:
            self._out.write(json.dumps(summary_json(self.files, end, self.total), allow_nan=False))
            return
        for line in summary_lines(self.files, end, self.total):
            self._out.write(line)

    def _tell(self, text: str) -> None:
        text = words.one_line(text)
        if self.live:
            self.err.write(f"\r\x1b[K{text[:100]}")
            self.err.flush()
        else:
            self._err.write(f"… {text}")

    def _clear(self) -> None:
        if self.live:
            self.err.write("\r\x1b[K")
            self.err.flush()


def file_line(file: JudgedFile, colour: bool = False) -> str:
    """Format a file's symbol, status, number and name, and its measurement or what is wrong."""
    style = verdict_style(file.verdict.status)
    label = f"{style.symbol} {file.verdict.status.value:{LABEL_WIDTH}}"
    shown = f"\x1b[{style.ansi}m{label}\x1b[0m" if colour else label
    facts = _accepted(file) if file.verdict.accepted else file.verdict.detail
    return f"{shown}  #{file.index + 1} {words.one_line(file.name)}  {words.one_line(facts)}  ({file.seconds:.1f} s)"


def _accepted(file: JudgedFile) -> str:
    return _measured(file) + (f"; {file.verdict.detail}" if file.verdict.timing is None else "")


def _measured(file: JudgedFile) -> str:
    verdict = file.verdict
    if verdict.timing is None:
        return f"regs {words.registers(file.kernels)}, spills {words.spill_bytes(file.kernels)} B"
    parts = [words.timing(verdict.timing), *_hardest(verdict)]
    if verdict.coverage is not None:
        parts.append(f"coverage {verdict.coverage:.0%}")
    return ", ".join(parts)


def _hardest(verdict: Verdict) -> Iterator[str]:
    for comparison in words.fastest_first(verdict.comparisons)[:1]:
        yield f"{words.speedup(comparison)} vs {comparison.baseline}"


def summary_lines(files: Sequence[JudgedFile], end: FilesEnd, total: int) -> Iterator[str]:
    """Format the accepted files, best first, the counts by status, and where all is kept."""
    yield ""
    width = max((len(f.name) for f in files), default=0)
    for place, file in enumerate(ranked(files), 1):
        yield words.one_line(f"{place}. ") + f" {file.name:{width}}  {words.one_line(_measured(file))}"
    counts = Counter(f.verdict.status for f in files)
    shown = ", ".join(f"{n} {status.value}" for status, n in counts.most_common()) or "none judged"
    where = (
        f"timed on {end.gpu}" if end.gpu else "not timed: no GPU; ranked by bytes moved, spills, occupancy, registers"
    )
    yield f"{words.plural(total, 'file')} for {end.task} in {words.duration(end.elapsed_s)}: {shown}; {where}"
    if end.why is StopReason.INTERRUPTED:
        yield f"interrupted: {total - len(files)} not judged"
    if end.run_id:
        yield f"kept as run {end.run_id}; repeat one with: optimize verify {end.run_id}/NUMBER"


def ranked(files: Sequence[JudgedFile]) -> list[JudgedFile]:
    """Return the accepted files, best first."""
    return sorted((f for f in files if f.verdict.accepted), key=lambda f: (f.rank_key, f.index))


def file_json(file: JudgedFile) -> dict[str, Json]:
    """Return the NDJSON object of one file."""
    return {
        "type": "judged_file",
        "schema_version": SCHEMA_VERSION,
        "index": file.index,
        "file": file.name,
        "attempt_id": file.attempt_id,
        "accepted": file.verdict.accepted,
        "verdict": {k: v for k, v in encode(file.verdict).items() if k != "receipt"},  # it is in the receipt
        "kernels": encode(file.kernels),
        "seconds": round(file.seconds, 4),
        "receipt_path": file.receipt_path,
        "receipt": file.receipt,
    }


def summary_json(files: Sequence[JudgedFile], end: FilesEnd, total: int) -> dict[str, Json]:
    """Return the last NDJSON object."""
    counts = Counter(f.verdict.status.value for f in files)
    return {
        "type": "bench_summary",
        "schema_version": SCHEMA_VERSION,
        "run_id": end.run_id,
        "task": end.task,
        "gpu": end.gpu,
        "why": end.why,
        "files": total,
        "judged": len(files),
        "accepted": sum(f.verdict.accepted for f in files),
        "by_status": {status.value: counts[status.value] for status in Status if counts[status.value]},
        "ranking": [f.name for f in ranked(files)],
        "elapsed_s": round(end.elapsed_s, 3),
    }


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
    """Print a table of both verdicts, the differences, and the conclusion."""
    console = Console(no_color=not colour, highlight=False)
    console = Console(no_color=not colour, highlight=False, width=max(100, console.width))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "stored", "now"):
        table.add_column(name, overflow="fold")
    for row in _compared_rows(found):
        table.add_row(*row)
    console.print(Text(f"attempt {found.attempt_id}", style="bold"))
    console.print(table)
    for line in found.differs:
        console.print(Text(words.one_line(f"differs: {line}"), style="yellow"))
    word, style = ("held", "green") if found.held else ("did not hold", "red")
    if unfinished(found.old.verdict, found.new.verdict):
        word, style = "not decided", "yellow"
    console.print(Text.assemble((f"{word}: ", f"bold {style}"), words.one_line(found.why)))
    console.print(Text(f"receipt {found.receipt_path}"))


def _compared_rows(found: Verification) -> Iterator[tuple[str | Text, str | Text, str | Text]]:
    old, new = found.old, found.new
    yield "status", verdict_label(old.verdict.status), verdict_label(new.verdict.status)
    yield "time", _time_cell(old.verdict), _time_cell(new.verdict)
    for name in _baselines(old.verdict, new.verdict):
        yield f"over {name}", _speedup_cell(old.verdict, name), _speedup_cell(new.verdict, name)
    yield "tier", old.verdict.tier or "-", new.verdict.tier or "-"
    yield "coverage", _share_cell(old.verdict.coverage), _share_cell(new.verdict.coverage)
    yield "worst error", _error_cell(old.verdict), _error_cell(new.verdict)
    yield "GPU", old.gpu or "none", new.gpu or "none"
    for name in _SHOWN_VERSIONS:
        yield name, old.versions.get(name, "?"), new.versions.get(name, "?")


def _baselines(old: Verdict, new: Verdict) -> Sequence[str]:
    found = words.fastest_first((*old.comparisons, *new.comparisons))
    return list(dict.fromkeys(c.baseline for c in found))


def _time_cell(verdict: Verdict) -> str:
    return words.timing(verdict.timing) if verdict.timing else "not timed"


def _speedup_cell(verdict: Verdict, baseline: str) -> str:
    return next((words.speedup(c) for c in verdict.comparisons if c.baseline == baseline), "-")


def _share_cell(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _error_cell(verdict: Verdict) -> str:
    if not verdict.cases:
        return "-"
    return f"{max(c.error_ratio for c in verdict.cases):.2g} of the tolerance, {len(verdict.cases)} input sets"


def verification_json(found: Verification) -> dict[str, Json]:
    """Return the one object of --json."""
    return {
        "type": "verification",
        "schema_version": SCHEMA_VERSION,
        "attempt_id": found.attempt_id,
        "held": found.held,
        "why": found.why,
        "differs": list(found.differs),
        "old": _side_json(found.old),
        "new": _side_json(found.new),
        "receipt_path": found.receipt_path,
        "receipt": found.receipt,
    }


def _side_json(side: Side) -> dict[str, Json]:
    verdict = {k: v for k, v in encode(side.verdict).items() if k != "receipt"}
    return {"verdict": verdict, "gpu": side.gpu, "versions": dict(side.versions)}


FAILURES = ("accepted", "false_alarm")


@dataclass(frozen=True)
class SpecimenResult:
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


def is_clean(results: Sequence[SpecimenResult]) -> bool:
    """Whether every attack was stopped and no honest kernel rejected. Nothing run at all is not clean."""
    ran = [r for r in results if r.outcome != "skipped"]
    return bool(ran) and not any(r.outcome in FAILURES for r in ran)


def tallies(results: Sequence[SpecimenResult]) -> list[Tally]:
    """Count the results of each class, in alphabetical order."""
    return [
        _tally(family, [r for r in results if r.family == family]) for family in sorted({r.family for r in results})
    ]


def _tally(family: str, results: Sequence[SpecimenResult]) -> Tally:
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


def print_results(results: Sequence[SpecimenResult], gpu: str | None) -> None:
    """Print the counts by class, a line for each failure, and the conclusion."""
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


def result_line(result: SpecimenResult) -> str:
    """Format one result while the corpus runs; a failure with its verdict: a run may not live to print its table."""
    line = f"{result.family}/{result.name}: {result.outcome}"
    return f"{line} ({_verdict_line(result.verdict)})" if result.outcome in FAILURES and result.verdict else line


def _failures(results: Sequence[SpecimenResult]) -> Iterator[str]:
    for result in results:
        if result.outcome in FAILURES and result.verdict is not None:
            what = "NOT STOPPED" if result.kind == "attack" else "FALSE ALARM"
            yield words.one_line(
                f"{what}  {result.family}/{result.name}: {result.says}; {_verdict_line(result.verdict)}"
            )


def _verdict_line(verdict: Verdict) -> str:
    return f"{verdict.status.value}: {verdict.detail}"


def _conclusion(results: Sequence[SpecimenResult], gpu: str | None) -> str:
    ran = [r for r in results if r.outcome != "skipped"]
    attacks, honest = (sum(r.kind == kind for r in ran) for kind in ("attack", "honest"))
    stopped, alarms = (sum(r.outcome == outcome for r in ran) for outcome in ("stopped", "false_alarm"))
    skipped = len(results) - len(ran)
    missing = f"; {skipped} skipped ({'this machine cannot tell' if gpu else 'no GPU'})" if skipped else ""
    where = f"on {gpu}" if gpu else "without a GPU"
    return f"{stopped} of {attacks} attacks stopped, {alarms} of {honest} honest kernels rejected{missing}; {where}"


def results_json(results: Sequence[SpecimenResult], gpu: str | None) -> dict[str, Json]:
    """Return the one object of --json."""
    return {
        "type": "selftest",
        "schema_version": SCHEMA_VERSION,
        "ok": is_clean(results),
        "gpu": gpu,
        "classes": [vars(t) for t in tallies(results)],
        "specimens": [_specimen_json(r) for r in results],
    }


def _specimen_json(result: SpecimenResult) -> dict[str, Json]:
    return {
        "name": result.name,
        "kind": result.kind,
        "class": result.family,
        "outcome": result.outcome,
        "status": result.verdict.status.value if result.verdict else None,
        "detail": result.verdict.detail if result.verdict else None,
    }


def list_specimens(specimens: Sequence[Specimen], *, json: bool) -> None:
    """Print the corpus without running it."""
    if json:
        names = ("name", "kind", "family", "says", "needs_gpu")
        version = {"schema_version": SCHEMA_VERSION}
        print(jsonlib.dumps([version | {name: getattr(s, name) for name in names} for s in specimens]))
        return
    for s in sorted(specimens, key=lambda s: (s.family, s.kind, s.name)):
        print(words.one_line(f"{s.family:16} {s.kind:6} {s.name}{' (GPU)' if s.needs_gpu else ''}: {s.says}"))
