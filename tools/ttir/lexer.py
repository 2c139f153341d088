"""Splits TTIR text into tokens; debug locations, comments and alias lines are dropped here.

Types and `dense<...>` literals become single tokens, and a newline is a token only where it ends an op: MLIR prints one
op a line, so a newline directly inside a region's braces (or at top level) is the only reliable end of an op.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.ttir.errors import TtirSyntaxError


@dataclass(frozen=True, slots=True)
class Token:
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
_NESTED = re.compile(r'"(?:[^"\\]|\\.)*"|[()<>]|->')


def tokenize(text: str) -> list[Token]:
    return _Lexer(text).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.pos, self.line = text, 0, 1
        self.nesting: list[str] = []
        self.tokens: list[Token] = []

    def run(self) -> list[Token]:
        while self.pos < len(self.text):
            found = _TOKEN.match(self.text, self.pos)
            if not found:
                raise TtirSyntaxError(f"line {self.line}: cannot read {self.text[self.pos : self.pos + 40]!r}")
            start, self.pos = self.pos, found.end()
            self._take(found.lastgroup or "", start, found[0])
        self.tokens.append(Token("end", "", self.line))
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
        self.tokens.append(Token(kind, text, self.line))

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
