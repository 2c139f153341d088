"""What is known of a stored attempt, as labels, and which attempt came of which. Pure.

Three values where two would lie: a label is None when nobody found out (never judged, or not without a GPU). Nothing
here rests on a rank without a clock: what was not timed is right, and neither fast nor slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kerneltune.agent.record.trajectory import AttemptRecord, Expectation, Outcome
from kerneltune.tools.schema.verdict import Status

_RIGHT = (Status.CHECKED, Status.CORRECT)
_FAILED = (
    Status.REJECTED,
    Status.COMPILE_FAILED,
    Status.CRASHED,
    Status.TIMED_OUT,
    Status.WRONG,
)  # what is in neither is unknown: not judged, not checkable, or with a time that cannot be


class Labels(NamedTuple):
    """The labels of one attempt.

    `compilable`: tracer and compiler accepted it. None: never judged, or found wrong before it was compiled.
    `correct`: right as far as known. None: never judged, or nothing on the machine could run it.
    `timed`: `correct` rests on a GPU, where every timed output was checked; otherwise on an interpreter of small cases.
    `faster`: the lower end of its speed-up's interval is above 1 against the fastest baseline. None when not timed.
    `impossible`: faster than light, or the clocks disagree: a cheat, or a broken measurement.
    `why`: status/tool of an attempt that is not right; "" for one that is, or was never judged.
    `verified`: `optimize verify` bore its verdict out. None: nobody verified it.
    """

    compilable: bool | None
    correct: bool | None
    timed: bool
    faster: bool | None
    impossible: bool
    why: str
    verified: bool | None


def labels(attempt: AttemptRecord) -> Labels:
    """The labels of an attempt."""
    status, timed = attempt.status, attempt.timing is not None
    failed = status is not None and status not in _RIGHT
    return Labels(
        compilable(attempt),
        correct(attempt),
        timed,
        min(c.low for c in attempt.comparisons) > 1.0 if timed and attempt.comparisons else None,
        status is Status.IMPOSSIBLE,
        f"{status.value}/{attempt.tool}" if failed and status is not None else "",
        attempt.held,
    )


def compilable(attempt: AttemptRecord) -> bool | None:
    """Whether tracer and compiler accepted it; None when it never came to that."""
    status = attempt.status
    if attempt.tool != "update":
        return None if status is None else status is not Status.COMPILE_FAILED
    return None if status is Status.WRONG else False


def correct(attempt: AttemptRecord) -> bool | None:
    """Whether it is right, as far as the machine that judged it could tell; None when it could not."""
    status = attempt.status
    return None if status is None or status is Status.UNCHECKED else status in _RIGHT


def right(attempt: AttemptRecord) -> bool:
    """Known to be right."""
    return attempt.accepted and attempt.held is not False


def fails(attempt: AttemptRecord) -> bool:
    """Known to fail."""
    return attempt.status in _FAILED and attempt.held is not False


def outcome(expected: Expectation, attempt: AttemptRecord) -> Outcome:
    """What became of a hypothesis that was tested by this attempt. Without a clock one about speed is open, whatever
    was stored; that an attempt does not work at all refutes it without one."""
    decided = attempt.timing is not None or fails(attempt)
    return expected.outcome if decided else "open"


@dataclass(frozen=True)
class Descendant:
    """A right attempt, and how many steps of derivation lie between."""

    attempt: AttemptRecord
    hops: int


class Lineage:
    """Which attempt of a run came of which. A parent of another run, or one that is newer than its child, is none."""

    def __init__(self, attempts: Sequence[AttemptRecord]) -> None:
        self._by_id = {a.attempt_id: a for a in attempts}
        self._nearest: dict[str, Descendant] = {}
        for attempt in sorted(attempts, key=lambda a: a.number, reverse=True):  # on a tie the older one counts
            further = self._nearest.get(attempt.attempt_id)
            found = Descendant(attempt, 1) if right(attempt) else further and replace(further, hops=further.hops + 1)
            parent = self.parent(attempt)
            if parent is not None and found is not None:
                before = self._nearest.get(parent.attempt_id)
                if before is None or found.hops <= before.hops:
                    self._nearest[parent.attempt_id] = found

    def parent(self, attempt: AttemptRecord) -> AttemptRecord | None:
        """What an attempt was derived from."""
        found = self._by_id.get(attempt.parent_id or "")
        return found if found is not None and found.number < attempt.number else None

    def nearest(self, attempt: AttemptRecord) -> Descendant | None:
        """The right descendant in the fewest steps, the earliest among equals."""
        return self._nearest.get(attempt.attempt_id)
