"""What changed between two sources, as a unified diff that `patch` applies."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

_CONTEXT = 3  # lines


def unified(before: str, after: str) -> str:
    """The diff; "" when nothing changed. Only what lies between the common beginning and end is compared line by line:
    most changes are small, and comparing whole files takes milliseconds."""
    old, new = _lines(before), _lines(after)
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    start = max(0, head - _CONTEXT)
    shown = max(0, tail - _CONTEXT)
    return "".join(_hunks(old[start : len(old) - shown], new[start : len(new) - shown], start))


def _lines(text: str) -> list[str]:
    """With their ends; nothing but a line feed ends one, as in files."""
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + [last] * bool(last)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many lines are the same from the beginning on."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _hunks(old: Sequence[str], new: Sequence[str], offset: int) -> Iterator[str]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(_CONTEXT)):
        if number == 0:
            yield "--- before\n+++ after\n"
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        yield f"@@ -{_range(i1 + offset, i2 - i1)} +{_range(j1 + offset, j2 - j1)} @@\n"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (_marked(" ", line) for line in old[a:b])
            else:
                yield from (_marked("-", line) for line in old[a:b])
                yield from (_marked("+", line) for line in new[c:d])


def _range(start: int, count: int) -> str:
    first = start + 1 if count else start  # an empty range names the line before it
    return f"{first}" if count == 1 else f"{first},{count}"


def _marked(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
