"""What is known of an attempt: that it is right, that it fails, or neither."""

from collections.abc import Mapping
from types import MappingProxyType

from agent.record.trajectory import AttemptRecord
from tools.verdict import Status

# How far each got. What is not here is unknown: not judged, not checkable, or with a time that cannot be.
STAGES: Mapping[Status, int] = MappingProxyType(
    {
        Status.REJECTED: 0,
        Status.COMPILE_FAILED: 0,
        Status.CRASHED: 1,
        Status.TIMED_OUT: 1,
        Status.WRONG: 2,
        Status.CHECKED: 3,
        Status.CORRECT: 3,
    }
)
RIGHT = 3


def stage(attempt: AttemptRecord) -> int | None:
    """How far an attempt got: 0 not compiled, 1 did not end well, 2 wrong, 3 right. None when that is not known: it was
    never judged, could not be, or was judged again elsewhere and the verdict did not hold."""
    if attempt.status is None or attempt.held is False:
        return None
    return STAGES.get(attempt.status)


def right(attempt: AttemptRecord) -> bool:
    """Known to be right."""
    return attempt.accepted and attempt.held is not False


def fails(attempt: AttemptRecord) -> bool:
    """Known to fail."""
    how_far = stage(attempt)
    return how_far is not None and how_far < RIGHT
