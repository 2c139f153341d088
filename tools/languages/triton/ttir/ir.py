"""TTIR as data: the typed errors, types with their numpy storage, what the text is parsed into, and its parser.

A value is *stored* (computed on) in one dtype and laid out in memory in another *raw* dtype: bf16 and fp8 numbers are
stored as float32 numbers that are exactly representable in the narrow format, because numpy has no such dtypes.

Tokens: types and `dense<...>` literals become single ones, and a newline is one only where it ends an op: MLIR prints
one op a line, so a newline directly inside a region's braces (or at top level) is the only reliable end of an op.

Most ops share one loose grammar (operands, keywords, attributes, regions and types in any order that MLIR prints), so
an op that nobody taught us still parses and fails later, as `UnsupportedOp`, only if it is executed. `tt.func`,
`scf.for` and `scf.while` bind names in their headers and have grammars of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kerneltune.tools.languages.base import NotInterpreted
from kerneltune.tools.schema.messages import UNCHECKABLE


class InterpreterError(NotInterpreted):
    """Base of everything that the interpreter of TTIR and the emulator of PTX raise on purpose."""


class TtirSyntaxError(InterpreterError):
    """The text is not TTIR that we can parse, or an op in it is ill-formed."""


class UnsupportedOp(InterpreterError):
    """An op or type we have no semantics for: the kernel is not checkable here, which does not make it wrong."""

    problem = UNCHECKABLE

    def __init__(self, op: str, why: str = "") -> None:
        super().__init__(f"{op}: {why}" if why else op)
        self.op = op


class OutOfBounds(InterpreterError):
    """The kernel touched memory outside its tensors, or outside the shared or local memory that there is. `op_line`: of
    the text, where it did; None where nobody said."""

    problem = "out_of_bounds"
    op_line: int | None = None


class Misaligned(InterpreterError):
    """An address that is no multiple of what is read or written there; a GPU ends the launch. `op_line` as above."""

    problem = "misaligned"
    op_line: int | None = None


class StepLimit(InterpreterError):
    """Too many executed operations, or calls nested too deeply: very likely a loop that does not end."""

    problem = "step_limit"


class OutOfTime(InterpreterError):
    """It was to be stopped by now."""


class AssertFailed(InterpreterError):
    """The kernel itself says that something is wrong: a device-side assertion, or trap."""

    problem = "assert_failed"


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
    unsigned: bool = False  # its integers, which a reduction through it may compare


@dataclass(frozen=True)
class Opaque:
    """A type we can read but not compute on."""

    name: str


Type: TypeAlias = Scalar | Ptr | TensorType | Desc | Opaque

I1 = Scalar("i1")
FP8 = ("f8E4M3FN", "f8E5M2", "f8E4M3FNUZ", "f8E5M2FNUZ")
_STORED = {"i1": "?", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8", "index": "i8"}
_STORED |= {"f16": "f2", "bf16": "f4", "f32": "f4", "f64": "f8", **dict.fromkeys(FP8, "f4")}
_RAW = _STORED | {"i1": "u1", "bf16": "u2", **dict.fromkeys(FP8, "u1")}
_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "index": 64, **dict.fromkeys(FP8, 8)}
_SIGNED = re.compile(r"\A[su](?=i\d)")  # descriptors alone say whether their integers have a sign
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
    return TensorType(tuple(dims), _parse(_SIGNED.sub("", _before_comma(body)), depth))


def _ptr(body: str, depth: int) -> Ptr:
    return Ptr(_parse(_before_comma(body), depth))


def _desc(body: str, depth: int) -> Desc:
    block = _parse(body, depth) if body.startswith("tensor<") else _tensor(body, depth)
    if not isinstance(block, TensorType):
        raise TtirSyntaxError("a tensor descriptor describes a tensor")
    return Desc(block, re.search(r"xui\d", body) is not None)


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


@dataclass(frozen=True, slots=True)
class TtirToken:
    kind: str
    text: str
    line: int


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|//[^\n]*)
    | (?P<newline>\n)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<location>loc\()
    | (?P<raw>(?:dense|array|dense_resource)<)
    | (?P<shaped>(?:tensor|vector|memref|tuple|![\w.]+)<)
    | (?P<value>%[\w$.-]+(?:\#\d+)?)
    | (?P<symbol>@(?:[\w$.-]+|"(?:[^"\\\n]|\\.)*"))
    | (?P<label>\^[\w$.-]+)
    | (?P<type>![\w.]+|(?:i\d{1,3}|index|bf16|f16|f32|f64|f8E\w+|f4E\w+|tf32)(?![\w.]))
    | (?P<alias>\#[\w.]+)
    | (?P<arrow>->)
    | (?P<number>0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    | (?P<word>[A-Za-z_][\w.$]*)
    | (?P<punct>[()\[\]{}<>,:=*?|&+-])""",
    re.VERBOSE,
)
_OPEN, _CLOSE = "([{", ")]}"
_NESTED = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|[()<>]|->')


def tokenize(text: str) -> list[TtirToken]:
    return _Lexer(text).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.pos, self.line = text, 0, 1
        self.nesting: list[str] = []
        self.tokens: list[TtirToken] = []

    def run(self) -> list[TtirToken]:
        while self.pos < len(self.text):
            found = _TOKEN.match(self.text, self.pos)
            if not found:
                raise TtirSyntaxError(f"line {self.line}: cannot read {self.text[self.pos : self.pos + 40]!r}")
            start, self.pos = self.pos, found.end()
            self._take(found.lastgroup or "", start, found[0])
        self.tokens.append(TtirToken("end", "", self.line))
        return self.tokens

    def _take(self, kind: str, start: int, text: str) -> None:
        if kind == "newline":
            self._newline()
        elif kind == "location":
            self._skip_balanced("(", ")")
        elif kind in ("raw", "shaped"):
            self._skip_balanced("<", ">")
            self._add("type" if kind == "shaped" else "raw", self.text[start : self.pos])
        elif kind == "alias" and self._at_line_start():
            # `#loc3 = loc(...)`: an alias definition, which changes no value
            end = self.text.find("\n", self.pos)
            self.pos = len(self.text) if end < 0 else end
        elif kind != "space":
            self._nest(text)
            self._add(kind, text)

    def _add(self, kind: str, text: str) -> None:
        self.tokens.append(TtirToken(kind, text, self.line))

    def _at_line_start(self) -> bool:
        return not self.tokens or self.tokens[-1].kind == "newline"

    def _newline(self) -> None:
        if (not self.nesting or self.nesting[-1] == "{") and not self._at_line_start():
            self._add("newline", "\n")
        self.line += 1

    def _nest(self, text: str) -> None:
        if text in _OPEN:
            self.nesting.append(text)
        elif text in _CLOSE and (not self.nesting or _OPEN.index(self.nesting.pop()) != _CLOSE.index(text)):
            raise TtirSyntaxError(f"line {self.line}: unbalanced {text!r}")

    def _skip_balanced(self, opening: str, closing: str) -> None:
        depth = 1
        for found in _NESTED.finditer(self.text, self.pos):
            depth += (found[0] == opening) - (found[0] == closing)
            if depth == 0:
                self.line += self.text.count("\n", self.pos, found.end())
                self.pos = found.end()
                return
        raise TtirSyntaxError(f"line {self.line}: {opening!r} is never closed")


class Cursor:
    def __init__(self, tokens: list[TtirToken]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    @property
    def token(self) -> TtirToken:
        return self.tokens[self.at]

    def fail(self, wanted: str) -> TtirSyntaxError:
        return TtirSyntaxError(f"line {self.token.line}: expected {wanted}, found {self.token.text[:60]!r}")

    def next(self) -> TtirToken:
        token = self.token
        self.at += token.kind != "end"
        return token

    def peek(self, text: str, ahead: int = 0) -> bool:
        token = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return token.text == text and token.kind != "string"

    def accept(self, text: str) -> bool:
        if found := self.peek(text):
            self.at += 1
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(repr(text))

    def kind(self, kind: str) -> str:
        if self.token.kind != kind:
            raise self.fail(kind)
        return self.next().text

    def newlines(self) -> None:
        while self.token.kind == "newline":
            self.at += 1

    def listed(self, closer: str) -> Iterator[None]:
        """Yield once per item of a comma-separated list, up to and including `closer`."""
        while not self.accept(closer):
            yield
            if not self.accept(",") and not self.peek(closer):
                raise self.fail(f"',' or {closer!r}")

    def angles(self) -> None:
        """`fastmath<contract>`, `overflow<nsw>`: permissions that an interpreter need not use."""
        self.expect("<")
        while not self.accept(">"):
            if self.next().kind in ("newline", "end"):
                raise self.fail("'>'")

    def types(self) -> tuple[Type, ...]:
        if self.accept("("):
            return tuple(self.type() for _ in self.listed(")"))
        found = [self.type()]
        while self.accept(",") or self.accept("*"):
            found.append(self.type())
        return tuple(found)

    def type(self) -> Type:
        if self.accept("<"):  # a type whose outer name is implied: `: <f32>, <tensor<8x8xf32>>`
            found = self.type()
            self.expect(">")
            return found
        if self.token.kind != "type" and not self.peek("none"):
            raise self.fail("a type")
        return parse_type(self.next().text)

    def attributes(self) -> dict[str, Attr]:
        self.expect("{")
        found: dict[str, Attr] = {}
        for _ in self.listed("}"):
            if self.token.kind not in ("word", "string"):
                raise self.fail("an attribute's name")
            name = self.next().text.strip('"')
            found[name] = self.attribute() if self.accept("=") else True
        return found

    def attribute(self) -> Attr:
        value = self.attribute_value()
        if self.accept(":"):
            self.type()
        return value

    def attribute_value(self) -> Attr:
        token = self.token
        if self.peek("{"):
            return dict(self.attributes())
        if token.kind != "string" and self.accept("["):
            return tuple(self.attribute() for _ in self.listed("]"))
        if token.kind == "alias" or (token.kind == "word" and self.peek("<", 1)):
            self.next()
            if self.peek("<"):
                self.angles()
            return token.text
        if token.kind not in ("number", "string", "raw", "word", "type", "symbol"):
            raise self.fail("an attribute's value")
        return _plain(self.next())


def _plain(token: TtirToken) -> Attr:
    text = token.text
    if token.kind == "number":
        return int(text) if text.lstrip("-").isdigit() and len(text) <= 40 else Literal(text)
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("array<"):
        items = text[6:-1].partition(":")[2].split(",")
        numbers = [item.strip() for item in items if item.strip()]
        return tuple(int(item) if item.lstrip("-").isdigit() and len(item) < 20 else item for item in numbers)
    return Literal(text) if token.kind == "raw" else text.strip('"')


def _operands(region: Region) -> Iterator[str]:
    """Names of the values that the operations of a region take, and what they hold."""
    for op in (op for block in region.blocks for op in block.ops):
        yield from op.operands
        yield from (name for successor in op.successors for name in successor.operands)
        for inner in op.regions:
            yield from _operands(inner)


MAX_DEPTH = 48
_CLOSER = {"(": ")", "[": "]", "{": "}", "<": ">"}


def parse(text: str) -> TtirModule:
    """Parses a module, or raises `TtirSyntaxError`."""
    parser = _Parser(tokenize(text))
    try:
        funcs = {func.name: func for func in parser.module()}
    except RecursionError:
        raise TtirSyntaxError("attributes or types nested too deeply") from None
    if not funcs:
        raise TtirSyntaxError("no tt.func in the text")
    return TtirModule(funcs)


class _Parser(Cursor):
    # -- functions ------------------------------------------------------------------------------------------------

    def module(self) -> Iterator[Func]:
        self.newlines()
        if whole := self.accept("module"):
            if self.token.kind == "symbol":
                self.next()
            if self.accept("attributes"):
                self.attributes()
            self.expect("{")
        self.newlines()
        while not self.peek("}") and self.token.kind != "end":
            self.expect("tt.func")
            if func := self.func():
                yield func
            self.newlines()
        if whole:
            self.expect("}")
            self.newlines()
        self.kind("end")

    def func(self) -> Func | None:
        public = not (self.accept("private") or self.accept("nested"))  # as MLIR, where nothing is said
        self.accept("public")
        name = self.kind("symbol")
        self.expect("(")
        first = self.arguments()
        if self.accept("->"):
            self.types()
        if self.accept("attributes"):
            self.attributes()
        if not self.peek("{"):
            return None
        body = self.region(first)
        return Func(name, public, first.args, first.types, body, set(_operands(body)))

    def arguments(self) -> TtirBlock:
        """`%a: type, %b: type)`, as functions and blocks declare them."""
        names, types = [], []
        for _ in self.listed(")"):
            names.append(self.kind("value"))
            self.expect(":")
            types.append(self.type())
            if self.peek("{"):
                self.attributes()
        return TtirBlock("", tuple(names), tuple(types))

    def region(self, first: TtirBlock | None = None) -> Region:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"at most {MAX_DEPTH} nested regions")
        self.expect("{")
        blocks = [first or TtirBlock("", (), ())]
        self.newlines()
        while not self.accept("}"):
            if self.token.kind == "label":
                blocks.append(self.block_header())
            else:
                blocks[-1].ops.append(self.op())
                if not self.peek("}") and self.token.kind != "newline":
                    raise self.fail("the end of the op")
            self.newlines()
        self.depth -= 1
        # a region that names its first block (`^bb0(%a: f32):`) leaves the unnamed one empty
        return Region(blocks if blocks[0].ops or first else blocks[1:] or blocks)

    def block_header(self) -> TtirBlock:
        label = self.next().text
        block = self.arguments() if self.accept("(") else TtirBlock("", (), ())
        block.label = label
        self.expect(":")
        return block

    # -- ops ------------------------------------------------------------------------------------------------------

    def op(self) -> Op:
        line, results = self.token.line, self.results()
        if self.token.kind not in ("word", "string"):
            raise self.fail("an op")
        op = Op(self.next().text.strip('"'), line, results)
        if op.name == "scf.for":
            self.for_header(op)
        elif op.name == "scf.while":
            self.while_header(op)
        typed = False
        while self.token.kind not in ("newline", "end") and not self.peek("}"):
            if typed and self.token.kind in ("word", "string") and self.token.text not in _BEHIND_TYPES:
                raise self.fail("the end of the op")
            typed |= self.token.text in (":", "->")
            self.part(op)
        return op

    def results(self) -> tuple[str, ...]:
        names: list[str] = []
        while self.token.kind == "value":
            name, count = self.next().text, 1
            if self.accept(":"):
                count = self.integer()
                names += [f"{name}#{index}" for index in range(min(count, 4096))]
            else:
                names.append(name)
            if not self.accept(","):
                self.expect("=")
        return tuple(names)

    def integer(self) -> int:
        text = self.kind("number")
        if not text.lstrip("-").isdigit() or len(text) > 20:
            raise self.fail("a small integer")
        return int(text)

    def part(self, op: Op) -> None:
        token = self.token
        handler = _PARTS.get(token.text) if token.kind != "string" else None
        handler = handler or _PARTS.get(token.kind)
        if handler is None:
            raise self.fail("part of an op")
        handler(self, op)

    def operand(self, op: Op) -> None:
        op.operands.append(self.next().text)

    def comma(self, op: Op) -> None:
        self.next()

    def group(self, op: Op) -> None:
        """Parentheses and brackets around operands or regions; they only group."""
        closer = _CLOSER[self.next().text]
        while not self.accept(closer):
            if self.token.kind in ("newline", "end"):
                raise self.fail(repr(closer))
            self.part(op)

    def word(self, op: Op) -> None:
        token = self.next()
        name = token.text
        if self.peek("(") if token.kind == "string" else "." in name:  # MLIR takes several of a line
            raise self.fail("the end of the op")
        if self.accept("="):
            op.attrs[name] = self.attribute_value()
        elif self.peek("<"):
            self.angles()
        elif name == "attributes":
            op.attrs.update(self.attributes())
        else:
            op.words.append(name.strip('"') if name.startswith('"') else name)

    def literal(self, op: Op) -> None:
        text = self.next().text
        op.attrs.setdefault("value", Literal(text))
        if op.name == "arith.constant" and text in ("true", "false") and not self.peek(":"):
            op.ins = (I1,)

    def symbol(self, op: Op) -> None:
        op.attrs["callee"] = self.next().text

    def braces(self, op: Op) -> None:
        if self.tokens[self.at + 1].kind == "newline":
            op.regions.append(self.region())
        else:
            op.attrs = dict(self.attributes()) | op.attrs  # as MLIR, which heeds an operation's properties

    def properties(self, op: Op) -> None:
        self.expect("<")
        op.attrs.update(self.attributes())
        self.expect(">")

    def successor(self, op: Op) -> None:
        label, names = self.next().text, []
        if self.accept("("):
            while self.token.kind == "value":
                names.append(self.next().text)
                self.accept(",")
            if self.accept(":"):
                self.types()
            self.expect(")")
        op.successors.append(Successor(label, tuple(names)))

    def signature(self, op: Op) -> None:
        """What follows a colon: operand types, then possibly `->`/`to` and result types."""
        self.next()
        if self.token.kind != "value":  # tt.print has its operands behind a colon
            op.ins = self.types()
            if self.accept("to"):
                op.outs = self.types()

    def arrow(self, op: Op) -> None:
        self.next()
        op.outs = self.types()

    # -- headers that bind names ----------------------------------------------------------------------------------

    def for_header(self, op: Op) -> None:
        if self.accept("unsigned"):
            op.words.append("unsigned")
        names = [self.kind("value")]
        for before in ("=", "to", "step"):
            self.expect(before)
            op.operands.append(self.kind("value"))
        if self.accept("iter_args"):
            names += self.bindings(op)
        if self.accept("->"):
            op.outs = self.types()
        if self.accept(":"):
            op.ins = self.types()
        op.regions.append(self.region(TtirBlock("", tuple(names), ())))

    def while_header(self, op: Op) -> None:
        names = self.bindings(op) if self.peek("(") else []
        self.expect(":")
        op.ins = self.types()
        if self.accept("->"):
            op.outs = self.types()
        op.regions.append(self.region(TtirBlock("", tuple(names), ())))
        self.expect("do")
        op.regions.append(self.region())

    def bindings(self, op: Op) -> list[str]:
        self.expect("(")
        names = []
        for _ in self.listed(")"):
            names.append(self.kind("value"))
            self.expect("=")
            op.operands.append(self.kind("value"))
        return names


_BEHIND_TYPES = ("to", "else", "do", "loc")
_PARTS: dict[str, Callable[[_Parser, Op], None]] = {
    "value": _Parser.operand,
    ",": _Parser.comma,
    "else": _Parser.comma,
    "(": _Parser.group,
    "[": _Parser.group,
    "true": _Parser.literal,
    "false": _Parser.literal,
    "raw": _Parser.literal,
    "number": _Parser.literal,
    "word": _Parser.word,
    "string": _Parser.word,
    "symbol": _Parser.symbol,
    "{": _Parser.braces,
    "<": _Parser.properties,
    "label": _Parser.successor,
    ":": _Parser.signature,
    "->": _Parser.arrow,
}
