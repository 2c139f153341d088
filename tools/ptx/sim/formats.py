"""PTX types as numpy arrays: registers hold bits (unsigned integers), instructions compute on values. Pure.

bf16 and the 8-bit floats are computed on as the float32 numbers that they are, because numpy has no such types. A
packed type ("f16x2") has its parts in a second axis, lower part first.
"""

import re
from typing import Any

import numpy as np

from tools.ttir.ir import Array
from tools.ttir.values import decode_table, encode_mini

POISON_16 = 0x7FFD  # what nothing has written: a NaN in every float format, odd and huge as an integer
POISON = int.from_bytes(POISON_16.to_bytes(2, "little") * 8, "little")
MINIS = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}
_WORDS = {"pred": 1, "f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "f64": 64, "e4m3": 8, "e5m2": 8}
_NUMBER = re.compile(r"[usb](8|16|32|64)\Z")
UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype("?"),
    8: np.dtype("u1"),
    16: np.dtype("u2"),
    32: np.dtype("u4"),
    64: np.dtype("u8"),
}
_FLOATS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype("f2"),
    "f32": np.dtype("f4"),
    "tf32": np.dtype("f4"),
    "f64": np.dtype("f8"),
}


def is_kind(word: str) -> bool:
    """Is it a type that registers or memory can have?"""
    return base_of(word) in _WORDS or _NUMBER.match(base_of(word)) is not None or word == "b128"


def base_of(kind: str) -> str:
    """ "f16" of "f16x2"."""
    return kind.removesuffix("x2")


def parts_of(kind: str) -> int:
    """2 of "f16x2", else 1."""
    return 2 if kind.endswith("x2") else 1


def bits_of(kind: str) -> int:
    """How wide it is; a predicate has 1 bit."""
    if kind == "b128":
        return 128
    base = base_of(kind)
    return (_WORDS.get(base) or int(base[1:])) * parts_of(kind)


def is_float(kind: str) -> bool:
    """f16, bf16x2, e4m3 …"""
    return base_of(kind) in _WORDS and kind != "pred"


def is_signed(kind: str) -> bool:
    """s8 to s64."""
    return kind[0] == "s"


def decode(bits: Array, kind: str) -> Array:
    """Bits as wide as the type to values."""
    base = base_of(kind)
    if base != kind:
        bits = bits.view(UNSIGNED[bits_of(base)]).reshape(-1, 2)
    if base == "bf16":
        wide: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide
    if base in MINIS:
        return decode_table(MINIS[base])[bits]
    if base in _FLOATS:
        return bits.view(_FLOATS[base])
    return bits.view(f"i{bits.dtype.itemsize}") if base[0] == "s" else bits


def encode(value: Array, kind: str) -> Array:
    """Values that the type holds exactly to bits. Integers wrap around."""
    base = base_of(kind)
    bits = _encode(value, base)
    if base == kind:
        return bits
    return np.ascontiguousarray(bits).view(UNSIGNED[bits_of(kind)]).reshape(-1)


def _encode(value: Array, base: str) -> Array:
    if base == "bf16":
        high: Array = (np.ascontiguousarray(value, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return high
    if base in MINIS:
        return encode_mini(value, MINIS[base])
    if base in _FLOATS:
        return np.ascontiguousarray(value, _FLOATS[base]).view(UNSIGNED[bits_of(base)])
    return value.astype(UNSIGNED[bits_of(base)], copy=False)


def resize(bits: Array, width: int, *, signed: bool = False) -> Array:
    """Bits cut or extended to a width."""
    have = 1 if bits.dtype == bool else bits.dtype.itemsize * 8
    if have == width:
        return bits
    if signed and have < width:
        wide: Array = bits.view(f"i{have // 8}").astype(f"i{width // 8}").view(UNSIGNED[width])
        return wide
    return bits.astype(UNSIGNED[width])


def poison(kind: str) -> Array:
    """One lane of what nothing has written."""
    if kind == "pred":
        return np.array([True])
    if kind == "b128":
        return np.full((1, 2), POISON & (1 << 64) - 1, np.uint64)
    width = bits_of(kind)
    return np.array([POISON & (1 << width) - 1], UNSIGNED[width])
