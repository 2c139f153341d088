"""Does the probe tell a kernel that remembers answers from an honest one?"""

import random

import pytest

from kerneltune.tools.judge.timing.statistics import MemoizationTimes, find_memoization, rank_p


def probe(
    fresh_us: float, repeated_us: float, noise: float = 0.002, passes: int = 8, seed: int = 1
) -> MemoizationTimes:
    rng = random.Random(seed)

    def times(us: float) -> tuple[float, ...]:
        return tuple(us * (1 + rng.gauss(0, noise)) for _ in range(passes))

    return MemoizationTimes(times(fresh_us), times(repeated_us))


def test_a_kernel_that_takes_the_same_time_on_new_and_on_old_inputs_is_honest() -> None:
    for seed in range(50):
        assert not find_memoization(probe(35, 35, noise=0.01, seed=seed), probe(50, 50, seed=seed)).remembers


@pytest.mark.parametrize("us", [2.7, 6.5, 35.0, 521.0])
def test_a_kernel_that_is_a_fifth_faster_on_inputs_it_has_seen_remembers(us: float) -> None:
    found = find_memoization(probe(us, 0.8 * us, noise=0.01), probe(us, us))
    assert found.remembers
    assert "has seen before" in found.detail


def test_what_was_measured_with_a_real_memo_on_a_gpu_is_found() -> None:
    assert find_memoization(probe(51.33, 32.06), probe(146.1, 146.1)).remembers


def test_a_gain_that_the_baseline_has_too_is_the_machine_s() -> None:
    assert not find_memoization(probe(10, 8), probe(20, 16)).remembers


def test_a_gain_beyond_the_baseline_s_still_counts() -> None:
    assert find_memoization(probe(10, 5), probe(20, 18)).remembers


def test_without_a_baseline_the_candidate_stands_alone() -> None:
    assert find_memoization(probe(10, 5)).remembers
    assert not find_memoization(probe(10, 10)).remembers


def test_a_gain_within_five_percent_is_not_held_against_anybody() -> None:
    assert not find_memoization(probe(100, 96, noise=0.0005)).remembers


def test_a_large_gain_without_support_is_noise() -> None:
    wild = MemoizationTimes(
        (50.0, 10.0, 55.0, 9.0, 10.0, 52.0, 10.0, 51.0), (10.0, 49.0, 10.0, 50.0, 10.0, 9.0, 52.0, 10.0)
    )
    found = find_memoization(wild)
    assert found.gain_us > found.allowed_us
    assert not found.remembers


@pytest.mark.parametrize("misses", range(8))
def test_a_memo_that_misses_now_and_then_is_found_all_the_same(misses: int) -> None:
    repeated = (51.0, 51.1, 51.2, 51.0, 50.9, 51.0, 51.1)[:misses] + (32.0,) * (8 - misses)
    assert find_memoization(MemoizationTimes(probe(51, 51).fresh_us, repeated), probe(146, 146)).remembers


def test_times_that_are_not_numbers_are_held_against_the_candidate() -> None:
    assert find_memoization(MemoizationTimes((float("nan"),) * 8, (1.0,) * 8)).remembers


def test_a_kernel_that_is_slower_on_what_it_has_seen_is_only_strange() -> None:
    assert not find_memoization(probe(10, 14)).remembers


def test_the_rank_test_is_one_sided() -> None:
    assert rank_p([5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 4.5, 4.7]) < 0.01
    assert rank_p([1, 2, 3, 4, 4.5, 4.7], [5, 6, 7, 8, 9, 10]) > 0.99
    assert rank_p([1, 1, 1], [1, 1, 1]) > 0.5
    assert rank_p([], [1]) == 1.0


def test_three_passes_of_each_kind_are_enough_for_a_quick_look() -> None:
    assert find_memoization(probe(51, 32, passes=3), probe(146, 146, passes=3)).remembers
    for seed in range(50):
        assert not find_memoization(probe(51, 51, noise=0.005, passes=3, seed=seed)).remembers
