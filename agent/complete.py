"""What a shell may offer for a word that is being typed. Called at each press of TAB, so nothing heavy is imported."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agent.record.glance import Glance, attempts_starting, latest_runs
from agent.settings import load_settings
from tools.errors import UsageError

if TYPE_CHECKING:
    from cyclopts import CompletionContext

Offers = Iterator[tuple[str, str]]  # a word, and what it is

FORMATS = (
    *("sft-chat", "sft-best", "fim", "convert", "fix", "dpo", "kto", "rl-turns"),
    *("verl", "openai", "sharegpt", "atif", "sts", "raw"),
)
VERDICTS = (
    *("accepted", "correct", "checked", "unchecked", "wrong"),
    *("compile_failed", "crashed", "timed_out", "rejected", "impossible"),
)
_MODELS = {
    "anthropic": "Claude; needs ANTHROPIC_API_KEY",
    "openai": "OpenAI's models; needs OPENAI_API_KEY",
    "chat:": "any server of the Chat Completions API, with --base-url",
    "scripted:": "replies from a file",
    "offline": "no model: expert kernels and a search",
}
_DATABASE = "runs.db"  # agent.record.store knows it too, and takes a third of a second to import
_MOST_RUNS = 200
_MOST_FILES = 200


def tasks(context: "CompletionContext") -> Offers:
    """Built-in tasks, and Python files."""
    from tools.task import builtin_names

    if "/" not in context.incomplete:
        yield from ((name, "built-in task") for name in builtin_names())
    yield from python_files(context)


def python_files(context: "CompletionContext") -> Offers:
    """Python files of the folder that is being typed, and its folders."""
    typed = context.incomplete
    head = typed[: typed.rfind("/") + 1]
    with contextlib.suppress(OSError):
        found = sorted(Path(head or ".").expanduser().iterdir())
        shown = [p for p in found if not p.name.startswith((".", "__"))]
        yield from ((head + p.name, "file") for p in shown[:_MOST_FILES] if p.suffix == ".py")
        yield from ((f"{head}{p.name}/", "folder") for p in shown[:_MOST_FILES] if p.is_dir())


def runs(context: "CompletionContext") -> Offers:
    """Ids of the latest runs."""
    for run in latest_runs(_database(context), _MOST_RUNS):
        yield run.run_id, _in_short(run)


def attempts(context: "CompletionContext") -> Offers:
    """Ids of runs, and of the attempts of the run that is typed already."""
    if "/" not in context.incomplete:
        yield from runs(context)
        return
    yield from ((name, "attempt") for name in attempts_starting(_database(context), context.incomplete))


def stored_tasks(context: "CompletionContext") -> Offers:
    """Names of the tasks that were run lately."""
    for name in dict.fromkeys(run.task for run in latest_runs(_database(context), _MOST_RUNS)):
        yield name, "task"


def authors(context: "CompletionContext") -> Offers:
    """Who wrote the latest runs."""
    for name in dict.fromkeys(run.author for run in latest_runs(_database(context), _MOST_RUNS)):
        yield name, "author"


def formats(context: "CompletionContext") -> Offers:
    """What rows of an export may look like."""
    yield from ((name, "format") for name in FORMATS)


def verdicts(context: "CompletionContext") -> Offers:
    """What may become of a kernel."""
    yield from ((name, "verdict") for name in VERDICTS)


def models(context: "CompletionContext") -> Offers:
    """Who may write kernels."""
    yield from _MODELS.items()


def settings_names(context: "CompletionContext") -> Offers:
    """Settings by name."""
    from agent.settings import FIELDS

    yield from ((name, "setting") for name in FIELDS)


def _database(context: "CompletionContext") -> Path:
    """The record that the command will read: of --runs-dir, where it is typed already, else that of this folder."""
    typed = context.get("--runs-dir")
    if typed is not None and typed.raw:
        return Path(typed.raw).expanduser() / _DATABASE
    folder = Path("runs")
    with contextlib.suppress(UsageError):
        folder = load_settings(Path.cwd()).runs_dir
    return folder / _DATABASE


def _in_short(run: Glance) -> str:
    speed = f", best {run.best_speedup:.2f}x" if run.best_speedup is not None else ""
    return f"{run.author}, {run.attempts} attempts{speed}"
