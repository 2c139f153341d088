"""The GPU as NVML sees it. The only importer of pynvml. Reads; never sets anything."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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


class Sampler:
    """Reads the GPU's state again and again; opening NVML once, since that takes longer than a reading."""

    def __init__(self, uuid: str | None = None) -> None:
        self._stack = contextlib.ExitStack()
        self._handle = self._stack.enter_context(_nvml())
        if self._handle is not None and uuid is not None:
            with contextlib.suppress(pynvml.NVMLError):
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def sample(self) -> GpuSample | None:
        """The state now; None without a GPU. What this GPU or container does not tell is None in the sample."""
        if self._handle is None:
            return None
        utilisation = _told(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        memory = _told(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        power_mw = _told(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return GpuSample(
            sm_clock_mhz=_told(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_told(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_MEM),
            temperature_c=_told(pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            utilisation_percent=None if utilisation is None else int(utilisation.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            throttle_reasons=_told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle),
        )

    def close(self) -> None:
        """Let go of NVML."""
        self._stack.close()
        self._handle = None

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sample() -> GpuSample | None:
    """The first GPU's state now, or None when there is none."""
    with Sampler() as sampler:
        return sampler.sample()


def _told(ask: Callable[..., Any], *args: object) -> Any:
    """NVML's answer, or None where it is not supported here."""
    try:
        return ask(*args)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True)
class GpuSetup:
    """How the first GPU is set up, and who uses it; None where this GPU or container does not tell."""

    cuda: str | None  # the newest CUDA that the driver serves, "13.0"
    exclusive: bool | None  # a compute mode that lets only one process in, or none
    mig: bool | None
    processes: tuple[tuple[int, int | None], ...] | None  # pid and bytes of GPU memory
    count: int


def gpu_setup() -> GpuSetup | None:
    """The set-up of the first GPU, without a CUDA context; None without one."""
    with _nvml() as handle:
        if handle is None:
            return None
        cuda = _told(pynvml.nvmlSystemGetCudaDriverVersion)
        mode = _told(pynvml.nvmlDeviceGetComputeMode, handle)
        mig = _told(pynvml.nvmlDeviceGetMigMode, handle)
        running = _told(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return GpuSetup(
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            exclusive=None if mode is None else mode != pynvml.NVML_COMPUTEMODE_DEFAULT,
            mig=None if mig is None else bool(mig[0]),
            processes=None if running is None else tuple((int(p.pid), p.usedGpuMemory) for p in running),
            count=int(pynvml.nvmlDeviceGetCount()),
        )
