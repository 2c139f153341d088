"""A run as a person sees it: the first frame comes before what a run needs is imported, which takes a second."""

import sys
from typing import TYPE_CHECKING

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.controls import Controls
from kerneltune.agent.events import Note
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view.live import close_view, open_view
from kerneltune.agent.view.output import choose_view
from kerneltune.agent.view.plain import NextCommand
from kerneltune.tools.task.load import find_task

if TYPE_CHECKING:
    from kerneltune.agent.commands.run import Outcome


def show_run(
    task: str | None, resume: str | None, settings: Settings, environment: Environment, *, json: bool, plain: bool
) -> int:
    """Run or resume, shown in the way that fits whoever looks; returns the exit code."""
    choice = choose_view(
        is_terminal=sys.stderr.isatty(),
        term=environment.term,
        no_color=environment.no_color,
        ci=environment.ci,
        json=json,
        plain=plain,
    )
    if task is not None:
        find_task(task)  # a misspelt task should not clear the screen first
    controls = Controls()
    with open_view(choice, controls) as view:
        if choice.kind == "live":
            view(Note("", "starting", task or f"going on with {resume}"))
        from kerneltune.agent.commands.run import resume_run, run_task

        if task is not None:
            outcome = run_task(task, settings, environment, view, controls)
        else:
            outcome = resume_run(str(resume), settings, environment, view, controls)
    close_view(choice, view, _next_commands(outcome))
    if json and outcome.why is StopReason.INTERRUPTED:  # the other views end in what to type next
        print(f"optimize: interrupted; go on with: optimize --resume {outcome.run_id}", file=sys.stderr)
    return outcome.exit_code


def _next_commands(outcome: "Outcome") -> list[NextCommand]:
    resume = NextCommand(f"optimize --resume {outcome.run_id}", "go on with this run")
    commands = []
    if outcome.best_path:
        commands.append(NextCommand(f"less {outcome.best_path}", "the best kernel, with what was proved"))
        commands.append(NextCommand(f"optimize verify {outcome.best_id}", "judge it again, here or elsewhere"))
    commands.insert(0 if outcome.why in (StopReason.INTERRUPTED, StopReason.STOPPED) else len(commands), resume)
    return [*commands, NextCommand("optimize runs", "all runs"), NextCommand("optimize tasks", "other tasks")]
