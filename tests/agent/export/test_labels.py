"""Labels of attempts."""

import pytest

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.export.rewards import compilable, labels
from kerneltune.tools.schema.verdict import Cause, Status
from tests.agent.export.graded import graded, timed


def test_a_right_attempt_without_a_gpu_is_right_and_untimed() -> None:
    found = labels(graded(Status.CHECKED))
    assert tuple(found) == (True, True, False, None, False, "", None)
    assert found._asdict()["compilable"] is True


def test_faster_is_what_the_whole_interval_is_against_every_baseline() -> None:
    assert labels(timed(3.0, 1.02, half=0.01)).faster is True
    assert labels(timed(3.0, 1.01, half=0.01)).faster is False  # its lower end is 1
    assert labels(timed(3.0, 0.9, half=0.01)).faster is False
    assert labels(timed()).faster is None
    assert labels(graded(Status.WRONG)).faster is None
    assert labels(timed(3.0)).timed


@pytest.mark.parametrize(
    ("attempt", "is_compilable", "is_correct"),
    [
        (graded(None), None, None),
        (graded(Status.UNCHECKED), True, None),
        (graded(Status.WRONG), True, False),
        (graded(Status.IMPOSSIBLE), True, False),
        (graded(Status.REJECTED), True, False),
        (graded(Status.CRASHED), True, False),
        (graded(Status.REJECTED, tool="update"), False, False),
        (graded(Status.COMPILE_FAILED, tool="update"), False, False),
        (graded(Status.TIMED_OUT, tool="update"), False, False),
        (graded(Status.WRONG, tool="update"), None, False),
        (graded(Status.CHECKED, tool="confirm"), True, True),
        (graded(Status.COMPILE_FAILED, tool="confirm"), False, False),
    ],
)
def test_what_nobody_found_out_has_no_label(
    attempt: Attempt, is_compilable: bool | None, is_correct: bool | None
) -> None:
    found = labels(attempt)
    assert (found.compilable, found.correct) == (is_compilable, is_correct)
    assert compilable(attempt) is is_compilable
    assert found.impossible is (attempt.status is Status.IMPOSSIBLE)


def test_verified_is_what_the_latest_verification_found() -> None:
    assert [labels(timed(2.0, held=held)).verified for held in (None, True, False)] == [None, True, False]


def test_why_names_status_tool_and_cause_and_nothing_that_a_candidate_wrote() -> None:
    refused = graded(Status.REJECTED, tool="update", detail="own words", cause=Cause.READS_VALUE)
    assert labels(refused).why == "rejected/update/reads_value"
    assert labels(graded(Status.REJECTED, tool="update", detail="own words")).why == "rejected/update"
    assert [labels(graded(status)).why for status in (None, Status.CHECKED)] == ["", ""]
