"""PTX text as statements of tokens, for tools that keep the wording and change the names. Pure.

`parse` says what a text means; this says how it is written. Text that `parse` takes is taken here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tools.ptx.ir import PtxError
from tools.ptx.lexer import Token, line_of, tokens

_ELEMENT = re.compile(r"(?P<base>[^.]+)(?P<element>\.[xyzwrgba])?")


@dataclass(frozen=True)
class Statement:
    """`kind`: open, close, label, location, directive or instruction. `tokens` end with the semicolon, where there is
    one. `scopes`: the numbers of the braces around it, outermost (0, the function's own) first."""

    kind: str
    tokens: tuple[Token, ...]
    scopes: tuple[int, ...]

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.tokens[0].line

    @property
    def directive(self) -> str:
        """ ".reg" and the like; empty for what is no directive."""
        return self.tokens[0].text if self.kind == "directive" else ""


@dataclass(frozen=True)
class Piece:
    """What stands outside of all functions, or a function: `head` up to its brace, then its statements without the
    braces of its own."""

    head: tuple[Token, ...]
    body: tuple[Statement, ...] | None = None

    @property
    def first(self) -> str:
        """The directive that it begins with."""
        return self.head[0].text


@dataclass
class _Cursor:
    text: str
    tokens: list[Token]
    at: int = 0
    opened: int = field(default=0)

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        if token.kind == "end":
            raise PtxError(token.line, "the text ends within a statement", line_of(self.text, token.line))
        self.at += 1
        return token

    def through(self, closing: str) -> tuple[Token, ...]:
        """Tokens up to the next `closing` outside of braces, and that."""
        found, depth = [self.take()], 0
        while found[-1].text != closing or depth:
            depth += (found[-1].text == "{") - (found[-1].text == "}")
            if found[-1].text == closing and not depth:
                break
            found.append(self.take())
        return tuple(found)

    def line_rest(self) -> tuple[Token, ...]:
        """Tokens that stand in the line of the next one."""
        found = [self.take()]
        while self.next.kind != "end" and self.next.line == found[0].line:
            found.append(self.take())
        return tuple(found)


def pieces(text: str) -> list[Piece]:
    """The parts of a file in order. Raises PtxError."""
    cursor = _Cursor(text, tokens(text))
    found: list[Piece] = []
    while cursor.next.kind != "end":
        found.append(_piece(cursor))
    return found


def _piece(cursor: _Cursor) -> Piece:
    first = cursor.next.text
    if first in (".version", ".target", ".address_size", ".file"):
        return Piece(cursor.line_rest())
    if first == ".section":
        head = []
        while cursor.next.text != "{":
            head.append(cursor.take())
        return Piece((*head, *cursor.through("}")))
    head = []
    while cursor.next.text != ";":
        if cursor.next.text == "{" and any(t.text in (".entry", ".func") for t in head):
            cursor.take()
            return Piece(tuple(head), tuple(_statements(cursor)))
        head.append(cursor.take())
        if head[-1].text == "=":
            return Piece((*head, *cursor.through(";")))
    return Piece((*head, cursor.take()))


def _statements(cursor: _Cursor) -> Iterator[Statement]:
    scopes: tuple[int, ...] = (0,)
    opened = 0
    while True:
        token = cursor.next
        if token.text == "{":
            opened += 1
            scopes = (*scopes, opened)
            yield Statement("open", (cursor.take(),), scopes)
        elif token.text == "}":
            closing = cursor.take()
            if scopes == (0,):
                return
            yield Statement("close", (closing,), scopes)
            scopes = scopes[:-1]
        elif token.text == ";":
            cursor.take()
        else:
            yield _statement(cursor, scopes)


def _statement(cursor: _Cursor, scopes: tuple[int, ...]) -> Statement:
    token = cursor.next
    if token.text == ".loc":
        return Statement("location", cursor.line_rest(), scopes)
    if token.kind == "dot":
        return Statement("directive", cursor.through(";"), scopes)
    if token.kind == "word" and cursor.tokens[min(cursor.at + 1, len(cursor.tokens) - 1)].text == ":":
        return Statement("label", (cursor.take(), cursor.take()), scopes)
    return Statement("instruction", cursor.through(";"), scopes)


def split_element(word: str) -> tuple[str, str]:
    """("%v", ".x") of "%v.x"; the element is empty where there is none."""
    match = _ELEMENT.fullmatch(word)
    return (match["base"], match["element"] or "") if match else (word, "")


def operands(statement: Statement) -> list[tuple[Token, ...]]:
    """The operands of an instruction as tokens, in order; without guard, opcode and modifiers."""
    body = statement.tokens[opcode_at(statement) + 1 : -1]
    while body and body[0].kind == "dot" and body[0].glued:
        body = body[1:]
    found: list[list[Token]] = [[]]
    depth = 0
    for token in body:
        depth += (token.text in "[{(") - (token.text in "]})")
        if token.text == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return [tuple(one) for one in found if one]


def opcode_at(statement: Statement) -> int:
    """Where the opcode stands among the tokens of an instruction: behind its guard."""
    if statement.tokens[0].text != "@":
        return 0
    return 3 if statement.tokens[1].text == "!" else 2


def guard_of(statement: Statement) -> str:
    """The guard's register; empty where there is none."""
    at = opcode_at(statement)
    return statement.tokens[at - 1].text if at else ""


def opcode_of(statement: Statement) -> str:
    """The opcode without modifiers: "ld"."""
    return statement.tokens[opcode_at(statement)].text.partition(".")[0]


def modifiers_of(statement: Statement) -> list[str]:
    """Modifiers without dots: ["global", "v4", "b32"]."""
    found = []
    for token in statement.tokens[opcode_at(statement) + 1 :]:
        if token.kind != "dot" or not token.glued:
            break
        found.append(token.text[1:])
    return found


def written(parts: Sequence[str | Token]) -> str:
    """Tokens as one line of text, in one style; strings among them are names that stand for tokens."""
    line = ""
    for part in parts:
        text = part if isinstance(part, str) else part.text
        glued = not isinstance(part, str) and part.glued and (part.kind == "dot" or text in "[<")
        line += text if glued or not _spaced(line, text) else " " + text
    return line


def _spaced(line: str, text: str) -> bool:
    if not line or text in ",;:)]}|>" or line[-1] in "@!([{|<":
        return False
    if text == "-" or text == "+":
        return line[-1] in ",="
    return line[-1] not in "+-"
