"""The statistics of paired timing."""

import math
import random

import pytest

from kerneltune.tools.judge.timing.statistics import (
    CANDIDATE,
    CaseSessions,
    Reading,
    Round,
    RoundSeries,
    agreement,
    comparisons_over,
    floor_us,
    kept,
    least_delayed,
    nested_median,
    palindrome,
    passes_for,
    quick_half_width,
    ratio_over,
    resolution,
    slots_for,
    timing_over,
    weighted_comparisons,
    weighted_timing,
)
from kerneltune.tools.schema.messages import Rules


def series_of(
    candidate_us: float, baseline_us: float, *, rounds: int, noise: float = 0.0, drift: float = 0.0
) -> RoundSeries:
    """Rounds in which both arms slow down by `drift` per block and jitter by `noise`."""
    rng = random.Random(7)
    series = RoundSeries(Rules(), ("eager",))
    clock = 0
    for _ in range(rounds):
        blocks: dict[str, list[float]] = {CANDIDATE: [], "eager": []}
        for arm in palindrome(list(blocks), rng):
            clock += 1
            base = candidate_us if arm == CANDIDATE else baseline_us
            blocks[arm].append(base * (1 + drift * clock) * math.exp(rng.gauss(0, noise)))
        series.add(blocks, 0.024)
    return series


def test_a_round_is_a_palindrome_of_all_arms() -> None:
    order = palindrome(["a", "b", "c"], random.Random(1))
    assert order == order[::-1]
    assert sorted(order) == ["a", "a", "b", "b", "c", "c"]


def test_the_order_of_arms_changes_from_round_to_round() -> None:
    rng = random.Random(1)
    assert len({palindrome(["a", "b"], rng)[0] for _ in range(20)}) == 2


def test_the_speed_up_is_the_baseline_s_time_over_the_candidate_s() -> None:
    (found,) = comparisons_over([series_of(10, 20, rounds=20)])
    assert found.speedup == pytest.approx(2.0)
    assert found.baseline_us == pytest.approx(20.0)


def test_a_linear_drift_cancels() -> None:
    (found,) = comparisons_over([series_of(10, 20, rounds=20, drift=0.001)])
    assert found.speedup == pytest.approx(2.0, rel=1e-4)


def test_the_interval_covers_the_truth_and_narrows_with_more_rounds() -> None:
    few = ratio_over([series_of(10, 11, rounds=20, noise=0.01)], "eager")
    many = ratio_over([series_of(10, 11, rounds=200, noise=0.01)], "eager")
    assert many.low < math.log(1.1) < many.high
    assert many.high - many.low < few.high - few.low


def test_comparisons_begin_with_the_fastest_baseline() -> None:
    series = RoundSeries(Rules(), ("eager", "compile"))
    series.add({CANDIDATE: [1, 1], "eager": [3, 3], "compile": [2, 2]}, 0.01)
    assert [c.baseline for c in comparisons_over([series])] == ["compile", "eager"]


def test_a_quiet_series_is_enough_after_the_fewest_rounds_and_not_before() -> None:
    assert not series_of(10, 20, rounds=19).enough
    assert series_of(10, 20, rounds=20).enough


def test_a_noisy_series_goes_on_until_its_time_is_used_up() -> None:
    assert not series_of(10, 20, rounds=40, noise=0.05).enough
    assert series_of(10, 20, rounds=84, noise=0.05).enough


def test_slow_launches_need_fewer_rounds() -> None:
    series = RoundSeries(Rules(), ("eager",))
    for _ in range(6):
        series.add({CANDIDATE: [1e5, 1e5], "eager": [1e5, 1e5]}, 1.5)
    assert series.enough


def test_the_bootstrap_of_equal_values_has_no_width() -> None:
    found = nested_median([[3.0] * 10])
    assert (found.low, found.median, found.high) == (3.0, 3.0, 3.0)


def test_a_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        nested_median([[]])


def test_the_resolution_is_the_largest_difference_of_equals_but_for_one_in_a_hundred() -> None:
    rounds = [Round({"a": (1.0, 1.0), "b": (math.exp(n / 1000),) * 2}) for n in range(100)]
    assert resolution(rounds, "a", "b") == pytest.approx(0.098)


def test_the_resolution_of_medians_is_finer_than_that_of_single_rounds() -> None:
    rng = random.Random(2)
    rounds = [Round({"a": (1.0, 1.0), "b": (math.exp(rng.gauss(0, 0.003)),) * 2}) for _ in range(30)]
    assert resolution(rounds, "a", "b", group=5) < resolution(rounds, "a", "b")


def test_timing_counts_blocks_and_launches() -> None:
    found = timing_over([series_of(10, 20, rounds=20)], n_launches=1200)
    assert (found.n_blocks, found.n_launches) == (40, 1200)
    assert found.median_us == pytest.approx(10)


def test_rounds_with_a_slow_clock_or_a_throttle_bit_are_discarded() -> None:
    series = RoundSeries(Rules(), ("eager",))
    blocks = {CANDIDATE: [1.0, 1.0], "eager": [2.0, 2.0]}
    for clock, throttled in [(1980.0, False)] * 10 + [(1900.0, False), (1980.0, True), (1930.0, False)]:
        series.add(blocks, 0.01, sm_clock_mhz=clock, throttled=throttled)
    assert series.discarded == 2
    assert not series.unfit


def test_what_is_discarded_counts_for_nothing() -> None:
    series = RoundSeries(Rules(), ("eager",))
    for _ in range(9):
        series.add({CANDIDATE: [10.0, 10.0], "eager": [20.0, 20.0]}, 0.01, sm_clock_mhz=1980.0)
    series.add({CANDIDATE: [90.0, 90.0], "eager": [20.0, 20.0]}, 0.01, sm_clock_mhz=900.0)
    (found,) = comparisons_over([series])
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_an_environment_that_throttles_a_fifth_of_the_rounds_is_unfit() -> None:
    series = RoundSeries(Rules(), ())
    for number in range(20):
        series.add({CANDIDATE: [1.0, 1.0]}, 0.01, sm_clock_mhz=1980.0, throttled=number < 5)
    assert series.unfit


def test_a_clock_that_always_changes_discards_nothing() -> None:
    series = RoundSeries(Rules(), ())
    for number in range(20):
        series.add({CANDIDATE: [1.0, 1.0]}, 0.01, sm_clock_mhz=1500.0 if number < 5 else 1980.0)
    assert series.discarded == 0
    assert not series.unfit


def test_a_gpu_that_does_not_tell_its_clock_discards_nothing() -> None:
    rounds = [Round({CANDIDATE: (1.0, 1.0)}) for _ in range(5)]
    assert kept(rounds) == rounds


def test_a_series_that_was_throttled_throughout_is_unfit_and_ends() -> None:
    series = RoundSeries(Rules(), ("eager",))
    for _ in range(100):
        series.add({CANDIDATE: [1.0, 1.0], "eager": [1.0, 1.0]}, 0.024, throttled=True)
    assert series.enough
    assert series.unfit


def processes(shifts: list[float]) -> list[RoundSeries]:
    """Runner processes that differ by a few percent, each with little noise of its own."""
    return [series_of(10 * math.exp(shift), 20, rounds=20, noise=0.001) for shift in shifts]


def test_what_differs_between_processes_widens_the_interval_of_a_confirmation() -> None:
    one = ratio_over(processes([0.0]), "eager")
    three = ratio_over(processes([-0.02, 0.0, 0.02]), "eager")
    assert three.low < math.log(2) - 0.01 < one.low < one.high < math.log(2) + 0.01 < three.high


def test_processes_that_agree_leave_the_interval_narrow() -> None:
    (found,) = comparisons_over(processes([0.0, 0.0, 0.0]))
    assert found.speedup == pytest.approx(2.0, rel=1e-3)
    assert found.high - found.low < 0.005


def test_the_median_over_processes_gives_each_process_one_voice() -> None:
    assert nested_median([[1.0] * 100, [2.0], [3.0]]).median == 2.0


def test_a_process_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        nested_median([[1.0], []])


def test_the_quick_interval_is_about_as_wide_as_the_bootstrap_s() -> None:
    rng = random.Random(5)
    values = [rng.gauss(0, 0.01) for _ in range(60)]
    exact = nested_median([values])
    assert quick_half_width(values) == pytest.approx((exact.high - exact.low) / 2, rel=0.6)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 20])
def test_the_quick_interval_of_few_values_spans_no_more_than_all_of_them(count: int) -> None:
    values = [float(n) for n in range(count)]
    assert 0 <= quick_half_width(values) <= (count - 1) / 2


@pytest.mark.parametrize(
    ("footprint", "estimate_us", "slots"),
    [(512 << 20, 135.0, 8), (1 << 30, 5000.0, 3), (4 << 10, 2.7, 96), (10 << 20, 6.5, 96), (4 << 30, 1.0, 1)],
)
def test_slots_cover_the_cache_and_a_millisecond_within_memory(footprint: int, estimate_us: float, slots: int) -> None:
    assert slots_for(footprint, 60 << 20, estimate_us) == slots


def test_parameters_that_are_read_in_between_leave_nothing_of_a_set_in_the_cache() -> None:
    small = 17 << 20
    assert slots_for(small, 60 << 20, 3000.0) == 11
    assert slots_for(small, 60 << 20, 3000.0, shared_bytes=1 << 30) == 3
    assert slots_for(small, 60 << 20, 100.0, shared_bytes=1 << 30) == 10  # a pass of a millisecond


def test_contents_serve_more_rounds_where_their_answers_take_long() -> None:
    assert (Rules().group(0.2), Rules().group(3.6)) == (10, 15)
    assert Rules().group(3.6) < Rules().min_rounds  # or nothing that is timed would be new


def test_a_block_holds_at_least_one_pass() -> None:
    assert (passes_for(0.006, 1000.0), passes_for(0.006, 1e6)) == (6, 1)


def test_the_floor_leaves_out_outputs_that_may_still_be_in_the_cache() -> None:
    assert floor_us(2_000_000, 1_000_000, 60 << 20, 3, 1000.0) == pytest.approx(1.0)
    assert floor_us(2 << 30, 1 << 30, 60 << 20, 3, 4300.0) == pytest.approx(((2 << 30) - (20 << 20)) / 4.3e6)


def readings(slope: float, constant_us: float, noise_us: float = 0.0) -> list[Reading]:
    rng = random.Random(3)
    lengths = [6000.0, 24000.0, 6000.0, 24000.0, 9000.0, 12000.0]
    return [Reading(us, slope * us + constant_us + rng.gauss(0, noise_us), int(us / 30)) for us in lengths]


def test_clocks_that_differ_by_a_constant_agree() -> None:
    found = agreement(readings(1.0, 400.0, noise_us=30.0))
    assert found.ok
    assert found.slope == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("slope", [2.0, 1.2, 0.5])
def test_a_device_clock_that_runs_at_another_rate_is_not_believed(slope: float) -> None:
    assert not agreement(readings(slope, 200.0)).ok


def test_launches_of_a_microsecond_are_allowed_a_microsecond() -> None:
    short = [Reading(us, 1.5 * us + 100.0, int(us)) for us in (6000.0, 24000.0)]
    assert agreement(short).ok


def test_a_block_cannot_take_longer_on_the_device_than_on_the_host() -> None:
    found = agreement([*readings(1.0, 300.0), Reading(10000.0, 5000.0, 100)])
    assert not found.ok
    assert "claims" in found.detail


def test_blocks_of_one_length_prove_nothing() -> None:
    assert not agreement([Reading(6000.0, 6100.0, 10)] * 5).ok


def test_a_busy_host_is_told_from_a_lying_clock_by_the_least_delayed_answers() -> None:
    def seen(slope: float, delays: list[float]) -> list[Reading]:
        lengths = [6000.0, 24000.0] * (len(delays) // 2)
        return [Reading(us, slope * us + 100.0 + late, int(us / 30)) for us, late in zip(lengths, delays, strict=True)]

    late = [0.0, 1500.0, 40.0, 900.0, 0.0, 10.0]
    assert not agreement(seen(1.0, late[:2])).ok
    assert agreement(least_delayed(seen(1.0, late))).ok
    assert not agreement(least_delayed(seen(1.2, late))).ok


def test_a_weighted_score_counts_a_case_by_its_weight_and_a_speed_up_by_weight_and_time() -> None:
    """Three calls of 10 µs that are twice as fast, and one of 100 µs that is slower."""
    short = series_of(10, 20, rounds=40, noise=0.01)
    long = series_of(100, 90, rounds=40, noise=0.01)
    cases = [CaseSessions(3.0, [short, short]), CaseSessions(1.0, [long])]
    timing, (compared,) = weighted_timing(cases, 7), weighted_comparisons(cases)
    assert timing.median_us == pytest.approx((3 * 10 + 100) / 4, rel=0.01)
    assert timing.low_us < timing.median_us < timing.high_us
    assert (timing.n_blocks, timing.n_launches) == (240, 7)
    assert compared.baseline_us == pytest.approx((3 * 20 + 90) / 4, rel=0.01)
    assert compared.speedup == pytest.approx((3 * 20 + 90) / (3 * 10 + 100), rel=0.01)
    assert compared.low < compared.speedup < compared.high
    assert compared.high - compared.low < 0.02


def test_one_case_alone_has_the_same_time_and_speed_up_whatever_its_weight() -> None:
    series = series_of(10, 20, rounds=40, noise=0.01)
    alone = [CaseSessions(8.0, [series])]  # a power of two: not one bit is rounded
    assert weighted_timing(alone, 3) == timing_over([series], 3)
    (ours,), (theirs,) = weighted_comparisons(alone), comparisons_over([series])
    for name in ("baseline_us", "speedup", "low", "high"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-12)


def test_a_baseline_that_not_all_cases_have_is_not_compared_with_over_them() -> None:
    both, eager = RoundSeries(Rules(), ("eager", "compile")), RoundSeries(Rules(), ("eager",))
    for series in (both, eager):
        series.add({CANDIDATE: (1.0, 1.0), **{name: (2.0, 2.0) for name in series.baselines}}, 0.01)
    cases = [CaseSessions(1.0, [both]), CaseSessions(1.0, [eager])]
    assert [c.baseline for c in weighted_comparisons(cases)] == ["eager"]
