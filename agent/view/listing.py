"""Tables of tasks and runs, and what `optimize merge` brought, for people and as JSON."""

import json as jsonlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from kerneltune.agent.record.merge import Merged
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import LineWriter, columns, short, standard_page
from kerneltune.tools.schema.codec import Json, encode, one_line
from kerneltune.tools.schema.gpus import GPUS, speed_of_light
from kerneltune.tools.schema.task import CaseSpec, TaskSpec

SCHEMA_VERSION = 1  # of each entry

if TYPE_CHECKING:
    from kerneltune.agent.record.query import RunSummary


def print_tasks(groups: Mapping[str, Sequence[TaskSpec]], *, json: bool) -> None:
    """Print a row per task, by group: size and cost of its timed case. JSON has floors on GPUs too."""
    if json:
        listed = [_task_json(task) | {"group": group} for group, tasks in groups.items() for task in tasks]
        print(jsonlib.dumps(listed, indent=2))
        return
    about = Text("\nCases, source and the floor on each known GPU: optimize tasks NAME")
    standard_page(colour=True).print(_tasks_table(groups), about)


def _plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def _tasks_table(groups: Mapping[str, Sequence[TaskSpec]]) -> Table:
    table = _plain_table(
        "task", "precision", "bytes", "flops", "cases", "inputs of the timed case", right=("bytes", "flops")
    )
    for group, tasks in groups.items():
        table.add_row(Text(f"— {group}", style="dim"))
        for task in tasks:
            main = task.main
            flops = f"{main.flops:.2e}" if main.flops else "-"
            shown = str(sum(not c.held_out for c in task.cases))
            table.add_row(task.name, task.precision, f"{main.bytes_moved / 1e6:.1f} MB", flops, shown, shapes(main))
    return table


def _floors_table(tasks: Sequence[TaskSpec]) -> Table:
    names = [gpu.name for gpu in GPUS]
    table = _plain_table("task", *names, right=names)
    for task in tasks:
        floors = [f"{speed_of_light(task.main, gpu, task.precision).us:.1f} µs" for gpu in GPUS]
        table.add_row(task.name, *floors)
    return table


def _task_json(task: TaskSpec) -> dict[str, Json]:
    floors = {gpu.name: round(speed_of_light(task.main, gpu, task.precision).us, 3) for gpu in GPUS}
    cases = [encode(c) for c in task.cases if not c.held_out]
    return {
        "schema_version": SCHEMA_VERSION,
        "name": task.name,
        "precision": task.precision,
        "cases": cases,
        "speed_of_light_us": floors,
    }


def print_task(task: TaskSpec, source: str, notes: Sequence[str], *, json: bool) -> None:
    """Print a task's cases, the floor of the timed one, and the source as an author sees it."""
    if json:
        print(jsonlib.dumps(_task_json(task) | {"source": source, "notes": list(notes)}, indent=2))
        return
    page, hidden = standard_page(colour=True), sum(c.held_out for c in task.cases)
    page.print(Text(f"{one_line(task.name)}, {task.precision}", style="bold"), _cases_table(task))
    if hidden:
        page.print(Text(f"and {words.plural(hidden, 'case')} that whoever writes kernels does not see"))
    for note in notes:
        page.print(Text(f"✗ {one_line(note)}", style="red"))
    about = Text("\nThe floor of the timed case on each GPU: bytes / bandwidth or flops / rate. No measurement.\n")
    page.print(about, _floors_table([task]), Text(""))
    if page.terminal:
        page.print(Syntax(words.lines(source), "python", background_color="default"))
    else:
        page.write(words.lines(source))


def _cases_table(task: TaskSpec) -> Table:
    table = _plain_table("case", "bytes", "flops", "checked without a GPU", "inputs", right=("bytes", "flops"))
    for case in task.cases:
        if not case.held_out:
            name = f"{one_line(case.name)} (timed)" if case is task.main else one_line(case.name)
            flops = f"{case.flops:.2e}" if case.flops else "-"
            size = f"{case.bytes_moved / 1e6:.1f} MB"
            table.add_row(name, size, flops, "yes" if case.runs_on_cpu else "no", shapes(case))
    return table


def shapes(case: CaseSpec) -> str:
    """Format the inputs: "8192x8192 float32, 8192 int64"."""
    return ", ".join(_leaf(tree) for tree in case.inputs)


def _leaf(tree: Json) -> str:
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        return f"{'x'.join(map(str, spec['shape']))} {spec['dtype']}"
    return str(tree)


def print_runs(runs: "Sequence[RunSummary]", *, json: bool, any_stored: bool = True) -> None:
    """Print runs, latest first. `any_stored`: whether the record has any run at all."""
    if json:
        listed = [{"schema_version": SCHEMA_VERSION} | run_json(r) for r in runs]
        print(jsonlib.dumps(listed, indent=2, allow_nan=False))
        return
    if not runs:
        print("no run passes these filters" if any_stored else "no runs yet; start one with: optimize --task softmax")
        return
    shown = ("run", "task", "author", "where", "attempts", "accepted", "best", "ended")
    table = columns(*shown, right=("attempts", "accepted"), cut=("task", "author", "where"))
    for run in runs:
        counts = (str(run.attempts), str(run.accepted))
        names = (short(name) for name in (run.task, run.author, where(run)))
        table.add_row(one_line(run.run_id), *names, *counts, _best(run), run.why or "-")
    standard_page(colour=True).print(table)


def where(run: "RunSummary") -> str:
    """Format the GPU, or that there was none."""
    return run.gpu or f"no GPU ({run.arch})"


def _best(run: "RunSummary") -> str:
    if run.best_attempt_id is None:
        return "-"
    speedup = f", {run.best_speedup:.2f}x" if run.best_speedup is not None else ""
    time = f" {words.microseconds(run.best_us)}{speedup}" if run.best_us is not None else ""
    held = {None: "", True: " (verified)", False: " (did not hold)"}[run.verified]
    return f"#{one_line(run.best_attempt_id.rpartition('/')[2])}{time}{held}"


def run_json(run: "RunSummary") -> dict[str, Json]:
    """Return a run as one JSON object."""
    facts = {f.name: getattr(run, f.name) for f in fields(run)}
    return {name: encode(v) for name, v in facts.items() if name != "started"} | {"started": str(run.started)}


_MOST_CLASHES = 20  # that are told one by one


@dataclass(frozen=True)
class MergedFile:
    """One database, what came from it, and how many files beside it. `failed`: why it could not be used at all."""

    name: str
    merged: Merged
    files: int = 0
    failed: str | None = None


def print_merged(done: Sequence[MergedFile], ours: Path, *, dry_run: bool) -> None:
    """Print a line per database to stdout, and problems to stderr."""
    out, err = LineWriter(sys.stdout), LineWriter(sys.stderr)
    for file in done:
        if file.failed is not None:
            err.write(one_line(f"optimize: {file.failed}"))
            continue
        out.write(one_line(f"{file.name}: {_came(file, dry_run)}"))
        for clash in file.merged.clashes[:_MOST_CLASHES]:
            err.write(one_line(f"optimize: {file.name}: run {clash.run_id} is left out: {clash.why}"))
        if (more := len(file.merged.clashes) - _MOST_CLASHES) > 0:
            err.write(f"optimize: … and {more} more")
    if dry_run:
        out.write(one_line(f"nothing was changed; without --dry-run it goes into {ours}"))


def _came(file: MergedFile, dry_run: bool) -> str:
    found = file.merged
    parts = [
        f"{words.plural(len(found.new), 'new run')}",
        f"{len(found.extended)} went on",
        f"{len(found.same)} known already",
        f"{len(found.clashes)} left out",
    ]
    brought = f"{words.plural(found.attempts, 'attempt')}, {words.plural(found.events, 'event')}"
    files = words.plural(file.files, "file")
    return f"{', '.join(parts)}; {brought} and {files} {'would come' if dry_run else 'came'}"


def merged_json(done: Sequence[MergedFile], ours: Path, *, dry_run: bool) -> dict[str, Json]:
    """Return the object of `optimize merge --json`."""
    return {
        "type": "merge",
        "schema_version": SCHEMA_VERSION,
        "into": str(ours),
        "dry_run": dry_run,
        "databases": [
            {"database": file.name, **encode(file.merged), "files": file.files, "failed": file.failed} for file in done
        ],
    }
