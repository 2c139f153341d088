"""What a fake provider says, in neutral words, and what can go wrong while it says it."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Literal

from kerneltune.tools.schema.codec import Json

FaultKind = Literal[
    "status",  # an error instead of an answer
    "error_event",  # an error within the stream
    "reset",  # the connection is reset in mid-stream
    "truncated",  # the stream ends in the middle of an event
    "ended",  # the stream ends between two events, without its last ones
    "silence",  # before anything is answered
    "stall",  # silence in mid-stream
    "drip",  # every event after a pause
    "comments",  # comments, each after a pause, and nothing else
    "flood",  # an event again and again
    "line",  # an event without an end
    "max_tokens",  # the reply ends in the middle of its last call
    "thought",  # the reply ends in the middle of its thinking
    "empty",  # a reply of nothing
    "refusal",
    "unknown_tool",
    "same_ids",  # all calls have one id
    "bad_json",  # arguments that are not JSON
    "nan",  # arguments that only Python takes for JSON
    "bad_usage",  # counts of tokens that cannot be
    "html",  # something else answers
    "nonsense",  # an event without what it should have
]


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request."""

    kind: FaultKind
    status: int = 529
    retry_after: str | None = None
    code: str = ""  # the provider's code of the error
    message: str = ""
    param: str = ""  # the parameter that the error is about
    pause_s: float = 30.0  # of a stall, or between the events of a drip

    @property
    def keeps_story(self) -> bool:
        """Is the story's line still to come? It is unless the line was told."""
        return self.kind not in ("stall", "drip", "bad_usage", "same_ids")


@dataclass(frozen=True)
class Said:
    """One reply to tell in a wire format."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # names and arguments as text, usually JSON
    stop: str = ""
    detail: str = ""
    number: int = 0  # makes ids that differ
    same_ids: bool = False

    def call_id(self, index: int) -> str:
        """The id of a call; the same story has the same ids."""
        return "call_1" if self.same_ids else f"call_{self.number}x{index}"

    @property
    def output_tokens(self) -> int:
        """A deterministic count: one token for four characters."""
        return 1 + sum(map(len, [self.text, self.thinking, *[text for _, text in self.calls]])) // 4


def said(line: dict[str, Json], number: int) -> Said:
    """A line of a story, which is a line of a script."""
    calls = tuple((call["name"], json.dumps(call["arguments"])) for call in line.get("calls", []))
    return Said(
        line.get("text", ""), line.get("thinking", ""), calls, line.get("stop", ""), line.get("detail", ""), number
    )


def spoilt(told: Said, fault: Fault | None) -> Said:
    """`told` as the fault changes it."""
    if fault is None:
        return told
    if fault.kind == "empty":
        return Said(number=told.number)
    if fault.kind == "thought":
        return Said(thinking="I wonder whe", stop="max_tokens", number=told.number)
    if fault.kind == "refusal":
        return Said(text="I cannot", stop="refusal", detail="frontier_llm", number=told.number)
    name, text = told.calls[-1] if told.calls else ("bench", '{"attempt": 1}')
    if fault.kind == "same_ids":
        return replace(told, same_ids=True)
    if fault.kind == "unknown_tool":
        return replace(told, calls=(("compile_and_run", text),))
    if fault.kind == "bad_json":
        return replace(told, calls=((name, "{attempt: 1, oops"),))
    if fault.kind == "nan":
        return replace(told, calls=((name, '{"parent": NaN, "attempt": [1e999, -Infinity]}'),))
    if fault.kind == "max_tokens":
        return replace(told, calls=(*told.calls[:-1], (name, text[: len(text) // 2])), stop="max_tokens")
    return told


def pieces(text: str, size: int = 40) -> list[str]:
    """`text` as deltas."""
    return [text[i : i + size] for i in range(0, len(text), size)]


def received(value: Json) -> Json:
    """A value as a client can hold it and send it back: no encoder takes half a character."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def sse(event: Json, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()


@dataclass(frozen=True)
class Counted:
    """Tokens of a prompt: one for four characters of its JSON."""

    total: int
    cached: int
    written: int = 0
    written_1h: int = 0


@dataclass
class Cache:
    """Which prefixes of prompts were seen before."""

    seen: dict[str, int] = field(default_factory=dict)

    def count(self, segments: list[str], marks: dict[int, bool] | None = None, look_back: int = 10**6) -> Counted:
        """Count a prompt given in segments. marks: after which segments a prefix is kept, and whether for an hour;
        None: after each. look_back: how many segments before a mark a kept prefix is looked for."""
        kept = {i: False for i in range(len(segments))} if marks is None else marks
        cached, tokens, digest = 0, 0, hashlib.sha256()
        bounds: list[tuple[str, int]] = []
        for segment in segments:
            digest.update(segment.encode() + b"\0")
            tokens += len(segment) // 4
            bounds.append((digest.hexdigest(), tokens))
            near = any(mark - look_back <= len(bounds) - 1 <= mark for mark in kept)
            if near and digest.hexdigest() in self.seen:
                cached = tokens
        written = max((bounds[i][1] for i in kept), default=0)
        hourly = max((bounds[i][1] for i, hour in kept.items() if hour), default=0)
        self.seen.update(bounds[i] for i in kept)
        return Counted(tokens, cached, max(written - cached, 0), max(hourly - cached, 0))


class Refused(Exception):
    """The request is not as the provider wants it."""

    def __init__(self, message: str, status: int = 400, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def require(ok: object, message: str) -> None:
    """Refuse a request."""
    if not ok:
        raise Refused(message)


def require_strict(schema: Json, where: str) -> None:
    """Refuse a schema that is not strict at every depth."""
    if not isinstance(schema, dict):
        return
    if "properties" in schema:
        require(schema.get("additionalProperties") is False, f"{where}: additionalProperties must be false")
        missing = set(schema["properties"]) - set(schema.get("required", []))
        require(not missing, f"{where}: required must name every property, misses {sorted(missing)}")
    for key, value in schema.items():
        inner = value if isinstance(value, list) else [value]
        for part in inner if key != "properties" else list(value.values()):
            require_strict(part, f"{where}.{key}")
