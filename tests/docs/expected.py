"""Is this what the document said would be seen? Loosely: what differs from run to run may differ."""

import re

_RUN = r"\d{8}-\d{6}-[a-z]\w*-[0-9a-f]{4,8}"
_VARIES = re.compile(
    rf"(?P<run>{_RUN})|(?P<any>…)|(?P<attempt>[#/]\d{{1,4}}\b(?!-))"
    r"|(?P<date>\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?)|(?P<hash>\b[0-9a-f]{12,64}\b)"
    r"|(?P<time>\b\d+(?:\.\d+)?\s?(?:µs|ms|s|min)\b)|(?P<regs>\b(?:regs|registers) +\d+)"
    r"|(?P<number>-?\b\d+\.\d+(?:e[-+]?\d+)?\b)|(?P<space>\s+)"
)
_LIKE = {
    "any": ".*?",
    "attempt": r"[#/]\d+",  # the best of a search is not always the same one
    "date": r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?",
    "hash": "[0-9a-f]{12,64}",
    "time": r"(?:\d+m )?\d+(?:\.\d+)?\s?(?:µs|ms|s|min)",
    "regs": r"(?:regs|registers) +\d+",
    "number": r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?",
    "space": r"\s+",
}


class Ids:
    """The ids of runs that a document shows, and those that its runs have here."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def in_command(self, command: str, latest: str) -> str:
        """The command with the ids of here; RUN stands for the latest run."""
        known = re.sub(_RUN, lambda found: self._real.get(found[0], found[0]), command)
        return re.sub(r"\bRUN\b", latest, known) if latest else known

    def pattern(self, line: str) -> tuple[str, list[str]]:
        """A regular expression for one expected line, and the document's ids that it captures, in order."""
        parts: list[str] = []
        captured: list[str] = []
        end = 0
        for found in _VARIES.finditer(line):
            parts.append(re.escape(line[end : found.start()]))
            kind = str(found.lastgroup)
            if kind == "run" and found[0] not in self._real:
                parts.append(f"({_RUN})")
                captured.append(found[0])
            else:
                parts.append(re.escape(self._real[found[0]]) if kind == "run" else _LIKE[kind])
            end = found.end()
        return "".join([*parts, re.escape(line[end:])]), captured

    def learn(self, names: list[str], real: list[str]) -> None:
        """These ids of the document are those here."""
        self._real |= dict(zip(names, real, strict=True))


def difference(expected: str, seen: str, ids: Ids) -> str:
    """Where the output leaves the document, in words; "" if nowhere. A line `…` stands for any number of lines."""
    rest = [line.rstrip() for line in seen.splitlines()]
    skipping = False
    for line in (line.rstrip() for line in expected.splitlines()):
        if line == "…":
            skipping = True
            continue
        pattern, names = ids.pattern(line)
        found = _next(pattern, rest, skipping)
        if found is None:
            left = rest[: 40 if skipping else 1] or ["(no more)"]
            return f"expected the line\n  {line}\nbut there is\n  " + "\n  ".join(left)
        index, groups = found
        ids.learn(names, groups)
        rest, skipping = rest[index + 1 :], False
    if rest and not skipping:
        return "the document ends, and there is still\n  " + "\n  ".join(rest[:10])
    return ""


def missing(expected: str, seen: str, ids: Ids) -> str:
    """The first line that is nowhere in the output, in words; "" if there is none."""
    lines = [line.rstrip() for line in seen.splitlines()]
    for line in (line.rstrip() for line in expected.splitlines() if line.strip() not in ("", "…")):
        pattern, names = ids.pattern(line)
        if (found := _next(pattern, lines, skipping=True)) is None:
            return f"nowhere is the line\n  {line}\nbut there is\n  " + "\n  ".join(lines[:40])
        ids.learn(names, found[1])
    return ""


def _next(pattern: str, lines: list[str], skipping: bool) -> tuple[int, list[str]] | None:
    for index, line in enumerate(lines if skipping else lines[:1]):
        if found := re.fullmatch(pattern, line):
            return index, list(found.groups())
    return None
