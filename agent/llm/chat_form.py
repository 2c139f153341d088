"""The Chat Completions form of a request, and what to leave out when a server does not take it."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from agent.llm import arguments, text_calls
from agent.llm.dialogue import Effort, Message, Reply, Request, Tool, User
from agent.llm.troubles import Said
from tools.codec import Json

NOTHING = "(no words)"
_LEAST_TOKENS = 256  # a reply with less room is not worth asking for
_NO_TOOLS = re.compile(
    r"does not support tools|tool choice requires|enable-auto-tool-choice|tools? param requires|--jinja"
    r"|tools? (is|are) not supported|unsupported.*\btools?\b|tool use is not supported",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"maximum context length (?:is|of) (\d+)", re.IGNORECASE)
_INPUT = re.compile(r"(\d+) (?:input tokens|in the messages|tokens from the input)", re.IGNORECASE)


@dataclass(frozen=True)
class Abilities:
    """What is asked for; dropped when refused."""

    effort: Effort | None = None
    tools: bool = True  # as a field of the request; else they are described in the system prompt
    strict: bool = True
    usage: bool = True  # stream_options
    limit_name: str = "max_tokens"  # or max_completion_tokens
    room: int | None = None  # the tokens for which the server has room


def without(able: Abilities, said: Said) -> Abilities | None:
    """`able` less what an error says is not supported; None when that is nothing that we can do without."""
    if said.status not in (400, 404, 422, 500, 501):
        return None
    words = f"{said.message} {said.param}"
    if able.tools and _NO_TOOLS.search(words):
        return replace(able, tools=False)
    if able.usage and "stream_options" in words:
        return replace(able, usage=False)
    if able.strict and "strict" in words:
        return replace(able, strict=False)
    if able.effort and "reasoning_effort" in words:
        return replace(able, effort=None)
    if able.limit_name == "max_tokens" and "max_completion_tokens' instead" in words:
        return replace(able, limit_name="max_completion_tokens")
    limit, given = _LIMIT.search(words), _INPUT.search(words)
    if able.room is None and limit and given:
        room = int(limit[1]) - int(given[1]) - 16
        return replace(able, room=room) if room >= _LEAST_TOKENS else None
    return None


def context_tokens(info: Any) -> int | None:
    """The context length that an entry of /v1/models tells: vLLM and SGLang, llama.cpp, others."""
    told: dict[str, Json] = info.to_dict(warnings=False) if info is not None else {}
    meta: dict[str, Json] = told.get("meta") or {}
    for place, key in ((told, "max_model_len"), (meta, "n_ctx"), (told, "context_length"), (told, "context_window")):
        if isinstance(place.get(key), int) and place[key] > 0:
            return int(place[key])
    return None


def body(request: Request, model: str, able: Abilities, context: int | None) -> dict[str, Json]:
    """The arguments of chat.completions.create."""
    made: dict[str, Json] = {"model": model, "messages": _messages(request, able)}
    if request.tools and able.tools:
        made["tools"] = [_tool(tool, able) for tool in request.tools]
    written = len(json.dumps(made)) // 3  # tokens of the prompt, rather too many than too few
    fits = max(context - written, _LEAST_TOKENS) if context else request.max_tokens
    made[able.limit_name] = min(request.max_tokens, fits, able.room or request.max_tokens)
    if able.usage:
        made["stream_options"] = {"include_usage": True}
    if able.effort:
        made["reasoning_effort"] = able.effort
    return made


def _tool(tool: Tool, able: Abilities) -> Json:
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    if able.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _messages(request: Request, able: Abilities) -> list[Json]:
    system = request.system + ("" if able.tools or not request.tools else text_calls.instructions(request.tools))
    said: list[Json] = [{"role": "system", "content": system}] if system else []
    form = _message if able.tools else _plain
    return said + [item for message in arguments.answered(request.messages) for item in form(message)]


def _message(message: Message) -> list[Json]:
    if isinstance(message, User):
        return [_user(message.text)]
    if isinstance(message, Reply):
        said: dict[str, Json] = {"role": "assistant", "content": message.text or (None if message.calls else NOTHING)}
        if message.calls:
            said["tool_calls"] = [_call(call.call_id, call.name, call.arguments) for call in message.calls]
        return [said]
    results: list[Json] = [{"role": "tool", "tool_call_id": r.call_id, "content": r.text} for r in message.results]
    return results + ([_user(message.text)] if message.text or not results else [])


def _call(call_id: str, name: str, values: dict[str, Json]) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(values)}}


def _user(text: str) -> Json:
    return {"role": "user", "content": text or NOTHING}


def _plain(message: Message) -> list[Json]:
    """A message for a server that knows nothing of tools."""
    if isinstance(message, User):
        return [_user(message.text)]
    if isinstance(message, Reply):
        calls = [
            f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': c.arguments})}\n</tool_call>"
            for c in message.calls
        ]
        return [{"role": "assistant", "content": "\n".join([message.text, *calls]).strip() or NOTHING}]
    results = [f"<tool_response>\n{result.text}\n</tool_response>" for result in message.results]
    return [_user("\n".join([*results, message.text]).strip())]
