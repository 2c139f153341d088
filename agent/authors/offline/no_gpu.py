"""Makes TorchInductor believe in the target GPU, for as long as a `with` lasts. Touches no device, needs no CUDA build.

Inductor chooses splits, tiles and warps from device properties, so the target's are served; nothing is ever launched.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch._dynamo import device_interface
from torch._inductor import compile_fx
from torch._subclasses import fake_tensor
from triton.backends.compiler import GPUTarget

from tools.plan.cuda_stubs import install_cuda_guard

_GPU = {
    "name": "target GPU", "multi_processor_count": 132, "warp_size": 32, "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "total_memory": 80 << 30,
    "L2_cache_size": 50 << 20, "shared_memory_per_block": 48 << 10, "shared_memory_per_block_optin": 227 << 10,
}  # fmt: skip


class _Driver:
    """The active Triton driver: names the target and nothing else."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def is_active(self) -> bool:
        return True


@contextlib.contextmanager
def pretend_gpu(arch: int) -> Iterator[None]:
    """Serve the target GPU to torch, Inductor and Triton; everything is put back afterwards."""
    capability = divmod(arch, 10)
    gpu = types.SimpleNamespace(major=capability[0], minor=capability[1], **_GPU)
    install_cuda_guard()
    with contextlib.ExitStack() as stack:
        for owner, name, value in _stand_ins(gpu, capability):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        driver = triton.runtime.driver
        stack.callback(setattr, driver, "_active", vars(driver).get("_active"))  # asking for the default needs libcuda
        driver.set_active(_Driver(arch))
        yield


def _stand_ins(gpu: Any, capability: tuple[int, int]) -> list[tuple[Any, str, Any]]:
    cuda, interface = torch.cuda, device_interface.CudaInterface
    return [
        (fake_tensor, "init_gpu_context", lambda device=None: None),
        (cuda, "is_available", lambda: True),
        (cuda, "device_count", lambda: 1),
        (cuda, "current_device", lambda: 0),
        (cuda, "get_device_properties", lambda device=None: gpu),
        (cuda, "get_device_capability", lambda device=None: capability),
        (cuda, "get_rng_state", lambda *_: torch.empty(0, dtype=torch.uint8, device="cpu")),
        (cuda, "set_rng_state", lambda *_: None),
        (interface, "get_device_properties", staticmethod(lambda device=None: gpu)),
        (interface, "is_triton_capable", staticmethod(lambda device=None: True)),
        (torch.version, "cuda", torch.version.cuda or "12.8"),
        (compile_fx, "get_cuda_device_context", lambda graph: contextlib.nullcontext()),
    ]
