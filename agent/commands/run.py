"""`optimize --task` and `--resume`: the run as a person sees it.

The first frame comes before what a run needs is imported, which takes a second.
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from rich.table import Table

from kerneltune.agent.attempt import Controls, StopReason
from kerneltune.agent.commands import (
    DATABASE,
    Arch,
    AsLines,
    Counters,
    Dtype,
    RunsDir,
    Shape,
    Task,
    Tier,
    TrustTask,
    Unsandboxed,
    Width,
    begun_workers,
    require_record,
)
from kerneltune.agent.models.providers import KEY_VARIABLES, OFFLINE, REPLAY, SPELLINGS, parse
from kerneltune.agent.models.types import Effort
from kerneltune.agent.record.query import Filter, NotFound, RunSummary, at_once, run_named, summaries
from kerneltune.agent.settings import Environment, Language, Settings, Strategy, chosen_settings, environment
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import heading, say, standard_page
from kerneltune.tools.backends import gpu_info
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.schema.codec import one_line, plural, shell_word
from kerneltune.tools.schema.errors import StoreError, UsageError
from kerneltune.tools.schema.gpus import DEFAULT_ARCH
from kerneltune.tools.schema.verdict import versions
from kerneltune.tools.task.load import builtin_names, find_task

if TYPE_CHECKING:
    from kerneltune.agent.commands.lifecycle import RunOutcome
    from kerneltune.agent.view.plain import NextCommand

_what, _author, _stop, _how, _shown = (
    partial(Parameter, group=Group(title, sort_key=place))
    for place, title in enumerate(
        ("What", "Who writes the kernels", "When to stop", "How it is judged", "What is shown"), start=1
    )
)


def run(
    *,
    task: Annotated[Task | None, _what()] = None,
    resume: Annotated[
        str | None, _what(metavar="RUN", help="Continue this run; the start of its id is enough.")
    ] = None,
    trust_task: Annotated[TrustTask, _what()] = False,
    shape: Annotated[Shape, _what()] = (),
    dtype: Annotated[Dtype, _what()] = None,
    backward: Annotated[
        bool, _what(help="Optimise the gradients of the task, as a task of its own.", negative="")
    ] = False,
    step: Annotated[
        bool,
        _what(help="Optimise outputs and gradients together, with what is saved between them.", negative=""),
    ] = False,
    model: Annotated[str | None, _author(metavar="MODEL", help=f"{SPELLINGS}.")] = None,
    base_url: Annotated[
        str | None, _author(metavar="URL", help="The model's server, such as http://localhost:8000/v1.")
    ] = None,
    retry_time_s: Annotated[
        int | None, _author(metavar="SECONDS", help="Keep asking a failing provider for this long (900).")
    ] = None,
    effort: Annotated[Effort | None, _author(help="How hard the model thinks.")] = None,
    logprobs: Annotated[
        bool | None, _author(help="Keep token ids and log-probabilities of a chat: model's replies.", negative="")
    ] = None,
    strategy: Annotated[
        Strategy | None, _author(help="refine one conversation, best-of independent ones, or evolve a population.")
    ] = None,
    language: Annotated[Language | None, _author(help="What the kernels are written in.")] = None,
    from_: Annotated[
        str | None,
        _author(metavar="START", help="Start from: nothing, best (of the record), RUN/NUMBER, FILE.py or FILE.ptx."),
    ] = None,
    max_attempts: Annotated[int | None, _stop(metavar="N", help="Stop after this many attempts.")] = None,
    max_time_s: Annotated[
        float | None,
        _stop(
            metavar="SECONDS",
            help="Begin no attempt after this many seconds; attempts under way are finished.",
        ),
    ] = None,
    max_cost_usd: Annotated[
        float | None, _stop(metavar="DOLLARS", help="Stop before the model has cost more dollars.")
    ] = None,
    patience: Annotated[
        int | None, _stop(metavar="N", help="Stop after this many attempts without a new best.")
    ] = None,
    target_speedup: Annotated[
        float | None, _stop(metavar="FACTOR", help="Stop when the best beats every baseline by this factor.")
    ] = None,
    target_sol: Annotated[
        float | None, _stop(metavar="FRACTION", help="Stop when the best reaches this fraction of the speed of light.")
    ] = None,
    tier: Annotated[Tier, _how()] = None,
    counters: Annotated[Counters, _how()] = None,
    confirm: Annotated[bool | None, _how(help="Judge the best again at the end, in fresh processes.")] = None,
    width: Annotated[Width, _how()] = None,
    seed: Annotated[int | None, _author(metavar="N", help="Seed of the author's search.")] = None,
    warm_start: Annotated[bool | None, _author(help="Start a search from earlier results on this GPU.")] = None,
    algebra: Annotated[
        bool | None, _author(help="Also try the formula rewritten, where that is exact in real numbers.")
    ] = None,
    emulation: Annotated[bool | None, _author(help="Also try float32 products as three of float16.")] = None,
    lessons: Annotated[
        bool | None, _author(help="Show a model how predictions of earlier runs on this GPU came out.")
    ] = None,
    arch: Annotated[Arch, _how()] = None,
    runs_dir: Annotated[RunsDir, _what()] = None,
    json: Annotated[AsLines, _shown()] = False,
    plain: Annotated[bool, _shown(help="Print one line per event instead of the live screen.", negative="")] = False,
    allow_unsandboxed: Annotated[Unsandboxed, _how()] = None,
) -> int:
    """Optimise a task: write kernels, trace, compile, check, time and rank them, and store every attempt."""
    given = locals()
    if given == run.__kwdefaults__:
        _print_first_page(chosen_settings({}), environment())
        return 0
    if resume is None and (task is None or trust_task):
        raise UsageError("--trust-task is for --resume RUN" if task else "give --task NAME, or --resume RUN")
    settings = chosen_settings(given)

    from kerneltune.agent.commands.init import fitted, is_code, written_tasks

    written = None
    if task is not None and is_code(task):
        written, source = written_tasks(task, shape, dtype), task
        task = str(next(written))
        say(f"{task}: the task that was written from {source}; lines with LOOK are guesses")
    elif shape or dtype:
        raise UsageError("--shape and --dtype are for --task FILE.py:NAME; a task file has its own")
    if backward or step:
        task, written = fitted(written, partial(_of_gradients, task, backward=backward, step=step), say), None
    return _run_shown(task, resume, settings, json=json, plain=plain, trust_task=trust_task, written=written)


def _of_gradients(task: str | None, *, backward: bool, step: bool) -> str:
    """The file with the task of a task's gradients, or of its training step, written into this folder. Raises
    UsageError."""
    from kerneltune.agent.commands.init import written_gradients

    flag, what = ("--step", "a training step") if step else ("--backward", "the gradients")
    if backward and step:
        raise UsageError("--step is for gradients, too; give one of --backward and --step")
    if task is None:
        raise UsageError(f"{flag} is for --task; a run goes on with what it began with")
    path = written_gradients(task, step=step)
    say(f"{path}: the task of {what} of {task}; then: optimize package RUN-OF-THAT --backward RUN-OF-THIS")
    return str(path)


def _run_shown(
    task: str | None,
    resume: str | None,
    settings: Settings,
    *,
    json: bool,
    plain: bool,
    trust_task: bool,
    written: Iterator[Path] | None = None,
) -> int:
    """Run or resume, shown as fits whoever looks; returns the exit code. `written`: as `fitted` takes it."""
    began_s = time.monotonic()
    from kerneltune.agent.commands.browse import shelf
    from kerneltune.agent.events import Note
    from kerneltune.agent.view.live import LiveView, close_view, open_view
    from kerneltune.agent.view.output import can_show_screen, choose_view

    here = environment()
    choice = choose_view(here, is_terminal=can_show_screen(sys.stderr), json=json, plain=plain)
    _refuse_misspelt(task, resume, settings)
    controls = Controls()
    view = open_view(choice, controls)
    took_s = 0.0
    try:
        with view, shelf(settings) as pages:
            if isinstance(view, LiveView):
                pages.serve(view)
            if choice.kind == "live":
                view(Note("", "starting", f"going on with {resume}" if resume else str(task)))
            with begun_workers(settings) as warming:
                from kerneltune.agent.commands.init import fitted
                from kerneltune.agent.commands.lifecycle import resume_run, run_task

                if resume is None:
                    begin = partial(run_task, str(task))
                else:
                    begin = partial(resume_run, resume, task=task, trust_task=trust_task)
                work = partial(begin, settings, here, view, controls, warming)
                outcome = fitted(written, work, lambda text: view(Note("", "starting", text)))
            took_s = time.monotonic() - began_s
            if isinstance(view, LiveView) and outcome.why not in (StopReason.INTERRUPTED, StopReason.STOPPED):
                view.stay()
    except StoreError:
        if choice.kind != "json" and view.state.ended:  # what was reached is shown, whatever the disk says
            close_view(choice, view, [], time.monotonic() - began_s)
        raise
    close_view(choice, view, _next_commands(outcome, task or outcome.task), took_s)
    if json and outcome.why is StopReason.INTERRUPTED:  # the other views end in what to type next
        say(f"optimize: interrupted; go on with: optimize --resume {shell_word(outcome.run_id)}")
    return outcome.exit_code


def _refuse_misspelt(task: str | None, resume: str | None, settings: Settings) -> None:
    """Raise UsageError or StoreError for a task, a model or a run that there is none of, before the screen is cleared
    and before anything is started."""
    if task is not None:
        find_task(task)
    if settings.model not in ("", OFFLINE) and not settings.model.startswith(f"{REPLAY}:"):
        parse(settings.model)
    if resume is not None:
        require_record(settings.runs_dir)
        database = settings.runs_dir / DATABASE
        try:
            at_once(database, partial(run_named, resume))
        except NotFound as error:
            raise StoreError(f"{database}: {error}") from error


def _next_commands(outcome: "RunOutcome", task: str) -> "list[NextCommand]":
    """What to do now, for how the run ended: a kernel, a run that can go on, or neither."""
    from kerneltune.agent.view.plain import NextCommand

    run = shell_word(outcome.run_id)
    look = NextCommand(f"optimize show {run}", "all attempts")
    commands = [look] if outcome.attempts else []
    if outcome.best is not None:
        best = shell_word(outcome.best.attempt_id)
        commands = [
            NextCommand(f"less {shell_word(str(outcome.best_path))}", "the kernel"),
            NextCommand(f"optimize package {run}", "the same as a file to put into your model"),
            NextCommand(f"optimize verify {best}", "judge it again"),
            *commands,
        ]
    elif outcome.why is StopReason.AUTHOR_DONE:
        again = f"optimize --task {shell_word(task)}"
        commands += [
            NextCommand(f"{again} --from FILE.py", "begin with a kernel of yours"),
            NextCommand(f"{again} --model anthropic", "let a model write, with ANTHROPIC_API_KEY set"),
        ]
    if outcome.why is not StopReason.AUTHOR_DONE:  # else it would end again at once
        resume = NextCommand(f"optimize --resume {run}", "go on with this run")
        commands.insert(0 if outcome.why in (StopReason.INTERRUPTED, StopReason.STOPPED) else len(commands), resume)
    return commands


# `optimize` alone -----------------------------------------------------------------------------------------------------


def _print_first_page(settings: Settings, environment: Environment) -> None:
    """Print how to begin, what this machine can do, and the latest run."""
    page, gpu = standard_page(colour=True), gpu_info()
    begin = (
        (
            "optimize --task softmax",
            f"optimise a built-in task; `optimize tasks` lists all {len(builtin_names())}",
        ),
        ("optimize init FILE.py:NAME", "make a task of a PyTorch function or module of your own"),
        ("optimize doctor", "check this machine, and how to fix each problem"),
    )
    software = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("torch", "triton"))
    machine = (("GPU", _gpu(gpu, settings)), ("author", _default_author(settings, environment)), ("software", software))
    page.print("kerneltune finds the fastest GPU kernel for a PyTorch task, and verifies it.")
    page.print(heading("begin with"), _rows(*begin, style="cyan"), heading("this machine"), _rows(*machine))
    if latest := at_once(settings.runs_dir / DATABASE, lambda record: summaries(record, Filter(limit=1))):
        page.print(heading("latest run"), _rows(*_latest_run(latest[0]), style="cyan"))
        page.print(_rows(("optimize browse", "all stored runs, in this terminal"), style="cyan"))
    page.print("", "optimize --help lists all commands and flags.")


def _rows(*rows: tuple[str, str], style: str = "") -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column(no_wrap=True, style=style)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(f"  {name}", one_line(value))
    return table


def _gpu(gpu: GpuInfo | None, settings: Settings) -> str:
    if gpu is None:
        return f"none: kernels are compiled for {settings.arch or DEFAULT_ARCH} and checked, not timed"
    return f"{gpu.name}, {gpu.memory_bytes / (1 << 30):.0f} GiB: kernels are checked and timed"


def _default_author(settings: Settings, environment: Environment) -> str:
    if settings.model:
        return f"{settings.model} (the setting model)"
    if environment.keys:
        return f"{environment.keys[0]}, whose API key is set; --model offline needs none"
    return f"offline: expert kernels and a search; set {' or '.join(KEY_VARIABLES.values())} for a model"


def _latest_run(run: RunSummary) -> list[tuple[str, str]]:
    said = "" if run.best_us is None else "best "
    best = f", {said}{words.best_in_words(run, in_full=True)}" if run.best_attempt_id else ""
    run_id = shell_word(run.run_id)
    rows = [(f"optimize show {run_id}", f"{run.task}, {plural(run.attempts, 'attempt')}{best}")]
    if run.why in (None, StopReason.INTERRUPTED):
        rows.append((f"optimize --resume {run_id}", "continue it: it has not ended"))
    return rows
