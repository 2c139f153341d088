"""A run as an OpenTelemetry trace, against a collector on loopback that decodes what comes as real ones do."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from kerneltune.agent.attempt import LlmTurn, StopReason
from kerneltune.agent.commands.lifecycle import traced
from kerneltune.agent.events import (
    Event,
    Judged,
    JudgingAgain,
    ModelAsked,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunResumed,
    RunStarted,
    Said,
    Stage,
    StageStarted,
    Updated,
    Verified,
    Warned,
)
from kerneltune.agent.settings import Environment
from kerneltune.tools.schema.verdict import Status, Timing, Verdict
from tests.agent.models.server import LlmServer
from tests.agent.shell import SOFTMAX, optimize

ENDPOINT, CONTENT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
STORY = Path(__file__).parents[1] / "stories" / "softmax.jsonl"
TRACED = Environment((), "", "dumb", no_color=True, ci=True, is_traced=True)
RUN = "20270115-080000-softmax-ab12"


class Collector:
    """Keeps the spans that it is sent, as plain values; answers with `status`, or late when it `hangs`."""

    def __init__(self, *, status: int = 200, hangs: bool = False) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resource: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._status, self._hangs, self._over = status, hangs, threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Tests are quiet."""

            def do_POST(self) -> None:
                collector.take(self)

        return Handler

    def take(self, http: BaseHTTPRequestHandler) -> None:
        """POST: an ExportTraceServiceRequest."""
        assert http.path == "/v1/traces"
        body = http.rfile.read(int(http.headers["content-length"]))
        if self._hangs:
            self._over.wait(30)
        elif self._status == 200:
            self.bodies.append(body)
            self.headers.append(dict(http.headers.items()))
            self._decode(body)
        http.send_response(self._status)
        http.send_header("content-length", "0")
        http.end_headers()

    def _decode(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = _attributes(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += map(_plain, scope.spans)

    def named(self, start: str) -> list[dict[str, Any]]:
        """The spans whose names begin so, the earliest first."""
        return sorted((s for s in self.spans if s["name"].startswith(start)), key=lambda s: (s["start"], s["end"]))


def _attributes(pairs: Any) -> dict[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(one) for one in found.values] if kind == "array_value" else found

    return {pair.key: value(pair.value) for pair in pairs}


def _plain(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id,
        "id": span.span_id,
        "parent": span.parent_span_id,
        "kind": span.kind,
        "start": span.start_time_unix_nano / 1e9,
        "end": span.end_time_unix_nano / 1e9,
        "failed": span.status.code == 2,
        **_attributes(span.attributes),
    }


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs the extra `otel`")
    with Collector() as made:
        monkeypatch.setenv(ENDPOINT, made.url)
        yield made


def started(at: float) -> RunStarted:
    return RunStarted(
        RUN, "softmax", "5" * 64, "source", "anthropic:claude-opus-5-5", "--model", "sm_90", "NVIDIA H200", {}, {}, 0,
        {}, at=at,
    )  # fmt: skip


def told(at: float, call_id: str, text: str, *, is_error: bool = False) -> Said:
    return Said(RUN, "tool", text, raw={"call_id": call_id, "is_error": is_error}, conversation="1", at=at)


def replied(at: float, calls: list[tuple[str, dict[str, Any]]], turn: int = 1) -> Replied:
    made = [{"call_id": f"c{turn}{i}", "name": n, "arguments": a, "problem": ""} for i, (n, a) in enumerate(calls)]
    usage = {"input_tokens": 900, "output_tokens": 40, "cached_tokens": 600, "cache_write_tokens": 200}
    return Replied(
        RUN, "1", turn, "I try this", "", made, "tools", "", {**usage, "thinking_tokens": 7}, 0.0125,
        "claude-opus-5-5-20261001", 2.0, at=at,
    )  # fmt: skip


def story(t: float) -> list[Event]:
    """A run of 40 s: two updates side by side, a duplicate, a bench, a reflection, a confirmation."""
    one, two = f"{RUN}/1", f"{RUN}/2"
    wide = {"parent": None, "rationale": "wide rows", "source": "SECRET SOURCE"}
    narrow = {"parent": 1, "rationale": "narrow rows", "edits": [{"search": "a", "replace": "b"}]}
    timed = Verdict(Status.CORRECT, "right", timing=Timing(130.5, 130.0, 131.0, 24, 900), tier="judged")
    origin = LlmTurn("1", 1)
    return [
        started(t),
        Said(RUN, "system", "SECRET SYSTEM", at=t),
        Said(RUN, "user", "SECRET PROMPT", conversation="1", at=t + 1),
        ModelAsked(RUN, "1", at=t + 1),
        Said(RUN, "assistant", "I try", final=False, conversation="1", at=t + 2),
        replied(t + 4, [("update", wide), ("update", wide | {"rationale": "again"}), ("update", narrow)]),
        Proposed(RUN, one, 1, None, "SECRET SOURCE", "wide rows", origin, at=t + 5),
        Proposed(RUN, two, 2, one, "other", "narrow rows", origin, at=t + 5),
        Updated(RUN, two, None, None, (), (), 1, 1.0, 1.0, Verdict(Status.COMPILE_FAILED, "no"), at=t + 6),
        Judged(RUN, two, Verdict(Status.COMPILE_FAILED, "no"), 0.0, False, at=t + 6.5),
        Updated(RUN, one, {}, "p", (), (), 1, 1.0, 2.0, at=t + 8),
        told(t + 9, "c10", "compiled"),
        told(t + 9, "c11", "update: the same source", is_error=True),
        told(t + 9, "c12", "it does not compile"),
        ModelAsked(RUN, "1", at=t + 10),
        replied(
            t + 12, [("bench", {"attempt": 1}), ("reflect", {"attempt": 1, "hypothesis": "memory"})], turn=2
        ),
        StageStarted(RUN, one, Stage.TIMING, at=t + 13),
        Judged(RUN, one, timed, 4.0, True, at=t + 17),
        Reflected(RUN, one, "memory", "", {}, at=t + 18),
        told(t + 19, "c20", "130.5 us"),
        told(t + 19, "c21", "SECRET ADVICE"),
        ModelAsked(RUN, "1", at=t + 20),
        JudgingAgain(RUN, one, "confirmed", at=t + 30),
        Verified(RUN, one, "confirm", timed, 8.0, True, "again", "NVIDIA H200", {}, {}, at=t + 38),
        RunEnded(RUN, StopReason.TIME, 2, 1, one, "runs/best.py", 40.0, at=t + 40),
    ]  # fmt: skip


def sent(events: list[Event], environment: Environment = TRACED) -> list[Event]:
    """What was shown of events that are traced."""
    shown: list[Event] = []
    with traced(shown.append, environment) as emit:
        for event in events:
            emit(event)
    return shown


def test_spans_have_the_times_the_ids_and_the_parents_of_what_they_stand_for(collector: Collector) -> None:
    t = float(int(time.time()) + 10)
    assert sent(story(t)) == story(t)
    (root,) = collector.named("invoke_agent")
    assert (root["name"], root["parent"], root["start"] - t, root["end"] - t) == ("invoke_agent kerneltune", b"", 0, 40)
    rest = [span for span in collector.spans if span is not root]
    assert {(span["trace"], span["parent"]) for span in rest} == {(root["trace"], root["id"])}
    facts = ("gen_ai.tool.call.id", "kerneltune.attempt", "error.type")
    spans = (span for span in collector.named("") if span is not root)
    seen = [(s["name"], *map(s.get, facts), s["start"] - t, s["end"] - t) for s in spans]
    assert seen == [
        ("chat claude-opus-5-5", None, None, None, 1, 4),
        ("execute_tool update", "c11", None, "tool_error", 4, 9),
        ("execute_tool update", "c12", 2, None, 5, 6),
        ("execute_tool update", "c10", 1, None, 5, 8),
        ("chat claude-opus-5-5", None, None, None, 10, 12),
        ("execute_tool bench", "c20", 1, None, 13, 17),
        ("execute_tool reflect", "c21", 1, None, 18, 19),
        ("chat claude-opus-5-5", None, None, "cancelled", 20, 40),
        ("execute_tool bench", None, 1, None, 30, 38),
    ]
    assert all(span["failed"] == ("error.type" in span) for span in collector.spans)


def test_attributes_are_those_of_the_semantic_conventions_and_facts_of_the_verdict(collector: Collector) -> None:
    sent(story(time.time() + 10))
    (root,), chat = collector.named("invoke_agent"), collector.named("chat")[0]
    about = {"gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude-opus-5-5"}
    assert root.items() >= {
        **about, "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "kerneltune", "kerneltune.run": RUN,
        "kerneltune.task": "softmax", "kerneltune.stop_reason": "time", "kerneltune.accepted": 1,
        "kerneltune.best_attempt": 1,
    }.items()  # fmt: skip
    expected: dict[str, Any] = {
        **about, "gen_ai.operation.name": "chat", "gen_ai.conversation.id": f"{RUN}/1", "kind": 3,
        "gen_ai.response.model": "claude-opus-5-5-20261001", "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.usage.input_tokens": 900, "gen_ai.usage.output_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 600, "gen_ai.usage.cache_creation.input_tokens": 200,
        "gen_ai.usage.reasoning.output_tokens": 7, "kerneltune.cost_usd": 0.0125,
    }  # fmt: skip
    assert {name: chat[name] for name in expected} == expected
    bench = collector.named("execute_tool bench")[0]
    assert bench.items() >= {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bench", "gen_ai.tool.type": "function",
        "kerneltune.verdict": "correct", "kerneltune.median_us": 130.5, "kerneltune.tier": "judged",
    }.items()  # fmt: skip
    assert collector.resource["service.name"] == "kerneltune"


def test_no_content_is_sent_unless_it_is_asked_for(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(story(time.time() + 10))
    assert b"SECRET" not in b"".join(collector.bodies)
    collector.spans.clear()
    sent(story(time.time() + 10), replace(TRACED, traces_content=True))
    (root,), chats = collector.named("invoke_agent"), collector.named("chat")
    assert json.loads(root["gen_ai.system_instructions"]) == [{"type": "text", "content": "SECRET SYSTEM"}]
    (asked,) = json.loads(chats[0]["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "SECRET PROMPT"}]}
    (answer,) = json.loads(chats[0]["gen_ai.output.messages"])
    assert (answer["parts"][1]["type"], answer["parts"][1]["id"], answer["finish_reason"]) == (
        "tool_call",
        "c10",
        "tool_call",
    )
    assert [m["parts"][0]["id"] for m in json.loads(chats[1]["gen_ai.input.messages"])] == ["c10", "c11", "c12"]
    reflected = collector.named("execute_tool reflect")[0]
    assert reflected["gen_ai.tool.call.result"] == "SECRET ADVICE"
    assert json.loads(reflected["gen_ai.tool.call.arguments"])["hypothesis"] == "memory"


def test_a_resumed_run_is_a_trace_of_what_its_own_process_does(collector: Collector) -> None:
    t = time.time()
    earlier = [e for e in story(t - 1000) if not isinstance(e, ModelAsked)]
    ended = RunEnded(RUN, StopReason.MODEL_ERROR, 2, 1, None, None, 5.0, at=t + 6)
    later: list[Event] = [RunResumed(RUN, 2, at=t + 1), ModelAsked(RUN, "2", at=t + 2), ended]
    sent([*earlier, *later])
    (root,), (chat,) = collector.named("invoke_agent"), collector.named("chat")
    assert len(collector.spans) == 2
    assert (root["error.type"], root["failed"], root["gen_ai.request.model"]) == (
        "model_error",
        True,
        "claude-opus-5-5",
    )
    assert (chat["error.type"], chat["gen_ai.conversation.id"]) == ("model_error", f"{RUN}/2")


@pytest.mark.parametrize("trouble", ["down", "hangs", "refuses"])
def test_a_collector_that_is_down_slow_or_refuses_costs_two_seconds_and_a_warning(
    trouble: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs the extra `otel`")
    with Collector(status=401, hangs=trouble == "hangs") as made:
        monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9" if trouble == "down" else made.url)
        began = time.monotonic()
        shown = sent(story(time.time() + 10))
        took_s = time.monotonic() - began
    assert took_s < 6  # 0.4 s of it the SDK's imports; a collector would be waited for 10
    warned = [event.text for event in shown if isinstance(event, Warned)]
    assert [text.partition(",")[0] for text in warned] == ["not all spans reach the OpenTelemetry collector"]
    assert capfd.readouterr() == ("", "")  # the screen belongs to the run


def test_a_warning_about_spans_never_takes_the_place_of_why_a_model_is_not_asked_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs the extra `otel`")
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    t = time.time() + 10
    why = Warned(RUN, "the account has no credit", at=t + 2)
    ended = RunEnded(RUN, StopReason.NO_ACCESS, 0, 0, None, None, 1.0, at=t + 3)
    shown = sent([started(t), ModelAsked(RUN, "1", at=t), why, ended])
    assert [event for event in shown if isinstance(event, Warned)] == [why]


@pytest.mark.parametrize(
    ("hidden", "variables", "words"),
    [
        ("opentelemetry.sdk.trace", {}, "pip install 'kerneltune[otel]'"),
        ("", {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-3"}, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be"),
    ],
)
def test_a_run_that_cannot_be_traced_says_so_in_one_line_and_goes_on(
    hidden: str, variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hidden:
        monkeypatch.setitem(sys.modules, hidden, None)
        monkeypatch.delitem(sys.modules, "kerneltune.agent.view.spans", raising=False)
    else:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs the extra `otel`")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    t = time.time() + 10
    shown = sent(story(t))
    assert [event for event in shown if not isinstance(event, Warned)] == story(t)
    (warned,) = (event for event in shown if isinstance(event, Warned))
    assert words in warned.text
    assert "\n" not in warned.text


def test_a_run_of_a_model_is_one_trace_without_its_key_or_a_source(tmp_path: Path, collector: Collector) -> None:
    lines = [json.loads(line) for line in STORY.read_text().splitlines()]
    with LlmServer(lines, "anthropic") as server:
        done = optimize(
            "--task", SOFTMAX, "--json", "--runs-dir", "runs", "--max-attempts", "5",
            "--model", "anthropic:claude-opus-5-5", "--base-url", server.url, cwd=tmp_path,
            more_env={
                "ANTHROPIC_API_KEY": server.key, ENDPOINT: collector.url, "OTEL_EXPORTER_OTLP_HEADERS": "x-token=abc",
            },
        )  # fmt: skip
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["attempts"], done.stderr) == (0, 5, "")
    chats, tools = collector.named("chat"), collector.named("execute_tool")
    assert len({span["trace"] for span in collector.spans}) == len(collector.named("invoke_agent")) == 1
    assert len(chats) == last["spending"]["replies"]
    assert sum(c["gen_ai.usage.output_tokens"] for c in chats) == last["spending"]["output_tokens"]
    assert sum(c["kerneltune.cost_usd"] for c in chats) == pytest.approx(last["spending"]["cost_usd"])
    called = [s for s in tools if "gen_ai.tool.call.id" in s]
    assert len({(s["gen_ai.conversation.id"], s["gen_ai.tool.call.id"]) for s in called}) == len(called)
    told_of = {(s["gen_ai.tool.name"], s.get("kerneltune.attempt")) for s in called}
    assert told_of >= {("update", n) for n in range(1, 6)}, told_of
    assert {s["kerneltune.verdict"] for s in tools if "kerneltune.verdict" in s} == {
        "compile_failed",
        "wrong",
        "checked",
    }
    body = b"".join(collector.bodies)
    assert server.key.encode() not in body
    assert b"ModelNew" not in body
    assert {headers["x-token"] for headers in collector.headers} == {"abc"}
