"""Files, folders and stdin as candidates. What is no text becomes a candidate with a problem: it gets a verdict too."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from kerneltune.tools.evaluator import Candidate
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.update import MAX_SOURCE_BYTES

STDIN = "-"
_NOT_SOURCES = ("__pycache__", "__init__.py")


def read_candidates(names: Sequence[str], stdin: BinaryIO | None = None) -> list[Candidate]:
    """One candidate for each file; a folder gives its .py files, however deep; "-" is stdin.

    Raises UsageError for a name that cannot be read at all, before anything is judged.
    """
    if names.count(STDIN) > 1:
        raise UsageError("- (stdin) can be read only once")
    return list(dict((c.name, c) for name in names for c in _read(name, stdin)).values())


def _read(name: str, stdin: BinaryIO | None) -> Iterator[Candidate]:
    if name == STDIN:
        yield from_bytes("<stdin>", (stdin or sys.stdin.buffer).read(MAX_SOURCE_BYTES + 1))
        return
    path = Path(name).expanduser()
    files = _python_files(path) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"no .py file in the folder {name}")
    for file in files:
        yield _candidate(file)


def _python_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.py") if p.is_file() and not _is_hidden(p.relative_to(folder).parts))


def _is_hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") or part in _NOT_SOURCES for part in parts)


def _candidate(path: Path) -> Candidate:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)
            n_bytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return from_bytes(str(path), data, n_bytes)


def from_bytes(name: str, data: bytes, n_bytes: int = 0) -> Candidate:
    """A candidate of what a file begins with; `n_bytes` is the whole file's size, when it is known."""
    if len(data) > MAX_SOURCE_BYTES:
        size = f"{n_bytes} bytes" if n_bytes > len(data) else f"more than {MAX_SOURCE_BYTES} bytes"
        return Candidate(name, "", f"the file has {size}; the limit for a candidate is 1 MiB ({MAX_SOURCE_BYTES})")
    try:
        return Candidate(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        what = "binary, not Python text" if b"\0" in data else "not UTF-8"
        line = data.count(b"\n", 0, error.start) + 1
        return Candidate(
            name, "", f"the file is {what} (byte {data[error.start]:#04x} in line {line}); save it as UTF-8"
        )
