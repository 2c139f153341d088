"""Failing attempts and what became of them."""

import random
import subprocess
import time
from pathlib import Path

import pytest

from kerneltune.agent.export.kernel_formats import Fix, Lineage
from kerneltune.tools.schema.codec import unified_diff
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import H200, ids, rows, run, source, timed, tried, wrong

STORY = (
    tried(1, Status.COMPILE_FAILED),
    tried(2, Status.WRONG, 1),
    tried(3, Status.CHECKED, 2),
    tried(4, Status.CHECKED, 1),
    tried(5, Status.CRASHED, 4),
    tried(6, Status.REJECTED),
    tried(7, Status.WRONG, 6),
)


def test_a_failing_attempt_is_paired_with_its_nearest_right_descendant() -> None:
    found = rows(Fix(), run(*STORY))
    assert [(r["broken_attempt"], r["hops"], r["status_before"], r["status_after"]) for r in found] == [
        ("r1/1", 1, "compile_failed", "checked"),
        ("r1/2", 1, "wrong", "checked"),
    ]
    assert ids(Fix(), run(*STORY)) == ["r1/4", "r1/3"]  # #4 is nearer to #1 than #3 is


def test_hops_count_derivations() -> None:
    chain = run(tried(1, Status.WRONG), tried(2, Status.WRONG, 1), tried(3, Status.CHECKED, 2))
    assert [r["hops"] for r in rows(Fix(), chain)] == [2, 1]


@pytest.mark.parametrize(
    "status", [Status.REJECTED, Status.COMPILE_FAILED, Status.CRASHED, Status.TIMED_OUT, Status.WRONG]
)
def test_every_kind_of_failure_can_be_fixed(status: Status) -> None:
    (row,) = rows(Fix(), run(tried(1, status), tried(2, timed(90.0), 1), gpu=H200))
    assert (row["status_before"], row["status_after"]) == (status.value, "correct")
    assert row["error"] == f"it is {status.value}"
    assert f"{status.value}: it is {status.value}" in row["prompt"][-1]["content"]
    assert source("number 1").strip() in row["prompt"][-1]["content"]
    assert source("number 2").strip() in row["completion"][0]["content"]


@pytest.mark.parametrize("status", [Status.UNCHECKED, Status.IMPOSSIBLE, Status.CHECKED])
def test_what_is_not_known_to_fail_is_not_broken(status: Status) -> None:
    assert rows(Fix(), run(tried(1, status), tried(2, Status.CHECKED, 1))) == []


def test_an_unknown_link_of_the_chain_is_passed_through_and_never_its_end() -> None:
    chain = run(tried(1, Status.WRONG), tried(2, Status.CHECKED, 1, held=False), tried(3, Status.CHECKED, 2))
    assert [(r["hops"], r["broken_attempt"]) for r in rows(Fix(), chain)] == [(2, "r1/1")]


def test_the_same_file_is_no_fix_of_itself() -> None:
    assert rows(Fix(), run(tried(1, Status.CRASHED, what="x"), tried(2, Status.CHECKED, 1, what="x"))) == []


def test_parents_of_other_runs_cycles_and_attempts_that_are_their_own_parent_lead_nowhere() -> None:
    odd = run(
        tried(1, Status.WRONG, 1),
        tried(2, Status.WRONG, 3),
        tried(3, Status.CHECKED, 2),
        tried(4, Status.CHECKED, "r9/1"),
    )
    assert [r["broken_attempt"] for r in rows(Fix(), odd)] == ["r1/2"]
    assert [odd.parent(a) is not None for a in odd.attempts] == [False, False, True, False]


def test_errors_of_held_out_cases_are_told_without_them() -> None:
    (row,) = rows(Fix(), run(tried(1, wrong("prime", detail="at [36, 2052]")), tried(2, Status.CHECKED, 1)))
    assert "prime" not in str(row)
    assert "2052" not in str(row)
    assert "held-out shapes" in row["error"]


def test_a_long_chain_of_failures_takes_time_in_proportion() -> None:
    n = 3000
    chain = run(*(tried(i, Status.WRONG, i - 1 or None) for i in range(1, n)), tried(n, Status.CHECKED, n - 1))
    started = time.thread_time()
    lineage = Lineage(chain)
    assert time.thread_time() - started < 1.0
    assert [lineage.nearest(chain.attempts[i]).hops for i in (0, n - 2)] == [n - 1, 1]  # type: ignore[union-attr]


def test_a_diff_applies(tmp_path: Path) -> None:
    rng = random.Random(0)
    for number in range(40):
        before = "".join(f"line {rng.randrange(5)}\n" for _ in range(rng.randrange(30)))
        lines = before.split("\n")
        for _ in range(rng.randrange(5)):
            at = rng.randrange(len(lines) + 1)
            lines[at : at + rng.randrange(3)] = [f"new {rng.randrange(3)}"] * rng.randrange(3)
        after = "\n".join(lines)
        if before in ("", after) or not after:
            assert (unified_diff(before, after) == "") == (before == after)
            continue
        file = tmp_path / f"{number}.py"
        file.write_text(before)
        done = subprocess.run(
            ["patch", "--silent", str(file)], input=unified_diff(before, after), text=True, check=False
        )
        assert done.returncode == 0
        assert file.read_text() == after


def test_a_diff_shows_the_place_and_three_lines_around() -> None:
    before = source("a")
    diff = unified_diff(before, before.replace("tl.exp(", "tl.exp2("))
    assert diff.startswith("--- before\n+++ after\n@@ -12,7 +12,7 @@\n")
    assert [line[0] for line in diff.splitlines()[3:]] == [" ", " ", " ", "-", "+", " ", " ", " "]


@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("a", "a"), ("a\n", "a"), ("", "a"), ("a\x0cb\u2028c", "a\x0cb")]
)
def test_odd_texts_have_a_diff_exactly_when_they_differ(before: str, after: str) -> None:
    diff = unified_diff(before, after)
    assert bool(diff) == (before != after)
    assert diff.count("No newline") == sum(bool(t) and not t.endswith("\n") for t in (before, after)) * bool(diff)
