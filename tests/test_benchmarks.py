"""The benchmarks' candidates do what they were made to do, judged by the real workers."""

import argparse
import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from agent.authors.offline.library import experts
from agent.authors.offline.sketch import Sketch
from benchmarks.candidates import RIGHT, _changed, candidates
from benchmarks.kernelbench_eval import sample
from benchmarks.landscapes import MadeUp, Recorded
from benchmarks.search_quality import described, replay, shown, spaces_of, summary
from benchmarks.throughput import Limits, Tally, measure
from tools.verdict import Status

ONE_OF_EACH = (
    ("softmax", "row, 8 warps"),
    ("softmax", "a sum of 99.9 %"),
    ("softmax", "stores the whole block"),
    ("softmax", "its steps in torch"),
    ("softmax", "reads a value on the host"),
    ("rms_norm", "a name that does not exist"),
    ("rms_norm", "the mean of a power of two"),
)


@pytest.fixture(scope="module")
def tally() -> Tally:
    """One candidate of each quick kind, judged without a GPU's clock."""
    made = {(c.task, c.name): c for c in candidates()}
    return measure([made[key] for key in ONE_OF_EACH], width=2, tier="screened", limits=Limits())


def test_they_are_always_the_same_hundred() -> None:
    first, second = candidates(), candidates()
    assert first == second
    assert len(first) == len({(c.task, c.name) for c in first}) == 100


def test_every_kind_is_there_and_repetitions_repeat_something() -> None:
    made = candidates()
    kinds = Counter(c.kind for c in made)
    assert set(kinds) == {
        *("good", "wrong", "out of bounds", "broken", "timeout", "library only", "rejected", "slow to compile"),
        "repeated",
    }
    good = {ast.dump(ast.parse(c.source)) for c in made if c.kind == "good"}
    assert len(good) == kinds["good"]
    assert all(ast.dump(ast.parse(c.source)) in good for c in made if c.kind == "repeated")


def test_only_the_right_ones_may_be_accepted() -> None:
    lenient = {"good", "repeated", "slow to compile", "library only"}
    assert [c.name for c in candidates() if set(c.expected) & set(RIGHT) and c.kind not in lenient] == []


def test_a_change_that_changes_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="in the template"):
        _changed("x = 1", "y", "z")


def test_each_kind_ends_as_it_was_made_to(tally: Tally) -> None:
    assert tally.unexpected() == []
    assert len(tally.judged) == len(ONE_OF_EACH)


def test_the_summary_counts_what_was_judged_and_where_the_time_went(tally: Tally) -> None:
    summary = tally.summary()
    assert summary["candidates"] == len(ONE_OF_EACH)
    assert summary["accepted"] == sum(j.verdict.accepted for _, j in tally.judged) == 1
    assert summary["attempts_per_minute"] == pytest.approx(60 * len(ONE_OF_EACH) / tally.wall_s, abs=0.1)
    assert summary["stage_s"]["trace"] > 0 < summary["stage_s"]["judge"]
    assert tally.warm_up_s > 0


def test_the_sample_for_kernelbench_begins_with_zeros_and_repeats_nothing() -> None:
    chosen = sample(Path("somewhere"), 12)
    assert (chosen[0].name, Path(chosen[0].task).name) == ("all zeros", "23_Softmax.py")
    assert len({id(c) for c in chosen}) == 12
    assert "timeout" not in {c.kind for c in chosen}


def landscape(seed: int = 0) -> MadeUp:
    return MadeUp("softmax", SKETCHES, seed)


SKETCHES = [
    Sketch("s", "BLOCK = 1024\nNUM_WARPS = 4\n", "", {"BLOCK": 1024, "NUM_WARPS": 4},
           {"BLOCK": (256, 512, 1024, 2048), "NUM_WARPS": (1, 2, 4, 8)}),
    Sketch("t", "BLOCK_M = 64\nBLOCK_N = 64\nBLOCK_K = 64\nNUM_STAGES = 2\n", "",
           {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "NUM_STAGES": 2},
           {"BLOCK_M": (64, 256), "BLOCK_N": (64, 256), "BLOCK_K": (64, 128), "NUM_STAGES": (2, 5)}),
]  # fmt: skip


def test_a_made_up_landscape_is_the_same_for_the_same_seed_and_has_failures_and_an_optimum() -> None:
    spaces = spaces_of(SKETCHES)
    points = {(name, *p.values()): landscape().point(name, p) for name, ps in spaces.items() for p in ps}
    assert points == {(name, *p.values()): landscape().point(name, p) for name, ps in spaces.items() for p in ps}
    assert landscape(1).point("s", spaces["s"][0]) != landscape().point("s", spaces["s"][0])
    too_large = landscape().point("t", {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "NUM_STAGES": 5})
    assert too_large.status is Status.COMPILE_FAILED
    assert "shared memory" in too_large.detail
    fastest = min(p.median_us for p in points.values() if p.median_us)
    assert landscape().optimum_us(spaces) == fastest


def test_a_recorded_landscape_answers_with_the_nearest_point_that_was_measured(tmp_path: Path) -> None:
    points = [
        {"sketch": "s", "params": {"BLOCK": 512, "NUM_WARPS": 4}, "status": "correct", "median_us": 9.0},
        {"sketch": "s", "params": {"BLOCK": 2048, "NUM_WARPS": 8}, "status": "wrong", "median_us": None},
    ]
    file = tmp_path / "softmax.json"
    file.write_text(json.dumps({"task": "softmax", "points": points}))
    recorded = Recorded(file)
    assert recorded.point("s", {"BLOCK": 256, "NUM_WARPS": 4}).median_us == 9.0
    assert recorded.point("s", {"BLOCK": 2048, "NUM_WARPS": 4}).status is Status.WRONG
    assert recorded.optimum_us({}) == 9.0
    assert recorded.sketches == {"s"}


def test_the_product_s_search_finds_the_best_of_a_landscape() -> None:
    task = described("row_sum")
    sketches = experts(task)
    made = MadeUp("row_sum", sketches, 3)
    given = argparse.Namespace(seed=3, attempts=60, width=3)
    found = replay(made, task, spaces_of(sketches), given)
    assert found.near_at is not None
    assert found.excess <= 0.02
    assert found.judge_s > 60 * 0.35
    assert "row_sum | 1 | 100%" in shown(summary("row_sum", [found]) | {"attempts": 60})
