"""Is a task fit to be optimised? Runs its reference in a trusted worker, and tries kernels that do nothing on it."""

from kerneltune.agent.commands.session import open_task
from kerneltune.agent.view.setup import CheckedTask
from kerneltune.tools.sandbox import workers
from kerneltune.tools.task.load import TaskFile


def checked(task_file: TaskFile) -> CheckedTask:
    """Open the task as a run would. Raises TaskError when its code fails."""
    with workers.started_base() as machine, machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        task, notes = open_task(judge, task_file)
    return CheckedTask(task, notes)
