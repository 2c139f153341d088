"""`optimize export`: stored runs as training data. No logic, nothing heavy."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from agent import complete
from agent.cli_parameters import AsJson, RunsDir
from agent.settings import chosen_settings


def register(app: App) -> None:
    """Add the command."""
    app.command(export, help_epilogue=_EXAMPLES)


_EXAMPLES = f"""
Formats: {", ".join(complete.FORMATS)}.
Each may have options: --format sft-best:per=run,top=3. docs/formats.md tells what they are.

Examples:
    optimize export --format sft-chat -o data/chat
    optimize export --format sft-best --format fix --where correct=true --where "speedup>=1.2" -o data/best
    optimize export --format rl-turns --reward drkernel:lambda=0.5 --leak-check KernelBench/ -o data/rl
    optimize export --format kto --where near_duplicate=first --only-providers offline --as jsonl -o data/kto
"""


def export(
    *,
    format: Annotated[
        tuple[str, ...],
        Parameter(help="What rows look like; may be given again.", negative="", completer=complete.formats),
    ],
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The folder to write.")],
    form: Annotated[Literal["parquet", "jsonl"], Parameter(name="--as", help="File type.")] = "parquet",
    task: Annotated[
        tuple[str, ...],
        Parameter(help="Only runs of this task; may be given again.", negative="", completer=complete.stored_tasks),
    ] = (),
    author: Annotated[
        tuple[str, ...],
        Parameter(
            help="Only runs by this author, or provider; may be given again.", negative="", completer=complete.authors
        ),
    ] = (),
    only_providers: Annotated[str | None, Parameter(help="Only words of these: openai,offline.")] = None,
    where: Annotated[
        tuple[str, ...],
        Parameter(help="Only rows of which this holds, such as speedup>=1.2.", negative=""),
    ] = (),
    reward: Annotated[
        tuple[str, ...], Parameter(help="A column for this reward, such as kevin; may be given again.", negative="")
    ] = (),
    rejection_sampling: Annotated[
        str | None,
        Parameter(help="Keep right attempts the more likely the more of the work their own kernels do: tau=0.3,s=0.1."),
    ] = None,
    test: Annotated[float, Parameter(help="Share of the tasks' families that is for testing.")] = 0.1,
    validation: Annotated[float, Parameter(help="Share of the tasks' families that is for validation.")] = 0.0,
    seed: Annotated[int, Parameter(help="Seed of the splits.")] = 0,
    leak_check: Annotated[Path | None, Parameter(help="A folder of benchmark problems to compare tasks with.")] = None,
    leaked: Annotated[
        Literal["keep", "test", "exclude"], Parameter(help="What becomes of tasks that are benchmark problems.")
    ] = "test",
    no_duplicates: Annotated[bool, Parameter(help="Do not look for duplicates.", negative="")] = False,
    processes: Annotated[int | None, Parameter(help="How many work side by side.")] = None,
    block: Annotated[int, Parameter(help="About how many attempts a file holds.")] = 20_000,
    overwrite: Annotated[bool, Parameter(help="Replace an earlier export.", negative="")] = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Write stored runs as training data: rows with their verdicts, rewards and provenance, and a dataset card.

    Exit code 0: rows were written; 1: none passed the filters; 2: bad input.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from agent.compose.export import export_runs
    from agent.compose.export_request import Request

    asked = Request(
        format, output, form, task, author, where, only_providers, reward, rejection_sampling,
        test, validation, seed, leak_check, leaked,
        not no_duplicates, len(os.sched_getaffinity(0)) if processes is None else processes, block, overwrite,
    )  # fmt: skip
    return export_runs(asked, settings.runs_dir, json=json)
