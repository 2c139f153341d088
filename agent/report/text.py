"""What may be shown: every word of a model, a candidate or a machine passes here before it becomes part of a page.

Whatever is written into a page is plain (no control, bidirectional or unwritable characters), free of secrets and names
of people and machines, of a bounded length, and escaped. The template's engine calls `finalize` on every value, so that
nothing depends on a template's author; what is already markup is made here, or in modules that draw. Sources, diffs and
conversations are cleaned and cut before they are coloured; what is cut is said.
"""

import difflib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

from kerneltune.agent.export.privacy import PrivateNames, Scrubber
from kerneltune.agent.record.trajectory import Message, Trajectory
from kerneltune.agent.view import text as words
from kerneltune.tools.schema.codec import plain

MOST = 20_000  # characters of one value
_LONGEST_SECRET = 4_000  # so far beyond the end a text is searched, lest half of a key remains

_WORDS = re.compile(r'(?<=>)[^<>]+(?=</(?:text|title)>)|(?<=aria-label=")[^"]+')


class Sanitizer:
    """The words of one report."""

    def __init__(self, names: PrivateNames) -> None:
        self._scrubber = Scrubber(names)

    def text(self, text: str, most: int = MOST) -> str:
        """Its beginning, plain and without secrets, lines kept. Not escaped."""
        kept = text[: most + _LONGEST_SECRET]
        clean = self._scrubber.text(plain(kept, len(kept)))
        return clean if len(clean) <= most else clean[:most]

    def line(self, text: str, most: int = 200) -> str:
        """The same on one line, with an ellipsis where it was cut."""
        joined = " ".join(self.text(text, 2 * most + 400).split())
        return joined if len(joined) <= most else joined[: most - 1].rstrip() + "…"

    def ends(self, text: str, most: int) -> str:
        """One line with the beginning and the end of a long text: a compiler says last what is wrong."""
        joined = " ".join(self.text(text).split())
        if len(joined) <= most:
            return joined
        tail = most * 2 // 5
        return f"{joined[: most - tail - 3].rstrip()} … {joined[len(joined) - tail :].lstrip()}"

    def finalize(self, value: object) -> object:
        """What the template's engine writes for a value; it escapes what is not markup."""
        if isinstance(value, Markup):
            return value
        return "" if value is None else self.text(str(value))

    def drawing(self, made: Markup) -> Markup:
        """The drawing with all its words free of secrets."""
        return Markup(_WORDS.sub(lambda match: str(escape(self.line(html.unescape(match[0]), 400))), str(made)))  # noqa: S704 - escaped again


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


def source(text: str, shown: Sanitizer, *, most: int = MOST_OF_A_SOURCE) -> Code:
    """A source, its beginning if it is long."""
    lines = _clean(text, shown, most).strip("\n").split("\n")
    joined = "\n".join(lines)
    markup = _coloured(joined) if len(joined) <= MOST_COLOURED else escape(joined)
    return Code(markup, len(lines), max(len(text) - most, 0))


def _clean(text: str, shown: Sanitizer, most: int) -> str:
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


def diff(before: str, after: str, shown: Sanitizer, *, most: int = 30_000) -> Code:
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


_MOST_ALL = 350_000  # characters of all conversations
_MOST_TEXT, _MOST_ARGUMENT = 6_000, 1_500


class MessagePart(NamedTuple):
    """A piece of a message: what was said, thought, or called. `left_out`: characters that are not in `body`."""

    head: str
    body: str
    left_out: int


class Transcript(NamedTuple):
    """A conversation: role, facts and parts of each message; `left_out` counts the messages that did not fit."""

    key: str
    turns: list[tuple[str, str, list[MessagePart]]]
    left_out: int


def transcripts(run: Trajectory, shown: Sanitizer) -> list[Transcript]:
    """All conversations as far as they fit, each from its beginning."""
    room, made = _MOST_ALL, list[Transcript]()
    for conversation in run.conversations:
        turns, left = list[tuple[str, str, list[MessagePart]]](), room
        for message in conversation.messages:
            if left < 0:
                break
            parts = list(_parts(message, shown))
            left -= sum(len(part.body) + 80 for part in parts) + 60
            turns.append((message.role, ", ".join(words.message_facts(message)), parts))
        room = left
        made.append(Transcript(conversation.key, turns, len(conversation.messages) - len(turns)))
    return made


def _parts(message: Message, shown: Sanitizer) -> Iterator[MessagePart]:
    if message.thinking.strip():
        yield _part("thinking", message.thinking, shown, _MOST_TEXT)
    if message.text.strip():
        yield _part("", message.text, shown, _MOST_TEXT)
    for call in message.calls:
        arguments = "\n".join(f"{k}: {words.argument(v, most=4 * _MOST_ARGUMENT)}" for k, v in call.arguments.items())
        yield _part(f"calls {call.name}", arguments, shown, _MOST_ARGUMENT)
        if call.problem:
            yield _part("not understood", call.problem, shown, _MOST_ARGUMENT)


def _part(head: str, text: str, shown: Sanitizer, most: int) -> MessagePart:
    return MessagePart(head, shown.text(text.strip("\n"), most), max(len(text) - most, 0))
