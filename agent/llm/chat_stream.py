"""Puts a reply together from the chunks of a chat completion, however a server numbers its calls."""

import json
from dataclasses import dataclass, replace
from typing import Literal

from agent.llm import arguments, text_calls
from agent.llm.dialogue import Call, Reply, Request, Stop, Usage
from tools.codec import Json

Piece = tuple[Literal["text", "thinking", "arguments"], str]
_STOPS: dict[str, Stop] = {"length": "max_tokens", "max_tokens": "max_tokens", "content_filter": "refusal"}


@dataclass
class _Call:
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


class ChatBuilder:
    """One completion. `begun`: something came. `complete`: the server said why it ended."""

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self._finish = ""
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[_Call] = []
        self._usage: dict[str, Json] | None = None
        self._model = ""
        self._id = ""

    def take(self, chunk: dict[str, Json]) -> list[Piece]:
        """Take one chunk; what it adds to the reply."""
        self.begun = True
        self._model, self._id = chunk.get("model") or self._model, chunk.get("id") or self._id
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        choices = chunk.get("choices") or []  # the chunk with the usage has none
        if not choices:
            return []
        if reason := choices[0].get("finish_reason"):
            self._finish, self.complete = str(reason), True
        return self._grow(choices[0].get("delta") or {})

    def _grow(self, delta: dict[str, Json]) -> list[Piece]:
        pieces: list[Piece] = []
        if text := delta.get("content"):
            self._text.append(text)
            pieces.append(("text", text))
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._thinking.append(str(thought))
            pieces.append(("thinking", str(thought)))
        if refusal := delta.get("refusal"):
            self._refusal.append(refusal)
        for part in delta.get("tool_calls") or []:
            if text := self._grow_call(part):
                pieces.append(("arguments", text))
        return pieces

    def _grow_call(self, part: dict[str, Json]) -> str:
        function = part.get("function") or {}
        name, text = function.get("name") or "", function.get("arguments") or ""
        if not isinstance(text, str):  # some send an object
            text = json.dumps(text)
        call = self._call_for(part.get("index"), str(part.get("id") or ""), name)
        call.name = call.name or name
        call.text += text
        return text

    def _call_for(self, index: int | None, call_id: str, name: str) -> _Call:
        """The call that a piece belongs to. Servers leave out the index, give all calls index 0, or repeat the name
        with every piece."""
        same = [call for call in self._calls if index is None or call.index == index]
        last = same[-1] if same else None
        other_id = bool(last and call_id and last.call_id and call_id != last.call_id)
        begins = bool(last and name and last.name and (last.whole or name != last.name))
        if last is None or other_id or begins:
            last = _Call(index if index is not None else len(self._calls), call_id)
            self._calls.append(last)
        last.call_id = last.call_id or call_id
        return last

    def reply(self, request: Request, asked: str) -> Reply:
        """The reply in neutral words."""
        parted = text_calls.part("".join(self._text), {tool.name for tool in request.tools})
        calls = self._native_calls() or parted.calls
        refused = bool(self._refusal) or _STOPS.get(self._finish) == "refusal"
        stop: Stop = "refusal" if refused else _STOPS.get(self._finish, "tools" if calls else "end")
        return Reply(
            text=parted.text or "".join(self._refusal),
            stop=stop,
            calls=() if refused else arguments.distinct(calls, f"call_{len(request.messages)}"),
            thinking="".join(self._thinking) or parted.thinking,
            detail=" ".join(self._refusal) or (self._finish if refused else ""),
            usage=_usage(self._usage),
            model=self._model or asked,
            reply_id=self._id,
        )

    def _native_calls(self) -> tuple[Call, ...]:
        made = []
        for call in self._calls:
            cut_off = _STOPS.get(self._finish) == "max_tokens" and call is self._calls[-1]
            read = arguments.read(call.text, cut_off=cut_off)
            made.append(Call(call.call_id, call.name, read.values, read.problem))
        return tuple(made)


def _usage(used: dict[str, Json] | None) -> Usage | None:
    if not used or used.get("prompt_tokens") is None:
        return None
    read, written = used.get("prompt_tokens_details") or {}, used.get("completion_tokens_details") or {}
    usage = Usage(used["prompt_tokens"], used.get("completion_tokens") or 0, read.get("cached_tokens") or 0)
    return replace(
        usage,
        cache_write_tokens=read.get("cache_write_tokens") or 0,
        thinking_tokens=written.get("reasoning_tokens"),
    )
