"""`optimize tasks`: the built-in tasks, one of them in full, and whether a task is fit to be optimised."""

import json as jsonlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from kerneltune.agent.commands import AsJson
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import Page, columns, say, short, standard_page, status_line
from kerneltune.tools.schema.codec import Json, encode, one_line, plural, shell_word
from kerneltune.tools.schema.errors import TaskError, UsageError
from kerneltune.tools.schema.gpus import GPUS, speed_of_light
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, contracts_in_words
from kerneltune.tools.task.load import builtin_tasks, described, find_task, visible_source
from kerneltune.tools.tasks import GROUPS

if TYPE_CHECKING:
    from kerneltune.tools.sandbox.workers import Machine
    from kerneltune.tools.task.compose import Composed
    from kerneltune.tools.task.load import TaskFile

SCHEMA_VERSION = 1
_BATCH = 100

command = App(
    name="tasks",
    help_epilogue="""
Examples:
    optimize tasks                           all built-in tasks
    optimize tasks softmax                   one of them: source, cases, floor
    optimize tasks mytask.py --check         is your task fit to be judged?
    optimize tasks --compose 2000 -o tasks   write 2,000 small ones to train on
    optimize tasks --json | python -m json.tool
""",
)


@command.default
def tasks(
    task: Annotated[str | None, Parameter(help="Show this one: a name or a file.")] = None,
    /,
    *,
    check: Annotated[
        bool, Parameter(help="Run its reference on a CPU and try the null kernels on it.", negative="")
    ] = False,
    compose: Annotated[
        int | None,
        Parameter(metavar="N", help="Write N small tasks, composed of common operations, that --check finds sound."),
    ] = None,
    output: Annotated[
        Path | None, Parameter(metavar="DIR", name=["--output", "-o"], help="The folder for them.")
    ] = None,
    seed: Annotated[int, Parameter(metavar="N", help="The seed that chooses them.")] = 0,
    json: AsJson = False,
) -> int:
    """List the built-in tasks, or show or check one.

    It shows source, cases, bytes, flops, and the speed-of-light time on known GPUs. With --compose, it writes small
    tasks to train on.

    With --check, exit code 0: the task is sound; 1: a kernel that does nothing would pass it; 2: bad input.
    """
    if compose is not None:
        if output is None or task is not None or compose < 1:
            raise UsageError("tasks --compose: say how many and where, as in: optimize tasks --compose 100 -o tasks")
        return _compose(compose, output, seed, json=json)
    if task is None and check:
        raise UsageError("tasks --check: name the task to check, as in: optimize tasks mytask.py --check")
    if task is None:
        _print_tasks(json=json)
        return 0
    file = find_task(task)
    if not check:
        spec = described(file)
        _print_task(CheckedTask(spec) if spec else checked_task(file), visible_source(file), json=json)
        return 0
    found = checked_task(file)
    if json:
        about = {"type": "task_check", "schema_version": SCHEMA_VERSION, "task": file.name}
        print(jsonlib.dumps(about | {"sound": found.sound, "notes": list(found.notes)}, indent=2))
    else:
        print_check(found, task, standard_page(colour=True))
    return int(not found.sound)


@dataclass(frozen=True)
class CheckedTask:
    """A task whose reference runs. `notes` say how far verdicts on it can be trusted."""

    task: TaskSpec
    notes: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the check raised no note."""
        return not self.notes


def checked_task(task_file: "TaskFile") -> CheckedTask:
    """Open a task as a run would: its reference runs in a worker, and kernels that do nothing are tried on it.
    Raises TaskError when its code fails."""
    from kerneltune.agent.commands.session import open_task
    from kerneltune.tools.bench import CPU_JUDGE
    from kerneltune.tools.sandbox import workers

    doing = f"running {task_file.name}'s reference, and kernels that do nothing"
    with (
        status_line(doing),
        workers.started_base() as machine,
        machine.task(CPU_JUDGE, [task_file.path]) as judge,
    ):
        return CheckedTask(*open_task(judge, task_file)[:2])


def _compose(wanted: int, folder: Path, seed: int, *, json: bool) -> int:
    """Write so many sound tasks. Those that an earlier call wrote and checked are kept."""
    from kerneltune.tools.sandbox import workers
    from kerneltune.tools.task.compose import compositions

    folder.mkdir(parents=True, exist_ok=True)
    if foreign := next((path for path in folder.glob("*.py") if "_" not in path.stem), None):
        raise UsageError(f"{foreign} is no composed task; give a folder of its own to -o")
    told: Counter[str] = Counter()
    found: list[Composed] = []
    with workers.started_base() as machine, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        many = iter(compositions(seed))
        while len(found) < wanted:
            batch = list(islice(many, min(wanted - len(found), _BATCH)))
            for made, why in zip(batch, pool.map(lambda one: _composed(machine, folder, one), batch), strict=True):
                found += [] if why else [made]
                told.update([why] if why else [])
            say(f"… {len(found):,} of {wanted:,} tasks; {told.total():,} were left out")
    n_compositions = len({made.composition for made in found})
    if json:
        about: dict[str, Json] = {"type": "composed", "schema_version": SCHEMA_VERSION, "folder": str(folder)}
        print(jsonlib.dumps(about | {"tasks": len(found), "compositions": n_compositions, "left_out": dict(told)}))
        return 0
    page = standard_page(colour=True)
    page.print(f"{folder}: {plural(len(found), 'task')} of {plural(n_compositions, 'composition')}")
    page.print(*(Text(f"left out: {n:,}: {one_line(why)}", style="dim") for why, n in told.most_common()))
    page.print(Text(f"next: optimize suite {shell_word(str(folder))} --authors offline", style="cyan"))
    return 0


def _composed(machine: "Machine", folder: Path, made: "Composed") -> str:
    """Write a task and check it, unless that was done; why it was left out, "" if it was not."""
    from kerneltune.agent.commands.session import open_task
    from kerneltune.tools.bench import CPU_JUDGE

    path = folder / f"{made.name}.py"
    if path.is_file() and path.read_text(encoding="utf-8") == made.source:
        return ""
    aside = folder / ".unchecked" / path.name
    aside.parent.mkdir(exist_ok=True)
    aside.write_text(made.source, encoding="utf-8")
    try:
        with machine.task(CPU_JUDGE, [aside]) as judge:
            _, notes, _ = open_task(judge, find_task(str(aside)))
    except TaskError:
        return "its reference does not run"
    if notes:
        return "a kernel that does nothing would pass, or an operand hardly matters"
    aside.rename(path)
    return ""


def print_check(found: CheckedTask | str, path: str, page: Page) -> None:
    """Print the check's result and the next command. `found`: text that says why a task does not run; `path`: the task
    as a person typed it."""
    path = shell_word(path)
    if isinstance(found, CheckedTask) and found.sound:
        page.print(Text("✔ its reference runs, and kernels that do nothing fail it", style="green"))
        page.print(Text(f"next: optimize --task {path}", style="cyan"))
        return
    problems = found.notes if isinstance(found, CheckedTask) else [f"it does not run yet: {found}"]
    page.print(*(Text(f"✗ {one_line(problem)}", style="red") for problem in problems))
    page.print(Text(f"next: edit {path}, then: optimize tasks {path} --check", style="cyan"))


def _print_tasks(*, json: bool) -> None:
    """Print a row per built-in task, by group: size and cost of its timed case. JSON has floors on GPUs too."""
    specs = {file.name: described(file) or checked_task(file).task for file in builtin_tasks()}
    groups = {group: [specs[name] for name in names] for group, names in GROUPS.items()}
    if json:
        listed = [_task_json(task) | {"group": group} for group, its in groups.items() for task in its]
        print(jsonlib.dumps(listed, indent=2))
        return
    about = Text("\nCases, source and the floor on each known GPU: optimize tasks NAME")
    standard_page(colour=True).print(_tasks_table(groups), about)


def _tasks_table(groups: Mapping[str, Sequence[TaskSpec]]) -> Table:
    names = ("task", "precision", "bytes", "flops", "cases", "inputs of the timed case")
    table = columns(*names, right=("bytes", "flops"), cut=names[-1:], spare=("cases", "flops", "bytes"))
    for group, its in groups.items():
        table.add_row(Text(f"— {group}", style="dim"))
        for task in its:
            shown = str(sum(not c.held_out for c in task.cases))
            table.add_row(task.name, task.precision, *_cost(task.main), shown, short(shapes(task.main)))
    return table


def _cost(case: CaseSpec) -> tuple[str, str]:
    return f"{case.bytes_moved / 1e6:.1f} MB", f"{case.flops:.2e}" if case.flops else "-"


def _task_json(task: TaskSpec) -> dict[str, Json]:
    floors = {gpu.name: round(speed_of_light(task.main, gpu, task.precision).us, 3) for gpu in GPUS}
    return {
        "schema_version": SCHEMA_VERSION,
        "name": task.name,
        "precision": task.precision,
        "contracts": [encode(contract) for contract in task.contracts],
        "cases": [encode(c) for c in task.cases if not c.held_out],
        "speed_of_light_us": floors,
    }


def _print_task(found: CheckedTask, source: str, *, json: bool) -> None:
    """Print a task's cases, the floor of the timed one, and the source as an author sees it."""
    task = found.task
    if json:
        print(jsonlib.dumps(_task_json(task) | {"source": source, "notes": list(found.notes)}, indent=2))
        return
    page, hidden = standard_page(colour=True), sum(c.held_out for c in task.cases)
    page.print(Text(f"{one_line(task.name)}, {task.precision}", style="bold"), _cases_table(task))
    if hidden:
        page.print(f"and {plural(hidden, 'case')} that no author sees")
    if task.contracts:
        page.print(Text(f"Contract: {one_line(contracts_in_words(task.contracts))}"))
    page.print(*(Text(f"✗ {one_line(note)}", style="red") for note in found.notes))
    page.print("", "The floor of the timed case on each GPU: bytes / bandwidth or flops / rate. No measurement.", "")
    floors = columns("GPU", "floor", right=("floor",))
    for gpu in GPUS:
        floors.add_row(gpu.name, f"{speed_of_light(task.main, gpu, task.precision).us:.1f} µs")
    page.print(floors, "")
    if page.terminal:
        from rich.syntax import Syntax  # 100 ms for its lexers

        page.print(Syntax(words.lines(source), "python", background_color="default"))
    else:
        page.write(words.lines(source))


def _cases_table(task: TaskSpec) -> Table:
    names = ("case", "bytes", "flops", "without a GPU", "inputs")
    table = columns(*names, right=("bytes", "flops"), cut=("inputs",), spare=("flops", "without a GPU", "bytes"))
    for case in task.cases:
        if not case.held_out:
            weight = f", weight {case.weight:g}" if len(task.weighted) > 1 else ""
            name = f"{case.name} (timed{weight})" if case in task.weighted else case.name
            table.add_row(name, *_cost(case), "checked" if case.runs_on_cpu else "-", short(shapes(case)))
    return table


def shapes(case: CaseSpec) -> str:
    """Format the inputs: "8192x8192 float32, 8192 int64"."""
    return ", ".join(_leaf(tree) for tree in case.inputs)


def _leaf(tree: Json) -> str:
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        return f"{'x'.join(map(str, spec['shape']))} {spec['dtype']}"
    return str(tree)
