"""`optimize init`: a task file from a person's own PyTorch code, which is read and not run."""

import difflib
import json as jsonlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.commands import AsJson
from kerneltune.tools.schema.errors import TaskError, UsageError

if TYPE_CHECKING:
    from kerneltune.agent.view.setup import BrokenTask, CheckedTask
    from kerneltune.tools.task.write import CodeParts

_NAMELESS = "mytask.py"

command = App(
    name="init",
    help_epilogue="""
Examples:
    optimize init                                a task to fill in, as mytask.py
    optimize init mymodel.py:attention_block     from a function of your own
    optimize init mymodel.py:Block -o block.py   from an nn.Module
    optimize init mymodel.py:gelu --no-check     write it, run nothing

Your file is read, not run. The check that follows runs the task that was
written, with your code in it, in a process of its own, as every run does.
""",
)


@command.default
def init(
    source: Annotated[
        str | None,
        Parameter(
            help="FILE.py:NAME of a function or nn.Module; without it, a template.", completer=complete.definitions
        ),
    ] = None,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(metavar="FILE", name=["--output", "-o"], help="The task file to write; NAME_task.py unless told."),
    ] = None,
    overwrite: Annotated[bool, Parameter(help="Replace the file if there is one.", negative="")] = False,
    check: Annotated[bool, Parameter(help="Check the task that was written.")] = True,
    json: AsJson = False,
) -> int:
    """Write a task file from a PyTorch function or module.

    Its comments say what to look at; lines with LOOK are guesses.

    Exit code 0: written, and the check found nothing; 1: written, and there is something to mend; 2: bad input.
    """
    from kerneltune.agent.view.setup import BrokenTask, WrittenTask, print_written, written_json
    from kerneltune.tools.task.write import looks, task_source

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


def _parts(source: str | None) -> "tuple[CodeParts, str, Path | None]":
    """What the task is made of, what to call that, and the file that must not be written over."""
    from kerneltune.tools.task.write import TEMPLATE, names_in, parts_of

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


def _checked(path: Path) -> "CheckedTask | BrokenTask":
    """What is wrong with it is a finding here: the person has only begun."""
    from kerneltune.agent.commands.tasks import checked_task
    from kerneltune.agent.view.setup import BrokenTask
    from kerneltune.tools.task.load import read_task

    try:
        return checked_task(read_task(path))
    except TaskError as error:
        return BrokenTask(str(error))
