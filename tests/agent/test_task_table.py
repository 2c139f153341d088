"""The built-in tasks as data, which `optimize tasks` shows without running them.

After a wanted change of a task: `python -m tests.agent.test_task_table`.
"""

import json

from kerneltune.agent.commands.session import open_task
from kerneltune.tools.sandbox import workers
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.task.load import TABLE, builtin_tasks, described
from tests import shared_fork_server


def table() -> str:
    """What the file should hold; every task is opened as a run opens it, and nothing speaks against it."""
    found = {}
    with (
        shared_fork_server.forked(workers.started_base()) as machine,
        machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge,
    ):
        for file in builtin_tasks():
            task, notes, _ = open_task(judge, file)
            assert notes == ()
            found[file.sha256] = {name: value for name, value in encode(task).items() if name != "source"}
    lines = (f"{json.dumps(sha256)}: {json.dumps(task)}" for sha256, task in found.items())
    return "{" + ",\n".join(lines) + "}\n"


def test_the_table_of_tasks_says_what_their_references_say() -> None:
    assert TABLE.read_text() == table()


def test_a_task_that_was_edited_is_not_taken_from_the_table() -> None:
    file = builtin_tasks()[0]
    assert described(file) is not None
    assert described(type(file)(**vars(file) | {"sha256": "0" * 64})) is None


if __name__ == "__main__":
    TABLE.write_text(table())
