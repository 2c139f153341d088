"""Temporary folders of a program run, and the end of those whose process was killed."""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
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
        remove(self.path)
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
            remove(folder)
    finally:
        os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as the system lets us, whatever a hostile process left there:
    folders without rights, or thousands inside of each other. So each is moved up to the first before it is emptied,
    and no link is followed."""
    with contextlib.suppress(OSError):
        top = _opened(str(folder))
        try:
            waiting = [*_cleared(top, top)]
            while waiting:
                waiting += _removed(waiting.pop(), top)
        finally:
            os.close(top)
        folder.rmdir()


def _removed(name: str, top: int) -> list[str]:
    """Remove a folder in the first one; returns the folders that lay in it, which are there now."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        folder = _opened(name, top)
        try:
            found += _cleared(folder, top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    return found


def _cleared(folder: int, top: int) -> Iterator[str]:
    """Remove the files in a folder, and move the folders in it to `top`; yields their new names."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                os.close(_opened(name, folder))  # to move it takes the right to write to it
                os.rename(name, moved := secrets.token_hex(8), src_dir_fd=folder, dst_dir_fd=top)
                yield moved


def _opened(name: str, at: int | None = None) -> int:
    """A folder's descriptor, once its owner may do everything. Raises OSError, for a link as well."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(path)
