"""`optimize`: parse, compose, exit code. No logic, and nothing heavy is imported before a command needs it.

Exit codes: 0 done (some attempt accepted), 1 nothing accepted or our own failure, 2 bad input, 130 Ctrl-C.
"""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from agent.settings import Settings, environment, load_settings
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
    optimize --resume 20260101-120000-softmax-ab12
    optimize tasks                               the built-in tasks and their speed of light
""",
    version_flags=["--version"],
)


@app.default
def run(
    *,
    task: Annotated[str | None, Parameter(help="A built-in task's name or a KernelBench problem file.")] = None,
    resume: Annotated[str | None, Parameter(help="Go on with this run.")] = None,
    model: Annotated[str | None, Parameter(help="Who writes the kernels: offline.")] = None,
    max_attempts: Annotated[int | None, Parameter(help="Stop after this many attempts.")] = None,
    max_time: Annotated[float | None, Parameter(help="Stop after this many seconds.")] = None,
    patience: Annotated[int | None, Parameter(help="Stop after this many attempts without a new best.")] = None,
    width: Annotated[int | None, Parameter(help="Candidates traced and compiled side by side.")] = None,
    seed: Annotated[int | None, Parameter(help="Seed of the author's search.")] = None,
    arch: Annotated[str | None, Parameter(help="Compile target when there is no GPU, such as sm_90.")] = None,
    runs_dir: Annotated[Path | None, Parameter(help="Where runs are kept.")] = None,
    json: Annotated[bool, Parameter(help="Print events as NDJSON, ending in one result.", negative="")] = False,
    plain: Annotated[bool, Parameter(help="Print one line per event instead of the live screen.", negative="")] = False,
    allow_unsandboxed: Annotated[
        bool, Parameter(help="Run candidates even if they cannot be confined.", negative="")
    ] = False,
) -> int:
    """Optimise a task: write kernels, trace, compile, check, time and rank them, and store every attempt."""
    if (task is None) == (resume is None):
        if task is None and len(sys.argv) <= 1:
            app.help_print()
            return 0
        raise UsageError("give either --task or --resume, not both" if task else "give --task NAME, or --resume RUN")
    flags = {
        "model": model, "max_attempts": max_attempts, "max_time_s": max_time, "patience": patience, "width": width,
        "seed": seed, "arch": arch, "runs_dir": runs_dir, "allow_unsandboxed": allow_unsandboxed or None,
    }  # fmt: skip
    settings = _settings(flags)
    from agent.compose import show_run

    return show_run(task, resume, settings, environment(), json=json, plain=plain)


@app.command
def tasks(*, json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False) -> int:
    """List the built-in tasks: shapes, dtypes, bytes, flops, and the speed-of-light time per known GPU."""
    from agent.compose import list_tasks

    return list_tasks(json=json)


@app.command
def runs(
    *,
    runs_dir: Annotated[Path | None, Parameter(help="Where runs are kept.")] = None,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False,
) -> int:
    """List the stored runs, latest first."""
    from agent.compose import list_runs

    return list_runs(_settings({"runs_dir": runs_dir}).runs_dir, json=json)


def _settings(flags: dict[str, Any]) -> Settings:
    settings = load_settings(Path.cwd())
    given = {name: value for name, value in flags.items() if value is not None}
    model = given.get("model", settings.model)
    if model not in ("", "offline"):
        raise UsageError(f"--model {model}: this version has one author, offline; LLM authors come next")
    return replace(settings, **given)


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
    except KerneltuneError as error:
        print(f"optimize: internal failure: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("optimize: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
