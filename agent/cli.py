"""`optimize`: parse, compose, exit code. No logic, and nothing heavy is imported before a command needs it.

Exit codes: 0 done; 1 nothing accepted, a verdict that did not hold, an attack that got through, a model that cannot be
asked, or our own failure;
2 bad input; 130 Ctrl-C.
"""

import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from agent import cli_export, cli_query
from agent.cli_query import RunsDir
from agent.llm.errors import LlmError
from agent.settings import Effort, Strategy, chosen_settings, environment
from tools.errors import KerneltuneError, UsageError

app = App(
    name="optimize",
    help="Find the fastest GPU kernel for a PyTorch task that can be proved right.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
    help_epilogue="""
Examples:
    optimize --task softmax                      a built-in task, default budget
    optimize --task path/to/23_Softmax.py        any KernelBench problem file
    optimize --task softmax --max-attempts 12 --json | tail -1
    optimize --task softmax --model anthropic --max-cost 2
    optimize --task softmax --model chat:qwen --base-url http://localhost:8000/v1
    optimize --resume 20260101-120000-softmax-ab12
    optimize bench mine.py theirs/ --task softmax    judge kernels that are written already
    optimize verify 20260101-120000-softmax-ab12/7   judge a stored attempt again
    optimize selftest                            attack the evaluator of this machine
    optimize show 20260101-120000-softmax-ab12       a stored run, or RUN/NUMBER for one of its attempts
    optimize merge ../elsewhere/runs.db              join the record of another machine
    optimize doctor                              what this machine has and lacks
    optimize tasks                               the built-in tasks and their speed of light
""",
    version_flags=["--version"],
)

Tier = Annotated[
    Literal["screened", "judged", "confirmed"] | None,
    Parameter(help="How thoroughly to judge on a GPU: screened, judged or confirmed."),
]
Width = Annotated[int | None, Parameter(help="Candidates traced and compiled side by side.")]
Arch = Annotated[str | None, Parameter(help="Compile target when there is no GPU, such as sm_90.")]
Unsandboxed = Annotated[bool, Parameter(help="Run candidates even if they cannot be confined.", negative="")]


@app.default
def run(
    *,
    task: Annotated[str | None, Parameter(help="A built-in task's name or a KernelBench problem file.")] = None,
    resume: Annotated[str | None, Parameter(help="Go on with this run.")] = None,
    model: Annotated[
        str | None,
        Parameter(help="Who writes the kernels: anthropic[:ID], openai[:ID], chat:ID, scripted:FILE or offline."),
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
    no_confirm: Annotated[bool, Parameter(help="Do not judge the best again at the end.", negative="")] = False,
    width: Width = None,
    seed: Annotated[int | None, Parameter(help="Seed of the author's search.")] = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    json: Annotated[bool, Parameter(help="Print events as NDJSON, ending in one result.", negative="")] = False,
    plain: Annotated[bool, Parameter(help="Print one line per event instead of the live screen.", negative="")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Optimise a task: write kernels, trace, compile, check, time and rank them, and store every attempt."""
    if (task is None) == (resume is None):
        if task is None and len(sys.argv) <= 1:
            app.help_print()
            return 0
        raise UsageError("give either --task or --resume, not both" if task else "give --task NAME, or --resume RUN")
    flags = {
        "model": model, "base_url": base_url, "effort": effort, "strategy": strategy, "max_cost_usd": max_cost,
        "target_speedup": target_speedup, "target_sol": target_sol, "max_attempts": max_attempts,
        "max_time_s": max_time, "patience": patience, "width": width, "seed": seed, "arch": arch,
        "runs_dir": runs_dir, "tier": tier, "allow_unsandboxed": allow_unsandboxed or None,
        "confirm": False if no_confirm else None,
    }  # fmt: skip
    settings = chosen_settings(flags)
    from agent.compose.shown import show_run

    return show_run(task, resume, settings, environment(), json=json, plain=plain)


@app.command
def tasks(*, json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False) -> int:
    """List the built-in tasks: shapes, dtypes, bytes, flops, and the speed-of-light time per known GPU."""
    from agent.compose.listing import list_tasks

    return list_tasks(json=json)


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
    task: Annotated[str, Parameter(help="A built-in task's name or a KernelBench problem file.")],
    tier: Tier = None,
    width: Width = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    no_store: Annotated[bool, Parameter(help="Keep neither record nor receipts.", negative="")] = False,
    json: Annotated[bool, Parameter(help="Print one object per file, then a summary.", negative="")] = False,
    plain: Annotated[bool, Parameter(help="Progress as lines, no colour.", negative="")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Judge kernels that are written already: trace, compile, check, time and rank each file that defines ModelNew.

    Exit code 0: all were accepted; 1: some were not; 2: bad input.
    """
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
    attempt: Annotated[str, Parameter(help="RUN/NUMBER, a run (its best attempt), or the start of either.")],
    *,
    task: Annotated[str | None, Parameter(help="The run's task file, if it lies elsewhere now.")] = None,
    tier: Tier = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    json: Annotated[bool, Parameter(help="Print one JSON object.", negative="")] = False,
    plain: Annotated[bool, Parameter(help="No colour.", negative="")] = False,
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
    json: Annotated[bool, Parameter(help="Print one JSON object.", negative="")] = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Attack the evaluator: run the corpus of known cheats, and of honest kernels that look like cheats.

    Exit code 0: every attack was stopped and no honest kernel rejected; 1: not so; 2: bad input.
    """
    settings = chosen_settings({"tier": tier, "width": width, "allow_unsandboxed": allow_unsandboxed or None})
    from agent.compose.selftest import selftest as run_selftest
    from agent.compose.selftest import shipped_corpus

    return run_selftest(shipped_corpus(), settings, families=family, json=json, only_list=list_only)


@app.command(
    help_epilogue="""
Examples:
    optimize doctor
    optimize doctor --calibrate     measure what this GPU can reach, once (some ten seconds)
"""
)
def doctor(
    *,
    calibrate: Annotated[bool, Parameter(help="Measure the GPU's ceilings and keep them.", negative="")] = False,
    runs_dir: RunsDir = None,
    arch: Arch = None,
    json: Annotated[bool, Parameter(help="Print one JSON object.", negative="")] = False,
) -> int:
    """Say what this machine has and lacks, with the command that mends each lack.

    Exit code 0: nothing is amiss; 1: something is.
    """
    settings = chosen_settings({"runs_dir": runs_dir, "arch": arch})
    from agent.compose.doctor import examine

    return examine(settings, environment(), calibrate=calibrate, json=json)


cli_query.register(app)
cli_export.register(app)


def main() -> None:
    """Entry point of the console script. SIGTERM ends a run as Ctrl-C does: all stored, the screen restored."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(_exit_code(lambda: app(result_action="return_value", exit_on_error=False, print_error=False)))


def _exit_code(command: Callable[[], Any]) -> int:
    try:
        return int(command() or 0)
    except CycloptsError as error:
        print(f"optimize: {str(error).strip()}", file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"optimize: {error}", file=sys.stderr)
        return 2
    except LlmError as error:
        print(f"optimize: {error}", file=sys.stderr)
        return 1
    except KerneltuneError as error:
        print(f"optimize: internal failure: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("optimize: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
