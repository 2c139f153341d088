"""`optimize doctor`: what this machine has and lacks; with --calibrate, what its GPU can reach."""

import json as jsonlib

from agent.compose.ceilings import measure, stored
from agent.settings import Environment, Settings
from agent.view.doctor import findings_json, print_findings
from tools.device import gpu_info
from tools.doctor import Patient, findings


def examine(settings: Settings, environment: Environment, *, calibrate: bool, json: bool) -> int:
    """Print the findings; 0 when nothing is amiss, 1 when something is. Raises UsageError."""
    gpu = gpu_info()
    path = measure(gpu, settings.cache_dir) if calibrate else None
    calibrated = stored(gpu, settings.cache_dir) is not None if gpu else None
    found = findings(Patient(settings.runs_dir, environment.keys, calibrated, settings.arch))
    if json:
        print(jsonlib.dumps(findings_json(found, path)))
    else:
        print_findings(found, path)
    return int(any(f.ok is False for f in found))
