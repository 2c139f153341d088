"""The CUDA driver calls that a runner and a judge need; every return code is checked.

Plain memory only (never managed memory), and nothing that sets clocks, power or the device's mode. The current context
is the caller's: torch's primary context.

Kernel arguments are packed in the layout of Triton's own launcher (3.6 and 3.7). Triton flattens a tensor descriptor
into a TMA descriptor, its shape as i32 and its strides as i64; where the target has no TMA, into base, shape, strides
(i64), flags (i1), and then shape and strides once more. Two pointers follow the arguments of every Triton kernel:
global scratch and profile scratch.
"""

import contextlib
import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerneltune.tools.backends.base import DeviceError
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import described_rank

_FORMATS = {
    "i1": "<b", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<B", "u8": "<B", "u16": "<H", "u32": "<I",
    "u64": "<Q", "fp16": "<e", "fp64": "<d",
}  # fmt: skip
# The TMA dtype numbers of the device side differ from those of the host side in three places.
_TMA_DTYPE = {8: 10, 9: 8, 10: 9}


class PackingError(ValueError):
    """An argument does not fit the kernel's signature."""


@dataclass(frozen=True)
class TensorMap:
    """What cuTensorMapEncodeTiled is asked for; innermost dimension first, strides in bytes."""

    address: int
    dtype: int
    global_dim: tuple[int, ...]
    global_strides: tuple[int, ...]
    box_dim: tuple[int, ...]
    swizzle: int
    nan_fill: bool


@dataclass(frozen=True)
class DeviceDescriptor:
    """A host-side tensor descriptor over device memory; shape and strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str = "zero"


Value = int | float | bool | DeviceDescriptor
Parameter = bytes | TensorMap  # a TensorMap still has to be encoded by the driver


def pack_scalar(kind: str, value: float) -> bytes:
    """Pack one number as the bytes of a parameter of Triton's type `kind` ("*fp32" is an address). Raises
    PackingError."""
    try:
        if kind.startswith("*"):
            return struct.pack("<Q", int(value))
        if kind in ("fp32", "f32"):
            return _float32(float(value))
        if kind == "bf16":
            return _float32(float(value))[2:]  # Triton's launcher truncates
        return struct.pack(_FORMATS[kind], float(value) if kind.startswith("fp") else int(value))
    except KeyError as error:
        raise PackingError(f"no parameter type {kind!r}") from error
    except (struct.error, OverflowError, ValueError) as error:
        raise PackingError(f"{value!r} does not fit a parameter of type {kind}") from error


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def pack(
    signature: Sequence[str], values: Sequence[Value], tensordesc_meta: Json = None, flags: int = 1
) -> list[Parameter]:
    """All parameters but the trailing scratch pointers. `flags`: how many i1 a descriptor without TMA carries (one in
    Triton 3.6, two from 3.7). Raises PackingError."""
    if len(signature) != len(values):
        raise PackingError(f"the kernel takes {len(signature)} arguments, not {len(values)}")
    metas = iter(tensordesc_meta or [])
    parameters: list[Parameter] = []
    for kind, value in zip(signature, values, strict=True):
        if isinstance(value, DeviceDescriptor):
            parameters += _descriptor(kind, value, next(metas, None), flags)
        elif kind.startswith("tensordesc"):
            raise PackingError(f"a {kind} parameter needs a descriptor, not {value!r}")
        else:
            parameters.append(pack_scalar(kind, value))
    return parameters


def _descriptor(kind: str, value: DeviceDescriptor, meta: Json, flags: int) -> list[Parameter]:
    if not kind.startswith("tensordesc"):
        raise PackingError(f"a descriptor for a parameter of type {kind}")
    rank = len(value.shape)
    if not (1 <= rank <= 5 and len(value.strides) == len(value.block_shape) == rank == described_rank(kind)):
        raise PackingError(f"{kind} does not describe a tensor of {rank} dimensions in blocks of {value.block_shape}")
    shape32 = [pack_scalar("i32", n) for n in value.shape]
    shape64 = [pack_scalar("i64", n) for n in value.shape]
    strides = [pack_scalar("i64", n) for n in value.strides]
    if meta is not None:
        return [tensor_map(value, meta), *shape32, *strides]
    marks = [pack_scalar("i1", value.padding == "nan"), *([pack_scalar("i1", 0)] * (flags - 1))]
    return [pack_scalar("*", value.address), *shape64, *strides, *marks, *shape32, *strides]


def tensor_map(value: DeviceDescriptor, meta: Json) -> TensorMap:
    """The TMA descriptor for a descriptor, with what the compiler chose (swizzle, element type, block)."""
    if value.strides[-1] != 1:
        raise PackingError("the last dimension of a tensor descriptor must be contiguous")
    shape = list(value.shape)
    if meta.get("fp4_padded"):
        shape[-1] *= 2
    size, kind = int(meta["elem_size"]), int(meta["elem_type"])
    strides = [size * n for n in value.strides[-2::-1]]
    strides.append(shape[0] * (strides[-1] if strides else size))
    return TensorMap(
        address=value.address,
        dtype=_TMA_DTYPE.get(kind, kind),
        global_dim=tuple(reversed(shape)),
        global_strides=tuple(strides),
        box_dim=tuple(int(n) for n in reversed(meta["block_size"])),
        swizzle=int(meta["swizzle"]),
        nan_fill=value.padding == "nan",
    )


try:
    from cuda.bindings import driver as _bindings  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:  # a machine without a GPU: every call fails
    _bindings = None

cu: Any = _bindings

_TENSOR_MAP_BYTES = 128
_LAZY_PEER_ACCESS = 1
_STATIC_LIMIT = 48 << 10
_NOT_FOUND = 500
OUT_OF_MEMORY = 2


class DriverError(DeviceError):
    """A CUDA driver call failed; the context may be lost."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.call, self.code = call, code


@dataclass(frozen=True)
class LaunchShape:
    """How a kernel is launched. `cluster` has the blocks of a cluster along each axis."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    pdl: bool = False


def check(call: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises DriverError with the error's name and text."""
    code = result[0]
    if int(code) != 0:
        raise DriverError(call, int(code), error_text(code))
    return result[1] if len(result) == 2 else result[1:]


def error_text(code: Any) -> str:
    """ "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"."""
    words = []
    for ask in (cu.cuGetErrorName, cu.cuGetErrorString):
        failed, text = ask(code)
        if int(failed) == 0 and text:
            words.append(text.decode() if isinstance(text, bytes) else str(text))
    return ": ".join(words) or f"CUDA error {int(code)}"


class LoadedKernel:
    """A function of a loaded cubin. Bytes of shared memory: what a launch asks for; what the code declares."""

    def __init__(
        self, cubin: bytes, name: str, shared_bytes: int, *, static_bytes: int = 0, large_cluster: bool = False
    ) -> None:
        self._module = check("cuModuleLoadData", cu.cuModuleLoadData(cubin))
        self.function = check("cuModuleGetFunction", cu.cuModuleGetFunction(self._module, name.encode()))
        if shared_bytes and shared_bytes + static_bytes > _STATIC_LIMIT:
            prefer = cu.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED
            check("cuFuncSetCacheConfig", cu.cuFuncSetCacheConfig(self.function, prefer))
            self._set("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
        if large_cluster:
            self._set("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)

    def _set(self, name: str, value: int) -> None:
        attribute = getattr(cu.CUfunction_attribute, name)
        check("cuFuncSetAttribute", cu.cuFuncSetAttribute(self.function, attribute, value))

    def launch(self, shape: LaunchShape, parameters: Sequence[bytes], stream: int) -> None:
        """Enqueue on a stream (given as torch gives it)."""
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = shape.shared_bytes
        config.hStream = cu.CUstream(stream)
        attributes = _attributes(shape)
        config.numAttrs = len(attributes)
        if attributes:
            config.attrs = attributes
        memory, addresses = _parameter_block(parameters)
        check("cuLaunchKernelEx", cu.cuLaunchKernelEx(config, self.function, ctypes.addressof(addresses), 0))
        del memory  # the driver has copied the parameters

    def variable(self, name: str) -> tuple[int, int] | None:
        """Address and size in bytes of a variable of the module; None when it was optimised away."""
        result = cu.cuModuleGetGlobal(self._module, name.encode())
        if int(result[0]) == _NOT_FOUND:
            return None
        address, nbytes = check("cuModuleGetGlobal", result)
        return int(address), int(nbytes)

    def unload(self) -> None:
        """Free the module; nothing that was launched from it may still run."""
        check("cuModuleUnload", cu.cuModuleUnload(self._module))


def _attributes(shape: LaunchShape) -> list[Any]:
    """Launch attributes, as Triton sets them: nothing else (no access-policy window, no priority)."""
    ids, found = cu.CUlaunchAttributeID, []
    if shape.pdl:
        found.append(_attribute(ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION))
        found[-1].value.programmaticStreamSerializationAllowed = 1
    if shape.cooperative:
        found.append(_attribute(ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE))
        found[-1].value.cooperative = 1
    if shape.cluster != (1, 1, 1):
        found.append(_attribute(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION))
        dims = found[-1].value.clusterDim
        dims.x, dims.y, dims.z = shape.cluster
        found.append(_attribute(ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE))
        spread = cu.CUclusterSchedulingPolicy.CU_CLUSTER_SCHEDULING_POLICY_SPREAD
        found[-1].value.clusterSchedulingPolicyPreference = spread
    return found


def _attribute(number: Any) -> Any:
    attribute = cu.CUlaunchAttribute()
    attribute.id = number
    return attribute


def _parameter_block(parameters: Sequence[bytes]) -> tuple[Any, Any]:
    """Aligned copies of the parameters, and the array of their addresses."""
    offsets, end = [], 0
    for data in parameters:
        align = 64 if len(data) == _TENSOR_MAP_BYTES else 8
        end = -(-end // align) * align
        offsets.append(end)
        end += len(data)
    memory = ctypes.create_string_buffer(end + 64)
    base = -(-ctypes.addressof(memory) // 64) * 64
    for offset, data in zip(offsets, parameters, strict=True):
        ctypes.memmove(base + offset, data, len(data))
    return memory, (ctypes.c_void_p * max(1, len(parameters)))(*(base + offset for offset in offsets))


def encode(parameter: Parameter) -> bytes:
    """A parameter's bytes; a tensor map is made by the driver."""
    return _encode_tensor_map(parameter) if isinstance(parameter, TensorMap) else parameter


def _encode_tensor_map(wanted: TensorMap) -> bytes:
    fill = cu.CUtensorMapFloatOOBfill
    rank = len(wanted.global_dim)
    result = cu.cuTensorMapEncodeTiled(
        cu.CUtensorMapDataType(wanted.dtype),
        rank,
        wanted.address,
        [cu.cuuint64_t(n) for n in wanted.global_dim],
        [cu.cuuint64_t(n) for n in wanted.global_strides],
        [cu.cuuint32_t(n) for n in wanted.box_dim],
        [cu.cuuint32_t(1) for _ in range(rank)],
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle(wanted.swizzle),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        if wanted.nan_fill
        else fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    made = check(f"cuTensorMapEncodeTiled({wanted})", result)
    return ctypes.string_at(int(made.getPtr()), _TENSOR_MAP_BYTES)


def allocate(nbytes: int) -> int:
    """Device memory of its own (cuMemAlloc); the address."""
    return int(check("cuMemAlloc", cu.cuMemAlloc(nbytes)))


def free(address: int) -> None:
    """Give memory from `allocate` back."""
    check("cuMemFree", cu.cuMemFree(cu.CUdeviceptr(address)))


def export(address: int) -> bytes:
    """A handle by which another process can map this allocation."""
    handle = check("cuIpcGetMemHandle", cu.cuIpcGetMemHandle(cu.CUdeviceptr(address)))
    return bytes(handle.reserved)


def open_exported(data: bytes) -> int:
    """Map another process's allocation; the address here."""
    handle = cu.CUipcMemHandle()
    handle.reserved = data
    return int(check("cuIpcOpenMemHandle", cu.cuIpcOpenMemHandle(handle, _LAZY_PEER_ACCESS)))


def close_exported(address: int) -> None:
    """Unmap memory from `open_exported`."""
    check("cuIpcCloseMemHandle", cu.cuIpcCloseMemHandle(cu.CUdeviceptr(address)))


def forget_persisting_lines() -> None:
    """No line of the L2 keeps a preference that an earlier kernel gave it."""
    with contextlib.suppress(DriverError):  # not every driver or GPU has persisting lines
        check("cuCtxResetPersistingL2Cache", cu.cuCtxResetPersistingL2Cache())


def shrink_kept_memory() -> None:
    """Shrink, as far as CUDA allows, the device memory in which a kernel could leave something for the next one: the
    heap of malloc() (4 MiB at least) and the buffer of printf()."""
    for name in ("CU_LIMIT_MALLOC_HEAP_SIZE", "CU_LIMIT_PRINTF_FIFO_SIZE"):
        check("cuCtxSetLimit", cu.cuCtxSetLimit(getattr(cu.CUlimit, name), 0))
