"""The GPU's state once a second, as the event that the screen's GPU strip shows."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from agent.record.events import Event, Progress
from agent.view.state import GPU_STAGE
from tools.codec import encode
from tools.device import GpuInfo, GpuSample, Sampler

PERIOD_S = 1.0


def line(name: str, sample: GpuSample) -> str:
    """One line for people; what NVML does not tell is left out."""
    parts = [
        (sample.utilisation_percent, "{} %"),
        (sample.sm_clock_mhz, "{} MHz"),
        (sample.power_w, "{:.0f} W"),
        (sample.temperature_c, "{} °C"),
        (None if sample.memory_used_bytes is None else sample.memory_used_bytes / 1e9, "{:.1f} GB"),
    ]
    return "  ".join([name, *(form.format(value) for value, form in parts if value is not None)])


@contextlib.contextmanager
def gpu_line(gpu: GpuInfo | None, run_id: str, show: Callable[[Event], None]) -> Iterator[None]:
    """Sample in a thread for the length of a block; nothing without a GPU."""
    if gpu is None:
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        with Sampler(gpu.uuid) as sampler:
            while not stop.wait(PERIOD_S):
                if (sample := sampler.sample()) is not None:
                    data = encode(sample) | {"memory_total_bytes": gpu.memory_bytes}
                    show(Progress(run_id, GPU_STAGE, line(gpu.name, sample), data=data))

    thread = threading.Thread(target=watch, name="gpu-line", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
