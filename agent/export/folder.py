"""A folder that is there whole, or not at all: written aside, then renamed.

Two exports into one folder do not meet: whoever comes second is refused. What an export that was killed left aside is
removed by the next one.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tools.codec import Json
from tools.errors import StoreError, UsageError

MANIFEST = "export.json"


@contextlib.contextmanager
def made_whole(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to write into, which becomes `target` when all went well, and is removed otherwise. `overwrite` replaces
    an earlier export, and nothing else. Raises UsageError when the place is taken, StoreError when the disk fails."""
    target = target.resolve()
    if not target.name:
        raise UsageError(f"{target} cannot be an export; give a folder of its own to -o")
    try:
        target.name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"-o {str(target)!r}: a name in UTF-8 is wanted") from error
    aside = target.with_name(f".{target.name}.part")
    with _cleanly(target), _held(aside, target):
        try:
            _free(target, overwrite=overwrite)
            _empty(aside)
            yield aside
            _sync(aside)
            _free(target, overwrite=overwrite)  # much may have happened in an hour
            _put(aside, target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise


def _free(target: Path, *, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir() or (any(target.iterdir()) and not _is_export(target)):
        raise UsageError(f"{target} is there already and is no export of ours; give another place to -o")
    if any(target.iterdir()) and not overwrite:
        raise UsageError(f"{target} holds an export already; give --overwrite to replace it, or another place to -o")


def _is_export(folder: Path) -> bool:
    try:
        found: Json = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "kerneltune_export" in found


@contextlib.contextmanager
def _held(aside: Path, target: Path) -> Iterator[None]:
    """The right to write this folder: a lock on the one aside, which the system takes back when the process dies."""
    while True:
        aside.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, aside):  # else it was renamed between our two steps
                break
        except BlockingIOError:
            os.close(descriptor)
            raise UsageError(f"another export is writing {target} right now; wait for it, or give another -o") from None
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def _cleanly(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{target}: {error.strerror or error}; nothing was left there") from error


def _sync(folder: Path) -> None:
    """On the disk, all of it: a rename must not outlive what it names."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put(aside: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)
