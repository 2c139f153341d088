"""Puts a reply together from the events of the Responses API."""

from collections.abc import Callable, Sequence
from typing import Literal

from agent.llm import arguments, source_text
from agent.llm.dialogue import Call, Reply, Stop, Tool, Usage
from agent.llm.responses_form import API, neutral_id
from agent.llm.troubles import Said
from tools.codec import Json

Piece = tuple[Literal["text", "thinking", "arguments"], str]
_PIECES: dict[str, Literal["text", "thinking", "arguments"]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "arguments",
}
_REFUSALS = {"bio_policy", "misalignment_policy_violation", "invalid_prompt", "content_filter", "cyber_policy"}


class ResponseBuilder:
    """One response. `failure`: what the server says went wrong within the stream."""

    def __init__(self) -> None:
        self.complete = False
        self.failure: Said | None = None
        self._refusal = ""
        self._items: dict[int, dict[str, Json]] = {}  # by output_index, as the done events have them
        self._response: dict[str, Json] = {}

    def take(self, event: dict[str, Json]) -> Piece | None:
        """Take one event; what it adds to the reply, if that is for a listener."""
        kind = str(event.get("type"))
        if kind in _PIECES:
            return _PIECES[kind], event.get("delta") or ""
        if kind == "response.output_item.done":  # those of `added` may lack encrypted content
            self._items[event.get("output_index", len(self._items))] = event["item"]
        elif kind in ("response.completed", "response.incomplete"):
            self._response = event["response"]
            self.complete = True
        elif kind == "response.failed":
            self._response = event["response"]
            self._fail(self._response.get("error") or {})
        elif kind == "error":
            self._fail(event.get("error") or event)
        return None

    def _fail(self, error: dict[str, Json]) -> None:
        code = str(error.get("code") or "")
        if code in _REFUSALS:
            self.complete, self._refusal = True, code
        else:
            words = str(error.get("message") or "the response failed")
            kind = str(error.get("type") or "").removeprefix("error")  # that is the event's
            self.failure = Said(200, words, kind=kind, code=code)

    def _output(self) -> list[dict[str, Json]]:
        done = [item for _, item in sorted(self._items.items())]
        return done or list(self._response.get("output") or [])

    def reply(self, tools: Sequence[Tool], asked: str, price_usd: Callable[[Usage], float | None]) -> Reply:
        """The reply in neutral words. Only a completed one keeps its items: reasoning that lacks what followed it is
        not taken back."""
        output = self._output()
        stop, detail = self._stop(output)
        cut_off = output[-1] if output and stop == "max_tokens" else None
        calls = tuple(_call(item, tools, item is cut_off) for item in output if _is_call(item))
        usage = _usage(self._response.get("usage"))
        whole = self._response.get("status") == "completed" and stop != "refusal"
        return Reply(
            text="".join(_parts(output, "output_text", "text")),
            stop="tools" if calls and stop == "end" else stop,
            calls=() if stop == "refusal" else calls,
            thinking="\n\n".join(_thoughts(output)),
            detail=detail,
            usage=usage,
            cost_usd=price_usd(usage) if usage else None,
            raw={"api": API, "asked": asked, "items": output} if whole else None,
            model=self._response.get("model") or asked,
            reply_id=self._response.get("id") or "",
        )

    def _stop(self, output: list[dict[str, Json]]) -> tuple[Stop, str]:
        if self._refusal:
            return "refusal", self._refusal
        if said := _parts(output, "refusal", "refusal"):
            return "refusal", " ".join(said)
        reason = (self._response.get("incomplete_details") or {}).get("reason")
        if reason == "content_filter":
            return "refusal", "content_filter"
        return ("max_tokens", "") if reason else ("end", "")


def _call(item: dict[str, Json], tools: Sequence[Tool], cut_off: bool) -> Call:
    """cut_off: the reply reached its limit of tokens in this item."""
    call_id, name = neutral_id(item), str(item["name"])
    if item["type"] == "function_call":
        read = arguments.read(item.get("arguments") or "", cut_off=cut_off)
        return Call(call_id, name, read.values, read.problem)
    tool = next((tool for tool in tools if tool.source and source_text.name(tool) == name), None)
    if tool is None:
        return Call(call_id, name, {}, f"no tool {name!r} takes plain text")
    if cut_off:
        return Call(call_id, tool.name, {}, arguments.CUT_OFF)
    return Call(call_id, tool.name, source_text.parse(tool, item.get("input") or ""))


def _is_call(item: dict[str, Json]) -> bool:
    return item.get("type") in ("function_call", "custom_tool_call")


def _parts(output: list[dict[str, Json]], kind: str, key: str) -> list[str]:
    messages = [item for item in output if item.get("type") == "message"]
    return [part.get(key) or "" for m in messages for part in m.get("content") or [] if part.get("type") == kind]


def _thoughts(output: list[dict[str, Json]]) -> list[str]:
    thoughts = []
    for item in output:
        if item.get("type") == "reasoning":
            parts = item.get("summary") or item.get("content") or []
            thoughts += [part["text"] for part in parts if part.get("text")]
    return thoughts


def _usage(used: dict[str, Json] | None) -> Usage | None:
    if not used or used.get("input_tokens") is None:
        return None
    read, written = used.get("input_tokens_details") or {}, used.get("output_tokens_details") or {}
    return Usage(
        input_tokens=used["input_tokens"],
        output_tokens=used.get("output_tokens") or 0,
        cached_tokens=read.get("cached_tokens") or 0,
        cache_write_tokens=read.get("cache_write_tokens") or 0,
        thinking_tokens=written.get("reasoning_tokens"),
    )
