"""What a candidate finds in the tracer where a GPU would be: torch.cuda, the Triton driver, fake CUDA tensors.

The target GPU's properties are served, so that host code which sizes its grid by the number of multiprocessors or by
shared memory does here what it will do there. Works on CPU-only torch as on a CUDA build.
"""

import contextlib
import ctypes
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from triton.backends.compiler import GPUTarget

from kerneltune.tools.backends.base import StepTape
from kerneltune.tools.schema.messages import BACKWARD, COMPILED, READS_VALUE, Refused
from kerneltune.tools.schema.plan import Step
from kerneltune.tools.schema.verdict import Cause

DEVICE = "cuda"
_CUDA = 1  # c10::DeviceType::CUDA


class RecordingDriver:
    """The active Triton driver while tracing: names the target and nothing else."""

    def __init__(self, arch: int, properties: dict[str, int]) -> None:
        self.target = GPUTarget("cuda", arch, 32)
        self.utils = types.SimpleNamespace(get_device_properties=lambda device=0: properties)

    def get_current_target(self) -> GPUTarget:
        """The GPU that kernels are lowered for."""
        return self.target

    def get_current_device(self) -> int:
        """There is one device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """The device that kernel arguments live on."""
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """torch.cuda, as served here."""
        return torch.cuda

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """(9, 0) for sm_90."""
        major, minor = divmod(int(self.target.arch), 10)
        return major, minor

    def is_active(self) -> bool:
        """Always."""
        return True

    def map_python_to_cpp_type(self, kind: str) -> str:
        """Not needed: no launcher is built."""
        return kind

    def get_benchmarker(self) -> Callable[..., Any]:
        """Candidates have no clock."""
        raise Refused(
            "a candidate cannot time kernels; use @triton.autotune and every config will be measured",
            Cause.TIMES_KERNELS,
        )


def install_cuda_guard() -> None:
    """Let torch index, copy and convert fake CUDA tensors where there is no CUDA, or none that may be touched.

    `_ensureCUDADeviceGuardSet` swaps in a no-op device guard, but only in the place of one that counts zero devices. A
    CPU build has registered none, and a CUDA build on a machine with a GPU one that would initialise CUDA. So we
    register one whose every virtual function returns 0; torch calls its deviceCount() and replaces it.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    zero = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
    table = (ctypes.c_void_p * 64)(*[ctypes.cast(zero, ctypes.c_void_p).value] * 64)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
    registry[_CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()
    if registry[_CUDA] == ctypes.addressof(guard):
        raise RuntimeError("torch did not replace the placeholder CUDA guard; this torch version is not supported")


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _refuser(message: str) -> Callable[..., Any]:
    """A function that refuses; a new one each time, as for `_nothing`."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused(message)

    return refuse


class _Generator:
    """The device's random generator, for host code that takes a Philox seed and offset from it: always the same."""

    def get_state(self) -> torch.Tensor:
        """16 bytes: seed and offset."""
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> None:
        """Nothing to set."""

    def initial_seed(self) -> int:
        """The seed."""
        return 0

    seed = manual_seed = initial_seed


class _Handle:
    """A stream, an event or a graph pool: every method exists and does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0
        self.device = torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def query(self) -> bool:
        """Always finished."""
        return True

    def elapsed_time(self, *_: Any) -> float:
        """Candidates have no clock."""
        raise Refused("a candidate cannot time kernels (Event.elapsed_time)", Cause.TIMES_KERNELS)

    def __enter__(self) -> "_Handle":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def graph_class(tape: StepTape) -> type:
    """torch.cuda.CUDAGraph: captured steps are cut out of the tape, each replay() writes them down again."""

    class CUDAGraph(_Handle):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            self.steps: list[Step] = []

        def replay(self) -> None:
            tape.steps.extend(self.steps)

    return CUDAGraph


def _capture(tape: StepTape) -> Callable[..., Any]:
    @contextlib.contextmanager
    def graph(cuda_graph: Any, *_: Any, **__: Any) -> Iterator[None]:
        start = len(tape.steps)
        yield
        cuda_graph.steps = tape.steps[start:]
        del tape.steps[start:]

    return graph


def _nothing() -> Callable[..., None]:
    """A new function each time: torch._dynamo refuses one object under two names."""
    return lambda *_, **__: None


def install_torch_cuda(tape: StepTape, arch: int, gpu: dict[str, Any]) -> None:
    """Serve the target GPU through torch.cuda."""
    major, minor = divmod(arch, 10)
    properties = types.SimpleNamespace(major=major, minor=minor, warp_size=32, regs_per_multiprocessor=65536, **gpu)
    properties.max_threads_per_multi_processor = 2048
    device = contextlib.nullcontext
    served: dict[str, Any] = {
        "is_available": lambda: True, "is_initialized": lambda: True, "device_count": lambda: 1,
        "current_device": lambda: 0, "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (major, minor), "get_device_name": lambda device=None: gpu["name"],
        "current_stream": _Handle, "default_stream": _Handle, "Stream": _Handle, "Event": _Handle, "stream": device,
        "device": device, "device_of": device, "set_device": _nothing(), "set_stream": _nothing(),
        "synchronize": _nothing(), "empty_cache": _nothing(), "_lazy_init": _nothing(), "init": _nothing(),
        "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0, "ipc_collect": _nothing(),
        "is_current_stream_capturing": lambda: False, "CUDAGraph": graph_class(tape), "graph": _capture(tape),
        "graph_pool_handle": _Handle, "is_bf16_supported": lambda *_, **__: major >= 8, "_DeviceGuard": device,
        "default_generators": (_Generator(),),
        "manual_seed": _nothing(), "manual_seed_all": _nothing(), "_exchange_device": lambda i: 0,
        "_maybe_exchange_device": lambda i: 0, "can_device_access_peer": lambda *_: False,
    }  # fmt: skip
    for name, value in served.items():
        setattr(torch.cuda, name, value)


def install_fake_tensors(tape: StepTape) -> None:
    """Fake CUDA tensors that have addresses, refuse to leave the device, and can be module parameters."""
    fake_tensor.init_gpu_context = _nothing()  # type: ignore[assignment]
    torch._C._set_only_lift_cpu_tensors(True)

    FakeTensor.data_ptr = lambda fake: tape.address(fake)  # type: ignore[method-assign, assignment, arg-type]
    # cuDNN's layout of a recurrent module's weights, for which a CUDA build would ask the driver; no plan holds it
    torch.nn.RNNBase.flatten_parameters = _nothing()  # type: ignore[method-assign]
    torch.Tensor.record_stream = _nothing()  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda t, *_, **__: t.to("cuda:0")  # type: ignore[method-assign]
    torch.Tensor.numpy = _refuser(READS_VALUE)  # type: ignore[method-assign]
    torch._C._dynamo.guards._empty_strided_cuda = _empty_strided  # type: ignore[attr-defined]
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch.Tensor.backward = _refuser(BACKWARD)  # type: ignore[method-assign]
    torch.autograd.grad = _refuser(BACKWARD)
    torch.autograd.backward = _refuser(BACKWARD)
    torch.library.wrap_triton = lambda kernel: kernel
    torch.compile = _refuser(COMPILED)
    torch.jit.script = _refuser(COMPILED)
    torch.jit.trace = _refuser(COMPILED)


def install(tape: StepTape, arch: int, gpu: dict[str, Any]) -> GPUTarget:
    """Install everything; returns Triton's target. `gpu` has name, multi_processor_count, total_memory, L2_cache_size,
    shared sizes."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    install_cuda_guard()
    install_torch_cuda(tape, arch, gpu)
    install_fake_tensors(tape)
    shared = int(gpu.get("shared_memory_per_block_optin", 232448))
    driver = RecordingDriver(
        arch,
        {
            "max_shared_mem": shared,
            "multiprocessor_count": gpu["multi_processor_count"],
            "max_num_regs": 65536,
            "warpSize": 32,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        },
    )
    triton.runtime.driver.set_active(driver)
    return driver.target


_GPU = {
    "name": "target GPU", "multi_processor_count": 132, "warp_size": 32, "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "total_memory": 80 << 30,
    "L2_cache_size": 50 << 20, "shared_memory_per_block": 48 << 10, "shared_memory_per_block_optin": 227 << 10,
}  # fmt: skip


@contextlib.contextmanager
def for_inductor(arch: int) -> Iterator[None]:
    """Serve the target GPU to torch, Inductor and Triton for the length of a block: Inductor chooses splits, tiles and
    warps from device properties. Touches no device, needs no CUDA build."""
    capability = divmod(arch, 10)
    gpu = types.SimpleNamespace(major=capability[0], minor=capability[1], **_GPU)
    install_cuda_guard()
    with contextlib.ExitStack() as stack:
        for owner, name, value in _for_inductor(gpu, capability):
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        driver = triton.runtime.driver
        stack.callback(setattr, driver, "_active", vars(driver).get("_active"))  # asking for the default needs libcuda
        driver.set_active(RecordingDriver(arch, {}))
        yield


def _for_inductor(gpu: Any, capability: tuple[int, int]) -> list[tuple[Any, str, Any]]:
    from torch._dynamo import device_interface
    from torch._inductor import compile_fx

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
        (torch.utils._triton, "triton_hash_with_backend", lambda: ""),  # of kept kernels; hashes 0.3 s of libraries
    ]
