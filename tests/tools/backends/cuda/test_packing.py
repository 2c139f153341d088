"""Kernel arguments as bytes, in the layout of Triton's launcher."""

import struct
from typing import Any

import pytest

from kerneltune.tools.backends.cuda.driver import (
    DeviceDescriptor,
    PackingError,
    TensorMap,
    pack,
    pack_scalar,
    tensor_map,
)

META: dict[str, Any] = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 32], "fp4_padded": False}
TILE = DeviceDescriptor(0x7F00, (128, 256), (256, 1), (64, 32))


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("*fp32", 0x7F0000001000, struct.pack("<Q", 0x7F0000001000)),
        ("i1", True, b"\x01"),
        ("u1", True, b"\x01"),
        ("i32", -2, struct.pack("<i", -2)),
        ("i64", 1 << 40, struct.pack("<q", 1 << 40)),
        ("u64", (1 << 64) - 1, b"\xff" * 8),
        ("fp32", 1.5, struct.pack("<f", 1.5)),
        ("fp32", 1e300, struct.pack("<f", float("inf"))),
        ("fp64", 0.1, struct.pack("<d", 0.1)),
        ("fp16", 2.0, struct.pack("<e", 2.0)),
        ("bf16", 1.0, b"\x80\x3f"),
        ("fp32", 3, struct.pack("<f", 3.0)),
    ],
)
def test_a_number_is_packed_as_triton_packs_it(kind: str, value: float, wanted: bytes) -> None:
    assert pack_scalar(kind, value) == wanted


@pytest.mark.parametrize(("kind", "value"), [("i32", 1 << 31), ("u8", -1), ("f4", 1.0), ("fp16", 1e9)])
def test_a_number_that_does_not_fit_is_refused(kind: str, value: float) -> None:
    with pytest.raises(PackingError):
        pack_scalar(kind, value)


def test_a_descriptor_becomes_a_tensor_map_with_its_shape_and_strides() -> None:
    found = pack(("tensordesc<fp16[64, 32]>", "i32"), (TILE, 7), [META])
    assert isinstance(found[0], TensorMap)
    assert found[1:] == [*(struct.pack("<i", n) for n in (128, 256)), *(struct.pack("<q", n) for n in (256, 1)),
                         struct.pack("<i", 7)]  # fmt: skip


def test_a_tensor_map_lists_the_innermost_dimension_first_and_strides_in_bytes() -> None:
    found = tensor_map(TILE, META)
    assert (found.global_dim, found.box_dim) == ((256, 128), (32, 64))
    assert found.global_strides == (512, 512 * 128)
    assert not found.nan_fill


def test_the_dtype_numbers_of_the_device_become_those_of_the_host() -> None:
    assert [tensor_map(TILE, META | {"elem_type": n}).dtype for n in (7, 8, 9, 10)] == [7, 10, 8, 9]


def test_a_descriptor_in_one_dimension_has_one_stride() -> None:
    line = DeviceDescriptor(0x100, (1024,), (1,), (256,), "nan")
    found = tensor_map(line, META | {"elem_size": 4, "block_size": [256]})
    assert found.global_strides == (4096,)
    assert found.nan_fill


@pytest.mark.parametrize(("flags", "count"), [(1, 1 + 2 + 2 + 1 + 2 + 2), (2, 1 + 2 + 2 + 2 + 2 + 2)])
def test_without_tma_a_descriptor_is_taken_apart(flags: int, count: int) -> None:
    found = pack(("tensordesc<fp16[64, 32]>",), (TILE,), None, flags)
    assert len(found) == count
    assert found[0] == struct.pack("<Q", 0x7F00)


def test_a_descriptor_with_a_strided_last_dimension_is_refused() -> None:
    with pytest.raises(PackingError, match="contiguous"):
        pack(("tensordesc<fp16[64, 32]>",), (DeviceDescriptor(0, (128, 256), (1, 128), (64, 32)),), [META])


def test_a_wrong_number_of_arguments_is_refused() -> None:
    with pytest.raises(PackingError, match="takes 2"):
        pack(("*fp32", "i32"), (1,))
