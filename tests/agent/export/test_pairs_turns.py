"""Turns with their actions, rewards and advantages."""

from dataclasses import replace

import pytest

from kerneltune.agent.export.rl_formats import RlTurns
from kerneltune.agent.models.types import ToolResults, User
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import H200, conversation, ids, rows, run, source, timed, tried
from tests.agent.export.talk_parts import held, long_script


def two() -> RlTurns:
    return RlTurns(reward="fast_0", gamma=0.5)


def story(run_id: str, *verdicts: Status) -> object:
    attempts = [tried(i, status, i - 1 or None, turn=i, run_id=run_id) for i, status in enumerate(verdicts, 1)]
    said = conversation([(i, f"reply {i}") for i in range(1, len(verdicts) + 1)], run_id)
    return run(*attempts, run_id=run_id, said=said)


def test_a_row_tells_the_turn_its_state_and_its_action() -> None:
    its = story("r1", Status.WRONG, Status.CHECKED)
    first, second = rows(two(), its)  # type: ignore[arg-type]
    assert (first["conversation"], first["turn"], first["reply"]) == ("1", 1, 1)
    assert [first["state_messages"], second["state_messages"]] == [2, 4]  # system, opening; and a reply with its result
    assert its.conversations[0].messages[second["state_messages"]].text == "reply 2"  # type: ignore[attr-defined]
    assert second["text"] == "reply 2"
    assert second["thinking"] == "thinking 2"
    assert second["action"] == [{"name": "update", "arguments": {"source": "reply 2", "parent": None}}]
    assert second["parents"] == ["r1/1"]
    assert second["attempts"] == ["r1/2"]
    assert second["sources"] == [source("number 2")]


@pytest.mark.parametrize("state", ["reference", "messages"])
def test_a_row_has_the_tokens_of_its_reply_where_the_server_told_them(state: str) -> None:
    known = {"token_ids": (7, 8), "logprobs": (-0.5, 0.0), "usage": {"input_tokens": 90, "output_tokens": 2}}
    its = story("r1", Status.WRONG, Status.CHECKED)
    (talk,) = its.conversations  # type: ignore[attr-defined]
    said = tuple(replace(m, **known) if m.turn == 2 else m for m in talk.messages)
    its = replace(its, conversations=(replace(talk, messages=said),))  # type: ignore[type-var]
    form = RlTurns(reward="fast_0", state=state)  # type: ignore[arg-type]
    first, second = rows(form, its)  # type: ignore[arg-type]
    assert (first["token_ids"], first["logprobs"], first["prompt_tokens"]) == (None, None, None)
    assert (second["token_ids"], second["logprobs"], second["prompt_tokens"]) == ([7, 8], [-0.5, 0.0], 90)
    (made,) = rows(form, run(tried(1, Status.WRONG)))  # by an author that writes no replies
    assert (made["token_ids"], made["logprobs"], made["prompt_tokens"]) == (None, None, None)


def test_returns_look_ahead_and_advantages_look_at_other_rollouts_of_the_task() -> None:
    runs = (story("r1", Status.WRONG, Status.CHECKED), story("r2", Status.CHECKED), story("r3", Status.WRONG))
    found = {(i[:2], r["turn"]): r for i, r in zip(ids(two(), *runs), rows(two(), *runs), strict=True)}  # type: ignore[arg-type]
    assert [found["r1", n]["reward"] for n in (1, 2)] == [0.0, 1.0]
    assert [found["r1", n]["return"] for n in (1, 2)] == [0.5, 1.0]
    first = [found[f"r{n}", 1] for n in (1, 2, 3)]
    assert [r["advantage"] for r in first] == pytest.approx([0.5 - 0.5, 1.0 - 0.25, 0.0 - 0.75])
    assert [r["group_size"] for r in first] == [3, 3, 3]
    assert found["r1", 2]["advantage"] is None  # nobody else had a second turn
    assert found["r1", 2]["group_size"] == 1
    theirs = RlTurns(reward="fast_0", gamma=0.5, alone="return")
    assert rows(theirs, *runs)[1]["advantage"] == 1.0  # type: ignore[arg-type]


def test_a_turn_of_several_attempts_is_worth_its_best_and_provenance_is_of_that_one() -> None:
    its = run(tried(1, Status.WRONG, turn=1), tried(2, Status.CHECKED, turn=1), tried(3, Status.WRONG, turn=1))
    (row,) = rows(two(), its)
    assert row["reward"] == 1.0
    assert row["attempt_rewards"] == [0.0, 1.0, 0.0]
    assert ids(two(), its) == ["r1/2"]


def test_unknown_rewards_are_null_and_not_zero() -> None:
    usual = RlTurns()
    (row,) = rows(usual, run(tried(1, Status.CHECKED, turn=1)))  # right, but never timed
    assert (row["reward"], row["return"], row["advantage"]) == (None, None, None)
    assert row["attempt_rewards"] == [None]
    (row,) = rows(RlTurns(), run(tried(1, timed(100.0), turn=1), gpu=H200))
    assert row["reward"] == pytest.approx(2.3)


def test_an_author_without_a_conversation_has_generations() -> None:
    its = run(tried(1, Status.WRONG), tried(2, Status.CHECKED, 1))
    first, second = rows(two(), its)
    assert (second["conversation"], second["turn"], second["reply"], second["state_messages"]) == ("", 2, None, None)
    assert second["action"] == [{"name": "update", "arguments": {"source": source("number 2"), "parent": "r1/1"}}]
    assert second["text"] == "idea 2"
    assert first["return"] == 0.5


def test_a_run_that_went_on_after_the_survey_has_no_advantage_there() -> None:
    (row,) = [made.values for made in two().rows(run(tried(1, Status.CHECKED, turn=1)))]
    assert (row["return"], row["advantage"], row["group_size"]) == (1.0, None, 0)


def test_advantages_may_be_normalised_in_their_group() -> None:
    form = RlTurns(reward="fast_0", advantage="grpo")
    runs = (story("r1", Status.WRONG), story("r2", Status.CHECKED))
    assert [r["advantage"] for r in rows(form, *runs)] == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-4)  # type: ignore[arg-type]


def test_a_reward_is_named_with_its_options_and_a_wrong_one_is_one_line() -> None:
    its = run(tried(1, timed(20.0), turn=1), gpu=H200)
    assert rows(RlTurns(reward="drkernel:cap=2;lambda=1"), its)[0]["reward"] == pytest.approx(0.5 + 0.5 * 2.0 + 1.0)
    for wrong in ({"reward": "kevn"}, {"gamma": 2.0}):
        with pytest.raises(UsageError):
            RlTurns(**wrong)


def test_the_state_of_a_turn_as_messages_is_what_the_model_was_asked_and_its_completion_the_reply() -> None:
    its, model = held(long_script(), context_tokens=4_000)
    made = rows(RlTurns(reward="fast_0", state="messages"), its)
    assert len(made) > 30
    for row in made:
        request = model.asked[row["reply"] - 1]
        said = [m["content"] for m in row["prompt"] if m["role"] in ("system", "user")]
        asked = [m.text for m in request.messages if isinstance(m, User | ToolResults) and m.text]
        assert said[0] == request.system
        assert "\n\n".join(said[1:]) == "\n\n".join(asked)
        results = [m["content"] for m in row["prompt"] if m["role"] == "tool"]
        assert results == [r.text for m in request.messages if isinstance(m, ToolResults) for r in m.results]
        (reply,) = row["completion"]
        assert [call["function"]["name"] for call in reply["tool_calls"]] == [call["name"] for call in row["action"]]
        assert {tool["function"]["name"] for tool in row["tools"]} == {"update", "bench", "reflect", "look"}


def test_a_generation_s_state_as_messages_is_its_request_and_the_file() -> None:
    (row,) = rows(RlTurns(reward="fast_0", state="messages"), run(tried(1, Status.CHECKED)))
    assert row["prompt"][-1]["content"].endswith("Write `ModelNew` with Triton kernels.")
    assert source("number 1").strip() in row["completion"][0]["content"]
    assert row["tools"] is None


def test_returns_or_advantages_that_nobody_knows_are_told() -> None:
    untimed = RlTurns()
    rows(untimed, run(tried(1, Status.CHECKED, turn=1)))
    assert list(untimed.notes()) == ["rl-turns: no return is known: kevin needs times of a GPU, reward=fast_0 does not"]
    alone = two()
    rows(alone, run(tried(1, Status.CHECKED, turn=1)))
    assert "no advantage is known" in next(alone.notes())
    compared = two()
    rows(compared, run(tried(1, Status.CHECKED, turn=1)), run(tried(1, Status.WRONG, turn=1, run_id="r2"), run_id="r2"))
    assert list(compared.notes()) == []
