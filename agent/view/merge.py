"""What `optimize merge` says: what came from each database, and what did not."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.record.merge import Merged
from agent.view import text as words
from agent.view.lines import LineWriter
from tools.codec import Json, encode

SCHEMA_VERSION = 1
_MOST_CLASHES = 20  # that are told one by one


@dataclass(frozen=True)
class MergedFile:
    """One database, what came from it, and how many files beside it. `failed`: why it could not be used at all."""

    name: str
    merged: Merged
    files: int = 0
    failed: str | None = None


def print_merged(done: Sequence[MergedFile], ours: Path, *, dry_run: bool) -> None:
    """A line for each database, to stdout; what went wrong, to stderr."""
    out, err = LineWriter(sys.stdout), LineWriter(sys.stderr)
    for file in done:
        if file.failed is not None:
            err.write(words.one_line(f"optimize: {file.failed}"))
            continue
        out.write(words.one_line(f"{file.name}: {_came(file, dry_run)}"))
        for clash in file.merged.clashes[:_MOST_CLASHES]:
            err.write(words.one_line(f"optimize: {file.name}: run {clash.run_id} is left out: {clash.why}"))
        if (more := len(file.merged.clashes) - _MOST_CLASHES) > 0:
            err.write(f"optimize: … and {more} more")
    if dry_run:
        out.write(words.one_line(f"nothing was changed; without --dry-run it goes into {ours}"))


def _came(file: MergedFile, dry_run: bool) -> str:
    found = file.merged
    parts = [
        f"{words.plural(len(found.new), 'new run')}",
        f"{len(found.extended)} went on",
        f"{len(found.same)} known already",
        f"{len(found.clashes)} left out",
    ]
    brought = f"{words.plural(found.attempts, 'attempt')}, {words.plural(found.events, 'event')}"
    files = words.plural(file.files, "file")
    return f"{', '.join(parts)}; {brought} and {files} {'would come' if dry_run else 'came'}"


def merged_json(done: Sequence[MergedFile], ours: Path, *, dry_run: bool) -> dict[str, Json]:
    """The one object of --json."""
    return {
        "type": "merge",
        "schema_version": SCHEMA_VERSION,
        "into": str(ours),
        "dry_run": dry_run,
        "databases": [
            {"database": file.name, **encode(file.merged), "files": file.files, "failed": file.failed} for file in done
        ],
    }
