"""What stands between the braces of a function: declarations, labels, instructions and their operands. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

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

MOST_REGISTERS = 1 << 16  # of one family; ptxas takes more, nobody writes them


@dataclass
class _Scope:
    """Names that braces hold: register -> its full name."""

    number: int
    names: dict[str, str] = field(default_factory=dict)


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
        self.scopes.append(_Scope(self.opened))
        self.opened += 1

    def declare(self, name: str, kind: str) -> None:
        """A register of the innermost scope."""
        scope = self.scopes[-1]
        full = name if scope.number == 0 else f"{name}@{scope.number}"
        scope.names[name] = full
        self.registers[full] = kind

    def full_name(self, name: str) -> str | None:
        """The register that a name means here; None where it is none."""
        return next((s.names[name] for s in reversed(self.scopes) if name in s.names), None)


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
                draft.enter()
            elif self._in.accept("}"):
                draft.scopes.pop()
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
            self._draft.body.append(Label(token.text, token.line))
        elif token.kind == "word" or token.text == "@":
            self._draft.body.append(self._instruction())
        else:
            raise self._in.error(f"{token.text!r} does not begin an instruction")

    def _directive(self, token: Token) -> None:
        if token.text == ".reg":
            self._registers()
        elif token.text in SPACES:
            self._draft.variables += self._in.variables(token, extern=False)
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
                count = self._in.number("the number of registers")
                self._in.expect(">")
                if count > MOST_REGISTERS:
                    raise self._in.error(f"{count} registers {name}; the limit is {MOST_REGISTERS}")
                for i in range(count):
                    self._draft.declare(f"{name}{i}", kind)
            else:
                self._draft.declare(name, kind)
            if not self._in.accept(","):
                break
        self._in.expect(";")

    def _location(self, token: Token) -> None:
        numbers = [self._in.number("a location") for _ in range(3)]
        self._draft.body.append(Location(numbers[0], numbers[1], token.line))
        while self._in.next.line == token.line and self._in.next.kind != "end":
            self._in.take()

    def _instruction(self) -> Instruction:
        guard = None
        if self._in.accept("@"):
            negated = self._in.accept("!") is not None
            name = self._in.word("a predicate").text
            guard = Guard(self._draft.full_name(name) or name, negated)
        opcode = self._in.word("an instruction")
        head, *modifiers = opcode.text.split(".")  # ".x" may be taken for an element of a vector
        while self._in.next.kind == "dot" and self._in.next.glued:
            modifiers.append(self._in.take().text[1:])
        operands = self._list(";")
        return Instruction(head, tuple(modifiers), operands, opcode.line, guard)

    def _list(self, closing: str) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self._in.accept(closing):
            found.append(self._operand())
            if self._in.next.text != closing:
                self._in.expect(",")
                if self._in.next.text == closing:
                    raise self._in.error("expected an operand behind ','")
        return tuple(found)

    def _group(self) -> Group:
        self._in.expect("(")
        return Group(self._list(")"))

    def _operand(self) -> Operand:
        readers: dict[str, Callable[[], Operand]] = {
            "[": self._address, "{": self._vector, "(": self._group, "!": self._not,
        }  # fmt: skip
        token = self._in.next
        operand = readers[token.text]() if token.text in readers else self._plain()
        return Both(operand, self._operand()) if self._in.accept("|") else operand

    def _vector(self) -> Vector:
        self._in.expect("{")
        return Vector(self._list("}"))

    def _not(self) -> Not:
        self._in.expect("!")
        name = self._in.word("a predicate").text
        return Not(Register(self._draft.full_name(name) or name))

    def _plain(self) -> Operand:
        if self._in.next.kind != "word":
            return self._in.constant()
        named = self._named(self._in.take().text)
        return replace(named, offset=self._in.offset()) if isinstance(named, Symbol) else named

    def _named(self, name: str) -> Register | Symbol:
        base, dot, element = name.partition(".")
        full = self._draft.full_name(base)
        if full is not None:
            return Register(full + dot + element)
        return Register(name) if name.startswith("%") else Symbol(name)

    def _address(self) -> Address:
        self._in.expect("[")
        base = self._named(self._in.take().text) if self._in.next.kind == "word" else None
        offset = self._in.offset() if base is not None else self._in.number("an address")
        more: tuple[Operand, ...] = ()
        if self._in.accept(","):
            more = self._list("]")
        else:
            self._in.expect("]")
        return Address(base, offset, more)
