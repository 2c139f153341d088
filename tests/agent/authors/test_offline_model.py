"""The model of a search and what it makes of points: pure numbers."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from agent.attempt import Attempt, Proposal
from agent.authors.offline.model import as_levels, expected, improvement, likely_fine
from agent.authors.offline.put_off import FAILING, SPILLS, TOO_LARGE, Judge
from agent.authors.offline.search import View, search
from agent.authors.offline.sketch import Sketch
from agent.authors.offline.space import Space, Tried, tried
from tools.verdict import KernelReport, Status, Timing, Verdict

SKETCH = Sketch(
    "s",
    "BLOCK = 128\nNUM_WARPS = 4\nNUM_STAGES = 2\n",
    "an idea",
    {"BLOCK": 128, "NUM_WARPS": 4, "NUM_STAGES": 2},
    {"BLOCK": (64, 128, 256, 512), "NUM_WARPS": (2, 4, 8), "NUM_STAGES": (1, 2, 3, 4)},
)
SPACE = Space(SKETCH)


def attempt(
    number: int, params: Mapping[str, int], us: float | None, *, shared: int = 0, spills: int = 0, detail: str = ""
) -> Attempt:
    values = {**SKETCH.params, **params}
    status = Status.CORRECT if us else Status.COMPILE_FAILED if detail else Status.WRONG
    verdict = Verdict(status, detail, timing=Timing(us, us, us, 1, 1) if us else None)
    kernels = (KernelReport("k", 32, spills, 0, 0, shared, values["NUM_WARPS"], 2, 0.5, ""),) if not detail else ()
    proposal = Proposal(SKETCH.render(values), "", params={"sketch": "s", **values})
    return Attempt(f"r/{number}", number, None, proposal, verdict, kernels, (us,) if us else ())


def proposals(history: list[Attempt], count: int = 6, seed: int = 0, **more: object) -> list[dict[str, int]]:
    view = View([SKETCH], history, seed=seed, turn=len(history), **more)  # type: ignore[arg-type]
    moves = search(view).moves
    return [next(moves).params for _ in range(count)]


def test_the_model_knows_the_points_that_were_measured_and_doubts_the_others() -> None:
    seen = as_levels([(0, 0), (1, 0), (0, 1), (3, 2)], 2)
    values = np.array([0.1, -0.2, 0.0, 0.3])
    found = expected(seen, values, np.zeros(4), as_levels([(0, 0), (3, 2), (1, 1), (3, 0)], 2))
    assert found.mean[:2] == pytest.approx([0.1, 0.3], abs=0.02)
    assert max(found.deviation[:2]) < 0.05 < min(found.deviation[2:])


def test_effects_of_single_parameters_add_up() -> None:
    every = [(a, b) for a in range(4) for b in range(4)]
    seen = [at for at in every if at != (3, 3)]
    values = np.array([0.1 * a - 0.05 * b for a, b in seen])
    found = expected(as_levels(seen, 2), values, np.zeros(len(seen)), as_levels([(3, 3)], 2))
    assert found.mean[0] == pytest.approx(0.15, abs=0.04)


def test_a_noisy_value_is_believed_less() -> None:
    seen, asked = as_levels([(0,), (0,)], 1), as_levels([(0,)], 1)
    found = expected(seen, np.array([0.0, 0.4]), np.array([0.001, 0.5]), asked)
    assert found.mean[0] == pytest.approx(0.0, abs=0.05)


def test_nothing_is_expected_where_the_model_is_sure_that_it_is_slower() -> None:
    found = expected(as_levels([(0,)], 1), np.array([0.5]), np.zeros(1), as_levels([(0,)], 1))
    assert improvement(found, 0.0)[0] < 1e-6
    assert improvement(found, 1.0)[0] == pytest.approx(0.5, abs=0.05)


def test_neighbours_of_failures_are_likely_to_fail() -> None:
    none = as_levels([], 2)
    failed, asked = as_levels([(0, 0), (0, 1)], 2), as_levels([(0, 0), (0, 2), (3, 3)], 2)
    near, further, far = likely_fine(none, failed, asked)
    assert near < further < far
    assert far > 0.95
    assert likely_fine(failed, none, asked).min() == 1.0


def test_a_point_with_its_level_is_found_again() -> None:
    for level in SPACE.points(100, None):  # type: ignore[arg-type]  # all of them: nothing is drawn
        assert SPACE.level(SPACE.params(level)) == level
    assert SPACE.level({"BLOCK": 200}) == SPACE.level({"BLOCK": 256})
    assert SPACE.default == (1, 1, 1)


def test_times_count_as_logarithms_and_what_is_not_timed_as_ranks() -> None:
    timed = tried([attempt(1, {}, 10.0), attempt(2, {"BLOCK": 64}, None)], {"s": SKETCH})
    assert [p.value for p in timed] == [pytest.approx(math.log(10.0)), None]
    checked = [
        Attempt(f"r/{n}", n, None, Proposal("", "", params={"sketch": "s"}), Verdict(Status.CHECKED, ""), (), key)
        for n, key in enumerate([(4.0, 1.0), (4.0, 0.0), (9.0, 0.0)])
    ]
    assert [p.value for p in tried(checked, {"s": SKETCH})] == [0.5, 0.0, 1.0]


def test_the_sketch_as_it_is_comes_first_and_no_point_twice() -> None:
    assert proposals([], 1) == [SKETCH.params]
    history = [attempt(1, {}, 10.0)]
    for number in range(2, 49):
        params = proposals(history, 2)[1]  # after the sketch as it is
        history.append(attempt(number, params, 10.0 + number))
    assert len({a.proposal.source for a in history}) == SPACE.size == 48
    assert [m.params for m in search(View([SKETCH], history)).moves] == [SKETCH.params]


def test_what_is_under_way_is_not_proposed_and_keeps_others_away() -> None:
    history = [attempt(n, {"BLOCK": b}, us) for n, (b, us) in enumerate([(128, 10.0), (64, 12.0), (256, 9.0)], 1)]
    free = [p for p in proposals(history) if p != SKETCH.params]
    held = [p for p in proposals(history, under_way=[("s", free[0])]) if p != SKETCH.params]
    assert free[0] not in held


def test_the_same_view_gives_the_same_moves_and_another_seed_others() -> None:
    history = [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256}, 9.0)]
    assert proposals(history, 20) == proposals(history, 20)
    assert proposals([attempt(1, {}, 10.0)], 20) != proposals([attempt(1, {}, 10.0)], 20, seed=7)


def test_a_slow_sketch_gets_no_attempts_while_a_fast_one_may_improve() -> None:
    slow = Sketch("slow", SKETCH.source + "# slow\n", "", SKETCH.params, SKETCH.space)
    far = Attempt(
        "r/2", 2, None, Proposal(slow.source, "", params={"sketch": "slow", **slow.params}),
        Verdict(Status.CORRECT, "", timing=Timing(90.0, 90.0, 90.0, 1, 1)), (), (90.0,),
    )  # fmt: skip
    moves = search(View([SKETCH, slow], [attempt(1, {}, 10.0), far], turn=2)).moves
    assert {m.sketch.name for m in [next(moves) for _ in range(12)][2:]} == {"s"}


REFUSED = "needs 262144 bytes of shared memory per block; sm_90 has 232448. (kernel k)"


def test_points_beyond_one_that_was_refused_for_shared_memory_come_last() -> None:
    history = [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256, "NUM_STAGES": 3}, None, detail=REFUSED)]
    judge = Judge.of(SPACE, tried(history, {"s": SKETCH}), 232448)
    levels = [SPACE.level({**SKETCH.params, **p}) for p in (
        {"BLOCK": 512, "NUM_STAGES": 4}, {"BLOCK": 256, "NUM_STAGES": 3, "NUM_WARPS": 8}, {"BLOCK": 256},
        {"NUM_STAGES": 4},
    )]  # fmt: skip
    assert judge.why(levels) == [TOO_LARGE, TOO_LARGE, "", ""]
    found = search(View([SKETCH], history, turn=2))
    moves = [m.params for m in found.moves][1:]
    beyond = [p["BLOCK"] >= 256 and p["NUM_STAGES"] >= 3 for p in moves]
    assert beyond == sorted(beyond)
    assert found.put_off[TOO_LARGE] == sum(beyond) == 11


def test_shared_memory_is_foreseen_from_what_other_points_took() -> None:
    sizes = [(b, s) for b in (64, 128, 256) for s in (1, 2, 3)]
    history = [attempt(n, {"BLOCK": b, "NUM_STAGES": s}, 10.0, shared=b * s * 320) for n, (b, s) in enumerate(sizes, 1)]
    judge = Judge.of(SPACE, tried(history, {"s": SKETCH}), 232448)
    levels = [SPACE.level({"BLOCK": b, "NUM_STAGES": s, "NUM_WARPS": 4}) for b, s in ((512, 4), (512, 1), (256, 4))]
    assert judge.why(levels) == [TOO_LARGE, "", TOO_LARGE if 256 * 4 * 320 > 1.15 * 232448 else ""]


def test_points_with_more_in_each_thread_than_one_that_spilled_and_was_slow_come_last() -> None:
    history = [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256}, 30.0, spills=400)]
    judge = Judge.of(SPACE, tried(history, {"s": SKETCH}), 232448)
    more, fewer_warps, more_warps = (
        SPACE.level({**SKETCH.params, **p}) for p in ({"BLOCK": 512}, {"BLOCK": 256, "NUM_WARPS": 2},
                                                      {"BLOCK": 256, "NUM_WARPS": 8})
    )  # fmt: skip
    assert judge.why([more, fewer_warps, more_warps]) == [SPILLS, SPILLS, ""]
    fast = [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256}, 9.0, spills=400)]
    assert set(Judge.of(SPACE, tried(fast, {"s": SKETCH}), 232448).why([more, fewer_warps])) == {""}


def test_a_sketch_that_failed_twice_for_what_parameters_do_not_change_comes_last() -> None:
    failed = [attempt(1, {}, None), attempt(2, {"BLOCK": 256}, None)]
    levels = [SPACE.level({**SKETCH.params, "BLOCK": 512})]
    assert Judge.of(SPACE, tried(failed, {"s": SKETCH}), 232448).why(levels) == [FAILING]
    mended = [*failed, attempt(3, {"NUM_WARPS": 8}, 9.0)]
    assert Judge.of(SPACE, tried(mended, {"s": SKETCH}), 232448).why(levels) == [""]
    too_large = [attempt(n, {"NUM_STAGES": n}, None, detail=REFUSED) for n in (2, 3)]
    assert FAILING not in Judge.of(SPACE, tried(too_large, {"s": SKETCH}), 232448).why(levels)


def test_a_sketch_that_was_never_right_is_still_tried_a_little() -> None:
    other = Sketch("t", SKETCH.source + "# t\n", "", SKETCH.params, SKETCH.space)
    points = tried([attempt(1, {}, None)], {"s": SKETCH, "t": other})
    assert [p.value for p in points] == [None]
    assert isinstance(points[0], Tried)
    moves = search(View([SKETCH, other], [attempt(1, {}, None)], turn=1)).moves
    assert {next(moves).sketch.name for _ in range(60)} == {"s", "t"}
