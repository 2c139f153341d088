"""How much a run does where nobody said."""

from dataclasses import replace

import pytest

from kerneltune.agent.attempt import search_tiers
from kerneltune.agent.commands.lifecycle import budgeted, limits_of
from kerneltune.agent.commands.session import width_of
from kerneltune.agent.settings import Settings

PLAIN = Settings()


@pytest.mark.parametrize(
    ("gpu", "search", "given", "attempts", "time_s"),
    [
        (True, True, {}, 300, 110.0),
        (True, True, {"max_attempts": 8}, 8, None),
        (True, True, {"max_time_s": 30.0}, 300, 30.0),
        (True, True, {"max_time_s": 600.0}, 1636, 600.0),
        (True, False, {}, 24, None),
        (False, True, {}, 24, None),
        (False, True, {"max_time_s": 60.0}, 24, 60.0),
    ],
)
def test_a_search_on_a_gpu_ends_within_minutes_and_others_after_the_usual_attempts(
    gpu: bool, search: bool, given: dict[str, float], attempts: int, time_s: float | None
) -> None:
    limits = limits_of(budgeted(replace(PLAIN, **given), gpu=gpu, search=search))  # type: ignore[arg-type]
    assert (limits.max_attempts, limits.max_time_s) == (attempts, time_s)


def test_the_default_budget_of_a_search_ends_within_three_minutes_on_an_h200() -> None:
    limits = limits_of(budgeted(PLAIN, gpu=True, search=True))
    ready_s = 19.0  # docs/benchmarks.md
    assert limits.max_time_s is not None
    assert ready_s + limits.max_time_s + search_tiers(gpu=True).final_s < 180


@pytest.mark.parametrize(
    ("ready_s", "time_s"), [(0.0, 110.0), (15.0, 110.0), (33.0, 92.0), (75.5, 49.5), (170.0, 30.0)]
)
def test_a_search_that_was_slow_to_get_ready_has_less_time(ready_s: float, time_s: float) -> None:
    assert budgeted(PLAIN, gpu=True, search=True, ready_s=ready_s).max_time_s == time_s
    own = replace(PLAIN, max_time_s=90.0)
    assert budgeted(own, gpu=True, search=True, ready_s=ready_s).max_time_s == 90.0


@pytest.mark.parametrize(("cores", "width"), [(1, 2), (4, 2), (8, 4), (16, 5), (128, 5)])
def test_the_width_on_a_gpu_follows_the_cores(cores: int, width: int) -> None:
    assert width_of(PLAIN, gpu=True, cores=cores) == width
    assert width_of(PLAIN, gpu=False, cores=cores) == 2
    assert width_of(replace(PLAIN, width=9), gpu=True, cores=cores) == 9
