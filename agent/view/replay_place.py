"""What a person means by a place in a run: `7` an attempt, `90s` or `1:30` a time, `50%`, `start`, `end`, `best`."""

import re
from collections.abc import Sequence

from agent.view.player import Target
from agent.view.replay import Place, Timeline, numbers
from tools.errors import UsageError

FORMS = "an attempt's number (7), a time since the beginning (90s, 2m10s, 1:30), 50%, start, end or best"
_UNITS = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)
_SHOWN = 12


def target(text: str) -> Target:
    """Finds the place in a timeline; that raises UsageError when there is no such attempt. Raises UsageError."""
    if re.fullmatch(r"#?\d{1,9}", text, re.ASCII):
        return lambda timeline: _attempt(timeline, int(text.lstrip("#")))
    if text in ("start", "end"):
        return lambda timeline: _moment(timeline, timeline.length_s if text == "end" else 0.0)
    if text == "best":
        return _best
    if found := _PERCENT.fullmatch(text):
        share = min(1.0, float(found[1]) / 100)
        return lambda timeline: _moment(timeline, share * timeline.length_s)
    if (found := _UNITS.fullmatch(text) or _CLOCK.fullmatch(text)) and text:
        seconds = _seconds(found.groups())
        return lambda timeline: _moment(timeline, timeline.shown_after(seconds))
    raise UsageError(f"--at {text!r}: give {FORMS}")


def _seconds(parts: Sequence[str | None]) -> float:
    hours, minutes, seconds = (float(part or 0) for part in parts)
    return hours * 3600 + minutes * 60 + seconds


def _moment(timeline: Timeline, shown_s: float) -> Place:
    return Place(timeline.place_at(shown_s), shown_s)


def _attempt(timeline: Timeline, number: int) -> Place:
    place = timeline.place_of(number)
    if place is None:
        known = sorted(numbers(timeline))
        listed = ", ".join(map(str, known[:_SHOWN])) + ", …" * (len(known) > _SHOWN)
        hint = f"judged attempts: {listed}" if known else "no attempt of this run has a verdict yet"
        raise UsageError(f"--at {number}: no such attempt; {hint} (a time needs its unit: {number}s)")
    return Place(place, timeline.shown_at(place))


def _best(timeline: Timeline) -> Place:
    best_id = timeline.state(len(timeline)).best_id
    if best_id is None:
        raise UsageError("--at best: no attempt of this run was accepted")
    return _attempt(timeline, int(best_id.rpartition("/")[2]))
