"""`optimize tasks`."""

from agent.compose.session import open_task
from agent.view.listing import print_tasks
from tools import machine as machines
from tools.task import builtin_tasks


def list_tasks(*, json: bool) -> int:
    """Print the built-in tasks; describing them takes a worker with torch."""
    with machines.started_base() as machine, machine.trusted("tools.judge.desk:main") as desk:
        specs = [open_task(desk, task_file)[0] for task_file in builtin_tasks()]
    print_tasks(specs, json=json)
    return 0
