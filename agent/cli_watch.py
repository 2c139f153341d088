"""`optimize watch`: follows a run, plays it back, makes a picture of it. No logic, nothing heavy."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.cli_parameters import AsLines, RunsDir
from kerneltune.agent.settings import chosen_settings, environment


def register(app: App) -> None:
    """Add the command."""
    app.command(watch, help_epilogue=_WATCH)


_WATCH = """
Keys: q leave (the run goes on); p pause; + and - speed; s to the end;
arrows, enter, d and o look at an attempt; ? says all.

Examples:
    optimize watch                           the newest run, also while it runs
    optimize watch 20260101-12 --speed 10    from its beginning, faster
    optimize watch 20260101-12 --svg run.svg
    optimize watch --json | tail -1

The start of an id will do.
"""


def watch(
    run: Annotated[
        str | None,
        Parameter(
            metavar="RUN", help="A run, or the start of its id; without one, the newest.", completer=complete.runs
        ),
    ] = None,
    /,
    *,
    speed: Annotated[
        str | None, Parameter(metavar="FACTOR", help="Play it from the beginning, so many times as fast, or max.")
    ] = None,
    idle_limit: Annotated[
        float | None,
        Parameter(metavar="SECONDS", help="A longer silence lasts only so many seconds before --speed; 5, or inf."),
    ] = None,
    svg: Annotated[Path | None, Parameter(help="Write the last screen into this file as a picture.")] = None,
    width: Annotated[int | None, Parameter(metavar="N", help="With --svg: cells across, else 120.")] = None,
    height: Annotated[int | None, Parameter(metavar="N", help="With --svg: lines, else 36.")] = None,
    runs_dir: RunsDir = None,
    json: AsLines = False,
    plain: Annotated[bool, Parameter(help="Print one line per event instead of the screen.", negative="")] = False,
) -> int:
    """Watch a run that is running or over: follow it, look at its attempts, play it back, make a picture of it.

    Looking never touches the run.

    Exit code: that of the run when its end was seen (0 something accepted, 1 nothing accepted or its process gone, 130
    interrupted); 0 when you leave before; 2 bad input.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.commands.watch import WatchRequest
    from kerneltune.agent.commands.watch import watch as watch_run

    asked = WatchRequest(run, speed, idle_limit, svg, width, height, json, plain)
    return watch_run(asked, settings, environment())
