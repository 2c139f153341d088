"""Many runs: fast_p as it is defined, means with what they are made of, and tasks of which little is known."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.commands.report import write_report
from kerneltune.agent.events import RunStarted
from kerneltune.agent.record.store import Store
from kerneltune.agent.report.data import RunData
from kerneltune.agent.report.suite import (
    Suite,
    fast_p_share,
    mean,
    suite,
    suite_claim,
    suite_page,
)
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.report.made import CHECKED, SANITIZER, correct, events, failed, material, receipt, verified
from tests.agent.report.reading import Reading

WRONG, UNCHECKED = failed(Status.WRONG, "no"), failed(Status.UNCHECKED, "nothing can run it")


def task(verdict: Verdict, name: str, gpu: str | None = "NVIDIA H200") -> RunData:
    return material(events([(None, verdict)], task=name, run_id=f"2026-{name}-1", gpu=gpu))


def of(*verdicts: Verdict) -> Suite:
    return suite([task(verdict, f"t{i}") for i, verdict in enumerate(verdicts)])


def speedup(times: float) -> Verdict:
    """Over the fastest baseline, which takes 100 us."""
    return correct(100.0 / times)


@pytest.mark.parametrize(
    ("p", "share"), [(0.0, 0.8), (0.49, 0.8), (0.5, 0.6), (1.0, 0.6), (1.99, 0.6), (2.0, 0.2), (4.0, 0.0)]
)
def test_fast_p_is_the_share_of_right_ones_that_are_strictly_faster(p: float, share: float) -> None:
    assert fast_p_share(of(*map(speedup, (0.5, 2.0, 2.0, 4.0)), WRONG), p) == pytest.approx((share, share))


def test_what_was_not_timed_is_unknown_above_zero_and_right_at_zero() -> None:
    suite_of = of(speedup(2.0), CHECKED, WRONG, UNCHECKED)
    assert fast_p_share(suite_of, 0.0) == pytest.approx((0.5, 0.75))
    assert fast_p_share(suite_of, 1.0) == pytest.approx((0.25, 0.75))


def test_fast_p_against_another_baseline_uses_its_times() -> None:
    assert fast_p_share(of(speedup(0.9)), 1.0, "eager") == (1.0, 1.0)
    assert fast_p_share(of(speedup(0.9)), 1.0, "compile-max") == (0.0, 0.0)


def test_a_geometric_mean_says_over_how_many_and_how_sure_it_is() -> None:
    found = mean(of(*map(speedup, (0.5, 1.0, 2.0, 4.0, 2.0**0.5)), WRONG))
    assert found is not None
    assert found.value == pytest.approx(math.sqrt(2))
    assert found.n == 5
    assert found.low is not None
    assert found.high is not None
    assert 0.5 <= found.low < found.value < found.high <= 4.0
    assert mean(of(*map(speedup, (0.5, 1.0, 2.0, 4.0, 2.0**0.5)), WRONG)) == found  # the same for the same numbers


def test_a_mean_that_keeps_pytorch_counts_failures_and_slower_ones_as_one() -> None:
    found = mean(of(speedup(4.0), speedup(0.5), WRONG, CHECKED), kept=True)
    assert found is not None
    assert found.value == pytest.approx(4 ** (1 / 3))
    assert found.n == 3


@pytest.mark.parametrize("verdicts", [(speedup(2.0),), (speedup(2.0), speedup(3.0), speedup(4.0), speedup(5.0))])
def test_too_few_tasks_have_no_interval(verdicts: Sequence[Verdict]) -> None:
    found = mean(of(*verdicts))
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_nothing_timed_has_no_mean() -> None:
    assert mean(of(CHECKED, WRONG)) is None


def test_the_statement_counts_every_task() -> None:
    assert suite_claim(of(speedup(2.0), speedup(0.5), CHECKED, WRONG)) == [
        "3 of 4 tasks have a kernel that was found right; 1 beat the fastest baseline beyond the 95 % interval.",
        "Geometric mean of the speed-up over the fastest baseline: 1.000x (too few for an interval), n = 2.",
        "1 right kernel was not timed.",
        "Nothing was accepted for t3; such tasks count as not faster.",
    ]


def refuted(again: Verdict, name: str = "softmax") -> RunData:
    return material(verified(events(task=name, run_id=f"2026-{name}-1"), again, 6))


def test_a_kernel_that_was_wrong_when_verified_is_neither_right_nor_faster() -> None:
    found = suite([task(speedup(2.0), "a"), refuted(WRONG)])
    assert [fast_p_share(found, p) for p in (0.0, 1.0)] == [(0.5, 1.0), (0.5, 1.0)]
    both, kept = mean(found), mean(found, kept=True)
    assert both is not None
    assert kept is not None
    assert (both.n, kept.n) == (1, 1)
    told = suite_claim(found)
    assert told[0].startswith("1 of 2 tasks have a kernel that was found right; 1 beat")
    assert "Verified again, the best kernel of softmax did not hold; it counts as unknown." in told
    text = " ".join(Reading(suite_page(found.materials, SANITIZER, version="1", chosen="named")).text.split())
    assert "did not hold" in text
    assert "attempt 6 was wrong when it was verified again" in text


def test_a_time_that_did_not_repeat_is_right_and_of_unknown_speed() -> None:
    found = suite([refuted(speedup(0.5))])
    assert [fast_p_share(found, p) for p in (0.0, 1.0)] == [(1.0, 1.0), (0.0, 1.0)]
    assert mean(found) is None


def test_a_win_is_above_the_resolution_of_its_session() -> None:
    verdict = correct(80.0)
    near = replace(verdict, comparisons=(replace(verdict.comparisons[0], speedup=1.0009, low=1.0005, high=1.0012),))
    assert "; 0 beat" in suite_claim(suite([material(events([(None, near)]), receipt("x"))]))[0]


def test_the_best_of_a_task_is_not_one_that_was_refuted(tmp_path: Path) -> None:
    with Store.open(tmp_path) as opened:
        quick = [(None, speedup(4.0))]
        for made in (events([(None, speedup(2.0))], run_id="r-1"), verified(events(quick, run_id="r-2"), WRONG, 1)):
            for event in made:
                opened.write(event)
    write_report((), tmp_path, suite=True)
    text = Reading((tmp_path / "suite.html").read_text()).text
    assert "r-1" in text
    assert "r-2" not in text


def test_a_suite_that_was_never_timed_shows_no_speed() -> None:
    page = suite_page([task(CHECKED, "a", None), task(WRONG, "b", None)], SANITIZER, version="1", chosen="named")
    text = " ".join(Reading(page).text.split())
    assert "1 of 2 tasks have a kernel that was found right; none was timed." in text
    assert "It is 50%." in text
    assert not re.search(r"\d x|µs|fast 1\.5", text)


def store(folder: Path, *materials: tuple[str, str | None, Verdict]) -> None:
    with Store.open(folder) as opened:
        for i, (name, gpu, verdict) in enumerate(materials):
            for event in events([(None, verdict)], task=name, run_id=f"2026112{i}-{name}", gpu=gpu):
                told = replace(event, task_sha256=f"{name:0<64}") if isinstance(event, RunStarted) else event
                opened.write(told)


def test_without_names_the_best_run_of_each_task_is_taken(tmp_path: Path) -> None:
    store(
        tmp_path,
        ("softmax", "NVIDIA H200", speedup(2.0)),
        ("softmax", "NVIDIA H200", speedup(1.5)),
        ("softmax", None, CHECKED),
        ("rms_norm", None, CHECKED),
        ("rms_norm", None, WRONG),
    )
    assert write_report((), tmp_path, suite=True) == 0
    text = Reading((tmp_path / "suite.html").read_text()).text
    assert "20261120-softmax" in text
    assert "20261123-rms_norm" in text
    assert not re.search("20261121|20261122|20261124", text)
    assert "Of 5 stored runs, the best of each task and GPU was chosen" in text


def test_several_runs_that_are_named_make_a_suite_of_just_these(tmp_path: Path) -> None:
    store(tmp_path, *[("softmax", "NVIDIA H200", speedup(2.0))] * 3)
    write_report(("20261120", "20261122", "20261120"), tmp_path, output=tmp_path / "s.html")
    text = Reading((tmp_path / "s.html").read_text()).text
    assert "2 of 2 runs of 1 task have a kernel that was found right" in " ".join(text.split())
    assert "tasks" not in text.split("How to reproduce")[0].split("Tasks")[0].split("fast_p as")[0]
    assert "20261121-softmax" not in text
