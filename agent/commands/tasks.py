"""`optimize tasks`: the built-in tasks, one of them in full, and whether a task is fit to be optimised."""

import json as jsonlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.commands import AsJson
from kerneltune.tools.schema.errors import UsageError

if TYPE_CHECKING:
    from kerneltune.agent.view.setup import CheckedTask
    from kerneltune.tools.schema.task import TaskSpec
    from kerneltune.tools.task.load import TaskFile

command = App(
    name="tasks",
    help_epilogue="""
Examples:
    optimize tasks                           all built-in tasks
    optimize tasks softmax                   one of them: source, cases, floor
    optimize tasks mytask.py --check         is your task fit to be judged?
    optimize tasks --json | python -m json.tool
""",
)


@command.default
def tasks(
    task: Annotated[str | None, Parameter(help="Show this one: a name or a file.", completer=complete.tasks)] = None,
    /,
    *,
    check: Annotated[
        bool, Parameter(help="Run its reference on a CPU and try the null kernels on it.", negative="")
    ] = False,
    json: AsJson = False,
) -> int:
    """List the built-in tasks, or show or check one.

    Shown are source, cases, bytes, flops, and the speed-of-light time on known GPUs.

    With --check, exit code 0: the task is sound; 1: a kernel that does nothing would pass it; 2: bad input.
    """
    if task is None and check:
        raise UsageError("tasks --check: name the task to check, as in: optimize tasks mytask.py --check")
    from kerneltune.agent.view.listing import print_task
    from kerneltune.agent.view.setup import check_json, print_check
    from kerneltune.tools.task.load import find_task, visible_source

    if task is None:
        return _list_tasks(json=json)
    task_file = find_task(task)
    found = checked_task(task_file)
    if not check:
        print_task(found.task, visible_source(task_file), found.notes, json=json)
        return 0
    if json:
        print(jsonlib.dumps(check_json(task_file.name, found), indent=2))
    else:
        print_check(task, found)
    return int(not found.sound)


def _list_tasks(*, json: bool) -> int:
    """Print the built-in tasks; describing them takes a worker with torch."""
    from kerneltune.agent.view.listing import print_tasks
    from kerneltune.tools.task.load import builtin_tasks
    from kerneltune.tools.tasks import GROUPS

    files = builtin_tasks()
    specs = {file.name: task for file, (task, _) in zip(files, _described(files), strict=True)}
    print_tasks({group: [specs[name] for name in names] for group, names in GROUPS.items()}, json=json)
    return 0


def checked_task(task_file: "TaskFile") -> "CheckedTask":
    """Open a task as a run would: its reference runs in a trusted worker, and kernels that do nothing are tried on it.
    Raises TaskError when its code fails."""
    from kerneltune.agent.view.setup import CheckedTask

    (described,) = _described([task_file])
    return CheckedTask(*described)


def _described(files: "Sequence[TaskFile]") -> "list[tuple[TaskSpec, tuple[str, ...]]]":
    """Each task as data, with what the CPU judge has against it. Raises TaskError."""
    from kerneltune.agent.commands.session import open_task
    from kerneltune.tools.sandbox import workers

    with workers.started_base() as machine, machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        return [open_task(judge, file) for file in files]
