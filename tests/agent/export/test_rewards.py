"""Rewards against numbers worked out by hand, and the specs that name them."""

import math
from pathlib import Path

import pytest

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import Replied
from kerneltune.agent.export.base import option_types
from kerneltune.agent.export.rewards import REWARDS, labels, reward_of, rewards_of, sol_score
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.graded import documented, expected, graded, timed
from tests.agent.record.samples import arbitrary_run
from tests.agent.view.scripts import GPU_RUN

OUTCOME = [name for name in REWARDS if name not in ("hypothesis", "prediction", "stages")]  # those that need a time
FAILURES = [
    Status.REJECTED,
    Status.COMPILE_FAILED,
    Status.CRASHED,
    Status.TIMED_OUT,
    Status.WRONG,
    Status.IMPOSSIBLE,
]


def worth(spec: str, attempt: Attempt) -> float | None:
    return reward_of(spec)(attempt)


def uncompiled(status: Status) -> Attempt:
    return graded(status, tool="update")


@pytest.mark.parametrize(("spec", "value"), [("fast_1", 1.0), ("fast_1.5", 0.0), ("fast_1.2", 1.0), ("fast_2", 0.0)])
def test_fast_p_asks_for_more_than_p_times_the_fastest_baseline_s_speed(spec: str, value: float) -> None:
    assert worth(spec, timed(4.0, 2.0, 1.5)) == value  # 1.5 > 1.5 is false


def test_fast_0_is_being_right_and_needs_no_time() -> None:
    assert worth("fast_0", graded(Status.CHECKED)) == 1.0
    assert worth("fast_0", graded(Status.WRONG)) == 0.0
    assert worth("fast_1", graded(Status.CHECKED)) is None


def test_kevin_is_point_three_plus_the_speedup() -> None:
    assert worth("kevin", timed(4.0, 2.0, 1.5)) == pytest.approx(1.8)
    assert worth("kevin:baseline=eager", timed(4.0, 2.0, 1.5)) == pytest.approx(4.3)
    assert worth("kevin:correct=1", timed(0.25)) == pytest.approx(1.25)
    assert worth("kevin", graded(Status.WRONG)) == 0.0


def test_drkernel_adds_half_for_right_half_the_capped_speedup_and_the_coverage() -> None:
    assert worth("drkernel", timed(2.0, coverage=0.8)) == pytest.approx(1.9)  # 0.5 + 1.0 + 0.4
    assert worth("drkernel", timed(7.0, coverage=0.8)) == pytest.approx(2.4)  # 0.5 + 0.5 * 3 + 0.4
    assert worth("drkernel:cap=10", timed(7.0, coverage=0.8)) == pytest.approx(4.4)
    assert worth("drkernel:lambda=0.25", timed(2.0, coverage=0.8)) == pytest.approx(1.7)


def test_drkernel_without_a_coverage_is_unknown_unless_the_coverage_counts_for_nothing() -> None:
    assert worth("drkernel", timed(2.0, coverage=None)) is None
    assert worth("drkernel:lambda=0", timed(2.0, coverage=None)) == pytest.approx(1.5)


def test_the_sol_score_is_a_half_at_the_baseline_and_one_at_the_speed_of_light() -> None:
    assert worth("sol", timed(1.0, sol_fraction=0.5)) == pytest.approx(0.5)
    assert worth("sol", timed(2.0, sol_fraction=1.0)) == 1.0
    # T_k 100, T_b 200, T_sol 80 µs: 1 / (1 + 20 / 120) = 6 / 7
    assert worth("sol", timed(2.0, sol_fraction=0.8)) == pytest.approx(6 / 7)
    # a slow one. T_k 100, T_b 50, T_sol 25 µs: 1 / (1 + 75 / 25) = 1 / 4
    assert worth("sol", timed(0.5, sol_fraction=0.25)) == pytest.approx(0.25)


def test_the_sol_score_stays_between_0_and_1_where_its_formula_does_not() -> None:
    assert sol_score(2.0, 1.02) == 1.0  # the formula says 1.02: faster than the floor, within its tolerance
    assert sol_score(1.03, 1.02) == 1.0  # the formula says -1
    assert sol_score(0.6, 0.7) == 0.0  # a baseline beyond the floor, a kernel that is not
    assert sol_score(0.7, 0.7) == 0.0
    assert sol_score(1.2, 1.2) == 1.0
    assert all(0.0 <= sol_score(s / 10, f / 50) <= 1.0 for s in range(1, 60) for f in range(1, 60))


def test_proven_counts_the_lower_end_in_octaves_and_only_the_work_of_own_kernels() -> None:
    # cap 4: 1/4 -> 0, 1 -> 1/2, 2 -> 3/4, 4 -> 1
    assert worth("proven", timed(1.1, half=0.1)) == pytest.approx(0.3 + 0.7 * 0.5)
    assert worth("proven", timed(2.5, half=0.5)) == pytest.approx(0.3 + 0.7 * 0.75)
    assert worth("proven", timed(2.5, half=0.5, coverage=0.4)) == pytest.approx(0.3 + 0.7 * 0.4 * 0.75)
    assert worth("proven", timed(50.0)) == pytest.approx(1.0)
    assert worth("proven", timed(0.1, half=0.0)) == pytest.approx(0.3)
    assert worth("proven:correct=0,cap=2", timed(1.0, half=0.0)) == pytest.approx(0.5)


def test_proven_does_not_pay_for_noise() -> None:
    wide, narrow = timed(1.3, half=0.3), timed(1.2, half=0.01)
    assert (worth("proven", wide) or 0) < (worth("proven", narrow) or 0)
    assert (worth("kevin", wide) or 0) > (worth("kevin", narrow) or 0)


def test_proven_knows_nothing_of_a_verdict_that_a_verification_did_not_bear_out() -> None:
    assert worth("proven", timed(2.0, held=False)) is None
    assert worth("proven", timed(2.0, held=True)) is not None
    assert worth("proven", graded(Status.WRONG, held=False)) == 0.0


@pytest.mark.parametrize("name", REWARDS)
def test_nobody_knows_what_is_right_and_was_found_wrong_later(name: str) -> None:
    refuted = timed(2.0, held=False, refuted=True, expectations=(expected("confirmed", measured_speedup=2.0),))
    assert worth(name, refuted) is None
    assert (labels(refuted).correct, labels(refuted).faster, labels(refuted).verified) == (None, None, False)


@pytest.mark.parametrize("name", OUTCOME)
def test_what_was_never_judged_or_cannot_run_here_is_unknown(name: str) -> None:
    assert worth(name, graded(None)) is None
    assert worth(name, graded(Status.UNCHECKED)) is None


@pytest.mark.parametrize("name", OUTCOME)
def test_right_but_not_timed_is_unknown_and_never_zero(name: str) -> None:
    assert worth(name, graded(Status.CHECKED)) is None
    assert worth(name, timed()) is None  # timed, and no baseline to compare with


@pytest.mark.parametrize("name", OUTCOME)
def test_a_failure_is_known_without_a_gpu_and_worth_less_than_any_right_attempt(name: str) -> None:
    slow = worth(name, timed(0.9, half=0.0))
    assert slow is not None
    for status in FAILURES:
        for attempt in (graded(status), uncompiled(status)):
            value = worth(name, attempt)
            assert value is not None
            assert value < slow or (name == "fast_p" and value == slow == 0.0)


@pytest.mark.parametrize("name", OUTCOME)
def test_a_cheat_earns_no_more_than_any_honest_failure(name: str) -> None:
    cheat = worth(name, graded(Status.IMPOSSIBLE))
    assert cheat is not None
    assert all(cheat <= (worth(name, graded(status)) or 0.0) for status in FAILURES)


def test_a_speedup_from_before_all_baselines_were_ready_earns_nothing_over_the_fastest() -> None:
    early = timed(17.0, baselines=("eager",), pending=("compile",))
    assert [worth(name, early) for name in OUTCOME] == [None] * len(OUTCOME)
    assert labels(early).faster is None
    assert worth("kevin:baseline=eager", early) == pytest.approx(17.3)


def test_what_could_not_be_timed_beside_others_earns_nothing() -> None:
    assert [worth(name, graded(Status.CHECKED)) for name in OUTCOME] == [None] * len(OUTCOME)


def test_a_baseline_that_was_not_measured_makes_the_reward_unknown() -> None:
    assert worth("kevin:baseline=compile", timed(2.0, baselines=("eager",))) is None
    assert worth("kevin:baseline=compile", graded(Status.WRONG)) == 0.0


@pytest.mark.parametrize("bad", [math.inf, math.nan, 0.0, -1.0])
def test_a_speedup_that_is_none_makes_no_reward(bad: float) -> None:
    assert [worth(name, timed(bad)) for name in OUTCOME] == [None] * len(OUTCOME)


@pytest.mark.parametrize("seed", range(40))
def test_rewards_of_arbitrary_attempts_are_finite_or_unknown(seed: int) -> None:
    scorers = [reward_of(name) for name in REWARDS]
    events = [e for e in arbitrary_run(seed) if not isinstance(e, Replied)]  # their calls are arbitrary too
    for attempt in trajectory(events).attempts:
        values = [scorer(attempt) for scorer in scorers]
        assert all(v is None or math.isfinite(v) for v in values)


def test_a_hypothesis_is_worth_what_became_of_it() -> None:
    assert worth("hypothesis", timed(1.0, expectations=(expected("confirmed"),))) == 1.0
    assert worth("hypothesis", timed(1.0, expectations=(expected("refuted"),))) == -1.0
    both = (expected("confirmed"), expected("confirmed"), expected("refuted"))
    assert worth("hypothesis", timed(1.0, expectations=both)) == pytest.approx(1 / 3)
    assert worth("hypothesis", graded()) is None


def test_a_hypothesis_about_speed_is_open_without_a_clock_whatever_was_stored() -> None:
    seen = {"predicted_speedup": 1.2, "time_ratio_to_parent": 0.8}
    for stored in ("confirmed", "refuted"):
        untimed = graded(Status.CHECKED, expectations=(expected(stored, **seen),))
        assert worth("hypothesis", untimed) is None
    broken = graded(Status.WRONG, expectations=(expected("refuted", **seen),))
    assert worth("hypothesis", broken) == -1.0  # it does not work: no clock is needed to know that


def test_an_undecided_hypothesis_counts_as_zero_once_it_was_tested_and_not_before() -> None:
    no_difference = expected("open", predicted_speedup=1.2, measured_speedup=1.001)
    about_the_next = expected("open", predicted_speedup=3.0, time_ratio_to_parent=0.5)
    untimed = expected("open", predicted_speedup=None, measured_speedup=None)
    assert worth("hypothesis", timed(1.0, expectations=(no_difference,))) == 0.0
    assert worth("hypothesis", timed(1.0, expectations=(expected("open", time_ratio_to_parent=1.0),))) == 0.0
    assert worth("hypothesis", timed(1.0, expectations=(about_the_next,))) is None
    assert worth("hypothesis", timed(1.0, expectations=(about_the_next, no_difference))) == 0.0
    assert worth("hypothesis", graded(Status.CHECKED, expectations=(untimed,))) is None


def test_a_prediction_is_worth_how_near_it_came() -> None:
    def said(predicted: object, measured: object) -> Attempt:
        seen = expected("confirmed", predicted_speedup=predicted, measured_speedup=measured)
        return timed(1.0, expectations=(seen,))

    assert worth("prediction", said(1.5, 1.5)) == 1.0
    assert worth("prediction", said(2.0, 1.0)) == pytest.approx(0.0)  # one octave
    assert worth("prediction", said(1.0, 2.0)) == pytest.approx(0.0)
    assert worth("prediction", said(math.sqrt(2.0), 1.0)) == pytest.approx(0.5)
    assert worth("prediction", said(3.0, 0.01)) == -1.0
    assert worth("prediction", said(None, 1.5)) is None
    assert worth("prediction", said(-2.0, 1.5)) is None
    assert worth("prediction", said("2x", 1.5)) is None
    assert worth("prediction", said(True, 1.5)) is None
    assert worth("prediction", said(10**400, 1.5)) is None


def test_a_prediction_of_what_then_does_not_work_is_as_wrong_as_can_be() -> None:
    seen = expected("refuted", predicted_speedup=1.2, measured_speedup=None)
    assert worth("prediction", graded(Status.WRONG, expectations=(seen,))) == -1.0
    assert worth("prediction", graded(Status.CHECKED, expectations=(seen,))) is None  # right, and nobody timed it


def test_honest_predictions_are_the_best_ones_on_average() -> None:
    outcomes = (1.0, 1.1, 1.3)  # the median is 1.1

    def mean(predicted: float) -> float:
        seen = [expected("open", predicted_speedup=predicted, measured_speedup=m) for m in outcomes]
        return worth("prediction", timed(1.0, expectations=tuple(seen))) or 0.0

    assert max((0.9, 1.0, 1.05, 1.1, 1.15, 1.3, 2.0), key=mean) == 1.1


def test_rewards_of_a_recorded_run_on_a_gpu() -> None:
    third = trajectory(GPU_RUN).attempts[2]  # 110 µs; baselines of 280.2, 158.4, 140.1; light 92.5
    assert worth("fast_1.2", third) == 1.0
    assert worth("kevin", third) == pytest.approx(0.3 + 140.1 / 110)
    assert worth("drkernel:baseline=eager", third) == pytest.approx(0.5 + 0.5 * 280.2 / 110 + 0.5)
    assert worth("sol", third) == pytest.approx(1 / (1 + (110 - 92.5) / (140.1 - 92.5)))
    assert worth("hypothesis", third) == 1.0


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("kevin", "kevin"),
        (" fast_p ", "fast_1"),
        ("fast_p:p=1.50", "fast_1.5"),
        ("fast_2:baseline=eager", "fast_2:baseline=eager"),
        ("drkernel:baseline=eager , cap=3,lambda=0.25", "drkernel:lambda=0.25,baseline=eager"),
        ("drkernel:", "drkernel"),
    ],
)
def test_a_spec_has_one_name_however_it_is_spelled(spec: str, name: str) -> None:
    assert reward_of(spec).name == name
    assert reward_of(name).name == name


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("kevni", ("'kevni'", "kevin")),
        ("", ("''", "drkernel")),
        ("drkernel:lamda=1", ("'lamda'", "lambda")),
        ("drkernel:lambda=much", ("lambda='much'", "a number")),
        ("drkernel:lambda=nan", ("lambda='nan'",)),
        ("drkernel:lambda=-1", ("lambda=-1", "at least 0")),
        ("proven:correct=2", ("correct=2", "from 0 to 1")),
        ("drkernel:cap", ("'cap'", "key=value")),
        ("drkernel:cap=", ("cap=''", "a number")),
        ("drkernel:cap=1,cap=2", ("cap is given twice",)),
        ("fast_x", ("p='x'",)),
        ("fast_-1", ("p=-1", "at least 0")),
        ("fast_1:p=2", ("p is given twice",)),
        ("math:gcd", ("math:gcd", "drkernel")),
    ],
)
def test_a_wrong_spec_says_what_is_wrong_and_what_would_work(spec: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        reward_of(spec)
    assert [w for w in words if w not in str(caught.value)] == []


def test_the_same_reward_twice_is_a_mistake() -> None:
    assert [s.name for s in rewards_of(["kevin", "fast_1", "fast_2"])] == ["kevin", "fast_1", "fast_2"]
    with pytest.raises(UsageError, match="twice"):
        rewards_of(["fast_1", "fast_p:p=1"])


def test_every_reward_is_documented() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "rewards.md").read_text()
    assert [name for name in REWARDS if f"`{name}`" not in text] == []
    for name, formula in REWARDS.items():
        assert reward_of(name).about
        assert [option for option in option_types(formula) if f"`{option}`" not in text] == []


def test_the_example_of_the_documentation_is_what_the_code_says() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "rewards.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.split("### An example")[1].splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) == 6]
    assert len(rows) >= len(REWARDS)
    for name, *cells in rows:
        values = [worth(name.strip("`"), attempt) for attempt in documented().attempts]
        assert ["None" if v is None else f"{v:.4g}" for v in values] == cells


def test_stages_pay_a_little_for_compiling_and_nothing_for_a_file_that_is_none_or_a_cheat() -> None:
    def paid(status: Status | None, tool: str = "bench", spec: str = "stages") -> float | None:
        return reward_of(spec)(graded(status, tool=tool))

    assert [paid(s) for s in (Status.CHECKED, Status.WRONG, Status.CRASHED, Status.IMPOSSIBLE)] == [1.0, 0.2, 0.2, 0.0]
    assert [paid(s, "update") for s in (Status.REJECTED, Status.COMPILE_FAILED)] == [0.0, 0.0]
    assert [paid(None), paid(Status.UNCHECKED)] == [None, None]
    assert paid(Status.WRONG, spec="stages:compiles=0.1") == 0.1
