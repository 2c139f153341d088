"""From measurements to a verdict: what is impossible, what is said, what the receipt holds."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from kerneltune.tools.backends.runner_messages import Shares
from kerneltune.tools.judge.timing.build_verdict import RooflineBound, TimingContext, TimingResult, build_verdict
from kerneltune.tools.judge.timing.statistics import CANDIDATE, Agreement, RoundSeries
from kerneltune.tools.schema.messages import Rules
from kerneltune.tools.schema.verdict import (
    PROTOCOL_VERSION,
    CaseResult,
    LaunchTime,
    Limitation,
    LimitationKind,
    Status,
    Tier,
    launch_shares,
    launches_in_words,
)

GPU = {"name": "NVIDIA H200", "uuid": "GPU-1"}


GROUND = TimingContext(
    roofline=RooflineBound(50.0, 4800.0, 240_000_000, 0, "data sheet"),
    slots=4,
    l2_bytes=60 << 20,
    flush_bytes=180 << 20,
    resolution=0.002,
    eager_us=210.0,
    null_launch_us=0.8,
    copy_gbps=4200.0,
    times_us={"eager": 200.0, "compile": 100.0},
    build_s={"eager": 0.0},
    notes=("a note",),
)


def timed(us: float, *, rounds: int = 20, warm_us: float | None = None, seed: int = 1, **facts: Any) -> TimingResult:
    rng = random.Random(seed)
    series = RoundSeries(Rules(), ("eager", "compile"))
    for _ in range(rounds):
        noise = [math.exp(rng.gauss(0, 0.001)) for _ in range(6)]
        series.add(
            {
                CANDIDATE: [us * noise[0], us * noise[1]],
                "eager": [200 * noise[2], 200 * noise[3]],
                "compile": [100 * noise[4], 100 * noise[5]],
            },
            0.02,
            sm_clock_mhz=1980.0,
        )
    result = CaseResult("main", "timed", True, 0.1, 1e-6)
    told: dict[str, Any] = {"warm_us": us if warm_us is None else warm_us, "results": [result], "launches": 1000}
    return TimingResult(series, "abc", **(told | facts))


def test_a_credible_time_is_correct_and_compared_with_the_fastest_baseline_first() -> None:
    verdict = build_verdict([timed(80)], GROUND, GPU, "judged")
    assert (verdict.status, verdict.tier) == (Status.CORRECT, "judged")
    assert [c.baseline for c in verdict.comparisons] == ["compile", "eager"]
    assert verdict.detail == "right; 1.250 times the speed of compile"
    assert verdict.sol_fraction == pytest.approx(50 / 80, rel=1e-3)


def test_what_an_earlier_group_of_timed_outputs_was_compared_without_is_said_of_the_last() -> None:
    weak = CaseResult("main", "timed", True, 0.1, 1e-6, limitations=(Limitation(LimitationKind.NOT_FLOAT64),))
    verdict = build_verdict([timed(80, results=[weak, replace(weak, limitations=())])], GROUND, GPU, "judged")
    assert [case.limitations for case in verdict.cases] == [weak.limitations]


def test_a_difference_below_the_session_s_resolution_is_none() -> None:
    verdict = build_verdict([timed(99.9)], GROUND, GPU, "judged")
    assert verdict.detail == "right; no difference from compile measured"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (timed(40), "speed of light"),
        (timed(80, warm_us=200.0), "back to back"),
        (timed(60, nodes=100), "100 empty launches"),
    ],
)
def test_a_time_that_cannot_be_is_impossible(found: TimingResult, words: str) -> None:
    verdict = build_verdict([found], GROUND, GPU, "judged")
    assert verdict.status is Status.IMPOSSIBLE
    assert words in verdict.detail
    assert verdict.timing is None


def test_dependent_launches_that_overlap_may_take_less_than_empty_ones_in_a_row() -> None:
    assert build_verdict([timed(60, nodes=100, overlapping=True)], GROUND, GPU, "judged").status is Status.CORRECT


def test_a_reference_below_the_floor_shows_that_not_every_byte_must_move() -> None:
    assert build_verdict([timed(40)], replace(GROUND, times_us={"eager": 45.0}), GPU, "judged").status is Status.CORRECT


def test_a_confirmation_quotes_all_its_processes_and_lists_each() -> None:
    timed_runs = [timed(us, seed=n, seeds={f"process{n}.first": "ab"}) for n, us in enumerate((78.0, 80.0, 82.0))]
    verdict = build_verdict(timed_runs, GROUND, GPU, "confirmed")
    assert verdict.timing is not None
    assert verdict.timing.median_us == pytest.approx(80, rel=0.01)
    assert verdict.timing.low_us < 79 < 81 < verdict.timing.high_us
    assert [round(p["median_us"]) for p in verdict.receipt["processes"]] == [78, 80, 82]
    assert len(verdict.receipt["contents_seeds"]) == 3
    assert verdict.tier == "confirmed"


def test_a_receipt_is_plain_json_of_bounded_size_and_names_its_protocol() -> None:
    timed_runs = [timed(80, rounds=400, seeds={f"{n}.{k}": "f" * 16 * 96 for k in range(10)}) for n in range(3)]
    receipt = build_verdict(timed_runs, GROUND, GPU, "confirmed").receipt
    assert receipt["protocol_version"] == PROTOCOL_VERSION
    assert len(json.dumps(receipt)) < 200_000


def test_a_receipt_tells_every_round_the_clocks_and_whose_speed_of_light_it_is() -> None:
    receipt = build_verdict(
        [timed(80, clocks=Agreement(True, 1.002), sm_clocks_mhz=[1980.0] * 20)], GROUND, GPU, "judged"
    ).receipt
    assert len(receipt["rounds"]) == receipt["n_rounds"] == 20
    assert set(receipt["rounds"][0]) == {CANDIDATE, "eager", "compile", "sm_mhz"}
    assert receipt["speed_of_light"]["source"] == "data sheet"
    assert (receipt["host_slope"], receipt["sm_clock_mhz"]["median"]) == (1.002, 1980.0)
    assert receipt["notes"] == ["a note"]


def test_foreign_processes_on_the_gpu_are_noted() -> None:
    notes = build_verdict([timed(80, foreign_processes=2)], GROUND, GPU, "judged").receipt["notes"]
    assert "2 foreign" in notes[-1]


def test_coverage_is_the_share_of_own_kernels_and_whole_without_other_steps() -> None:
    assert build_verdict([timed(80)], GROUND, GPU, "judged").coverage == 1.0
    assert build_verdict([timed(80, shares=Shares(30.0, 60.0, 10.0))], GROUND, GPU, "judged").coverage == pytest.approx(
        0.3
    )


def test_the_time_of_each_launch_is_a_fact_of_the_receipt_and_said_in_words() -> None:
    times = (LaunchTime("rows", 1, 60.0), LaunchTime("finish", 3, 30.0))
    runs = [timed(80, shares=Shares(90.0, 10.0, 0.0, (60.0, 30.0)), launch_times=times)]
    tiers: list[tuple[int, Tier]] = [(1, "judged"), (3, "confirmed")]
    for count, tier in tiers:
        receipt = build_verdict(runs * count, GROUND, GPU, tier).receipt
        said = launches_in_words(json.loads(json.dumps(receipt)))
        assert said == (
            "rows 60 % of the time, 60.0 µs; finish (3 launches) 30 %, 30.0 µs; library calls and copies 10 %"
        )
        assert launch_shares(receipt) == pytest.approx({"rows": 0.6, "finish": 0.3})


def test_a_forward_of_one_launch_or_an_old_receipt_says_nothing_of_launches() -> None:
    receipt = build_verdict([timed(80)], GROUND, GPU, "judged").receipt
    assert receipt["launches_us"] == []
    assert (launches_in_words(receipt), launches_in_words({}), launch_shares(receipt)) == ("", "", {})
    assert launches_in_words({"launches_us": [{"kernel": 7}]}) == ""
