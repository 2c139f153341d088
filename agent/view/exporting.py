"""What `optimize export` shows: how far it is (stderr), and what was written (stdout)."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import LineWriter
from kerneltune.tools.schema.codec import Json

EVERY_S = 5.0


@dataclass(frozen=True)
class Exported:
    """What was written. `counts`: rows by format and split; `filtered`: rows of each format that the filters left
    out; `notices`: what the terms of each provider ask; `manifest` is None when nothing was written."""

    output: Path
    counts: Mapping[tuple[str, str], int]
    filtered: Mapping[str, int]
    notices: Sequence[tuple[str, str]]
    seconds: float
    manifest: Json

    @property
    def rows(self) -> int:
        """Of all formats."""
        return sum(self.counts.values())


class ExportProgress:
    """Called with a stage and the attempts that are done in it. A bar on a terminal, else a line now and then."""

    def __init__(self, attempts: int) -> None:
        self._attempts, self._done, self._stage, self._told = attempts, 0, "", time.monotonic()
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("exporting", total=attempts) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, stage: str, attempts: int) -> None:
        """So many attempts more are done."""
        if stage != self._stage:
            self._stage, self._done = stage, 0
        self._done += attempts
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=stage, completed=self._done)
        elif time.monotonic() - self._told > EVERY_S:
            self._told = time.monotonic()
            print(f"… {stage}: {self._done:,} of {self._attempts:,} attempts", file=sys.stderr)


def print_exported(done: Exported) -> None:
    """A table of rows, then whose terms bind."""
    out = LineWriter(sys.stdout)
    if not done.rows:
        left = sum(done.filtered.values())
        why = f"the filters left out all of {words.plural(left, 'row')}" if left else "these runs make no rows"
        return out.write(f"nothing was written: {why}")
    splits = sorted({split for _, split in done.counts})
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("format")
    for split in (*splits, "filtered out"):
        table.add_column(split, justify="right")
    for name in dict.fromkeys(name for name, _ in done.counts):
        cells = [f"{done.counts.get((name, split), 0):,}" for split in splits]
        table.add_row(name, *cells, f"{done.filtered.get(name, 0):,}")
    Console().print(table)
    out.write(
        f"\n{done.output}: {words.plural(done.rows, 'row')} in {done.seconds:.1f} s; README.md says what is in it"
    )
    for provider, notice in done.notices:
        out.write(f"{provider}: {notice}")
    return None


def exported_json(done: Exported) -> dict[str, Json]:
    """The one object of --json."""
    rows: dict[str, dict[str, int]] = {}
    for (name, split), count in done.counts.items():
        rows.setdefault(name, {})[split] = count
    return {
        "type": "export",
        "schema_version": 1,
        "output": str(done.output),
        "rows": rows,
        "filtered": dict(done.filtered),
        "seconds": round(done.seconds, 3),
        "manifest": done.manifest,
    }
