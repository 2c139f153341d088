"""sft-chat, openai and sharegpt: the same conversations, each by the rules of its readers."""

import json
from typing import Any

import pytest

from kerneltune.agent.attempt import LlmTurn
from kerneltune.agent.authors.llm.author import TOOLS
from kerneltune.agent.events import Event, Judged, Proposed
from kerneltune.agent.export.chat_formats import OpenAi, Reasoning, SftChat, ShareGpt
from kerneltune.agent.models.types import ToolCall, Usage
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.schema.verdict import Comparison, Status, Timing, Verdict
from tests.agent.export.talk_parts import RUN, Speaker, bench, ended, held, long_script, update
from tests.agent.export.test_chat_talks import check_legal


def made(number: int, turn: int, status: Status, us: float | None = None, best: bool = False) -> list[Event]:
    """An attempt of conversation 1."""
    attempt_id = f"{RUN}/{number}"
    timing = Timing(us, us, us, 1, 1) if us else None
    compared = (Comparison("eager", 20.0, 20.0 / us, 20.0 / us, 20.0 / us),) if us else ()
    return [
        Proposed(RUN, attempt_id, number, None, f"source {number}", "why", LlmTurn("1", turn)),
        Judged(RUN, attempt_id, Verdict(status, "", timing=timing, comparisons=compared), 1.0, best),
    ]


def story() -> Trajectory:
    """Two updates at once, of which one is right; a call that cannot be carried out; a second best; last words."""
    said = Speaker().system("be fast").user("begin")
    said.reply("two designs", update("u1", "s1"), update("u2", "s2"), thinking="row by row", usage=Usage(100, 10, 50))
    said.result("u1", "#1 wrong").result("u2", "#2 compiled")
    said.reply("", bench("b2", 2), bench("b9", 9), usage=Usage(200, 20)).result("b2", "#2 correct")
    said.result("b9", "bench: there is no attempt 9", True)
    said.reply("once more", update("u3", "s3", parent=2), usage=Usage(300, 30)).result("u3", "#3 compiled")
    said.reply("enough", usage=Usage(400, 40))
    attempts = [
        *made(1, 1, Status.WRONG),
        *made(2, 1, Status.CORRECT, 10.0, True),
        *made(3, 3, Status.CORRECT, 12.0),
    ]
    return said.trajectory(*attempts, ended(best=2))


def one(form: Any, run: Trajectory) -> dict[str, Any]:
    (row,) = form.rows(run)
    return dict(row.values)


def test_sft_chat_has_calls_as_objects_and_the_tools_schemas() -> None:
    row = one(SftChat(), story())
    check_legal(row["messages"])
    first = row["messages"][2]
    assert first["tool_calls"][1] == {
        "id": "u2",
        "type": "function",
        "function": {
            "name": "update",
            "arguments": {"parent": None, "rationale": "why", "source": "s2", "edits": None},
        },
    }
    assert row["messages"][3] == {"role": "tool", "name": "update", "tool_call_id": "u1", "content": "#1 wrong"}
    assert [t["function"]["parameters"] for t in row["tools"]] == [t.parameters for t in TOOLS]


def test_sft_chat_counts_what_happened_and_what_it_cost() -> None:
    (row,) = SftChat().rows(story())
    values = row.values
    counted = {"n_turns": 4, "n_calls": 5, "n_errors": 1, "n_attempts": 3, "n_untrained": 0, "left_out": 0}
    tokens = {"input_tokens": 1000, "output_tokens": 100, "cached_tokens": 50, "cost_usd": None}
    ending = {"best_status": "correct", "final_speedup": 2.0, "why": "attempts", "last_stop": "end"}
    flags = {"complete": True, "truncated": False, "reasoning_chars": len("row by row")}
    expected = counted | tokens | ending | flags
    assert {name: values[name] for name in expected} == expected
    assert row.attempt is not None
    assert row.attempt.number == 2
    assert set(values) == {c.name for c in SftChat.columns}


def test_one_reply_that_was_not_counted_makes_the_total_unknown_not_small() -> None:
    said = Speaker().user("a").reply("x", bench("b"), usage=Usage(1, 2), cost_usd=0.5).result("b", "r").reply("y")
    row = one(SftChat(empty="keep"), said.trajectory())
    assert (row["input_tokens"], row["cost_usd"], row["complete"]) == (None, None, False)


def test_what_is_not_timed_has_no_speed_up() -> None:
    said = Speaker().user("a").reply("x", update("u", "s")).result("u", "r").reply("y")
    row = one(SftChat(), said.trajectory(*made(1, 1, Status.REJECTED), *made(2, 1, Status.WRONG)))
    assert (row["final_speedup"], row["best_status"], row["n_attempts"]) == (None, "wrong", 2)


@pytest.mark.parametrize(
    ("reasoning", "message"),
    [
        ("reasoning_content", {"content": "two designs", "reasoning_content": "row by row"}),
        ("thinking", {"content": "", "thinking": "row by row\n\ntwo designs"}),
        ("inline", {"content": "<think>\nrow by row\n</think>\n\ntwo designs"}),
        ("none", {"content": "two designs"}),
    ],
)
def test_reasoning_stands_where_the_reader_s_template_looks(reasoning: Reasoning, message: dict[str, str]) -> None:
    reply = one(SftChat(reasoning=reasoning), story())["messages"][2]
    assert {k: v for k, v in reply.items() if k not in ("role", "tool_calls", "train")} == message


def test_each_reply_of_a_long_run_trains_in_one_window_only() -> None:
    run, model = held(long_script(), context_tokens=4_000)
    windows = [row.values for row in SftChat(seen=True).rows(run)]
    whole = [row.values for row in SftChat().rows(run)]
    trained = [sum(m.get("train", False) for row in table for m in row["messages"]) for table in (windows, whole)]
    assert trained[0] == trained[1] > 30
    assert sum(r["n_turns"] + r["left_out"] for r in windows) == len(model.asked)
    assert sum(r["n_attempts"] for r in windows) == len(run.attempts)
    later = [r for r in windows if r["window"] > 1]
    for row in later:
        context, rest = row["messages"][: row["n_context"]], row["messages"][row["n_context"] :]
        assert not any(m.get("train") for m in context)
        assert rest[0]["train"]
    assert any(m["role"] == "assistant" for row in later for m in row["messages"][: row["n_context"]])


def test_openai_lines_have_the_keys_of_the_api_and_no_others() -> None:
    from openai.types import chat

    run, _ = held(long_script(), context_tokens=4_000)
    kinds = {
        "system": chat.ChatCompletionSystemMessageParam,
        "user": chat.ChatCompletionUserMessageParam,
        "assistant": chat.ChatCompletionAssistantMessageParam,
        "tool": chat.ChatCompletionToolMessageParam,
    }
    rows = [one(OpenAi(), story()), *(dict(m.values) for m in OpenAi(seen=True).rows(run))]
    for row in rows:
        assert set(row) == {"messages", "tools", "parallel_tool_calls"}
        check_legal(row["messages"], open_end=True)
        assert row["messages"][-1]["role"] == "assistant"
        for message in row["messages"]:
            more = {"weight"} if message["role"] == "assistant" else set()
            assert set(message) <= set(kinds[message["role"]].__annotations__) | more
            assert message.get("weight", 1) in (0, 1)
            for call in message.get("tool_calls", []):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert row["parallel_tool_calls"] is any(len(m.get("tool_calls", [])) > 1 for m in row["messages"])
    assert rows[0]["parallel_tool_calls"]


def test_a_conversation_in_which_nothing_counts_is_no_example_for_openai() -> None:
    said = Speaker().user("a").reply("half", stop="max_tokens")
    assert list(OpenAi().rows(said.trajectory())) == []


def test_openai_ends_with_a_reply() -> None:
    said = Speaker().user("a").reply("x", bench("b")).result("b", "r")
    row = one(OpenAi(empty="keep"), said.trajectory())
    assert [m["role"] for m in row["messages"]] == ["user", "assistant"]
    assert "content" in row["messages"][-1]
    silent = Speaker().user("a").reply("", bench("b")).result("b", "r")
    assert "content" not in one(OpenAi(empty="keep"), silent.trajectory())["messages"][-1]


def check_llama_factory(row: dict[str, Any]) -> None:
    """Its rules: odd places are human or observation, even ones gpt or function_call, and the number is even; what is
    in a function_call is an object or a list of objects with name and arguments."""
    tags = [m["from"] for m in row["conversations"]]
    assert len(tags) % 2 == 0
    assert set(tags[::2]) <= {"human", "observation"}
    assert set(tags[1::2]) <= {"gpt", "function_call"}
    for message in row["conversations"]:
        if message["from"] == "function_call":
            value = message["value"].rpartition("</think>\n\n")[2]
            calls = json.loads(value)
            for call in calls if isinstance(calls, list) else [calls]:
                assert set(call) == {"name", "arguments"}
    assert [set(t) for t in json.loads(row["tools"])] == [{"name", "description", "parameters"}] * len(TOOLS)


@pytest.mark.parametrize("form", [ShareGpt(), ShareGpt(seen=True)])
def test_sharegpt_keeps_to_the_rule_of_odd_and_even(form: ShareGpt) -> None:
    run, _ = held(long_script(), context_tokens=4_000)
    rows = [dict(m.values) for m in form.rows(run)]
    assert rows
    for row in [*rows, one(form, story())]:
        check_llama_factory(row)


def test_sharegpt_folds_parallel_calls_and_their_results() -> None:
    row = one(ShareGpt(), story())
    human, calls, results, *_ = row["conversations"]
    assert human == {"from": "human", "value": "begin"}
    assert [c["arguments"]["source"] for c in json.loads(calls["value"])] == ["s1", "s2"]
    assert results["value"] == "#1 wrong\n</tool_response>\n<tool_response>\n#2 compiled"
    assert row["system"] == "be fast"
    assert isinstance(json.loads(row["conversations"][5]["value"]), dict)


def test_words_after_results_are_part_of_the_observation() -> None:
    said = Speaker().user("a").reply("", bench("b")).result("b", "r").user("history ahead").reply("x")
    row = one(ShareGpt(empty="keep"), said.trajectory())
    check_llama_factory(row)
    assert row["conversations"][2] == {"from": "observation", "value": "r\n\nhistory ahead"}


def test_arguments_that_json_cannot_say_plainly_are_said_all_the_same() -> None:
    said = Speaker().user("a").reply("", ToolCall("c", "bench", {"attempt": 10**40})).result("c", "no", True).reply("b")
    row = one(OpenAi(empty="keep"), said.trajectory())
    assert json.loads(row["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"attempt": 10**40}


@pytest.mark.parametrize("form", [SftChat(), OpenAi(), ShareGpt()])
def test_a_run_without_a_model_makes_no_rows(form: Any) -> None:
    assert list(form.rows(Speaker().trajectory(*made(1, 1, Status.WRONG)))) == []


def gave_up() -> Trajectory:
    """A right attempt, then the words of a model that wants no more, and what it says when it is nudged."""
    said = Speaker().system("be fast").user("begin").reply("one", update("u", "s")).result("u", "#1 compiled")
    said.reply("I am done.").user("You called no tool.").reply("The script is over.").user("You called no tool.")
    said.reply("", bench("b", 1)).result("b", "#1 correct").reply("", bench("c", 1)).result("c", "again")
    return said.trajectory(*made(1, 1, Status.CHECKED))


def gave_up_for_good() -> Trajectory:
    said = Speaker().system("be fast").user("begin").reply("one", update("u", "s")).result("u", "#1 compiled")
    said.reply("I am done.").user("You called no tool.").reply("The script is over.")
    return said.trajectory(*made(1, 1, Status.CHECKED))


def test_a_reply_that_gives_up_and_the_answer_to_a_nudge_are_not_to_be_learned() -> None:
    learned = [m["train"] for m in one(SftChat(), gave_up())["messages"] if m["role"] == "assistant"]
    assert learned == [True, False, False, False, True]
    end = gave_up_for_good()
    row = one(SftChat(), end)
    assert ([m["role"] for m in row["messages"]], row["n_untrained"]) == (["system", "user", "assistant", "tool"], 0)
    assert [m["role"] for m in one(OpenAi(), end)["messages"]] == ["system", "user", "assistant"]
    weights = [m["weight"] for m in one(OpenAi(), gave_up())["messages"] if m["role"] == "assistant"]
    assert weights == [1, 0, 0, 0, 1]


def test_labels_are_of_the_attempts_that_the_row_holds_and_not_of_an_end_that_is_cut_off() -> None:
    said = Speaker().user("begin").reply("one", update("u", "s")).result("u", "#1 wrong").reply("I am done.")
    said.user("You called no tool.").reply("", update("v", "t")).result("v", "#2 correct")
    attempts = [*made(1, 1, Status.WRONG), *made(2, 3, Status.CORRECT, 10.0, True)]
    (row,) = SftChat().rows(said.trajectory(*attempts, ended(best=2)))
    assert row.attempt is not None
    assert row.attempt.number == 1
    facts = [row.values[name] for name in ("n_turns", "n_attempts", "best_status", "final_speedup", "left_out")]
    assert facts == [1, 1, "wrong", None, 2]


def test_an_empty_reply_is_left_out_and_what_answers_the_nudge_is_not_to_be_learned() -> None:
    said = Speaker().user("a").reply("").user("Your reply was empty.").reply("x", bench("b")).result("b", "r")
    said.reply("y", bench("c")).result("c", "r")
    learned = [m["train"] for m in one(SftChat(empty="keep"), said.trajectory())["messages"] if "train" in m]
    assert learned == [False, True]


@pytest.mark.parametrize("form", [SftChat, OpenAi, ShareGpt])
def test_conversations_in_which_nothing_was_attempted_are_rows_only_if_asked_for(form: Any) -> None:
    said = Speaker().user("a").reply("x", bench("b")).result("b", "there is no attempt 1").reply("y")
    assert list(form().rows(said.trajectory())) == []
    assert len(list(form(empty="keep").rows(said.trajectory()))) == 1


def test_a_reply_of_several_calls_becomes_as_many_replies_each_with_its_result() -> None:
    messages = one(SftChat(calls="one"), story())["messages"]
    turns = [m for m in messages if m["role"] in ("assistant", "tool")]
    calls = [m["tool_calls"][0]["id"] for m in turns if m.get("tool_calls")]
    assert all(len(m["tool_calls"]) == 1 for m in turns if "tool_calls" in m)
    assert calls == [m["tool_call_id"] for m in turns if m["role"] == "tool"] == ["u1", "u2", "b2", "b9", "u3"]
    assert [m["content"] for m in turns[:4]] == ["two designs", "#1 wrong", "", "#2 compiled"]
    assert [m.get("reasoning_content") for m in turns[:3:2]] == ["row by row", None]
    assert all(m["train"] for m in turns if m["role"] == "assistant")
    assert not one(OpenAi(calls="one"), story())["parallel_tool_calls"]


def test_where_the_template_renders_one_call_a_reply_one_is_what_it_gets() -> None:
    def most(form: SftChat) -> int:
        return max(len(m.get("tool_calls", ())) for m in one(form, story())["messages"])

    assert [most(SftChat()), most(SftChat(reasoning="thinking")), most(SftChat(reasoning="thinking", calls="all"))] == [
        2,
        1,
        2,
    ]


def test_a_short_system_prompt_has_the_rules_and_the_task() -> None:
    long, short = (one(SftChat(system=kind), story())["messages"][0]["content"] for kind in ("full", "short"))
    assert long == "be fast"
    assert short.startswith("You write Triton kernels for NVIDIA GPUs with tools: `update`")
    assert "Task `softmax`" in short


def unions(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(unions, schema))
    if not isinstance(schema, dict):
        return set()
    return set().union(*map(unions, schema.values())) | set(schema) & {"anyOf", "oneOf", "allOf", "$ref", "$defs"}


def test_exported_tools_say_what_may_be_null_by_a_list_of_types_and_refer_to_nothing() -> None:
    tools = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in one(SftChat(), story())["tools"]}
    assert unions(list(tools.values())) == set()
    update = tools["update"]
    assert update["parent"]["type"] == ["integer", "null"]
    assert update["edits"]["type"] == ["array", "null"]
    assert update["edits"]["items"]["required"] == ["search", "replace"]
    assert all("type" in each for its in tools.values() for each in its.values())


def test_sharegpt_s_turns_are_plain_records_which_every_version_of_datasets_reads() -> None:
    (turns,) = (c for c in ShareGpt.columns if c.name == "conversations")
    assert (turns.kind, [f.name for f in turns.fields]) == ("structs", ["from", "value"])
    assert not {c.kind for c in ShareGpt.columns} & {"json", "messages"}
