"""Puts a message of the Messages API together from its events.

Not with the SDK's helper: that parses a tool's whole input again with each piece, and gives up the message when a
model writes something that is not JSON.
"""

from collections.abc import Callable
from typing import Literal

from agent.llm import arguments
from agent.llm.anthropic_form import API
from agent.llm.dialogue import Call, Reply, Stop, Usage
from tools.codec import Json

_STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "context",
    "refusal": "refusal",
    "pause_turn": "max_tokens",  # paused more often than we go on
}
_KEPT = 2000  # characters of an input that is not JSON that the model sees again
Piece = tuple[Literal["text", "thinking", "arguments"], str]


class MessageBuilder:
    """One message, or several that continue each other."""

    def __init__(self) -> None:
        self.complete = False
        self.stop_reason = ""
        self._category = ""
        self._message: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self._blocks: dict[int, dict[str, Json]] = {}
        self._inputs: dict[int, str] = {}  # the JSON of tool inputs, as far as it came
        self._parts: list[MessageBuilder] = [self]

    def take(self, event: dict[str, Json]) -> Piece | None:
        """Take one event; what it adds to the reply, if that is for a listener."""
        kind = event.get("type")
        if kind == "message_start":
            self._message = event["message"]
            self._usage.update(self._message.get("usage") or {})
        elif kind == "content_block_start":
            self._blocks[event["index"]] = dict(event["content_block"])
        elif kind == "content_block_delta":
            return self._grow(event["index"], event["delta"])
        elif kind == "message_delta":
            self._end(event)
        elif kind == "message_stop":
            self.complete = bool(self.stop_reason)
        return None

    def _grow(self, index: int, delta: dict[str, Json]) -> Piece | None:
        block = self._blocks.get(index, {})
        kind = delta.get("type")
        if kind == "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
            return "text", delta["text"]
        if kind == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
            return "thinking", delta["thinking"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            return "arguments", delta["partial_json"]
        if kind == "signature_delta":
            block["signature"] = delta["signature"]
        return None

    def _end(self, event: dict[str, Json]) -> None:
        self.stop_reason = event["delta"].get("stop_reason") or ""
        self._category = (event["delta"].get("stop_details") or {}).get("category") or ""
        self._usage.update({k: v for k, v in (event.get("usage") or {}).items() if v is not None})  # totals so far

    def append(self, part: "MessageBuilder") -> None:
        """Go on with `part`, the continuation of a paused turn."""
        self._parts = [p for p in self._parts if p is not self] + [part]
        self.stop_reason, self._category = part.stop_reason, part._category

    def items(self) -> list[Json]:
        """The content to send back: as it came, but for what the API would not take: thinking that was cut off before
        its signature, text without a character, an input that is no JSON object."""
        return [self._item(i, block) for i, block in sorted(self._blocks.items()) if _takeable(block)]

    def _item(self, index: int, block: dict[str, Json]) -> dict[str, Json]:
        if block.get("type") != "tool_use":
            return block
        return block | {"input": self._call(index, block)[1]}

    def _call(self, index: int, block: dict[str, Json]) -> tuple[Call, dict[str, Json]]:
        """The call that a block holds, and the input to send back for it."""
        text = self._inputs.get(index, "")
        if not text and block.get("input"):
            return Call(block["id"], block["name"], block["input"]), block["input"]
        read = arguments.read(text, cut_off=self.stop_reason == "max_tokens")
        shown = {"INVALID_JSON": text[:_KEPT]} if read.problem and text else read.values
        return Call(block["id"], block["name"], read.values, read.problem), shown

    def _calls(self) -> list[Call]:
        return [self._call(i, b)[0] for i, b in sorted(self._blocks.items()) if b.get("type") == "tool_use"]

    def _words(self, kind: str) -> list[str]:
        return [b.get(kind, "") for _, b in sorted(self._blocks.items()) if b.get("type") == kind]

    def reply(self, asked: str, price_usd: Callable[[Usage], float | None]) -> Reply:
        """The reply in neutral words. A refused one keeps no calls and nothing to send back."""
        refused = self.stop_reason == "refusal"
        calls = () if refused else tuple(call for part in self._parts for call in part._calls())
        stop = _STOPS.get(self.stop_reason, "end")
        usage = _sum([part._counted() for part in self._parts])
        items = [item for part in self._parts for item in part.items()]
        return Reply(
            text="".join(word for part in self._parts for word in part._words("text")),
            stop="tools" if calls and stop == "end" else stop,
            calls=calls,
            thinking="\n\n".join(word for part in self._parts for word in part._words("thinking") if word),
            detail=self._category or (self.stop_reason if self.stop_reason not in _STOPS else ""),
            usage=usage,
            cost_usd=price_usd(usage) if usage else None,
            raw=None if refused else {"api": API, "asked": asked, "items": items},
            model=self._parts[-1]._message.get("model") or asked,
            reply_id=self._parts[-1]._message.get("id") or "",
        )

    def _counted(self) -> Usage | None:
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


def _takeable(block: dict[str, Json]) -> bool:
    if block.get("type") == "thinking":
        return bool(block.get("signature"))
    return block.get("type") != "text" or bool(block.get("text", "").strip())


def _sum(used: list[Usage | None]) -> Usage | None:
    known = [usage for usage in used if usage is not None]
    if not known:
        return None
    thought = [usage.thinking_tokens for usage in known if usage.thinking_tokens is not None]
    return Usage(
        sum(usage.input_tokens for usage in known),
        sum(usage.output_tokens for usage in known),
        sum(usage.cached_tokens for usage in known),
        sum(usage.cache_write_tokens for usage in known),
        sum(thought) if thought else None,
        sum(usage.cache_write_1h_tokens for usage in known),
    )
