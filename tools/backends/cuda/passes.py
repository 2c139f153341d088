"""Cold passes: how a runner and the judge's baselines are timed, with the same code.

A pass runs every slot once. Before each pass the memory that the work writes is reset (outside of the time), and the
L2 is flushed by reading other memory: reading, so that no dirty line of the flush is written back during the pass.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

from kerneltune.tools.backends.cuda.driver import forget_persisting_lines
from kerneltune.tools.backends.runner_messages import Times

MemoryPool = Any  # torch's name of memory that graphs allocate from
_FLUSH_OF_L2 = 3  # read between two passes, to leave nothing of a working set in the L2


class Flush:
    """Reads a buffer of its own, or `buffer` (flat uint8, on the GPU, at least `nbytes`) and adds it up in `sink`."""

    def __init__(self, nbytes: int, buffer: torch.Tensor | None = None, sink: torch.Tensor | None = None) -> None:
        count = max(1, nbytes // 4)
        self._buffer = _floats(count) if buffer is None else buffer.view(torch.float32)[:count]
        self._sink = (_floats(1) if sink is None else sink.view(torch.float32))[0]
        self()

    def __call__(self) -> None:
        """Enqueue the read."""
        torch.sum(self._buffer, dim=0, out=self._sink)


def _floats(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float32, device="cuda")


def captured(
    work: Callable[[], object], stream: torch.cuda.Stream, pool: MemoryPool | None = None
) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the work. It must have run once on that stream, so that everything is loaded and allocated.
    Graphs of one `pool` may lie in the same memory: of what one has written, nothing is left once another has run.
    Raises RuntimeError where the work cannot be captured; then a next capture needs another pool."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    except BaseException:
        _end_capture(graph, pool)
        raise
    torch.cuda.synchronize()
    return graph


def _end_capture(graph: torch.cuda.CUDAGraph, pool: MemoryPool | None) -> None:
    """Put right what torch leaves behind where a capture fails (2.11): its generator counts as being captured, so that
    the next random number raises "Offset increment outside graph capture", and its allocator as well, which then gives
    no memory back."""
    device = torch.cuda.current_device()
    torch.cuda.default_generators[device].graphsafe_set_state(torch.Generator(device=f"cuda:{device}"))
    with contextlib.suppress(RuntimeError):  # the graph may have none, and the allocator may know already
        ended: Any = torch._C._cuda_endAllocateToPool
        ended(device, pool or graph.pool())
    with contextlib.suppress(RuntimeError):  # reports the error that ended the capture a last time
        torch.cuda.synchronize()


@contextlib.contextmanager
def without_host_reads() -> Iterator[None]:
    """Raise RuntimeError in the block where an operator waits for the GPU (`.item()`, `nonzero`, a copy to the host),
    which no graph can hold: asked beforehand, since a capture that fails leaves torch in disorder."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def cold_passes(
    count: int, work: Callable[[], object], reset: Callable[[int], object], flush: Callable[[], object]
) -> Times:
    """Time `count` cold passes of `work` on the current stream; returns when the device is idle."""
    torch.cuda.current_stream().synchronize()
    forget_persisting_lines()
    first, last = _event(), _event()
    pairs = [(_event(), _event()) for _ in range(count)]
    first.record()
    for turn, (start, end) in enumerate(pairs):
        reset(turn)
        flush()
        start.record()
        work()
        end.record()
    last.record()
    last.synchronize()
    times = tuple(start.elapsed_time(end) * 1e3 for start, end in pairs)
    return Times(times, first.elapsed_time(last) * 1e3)


def warm_passes(count: int, work: Callable[[], object]) -> Times:
    """Time passes back to back with nothing in between."""
    torch.cuda.current_stream().synchronize()
    first, last = _event(), _event()
    first.record()
    for _ in range(count):
        work()
    last.record()
    last.synchronize()
    return Times((), first.elapsed_time(last) * 1e3)


class StreamTimer:
    """A stream, memory that graphs captured on it share, and the flush between two passes."""

    def __init__(self) -> None:
        l2_bytes = int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        self.flush_bytes = _FLUSH_OF_L2 * l2_bytes
        self._flush = Flush(self.flush_bytes)
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.renew_memory()

    def run(self, work: Callable[[], object], *, may_wait: bool = True) -> None:
        """Run the work on this stream and wait for it. Raises RuntimeError where it waits for the GPU and may not."""
        with torch.cuda.stream(self._stream), contextlib.nullcontext() if may_wait else without_host_reads():
            work()
        self._stream.synchronize()

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        """Replays a CUDA graph of the work. Raises RuntimeError where it cannot be captured."""
        return captured(work, self._stream, self._pool).replay

    def renew_memory(self) -> None:
        """Another pool for the graphs to come."""
        self._pool: MemoryPool = torch.cuda.graph_pool_handle()

    def cold_passes(self, count: int, work: Callable[[], object], reset: Callable[[], object]) -> Times:
        """Time cold passes on this stream."""
        with torch.cuda.stream(self._stream):
            return cold_passes(count, work, lambda _: reset(), self._flush)


def copy_gbps() -> float:
    """Bandwidth of a large copy on the device, bytes read plus written; the best of several."""
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(warm_passes(4, lambda: target.copy_(source)).span_us / 4 for _ in range(5))
    return 2 * _COPIED_BYTES / best / 1e3


def null_launch_us() -> float:
    """Time per node of a CUDA graph of empty kernels, timed as everything else is: no launch can be shorter."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    sleep: Any = torch.cuda._sleep

    def empty() -> None:
        for _ in range(_EMPTY):
            sleep(0)

    with torch.cuda.stream(stream):
        empty()
        graph = captured(empty, stream)
        times = cold_passes(9, graph.replay, lambda _: None, lambda: sleep(1000))
    return sorted(times.pass_us)[4] / _EMPTY


_COPIED_BYTES = 1 << 30
_EMPTY = 256
_SHORT = 160
_SHORT_CYCLES = 60_000  # 30 µs: 160 of them last as long as two turns of another context
_LEAD_CYCLES = 8_000_000  # 4 ms, in which the host enqueues all that follows


def short_kernels(lead: int) -> tuple[list[float], bool]:
    """Times in µs of equal short kernels that were enqueued together, behind a wait that doubles with each `lead`; and
    whether all were enqueued before the first of them began."""
    sleep: Any = torch.cuda._sleep
    events: list[Any] = [_event() for _ in range(_SHORT + 1)]
    sleep(_LEAD_CYCLES << lead)
    events[0].record()
    for event in events[1:]:
        sleep(_SHORT_CYCLES)
        event.record()
    in_time = not events[0].query()
    events[-1].synchronize()
    return [a.elapsed_time(b) * 1e3 for a, b in pairwise(events)], in_time


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
