"""`optimize export`: stored runs as training data. No logic, nothing heavy."""

import textwrap
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.cli_parameters import AsJson, RunsDir
from kerneltune.agent.export.base import FORMATS
from kerneltune.agent.settings import chosen_settings


def register(app: App) -> None:
    """Add the command."""
    app.command(export, help_epilogue=_EXAMPLES)


_EXAMPLES = f"""
{textwrap.fill(f"Formats: {', '.join(FORMATS)}.", 78, subsequent_indent="    ", break_on_hyphens=False)}
Each may have options, as in sft-best:per=run,top=3; see docs/formats.md.

Examples:
    optimize export --format sft-chat -o data/chat
    optimize export --format sft-best --where "speedup>=1.2" -o data/best
    optimize export --format rl-turns --reward drkernel:lambda=0.5 -o data/rl
    optimize export --format fim --leak-check KernelBench/ -o data/fim
    optimize export --format kto --where near_first=true --as jsonl -o kto
"""


def export(
    *,
    format: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="FORMAT", help="What rows look like; may be given again.", negative="", completer=complete.formats
        ),
    ],
    output: Annotated[Path, Parameter(metavar="DIR", name=["--output", "-o"], help="The folder to write.")],
    form: Annotated[Literal["parquet", "jsonl"], Parameter(name="--as", help="File type.")] = "parquet",
    task: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="TASK",
            help="Only runs of this task; may be given again.",
            negative="",
            completer=complete.stored_tasks,
        ),
    ] = (),
    author: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="NAME",
            help="Only runs by this author, or provider; may be given again.",
            negative="",
            completer=complete.authors,
        ),
    ] = (),
    only_providers: Annotated[
        str | None, Parameter(metavar="NAMES", help="Only words of these: openai,offline.")
    ] = None,
    where: Annotated[
        tuple[str, ...],
        Parameter(metavar="TEST", help="Only rows of which this holds, such as speedup>=1.2.", negative=""),
    ] = (),
    reward: Annotated[
        tuple[str, ...],
        Parameter(metavar="REWARD", help="A column for this reward, such as kevin; may be given again.", negative=""),
    ] = (),
    rejection_sampling: Annotated[
        str | None,
        Parameter(
            metavar="OPTIONS",
            help="Keep right attempts the more likely the more of the work their own kernels do: tau=0.3,s=0.1.",
        ),
    ] = None,
    test: Annotated[float, Parameter(metavar="SHARE", help="Share of the tasks' families that is for testing.")] = 0.1,
    validation: Annotated[
        float, Parameter(metavar="SHARE", help="Share of the tasks' families that is for validation.")
    ] = 0.0,
    seed: Annotated[int, Parameter(metavar="N", help="Seed of the splits.")] = 0,
    leak_check: Annotated[
        Path | None, Parameter(metavar="DIR", help="A folder of benchmark problems to compare tasks with.")
    ] = None,
    leaked: Annotated[
        Literal["keep", "test", "exclude"], Parameter(help="What becomes of tasks that are benchmark problems.")
    ] = "test",
    no_duplicates: Annotated[bool, Parameter(help="Do not look for duplicates.", negative="")] = False,
    overwrite: Annotated[bool, Parameter(help="Replace an earlier export.", negative="")] = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Write stored runs as training data.

    Rows come with their verdicts, rewards and provenance, and a dataset card.

    Exit code 0: rows were written; 1: none passed the filters; 2: bad input.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.commands.export import ExportRequest, export_runs

    asked = ExportRequest(
        format, output, form, task, author, where, only_providers, reward, rejection_sampling,
        test, validation, seed, leak_check, leaked,
        not no_duplicates, overwrite,
    )  # fmt: skip
    return export_runs(asked, settings.runs_dir, json=json)
