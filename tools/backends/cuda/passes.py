"""Cold passes: how a runner and the judge's baselines are timed, with the same code.

A pass runs every slot once. Before each pass the memory that the work writes is reset (outside of the time), and the
L2 is flushed by reading other memory: reading, so that no dirty line of the flush is written back during the pass.
"""

from collections.abc import Callable

import torch

from kerneltune.tools.backends.cuda.driver import forget_persisting_lines
from kerneltune.tools.backends.cuda.protocol import Times

FLUSH_OF_L2 = 3  # times the L2: what is read between two passes


def flush_bytes() -> int:
    """How much to read to leave nothing of a working set in the L2 of the current GPU."""
    return FLUSH_OF_L2 * int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


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


def captured(work: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the work. It must have run once on that stream, so that everything is loaded and allocated."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    torch.cuda.synchronize()
    return graph


def cold_passes(
    passes: int, work: Callable[[], object], reset: Callable[[int], object], flush: Callable[[], object]
) -> Times:
    """Time `passes` cold passes of `work` on the current stream; returns when the device is idle."""
    torch.cuda.current_stream().synchronize()
    forget_persisting_lines()
    first, last = _event(), _event()
    pairs = [(_event(), _event()) for _ in range(passes)]
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


def warm_passes(passes: int, work: Callable[[], object]) -> Times:
    """Time passes back to back with nothing in between."""
    torch.cuda.current_stream().synchronize()
    first, last = _event(), _event()
    first.record()
    for _ in range(passes):
        work()
    last.record()
    last.synchronize()
    return Times((), first.elapsed_time(last) * 1e3)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
