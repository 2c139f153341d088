"""The GPU as CUDA and NVML see it, for receipts."""

import torch
from cuda.bindings import driver as cu  # type: ignore[import-not-found, import-untyped, unused-ignore]

from tools.codec import Json
from tools.cuda.driver import DriverError, check
from tools.device import Sampler
from tools.versions import versions


def describe_gpu() -> dict[str, Json]:
    """Name, limits, versions, and how it is set up. Makes the primary context."""
    torch.zeros(1, device="cuda")
    properties = torch.cuda.get_device_properties(0)
    bare = str(getattr(properties, "uuid", ""))
    uuid = f"GPU-{bare}" if bare and not bare.startswith("GPU-") else bare or None
    found = versions()
    with Sampler(uuid) as sampler:
        facts = sampler.facts()
    return {
        "name": properties.name,
        "uuid": uuid,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": int(properties.L2_cache_size),
        "memory_bytes": int(properties.total_memory),
        "torch": torch.__version__,
        "triton": found["triton"],
        "python": found["python"],
        "addressing": _addressing(),
        **facts,
    }


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
        return f"not told: {error}"
    if not pageable:
        return "device memory only"
    return "pageable host memory by the host's page tables (ATS)" if host_tables else "pageable host memory (HMM)"
