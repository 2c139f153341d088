"""`sts`: the Session Trace Simple Format, which the Hugging Face Hub shows. A file for each conversation."""

from collections.abc import Iterator
from typing import ClassVar

from agent.export.base import Column, Format, Made, Row
from agent.export.formats.jsons import json_text
from agent.export.formats.summary import judged_talks
from agent.export.formats.talk import Talk, Turn
from agent.record.trajectory import Message, Trajectory

HARNESS = "kerneltune"


class Sts(Format):
    """Knows no options."""

    name: ClassVar[str] = "sts"
    about: ClassVar[str] = "a file for each conversation, for the Hugging Face Hub's trace viewer"
    conversations: ClassVar[bool] = True
    bare: ClassVar[bool] = True
    apart: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("file", "text", "name of the file"),
        Column("lines", "json", "the session, then each message"),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """One file a conversation."""
        run_id = trajectory.run.run_id
        for talk, _, best in judged_talks(trajectory):
            header: Row = {"type": "session", "harness": HARNESS, "id": f"{run_id}/{talk.key}"}
            header["name"] = f"{trajectory.run.task}, {run_id}, conversation {talk.key}"
            lines = [header, *({"type": "message", "message": message} for message in _messages(talk))]
            yield Made({"file": f"{run_id}-{_file_name(talk.key)}.jsonl", "lines": lines}, best)


def _file_name(key: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in key)


def _messages(talk: Talk) -> Iterator[Row]:
    if talk.system:
        yield {"role": "system", "content": talk.system}
    for part in talk.parts:
        if isinstance(part, Turn):
            yield _reply(part)
            for call, result in zip(part.calls, part.results, strict=True):
                yield {"role": "tool", "toolCallId": call.call_id, "content": result.text, **_time(result)}
        else:
            yield {"role": "user", "content": part.text, **_time(part.messages[-1])}


def _reply(turn: Turn) -> Row:
    reply = turn.reply
    message: Row = {"role": "assistant", "content": reply.text, **_time(reply)}
    if reply.thinking:
        message["reasoningContent"] = reply.thinking
    if turn.calls:
        message["toolCalls"] = [
            {"id": c.call_id, "function": {"name": c.name, "arguments": json_text(c.arguments)}} for c in turn.calls
        ]
    return message | ({"model": reply.model} if reply.model else {})


def _time(message: Message) -> Row:
    return {"timestamp": round(message.at * 1000)}
