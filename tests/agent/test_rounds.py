"""Whose turn it is in a suite, and how much of the budget that one gets: pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.commands.lifecycle import Choice
from kerneltune.agent.commands.rounds import RunShare, Standing, headroom, share_of, whose_turn
from kerneltune.agent.models.scripted import ScriptedModel
from kerneltune.agent.models.types import ModelOptions
from kerneltune.agent.settings import Settings
from kerneltune.tools.schema.errors import UsageError
from tests.agent.report.made import CHECKED, correct
from tests.agent.shell import ROOT

OFFLINE = Choice("offline", "")
STORY = ROOT / "tests" / "agent" / "stories" / "softmax.jsonl"


def dealt(runs: Sequence[Standing], shares: int) -> list[int]:
    """The places of the runs that get the next so many shares."""
    given: list[int] = []
    for _ in range(shares):
        if (at := whose_turn(runs)) is None:
            break
        given.append(at)
        runs = [replace(r, shares=r.shares + (place == at)) for place, r in enumerate(runs)]
    return given


def test_every_run_has_one_share_before_any_has_two() -> None:
    runs = [Standing("a", headroom=0.9), Standing("b", headroom=0.1), Standing("c", headroom=0.5)]
    assert dealt(runs, 3) == [0, 1, 2]


def test_further_shares_go_by_headroom_times_weight_and_starve_nobody() -> None:
    runs = [
        Standing("a", 1.0, 1, headroom=0.6),
        Standing("b", 1.0, 1, headroom=0.2),
        Standing("c", 2.0, 1, headroom=0.21),
    ]
    assert dealt(runs, 6) == [0, 2, 0, 0, 2, 0]  # 0.60/2, 0.42/2, 0.60/3, 0.60/4, 0.42/3, 0.60/5; b: 0.20/2
    many = Counter(dealt(runs, 1200))
    assert [many[at] / 1200 for at in range(3)] == pytest.approx([0.60 / 1.22, 0.20 / 1.22, 0.42 / 1.22], abs=0.01)


def test_all_runs_of_a_task_get_the_same_share() -> None:
    runs = [
        Standing("a", headroom=0.9),
        Standing("a", headroom=0.5),
        Standing("b", headroom=0.3),
        Standing("b", headroom=0.4),
    ]
    assert dealt(runs, 8) == [0, 1, 2, 3, 0, 1, 0, 1]


def test_a_run_that_was_killed_in_its_share_has_it_first() -> None:
    runs = [Standing("a", 1.0, 1, headroom=1.0), Standing("b", 1.0, 0, headroom=0.1)]
    assert whose_turn(runs) == 1


def test_who_is_done_gets_nothing_and_holds_nobody_up() -> None:
    runs = [Standing("a", 1.0, 0, is_open=False), Standing("a", 1.0, 1), Standing("b", 1.0, 5, is_open=False)]
    assert dealt(runs, 2) == [1, 1]
    assert whose_turn([replace(run, is_open=False) for run in runs]) is None


def test_without_a_clock_what_has_nothing_right_comes_first_and_the_rest_evenly() -> None:
    right = headroom(attempt(correct(80.0, sol_fraction=None)))
    runs = [
        Standing("a", 1.0, 1, headroom=right),
        Standing("b", 1.0, 1, headroom=headroom(None)),
        Standing("c", 1.0, 1, headroom=right),
    ]
    assert dealt(runs, 4) == [1, 1, 0, 1]
    assert dealt([runs[0], runs[2]], 4) == [0, 1, 0, 1]


def attempt(verdict: object) -> Attempt:
    return Attempt("", "", attempt_id="r/1", number=1, verdict=verdict)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "expected"), [(correct(80.0), 0.5), (correct(80.0, sol_fraction=1.3), 0.0), (CHECKED, 0.5)]
)
def test_headroom_is_what_the_speed_of_light_leaves(verdict: object, expected: float) -> None:
    assert headroom(attempt(verdict)) == pytest.approx(expected)


def test_without_a_budget_each_run_is_what_it_is_alone() -> None:
    assert share_of(Settings(), runs=3, models=0, gpu=False, author=OFFLINE) == RunShare(24, None, None, is_whole=True)
    assert share_of(Settings(), runs=3, models=0, gpu=True, author=OFFLINE) == RunShare(300, 110.0, None, is_whole=True)


def test_half_of_a_budget_is_spread_evenly() -> None:
    settings = Settings(max_attempts=60, max_time_s=600.0)
    assert share_of(settings, runs=3, models=0, gpu=False, author=OFFLINE) == RunShare(10, 100.0, None, is_whole=False)
    least = share_of(Settings(max_attempts=3), runs=3, models=0, gpu=False, author=OFFLINE)
    assert least == RunShare(1, None, None, is_whole=False)


def test_dollars_are_for_models_alone() -> None:
    model = Choice("scripted", "", ScriptedModel(ModelOptions(str(STORY))))
    settings = Settings(max_cost_usd=12.0)
    assert share_of(settings, runs=4, models=2, gpu=False, author=model) == RunShare(12, None, 3.0, is_whole=False)
    assert share_of(settings, runs=4, models=2, gpu=False, author=OFFLINE) == RunShare(24, None, None, is_whole=True)


def test_a_budget_with_less_than_an_attempt_each_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-attempts 2: 3 runs need at least 1 each; give 3 or more"):
        share_of(Settings(max_attempts=2), runs=3, models=0, gpu=False, author=OFFLINE)
