"""`optimize tasks` and `optimize runs`."""

from pathlib import Path

from agent.compose.session import open_task
from agent.record.listing import Filter
from agent.record.store import Store
from agent.view.listing import print_runs, print_tasks
from tools import machine as machines
from tools.task import builtin_tasks


def list_tasks(*, json: bool) -> int:
    """Print the built-in tasks; describing them takes a worker with torch."""
    with machines.started_base() as machine, machine.trusted("tools.judge.desk:main") as desk:
        specs = [open_task(desk, task_file)[0] for task_file in builtin_tasks()]
    print_tasks(specs, json=json)
    return 0


def list_runs(runs_dir: Path, wanted: Filter, *, json: bool) -> int:
    """Print the latest stored runs that pass. Raises UsageError."""
    with Store.open(runs_dir) as store:
        print_runs(store.runs(wanted), json=json, any_stored=bool(store.runs(Filter(limit=1))))
    return 0
