"""The task of a stored run, found again: the very same file, or the source that the run kept."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from kerneltune.agent.events import RunStarted
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import TaskFile, builtin_tasks, find_task, read_task


@dataclass(frozen=True)
class FoundTask:
    """A task file, and what is different from the task of the run."""

    file: TaskFile
    differs: tuple[str, ...] = ()


def stored_task(run: RunStarted, given: str | None, scratch: Path) -> FoundTask:
    """The task of `run`: of `given` (a name or path) if that is the same, of its old place, or of the record. A file
    made from the record lies in `scratch`. Raises TaskError when none of them is that task."""
    if given is not None:
        return FoundTask(_same(find_task(given), run))
    for place in (str(run.machine.get("task_path") or ""), run.task):
        found = _at(place)
        if found is not None and found.sha256 == run.task_sha256:
            return FoundTask(found)
    whole = hashlib.sha256(run.task_source.encode()).hexdigest() == run.task_sha256
    if whole or _was_builtin(run):
        return FoundTask(_from_record(run, scratch), () if whole else (_without_held_out(run),))
    raise TaskError(_changed(run))


def _was_builtin(run: RunStarted) -> bool:
    folder = Path(str(run.machine.get("task_path") or "")).parent
    return folder.parts[-2:] == ("tools", "tasks") and run.task in {task.name for task in builtin_tasks()}


def _at(place: str) -> TaskFile | None:
    try:
        return find_task(place) if place else None
    except TaskError:
        return None


def _same(found: TaskFile, run: RunStarted) -> TaskFile:
    if found.sha256 == run.task_sha256:
        return found
    raise TaskError(
        f"{found.path} is not the task of run {run.run_id}: "
        f"its sha256 is {found.sha256[:12]}, not {run.task_sha256[:12]}"
    )


def _from_record(run: RunStarted, scratch: Path) -> TaskFile:
    path = scratch / f"{run.task}.py"
    path.write_bytes(run.task_source.encode())
    return read_task(path)


def _without_held_out(run: RunStarted) -> str:
    return (
        f"task: the built-in {run.task} has changed since; the source that the run kept is used, which has none of its "
        "held-out cases"
    )


def _changed(run: RunStarted) -> str:
    path = run.machine.get("task_path") or f"{run.task}.py"
    return (
        f"the task of run {run.run_id} was {path} with sha256 {run.task_sha256[:12]}; it has changed or is gone. "
        "Restore it, or pass --task with the same file's new place"
    )
