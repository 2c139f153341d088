"""The Responses API, as a provider sees it: checks what it is asked, tells what it says."""

import json
from collections.abc import Iterator

from kerneltune.tools.schema.codec import Json
from tests.agent.models.story import Cache, Counted, Refused, Said, pieces, received, require, require_strict, sse

MODELS: list[dict[str, Json]] = [
    {"id": "gpt-6-sol", "created": 1_780_000_000, "object": "model", "owned_by": "openai"},
    {"id": "gpt-6.1-sol", "created": 1_790_000_000, "object": "model", "owned_by": "openai"},
    {"id": "whisper-9", "created": 1_799_000_000, "object": "model", "owned_by": "openai"},
    {"id": "gpt-5", "created": 1_750_000_000, "object": "model", "owned_by": "openai", "shutdown_date": "2026-12-11"},
]
CALLS = ("function_call", "custom_tool_call")


class Responses:
    """One account at the provider."""

    path = "/v1/responses"

    def __init__(self, unsupported: tuple[str, ...] = ()) -> None:
        self.cache = Cache()
        self.issued: dict[str, tuple[list[Json], int]] = {}  # by an item's id: all items of its response, its place
        self.unsupported = unsupported  # parameters that the model does not take

    def error(self, status: int, kind: str, message: str, code: str = "", param: str = "") -> Json:
        """The body of an error."""
        return {"error": {"type": kind, "message": message, "code": code or None, "param": param or None}}

    def check(self, body: dict[str, Json], headers: dict[str, str]) -> None:
        """Refuse what the API would."""
        require(body.get("store") is False, "stored responses are not what this is about")
        require(body.get("stream"), "streaming is required")
        require(len(body.get("prompt_cache_key", "")) <= 64, "prompt_cache_key: at most 64 characters")
        for tool in body.get("tools", []):
            if tool["type"] == "function" and tool.get("strict"):
                require_strict(tool["parameters"], f"tools.{tool['name']}")
        items = body["input"]
        require(items, "input must not be empty")
        for kind in CALLS:
            calls = [item["call_id"] for item in items if item.get("type") == kind]
            outputs = [item["call_id"] for item in items if item.get("type") == _output(kind)]
            require(len(calls) == len(set(calls)), f"Duplicate item found with call_id {calls}")
            require(sorted(calls) == sorted(outputs), f"No tool output found for {kind}: {calls} {outputs}")
        for i, item in enumerate(items):
            self._check_item(items, i, item)

    def _check_item(self, items: list[Json], place: int, item: dict[str, Json]) -> None:
        if item.get("id") not in self.issued:
            require(item.get("type") != "reasoning", "reasoning items must be those that were sent")
            return
        siblings, own = self.issued[item["id"]]
        require(item == siblings[own], f"Item {item['id']!r} was changed")
        around = items[place - own : place - own + len(siblings)]
        require(around == siblings, f"Item {item['id']!r} was provided without what belongs to it")

    def count(self, body: dict[str, Json]) -> Counted:
        """The tokens of a prompt."""
        segments = [json.dumps([body.get("tools"), body.get("instructions")]), *map(json.dumps, body["input"])]
        return self.cache.count(segments)

    def tell(self, said: Said, counted: Counted, body: dict[str, Json]) -> Iterator[bytes]:
        """The events of a reply."""
        items = self._items(said, body)
        head = {"id": f"resp_{said.number}", "object": "response", "created_at": 1.0, "model": body["model"]}
        head |= {"status": "in_progress", "output": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        for number, event in enumerate(self._events(said, items, head, counted)):
            yield sse(event | {"sequence_number": number}, event["type"])

    def _events(
        self, said: Said, items: list[Json], head: dict[str, Json], counted: Counted
    ) -> Iterator[dict[str, Json]]:
        yield {"type": "response.created", "response": head}
        yield {"type": "response.in_progress", "response": head}
        for i, item in enumerate(items):
            yield {"type": "response.output_item.added", "output_index": i, "item": _bare(item)}
            yield from _deltas(i, item)
            yield {"type": "response.output_item.done", "output_index": i, "item": item}
        reason = {"max_tokens": "max_output_tokens"}.get(said.stop)
        usage = {
            "input_tokens": counted.total,
            "input_tokens_details": {"cached_tokens": counted.cached, "cache_write_tokens": counted.written},
            "output_tokens": said.output_tokens,
            "output_tokens_details": {"reasoning_tokens": len(said.thinking) // 4},
            "total_tokens": counted.total + said.output_tokens,
        }
        status = "incomplete" if reason else "completed"
        ended = head | {"status": status, "output": items, "usage": usage}
        ended["incomplete_details"] = {"reason": reason} if reason else None
        if not reason:
            self.issued |= {item["id"]: (received(items), i) for i, item in enumerate(items)}
        yield {"type": f"response.{status}", "response": ended}

    def _items(self, said: Said, body: dict[str, Json]) -> list[Json]:
        items: list[Json] = []
        cut = "incomplete" if said.stop == "max_tokens" else "completed"
        if said.thinking:
            items.append(
                {
                    "id": f"rs_{said.number}",
                    "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": said.thinking}],
                    "encrypted_content": f"gAAAA{said.number}==",
                }
            )
        if said.text:
            part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
            if said.stop == "refusal":
                part = {"type": "refusal", "refusal": said.detail}
            message = {"id": f"msg_{said.number}", "type": "message", "role": "assistant", "status": "completed"}
            items.append(message | {"content": [part], "phase": "commentary"})
        for i, (name, text) in enumerate(said.calls):
            status = cut if i == len(said.calls) - 1 else "completed"
            items.append(self._call(said, i, name, text, status, body))
        return items

    def _call(self, said: Said, i: int, name: str, text: str, status: str, body: dict[str, Json]) -> Json:
        call_id = {"call_id": said.call_id(i)}
        free = any(tool["type"] == "custom" and tool["name"] == f"{name}_source" for tool in body.get("tools", []))
        if free and (plain := _plain(text)) is not None:
            return (
                {"id": f"ctc_{said.number}x{i}", "type": "custom_tool_call", "name": f"{name}_source"}
                | call_id
                | {"input": plain}
            )
        function = {"id": f"fc_{said.number}x{i}", "type": "function_call", "name": name, "status": status}
        return function | call_id | {"arguments": text}

    def error_event(self, kind: str, message: str) -> bytes:
        """An error within a stream."""
        failed = {"id": "resp_x", "object": "response", "created_at": 1.0, "status": "failed", "output": []}
        failed |= {"model": "gpt", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        failed["error"] = {"code": "server_error", "message": message}
        return sse({"type": "response.failed", "sequence_number": 9, "response": failed}, "response.failed")

    def models(self) -> Json:
        """The list of models."""
        return {"object": "list", "data": MODELS}

    def model(self, name: str) -> Json:
        """One model."""
        for model in MODELS:
            if model["id"] == name:
                return model
        raise Refused(f"The model '{name}' does not exist", 404, "invalid_request_error")


def _output(kind: str) -> str:
    return "custom_tool_call_output" if kind == "custom_tool_call" else "function_call_output"


def _plain(text: str) -> str | None:
    """A call as a model would write it in plain text; None for one without a source, or that is cut off."""
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not values.get("source"):
        return None
    lines = [f"# {key}: {value}" for key, value in values.items() if key != "source" and value is not None]
    return "\n".join([*lines, values["source"]])


def _bare(item: dict[str, Json]) -> Json:
    return item | {"encrypted_content": "gAAA", "summary": []} if item["type"] == "reasoning" else item


def _deltas(index: int, item: dict[str, Json]) -> Iterator[dict[str, Json]]:
    place = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "reasoning":
        for piece in pieces(item["summary"][0]["text"]):
            yield {"type": "response.reasoning_summary_text.delta", "delta": piece, "summary_index": 0} | place
    elif item["type"] == "message":
        kind, text = item["content"][0]["type"], item["content"][0].get("text") or item["content"][0].get("refusal")
        name = "response.output_text.delta" if kind == "output_text" else "response.refusal.delta"
        for piece in pieces(text):
            yield {"type": name, "delta": piece, "content_index": 0, "logprobs": []} | place
    elif item["type"] == "function_call":
        for piece in pieces(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", "delta": piece} | place
    else:
        for piece in pieces(item["input"]):
            yield {"type": "response.custom_tool_call_input.delta", "delta": piece} | place
