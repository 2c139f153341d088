"""Replays replies from a file, exactly: for tests, demonstrations, and runs that have to be repeated.

One JSON object a line, in neutral words:
    {"text": "", "thinking": "", "calls": [{"name": "bench", "arguments": {"attempt": 1}}], "stop": "tools",
     "usage": {"input_tokens": 900, "output_tokens": 40}, "conversation": "island-2"}
Everything may be left out. Lines without "conversation" are for whoever asks next and has no lines of its own.
"""

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from kerneltune.agent.models.types import (
    Delta,
    Listen,
    ModelFacts,
    ModelOptions,
    ModelRequest,
    Reply,
    Stop,
    ToolCall,
    Usage,
    cleaned,
)
from kerneltune.tools.schema.codec import DecodeError, Json, decode, reason
from kerneltune.tools.schema.errors import UsageError

OVER = "The script is over."


@dataclass(frozen=True)
class _ScriptedCall:
    name: str
    arguments: dict[str, Json] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class _ScriptedReply:
    """One line of a script. stop: None for "tools" when there are calls, else "end"."""

    text: str = ""
    thinking: str = ""
    calls: tuple[_ScriptedCall, ...] = ()
    stop: Stop | None = None
    detail: str = ""
    usage: Usage | None = None
    cost_usd: float | None = None
    conversation: str = ""

    def reply(self, number: int) -> Reply:
        """Return the reply of line `number`, which its calls' ids carry."""
        calls = tuple(
            ToolCall(f"call_{number}_{i}", call.name, call.arguments, call.problem) for i, call in enumerate(self.calls)
        )
        stop: Stop = self.stop or ("tools" if calls else "end")
        return cleaned(Reply(self.text, stop, calls, self.thinking, self.detail, self.usage, self.cost_usd))


class ScriptedModel:
    """Answers with the replies of the file `options.model`, in order; beyond the end it says that the script is over.

    Any number of threads may ask: those whose key has lines of its own get those, the others share the rest. Raises
    UsageError naming file and line.
    """

    def __init__(self, options: ModelOptions) -> None:
        path = Path(os.path.expanduser(options.model))
        self.name = f"scripted:{path}"
        self._replies: dict[str, list[tuple[int, _ScriptedReply]]] = {}
        for number, line in _read(path):
            self._replies.setdefault(line.conversation, []).append((number, line))
        self._next: dict[str, int] = {}
        self._lock = threading.Lock()

    def facts(self) -> ModelFacts:
        """Return nothing but its name."""
        return ModelFacts(self.name.removeprefix("scripted:"))

    def skip(self, replies: int, key: str = "") -> None:
        """Pass over replies that a run had before it was resumed."""
        with self._lock:
            place = self._place(key)
            self._next[place] = self._next.get(place, 0) + replies

    def _place(self, key: str) -> str:
        """A script names conversations as the record does, "2"; a request says of which run, too: "…-ab12/2"."""
        name = key.rpartition("/")[2]
        return name if name in self._replies else ""

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        """Return the next reply of the conversation `request.key`."""
        with self._lock:
            place = self._place(request.key)
            replies, turn = self._replies.get(place, []), self._next.get(place, 0)
            self._next[place] = turn + 1
        if turn >= len(replies):
            return Reply(OVER, "end")
        number, line = replies[turn]
        reply = line.reply(number)
        if reply.thinking:
            listen(Delta("thinking", reply.thinking))
        if reply.text:
            listen(Delta("text", reply.text))
        for call in reply.calls:
            listen(Delta("arguments", json.dumps(call.arguments)))
        return reply

    def price_usd(self, usage: Usage) -> float | None:
        """Return None: a script has no price; what the recorded model cost is on its lines."""
        return None

    def close(self) -> None:
        """Nothing to let go of."""


def _read(path: Path) -> list[tuple[int, _ScriptedReply]]:
    """Return the lines of a script with their numbers from 1. Raises UsageError naming file and line."""
    try:
        texts = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"scripted:{path} cannot be read: {reason(error)}") from error
    return [(number, _read_line(text, f"{path}:{number}")) for number, text in enumerate(texts, 1) if text.strip()]


def _read_line(text: str, where: str) -> _ScriptedReply:
    try:
        return decode(_ScriptedReply, json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    except DecodeError as error:
        raise UsageError(f"{where}: {error}") from error
