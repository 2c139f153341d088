"""Bits as numbers: the errors of the emulator, lanes of registers, formats of floating point and how they round."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerneltune.tools.languages.ptx.ir import Instruction
from kerneltune.tools.languages.triton.ttir.ir import Array, InterpreterError
from kerneltune.tools.languages.triton.ttir.values import MINIS, decode_table, encode_mini, round_bf16

# ---
# The ways in which PTX alone can fail to be emulated. Each message names the instruction and its line; one that is just
# an InterpreterError says that a launch does not fit its entry.


class IllFormed(InterpreterError):
    """Text that makes no sense to the emulator. What an assembler has taken is then not checkable here."""


class Unsupported(InterpreterError):
    """What the emulator has no meaning for: the kernel cannot be checked here, which does not make it wrong."""


class Misaligned(InterpreterError):
    """An address that is no multiple of what the instruction needs; a GPU ends the launch."""


class Deadlock(InterpreterError):
    """Threads that wait for others which never come."""


class Race(InterpreterError):
    """Two warps of a block used the same shared memory, one wrote, and no barrier lies between them; or a block ended
    before a copy had read it."""


def place(ins: Instruction) -> str:
    """Return an instruction's name and line, for messages."""
    return f"{ins.name}, PTX line {ins.line}"


def unsupported(ins: Instruction, why: str) -> Unsupported:
    """The error for an instruction that is not emulated."""
    return Unsupported(f"{place(ins)}: {why}")


# ---
# Which threads are at work, and what they are called. Pure.


@dataclass(frozen=True)
class Lanes:
    """Threads by number within the batch, the block of each within the batch, its warp within the block."""

    numbers: Array
    blocks: Array
    warps: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def only(self, which: Array) -> "Lanes":
        """Some of them, by index or mask."""
        return Lanes(self.numbers[which], self.blocks[which], self.warps[which])


@dataclass(frozen=True)
class ThreadNames:
    """Names a thread by its number, for messages: `block` is its shape, `padded` the lanes that a block
    takes, `ctas` the blocks of the batch."""

    block: tuple[int, int, int]
    padded: int
    ctas: list[tuple[int, int, int]]

    def __call__(self, lane: int) -> str:
        which, thread = divmod(lane, self.padded)
        x, y, _ = self.block
        return f"thread ({thread % x}, {thread // x % y}, {thread // (x * y)}) of CTA {self.ctas[which]}"


# ---
# PTX types as numpy arrays: registers hold bits (unsigned integers), instructions compute on values. Pure.
#
# bf16 and the 8-bit floats are computed on as the float32 numbers that they are, because numpy has no such types. A
# packed type ("f16x2") has its parts in a second axis, lower part first.

POISON_16 = 0x7FFD  # what nothing has written: a NaN in every float format, odd and huge as an integer
POISON = int.from_bytes(POISON_16.to_bytes(2, "little") * 8, "little")
_MINI_NAMES = {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}
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
    """Turn bits as wide as the type into values."""
    base = base_of(kind)
    if base != kind:
        bits = bits.view(UNSIGNED[bits_of(base)]).reshape(-1, 2)
    if base == "bf16":
        wide: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide
    if base in _MINI_NAMES:
        return decode_table(_MINI_NAMES[base])[bits]
    if base in _FLOATS:
        return bits.view(_FLOATS[base])
    return bits.view(f"i{bits.dtype.itemsize}") if base[0] == "s" else bits


def encode(value: Array, kind: str) -> Array:
    """Turn values that the type holds exactly into bits. Integers wrap around."""
    base = base_of(kind)
    bits = _encode(value, base)
    if base == kind:
        return bits
    return np.ascontiguousarray(bits).view(UNSIGNED[bits_of(kind)]).reshape(-1)


def _encode(value: Array, base: str) -> Array:
    if base == "bf16":
        high: Array = (np.ascontiguousarray(value, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return high
    if base in _MINI_NAMES:
        return encode_mini(value, _MINI_NAMES[base])
    if base in _FLOATS:
        return np.ascontiguousarray(value, _FLOATS[base]).view(UNSIGNED[bits_of(base)])
    return value.astype(UNSIGNED[bits_of(base)], copy=False)


def resize(bits: Array, width: int, *, signed: bool = False) -> Array:
    """Cut or extend bits to a width."""
    have = 1 if bits.dtype == bool else bits.dtype.itemsize * 8
    if have == width:
        return bits
    if signed and have < width:
        wide: Array = bits.view(f"i{have // 8}").astype(f"i{width // 8}").view(UNSIGNED[width])
        return wide
    return bits.astype(UNSIGNED[width])


def poison(kind: str) -> Array:
    """Return one lane of an unwritten register."""
    if kind == "pred":
        return np.array([True])
    if kind == "b128":
        return np.full((1, 2), POISON & (1 << 64) - 1, np.uint64)
    width = bits_of(kind)
    return np.array([POISON & (1 << width) - 1], UNSIGNED[width])


# ---
# Rounding as PTX's modifiers say it. Pure.
#
# Sums and products are made in float64 *rounded to odd*: a result that is not exact gets an odd last bit, so that
# rounding it once more to 24 bits or fewer, in any direction, is what rounding the exact result would have been.

MODES = ("rn", "rz", "rm", "rp", "rna")
# bits of the mantissa without the leading one, and the exponent of the smallest normal number
_SHAPES = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126), "tf32": (10, -126), "f64": (52, -1022)}
_TOPS = {"f16": 65504.0, "bf16": float.fromhex("0x1.fep127"), "f32": float.fromhex("0x1.fffffep127"),
         "tf32": float.fromhex("0x1.ffcp127"), "f64": float.fromhex("0x1.fffffffffffffp1023")}  # fmt: skip
_TOPS |= {"e4m3": 448.0, "e5m2": 57344.0}
_SHAPES |= {"e4m3": (MINIS["f8E4M3FN"].mantissa, -6), "e5m2": (MINIS["f8E5M2"].mantissa, -14)}


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in float64, rounded to odd."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)  # exact (Knuth)
    return _to_odd(total, error)


def _to_odd(total: Array, error: Array) -> Array:
    """`total`, which is rounded to nearest, moved to the odd neighbour on the side of its error."""
    total = np.ascontiguousarray(total)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & (bits & 1 == 0)
    if not inexact.any():
        return total
    away = (error > 0) == (total > 0)  # the exact result is further from zero
    moved: Array = np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)
    return moved


def odd_fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64, rounded to odd; exact before it for factors of 26 bits or fewer."""
    return odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded about once: the product's error is kept (Dekker), so that in rare ties the last bit differs."""
    product = a * b
    error = _product_error(a, b, product)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back) + error
    fixed = total + rest
    return np.where(np.isfinite(fixed), fixed, total)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    (ah, al), (bh, bl) = _split(a), _split(b)
    error: Array = al * bl - (((product - ah * bh) - al * bh) - ah * bl)
    return np.where(np.isfinite(error), error, 0.0)


def _split(x: Array) -> tuple[Array, Array]:
    scaled = x * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def to_format(x: Array, kind: str, mode: str = "rn", *, satfinite: bool = False) -> Array:
    """Float64 values rounded to the format, as values (float32 for bf16, tf32 and 8 bits)."""
    if mode == "rn" and not satfinite:
        if kind == "f64":
            return x
        if kind in ("f32", "f16"):
            return x.astype(np.float32 if kind == "f32" else np.float16)
    return _stored(_grid(x, kind, mode, satfinite), kind)


def _stored(x: Array, kind: str) -> Array:
    return x if kind == "f64" else x.astype(np.float16 if kind == "f16" else np.float32)


def _grid(x: Array, kind: str, mode: str, satfinite: bool) -> Array:
    """Round to the format's grid, in float64."""
    mantissa, lowest = _SHAPES[kind]
    _, exponent = np.frexp(x)
    spacing = np.ldexp(1.0, np.maximum(exponent - 1, lowest) - mantissa)
    steps = x / spacing
    rounded = _whole(steps, mode) * spacing
    rounded = np.where(np.isfinite(x), rounded, x)
    rounded = np.where(rounded == 0, np.copysign(0.0, x), rounded)
    return _overflow(rounded, x, _TOPS[kind], mode, satfinite)


def _overflow(rounded: Array, x: Array, top: float, mode: str, satfinite: bool) -> Array:
    over = np.abs(rounded) > top
    if not over.any():
        return rounded
    toward_zero = (mode == "rz") | ((mode == "rm") & (x > 0)) | ((mode == "rp") & (x < 0))
    finite = satfinite | (np.isfinite(x) & toward_zero)
    return np.where(over, np.copysign(np.where(finite, top, np.inf), x), rounded)


def _whole(steps: Array, mode: str) -> Array:
    if mode == "rna":
        away: Array = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
        return away
    rounders = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil}
    return np.asarray(rounders[mode[:2]](steps))


def nearest(x: Array, kind: str) -> Array:
    """A float32 or float64 result, exact or rounded far finer than the format, to nearest."""
    if kind == "bf16":
        return round_bf16(x) if x.dtype == np.float32 else to_format(_through_f32(x), kind)
    return to_format(x, kind)


def _through_f32(x: Array) -> Array:
    return x.astype(np.float64, copy=False)


def flush(x: Array) -> Array:
    """.ftz: subnormal float32 numbers become zeros of their sign."""
    small = (np.abs(x) < np.float32(2.0**-126)) & (x != 0)
    return np.where(small, np.copysign(np.float32(0), x), x) if small.any() else x


def saturate(x: Array) -> Array:
    """.sat: into [0, 1]; NaN becomes 0."""
    return np.where(np.isnan(x), x.dtype.type(0), np.clip(x, 0, 1)).astype(x.dtype, copy=False)
