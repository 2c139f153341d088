"""What `optimize` shows to somebody who typed nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agent.record.query import RunSummary
from agent.view import text as words
from agent.view.page import heading, standard_page

_BEGIN = (
    ("optimize --task softmax", "optimise a built-in task; `optimize tasks` lists all {tasks}"),
    ("optimize init FILE.py:NAME", "make a task of a PyTorch function or module of your own"),
    ("optimize doctor", "what this machine has and lacks, and what mends it"),
)


@dataclass(frozen=True)
class Machine:
    """What can be told of this machine without waiting. `gpu` is None without one; a version is None when the package
    is not installed; `keys` are the providers whose API key is set."""

    gpu: str | None
    memory_bytes: int
    arch: str
    versions: Mapping[str, str | None]
    model: str
    keys: Sequence[str]


def print_lesson(machine: Machine, latest: RunSummary | None, tasks: int) -> None:
    """One short page: how to begin, what can be done here, what was done last."""
    page = standard_page(colour=True)
    page.print(
        Text("kerneltune finds the fastest GPU kernel for a PyTorch task that it can prove right."),
        heading("begin with"),
        _commands([(command, purpose.format(tasks=tasks)) for command, purpose in _BEGIN]),
        heading("this machine"),
        _facts(machine),
    )
    if latest is not None:
        page.print(heading("latest run"), _run(latest))
    page.print(Text("\noptimize --help lists all commands and flags.", style="dim"))


def _commands(entries: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for command, purpose in entries:
        table.add_row(Text(f"  {command}"), Text(purpose))
    return table


def _facts(machine: Machine) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("  GPU", _gpu(machine))
    table.add_row("  author", _author(machine))
    table.add_row("  software", Text(", ".join(f"{n} {v or '(not installed)'}" for n, v in machine.versions.items())))
    return table


def _gpu(machine: Machine) -> Text:
    if machine.gpu is None:
        return Text(f"none: kernels are compiled for {words.one_line(machine.arch)} and checked, not timed")
    size = f"{machine.memory_bytes / (1 << 30):.0f} GiB"
    return Text(f"{words.one_line(machine.gpu)}, {size}: kernels are checked and timed")


def _author(machine: Machine) -> Text:
    if machine.model:
        return Text(f"{words.one_line(machine.model)} (the setting model)")
    if machine.keys:
        return Text(f"{machine.keys[0]}, whose API key is set; --model offline needs none")
    return Text("offline: expert kernels and a search; set ANTHROPIC_API_KEY or OPENAI_API_KEY for a model")


def _run(run: RunSummary) -> RenderableType:
    best = ""
    if run.best_attempt_id is not None:
        best = f", best #{run.best_attempt_id.rpartition('/')[2]}"
        best += f" {words.microseconds(run.best_us)}" if run.best_us is not None else " (not timed)"
        best += f", {run.best_speedup:.2f}x" if run.best_speedup is not None else ""
    what = f"{run.task}, {words.plural(run.attempts, 'attempt')}{best}"
    entries = [(f"optimize show {run.run_id}", words.one_line(what))]
    if run.why in (None, "interrupted"):
        entries.append((f"optimize --resume {run.run_id}", "it has not ended: go on with it"))
    return _commands(entries)
