"""The public Python API, over the functions that the commands call. Reached as `kerneltune.optimize` and so on."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kerneltune.agent.events import Event
from kerneltune.agent.models.types import Effort
from kerneltune.agent.settings import Language, Strategy, chosen_settings, environment
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Tier, Verdict

if TYPE_CHECKING:
    from kerneltune.agent.commands.lifecycle import RunOutcome
    from kerneltune.tools.evaluator import Candidate


@dataclass(frozen=True)
class Task:
    """A task file as data: nothing of it has run."""

    name: str
    path: Path
    source: str

    @classmethod
    def open(cls, name_or_path: str | Path) -> "Task":
        """Open a built-in task by its name, or a task file by its path. Raises TaskError."""
        from kerneltune.tools.task.load import find_task

        file = find_task(str(name_or_path))
        return cls(file.name, file.path, file.source)


def optimize(
    task: str | Path | Task,
    *,
    model: str | None = None,
    base_url: str | None = None,
    retry_time_s: int | None = None,
    effort: Effort | None = None,
    strategy: Strategy | None = None,
    language: Language | None = None,
    start: str | None = None,
    max_attempts: int | None = None,
    max_time_s: float | None = None,
    max_cost_usd: float | None = None,
    patience: int | None = None,
    target_speedup: float | None = None,
    target_sol: float | None = None,
    tier: Tier | None = None,
    counters: bool | None = None,
    confirm: bool | None = None,
    width: int | None = None,
    seed: int | None = None,
    warm_start: bool | None = None,
    lessons: bool | None = None,
    arch: str | None = None,
    runs_dir: str | Path | None = None,
    allow_unsandboxed: bool | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> "RunOutcome":
    """Optimise a task as `optimize --task` does, and store every attempt in `runs_dir`.

    An argument means what the flag of its name does (`start`: --from), and where it is None the environment, then
    the default decide. `on_event` is called with each event of the run, from several threads.
    The result has the run's id, why it ended, its best attempt (source and verdict) and the file that
    holds it; `best` is None where nothing was accepted. Ctrl-C ends the run in order, and the result says so.

    Raises UsageError for an argument that makes no sense, TaskError (one of them) for a task that cannot be used,
    LlmError for a model that cannot be asked, Unconfined where nothing confines candidates.
    """
    settings = chosen_settings({**locals(), "from_": start})
    from kerneltune.agent.commands.lifecycle import run_task

    return run_task(_task_name(task), settings, environment(), on_event or _ignored)


def bench(
    source_or_path: str | Path,
    task: str | Path | Task,
    *,
    tier: Tier | None = None,
    arch: str | None = None,
    runs_dir: str | Path | None = None,
    allow_unsandboxed: bool | None = None,
) -> Verdict:
    """Judge one candidate as `optimize bench` does: the text of a Python file that defines ModelNew, or a path to one.

    Without a GPU the verdict's status is `checked` at best, and nothing is timed. With `runs_dir` the candidate is kept
    there as a run, with its receipt. Raises UsageError, TaskError and Unconfined as `optimize` does.
    """
    settings, candidate = chosen_settings(locals()), _candidate(source_or_path)
    from kerneltune.agent.commands.bench import FilesView, bench_opened
    from kerneltune.agent.commands.session import session, workshop
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.task.load import find_task

    task_file, view = find_task(_task_name(task)), FilesView(io.StringIO(), io.StringIO())
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(settings.runs_dir)) if runs_dir is not None else None
        shop = stack.enter_context(workshop(settings, _ignored))
        code = bench_opened(stack.enter_context(session(shop, task_file)), [candidate], settings, view, store)
    if code == 130:
        raise KeyboardInterrupt
    return view.judged[0].judged


def _task_name(task: str | Path | Task) -> str:
    return str(task.path if isinstance(task, Task) else task)


def _candidate(source_or_path: str | Path) -> "Candidate":
    from kerneltune.agent.commands.bench import read_candidates
    from kerneltune.tools.evaluator import Candidate

    if isinstance(source_or_path, str) and ("\n" in source_or_path or not source_or_path.endswith(".py")):
        return Candidate("<source>", source_or_path)
    if Path(source_or_path).is_dir():
        raise UsageError(f"{source_or_path} is a folder; bench judges one file")
    (candidate,) = read_candidates([str(source_or_path)])
    return candidate


def _ignored(event: Event) -> None:
    """Nobody asked to be told."""
