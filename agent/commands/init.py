"""`optimize init`: a task file from a person's own PyTorch code, which is read and not run."""

import difflib
import json as jsonlib
import os
from pathlib import Path

from kerneltune.agent.commands.task_check import checked
from kerneltune.agent.view.setup import BrokenTask, CheckedTask, WrittenTask, print_written, written_json
from kerneltune.tools.schema.errors import TaskError, UsageError
from kerneltune.tools.task.load import read_task
from kerneltune.tools.task.module_source import CodeParts, names_in, parts_of
from kerneltune.tools.task.write import TEMPLATE, looks, task_source

_NAMELESS = "mytask.py"


def init_task(source: str | None, output: Path | None, *, overwrite: bool, check: bool, json: bool) -> int:
    """Write the task file; 0 when the check found nothing against it, else 1. Raises UsageError."""
    parts, origin, own = _parts(source)
    path = output or Path(_NAMELESS if source is None else f"{parts.name}_task.py")
    _require_free(path, own, overwrite=overwrite)
    text = task_source(parts, origin)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    found = _checked(path) if check else None
    written = WrittenTask(path, parts.name, origin, tuple(looks(text)), found)
    if json:
        print(jsonlib.dumps(written_json(written), indent=2))
    else:
        print_written(written)
    return int(isinstance(found, BrokenTask) or (found is not None and not found.sound))


def _parts(source: str | None) -> tuple[CodeParts, str, Path | None]:
    """What the task is made of, what to call that, and the file that must not be written over."""
    if source is None:
        return parts_of(TEMPLATE, "my_op", Path("the template")), "its template", None
    file, _, name = source.rpartition(":") if ":" in source else (source, "", "")
    path = Path(os.path.expanduser(file))  # Path.expanduser raises for a ~ of nobody; this reads nothing there
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TaskError(f"{file} cannot be read: {error.strerror}{_near(path)}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{file} is not a Python file: {error}") from error
    if not name:
        known = names_in(text, path)
        listed = ", ".join(f"{file}:{n}" for n in known[:8]) or "none at its top level"
        raise UsageError(f"{source}: say which function or module of it; it has {listed}")
    return parts_of(text, name, path), f"{path.name}:{name}", path


def _near(path: Path) -> str:
    beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def _require_free(path: Path, own: Path | None, *, overwrite: bool) -> None:
    if path.suffix != ".py":
        raise UsageError(f"--output {path}: a task is a Python file, as in {path.stem or 'mytask'}.py")
    if own is not None and path.exists() and path.samefile(own):
        raise UsageError(f"--output {path} is the file to read; give the task a file of its own")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already; give --overwrite to replace it, or -o another.py")


def _checked(path: Path) -> CheckedTask | BrokenTask:
    """What is wrong with it is a finding here: the person has only begun."""
    try:
        return checked(read_task(path))
    except TaskError as error:
        return BrokenTask(str(error))
