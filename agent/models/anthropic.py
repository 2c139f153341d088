"""Claude through the Messages API: streamed, with adaptive thinking as the model's capabilities allow."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anthropic

from kerneltune.agent.models import tool_calls
from kerneltune.agent.models.http_api import NO_TEXT, HttpModel, Piece, own_items, silence_limits
from kerneltune.agent.models.types import (
    EFFORTS,
    Effort,
    KeyRejected,
    Message,
    ModelFacts,
    ModelOptions,
    ModelRequest,
    Reply,
    Stop,
    Tool,
    ToolCall,
    Usage,
    User,
)
from kerneltune.tools.schema.codec import Json

API = "anthropic"
KEY_NAME = "ANTHROPIC_API_KEY"
DEFAULT_MODEL = "claude-opus-5-5"  # where the API's list does not decide
LINES = ("opus", "fable", "sonnet")  # which line to take the newest of, when no model is named
_HOUR: Json = {"type": "ephemeral", "ttl": "1h"}
_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "context",
    "refusal": "refusal",
    "pause_turn": "max_tokens",  # by tools of the server, of which none is asked for
}
_KEPT = 2000  # characters of an input that is not JSON that the model sees again


@dataclass(frozen=True)
class MessagesFeatures:
    """What may be asked of a model. The defaults suit a server that does not say."""

    thinking: bool = False
    effort: Effort | None = None
    strict: bool = False
    described: bool = False


class AnthropicModel(HttpModel[MessagesFeatures, "_Message"]):
    """A model of Anthropic, or of a server that speaks its API. Without a name it is the newest sensible one of the
    API's list. Raises KeyRejected when there is no key."""

    provider: ClassVar[str] = "anthropic"
    default_model: ClassVar[str] = DEFAULT_MODEL
    sdk_error: ClassVar[type[Exception]] = anthropic.AnthropicError

    def __init__(self, options: ModelOptions) -> None:
        client = _client(options)
        keys = [key for key in (client.api_key, client.auth_token) if key]
        super().__init__(options, client, KEY_NAME, keys, MessagesFeatures())
        self._effort = options.effort

    def _newest(self, listed: Sequence[Any]) -> tuple[str, str] | None:
        active = [info for info in listed if getattr(info, "lifecycle", None) in ("active", None)]
        for line in LINES:
            if of_line := [info for info in active if getattr(info, "line", None) == line]:
                return max(of_line, key=lambda info: str(info.created_at)).id, f"active {line}"
        return None

    def _facts_of(self, info: Any) -> ModelFacts:
        self._features = _features(info, self._effort)
        return _facts(info)

    def _send(
        self, request: ModelRequest, facts: ModelFacts, features: MessagesFeatures
    ) -> tuple[Callable[[], Any], "_Message"]:
        params = _params(request, self._model, features, facts.max_output_tokens)
        return lambda: self._client.messages.create(**params, stream=True), _Message()


def _client(options: ModelOptions) -> anthropic.Anthropic:
    """Return the SDK's client, which does not retry. Raises KeyRejected without a key, which only a `base_url`
    excuses."""
    client = anthropic.Anthropic(
        api_key=options.api_key, base_url=options.base_url, max_retries=0, timeout=silence_limits(options)
    )
    if client.api_key or client.auth_token or client.credentials:
        return client
    if options.base_url:  # a server of one's own, which wants no key; the SDK insists on one
        return client.copy(api_key="none")
    raise KeyRejected(f"anthropic: no API key; set {KEY_NAME}, or choose another --model")


# What a model can do


def _features(info: Any, wanted: Effort) -> MessagesFeatures:
    """Return what `info`, an SDK ModelInfo, allows; the effort is the nearest to `wanted` that the model has."""
    known = getattr(info, "capabilities", None)
    if known is None:
        return MessagesFeatures()
    return MessagesFeatures(
        thinking=_supported(known, "thinking") and _supported(known, "thinking", "types", "adaptive"),
        effort=_nearest(wanted, _efforts(info)),
        strict=_supported(known, "structured_outputs"),
        described=True,
    )


def _supported(known: Any, *path: str) -> bool:
    """Is the capability at `path` there and supported? Imitators of the API leave some out."""
    for name in path:
        known = getattr(known, name, None)
    return bool(getattr(known, "supported", False))


def _efforts(info: Any) -> tuple[Effort, ...]:
    """Return the levels of effort that the model has, least first."""
    known = getattr(info, "capabilities", None)
    if not _supported(known, "effort"):
        return ()
    return tuple(level for level in EFFORTS if _supported(known, "effort", level))


def _nearest(wanted: Effort, offered: tuple[Effort, ...]) -> Effort | None:
    """Return the most of `offered` that is not more than `wanted`, else the least; None when there are none."""
    fitting = [level for level in offered if EFFORTS.index(level) <= EFFORTS.index(wanted)]
    return fitting[-1] if fitting else next(iter(offered), None)


def _facts(info: Any) -> ModelFacts:
    notes: tuple[str, ...] = ()
    lifecycle, retires_at = getattr(info, "lifecycle", None), getattr(info, "retires_at", None)
    if lifecycle not in ("active", None):
        notes += (f"{info.id} is {lifecycle}",)
    if retires_at is not None:
        notes += (f"{info.id} retires on {str(retires_at)[:10]}",)
    return ModelFacts(
        info.id,
        max_input_tokens=getattr(info, "max_input_tokens", None),
        max_output_tokens=getattr(info, "max_tokens", None),
        notes=notes,
        caches=True,
    )


# Requests


def _params(
    request: ModelRequest, model: str, features: MessagesFeatures, max_output_tokens: int | None
) -> dict[str, Json]:
    """Return the arguments of messages.create.

    What is the same in all requests of a run, tools and system, is cached for an hour: a bench may take longer than
    the five minutes for which the growing history is.
    """
    params: dict[str, Json] = {
        "model": model,
        "max_tokens": min(request.max_tokens, max_output_tokens or request.max_tokens),
        "messages": [_message(message, model) for message in tool_calls.answered(request.messages)],
        "cache_control": {"type": "ephemeral"},
    }
    if len(params["messages"]) > 2:  # what ended the prompt before: one of 20 blocks or more later finds it again
        params["messages"][-3]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    if request.tools:
        params["tools"] = [_tool(tool, features) for tool in request.tools]
    if request.system:
        params["system"] = [{"type": "text", "text": request.system, "cache_control": _HOUR}]
    elif request.tools:
        params["tools"][-1]["cache_control"] = _HOUR
    if features.thinking:
        params["thinking"] = {"type": "adaptive", "display": "summarized"}
    if features.effort:
        params["output_config"] = {"effort": features.effort}
    return params


def _tool(tool: Tool, features: MessagesFeatures) -> dict[str, Json]:
    made: dict[str, Json] = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    if features.strict:
        made["strict"] = True
    if features.described and tool.source:
        made["eager_input_streaming"] = True  # else a kernel of 300 lines comes all at once
    return made


def _message(message: Message, model: str) -> dict[str, Json]:
    if isinstance(message, User):
        return {"role": "user", "content": [_text(message.text)]}
    if isinstance(message, Reply):
        return {"role": "assistant", "content": own_items(message, API, model) or _rebuilt(message)}
    results: list[Json] = [
        {"type": "tool_result", "tool_use_id": _id(r.call_id), "content": r.text or NO_TEXT, "is_error": r.is_error}
        for r in message.results
    ]
    return {"role": "user", "content": results + ([_text(message.text)] if message.text or not results else [])}


def _text(text: str) -> Json:
    return {"type": "text", "text": text if text.strip() else NO_TEXT}


def _id(call_id: str) -> str:
    """Return an id in characters that this API takes; other providers' may have others."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", call_id)


def _rebuilt(reply: Reply) -> list[Json]:
    calls: list[Json] = [
        {"type": "tool_use", "id": _id(call.call_id), "name": call.name, "input": call.arguments}
        for call in reply.calls
    ]
    return ([_text(reply.text)] if reply.text.strip() or not calls else []) + calls


# Replies


class _Message:
    """One message, put together from its events."""

    def __init__(self) -> None:
        self.complete = False
        self.stop_reason = ""
        self.category = ""  # of a refusal
        self.head: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self._blocks: dict[int, dict[str, Json]] = {}
        self._inputs: dict[int, str] = {}  # the JSON of tool inputs, as far as it came

    def take(self, event: dict[str, Json]) -> Iterator[Piece]:
        """Take one event; yield what it adds to the reply."""
        kind = event.get("type")
        if kind == "message_start":
            self.head = event["message"]
            self._usage.update(self.head.get("usage") or {})
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            yield from self._grow(event["index"], event["delta"])
        elif kind == "message_delta":
            self.stop_reason = event["delta"].get("stop_reason") or ""
            self.category = (event["delta"].get("stop_details") or {}).get("category") or ""
            totals = event.get("usage") or {}
            self._usage.update({key: value for key, value in totals.items() if value is not None})
        elif kind == "message_stop":
            self.complete = bool(self.stop_reason)

    def _grow(self, index: int, delta: dict[str, Json]) -> Iterator[Piece]:
        block = self._blocks.get(index, {})
        kind = delta.get("type")
        if kind == "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
            yield "text", delta["text"]
        elif kind == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
            yield "thinking", delta["thinking"]
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            yield "arguments", delta["partial_json"]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]

    def _items(self) -> list[Json]:
        """Return the content to send back: as it came, but for what the API would not take: thinking that was cut off
        before its signature, text without a character, an input that is no JSON object."""
        return [
            block | {"input": self._call(index, block)[1]} if block.get("type") == "tool_use" else block
            for index, block in sorted(self._blocks.items())
            if _is_taken_back(block)
        ]

    def _call(self, index: int, block: dict[str, Json]) -> tuple[ToolCall, Json]:
        """Return the call that a block holds, and the input to send back for it."""
        text = self._inputs.get(index, "")
        if not text and block.get("input"):
            return ToolCall(block["id"], block["name"], block["input"]), block["input"]
        call = tool_calls.parse_call(block["id"], block["name"], text, cut_off=self.stop_reason == "max_tokens")
        return call, {"INVALID_JSON": text[:_KEPT]} if call.problem and text else call.arguments

    def reply(self, request: ModelRequest, asked: str) -> Reply:
        """Return the reply. A refused one keeps no calls and nothing to send back."""
        blocks, taken = sorted(self._blocks.items()), tool_calls.taken_ids(request.messages)
        for block in (block for _, block in blocks if block.get("type") == "tool_use"):
            block["id"] = tool_calls.own_id(block.get("id"), taken, f"call_{len(request.messages)}")
        refused = self.stop_reason == "refusal"
        calls = () if refused else tuple(self._call(i, b)[0] for i, b in blocks if b.get("type") == "tool_use")
        stop = _STOPS.get(self.stop_reason, "end")
        return Reply(
            text="".join(b.get("text", "") for _, b in blocks if b.get("type") == "text"),
            stop="tools" if calls and stop == "end" else stop,
            calls=calls,
            thinking="\n\n".join(b["thinking"] for _, b in blocks if b.get("type") == "thinking" and b.get("thinking")),
            detail=self.category or (self.stop_reason if self.stop_reason not in _STOPS else ""),
            usage=self.usage(),
            raw=None if refused else {"api": API, "asked": asked, "items": self._items()},
            model=self.head.get("model") or asked,
            reply_id=self.head.get("id") or "",
        )

    def usage(self) -> Usage | None:
        """Return what was counted so far: the prompt from the first event on, what is written only at the end."""
        used = self._usage
        if used.get("input_tokens") is None:
            return None
        read, written = used.get("cache_read_input_tokens") or 0, used.get("cache_creation_input_tokens") or 0
        return Usage(
            input_tokens=used["input_tokens"] + read + written,
            output_tokens=used.get("output_tokens") or 0,
            cached_tokens=read,
            cache_write_tokens=written,
            thinking_tokens=(used.get("output_tokens_details") or {}).get("thinking_tokens"),
            cache_write_1h_tokens=(used.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0,
        )


def _is_taken_back(block: dict[str, Json]) -> bool:
    if block.get("type") == "thinking":
        return bool(block.get("signature"))
    return block.get("type") != "text" or bool(block.get("text", "").strip())
