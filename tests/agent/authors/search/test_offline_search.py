"""What the offline author proposes, and in which order. No torch here: lowering is replaced by a recorded refusal."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from kerneltune.agent.attempt import Attempt, Proposal, SearchPoint
from kerneltune.agent.authors.search.author import OfflineAuthor, overrides, through
from kerneltune.agent.authors.search.clean import LoweredCode
from kerneltune.agent.authors.search.experts import experts
from kerneltune.agent.authors.search.model_source import model_parts
from kerneltune.agent.authors.search.neighbours import (
    FAILING,
    MOST_POINTS,
    SPILLS,
    TOO_LARGE,
    CannotLower,
    LowersTooLong,
    Outcomes,
    Sketch,
    View,
    fingerprint,
    search,
)
from kerneltune.tools.languages.ptx.candidate import CannotSay
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.schema.verdict import KernelReport, Status, Timing, Verdict
from tests.agent.authors.search.offline_bench import at

SOURCE = """
import torch
ROWS = 8
CASES = [{"name": "wide", "ROWS": 2, "cpu": True}]
class Model(torch.nn.Module):
    def forward(self, x): return x.softmax(-1)
"""
X = {"$tensor": TensorSpec((8, 16), "float32")}
TASK = TaskSpec("softmax", "0", "float32", SOURCE, (CaseSpec("main", (X,), (), None), CaseSpec("wide", (X,), (), None)))


def refuse(source: str, overrides: dict[str, Json], arch: int) -> LoweredCode:
    raise CannotLower("no Inductor in this test")


def judged(proposals: Sequence[Proposal], history: Sequence[Attempt] = ()) -> list[Attempt]:
    """Attempts as the loop would record them; fewer warps are better, so that there is a hill to climb."""
    found = list(history)
    for proposal in proposals:
        warps = at(proposal).params.get("NUM_WARPS", 8)
        number = len(found) + 1
        verdict = Verdict(Status.CHECKED, "")
        found.append(
            Attempt(
                **vars(proposal),
                attempt_id=f"r/{number}",
                number=number,
                verdict=verdict,
                rank_key=(float(warps), number),
            )
        )
    return found


def climb(author: OfflineAuthor, rounds: int, width: int = 3, task: TaskSpec = TASK) -> list[Attempt]:
    history: list[Attempt] = []
    for _ in range(rounds):
        history = judged(author.propose(task, history, width), history)
    return history


def test_every_expert_comes_first_at_its_default_parameters() -> None:
    proposals = OfflineAuthor(refuse, 90).propose(TASK, [], len(experts(TASK)))
    assert [at(p).sketch for p in proposals] == [s.name for s in experts(TASK)]
    assert [p.source for p in proposals] == [s.source for s in experts(TASK)]
    assert all(p.rationale and p.parent_id is None for p in proposals)


OWN = Sketch("inductor", "WARPS = 4", "", {"WARPS": 4}, {"WARPS": (1, 2, 4, 8)}, starts=({"WARPS": 8}, {"WARPS": 1}))
EXPERT = Sketch("expert", "TILE = 64", "", {"TILE": 64})


def timed(number: int, sketch: str, us: float) -> Attempt:
    """A sketch as it is, with its time."""
    verdict = Verdict(Status.CORRECT, "", timing=Timing(us, us, us, 5, 1))
    return Attempt(
        "", "", origin=SearchPoint(sketch), attempt_id=f"r/{number}", number=number, verdict=verdict, rank_key=(us,)
    )


def first_moves(count: int, **times_us: float) -> list[tuple[str, int]]:
    """After both sketches were timed as they are, where times are given."""
    history = [timed(n, name, us) for n, (name, us) in enumerate(times_us.items(), 1)]
    moves = search(View([OWN, EXPERT], history))
    return [(m.sketch.name, next(iter(m.params.values()))) for m, _ in zip(moves, range(count), strict=False)]


def test_what_inductor_would_time_itself_comes_after_the_sketches_as_they_are() -> None:
    assert first_moves(4) == [("inductor", 4), ("expert", 64), ("inductor", 8), ("inductor", 1)]
    assert first_moves(4, inductor=120.0, expert=100.0)[2:] == [("inductor", 8), ("inductor", 1)]
    assert first_moves(4, inductor=100.0)[2:] == [("inductor", 8), ("inductor", 1)]


def test_what_inductor_would_time_is_left_where_another_sketch_is_far_ahead() -> None:
    def asked(inductor_us: float) -> bool:
        history = [timed(1, "inductor", inductor_us), timed(2, "expert", 100.0)]
        return any(move.why for move in search(View([OWN, EXPERT], history)))

    assert asked(140.0)
    assert not asked(200.0)


def in_ptx(source: str) -> str:
    """What stands for the translation here: its text is another one. Kernels that walk over a row twice have no PTX."""
    if "softmax_online" in source:
        raise CannotSay("two walks, in this test")
    return f"# as PTX\n{source}\nPtxKernel"


def test_in_ptx_our_experts_come_first_and_then_every_point_that_has_ptx() -> None:
    author = OfflineAuthor(refuse, 90, as_ptx=in_ptx)
    history = climb(author, 6)
    assert history[0].origin == SearchPoint("ptx_softmax")
    assert all("PtxKernel" in a.source for a in history)
    assert not any("softmax_online" in a.source for a in history)
    assert [p for p in author.problems if "softmax_online" in p] == [
        "softmax_online cannot be said in PTX: two walks, in this test"
    ]
    assert len({a.source for a in history}) == len(history) == 18


def test_a_resumed_run_in_ptx_repeats_nothing() -> None:
    history = climb(OfflineAuthor(refuse, 90, as_ptx=in_ptx), 4)
    later = OfflineAuthor(refuse, 90, as_ptx=in_ptx).propose(TASK, history, 6)
    assert len(later) == 6
    assert not {p.source for p in later} & {a.source for a in history}


def test_no_source_is_proposed_twice() -> None:
    sources = [fingerprint(a.source) for a in climb(OfflineAuthor(refuse, 90), 40)]
    points = sum(math.prod(map(len, sketch.space.values())) for sketch in experts(TASK))
    assert len(set(sources)) == len(sources) == min(points, 120)


def test_the_same_seed_and_history_give_the_same_proposals() -> None:
    assert climb(OfflineAuthor(refuse, 90, seed=3), 8) == climb(OfflineAuthor(refuse, 90, seed=3), 8)
    assert climb(OfflineAuthor(refuse, 90, seed=3), 8) != climb(OfflineAuthor(refuse, 90, seed=4), 8)


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped() -> None:
    author = OfflineAuthor(refuse, 90)
    history = climb(author, 6)
    assert author.propose(TASK, history, 4) == OfflineAuthor(refuse, 90).propose(TASK, history, 4)


def test_neighbours_of_the_best_attempt_say_what_they_change_and_why() -> None:
    author = OfflineAuthor(refuse, 90)
    history = climb(author, 2)
    best = min(history, key=lambda a: a.rank_key)
    derived = [p for p in author.propose(TASK, history, 6) if p.parent_id == best.attempt_id]
    assert derived
    for proposal in derived:
        assert proposal.hypothesis
        assert proposal.prediction
        assert f"attempt {best.number}" in proposal.rationale
        then, now = at(best).params, at(proposal).params
        changed = {k for k in now if now[k] != then[k]}
        assert len(changed) == 1


def test_the_search_climbs_to_the_top_of_a_simple_hill() -> None:
    top = min(min(sketch.space["NUM_WARPS"]) for sketch in experts(TASK))
    assert all(sketch.params["NUM_WARPS"] > top for sketch in experts(TASK))
    assert min(a.rank_key[0] for a in climb(OfflineAuthor(refuse, 90), 12)) == top


SKETCH = Sketch(
    "s",
    "BLOCK = 128\nNUM_WARPS = 4\nNUM_STAGES = 2\n",
    "an idea",
    {"BLOCK": 128, "NUM_WARPS": 4, "NUM_STAGES": 2},
    {"BLOCK": (64, 128, 256, 512), "NUM_WARPS": (2, 4, 8), "NUM_STAGES": (1, 2, 3, 4)},
)
LIMIT = 232448
TOO_MUCH = 262144  # bytes of shared memory; an H100's block has 232448


def attempt(
    number: int, params: Mapping[str, int], us: float | None, *, spills: int = 0, needs: int | None = None
) -> Attempt:
    """The sketch at a point, right in so many microseconds, or not; `needs`: bytes of shared memory, too many."""
    values = {**SKETCH.params, **params}
    status = Status.CORRECT if us else Status.COMPILE_FAILED if needs else Status.WRONG
    verdict = Verdict(status, "", timing=Timing(us, us, us, 1, 1) if us else None, needed_shared_bytes=needs)
    kernels = () if needs else (KernelReport("k", 32, spills, 0, 0, 1024, values["NUM_WARPS"], 2, 0.5, ""),)
    proposal = Proposal(SKETCH.render(values), "", origin=SearchPoint("s", values))
    return Attempt(
        **vars(proposal),
        attempt_id=f"r/{number}",
        number=number,
        verdict=verdict,
        kernels=kernels,
        rank_key=(us,) if us else (),
    )


def test_every_point_is_reached_in_the_end() -> None:
    history: list[Attempt] = []
    for number in range(1, 49):
        seen = {a.source for a in history}
        moves = search(View([SKETCH], history, turn=number))
        params = next(m.params for m in moves if SKETCH.render(m.params) not in seen)
        history.append(attempt(number, params, 10.0 + number % 7))
    assert len({a.source for a in history}) == 48 == 4 * 3 * 4


def test_of_a_space_that_no_memory_holds_some_points_are_tried_at_the_end() -> None:
    space: dict[str, tuple[int, ...]] = {f"P{n}": (1, 2, 4, 8) for n in range(40)}
    source = "".join(f"{name} = 1\n" for name in space)
    sketch = Sketch("s", source, "", dict.fromkeys(space, 1), space)
    # so that all others come last
    failed = [replace(attempt(n, {}, None), origin=SearchPoint("s", dict.fromkeys(space, n))) for n in (1, 2)]
    moves = [*search(View([sketch], failed))]
    assert len({sketch.render(move.params) for move in moves}) > MOST_POINTS
    assert [move.params for move in moves] == [move.params for move in search(View([sketch], failed))]


def test_the_same_view_gives_the_same_moves_and_another_seed_others() -> None:
    history = [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256}, 9.0)]

    def moves(seed: int) -> list[dict[str, int]]:
        return [m.params for m in search(View([SKETCH], history, seed=seed))]

    assert moves(0) == moves(0)
    assert moves(0) != moves(7)


def test_a_step_that_helped_is_tried_again_first() -> None:
    first = attempt(1, {}, 10.0)
    second = replace(attempt(2, {"BLOCK": 256}, 9.0), parent_id="r/1")
    for seed in range(8):
        move = next(m for m in search(View([SKETCH], [first, second], seed=seed)) if m.parent is second)
        assert (move.step, move.params["BLOCK"]) == (("BLOCK", True), 512)


def test_points_beyond_one_that_was_refused_for_shared_memory_come_last() -> None:
    history = [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256, "NUM_STAGES": 3}, None, needs=TOO_MUCH)]
    outcomes = Outcomes.of(SKETCH, history, LIMIT)

    def why(**changed: int) -> str:
        return outcomes.why_late({**SKETCH.params, **changed})

    assert why(BLOCK=512, NUM_STAGES=4) == why(BLOCK=256, NUM_STAGES=3, NUM_WARPS=8) == TOO_LARGE
    assert why(BLOCK=256) == why(NUM_STAGES=4) == ""
    told: list[tuple[str, str]] = []
    moves = [m.params for m in search(View([SKETCH], history, turn=2), lambda *words: told.append(words))]
    beyond = [p["BLOCK"] >= 256 and p["NUM_STAGES"] >= 3 for p in moves]
    assert beyond == sorted(beyond)
    assert set(told) == {("s", TOO_LARGE)}
    assert len({tuple(p.items()) for p, last in zip(moves, beyond, strict=True) if last}) == 12


def test_points_with_more_in_each_thread_than_one_that_spilled_and_was_slow_come_last() -> None:
    more, fewer, warps = ({**SKETCH.params, "BLOCK": 512}, {**SKETCH.params, "BLOCK": 256, "NUM_WARPS": 2},
                          {**SKETCH.params, "BLOCK": 256, "NUM_WARPS": 8})  # fmt: skip
    slow = Outcomes.of(SKETCH, [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256}, 30.0, spills=400)], LIMIT)
    assert [slow.why_late(p) for p in (more, fewer, warps)] == [SPILLS, SPILLS, ""]
    fast = Outcomes.of(SKETCH, [attempt(1, {}, 10.0), attempt(2, {"BLOCK": 256}, 9.0, spills=400)], LIMIT)
    assert [fast.why_late(p) for p in (more, fewer)] == ["", ""]


def test_a_sketch_that_failed_twice_for_what_parameters_do_not_change_comes_last() -> None:
    point = {**SKETCH.params, "BLOCK": 512}
    failed = [attempt(1, {}, None), attempt(2, {"BLOCK": 256}, None)]
    assert Outcomes.of(SKETCH, failed, LIMIT).why_late(point) == FAILING
    assert Outcomes.of(SKETCH, [*failed, attempt(3, {"NUM_WARPS": 8}, 9.0)], LIMIT).why_late(point) == ""
    too_large = [attempt(n, {"NUM_STAGES": n}, None, needs=TOO_MUCH) for n in (2, 3)]
    assert Outcomes.of(SKETCH, too_large, LIMIT).why_late({**SKETCH.params, "BLOCK": 64}) == ""
    other = Sketch("t", SKETCH.source + "# t\n", "", SKETCH.params, SKETCH.space)
    names = [m.sketch.name for m in search(View([SKETCH, other], failed))]
    assert names.index("s") > names.index("t")
    assert "t" not in names[names.index("s") :]


def test_a_sketch_that_was_wrong_once_is_still_tried() -> None:
    other = Sketch("t", SKETCH.source + "# t\n", "", SKETCH.params, SKETCH.space)
    moves = search(View([SKETCH, other], [attempt(1, {}, None)], turn=1))
    assert {next(moves).sketch.name for _ in range(30)} == {"s", "t"}


def test_an_author_with_nothing_left_returns_an_empty_list() -> None:
    unknown = TaskSpec("my_own_task", "1", "float32", SOURCE.replace("x.softmax(-1)", "x.erfinv()"), TASK.cases)
    author = OfflineAuthor(refuse, 90)
    assert author.propose(unknown, [], 3) == []
    assert "no Inductor in this test" in author.problems[0]


def test_held_out_cases_are_not_lowered() -> None:
    asked: list[Json] = []

    def record(source: str, overrides: dict[str, Json], arch: int) -> LoweredCode:
        asked.append(overrides["inputs"])
        raise CannotLower("enough")

    hidden = CaseSpec("hidden", ({"$tensor": TensorSpec((3, 5), "float32")},), (), None, held_out=True)
    OfflineAuthor(record, 90).propose(TaskSpec("t", "2", "float32", SOURCE, (*TASK.cases, hidden)), [], 1)
    assert asked
    assert all(inputs[0]["$tensor"]["shape"] == [8, 16] for inputs in asked)


def test_a_case_is_lowered_with_its_own_constants_and_inputs() -> None:
    found = overrides(TASK, TASK.case("wide"))
    assert found["ROWS"] == 2
    assert "cpu" not in found
    assert found["inputs"][0]["$tensor"]["shape"] == [8, 16]


def test_a_refusal_of_the_child_process_is_told_as_one() -> None:
    lower = through(lambda body: {"error": f"cannot do sm_{body['arch']}"})
    with pytest.raises(CannotLower, match="cannot do sm_90"):
        lower("", {}, 90)
    late = through(lambda _: {"error": "more than 10 s", "late": True})
    with pytest.raises(LowersTooLong, match="10 s"):
        late("", {}, 90)


def test_a_sketch_refuses_a_parameter_that_its_file_does_not_have() -> None:
    with pytest.raises(KeyError, match="SIZE"):
        Sketch("s", "WARPS = 4\n", "").render({"SIZE": 1})


def test_launch_parameters_are_written_into_the_file() -> None:
    assert Sketch("s", "WARPS = 4  # why\nx = 1\n", "").render({"WARPS": 8}) == "WARPS = 8  # why\nx = 1\n"


def test_a_parameter_that_stands_twice_in_the_file_is_refused() -> None:
    with pytest.raises(KeyError, match="2 lines 'WARPS"):
        Sketch("s", "WARPS = 4\nif x:\n    WARPS = 2\nWARPS = 8\n", "").render({"WARPS": 1})


def test_all_parameters_of_a_whole_model_are_written_about_as_fast_as_one() -> None:
    params = {f"KERNEL_{n}_XBLOCK": n for n in range(600)}
    lines = [
        *(f"{name} = 0" for name in params),
        *("        buffer = torch.empty((10, 64, 56, 56))" for _ in range(5000)),
    ]
    sketch = Sketch("s", "\n".join(lines), "")
    took_s = []
    for wanted in ({"KERNEL_0_XBLOCK": 7}, params):
        times_s = []
        for _ in range(3):
            began_s = time.thread_time()
            sketch.render(wanted)
            times_s.append(time.thread_time() - began_s)
        took_s.append(min(times_s))
    assert took_s[1] < 50 * took_s[0]  # 600 times with a pass for each


def test_what_makes_a_parameters_size_is_copied_whatever_statement_or_class_it_stands_in() -> None:
    source = (
        "from torch.nn import *\n"
        "try:\n    from fast import Norm\nexcept ImportError:\n    Norm = LayerNorm\n"
        "if Norm:\n    SIZE = 4\nwith open('x'):\n    UNUSED = 5\n"
        "class Config:\n    def __init__(self): self.n = SIZE\n    def width(self): return self.half() * 2\n"
        "    def half(self): return self.n\n    def unused(self): return 0\n"
        "class Model(Module):\n    def __init__(self):\n        self.norm = Norm(Config().width())\n"
        "    def forward(self, x): return x\n"
    )
    texts, _, _ = model_parts(source)
    copied = "\n".join(texts)
    for needed in ("from torch.nn import *", "from fast import Norm", "SIZE = 4", "def width(self)", "def half(self)"):
        assert needed in copied, needed
    assert "UNUSED" not in copied
    assert "unused" not in copied


def test_the_constructor_is_copied_with_what_it_needs_and_without_what_computes() -> None:
    texts, model, arguments = model_parts(
        "import math\nimport os\nSIZE = 4\nUNUSED = 5\n"
        "class Block(nn.Module):\n    def __init__(self): self.w = SIZE\n    def forward(self, x): return os\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super(Model, self).__init__()\n"
        "        self.block = self.make()\n    def make(self): return Block()\n"
        "    def forward(self, x, scale=2): return x\n"
    )
    assert texts == ["SIZE = 4", "class Block(nn.Module):\n\n    def __init__(self):\n        self.w = SIZE"]
    assert [f.name for f in model.body] == ["__init__", "make"]  # type: ignore[attr-defined]
    assert model.name == "ModelNew"
    assert [a.arg for a in arguments.args] == ["self", "x", "scale"]
