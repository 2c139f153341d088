"""What PTX text says, as data, and how it is read: tokens, constant expressions, statements, functions. Lines count
from 1. Pure.

Reads what people and compilers write; what instructions mean it does not know."""

import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple


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
    """A vector of registers or numbers, {a, b, ...}, or what a call passes or returns, (a, b, ...)."""

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


Operand = Register | Symbol | Immediate | Address | Vector | Not | Both


def leaves(operand: Operand) -> "Iterator[Register | Symbol | Immediate]":
    """Yield the registers, symbols and numbers of an operand, in the order in which they are written."""
    match operand:
        case Vector(items):
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
    """A place to branch to. `targets`: it names a table of such places, which brx.idx chooses from."""

    name: str
    line: int
    targets: tuple[str, ...] = ()


Item = Instruction | Label


@dataclass(frozen=True)
class Variable:
    """Memory with a name. `space`: shared, local, global, const or param; `type` as written ("u64"); `count` None is a
    single element, 0 an array whose size the launch gives (dynamic shared memory). `values`: what it begins with, if
    that is numbers alone. `ptr`: a parameter is said to point."""

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
    ptr: bool = False

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
    params: tuple[Variable, ...] = ()
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


# ---
# PTX text to tokens, as ptxas divides it: a string has no escapes and ends at the next quote, a comment ends at the
# line feed alone. What it would divide otherwise, every check of a text could be led past. Pure.

_COMMENT = re.compile(r'"[^"]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\v\f\r]+|//[^\n]*|/\*.*?\*/)
    | (?P<string>"[\t-\r\ !\#-~]*")
    | (?P<word>[A-Za-z_$%][\w$]*(?:\.[xyzwrgba](?!\w))?)
    | (?P<dot>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<number>0[fF][0-9A-Fa-f]{8}\b|0[dD][0-9A-Fa-f]{16}\b|0[xX][0-9A-Fa-f]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    | (?P<mark>&&|\|\||<<|>>|[=!<>]=|[{}()\[\],;:@!|+\-*/<>=~&^?%\#])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class PtxToken(NamedTuple):
    """A piece of text. `kind`: word, dot (".global"), number, string, mark, end."""

    kind: str
    text: str
    line: int


def tokens(text: str) -> list[PtxToken]:
    """Return all tokens but spaces and comments, and one of kind "end". Raises PtxError."""
    found: list[PtxToken] = []
    at, line = 0, 1
    while at < len(text):
        piece = _TOKEN.match(text, at)
        if piece is None:
            raise PtxError(line, f"cannot read {text[at]!r}", line_of(text, line))
        kind, said = str(piece.lastgroup), piece[0]
        if kind != "space":
            found.append(PtxToken(kind, said, line))
        line += said.count("\n") if kind in ("space", "string") else 0
        at = piece.end()
    found.append(PtxToken("end", "", line))
    return found


def without_comments(text: str) -> str:
    """The text with each comment as a space, and as many lines: what is left holds no comment for anybody to read
    otherwise."""
    return _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " " + "\n" * m[0].count("\n"), text)


def line_of(text: str, line: int) -> str:
    """Return a line of a text, counted from 1; empty where there is none."""
    lines = text.split("\n", line)
    return lines[line - 1] if 0 < line <= len(lines) else ""


# ---
# Constant expressions of PTX (`4*2+1`, `(.s64)3`, `1<<4`), which stand wherever a number may. Pure.
#
# Whole numbers have 64 bits: signed, unless written with U or too large for that; one unsigned side makes both so.

Number = int | float
CASTS = (".s64", ".u64")
WARP = "WARP_SZ"


class NoValue(ValueError):
    """An expression that has no value: a division by zero, a fraction where only whole numbers are."""


class Value:
    """A number of an expression, with the type that decides how it goes on. `bits` as in `Immediate`."""

    def __init__(self, number: Number, *, unsigned: bool = False, bits: int = 0) -> None:
        self.unsigned, self.bits = unsigned and isinstance(number, int), bits
        self.number = _wrapped(number, self.unsigned) if isinstance(number, int) else number

    @property
    def immediate(self) -> Immediate:
        """The operand of an instruction that has this value."""
        return Immediate(self.number, self.bits)


def _wrapped(number: int, unsigned: bool) -> int:
    number &= (1 << 64) - 1
    return number if unsigned or number < 1 << 63 else number - (1 << 64)


def _divided(a: Number, b: Number) -> Number:
    if not b:
        raise NoValue("a division by zero")
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - b * int(_divided(a, b))


_ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divided,
}  # fmt: skip
_WHOLE: dict[str, Callable[[int, int], int]] = {
    "%": _remainder, "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
_SHIFTS: dict[str, Callable[[int, int], int]] = {
    "<<": lambda a, b: a << b % 64, ">>": lambda a, b: a >> b % 64,
}  # fmt: skip
_COMPARED: dict[str, Callable[[Number, Number], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "&&": lambda a, b: bool(a) and bool(b), "||": lambda a, b: bool(a) or bool(b),
}  # fmt: skip
LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
          ("*", "/", "%"))  # fmt: skip


def binary(mark: str, a: Value, b: Value) -> Value:
    """`a mark b`. Raises NoValue."""
    unsigned = a.unsigned or b.unsigned
    left, right = a.number, b.number
    unsigned |= mark == "%"
    if unsigned and isinstance(left, int) and isinstance(right, int) and mark not in _SHIFTS:
        left, right = _wrapped(left, True), _wrapped(right, True)
    if mark in _COMPARED:
        return Value(int(_COMPARED[mark](left, right)))
    if mark in _ARITHMETIC:
        return Value(_ARITHMETIC[mark](left, right), unsigned=unsigned)
    if not isinstance(left, int) or not isinstance(right, int):
        raise NoValue(f"{mark!r} takes whole numbers")
    if mark in _WHOLE:
        return Value(_WHOLE[mark](left, right), unsigned=unsigned)
    return Value(_SHIFTS[mark](left, _wrapped(right, True)), unsigned=a.unsigned)


def unary(mark: str, a: Value) -> Value:
    """`mark a`: + - ! ~ (which ptxas takes for unsigned), or a cast. Raises NoValue."""
    if mark == "+":
        return a
    if mark == "-":
        return Value(-a.number, unsigned=a.unsigned, bits=a.bits)
    if mark == "!":
        return Value(int(not a.number))
    if not isinstance(a.number, int):
        raise NoValue(f"{mark!r} takes a whole number")
    return Value(~a.number, unsigned=True) if mark == "~" else Value(a.number, unsigned=mark == ".u64")


# ---
# Tokens of PTX text, taken one by one, and the small things that stand everywhere: numbers, types, variables. Pure.

LINKING = (".visible", ".extern", ".weak", ".common")
MOST_DIGITS = 66  # 0b and 64 bits
MOST_NESTED = 16
MOST_ELEMENTS = 1 << 40  # of an array; more is no memory of any GPU
_PRODUCTS = LEVELS.index(("*", "/", "%"))
_ENDS = frozenset(",;]})")
SPACES = (".global", ".const", ".shared", ".local", ".param", ".tex")


class Stream:
    """A text that is being read. What it cannot read raises PtxError."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at = text, tokens(text), 0
        self._depth = 0

    @property
    def next(self) -> PtxToken:
        """The token that comes next."""
        return self.tokens[self.at]

    @property
    def after(self) -> PtxToken:
        """The token behind the next."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def skip(self, count: int) -> None:
        """Pass over some tokens."""
        self.at = min(self.at + count, len(self.tokens) - 1)

    def take(self) -> PtxToken:
        """The next token; the last, which is of kind "end", comes again and again."""
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def accept(self, *texts: str) -> PtxToken | None:
        """Take the next token if its text is one of these."""
        return self.take() if self.next.text in texts and self.next.kind != "string" else None

    def expect(self, text: str) -> PtxToken:
        """Take the next token, whose text has to be this."""
        token = self.accept(text)
        if token is None:
            raise self.error(f"expected {text!r} before {self.next.text or 'the end'!r}")
        return token

    def word(self, what: str) -> PtxToken:
        """Take the next token, which has to be a word."""
        if self.next.kind != "word":
            raise self.error(f"expected {what} before {self.next.text or 'the end'!r}")
        return self.take()

    def number(self, what: str) -> int:
        """A whole number with its sign."""
        value = self.constant()
        if not isinstance(value.value, int):
            raise self.error(f"{what} is a whole number")
        return value.value

    def plain_number(self, what: str) -> int:
        """A whole number as it is written, no expression."""
        value = self._literal(self.take()).number
        if not isinstance(value, int):
            raise self.error(f"{what} is a whole number")
        return value

    def error(self, message: str, token: PtxToken | None = None) -> PtxError:
        """What is wrong, with the line of a token (the next one) and what it says."""
        line, text = (token or self.next).line, (token or self.next).text
        if text == "#":
            message = "PTX is read as it is, without a preprocessor; remove this line"
        return PtxError(line, message, line_of(self.text, line))

    def missing(self, comma: str, closing: str) -> PtxError:
        """Return the error for a missing mark, at the last token: the next may be of another statement."""
        last, token = self.tokens[max(0, self.at - 1)], self.next
        if token.line == last.line:
            return self.error(f"expected {comma!r} or {closing!r} before {token.text[:40] or 'the end'!r}")
        return self.error(f"expected {comma!r} or {closing!r} behind {last.text[:40]!r}", last)

    def until_semicolon(self) -> None:
        """Skip to behind the next semicolon."""
        while self.take().text != ";":
            if self.next.kind == "end":
                raise self.error("';' is missing")

    def type(self, token: PtxToken) -> str:
        """A scalar type: ".u32" says "u32"."""
        kind = token.text[1:]
        try:
            type_bytes(kind)
        except ValueError as error:
            raise self.error(str(error), token) from error
        return kind

    def count(self) -> int | None:
        """Read an array's size: [2][3] is 6, [] is 0; None without brackets."""
        count = None
        while self.accept("["):
            size = 0 if self.next.text == "]" else self.number("an array's size")
            self.expect("]")
            count = size if count is None else count * size
            if not 0 <= count <= MOST_ELEMENTS:
                raise self.error(f"an array of {count} elements")
        return count

    def offset(self) -> int:
        """Read what is added to a name, in bytes: `+4-2` is 2."""
        total = 0
        while sign := self.accept("+", "-"):
            value = self._value(_PRODUCTS).number
            if not isinstance(value, int):
                raise self.error("an offset is a whole number")
            total += value if sign.text == "+" else -value
        return total

    def constant(self) -> Immediate:
        """A number of any form, or an expression that makes one."""
        if self.next.kind == "number" and self.after.text in _ENDS:
            return self._literal(self.take()).immediate
        return self._chosen().immediate

    def _chosen(self) -> Value:
        value = self._value(0)
        if not (mark := self.accept("?")):
            return value
        with self.nested(mark):
            first = self._chosen()
            self.expect(":")
            second = self._chosen()
        return first if value.number else second

    def _value(self, level: int) -> Value:
        if level == len(LEVELS):
            return self._signed()
        value = self._value(level + 1)
        while mark := self.accept(*LEVELS[level]):
            with self._valued(mark):
                value = binary(mark.text, value, self._value(level + 1))
        return value

    def _signed(self) -> Value:
        marks: list[PtxToken] = []
        while mark := self.accept("-", "+", "!", "~"):
            marks.append(mark)
        value = self._inner()
        for mark in reversed(marks):
            with self._valued(mark):
                value = unary(mark.text, value)
        return value

    def _inner(self) -> Value:
        if not (opening := self.accept("(")):
            return self._literal(self.take())
        with self.nested(opening):
            if cast := self.accept(*CASTS):
                self.expect(")")
                with self._valued(cast):
                    return unary(cast.text, self._signed())
            value = self._chosen()
        self.expect(")")
        return value

    def _literal(self, token: PtxToken) -> Value:
        if token.text == WARP:
            return Value(32)
        fraction = token.kind == "dot" and token.text[1:].isdecimal()
        if (token.kind != "number" and not fraction) or len(token.text) > MOST_DIGITS:
            raise self.error(f"expected an operand before {token.text[:40] or 'the end'!r}", token)
        number = _number(token.text)
        large = isinstance(number.value, int) and number.value >= 1 << 63
        return Value(number.value, unsigned=large or token.text[-1] == "U", bits=number.bits)

    @contextmanager
    def _valued(self, token: PtxToken) -> Iterator[None]:
        try:
            yield
        except NoValue as error:
            raise self.error(str(error), token) from error

    @contextmanager
    def nested(self, opening: PtxToken) -> Iterator[None]:
        """Count brackets within brackets. Raises PtxError where they are too deep."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self.error(f"brackets more than {MOST_NESTED} deep", opening)
        yield
        self._depth -= 1

    def variables(self, space: PtxToken, *, extern: bool) -> list[Variable]:
        """Read the variables of a declaration whose state space was just taken."""
        align, vector, kind = None, 1, ""
        while self.next.kind == "dot":
            token = self.take()
            if token.text == ".align":
                align = self.number("an alignment")
            elif token.text in (".v2", ".v4", ".v8"):
                vector = int(token.text[2:])
            elif token.text == ".attribute":  # (.managed)
                while self.take().text != ")" and self.next.kind != "end":
                    pass
            elif token.text != ".ptr":
                kind = self.type(token)
        if not kind:
            raise self.error("a variable has a type, as in `.shared .b8 buffer[1024]`", space)
        found: list[Variable] = []
        while True:
            name = self.word("a variable's name")
            count = self.count()
            given = self.accept("=") is not None
            values = self._values() if given else ()
            variable = Variable(name.text, space.text[1:], kind, name.line, count, vector, align, extern, given, values)
            found.append(variable)
            if not self.accept(","):
                self.expect(";")
                return found

    def _values(self) -> tuple[int | float, ...]:
        """Read an initial value, its nested braces written out; nothing where it is not numbers alone."""
        depth, plain = 0, True
        found: list[int | float] = []
        while self.next.kind != "end" and not (depth == 0 and self.next.text in (",", ";")):
            if self.next.kind == "number" or self.next.text == "-":
                found.append(self.constant().value)
                continue
            token = self.take()
            depth += (token.text == "{") - (token.text == "}")
            plain = plain and token.text in ("{", "}", ",")
        return tuple(found) if plain else ()


def _number(text: str) -> Immediate:
    head = text[:2].lower()
    if head == "0f":
        return Immediate(struct.unpack(">f", bytes.fromhex(text[2:]))[0], 32)
    if head == "0d":
        return Immediate(struct.unpack(">d", bytes.fromhex(text[2:]))[0], 64)
    plain = text.rstrip("U")
    if head == "0x":
        return Immediate(int(plain, 16))
    if head == "0b":
        return Immediate(int(plain, 2))
    if plain.isdecimal():
        octal = len(plain) > 1 and plain[0] == "0" and set(plain) <= set("01234567")
        return Immediate(int(plain, 8 if octal else 10))
    return Immediate(float(plain))


# ---
# What stands between the braces of a function: declarations, labels, instructions and their operands. Pure.

MOST_REGISTERS = 1 << 17  # of one function; ptxas takes more, nobody writes them
_BRANCHES = ("bra", "brx")
ELEMENTS = frozenset(f".{letter}" for letter in "xyzwrgba")
MOST_SCOPES = 64  # open at once


@dataclass
class _ParsedScope:
    """The names declared between two braces, with the full name of each: registers (True) and variables (False), and
    labels. `start`: place in the body."""

    number: int
    start: int = 0
    names: dict[str, tuple[str, bool]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def full(self, name: str) -> str:
        """A name of this scope, distinct from the same one of another."""
        return name if self.number == 0 else f"{name}@{self.number}"


@dataclass
class FunctionDraft:
    """A function that is being read."""

    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Item] = field(default_factory=list)
    scopes: list[_ParsedScope] = field(default_factory=list)
    opened: int = 0
    end_line: int = 0

    def enter(self) -> None:
        """Open a scope, at an opening brace."""
        self.scopes.append(_ParsedScope(self.opened, len(self.body)))
        self.opened += 1

    def leave(self) -> None:
        """Close a scope: branches inside that named a label of it, be it before the label, meant that one."""
        scope = self.scopes.pop()
        if scope.number and scope.labels:
            for i in range(scope.start, len(self.body)):
                self.body[i] = _renamed(self.body[i], scope.labels)

    def declare(self, name: str, kind: str) -> None:
        """Declare a register in the innermost scope."""
        scope = self.scopes[-1]
        full = scope.full(name)
        scope.names[name] = full, True
        self.registers[full] = kind

    def declare_memory(self, variable: Variable) -> None:
        """Declare a variable in the innermost scope."""
        scope = self.scopes[-1]
        full = scope.full(variable.name)
        scope.names[variable.name] = full, False
        self.variables.append(replace(variable, name=full))

    def label(self, name: str, line: int) -> None:
        """Place a label of the innermost scope."""
        self.scopes[-1].labels[name] = self.scopes[-1].full(name)
        self.body.append(Label(name, line))

    def meant(self, name: str) -> tuple[str, bool]:
        """The full name of the register (True) or variable that a name means here; of what is declared nowhere the name
        itself."""
        return next((scope.names[name] for scope in reversed(self.scopes) if name in scope.names), (name, False))


def _renamed(item: Item, names: Mapping[str, str]) -> Item:
    if isinstance(item, Label):
        targets = tuple(names.get(target, target) for target in item.targets)
        return replace(item, name=names.get(item.name, item.name), targets=targets)
    if item.opcode not in _BRANCHES:
        return item
    operands = tuple(
        replace(o, name=names[o.name]) if isinstance(o, Symbol) and o.name in names else o for o in item.operands
    )
    return replace(item, operands=operands)


class _BodyParser(Stream):
    """Reads the bodies of functions."""

    _draft: FunctionDraft  # of the function whose body is being read

    def body(self) -> FunctionDraft:
        """Read from the opening brace to the closing one. Raises PtxError."""
        opening = self.expect("{")
        draft = self._draft = FunctionDraft()
        draft.enter()
        while True:
            token = self.next
            if token.kind == "end":
                raise self.error("this '{' is never closed", opening)
            if self.accept("{"):
                if len(draft.scopes) == MOST_SCOPES:
                    raise self.error(f"braces more than {MOST_SCOPES} deep", token)
                draft.enter()
            elif self.accept("}"):
                draft.leave()
                if not draft.scopes:
                    draft.end_line = token.line
                    return draft
            elif not self.accept(";"):
                self._statement()

    def _statement(self) -> None:
        token = self.next
        if token.kind == "dot":
            self._directive(self.take())
        elif token.kind == "word" and self.after.text == ":":
            self.skip(2)
            self._draft.label(token.text, token.line)
        elif token.kind == "word" or token.text == "@":
            self._draft.body.append(self._instruction())
        else:
            raise self.error(f"{token.text!r} does not begin an instruction")

    def _directive(self, token: PtxToken) -> None:
        if token.text == ".reg":
            self._registers()
        elif token.text in SPACES:
            for variable in self.variables(token, extern=False):
                self._draft.declare_memory(variable)
        elif token.text == ".loc":
            self._location(token)
        elif token.text == ".branchtargets" and self._draft.body and isinstance(self._draft.body[-1], Label):
            self._draft.body[-1] = replace(self._draft.body[-1], targets=self._targets())
        elif token.text in (".pragma", ".branchtargets", ".calltargets", ".callprototype"):
            self.until_semicolon()
        else:
            raise self.error(f"{token.text!r} is no directive of a function's body", token)

    def _targets(self) -> tuple[str, ...]:
        found = [self.word("a label").text]
        while self.accept(","):
            found.append(self.word("a label").text)
        self.expect(";")
        return tuple(found)

    def _registers(self) -> None:
        token = self.take()
        while token.text in (".v2", ".v4"):
            token = self.take()
        kind = self.type(token)
        while True:
            name = self.word("a register's name").text
            if self.accept("<"):
                count = self.plain_number("the number of registers")
                self.expect(">")
                if count + len(self._draft.registers) > MOST_REGISTERS:
                    raise self.error(f"{count} registers {name}; the limit is {MOST_REGISTERS} of a function")
                for i in range(count):
                    self._draft.declare(f"{name}{i}", kind)
            else:
                self._draft.declare(name, kind)
            if not self.accept(","):
                break
        self.expect(";")

    def _location(self, token: PtxToken) -> None:
        """Skip `.loc 1 12 3`, and where it was inlined: what follows in the same line is an instruction."""
        for _ in range(3):
            self.number("a location")
        if self.accept(","):
            if self.word("function_name").text != "function_name":
                raise self.error("expected function_name", token)
            self.word("a function's label")
            self.offset()
            self.expect(",")
            if self.word("inlined_at").text != "inlined_at":
                raise self.error("expected inlined_at", token)
            for _ in range(3):
                self.number("a location")

    def _instruction(self) -> Instruction:
        guard = None
        if self.accept("@"):
            negated = self.accept("!") is not None
            name = self.word("a predicate").text
            guard = Guard(self._draft.meant(name)[0], negated)
        opcode = self.word("an instruction")
        head, *modifiers = opcode.text.split(".")  # ".x" may be taken for an element of a vector
        while self.next.kind == "dot":
            modifiers.append(self.take().text[1:])
        operands = self._list(";", groups=head == "call")
        return Instruction(head, tuple(modifiers), operands, opcode.line, guard)

    def _list(self, closing: str, *, groups: bool = False) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self.accept(closing):
            found.append(self._group() if groups and self.next.text == "(" else self._operand())
            if self.next.text != closing:
                if self.next.text != ",":
                    raise self.missing(",", closing)
                self.skip(1)
                if self.next.text == closing:
                    raise self.error("expected an operand behind ','")
        return tuple(found)

    def _group(self) -> Vector:
        self.expect("(")
        return Vector(self._list(")"))

    def _operand(self) -> Operand:
        text = self.next.text
        if text == "[":
            return self._address()
        operand = self._vector() if text == "{" else self._plain()
        if not (mark := self.accept("|")):
            return operand
        with self.nested(mark):
            return Both(operand, self._operand())

    def _vector(self) -> Vector:
        with self.nested(self.expect("{")):
            return Vector(self._list("}"))

    def _plain(self) -> Operand:
        token = self.next
        if token.text == "!" and self.after.kind == "word":
            self.skip(1)
            name = self.take().text
            return Not(Register(self._draft.meant(name)[0]))
        if token.kind != "word" or token.text == WARP:
            return self.constant()
        named = self._named(self.take().text)
        return replace(named, offset=self.offset()) if isinstance(named, Symbol) else named

    def _named(self, name: str) -> Register | Symbol:
        if self.next.text in ELEMENTS:  # "%tid .x"
            name += self.take().text
        base, dot, element = name.partition(".")
        full, is_register = self._draft.meant(base)
        if is_register:
            return Register(full + dot + element)
        return Register(name) if name.startswith("%") else Symbol(self._draft.meant(name)[0])

    def _address(self) -> Address:
        self.expect("[")
        base = self._named(self.take().text) if self.next.kind == "word" else None
        offset = self.offset() if base is not None else self.number("an address")
        more: tuple[Operand, ...] = ()
        if self.accept(","):
            with self.nested(self.next):
                more = self._list("]")
        else:
            self.expect("]")
        return Address(base, offset, more)


# ---
# Whole files.

MOST_TEXT_BYTES = 1 << 20


@lru_cache(maxsize=64)
def parse(text: str) -> Module:
    """The module that a text describes. Raises PtxError, which names the line."""
    if len(text) > MOST_TEXT_BYTES:
        raise PtxError(1, f"{len(text)} characters of PTX; the limit is {MOST_TEXT_BYTES} (1 MiB)")
    parser = _ModuleParser(text)
    try:
        return parser.module()
    except RecursionError as error:
        raise parser.error("operands nested too deeply") from error


class _ModuleParser(_BodyParser):
    """Reads a PTX file."""

    def module(self) -> Module:
        module = self._head()
        functions: list[Function] = []
        variables: list[Variable] = []
        while self.next.kind != "end":
            links = self._links()
            token = self.take()
            if token.text in (".entry", ".func"):
                functions.append(self._function(entry=token.text == ".entry"))
            elif token.text in SPACES:
                variables += self.variables(token, extern=".extern" in links)
            elif token.text == ".file":
                self.number("a file's number")
                self.take()
                while self.accept(","):
                    self.take()
            elif token.text == ".section":
                self._skip_section()
            elif token.text in (".pragma", ".alias"):
                self.until_semicolon()
            else:
                raise self.error(f"{token.text!r} does not begin a declaration", token)
        return replace(module, functions=tuple(functions), variables=tuple(variables))

    def _head(self) -> Module:
        version_token = self.take()
        if version_token.text != ".version":
            raise self.error("PTX begins with .version, as in `.version 8.0`", version_token)
        version = self.take().text.split(".")
        if len(version) != 2 or not all(part.isdecimal() and len(part) < 4 for part in version):
            raise self.error("a version has the form 8.0", version_token)
        target_token = self.take()
        if target_token.text != ".target":
            raise self.error(".target follows .version, as in `.target sm_90a`", target_token)
        target = self.word("a target").text
        while self.accept(","):
            if self.word("a target option").text.startswith(("sm_", "compute_")):
                raise self.error("a text has one target: keep one of them", target_token)
        size = self.number("the address size") if self.accept(".address_size") else 64
        numbers = (int(version[0]), int(version[1]))
        return Module(numbers, target, target_token.line, size)

    def _links(self) -> set[str]:
        found = set()
        while token := self.accept(*LINKING):
            found.add(token.text)
        return found

    def _skip_section(self) -> None:
        """Skip a .section: it holds debug information."""
        while self.next.text != "{":
            if self.take().kind == "end":
                raise self.error("a .section has no body")
        depth = 0
        while self.next.kind != "end":
            token = self.take()
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return
        raise self.error("a .section is not closed")

    def _function(self, *, entry: bool) -> Function:
        if self.next.text == "(":
            self._params()  # what it returns
        name = self.word("the function's name")
        params = self._params() if self.next.text == "(" else ()
        directives = self._directives()
        function = Function(name.text, name.line, entry, params, directives)
        if self.accept(";"):
            return replace(function, defined=False, end_line=name.line)
        draft = self.body()
        return replace(
            function,
            registers=draft.registers,
            variables=tuple(draft.variables),
            body=tuple(draft.body),
            end_line=draft.end_line,
        )

    def _params(self) -> tuple[Variable, ...]:
        self.expect("(")
        found: list[Variable] = []
        while not self.accept(")"):
            found.append(self._param())
            if self.next.text != ")":
                self.expect(",")
        return tuple(found)

    def _param(self) -> Variable:
        if not self.accept(".param", ".reg"):
            raise self.error(f"expected .param before {self.next.text or 'the end'!r}")
        align, kind, ptr = None, "", False
        while self.next.kind == "dot":
            token = self.take()
            if token.text == ".align":
                align = self.number("an alignment")
            elif token.text == ".ptr":
                ptr = True
            elif not (ptr and token.text in SPACES):
                kind = self.type(token)
        name = self.word("a parameter's name")
        if not kind:
            raise self.error("a parameter has a type, as in `.param .u64 x`", name)
        return Variable(name.text, "param", kind, name.line, self.count(), align=align, ptr=ptr)

    def _directives(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        while self.next.kind == "dot":
            token = self.take()
            if token.text == ".pragma":
                self.until_semicolon()
                continue
            numbers: list[int] = []
            while self.next.kind == "number":
                numbers.append(self.number(f"{token.text} takes numbers; it"))
                if not self.accept(","):
                    break
            found[token.text[1:]] = tuple(numbers)
        return found
