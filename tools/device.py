"""The GPU as NVML sees it. The only importer of pynvml. Reads; never sets anything."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pynvml


@dataclass(frozen=True)
class GpuInfo:
    """The GPU that would be used: NVML's first visible one. `arch` is 90 for sm_90."""

    name: str
    arch: int
    uuid: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class GpuSample:
    """State at one moment; None where this GPU or container does not tell."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    utilisation_percent: int | None
    memory_used_bytes: int | None
    throttle_reasons: int | None  # NVML's clocks-event-reasons bit mask


@contextlib.contextmanager
def _nvml() -> Iterator[object | None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml.nvmlDeviceGetHandleByIndex(0) if pynvml.nvmlDeviceGetCount() else None
    except pynvml.NVMLError:
        yield None
    finally:
        pynvml.nvmlShutdown()


def gpu_info() -> GpuInfo | None:
    """The first GPU, or None when there is no driver or no GPU."""
    with _nvml() as handle:
        if handle is None:
            return None
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return GpuInfo(
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            arch=major * 10 + minor,
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
