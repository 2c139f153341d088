"""A suite's figures against values that were worked out by hand."""

import math
from dataclasses import replace

import pytest

from kerneltune.agent.events import RunStarted
from kerneltune.agent.report.data import RunData
from kerneltune.agent.report.suite import (
    by_author,
    fast_p_share,
    figures,
    mean_pass_at_k,
    pass_at_k,
    shares_in_words,
    suite,
    suite_claim,
    wilson,
)
from kerneltune.agent.view.state import Spending
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.report.made import CHECKED, correct, events, failed, material

WRONG = failed(Status.WRONG, "no")
MODEL = "anthropic:claude-opus-5-5"


def run(*verdicts: Verdict, task: str = "softmax", author: str = MODEL, spent: Spending | None = None) -> RunData:
    """A run of these attempts; each task has a hash of its own."""
    made = events([(None, verdict) for verdict in verdicts], task=task, run_id=f"2026-{task}-1")
    told = [replace(e, task_sha256=task, author=author) if isinstance(e, RunStarted) else e for e in made]
    return replace(material(told), spending=spent or Spending())


def over_the_fastest(times: float) -> Verdict:
    return correct(100.0 / times)


@pytest.mark.parametrize(
    ("samples", "right", "k", "expected"),
    [(5, 2, 1, 0.4), (5, 2, 3, 0.9), (5, 2, 4, 1.0), (10, 0, 5, 0.0), (10, 3, 2, 1 - 21 / 45), (4, 4, 4, 1.0)],
)
def test_pass_at_k_is_the_share_of_k_samples_with_a_right_one(
    samples: int, right: int, k: int, expected: float
) -> None:
    assert pass_at_k(samples, right, k) == pytest.approx(expected)


@pytest.mark.parametrize(("samples", "right", "k"), [(5, 6, 1), (5, 2, 6), (5, 2, 0), (5, -1, 1)])
def test_pass_at_k_of_more_than_there_is_is_refused(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {samples}"):
        pass_at_k(samples, right, k)


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0), (0.9, 1000, 0.8798, 0.9171)],
)
def test_the_interval_of_a_share_is_wilsons(share: float, n: int, low: float, high: float) -> None:
    found = wilson(share, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_pass_at_k_is_a_mean_over_tasks_and_leaves_out_those_with_too_few_samples() -> None:
    half = [run(CHECKED, task="a"), run(WRONG, task="a")]
    of = suite([*half, run(WRONG, CHECKED, task="b"), run(CHECKED, task="b"), run(WRONG, task="c")])
    first, second = mean_pass_at_k(of, 1), mean_pass_at_k(of, 2)
    assert first is not None
    assert second is not None
    assert first.value == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert second == wilson(1.0, 2)
    assert mean_pass_at_k(of, 3) is None


def test_the_first_attempt_and_the_best_have_shares_of_their_own() -> None:
    of = suite([
        run(WRONG, over_the_fastest(3.0), task="a"),
        run(over_the_fastest(1.1), over_the_fastest(1.3), task="b"),
        run(over_the_fastest(2.5), task="c"),
        run(task="d"),
    ])  # fmt: skip
    first = [fast_p_share(of, p, first=True)[0] for p in (0.0, 1.0, 1.2, 1.5, 2.0)]
    assert first == [0.5, 0.5, 0.25, 0.25, 0.25]
    assert [fast_p_share(of, p)[0] for p in (0.0, 1.0, 1.2, 1.5, 2.0)] == [0.75, 0.75, 0.75, 0.5, 0.5]
    assert shares_in_words(of, first=True) == ["50%", "50%", "25%", "25%", "25%"]


def test_what_was_never_timed_counts_for_right_ones_alone() -> None:
    of = suite([run(WRONG, CHECKED, task="a"), run(CHECKED, task="b")])
    told = figures(of)
    assert told["fast_p"] == {"first": {"0": [0.5, 0.5]}, "best": {"0": [1.0, 1.0]}}
    assert told["geometric_means"] == {}
    assert shares_in_words(of) == ["100%", "-", "-", "-", "-"]


def test_figures_have_a_mean_over_each_baseline_and_what_it_cost() -> None:
    spent = Spending(2, 900, 0, 40, 0.25, 0)
    of = suite([run(over_the_fastest(2.0), task="a", spent=spent), run(over_the_fastest(0.5), task="b", spent=spent)])
    told = figures(of)
    means = told["geometric_means"]
    assert {name: round(its["value"], 4) for name, its in means.items()} == {
        "fastest": 1.0, "compile-max": 1.0, "compile": 1.1, "eager": 2.5,
    }  # fmt: skip
    assert (told["runs"], told["attempts"], told["replies"], told["cost_usd"]) == (2, 2, 4, 0.5)
    assert math.isclose(told["judge_s"], sum(m.judge_s for m in of.materials), abs_tol=1e-3)


def test_authors_are_told_apart() -> None:
    found = by_author([run(CHECKED, task="a"), run(WRONG, task="a", author="offline"), run(WRONG, task="b")])
    assert {name: len(its.materials) for name, its in found.items()} == {MODEL: 2, "offline": 1}
    both = suite([run(CHECKED, task="a"), run(WRONG, task="a", author="offline")])
    assert suite_claim(both)[-1] == "Nothing was accepted for a by offline; such runs count as not faster."
