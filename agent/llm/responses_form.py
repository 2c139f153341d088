"""The Responses API's form of a request, and what to leave out when a server does not take it."""

import copy
import hashlib
import json
from dataclasses import dataclass, replace

from agent.llm import arguments, source_text
from agent.llm.anthropic_form import EFFORTS
from agent.llm.dialogue import Call, Effort, Message, Reply, Request, Results, Tool, User
from agent.llm.troubles import Said
from tools.codec import Json

API = "openai-responses"
NOTHING = "(no words)"


@dataclass(frozen=True)
class Abilities:
    """What is asked for. The API lists no capabilities, so all of it is tried, and dropped when refused."""

    effort: Effort | None = "high"
    reasoning: bool = True  # effort and summary
    summary: bool = True
    encrypted: bool = True
    free_text: bool = True  # tools that take plain text
    strict: bool = True


def without(able: Abilities, said: Said) -> Abilities | None:
    """`able` less what a 400 says is not supported; None when that is nothing that we can do without."""
    if said.status not in (400, 422):
        return None
    words, param = said.message.lower(), said.param.lower()
    if able.summary and able.reasoning and ("reasoning.summary" in param or "reasoning summar" in words):
        return replace(able, summary=False)
    if able.reasoning and "reasoning.effort" in (param + words) and "value" in words and able.effort != "low":
        return replace(able, effort=_less(able.effort))
    if able.reasoning and param.startswith("reasoning"):
        return replace(able, reasoning=False, effort=None)
    if able.encrypted and (param == "include" or "encrypted content is not supported" in words):
        return replace(able, encrypted=False)
    if able.free_text and param.startswith("tools") and "strict" not in param and "custom" in words:
        return replace(able, free_text=False)
    if able.strict and ("strict" in param or "invalid schema" in words):
        return replace(able, strict=False)
    return None


def _less(effort: Effort | None) -> Effort:
    return EFFORTS[max(EFFORTS.index(effort or "low") - 1, 0)]


def body(request: Request, model: str, able: Abilities) -> dict[str, Json]:
    """The arguments of responses.create."""
    messages = arguments.answered(request.messages)
    made: dict[str, Json] = {
        "model": model,
        "input": [item for message in messages for item in _items(message, model, request.tools)],
        "store": False,
        "max_output_tokens": request.max_tokens,
    }
    if request.system:
        made["instructions"] = request.system
    if request.tools:
        made["tools"] = [form for tool in request.tools for form in _tools(tool, able)]
        made["parallel_tool_calls"] = True
    if able.reasoning:
        made["reasoning"] = {"effort": able.effort} | ({"summary": "auto"} if able.summary else {})
    if able.encrypted:
        made["include"] = ["reasoning.encrypted_content"]
    if request.key:
        made["prompt_cache_key"] = cache_key(request.key)
    return made


def cache_key(key: str) -> str:
    """`key` as one that the API takes: at most 64 characters."""
    return key if len(key) <= 64 else hashlib.sha256(key.encode()).hexdigest()


def _tools(tool: Tool, able: Abilities) -> list[Json]:
    function: Json = {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": able.strict,
    }
    if not (tool.source and able.free_text):
        return [function]
    function["description"] += f"\nTo give a whole source, call `{source_text.name(tool)}` instead."
    return [
        function,
        {
            "type": "custom",
            "name": source_text.name(tool),
            "description": source_text.description(tool),
            "format": {"type": "text"},
        },
    ]


def _items(message: Message, model: str, tools: tuple[Tool, ...]) -> list[Json]:
    if isinstance(message, User):
        return [_says("user", message.text)]
    if isinstance(message, Reply):
        return _own_items(message, model) or _rebuilt(message, tools)
    return _outputs(message)


def _says(role: str, text: str) -> Json:
    return {"role": role, "content": text if text.strip() else NOTHING}


def _outputs(results: Results) -> list[Json]:
    kinds: list[Json] = [
        {"type": _output_kind(result.call_id), "call_id": _bare(result.call_id), "output": result.text}
        for result in results.results
    ]
    return kinds + ([_says("user", results.text)] if results.text or not kinds else [])


# A free-text call must be answered as one. Its neutral id says that it was one, so that nothing has to be looked up.
_FREE = "free_"


def neutral_id(item: dict[str, Json]) -> str:
    """The id of a call in neutral words."""
    return (_FREE if item["type"] == "custom_tool_call" else "") + str(item["call_id"])


def _output_kind(call_id: str) -> str:
    return "custom_tool_call_output" if call_id.startswith(_FREE) else "function_call_output"


def _bare(call_id: str) -> str:
    return call_id.removeprefix(_FREE)


def _own_items(reply: Reply, model: str) -> list[Json]:
    """What this model sent, as it was sent: reasoning is encrypted. Nothing for another's reply."""
    raw = reply.raw
    if not isinstance(raw, dict) or raw.get("api") != API or raw.get("asked") != model:
        return []
    return copy.deepcopy(raw["items"]) if isinstance(raw.get("items"), list) else []


def _rebuilt(reply: Reply, tools: tuple[Tool, ...]) -> list[Json]:
    calls: list[Json] = [_rebuilt_call(call, tools) for call in reply.calls]
    return ([_says("assistant", reply.text)] if reply.text.strip() or not calls else []) + calls


def _rebuilt_call(call: Call, tools: tuple[Tool, ...]) -> Json:
    if not call.call_id.startswith(_FREE):
        arguments_text = json.dumps(call.arguments)
        return {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": arguments_text}
    tool = next((tool for tool in tools if tool.name == call.name), None)
    text = source_text.write(tool, call.arguments) if tool else ""
    name = call.name + source_text.SUFFIX if tool else call.name
    return {"type": "custom_tool_call", "call_id": _bare(call.call_id), "name": name, "input": text}
