"""The GPU as NVML sees it, and the lock that keeps our processes apart on it. The only importer of pynvml. Reads; never
sets anything."""

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pynvml

from kerneltune.tools.schema.codec import Json

BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, thermal (software, hardware), power brake
_SLOW_EVERY = 16  # readings of the clock between two of power and temperature
_KEPT = 4096
_LOCK_EVERY_S = 0.05


@dataclass(frozen=True)
class GpuInfo:
    """The GPU that would be used: the one that CUDA numbers 0. `arch` is 90 for sm_90."""

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


class GpuLock:
    """One process of this user at a time works on a GPU: a lock on a file named after its UUID, which ends with the
    process. Those that wait take turns: whoever wants the GPU first takes the lock on being the next."""

    def __init__(self, folder: Path, uuid: str) -> None:
        """Raises OSError for a folder that cannot be written to, or where nothing can be locked."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._own, self._next = (os.open(folder / f"{uuid}.{name}", flags, 0o600) for name in ("lock", "next"))
        if _locked(self._next):
            fcntl.flock(self._next, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def held(self, waiting: Callable[[float], None]) -> Iterator[None]:
        """Hold the lock. `waiting` is told, again and again, how long that has not been possible."""
        began_s = time.monotonic()
        for descriptor in (self._next, self._own):
            while not _locked(descriptor):
                waiting(time.monotonic() - began_s)
                time.sleep(_LOCK_EVERY_S)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._own, fcntl.LOCK_UN)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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

    def processes(self) -> tuple[int, ...] | None:
        """Pids with a compute context on this GPU, as the driver's namespace numbers them; None when it does not
        tell."""
        if self._handle is None:
            return None
        found = _told(pynvml.nvmlDeviceGetComputeRunningProcesses, self._handle)
        return None if found is None else tuple(int(p.pid) for p in found)

    def close(self) -> None:
        """Let go of NVML."""
        self._stack.close()
        self._handle = None

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OUR_PROCESSES = 3  # on a GPU: the judge, the runner and its spare


def foreign_processes(listed: tuple[int, ...] | None) -> int | None:
    """How many foreign processes compute on the GPU; None when the driver does not tell. Ours have this one's parent,
    the fork server. Where this process is not on the list, which it is when it has a context, the driver counts in
    another namespace or shows a part: then only more than ours can be are foreign."""
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


@dataclass(frozen=True)
class Window:
    """The GPU over a stretch of time: the median SM clock (None: not told) and whether a throttle bit was seen."""

    sm_clock_mhz: float | None
    throttled: bool


class Watch:
    """Reads the GPU's clock in a thread, so that nobody who measures has to wait for NVML."""

    def __init__(self, sampler: Sampler, period_s: float = 0.01) -> None:
        self._sampler, self._period_s = sampler, period_s
        self._seen: deque[tuple[float, GpuSample]] = deque(maxlen=_KEPT)
        self.slow: list[GpuSample] = []  # with power and temperature
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)  # NVML may hang; nobody waits for it then

    def _run(self) -> None:
        for turn in range(1 << 62):
            full = turn % _SLOW_EVERY == 0
            sample = self._sampler.sample() if full else self._sampler.clocks()
            if sample is None:
                return
            self._seen.append((time.monotonic(), sample))
            if full:
                self.slow.append(sample)
            if self._over.wait(self._period_s):
                return

    def since(self, started_s: float) -> Window:
        """What was seen since then (time.monotonic); the last reading when nothing was."""
        seen = list(self._seen)
        return window([s for at, s in seen if at >= started_s] or [s for _, s in seen[-1:]])

    def clocks(self) -> list[float]:
        """All SM clocks that were read."""
        return [float(s.sm_clock_mhz) for _, s in list(self._seen) if s.sm_clock_mhz is not None]

    def reasons(self) -> int | None:
        """All throttle bits that were seen; None when none was told."""
        told = [s.throttle_reasons for _, s in list(self._seen) if s.throttle_reasons is not None]
        bits = 0
        for reasons in told:
            bits |= reasons
        return bits if told else None

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(1.0)


def window(samples: list[GpuSample]) -> Window:
    """Several readings as one."""
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
    throttled = any((s.throttle_reasons or 0) & BAD_THROTTLE for s in samples)
    return Window(float(median(clocks)) if clocks else None, throttled)


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


def _plain(value: Any) -> Json:
    """NVML's answer as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, int | float | str) else str(value)


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
