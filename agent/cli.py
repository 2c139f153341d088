"""`optimize`: parse, compose, exit code. No logic, and nothing heavy is imported before a command needs it."""

import signal
import sys
from typing import Annotated

from cyclopts import App, Parameter

from agent import cli_export, cli_query, cli_setup, complete
from agent.cli_exit import exit_code
from agent.cli_parameters import Arch, AsJson, AsLines, NoColour, RunsDir, Task, Tier, Unsandboxed, Width
from agent.cli_words import refuse_flags
from agent.settings import Effort, Strategy, chosen_settings, environment
from tools.errors import UsageError

app = App(
    name="optimize",
    help="Find the fastest GPU kernel for a PyTorch task that can be proved right.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
    suppress_keyboard_interrupt=False,  # who presses Ctrl-C is told how to go on
    help_epilogue="""
Examples:
    optimize                                     what this machine can do, and how to begin
    optimize --task softmax                      a built-in task, default budget
    optimize --task path/to/23_Softmax.py        any KernelBench problem file
    optimize --task softmax --max-attempts 12 --json | tail -1
    optimize --task softmax --model anthropic --max-cost 2
    optimize --task softmax --model chat:qwen --base-url http://localhost:8000/v1
    optimize --resume 20260101-120000-softmax-ab12
    optimize init mymodel.py:attention_block     a task from your own PyTorch code

Every command has a page of its own: optimize COMMAND --help
""",
    version_flags=["--version"],
)


@app.default
def run(
    *,
    task: Task | None = None,
    resume: Annotated[
        str | None, Parameter(help="Go on with this run, or the only one whose id starts so.", completer=complete.runs)
    ] = None,
    model: Annotated[
        str | None,
        Parameter(
            help="Who writes the kernels: anthropic[:ID], openai[:ID], chat:ID, scripted:FILE or offline.",
            completer=complete.models,
        ),
    ] = None,
    base_url: Annotated[str | None, Parameter(help="The model's server, such as http://localhost:8000/v1.")] = None,
    effort: Annotated[Effort | None, Parameter(help="How hard the model thinks.")] = None,
    strategy: Annotated[
        Strategy | None, Parameter(help="refine one conversation, best-of independent ones, or evolve a population.")
    ] = None,
    max_attempts: Annotated[int | None, Parameter(help="Stop after this many attempts.")] = None,
    max_time: Annotated[float | None, Parameter(help="Stop after this many seconds.")] = None,
    max_cost: Annotated[float | None, Parameter(help="Stop before the model has cost more dollars.")] = None,
    patience: Annotated[int | None, Parameter(help="Stop after this many attempts without a new best.")] = None,
    target_speedup: Annotated[
        float | None, Parameter(help="Stop when the best beats every baseline by this factor.")
    ] = None,
    target_sol: Annotated[
        float | None, Parameter(help="Stop when the best reaches this fraction of the speed of light.")
    ] = None,
    tier: Tier = None,
    confirm: Annotated[bool | None, Parameter(help="Judge the best again at the end, in fresh processes.")] = None,
    width: Width = None,
    seed: Annotated[int | None, Parameter(help="Seed of the author's search.")] = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    json: AsLines = False,
    plain: Annotated[bool, Parameter(help="Print one line per event instead of the live screen.", negative="")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Optimise a task: write kernels, trace, compile, check, time and rank them, and store every attempt."""
    if len(sys.argv) <= 1:
        from agent.compose.teach import teach

        return teach(chosen_settings({}), environment())
    if (task is None) == (resume is None):
        raise UsageError("give either --task or --resume, not both" if task else "give --task NAME, or --resume RUN")
    flags = {
        "model": model, "base_url": base_url, "effort": effort, "strategy": strategy, "max_cost_usd": max_cost,
        "target_speedup": target_speedup, "target_sol": target_sol, "max_attempts": max_attempts,
        "max_time_s": max_time, "patience": patience, "width": width, "seed": seed, "arch": arch,
        "runs_dir": runs_dir, "tier": tier, "allow_unsandboxed": allow_unsandboxed or None,
        "confirm": confirm,
    }  # fmt: skip
    settings = chosen_settings(flags)
    from agent.compose.run import show_run

    return show_run(task, resume, settings, environment(), json=json, plain=plain)


@app.command(
    help_epilogue="""
Examples:
    optimize bench mine.py --task softmax
    optimize bench kernels/ other.py --task rms_norm --width 4 --json | tail -1
    cat mine.py | optimize bench - --task path/to/23_Softmax.py --no-store
    optimize bench kernels/ --task softmax --tier screened      on a GPU: a first look at many
"""
)
def bench(
    *files: Annotated[str, Parameter(help="Kernel files, folders of them, or - for stdin.", allow_leading_hyphen=True)],
    task: Task,
    tier: Tier = None,
    width: Width = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    no_store: Annotated[bool, Parameter(help="Keep neither record nor receipts.", negative="")] = False,
    json: AsLines = False,
    plain: Annotated[bool, Parameter(help="Progress as lines, no colour.", negative="")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Judge kernels that are written already: trace, compile, check, time and rank each file that defines ModelNew.

    Exit code 0: all were accepted; 1: some were not; 2: bad input.
    """
    refuse_flags(files, app["bench"])
    flags = {"tier": tier, "width": width, "arch": arch, "runs_dir": runs_dir}
    settings = chosen_settings(flags | {"allow_unsandboxed": allow_unsandboxed or None})
    from agent.compose.files import bench_files

    return bench_files(files, task, settings, environment(), json=json, plain=plain, keep=not no_store)


@app.command(
    help_epilogue="""
Examples:
    optimize verify 20260101-120000-softmax-ab12/7
    optimize verify 20260101-120000-softmax-ab12       the best attempt of that run
    optimize verify 20260101-12/7 --tier confirmed --json
"""
)
def verify(
    attempt: Annotated[
        str,
        Parameter(help="RUN/NUMBER, a run (its best attempt), or the start of either.", completer=complete.attempts),
    ],
    /,
    *,
    task: Annotated[
        str | None, Parameter(help="The run's task file, if it lies elsewhere now.", completer=complete.python_files)
    ] = None,
    tier: Tier = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    json: AsJson = False,
    plain: NoColour = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Judge a stored attempt again with fresh inputs, here or on another GPU, and say whether its verdict held.

    Exit code 0: it held; 1: it did not; 2: bad input.
    """
    flags = {"tier": tier, "arch": arch, "runs_dir": runs_dir, "allow_unsandboxed": allow_unsandboxed or None}
    settings = chosen_settings(flags)
    from agent.compose.verify import verify_attempt

    return verify_attempt(attempt, task, settings, environment(), json=json, plain=plain)


@app.command(
    help_epilogue="""
Examples:
    optimize selftest
    optimize selftest --list
    optimize selftest --class timing --class memory --json
"""
)
def selftest(
    *,
    family: Annotated[
        tuple[str, ...], Parameter(name="--class", help="Only this class of attacks; may be given again.", negative="")
    ] = (),
    tier: Tier = None,
    width: Width = None,
    list_only: Annotated[bool, Parameter(name="--list", help="List the corpus, run nothing.", negative="")] = False,
    json: AsJson = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Attack the evaluator: run the corpus of known cheats, and of honest kernels that look like cheats.

    Exit code 0: every attack was stopped and no honest kernel rejected; 1: not so; 2: bad input.
    """
    settings = chosen_settings({"tier": tier, "width": width, "allow_unsandboxed": allow_unsandboxed or None})
    from agent.compose.selftest import selftest as run_selftest
    from agent.compose.selftest import shipped_corpus

    return run_selftest(shipped_corpus(), settings, families=family, json=json, only_list=list_only)


cli_query.register(app)
cli_export.register(app)
cli_setup.register(app)


def main() -> None:
    """Entry point of the console script. SIGTERM ends a run as Ctrl-C does: all stored, the screen restored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(exit_code(lambda: app(result_action="return_value", exit_on_error=False, print_error=False)))
