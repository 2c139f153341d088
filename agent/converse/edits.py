"""Search-and-replace edits of a source, with errors that help whoever wrote the edit. Pure."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

_NEAREST = 3  # lines that are shown when nothing matches
_SHOWN = 160  # characters of a line


class EditFailed(ValueError):
    """An edit that cannot be made; the message says which, why, and what would match."""


@dataclass(frozen=True)
class Edit:
    """`search` must be found exactly once; "" is allowed only for an empty source."""

    search: str
    replace: str


@dataclass(frozen=True)
class Edited:
    """The new source. `notes`: what was not quite as written."""

    source: str
    notes: tuple[str, ...] = ()


def apply(source: str, edits: Sequence[Edit]) -> Edited:
    """All edits, each on what the one before made. Raises EditFailed; then none of them is made."""
    notes: list[str] = []
    for number, edit in enumerate(edits, 1):
        source, note = _one(source, edit, f"edit {number} of {len(edits)}")
        notes += [note] if note else []
    return Edited(source, tuple(notes))


def _one(source: str, edit: Edit, which: str) -> tuple[str, str]:
    if not edit.search:
        raise EditFailed(f"{which}: `search` is empty; give the lines to be replaced, or the whole `source`")
    found = source.count(edit.search)
    if found == 1:
        return source.replace(edit.search, edit.replace), ""
    if found > 1:
        lines = ", ".join(map(str, _lines_of(source, edit.search)))
        raise EditFailed(
            f"{which}: `search` is found {found} times (lines {lines}); add lines around it to tell them apart"
        )
    return _loosely(source, edit, which)


def _lines_of(source: str, search: str) -> list[int]:
    """The line numbers of all matches."""
    places, at = [], source.find(search)
    while at >= 0:
        places.append(source.count("\n", 0, at) + 1)
        at = source.find(search, at + 1)
    return places


def _loosely(source: str, edit: Edit, which: str) -> tuple[str, str]:
    """The same lines but for white space at their ends, and indented by as much more or less, if that is one place."""
    lines, wanted = source.split("\n"), edit.search.strip("\n").split("\n")
    bare = [line.strip() for line in wanted]
    starts = [
        i for i in range(len(lines) - len(wanted) + 1) if [line.strip() for line in lines[i : i + len(wanted)]] == bare
    ]
    if len(starts) != 1:
        raise EditFailed(f"{which}: `search` is not in the source" + _nearest(lines, bare))
    at = starts[0]
    shift = _indent(lines[at]) - _indent(wanted[0])
    made = [_shifted(line, shift) for line in edit.replace.strip("\n").split("\n")]
    lines[at : at + len(wanted)] = made if edit.replace.strip() else []
    note = f"{which} matched line {at + 1} but for white space" + (f"; indented by {shift:+d}" if shift else "")
    return "\n".join(lines), note


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _shifted(line: str, shift: int) -> str:
    if not line.strip():
        return line
    return " " * shift + line if shift > 0 else line[min(-shift, _indent(line)) :]


def _nearest(lines: list[str], bare: list[str]) -> str:
    """The lines that the first line of the search resembles most."""
    first = next((line for line in bare if line), "")
    close = difflib.get_close_matches(first, [line.strip() for line in lines], n=_NEAREST, cutoff=0.5)
    shown = [f"  line {i}: {line[:_SHOWN]}" for i, line in enumerate(lines, 1) if line.strip() in close][:_NEAREST]
    return "; the nearest lines are\n" + "\n".join(shown) if shown else "; nothing in it resembles its first line"
