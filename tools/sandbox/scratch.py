"""Temporary folders of a program run, and the end of those whose process was killed."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType

_PREFIX = "kerneltune-"
_OWNER = "owner"  # a file in each, locked by its process, from which the system takes the lock when it dies


class ScratchFolder:
    """A temporary folder at `path`, for this user alone, where such folders are or `inside` another. Making one removes
    those there that processes of this user left when they were killed. Close it in the end, or leave the `with`."""

    def __init__(self, inside: Path | None = None) -> None:
        sweep(place := inside or Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        made = self.path / f".{_OWNER}"
        self._lock = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody sweeps
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made.rename(self.path / _OWNER)  # locked at every moment at which it has the name that is looked for

    def close(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sweep(place: Path) -> None:
    """Remove the folders that nobody holds any more."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in [e for e in entries if e.name.startswith(_PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_left(Path(entry.path))


def _remove_left(folder: Path) -> None:
    """Remove a folder if its process is gone. Raises OSError for one without an owner, and one that is held."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        return
    lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
