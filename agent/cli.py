"""`optimize`: parse, compose, exit code. No logic, and nothing heavy is imported before a command needs it."""

import signal
import sys
from typing import Annotated

from cyclopts import App, Group, Parameter

from kerneltune.agent import cli_export, cli_query, cli_report, cli_setup, cli_watch, complete
from kerneltune.agent.cli_exit import exit_code
from kerneltune.agent.cli_parameters import Arch, AsJson, AsLines, NoColour, RunsDir, Task, Tier, Unsandboxed, Width
from kerneltune.agent.cli_words import refuse_flags
from kerneltune.agent.models.providers import SPELLINGS
from kerneltune.agent.models.types import Effort
from kerneltune.agent.settings import Language, Strategy, chosen_settings, environment
from kerneltune.tools.schema.errors import UsageError

app = App(
    name="optimize",
    help="Find the fastest GPU kernel for a PyTorch task that can be proved right.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
    suppress_keyboard_interrupt=False,  # who presses Ctrl-C is told how to go on
    help_epilogue="""
Examples:
    optimize                                   how to begin, on this machine
    optimize --task softmax                    a built-in task, default budget
    optimize --task path/to/23_Softmax.py      any KernelBench problem file
    optimize --task softmax --max-attempts 12 --json | tail -1
    optimize --task softmax --model anthropic --max-cost 2
    optimize --task softmax --model chat:qwen --base-url http://host:8000/v1
    optimize --task softmax --language ptx     kernels by hand, from Triton's
    optimize --task softmax --from best        go on where the record ends
    optimize --resume 20260101-120000-softmax-ab12
    optimize init mymodel.py:attention_block   a task from your own code

Every command has a page of its own: optimize COMMAND --help
Limits and choices can stand in kerneltune.toml too; see optimize config --help
Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 this machine lacks
something, 4 our own fault, 130 Ctrl-C.
""",
    version_flags=["--version"],
)


_STOP, _AUTHOR = Group("When to stop", sort_key=3), Group("Who writes the kernels", sort_key=2)
_WHAT, _HOW, _SHOWN = (
    Group("What", sort_key=1),
    Group("How it is judged", sort_key=4),
    Group("What is shown", sort_key=5),
)


@app.default
def run(
    *,
    task: Annotated[Task | None, Parameter(group=_WHAT)] = None,
    resume: Annotated[
        str | None,
        Parameter(
            metavar="RUN",
            group=_WHAT,
            help="Go on with this run, or the only one whose id starts so.",
            completer=complete.runs,
        ),
    ] = None,
    model: Annotated[
        str | None,
        Parameter(
            metavar="MODEL",
            group=_AUTHOR,
            help=f"{SPELLINGS}.",
            completer=complete.models,
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        Parameter(metavar="URL", group=_AUTHOR, help="The model's server, such as http://localhost:8000/v1."),
    ] = None,
    effort: Annotated[Effort | None, Parameter(group=_AUTHOR, help="How hard the model thinks.")] = None,
    strategy: Annotated[
        Strategy | None,
        Parameter(group=_AUTHOR, help="refine one conversation, best-of independent ones, or evolve a population."),
    ] = None,
    language: Annotated[
        Language | None, Parameter(group=_AUTHOR, help="What the kernels are written in: triton, or ptx by hand.")
    ] = None,
    from_: Annotated[
        str | None,
        Parameter(
            name="--from",
            metavar="START",
            group=_AUTHOR,
            help="Begin with it: nothing, best (of the record), RUN/NUMBER, FILE.py or FILE.ptx.",
            completer=complete.starts,
        ),
    ] = None,
    max_attempts: Annotated[
        int | None, Parameter(metavar="N", group=_STOP, help="Stop after this many attempts.")
    ] = None,
    max_time: Annotated[
        float | None, Parameter(metavar="SECONDS", group=_STOP, help="Stop after this many seconds.")
    ] = None,
    max_cost: Annotated[
        float | None, Parameter(metavar="DOLLARS", group=_STOP, help="Stop before the model has cost more dollars.")
    ] = None,
    patience: Annotated[
        int | None, Parameter(metavar="N", group=_STOP, help="Stop after this many attempts without a new best.")
    ] = None,
    target_speedup: Annotated[
        float | None,
        Parameter(metavar="FACTOR", group=_STOP, help="Stop when the best beats every baseline by this factor."),
    ] = None,
    target_sol: Annotated[
        float | None,
        Parameter(
            metavar="FRACTION", group=_STOP, help="Stop when the best reaches this fraction of the speed of light."
        ),
    ] = None,
    tier: Annotated[Tier, Parameter(group=_HOW)] = None,
    confirm: Annotated[
        bool | None, Parameter(group=_HOW, help="Judge the best again at the end, in fresh processes.")
    ] = None,
    width: Annotated[Width, Parameter(group=_HOW)] = None,
    seed: Annotated[int | None, Parameter(metavar="N", group=_AUTHOR, help="Seed of the author's search.")] = None,
    warm_start: Annotated[
        bool | None,
        Parameter(group=_AUTHOR, help="Begin a search with what earlier runs on this GPU found, not to repeat it."),
    ] = None,
    arch: Annotated[Arch, Parameter(group=_HOW)] = None,
    runs_dir: Annotated[RunsDir, Parameter(group=_WHAT)] = None,
    json: Annotated[AsLines, Parameter(group=_SHOWN)] = False,
    plain: Annotated[
        bool, Parameter(group=_SHOWN, help="Print one line per event instead of the live screen.", negative="")
    ] = False,
    allow_unsandboxed: Annotated[Unsandboxed, Parameter(group=_HOW)] = False,
) -> int:
    """Optimise a task: write kernels, trace, compile, check, time and rank them, and store every attempt."""
    flags = {
        "model": model, "base_url": base_url, "effort": effort, "strategy": strategy, "max_cost_usd": max_cost,
        "target_speedup": target_speedup, "target_sol": target_sol, "max_attempts": max_attempts,
        "max_time_s": max_time, "patience": patience, "width": width, "seed": seed, "arch": arch,
        "runs_dir": runs_dir, "tier": tier, "allow_unsandboxed": allow_unsandboxed or None,
        "confirm": confirm, "language": language, "from_": from_, "warm_start": warm_start,
    }  # fmt: skip
    if task is None and resume is None and not (json or plain or any(v is not None for v in flags.values())):
        from kerneltune.agent.commands.teach import teach

        return teach(chosen_settings({}), environment())
    if (task is None) == (resume is None):
        raise UsageError("give either --task or --resume, not both" if task else "give --task NAME, or --resume RUN")
    settings = chosen_settings(flags)
    from kerneltune.agent.commands.shown import show_run

    return show_run(task, resume, settings, environment(), json=json, plain=plain)


@app.command(
    help_epilogue="""
Examples:
    optimize bench mine.py --task softmax
    optimize bench kernels/ other.py --task rms_norm --width 4 --json | tail -1
    cat mine.py | optimize bench - --task path/to/23_Softmax.py --no-store
    optimize bench kernels/ --task softmax --tier screened     a first look
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
    """Judge kernel files that are written already.

    Each file that defines ModelNew is traced, compiled, checked, timed and ranked.

    Exit code 0: all were accepted; 1: some were not; 2: bad input.
    """
    refuse_flags(files, app["bench"])
    flags = {"tier": tier, "width": width, "arch": arch, "runs_dir": runs_dir}
    settings = chosen_settings(flags | {"allow_unsandboxed": allow_unsandboxed or None})
    from kerneltune.agent.commands.files import bench_files

    return bench_files(files, task, settings, environment(), json=json, plain=plain, keep=not no_store)


@app.command(
    help_epilogue="""
Examples:
    optimize verify 20260101-120000-softmax-ab12/7
    optimize verify 20260101-120000-softmax-ab12     its best attempt
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
    """Judge a stored attempt again, here or on another GPU.

    It gets fresh inputs; what is said is whether its verdict held.

    Exit code 0: it held; 1: it did not; 2: bad input.
    """
    flags = {"tier": tier, "arch": arch, "runs_dir": runs_dir, "allow_unsandboxed": allow_unsandboxed or None}
    settings = chosen_settings(flags)
    from kerneltune.agent.commands.verify import verify_attempt

    return verify_attempt(attempt, task, settings, environment(), json=json, plain=plain)


@app.command(
    help_epilogue="""
Examples:
    optimize selftest
    optimize selftest --list
    optimize selftest --class timing --class caching --json
"""
)
def selftest(
    *,
    family: Annotated[
        tuple[str, ...],
        Parameter(metavar="CLASS", name="--class", help="Only this class of attacks; may be given again.", negative=""),
    ] = (),
    tier: Tier = None,
    width: Width = None,
    list_only: Annotated[bool, Parameter(name="--list", help="List the corpus, run nothing.", negative="")] = False,
    json: AsJson = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Attack the evaluator of this machine with known cheats.

    Honest kernels that look like cheats are judged too, and must not be rejected.

    Exit code 0: every attack was stopped and no honest kernel rejected; 1: not so; 2: bad input.
    """
    settings = chosen_settings({"tier": tier, "width": width, "allow_unsandboxed": allow_unsandboxed or None})
    from kerneltune.agent.commands.selftest import selftest as run_selftest
    from kerneltune.agent.commands.selftest import shipped_corpus

    return run_selftest(shipped_corpus(), settings, families=family, json=json, only_list=list_only)


cli_query.register(app)
cli_export.register(app)
cli_report.register(app)
cli_watch.register(app)
cli_setup.register(app)


_GO_ON = "interrupted; `optimize runs` lists what is stored, and `optimize --resume RUN` goes on with a run"


def main() -> None:
    """Entry point of the console script. SIGTERM ends a run as Ctrl-C does: all stored, the screen restored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_run = any(word.startswith(("--task", "--resume")) for word in sys.argv[1:] if sys.argv[1].startswith("-"))
    if_interrupted = _GO_ON if is_run else "interrupted"
    sys.exit(
        exit_code(lambda: app(result_action="return_value", exit_on_error=False, print_error=False), if_interrupted)
    )
