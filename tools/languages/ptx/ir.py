"""What PTX text says, as data. Lines count from 1. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


class PtxError(Exception):
    """Text that is not PTX. `line` counts from 1; `text` is what stands there."""

    def __init__(self, line: int, message: str, text: str = "") -> None:
        super().__init__(f"PTX line {line}: {message}" + (f": {text.strip()[:160]}" if text.strip() else ""))
        self.line, self.message, self.text = line, message, text
        self.lines: tuple[int, ...] = (line,)  # all that it is about
        self.whole = ""  # the text that it is about, where somebody knows it


@dataclass(frozen=True)
class Register:
    """A register ("%r1"), a special register ("%tid.x") or an element of a vector ("%v.x"). One that is declared in an
    inner scope has the scope's number behind it ("t@2")."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A label, a variable, a function or a parameter, `offset` bytes further; "_" is the sink."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Immediate:
    """A number. `bits` is 32 or 64 for one written as bits of a float (0f3F800000, 0d...), else 0."""

    value: int | float
    bits: int = 0


@dataclass(frozen=True)
class Address:
    """[base + offset], in bytes; `more` is what follows a comma (coordinates of a tensor map)."""

    base: "Register | Symbol | None"
    offset: int = 0
    more: "tuple[Operand, ...]" = ()


@dataclass(frozen=True)
class Vector:
    """A vector of registers or numbers: {a, b, ...}"""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True)
class Group:
    """(a, b, ...): what a call passes or returns."""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True)
class Not:
    """A negated predicate: !p"""

    operand: Register


@dataclass(frozen=True)
class Both:
    """Two results: p|q"""

    first: "Operand"
    second: "Operand"


Operand = Register | Symbol | Immediate | Address | Vector | Group | Not | Both


def leaves(operand: Operand) -> "Iterator[Register | Symbol | Immediate]":
    """Yield the registers, symbols and numbers of an operand, in the order in which they are written."""
    match operand:
        case Vector(items) | Group(items):
            for item in items:
                yield from leaves(item)
        case Address(base, _, more):
            for part in (*((base,) if base is not None else ()), *more):
                yield from leaves(part)
        case Not(register):
            yield register
        case Both(first, second):
            yield from leaves(first)
            yield from leaves(second)
        case _:
            yield operand


@dataclass(frozen=True)
class Guard:
    """The predicate of an instruction: @p or @!p"""

    register: str
    negated: bool = False


@dataclass(frozen=True)
class Instruction:
    """`ld.global.v4.f32 {…}, […]`: opcode "ld", modifiers ("global", "v4", "f32"), operands with results first."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: Guard | None = None

    @property
    def name(self) -> str:
        """Opcode and modifiers as they are written."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Label:
    """A place to branch to."""

    name: str
    line: int


Item = Instruction | Label


@dataclass(frozen=True)
class Param:
    """A parameter: `type` as written ("u64"); `count` elements of an array, else None; `ptr`: it is said to point."""

    name: str
    type: str
    line: int
    count: int | None = None
    align: int | None = None
    ptr: bool = False

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return type_bytes(self.type) * (1 if self.count is None else self.count)


@dataclass(frozen=True)
class Variable:
    """Memory with a name. `space`: shared, local, global, const or param; `count` None is a single element, 0 an array
    whose size the launch gives (dynamic shared memory). `values`: what it begins with, if that is numbers alone."""

    name: str
    space: str
    type: str
    line: int
    count: int | None = None
    vector: int = 1
    align: int | None = None
    extern: bool = False
    has_value: bool = False
    values: tuple[int | float, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return type_bytes(self.type) * self.vector * (1 if self.count is None else self.count)


@dataclass(frozen=True)
class Function:
    """An entry or a function. `registers`: name -> type, a numbered family (%r<9>) written out; `directives`: reqntid,
    maxntid, minnctapersm, maxnreg, reqnctapercluster, explicitcluster … -> their numbers."""

    name: str
    line: int
    entry: bool
    params: tuple[Param, ...] = ()
    directives: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    registers: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    body: tuple[Item, ...] = ()
    defined: bool = True
    end_line: int = 0

    @property
    def instructions(self) -> Iterator[Instruction]:
        """The body without labels."""
        return (item for item in self.body if isinstance(item, Instruction))


@dataclass(frozen=True)
class Module:
    """A PTX file. `version` (8, 7); `target` "sm_90a"."""

    version: tuple[int, int]
    target: str
    target_line: int
    address_size: int = 64
    functions: tuple[Function, ...] = ()
    variables: tuple[Variable, ...] = ()

    @property
    def entries(self) -> tuple[Function, ...]:
        """The functions that can be launched."""
        return tuple(f for f in self.functions if f.entry and f.defined)


TYPE_BITS = {
    "pred": 1, "b128": 128, "f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "f64": 64, "e4m3": 8, "e5m2": 8,
    **{f"{sign}{bits}": bits for sign in "usb" for bits in (8, 16, 32, 64)},
}  # fmt: skip


def bits_of(kind: str) -> int:
    """Bits of a scalar type ("u32": 32), or of a packed one ("f16x2": 32). Raises KeyError."""
    single = kind.removesuffix("x2")
    return TYPE_BITS[single] * (1 if single == kind else 2)


def type_bytes(kind: str) -> int:
    """Bytes of a type in memory. Raises ValueError."""
    try:
        return max(1, bits_of(kind) // 8)
    except KeyError as error:
        raise ValueError(f"no PTX type {kind!r}") from error
