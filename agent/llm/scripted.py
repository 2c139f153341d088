"""Replays replies from a file, exactly: for tests, demonstrations, and runs that have to be repeated.

One JSON object a line, in neutral words:
    {"text": "", "thinking": "", "calls": [{"name": "bench", "arguments": {"attempt": 1}}], "stop": "tools",
     "usage": {"input_tokens": 900, "output_tokens": 40}, "conversation": "island-2"}
Everything may be left out. Lines without "conversation" are for whoever asks next and has no lines of its own.
"""

import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

from agent.llm.dialogue import Call, Delta, Listen, ModelFacts, Reply, Request, Stop, Usage
from tools.codec import DecodeError, Json, decode, encode
from tools.errors import UsageError

OVER = "The script is over."


@dataclass(frozen=True)
class _ScriptedCall:
    name: str
    arguments: dict[str, Json] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Line:
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
        """The reply of line `number`, which its calls' ids carry."""
        calls = tuple(
            Call(f"call_{number}_{i}", call.name, call.arguments, call.problem) for i, call in enumerate(self.calls)
        )
        stop: Stop = self.stop or ("tools" if calls else "end")
        return Reply(self.text, stop, calls, self.thinking, self.detail, self.usage, self.cost_usd)


def read_script(path: Path) -> list[tuple[int, Line]]:
    """The lines of a script with their numbers from 1. Raises UsageError naming file and line."""
    try:
        texts = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--model scripted:{path}: {error}") from error
    return [(number, _read_line(text, f"{path}:{number}")) for number, text in enumerate(texts, 1) if text.strip()]


def _read_line(text: str, where: str) -> Line:
    try:
        return decode(Line, json.loads(text))
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON: {error}") from error
    except DecodeError as error:
        raise UsageError(f"{where}: {error}") from error


def write_script(path: Path, replies: Iterable[tuple[str, Reply]]) -> None:
    """Write replies, each with the key of its conversation ("" for none), as a script that replays them."""
    path.write_text("".join(f"{json.dumps(_to_line(key, reply), ensure_ascii=False)}\n" for key, reply in replies))


def _to_line(key: str, reply: Reply) -> Json:
    calls = tuple(_ScriptedCall(call.name, call.arguments, call.problem) for call in reply.calls)
    usual = "tools" if calls else "end"
    stop = reply.stop if reply.stop != usual else None
    line = Line(reply.text, reply.thinking, calls, stop, reply.detail, reply.usage, reply.cost_usd, key)
    return {f.name: encode(value) for f in fields(Line) if (value := getattr(line, f.name)) not in ("", None, ())}


class ScriptedModel:
    """Answers with the replies of a file, in order; beyond the end it says that the script is over.

    Any number of threads may ask: those whose key has lines of its own get those, the others share the rest.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"scripted:{path}"
        self._lines: dict[str, list[tuple[int, Line]]] = {}
        for number, line in read_script(path):
            self._lines.setdefault(line.conversation, []).append((number, line))
        self._next: dict[str, int] = {}
        self._lock = threading.Lock()

    def facts(self) -> ModelFacts:
        """Nothing but its name."""
        return ModelFacts(self.name.removeprefix("scripted:"))

    def skip(self, replies: int, key: str = "") -> None:
        """Pass over replies that a run had before it was resumed."""
        with self._lock:
            place = self._place(key)
            self._next[place] = self._next.get(place, 0) + replies

    def _place(self, key: str) -> str:
        """A script names conversations as the record does, "2"; a request says of which run, too: "…-ab12/2"."""
        name = key.rpartition("/")[2]
        return name if name in self._lines else ""

    def ask(self, request: Request, listen: Listen = lambda _: None) -> Reply:
        """The next reply of the conversation `request.key`."""
        with self._lock:
            place = self._place(request.key)
            lines, turn = self._lines.get(place, []), self._next.get(place, 0)
            self._next[place] = turn + 1
        if turn >= len(lines):
            return Reply(OVER, "end")
        number, line = lines[turn]
        _tell(line, listen)
        return line.reply(number)

    def price_usd(self, usage: Usage) -> float | None:
        """None: a script has no price; what the recorded model cost is on its lines."""
        return None

    def close(self) -> None:
        """Nothing to let go of."""


def _tell(line: Line, listen: Listen) -> None:
    if line.thinking:
        listen(Delta("thinking", line.thinking))
    if line.text:
        listen(Delta("text", line.text))
    for call in line.calls:
        listen(Delta("arguments", json.dumps(call.arguments)))
