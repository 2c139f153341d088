"""The commands for setting out: `tasks`, `init`, `doctor`, `config` and `completion`. No logic, nothing heavy."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.cli_parameters import Arch, AsJson, RunsDir
from kerneltune.agent.settings import chosen_settings, environment
from kerneltune.tools.schema.errors import UsageError


def register(app: App) -> None:
    """Add the commands."""
    app.command(tasks, help_epilogue=_TASKS)
    app.command(init, help_epilogue=_INIT)
    app.command(doctor, help_epilogue=_DOCTOR)
    app.command(config, help_epilogue=_CONFIG)

    def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Which shell.")], /) -> int:
        """Print what lets a shell complete commands and names."""
        print(app.generate_completion(shell=shell, prog_name="optimize"))
        return 0

    app.command(completion, help_epilogue=_COMPLETION)


_TASKS = """
Examples:
    optimize tasks                           all built-in tasks
    optimize tasks softmax                   one of them: source, cases, floor
    optimize tasks mytask.py --check         is your task fit to be judged?
    optimize tasks --json | python -m json.tool
"""


def tasks(
    task: Annotated[str | None, Parameter(help="Show this one: a name or a file.", completer=complete.tasks)] = None,
    /,
    *,
    check: Annotated[
        bool, Parameter(help="Run its reference on a CPU and try the null kernels on it.", negative="")
    ] = False,
    json: AsJson = False,
) -> int:
    """List the built-in tasks, or show or check one.

    Shown are source, cases, bytes, flops, and the speed-of-light time on known GPUs.

    With --check, exit code 0: the task is sound; 1: a kernel that does nothing would pass it; 2: bad input.
    """
    if task is None and check:
        raise UsageError("tasks --check: name the task to check, as in: optimize tasks mytask.py --check")
    from kerneltune.agent.commands.listing import check_task, list_tasks, show_task

    if task is None:
        return list_tasks(json=json)
    return check_task(task, json=json) if check else show_task(task, json=json)


_INIT = """
Examples:
    optimize init                                a task to fill in, as mytask.py
    optimize init mymodel.py:attention_block     from a function of your own
    optimize init mymodel.py:Block -o block.py   from an nn.Module
    optimize init mymodel.py:gelu --no-check     write it, run nothing

Your file is read, not run. The check that follows runs the task that was
written, with your code in it, in a process of its own, as every run does.
"""


def init(
    source: Annotated[
        str | None,
        Parameter(
            help="FILE.py:NAME of a function or nn.Module; without it, a template.", completer=complete.definitions
        ),
    ] = None,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(metavar="FILE", name=["--output", "-o"], help="The task file to write; NAME_task.py unless told."),
    ] = None,
    overwrite: Annotated[bool, Parameter(help="Replace the file if there is one.", negative="")] = False,
    check: Annotated[bool, Parameter(help="Check the task that was written.")] = True,
    json: AsJson = False,
) -> int:
    """Write a task file from a PyTorch function or module.

    Its comments say what to look at; lines with LOOK are guesses.

    Exit code 0: written, and the check found nothing; 1: written, and there is something to mend; 2: bad input.
    """
    from kerneltune.agent.commands.init import init_task

    return init_task(source, output, overwrite=overwrite, check=check, json=json)


_DOCTOR = """
Examples:
    optimize doctor
    optimize doctor --calibrate     measure what this GPU can reach (10 s)
    optimize doctor --json | python -m json.tool
"""


def doctor(
    *,
    calibrate: Annotated[bool, Parameter(help="Measure the GPU's ceilings and keep them.", negative="")] = False,
    runs_dir: RunsDir = None,
    arch: Arch = None,
    json: AsJson = False,
) -> int:
    """Say what this machine has and lacks, and what mends it.

    Looked at: Python, torch and triton, GPU, driver, CUDA, ptxas, hardware counters, calibration, sandbox, disk,
    memory, API keys (never their values), settings. Exit code 0: nothing is amiss; 1: something is; 3: --calibrate
    without a GPU.
    """
    settings = chosen_settings({"runs_dir": runs_dir, "arch": arch})
    from kerneltune.agent.commands.doctor import examine

    return examine(settings, environment(), calibrate=calibrate, json=json)


_CONFIG = """
Examples:
    optimize config
    optimize config --json | python -m json.tool
    echo 'max-attempts = 50' >> kerneltune.toml

Settings have the names of flags. What counts is the flag, else the variable
KERNELTUNE_<NAME>, else kerneltune.toml in this folder or above it up to the
root of the git repository, else your own kerneltune.toml, else the default.
API keys are no settings: they stay in the environment.
"""


def config(*, json: AsJson = False) -> int:
    """Show every setting, its value, and where it came from."""
    from kerneltune.agent.commands.config import show_config

    return show_config(Path.cwd(), json=json)


_COMPLETION = """
Examples:
    eval "$(optimize completion bash)"           for this shell
    optimize completion bash >> ~/.bash_completion
    optimize completion zsh > ~/.zfunc/_optimize   (fpath+=~/.zfunc, compinit)
    optimize completion fish > ~/.config/fish/completions/optimize.fish
"""
