"""Kernel arguments as the bytes that a launch passes, in the layout of Triton's own launcher (3.6 and 3.7). Pure.

Triton flattens a tensor descriptor into a TMA descriptor, its shape as i32 and its strides as i64; where the target
has no TMA, into base, shape, strides (i64), flags (i1), and then shape and strides once more. Two pointers follow the
arguments of every Triton kernel: global scratch and profile scratch.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tools.codec import Json

_FORMATS = {
    "i1": "<b", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u1": "<B", "u8": "<B", "u16": "<H", "u32": "<I",
    "u64": "<Q", "fp16": "<e", "fp64": "<d",
}  # fmt: skip
# The TMA dtype numbers of the device side differ from those of the host side in three places.
_TMA_DTYPE = {8: 10, 9: 8, 10: 9}
_TMA_TF32 = 11


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
    """One number as the bytes of a parameter of Triton's type `kind` ("*fp32" is an address). Raises PackingError."""
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
    if not (1 <= rank <= 5 and len(value.strides) == len(value.block_shape) == rank == _rank(kind)):
        raise PackingError(f"{kind} does not describe a tensor of {rank} dimensions in blocks of {value.block_shape}")
    shape32 = [pack_scalar("i32", n) for n in value.shape]
    shape64 = [pack_scalar("i64", n) for n in value.shape]
    strides = [pack_scalar("i64", n) for n in value.strides]
    if meta is not None:
        return [tensor_map(value, meta), *shape32, *strides]
    marks = [pack_scalar("i1", value.padding == "nan"), *([pack_scalar("i1", 0)] * (flags - 1))]
    return [pack_scalar("*", value.address), *shape64, *strides, *marks, *shape32, *strides]


def _rank(kind: str) -> int:
    match = re.match(r"tensordesc(?:_im2col)?<[^\[>]*\[([^\]]*)\]", kind)
    return match.group(1).count(",") + 1 if match else 0


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
