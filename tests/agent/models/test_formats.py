"""One story through three wire formats, with the real SDKs."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from kerneltune.agent.models.types import (
    ContextOverflow,
    Delta,
    Message,
    Reply,
    ToolResult,
    ToolResults,
    Usage,
    User,
    cleaned,
)
from kerneltune.tools.schema.codec import Json
from tests.agent.models.server import Format, LlmServer
from tests.agent.models.talk import KERNEL, STORY, bench, converse, model_of, plain, request, update
from tests.agent.models.wire_chat import QUIRKS

FORMATS: tuple[Format, ...] = ("anthropic", "openai", "chat")


def told(format: Format, quirks: frozenset[str] = frozenset()) -> list[Reply]:
    with LlmServer(STORY, format, quirks=quirks) as server:
        replies = converse(model_of(server), len(STORY))
        assert server.refused == [] or quirks
        return replies


def test_the_same_story_through_all_formats_yields_the_same_replies() -> None:
    ways = [[plain(reply) for reply in told(format)] for format in FORMATS]
    assert ways[0] == ways[1] == ways[2]
    text, stop, calls = ways[0][0]
    assert (text, stop) == ("A first try.", "tools")
    assert calls == (("update", update(None, "one pass", KERNEL)["arguments"], ""),)
    assert ways[0][3] == ("Done.", "end", ())


@pytest.mark.parametrize("format", FORMATS)
def test_thinking_is_shown_and_the_reply_is_streamed(format: Format) -> None:
    heard: list[Delta] = []
    with LlmServer(STORY, format) as server:
        reply = converse(model_of(server), 1, heard)[0]
    assert reply.thinking == "Rows are long."
    for kind, wanted in (("thinking", "Rows are long."), ("text", "A first try.")):
        assert "".join(delta.text for delta in heard if delta.kind == kind) == wanted
    assert sum(delta.kind == "arguments" for delta in heard) > 5
    assert {delta.attempt for delta in heard} == {1}


@pytest.mark.parametrize("quirk", sorted(QUIRKS - {"small", "mute", "no_seed"}))
def test_a_local_server_s_quirks_do_not_show(quirk: str) -> None:
    replies = told("chat", frozenset([quirk])) if quirk != "no_models" else told_by_name()
    wanted = [plain(reply) for reply in told("anthropic")]
    assert [plain(reply) for reply in replies] == wanted
    ids = [call.call_id for call in replies[1].calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    assert replies[0].thinking == "Rows are long."
    assert (replies[0].usage is None) == (quirk in ("no_usage", "no_stream_options"))


def told_by_name() -> list[Reply]:
    with LlmServer(STORY, "chat", quirks=frozenset(["no_models"])) as server:
        return converse(model_of(server, "chat:anything"), len(STORY))


def test_a_small_context_shortens_the_reply_rather_than_fail() -> None:
    with LlmServer([{"text": "Hello."}], "chat", quirks=frozenset(["small"])) as server:
        reply = model_of(server).ask(request((User("Hi."),)))
        assert reply.text == "Hello."
        assert 256 <= server.asked[-1].body["max_tokens"] < 4000


def test_a_seed_goes_where_the_api_takes_one_and_is_left_out_where_the_server_refuses_it() -> None:
    asked = replace(request((User("Hi."),)), seed=7)
    expected: tuple[tuple[Format, frozenset[str], list[int | None]], ...] = (
        ("chat", frozenset(), [7, 7]),
        ("chat", frozenset(["no_seed"]), [7, None, None]),
        ("openai", frozenset(), [None, None]),
        ("anthropic", frozenset(), [None, None]),
    )
    for format, quirks, seeds in expected:
        with LlmServer([{"text": "Hello."}] * 2, format, quirks=quirks) as server:
            model = model_of(server)
            assert [model.ask(asked).text for _ in range(2)] == ["Hello."] * 2
        assert [one.body.get("seed") for one in server.asked] == seeds


Told = tuple[tuple[int, ...] | None, tuple[float, ...] | None]


def tokens_told(
    *quirks: str, logprobs: bool = True, usage: bool = True, most: int = 8000
) -> tuple[Told, int, list[dict[str, Json]]]:
    """What is known of a reply's tokens, how many were counted, and what was asked."""
    off = frozenset(quirks) | (frozenset() if usage else {"no_usage"})
    with LlmServer(STORY, "chat", quirks=off) as server:
        reply = model_of(server).ask(replace(request((User("Hi."),), most), logprobs=logprobs))
    assert plain(reply) == plain(told("anthropic")[0])  # whatever is said of its tokens
    counted = reply.usage.output_tokens if reply.usage else 0
    return (reply.token_ids, reply.logprobs), counted, [one.body for one in server.asked]


@pytest.mark.parametrize("quirk", ["token_ids", "ids_within"])
def test_tokens_come_with_their_log_probabilities_where_they_are_asked_for(quirk: str) -> None:
    (ids, logprobs), n, (asked,) = tokens_told(quirk)
    assert n > 20
    assert ids == tuple(range(n, 0, -1))
    assert logprobs == tuple(-i / 8 for i in range(n, 0, -1))
    assert (asked["logprobs"], asked["top_logprobs"], asked["return_token_ids"]) == (True, 1, True)
    assert tokens_told(quirk, usage=False)[0] == (ids, logprobs)
    assert tokens_told(quirk, usage=False, most=n - 1)[0] == (None, None)  # more than it may have
    untold, _, (asked,) = tokens_told(quirk, logprobs=False)
    assert untold == (None, None)
    assert not {"logprobs", "top_logprobs", "return_token_ids"} & set(asked)


def test_a_server_that_tells_no_tokens_or_refuses_to_is_asked_again_without() -> None:
    assert tokens_told()[0] == (None, None)
    told_none, _, asked = tokens_told("no_logprobs")
    assert told_none == (None, None)
    assert ["logprobs" in body for body in asked] == [True, False]
    (ids, logprobs), n, asked = tokens_told("no_token_ids")
    assert (ids, len(logprobs or ())) == (None, n)
    assert ["return_token_ids" in body for body in asked] == [True, False]


def test_tokens_that_are_none_or_not_all_of_them_are_unknown_and_the_reply_is_not() -> None:
    assert tokens_told("odd_tokens")[0] == (None, None)
    assert tokens_told("odd_tokens", usage=False)[0] == (None, None)
    whole = Reply("Hi.", "end", usage=Usage(9, 3), token_ids=(1, 2, 3), logprobs=(-0.5, 0.0, -9999.0))
    assert cleaned(whole) == whole
    for ids in ((1, 2), (1, 2, 3, 4), (1, 2, -3), (1, 2, True), (1, 2, 2**31), (1, 2, "3"), (1, 2, 3.0)):
        assert cleaned(replace(whole, token_ids=ids)) == replace(whole, token_ids=None)  # type: ignore[arg-type]
    for last in (math.nan, -math.inf, 0.1, True, "-1", None, -(10**400)):
        assert cleaned(replace(whole, logprobs=(-1.0, -1.0, last))) == replace(whole, logprobs=None)  # type: ignore[arg-type]
    one_each = replace(whole, usage=None, token_ids=(1, 2))
    assert cleaned(one_each) == replace(one_each, token_ids=None)


def test_a_stream_of_nothing_is_asked_for_its_reason() -> None:
    quirks = frozenset(["small", "mute"])
    with LlmServer([{"text": "Hello."}], "chat", quirks=quirks) as server, pytest.raises(ContextOverflow):
        model_of(server).ask(request((User("kernel " * 4000),)))
    assert len(server.asked) == 2


def test_anthropic_gets_its_signed_thinking_back_as_it_came() -> None:
    with LlmServer(STORY, "anthropic") as server:
        converse(model_of(server), 3)
        assert server.refused == []
        sent = server.asked[2].body["messages"]
    assert sent[1]["content"][0] == {"type": "thinking", "thinking": "Rows are long.", "signature": "sig-0=="}
    assert [block["type"] for block in sent[3]["content"]] == ["thinking", "tool_use", "tool_use"]


def test_openai_gets_its_encrypted_reasoning_back_as_it_came() -> None:
    with LlmServer(STORY, "openai") as server:
        converse(model_of(server), 3)
        assert server.refused == []
        body = server.asked[2].body
    reasoning = [item for item in body["input"] if item.get("type") == "reasoning"]
    assert [item["encrypted_content"] for item in reasoning] == ["gAAAA0==", "gAAAA1=="]
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["prompt_cache_key"] == "run-1"
    outputs = [item["type"] for item in body["input"] if item.get("type", "").endswith("_output")]
    assert outputs == ["custom_tool_call_output", "function_call_output", "custom_tool_call_output"]


@pytest.mark.parametrize("format", FORMATS)
def test_raw_replies_survive_being_stored_as_json(format: Format) -> None:
    with LlmServer(STORY, format) as server:
        model = model_of(server)
        first = model.ask(request((User("Make softmax fast."),)))
        stored = Reply(**{**vars(first), "raw": json.loads(json.dumps(first.raw))})
        results = ToolResults(tuple(ToolResult(call.call_id, "ok") for call in first.calls))
        model.ask(request((User("Make softmax fast."), stored, results)))
        assert server.refused == []
        assert server.key not in json.dumps(first.raw)


def test_the_prefix_is_cached_for_an_hour_and_the_history_for_minutes() -> None:
    with LlmServer(STORY, "anthropic") as server:
        replies = converse(model_of(server), 4)
        body = server.asked[1].body
    assert body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert body["cache_control"] == {"type": "ephemeral"}
    first, second, third = (reply.usage for reply in replies[:3])
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.cached_tokens == 0
    assert 0 < first.cache_write_1h_tokens < first.cache_write_tokens
    assert second.cached_tokens == first.input_tokens
    assert second.cache_write_1h_tokens == 0
    assert third.cached_tokens == second.input_tokens
    assert second.thinking_tokens == len("Two at once.") // 4


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_counts_cached_tokens_as_part_of_the_input(format: Format) -> None:
    replies = told(format)
    for before, after in itertools.pairwise(replies):
        assert before.usage is not None
        assert after.usage is not None
        assert 0 < after.usage.cached_tokens <= after.usage.input_tokens
        assert after.usage.input_tokens > before.usage.input_tokens


def test_a_reply_of_many_calls_leaves_the_prompt_before_it_in_reach_of_the_cache() -> None:
    story: list[dict[str, Json]] = [*[{"calls": [bench(n) for n in range(1, 13)]}] * 3, {"text": "Done."}]
    with LlmServer(story, "anthropic") as server:
        replies = converse(model_of(server), 4)
        assert server.refused == []
    for before, after in itertools.pairwise(reply.usage for reply in replies):
        assert before is not None
        assert after is not None
        assert after.cached_tokens == before.input_tokens


@pytest.mark.parametrize("format", FORMATS)
def test_only_a_provider_is_known_to_cache_prompts(format: Format) -> None:
    with LlmServer([], format) as server:
        assert model_of(server).facts().caches is (format != "chat")


@pytest.mark.filterwarnings("ignore:The model 'claude-sonnet-4-5' is deprecated")  # the SDK's; facts() says so
def test_effort_and_thinking_are_asked_for_as_the_capabilities_say() -> None:
    with LlmServer(STORY, "anthropic") as server:
        for name in ("claude-opus-5-5", "claude-haiku-5-5", "claude-sonnet-4-5"):
            model_of(server, f"anthropic:{name}").ask(request((User("Hi."),)))
        opus, haiku, old = (asked.body for asked in server.asked)
    assert opus["thinking"] == haiku["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert opus["output_config"] == haiku["output_config"] == {"effort": "high"}
    assert "thinking" not in old
    assert "output_config" not in old
    assert [tool.get("strict") for tool in opus["tools"]] == [True, True]
    assert [tool.get("eager_input_streaming") for tool in opus["tools"]] == [True, None]
    assert "strict" not in old["tools"][0]


def test_facts_name_limits_and_a_date_of_retirement() -> None:
    with LlmServer([], "anthropic") as server:
        facts = model_of(server).facts()
        old = model_of(server, "anthropic:claude-sonnet-4-5").facts()
    assert (facts.max_input_tokens, facts.max_output_tokens) == (200_000, 64_000)
    assert facts.notes == ()
    assert "claude-sonnet-4-5 retires on 2026-11-30" in old.notes
    with LlmServer([], "chat") as server:
        assert model_of(server).facts().max_input_tokens == 100_000


@pytest.mark.parametrize(("format", "wanted"), [("anthropic", "claude-opus-5-5"), ("openai", "gpt-6.1-sol")])
def test_without_a_name_the_newest_model_of_the_list_is_taken(format: Format, wanted: str) -> None:
    with LlmServer([], format) as server:
        model = model_of(server, format)
        facts = model.facts()
    assert facts.model == wanted
    assert model.name == f"{format}:{wanted}"
    assert "newest" in facts.notes[0]


@pytest.mark.parametrize("format", FORMATS)
def test_calls_that_an_interruption_left_unanswered_are_answered_for_the_api(format: Format) -> None:
    story: list[dict[str, Json]] = [{"calls": [bench(1), bench(2)]}, {"text": "Done."}]
    with LlmServer(story, format) as server:
        model = model_of(server)
        first = model.ask(request((User("Go."),)))
        half = ToolResults((ToolResult(first.calls[0].call_id, "ok"),))
        model.ask(request((User("Go."), first, half)))
        model.ask(request((User("Go."), first, User("Continue."))))
        assert server.refused == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_conversation_can_go_on_with_another_provider(format: Format) -> None:
    replies = {other: told(other)[:3] for other in FORMATS if other != format}
    for taken in replies.values():
        messages: tuple[Message, ...] = (User("Make softmax fast."),)
        for reply in taken:
            messages += (reply, ToolResults(tuple(ToolResult(call.call_id, "ok") for call in reply.calls)))
        with LlmServer([{"text": "Hello."}], format) as server:
            assert model_of(server).ask(request(messages)).text == "Hello."
            assert server.refused == []


def test_costs_come_from_the_price_list_and_are_unknown_for_a_server_of_one_s_own() -> None:
    costs = {format: [reply.cost_usd for reply in told(format)] for format in FORMATS}
    assert all(cost is not None and cost > 0 for cost in costs["anthropic"] + costs["openai"])
    assert costs["chat"] == [None] * len(STORY)
    with LlmServer([], "anthropic") as server:
        assert model_of(server).price_usd(Usage(1_000_000, 0)) == pytest.approx(4.0)
