"""`openai`: fine-tuning files of OpenAI's API, a conversation a line.

Unknown keys are refused there, so that a row is `bare`: messages, tools, parallel_tool_calls, and nothing else.
Arguments are JSON strings, reasoning has no place, and `weight` says which replies count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from agent.export.base import Column, Format, Made, Row
from agent.export.formats.jsons import json_text
from agent.export.formats.sft_chat import tool_schemas
from agent.export.formats.summary import judged_talks
from agent.export.formats.talk import Talk, Turn
from agent.record.trajectory import AttemptRecord, Trajectory

Weights = Literal["all", "improving"]


@dataclass
class OpenAi(Format):
    """`weights`: "all" counts every reply that says what the model meant; "improving" not those with a call that could
    not be carried out, nor those whose attempts were none the best so far. Nothing that was cut off ever counts. A
    conversation in which nothing counts makes no row. `seen`: a row for each window of the model's context."""

    weights: Weights = "all"
    seen: bool = False

    name: ClassVar[str] = "openai"
    about: ClassVar[str] = "conversations as fine-tuning files of OpenAI's API"
    conversations: ClassVar[bool] = True
    bare: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("messages", "messages", "ends with a reply; `weight` 0: context only"),
        Column("tools", "json", "the tools as JSON Schemas"),
        Column("parallel_tool_calls", "bool", "a reply in it calls several tools"),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """One row a conversation, or one a window."""
        for talk, its, best in judged_talks(trajectory, seen=self.seen):
            messages = self._messages(talk, its)
            if any(m.get("weight") for m in messages):
                parallel = any(len(turn.calls) > 1 for turn in talk.turns)
                row: Row = {"messages": messages, "tools": tool_schemas(), "parallel_tool_calls": parallel}
                yield Made(row, best)

    def _messages(self, talk: Talk, attempts: Sequence[AttemptRecord]) -> list[Row]:
        made = {a.turn for a in attempts}
        led = {a.turn for a in attempts if a.best and a.accepted}
        messages: list[Row] = [{"role": "system", "content": talk.system}] if talk.system else []
        for part in talk.parts:
            if isinstance(part, Turn):
                fruitless = part.n_errors > 0 or part.reply.turn in made - led
                counts = part.trains and not (self.weights == "improving" and fruitless)
                messages += _exchange(part, counts)
            else:
                messages.append({"role": "user", "content": part.text})
        return until_reply(messages)


def _exchange(turn: Turn, counts: bool) -> list[Row]:
    reply: Row = {"role": "assistant"}
    if turn.reply.text or not turn.calls:
        reply["content"] = turn.reply.text
    if turn.calls:
        reply["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": json_text(c.arguments)}}
            for c in turn.calls
        ]
    reply["weight"] = int(counts)
    results = zip(turn.calls, turn.results, strict=True)
    return [reply, *({"role": "tool", "tool_call_id": c.call_id, "content": r.text} for c, r in results)]


def until_reply(messages: list[Row]) -> list[Row]:
    """Without what follows the last reply."""
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages
