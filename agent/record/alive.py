"""Is a run that has not ended still run by a process? A lock says so, which the operating system takes from the dead.

The lock is POSIX's: workers that the process forked do not hold it, and asking does not take it, even for a moment. A
process loses it when it closes the file, so the process that holds a run must not ask about it.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.errors import StoreError

FILE_NAME = "process.json"
_FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a folder of a run may have come from elsewhere
_MOST = 4096  # bytes of what is read
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)
_held: set[Path] = set()  # by this process, to which the system would give its own lock again
_LONGEST_NAME = 200  # bytes; file systems take 255


@dataclass(frozen=True)
class Process:
    """What is known of the process of a run. `pid` is None unless it runs and has a number here."""

    state: Literal["running", "gone", "unknown"]
    pid: int | None = None


def is_plain(run_id: object) -> bool:
    """Whether a run's id is the name of a folder and no way out of the runs directory: ids come with merged records."""
    return (
        isinstance(run_id, str)
        and run_id.isprintable()
        and Path(run_id).name == run_id != ""
        and not run_id.startswith(".")
        and len(run_id.encode(errors="replace")) <= _LONGEST_NAME
    )


def folder_of(runs_dir: Path, run_id: str) -> Path:
    """A run's folder, which is always in the runs directory; it need not exist."""
    return runs_dir / (run_id if is_plain(run_id) else "strange-id")


@contextlib.contextmanager
def alive(run_folder: Path) -> Iterator[None]:
    """Hold the run for the length of a block. Raises StoreError when it is held already, or the folder may not be
    written; where there are no folders or no locks, nobody will know."""
    folder = run_folder.resolve()
    if folder in _held:
        raise StoreError(f"run {run_folder.name} is run by this process already")
    _held.add(folder)
    try:
        with contextlib.ExitStack() as held:
            if (file := _opened(run_folder)) is not None:
                held.callback(os.close, file)
                _take(file, run_folder)
            yield
    finally:
        _held.discard(folder)


def _opened(run_folder: Path) -> int | None:
    path = run_folder / FILE_NAME
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o666)
    except OSError as error:
        if error.errno in _REFUSED:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return None


def _take(file: int, run_folder: Path) -> None:
    """Lock it and say who did; that nothing could be written down matters to nobody."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise StoreError(f"run {run_folder.name} is run by another process{_named(run_folder)}") from error
        return
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
            os.write(file, json.dumps({"host": platform.node(), "pid": os.getpid()}).encode())


def _named(run_folder: Path) -> str:
    pid = process_of(run_folder).pid
    return f", {pid}; follow it with: optimize watch {run_folder.name}" if pid else ""


def process_of(run_folder: Path) -> Process:
    """Whether a process runs the run now. "unknown": it never held a lock here (an older version, another machine)."""
    try:
        file = os.open(run_folder / FILE_NAME, os.O_RDONLY | _SAFELY)
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return Process("running", pid if pid > 0 else None)
            return Process("gone" if _host(os.read(file, _MOST)) == platform.node() else "unknown")
        finally:
            os.close(file)
    except (OSError, ValueError):  # ValueError: a NUL in a foreign id
        return Process("unknown")


def _host(text: bytes) -> object:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return told.get("host") if isinstance(told, dict) else None
