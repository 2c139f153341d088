"""Does a second verdict bear out the first? Pure.

Right must be right again. Times are compared by the speed-up over a baseline of both, since pairs of one session are
measured better than absolute times across sessions; and by the times themselves where no baseline is common.
"""

import math
from dataclasses import dataclass

from kerneltune.tools.reflect import NOISE
from kerneltune.tools.schema.codec import number
from kerneltune.tools.schema.verdict import Comparison, Status, Verdict, fastest_first


@dataclass(frozen=True)
class Repeated:
    """Whether a verdict held, and why in one line."""

    held: bool
    why: str


def unfinished(old: Verdict, new: Verdict) -> bool:
    """Whether a later look at what was accepted came to no end, as for want of memory, or for others on the GPU: that
    says nothing against it."""
    untimed = old.timing is not None and new.not_timed is not None
    return old.accepted and (untimed or new.status is Status.UNCHECKED)


def repeated(old: Verdict, new: Verdict, *, same_gpu: bool = True) -> Repeated:
    """Compare an old verdict with a new one of the same source on the same task."""
    if unfinished(old, new):
        return Repeated(False, f"could not be judged in full: {new.detail}")
    if old.accepted != new.accepted:
        return Repeated(False, f"was {old.status.value}, is {new.status.value} now: {new.detail}")
    if not new.accepted:
        return Repeated(old.status is new.status, f"was {old.status.value}, is {new.status.value} again: {new.detail}")
    if old.timing is None or new.timing is None:
        return Repeated(True, _untimed(old, new))
    if not same_gpu:
        return Repeated(True, "right again, on another GPU: the times are that GPU's own and are not compared")
    return _times(old, new)


def _untimed(old: Verdict, new: Verdict) -> str:
    if old.status is Status.CORRECT:
        return "right again; its time cannot be repeated without a GPU"
    return "right again, and now timed" if new.status is Status.CORRECT else "right again"


def _times(old: Verdict, new: Verdict) -> Repeated:
    what, was, now = _common(old, new) or ("the time", _time(old), _time(new))
    change = math.log(now.value / was.value)
    allowed = math.hypot(was.half_width, now.half_width) + max(NOISE, _resolution(old), _resolution(new))
    moved = f"{what} moved by {abs(math.expm1(change)):.2%} (the intervals allow {math.expm1(allowed):.2%})"
    if abs(change) <= allowed:
        return Repeated(True, f"right again; {moved}")
    return Repeated(False, f"right again; {moved}; it is {'slower' if change > 0 else 'faster'} now")


@dataclass(frozen=True)
class _Measured:
    """A time, or a time relative to a baseline's; half the width of its 95 % interval, in logarithms."""

    value: float
    half_width: float


def _time(verdict: Verdict) -> _Measured:
    timing = verdict.timing
    assert timing is not None
    return _Measured(timing.median_us, _half(timing.low_us, timing.high_us))


def _common(old: Verdict, new: Verdict) -> tuple[str, _Measured, _Measured] | None:
    """Relative to the baseline that was hardest to beat, among those of both."""
    ours = {c.baseline: c for c in new.comparisons}
    was = next((c for c in fastest_first(old.comparisons) if c.baseline in ours), None)
    return (f"the time against {was.baseline}", _relative(was), _relative(ours[was.baseline])) if was else None


def _relative(comparison: Comparison) -> _Measured:
    return _Measured(1.0 / comparison.speedup, _half(comparison.low, comparison.high))


def _half(low: float, high: float) -> float:
    """Half the width of an interval of ratios, in logarithms."""
    return abs(math.log(high / low)) / 2 if low > 0 and high > 0 else 0.0


def _resolution(verdict: Verdict) -> float:
    return number(verdict.receipt.get("aa_resolution")) or 0.0
