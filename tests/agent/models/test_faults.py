"""What goes wrong on the wire, and what each trouble comes to."""

import email.utils
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kerneltune.agent.models.http_api import HttpModel, PartialReply, TransientError
from kerneltune.agent.models.types import (
    Clock,
    ContextOverflow,
    Delta,
    KeyRejected,
    LlmError,
    ModelFacts,
    ModelOptions,
    ModelRequest,
    NoLongerWanted,
    NoSuchModel,
    OutOfCredit,
    Reply,
    RequestRejected,
    Unavailable,
    Usage,
    User,
)
from kerneltune.tools.schema.codec import Json
from tests.agent.models.server import Format, LlmServer
from tests.agent.models.story import Fault, FaultKind
from tests.agent.models.talk import KERNEL, STORY, JumpingClock, converse, model_of, plain, request, update

FORMATS: tuple[Format, ...] = ("anthropic", "openai", "chat")
every_format = pytest.mark.parametrize("format", FORMATS)


def ask(server: LlmServer, heard: list[Delta] | None = None, *, timeout_s: float = 5.0, **more: Any) -> Reply:
    model = model_of(server, timeout_s=timeout_s, **more)
    return model.ask(request((User("Make softmax fast."),)), heard.append if heard is not None else lambda _: None)


def error_of(format: Format, fault: Fault, **more: Any) -> LlmError:
    """What a fault that does not pass comes to, checked for manners."""
    with LlmServer(STORY, format, faults=lambda _: fault) as server, pytest.raises(LlmError) as caught:
        ask(server, **more)
    message = str(caught.value)
    assert message.startswith(format)
    assert message.count("\n") <= 1
    assert "sk-" not in message
    assert "Traceback" not in message
    return caught.value


@every_format
@pytest.mark.parametrize("kind", ["reset", "truncated", "ended", "error_event"])
def test_a_stream_that_breaks_off_starts_again(format: Format, kind: str) -> None:
    heard: list[Delta] = []
    with LlmServer(STORY, format, faults={0: Fault(kind)}) as server:  # type: ignore[arg-type]
        reply = ask(server, heard)
        assert len(server.asked) == 2
        assert server.asked[0].body == server.asked[1].body
    with LlmServer(STORY, format) as whole:
        assert plain(reply) == plain(ask(whole))
    assert {delta.attempt for delta in heard} == {1, 2}
    assert "".join(d.text for d in heard if d.attempt == 2 and d.kind == "text") == "A first try."


@every_format
@pytest.mark.parametrize("kind", ["reset", "truncated", "ended", "error_event"])
def test_a_reply_that_breaks_off_is_told_with_what_the_server_had_counted(format: Format, kind: FaultKind) -> None:
    lost, heard = list[tuple[Usage | None, int]](), list[Delta]()
    with LlmServer(STORY, format, faults={0: Fault(kind)}) as server:
        asked = replace(request((User("Hi."),)), lost=lambda counted, characters: lost.append((counted, characters)))
        reply = model_of(server).ask(asked, heard.append)
    assert reply.usage is not None
    [(counted, characters)] = lost
    assert characters == sum(len(delta.text) for delta in heard if delta.attempt == 1) > 0
    if format == "anthropic":  # whose first event counts the prompt
        assert counted is not None
        assert (counted.input_tokens, counted.cached_tokens) == (reply.usage.input_tokens, 0)
    else:
        assert counted is None


@every_format
def test_what_is_sent_again_asks_for_no_more_than_can_be_paid_for_by_then(format: Format) -> None:
    left = [3_000, 2_000, 50_000]
    with LlmServer(STORY, format, faults=dict.fromkeys(range(3), Fault("truncated"))) as server:
        asked = replace(request((User("Hi."),)), max_tokens=8_000, affordable=lambda: left.pop(0))
        assert model_of(server).ask(asked).text == "A first try."
        limits = [sent.body.get("max_tokens") or sent.body["max_output_tokens"] for sent in server.asked]
    assert limits == [8_000, 3_000, 2_000, 8_000]


@every_format
@pytest.mark.parametrize("status", [429, 500])
def test_a_request_that_no_reply_began_to_answer_costs_nothing(format: Format, status: int) -> None:
    lost = list[tuple[Usage | None, int]]()
    with LlmServer(STORY, format, faults={0: Fault("status", status)}) as server:
        model_of(server).ask(replace(request((User("Hi."),)), lost=lambda *said: lost.append(said)))
    assert lost == []


@every_format
@pytest.mark.parametrize("status", [408, 429, 500, 529])
def test_a_passing_status_is_tried_again(format: Format, status: int) -> None:
    with LlmServer(STORY, format, faults={0: Fault("status", status), 1: Fault("status", status)}) as server:
        assert ask(server).text == "A first try."
        assert len(server.asked) == 3


@every_format
@pytest.mark.parametrize(
    ("retry_after", "waited_s"),
    [("0.4", 0.4), ("300", 300.0), ("date", 300.0), ("Fri, 01 Jan 1999 00:00:00 GMT", 0.5), ("soon", 0.5)],
)
def test_a_retry_after_is_waited_for(format: Format, retry_after: str, waited_s: float) -> None:
    clock = JumpingClock()
    if retry_after == "date":
        retry_after = email.utils.formatdate(time.time() + waited_s, usegmt=True)
    with LlmServer(STORY, format, faults={0: Fault("status", 429, retry_after=retry_after)}) as server:
        assert ask(server, clock=clock).text == "A first try."
    assert clock.waited_s == pytest.approx(waited_s, rel=0.25 if waited_s == 0.5 else 0.05)


@every_format
@pytest.mark.parametrize(("status", "outage_s"), [(529, 25), (500, 120), (503, 600)])
def test_a_provider_that_is_out_of_order_for_minutes_costs_only_the_wait(
    format: Format, status: int, outage_s: float
) -> None:
    clock, told = JumpingClock(), list[tuple[float, str]]()
    faults = lambda _: Fault("status", status) if clock.waited_s < outage_s else None  # noqa: E731
    with LlmServer(STORY, format, faults=faults) as server:
        asked = replace(request((User("Hi."),)), told=lambda wait_s, why: told.append((wait_s, why)))
        assert model_of(server, clock=clock).ask(asked).text == "A first try."
    assert outage_s <= clock.waited_s < outage_s + 61
    assert sum(wait_s for wait_s, _ in told) == pytest.approx(clock.waited_s)
    assert max(wait_s for wait_s, _ in told) <= 60
    assert all(why.startswith(f"{format}: ") and f"HTTP {status}" in why for _, why in told)


@every_format
def test_a_run_that_has_no_time_left_waits_for_no_provider(format: Format) -> None:
    clock = JumpingClock()
    with LlmServer(STORY, format, faults=lambda _: Fault("status", 529)) as server:
        asked = replace(request((User("Hi."),)), is_over=lambda: clock.waited_s >= 100)
        with pytest.raises(NoLongerWanted):
            model_of(server, clock=clock).ask(asked)
    assert 100 <= clock.waited_s <= 101


@every_format
def test_an_answer_that_does_not_begin_is_left_when_its_time_is_over(format: Format) -> None:
    with LlmServer(STORY, format, faults=lambda _: Fault("silence", pause_s=60)) as server:
        model = model_of(server, timeout_s=60)
        model.facts()
        until = time.monotonic() + 0.3
        asked = replace(request((User("Hi."),)), left_s=lambda: until - time.monotonic())
        with pytest.raises(NoLongerWanted):
            model.ask(asked)
        assert time.monotonic() < until + 10


@every_format
@pytest.mark.parametrize("kind", ["drip", "comments"])
def test_a_reply_that_drips_is_left_when_its_time_is_over(format: Format, kind: FaultKind) -> None:
    drips = Fault(kind, pause_s=0.05)
    with LlmServer(STORY * 50, format, faults=lambda _: drips) as server:
        model = model_of(server)
        model.facts()
        until = time.monotonic() + 0.6
        asked = replace(request((User("Hi."),)), left_s=lambda: until - time.monotonic())
        with pytest.raises(NoLongerWanted):
            model.ask(asked)
        assert time.monotonic() < until + 10
        assert server.hung_up.wait(2)
        with pytest.raises(Unavailable, match="had not ended after 0 s"):
            model_of(server, clock=Clock(), reply_s=0.2, retry_s=0).ask(request((User("Hi."),)))


@pytest.mark.parametrize(("format", "kind"), [*((format, "line") for format in FORMATS), ("chat", "flood")])
def test_a_reply_without_an_end_is_left_when_it_is_longer_than_its_limit_can_be(
    format: Format, kind: FaultKind
) -> None:
    with (
        LlmServer(STORY, format, faults=lambda _: Fault(kind)) as server,
        pytest.raises(Unavailable, match="longer than 4 MiB"),
    ):
        model_of(server, retry_s=0).ask(request((User("Hi."),), max_tokens=100))


@every_format
def test_a_long_retry_after_is_the_caller_s_to_wait_for(format: Format) -> None:
    error = error_of(format, Fault("status", 429, retry_after="3600"))
    assert isinstance(error, Unavailable)
    assert "come back in 3600 s" in str(error)


@every_format
def test_what_does_not_pass_becomes_unavailable(format: Format) -> None:
    for fault in (Fault("status", 529), Fault("reset"), Fault("error_event")):
        error = error_of(format, fault, retry_s=3.0)
        assert isinstance(error, Unavailable)
        assert re.search(r"[45] tries in 3 s", str(error))


@every_format
def test_silence_is_noticed(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("stall", pause_s=20)}) as server:
        began = time.monotonic()
        ask(server, timeout_s=1.5)
        assert len(server.asked) == 2
        assert time.monotonic() - began < 15


@every_format
def test_a_slow_reply_is_waited_for(format: Format) -> None:
    with LlmServer([{"text": "Slowly, slowly."}], format, faults={0: Fault("drip", pause_s=0.3)}) as server:
        assert ask(server, timeout_s=1.5).text == "Slowly, slowly."
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault("status", 401), KeyRejected),
        (Fault("status", 403), KeyRejected),
        (Fault("status", 402), OutOfCredit),
        (Fault("status", 429, code="insufficient_quota"), OutOfCredit),
        (Fault("status", 429, code="enforced_spend_limit_reached"), OutOfCredit),
        (Fault("status", 400, message="Your credit balance is too low to access the API."), OutOfCredit),
        (Fault("status", 400, message="tools.0: something is wrong"), RequestRejected),
        (Fault("status", 422, message="unprocessable"), RequestRejected),
        (Fault("status", 404), NoSuchModel),
        (Fault("status", 413, message="Request exceeds the maximum size"), ContextOverflow),
        (Fault("status", 400, message="prompt is too long: 210000 tokens > 200000 maximum"), ContextOverflow),
        (Fault("status", 400, code="context_length_exceeded", message="too long"), ContextOverflow),
        (Fault("status", 400, message="the request exceeds the available context size"), ContextOverflow),
        (Fault("html"), RequestRejected),
        (Fault("nonsense"), RequestRejected),
    ],
)
@every_format
def test_each_final_error_has_its_kind_and_is_not_tried_again(
    format: Format, fault: Fault, kind: type[LlmError]
) -> None:
    with LlmServer(STORY, format, faults=lambda _: fault) as server, pytest.raises(LlmError) as caught:
        ask(server)
    assert type(caught.value) is kind
    assert len(server.asked) == 1


@every_format
@pytest.mark.parametrize("page", [b"<html>Welcome to the router</html>", b""])
def test_a_page_in_the_place_of_the_api_is_rejected_with_the_way_out(format: Format, page: bytes) -> None:
    with LlmServer(STORY, format) as server:
        server.page = page
        with pytest.raises(RequestRejected, match="Check --base-url"):
            model_of(server).facts()


@every_format
def test_a_wrong_key_is_named_but_never_shown(format: Format) -> None:
    with LlmServer(STORY, format) as server:
        server.key, given = "sk-another-key-000000", server.key
        model = model_of(server)
        server.key = given
        with pytest.raises(KeyRejected) as caught:
            model.ask(request((User("Hi."),)))
    shown = f"{caught.value!r} {caught.value.__cause__!r}"
    assert "sk-another" not in shown
    assert "Incorrect API key provided" in shown


@pytest.mark.parametrize("name", ["anthropic:claude-nope", "openai:gpt-nope"])
def test_an_unknown_model_s_message_lists_the_known_ones(name: str) -> None:
    format: Format = "anthropic" if name.startswith("anthropic") else "openai"
    with LlmServer(STORY, format) as server, pytest.raises(NoSuchModel) as caught:
        model_of(server, name).facts()
    assert name.partition(":")[2] in str(caught.value)
    assert ("claude-opus-5-5" if format == "anthropic" else "gpt-6.1-sol") in str(caught.value)


@every_format
def test_a_server_that_is_not_there_is_said_at_once(format: Format) -> None:
    with LlmServer(STORY, format) as server:
        pass
    model = model_of(server)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="nothing answers at http"):
        model.facts()
    model.close()
    assert time.monotonic() - began < 10  # of 900 s of trying again


@every_format
def test_a_call_that_max_tokens_cuts_off_says_so_and_the_run_goes_on(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("max_tokens")}) as server:
        cut, whole = converse(model_of(server), 2)
        assert server.refused == []
    assert cut.stop == "max_tokens"
    assert [call.arguments for call in cut.calls] == [{}]
    assert "limit of tokens" in cut.calls[0].problem
    assert whole.calls[0].problem == ""


@every_format
def test_thinking_that_max_tokens_cuts_off_is_not_sent_back(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("thought")}) as server:
        cut, after = converse(model_of(server), 2)
        assert server.refused == []
    assert (cut.stop, cut.thinking) == ("max_tokens", "I wonder whe")
    assert after.text == "A first try."


@every_format
def test_a_listener_that_raises_ends_the_reply_and_closes_the_connection(format: Format) -> None:
    def stop(delta: Delta) -> None:
        raise KeyboardInterrupt

    with LlmServer(STORY, format, faults=lambda _: Fault("drip", pause_s=0.1)) as server:
        model = model_of(server)
        with pytest.raises(KeyboardInterrupt) as caught:
            model.ask(request((User("Hi."),)), stop)
        assert server.hung_up.wait(2)
        assert len(server.asked) == 1
    assert caught.tb is not None  # which would keep a stream alive that nobody closed


@every_format
def test_an_empty_reply_is_a_reply_and_the_run_goes_on(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("empty")}) as server:
        empty, after = converse(model_of(server), 2)
        assert server.refused == []
    assert plain(empty) == ("", "end", ())
    assert after.text == "A first try."


@every_format
def test_a_refusal_names_its_reason_and_the_run_can_go_on(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("refusal")}) as server:
        refused, after = converse(model_of(server), 2)
        assert server.refused == []
    assert refused.stop == "refusal"
    assert refused.calls == ()
    assert refused.detail == ("content_filter" if format == "chat" else "frontier_llm")
    assert after.text == "A first try."


@every_format
@pytest.mark.parametrize(("kind", "name"), [("unknown_tool", "compile_and_run"), ("bad_json", "update")])
def test_calls_that_make_no_sense_reach_the_caller_and_the_run_goes_on(format: Format, kind: str, name: str) -> None:
    with LlmServer(STORY, format, faults={0: Fault(kind)}) as server:  # type: ignore[arg-type]
        odd, after = converse(model_of(server), 2)
        assert server.refused == []
    assert odd.calls[0].name == name
    assert bool(odd.calls[0].problem) == (kind == "bad_json")
    assert after.text == "A first try."


@every_format
def test_calls_that_all_have_one_id_get_ids_of_their_own(format: Format) -> None:
    with LlmServer(STORY, format, faults=lambda _: Fault("same_ids")) as server:
        replies = converse(model_of(server), 4)
        assert server.refused == []
    ids = [call.call_id for reply in replies for call in reply.calls]
    assert len(ids) == len(set(ids)) == 4
    assert replies[-1].text == "Done."


HALVES: list[dict[str, Json]] = [
    {
        "text": "x" * 39 + "\ud83d\ude80 and \udc00 alone",  # pieces have 40 characters
        "thinking": "t" * 39 + "\ud83d\ude80",
        "calls": [update(None, "a \ud83d b \ud83d\ude80", KERNEL + "# \udfff\n")],
    },
    {"text": "Done."},
]


def without_halves(reply: Reply) -> None:
    assert reply.text == "x" * 39 + "🚀 and \ufffd alone"
    assert reply.thinking == "t" * 39 + "🚀"
    assert reply.calls[0].arguments["rationale"] == "a \ufffd b 🚀"
    assert reply.calls[0].arguments["source"].startswith(KERNEL + "# \ufffd")
    json.dumps(reply.raw, ensure_ascii=False).encode()


@every_format
def test_halves_of_characters_are_joined_or_replaced_and_the_run_goes_on(format: Format) -> None:
    heard: list[Delta] = []
    with LlmServer(HALVES, format) as server:
        replies = converse(model_of(server), 2, heard)
        assert server.refused == []
    without_halves(replies[0])
    assert replies[1].text == "Done."
    texts = {kind: "".join(d.text for d in heard if d.kind == kind) for kind in ("text", "thinking")}
    assert texts == {"text": replies[0].text + "Done.", "thinking": replies[0].thinking}


@every_format
def test_numbers_that_are_not_json_are_a_problem_of_their_call(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("nan")}) as server:
        odd, after = converse(model_of(server), 2)
        assert server.refused == []
    assert (odd.calls[0].arguments, odd.stop) == ({}, "tools")
    assert "NaN is no JSON number" in odd.calls[0].problem
    assert after.text == "A first try."


@every_format
def test_counts_of_tokens_that_cannot_be_are_unknown(format: Format) -> None:
    with LlmServer(STORY, format, faults={0: Fault("bad_usage")}) as server:
        odd, after = converse(model_of(server), 2)
    assert (odd.usage, odd.cost_usd, odd.text) == (None, None, "A first try.")
    assert after.usage is not None


def test_an_error_is_told_without_what_a_terminal_would_obey() -> None:
    error = error_of("chat", Fault("status", 400, message="no \x1b[2J\x1b]0;t\x07 \u202e way"))
    assert "no \ufffd way" in str(error)
    assert str(error).isprintable()


def test_a_context_window_that_is_full_is_told_from_the_limit_of_a_reply() -> None:
    with LlmServer([{"text": "So far", "stop": "context"}], "anthropic") as server:
        assert ask(server).stop == "context"


def test_a_paused_turn_is_one_that_was_cut_off() -> None:
    """Only the tools of Anthropic's servers pause a turn, and none is asked for."""
    with LlmServer([{"text": "First.", "stop": "pause_turn"}], "anthropic") as server:
        reply = ask(server)
        assert len(server.asked) == 1
    assert (reply.text, reply.stop) == ("First.", "max_tokens")


@pytest.mark.parametrize(
    ("param", "message", "gone"),
    [
        ("reasoning.summary", "Your organization must be verified to generate reasoning summaries.", "summary"),
        ("reasoning.effort", "Unsupported parameter: 'reasoning.effort' is not supported.", "reasoning"),
        ("include", "Encrypted content is not supported with this model.", "include"),
        ("tools[1].type", "Invalid value: 'custom'. Supported values are: 'function'.", "custom"),
    ],
)
def test_a_feature_that_openai_s_model_lacks_is_left_out_from_then_on(param: str, message: str, gone: str) -> None:
    with LlmServer(STORY, "openai", faults={0: Fault("status", 400, message=message, param=param)}) as server:
        converse(model_of(server), 2)
        first, second, third = (str(asked.body | {"input": []}) for asked in server.asked)
    assert f"'{gone}'" in first
    assert f"'{gone}'" not in second + third


def test_an_effort_that_is_not_offered_is_lowered_and_told() -> None:
    message = "Unsupported value: 'high' is not supported. Supported values are: 'low', 'medium'."
    with LlmServer(
        STORY, "openai", faults={0: Fault("status", 400, message=message, param="reasoning.effort")}
    ) as server:
        model = model_of(server)
        model.ask(request((User("Hi."),)))
        assert [asked.body["reasoning"]["effort"] for asked in server.asked] == ["high", "medium"]
        assert model.facts().notes == ("effort high is not offered: medium",)


@every_format
@pytest.mark.parametrize("kind", ["silence", "stall"])
def test_closing_ends_what_other_threads_wait_for(format: Format, kind: FaultKind) -> None:
    caught: list[BaseException] = []
    with LlmServer(STORY, format, faults=lambda _: Fault(kind, pause_s=30)) as server:
        model = model_of(server, timeout_s=30)

        def wait() -> None:
            try:
                model.ask(request((User("Hi."),)))
            except Unavailable as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert server.streaming.wait(5)
        time.sleep(0.2)  # into the silence
        model.close()
        thread.join(2)
        assert not thread.is_alive()
    assert "the connection was closed" in str(caught[0])


class _Connecting:
    """An SDK's client whose connection is being made until `connected`."""

    base_url = "http://slow.invalid"

    def __init__(self) -> None:
        self.asked, self.connected, self.closed = threading.Event(), threading.Event(), threading.Event()

    def create(self) -> None:
        self.asked.set()
        self.connected.wait(5)
        raise TransientError("overloaded")

    def close(self) -> None:
        self.closed.set()


class _SlowModel(HttpModel[None, PartialReply]):
    """Any provider, as its subclass of HttpModel has it."""

    provider = "slow"
    sdk_error = OSError

    def _facts_of(self, info: Any) -> ModelFacts:
        raise NotImplementedError

    def _describe(self) -> ModelFacts:
        return ModelFacts("slow")

    def _send(self, request: ModelRequest, facts: ModelFacts, features: None) -> tuple[Callable[[], Any], Any]:
        return self._client.create, None


def test_a_connection_that_is_made_while_the_model_is_closed_is_closed_too() -> None:
    client = _Connecting()
    model = _SlowModel(ModelOptions("slow"), client, "SLOW_API_KEY", (), None)

    def wait() -> None:
        with pytest.raises(Unavailable, match="the connection was closed"):
            model.ask(request((User("Hi."),)))

    thread = threading.Thread(target=wait)
    thread.start()
    assert client.asked.wait(5)
    model.close()
    thread.join(2)
    assert not thread.is_alive()
    assert not client.closed.is_set()  # a closed client forgets what is being connected
    client.connected.set()
    assert client.closed.wait(2)
    with pytest.raises(Unavailable, match="the connection was closed"):
        model.ask(request((User("Hi."),)))
