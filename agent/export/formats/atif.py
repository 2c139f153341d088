"""`atif`: the Agent Trajectory Interchange Format, version 1.8, one document a conversation.

The format forbids keys of one's own but in `extra`, so that rows are `bare`: a line of the file is a document.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from agent.export.base import Column, Format, Made, Row
from agent.export.formats.sft_chat import tool_schemas
from agent.export.formats.summary import cost_usd, judged_talks, summary, usage_totals
from agent.export.formats.talk import Part, Talk, Turn, Words
from agent.record.trajectory import Message, Trajectory
from tools.codec import Json

VERSION = "ATIF-v1.8"


@dataclass
class Atif(Format):
    """`seen`: a document for each window of the model's context; what an earlier one has already is marked as copied
    context, and costs nothing again."""

    seen: bool = False

    name: ClassVar[str] = "atif"
    about: ClassVar[str] = "Agent Trajectory Interchange Format 1.8, a document a line"
    conversations: ClassVar[bool] = True
    bare: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("schema_version", "text", "ATIF-v1.8"),
        Column("session_id", "text", "id of the run"),
        Column("trajectory_id", "text", "run, conversation and window"),
        Column("agent", "json", "name, version and model of the agent, and its tools"),
        Column("steps", "json", "system, user and agent steps from 1, with calls, observations and metrics"),
        Column("final_metrics", "json", "totals of tokens and US dollars, also of replies that are left out"),
        Column("extra", "json", "task, verdict, speed-up, how it ended"),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """One document a conversation, or one a window."""
        for talk, its, best in judged_talks(trajectory, seen=self.seen):
            yield Made(_document(trajectory, talk, summary(trajectory, talk, its, best)), best)


def _document(trajectory: Trajectory, talk: Talk, facts: Row) -> Row:
    run = trajectory.run
    model = next((t.reply.model for t in talk.fresh if t.reply.model), run.author)
    steps: list[Row] = [{"source": "system", "message": talk.system}] if talk.system else []
    for part in talk.parts:
        steps += _steps(part, model)
    window = f"/{talk.window}" if talk.window else ""
    return {
        "schema_version": VERSION,
        "session_id": run.run_id,
        "trajectory_id": f"{run.run_id}/{talk.key}{window}",
        "agent": {
            "name": "kerneltune",
            "version": run.versions.get("kerneltune") or "unknown",
            "model_name": model,
            "tool_definitions": tool_schemas(),
        },
        "steps": [{"step_id": i, **step} for i, step in enumerate(steps, 1)],
        "final_metrics": _final_metrics(talk, len(steps)),
        "extra": {"task": run.task, "task_sha256": run.task_sha256, "arch": run.arch, "gpu": run.gpu, **facts},
    }


def _steps(part: Part, model: str) -> Iterator[Row]:
    copied: Row = {"is_copied_context": True} if part.copied else {}
    if isinstance(part, Words):
        for message in part.messages:
            extra: Row = {"extra": {"history": True}} if message.history else {}
            yield {"timestamp": _iso(message.at), "source": "user", "message": message.text, **copied, **extra}
        return
    reply = part.reply
    step: Row = {"timestamp": _iso(reply.at), "source": "agent", "message": reply.text, "llm_call_count": 1, **copied}
    if reply.model and reply.model != model:
        step["model_name"] = reply.model
    if reply.thinking:
        step["reasoning_content"] = reply.thinking
    if part.calls:
        step["tool_calls"] = [
            {"tool_call_id": c.call_id, "function_name": c.name, "arguments": c.arguments} for c in part.calls
        ]
        step["observation"] = {"results": _results(part)}
    if not part.copied and (metrics := _metrics(reply)):
        step["metrics"] = metrics
    yield step | {"extra": {"turn": reply.turn, "stop": reply.stop, "seconds": reply.seconds, "trains": part.trains}}


def _results(turn: Turn) -> list[Json]:
    pairs = zip(turn.calls, turn.results, strict=True)
    return [{"source_call_id": c.call_id, "content": r.text, "extra": {"is_error": r.is_error}} for c, r in pairs]


def _metrics(reply: Message) -> Row:
    usage = reply.usage or {}
    known = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "cached_tokens": usage.get("cached_tokens"),
        "cost_usd": reply.cost_usd,
    }
    thought = usage.get("thinking_tokens")
    more: Row = {"extra": {"thinking_tokens": thought}} if thought is not None else {}
    return {name: n for name, n in known.items() if n is not None} | more


def _final_metrics(talk: Talk, n_steps: int) -> Row:
    """Totals are left out when a reply was not counted."""
    tokens = usage_totals(talk.new)
    totals = {
        "total_prompt_tokens": tokens["input_tokens"],
        "total_completion_tokens": tokens["output_tokens"],
        "total_cached_tokens": tokens["cached_tokens"],
        "total_cost_usd": cost_usd(talk.new),
    }
    return {name: n for name, n in totals.items() if n is not None} | {"total_steps": n_steps}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
