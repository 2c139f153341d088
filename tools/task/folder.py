"""The task files that words name: built-in ones, files, and whatever folders hold, as far as it can be read in bounds.

Folders come from elsewhere (a clone, an archive): nothing outside of them is read, nothing hidden, and no more than the
bounds below allow. What was left out is told with its reason.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.tools.schema.codec import leads_within, read_file
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.definition import workloads_beside, written_task
from kerneltune.tools.task.load import TaskFile, builtin_tasks, find_task, read_task

BUILTIN = "builtin"
MOST_FILES = 10_000  # that are looked at, in all folders
MOST_TASKS = 5_000
MOST_BYTES = 1 << 20  # of a file; the longest of KernelBench has 20 KB
_MOST_DEPTH = 32  # folders in each other; os.walk calls itself for each
_PARTS = (b"Model", b"get_inputs")  # a file without these is no task, whatever it is
NO_TASK = "no task file (KernelBench format)"
OUTSIDE = "a link that leads out of its folder is not followed"
TWICE = "the same file again"
DEEP = f"more than {_MOST_DEPTH} folders in each other: the rest was not looked at"
BOUND = f"more than {MOST_FILES:,} files or {MOST_TASKS:,} tasks: the rest was not looked at"


@dataclass(frozen=True)
class LeftOut:
    """Something in a folder that is no task of the suite, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class FoundTasks:
    """The tasks in the order in which they were named or listed, each once, and what else there was."""

    tasks: tuple[TaskFile, ...]
    left_out: tuple[LeftOut, ...] = ()


def find_tasks(words: Sequence[str], written: Path) -> FoundTasks:
    """The tasks that `builtin`, names of built-in tasks, files and folders mean; those that are made of kernel
    definitions are `written` in that folder. Raises TaskError for a word that is none of these, a file that is no task,
    and where nothing is found."""
    tasks: dict[str, TaskFile] = {}
    left_out: list[LeftOut] = []
    for word in words:
        for found in _named(word, written):
            if isinstance(found, LeftOut):
                left_out.append(found)
            elif found.sha256 in tasks:
                left_out.append(LeftOut(str(found.path), TWICE))
            elif len(tasks) == MOST_TASKS:
                left_out.append(LeftOut(word, BOUND))
                break
            else:
                tasks[found.sha256] = found
    if not tasks:
        raise TaskError(f"no task in {', '.join(words)}: no .py file there defines Model and get_inputs")
    return FoundTasks(tuple(tasks.values()), tuple(left_out))


def _named(word: str, written: Path) -> Iterator[TaskFile | LeftOut]:
    path = Path(os.path.expanduser(word))  # Path.expanduser raises for a ~ of nobody
    if word == BUILTIN:
        yield from builtin_tasks()
    elif path.is_dir():
        yield from _in_folder(path, written)
    else:
        yield find_task(word)


def _in_folder(folder: Path, written: Path) -> Iterator[TaskFile | LeftOut]:
    for seen, path in enumerate(_files(folder)):
        if seen == MOST_FILES:
            yield LeftOut(str(folder), BOUND)
            return
        if isinstance(path, LeftOut):
            yield path
        elif path.suffix == ".py":
            yield _read(folder, path)
        elif path.suffix == ".json" and (workloads := workloads_beside(path)) is not None:
            yield _made(folder, path, workloads, written)


def _files(folder: Path) -> Iterator[Path | LeftOut]:
    """What lies in a folder and those below it, as people count (2 before 10); links to folders are not followed, and
    what cannot be listed is told."""
    unreadable: list[LeftOut] = []

    def told(error: OSError) -> None:
        unreadable.append(LeftOut(str(error.filename), f"cannot be read: {error.strerror}"))

    for place, folders, names in os.walk(folder, onerror=told):
        yield from unreadable
        unreadable.clear()
        if folders and len(Path(place).relative_to(folder).parts) == _MOST_DEPTH:
            yield LeftOut(place, DEEP)
            folders.clear()
        folders[:] = sorted((name for name in folders if not name.startswith((".", "__"))), key=_counted)
        for name in sorted(names, key=_counted):
            if not name.startswith((".", "__")):
                yield Path(place, name)
    yield from unreadable


def _counted(name: str) -> list[tuple[int, str]]:
    """A key under which numbers are compared as such."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in parts]


def _read(folder: Path, path: Path) -> TaskFile | LeftOut:
    try:
        if not leads_within(folder, path):
            return LeftOut(str(path), OUTSIDE)
        if not path.is_file():
            return LeftOut(str(path), NO_TASK)
        data = read_file(path, MOST_BYTES)
        return read_task(path) if all(part in data for part in _PARTS) else LeftOut(str(path), NO_TASK)
    except (OSError, TaskError, RuntimeError) as error:
        return _why(path, error)


def _made(folder: Path, path: Path, workloads: Path, written: Path) -> TaskFile | LeftOut:
    """The task that a kernel definition is."""
    try:
        if not (leads_within(folder, path) and leads_within(folder, workloads) and path.is_file()):
            return LeftOut(str(path), OUTSIDE)
        return read_task(written_task(path, workloads, written))
    except (OSError, TaskError, RuntimeError) as error:
        return _why(path, error)


def _why(path: Path, error: OSError | TaskError | RuntimeError) -> LeftOut:
    match error:
        case OSError():
            return LeftOut(str(path), f"cannot be read: {error.strerror}")
        case _:  # RuntimeError: links in a circle
            return LeftOut(str(path), str(error).removeprefix(str(path)).lstrip(" ,:"))
