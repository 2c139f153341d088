"""Bits as numbers: the errors of the emulator, PTX's types as numpy arrays, and how floating point is rounded."""

from typing import Any

import numpy as np

from kerneltune.tools.languages.ptx.ir import TYPE_BITS, Instruction, bits_of
from kerneltune.tools.languages.triton.ttir import values as ttir_values
from kerneltune.tools.languages.triton.ttir.ir import Array, InterpreterError, Scalar
from kerneltune.tools.schema.messages import UNCHECKABLE

# ---
# The ways in which PTX alone can fail to be emulated. Each message names the instruction and its line; one that is just
# an InterpreterError says that a launch does not fit its entry.


class IllFormed(InterpreterError):
    """Text that makes no sense to the emulator. What an assembler has taken is then not checkable here."""

    problem = UNCHECKABLE


class Unsupported(InterpreterError):
    """What the emulator has no meaning for: the kernel cannot be checked here, which does not make it wrong."""

    problem = UNCHECKABLE


class Deadlock(InterpreterError):
    """Threads that wait for others which never come."""

    problem = "deadlock"


class Race(InterpreterError):
    """Two warps of a block used the same shared memory, one wrote, and no barrier lies between them; or a block ended
    before a copy had read it."""

    problem = "race"


def place(ins: Instruction) -> str:
    """Return an instruction's name and line, for messages."""
    return f"{ins.name}, PTX line {ins.line}"


def unsupported(ins: Instruction, why: str) -> Unsupported:
    """The error for an instruction that is not emulated."""
    return Unsupported(f"{place(ins)}: {why}")


# ---
# PTX types as numpy arrays: registers hold bits (unsigned integers), instructions compute on values. Pure.
#
# bf16 and the 8-bit floats are computed on as the float32 numbers that they are, because numpy has no such types. A
# packed type ("f16x2") has its parts in a second axis, lower part first.

POISON_16 = 0x7FFD  # what nothing has written: a NaN in every float format, odd and huge as an integer
POISON = int.from_bytes(POISON_16.to_bytes(2, "little") * 8, "little")
UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("?")} | {8 * size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_FLOATS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype("f2"), "f32": np.dtype("f4"), "tf32": np.dtype("f4"), "f64": np.dtype("f8"),
}  # fmt: skip
_TTIR = {"bf16": Scalar("bf16"), "e4m3": Scalar("f8E4M3FN"), "e5m2": Scalar("f8E5M2")}  # what numpy lacks


def is_kind(word: str) -> bool:
    """Is it a type that registers or memory can have?"""
    return base_of(word) in TYPE_BITS


def base_of(kind: str) -> str:
    """The type of one part: "f16" of "f16x2"."""
    return kind.removesuffix("x2")


def parts_of(kind: str) -> int:
    """How many numbers it holds: 2 of "f16x2", else 1."""
    return 2 if kind.endswith("x2") else 1


def is_float(kind: str) -> bool:
    """Is it a floating-point type: f16, bf16x2, e4m3 …?"""
    return base_of(kind) in _FLOATS or base_of(kind) in _TTIR


def is_signed(kind: str) -> bool:
    """Is it a signed integer type: s8 to s64?"""
    return kind[0] == "s"


def decode(bits: Array, kind: str) -> Array:
    """Turn bits as wide as the type into values."""
    base = base_of(kind)
    if base != kind:
        bits = bits.view(UNSIGNED[bits_of(base)]).reshape(-1, 2)
    if base in _TTIR:
        return ttir_values.decode(bits, _TTIR[base])
    if base in _FLOATS:
        return bits.view(_FLOATS[base])
    return bits.view(f"i{bits.dtype.itemsize}") if base[0] == "s" else bits


def encode(value: Array, kind: str) -> Array:
    """Turn values that the type holds exactly into bits. Integers wrap around."""
    base = base_of(kind)
    if base in _TTIR:
        bits = ttir_values.encode(value, _TTIR[base])
    elif base in _FLOATS:
        bits = np.ascontiguousarray(value, _FLOATS[base]).view(UNSIGNED[bits_of(base)])
    else:
        bits = value.astype(UNSIGNED[bits_of(base)], copy=False)
    return bits if base == kind else np.ascontiguousarray(bits).view(UNSIGNED[bits_of(kind)]).reshape(-1)


def resize(bits: Array, width: int, *, signed: bool = False) -> Array:
    """Cut or extend bits to a width."""
    have = 1 if bits.dtype == bool else bits.dtype.itemsize * 8
    if have == width:
        return bits
    if signed and have < width:
        bits = bits.view(f"i{have // 8}")
    return bits.astype(UNSIGNED[width])


def poison(kind: str) -> Array:
    """Return one lane of an unwritten register."""
    if kind == "b128":
        return np.full((1, 2), POISON & (1 << 64) - 1, np.uint64)
    width = bits_of(kind)
    return np.array([POISON & (1 << width) - 1], UNSIGNED[width])


# ---
# Rounding as PTX's modifiers say it. Pure.
#
# Sums and products are made in float64 *rounded to odd* (`ttir_values.odd_sum`), so that rounding them once more to 24
# bits or fewer, in any direction, is what rounding the exact result would have been.

MODES = ("rn", "rz", "rm", "rp", "rna")
_SHAPES = {
    "f16": (10, -14, 65504.0),
    "bf16": (7, -126, float.fromhex("0x1.fep127")),
    "f32": (23, -126, float.fromhex("0x1.fffffep127")),
    "tf32": (10, -126, float.fromhex("0x1.ffcp127")),
    "f64": (52, -1022, float.fromhex("0x1.fffffffffffffp1023")),
    "e4m3": (3, -6, 448.0),
    "e5m2": (2, -14, 57344.0),
}


def to_format(x: Array, kind: str, mode: str = "rn", *, satfinite: bool = False) -> Array:
    """Floats rounded to the format, as values (float32 for bf16, tf32 and 8 bits). They are float64, or, for rounding
    to nearest, of any type that is finer than the format."""
    if mode == "rn" and not satfinite:
        if kind in ("f16", "f32", "f64"):
            return x.astype(_FLOATS[kind], copy=False)
        if kind == "bf16" and x.dtype == np.float32:
            return ttir_values.round_bf16(x)
    rounded = ttir_values.round_to_grid(x.astype(np.float64, copy=False), _SHAPES[kind], mode, satfinite=satfinite)
    return rounded.astype(_FLOATS.get(kind, np.float32), copy=False)


def lane_of(value: float, kind: str) -> Array:
    """A number as the bits of one lane; of a packed type, as both parts. Integers wrap around."""
    if is_float(kind):
        parts = np.full((1, parts_of(kind)), value, np.float64)
        return encode(to_format(parts, base_of(kind)), kind).reshape(-1)
    return np.array([int(value) & (1 << bits_of(kind)) - 1], UNSIGNED[bits_of(kind)])


def directed(near: Array, missed: Array, mode: str) -> Array:
    """Float64 rounded in a mode other than "rn", from the nearest number and the sign of what it misses."""
    if mode == "rz":
        return np.where(missed * np.sign(near) < 0, np.nextafter(near, 0.0), near)
    way = 1 if mode == "rp" else -1
    return np.where(missed == way, np.nextafter(near, way * np.inf), near)


def rectify(x: Array) -> Array:
    """.relu: not below 0; NaN stays."""
    return np.where((x > 0) | np.isnan(x), x, x.dtype.type(0))
