"""The benchmarks' candidates do what they were made to do, judged by the real workers."""

import ast
import importlib
import json
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest

from benchmarks.chaos import key_of, stored_events
from benchmarks.judge_profile import PARTS
from benchmarks.kernelbench_eval import sample
from benchmarks.throughput import RIGHT, Limits, Tally, _changed, candidates, measure
from kerneltune.agent.record.store import Store
from kerneltune.agent.view.output import JsonView
from tests.agent.random_runs import RunMaker

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


@pytest.mark.parametrize(("where", "owner", "names"), PARTS)
def test_the_parts_of_the_judge_that_are_watched_are_there(where: str, owner: str, names: str) -> None:
    module = importlib.import_module(f"kerneltune.tools.{where}")
    held = getattr(module, owner) if owner else module
    assert [name for name in names.split() if not callable(getattr(held, name, None))] == []


def test_the_sample_for_kernelbench_begins_with_zeros_and_repeats_nothing() -> None:
    chosen = sample(Path("somewhere"), 12)
    assert (chosen[0].name, Path(chosen[0].task).name) == ("all zeros", "23_Softmax.py")
    assert len({id(c) for c in chosen}) == 12
    assert "timeout" not in {c.kind for c in chosen}


def test_each_line_that_a_run_prints_is_found_in_the_record_once_and_one_that_differs_never(tmp_path: Path) -> None:
    events = list(RunMaker(0, seed=3, attempts=4).events())
    printed = StringIO()
    view = JsonView(printed)
    with Store.open(tmp_path) as store:
        for event in events:
            store.write(event)
            view(event)
    stored = stored_events(tmp_path, events[0].run_id)
    lines = [json.loads(line) for line in printed.getvalue().splitlines()]
    assert [stored[key_of(line)] for line in lines] == [1] * len(events)
    assert not any(stored[key_of(line | {"at": line["at"] + 1})] for line in lines)
