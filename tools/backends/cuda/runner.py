"""The runner: replays plans on the GPU for the judge, who holds the other end of its socket. It has inputs and room for
outputs; never seeds, answers or a verdict. Whatever fails ends it: after a CUDA error the context is dead, and a fresh
process takes 0.2 s. Its plan is loaded to be checked, or to be timed.

To be checked, it is laid over pieces of the judge's memory, each in pages of its own, anew for every run. Nothing of a
run is left for the next: the judge fills every piece (it alone knows with what), variables of modules are restored,
and the constructor's work is done again.

To be timed, it lies on the judge's buffers: a replay per slot, one graph over all of them. What could outlive a pass
is closed to kernels or put back before each pass, outside of its time: outputs and scratch are poisoned, variables of
modules and prepared tensors restored from copies that no kernel can write to; inputs, parameters and the flush's
buffer are mapped for reading only; what torch holds beside them is poisoned too, unless the plan calls libraries
(their workspaces are theirs). Not closed: registers, shared and local memory, the L2, and the 4 MiB of heap that CUDA
keeps at least.
"""

import os
import random
import socket
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import Any, Protocol

import torch

from kerneltune.tools.backends.base import MAX_PLAN_SHARE, CompiledImage
from kerneltune.tools.backends.cuda import passes
from kerneltune.tools.backends.cuda.driver import OUT_OF_MEMORY, DriverError, PackingError, shrink_kept_memory
from kerneltune.tools.backends.cuda.launcher import CudaLauncher
from kerneltune.tools.backends.cuda.memory import (
    PAGE_BYTES,
    Bump,
    DeviceBuffer,
    NotMapped,
    protected_copy,
    settle,
    torch_memory,
    usable,
)
from kerneltune.tools.backends.runner_messages import (
    MAX_ROOMS,
    BufferRegion,
    CopyOut,
    Done,
    Drop,
    Failed,
    GraphCapture,
    Load,
    Replays,
    Reply,
    Request,
    Resident,
    RunOnce,
    Setup,
    Shares,
    Steps,
    TimedBlock,
    Times,
    launch_groups,
)
from kerneltune.tools.replay.replay import (
    Launcher,
    NotAllowed,
    OutputLayout,
    Replay,
    ReplayError,
    aligned,
    dense,
    dense_bytes,
    output_layout,
    poison,
    view_of,
)
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import DecodeError, decode, encode
from kerneltune.tools.schema.plan import EMPTY, Aten, Plan, Step, Storage, base_name, step_refs

FAILED_STATUS = 70
MAX_DETAIL = 2000


class MappedBuffer(Protocol):
    """Pages of the judge's, mapped here."""

    @property
    def tensor(self) -> torch.Tensor: ...

    def close(self) -> None: ...


class Kernels(Launcher, Protocol):
    """The plan's kernels, loaded."""

    def place(self, scratch: dict[tuple[int, str], torch.Tensor]) -> None: ...

    def restore(self) -> None: ...

    def unload(self) -> None: ...


class CheckedPlan:
    """A plan and its pieces; `close` gives everything back."""

    def __init__(
        self, load: Load, rooms: Sequence[MappedBuffer], kernels: Callable[[], Kernels], device: str = "cuda"
    ) -> None:
        self._load, self._rooms, self._device = load, rooms, device
        if any(not 0 <= piece.room < len(rooms) for piece in load.pieces):
            raise ReplayError("a piece refers to a room that does not exist")
        self._kernels = kernels()

    def run_once(self, offsets: Sequence[int]) -> None:
        """Lay the plan out, prepare it, run it; returns when the device is idle. Raises what CUDA or the plan raise."""
        flats = {
            piece.name: self._rooms[piece.room].tensor[at : at + piece.nbytes]
            for piece, at in zip(self._load.pieces, offsets, strict=True)
        }
        self._kernels.place(_scratch(flats))
        self._kernels.restore()
        replay = self._replay(flats)
        replay.prepare()
        replay.run()
        settle()

    def _replay(self, flats: dict[str, torch.Tensor]) -> Replay:
        plan = self._load.plan
        held = {s.id: flats[f"storage:{s.id}"] for s in plan.storages if f"storage:{s.id}" in flats}
        given = {f"{s.origin}:{s.name}": held[s.id] for s in plan.storages if s.id in held and _is_given(s)}
        constants = {s.id: held[s.id] for s in plan.storages if s.id in held and s.data is not None}
        bound = {s.id: held[s.id] for s in plan.storages if s.id in held and not _is_given(s) and s.id not in constants}
        return Replay(plan, self._device, self._kernels, given, bound=bound, ready=constants)

    def close(self) -> None:
        """Unload the kernels and unmap the pieces."""
        settle()
        self._kernels.unload()
        for room in self._rooms:
            room.close()
        torch.cuda.empty_cache()  # the judge, which asked for room, can have none of this process's cache


def _is_given(storage: Storage) -> bool:
    return storage.origin in ("input", "state")


def _scratch(flats: dict[str, torch.Tensor]) -> dict[tuple[int, str], torch.Tensor]:
    """Pieces named "launcher:<kernel>:<which>"."""
    found = {}
    for name, flat in flats.items():
        kind, _, rest = name.partition(":")
        if kind == "launcher":
            number, _, which = rest.partition(":")
            found[int(number), which] = flat
    return found


_MOST_EVENTS = 512  # in one graph


class TimedPlan:
    """Holds everything of one plan; `close` gives it all back."""

    def __init__(self, setup: Setup, cubins: Sequence[bytes], fds: list[int], stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._graph: torch.cuda.CUDAGraph | None = None
        self._buffers: list[DeviceBuffer] = []
        plan, self._layout = setup.plan, output_layout(setup.plan)
        if setup.outputs_stride < self._layout.nbytes:
            raise ReplayError(f"a slot's outputs need {self._layout.nbytes} bytes, not {setup.outputs_stride}")
        images = [CompiledImage(meta, cubin) for cubin, meta in zip(cubins, setup.metadata, strict=True)]
        self._launcher = CudaLauncher(images, plan.kernels)
        shared = (setup.inputs, setup.state, setup.outputs)
        self._inputs, self._state, self._outputs = (self._keep(DeviceBuffer.open(s, fds)).tensor for s in shared)
        most_bytes = int(MAX_PLAN_SHARE * torch.cuda.mem_get_info()[1])
        once, each, sharing = scratch_sizes(plan, self._layout, setup.slots, setup.contents, most_bytes)
        nbytes = once + -(-setup.slots // sharing) * each
        self._scratch = self._keep(DeviceBuffer.allocate(aligned(nbytes, PAGE_BYTES)))
        self._setup, self._pieces = setup, Bump(self._scratch.tensor[:once])
        self._flush = self._read_only_flush(setup.flush_bytes)
        self._leftovers: list[torch.Tensor] = []
        with torch.cuda.stream(stream):
            ready = self._prepared(plan)
            self._kept = [(tensor, self._keep(protected_copy(tensor))) for tensor in ready.values()]
            places = (once + slot // sharing * each for slot in range(setup.slots))
            own = [Bump(self._scratch.tensor[at : at + each]) for at in places]
            self._replays = [self._replay(plan, slot, ready, pieces) for slot, pieces in enumerate(own)]
        self._order = random.SystemRandom().sample(self._replays, len(self._replays))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # freed blocks would be writable, and nobody poisons them

    def _prepared(self, plan: Plan) -> dict[int, torch.Tensor]:
        """What every slot shares. The replay that made it is dropped, with its own copies."""
        first = self._replay(plan, 0, {}, self._pieces)
        first.prepare()
        return first.shareable()

    def _keep(self, buffer: DeviceBuffer) -> DeviceBuffer:
        self._buffers.append(buffer)
        return buffer

    def _read_only_flush(self, nbytes: int) -> passes.Flush:
        buffer = self._keep(DeviceBuffer.allocate(nbytes))
        buffer.tensor.zero_()
        buffer.protect()
        return passes.Flush(nbytes, buffer.tensor, self._pieces.take(4))

    def _replay(self, plan: Plan, slot: int, ready: dict[int, torch.Tensor], pieces: Bump) -> Replay:
        setup = self._setup
        storages = _regions("input", self._inputs, setup.input_regions, slot * setup.inputs_stride)
        storages |= _regions("state", self._state, setup.state_regions, 0)
        base = slot * setup.outputs_stride
        bound = {
            n: self._outputs[base + at : base + at + plan.storage(n).nbytes] for n, at in self._layout.bound.items()
        }
        return Replay(plan, "cuda", self._launcher, storages, bound=bound, allocate=pieces.take, ready=ready)

    def _pass(self) -> None:
        """All slots, in an order that no kernel can foresee: the next slot's memory is not the next in memory."""
        for replay in self._order:
            self._launcher.begin_forward()
            replay.run()

    def reset(self, turn: int) -> None:
        """Nothing that the plan can write keeps what an earlier pass wrote (inputs are checked by the judge)."""
        poison(self._outputs, turn)
        for memory in (self._scratch.tensor, *self._leftovers):
            poison(memory, turn + 1)
        self._restore(turn)

    def _restore(self, turn: int) -> None:
        """What the plan keeps between forwards is as it was prepared."""
        self._launcher.poison(turn)
        for tensor, pristine in self._kept:
            tensor.copy_(pristine.tensor[: tensor.numel()])

    def _on_stream(self, work: Callable[[], Any]) -> Any:
        with torch.cuda.stream(self._stream):
            return work()

    def _run_once(self) -> None:
        """Every slot once, without a graph."""

        def work() -> None:
            self.reset(0)
            self._pass()
            self._copy_out()

        self._on_stream(work)
        torch.cuda.synchronize()

    def capture(self) -> None:
        """Make the graph, after one run that loads and allocates."""
        self._graph, self._leftovers = None, []  # torch gives memory back while it captures
        self._run_once()
        self._graph = passes.captured(self._pass, self._stream)
        self._leftovers = [] if self._setup.plan.library_ops else torch_memory()

    def _replayed(self) -> Callable[[], object]:
        if self._graph is None:
            raise ReplayError("nothing is captured")
        return self._graph.replay

    def block(self, count: int, turn: int) -> Times:
        """A block of cold passes."""
        work = self._replayed()

        def timed() -> Times:
            return passes.cold_passes(count, work, lambda i: self.reset(turn + i), self._flush)

        times: Times = self._on_stream(timed)
        return times

    def replays(self, count: int) -> Times:
        """Passes back to back."""
        work = self._replayed()
        times: Times = self._on_stream(lambda: passes.warm_passes(count, work))
        return times

    def resident(self, count: int) -> Times:
        """Passes of a plan whose large tensors are a few pages again and again, all of which the L2 holds: what is left
        of its time is not DRAM's. None where that cannot be: of what libraries allocate nobody knows the addresses, and
        indices must stay what they are, or kernels would read beyond their tensors."""
        plan = self._setup.plan
        l2_bytes = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        piece_bytes = piece_for(plan, l2_bytes // 2) if usable() and not plan.library_ops else 0
        if not piece_bytes:
            return Times((), 0.0)
        self._graph, self._leftovers = None, []
        buffers: list[DeviceBuffer] = []
        try:
            replay = self._on_stream(lambda: self._repeated(piece_bytes, buffers))

            def work() -> None:
                for _ in self._replays:
                    self._launcher.begin_forward()
                    replay.run()

            self._on_stream(work)
            graph = passes.captured(work, self._stream)
            timed = partial(passes.cold_passes, count + 1, graph.replay, self._restore, lambda: None)
            times: Times = self._on_stream(timed)
            return Times(times.pass_us[1:], times.span_us)  # the first brings everything into the L2
        finally:
            torch.cuda.synchronize()
            for buffer in buffers:
                buffer.close()

    def _repeated(self, piece_bytes: int, buffers: list[DeviceBuffer]) -> Replay:
        """A replay on repeated pieces of the first slot's tensors, which are noted in `buffers`."""
        setup, plan = self._setup, self._setup.plan
        first = self._replays[0]
        storages = _regions("input", self._inputs, setup.input_regions, 0)
        storages |= _regions("state", self._state, setup.state_regions, 0)
        ready, whole = first.shareable(), index_storages(plan)
        behind = {f"input:{region.name}": region.behind for region in setup.input_regions}
        bound: dict[int, torch.Tensor] = {}
        for storage in plan.storages:
            if storage.nbytes <= piece_bytes or storage.id in whole:
                continue
            name = f"{storage.origin}:{storage.name}"
            buffers.append(DeviceBuffer.repeated(storage.nbytes + behind.get(name, 0), piece_bytes))
            flat = buffers[-1].tensor[: storage.nbytes]
            known = storages.get(name, ready.get(storage.id))
            if known is not None:
                flat[:piece_bytes].copy_(known[:piece_bytes])
            if name in storages:
                storages[name] = flat
            else:
                (bound if storage.origin == "scratch" else ready)[storage.id] = flat
        return Replay(plan, "cuda", self._launcher, storages, bound=bound, ready=ready)

    def copy_out(self) -> None:
        """Bring the outputs that do not lie in the judge's buffer there."""
        self._on_stream(self._copy_out)
        torch.cuda.synchronize()

    def _copy_out(self) -> None:
        for slot, replay in enumerate(self._replays):
            base = slot * self._setup.outputs_stride
            for ref, at in self._layout.copied:
                region = self._outputs[base + at : base + at + dense_bytes(ref)]
                view_of(region, dense(ref)).copy_(replay.view(ref))

    def shares(self, count: int) -> Shares:
        """Time the groups of launches; and where there is more than the plan's own kernels, its library operators and
        its glue, each kind as a graph of its own: these do the same work whatever data they find. The plan's own
        kernels take the rest of a forward: by themselves, without the fills between them, they might wait for ever.

        Results are rubbish afterwards, and the graph has to be made again."""
        self._graph, self._leftovers = None, []
        launches_us = self._time_launches(count)
        if all(_kind(step) in ("own", "none") for step in self._setup.plan.run):
            return Shares(sum(launches_us), 0.0, 0.0, launches_us)
        library, glue = (self._time_steps(kind, count) for kind in ("library", "glue"))
        return Shares(max(0.0, self._time_forward(count) - library - glue), library, glue, launches_us)

    def _time_forward(self, count: int) -> float:
        """Device time of a forward: the median of so many cold passes."""
        self.capture()
        times = self.block(count, 0)
        self._graph, self._leftovers = None, []
        return sorted(times.pass_us)[count // 2] / len(self._replays)

    def _time_launches(self, count: int) -> tuple[float, ...]:
        """Device time per forward of each group of launches. Whole forwards, with an event behind every step: a kernel
        by itself might wait for ever for what another one signals, or count on until it writes outside."""
        plan = self._setup.plan
        groups = launch_groups(plan)
        if not groups:
            return ()
        replays = self._order[: max(1, _MOST_EVENTS // (len(plan.run) + 1))]
        events = [[_mark() for _ in range(len(plan.run) + 1)] for _ in replays]

        def work() -> None:
            for replay, marks in zip(replays, events, strict=True):
                self._launcher.begin_forward()
                marks[0].record()
                for step, mark in zip(plan.run, marks[1:], strict=True):
                    replay.run_step(step)
                    mark.record()

        def steps_us(turn: int) -> list[list[float]]:
            passes.cold_passes(1, graph.replay, lambda _: self.reset(turn), self._flush)
            return [[a.elapsed_time(b) * 1e3 for a, b in pairwise(marks)] for marks in events]

        self._run_once()
        graph = passes.captured(work, self._stream)
        return group_times([n for _, n in groups], [self._on_stream(partial(steps_us, t)) for t in range(count)])

    def _time_steps(self, kind: str, count: int) -> float:
        """Device time per forward of the steps of one kind; 0 when there are none."""
        pairs = [(r, step) for r in self._replays for step in r.plan.run if _kind(step) == kind]
        if not pairs:
            return 0.0

        def work() -> None:
            for replay, step in pairs:
                replay.run_step(step)

        self._run_once()
        graph = passes.captured(work, self._stream)
        times = self._on_stream(lambda: passes.cold_passes(count, graph.replay, lambda _: None, self._flush))
        return float(sorted(times.pass_us)[count // 2]) / len(self._replays)

    def close(self) -> None:
        """Give everything back."""
        torch.cuda.synchronize()
        self._graph, self._replays, self._order, self._kept, self._leftovers = None, [], [], [], []
        del self._flush
        self._launcher.unload()
        for buffer in self._buffers:
            buffer.close()
        self._buffers = []
        torch.cuda.empty_cache()


def index_storages(plan: Plan) -> set[int]:
    """Storages that may say where to read: some step sees whole numbers of four bytes or more there."""
    refs = (ref for step in plan.run for ref in step_refs(step))
    return {ref.storage for ref in refs if ref.dtype in _INDICES}


_INDICES = ("int32", "int64", "uint32", "uint64")


def piece_for(plan: Plan, most_bytes: int) -> int:
    """How many bytes of each large tensor are kept, so that all tensors take `most_bytes` at most; 0 where not even
    single pages would do."""
    whole = index_storages(plan)

    def kept_bytes(piece_bytes: int) -> int:
        return sum(s.nbytes if s.id in whole else min(s.nbytes, piece_bytes) for s in plan.storages)

    piece_bytes = 0
    for larger in range(PAGE_BYTES, most_bytes + 1, PAGE_BYTES):
        if kept_bytes(larger) > most_bytes:
            break
        piece_bytes = larger
    return piece_bytes


def _mark() -> torch.cuda.Event:
    """An event that a graph records each time it is replayed."""
    return torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]


def group_times(groups: Sequence[Sequence[int]], steps_us: Sequence[Sequence[Sequence[float]]]) -> tuple[float, ...]:
    """The time of each group of steps, from the times of all steps in each forward of each pass: the mean over a pass's
    forwards, the median over the passes."""
    return tuple(
        median(mean(sum(forward[number] for number in group) for forward in forwards) for forwards in steps_us)
        for group in groups
    )


def _kind(step: Step) -> str:
    """Classify a step as the candidate's kernel, library work or glue; allocations are none."""
    if isinstance(step, Aten):
        if base_name(step.op) in EMPTY:
            return "none"
        return "library" if step.library else "glue"
    return "own"


def _regions(origin: str, buffer: torch.Tensor, regions: Sequence[BufferRegion], base: int) -> dict[str, torch.Tensor]:
    return {f"{origin}:{r.name}": buffer[base + r.offset : base + r.offset + r.nbytes] for r in regions}


def scratch_sizes(plan: Plan, layout: OutputLayout, slots: int, contents: int, most_bytes: int) -> tuple[int, int, int]:
    """Bytes that are needed once for all slots, bytes of a forward's scratch, and how many slots that follow each other
    share that: 1, or as many as it takes to keep within `most_bytes`. Of `contents` slots that follow each other none
    has the contents of another, so nobody finds what he is to compute in what another left; and what is too much for a
    slot each leaves nothing in the L2. Raises ReplayError."""
    by_prepare = {ref.storage for step in plan.prepare for ref in step_refs(step)}
    kept = {s.id for s in plan.storages if s.origin in ("constant", "prepared")}
    scratch = {s.id for s in plan.storages if s.origin == "scratch"}
    size = {s.id: aligned(s.nbytes) for s in plan.storages}
    once = aligned(4) + sum(size[n] for n in kept | (scratch & by_prepare))  # the first piece is the flush's
    each = sum(size[n] for n in scratch - set(layout.bound))
    for sharing in range(1, min(contents, slots) + 1):
        if once + -(-slots // sharing) * each <= most_bytes:
            return once, each, sharing
    raise ReplayError(
        f"the plan needs {once >> 20} MiB of workspace, and {each >> 20} for each forward, of which "
        f"{-(-slots // sharing)} have to be there at once; it may have {most_bytes >> 20}"
    )


class Runner:
    """Answers the judge's requests, one plan at a time."""

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # makes the primary context, and makes it current
        torch.backends.cudnn.allow_tf32 = False  # library steps of a float32 task are float32, as the baselines are
        torch.backends.cuda.matmul.allow_tf32 = False
        shrink_kept_memory()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._plan: TimedPlan | CheckedPlan | None = None

    def answer(self, request: Request, blobs: list[bytes], fds: list[int]) -> Reply:
        """Do what is asked. Raises what CUDA or the plan raise."""
        if isinstance(request, Setup | Load | Drop):
            self._drop()
            if isinstance(request, Setup):
                self._plan = TimedPlan(request, blobs, fds, self._stream)
            elif isinstance(request, Load):
                self._plan = _checked(request, blobs, fds)
            return Done()
        if isinstance(request, RunOnce) and isinstance(self._plan, CheckedPlan):
            self._plan.run_once(request.offsets)
            return Done()
        if isinstance(self._plan, TimedPlan):
            return _timed(self._plan, request)
        raise ReplayError("no plan is loaded for that")

    def _drop(self) -> None:
        if self._plan is not None:
            self._plan.close()
        self._plan = None


def _checked(load: Load, cubins: list[bytes], fds: list[int]) -> CheckedPlan:
    images = [CompiledImage(meta, cubin) for cubin, meta in zip(cubins, load.metadata, strict=True)]
    rooms = [DeviceBuffer.open(shared, fds) for shared in load.rooms]
    return CheckedPlan(load, rooms, lambda: CudaLauncher(images, load.plan.kernels))


def _timed(plan: TimedPlan, request: Request) -> Reply:
    match request:
        case GraphCapture():
            plan.capture()
        case CopyOut():
            plan.copy_out()
        case TimedBlock():
            return plan.block(request.passes, request.turn)
        case Replays():
            return plan.replays(request.passes)
        case Resident():
            return plan.resident(request.passes)
        case Steps():
            return plan.shares(request.passes)
    return Done()


def serve(judge: socket.socket, runner: Runner) -> None:
    """Answer until the judge closes the socket, or something fails (then exit at once)."""
    judge.settimeout(None)
    while True:
        message = wire.receive(judge, max_fds=MAX_ROOMS)
        try:
            reply = _answered(runner, message)
        finally:
            message.close()
        wire.send(judge, {"token": message.body.get("token"), "reply": encode(reply)})
        if isinstance(reply, Failed):
            os._exit(FAILED_STATUS)  # no destructors: they would touch a dead context


def _answered(runner: Runner, message: wire.WireMessage) -> Reply:
    try:
        request: Request = decode(Request, message.body.get("request"))  # type: ignore[arg-type]
        return runner.answer(request, message.blobs, list(message.fds))
    except (ReplayError, NotAllowed, PackingError, DecodeError) as error:
        return Failed(_one_line(error), refused=True)
    except NotMapped as error:
        return Failed(_one_line(error), no_memory=True)
    except (DriverError, torch.OutOfMemoryError) as error:
        no_memory = not isinstance(error, DriverError) or error.code == OUT_OF_MEMORY
        return Failed(f"{type(error).__name__}: {_one_line(error)}", no_memory=no_memory)
    except (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, MemoryError) as error:
        return Failed(f"{type(error).__name__}: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    """The first line of what was raised: torch appends paragraphs of advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_DETAIL]


def main(channel: Any) -> None:
    """Entry of the worker; its first extra socket leads to the judge."""
    serve(channel.sockets[0], Runner())
