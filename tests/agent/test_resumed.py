"""A run that goes on: with the limits that it had, but those that would end it again at once."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from kerneltune.agent.attempt import Limits
from kerneltune.agent.commands.lifecycle import limits_as_then
from kerneltune.agent.loop import optimize
from kerneltune.agent.settings import Settings
from kerneltune.tools.schema.codec import encode
from tests.agent.test_loop import run
from tests.agent.view.scripts import started

THEN = Limits(4, max_time_s=90.0, patience=8, max_cost_usd=2.0, target_speedup=1.5)


def again(given: Settings, then: Limits, finished: int) -> dict[str, Any]:
    """What a run with these limits and so many attempts goes on with; the first attempt is the best."""
    event = replace(started(None), limits=encode(asdict(then)))
    running, _ = run([str(n) for n in range(1, finished + 1)], max_attempts=finished)
    optimize(running)
    return asdict(limits_as_then(given, event, running.tracker.attempts))


@pytest.mark.parametrize(
    ("finished", "given", "expected"),
    [
        (3, {}, {"max_attempts": 4, "max_time_s": 90.0, "patience": 8, "max_cost_usd": 2.0, "target_speedup": 1.5}),
        (3, {"max_attempts": 9, "max_cost_usd": 3.0}, {"max_attempts": 9, "max_cost_usd": 3.0, "patience": 8}),
        (3, {"max_attempts": 2}, {"max_attempts": 2}),
        (4, {}, {"max_attempts": 24}),  # its own limit is reached: the usual number
        (9, {}, {"max_attempts": 24, "patience": None, "max_cost_usd": 2.0}),  # patience is at its end
        (9, {"patience": 3}, {"patience": 3}),
    ],
)
def test_limits_that_are_not_given_stay_unless_they_are_reached(
    finished: int, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    kept = again(Settings(**given), THEN, finished)
    assert {name: kept[name] for name in expected} == expected


def test_a_run_that_has_made_all_of_many_attempts_may_make_as_many_again() -> None:
    assert again(Settings(), replace(THEN, max_attempts=26, patience=None), 26)["max_attempts"] == 52
