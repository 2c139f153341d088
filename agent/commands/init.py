"""`optimize init`: a task file from a person's own PyTorch code, which is read and not run."""

import difflib
import itertools
import json as jsonlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import App, Parameter
from rich.text import Text

from kerneltune.agent.commands import AsJson, Dtype, NewTask, Overwrite, Shape, require_free, write_text
from kerneltune.agent.commands.tasks import CheckedTask, checked_task, print_check
from kerneltune.agent.view.output import standard_page
from kerneltune.tools.schema.codec import one_line, read_file, shell_word
from kerneltune.tools.schema.errors import CaseFailed, TaskError, UsageError
from kerneltune.tools.task.load import MAIN

if TYPE_CHECKING:
    from kerneltune.tools.task.write import CodeParts

T = TypeVar("T")
_NAMELESS = "mytask.py"

command = App(
    name="init",
    help_epilogue="""
Examples:
    optimize init                                a task to fill in, as mytask.py
    optimize init mymodel.py:attention_block     from a function of your own
    optimize init mymodel.py:Block -o block.py   from an nn.Module
    optimize init mymodel.py:Block --shape x=8,2048,4096 --dtype bf16
    optimize init mymodel.py:gelu --no-check     write it, run nothing

Your file is read, not run. The check that follows runs the task that was
written, with your code in it, in a process of its own, as every run does.
""",
)


@command.default
def init(
    source: Annotated[
        str | None, Parameter(help="FILE.py:NAME of a function or nn.Module; without it, a template.")
    ] = None,
    /,
    *,
    output: NewTask = None,
    shape: Shape = (),
    dtype: Dtype = None,
    overwrite: Overwrite = False,
    check: Annotated[bool, Parameter(help="Check the task that was written.")] = True,
    json: AsJson = False,
) -> int:
    """Write a task file from a PyTorch function or module.

    Its comments say what to look at; lines with LOOK are guesses.

    Exit code 0: written, and the check found nothing; 1: written, and there is something to fix; 2: bad input.
    """
    from kerneltune.tools.task.write import file_name, looks, task_source, told_calls

    parts, origin, own = _parts(source)
    path = output or Path(_NAMELESS if source is None else file_name(parts.name))
    _require_task_file(path, own, overwrite=overwrite)
    text = task_source(parts, origin, told_calls(parts, shape, dtype))
    write_text(path, text)
    found = _checked(path, text) if check else None
    text = path.read_text(encoding="utf-8")
    sound = found.sound if isinstance(found, CheckedTask) else None if found is None else False
    if json:
        told = {
            "type": "init",
            "schema_version": 1,
            "path": str(path),
            "name": parts.name,
            "origin": origin,
            "looks": [{"line": line, "guess": guess} for line, guess in looks(text)],
            "sound": sound,
            "problem": found if isinstance(found, str) else None,
            "notes": list(found.notes) if isinstance(found, CheckedTask) else [],
        }
        print(jsonlib.dumps(told, indent=2))
    else:
        _print(path, origin, looks(text), found)
    return int(sound is False)


def is_code(task: str) -> bool:
    """Whether a task is told as FILE.py:NAME, which has to be written first."""
    file, _, name = task.rpartition(":")
    return file.endswith(".py") and name.isidentifier() and os.path.isfile(os.path.expanduser(file))


def written_tasks(source: str, shape: Sequence[str], dtype: str | None) -> Iterator[Path]:
    """Yield the task file of FILE.py:NAME, written into this folder unless it is there already, as it would be written
    now; then the same file as `less_varied` makes it, for as long as its small cases fail, and at last as it was. What
    was written before its sizes were told is written over. Raises UsageError where another file of its name is there,
    TaskError."""
    from kerneltune.tools.task.write import file_name, less_varied, task_source, told_calls

    parts, origin, own = _parts(source)
    path = Path(file_name(parts.name))
    if own is not None and path.exists() and path.samefile(own):
        raise UsageError(f"{path} is the file to read; rename it, since the task gets that name")
    text = task_source(parts, origin, told_calls(parts, shape, dtype))
    less = list(less_varied(text))
    there = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if there not in (text, *less):
        if there == task_source(parts, origin, told_calls(parts, (), None)):
            write_text(path, text)
        else:
            _kept(path, text, source)
    yield path
    yield from rewritten(path, text, after=less.index(there) + 1 if there in less else 0)


def rewritten(path: Path, text: str, after: int = 0) -> Iterator[Path]:
    """Write the file as `less_varied` makes it, again and again, and at last as it was; `after` so many of these."""
    from kerneltune.tools.task.write import less_varied

    for one in itertools.islice(less_varied(text), after, None):
        write_text(path, one)
        yield path
    write_text(path, text)


def fitted(written: Iterator[Path] | None, work: Callable[[], T], tell: Callable[[str], None] = lambda _: None) -> T:
    """Do the work; where a task's code fails with the sizes of a small case, `tell` so and do it again with the file
    that is `written` next, whose small cases vary fewer. Raises CaseFailed when the code works with none, and at once
    where nothing is `written`."""
    first: CaseFailed | None = None
    while True:
        try:
            return work()
        except CaseFailed as error:
            if written is None:
                raise
            if first is None and error.case == MAIN:
                told = "if its sizes are guesses, give them, as in --shape NAME=8,2048,4096, or put them into the file"
                raise CaseFailed(f"{error}; {told}", MAIN) from error
            first = first or error
            if next(written, None) is None:
                raise CaseFailed(f"{first}; its CASES must not vary some of these sizes", first.case) from error
            tell(f"{first}; trying with fewer sizes that vary")


def written_gradients(task: str, *, step: bool = False) -> Path:
    """The file of the task of a task's gradients, or of its training step, written into this folder unless it is there
    already, as it would be written now. Raises UsageError where another file of its name is there, TaskError."""
    name, text = gradients_of(task, step=step)
    return _kept(Path(f"{name}_task.py"), text, task)


def gradients_of(task: str, *, step: bool = False) -> tuple[str, str]:
    """The task of a task's gradients, or of its training step: what it is called, and its file. Raises TaskError."""
    from kerneltune.tools.task.load import described, find_task
    from kerneltune.tools.task.write import backward_source

    file = find_task(task)
    text = backward_source(described(file) or checked_task(file).task, file.source, step=step)
    return f"{file.name.removesuffix('_task')}_{'step' if step else 'backward'}", text


def _kept(path: Path, text: str, source: str) -> Path:
    """Write a file unless it is there. Raises UsageError where another one is."""
    if path.is_file() and path.read_bytes() == text.encode():
        return path
    if path.exists():
        raise UsageError(
            f"{path} is there already and is not what {source} gives now; to use it: --task {path}, or remove it"
        )
    write_text(path, text)
    return path


def _print(path: Path, origin: str, guesses: Sequence[tuple[int, str]], found: CheckedTask | str | None) -> None:
    """Print what was written, which lines to look at, the check's result, and the next command."""
    page = standard_page(colour=True)
    page.print(f"wrote {path} from {origin}")
    page.print(*(Text(f"  line {line}: {one_line(guess)}", style="yellow") for line, guess in guesses))
    if found is None:
        page.print("nothing was run", Text(f"next: optimize tasks {shell_word(str(path))} --check", style="cyan"))
    else:
        print_check(found, str(path), page)


def _parts(source: str | None) -> "tuple[CodeParts, str, Path | None]":
    """What the task is made of, what to call that, and the file that must not be written over."""
    from kerneltune.tools.task.write import TEMPLATE, names_in, parts_of

    if source is None:
        return parts_of(TEMPLATE, "my_op", Path("the template")), "its template", None
    file, _, name = source.rpartition(":") if ":" in source else (source, "", "")
    path = Path(os.path.expanduser(file))  # Path.expanduser raises for a ~ of nobody; this reads nothing there
    try:
        text = read_file(path).decode("utf-8-sig")
    except OSError as error:
        raise TaskError(f"{file} cannot be read: {error.strerror}{_near(path)}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{file} is not a Python file: {error}") from error
    if not name:
        known = names_in(text, path)
        listed = ", ".join(f"{file}:{n}" for n in known[:8]) or "none at its top level"
        raise UsageError(f"{source}: name a function or module of the file; it has {listed}")
    return parts_of(text, name, path), f"{path.name}:{name}", path


def _near(path: Path) -> str:
    beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def _require_task_file(path: Path, own: Path | None, *, overwrite: bool) -> None:
    if path.suffix != ".py":
        raise UsageError(f"--output {path}: a task is a Python file, as in {path.stem or 'mytask'}.py")
    if own is not None and path.exists() and path.samefile(own):
        raise UsageError(f"--output {path} is the file to read; give the task a file of its own")
    require_free(path, overwrite=overwrite)


def _checked(path: Path, text: str) -> CheckedTask | str:
    """The task, or why its code fails: a finding here, as the person has only begun. Where it fails with the sizes of a
    small case, the file becomes one whose small cases vary fewer, if that works."""
    from kerneltune.tools.task.load import read_task

    try:
        return fitted(rewritten(path, text), lambda: checked_task(read_task(path)))
    except TaskError as error:
        return str(error)
