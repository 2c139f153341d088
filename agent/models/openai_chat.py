"""Any server of the Chat Completions API: vLLM, SGLang, llama.cpp, Ollama. None of them does all of it right."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import openai

from kerneltune.agent.models import tool_calls
from kerneltune.agent.models.http_api import NO_TEXT, ErrorDetails, HttpModel, Piece
from kerneltune.agent.models.openai_responses import openai_client, openai_usage
from kerneltune.agent.models.types import (
    Effort,
    Listen,
    Message,
    ModelFacts,
    ModelOptions,
    ModelRequest,
    NoSuchModel,
    Reply,
    Stop,
    Tool,
    ToolCall,
    Usage,
    User,
)
from kerneltune.tools.schema.codec import Json

_LEAST_TOKENS = 256  # a reply with less room is not worth asking for
_REFUSALS = {  # features by what servers say that have none; the first that is there is left out
    "token_ids": re.compile("return_token_ids"),
    "logprobs": re.compile("logprobs"),
    "tools": re.compile(
        r"does not support tools|tool choice requires|enable-auto-tool-choice|tools? param requires|--jinja"
        r"|tools? (is|are) not supported|unsupported.*\btools?\b|tool use is not supported",
        re.IGNORECASE,
    ),
    "usage": re.compile("stream_options"),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "strict": re.compile("strict"),
}
_LIMIT = re.compile(r"maximum context length (?:is|of) (\d+)", re.IGNORECASE)
_INPUT = re.compile(r"(\d+) (?:input tokens|in the messages|tokens from the input)", re.IGNORECASE)
_STOPS: dict[str, Stop] = {"length": "max_tokens", "max_tokens": "max_tokens", "content_filter": "refusal"}


@dataclass(frozen=True)
class ChatFeatures:
    """What is asked for; dropped when refused."""

    effort: Effort | None = None  # few local servers know it
    tools: bool = True  # as a field of the request; else they are described in the system prompt
    strict: bool = True
    usage: bool = True  # stream_options
    seed: bool = True  # where there is one
    logprobs: bool = True  # where they are wanted; llama.cpp has none in a stream with tools
    token_ids: bool = True  # beside them: vLLM's
    limit_name: str = "max_tokens"  # or max_completion_tokens
    room: int | None = None  # the tokens for which the server has room


class ChatModel(HttpModel[ChatFeatures, "_Completion"]):
    """A model of the server at `base_url` ("http://localhost:8000/v1"). Without a name it is the first that the server
    lists."""

    provider: ClassVar[str] = "chat"
    sdk_error: ClassVar[type[Exception]] = openai.OpenAIError

    def __init__(self, options: ModelOptions) -> None:
        keys = [options.api_key] if options.api_key else []
        client = openai_client(replace(options, api_key=options.api_key or "none"))  # the SDK insists on a key
        super().__init__(options, client, "the API key", keys, ChatFeatures())

    def _describe(self) -> ModelFacts:
        listed = self._listed() or []
        notes: tuple[str, ...] = ()
        if not self._model:
            if not listed:
                raise NoSuchModel(f"chat: {self._server.base_url} lists no models; name one, as in --model chat:<id>")
            self._use_default(str(listed[0].id))
            notes = (f"no model was named: the first that {self._server.base_url} lists",)
        info = next((model for model in listed if model.id == self._model), None)
        return replace(self._facts_of(info), notes=notes)

    def price_usd(self, usage: Usage) -> float | None:
        """Return None: nobody lists what one's own server costs."""
        return None

    def _facts_of(self, info: Any) -> ModelFacts:
        return ModelFacts(self._model, max_input_tokens=_context_tokens(info))

    def _reply(self, request: ModelRequest, facts: ModelFacts, listen: Listen) -> Reply:
        try:
            return super()._reply(request, facts, listen)
        except NoSuchModel:
            listed = self._listed() or []
            if listed and self._model not in [str(model.id) for model in listed]:
                raise self._no_such_model(listed) from None
            raise

    def _send(
        self, request: ModelRequest, facts: ModelFacts, features: ChatFeatures
    ) -> tuple[Callable[[], Any], "_Completion"]:
        params = _params(request, self._model, features, facts.max_input_tokens)
        return lambda: self._client.chat.completions.create(**params, stream=True), _Completion()

    def _require_sound(self, built: "_Completion", request: ModelRequest, features: ChatFeatures) -> None:
        """After a stream of nothing, ask without a stream, and raise what that comes to: llama-cpp-python answers what
        it cannot do, such as too long a prompt, so."""
        if built.begun:
            return
        params = _params(request, self._model, replace(features, usage=False), self.facts().max_input_tokens)
        with self._mapped_errors():
            # twice: it also leaves behind a connection that it is about to close
            self._client.with_options(max_retries=1).chat.completions.create(**params | {features.limit_name: 1})

    def _without(self, features: ChatFeatures, details: ErrorDetails) -> ChatFeatures | None:
        if details.status not in (400, 404, 422, 500, 501):
            return None
        words = f"{details.message} {details.param}"
        for name, refused in _REFUSALS.items():
            if getattr(features, name) and refused.search(words):
                less: dict[str, Any] = {name: False}
                return replace(features, **less)
        if features.effort and "reasoning_effort" in words:
            return replace(features, effort=None)
        if features.limit_name == "max_tokens" and "max_completion_tokens' instead" in words:
            return replace(features, limit_name="max_completion_tokens")
        limit, given = _LIMIT.search(words), _INPUT.search(words)
        if features.room is None and limit and given:
            room = int(limit[1]) - int(given[1]) - 16
            return replace(features, room=room) if room >= _LEAST_TOKENS else None
        return None


def _context_tokens(info: Any) -> int | None:
    """Return the context length that an entry of /v1/models tells: vLLM and SGLang, llama.cpp, others."""
    entry: dict[str, Json] = info.to_dict(warnings=False) if info is not None else {}
    meta: dict[str, Json] = entry.get("meta") or {}
    for place, key in ((entry, "max_model_len"), (meta, "n_ctx"), (entry, "context_length"), (entry, "context_window")):
        if isinstance(place.get(key), int) and place[key] > 0:
            return int(place[key])
    return None


# Requests


def _params(request: ModelRequest, model: str, features: ChatFeatures, context: int | None) -> dict[str, Json]:
    """Return the arguments of chat.completions.create."""
    params: dict[str, Json] = {"model": model, "messages": _messages(request, features)}
    if request.tools and features.tools:
        params["tools"] = [_tool(tool, features) for tool in request.tools]
    written = len(json.dumps(params)) // 3  # tokens of the prompt, rather too many than too few
    fits = max(context - written, _LEAST_TOKENS) if context else request.max_tokens
    params[features.limit_name] = min(request.max_tokens, fits, features.room or request.max_tokens)
    if features.usage:
        params["stream_options"] = {"include_usage": True}
    if features.seed and request.seed is not None:
        params["seed"] = request.seed
    if features.logprobs and request.logprobs:
        params |= {"logprobs": True, "top_logprobs": 1}  # llama.cpp takes 0 for none, and nothing for 20
        if features.token_ids:
            params["extra_body"] = {"return_token_ids": True}
    if features.effort:
        params["reasoning_effort"] = features.effort
    return params


def _tool(tool: Tool, features: ChatFeatures) -> Json:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if features.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _messages(request: ModelRequest, features: ChatFeatures) -> list[Json]:
    in_words = tool_calls.tools_in_words(request.tools) if request.tools and not features.tools else ""
    system = request.system + in_words
    first: list[Json] = [{"role": "system", "content": system}] if system else []
    write = _message if features.tools else _message_without_tools
    return first + [item for message in tool_calls.answered(request.messages) for item in write(message)]


def _message(message: Message) -> list[Json]:
    if isinstance(message, User):
        return [_user(message.text)]
    if isinstance(message, Reply):
        made: dict[str, Json] = {"role": "assistant", "content": message.text or (None if message.calls else NO_TEXT)}
        if message.calls:
            made["tool_calls"] = [_function_call(call) for call in message.calls]
        return [made]
    results: list[Json] = [{"role": "tool", "tool_call_id": r.call_id, "content": r.text} for r in message.results]
    return results + ([_user(message.text)] if message.text or not results else [])


def _function_call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.call_id, "type": "function", "function": function}


def _user(text: str) -> Json:
    return {"role": "user", "content": text or NO_TEXT}


def _message_without_tools(message: Message) -> list[Json]:
    """Return a message for a server that knows nothing of tools."""
    if isinstance(message, User):
        return [_user(message.text)]
    if isinstance(message, Reply):
        calls = [
            f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': c.arguments})}\n</tool_call>"
            for c in message.calls
        ]
        return [{"role": "assistant", "content": "\n".join([message.text, *calls]).strip() or NO_TEXT}]
    results = [f"<tool_response>\n{result.text}\n</tool_response>" for result in message.results]
    return [_user("\n".join([*results, message.text]).strip())]


# Replies


@dataclass
class _PartialCall:
    index: int
    call_id: str = ""
    name: str = ""
    text: str = ""  # of the arguments

    @property
    def whole(self) -> bool:
        try:
            json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        return True


class _Completion:
    """One completion, put together from its chunks, however the server numbers its calls. `begun`: something came.
    `complete`: the server said why it ended."""

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self._finish = ""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_PartialCall] = []
        self._usage: dict[str, Json] | None = None
        self._ids: list[Any] = []
        self._logprobs: list[Any] = []
        self._model = ""
        self._id = ""

    def take(self, chunk: dict[str, Json]) -> Iterator[Piece]:
        """Take one chunk; yield what it adds to the reply."""
        self.begun = True
        self._model, self._id = chunk.get("model") or self._model, chunk.get("id") or self._id
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        for choice in (chunk.get("choices") or [])[:1]:  # the chunk with the usage has none
            if reason := choice.get("finish_reason"):
                self._finish, self.complete = str(reason), True
            self._count(choice)
            yield from self._grow(choice.get("delta") or {})

    def _count(self, choice: dict[str, Json]) -> None:
        """Keep what a chunk says of its tokens: vLLM beside their probabilities, llama.cpp among them. None for what
        is no token."""
        beside, told = choice.get("token_ids"), choice.get("logprobs")
        content = told.get("content") if isinstance(told, dict) else None
        tokens = [token if isinstance(token, dict) else {} for token in (content if isinstance(content, list) else [])]
        self._ids += beside if isinstance(beside, list) else [token.get("id") for token in tokens]
        self._logprobs += [token.get("logprob") for token in tokens]

    def _grow(self, delta: dict[str, Json]) -> Iterator[Piece]:
        if text := delta.get("content"):
            self._text.append(text)
            yield "text", text
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._thinking.append(str(thought))
            yield "thinking", str(thought)
        if refusal := delta.get("refusal"):
            self._refusal.append(refusal)
        for part in delta.get("tool_calls") or []:
            if text := self._grow_call(part):
                yield "arguments", text

    def _grow_call(self, part: dict[str, Json]) -> str:
        function = part.get("function") or {}
        name, text = function.get("name") or "", function.get("arguments") or ""
        if not isinstance(text, str):  # some send an object
            text = json.dumps(text)
        call = self._call_for(part.get("index"), str(part.get("id") or ""), name)
        call.name = call.name or name
        call.text += text
        return text

    def _call_for(self, index: int | None, call_id: str, name: str) -> _PartialCall:
        """Return the call that a piece belongs to. Servers leave out the index, give all calls index 0, or repeat the
        name with every piece."""
        same = [call for call in self._calls if index is None or call.index == index]
        last = same[-1] if same else None
        other_id = bool(last and call_id and last.call_id and call_id != last.call_id)
        begins = bool(last and name and last.name and (last.whole or name != last.name))
        if last is None or other_id or begins:
            last = _PartialCall(index if index is not None else len(self._calls), call_id)
            self._calls.append(last)
        last.call_id = last.call_id or call_id
        return last

    def usage(self) -> Usage | None:
        """Return what was counted; most servers count in the last chunk."""
        return openai_usage(self._usage, "prompt", "completion")

    def reply(self, request: ModelRequest, asked: str) -> Reply:
        """Return the reply; its calls may stand in the text."""
        split = tool_calls.split_text("".join(self._text), {tool.name for tool in request.tools})
        calls = self._native_calls() or split.calls
        refused = bool(self._refusal) or _STOPS.get(self._finish) == "refusal"
        believed = request.logprobs and max(len(self._ids), len(self._logprobs)) <= request.max_tokens
        stop: Stop = "refusal" if refused else _STOPS.get(self._finish, "tools" if calls else "end")
        return Reply(
            text=split.text or "".join(self._refusal),
            stop=stop,
            calls=() if refused else tool_calls.distinct(calls, request.messages),
            thinking="".join(self._thinking) or split.thinking,
            detail=" ".join(self._refusal) or (self._finish if refused else ""),
            usage=self.usage(),
            model=self._model or asked,
            reply_id=self._id,
            token_ids=tuple(self._ids) if believed else None,
            logprobs=tuple(self._logprobs) if believed else None,
        )

    def _native_calls(self) -> tuple[ToolCall, ...]:
        limited = _STOPS.get(self._finish) == "max_tokens"
        return tuple(
            tool_calls.parse_call(call.call_id, call.name, call.text, cut_off=limited and call is self._calls[-1])
            for call in self._calls
        )
