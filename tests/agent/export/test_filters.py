import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.export.privacy import Scrubber
from kerneltune.agent.export.provenance import Provenance, predicate, where_fields
from kerneltune.agent.export.similarity import Placement
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import UsageError
from tests.agent.record.samples import started

ROW: dict[str, object] = {
    "task": "softmax",
    "provider": "openai",
    "model": "gpt-5",
    "status": "correct",
    "created": "2026-11-21T14:05:00+00:00",
    "speedup": 1.25,
    "coverage": 0.9,
    "spill_bytes": 0,
    "registers": 40,
    "correct": True,
    "faster": True,
    "impossible": False,
    "verified": None,
    "near_first": True,
    "exact_first": True,
    "leaked": None,
    "reward_kevin": 1.55,
    "median_us": float("nan"),
}


@pytest.mark.parametrize(
    "condition",
    [
        "status=correct",
        "status=correct|checked",
        " status = checked | correct ",
        "status!=wrong|crashed",
        "speedup>=1.2",
        "speedup>=1.25",
        "speedup<=1.25",
        "speedup>1",
        "speedup<2e0",
        "speedup=1.25|2",
        "speedup!=1",
        "coverage>0.5",
        "spill_bytes<1",
        "provider!=anthropic",
        "faster=true",
        "impossible=false",
        "impossible!=true",
        "created>=2026-11-21",
        "created<=2026-11-21",
        "created>2026-11-20",
        "created<2026-11-21T14:06",
        "created=2026-11",
        "created>2025",
        "reward_kevin>1",
        "model=gpt-5",
    ],
)
def test_what_holds_keeps_the_row(condition: str) -> None:
    assert predicate([condition], ["kevin", "other"])(ROW)


@pytest.mark.parametrize(
    "condition",
    [
        "status=wrong",
        "status!=correct",
        "speedup>1.25",
        "speedup=1",
        "provider!=openai|anthropic",
        "faster=false",
        "created>2026-11-21",
        "created<2026-11-21",
        "created!=2026-11",
    ],
)
def test_what_does_not_hold_drops_the_row(condition: str) -> None:
    assert not predicate([condition], ["kevin", "other"])(ROW)


@pytest.mark.parametrize(
    "condition",
    [
        "verified=true",
        "verified=false",
        "verified!=true",
        "leaked=x",
        "leaked!=x",
        "sol_fraction<1",
        "sol_fraction!=1",
        "tier=screened",
        "median_us>0",
        "median_us<=0",
        "median_us!=0",
        "reward_other>0",
    ],
)
def test_what_is_unknown_matches_nothing(condition: str) -> None:
    assert not predicate([condition], ["kevin", "other"])(ROW)


def test_all_conditions_must_hold_and_none_keeps_everything() -> None:
    assert predicate([])({})
    assert predicate(["status=correct", "speedup>1", "faster=true"])(ROW)
    assert not predicate(["status=correct", "speedup>2", "faster=true"])(ROW)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("statsu=correct", "no field 'statsu'; did you mean status"),
        ("xyzzy=1", "no field 'xyzzy'; fields: run_id, task"),
        ("status=corect", "status is never 'corect'; did you mean correct?"),
        ("status=fine", "one of rejected, compile_failed"),
        ("provider=claude", "provider is never 'claude'"),
        ("speedup>=fast", "'fast' is not a number"),
        ("speedup>=nan", "'nan' is not a number"),
        ("speedup<inf", "'inf' is not a number"),
        ("speedup=1_0", "'1_0' is not a number"),
        ("task>a", "task is a text; compare it with = !="),
        ("faster>0", "faster is a bool; compare it with = !="),
        ("faster=maybe", "'maybe' is neither true nor false"),
        ("created>yesterday", "no date such as 2026-11-21"),
        ("speedup>1|2", "several values go with = and !=, not with >"),
        ("status=", "a value is missing"),
        ("status=correct|", "a value is missing"),
        ("", "wanted a field, an operator and a value"),
        ("status", "as in speedup>=1.2"),
        ("status==correct", "status is never '=correct'"),
        ("=correct", "wanted a field"),
        ("__import__('os')=1", "wanted a field"),
        ("speedup>=1 and status=correct", "'1 and status=correct' is not a number"),
        ("a" * 5000 + "=1", "wanted a field"),
    ],
)
def test_a_wrong_condition_is_named_with_what_would_work(condition: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        predicate([condition], ["kevin", "other"])
    assert says in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_rewards_are_fields_and_unknown_ones_are_refused_where_they_are_known() -> None:
    row: Mapping[str, object] = {"reward_kevin": 0.3}
    assert predicate(["reward_kevin>=0.3"], ["kevin"])(row)
    with pytest.raises(UsageError, match="did you mean reward_kevin"):
        predicate(["reward_kevni>=0.3"], ["kevin"])


def test_every_field_is_documented_once() -> None:
    document = (Path(__file__).resolve().parents[3] / "docs/curation.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", document, re.MULTILINE)
    assert {name: about for name, (_, about) in where_fields().items()}.items() <= dict(rows).items()
    assert all(about for _, about in where_fields().values())


def test_a_hundred_thousand_rows_are_filtered_in_a_moment() -> None:
    keep = predicate(["status=correct|checked", "speedup>=1.2", "task=softmax", "faster=true"])
    begin = time.thread_time()
    assert all(keep(ROW) for _ in range(100_000))
    assert time.thread_time() - begin < 5


@pytest.mark.parametrize(
    ("told", "whence"),
    [
        (None, "none"),
        ({}, "none"),
        ({"old/1": "own"}, "same_task"),
        ({"old/1": "own", "old/2": "beside"}, "same_split"),
        ({"old/1": "own", "old/2": "beside", "old/3": "held out"}, "other_split"),
        ({"old/1": "of nobody's record"}, "other_split"),
        ({"old/1": ["strange"]}, "other_split"),
    ],
)
def test_a_row_says_whence_its_prompts_had_lessons_so_that_those_of_held_out_tasks_can_be_left_out(
    told: Json, whence: str
) -> None:
    placements = {"own": Placement("a", "train"), "beside": Placement("b", "train"), "held out": Placement("c", "test")}
    run = replace(started(), task_sha256="own", limits={"lessons": told})
    row = Provenance(trajectory([run]), placements, (), None, Scrubber()).of(None)
    assert row["lessons"] == whence
    assert predicate(["lessons=none|same_task|same_split"])(row) is (whence != "other_split")
