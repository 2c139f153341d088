"""What `optimize bench` shows: progress to stderr, one line a file to stdout, then the ranking; or NDJSON."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from agent.view import text as words
from agent.view.lines import LineWriter
from agent.view.styles import LABEL_WIDTH, verdict_style
from tools.codec import Json, encode
from tools.verdict import KernelReport, Status, Verdict

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
    """How a bench of files ended."""

    run_id: str | None
    task: str
    gpu: str | None
    why: str  # "author_done", "interrupted", "failed", as in RunEnded
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
        """A file enters a stage."""
        self._tell(f"{len(self.files)}/{self.total} judged; {stage} {name}")

    def note(self, text: str) -> None:
        """A line for the person before the screen, kept."""
        self._clear()
        self._err.write(words.one_line(text))

    def judged(self, file: JudgedFile) -> None:
        """A file has its verdict."""
        self.files.append(file)
        self._clear()
        self._out.write(json.dumps(file_json(file), allow_nan=False) if self.json else file_line(file, self.colour))

    def finish(self, end: FilesEnd) -> None:
        """All is over: the ranking, or the last object."""
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
    """Symbol, status, number, name, and either the measurement or what to mend."""
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
    """The accepted files, best first; those that are not, in the order of the input; counts; where it is kept."""
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
    if end.why == "interrupted":
        yield f"interrupted: {total - len(files)} not judged"
    if end.run_id:
        yield f"kept as run {end.run_id}; repeat one with: optimize verify {end.run_id}/NUMBER"


def ranked(files: Sequence[JudgedFile]) -> list[JudgedFile]:
    """Those that were accepted, best first."""
    return sorted((f for f in files if f.verdict.accepted), key=lambda f: (f.rank_key, f.index))


def file_json(file: JudgedFile) -> dict[str, Json]:
    """The object of one file."""
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
    """The last object."""
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
