"""The commands that repeat what a report tells of. A task file is named without its folder."""

import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from agent.record.events import RunStarted
from agent.record.trajectory import JUDGED_FILES
from agent.report.material import Material

_LIMITS = {  # the name under which a run keeps it: the flag
    "language": "--language",
    "from": "--from",
    "strategy": "--strategy",
    "effort": "--effort",
    "max_attempts": "--max-attempts",
    "max_time_s": "--max-time",
    "max_cost_usd": "--max-cost",
    "patience": "--patience",
    "target_speedup": "--target-speedup",
    "target_sol": "--target-sol",
}
_OF_MODELS = ("strategy", "effort")


class Step(NamedTuple):
    """A command, and what it does."""

    command: str
    purpose: str


def steps(material: Material) -> list[Step]:
    """What to type, the most useful first."""
    run, best = material.trajectory.run, material.best
    return [
        *(_of_best(best.attempt_id) if best else ()),
        *(() if run.author == JUDGED_FILES else (Step(rerun(run), _rerun_purpose(run)),)),  # its files are not known
        Step(_line("optimize", "show", run.run_id), "lists the attempts; RUN/NUMBER shows one with its receipt"),
        Step(_line("optimize", "report", run.run_id, "-o", "report.html"), "writes this page again"),
    ]


def _of_best(attempt_id: str) -> Iterator[Step]:
    yield Step(_line("optimize", "verify", attempt_id), "judges it again with fresh inputs, and says whether it held")
    yield Step(
        f"{_line('optimize', 'show', attempt_id, '--source')} > best.py", "writes the source exactly as it was judged"
    )


def _rerun_purpose(run: RunStarted) -> str:
    if not _is_model(run):
        return "runs the same again"
    server = "; it was asked at another address, which takes --base-url too" if run.limits.get("base_url") else ""
    return f"runs the same again; a model may write something else{server}"


def rerun(run: RunStarted) -> str:
    """The command line of a run, from what it kept of its flags."""
    words = ["optimize", "--task", _task(run), "--model", run.author, "--seed", str(run.seed)]
    for name, flag in _LIMITS.items():
        value = run.limits.get(name)
        if value is not None and (name not in _OF_MODELS or _is_model(run)):
            words += [flag, f"{value:g}" if isinstance(value, float) else str(value)]
    if run.limits.get("warm_start") is False:
        words.append("--no-warm-start")
    if run.gpu is None:
        words += ["--arch", run.arch]
    return _line(*words)


def _task(run: RunStarted) -> str:
    path = PurePath(str(run.machine.get("task_path") or ""))
    return run.task if path.parent.parts[-2:] == ("tools", "tasks") or not path.name else path.name


def _is_model(run: RunStarted) -> bool:
    return run.author != "offline"


def _line(*words: str) -> str:
    return shlex.join(words)
