"""Returns and advantages against numbers worked out by hand, and against brute force."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kerneltune.agent.attempt import Attempt, LlmTurn, RunStart
from kerneltune.agent.export.rewards import ReturnGroups, RewardedTurn, group_of, returns, reward_of, turns_of
from kerneltune.agent.export.rl_formats import RlTurns
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.graded import RUN, documented, graded, replied, run_of, stated, timed
from tests.agent.shell import ROOT


def paying(
    number: int, reply: int | None, reward: float | None, conversation: str = "1", parent_id: str | None = None
) -> Attempt:
    origin = LlmTurn(conversation, reply) if reply else None
    return graded(number=number, origin=origin, detail="" if reward is None else str(reward), parent_id=parent_id)


def to_go(turns: list[RewardedTurn]) -> list[float | None]:
    return [turn.to_go for turn in turns]


def test_a_return_is_the_reward_and_the_discounted_return_of_the_next_turn() -> None:
    # 2 | 1 + 0.4 * 2 | 0 + 0.4 * 1.8
    assert returns([0.0, 1.0, 2.0], 0.4) == pytest.approx([0.72, 1.8, 2.0])
    assert returns([0.0, 1.0, 2.0], 1.0) == pytest.approx([3.0, 3.0, 2.0])
    assert returns([0.0, 1.0, 2.0], 0.0) == pytest.approx([0.0, 1.0, 2.0])
    assert returns([]) == []


def test_failed_turns_are_valid_and_worth_what_follows_them() -> None:
    assert returns([0.0, 0.0, 1.3], 0.4) == pytest.approx([0.208, 0.52, 1.3])


def test_an_unknown_reward_makes_every_return_that_contains_it_unknown() -> None:
    assert returns([1.0, None, 2.0], 0.4) == [None, None, 2.0]
    assert returns([1.0, 2.0, None], 0.4) == [None, None, None]


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_a_discount_lies_between_0_and_1(gamma: float) -> None:
    with pytest.raises(UsageError, match="gamma"):
        RlTurns(gamma=gamma)


def test_turns_count_the_replies_that_proposed_something() -> None:
    run = run_of(paying(1, 1, 0.0), paying(2, 4, 1.0), paying(3, 6, 2.0))  # replies 2, 3, 5 benched and reflected
    turns = turns_of(run, stated, 0.4)
    assert [(t.number, t.reply) for t in turns] == [(1, 1), (2, 4), (3, 6)]
    assert to_go(turns) == pytest.approx([0.72, 1.8, 2.0])


def test_several_attempts_of_one_reply_are_one_turn_that_is_worth_its_best() -> None:
    run = run_of(paying(1, 1, 0.5), paying(2, 1, 2.0), paying(3, 1, 0.0), paying(4, 2, 1.0))
    turns = turns_of(run, stated, 0.5)
    assert [[a.number for a in t.attempts] for t in turns] == [[1, 2, 3], [4]]
    assert [t.reward for t in turns] == [2.0, 1.0]
    assert to_go(turns) == pytest.approx([2.5, 1.0])


def test_a_turn_is_unknown_as_long_as_its_best_may_be() -> None:
    run = run_of(paying(1, 1, 0.5), paying(2, 1, None))
    assert turns_of(run, stated)[0].reward is None


def test_conversations_are_rollouts_of_their_own() -> None:
    run = run_of(paying(1, 1, 1.0, "1"), paying(2, 1, 3.0, "2"), paying(3, 2, 1.0, "1"))
    turns = turns_of(run, stated, 0.5)
    assert [(t.conversation, t.number, t.to_go) for t in turns] == [("1", 1, 1.5), ("1", 2, 1.0), ("2", 1, 3.0)]


def child(number: int, parent: int | None, reward: float | None) -> Attempt:
    return paying(number, None, reward, parent_id=f"{RUN}/{parent}" if parent else None)


def test_without_a_conversation_a_turn_is_a_generation_and_children_share_what_follows() -> None:
    # 1 -> 2 -> 4, 1 -> 3; 5 stands alone
    run = run_of(child(1, None, 1.0), child(2, 1, 2.0), child(3, 1, 4.0), child(4, 2, 6.0), child(5, None, 7.0))
    turns = turns_of(run, stated, 0.5)
    assert [(t.attempts[0].number, t.number, t.reply) for t in turns] == [
        (1, 1, None), (2, 2, None), (3, 2, None), (4, 3, None), (5, 1, None)]  # fmt: skip
    # 4: 6; 3: 4; 2: 2 + 3 = 5; 1: 1 + 0.5 * (5 + 4) / 2 = 3.25
    assert to_go(turns) == pytest.approx([3.25, 5.0, 4.0, 6.0, 7.0])


def test_a_chain_of_generations_is_worth_what_the_same_turns_of_a_conversation_are() -> None:
    rewards = [0.0, 1.0, 0.5, 2.0]
    chain = run_of(*(child(i, i - 1, r) for i, r in enumerate(rewards, 1)))
    assert to_go(turns_of(chain, stated)) == returns(rewards)


def test_what_a_model_derives_from_an_attempt_of_no_conversation_is_a_rollout_of_its_own() -> None:
    derived = paying(2, 1, 5.0, parent_id=f"{RUN}/1")
    turns = turns_of(run_of(child(1, None, 1.0), derived, child(3, 2, 2.0)), stated, 0.5)
    found = {t.attempts[0].number: (t.number, t.to_go) for t in turns}
    assert found == {1: (1, 1.0), 2: (1, 5.0), 3: (3, 2.0)}


def test_what_a_run_began_with_is_no_turn_and_what_is_derived_from_it_the_first_generation() -> None:
    start = replace(child(1, None, 5.0), origin=RunStart("mine.py"))
    as_ptx = replace(child(2, 1, 6.0), origin=RunStart("mine.py", as_ptx=True))
    turns = turns_of(run_of(start, as_ptx, child(3, 2, 1.0), child(4, 3, 2.0), paying(5, 1, 3.0)), stated, 0.5)
    assert [(t.conversation, t.number, t.attempts[0].number, t.reward, t.to_go) for t in turns] == [
        ("1", 1, 5, 3.0, 3.0), ("", 1, 3, 1.0, 2.0), ("", 2, 4, 2.0, 2.0)
    ]  # fmt: skip


def test_an_unknown_child_makes_its_ancestors_unknown_and_no_other() -> None:
    run = run_of(child(1, None, 1.0), child(2, 1, None), child(3, 1, 4.0))
    assert to_go(turns_of(run, stated, 0.5)) == [None, None, 4.0]


def test_a_lineage_that_bites_its_tail_ends() -> None:
    run = run_of(child(1, 2, 1.0), child(2, 1, 1.0), child(3, 3, 1.0))
    assert [t.number for t in turns_of(run, stated)] == [1, 2, 1]


def test_a_lineage_of_thousands_takes_no_recursion_and_no_square() -> None:
    run = run_of(*(child(i, i - 1, 1.0) for i in range(1, 20_001)))
    turns = turns_of(run, stated, 0.5)
    assert turns[-1].number == 20_000
    assert turns[0].to_go == pytest.approx(2.0)


def test_without_a_gpu_a_run_has_only_the_returns_of_its_failures() -> None:
    run = run_of(
        replied(1, 1, status=Status.COMPILE_FAILED, tool="update"),
        replied(2, 2, status=Status.WRONG),
        replied(3, 4, status=Status.CHECKED),
        replied(4, 6, status=Status.CHECKED),
        gpu=None,
    )
    assert to_go(turns_of(run, reward_of("kevin"))) == [None] * 4
    # being right is known: fast_0 is 0, 0, 1, 1
    assert to_go(turns_of(run, reward_of("fast_0"))) == pytest.approx([0.4 * 0.56, 0.56, 1.4, 1.0])


def test_returns_with_kevin_s_reward_of_a_timed_conversation() -> None:
    run = run_of(
        replied(1, 1, status=Status.WRONG),
        timed(1.0, number=2, origin=LlmTurn("1", 2)),
        timed(1.5, number=3, origin=LlmTurn("1", 3)),
    )
    # 1.8 | 1.3 + 0.72 | 0.4 * 2.02
    assert to_go(turns_of(run, reward_of("kevin"))) == pytest.approx([0.808, 2.02, 1.8])


def groups_of(values: dict[str, list[float]]) -> ReturnGroups:
    groups = ReturnGroups()
    for name, its in values.items():
        for value in its:
            groups.add(name, value)
    return groups


def test_trloo_is_the_return_less_the_mean_of_the_others() -> None:
    groups = groups_of({"t1": [1.0, 2.0, 6.0]})
    # 1 - (2 + 6) / 2; 2 - (1 + 6) / 2; 6 - (1 + 2) / 2
    assert [groups.trloo("t1", v) for v in (1.0, 2.0, 6.0)] == pytest.approx([-3.0, -1.5, 4.5])
    assert groups.size("t1") == 3
    assert groups.size("t2") == 0


def test_a_turn_without_others_has_no_advantage_that_anybody_knows() -> None:
    groups = groups_of({"t1": [0.7], "t2": [0.0]})
    assert groups.trloo("t1", 0.7) is None
    assert groups.trloo("t2", 0.0) is None
    assert groups.grpo("t1", 0.7) is None


def test_unknown_returns_have_no_advantage_and_are_no_part_of_a_group() -> None:
    groups = ReturnGroups()
    for value in (1.0, None, 3.0):
        groups.add("t1", value)
    assert groups.size("t1") == 2
    assert groups.trloo("t1", None) is None
    assert groups.grpo("t1", None) is None
    assert groups.trloo("t1", 3.0) == pytest.approx(2.0)


def test_grpo_normalises_by_the_sample_s_deviation() -> None:
    groups = groups_of({"t1": [1.0, 2.0, 6.0], "same": [2.0, 2.0]})
    # mean 3, squared deviations 4 + 1 + 9 = 14, over 2: deviation sqrt(7)
    assert groups.grpo("t1", 6.0) == pytest.approx(3.0 / math.sqrt(7.0), rel=1e-5)
    assert groups.grpo("same", 2.0) == 0.0
    assert groups.trloo("same", 2.0) == 0.0


def test_a_group_that_the_first_pass_did_not_see_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="first pass"):
        ReturnGroups().trloo("t1", 1.0)
    with pytest.raises(ValueError, match="finite"):
        ReturnGroups().add("t1", math.nan)


DRAWS: list[Callable[[random.Random], float]] = [
    lambda rng: rng.gauss(1.0, 0.5),
    lambda rng: rng.choice((0.0, 0.0, 1.3)),
    lambda rng: 1e9 + rng.random(),
    lambda rng: rng.gauss(0.0, 1e-9),
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("draw", DRAWS)
def test_two_passes_over_shuffled_groups_equal_brute_force(seed: int, draw: Callable[[random.Random], float]) -> None:
    rng = random.Random(seed)
    rows = [((rng.randrange(4), rng.randrange(3)), draw(rng)) for _ in range(rng.randrange(1, 120))]
    groups = ReturnGroups()
    for key, value in rows:
        groups.add(key, value)
    rng.shuffle(rows)
    sums: dict[tuple[int, int], float] = {}
    for i, (key, value) in enumerate(rows):
        others = [v for j, (k, v) in enumerate(rows) if k == key and j != i]
        found = groups.trloo(key, value)
        if not others:
            assert found is None
            continue
        expected = value - math.fsum(others) / len(others)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15 * max(1.0, abs(value)) * 1e2 + 1e-18)
        sums[key] = sums.get(key, 0.0) + (found or 0.0)
    scale = max(abs(v) for _, v in rows)
    assert all(abs(total) <= 1e-12 * scale * len(rows) for total in sums.values())


def test_deviations_survive_large_returns() -> None:
    groups = groups_of({"t": [1e9 + 1.0, 1e9 + 2.0, 1e9 + 3.0]})
    assert groups.grpo("t", 1e9 + 3.0) == pytest.approx(1.0, rel=1e-5)


def test_turns_are_compared_within_a_task_a_gpu_and_a_turn() -> None:
    first, second = turns_of(run_of(paying(1, 1, 1.0), paying(2, 2, 1.0)), stated)
    alone = turns_of(run_of(child(1, None, 1.0)), stated)[0]
    run, other = run_of().run, run_of(task="b" * 64).run
    keys = [
        group_of(run, first),
        group_of(run, second),
        group_of(other, first),
        group_of(run_of(gpu=None).run, first),
        group_of(run_of(gpu="NVIDIA H100").run, first),
        group_of(run, alone),
    ]
    assert len(set(keys)) == len(keys)
    assert group_of(run, first) == group_of(run_of().run, turns_of(run_of(paying(9, 7, 0.0, "5")), stated)[0])


def test_the_returns_of_the_documentation_s_example() -> None:
    kevin = reward_of("kevin")  # rewards 0, 0, 0.92, 1.54
    assert to_go(turns_of(documented(), kevin)) == pytest.approx([0.16 * 1.536, 0.4 * 1.536, 1.536, 1.54])


def test_the_documented_correction_trains_a_reply_of_the_same_model_and_leaves_others_out() -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "rewards.md").read_text(), re.DOTALL)
    (shown,) = (text for text in code if "def trusted" in text)
    known: dict[str, Any] = {}
    exec(shown, known)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))
    prompt, ids = [3], torch.randint(50, (41,)).tolist()

    def trained() -> Any:
        after = torch.tensor([*prompt, *ids[:-1]])
        return model(after).log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]

    def step(logprobs: list[float], advantage: float) -> float:
        """By how much a step of gradient descent moves the reply's log-probability; then it is undone."""
        now, state = trained(), {name: value.clone() for name, value in model.state_dict().items()}
        drawn = torch.tensor(logprobs)
        (-advantage * now.mean() * known["trusted"](now, drawn)).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(weight.grad, alpha=0.1)  # type: ignore[arg-type]
        model.zero_grad()
        moved = float((trained() - now).mean().detach())
        model.load_state_dict(state)
        return moved

    told = trained().tolist()  # as a server tells them
    assert step(told, 1.0) > 1e-4
    assert step(told, -1.0) < -1e-4
    assert step([p + 0.0005 for p in told], 1.0) > 1e-4  # as another kernel rounds
    assert step([p + 0.002 for p in told], 1.0) == 0.0
    assert step([p - 0.002 for p in told], 1.0) == 0.0
    assert step([told[0] + 9.5, *(p - 9.5 / 40 for p in told[1:])], 1.0) == 0.0  # the mean is right, one token is not
    assert step([told[0] + 9.0, *(p - 9.0 / 40 for p in told[1:])], 1.0) > 1e-4
