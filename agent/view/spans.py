"""A run as an OpenTelemetry trace, in the words of the semantic conventions for generative AI (of 1.37, with those for
caches; they are still in development), and names of our own that begin with `kerneltune.`:

    invoke_agent > chat for each reply, execute_tool for each update, bench and reflect

A fold over events, like the screen. It is imported only where a collector is named, and needs the extra `otel`. Where
spans are sent, with which headers, and what is sampled, the SDK reads from its own variables. Nothing here waits for
the collector but the end, for two seconds.
"""

import contextlib
import json
import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from kerneltune.agent.attempt import LlmTurn, StopReason
from kerneltune.agent.events import (
    AttemptSkipped,
    Emit,
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
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import Verdict, versions

_AGENT = "kerneltune"
_END_S = 2.0  # that a run waits for its last spans
_MOST_WAITING, _BATCH = 2_048, 512  # spans
_BENCHES = (Stage.CHECKING, Stage.TIMING)
_FAILED = (StopReason.FAILED, StopReason.MODEL_ERROR, StopReason.NO_ACCESS)
_PROVIDERS = {"chat": "openai"}  # any server that speaks OpenAI's API
_FINISHES = {
    "end": "stop",
    "tools": "tool_call",
    "max_tokens": "length",
    "context": "length",
    "refusal": "content_filter",
}
_QUIET = logging.NullHandler()  # else Python writes the SDK's complaints over the screen
_LOST = "not all spans reach the OpenTelemetry collector, see OTEL_EXPORTER_OTLP_ENDPOINT; the record has everything"


class _Sender(SpanProcessor):
    """Sends ended spans from a thread. Not the SDK's BatchSpanProcessor: that starts a thread in each child that this
    process forks, and a process with two threads, as the probe of the sandbox would be, can join no namespace."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._waiting: queue.Queue[ReadableSpan | None] = queue.Queue(_MOST_WAITING)
        self._ended = self._arrived = 0
        self.has_lost = False
        self._thread = threading.Thread(target=self._send, name="spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span, unless too many wait."""
        self._ended += 1
        try:
            self._waiting.put_nowait(span)
        except queue.Full:
            self.has_lost = True

    def _send(self) -> None:
        is_over = False
        while not is_over:
            taken = [self._waiting.get()]
            while len(taken) < _BATCH and not self._waiting.empty():
                taken.append(self._waiting.get())
            is_over = None in taken
            spans = [span for span in taken if span is not None]
            if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                self.has_lost = True
            elif spans:
                self._arrived += len(spans)

    def shutdown(self) -> None:
        """Let the last spans arrive, for two seconds; what is then on its way is given up."""
        with contextlib.suppress(queue.Full):  # the collector has not answered for long
            self._waiting.put_nowait(None)
        self._thread.join(_END_S)
        self._exporter.shutdown()
        self.has_lost |= self._arrived < self._ended


@dataclass
class _Work:
    """An execute_tool span to be. `call`: the model's, None for what nobody called; `of`: its conversation. Times in
    seconds, None until they are known."""

    tool: str
    start_s: float
    of: str = ""
    call: dict[str, Json] | None = None
    end_s: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def wants(self, tool: str, **arguments: Json) -> bool:
        """Whether the call asks for this."""
        given = self.call.get("arguments") if self.call else None
        return self.tool == tool and isinstance(given, dict) and arguments.items() <= given.items()


class RunSpans:
    """Hands events on to `show` and sends their spans; leaving the context sends the last ones. What happened before it
    was made is an earlier process's. `has_content`: prompts, replies and sources are sent, too. Any thread may call it.
    Raises ValueError for a variable of OpenTelemetry's that makes no sense."""

    def __init__(self, show: Emit, *, has_content: bool = False) -> None:
        logging.getLogger("opentelemetry").addHandler(_QUIET)
        named = {"service.name": _AGENT, "service.version": versions()[_AGENT]}
        provider = TracerProvider(
            resource=Resource.create(named).merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._sender = _Sender(OTLPSpanExporter())
        provider.add_span_processor(self._sender)
        self._fold = _Fold(provider.get_tracer(_AGENT), has_content=has_content)
        self._show, self._since, self._was_told = show, time.time(), False
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.at >= self._since or isinstance(event, RunStarted):
            with self._lock:
                self._fold.take(event, is_new=event.at >= self._since)
        self._show(event)
        if isinstance(event, Judged | Replied):  # not the last word: that says why a model is not asked any more
            self._tell(event.run_id)

    def _tell(self, run_id: str) -> None:
        """Say once that spans are lost."""
        if self._sender.has_lost and not self._was_told:
            self._was_told = True
            self._show(Warned(run_id, _LOST))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._fold.end(time.time(), kind.__name__ if kind else None)
        self._sender.shutdown()
        if self._fold.why not in _FAILED:
            self._tell(self._fold.run_id)


class _Fold:
    """Makes spans of events, each when it is over and with its own times; the root, which the others name, at once."""

    def __init__(self, tracer: Tracer, *, has_content: bool) -> None:
        self._tracer, self._has_content = tracer, has_content
        self._root: Span | None = None
        self._about: dict[str, Any] = {}  # of the model
        self._asked: dict[str, float] = {}  # since when, by conversation
        self._heard: dict[str, list[Json]] = {}  # what a conversation's model was told since its last reply
        self._waiting: list[_Work] = []  # calls without a result
        self._busy: dict[str, _Work] = {}  # by attempt
        self._numbers: dict[str, int] = {}  # of attempts
        self.run_id, self.why = "", StopReason.FAILED

    def take(self, event: Event, *, is_new: bool) -> None:
        """One more event; of how an old run began only what is known of it."""
        match event:
            case RunStarted():
                self._know(event)
                if is_new:
                    self._begin(event.at)
            case RunResumed():
                self._written_by(event.other_author or self._author)
                self._begin(event.at)
            case RunEnded():
                self._end_run(event)
            case ModelAsked() | Said() | Replied():
                self._of_model(event)
            case Proposed() | Updated() | StageStarted() | JudgingAgain():
                self._of_work(event)
            case Judged() | Verified() | Reflected() | AttemptSkipped():
                self._of_outcome(event)

    # The run ---------------------------------------------------------------------------------------------------------

    def _know(self, event: RunStarted) -> None:
        self.run_id, self._author = event.run_id, event.author
        self._written_by(event.author)
        self._run = {"kerneltune.task": event.task, "kerneltune.arch": event.arch, "kerneltune.gpu": event.gpu}

    def _written_by(self, author: str) -> None:
        provider, _, model = author.partition(":")
        self._about = {
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
            "gen_ai.request.model": model or None,
        }

    def _begin(self, at: float) -> None:
        self._root = self._tracer.start_span(
            f"invoke_agent {_AGENT}",
            start_time=_ns(at),
            attributes=_known(
                self._about
                | self._run
                | {
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.agent.name": _AGENT,
                    "kerneltune.run": self.run_id,
                }
            ),
        )

    def _end_run(self, event: RunEnded) -> None:
        self.why = event.why
        if self._root is not None:
            facts = {
                "kerneltune.stop_reason": event.why.value,
                "kerneltune.attempts": event.attempts,
                "kerneltune.accepted": event.accepted,
                "kerneltune.best_attempt": self._numbers.get(event.best_attempt_id or ""),
            }
            self._root.set_attributes(_known(facts))
        self.end(event.at, event.why.value if event.why in _FAILED else None)

    def end(self, at: float, error: str | None = None) -> None:
        """End what is not over: nobody will."""
        if self._root is None:
            return
        for conversation in list(self._asked):
            self._chat(conversation, at, {"error.type": error or "cancelled"})
        for work in (*self._waiting, *(w for w in self._busy.values() if w.call is None)):
            self._done(work, at, (error or "cancelled") if work.end_s is None else None)
        if error:
            self._root.set_attribute("error.type", error)
            self._root.set_status(Status(StatusCode.ERROR))
        self._root.end(_ns(at))
        self._root = None

    def _span(self, name: str, kind: SpanKind, start_s: float, end_s: float, facts: dict[str, Any]) -> None:
        """A span of the run that is over."""
        if self._root is None:
            return
        span = self._tracer.start_span(
            name, set_span_in_context(self._root), kind, _known(facts), start_time=_ns(min(start_s, end_s))
        )
        if "error.type" in facts:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(end_s))

    # Replies of a model ----------------------------------------------------------------------------------------------

    def _of_model(self, event: ModelAsked | Said | Replied) -> None:
        match event:
            case ModelAsked():
                self._asked[event.conversation] = event.at
            case Replied():
                self._replied(event)
            case Said(role="tool"):
                self._answered(event)
                self._hear(
                    event, {"type": "tool_call_response", "id": _of_raw(event, "call_id"), "response": event.text}
                )
            case Said(role="system"):
                if self._has_content and self._root is not None:
                    self._root.set_attribute("gen_ai.system_instructions", _text([_part(event.text)]))
            case Said(role="user", final=True):
                self._hear(event, _part(event.text))

    def _hear(self, event: Said, part: Json) -> None:
        if self._has_content:
            self._heard.setdefault(event.conversation, []).append({"role": event.role, "parts": [part]})

    def _replied(self, event: Replied) -> None:
        usage = event.usage or {}
        finish = _FINISHES.get(event.stop, event.stop)
        calls = [call for call in event.calls or () if isinstance(call, dict)]
        facts: dict[str, Any] = {
            "gen_ai.response.model": event.model or None,
            "gen_ai.response.finish_reasons": [finish],
            "gen_ai.usage.input_tokens": usage.get("input_tokens"),
            "gen_ai.usage.output_tokens": usage.get("output_tokens"),
            "gen_ai.usage.cache_read.input_tokens": usage.get("cached_tokens"),
            "gen_ai.usage.cache_creation.input_tokens": usage.get("cache_write_tokens"),
            "gen_ai.usage.reasoning.output_tokens": usage.get("thinking_tokens"),
            "kerneltune.cost_usd": event.cost_usd,
        }
        if self._has_content:
            parts = [_part(event.text)] if event.text else []
            parts += [
                {"type": "tool_call", "id": c.get("call_id"), "name": c.get("name"), "arguments": c.get("arguments")}
                for c in calls
            ]
            facts["gen_ai.input.messages"] = _text(self._heard.pop(event.conversation, []))
            facts["gen_ai.output.messages"] = _text([{"role": "assistant", "parts": parts, "finish_reason": finish}])
        self._asked.setdefault(event.conversation, event.at - event.seconds)
        self._chat(event.conversation, event.at, facts)
        self._waiting += [_Work(str(call.get("name")), event.at, event.conversation, call) for call in calls]

    def _chat(self, conversation: str, at: float, facts: dict[str, Any]) -> None:
        """The span of a request, which ends now."""
        about = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": f"{self.run_id}/{conversation}"}
        name = f"chat {self._about['gen_ai.request.model'] or ''}".strip()
        self._span(name, SpanKind.CLIENT, self._asked.pop(conversation), at, self._about | about | facts)

    # Tools -----------------------------------------------------------------------------------------------------------

    def _answered(self, event: Said) -> None:
        call_id = _of_raw(event, "call_id")
        for work in self._waiting:
            if work.of == event.conversation and work.call and work.call.get("call_id") == call_id:
                self._waiting.remove(work)
                if self._has_content:
                    work.facts["gen_ai.tool.call.arguments"] = _text(work.call.get("arguments"))
                    work.facts["gen_ai.tool.call.result"] = event.text
                self._done(work, event.at, "tool_error" if _of_raw(event, "is_error") else None)
                return

    def _of_work(self, event: Proposed | Updated | StageStarted | JudgingAgain) -> None:
        match event:
            case Proposed():
                self._numbers[event.attempt_id] = event.number
                of = event.origin.conversation if isinstance(event.origin, LlmTurn) else ""
                self._work_on(event, "update", of, rationale=event.rationale)
            case Updated():
                self._worked(event, event.failure)
            case StageStarted() if event.stage in _BENCHES:
                self._work_on(event, "bench", attempt=self._numbers.get(event.attempt_id))
            case JudgingAgain():
                self._busy[event.attempt_id] = self._new("bench", event)

    def _work_on(self, event: Proposed | StageStarted, tool: str, of: str = "", **arguments: Json) -> None:
        """Work on an attempt begins, for the first call that asked for it, if a model did."""
        called = (w for w in self._waiting if w.wants(tool, **arguments) and (not of or w.of == of))
        work = next((w for w in called if not w.facts), None) or self._new(tool, event)
        work.start_s = event.at
        work.facts["kerneltune.attempt"] = self._numbers.get(event.attempt_id)
        self._busy[event.attempt_id] = work

    def _new(self, tool: str, event: Proposed | StageStarted | JudgingAgain) -> _Work:
        return _Work(tool, event.at, facts={"kerneltune.attempt": self._numbers.get(event.attempt_id)})

    def _of_outcome(self, event: Judged | Verified | Reflected | AttemptSkipped) -> None:
        match event:
            case Judged() | Verified():
                self._worked(event, event.verdict)
            case AttemptSkipped():
                self._worked(event, None, "skipped")
            case Reflected():
                number = self._numbers.get(event.attempt_id)
                for work in self._waiting:
                    if work.wants("reflect", attempt=number, hypothesis=event.hypothesis):
                        work.start_s = event.at
                        work.facts["kerneltune.attempt"] = number

    def _worked(
        self, event: Updated | Judged | Verified | AttemptSkipped, verdict: Verdict | None, error: str | None = None
    ) -> None:
        """Work on an attempt is over; the span of a model's call waits for the words that it is told."""
        work = self._busy.pop(event.attempt_id, None)
        if work is None:
            return
        if verdict is not None:
            work.facts |= {
                "kerneltune.verdict": verdict.status.value,
                "kerneltune.tier": verdict.tier,
                "kerneltune.median_us": verdict.timing.median_us if verdict.timing else None,
                "kerneltune.speedup": min((c.speedup for c in verdict.comparisons), default=None),
            }
        work.end_s = event.at
        if work.call is None:
            self._done(work, event.at, error)

    def _done(self, work: _Work, at: float, error: str | None = None) -> None:
        """The span of a call, or of what nobody called. A kernel that fails is no error of the tool's."""
        facts = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": work.tool,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": work.call.get("call_id") if work.call else None,
            "gen_ai.conversation.id": f"{self.run_id}/{work.of}" if work.of else None,
        }
        end_s = at if work.end_s is None else work.end_s
        error_facts = {"error.type": error} if error else {}
        self._span(
            f"execute_tool {work.tool}", SpanKind.INTERNAL, work.start_s, end_s, facts | work.facts | error_facts
        )


def _ns(at_s: float) -> int:
    return int(at_s * 1e9)


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """What has a value."""
    return {name: value for name, value in facts.items() if value is not None}


def _part(text: str) -> Json:
    return {"type": "text", "content": text}


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _of_raw(event: Said, name: str) -> Json:
    """What a tool's result says besides its words."""
    return event.raw.get(name) if isinstance(event.raw, dict) else None
