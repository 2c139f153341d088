"""The CUDA device of a judge's process: memory, timers and facts, as `tools.backends.base.Backend` asks for them."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.backends.cuda import passes
from kerneltune.tools.backends.cuda.device import NvmlSampler
from kerneltune.tools.backends.cuda.driver import DriverError, check, cu
from kerneltune.tools.backends.cuda.launcher import CudaLauncher, scratch_bytes
from kerneltune.tools.backends.cuda.memory import DeviceBuffer, settle
from kerneltune.tools.replay.replay import Replay
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Launch, Plan
from kerneltune.tools.schema.verdict import versions


def start_driver() -> None:
    """Start the driver; makes no context."""
    torch.cuda.is_available()


class CudaBackend:
    """CUDA's first device, through torch and the driver. Holds nothing: the primary context is torch's."""

    device = "cuda"
    allocate = staticmethod(DeviceBuffer.allocate)
    sampler = staticmethod(NvmlSampler)
    scratch_bytes = staticmethod(scratch_bytes)
    synchronize = staticmethod(torch.cuda.synchronize)
    timer = staticmethod(passes.StreamTimer)
    warm_passes = staticmethod(passes.warm_passes)
    copy_gbps = staticmethod(passes.copy_gbps)
    null_launch_us = staticmethod(passes.null_launch_us)
    short_kernels = staticmethod(passes.short_kernels)

    def __init__(self) -> None:
        """Make the primary context, and make it current; nothing to do where there is no device."""
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")

    def describe(self) -> dict[str, Json]:
        """Name, limits, versions, and how it is set up."""
        properties = torch.cuda.get_device_properties(0)
        bare = str(getattr(properties, "uuid", ""))
        uuid = f"GPU-{bare}" if bare and not bare.startswith("GPU-") else bare or None
        found = versions()
        with NvmlSampler(uuid) as sampler:
            facts = sampler.facts()
        return {
            "name": properties.name,
            "uuid": uuid,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": self.l2_bytes(),
            "memory_bytes": int(properties.total_memory),
            "torch": torch.__version__,
            "triton": found["triton"],
            "python": found["python"],
            "addressing": _addressing(),
            **facts,
        }

    def memory_bytes(self) -> tuple[int, int]:
        """The memory that is free, and all."""
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)

    def peak_bytes(self) -> int:
        """The most that torch held since this was asked last."""
        peak = int(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return peak

    def l2_bytes(self) -> int:
        """Size of the L2."""
        return int(torch.cuda.get_device_properties(0).L2_cache_size)

    def replay_profiled(
        self, plan: Plan, images: Sequence[CompiledImage], storages: Mapping[str, torch.Tensor], most_kernels: int
    ) -> Iterator[str]:
        """Replay a plan once; the first launch of each kernel is a range of CUDA's profiler."""
        launcher = CudaLauncher(images, plan.kernels)
        replay = Replay(plan, "cuda", launcher, storages)
        replay.prepare()
        launcher.begin_forward()
        replay.run()  # whatever is loaded or allocated lazily is, before the profiler looks
        settle()
        launcher.begin_forward()
        seen: set[int] = set()
        for step in plan.run:
            new = isinstance(step, Launch) and 0 not in step.grid and step.kernel not in seen
            looked_at = new and len(seen) < most_kernels
            with _profiled() if looked_at else contextlib.nullcontext():
                replay.run_step(step)
            if isinstance(step, Launch) and looked_at:
                seen.add(step.kernel)
                yield plan.kernels[step.kernel].name


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    runtime.cudaProfilerStart()
    yield
    torch.cuda.synchronize()
    runtime.cudaProfilerStop()


def _addressing() -> str:
    """Whether kernels can reach ordinary host memory, and by whose page tables."""
    attribute = cu.CUdevice_attribute
    try:
        pageable, host_tables = (
            int(check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(which, torch.cuda.current_device())))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
                attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            )
        )
    except DriverError as error:
        return f"not known: {error}"
    if not pageable:
        return "device memory only"
    return "pageable host memory by the host's page tables (ATS)" if host_tables else "pageable host memory (HMM)"
