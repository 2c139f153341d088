"""`optimize doctor`: what this machine has and lacks; with --calibrate, what its GPU can reach."""

import importlib.util
import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import Arch, AsJson, RunsDir
from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.settings import Environment, chosen_settings, config_files, environment, unknown_variables
from kerneltune.tools.schema.errors import Unfit, UsageError

if TYPE_CHECKING:
    from kerneltune.tools.backends.cuda.device import GpuInfo
    from kerneltune.tools.doctor import Finding
    from kerneltune.tools.sandbox.workers import Machine

_OF_EXPORT = ("orjson", "pyarrow", "rensa")

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
    """Say what this machine has and lacks, and what mends it.

    Looked at: Python, torch and triton, GPU, driver, CUDA, ptxas, hardware counters, calibration, sandbox, disk,
    memory, API keys (never their values), settings. Exit code 0: nothing is amiss; 1: something is; 3: --calibrate
    without a GPU.
    """
    settings = chosen_settings({"runs_dir": runs_dir, "arch": arch})
    from kerneltune.agent.commands.session import ceilings_file
    from kerneltune.agent.view.setup import findings_json, print_findings
    from kerneltune.tools.backends.cuda.device import gpu_info
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
        *of_this_program(environment(), Path.cwd()),
    )
    if json:
        print(jsonlib.dumps(findings_json(found, path)))
    else:
        print_findings(found, path)
    return int(any(f.ok is False for f in found))


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


def of_this_program(environment: Environment, folder: Path) -> "Iterator[Finding]":
    """Yield what the machine cannot know: API keys, settings, and packages of which one command has need."""
    from kerneltune.tools.doctor import Finding

    if environment.keys:
        yield Finding("API keys", True, "set: " + ", ".join(sorted(environment.keys)))
    else:
        remedy = f"export {'=… or '.join(KEY_VARIABLES.values())}=…"
        yield Finding("API keys", None, "none: the offline author writes the kernels", remedy)
    project, user = config_files(folder)
    there = [str(path) for path in (project, user) if path is not None and path.is_file()]
    yield Finding("settings", None, ", ".join(there) or "no kerneltune.toml; defaults hold (optimize config)")
    for variable, hint in unknown_variables().items():
        yield Finding("settings", None, f"{variable} is no setting; {hint}", f"unset {variable}")
    missing = [name for name in _OF_EXPORT if importlib.util.find_spec(name) is None]
    value = f"not installed: {', '.join(missing)}; optimize export needs them" if missing else "installed"
    yield Finding("export", None if missing else True, value, "pip install 'kerneltune[export]'" if missing else "")
