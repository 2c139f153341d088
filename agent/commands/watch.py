"""`optimize watch`: attaches to a stored run, whoever runs it, follows it, plays it back, makes a picture of it."""

import math
import sys
import time
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.commands import AsLines, RunsDir, no_runs, require_record
from kerneltune.agent.record.folder import process_of
from kerneltune.agent.record.trajectory import JUDGED_FILES
from kerneltune.agent.settings import chosen_settings, environment
from kerneltune.tools.schema.codec import shell_word
from kerneltune.tools.schema.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kerneltune.agent.commands.browse import Shelf, StoredRun
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.output import ViewChoice
    from kerneltune.agent.view.plain import NextCommand
    from kerneltune.agent.view.state import ViewState
    from kerneltune.agent.view.watch import Playback

_WIDTH, _HEIGHT = 120, 36
_SLOWEST = 0.01
_SIZES = {"--width": (20, 400), "--height": (4, 200)}

command = App(
    name="watch",
    help_epilogue="""
Keys: q leave (the run goes on); p pause; + and - speed; e to the end;
arrows and enter look at attempts, / filters, s sorts; ? lists all.

Examples:
    optimize watch                           the newest run, also while it runs
    optimize watch 20260101-12 --speed 10    from its beginning, faster
    optimize watch 20260101-12 --svg run.svg
    optimize watch --json | tail -1

The start of an id is enough.
""",
)


@command.default
def watch(
    run: Annotated[
        str | None,
        Parameter(metavar="RUN", help="A run, or the start of its id; without one, the newest."),
    ] = None,
    /,
    *,
    speed: Annotated[
        str | None, Parameter(metavar="FACTOR", help="Play it from the beginning, this many times faster, or max.")
    ] = None,
    svg: Annotated[Path | None, Parameter(help="Write the last screen into this file as a picture.")] = None,
    width: Annotated[int | None, Parameter(metavar="N", help="With --svg: cells across, else 120.")] = None,
    height: Annotated[int | None, Parameter(metavar="N", help="With --svg: lines, else 36.")] = None,
    runs_dir: RunsDir = None,
    json: AsLines = False,
    plain: Annotated[bool, Parameter(help="Print one line per event instead of the screen.", negative="")] = False,
) -> int:
    """Watch a run while it runs or later: follow it, look at its attempts, play it back, save a picture.

    Watching never changes the run.

    Exit code: that of the run when its end was seen (0 something accepted, 1 nothing accepted or its process gone, 130
    interrupted); 0 when you leave before; 2 bad input.
    """
    settings, here = chosen_settings({"runs_dir": runs_dir}), environment()
    from kerneltune.agent.commands.browse import StoredRun, shelf
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.output import PlainConsole, can_show_screen, choose_view
    from kerneltune.agent.view.watch import Playback

    factor = _speed(speed)
    columns, lines = _picture_size(svg, width, height)
    require_record(settings.runs_dir)
    with Store.open(settings.runs_dir) as store:
        stored = StoredRun(store, _named(store, run))
        if svg:
            return _write(svg, columns, lines, stored)
        choice = choose_view(here, is_terminal=can_show_screen(sys.stdout), json=json, plain=plain)
        playback = Playback(stored.more, lambda: process_of(stored.folder), speed=factor)
        if choice.kind == "live":
            with shelf(settings) as pages:
                return _play(PlainConsole(no_color=not choice.colour), playback, stored, pages)
        return _print(choice, playback, stored)


def _speed(text: str | None) -> float | None:
    from kerneltune.agent.view.watch import MAX_SPEED

    if text is None or text == "max":
        return None if text is None else math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not _SLOWEST <= speed <= MAX_SPEED:
        raise UsageError(f"--speed {text}: give a number above 0 ({_SLOWEST:g} to {MAX_SPEED:g}), or max")
    return speed


def _picture_size(svg: Path | None, width: int | None, height: int | None) -> tuple[int, int]:
    """Columns and lines of the picture. Raises UsageError for a size without a picture, and for one that is none."""
    for name, value in (("--width", width), ("--height", height)):
        if value is None:
            continue
        if svg is None:
            raise UsageError(f"{name} is for pictures: give --svg FILE too")
        least, most = _SIZES[name]
        if not least <= value <= most:
            raise UsageError(f"{name} {value}: give {least} to {most}")
    return width or _WIDTH, height or _HEIGHT


def _named(store: "Store", text: str | None) -> str:
    if text:
        return store.find_run(text)
    runs = store.run_ids()
    if not runs:
        raise no_runs(store.path.parent)
    return runs[-1]


def _write(path: Path, columns: int, lines: int, run: "StoredRun") -> int:
    """Write the last frame of the run as a picture."""
    from kerneltune.agent.view.output import say
    from kerneltune.agent.view.render import render
    from kerneltune.agent.view.state import ViewState, fold
    from kerneltune.agent.view.watch import picture

    state = reduce(fold, run.rest(), ViewState())
    frame = render(state, (columns, lines), state.last_at)
    text = picture(frame, state)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--svg {path}: {error.strerror}") from error
    say(f"{path}: {len(text.encode()) / 1024:.0f} KiB")
    return 0


def _print(choice: "ViewChoice", playback: "Playback", run: "StoredRun") -> int:
    from kerneltune.agent.view.output import JsonView
    from kerneltune.agent.view.plain import PlainView, summary_text
    from kerneltune.agent.view.watch import print_events

    if choice.kind == "json":
        with JsonView(sys.stdout) as objects:
            print_events(objects, playback, sys.stdout)
        return _exit_code(objects.state)
    lines = PlainView(sys.stdout, colour=choice.colour)
    print_events(lines, playback, sys.stdout)
    if not playback.ended:
        lines.close(playback.silence(time.time()) or "no end is recorded")
    lines.close(summary_text(lines.state, _next_commands(lines.state, run.run_id)))
    return _exit_code(lines.state)


def _play(console: "Console", playback: "Playback", run: "StoredRun", pages: "Shelf") -> int:
    """Show it on a terminal: from the beginning with a speed, else at the end, wherever that moves."""
    from kerneltune.agent.view.live import LiveView, gpu_samples, keys_fd
    from kerneltune.agent.view.plain import summary

    view = LiveView(
        console, controls=playback.controls, keys_fd=keys_fd(), steering=playback, leaves_frame=False
    )  # fmt: skip
    pages.serve(view)
    with view, gpu_samples(run.gpu_here(), run.run_id, view):
        for event in playback.events(lambda: False, hears_keys=view.hears_keys):
            view(event)
    if playback.controls.stopping:
        return 0
    console.print(summary(view.state, _next_commands(view.state, run.run_id)))
    return _exit_code(view.state)


def _next_commands(state: "ViewState", run_id: str) -> "list[NextCommand]":
    from kerneltune.agent.view.plain import NextCommand

    run = shell_word(run_id)
    known = [
        NextCommand(f"optimize show {run}", "all its attempts"),
        NextCommand(f"optimize watch {run} --speed 10", "play it from the beginning"),
    ]
    if _judged_files(state):
        return known
    return [*known, NextCommand(f"optimize --resume {run}", "go on with this run")]


def _judged_files(state: "ViewState") -> bool:
    return state.started is not None and state.started.author == JUDGED_FILES


def _exit_code(state: "ViewState") -> int:
    """That of the run; 1 when it stopped without an end."""
    ended = state.ended
    if ended is None:
        return 1
    if (code := ended.why.exit_code) is not None:
        return code
    if _judged_files(state):  # as `optimize bench` has it: all of them
        return int(ended.why is StopReason.FAILED or ended.accepted != ended.attempts)
    return int(ended.why is StopReason.FAILED or ended.best_attempt_id is None)
