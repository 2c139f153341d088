"""Tokens of PTX text, taken one by one, and the small things that stand everywhere: numbers, types, variables. Pure."""

import struct
from dataclasses import replace

from tools.ptx.ir import Immediate, PtxError, Variable, type_bytes
from tools.ptx.lexer import Token, line_of, tokens

LINKING = (".visible", ".extern", ".weak", ".common")
MOST_DIGITS = 66  # 0b and 64 bits
SPACES = (".global", ".const", ".shared", ".local", ".param", ".tex")


class Stream:
    """A text that is being read. What it cannot read raises PtxError."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, self.at = text, tokens(text), 0

    @property
    def next(self) -> Token:
        """The token that comes next."""
        return self.tokens[self.at]

    @property
    def after(self) -> Token:
        """The one behind it."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def skip(self, count: int) -> None:
        """Leave tokens out."""
        self.at = min(self.at + count, len(self.tokens) - 1)

    def take(self) -> Token:
        """The next token; the last, which is of kind "end", comes again and again."""
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def accept(self, *texts: str) -> Token | None:
        """The next token if it is one of these."""
        return self.take() if self.next.text in texts and self.next.kind != "string" else None

    def expect(self, text: str) -> Token:
        """The next token, which has to be this."""
        token = self.accept(text)
        if token is None:
            raise self.error(f"expected {text!r} before {self.next.text or 'the end'!r}")
        return token

    def word(self, what: str) -> Token:
        """The next token, which has to be a word."""
        if self.next.kind != "word":
            raise self.error(f"expected {what} before {self.next.text or 'the end'!r}")
        return self.take()

    def number(self, what: str) -> int:
        """A whole number with its sign."""
        value = self.constant()
        if not isinstance(value.value, int):
            raise self.error(f"{what} is a whole number")
        return value.value

    def error(self, message: str, token: Token | None = None) -> PtxError:
        """What is wrong, with the line of a token (the next one) and what it says."""
        line = (token or self.next).line
        return PtxError(line, message, line_of(self.text, line))

    def until_semicolon(self) -> None:
        """Leave out what no one asks for."""
        while self.take().text != ";":
            if self.next.kind == "end":
                raise self.error("';' is missing")

    def type(self, token: Token) -> str:
        """A scalar type: ".u32" says "u32"."""
        kind = token.text[1:]
        try:
            type_bytes(kind)
        except ValueError as error:
            raise self.error(str(error), token) from error
        return kind

    def count(self) -> int | None:
        """[2][3] is 6, [] is 0; None without brackets."""
        count = None
        while self.accept("["):
            size = 0 if self.next.text == "]" else self.number("an array's size")
            self.expect("]")
            count = size if count is None else count * size
        return count

    def offset(self) -> int:
        """The sum of what is added to a name, in bytes."""
        total = 0
        while sign := self.accept("+", "-"):
            total += self.number("an offset") * (1 if sign.text == "+" else -1)
        return total

    def constant(self) -> Immediate:
        """A number of any form with its sign."""
        negative = False
        while sign := self.accept("-", "+"):
            negative ^= sign.text == "-"
        token = self.take()
        if token.kind != "number" or len(token.text) > MOST_DIGITS:
            raise self.error(f"expected an operand before {token.text[:40] or 'the end'!r}", token)
        number = _number(token.text)
        return replace(number, value=-number.value) if negative else number

    def variables(self, space: Token, *, extern: bool) -> list[Variable]:
        """What a declaration of memory declares; its state space was just taken."""
        align, vector, kind = None, 1, ""
        while self.next.kind == "dot":
            token = self.take()
            if token.text == ".align":
                align = self.number("an alignment")
            elif token.text in (".v2", ".v4", ".v8"):
                vector = int(token.text[2:])
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
        """What a variable begins with, its nested braces written out; nothing where it is not numbers alone."""
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
