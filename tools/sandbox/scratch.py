"""Temporary folders of a program run, and the end of those whose process was killed."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

_PREFIX = "kerneltune-scratch-"
_AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchFolder:
    """A temporary folder at `path`, for this user alone, where such folders are or `inside` another. Making one removes
    those there that processes of this user left when they were killed. Close it in the end, or leave the `with`."""

    def __init__(self, inside: Path | None = None) -> None:
        sweep(place := inside or Path(tempfile.gettempdir()))
        self.path, self._lock = _made(place)

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


def _made(place: Path) -> tuple[Path, int]:
    """A new folder and its descriptor, which holds its lock: the system takes that from the dead, at whatever step they
    were killed, and nothing has to lie in the folder for it. Raises OSError."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        with contextlib.suppress(FileNotFoundError):  # swept in the moment in which nobody held it
            lock = os.open(path, _AS_FOLDER)
            if _locked(lock) and path.exists():
                return path, lock
            os.close(lock)


def _locked(folder: int) -> bool:
    """Hold a folder from now on; false if somebody else does. On a file system without locks nobody can, nor sweeps."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def sweep(place: Path) -> None:
    """Remove the folders that nobody holds any more."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in [e for e in entries if e.name.startswith(_PREFIX)]:
            with contextlib.suppress(OSError):
                _remove_left(Path(entry.path))


def _remove_left(folder: Path) -> None:
    """Remove a folder of this user's if its process is gone. Raises OSError for one that is held, and for no folder."""
    lock = os.open(folder, _AS_FOLDER)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
