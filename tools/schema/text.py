"""Words that come out of a jail, made fit to be stored and shown: hostile code chose them. Pure.

A lone surrogate makes an encoder raise, an escape sequence rewrites a terminal, thirty megabytes fill a log.
"""

import re

MOST = 2000  # characters of a message
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_GAP = " … "


def plain(text: str, most: int = MOST) -> str:
    """The text in printable characters, tabs and newlines; at most `most` of them, beginning and end kept."""
    if len(text) <= most and text.replace("\n", "").replace("\t", "").isprintable():
        return text  # as nearly all words are, and stored ones pass here again
    if len(text) > most:
        tail = most // 3
        text = text[: most - tail - len(_GAP)] + _GAP + text[len(text) - tail :]
    return "".join(map(_shown, _LINE_ENDS.sub("\n", text)))


def _shown(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
