"""Which register each word of a function's text means, and what defines and uses it. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tools.ptx.lexer import Token
from tools.ptx.statements import Statement, guard_of, modifiers_of, opcode_of, operands, split_element

# Instructions whose first operand is nothing that they write.
_WITHOUT_RESULT = frozenset(
    "st stmatrix red bar barrier bra brx ret exit trap membar fence cp prefetch prefetchu call nanosleep discard "
    "applypriority setmaxnreg griddepcontrol pmevent brkpt".split()
)


@dataclass(frozen=True)
class Register:
    """A register by the scope that declares it (0: the function) and its name there."""

    scope: int
    name: str


@dataclass
class Uses:
    """Of one register: its type, and the numbers of the statements that write and read it, in order."""

    type: str
    written: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)


@dataclass
class _Scope:
    names: dict[str, str] = field(default_factory=dict)  # -> type
    families: dict[str, tuple[int, str]] = field(default_factory=dict)  # prefix -> how many, type

    def type_of(self, name: str) -> str | None:
        prefix = name.rstrip("0123456789")
        count, kind = self.families.get(prefix, (0, ""))
        digits = name[len(prefix) :]
        if digits and str(int(digits)) == digits and int(digits) < count:
            return kind
        # a family's prefix may end in digits itself ("%x1_<4>" does not, "%v2<4>" does)
        for other, (size, typed) in self.families.items():
            rest = name.removeprefix(other)
            if rest != name and rest.isdecimal() and str(int(rest)) == rest and int(rest) < size:
                return typed
        return self.names.get(name)


class Registers:
    """The registers of one function."""

    def __init__(self, body: Sequence[Statement]) -> None:
        self.body = body
        self._scopes: dict[int, _Scope] = {}
        for statement in body:
            if statement.directive == ".reg":
                self._declare(statement)
        self.uses: dict[Register, Uses] = {}
        for number, statement in enumerate(body):
            if statement.kind == "instruction":
                self._note(number, statement)

    def meant(self, token: Token, scopes: tuple[int, ...]) -> Register | None:
        """The register that a token means there; None for all else, special registers too."""
        if token.kind != "word":
            return None
        name = split_element(token.text)[0]
        for scope in reversed(scopes):
            if scope in self._scopes and self._scopes[scope].type_of(name) is not None:
                return Register(scope, name)
        return None

    def in_tokens(self, tokens: Sequence[Token], scopes: tuple[int, ...]) -> Iterator[Register]:
        """The registers that stand there, in order."""
        for token in tokens:
            if (register := self.meant(token, scopes)) is not None:
                yield register

    def results(self, statement: Statement) -> list[Register]:
        """What an instruction writes."""
        if opcode_of(statement) in _WITHOUT_RESULT or not (found := operands(statement)):
            return []
        if found[0][0].text == "[":
            return []
        return list(self.in_tokens(found[0], statement.scopes))

    def sources(self, statement: Statement) -> list[Register]:
        """What it reads, its guard included. An accumulator that stands among the results is not named."""
        found = operands(statement)
        parts = found[1:] if self.results(statement) else found
        guard = [t for t in statement.tokens[:3] if t.text == guard_of(statement)] if guard_of(statement) else []
        return [
            *self.in_tokens(guard, statement.scopes),
            *(r for p in parts for r in self.in_tokens(p, statement.scopes)),
        ]

    def _declare(self, statement: Statement) -> None:
        scope = self._scopes.setdefault(statement.scopes[-1], _Scope())
        tokens = [t for t in statement.tokens if t.text not in (".v2", ".v4")]
        kind = tokens[1].text[1:]
        at = 2
        while at < len(tokens):
            name = tokens[at].text
            if tokens[min(at + 1, len(tokens) - 1)].text == "<":
                scope.families[name] = (int(tokens[at + 2].text), kind)
                at += 4
            else:
                scope.names[name] = kind
                at += 1
            at += 1  # a comma or the semicolon

    def _note(self, number: int, statement: Statement) -> None:
        for register in self.results(statement):
            self._of(register).written.append(number)
        for register in self.sources(statement):
            self._of(register).read.append(number)

    def _of(self, register: Register) -> Uses:
        if register not in self.uses:
            self.uses[register] = Uses(self._scopes[register.scope].type_of(register.name) or "")
        return self.uses[register]


def dead_moves(registers: Registers) -> set[int]:
    """Numbers of the statements that give a register a value which a load replaces before anything reads it.

    Triton puts zeros before every load; only those of guarded loads are ever seen.
    """
    found = set()
    for number, statement in enumerate(registers.body):
        if statement.kind == "instruction" and opcode_of(statement) == "mov" and not guard_of(statement):
            results = registers.results(statement)
            if len(results) == 1 and _replaced(registers, number, results[0]):
                found.add(number)
    return found


def _replaced(registers: Registers, number: int, register: Register) -> bool:
    for statement in registers.body[number + 1 :]:
        if statement.kind == "location":
            continue
        if statement.kind != "instruction" or opcode_of(statement) in ("bra", "brx", "call", "ret", "exit"):
            return False
        if register in registers.sources(statement):
            return False
        if register in registers.results(statement):
            plain = opcode_of(statement) in ("ld", "createpolicy") and not guard_of(statement)
            return plain and "param" not in modifiers_of(statement)
    return False
