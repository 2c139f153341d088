"""Tokens of PTX text, taken one by one, and the small things that stand everywhere: numbers, types, variables. Pure."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tools.ptx.constants import CASTS, LEVELS, WARP, NoValue, Value, binary, chosen, literal, unary
from tools.ptx.ir import Immediate, PtxError, Variable, type_bytes
from tools.ptx.lexer import Token, line_of, tokens

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

    def plain_number(self, what: str) -> int:
        """A whole number as it is written, no expression."""
        value = self._literal(self.take()).number
        if not isinstance(value, int):
            raise self.error(f"{what} is a whole number")
        return value

    def error(self, message: str, token: Token | None = None) -> PtxError:
        """What is wrong, with the line of a token (the next one) and what it says."""
        line, text = (token or self.next).line, (token or self.next).text
        if text == "#":
            message = "PTX is read as it is, without a preprocessor; remove this line"
        return PtxError(line, message, line_of(self.text, line))

    def missing(self, comma: str, closing: str) -> PtxError:
        """What should stand behind the last token; its line is named, for the next may be of another statement."""
        last, token = self.tokens[max(0, self.at - 1)], self.next
        if token.line == last.line:
            return self.error(f"expected {comma!r} or {closing!r} before {token.text[:40] or 'the end'!r}")
        return self.error(f"expected {comma!r} or {closing!r} behind {last.text[:40]!r}", last)

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
            if not 0 <= count <= MOST_ELEMENTS:
                raise self.error(f"an array of {count} elements")
        return count

    def offset(self) -> int:
        """The sum of what is added to a name, in bytes."""
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
        return chosen(value, first, second)

    def _value(self, level: int) -> Value:
        if level == len(LEVELS):
            return self._signed()
        value = self._value(level + 1)
        while mark := self.accept(*LEVELS[level]):
            with self._valued(mark):
                value = binary(mark.text, value, self._value(level + 1))
        return value

    def _signed(self) -> Value:
        marks: list[Token] = []
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

    def _literal(self, token: Token) -> Value:
        if token.text == WARP:
            return Value(32)
        fraction = token.kind == "dot" and token.text[1:].isdecimal()
        if (token.kind != "number" and not fraction) or len(token.text) > MOST_DIGITS:
            raise self.error(f"expected an operand before {token.text[:40] or 'the end'!r}", token)
        return literal(_number(token.text), unsigned=token.text[-1] == "U")

    @contextmanager
    def _valued(self, token: Token) -> Iterator[None]:
        try:
            yield
        except NoValue as error:
            raise self.error(str(error), token) from error

    @contextmanager
    def nested(self, opening: Token) -> Iterator[None]:
        """What stands between brackets, which must not be endlessly deep."""
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise self.error(f"brackets more than {MOST_NESTED} deep", opening)
        yield
        self._depth -= 1

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
