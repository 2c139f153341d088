"""PTX text to tokens, as ptxas divides it: a string has no escapes and ends at the next quote, a comment ends at the
line feed alone. What it would divide otherwise, every check of a text could be led past. Pure.
"""

import re
from typing import NamedTuple

from tools.ptx.ir import PtxError

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


class Token(NamedTuple):
    """A piece of text. `kind`: word, dot (".global"), number, string, mark, end. `glued`: no space before it."""

    kind: str
    text: str
    line: int
    glued: bool


def tokens(text: str) -> list[Token]:
    """All tokens but spaces and comments, and one of kind "end". Raises PtxError."""
    found: list[Token] = []
    at, line, glued = 0, 1, False
    while at < len(text):
        piece = _TOKEN.match(text, at)
        if piece is None:
            raise PtxError(line, f"cannot read {text[at]!r}", line_of(text, line))
        kind, said = str(piece.lastgroup), piece[0]
        if kind != "space":
            found.append(Token(kind, said, line, glued))
        glued = kind != "space"
        line += said.count("\n") if kind in ("space", "string") else 0
        at = piece.end()
    found.append(Token("end", "", line, glued))
    return found


def without_comments(text: str) -> str:
    """The text with each comment as a space, and as many lines: what is left holds no comment for anybody to read
    otherwise."""
    return _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " " + "\n" * m[0].count("\n"), text)


def line_of(text: str, line: int) -> str:
    """One line of a text, counted from 1; empty where there is none."""
    lines = text.split("\n", line)
    return lines[line - 1] if 0 < line <= len(lines) else ""
