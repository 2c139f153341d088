"""Kinds of hardware that plans run on, one folder each; `base.py` says what a folder has to offer.

Which one is in use stands here and nowhere else. Each function is for another kind of process, and imports no more than
that may read: a confined runner cannot be sure of pynvml.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerneltune.tools.backends.base import Backend, GpuInfo, GpuSetup, Sampler, StandIns

RUNNER = "kerneltune.tools.backends.cuda.runner:main"  # entry of the process that replays plans on the device


def gpu_info() -> "GpuInfo | None":
    """The first GPU, or None when there is no driver or no GPU. No torch, no context."""
    from kerneltune.tools.backends.cuda import device

    return device.gpu_info()


def gpus_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all GPUs that there are."""
    from kerneltune.tools.backends.cuda import device

    return device.gpus_hidden()


def gpu_setup() -> "GpuSetup | None":
    """How the first GPU is set up; None without one. No torch, no context."""
    from kerneltune.tools.backends.cuda import device

    return device.gpu_setup()


def gpu_sampler(uuid: str | None = None) -> "Sampler":
    """What reads the state of the GPU of that UUID, or of the first. No torch, no context."""
    from kerneltune.tools.backends.cuda.device import NvmlSampler

    return NvmlSampler(uuid)


def stand_ins() -> "StandIns":
    """What a process without the device has in its place."""
    from kerneltune.tools.backends.cuda import stubs

    return stubs


def start_driver() -> None:
    """What takes time before `device_backend`, and leaves the device alone: imports and the driver; no context."""
    from kerneltune.tools.backends.cuda import backend

    backend.start_driver()


def device_backend() -> "Backend":
    """The device of this process, for a judge."""
    from kerneltune.tools.backends.cuda.backend import CudaBackend

    return CudaBackend()
