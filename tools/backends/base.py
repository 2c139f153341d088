"""What a kind of hardware has to offer, and the values that it tells of itself. Knows no maker; imports no torch.

Each kind of process needs something else of it: the supervisor facts (`GpuInfo`, `Sampler`); the tracer, which has no
device, `StandIns`; the judge a `Backend`. The runner is a program of the backend's own, which answers
`runner_messages`. What is CUDA's shape: graphs, streams, an L2 to be flushed, pages that a second process maps. Where
another maker has something else, the judge's protocol of timing has to be looked at again.
"""

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from kerneltune.tools.backends.runner_messages import Shared, Times
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Plan, Step

if TYPE_CHECKING:
    import torch

# hardware slowdown, thermal (software, hardware), power brake: bits as NVML has them
_BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80
_SLOW_EVERY = 16  # readings of the clock between two of power and temperature
_KEPT = 4096
_LOCK_EVERY_S = 0.05
MAX_PLAN_SHARE = 0.5  # of the GPU's memory, for what a plan asks for; not of what is free of it: others may use it


@dataclass(frozen=True)
class GpuInfo:
    """The GPU that would be used. `arch` is 90 for sm_90."""

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


@dataclass(frozen=True)
class GpuSetup:
    """How the first GPU is set up, and who uses it; None where this GPU or container does not tell."""

    cuda: str | None  # the newest CUDA that the driver serves, "13.0"
    exclusive: bool | None  # a compute mode that lets only one process in, or none
    mig: bool | None
    processes: tuple[tuple[int, int | None], ...] | None  # pid and bytes of GPU memory
    count: int


class StepTape(Protocol):
    """What stand-ins need of a recording."""

    steps: list[Step]

    def address(self, tensor: "torch.Tensor") -> int:
        """A made-up address of the tensor's first element."""


class StandIns(Protocol):
    """What torch and Triton find in a process without the device, so that they take it for one that has. A module of
    the backend's, since both are changed for the whole process. `DEVICE` is torch's name of the device."""

    DEVICE: str

    def install(self, tape: StepTape, arch: int, gpu: dict[str, Any]) -> Any:
        """Make this process a tracer's, for good; returns Triton's target. `gpu` has the properties that host code
        asks for."""

    def for_inductor(self, arch: int) -> AbstractContextManager[None]:
        """TorchInductor writes code for that architecture in the block; everything is put back afterwards."""


class Sampler(Protocol):
    """Reads a GPU's state again and again. What the GPU or the container does not tell is None."""

    def sample(self) -> GpuSample | None:
        """The state now; None without a GPU."""

    def clocks(self) -> GpuSample | None:
        """SM clock and throttle reasons only, which takes a fraction of the time."""

    def foreign_processes(self) -> int | None:
        """How many processes compute on the GPU that are not ours."""

    def __enter__(self) -> "Sampler": ...

    def __exit__(self, *_: object) -> None: ...


def throttled(reasons: int | None) -> bool:
    """Whether heat or hardware held the GPU back."""
    return bool((reasons or 0) & _BAD_THROTTLE)


@dataclass(frozen=True)
class Window:
    """The GPU over a stretch of time: the median SM clock (None: not told) and whether a throttle bit was seen."""

    sm_clock_mhz: float | None
    throttled: bool


class ClockWatch:
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

    def __enter__(self) -> "ClockWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(1.0)


def window(samples: list[GpuSample]) -> Window:
    """Several readings as one."""
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
    slowed = any(throttled(s.throttle_reasons) for s in samples)
    return Window(float(median(clocks)) if clocks else None, slowed)


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


@dataclass(frozen=True)
class CompiledImage:
    """A kernel's launch metadata, as `triton.compile` says it, and its cubin."""

    metadata: Mapping[str, Json]
    cubin: bytes

    def number(self, name: str, default: int = 0) -> int:
        """A whole number of the metadata; absent or None means the default."""
        value = self.metadata.get(name)
        return default if value is None else int(value)


class DeviceError(RuntimeError):
    """A call to the device's driver failed; the context may be lost."""


class SharedBuffer(Protocol):
    """Whole pages of the device's memory that a runner can map, as flat uint8 and by address."""

    address: int
    nbytes: int
    tensor: "torch.Tensor"

    @property
    def guarded(self) -> bool:
        """Whether an access just outside faults, and a reader's mapping cannot be written to."""

    def share(self, fds: list[int], *, writable: bool) -> Shared:
        """What another process opens it by. A new descriptor may be appended to `fds`; the caller closes it."""

    def close(self) -> None:
        """Free the memory; nothing may use it any more."""


class Timer(Protocol):
    """Times work of the judge's own, on a stream of its own, by cold passes over graphs. `flush_bytes` are read between
    two passes, which leaves nothing of a working set in the caches."""

    flush_bytes: int

    def run(self, work: Callable[[], object], *, may_wait: bool = True) -> None:
        """Run the work and wait for it. Raises RuntimeError where an operator of it waits for the device and may not:
        no graph can hold that."""

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """What replays a graph of the work, which was `run` before. Raises RuntimeError where the work cannot
        be captured; then `renew_memory` before the next capture."""

    def renew_memory(self) -> None:
        """Other memory for the graphs that are captured from now on. Until then they may lie in the same: of what one
        has written, nothing is left once another has run."""

    def cold_passes(self, count: int, work: Callable[[], object], reset: Callable[[], object]) -> Times:
        """Time passes, each after a reset and a flush; returns when the device is idle."""


class Backend(Protocol):
    """What the judge needs of the hardware, in a process that has made its context. `device` is torch's name of it."""

    device: str

    def describe(self) -> dict[str, Json]:
        """Name, UUID, limits, versions, and how it is set up, for receipts."""

    def sampler(self, uuid: str | None = None) -> Sampler:
        """What reads the state of the GPU of that UUID, or of the first."""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Memory for a runner to map; its tensor shows all of it, slack included. Raises DeviceError."""

    def memory_bytes(self) -> tuple[int, int]:
        """The memory that is free, and all."""

    def peak_bytes(self) -> int:
        """The most that torch held since this was asked last."""

    def l2_bytes(self) -> int:
        """Size of the cache that all multiprocessors share."""

    def scratch_bytes(self, plan: Plan, images: Sequence[CompiledImage]) -> dict[tuple[int, str], int]:
        """What launches need beside the plan's tensors: bytes by kernel and kind."""

    def replay_profiled(
        self, plan: Plan, images: Sequence[CompiledImage], storages: Mapping[str, "torch.Tensor"], most_kernels: int
    ) -> Iterator[str]:
        """Replay a plan once in this process over inputs and parameters by name. A profiler that watches the process
        sees the first launch of each kernel, of so many at most; their names as they come."""

    def timer(self) -> Timer:
        """A new timer."""

    def warm_passes(self, count: int, work: Callable[[], object]) -> Times:
        """Time passes on the current stream, back to back with nothing in between."""

    def copy_gbps(self) -> float:
        """Bandwidth of a large copy on the device, bytes read plus written."""

    def null_launch_us(self) -> float:
        """Time per node of a graph of empty kernels: no launch can be shorter."""

    def short_kernels(self, lead: int) -> tuple[list[float], bool]:
        """Times in µs of equal short kernels that were enqueued together, behind a wait that doubles with each `lead`;
        and whether all were enqueued before the first of them began."""
