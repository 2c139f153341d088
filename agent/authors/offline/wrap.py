"""Breaks the long lines of generated Python at the commas of their last bracket. Text in, text out."""

import re
import textwrap

WIDTH = 110
_ONE_AXIS = re.compile(r"^(\s*\w+_kernel)\[(.+?),\]\(")


def wrapped(source: str) -> str:
    """The same program with lines of at most about WIDTH columns, where a bracket allows it."""
    return "\n".join(_wrapped(_ONE_AXIS.sub(r"\1[(\2,)](", line)) for line in source.split("\n"))


def _wrapped(line: str) -> str:
    end = re.search(r"\)+:?$", line)
    if len(line) <= WIDTH or end is None or re.search(r"[fr]?\"", line):
        return line
    start = _opening(line, end.end() - 1 - line.endswith(":"))
    if start is None:
        return line
    parts = _at_commas(line[start + 1 : end.end() - 1 - line.endswith(":")])
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    if len(parts) < 2 or line.startswith(" " * 8 + "if ("):
        return line
    body = textwrap.wrap(
        ", ".join(p.replace(" ", "\0") for p in parts) + ",", WIDTH - len(indent), break_long_words=False
    )
    closing = indent[4:] + line[end.end() - 1 - line.endswith(":") :]
    return "\n".join([line[: start + 1], *(indent + part.replace("\0", " ") for part in body), closing])


def _opening(line: str, closing: int) -> int | None:
    """The bracket that the one at `closing` closes."""
    depth = 0
    for index in range(closing, -1, -1):
        depth += (line[index] in ")]}") - (line[index] in "([{")
        if depth == 0:
            return index
    return None


def _at_commas(text: str) -> list[str]:
    """The parts between the commas that are in no bracket and no string."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        quoted ^= character == "'"
        depth += 0 if quoted else (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and not quoted:
            parts.append(text[start:index].strip())
            start = index + 1
    return [part for part in [*parts, text[start:].strip()] if part]
