"""What two sources have in common when they differ only in how they were typed.

`Forms.of` makes the normal form out of logical lines: comments, docstrings, blank lines, the width of indentation, line
breaks inside brackets, quotes, trailing commas and superfluous outer brackets are gone. It never parses, so broken
Python has a form too, and no source can crash it. Each distinct line is taken apart once and then looked up: attempts
share most of their lines with their parents. A kernel of 30 lines and 1.2 kB cost 15 us with known lines, and 20 us
more for each new line; `ast.unparse(ast.parse(...))` of the same ones took 540 us.

`agent.export.trees` has the stronger and dearer form.
"""

import contextlib
import re
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

T = TypeVar("T")
MOST_CHARACTERS = 200_000  # of a source; a longer one is compared by its words
_LONG_STRING = 40  # characters; a longer one (PTX, say) counts as its words where likeness is measured
_MOST_LINES = 20_000  # remembered, at about 1 kB each
_MOST_OF_A_LINE = 4_000  # characters; a longer one is not remembered

_STRING = r"""
    (?:[rR][bBfF]?|[bBfF][rR]?|[uU])?
    (?:\"{3}(?:[^"\\]|\\.|"(?!""))*+(?:\"{3})?|'{3}(?:[^'\\]|\\.|'(?!''))*+(?:'{3})?
      |"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?)"""  # not ended: up to the end, lest each quote is tried anew
_NUMBER = r"0[xXbBoO]\w+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d[\d_]*)?[jJ]?"
_OPERATOR = r"\*\*=?|//=?|>>=?|<<=?|->|:=|\.\.\.|[-+*/%@&|^=!<>]=?|\S"
_NAME = r"""[^\W\d]\w*+(?!["'])"""
_TOKEN = re.compile(rf"{_NAME}|\#[^\n]*|\\\n|{_STRING}|{_NUMBER}|\w+|{_OPERATOR}", re.VERBOSE | re.DOTALL)
_WORD = re.compile(r"\w+|[^\w\s]")
_TRIPLE_END = {quote: re.compile(rf"(?:[^\\]|\\.)*?{quote}", re.DOTALL) for quote in ('"""', "'''")}

_OPENS, _CLOSES = frozenset("([{"), frozenset(")]}")
_COMPOUND = frozenset("if elif else for while with try except finally def class async".split())
_NOT_CALLED = frozenset(  # words before a bracket that opens no call
    "and as assert await case del elif else except for from if import in is lambda not or raise return while with"
    " yield".split()
)
_BEFORE_VALUE = frozenset("= return += -= *= /= //= %= @= &= |= ^= >>= <<= **= if elif while in import".split())
_NEEDS_BRACKETS = frozenset(("for", "yield", ":="))
_DIGITS = frozenset("0123456789.")
_BRACKETED = ("= (", "return (", "if (", "while (", "in (", "import (")
_NO_OPERATION = (["pass"], ["..."])
_NOT_PLAIN = re.compile(r"""["'#\\]""")  # brackets may be part of something else
_END = zlib.crc32(b"\n").to_bytes(4, "little")
_PLAIN_QUOTES = re.compile(r"\A([bBuUrRfF]{0,2})'([^'\"\\\n]*)'\Z")


class _Piece(NamedTuple):
    """A simple statement, or the head of a compound one. `deeper`: levels below its line. `words`: uint32 hashes."""

    deeper: int
    text: str
    words: bytes


@dataclass(frozen=True, slots=True)
class Form:
    """`text`: the normal form, to be hashed. `words`: a uint32 hash for each token, as bytes."""

    text: str
    words: bytes

    @property
    def n_tokens(self) -> int:
        """Names, numbers, operators and strings; one more for the end of each statement."""
        return len(self.words) // 4


_Known = tuple[int, tuple[_Piece, ...]]  # width of the indentation, statements
_Ends = tuple[int, str]  # brackets opened less those closed; what goes on behind: a quote, a backslash, or nothing


class Forms:
    """Makes normal forms, and remembers lines. Not for several threads at once."""

    def __init__(self) -> None:
        self._logical: dict[str, _Known] = {}
        self._ends: dict[str, _Ends] = {}
        self._spelled, self._hashed = _Spelled(), _Hashed()

    def of(self, source: str) -> Form:
        """The form of any text; never an exception."""
        if len(source) > MOST_CHARACTERS:
            words = source.split()
            return Form(" ".join(words), b"".join(map(self._hashed.__getitem__, words)))
        if "\r" in source:
            source = source.replace("\r\n", "\n").replace("\r", "\n")
        return self._form(source.split("\n"))

    def _form(self, lines: list[str]) -> Form:
        texts: list[str] = []
        words: list[bytes] = []
        widths = [0]
        at, end = 0, len(lines)
        while at < end:
            known = self._logical.get(lines[at])
            if known is None:
                known, at = self._next(lines, at)
            else:
                at += 1
            indent, pieces = known
            if not pieces:
                continue
            while indent < widths[-1]:
                widths.pop()
            if indent > widths[-1]:
                widths.append(indent)
            for piece in pieces:
                texts.append(" " * (len(widths) - 1 + piece.deeper))
                texts.append(piece.text)
                words.append(piece.words)
        return Form("".join(texts), b"".join(words))

    def _next(self, lines: list[str], at: int) -> tuple[_Known, int]:
        """The logical line that begins with line `at`, and the number of the line after it."""
        first, depth, quote = at, 0, ""
        while at < len(lines):
            net, quote = self._end(lines[at], quote)
            depth = max(0, depth + net)
            at += 1
            if depth == 0 and not quote:
                return self._read("\n".join(lines[first:at])), at
        return self._take_apart("\n".join(lines[first:])), at  # never ended; no whole line, and not remembered as one

    def _end(self, line: str, quote: str) -> _Ends:
        if quote in _TRIPLE_END:
            if (found := _TRIPLE_END[quote].match(line)) is None:
                return 0, quote
            line = line[found.end() :]
        if (known := self._ends.get(line)) is None:
            known = _measure(line)
            _remember(self._ends, line, known)
        return known

    def _read(self, line: str) -> _Known:
        if (known := self._logical.get(line)) is None:
            known = self._take_apart(line)
            _remember(self._logical, line, known)
        return known

    def _take_apart(self, line: str) -> _Known:
        tokens = [self._spelled[t] for t in _tokens(line)]
        bare = line.lstrip(" \t\f")
        indent = len(line[: len(line) - len(bare)].expandtabs(8))
        return indent, tuple(self._piece(deeper, statement) for deeper, statement in _statements(tokens, 0))

    def _piece(self, deeper: int, tokens: list[str]) -> _Piece:
        text = " ".join(tokens)
        if ", )" in text or ", ]" in text or ", }" in text:
            tokens = _without_last_commas(tokens)
        if "[ (" in text:
            tokens = _without_index_brackets(tokens)
        if text.endswith((")", ") :")) and any(opening in text for opening in _BRACKETED):
            tokens = _without_outer_brackets(tokens)
        return _Piece(deeper, " ".join(tokens) + "\n", b"".join(map(self._hashed.__getitem__, tokens)) + _END)


class _Spelled(dict[str, str]):
    """Tokens as the normal form spells them."""

    def __missing__(self, token: str) -> str:
        spelled = _spelled(token) if "'" in token or token[0] in _DIGITS else token
        _remember(self, token, spelled)
        return spelled


class _Hashed(dict[str, bytes]):
    """Tokens as uint32 hashes: one, or those of the words of a long string."""

    def __missing__(self, token: str) -> bytes:
        words = _WORD.findall(token) if len(token) > _LONG_STRING else (token,)
        hashes = b"".join(zlib.crc32(w.encode("utf-8", "surrogatepass")).to_bytes(4, "little") for w in words)
        _remember(self, token, hashes)
        return hashes


def _remember(memory: dict[str, T], line: str, known: T) -> None:
    if len(memory) >= _MOST_LINES:
        memory.clear()
    if len(line) <= _MOST_OF_A_LINE:
        memory[line] = known


def _tokens(text: str) -> list[str]:
    tokens: list[str] = _TOKEN.findall(text)
    if "#" in text or "\\" in text:
        return [t for t in tokens if t[0] != "#" and t != "\\\n"]
    return tokens


def _measure(line: str) -> _Ends:
    if not _NOT_PLAIN.search(line):
        count = line.count
        return count("(") + count("[") + count("{") - count(")") - count("]") - count("}"), ""
    tokens = _tokens(line)
    net = sum((t in _OPENS) - (t in _CLOSES) for t in tokens)
    last = tokens[-1] if tokens else ""
    if last == "\\":
        return net, last
    bare = last.lstrip("rRbBfFuU")
    quote = next((q for q in _TRIPLE_END if bare.startswith(q) and (len(bare) < 6 or not bare.endswith(q))), "")
    return net, quote


def _statements(tokens: list[str], deeper: int) -> list[tuple[int, list[str]]]:
    """The simple statements of a logical line, and what stands before them: `if x: y; z` is three."""
    if not tokens:
        return []
    if tokens[0] in _COMPOUND and (colon := _colon(tokens)):
        return [(deeper, tokens[:colon]), *_statements(tokens[colon:], deeper + 1)]
    return [(deeper, s) for s in (_split(tokens) if ";" in tokens else [tokens]) if s and not _does_nothing(s)]


def _split(tokens: list[str]) -> list[list[str]]:
    statements: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token in _OPENS) - (token in _CLOSES)
        if token == ";" and depth <= 0:
            statements.append([])
        else:
            statements[-1].append(token)
    return statements


def _does_nothing(statement: list[str]) -> bool:
    return statement in _NO_OPERATION or (_is_string(statement[0]) and all(map(_is_string, statement)))


def _colon(tokens: list[str]) -> int:
    """Behind the colon that ends the head of a compound statement; 0 without one."""
    depth = lambdas = 0
    for at, token in enumerate(tokens):
        depth += (token in _OPENS) - (token in _CLOSES)
        if depth == 0 and token == "lambda":
            lambdas += 1
        elif depth == 0 and token == ":":
            if not lambdas:
                return at + 1
            lambdas -= 1
    return 0


def _is_string(token: str) -> bool:
    return token[-1] in "'\"" and token[0] not in "fF" and token[:2].lower() != "rf"


def _spelled(token: str) -> str:
    """A string in double quotes where that changes nothing else; a number as Python would write it."""
    if "'" in token:
        return _PLAIN_QUOTES.sub(r'\1"\2"', token)
    if token.isdigit() or len(token) > _LONG_STRING:
        return token
    for number in (partial(int, base=0), float):
        with contextlib.suppress(ValueError):
            return repr(number(token))
    return token


def _without_last_commas(tokens: list[str]) -> list[str]:
    """`f(a, b,)` is `f(a, b)`; `(a,)` and `x[a,]` are tuples, and keep theirs."""
    kept: list[str] = []
    open_: list[list[int]] = []  # of each open bracket: whether one comma makes a tuple, and commas so far
    for token in tokens:
        if token in _OPENS:
            follows = _is_operand(kept[-1]) if kept else False
            open_.append([int((token == "(" and not follows) or (token == "[" and follows)), 0])
        elif token in _CLOSES and open_:
            tuple_, commas = open_.pop()
            if kept[-1] == "," and (commas > 1 or not tuple_):
                kept.pop()
        elif token == "," and open_:
            open_[-1][1] += 1
        kept.append(token)
    return kept


def _is_operand(token: str) -> bool:
    """Whether a bracket behind it calls or indexes."""
    return token in _CLOSES or token[-1] in "'\"" or (token.isidentifier() and token not in _NOT_CALLED)


def _without_index_brackets(tokens: list[str]) -> list[str]:
    """`kernel[(n,)]` is `kernel[n,]`."""
    pairs = [at for at, pair in enumerate(pairwise(tokens)) if pair == ("[", "(")]
    for at in reversed(pairs):
        end = _partner(tokens, at + 1)
        alone = end > at + 2 and tokens[end + 1 : end + 2] == ["]"]
        if alone and at and _is_operand(tokens[at - 1]) and _NEEDS_BRACKETS.isdisjoint(tokens[at:end]):
            tokens = [*tokens[: at + 1], *tokens[at + 2 : end], *tokens[end + 1 :]]
    return tokens


def _without_outer_brackets(tokens: list[str]) -> list[str]:
    """`x = (a + b)` and `return (a, b)` without the brackets around all of it."""
    at = _value(tokens)
    end = len(tokens) - (tokens[-1] == ":")
    while at < end - 1 and tokens[at] == "(" and _partner(tokens, at) == end - 1:
        inside = tokens[at + 1 : end - 1]
        if not inside or inside[-1] == "," or not _NEEDS_BRACKETS.isdisjoint(inside):
            break
        tokens = [*tokens[:at], *inside, *tokens[end:]]
        end -= 2
    return tokens


def _value(tokens: list[str]) -> int:
    """Where the value of a statement begins; beyond the end without one."""
    depth = 0
    for at, token in enumerate(tokens, 1):
        depth += (token in _OPENS) - (token in _CLOSES)
        if depth == 0 and token in _BEFORE_VALUE:
            return at
    return len(tokens)


def _partner(tokens: list[str], at: int) -> int:
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i] in _OPENS) - (tokens[i] in _CLOSES)
        if depth == 0:
            return i
    return -1
