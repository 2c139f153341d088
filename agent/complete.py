"""What a shell may offer for a word that is being typed. Called at each press of TAB, so nothing heavy is imported."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kerneltune.agent.export.base import FORMATS
from kerneltune.agent.models.providers import OFFLINE, PROVIDERS, REPLAY
from kerneltune.agent.settings import load_settings
from kerneltune.tools.schema.errors import UsageError

if TYPE_CHECKING:
    from kerneltune.agent.record.query import RunSummary

Offers = Iterator[tuple[str, str]]  # a word, and what it is

VERDICTS = (
    *("accepted", "correct", "checked", "unchecked", "wrong"),
    *("compile_failed", "crashed", "timed_out", "rejected", "impossible"),
)
_STARTS = {
    "nothing": "no candidate, in PTX too",
    "best": "the best stored attempt on this task and GPU",
}
DATABASE = "runs.db"  # agent.record.store knows it too, and takes a third of a second to import
_MOST_RUNS = 200
_MOST_FILES = 200


class Typed(Protocol):
    """What cyclopts tells of a command line that is being typed."""

    incomplete: str  # the word under the cursor, as far as it goes

    def get(self, name: str) -> Any:
        """What was typed for another flag; None when there is no such flag."""
        ...


def tasks(context: Typed) -> Offers:
    """Built-in tasks, and Python files."""
    from kerneltune.tools.task.load import builtin_names

    if "/" not in context.incomplete:
        yield from ((name, "built-in task") for name in builtin_names())
    yield from python_files(context)


def python_files(context: Typed) -> Offers:
    """Python files of the folder that is being typed, and its folders."""
    yield from _files(context, (".py",))


def starts(context: Typed) -> Offers:
    """What a run may begin with: words, attempts, and files with kernels."""
    if "/" not in context.incomplete:
        yield from _STARTS.items()
    yield from attempts(context)
    yield from _files(context, (".py", ".ptx"))


def _files(context: Typed, suffixes: tuple[str, ...]) -> Offers:
    typed = context.incomplete
    head = typed[: typed.rfind("/") + 1]
    start = typed[len(head) :].casefold()  # as the filter that follows compares
    with contextlib.suppress(OSError):
        found = (p for p in _at_home(head or ".").iterdir() if p.name.casefold().startswith(start))
        shown = sorted(p for p in found if not p.name.startswith((".", "__")))
        files = [p for p in shown if p.suffix in suffixes]
        yield from ((head + p.name, "file") for p in files[:_MOST_FILES])
        folders = (p for p in shown if p.is_dir())
        yield from ((f"{head}{p.name}/", "folder") for p in itertools.islice(folders, _MOST_FILES))


def _at_home(typed: str) -> Path:
    """With ~ put in; one of a person whom this machine does not know stays, where Path.expanduser would raise."""
    return Path(os.path.expanduser(typed))


def definitions(context: Typed) -> Offers:
    """Python files, and after a colon the functions and modules of one."""
    file, colon, _ = context.incomplete.partition(":")
    if not colon:
        yield from python_files(context)
        return
    from kerneltune.tools.schema.codec import read_file
    from kerneltune.tools.task.write import names_in

    with contextlib.suppress(OSError, UnicodeDecodeError, UsageError):
        path = _at_home(file)
        yield from ((f"{file}:{name}", "function or module") for name in names_in(read_file(path).decode(), path))


def runs(context: Typed) -> Offers:
    """Ids of the latest runs."""
    for run in _latest(context):
        yield run.run_id, _in_short(run)


def attempts(context: Typed) -> Offers:
    """Ids of runs, and of the attempts of the run that is typed already."""
    if "/" not in context.incomplete:
        yield from runs(context)
        return
    from kerneltune.agent.record.query import attempts_starting

    yield from ((name, "attempt") for name in attempts_starting(_database(context), context.incomplete))


def stored_tasks(context: Typed) -> Offers:
    """Names of the tasks that were run lately."""
    for name in dict.fromkeys(run.task for run in _latest(context)):
        yield name, "task"


def authors(context: Typed) -> Offers:
    """Who wrote the latest runs."""
    for name in dict.fromkeys(run.author for run in _latest(context)):
        yield name, "author"


def formats(context: Typed) -> Offers:
    """What rows of an export may look like."""
    yield from ((name, "format") for name in FORMATS)


def verdicts(context: Typed) -> Offers:
    """What may become of a kernel."""
    yield from ((name, "verdict") for name in VERDICTS)


def models(context: Typed) -> Offers:
    """Who may write kernels. A word that goes on (a model's id, a file) ends in a colon."""
    for name, provider in PROVIDERS.items():
        if provider.key_variable:
            yield name, f"{provider.about}; needs {provider.key_variable}"
        else:
            yield f"{name}:", provider.about
    yield f"{REPLAY}:", "no model: the attempts of an earlier run, judged anew"
    yield OFFLINE, "no model: expert kernels and a search"


def _latest(context: Typed) -> "list[RunSummary]":
    from kerneltune.agent.record.query import latest_runs

    return latest_runs(_database(context), _MOST_RUNS)


def _database(context: Typed) -> Path:
    """The record that the command will read: of --runs-dir, where it is typed already, else that of this folder."""
    typed = context.get("--runs-dir")
    if typed is not None and typed.raw:
        return _at_home(typed.raw) / DATABASE
    folder = Path("runs")
    with contextlib.suppress(UsageError, OSError, RuntimeError):  # a folder that is gone, a ~ of nobody
        folder = load_settings(Path.cwd()).runs_dir
    return folder / DATABASE


def _in_short(run: "RunSummary") -> str:
    speed = f", best {run.best_speedup:.2f}x" if run.best_speedup is not None else ""
    return f"{run.author}, {run.attempts} attempts{speed}"
