"""What stands between the braces of a function: declarations, labels, instructions and their operands. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tools.ptx.constants import WARP
from tools.ptx.ir import (
    Address,
    Both,
    Group,
    Guard,
    Instruction,
    Item,
    Label,
    Location,
    Not,
    Operand,
    Register,
    Symbol,
    Variable,
    Vector,
)
from tools.ptx.lexer import Token
from tools.ptx.stream import SPACES, Stream

MOST_REGISTERS = 1 << 17  # of one function; ptxas takes more, nobody writes them
_BRANCHES = ("bra", "brx")
ELEMENTS = frozenset(f".{letter}" for letter in "xyzwrgba")
MOST_SCOPES = 64  # open at once


@dataclass
class _Scope:
    """Names that braces hold: register, variable or label -> its full name. `start`: where in the body it begins."""

    number: int
    start: int = 0
    names: dict[str, str] = field(default_factory=dict)
    memory: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    def full(self, name: str) -> str:
        """A name of this scope, distinct from the same one of another."""
        return name if self.number == 0 else f"{name}@{self.number}"


@dataclass
class Draft:
    """A function that is being read."""

    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Item] = field(default_factory=list)
    scopes: list[_Scope] = field(default_factory=list)
    opened: int = 0
    end_line: int = 0

    def enter(self) -> None:
        """A brace opens a scope."""
        self.scopes.append(_Scope(self.opened, len(self.body)))
        self.opened += 1

    def leave(self) -> None:
        """A brace closes one: branches inside that named a label of it, be it before the label, meant that one."""
        scope = self.scopes.pop()
        if scope.number and scope.labels:
            for i in range(scope.start, len(self.body)):
                self.body[i] = _renamed(self.body[i], scope.labels)

    def declare(self, name: str, kind: str) -> None:
        """A register of the innermost scope."""
        scope = self.scopes[-1]
        full = scope.full(name)
        scope.names[name] = full
        scope.memory.pop(name, None)
        self.registers[full] = kind

    def declare_memory(self, variable: Variable) -> None:
        """A variable of the innermost scope."""
        scope = self.scopes[-1]
        full = scope.full(variable.name)
        scope.memory[variable.name] = full
        scope.names.pop(variable.name, None)
        self.variables.append(replace(variable, name=full))

    def label(self, name: str, line: int) -> None:
        """A label of the innermost scope."""
        self.scopes[-1].labels[name] = self.scopes[-1].full(name)
        self.body.append(Label(name, line))

    def full_name(self, name: str) -> str | None:
        """The register that a name means here; None where it is none."""
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
            if name in scope.memory:
                return None
        return None

    def memory_name(self, name: str) -> str:
        """The variable that a name means here, or the name itself."""
        return next((s.memory[name] for s in reversed(self.scopes) if name in s.memory), name)


def _renamed(item: Item, names: Mapping[str, str]) -> Item:
    if isinstance(item, Label):
        return replace(item, name=names.get(item.name, item.name))
    if not isinstance(item, Instruction) or item.opcode not in _BRANCHES:
        return item
    operands = tuple(
        replace(o, name=names[o.name]) if isinstance(o, Symbol) and o.name in names else o for o in item.operands
    )
    return replace(item, operands=operands)


class Body:
    """Reads one body from a stream that stands behind its opening brace."""

    def __init__(self, stream: Stream) -> None:
        self._in, self._draft = stream, Draft()

    def read(self, opening: Token) -> Draft:
        """All up to the closing brace, which `opening` opened. Raises PtxError."""
        draft = self._draft
        draft.enter()
        while True:
            token = self._in.next
            if token.kind == "end":
                raise self._in.error("this '{' is never closed", opening)
            if self._in.accept("{"):
                if len(draft.scopes) == MOST_SCOPES:
                    raise self._in.error(f"braces more than {MOST_SCOPES} deep", token)
                draft.enter()
            elif self._in.accept("}"):
                draft.leave()
                if not draft.scopes:
                    draft.end_line = token.line
                    return draft
            elif not self._in.accept(";"):
                self._statement()

    def _statement(self) -> None:
        token = self._in.next
        if token.kind == "dot":
            self._directive(self._in.take())
        elif token.kind == "word" and self._in.after.text == ":":
            self._in.skip(2)
            self._draft.label(token.text, token.line)
        elif token.kind == "word" or token.text == "@":
            self._draft.body.append(self._instruction())
        else:
            raise self._in.error(f"{token.text!r} does not begin an instruction")

    def _directive(self, token: Token) -> None:
        if token.text == ".reg":
            self._registers()
        elif token.text in SPACES:
            for variable in self._in.variables(token, extern=False):
                self._draft.declare_memory(variable)
        elif token.text == ".loc":
            self._location(token)
        elif token.text in (".pragma", ".branchtargets", ".calltargets", ".callprototype"):
            self._in.until_semicolon()
        else:
            raise self._in.error(f"{token.text!r} is no directive of a function's body", token)

    def _registers(self) -> None:
        token = self._in.take()
        while token.text in (".v2", ".v4"):
            token = self._in.take()
        kind = self._in.type(token)
        while True:
            name = self._in.word("a register's name").text
            if self._in.accept("<"):
                count = self._in.plain_number("the number of registers")
                self._in.expect(">")
                if count + len(self._draft.registers) > MOST_REGISTERS:
                    raise self._in.error(f"{count} registers {name}; the limit is {MOST_REGISTERS} of a function")
                for i in range(count):
                    self._draft.declare(f"{name}{i}", kind)
            else:
                self._draft.declare(name, kind)
            if not self._in.accept(","):
                break
        self._in.expect(";")

    def _location(self, token: Token) -> None:
        """`.loc 1 12 3`, and where it was inlined; what follows in the same line is an instruction as any other."""
        file, line, _ = (self._in.number("a location") for _ in range(3))
        self._draft.body.append(Location(file, line, token.line))
        if self._in.accept(","):
            if self._in.word("function_name").text != "function_name":
                raise self._in.error("expected function_name", token)
            self._in.word("a function's label")
            self._in.offset()
            self._in.expect(",")
            if self._in.word("inlined_at").text != "inlined_at":
                raise self._in.error("expected inlined_at", token)
            for _ in range(3):
                self._in.number("a location")

    def _instruction(self) -> Instruction:
        guard = None
        if self._in.accept("@"):
            negated = self._in.accept("!") is not None
            name = self._in.word("a predicate").text
            guard = Guard(self._draft.full_name(name) or name, negated)
        opcode = self._in.word("an instruction")
        head, *modifiers = opcode.text.split(".")  # ".x" may be taken for an element of a vector
        while self._in.next.kind == "dot":
            modifiers.append(self._in.take().text[1:])
        operands = self._list(";", groups=head == "call")
        return Instruction(head, tuple(modifiers), operands, opcode.line, guard)

    def _list(self, closing: str, *, groups: bool = False) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self._in.accept(closing):
            found.append(self._group() if groups and self._in.next.text == "(" else self._operand())
            if self._in.next.text != closing:
                if self._in.next.text != ",":
                    raise self._in.missing(",", closing)
                self._in.skip(1)
                if self._in.next.text == closing:
                    raise self._in.error("expected an operand behind ','")
        return tuple(found)

    def _group(self) -> Group:
        self._in.expect("(")
        return Group(self._list(")"))

    def _operand(self) -> Operand:
        text = self._in.next.text
        if text == "[":
            return self._address()
        operand = self._vector() if text == "{" else self._plain()
        if not (mark := self._in.accept("|")):
            return operand
        with self._in.nested(mark):
            return Both(operand, self._operand())

    def _vector(self) -> Vector:
        with self._in.nested(self._in.expect("{")):
            return Vector(self._list("}"))

    def _plain(self) -> Operand:
        token = self._in.next
        if token.text == "!" and self._in.after.kind == "word":
            self._in.skip(1)
            name = self._in.take().text
            return Not(Register(self._draft.full_name(name) or name))
        if token.kind != "word" or token.text == WARP:
            return self._in.constant()
        named = self._named(self._in.take().text)
        return replace(named, offset=self._in.offset()) if isinstance(named, Symbol) else named

    def _named(self, name: str) -> Register | Symbol:
        if self._in.next.text in ELEMENTS:  # "%tid .x"
            name += self._in.take().text
        base, dot, element = name.partition(".")
        full = self._draft.full_name(base)
        if full is not None:
            return Register(full + dot + element)
        return Register(name) if name.startswith("%") else Symbol(self._draft.memory_name(name))

    def _address(self) -> Address:
        self._in.expect("[")
        base = self._named(self._in.take().text) if self._in.next.kind == "word" else None
        offset = self._in.offset() if base is not None else self._in.number("an address")
        more: tuple[Operand, ...] = ()
        if self._in.accept(","):
            with self._in.nested(self._in.next):
                more = self._list("]")
        else:
            self._in.expect("]")
        return Address(base, offset, more)
