"""The measured ceilings of this machine's GPU: kept in the user's cache directory, handed to the bench."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from tools import gpu_bench, machine
from tools.device import GpuInfo
from tools.errors import UsageError
from tools.versions import versions

_MODULE = "tools.calibration"


def gpu_options(gpu: GpuInfo, cache_dir: Path) -> dict[str, Any]:
    """What the GPU bench is told besides the task: the ceilings, if they were measured, and where it may keep work."""
    if importlib.util.find_spec(_MODULE) is None:
        return {}
    return {"ceilings": stored(gpu, cache_dir), "cache_dir": cache_dir}


def stored(gpu: GpuInfo, cache_dir: Path) -> Any:
    """The Ceilings that were measured on this GPU with this driver and torch; None when they were not."""
    if importlib.util.find_spec(_MODULE) is None:
        return None
    calibration = importlib.import_module(_MODULE)
    return calibration.load_ceilings(_path(calibration, gpu, cache_dir))


def measure(gpu: GpuInfo | None, cache_dir: Path) -> Path:
    """Measure now and keep the result; returns its file. Raises UsageError without a GPU or a place to write."""
    calibrate = getattr(gpu_bench, "calibrate", None)
    if gpu is None or calibrate is None:
        raise UsageError("--calibrate measures a GPU, and there is none here")
    calibration = importlib.import_module(_MODULE)
    path: Path = _path(calibration, gpu, cache_dir)
    with machine.started_base() as workers:
        measured = calibrate(workers)
    try:
        calibration.save_ceilings(path, measured)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; set KERNELTUNE_CACHE_DIR") from error
    return path


def _path(calibration: Any, gpu: GpuInfo, cache_dir: Path) -> Any:
    return calibration.ceilings_path(cache_dir, gpu.uuid, gpu.driver, versions()["torch"])
