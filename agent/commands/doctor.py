"""`optimize doctor`: checks this machine; with --calibrate, measures what its GPU can reach."""

import json as jsonlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from kerneltune.agent.commands import Arch, AsJson, RunsDir, missing_for_export
from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.settings import Environment, chosen_settings, environment, unknown_variables
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import TextTable, standard_page
from kerneltune.tools.schema.codec import encode, one_line
from kerneltune.tools.schema.errors import Unfit, UsageError

if TYPE_CHECKING:
    from kerneltune.tools.backends.base import GpuInfo
    from kerneltune.tools.doctor import Finding
    from kerneltune.tools.sandbox.workers import Machine

_SYMBOLS = {True: ("✔", "green"), False: ("✗", "red"), None: ("·", "dim")}

command = App(
    name="doctor",
    help_epilogue="""
Examples:
    optimize doctor
    optimize doctor --calibrate     measure what this GPU can reach (10 s)
    optimize doctor --json | python -m json.tool
""",
)


@command.default
def doctor(
    *,
    calibrate: Annotated[bool, Parameter(help="Measure the GPU's ceilings and keep them.", negative="")] = False,
    runs_dir: RunsDir = None,
    arch: Arch = None,
    json: AsJson = False,
) -> int:
    """Check this machine, and print how to fix each problem.

    It checks Python, torch and triton, GPU, driver, CUDA, ptxas, hardware counters, calibration, sandbox, disk,
    memory, API keys (never their values), settings. Exit code 0: no problem; 1: a problem; 3: --calibrate
    without a GPU.
    """
    settings = chosen_settings(locals())
    from kerneltune.agent.commands.session import ceilings_file
    from kerneltune.tools.backends import gpu_info
    from kerneltune.tools.doctor import Patient, findings
    from kerneltune.tools.schema.gpus import load_ceilings

    gpu, path = gpu_info(), None
    if calibrate:
        if gpu is None:
            raise Unfit("--calibrate measures a GPU, and there is none here")
        from kerneltune.tools.sandbox import workers

        with workers.started_base() as machine:
            path = measure_ceilings(machine, gpu, settings.cache_dir)
    calibrated = load_ceilings(ceilings_file(settings.cache_dir, gpu)) is not None if gpu else None
    found = (
        *findings(Patient(settings.runs_dir, calibrated, settings.arch)),
        *of_this_program(environment()),
    )
    problems = sum(f.ok is False for f in found)
    if json:
        told = {
            "type": "doctor",
            "schema_version": 1,
            "ok": not problems,
            "findings": [encode(f) for f in found],
            "calibration_path": str(path) if path else None,
        }
        print(jsonlib.dumps(told))
    else:
        _print(found, problems, path)
    return int(problems > 0)


def _print(found: "Sequence[Finding]", problems: int, calibration: Path | None) -> None:
    """Print a line per finding, and below each problem how to fix it."""
    page, table = standard_page(colour=True), TextTable.grid(padding=(0, 1))
    for finding in found:
        symbol, style = _SYMBOLS[finding.ok]
        table.add_row(Text(symbol, style=style), Text(finding.name, no_wrap=True), finding.value)
        if finding.remedy:
            table.add_row("", "", Text(f"→ {one_line(finding.remedy)}", style="cyan"))
    page.print(table)
    if calibration:
        page.print(f"measured this GPU's ceilings: {calibration}")
    page.print(f"{words.plural(problems, 'problem')} found" if problems else "no problem found")


def measure_ceilings(machine: "Machine", gpu: "GpuInfo", cache_dir: Path) -> Path:
    """Measure what the GPU can reach by workers that run already, and keep it; returns the file. Raises UsageError
    without a place for it, GpuLost when it cannot be done."""
    from kerneltune.agent.commands.session import ceilings_file
    from kerneltune.tools.bench import calibrate
    from kerneltune.tools.schema.gpus import save_ceilings

    measured, path = calibrate(machine), ceilings_file(cache_dir, gpu)
    try:
        save_ceilings(path, measured)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; set KERNELTUNE_CACHE_DIR") from error
    return path


def of_this_program(environment: Environment) -> "Iterator[Finding]":
    """Yield what the machine cannot know: API keys, settings, and packages of which one command has need."""
    from kerneltune.tools.doctor import Finding

    if environment.keys:
        yield Finding("API keys", True, "set: " + ", ".join(sorted(environment.keys)))
    else:
        remedy = f"export {'=… or '.join(KEY_VARIABLES.values())}=…"
        yield Finding("API keys", None, "none: the offline author writes the kernels", remedy)
    for variable, hint in unknown_variables().items():
        yield Finding("settings", None, f"{variable} is no setting; {hint}", f"unset {variable}")
    missing = missing_for_export()
    value = f"not installed: {', '.join(missing)}; optimize export needs them" if missing else "installed"
    yield Finding("export", None if missing else True, value, "pip install 'kerneltune[export]'" if missing else "")
