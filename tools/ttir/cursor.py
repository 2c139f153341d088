"""Movement through tokens, and the grammar of types and attributes: the base of the TTIR parser."""

from __future__ import annotations

from collections.abc import Iterator

from tools.ttir.errors import TtirSyntaxError
from tools.ttir.ir import Attr, Literal
from tools.ttir.lexer import Token
from tools.ttir.types import Type, parse_type


class Cursor:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def fail(self, wanted: str) -> TtirSyntaxError:
        return TtirSyntaxError(f"line {self.token.line}: expected {wanted}, found {self.token.text[:60]!r}")

    def next(self) -> Token:
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
        """One round per item of a comma-separated list, up to and including `closer`."""
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


def _plain(token: Token) -> Attr:
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
