"""When a second verdict bears out the first."""

import pytest

from kerneltune.agent.repeat import repeated, unfinished
from kerneltune.tools.schema.verdict import Comparison, Status, Timing, Verdict

CHECKED = Verdict(Status.CHECKED, "right")
WRONG = Verdict(Status.WRONG, "one element")


def timed(us: float, *speedups: tuple[str, float, float], resolution: float = 0.001, width: float = 0.001) -> Verdict:
    """Baselines are (name, time, speed-up)."""
    comparisons = tuple(Comparison(n, t, s, s * (1 - width), s * (1 + width)) for n, t, s in speedups)
    timing = Timing(us, us * (1 - width), us * (1 + width), 20, 1000)
    return Verdict(
        Status.CORRECT, "right", timing=timing, comparisons=comparisons, receipt={"aa_resolution": resolution}
    )


def test_right_again_holds_and_wrong_now_does_not() -> None:
    assert repeated(CHECKED, CHECKED).held
    found = repeated(CHECKED, WRONG)
    assert not found.held
    assert found.why == "was checked, is wrong now: one element"
    assert not repeated(WRONG, CHECKED).held


def test_a_failure_holds_when_it_is_the_same_failure() -> None:
    assert repeated(WRONG, WRONG).held
    assert not repeated(WRONG, Verdict(Status.CRASHED, "segfault")).held


def test_what_cannot_be_run_here_is_not_said_to_hold() -> None:
    unchecked = Verdict(Status.UNCHECKED, "no case is small enough")
    found = repeated(CHECKED, unchecked)
    assert (found.held, found.why) == (False, "could not be judged in full: no case is small enough")
    assert unfinished(CHECKED, unchecked)
    assert unfinished(timed(10.0), unchecked)
    assert not unfinished(unchecked, unchecked)  # there was nothing to take away
    assert not any(unfinished(CHECKED, Verdict(s, "")) for s in Status if s not in (Status.UNCHECKED, Status.CORRECT))


def test_a_time_is_not_repeated_without_a_gpu_but_the_answer_is() -> None:
    assert repeated(timed(10.0), CHECKED).why == "right again; its time cannot be repeated without a GPU"
    assert repeated(CHECKED, timed(10.0)).why == "right again, and now timed"


@pytest.mark.parametrize(
    ("now_us", "held"), [(100.0, True), (100.5, True), (99.5, True), (102.0, False), (98.0, False)]
)
def test_a_time_holds_within_the_intervals_and_the_resolution(now_us: float, held: bool) -> None:
    found = repeated(timed(100.0), timed(now_us))
    assert found.held is held
    assert ("slower" in found.why, "faster" in found.why) == (now_us > 101, now_us < 99)


def test_speed_ups_are_compared_before_times_since_pairs_travel_better() -> None:
    old, new = timed(100.0, ("eager", 200.0, 2.0)), timed(110.0, ("eager", 220.0, 2.001))
    assert repeated(old, new).held
    assert not repeated(old, timed(100.0, ("eager", 190.0, 1.9))).held


def test_the_baseline_that_was_hardest_to_beat_decides() -> None:
    old = timed(100.0, ("eager", 300.0, 3.0), ("compile", 120.0, 1.2))
    assert "against compile" in repeated(old, timed(100.0, ("eager", 250.0, 2.5), ("compile", 120.0, 1.2))).why
    assert "against eager" in repeated(old, timed(100.0, ("eager", 300.0, 3.0))).why
    assert "the time moved" in repeated(old, timed(100.0, ("other", 300.0, 3.0))).why


def test_a_coarse_session_allows_more() -> None:
    assert not repeated(timed(100.0), timed(102.0)).held
    assert repeated(timed(100.0), timed(102.0, resolution=0.02)).held


def test_times_of_another_gpu_are_not_compared() -> None:
    found = repeated(timed(100.0), timed(500.0), same_gpu=False)
    assert found.held
    assert "another GPU" in found.why
