"""Which of the three views fits, as a pure function of values that somebody else has read."""

from dataclasses import dataclass
from typing import Literal

ViewKind = Literal["live", "plain", "json"]
_NO_CURSOR = ("", "dumb", "unknown")  # a terminal that cannot be redrawn


@dataclass(frozen=True)
class ViewChoice:
    """The view, and whether it may use colour."""

    kind: ViewKind
    colour: bool


def choose_view(
    *, is_terminal: bool, term: str, no_color: bool, ci: bool, json: bool = False, plain: bool = False
) -> ViewChoice:
    """`json` wins over `plain`; the live screen needs a terminal that can be redrawn and a person before it."""
    colour = is_terminal and term not in _NO_CURSOR and not no_color
    if json:
        return ViewChoice("json", colour=False)
    if plain or ci or not is_terminal or term in _NO_CURSOR:
        return ViewChoice("plain", colour)
    return ViewChoice("live", colour)
