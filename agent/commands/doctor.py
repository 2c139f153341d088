"""`optimize doctor`: what this machine has and lacks; with --calibrate, what its GPU can reach."""

import importlib.util
import json as jsonlib
from collections.abc import Iterator
from pathlib import Path

from kerneltune.agent.commands.ceilings import measure, stored
from kerneltune.agent.models.providers import KEY_VARIABLES
from kerneltune.agent.settings import Environment, Settings, config_files, unknown_variables
from kerneltune.agent.view.setup import findings_json, print_findings
from kerneltune.tools.backends.cuda.device import gpu_info
from kerneltune.tools.doctor import Finding, Patient, findings


def examine(settings: Settings, environment: Environment, *, calibrate: bool, json: bool) -> int:
    """Print the findings; 0 when nothing is amiss, 1 when something is. Raises UsageError."""
    gpu = gpu_info()
    path = measure(gpu, settings.cache_dir) if calibrate else None
    calibrated = stored(gpu, settings.cache_dir) is not None if gpu else None
    patient = Patient(settings.runs_dir, calibrated, settings.arch)
    found = (*findings(patient), *of_this_program(environment, Path.cwd()))
    if json:
        print(jsonlib.dumps(findings_json(found, path)))
    else:
        print_findings(found, path)
    return int(any(f.ok is False for f in found))


_OF_EXPORT = ("orjson", "pyarrow", "rensa")


def of_this_program(environment: Environment, folder: Path) -> Iterator[Finding]:
    """Yield what the machine cannot know: API keys, settings, and packages of which one command has need."""
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
