"""A backend whose device is this process: pages are CPU tensors, kernels Python functions, a wild access is a fault.

The judge and the runner's `CheckedPlan` run on it as they are; what stands in for hardware is only what CUDA does
elsewhere: pages with rights, and launches.
"""

import contextlib
import ctypes
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.backends.cuda.runner import CheckedPlan
from kerneltune.tools.backends.runner_messages import (
    BufferRegion,
    Done,
    Drop,
    Failed,
    Load,
    Replays,
    Reply,
    Request,
    Setup,
    Shared,
    TimedBlock,
    Times,
)
from kerneltune.tools.judge.execution.runner_link import RunnerLink, Runners, now_s
from kerneltune.tools.replay.replay import Argument, Replay, ReplayError, output_layout, poison
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import Json, decode, encode
from kerneltune.tools.schema.plan import Kernel, Launch, Plan

FAULT = "CUDA error: an illegal memory access was encountered"
Body = Callable[["Device", Sequence[Any]], None]


@dataclass
class Pages:
    """A room of the judge's; `guarded` as a driver with virtual memory would have it."""

    device: "Device"
    tensor: torch.Tensor
    guarded: bool

    def __post_init__(self) -> None:
        self.address, self.nbytes = self.tensor.data_ptr(), self.tensor.numel()

    def share(self, fds: list[int], *, writable: bool) -> Shared:
        del fds
        self.device.shared[self.tensor.data_ptr()] = self
        return Shared(self.tensor.numel(), f"{self.tensor.data_ptr():x}", writable)

    def close(self) -> None:
        self.device.freed += 1
        self.device.shared.pop(self.tensor.data_ptr(), None)


@dataclass
class Mapped:
    """The same pages in the runner."""

    tensor: torch.Tensor
    writable: bool

    def close(self) -> None:
        pass


class Readings:
    """A GPU whose state nobody can read."""

    def sample(self) -> None:
        return None

    clocks = foreign_processes = sample

    def __enter__(self) -> "Readings":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class SimulatedTimer:
    """Every pass takes as long as the device says; a graph is the work itself."""

    flush_bytes = 0

    def __init__(self, device: "Device") -> None:
        self._device, self.renewed = device, 0

    def run(self, work: Callable[[], object], *, may_wait: bool = True) -> None:
        work()

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        return work

    def renew_memory(self) -> None:
        self.renewed += 1

    def cold_passes(self, count: int, work: Callable[[], object], reset: Callable[[], object]) -> Times:
        for _ in range(count):
            reset()
            work()
        us = count * self._device.pass_us
        self._device.waited_s += us * 1e-6 * self._device.host_rate
        return Times((self._device.pass_us,) * count, us)


@dataclass
class Device:
    """Memory, kernels by name, and what is mapped in the present runner."""

    kernels: dict[str, Body]
    guarded: bool = True
    shared: dict[int, Pages] = field(default_factory=dict)
    mapped: list[Mapped] = field(default_factory=list)
    allocated: int = 0
    freed: int = 0
    launches: int = 0
    device: str = "cpu"
    pass_us: float = 3000.0  # of a baseline over all slots
    kernel_us: float = 1500.0  # of a candidate over all slots
    case_us: Mapping[str, float] = field(default_factory=dict)  # the same in cases where it takes another time
    memory: int = 1 << 33
    now_s: float = 0.0  # on the judge's clock, while a runner times
    waited_s: float = 0.0  # on the judge's clock, while it times a baseline
    clock_rate: float = 1.0  # of the judge's clock against the runner's
    host_rate: float = 1.0  # of the judge's clock against any

    def synchronize(self) -> None:
        pass

    def describe(self) -> dict[str, Json]:
        return {"name": "this process", "uuid": None}

    def sampler(self, uuid: str | None = None) -> Readings:
        return Readings()

    def memory_bytes(self) -> tuple[int, int]:
        return self.memory, self.memory

    def peak_bytes(self) -> int:
        return 0

    def l2_bytes(self) -> int:
        return 1 << 12

    def scratch_bytes(self, plan: Plan, images: Sequence[CompiledImage]) -> dict[tuple[int, str], int]:
        return {}

    def replay_profiled(
        self, plan: Plan, images: Sequence[CompiledImage], storages: Mapping[str, torch.Tensor], most_kernels: int
    ) -> Iterator[str]:
        return iter(())

    def timer(self) -> SimulatedTimer:
        return SimulatedTimer(self)

    def warm_passes(self, count: int, work: Callable[[], object]) -> Times:
        for _ in range(count):
            work()
        return Times((), count * self.pass_us)

    def copy_gbps(self) -> float:
        return 1000.0

    def null_launch_us(self) -> float:
        return 1.0

    def short_kernels(self, lead: int) -> tuple[list[float], bool]:
        return [30.0] * 160, True

    def clock(self) -> float:
        return self.now_s + self.waited_s

    def timed(self, passes: int, case: str = "") -> float:
        """Let so many passes of the candidate go by: µs on the runner's clock."""
        us = passes * self.case_us.get(case, self.kernel_us)
        self.now_s += us * 1e-6 * self.clock_rate * self.host_rate
        return us

    def allocate(self, nbytes: int) -> Pages:
        self.allocated += 1
        return Pages(self, torch.zeros(nbytes, dtype=torch.uint8), self.guarded)

    def store(self, address: int, data: bytes) -> None:
        """Write as a kernel does."""
        self._checked(address, len(data), write=True)
        ctypes.memmove(address, data, len(data))

    def load(self, address: int, nbytes: int) -> bytes:
        """Read as a kernel does."""
        self._checked(address, nbytes, write=False)
        return ctypes.string_at(address, nbytes)

    def _checked(self, address: int, nbytes: int, *, write: bool) -> None:
        for pages in self.mapped:
            start = pages.tensor.data_ptr()
            if start <= address and address + nbytes <= start + pages.tensor.numel():
                if write and self.guarded and not pages.writable:
                    raise RuntimeError(FAULT)
                return
        raise RuntimeError(FAULT)


class Kernels:
    """The launcher: a kernel of a plan is the function of its name."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def launch(
        self, kernel_index: int, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Argument], launch: Launch
    ) -> None:
        del kernel_index, grid, launch
        self._device.launches += 1
        self._device.kernels[kernel.name](self._device, args)

    def place(self, scratch: dict[tuple[int, str], torch.Tensor]) -> None:
        pass

    def restore(self) -> None:
        pass

    def unload(self) -> None:
        pass


class Timed:
    """A plan on the judge's buffers, as the runner of a GPU has it, with a clock that is the device's."""

    def __init__(self, device: Device, setup: Setup) -> None:
        self._device, self._setup = device, setup
        inputs, state, outputs = (
            device.shared[int(s.handle, 16)].tensor for s in (setup.inputs, setup.state, setup.outputs)
        )
        device.mapped = [Mapped(inputs, False), Mapped(state, False), Mapped(outputs, True)]
        self._outputs, layout = outputs, output_layout(setup.plan)
        given = _regions("state", state, setup.state_regions, 0)
        self._replays = []
        for slot in range(setup.slots):
            base = slot * setup.outputs_stride
            bound = {n: outputs[base + at : base + at + setup.plan.storage(n).nbytes] for n, at in layout.bound.items()}
            held = given | _regions("input", inputs, setup.input_regions, slot * setup.inputs_stride)
            self._replays.append(Replay(setup.plan, "cpu", Kernels(device), held, bound=bound))

    def answer(self, request: Request) -> Reply:
        if isinstance(request, TimedBlock):
            for turn in range(request.turn, request.turn + request.passes):
                poison(self._outputs, turn)
                self._pass()
            us = self._device.timed(request.passes, self._setup.plan.case)
            return Times((us / request.passes,) * request.passes, us)
        if isinstance(request, Replays):
            return Times((), self._device.timed(request.passes, self._setup.plan.case))
        return Done()

    def _pass(self) -> None:
        for replay in self._replays:
            replay.run()


def _regions(origin: str, buffer: torch.Tensor, regions: Sequence[BufferRegion], base: int) -> dict[str, torch.Tensor]:
    return {f"{origin}:{r.name}": buffer[base + r.offset : base + r.offset + r.nbytes] for r in regions}


class Runner:
    """The runner's side of the line, in a thread."""

    def __init__(self, device: Device, line: socket.socket) -> None:
        self._device, self._line = device, line.dup()
        self._check: CheckedPlan | None = None
        self._timed: Timed | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), self._line:
            while True:
                message = wire.receive(self._line)
                reply = self._answered(decode(Request, message.body["request"]))  # type: ignore[arg-type]
                wire.send(self._line, {"token": message.body["token"], "reply": encode(reply)})
                if isinstance(reply, Failed):
                    return

    def _answered(self, request: Request) -> Reply:
        try:
            return self._answer(request)
        except ReplayError as error:
            return Failed(str(error), refused=True)
        except torch.OutOfMemoryError as error:
            return Failed(str(error), no_memory=True)
        except RuntimeError as error:
            return Failed(str(error))

    def _answer(self, request: Request) -> Reply:
        if isinstance(request, Load):
            device = self._device
            device.mapped = [Mapped(device.shared[int(r.handle, 16)].tensor, r.writable) for r in request.rooms]
            self._check = CheckedPlan(request, device.mapped, lambda: Kernels(device), "cpu")
        elif isinstance(request, Setup):
            self._timed = Timed(self._device, request)
        elif isinstance(request, Drop):
            self._check = self._timed = None
        elif self._check is not None and request.kind == "run_once":
            self._check.run_once(request.offsets)
        elif self._timed is not None:
            return self._timed.answer(request)
        return Done()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)


@contextlib.contextmanager
def linked(device: Device, clock: Callable[[], float] = now_s) -> Any:
    """A judge's link to runners on the device."""
    ours, judges = socket.socketpair()
    runners = Runners(ours, lambda line: Runner(device, line), Runner.end)
    link = RunnerLink(judges, lambda _: runners.need(), lambda _: runners.end(), clock)
    try:
        yield link
    finally:
        link.distrust("the test is over")
        runners.close()
        ours.close()
        judges.close()
