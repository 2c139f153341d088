"""Sources and diffs as markup. A candidate wrote them: they are plain, scrubbed and cut before they are coloured."""

import difflib
from dataclasses import dataclass

from markupsafe import Markup, escape

from agent.report.shown import Shown

MOST_OF_A_SOURCE = 60_000  # characters that are shown of the best source
MOST_COLOURED = 60_000  # and that are worth the lexer's time
_MOST_LINES = 4_000  # of two sources that are compared: the time grows with their product
_LONGEST_LINE = 2_000
_SEARCHED = _LONGEST_LINE + 4_000  # of a line, lest half of a key remains
_MOST_COMPARED = 60_000  # characters of each of two sources
_CLASSES = {
    "Token.Keyword": "hk",
    "Token.Operator.Word": "hk",
    "Token.Comment": "hc",
    "Token.Literal.String": "hs",
    "Token.Literal.Number": "hn",
    "Token.Name.Function": "hf",
    "Token.Name.Class": "hf",
    "Token.Name.Decorator": "hd",
    "Token.Name.Builtin": "hb",
}


@dataclass(frozen=True)
class Code:
    """Markup for the inside of a <pre>, and what was left out."""

    markup: Markup
    lines: int
    left_out: int = 0  # characters


def source(text: str, shown: Shown, *, most: int = MOST_OF_A_SOURCE, coloured: bool = True) -> Code:
    """A source, its beginning if it is long."""
    lines = _clean(text, shown, most).strip("\n").split("\n")
    joined = "\n".join(lines)
    markup = _coloured(joined) if coloured and len(joined) <= MOST_COLOURED else escape(joined)
    return Code(markup, len(lines), max(len(text) - most, 0))


def _clean(text: str, shown: Shown, most: int) -> str:
    """Its beginning, lines cut: before it is searched for secrets, which costs time for each character, and after."""
    kept = text[: most + _SEARCHED].split("\n")
    clean = shown.text("\n".join(line[:_SEARCHED] for line in kept), most)
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…" for line in clean.split("\n"))


def _coloured(text: str) -> Markup:
    """Blanks at the ends of lines are left out: the lexer's time grows with the square of the lines of nothing else."""
    from pygments.lexers.python import PythonLexer

    text = "\n".join(line.rstrip() for line in text.split("\n"))
    parts = [_span(str(kind), value) for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text)]
    return Markup("").join(parts)


def _span(kind: str, value: str) -> Markup:
    style = next((css for prefix, css in _CLASSES.items() if kind.startswith(prefix)), None)
    return escape(value) if style is None else Markup('<span class="{}">{}</span>').format(style, value)


def diff(before: str, after: str, shown: Shown, *, most: int = 30_000) -> Code:
    """What changed, three lines of context around each change; empty when nothing did."""
    old, new = (_clean(text, shown, _MOST_COMPARED).splitlines() for text in (before, after))
    if len(old) + len(new) > _MOST_LINES:
        note = f"{len(old):,} and {len(new):,} lines: too many to compare here"
        return Code(escape(note), 1)
    lines = list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]
    kept, length = list[Markup](), 0
    for line in lines:
        length += len(line) + 1
        if length > most:
            break
        kept.append(_diff_line(line))
    left_out = sum(len(line) + 1 for line in lines[len(kept) :])
    left_out += max(len(before) - _MOST_COMPARED, 0) + max(len(after) - _MOST_COMPARED, 0)
    return Code(Markup("\n").join(kept), len(kept), left_out)


def _diff_line(line: str) -> Markup:
    style = {"+": "da", "-": "dr", "@": "dh"}.get(line[:1])
    return escape(line) if style is None else Markup('<span class="{}">{}</span>').format(style, line)
