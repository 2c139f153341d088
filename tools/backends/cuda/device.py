"""The GPU as NVML sees it. The only importer of pynvml. Reads; never sets anything."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml

from kerneltune.tools.backends.base import GpuInfo, GpuSample, GpuSetup
from kerneltune.tools.schema.codec import Json


@contextlib.contextmanager
def _nvml() -> Iterator[object | None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield _first(os.environ.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError:
        yield None
    finally:
        pynvml.nvmlShutdown()


def _first(visible: str | None) -> object | None:
    """The handle of CUDA's device 0. NVML knows nothing of CUDA_VISIBLE_DEVICES. It numbers by PCI bus, CUDA by speed
    unless CUDA_DEVICE_ORDER says otherwise, which differs only between unlike GPUs."""
    numbers = range(pynvml.nvmlDeviceGetCount())
    asks = visible is not None and visible.startswith("GPU-")  # else no other GPU, which may be sick, need be opened
    chosen = first_visible(visible, [_uuid(i) if asks else "" for i in numbers])
    return None if chosen is None else pynvml.nvmlDeviceGetHandleByIndex(chosen)


def _uuid(number: int) -> str:
    handle = _told(pynvml.nvmlDeviceGetHandleByIndex, number)
    return _text(_told(pynvml.nvmlDeviceGetUUID, handle) or "") if handle is not None else ""


def first_visible(visible: str | None, uuids: Sequence[str]) -> int | None:
    """Which of these GPUs is CUDA's device 0 under this CUDA_VISIBLE_DEVICES: numbers or beginnings of UUIDs, of which
    the first counts; None where it hides all (an unknown first one does). A MIG slice is not told from its GPU."""
    if visible is None:
        return 0 if uuids else None
    name = visible.split(",")[0].strip()
    if name.startswith("GPU-"):
        return next((i for i, uuid in enumerate(uuids) if uuid.startswith(name)), None)
    if name.startswith("MIG-"):
        return 0 if uuids else None
    return int(name) if name.isdecimal() and int(name) < len(uuids) else None


def gpus_hidden() -> bool:
    """Whether there are GPUs, all of which CUDA_VISIBLE_DEVICES hides from CUDA."""
    with _nvml() as handle:
        return handle is None and bool(_told(pynvml.nvmlDeviceGetCount))


def gpu_info() -> GpuInfo | None:
    """CUDA's first GPU, or None when there is no driver or no GPU."""
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


class NvmlSampler:
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

    def clocks(self) -> GpuSample | None:
        """SM clock and throttle reasons only, which takes a fraction of the time."""
        if self._handle is None:
            return None
        clock = _told(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM)
        reasons = _told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle)
        return GpuSample(clock, None, None, None, None, None, reasons)

    def facts(self) -> dict[str, Json]:
        """What a receipt says of the GPU's set-up; None where this GPU or container does not tell."""
        if self._handle is None:
            return {}
        limit_mw = _told(pynvml.nvmlDeviceGetPowerManagementLimit, self._handle)
        return {
            "driver": _plain(_told(pynvml.nvmlSystemGetDriverVersion)),
            "vbios": _plain(_told(pynvml.nvmlDeviceGetVbiosVersion, self._handle)),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "ecc": _plain(_told(pynvml.nvmlDeviceGetEccMode, self._handle)),
            "mig": _plain(_told(pynvml.nvmlDeviceGetMigMode, self._handle)),
            "persistence": _plain(_told(pynvml.nvmlDeviceGetPersistenceMode, self._handle)),
            "max_sm_clock_mhz": _told(pynvml.nvmlDeviceGetMaxClockInfo, self._handle, pynvml.NVML_CLOCK_SM),
        }

    def foreign_processes(self) -> int | None:
        """How many processes compute on this GPU that are not ours; None when the driver does not tell."""
        if self._handle is None:
            return None
        found = _told(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return foreign_processes(None if found is None else tuple(int(p.pid) for p in found))

    def close(self) -> None:
        """Let go of NVML."""
        self._stack.close()
        self._handle = None

    def __enter__(self) -> "NvmlSampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OUR_PROCESSES = 3  # on a GPU: the judge, the runner and its spare


def foreign_processes(listed: tuple[int, ...] | None) -> int | None:
    """How many of these pids are foreign; None when the driver does not tell. Ours have this one's parent, the fork
    server. Where this process is not on the list, which it is when it has a context, the driver counts in another
    namespace or shows a part: then only more than ours can be are foreign."""
    if not listed:
        return None
    if os.getpid() in listed:
        return sum(_parent(pid) not in (os.getppid(), None) for pid in listed if pid != os.getpid())
    return max(0, len(listed) - _OUR_PROCESSES) or None


def _parent(pid: int) -> int | None:
    """The parent of a process; None when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _told(ask: Callable[..., Any], *args: object) -> Any:
    """NVML's answer, or None where it is not supported here."""
    try:
        return ask(*args)
    except pynvml.NVMLError:
        return None


def _plain(value: Any) -> Json:
    """NVML's answer as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


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
