"""`optimize merge`: joins the records of several machines, and the receipts and best kernels that lie beside them."""

import json as jsonlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import AsJson, RunsDir
from kerneltune.agent.record.folder import RECEIPTS, VERIFY, free_verify_path, make_private, verify_paths, write_whole
from kerneltune.agent.settings import chosen_settings
from kerneltune.agent.view.output import LineWriter, say
from kerneltune.tools.schema.codec import encode, plural, read_file
from kerneltune.tools.schema.errors import StoreError, UsageError

if TYPE_CHECKING:
    from kerneltune.agent.record.merge import Merged, Progress
    from kerneltune.agent.record.store import Store

_MOST_CLASHES = 20  # that are named one by one
BIG_EVENTS = 100_000  # to be told how far it has come
EVERY_S = 2.0

command = App(
    name="merge",
    help_epilogue="""
Examples:
    optimize merge ../other-machine/runs/runs.db
    optimize merge a/runs.db b/runs.db --dry-run
""",
)


@command.default
def merge(
    *others: Annotated[Path, Parameter(help="Databases of other machines, or their runs directories.")],
    dry_run: Annotated[bool, Parameter(help="Print what would be merged, and change nothing.", negative="")] = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Join the records of other machines into this one.

    Nothing is lost, and nothing is stored twice.

    Exit code 0: all is here; 1: some runs contradict what is here and were left out; 2: bad input.
    """
    settings = chosen_settings(locals())
    from kerneltune.agent.record.store import Store

    if not others:
        raise UsageError("give at least one OTHER.db, or the runs directory of another machine")
    with Store.open(settings.runs_dir) as store:
        ours = store.path
        done = [_merged(other, store, dry_run=dry_run) for other in others]
    if json:
        told = {
            "type": "merge",
            "schema_version": 1,
            "into": str(ours),
            "dry_run": dry_run,
            "databases": [{"database": f.name, **encode(f.merged), "files": f.files, "failed": f.failed} for f in done],
        }
        print(jsonlib.dumps(told, allow_nan=False))
    else:
        _print(done, ours, dry_run=dry_run)
    if any(file.failed for file in done):
        return 2  # a database could not be used at all
    return int(any(file.merged.clashes for file in done))


def _merged(other: Path, ours: "Store", *, dry_run: bool) -> "MergedFile":
    from kerneltune.agent.record.merge import Merged, count_events, database_at, opened_other
    from kerneltune.agent.record.merge import merge as merge_record

    try:
        with opened_other(other, ours.path) as source:
            progress = _progress(other, count_events(source))
            found = merge_record(ours, source, name=str(other.absolute()), dry_run=dry_run, progress=progress)
        copied = _copy_files(database_at(other).parent, ours.path.parent, found, dry_run=dry_run)
        return MergedFile(str(other), found, copied)
    except StoreError as error:
        return MergedFile(str(other), Merged(), failed=str(error))
    except KeyboardInterrupt:
        say(f"optimize: {other}: interrupted; the runs that came are whole, the same command goes on")
        raise


def _progress(other: Path, events: int) -> "Progress":
    """Print now and then how far a big one is."""
    last = time.monotonic()

    def tell(so_far: "Merged", seen: int) -> None:
        nonlocal last
        if events >= BIG_EVENTS and (time.monotonic() - last > EVERY_S or seen == events):
            last = time.monotonic()
            runs = len(so_far.new) + len(so_far.extended)
            say(f"… {other}: {seen / events:.0%}, {runs} runs, {so_far.events} events")

    return tell


def _copy_files(theirs: Path, ours: Path, found: "Merged", *, dry_run: bool) -> int:
    """Copy receipts and best kernels of the merged runs; how many. What is here is left as it is, but for the best
    kernel of a run that went on there."""
    copied = 0
    for run_id in (*found.new, *found.extended, *found.same):
        for source in _files(theirs / run_id):
            target = _free(source, ours / run_id / source.relative_to(theirs / run_id))
            newer = run_id in found.extended and source.name == "best.py"
            if (newer or not target.exists()) and not target.is_symlink():
                copied += 1
                if not dry_run:
                    _copy(source, target)
    return copied


def _free(source: Path, target: Path) -> Path:
    """The target; for the receipt of a verification another one, where that of another verification is there."""
    number, said, _ = target.name.partition(VERIFY)
    if not said or not target.exists():
        return target
    first = target.with_name(f"{number}.json")
    try:
        data = read_file(source)
        alike = (path for path in verify_paths(first) if path.stat().st_size == len(data))
        return next((path for path in alike if read_file(path) == data), None) or free_verify_path(first)
    except OSError as error:
        raise StoreError(
            f"{source} cannot be compared with {target}: {error.strerror}; the record is merged"
        ) from error


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_symlink() or (folder / RECEIPTS).is_symlink() or not folder.is_dir():
        return
    for path in (folder / "best.py", *sorted((folder / RECEIPTS).glob("[0-9]*.json"))):
        if path.is_file() and not path.is_symlink():
            yield path


def _copy(source: Path, target: Path) -> None:
    try:
        make_private(target.parent)
        write_whole(target, read_file(source))
    except OSError as error:
        raise StoreError(f"{source} cannot be copied to {target}: {error.strerror}; the record is merged") from error


@dataclass(frozen=True)
class MergedFile:
    """One database, what came from it, and how many files beside it. `failed`: why it could not be used at all."""

    name: str
    merged: "Merged"
    files: int = 0
    failed: str | None = None


def _print(done: Sequence[MergedFile], ours: Path, *, dry_run: bool) -> None:
    """Print a line per database to stdout, and problems to stderr."""
    out = LineWriter(sys.stdout)
    for file in done:
        if file.failed is not None:
            say(f"optimize: {file.failed}")
            continue
        out.write(f"{file.name}: {_came(file, dry_run)}")
        for clash in file.merged.clashes[:_MOST_CLASHES]:
            say(f"optimize: {file.name}: run {clash.run_id} is left out: {clash.why}")
        if (more := len(file.merged.clashes) - _MOST_CLASHES) > 0:
            say(f"optimize: … and {more} more")
    if dry_run:
        out.write(f"nothing was changed; without --dry-run it goes into {ours}")


def _came(file: MergedFile, dry_run: bool) -> str:
    found = file.merged
    parts = [
        f"{plural(len(found.new), 'new run')}",
        f"{len(found.extended)} went on",
        f"{len(found.same)} known already",
        f"{len(found.clashes)} left out",
    ]
    brought = f"{plural(found.attempts, 'attempt')}, {plural(found.events, 'event')}"
    files = plural(file.files, "file")
    return f"{', '.join(parts)}; {brought} and {files} {'would come' if dry_run else 'came'}"
