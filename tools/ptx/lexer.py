"""PTX text to tokens. Pure."""

import re
from dataclasses import dataclass

from tools.ptx.ir import PtxError

_TOKEN = re.compile(
    r"""(?P<space>[\s]+|//[^\n]*|/\*.*?\*/)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<word>[A-Za-z_$%][\w$]*(?:\.[xyzwrgba](?!\w))?)
    | (?P<dot>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<number>0[fF][0-9A-Fa-f]{8}\b|0[dD][0-9A-Fa-f]{16}\b|0[xX][0-9A-Fa-f]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?)
    | (?P<mark>[{}()\[\],;:@!|+\-*/<>=~&^?%\#])""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
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
        kind = str(piece.lastgroup)
        if kind != "space":
            found.append(Token(kind, piece[0], line, glued))
        glued = kind != "space"
        line += piece[0].count("\n")
        at = piece.end()
    found.append(Token("end", "", line, glued))
    return found


def line_of(text: str, line: int) -> str:
    """One line of a text, counted from 1; empty where there is none."""
    lines = text.split("\n", line)
    return lines[line - 1] if 0 < line <= len(lines) else ""
