"""How verdicts and measurements look in a report: mark, class and words. The meaning is never in the colour alone."""

from typing import Final

from agent.record.trajectory import AttemptRecord
from agent.view.text import verdict_style
from tools.verdict import Status

# Marks differ for those who cannot tell the colours, on paper too.
MARKS: Final = {
    Status.CORRECT: "circle",
    Status.CHECKED: "circle",
    Status.UNCHECKED: "bar",
    Status.WRONG: "cross",
    Status.IMPOSSIBLE: "diamond",
    Status.CRASHED: "plus",
    Status.TIMED_OUT: "square",
    Status.COMPILE_FAILED: "triangle",
    Status.REJECTED: "bar",
}
_TIERS: Final = {"screened": ("circle", "hollow"), "judged": ("circle", "best"), "confirmed": ("diamond", "best")}
TIER_WORDS: Final = {
    "screened": "screened (a first look)",
    "judged": "judged",
    "confirmed": "confirmed in fresh processes",
}


def css_class(status: Status | None) -> str:
    """The class that colours a verdict."""
    return "s-none" if status is None else f"s-{status.value.replace('_', '-')}"


def symbol(status: Status | None) -> str:
    """One character for a verdict."""
    return "·" if status is None else verdict_style(status).symbol


def name(status: Status | None) -> str:
    """A verdict in words."""
    return "never judged" if status is None else status.value.replace("_", " ")


def timed_mark(attempt: AttemptRecord) -> tuple[str, str]:
    """Mark and class of a time, by how thoroughly it was measured."""
    return _TIERS.get(attempt.tier or "judged", _TIERS["judged"])
