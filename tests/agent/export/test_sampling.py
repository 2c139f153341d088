"""Sampling by coverage and by thresholds."""

import random

import pytest

from kerneltune.agent.export.rewards import RejectionSampling, draw, rejection_sampling
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.graded import graded, timed


@pytest.mark.parametrize(
    ("coverage", "p"), [(0.0, 0.0), (0.3, 0.0), (0.325, 0.25), (0.35, 0.5), (0.375, 0.75), (0.4, 1.0), (1.0, 1.0)]
)
def test_a_right_attempt_is_kept_by_its_coverage(coverage: float, p: float) -> None:
    assert RejectionSampling().probability(timed(1.0, coverage=coverage)) == pytest.approx(p)


def test_without_a_width_the_threshold_is_hard_and_reached_by_equality() -> None:
    hard = RejectionSampling(s=0.0)
    assert [hard.probability(timed(1.0, coverage=c)) for c in (0.29, 0.3, 0.31)] == [0.0, 1.0, 1.0]
    assert rejection_sampling("s=none") == hard


def test_a_speedup_saves_an_attempt_of_small_coverage() -> None:
    sampling = RejectionSampling(speedup=1.5)
    assert sampling.probability(timed(1.5, coverage=0.0)) == 1.0
    assert sampling.probability(timed(1.49, coverage=0.0)) == 0.0
    assert sampling.probability(timed(4.0, 1.2, coverage=0.0)) == 0.0  # the fastest baseline counts


@pytest.mark.parametrize("status", [Status.WRONG, Status.REJECTED, Status.COMPILE_FAILED, Status.UNCHECKED, None])
def test_what_is_not_right_is_always_kept(status: Status | None) -> None:
    assert RejectionSampling().probability(graded(status, coverage=0.0)) == 1.0


def test_a_right_attempt_of_unknown_coverage_is_kept() -> None:
    assert RejectionSampling().keeps(graded(Status.CHECKED))
    assert RejectionSampling().keeps(timed(1.0, coverage=float("nan")))


def test_the_share_that_is_kept_is_the_probability() -> None:
    sampling = RejectionSampling(seed=3)
    kept = sum(sampling.keeps(timed(1.0, number=n, coverage=0.325)) for n in range(4000))
    assert abs(kept / 4000 - 0.25) < 0.03  # four standard deviations


def test_the_same_seed_keeps_the_same_attempts_in_any_order() -> None:
    attempts = [timed(1.0, number=n, coverage=0.35) for n in range(300)]
    shuffled = random.Random(1).sample(attempts, len(attempts))
    first, again, other = RejectionSampling(seed=1), RejectionSampling(seed=1), RejectionSampling(seed=2)
    kept = {a.number for a in attempts if first.keeps(a)}
    assert kept == {a.number for a in shuffled if again.keeps(a)}
    assert kept != {a.number for a in attempts if other.keeps(a)}


def test_a_draw_is_fixed_for_all_time() -> None:
    # blake2b-64 of "0\0run/1", over 2 ** 64; worked out with `printf '0\0run/1' | b2sum -l 64`
    assert draw(0, "run/1") == pytest.approx(0x0B9BF641509CC6A0 / 2**64)
    assert 0.0 <= draw(-5, "lone \ud800") < 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("tua=0.3", ("'tua'", "tau")),
        ("tau=low", ("tau='low'", "a number")),
        ("tau=none", ("tau='none'",)),
        ("tau=nan", ("tau='nan'",)),
        ("s=-0.1", ("s=-0.1",)),
        ("speedup=inf", ("speedup='inf'",)),
        ("seed=1.5", ("seed='1.5'", "whole number")),
    ],
)
def test_a_wrong_option_says_what_is_wrong(options: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        rejection_sampling(options)
    assert [w for w in words if w not in str(caught.value)] == []


def test_options_come_as_text() -> None:
    given = "tau=0.5,s=0.2,speedup=2,seed=7"
    assert rejection_sampling(given) == RejectionSampling(0.5, 0.2, 2.0, 7)
    assert rejection_sampling("speedup=none") == RejectionSampling()
