"""OpenAI's models through the Responses API: streamed, stateless, with encrypted reasoning."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import openai

from kerneltune.agent.models import tool_calls
from kerneltune.agent.models.http_api import (
    NO_TEXT,
    ErrorDetails,
    HttpModel,
    Piece,
    error_for,
    own_items,
    silence_limits,
)
from kerneltune.agent.models.types import (
    EFFORTS,
    DeltaKind,
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
    ToolResults,
    Usage,
    User,
)
from kerneltune.tools.schema.codec import Json

API = "openai-responses"
KEY_NAME = "OPENAI_API_KEY"
DEFAULT_MODEL = "gpt-6.1-sol"  # where the API's list does not decide
_DEFAULT_FAMILY = re.compile(r"gpt-[\d.]+-sol")
_PIECES: dict[str, DeltaKind] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
_REFUSALS = {"bio_policy", "misalignment_policy_violation", "invalid_prompt", "content_filter", "cyber_policy"}
# A free-text call must be answered as one. Its neutral id says that it was one, so that nothing has to be looked up.
_FREE = "free_"


@dataclass(frozen=True)
class ResponsesFeatures:
    """What is asked for. The API lists no capabilities, so all of it is tried, and dropped when refused."""

    effort: Effort | None = "high"
    reasoning: bool = True  # effort and summary
    summary: bool = True
    encrypted: bool = True
    free_text: bool = True  # tools that take plain text
    strict: bool = True


class OpenAIModel(HttpModel[ResponsesFeatures, "_Response"]):
    """A model of OpenAI, or of a server that speaks the Responses API. Without a name it is the newest sensible one of
    the API's list. Raises KeyRejected when there is no key."""

    provider: ClassVar[str] = "openai"
    default_model: ClassVar[str] = DEFAULT_MODEL
    sdk_error: ClassVar[type[Exception]] = openai.OpenAIError

    def __init__(self, options: ModelOptions) -> None:
        client = openai_client(options)
        super().__init__(options, client, KEY_NAME, [client.api_key], ResponsesFeatures(effort=options.effort))

    def _newest(self, listed: Sequence[Any]) -> tuple[str, str] | None:
        family = [m for m in listed if not getattr(m, "shutdown_date", None) and _DEFAULT_FAMILY.fullmatch(m.id)]
        return (family[0].id, "gpt-…-sol") if family else None

    def _facts_of(self, info: Any) -> ModelFacts:
        shutdown = getattr(info, "shutdown_date", None)
        notes = (f"{self._model} shuts down on {shutdown}",) if shutdown else ()
        return ModelFacts(self._model, notes=notes, caches=True)

    def _listed(self) -> list[Any] | None:
        """Return the API's models, newest first; None from a server without a list."""
        found = super()._listed()
        return None if found is None else sorted(found, key=lambda model: -(getattr(model, "created", None) or 0))

    def _send(
        self, request: ModelRequest, facts: ModelFacts, features: ResponsesFeatures
    ) -> tuple[Callable[[], Any], "_Response"]:
        params = _params(request, self._model, features)
        return lambda: self._client.responses.create(**params, stream=True), _Response()

    def _require_sound(self, built: "_Response", request: ModelRequest, features: ResponsesFeatures) -> None:
        if built.failure:
            raise error_for(built.failure, self._server)

    def _without(self, features: ResponsesFeatures, details: ErrorDetails) -> ResponsesFeatures | None:
        less = _less(features, details)
        if less is not None and less.effort != features.effort:
            self._note(f"effort {features.effort} is not offered: {less.effort or 'none is set'}")
        return less

    def _note(self, note: str) -> None:
        with self._lock:
            if self._facts and note not in self._facts.notes:
                self._facts = replace(self._facts, notes=(*self._facts.notes, note))


def openai_client(options: ModelOptions) -> openai.OpenAI:
    """Return the SDK's client, which does not retry. Raises KeyRejected without a key."""
    limits = silence_limits(options)
    try:
        return openai.OpenAI(api_key=options.api_key, base_url=options.base_url, max_retries=0, timeout=limits)
    except openai.OpenAIError as error:
        if options.base_url:  # a server of one's own, which wants no key; the SDK insists on one
            return openai.OpenAI(api_key="none", base_url=options.base_url, max_retries=0, timeout=limits)
        raise KeyRejected(f"openai: no API key; set {KEY_NAME}, or choose another --model") from error


# Requests


def _less(features: ResponsesFeatures, details: ErrorDetails) -> ResponsesFeatures | None:
    """Return `features` less what a 400 says is not supported; None when that is nothing to do without."""
    if details.status not in (400, 422):
        return None
    words, param = details.message.lower(), details.param.lower()
    if features.summary and features.reasoning and ("reasoning.summary" in param or "reasoning summar" in words):
        return replace(features, summary=False)
    if features.reasoning and "reasoning.effort" in (param + words) and "value" in words and features.effort != "low":
        return replace(features, effort=EFFORTS[max(EFFORTS.index(features.effort or "low") - 1, 0)])
    if features.reasoning and param.startswith("reasoning"):
        return replace(features, reasoning=False, effort=None)
    if features.encrypted and (param == "include" or "encrypted content is not supported" in words):
        return replace(features, encrypted=False)
    if features.free_text and param.startswith("tools") and "strict" not in param and "custom" in words:
        return replace(features, free_text=False)
    if features.strict and ("strict" in param or "invalid schema" in words):
        return replace(features, strict=False)
    return None


def _params(request: ModelRequest, model: str, features: ResponsesFeatures) -> dict[str, Json]:
    """Return the arguments of responses.create."""
    messages = tool_calls.answered(request.messages)
    params: dict[str, Json] = {
        "model": model,
        "input": [item for message in messages for item in _items(message, model, request.tools)],
        "store": False,
        "max_output_tokens": request.max_tokens,
    }
    if request.system:
        params["instructions"] = request.system
    if request.tools:
        params["tools"] = [item for tool in request.tools for item in _tools(tool, features)]
        params["parallel_tool_calls"] = True
    if features.reasoning:
        params["reasoning"] = {"effort": features.effort} | ({"summary": "auto"} if features.summary else {})
    if features.encrypted:
        params["include"] = ["reasoning.encrypted_content"]
    if request.key:  # of which the API takes 64 characters
        key = request.key
        params["prompt_cache_key"] = key if len(key) <= 64 else hashlib.sha256(key.encode()).hexdigest()
    return params


def _tools(tool: Tool, features: ResponsesFeatures) -> list[Json]:
    function: Json = {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": features.strict,
    }
    if not (tool.source and features.free_text):
        return [function]
    name, description = tool_calls.source_tool_name(tool), tool_calls.source_tool_description(tool)
    function["description"] += f"\nTo give a whole source, call `{name}` instead."
    return [function, {"type": "custom", "name": name, "description": description, "format": {"type": "text"}}]


def _items(message: Message, model: str, tools: tuple[Tool, ...]) -> list[Json]:
    if isinstance(message, User):
        return [_text("user", message.text)]
    if isinstance(message, Reply):
        return own_items(message, API, model) or _rebuilt(message, tools)
    return _outputs(message)


def _text(role: str, text: str) -> Json:
    return {"role": role, "content": text if text.strip() else NO_TEXT}


def _outputs(results: ToolResults) -> list[Json]:
    items: list[Json] = [
        {
            "type": "custom_tool_call_output" if result.call_id.startswith(_FREE) else "function_call_output",
            "call_id": result.call_id.removeprefix(_FREE),
            "output": result.text,
        }
        for result in results.results
    ]
    return items + ([_text("user", results.text)] if results.text or not items else [])


def _rebuilt(reply: Reply, tools: tuple[Tool, ...]) -> list[Json]:
    calls: list[Json] = [_rebuilt_call(call, tools) for call in reply.calls]
    return ([_text("assistant", reply.text)] if reply.text.strip() or not calls else []) + calls


def _rebuilt_call(call: ToolCall, tools: tuple[Tool, ...]) -> Json:
    call_id = call.call_id.removeprefix(_FREE)
    if not call.call_id.startswith(_FREE):
        text = json.dumps(call.arguments)
        return {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": text}
    tool = next((tool for tool in tools if tool.name == call.name), None)
    text = tool_calls.write_source_call(tool, call.arguments) if tool else ""
    name = tool_calls.source_tool_name(tool) if tool else call.name
    return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": text}


# Replies


class _Response:
    """One response, put together from its events. `failure`: what the server says went wrong within the stream."""

    def __init__(self) -> None:
        self.complete = False
        self.failure: ErrorDetails | None = None
        self._refusal = ""
        self._items: dict[int, dict[str, Json]] = {}  # by output_index, as the done events have them
        self._response: dict[str, Json] = {}

    def take(self, event: dict[str, Json]) -> Iterator[Piece]:
        """Take one event; yield what it adds to the reply."""
        kind = str(event.get("type"))
        if kind in _PIECES:
            yield _PIECES[kind], event.get("delta") or ""
        elif kind == "response.output_item.done":  # those of `added` may lack encrypted content
            self._items[event.get("output_index", len(self._items))] = event["item"]
        elif kind in ("response.completed", "response.incomplete"):
            self._response = event["response"]
            self.complete = True
        elif kind == "response.failed":
            self._response = event["response"]
            self._fail(self._response.get("error") or {})
        elif kind == "error":
            self._fail(event.get("error") or event)

    def _fail(self, error: dict[str, Json]) -> None:
        code = str(error.get("code") or "")
        if code in _REFUSALS:
            self.complete, self._refusal = True, code
        else:
            words = str(error.get("message") or "the response failed")
            kind = str(error.get("type") or "").removeprefix("error")  # that is the event's
            self.failure = ErrorDetails(200, words, kind=kind, code=code)

    def usage(self) -> Usage | None:
        """Return what was counted, which comes with the last event."""
        return openai_usage(self._response.get("usage"))

    def reply(self, request: ModelRequest, asked: str) -> Reply:
        """Return the reply. Only a completed one keeps its items, as they came: reasoning without what followed it is
        not taken back."""
        output = [item for _, item in sorted(self._items.items())] or list(self._response.get("output") or [])
        taken = {call_id.removeprefix(_FREE) for call_id in tool_calls.taken_ids(request.messages)}
        named = [str(item.get("call_id") or "") for item in filter(_is_call, output)]
        ids = [tool_calls.own_id(name, taken, f"call_{len(request.messages)}") for name in named]
        for item, call_id in zip(filter(_is_call, output), ids, strict=True):
            item["call_id"] = call_id
        stop, detail = self._stop(output)
        cut_off = output[-1] if output and stop == "max_tokens" else None
        calls = tuple(_call(item, request.tools, item is cut_off) for item in output if _is_call(item))
        completed = self._response.get("status") == "completed" and stop != "refusal"
        return Reply(
            text="".join(_parts(output, "output_text", "text")),
            stop="tools" if calls and stop == "end" else stop,
            calls=() if stop == "refusal" else calls,
            thinking="\n\n".join(_thoughts(output)),
            detail=detail,
            usage=self.usage(),
            raw={"api": API, "asked": asked, "items": output} if completed and ids == named else None,
            model=self._response.get("model") or asked,
            reply_id=self._response.get("id") or "",
        )

    def _stop(self, output: list[dict[str, Json]]) -> tuple[Stop, str]:
        if self._refusal:
            return "refusal", self._refusal
        if refusals := _parts(output, "refusal", "refusal"):
            return "refusal", " ".join(refusals)
        reason = (self._response.get("incomplete_details") or {}).get("reason")
        if reason == "content_filter":
            return "refusal", "content_filter"
        return ("max_tokens", "") if reason else ("end", "")


def _is_call(item: dict[str, Json]) -> bool:
    return item.get("type") in ("function_call", "custom_tool_call")


def _call(item: dict[str, Json], tools: Sequence[Tool], cut_off: bool) -> ToolCall:
    """Return the call of an output item. cut_off: the reply reached its limit of tokens in this item."""
    name = str(item["name"])
    if item["type"] == "function_call":
        return tool_calls.parse_call(str(item["call_id"]), name, item.get("arguments") or "", cut_off=cut_off)
    call_id = f"{_FREE}{item['call_id']}"
    tool = next((tool for tool in tools if tool.source and tool_calls.source_tool_name(tool) == name), None)
    if tool is None:
        return ToolCall(call_id, name, {}, f"no tool {name!r} takes plain text")
    if cut_off:
        return ToolCall(call_id, tool.name, {}, tool_calls.CUT_OFF)
    return ToolCall(call_id, tool.name, tool_calls.parse_source_call(tool, item.get("input") or ""))


def _parts(output: list[dict[str, Json]], kind: str, key: str) -> list[str]:
    messages = [item for item in output if item.get("type") == "message"]
    return [part.get(key) or "" for m in messages for part in m.get("content") or [] if part.get("type") == kind]


def _thoughts(output: list[dict[str, Json]]) -> Iterator[str]:
    for item in output:
        if item.get("type") == "reasoning":
            parts = item.get("summary") or item.get("content") or []
            yield from (part["text"] for part in parts if part.get("text"))


def openai_usage(used: dict[str, Json] | None, given: str = "input", made: str = "output") -> Usage | None:
    """Return what was counted, by the names that an API has for tokens `given` and `made`; None when nothing was."""
    if not used or used.get(f"{given}_tokens") is None:
        return None
    read, written = used.get(f"{given}_tokens_details") or {}, used.get(f"{made}_tokens_details") or {}
    return Usage(
        input_tokens=used[f"{given}_tokens"],
        output_tokens=used.get(f"{made}_tokens") or 0,
        cached_tokens=read.get("cached_tokens") or 0,
        cache_write_tokens=read.get("cache_write_tokens") or 0,
        thinking_tokens=written.get("reasoning_tokens"),
    )
