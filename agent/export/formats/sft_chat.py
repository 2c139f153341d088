"""`sft-chat`: whole conversations with tool calls, as TRL and chat templates take them.

Arguments are objects, `tools` are JSON Schemas, reasoning stands under one key of the reply, every tool message names
its call. Each reply says in `train` whether a model should learn it: not when it was cut off, could not be read, or was
in an earlier window already (Axolotl: `message_field_training: train`; with TRL, drop rows with `n_untrained`, or split
`messages` at `n_context`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Literal

from agent.authors.llm.tool_schemas import TOOLS
from agent.export.base import Column, Format, Made, Row
from agent.export.formats.summary import COLUMNS, judged_talks, summary
from agent.export.formats.synthetic import synthetic_conversation
from agent.export.formats.talk import Talk, Turn
from agent.record.trajectory import Trajectory
from tools.codec import Json

Reasoning = Literal["reasoning_content", "thinking", "inline", "none"]


@cache
def tool_schemas() -> list[Json]:
    """The three tools as function definitions; one object for all rows, never to be changed."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.schema}}
        for t in TOOLS
    ]


@dataclass
class SftChat(Format):
    """`seen`: a row for each window of the model's context, with the history that it was shown, instead of one for the
    whole transcript. `synthesise`: runs without a model are told as if one had called the tools, and are marked.
    `reasoning`: the key for it in a reply. "reasoning_content" is what most templates read (Qwen, GLM, Nemotron);
    "thinking" is that of gpt-oss, which refuses words beside it where tools are called, so that they join it there;
    "inline" puts it in <think> tags before the text; "none" leaves it out."""

    seen: bool = False
    synthesise: bool = False
    reasoning: Reasoning = "reasoning_content"

    name: ClassVar[str] = "sft-chat"
    about: ClassVar[str] = "whole conversations with tool calls (TRL messages + tools)"
    conversations: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("messages", "messages", "the conversation; `train` of a reply: whether it should be learned"),
        Column("tools", "json", "the tools as JSON Schemas"),
        Column("n_context", "int", "messages in the beginning that hold nothing new to learn"),
        *COLUMNS,
        Column("synthetic", "bool", "made of the record of a run without a model: nobody said these words"),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """One row a conversation, or one a window."""
        yield from self._made(trajectory, seen=self.seen, synthetic=False)
        if self.synthesise and not trajectory.conversations and trajectory.attempts:
            conversation, retold = synthetic_conversation(trajectory)
            yield from self._made(replace(retold, conversations=(conversation,)), seen=False, synthetic=True)

    def _made(self, trajectory: Trajectory, *, seen: bool, synthetic: bool) -> Iterator[Made]:
        for talk, its, best in judged_talks(trajectory, seen=seen):
            row = self._row(talk) | summary(trajectory, talk, its, best)
            yield Made(row | {"synthetic": synthetic}, best)

    def _row(self, talk: Talk) -> Row:
        messages = chat_messages(talk, self.reasoning)
        return {"messages": messages, "tools": tool_schemas(), "n_context": n_context(messages)}


def chat_messages(talk: Talk, reasoning: Reasoning = "reasoning_content") -> list[Row]:
    """System, user, assistant and tool messages in the keys of chat templates."""
    messages: list[Row] = [{"role": "system", "content": talk.system}] if talk.system else []
    for part in talk.parts:
        if isinstance(part, Turn):
            messages.append(_reply(part, reasoning))
            messages += [
                {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": result.text}
                for call, result in zip(part.calls, part.results, strict=True)
            ]
        else:
            messages.append({"role": "user", "content": part.text})
    return messages


def _reply(turn: Turn, reasoning: Reasoning) -> Row:
    text, thinking = turn.reply.text, turn.reply.thinking
    if thinking and reasoning == "inline":
        text = f"<think>\n{thinking}\n</think>\n\n{text}"
    if thinking and reasoning == "thinking" and turn.calls:
        text, thinking = "", "\n\n".join(filter(None, (thinking, text)))
    message: Row = {"role": "assistant", "content": text}
    if thinking and reasoning in ("thinking", "reasoning_content"):
        message[reasoning] = thinking
    if turn.calls:
        message["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in turn.calls
        ]
    message["train"] = turn.trains
    return message


def n_context(messages: list[Row]) -> int:
    """How many messages precede the first reply that should be learned; all of them when there is none."""
    return next((i for i, m in enumerate(messages) if m.get("train")), len(messages))
