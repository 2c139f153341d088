"""The measured ceilings of this machine's GPU: kept in the user's cache directory, handed to the bench."""

from pathlib import Path
from typing import TYPE_CHECKING

from kerneltune.tools.backends.cuda.device import GpuInfo
from kerneltune.tools.schema.errors import Unfit, UsageError
from kerneltune.tools.schema.gpus import Ceilings, ceilings_path, load_ceilings, save_ceilings
from kerneltune.tools.schema.verdict import versions

if TYPE_CHECKING:
    from kerneltune.tools.sandbox.workers import Machine


def stored(gpu: GpuInfo, cache_dir: Path) -> Ceilings | None:
    """What was measured on this GPU with this driver and torch; None when it was not."""
    return load_ceilings(_path(gpu, cache_dir))


def measure(gpu: GpuInfo | None, cache_dir: Path) -> Path:
    """Measure now and keep the result; returns its file. Raises Unfit without a GPU, UsageError without a place."""
    if gpu is None:
        raise Unfit("--calibrate measures a GPU, and there is none here")
    from kerneltune.tools.sandbox import workers  # too much for asking what is stored

    with workers.started_base() as machine:
        return measure_with(machine, gpu, cache_dir)


def measure_with(machine: "Machine", gpu: GpuInfo, cache_dir: Path) -> Path:
    """The same by workers that run already. Raises UsageError without a place, GpuLost when it cannot be done."""
    from kerneltune.tools.bench import calibrate

    measured = calibrate(machine)
    path = _path(gpu, cache_dir)
    try:
        save_ceilings(path, measured)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; set KERNELTUNE_CACHE_DIR") from error
    return path


def _path(gpu: GpuInfo, cache_dir: Path) -> Path:
    return ceilings_path(cache_dir, gpu.uuid, gpu.driver, versions()["torch"])
