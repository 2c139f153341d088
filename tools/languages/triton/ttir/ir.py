"""TTIR as data: the typed errors, types with their numpy storage, and what the text is parsed into.

A value is *stored* (computed on) in one dtype and laid out in memory in another *raw* dtype: bf16 and fp8 numbers are
stored as float32 numbers that are exactly representable in the narrow format, because numpy has no such dtypes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt


class InterpreterError(Exception):
    """Base of everything that the interpreter of TTIR and the emulator of PTX raise on purpose."""


class TtirSyntaxError(InterpreterError):
    """The text is not TTIR that we can parse, or an op in it is ill-formed."""


class UnsupportedOp(InterpreterError):
    """An op or type we have no semantics for: the kernel is not checkable here, which does not make it wrong."""

    def __init__(self, op: str, why: str = "") -> None:
        super().__init__(f"{op}: {why}" if why else op)
        self.op = op


class OutOfBounds(InterpreterError):
    """The kernel touched memory outside its tensors, or outside the shared or local memory that there is."""


class StepLimit(InterpreterError):
    """Too many executed operations, or calls nested too deeply: very likely a loop that does not end."""


class OutOfTime(InterpreterError):
    """It was to be stopped by now."""


class AssertFailed(InterpreterError):
    """The kernel itself says that something is wrong: a device-side assertion, or trap."""


Array: TypeAlias = npt.NDArray[Any]

# Triton refuses tensors of more than 2**20 elements; hostile text must not make us allocate more either.
MAX_NUMEL = 1 << 20
MAX_NESTING = 8
MAX_RANK = 24


@dataclass(frozen=True)
class Scalar:
    name: str


@dataclass(frozen=True)
class Ptr:
    pointee: Type


@dataclass(frozen=True)
class TensorType:
    shape: tuple[int, ...]
    element: Type


@dataclass(frozen=True)
class Desc:
    block: TensorType


@dataclass(frozen=True)
class Opaque:
    """A type we can read but not compute on."""

    name: str


Type: TypeAlias = Scalar | Ptr | TensorType | Desc | Opaque

I1, I32, I64, F32 = Scalar("i1"), Scalar("i32"), Scalar("i64"), Scalar("f32")
FP8 = ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ")
_STORED = {"i1": "?", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "index": "i8"}
_STORED |= {"f16": "f2", "bf16": "f4", "f32": "f4", "f64": "f8", **dict.fromkeys(FP8, "f4")}
_RAW = _STORED | {"i1": "u1", "bf16": "u2", **dict.fromkeys(FP8, "u1")}
_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "index": 64, **dict.fromkeys(FP8, 8)}
_SIGNED = re.compile(r"(?<=x)[su]i(?=\d)")  # descriptors alone say whether their integers have a sign
_SCALAR = re.compile(r"(?:i\d{1,3}|index|bf16|f16|f32|f64|f128|tf32|f[468]E\d+M\d+\w*)\Z")


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    return _parse(text.strip(), 0)


def _parse(text: str, depth: int) -> Type:
    if depth > MAX_NESTING:
        raise TtirSyntaxError("types nested too deeply")
    if _SCALAR.match(text):
        return Scalar(text)
    for prefix, build in (("tensor<", _tensor), ("!tt.ptr<", _ptr), ("!tt.tensordesc<", _desc)):
        if text.startswith(prefix) and text.endswith(">"):
            return build(text[len(prefix) : -1].strip(), depth + 1)
    if text.startswith("!") or text == "none":
        return Opaque(text)
    raise TtirSyntaxError(f"not a type: {text[:80]!r}")


def _tensor(body: str, depth: int) -> TensorType:
    dims: list[int] = []
    while found := re.match(r"(\d{1,9})x", body):
        dims.append(int(found[1]))
        body = body[found.end() :]
    if len(dims) > MAX_RANK or math.prod(dims) > MAX_NUMEL:
        raise TtirSyntaxError(f"tensor too large: {dims}")
    # an encoding (`, #blocked`) is a layout: it belongs to TTGIR and changes no value
    return TensorType(tuple(dims), _parse(_before_comma(body), depth))


def _ptr(body: str, depth: int) -> Ptr:
    return Ptr(_parse(_before_comma(body), depth))


def _desc(body: str, depth: int) -> Desc:
    body = _SIGNED.sub("i", body)
    block = _parse(body, depth) if body.startswith("tensor<") else _tensor(body, depth)
    if not isinstance(block, TensorType):
        raise TtirSyntaxError("a tensor descriptor describes a tensor")
    return Desc(block)


def _before_comma(body: str) -> str:
    depth = 0
    for at, char in enumerate(body):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            return body[:at].strip()
    return body.strip()


def shape_of(kind: Type) -> tuple[int, ...]:
    return kind.shape if isinstance(kind, TensorType) else ()


def element_of(kind: Type) -> Type:
    return kind.element if isinstance(kind, TensorType) else kind


def scalar_name(kind: Type) -> str:
    """The element's name, with pointers seen as the 64-bit addresses they are."""
    element = element_of(kind)
    if isinstance(element, Ptr):
        return "i64"
    if isinstance(element, Scalar):
        return element.name
    raise UnsupportedOp(f"type {element}")


@lru_cache(maxsize=4096)
def stored_dtype(kind: Type) -> np.dtype[Any]:
    return _lookup(_STORED, kind)


@lru_cache(maxsize=4096)
def raw_dtype(kind: Type) -> np.dtype[Any]:
    return _lookup(_RAW, kind)


def _lookup(table: dict[str, str], kind: Type) -> np.dtype[Any]:
    name = scalar_name(kind)
    if name not in table:
        raise UnsupportedOp(f"type {name}")
    return np.dtype(table[name])


def bit_width(kind: Type) -> int:
    name = scalar_name(kind)
    return _BITS[name] if name in _BITS else int(name[1:])


def is_float(kind: Type) -> bool:
    return scalar_name(kind).startswith(("f", "bf", "tf"))


@dataclass(frozen=True)
class Literal:
    """Constant text whose meaning depends on its type: a number, a hex bit pattern or `dense<...>`."""

    text: str


Attr: TypeAlias = "int | float | bool | str | Literal | tuple[Attr, ...] | dict[str, Attr]"


@dataclass
class Successor:
    """A branch target and the values it passes to the block's arguments."""

    label: str
    operands: tuple[str, ...]


@dataclass
class Op:
    """One operation; `words` are its bare keywords in order (`slt`, `acq_rel`, a printed string...)."""

    name: str
    line: int
    results: tuple[str, ...] = ()
    operands: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    attrs: dict[str, Attr] = field(default_factory=dict)
    ins: tuple[Type, ...] = ()
    outs: tuple[Type, ...] = ()
    regions: list[Region] = field(default_factory=list)
    successors: list[Successor] = field(default_factory=list)
    # constants are computed once and kept here, by the interpreter
    cache: object = None


@dataclass
class TtirBlock:
    label: str
    args: tuple[str, ...]
    types: tuple[Type, ...]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Region:
    blocks: list[TtirBlock]


@dataclass
class Func:
    name: str
    public: bool
    args: tuple[str, ...]
    types: tuple[Type, ...]
    body: Region
    # every value name that occurs as an operand: an atomic whose result is not here may run faster
    used: set[str] = field(default_factory=set)


@dataclass
class TtirModule:
    funcs: dict[str, Func]

    @property
    def kernel(self) -> Func:
        public = [func for func in self.funcs.values() if func.public]
        return (public or list(self.funcs.values()))[0]
