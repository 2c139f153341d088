"""`optimize report`: stored runs as one HTML file. No logic, nothing heavy."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.cli_parameters import AsJson, RunsDir
from kerneltune.agent.settings import chosen_settings


def register(app: App) -> None:
    """Add the command."""
    app.command(report, help_epilogue=_EXAMPLES)


_EXAMPLES = """
Examples:
    optimize report 20260101-120000-softmax-ab12   to runs/RUN/report.html
    optimize report 20260101-12 -o report.html     the start of an id will do
    optimize report 20260101-12 --open             and show it
    optimize report 20260101-12 -o - > report.html
    optimize report --suite -o suite.html          the best run of each task
    optimize report RUN1 RUN2 RUN3                 just these, as a suite
"""


def report(
    *runs: Annotated[
        str,
        Parameter(
            metavar="RUN", help="A stored run, or the start of its id; several make a suite.", completer=complete.runs
        ),
    ],
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"], metavar="FILE", help="The file to write, - for stdout.", allow_leading_hyphen=True
        ),
    ] = None,
    suite: Annotated[
        bool, Parameter(help="One report over many tasks: the runs named, or the best of each task.", negative="")
    ] = False,
    open: Annotated[bool, Parameter(help="Show it in the browser.", negative="")] = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Write a report that can be sent to a colleague: one HTML file, readable offline, without scripts.

    It needs runs.db and, for the distribution of timings and the facts of the measurement, the receipts beside it.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.commands.report import Wanted, write_report

    return write_report(Wanted(runs, output, suite, open, json), settings.runs_dir)
