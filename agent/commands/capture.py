"""`optimize capture`: a task from how a program calls a function or module, which is watched while it runs.

The program runs as it always does, in its own environment, with its own rights: nothing is confined. It loads one file
of kerneltune's when it starts, which imports the standard library alone.
"""

import json as jsonlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

import kerneltune
from kerneltune.agent.commands import AsJson, NewTask, Overwrite, require_free, write_text
from kerneltune.agent.settings import environment_of_python
from kerneltune.agent.view.output import columns, say, standard_page
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.codec import one_line, plural, read_file, reason, shell_word
from kerneltune.tools.schema.errors import TaskError, UsageError

if TYPE_CHECKING:
    from kerneltune.tools.task.capture import Seen

_MOST_LISTED = 20

command = App(
    name="capture",
    help_epilogue="""
Examples:
    optimize capture -- python train.py                which modules are called
    optimize capture --of Tail -- python train.py      a task for one of them
    optimize capture --of mymodel.fused_tail -o tail_task.py -- torchrun train.py

In your own program the same is
    with kerneltune.capture("Tail") as seen: model(batch)
""",
)


@command.default
def capture(
    *words: Annotated[str, Parameter(metavar="COMMAND", help="The program, after --.", allow_leading_hyphen=True)],
    of: Annotated[
        str | None,
        Parameter(
            metavar="NAME",
            help="A module's class, or MODULE.NAME of a function that the program imports; else all classes.",
        ),
    ] = None,
    output: NewTask = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> int:
    """Run a program, and write a task from how it calls a function or module.

    Sizes, dtypes, strides and ranges are those that were seen. The calls with the most work are timed; the others
    are cases with weights.

    Exit code 0: written or listed; 1: no call was seen; 2: bad input, or the program failed before any call.
    """
    from kerneltune.tools.task.capture import seen_in
    from kerneltune.tools.task.write import file_name

    if not words:
        raise UsageError("name the program after --, as in: optimize capture --of Tail -- python train.py")
    path = output or (Path(file_name(of.replace(":", ".").rpartition(".")[2])) if of else None)
    if path is not None:
        require_free(path, overwrite=overwrite)
    with ScratchFolder() as scratch:
        code = _run(of, words, scratch)
        seen = seen_in(scratch)
    if code:
        say(f"warning: the program ended with exit code {code}")
    missed = [(one.name, why, times) for one in seen for why, times in one.missed.items()]
    for name, why, times in missed[:_MOST_LISTED]:
        say(f"warning: {plural(times, 'call')} of {one_line(name, 100)} not captured: {one_line(why, 200)}")
    seen = [one for one in seen if one.calls]
    if not seen:
        say(f"no call of {of or 'a module'} was seen; functions that the script itself defines are not watched")
        return 2 if code else 1
    if of is None or path is None:
        _list(seen, words, json=json)
        return 0
    seen.sort(key=_is_inside)
    if others := [_called(one, seen) for one in seen[1:_MOST_LISTED] if not _is_inside(one)]:
        say(f"warning: this is {_called(seen[0], seen)}, and not {' or '.join(others)}; --of MODULE.NAME chooses")
    _write(seen[0], path)
    _tell(seen[0], path, json=json)
    return 0


def _run(target: str | None, words: Sequence[str], scratch: Path) -> int:
    """Run the program with what watches it; its exit code. Raises UsageError."""
    from kerneltune.tools.task.capture import PRELUDE

    (here := scratch / "start").mkdir()
    package = Path(str(kerneltune.__file__))
    text = PRELUDE.format(
        here=str(here), package=str(package), folder=str(package.parent), target=target, out=str(scratch)
    )
    (here / "sitecustomize.py").write_text(text)
    try:
        done = subprocess.run(list(words), env=environment_of_python(here), check=False)
    except OSError as error:
        raise UsageError(f"{shell_word(words[0])} cannot be run: {error.strerror}") from error
    return done.returncode


def _write(seen: "Seen", path: Path) -> None:
    from kerneltune.tools.task.write import parts_of, task_source

    source = Path(seen.path)
    try:
        text = read_file(source).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        where = one_line(seen.path, 300)
        raise TaskError(f"{seen.name} is defined in {where}, which cannot be read: {reason(error)}") from error
    made = task_source(
        parts_of(text, seen.name, source), f"{source.name}:{seen.name}, as it was called", seen.calls, seen.made
    )
    write_text(path, made)


def _tell(seen: "Seen", path: Path, *, json: bool) -> None:
    if json:
        told = {"type": "capture", "schema_version": 1, "path": str(path), "name": seen.name, "calls": seen.times}
        print(jsonlib.dumps(told | {"kinds": len(seen.calls)}))
        return
    page = standard_page(colour=True)
    page.print(
        f"wrote {path} from {plural(seen.times, 'call')} of {one_line(seen.name, 100)}, of {len(seen.calls)} kinds"
    )
    page.print(Text(f"next: optimize tasks {shell_word(str(path))} --check", style="cyan"))


def _list(seen: "Sequence[Seen]", words: Sequence[str], *, json: bool) -> None:
    """Print the classes that were called, those that did the most work first."""
    if json:
        found = [{"name": one.name, "path": one.path, "calls": one.times, "kinds": len(one.calls)} for one in seen]
        print(jsonlib.dumps({"type": "capture", "schema_version": 1, "classes": found}))
        return
    table = columns("module", "calls", "kinds", "inputs, of those with the most work", right=("calls", "kinds"))
    for one in seen[:_MOST_LISTED]:
        table.add_row(_called(one, seen), str(one.times), str(len(one.calls)), _inputs(one))
    page = standard_page(colour=True)
    again = " ".join(map(shell_word, ["--of", _called(min(seen, key=_is_inside), seen), "--", *words]))
    page.print(table, Text(f"next: optimize capture {again}", style="cyan"))


def _is_inside(seen: "Seen") -> bool:
    """Whether it is defined inside of something else, so that it can become no task."""
    return "." in seen.name


def _called(seen: "Seen", others: "Sequence[Seen]") -> str:
    """Its name, with its module where another one has it too."""
    alone = sum(one.name.rpartition(".")[2] == seen.name.rpartition(".")[2] for one in others) < 2
    return one_line(seen.name if alone else f"{seen.module}.{seen.name}", 100)


def _inputs(seen: "Seen") -> str:
    from kerneltune.tools.task.write import SeenTensor

    tensors = [its for its in seen.calls[0].arguments.values() if isinstance(its, SeenTensor)]
    return ", ".join(f"{'x'.join(map(str, its.shape))} {its.dtype}" for its in tensors)
