"""A conversation as an optimisation has it: tools, a story, and somebody who answers every call."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerneltune.agent.models.providers import open_model
from kerneltune.agent.models.types import (
    Clock,
    Delta,
    LanguageModel,
    Message,
    ModelRequest,
    Reply,
    Tool,
    ToolResult,
    ToolResults,
    User,
)
from kerneltune.tools.schema.codec import Json
from tests.agent.models.server import LlmServer


def strict(properties: Mapping[str, Json]) -> dict[str, Json]:
    """A strict object schema."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


EDITS: Json = {
    "type": ["array", "null"],
    "items": strict({"search": {"type": "string"}, "replace": {"type": "string"}}),
}
UPDATE = Tool(
    "update",
    "Propose a candidate.",
    strict(
        {
            "parent": {"type": ["integer", "null"], "description": "number of the attempt that this one changes"},
            "rationale": {"type": "string", "description": "why this will be faster"},
            "source": {"type": ["string", "null"], "description": "the whole file"},
            "edits": EDITS,
        }
    ),
    source="source",
)
BENCH = Tool("bench", "Judge an attempt.", strict({"attempt": {"type": "integer"}}))
TOOLS = (UPDATE, BENCH)
SYSTEM = "You write the fastest kernels. " * 40
KERNEL = 'import triton\n\n\n@triton.jit\ndef k(x, "é\\n"):  # "quoted" \\ and\ttabs\n    pass\n' * 12


def update(parent: int | None, rationale: str, source: str | None = None, edits: Json = None) -> Json:
    """A call of update."""
    return {
        "name": "update",
        "arguments": {"parent": parent, "rationale": rationale, "source": source, "edits": edits},
    }


def bench(attempt: int) -> Json:
    """A call of bench."""
    return {"name": "bench", "arguments": {"attempt": attempt}}


STORY: list[dict[str, Json]] = [
    {"text": "A first try.", "thinking": "Rows are long.", "calls": [update(None, "one pass", KERNEL)]},
    {"thinking": "Two at once.", "calls": [bench(1), update(1, "wider", KERNEL + "# wider\n")]},
    {"text": "A small change.", "calls": [update(2, "edit", None, [{"search": "pass", "replace": "return"}])]},
    {"text": "Done."},
]
NAMES = {"anthropic": "anthropic:claude-opus-5-5", "openai": "openai:gpt-6.1-sol", "chat": "chat:"}


class JumpingClock(Clock):
    """Goes on by the seconds of each wait, at once."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def now_s(self) -> float:
        return self.waited_s

    def wait(self, over: threading.Event, seconds: float) -> None:
        self.waited_s += seconds


def model_of(
    server: LlmServer, name: str | None = None, *, timeout_s: float = 5.0, clock: Clock | None = None, **more: Any
) -> LanguageModel:
    """The model that speaks to `server`, and does not wait in between; it is closed with it. `more`: of
    `ModelOptions`."""
    model = open_model(
        name or NAMES[server.format],
        keys={server.format: server.key},
        base_url=server.url,
        timeout_s=timeout_s,
        clock=clock or JumpingClock(),
        **more,
    )
    server.at_exit.callback(model.close)
    return model


def request(messages: tuple[Message, ...], max_tokens: int = 8000) -> ModelRequest:
    """What an optimisation asks."""
    return ModelRequest(SYSTEM, messages, TOOLS, max_tokens, key="run-1")


def converse(model: LanguageModel, turns: int, heard: list[Delta] | None = None) -> list[Reply]:
    """Hold a conversation of at most `turns` replies, answering every call."""
    messages: tuple[Message, ...] = (User("Make softmax fast."),)
    replies: list[Reply] = []
    for _ in range(turns):
        reply = model.ask(request(messages), heard.append if heard is not None else lambda _: None)
        replies.append(reply)
        results = tuple(ToolResult(c.call_id, f"{c.name}: 12.5 us", is_error=bool(c.problem)) for c in reply.calls)
        messages += (reply, ToolResults(results) if results else User("Go on."))
    return replies


def plain(reply: Reply) -> tuple[Json, ...]:
    """What must not depend on the provider."""
    return reply.text, reply.stop, tuple((c.name, c.arguments, c.problem) for c in reply.calls)


def write_lines(path: Path, lines: list[str]) -> Path:
    """A file of lines."""
    path.write_text("\n".join(lines) + "\n")
    return path
