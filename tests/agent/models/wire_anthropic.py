"""The Messages API, as a provider sees it: checks what it is asked, tells what it says."""

from collections.abc import Iterator

from kerneltune.tools.schema.codec import Json, encode
from tests.agent.models.story import Cache, Counted, Refused, Said, pieces, received, require, require_strict, sse

MODELS: list[dict[str, Json]] = [
    {"id": "claude-opus-5-5", "line": "opus", "created_at": "2026-09-01T00:00:00Z", "lifecycle": "active"},
    {"id": "claude-haiku-5-5", "line": "haiku", "created_at": "2026-10-01T00:00:00Z", "lifecycle": "active"},
    {"id": "claude-opus-5", "line": "opus", "created_at": "2026-03-01T00:00:00Z", "lifecycle": "active"},
    {
        "id": "claude-sonnet-4-5",
        "line": "sonnet",
        "created_at": "2025-09-29T00:00:00Z",
        "lifecycle": "deprecated",
        "retires_at": "2026-11-30T00:00:00Z",
    },
]
BLOCKS = ("text", "thinking", "tool_use", "tool_result")
YES, NO = {"supported": True}, {"supported": False}
_STOPS = {"": "end_turn", "end": "end_turn", "tools": "tool_use", "context": "model_context_window_exceeded"}


def described(model: dict[str, Json]) -> dict[str, Json]:
    """A model as the API describes it. The old one neither thinks adaptively nor knows effort."""
    new = model["lifecycle"] == "active"
    levels = {"low": YES, "medium": YES, "high": YES, "xhigh": NO, "max": YES if model["line"] == "opus" else NO}
    types = {"adaptive": YES if new else NO, "between_tools": NO, "disabled": YES, "enabled": YES}
    capabilities = dict.fromkeys(("batch", "citations", "code_execution", "image_input", "pdf_input"), YES) | {
        "context_management": YES,
        "server_tools": YES,
        "structured_outputs": YES if new else NO,
        "effort": {"supported": new} | levels,
        "thinking": {"supported": True, "types": types},
    }
    more = {"type": "model", "display_name": model["id"], "max_input_tokens": 200_000, "max_tokens": 64_000}
    return model | more | {"capabilities": capabilities, "deprecated_at": None}


class Messages:
    """One account at the provider."""

    path = "/v1/messages"

    def __init__(self) -> None:
        self.cache = Cache()
        self.issued: dict[str, list[Json]] = {}  # content by the ids of its calls
        self.signed: dict[str, Json] = {}

    def error(self, status: int, kind: str, message: str, code: str = "", param: str = "") -> Json:
        """The body of an error."""
        details = {"details": {"error_code": code}} if code else {}
        return {"type": "error", "error": {"type": kind, "message": message} | details, "request_id": "req_1"}

    def check(self, body: dict[str, Json], headers: dict[str, str]) -> None:
        """Refuse what the API would."""
        require(headers.get("anthropic-version"), "anthropic-version: header is required")
        require(body.get("max_tokens", 0) > 0, "max_tokens: required")
        require(body.get("stream"), "streaming is required")
        for tool in body.get("tools", []):
            if tool.get("strict"):
                require_strict(tool["input_schema"], f"tools.{tool['name']}")
        self._check_cache(body)
        messages = body["messages"]
        require(messages and messages[-1]["role"] == "user", "the conversation must end with a user message")
        ids = [b["id"] for message in messages for b in message["content"] if b["type"] == "tool_use"]
        require(len(ids) == len(set(ids)), "messages: `tool_use` ids must be unique")
        for i, message in enumerate(messages):
            self._check_message(message, messages[i + 1] if i + 1 < len(messages) else None)

    def _check_cache(self, body: dict[str, Json]) -> None:
        places = [*body.get("tools", []), *body.get("system", [])]
        places += [block for message in body["messages"] for block in message["content"]]
        marks = [place["cache_control"].get("ttl", "5m") for place in places if "cache_control" in place]
        if "cache_control" in body:
            marks.append(body["cache_control"].get("ttl", "5m"))
        require(len(marks) <= 4, "a maximum of 4 blocks with cache_control may be provided")
        require(marks == sorted(marks), "a ttl='1h' block must not come after a ttl='5m' block")

    def _check_message(self, message: dict[str, Json], after: dict[str, Json] | None) -> None:
        content = message["content"]
        require(content, "messages: content must not be empty")
        for block in content:
            require(block.get("type") in BLOCKS, f"messages: Input tag {block.get('type')!r} is none of {BLOCKS}")
            require(block["type"] != "text" or block["text"].strip(), "text content blocks must be non-empty")
            if block["type"] == "thinking":
                same = self.signed.get(block.get("signature", "")) == block
                require(same, "messages: `thinking` blocks cannot be modified, Invalid `signature` in `thinking` block")
        asked = [block["id"] for block in content if block["type"] == "tool_use"]
        if asked:
            thoughts = [block for block in self.issued.get(asked[0], []) if block["type"] == "thinking"]
            require(all(thought in content for thought in thoughts), "thinking blocks must be sent back")
            given = [b["tool_use_id"] for b in (after or {"content": []})["content"] if b["type"] == "tool_result"]
            require(sorted(asked) == sorted(given), f"`tool_use` ids without `tool_result` after them: {asked}")

    def count(self, body: dict[str, Json]) -> Counted:
        """The tokens of a prompt: tools and system are one segment, each message another."""
        segments = [str(encode([body.get("tools"), body.get("system")]))]
        hour = any("cache_control" in place for place in [*body.get("tools", []), *body.get("system", [])])
        marks = {0: True} if hour else {}
        for block in (block for message in body["messages"] for block in message["content"]):
            segments.append(str(encode({k: v for k, v in block.items() if k != "cache_control"})))
            if "cache_control" in block:
                marks[len(segments) - 1] = False
        if "cache_control" in body:
            marks[len(segments) - 1] = False
        return self.cache.count(segments, marks, look_back=20)

    def tell(self, said: Said, counted: Counted, body: dict[str, Json]) -> Iterator[bytes]:
        """The events of a reply."""
        thinks = said.thinking and body.get("thinking", {}).get("type") == "adaptive"
        used = {
            "input_tokens": counted.total - counted.cached - counted.written,
            "cache_read_input_tokens": counted.cached,
            "cache_creation_input_tokens": counted.written,
            "cache_creation": {
                "ephemeral_1h_input_tokens": counted.written_1h,
                "ephemeral_5m_input_tokens": counted.written - counted.written_1h,
            },
            "output_tokens": 1,
            "service_tier": "standard",
        }
        head: dict[str, Json] = {"id": f"msg_{said.number}", "type": "message", "role": "assistant", "content": []}
        head |= {"model": body["model"], "stop_reason": None, "stop_sequence": None, "usage": used}
        yield sse({"type": "message_start", "message": head}, "message_start")
        yield sse({"type": "ping"}, "ping")
        content: list[Json] = []
        if thinks:
            block = received({"type": "thinking", "thinking": said.thinking, "signature": f"sig-{said.number}=="})
            self.signed[block["signature"]] = block
            content.append(block)
            yield from self._block(0, {"type": "thinking", "thinking": "", "signature": ""}, self._thought(block, said))
        if said.text:
            content.append({"type": "text", "text": said.text})
            texts = [{"type": "text_delta", "text": piece} for piece in pieces(said.text)]
            yield from self._block(len(content) - 1, {"type": "text", "text": ""}, texts)
        for i, (name, text) in enumerate(said.calls):
            call: dict[str, Json] = {"type": "tool_use", "id": f"toolu_{said.call_id(i)}", "name": name, "input": {}}
            content.append(call)
            self.issued.setdefault(call["id"], content)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(text)]]
            yield from self._block(len(content) - 1, call, deltas)
        stop = _STOPS.get(said.stop, said.stop)
        if said.calls and not said.stop:
            stop = "tool_use"
        details = {"type": "refusal", "category": said.detail, "explanation": None} if stop == "refusal" else None
        delta = {"stop_reason": stop, "stop_sequence": None, "stop_details": details}
        ended = {
            "output_tokens": said.output_tokens,
            "output_tokens_details": {"thinking_tokens": len(said.thinking) // 4},
        }
        yield sse({"type": "message_delta", "delta": delta, "usage": ended}, "message_delta")
        yield sse({"type": "message_stop"}, "message_stop")

    def _thought(self, block: Json, said: Said) -> list[Json]:
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(said.thinking)]
        if said.stop == "max_tokens" and not said.text and not said.calls:
            return deltas  # cut off before it was signed
        return [*deltas, {"type": "signature_delta", "signature": block["signature"]}]

    def _block(self, index: int, start: Json, deltas: list[Json]) -> Iterator[bytes]:
        yield sse({"type": "content_block_start", "index": index, "content_block": start}, "content_block_start")
        for delta in deltas:
            yield sse({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield sse({"type": "content_block_stop", "index": index}, "content_block_stop")

    def error_event(self, kind: str, message: str) -> bytes:
        """An error within a stream."""
        return sse(self.error(200, kind, message), "error")

    def models(self) -> Json:
        """The list of models."""
        data = [described(model) for model in MODELS]
        return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}

    def model(self, name: str) -> Json:
        """One model."""
        for model in MODELS:
            if model["id"] == name:
                return described(model)
        raise Refused(f"model: {name}", 404, "not_found_error")
