"""Pairs and labels: what is better is known to be better."""

from dataclasses import replace

import pytest

from kerneltune.agent.events import Proposed
from kerneltune.agent.export.base import Format
from kerneltune.agent.export.kernel_formats import Dpo, Fix, Kto
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.export.made_runs import H200, ids, rows, run, source, timed, tried


def pairs(form: Dpo, *runs: Trajectory) -> list[tuple[str, str, str]]:
    better = ids(form, *runs)
    return [(r["better_by"], b, r["rejected_attempt"]) for b, r in zip(better, rows(form, *runs), strict=True)]


def test_right_is_preferred_to_failing_and_the_relative_to_a_stranger() -> None:
    its = run(
        tried(1, Status.WRONG),
        tried(2, Status.CHECKED, 1),
        tried(3, Status.CHECKED),
        tried(4, Status.COMPILE_FAILED, 3),
    )
    assert pairs(Dpo(), its) == [("right", "r1/2", "r1/1"), ("right", "r1/3", "r1/4")]
    (first, _) = rows(Dpo(), its)
    assert source("number 2").strip() in first["chosen"][0]["content"]
    assert source("number 1").strip() in first["rejected"][0]["content"]
    assert first["related"] is True
    assert first["margin"] is None
    assert first["rejected_status"] == "wrong"


def test_faster_is_preferred_only_where_the_intervals_do_not_overlap() -> None:
    its = run(tried(1, timed(100.0)), tried(2, timed(101.0), 1), tried(3, timed(50.0), 1), gpu=H200)
    found = rows(Dpo(), its)
    assert sorted(pairs(Dpo(), its)) == [("faster", "r1/3", "r1/1"), ("faster", "r1/3", "r1/2")]
    by_worse = {row["rejected_attempt"]: row for row in found}
    assert by_worse["r1/1"]["margin"] == pytest.approx(99.0 / 50.5)
    assert by_worse["r1/1"]["related"] is True
    assert by_worse["r1/2"]["related"] is False


def test_intervals_that_touch_are_no_preference() -> None:
    low, high = timed(100.0, width=0.0), timed(100.0, width=0.0)
    assert pairs(Dpo(), run(tried(1, low), tried(2, high), gpu=H200)) == []


def test_a_screening_is_no_proof_against_a_longer_measurement() -> None:
    """What was confirmed at 790 us had been screened at 700."""
    confirmed, screened = timed(790.0, tier="confirmed", gain=2.0), timed(720.0, tier="screened", gain=2.0)
    assert pairs(Dpo(), run(tried(1, confirmed), tried(2, screened, 1), gpu=H200)) == []
    slow = timed(900.0, tier="screened", gain=2.0)
    assert pairs(Dpo(), run(tried(1, confirmed), tried(2, slow, 1), gpu=H200)) == [("faster", "r1/1", "r1/2")]


def test_a_margin_may_be_asked_for() -> None:
    its = run(tried(1, timed(100.0)), tried(2, timed(90.0)), tried(3, timed(40.0)), gpu=H200)
    assert {worse for _, _, worse in pairs(Dpo(least_margin=2.0), its)} == {"r1/1", "r1/2"}
    assert {better for _, better, _ in pairs(Dpo(least_margin=2.0), its)} == {"r1/3"}
    assert pairs(Dpo(least_margin=3.0), its) == []
    close = run(tried(1, timed(100.0, width=0.001)), tried(2, timed(96.0, width=0.001)), gpu=H200)
    assert (len(pairs(Dpo(), close)), len(pairs(Dpo(least_margin=1.0), close))) == (0, 1)  # unless less is enough
    with pytest.raises(UsageError, match="least_margin"):
        Dpo(least_margin=0.5)


@pytest.mark.parametrize(
    "unknown",
    [
        tried(2, Status.UNCHECKED),
        tried(2, Status.IMPOSSIBLE),
        tried(2, Status.WRONG)[:1],
        tried(2, Status.WRONG, held=False),
    ],
)
def test_what_is_unknown_makes_no_pair_and_no_label(unknown: list[object]) -> None:
    its = run(tried(1, Status.CHECKED), unknown)  # type: ignore[arg-type]
    assert pairs(Dpo(), its) == []
    assert ids(Kto(), its) == ["r1/1"]


def test_right_ones_that_were_not_timed_are_not_compared() -> None:
    its = run(tried(1, Status.CHECKED, rank=(9.0,)), tried(2, Status.CHECKED, 1, rank=(1.0,)))
    assert pairs(Dpo(), its) == []


def test_times_without_a_gpu_are_not_compared() -> None:
    assert pairs(Dpo(), run(tried(1, timed(100.0)), tried(2, timed(10.0)))) == []


def test_the_same_file_is_not_preferred_to_itself() -> None:
    assert rows(Dpo(), run(tried(1, Status.WRONG, what="x"), tried(2, Status.CHECKED, 1, what="x"))) == []


@pytest.mark.parametrize(("form", "n_rows"), [(Kto(), 1), (Dpo(), 0), (Fix(), 0)])
def test_a_failing_file_that_could_not_be_kept_teaches_nothing(form: Format, n_rows: int) -> None:
    """One that was no text, or too long."""
    events = [replace(e, source="") if isinstance(e, Proposed) else e for e in tried(1, Status.REJECTED)]
    assert len(rows(form, run(events, tried(2, Status.CHECKED, 1)))) == n_rows


def test_one_kind_of_pair_may_be_asked_for() -> None:
    its = run(tried(1, Status.WRONG), tried(2, timed(90.0), 1), tried(3, timed(50.0), 2), gpu=H200)
    assert {why for why, _, _ in pairs(Dpo(), its)} == {"right", "faster"}
    assert {why for why, _, _ in pairs(Dpo(over="right"), its)} == {"right"}
    assert {why for why, _, _ in pairs(Dpo(over="faster"), its)} == {"faster"}


def many(run_id: str, n: int) -> Trajectory:
    attempts = [tried(i, timed(100.0 - i) if i % 2 else Status.WRONG, run_id=run_id) for i in range(1, n + 1)]
    return run(*attempts, run_id=run_id, gpu=H200)


def test_pairs_of_a_run_are_bounded() -> None:
    runs = [many("r1", 40), many("r2", 40), many("r3", 4)]
    counts = [sum(b.startswith(f"r{n}/") for b in ids(Dpo(), *runs)) for n in (1, 2, 3)]
    assert counts[:2] == [16, 16]
    assert 0 < counts[2] <= 4
    assert len(ids(Dpo(per_run=3), *runs)) <= 9
    with pytest.raises(UsageError, match="per_run=0"):
        Dpo(per_run=0)


def test_pairs_are_the_same_for_the_same_seed_whatever_the_order_of_runs() -> None:
    runs = [many("r1", 60), many("r2", 60)]
    first = sorted(pairs(Dpo(seed=1), *runs))
    assert first == sorted(pairs(Dpo(seed=1), *reversed(runs)))
    assert first != sorted(pairs(Dpo(seed=2), *runs))


def test_related_pairs_are_kept_first() -> None:
    strangers = [tried(i, Status.WRONG) for i in range(1, 60)]
    its = run(*strangers, tried(60, Status.CHECKED), tried(61, Status.CRASHED, 60))
    assert ("right", "r1/60", "r1/61") in pairs(Dpo(per_run=1), its)


def test_answers_are_labelled_by_what_is_known_of_them() -> None:
    its = run(
        tried(1, Status.CHECKED), tried(2, Status.CRASHED), tried(3, Status.REJECTED), tried(4, Status.IMPOSSIBLE)
    )
    assert [(i, r["label"]) for i, r in zip(ids(Kto(), its), rows(Kto(), its), strict=True)] == [
        ("r1/1", True),
        ("r1/2", False),
        ("r1/3", False),
    ]


def test_numbers_that_mean_nothing_are_refused() -> None:
    for wrong in (float("nan"), 0.0, -1.0):
        with pytest.raises(UsageError, match="least_speedup"):
            Kto(least_speedup=wrong)
    with pytest.raises(UsageError, match="least_margin"):
        Dpo(least_margin=float("nan"))


def test_good_may_mean_faster_and_then_what_was_not_timed_is_unknown() -> None:
    bare = Verdict(Status.CORRECT, "right", timing=timed(50.0).timing)
    its = run(
        tried(1, timed(100.0)),
        tried(2, timed(199.0)),
        tried(3, Status.CHECKED),
        tried(4, bare),
        tried(5, Status.WRONG),
        gpu=H200,
    )
    form = Kto(least_speedup=1.0)
    assert [(i, r["label"]) for i, r in zip(ids(form, its), rows(form, its), strict=True)] == [
        ("r1/1", True),
        ("r1/2", False),  # 1.005 times as fast, from 0.995 on
        ("r1/5", False),
    ]
