"""What is shown before the first run: a bare `optimize`, settings, this machine, a task file written or checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.record.query import RunSummary
from kerneltune.agent.settings import Sourced, flag_of
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import Page, columns, facts, heading, short, standard_page
from kerneltune.tools.doctor import Finding
from kerneltune.tools.schema.codec import Json, encode, one_line
from kerneltune.tools.schema.task import TaskSpec

SCHEMA_VERSION = 1
_BEGIN = (
    ("optimize --task softmax", "optimise a built-in task; `optimize tasks` lists all {tasks}"),
    ("optimize init FILE.py:NAME", "make a task of a PyTorch function or module of your own"),
    ("optimize doctor", "what this machine has and lacks, and what mends it"),
)


@dataclass(frozen=True)
class MachineFacts:
    """What is known of this machine without waiting. `gpu` is None without one; a version is None when the package
    is not installed; `keys` are the providers whose API key is set."""

    gpu: str | None
    memory_bytes: int
    arch: str
    versions: Mapping[str, str | None]
    model: str
    keys: Sequence[str]


def print_welcome(machine: MachineFacts, latest: RunSummary | None, tasks: int) -> None:
    """Print how to begin, what this machine can do, and the latest run."""
    page = standard_page(colour=True)
    page.print(
        Text("kerneltune finds the fastest GPU kernel for a PyTorch task that it can prove right."),
        heading("begin with"),
        _commands([(command, purpose.format(tasks=tasks)) for command, purpose in _BEGIN]),
        heading("this machine"),
        _machine_facts(machine),
    )
    if latest is not None:
        page.print(heading("latest run"), _latest_run(latest))
    page.print(Text("\noptimize --help lists all commands and flags.", style="dim"))


def _commands(entries: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for command, purpose in entries:
        table.add_row(Text(f"  {command}"), Text(purpose))
    return table


def _machine_facts(machine: MachineFacts) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("  GPU", _gpu(machine))
    table.add_row("  author", _author(machine))
    table.add_row("  software", Text(", ".join(f"{n} {v or '(not installed)'}" for n, v in machine.versions.items())))
    return table


def _gpu(machine: MachineFacts) -> Text:
    if machine.gpu is None:
        return Text(f"none: kernels are compiled for {one_line(machine.arch)} and checked, not timed")
    size = f"{machine.memory_bytes / (1 << 30):.0f} GiB"
    return Text(f"{one_line(machine.gpu)}, {size}: kernels are checked and timed")


def _author(machine: MachineFacts) -> Text:
    if machine.model:
        return Text(f"{one_line(machine.model)} (the setting model)")
    if machine.keys:
        return Text(f"{machine.keys[0]}, whose API key is set; --model offline needs none")
    return Text(f"offline: expert kernels and a search; set {' or '.join(KEY_VARIABLES.values())} for a model")


def _latest_run(run: RunSummary) -> RenderableType:
    best = ""
    if run.best_attempt_id is not None:
        best = f", best #{run.best_attempt_id.rpartition('/')[2]}"
        best += f" {words.microseconds(run.best_us)}" if run.best_us is not None else " (not timed)"
        best += f", {run.best_speedup:.2f}x" if run.best_speedup is not None else ""
    what = f"{run.task}, {words.plural(run.attempts, 'attempt')}{best}"
    entries = [(f"optimize show {run.run_id}", one_line(what))]
    if run.why in (None, StopReason.INTERRUPTED):
        entries.append((f"optimize --resume {run.run_id}", "it has not ended: go on with it"))
    return _commands(entries)


Files = tuple[Path | None, Path]  # the project's, if there is one, and where the user's is or would be
_LEFT_OPEN = {  # what it means that nobody said
    "model": "the first provider whose key is set, else offline",
    "base-url": "the provider's own",
    "arch": "the GPU's, or sm_90 without one",
    "tier": "screen all, judge the promising",
    "width": "2; on a GPU up to 5, by its host's cores",
    "max-attempts": "24; of a search on a GPU, 300 within 120 s",
    "max-time": "no limit",
    "max-cost": "no limit",
    "patience": "no limit",
    "target-speedup": "no goal",
    "target-sol": "no goal",
}


def print_config(settings: Mapping[str, Sourced], files: Files, unknown: Mapping[str, str]) -> None:
    """Print a line per setting, then the files, then variables that set nothing."""
    table = columns("setting", "value", "from", cut=("value", "from"))
    for name, one in settings.items():
        chosen = one.source != "default"
        source = Text(one_line(one.source), style="cyan" if chosen else "dim")
        table.add_row(Text(flag_of(name), style="bold" if chosen else ""), short(_value(flag_of(name), one)), source)
    page = standard_page(colour=True)
    page.print(table, heading("files"), _places(files))
    for variable, hint in unknown.items():
        page.print(Text(f"{one_line(variable)} is no setting; {hint}", style="yellow"))


def _places(files: Files) -> RenderableType:
    project, user = files
    table = facts()
    none = "none: no kerneltune.toml here or above, up to the git root"
    table.add_row("project", one_line(str(project)) if project else none)
    table.add_row("user", one_line(str(user)) + ("" if user.is_file() else " (not there)"))
    return table


def _value(name: str, one: Sourced) -> str:
    if one.value in (None, ""):
        return f"- ({_LEFT_OPEN.get(name, 'not set')})"
    return str(one.value).lower() if isinstance(one.value, bool) else str(one.value)


def config_json(settings: Mapping[str, Sourced], files: Files, unknown: Mapping[str, str]) -> None:
    """Print the same as one JSON object."""
    project, user = files
    values: dict[str, Json] = {
        flag_of(name): {"value": _plain(s.value), "source": s.source} for name, s in settings.items()
    }
    told: dict[str, Json] = {
        "type": "config",
        "schema_version": SCHEMA_VERSION,
        "settings": values,
        "project_file": str(project) if project else None,
        "user_file": str(user),
        "unknown_variables": list(unknown),
    }
    print(json.dumps(told, indent=2))


def _plain(value: object) -> Json:
    return str(value) if isinstance(value, Path) else value


_SYMBOLS = {True: ("✔", "green"), False: ("✗", "red"), None: ("·", "dim")}


def print_findings(found: Sequence[Finding], calibration: Path | None) -> None:
    """Print a line per finding, and below each problem its remedy."""
    page = standard_page(colour=True)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        symbol, style = _SYMBOLS[finding.ok]
        table.add_row(Text(symbol, style=style), Text(finding.name), Text(one_line(finding.value)))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {one_line(finding.remedy)}", style="cyan"))
    page.print(table)
    if calibration:
        page.print(Text(f"measured this GPU's ceilings: {one_line(str(calibration))}"))
    amiss = sum(f.ok is False for f in found)
    page.print(Text("nothing is amiss" if not amiss else f"{words.plural(amiss, 'thing')} amiss"))


def findings_json(found: Sequence[Finding], calibration: Path | None) -> dict[str, Json]:
    """Return the object of `optimize doctor --json`."""
    return {
        "type": "doctor",
        "schema_version": SCHEMA_VERSION,
        "ok": not any(f.ok is False for f in found),
        "findings": [encode(f) for f in found],
        "calibration_path": str(calibration) if calibration else None,
    }


@dataclass(frozen=True)
class CheckedTask:
    """A task whose reference runs. `notes` say how far verdicts on it can be trusted."""

    task: TaskSpec
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the check raised no note."""
        return not self.notes


@dataclass(frozen=True)
class BrokenTask:
    """A task whose code fails, and how."""

    problem: str


@dataclass(frozen=True)
class WrittenTask:
    """A task file. `looks`: lines that hold guesses; `checked` is None when nothing was run."""

    path: Path
    name: str
    origin: str
    looks: tuple[tuple[int, str], ...]
    checked: CheckedTask | BrokenTask | None


def print_written(written: WrittenTask) -> None:
    """Print what was written, which lines to look at, the check's result, and the next command."""
    page, path = standard_page(colour=True), one_line(str(written.path))
    page.print(Text(f"wrote {path} from {one_line(written.origin)}"))
    for line, guess in written.looks:
        page.print(Text(f"  line {line}: {one_line(guess)}", style="yellow"))
    if written.checked is None:
        page.print(Text("nothing was run"), Text(f"next: optimize tasks {path} --check", style="cyan"))
    else:
        _print_found(page, written.checked, path)


def print_check(name: str, found: CheckedTask) -> None:
    """Print the check's result and the next command. `name`: the task as a person typed it."""
    _print_found(standard_page(colour=True), found, one_line(name))


def _print_found(page: Page, found: CheckedTask | BrokenTask, path: str) -> None:
    if isinstance(found, BrokenTask):
        page.print(Text(f"✗ it does not run yet: {one_line(found.problem)}", style="red"))
    elif found.sound:
        page.print(Text("✔ its reference runs, and kernels that do nothing fail it", style="green"))
        page.print(Text(f"next: optimize --task {path}", style="cyan"))
        return
    else:
        for note in found.notes:
            page.print(Text(f"✗ {one_line(note)}", style="red"))
    page.print(Text(f"next: edit {path}, then: optimize tasks {path} --check", style="cyan"))


def check_json(name: str, found: CheckedTask) -> dict[str, Json]:
    """Return the check's result as one object."""
    return {
        "type": "task_check",
        "schema_version": SCHEMA_VERSION,
        "task": name,
        "sound": found.sound,
        "notes": list(found.notes),
    }


def written_json(written: WrittenTask) -> dict[str, Json]:
    """Return what was written and found as one object; `sound` is null when nothing was run."""
    found = written.checked
    return {
        "type": "init",
        "schema_version": SCHEMA_VERSION,
        "path": str(written.path),
        "name": written.name,
        "origin": written.origin,
        "looks": [{"line": line, "guess": guess} for line, guess in written.looks],
        "sound": None if found is None else isinstance(found, CheckedTask) and found.sound,
        "problem": found.problem if isinstance(found, BrokenTask) else None,
        "notes": list(found.notes) if isinstance(found, CheckedTask) else [],
    }
