"""What the offline author proposes, and in which order. No torch here: lowering is replaced by a recorded refusal."""

from collections.abc import Sequence

import pytest

from agent.attempt import Attempt, Proposal
from agent.authors.offline.author import OfflineAuthor, overrides, through
from agent.authors.offline.library import experts
from agent.authors.offline.module_source import model_parts
from agent.authors.offline.search import View, search
from agent.authors.offline.sketch import CannotLower, Sketch, fingerprint
from agent.authors.offline.words import MOST_TOGETHER
from tools.codec import Json
from tools.spec import CaseSpec, TaskSpec, TensorSpec
from tools.verdict import Status, Timing, Verdict

SOURCE = """
import torch
ROWS = 8
CASES = [{"name": "wide", "ROWS": 2, "cpu": True}]
class Model(torch.nn.Module):
    def forward(self, x): return x.softmax(-1)
"""
X = {"$tensor": TensorSpec((8, 16), "float32")}
TASK = TaskSpec("softmax", "0", "float32", SOURCE, (CaseSpec("main", (X,), (), None), CaseSpec("wide", (X,), (), None)))


def refuse(source: str, overrides: dict[str, Json], arch: int) -> list[str]:
    raise CannotLower("no Inductor in this test")


def judged(proposals: Sequence[Proposal], history: Sequence[Attempt] = ()) -> list[Attempt]:
    """Attempts as the loop would record them; fewer warps are better, so that there is a hill to climb."""
    found = list(history)
    for proposal in proposals:
        warps = proposal.params.get("NUM_WARPS", 8)
        number = len(found) + 1
        verdict = Verdict(Status.CHECKED, "")
        found.append(Attempt(f"r/{number}", number, proposal.parent_id, proposal, verdict, (), (float(warps), number)))
    return found


def climb(author: OfflineAuthor, rounds: int, width: int = 3) -> list[Attempt]:
    history: list[Attempt] = []
    for _ in range(rounds):
        history = judged(author.propose(TASK, history, width), history)
    return history


def test_every_expert_comes_first_at_its_default_parameters() -> None:
    proposals = OfflineAuthor(refuse, 90).propose(TASK, [], len(experts(TASK)))
    assert [p.params["sketch"] for p in proposals] == [s.name for s in experts(TASK)]
    assert [p.source for p in proposals] == [s.source for s in experts(TASK)]
    assert all(p.rationale and p.parent_id is None for p in proposals)


OWN = Sketch("inductor", "WARPS = 4", "", {"WARPS": 4}, {"WARPS": (1, 2, 4, 8)}, starts=({"WARPS": 8}, {"WARPS": 1}))
EXPERT = Sketch("expert", "TILE = 64", "", {"TILE": 64})


def timed(number: int, sketch: str, us: float) -> Attempt:
    """A sketch as it is, with its time."""
    verdict = Verdict(Status.CORRECT, "", timing=Timing(us, us, us, 5, 1))
    return Attempt(f"r/{number}", number, None, Proposal("", "", params={"sketch": sketch}), verdict, (), (us,))


def first_moves(count: int, **times_us: float) -> list[tuple[str, int]]:
    """After both sketches were timed as they are, where times are given."""
    history = [timed(n, name, us) for n, (name, us) in enumerate(times_us.items(), 1)]
    moves = search(View([OWN, EXPERT], history)).moves
    return [(m.sketch.name, next(iter(m.params.values()))) for m, _ in zip(moves, range(count), strict=False)]


def test_what_inductor_would_time_itself_comes_after_the_sketches_as_they_are() -> None:
    assert first_moves(4) == [("inductor", 4), ("expert", 64), ("inductor", 8), ("inductor", 1)]
    assert first_moves(4, inductor=120.0, expert=100.0)[2:] == [("inductor", 8), ("inductor", 1)]
    assert first_moves(4, inductor=100.0)[2:] == [("inductor", 8), ("inductor", 1)]


def test_what_inductor_would_time_is_left_to_the_model_where_another_sketch_is_far_ahead() -> None:
    assert first_moves(3, inductor=140.0, expert=100.0)[2] == ("inductor", 8)
    assert first_moves(3, inductor=200.0, expert=100.0)[2] != ("inductor", 8)


def test_no_source_is_proposed_twice() -> None:
    sources = [fingerprint(a.proposal.source) for a in climb(OfflineAuthor(refuse, 90), 30)]
    assert len(sources) == 90  # nearly all there are
    assert len(set(sources)) == 90


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
        changed = {k for k in proposal.params if proposal.params[k] != best.proposal.params[k]}
        assert 1 <= len(changed) <= MOST_TOGETHER


def test_the_search_climbs_to_the_top_of_a_simple_hill() -> None:
    top = min(min(sketch.space["NUM_WARPS"]) for sketch in experts(TASK))
    assert all(sketch.params["NUM_WARPS"] > top for sketch in experts(TASK))
    assert min(a.rank_key[0] for a in climb(OfflineAuthor(refuse, 90), 12)) == top


def test_an_author_with_nothing_left_returns_an_empty_list() -> None:
    unknown = TaskSpec("my_own_task", "1", "float32", SOURCE.replace("x.softmax(-1)", "x.erfinv()"), TASK.cases)
    author = OfflineAuthor(refuse, 90)
    assert author.propose(unknown, [], 3) == []
    assert "no Inductor in this test" in author.problems[0]


def test_held_out_cases_are_not_lowered() -> None:
    asked: list[Json] = []

    def record(source: str, overrides: dict[str, Json], arch: int) -> list[str]:
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


def test_a_sketch_refuses_a_parameter_that_its_file_does_not_have() -> None:
    with pytest.raises(KeyError, match="SIZE"):
        Sketch("s", "WARPS = 4\n", "").render({"SIZE": 1})


def test_launch_parameters_are_written_into_the_file() -> None:
    assert Sketch("s", "WARPS = 4  # why\nx = 1\n", "").render({"WARPS": 8}) == "WARPS = 8  # why\nx = 1\n"


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
