"""The best kernels of tasks over all runs, and pairs with their references."""

import random

import pytest

from kerneltune.agent.export.kernel_formats import Convert, SftBest
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import AT, H200, SOFTMAX, TASK, ids, rows, run, source, timed, tried

OTHER = "class Model: ...\ndef get_inputs(): return []\n"


def test_a_confirmed_time_comes_before_a_judged_one_before_a_screened_one_before_none() -> None:
    its = run(
        tried(1, timed(20.0, tier="screened")),
        tried(2, timed(50.0)),
        tried(3, timed(80.0), confirmed=timed(100.0, tier="confirmed")),
        tried(4, Status.CHECKED, rank=(1.0,)),
        tried(5, Status.WRONG),
        gpu=H200,
    )
    found = rows(SftBest(top=9), its)
    places = dict(zip(ids(SftBest(top=9), its), [row["place"] for row in found], strict=True))
    assert places == {"r1/3": 1, "r1/2": 2, "r1/1": 3, "r1/4": None}
    assert ids(SftBest(), its) == ["r1/3"]


def test_the_best_is_that_of_the_lower_end_of_its_speedup_not_of_its_time() -> None:
    slow_gpu = run(tried(1, timed(100.0, gain=2.0)), gpu="NVIDIA A100")
    fast_gpu = run(tried(1, timed(50.0, gain=1.2), run_id="r2"), run_id="r2", gpu=H200)
    assert ids(SftBest(), slow_gpu, fast_gpu) == ["r1/1"]
    assert ids(SftBest(per="target"), slow_gpu, fast_gpu) == ["r1/1", "r2/1"]
    assert ids(SftBest(per="run"), slow_gpu, fast_gpu) == ["r1/1", "r2/1"]


def test_of_what_was_not_timed_the_first_right_one_is_taken_without_a_place() -> None:
    first = run(tried(1, Status.CHECKED, rank=(512.0, 0.0)), tried(2, Status.CHECKED, rank=(1.0,), best=True))
    second = run(tried(1, Status.CHECKED, rank=(0.0,), run_id="r2"), tried(2, timed(90.0), run_id="r2"), run_id="r2")
    assert ids(SftBest(), first) == ["r1/1"]
    assert [row["place"] for row in rows(SftBest(top=3), first)] == [None, None]
    assert [row["place"] for row in rows(SftBest(top=2), first, second)] == [None, 1]


def test_what_did_not_hold_elsewhere_is_not_the_best() -> None:
    its = run(tried(1, timed(10.0), held=False), tried(2, timed(90.0), held=True), gpu=H200)
    assert ids(SftBest(), its) == ["r1/2"]


def test_tasks_are_told_apart_by_their_contents() -> None:
    one = run(tried(1, Status.CHECKED))
    other = run(tried(1, Status.CHECKED, run_id="r2"), run_id="r2", task_source=OTHER)
    again = run(tried(1, Status.CHECKED, run_id="r3"), run_id="r3", task="renamed")
    assert ids(SftBest(), one, other, again) == ["r1/1", "r2/1"]


def test_the_order_of_runs_makes_no_difference() -> None:
    rng = random.Random(0)
    runs = []
    for n in range(30):
        verdicts = [rng.choice((timed(float(rng.randrange(50, 60))), Status.CHECKED)) for _ in range(4)]
        attempts = [tried(i, v, run_id=f"r{n}") for i, v in enumerate(verdicts, 1)]
        runs.append(run(*attempts, run_id=f"r{n}", gpu=H200, at=AT + n))
    expected = set(ids(SftBest(top=7), *runs))
    assert len(expected) == 7
    for _ in range(3):
        rng.shuffle(runs)
        assert set(ids(SftBest(top=7), *runs)) == expected


def test_a_run_that_began_after_the_survey_has_no_best_yet() -> None:
    form = SftBest()
    assert list(form.rows(run(tried(1, Status.CHECKED)))) == []


def test_a_row_asks_for_the_task_and_answers_with_the_file() -> None:
    (row,) = rows(SftBest(), run(tried(1, Status.CHECKED, what="the best")))
    assert [m["role"] for m in row["prompt"]] == ["system", "user"]
    assert source("the best").strip() in row["completion"][0]["content"]


def test_wanting_none_is_an_error() -> None:
    with pytest.raises(UsageError, match="top=0"):
        SftBest(top=0)


def test_a_pair_has_the_columns_of_kernelbook() -> None:
    (row,) = rows(Convert(), run(tried(1, Status.CHECKED), tried(2, Status.WRONG)))
    assert row["python_code"] == TASK
    assert row["triton_code"] == source("number 1")
    assert row["direction"] == "pytorch_to_triton"
    assert (row["entry_point"], row["module_name"], row["repo_name"]) == ("Model", "softmax", "kerneltune")


def test_pairs_of_a_task_elsewhere_tell_no_path() -> None:
    (row,) = rows(Convert(), run(tried(1, Status.CHECKED), path="/home/someone/secret/mine.py"))
    assert row["repo_name"] == ""
    assert "someone" not in str(row)


def test_the_same_pair_has_the_same_uuid_and_another_has_another() -> None:
    same = [rows(Convert(), run(tried(1, Status.CHECKED, run_id=r), run_id=r))[0]["uuid"] for r in ("r1", "r2")]
    other = rows(Convert(), run(tried(1, Status.CHECKED, what="else")))[0]["uuid"]
    assert same[0] == same[1] != other
    assert len(other) == 36


def test_every_right_attempt_makes_a_pair() -> None:
    its = run(tried(1, timed(90.0)), tried(2, timed(50.0)), tried(3, Status.UNCHECKED), gpu=H200)
    assert ids(Convert(), its) == ["r1/1", "r1/2"]


def test_held_out_cases_are_in_no_pair() -> None:
    (row,) = rows(Convert(), run(tried(1, Status.CHECKED), task_source=SOFTMAX.source))
    assert row["python_code"] == TASK
    assert rows(Convert(), run(tried(1, Status.CHECKED), task_source="held_out = [")) == []
