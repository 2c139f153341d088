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
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.errors import StoreError

FILE_NAME = "process.json"
_FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True)
class Process:
    """What is known of the process of a run. `pid` is None unless it runs and has a number here."""

    state: Literal["running", "gone", "unknown"]
    pid: int | None = None


@contextlib.contextmanager
def alive(run_folder: Path) -> Iterator[None]:
    """Hold the run for the length of a block. Raises StoreError when another process holds it; where there are no
    locks, nobody will know."""
    with contextlib.ExitStack() as held:
        try:
            run_folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(open(run_folder / FILE_NAME, "a+"))
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            json.dump({"host": platform.node(), "pid": os.getpid()}, file)
            file.flush()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreError(f"run {run_folder.name} is run by another process{_named(run_folder)}") from error
        yield


def _named(run_folder: Path) -> str:
    pid = process_of(run_folder).pid
    return f", {pid}; follow it with: optimize watch {run_folder.name}" if pid else ""


def process_of(run_folder: Path) -> Process:
    """Whether a process runs the run now. "unknown": it never held a lock here (an older version, another machine)."""
    try:
        with open(run_folder / FILE_NAME, "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return Process("running", pid if pid > 0 else None)
            return Process("gone" if _host(file.read()) == platform.node() else "unknown")
    except OSError:
        return Process("unknown")


def _host(text: bytes) -> object:
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told.get("host") if isinstance(told, dict) else None
