"""`optimize tasks`."""

import json as jsonlib

from kerneltune.agent.commands.session import open_task
from kerneltune.agent.commands.task_check import checked
from kerneltune.agent.view.listing import print_task, print_tasks
from kerneltune.agent.view.setup import check_json, print_check
from kerneltune.tools.sandbox import workers
from kerneltune.tools.task.load import builtin_tasks, find_task, visible_source
from kerneltune.tools.tasks import GROUPS


def list_tasks(*, json: bool) -> int:
    """Print the built-in tasks; describing them takes a worker with torch."""
    with workers.started_base() as machine, machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        specs = {task_file.name: open_task(judge, task_file)[0] for task_file in builtin_tasks()}
    print_tasks({group: [specs[name] for name in names] for group, names in GROUPS.items()}, json=json)
    return 0


def show_task(name: str, *, json: bool) -> int:
    """Print one task. Raises TaskError."""
    task_file = find_task(name)
    found = checked(task_file)
    print_task(found.task, visible_source(task_file), found.notes, json=json)
    return 0


def check_task(name: str, *, json: bool) -> int:
    """Say whether verdicts on a task would mean anything; 0 when they would, else 1. Raises TaskError."""
    task_file = find_task(name)
    found = checked(task_file)
    if json:
        print(jsonlib.dumps(check_json(task_file.name, found), indent=2))
    else:
        print_check(name, found)
    return int(not found.sound)
