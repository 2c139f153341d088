"""What a search makes of earlier runs on the same GPU, and how the record is asked for them."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import Earlier, SearchPoint
from kerneltune.agent.authors.search.author import OfflineAuthor
from kerneltune.agent.authors.search.experts import experts
from kerneltune.agent.authors.search.neighbours import CannotLower, Remembered, Sketch
from kerneltune.agent.events import Event, Judged, Proposed, RunStarted, Verified
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.verdict import Status, Timing, Verdict
from tests.agent.authors.search.offline_bench import at
from tests.agent.authors.search.test_offline_search import TASK, judged, refuse
from tests.agent.record import samples

SKETCHES = {sketch.name: sketch for sketch in experts(TASK)}
ROW = SKETCHES["softmax_row"]


def found(params: dict[str, int], us: float | None, *, sketch: Sketch = ROW, **more: Any) -> Earlier:
    source = sketch.render({**sketch.params, **params})
    base = Earlier(
        f"old/{hash(source) % 997}", True, True, sketch.name, {**sketch.params, **params},
        hashlib.sha256(source.encode()).hexdigest(), us, "softmax",
    )  # fmt: skip
    return replace(base, **more)


def author(earlier: Iterable[Earlier], told: list[str] | None = None) -> OfflineAuthor:
    return OfflineAuthor(refuse, 90, 0, list(earlier), (told if told is not None else []).append)


def test_the_best_of_earlier_runs_come_first_and_known_defaults_are_not_repeated() -> None:
    before = [found({"NUM_WARPS": 16}, 9.0), found({"NUM_WARPS": 8}, 10.0), found({"NUM_WARPS": 1}, 40.0)]
    before.append(found({}, 11.0))
    told: list[str] = []
    proposals = author(before, told).propose(TASK, [], 8)
    assert [at(p).params.get("NUM_WARPS") for p in proposals[:2]] == [16, 8]
    assert proposals[0].parent_id == before[0].attempt_id
    assert "the best of an earlier run here" in proposals[0].rationale
    defaults = [p for p in proposals if at(p) == SearchPoint("softmax_row", ROW.params)]
    assert len(defaults) == (ROW.params["NUM_WARPS"] in (16, 8, 1))
    assert len(told) == 1
    assert told[0].startswith("begins with 3 best points of an earlier run of this task on this GPU; 4 points known")


def test_what_failed_earlier_is_not_tried_again_while_nothing_has_changed() -> None:
    failed = found({"NUM_WARPS": 4}, None)
    asked = {**ROW.params, "NUM_WARPS": 4}
    points = sum(math.prod(map(len, sketch.space.values())) for sketch in SKETCHES.values())

    def ever(earlier: list[Earlier]) -> bool:
        by = author(earlier)
        every = [at(p).params for p in by.propose(TASK, [], 600)]
        assert len(every) >= points - len(earlier)
        return asked in every

    assert not ever([failed])
    assert ever([replace(failed, same_versions=False)])
    assert ever([])


def test_a_point_that_was_right_in_one_run_and_failed_in_another_is_tried_again() -> None:
    right, failed = found({"NUM_WARPS": 4}, 9.0), found({"NUM_WARPS": 4}, None, attempt_id="later/1")
    told: list[str] = []
    first, *_ = author([failed, right], told).propose(TASK, [], 1)
    assert at(first).params["NUM_WARPS"] == 4
    assert told[0].endswith("; 1 point known from there, 0 of them failed and are left")


def test_a_sketch_whose_text_has_changed_is_another_one() -> None:
    old = found({"NUM_WARPS": 16}, 9.0, source_sha256="0" * 64)
    assert Remembered.of([old], SKETCHES) == Remembered()
    assert author([old]).propose(TASK, [], 3) == author([]).propose(TASK, [], 3)


def test_the_best_on_other_shapes_comes_after_the_defaults() -> None:
    other = found({"NUM_WARPS": 32}, 5.0, same_task=False, task="softmax_wide", source_sha256="1" * 64)
    worse = found({"NUM_WARPS": 1}, 7.0, same_task=False, task="softmax_wide", source_sha256="2" * 64)
    proposals = author([other, worse]).propose(TASK, [], len(SKETCHES) + 1)
    assert [at(p).sketch for p in proposals[:-1]] == list(SKETCHES)
    assert at(proposals[-1]) == SearchPoint("softmax_row", {**SKETCHES["softmax_row"].params, "NUM_WARPS": 32})
    assert "softmax_wide" in proposals[-1].rationale


def test_inductor_s_kernels_for_another_task_say_nothing() -> None:
    one = Earlier("old/1", False, True, "inductor", {"BLOCK": 1}, "", 5.0, "other")
    sketch = Sketch("inductor", "BLOCK = 1\n", "", {"BLOCK": 1}, {"BLOCK": (1, 2)})
    assert Remembered.of([one], {"inductor": sketch}) == Remembered()


def test_the_search_begins_with_what_was_best_and_goes_on_beside_it() -> None:
    known = [found({"NUM_WARPS": w}, us) for w, us in ((1, 30.0), (2, 25.0), (4, 20.0), (8, 15.0), (32, 18.0))]
    by = author(known)
    proposals = by.propose(TASK, [], 3)
    assert [at(p).params["NUM_WARPS"] for p in proposals if at(p).sketch == "softmax_row"] == [8, 32, 4]
    history = judged(proposals)
    later = [p for p in by.propose(TASK, history, 12) if p.parent_id in {a.attempt_id for a in history}]
    assert later
    assert all(p.hypothesis for p in later)


def run_of(run_id: str, gpu: str | None = "NVIDIA H200", **more: Any) -> RunStarted:
    return replace(samples.started(run_id), gpu=gpu, **more)


def tried_in(run_id: str, number: int, us: float | None, point: SearchPoint | None, source: str) -> list[Event]:
    ids = run_id, f"{run_id}/{number}"
    timing = Timing(us, us, us, 1, 1) if us else None
    verdict = Verdict(Status.CORRECT if us else Status.WRONG, "", timing=timing)
    return [Proposed(*ids, number, None, source, "", point), Judged(*ids, verdict, 0.1, False, (us,) if us else ())]


@pytest.fixture
def store(tmp_path: Path) -> Iterable[Store]:
    with Store.open(tmp_path) as opened:
        yield opened


def write(store: Store, *events: Event) -> None:
    for event in events:
        store.write(event)


def test_the_record_tells_of_searches_on_the_same_gpu_alone(store: Store) -> None:
    point = SearchPoint("softmax_row", {"NUM_WARPS": 8})
    write(store, run_of("a"), *tried_in("a", 1, 9.0, point, "one"), *tried_in("a", 2, None, point, "two"))
    write(store, *tried_in("a", 3, 5.0, None, "no sketch"))
    write(store, run_of("b", "NVIDIA H100"), *tried_in("b", 1, 8.0, point, "three"))
    write(store, run_of("c", arch="sm_80"), *tried_in("c", 1, 8.0, point, "four"))
    write(store, run_of("d", author="anthropic:x"), *tried_in("d", 1, 8.0, point, "five"))
    write(store, run_of("e", None), *tried_in("e", 1, None, point, "six"))
    now = run_of("now")
    write(store, now)
    told = {e.attempt_id: e for e in store.earlier(now)}
    assert set(told) == {"a/1", "a/2"}
    one = told["a/1"]
    assert (one.same_task, one.same_versions, one.sketch, one.params) == (True, True, "softmax_row", {"NUM_WARPS": 8})
    assert (one.median_us, told["a/2"].median_us) == (9.0, None)
    assert one.source_sha256 == hashlib.sha256(b"one").hexdigest()
    assert store.earlier(run_of("now", None)) == []


def test_a_later_verdict_counts_and_another_task_or_version_is_told(store: Store) -> None:
    point = SearchPoint("softmax_row", {"NUM_WARPS": 8})
    write(store, run_of("a", task_sha256="9" * 64, versions={"torch": "1"}), *tried_in("a", 1, 9.0, point, "one"))
    timing = Timing(9.5, 9.4, 9.6, 1, 1)
    again = Verdict(Status.CORRECT, "", timing=timing, tier="confirmed")
    write(store, Verified("a", "a/1", "confirm", again, 1.0, True, "", "NVIDIA H200", {}, {}, (9.5,)))
    slower = Verdict(Status.WRONG, "elsewhere")
    write(store, Verified("a", "a/1", "verify", slower, 1.0, False, "", None, {}, {}))
    now = run_of("now")
    write(store, now)
    (one,) = store.earlier(now)
    assert (one.same_task, one.same_versions, one.median_us) == (False, False, 9.5)


def test_a_resumed_run_sees_what_it_saw_when_it_began(store: Store) -> None:
    point = SearchPoint("softmax_row", {"NUM_WARPS": 8})
    write(store, run_of("a"), *tried_in("a", 1, 9.0, point, "one"))
    now = run_of("now")
    write(store, now)
    then = store.earlier(now)
    write(store, run_of("later"), *tried_in("later", 1, 3.0, point, "two"), *tried_in("a", 2, 2.0, point, "three"))
    write(store, *tried_in("now", 1, 4.0, point, "mine"))
    assert store.earlier(now) == then != []


def test_an_author_without_inductor_says_so_once() -> None:
    by = author([])
    by.propose(TASK, [], 1)
    by.propose(TASK, [], 1)
    assert len(by.problems) == 1
    with pytest.raises(CannotLower):
        refuse("", {}, 90)
