"""What may be shown: every word of a model, a candidate or a machine passes here before it becomes part of a page.

Whatever is written into a page is plain (no control, bidirectional or unwritable characters), free of secrets and names
of people and machines, of a bounded length, and escaped. The template's engine calls `finalize` on every value, so that
nothing depends on a template's author; what is already markup is made here, or in modules that draw.
"""

import html
import re

from markupsafe import Markup, escape

from agent.export.privacy import PrivateNames, Scrubber
from tools.words import plain

MOST = 20_000  # characters of one value
_LONGEST_SECRET = 4_000  # so far beyond the end a text is searched, lest half of a key remains

_WORDS = re.compile(r'(?<=>)[^<>]+(?=</(?:text|title)>)|(?<=aria-label=")[^"]+')


class Shown:
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
        return Markup(_WORDS.sub(lambda match: str(escape(self.line(html.unescape(match[0]), 400))), str(made)))
