"""Conversations with tool calls: `sft-chat` and four dialects of it (`openai`, `sharegpt`, `atif`, `sts`).

Each dialect turns the same `Transcript` into the keys of its readers; docs/formats.md says which, and why.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import ClassVar, Literal

import orjson

from kerneltune.agent.authors.llm.tool_schemas import TOOLS
from kerneltune.agent.export.base import ExportRow, Feature, Format, Row
from kerneltune.agent.export.conversations import (
    COLUMNS,
    Exchange,
    Piece,
    Speech,
    Transcript,
    cost_usd,
    judged_transcripts,
    summary,
    synthetic_conversation,
    usage_totals,
)
from kerneltune.agent.export.outcome import leading
from kerneltune.agent.record.trajectory import AttemptRecord, Message, Trajectory
from kerneltune.tools.schema.codec import Json

Reasoning = Literal["reasoning_content", "thinking", "inline", "none"]
Weights = Literal["all", "improving"]
ATIF_VERSION = "ATIF-v1.8"
_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"  # as LLaMA-Factory joins those of its OpenAI format


@cache
def tool_schemas() -> list[Json]:
    """The three tools as function definitions; one object for all rows, never to be changed."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.schema}}
        for t in TOOLS
    ]


def json_text(value: Json) -> str:
    """JSON in one line; huge integers and lone surrogates as Python's own encoder writes them."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


class ChatFormat(Format):
    """A row for each conversation, or (`seen`) for each window of the model's context."""

    conversations: ClassVar[bool] = True
    seen: bool = False

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """One row a conversation, or one a window; none where the dialect makes nothing of it."""
        for talk, its, best in judged_transcripts(trajectory, seen=self.seen):
            if (values := self.values(trajectory, talk, its, best)) is not None:
                yield ExportRow(values, best)

    def values(
        self, trajectory: Trajectory, talk: Transcript, its: Sequence[AttemptRecord], best: AttemptRecord | None
    ) -> Row | None:
        """The row of one conversation, of the attempts that it made, and of the best of these."""
        raise NotImplementedError


# sft-chat -----------------------------------------------------------------------------------------------------------


@dataclass
class SftChat(ChatFormat):
    """`seen`: a row for each window of the model's context, with the history that it was shown, instead of one for the
    whole transcript. `synthesise`: runs without a model are told as if one had called the tools, and are marked.
    `reasoning`: the key for it in a reply. "reasoning_content" is what most templates read (Qwen, GLM, Nemotron);
    "thinking" is that of gpt-oss, which refuses words beside it where tools are called, so that they join it there;
    "inline" puts it in <think> tags before the text; "none" leaves it out.

    Each reply says in `train` whether a model should learn it: not when it was cut off, could not be read, or was in an
    earlier window already (Axolotl: `message_field_training: train`; with TRL, drop rows with `n_untrained`, or split
    `messages` at `n_context`)."""

    seen: bool = False
    synthesise: bool = False
    reasoning: Reasoning = "reasoning_content"

    name: ClassVar[str] = "sft-chat"
    about: ClassVar[str] = "whole conversations with tool calls (TRL messages + tools)"
    cases: ClassVar[bool] = True
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("messages", "messages", "the conversation; `train` of a reply: whether it should be learned"),
        Feature("tools", "json", "the tools as JSON Schemas"),
        Feature("n_context", "int", "messages in the beginning that hold nothing new to learn"),
        *COLUMNS,
        Feature("synthetic", "bool", "made of the record of a run without a model: nobody said these words"),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """One row a conversation, or one a window."""
        yield from super().rows(trajectory)
        if self.synthesise and not trajectory.conversations and trajectory.attempts:
            conversation, retold = synthetic_conversation(trajectory)
            for made in replace(self, seen=False).rows(replace(retold, conversations=(conversation,))):
                yield ExportRow(made.values | {"synthetic": True}, made.attempt)

    def values(
        self, trajectory: Trajectory, talk: Transcript, its: Sequence[AttemptRecord], best: AttemptRecord | None
    ) -> Row:
        """Messages, tools and the summary."""
        messages = chat_messages(talk, self.reasoning)
        context = next((i for i, m in enumerate(messages) if m.get("train")), len(messages))
        row: Row = {"messages": messages, "tools": tool_schemas(), "n_context": context}
        return row | summary(trajectory, talk, its, best) | {"synthetic": False}


def chat_messages(talk: Transcript, reasoning: Reasoning = "reasoning_content") -> list[Row]:
    """System, user, assistant and tool messages in the keys of chat templates."""
    messages: list[Row] = [{"role": "system", "content": talk.system}] if talk.system else []
    for part in talk.parts:
        if isinstance(part, Speech):
            messages.append({"role": "user", "content": part.text})
            continue
        messages.append(_reply(part, reasoning))
        messages += [
            {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": result.text}
            for call, result in zip(part.calls, part.results, strict=True)
        ]
    return messages


def _reply(turn: Exchange, reasoning: Reasoning) -> Row:
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


# openai -------------------------------------------------------------------------------------------------------------


@dataclass
class OpenAi(ChatFormat):
    """`weights`: "all" counts every reply that says what the model meant; "improving" not those with a call that could
    not be carried out, nor those whose attempts were none the fastest, or the first right one, so far. Nothing that was
    cut off ever counts. A conversation in which nothing counts makes no row. `seen`: a row for each window."""

    weights: Weights = "all"
    seen: bool = False

    name: ClassVar[str] = "openai"
    about: ClassVar[str] = "conversations as fine-tuning files of OpenAI's API"
    bare: ClassVar[bool] = True  # unknown keys are refused there
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("messages", "messages", "ends with a reply; `weight` 0: context only"),
        Feature("tools", "json", "the tools as JSON Schemas"),
        Feature("parallel_tool_calls", "bool", "a reply in it calls several tools"),
    )

    def values(
        self, trajectory: Trajectory, talk: Transcript, its: Sequence[AttemptRecord], best: AttemptRecord | None
    ) -> Row | None:
        """Arguments are JSON strings, reasoning has no place, and `weight` says which replies count."""
        led = leading(trajectory.attempts)
        fruitless = {a.turn for a in its} - {a.turn for a in its if a.attempt_id in led}
        weights = {
            turn.reply.turn: int(
                turn.trains
                and not (self.weights == "improving" and (turn.n_errors > 0 or turn.reply.turn in fruitless))
            )
            for turn in talk.turns
        }
        replies = iter(talk.turns)
        messages = [
            _openai_reply(turn := next(replies), weights[turn.reply.turn])
            if m["role"] == "assistant"
            else {key: value for key, value in m.items() if key != "name"}
            for m in chat_messages(talk, "none")
        ]
        while messages[-1]["role"] != "assistant":
            messages.pop()
        if not any(m.get("weight") for m in messages):
            return None
        parallel = any(len(turn.calls) > 1 for turn in talk.turns)
        return {"messages": messages, "tools": tool_schemas(), "parallel_tool_calls": parallel}


def _openai_reply(turn: Exchange, weight: int) -> Row:
    reply: Row = {"role": "assistant"}
    if turn.reply.text or not turn.calls:
        reply["content"] = turn.reply.text
    if turn.calls:
        reply["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": json_text(c.arguments)}}
            for c in turn.calls
        ]
    return reply | {"weight": weight}


# sharegpt -----------------------------------------------------------------------------------------------------------


@dataclass
class ShareGpt(ChatFormat):
    """`thoughts`: reasoning stands in <think> tags before a reply, and so do the words that come with calls, for which
    there is no other place; only templates of reasoning models read that. Otherwise both are left out, but for the
    words of replies without calls. `seen`: a row for each window of the model's context.

    By the rules of LLaMA-Factory: odd places belong to `human` and `observation`, even ones to `gpt` and
    `function_call`, the last one is even; else the whole example is skipped there. So the calls of a reply are one
    `function_call` (an object, or a list for several), and their results one `observation`; words after results are at
    its end."""

    thoughts: bool = False
    seen: bool = False

    name: ClassVar[str] = "sharegpt"
    about: ClassVar[str] = "conversations in ShareGPT's tags (LLaMA-Factory)"
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("conversations", "json", "[{from, value}], human first and gpt or function_call last"),
        Feature("system", "text", "the system prompt"),
        Feature("tools", "text", "JSON list of function definitions"),
        Feature("unsaid_chars", "int", "characters of reasoning and of words with calls that have no place"),
        *COLUMNS,
    )

    def values(
        self, trajectory: Trajectory, talk: Transcript, its: Sequence[AttemptRecord], best: AttemptRecord | None
    ) -> Row:
        """The conversation in its tags, the tools without their envelope, the summary."""
        unsaid = sum(len(t.reply.thinking) + (len(t.reply.text) if t.calls else 0) for t in talk.turns)
        row: Row = {
            "conversations": self._tagged(talk),
            "system": talk.system,
            "tools": json_text([tool["function"] for tool in tool_schemas()]),
            "unsaid_chars": 0 if self.thoughts else unsaid,
        }
        return row | summary(trajectory, talk, its, best)

    def _tagged(self, talk: Transcript) -> list[Row]:
        tagged: list[Row] = []
        for part in talk.parts:
            if isinstance(part, Exchange):
                tagged.append(self._reply(part))
                if part.results:
                    tagged.append({"from": "observation", "value": _BETWEEN_RESULTS.join(r.text for r in part.results)})
            elif tagged and tagged[-1]["from"] == "observation":
                tagged[-1]["value"] += f"\n\n{part.text}"
            else:
                tagged.append({"from": "human", "value": part.text})
        if tagged[-1]["from"] == "observation":
            tagged.pop()
        return tagged

    def _reply(self, turn: Exchange) -> Row:
        reply = turn.reply
        thought = "\n\n".join(filter(None, (reply.thinking, reply.text if turn.calls else "")))
        before = f"<think>\n{thought}\n</think>\n\n" if self.thoughts and thought else ""
        if not turn.calls:
            return {"from": "gpt", "value": before + reply.text}
        calls = [{"name": c.name, "arguments": c.arguments} for c in turn.calls]
        return {"from": "function_call", "value": before + json_text(calls[0] if len(calls) == 1 else calls)}


# sts ----------------------------------------------------------------------------------------------------------------


class Sts(ChatFormat):
    """The Session Trace Simple Format, which the Hugging Face Hub shows. Knows no options."""

    name: ClassVar[str] = "sts"
    about: ClassVar[str] = "a file for each conversation, for the Hugging Face Hub's trace viewer"
    bare: ClassVar[bool] = True
    apart: ClassVar[bool] = True
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("file", "text", "name of the file"),
        Feature("lines", "json", "the session, then each message"),
    )

    def values(
        self, trajectory: Trajectory, talk: Transcript, its: Sequence[AttemptRecord], best: AttemptRecord | None
    ) -> Row:
        """One file a conversation."""
        run_id = trajectory.run.run_id
        session: Row = {"type": "session", "harness": "kerneltune", "id": f"{run_id}/{talk.key}"}
        session["name"] = f"{trajectory.run.task}, {run_id}, conversation {talk.key}"
        messages: list[Row] = [{"role": "system", "content": talk.system}] if talk.system else []
        messages += [message for part in talk.parts for message in _sts_messages(part)]
        key = "".join(c if c.isalnum() or c in "-_" else "_" for c in talk.key)
        lines = [session, *({"type": "message", "message": message} for message in messages)]
        return {"file": f"{run_id}-{key}.jsonl", "lines": lines}


def _sts_messages(part: Piece) -> Iterator[Row]:
    if isinstance(part, Speech):
        yield {"role": "user", "content": part.text, "timestamp": _ms(part.messages[-1])}
        return
    reply = part.reply
    message: Row = {"role": "assistant", "content": reply.text, "timestamp": _ms(reply)}
    if reply.thinking:
        message["reasoningContent"] = reply.thinking
    if part.calls:
        message["toolCalls"] = [
            {"id": c.call_id, "function": {"name": c.name, "arguments": json_text(c.arguments)}} for c in part.calls
        ]
    yield message | ({"model": reply.model} if reply.model else {})
    for call, result in zip(part.calls, part.results, strict=True):
        yield {"role": "tool", "toolCallId": call.call_id, "content": result.text, "timestamp": _ms(result)}


def _ms(message: Message) -> int:
    return round(message.at * 1000)


# atif ---------------------------------------------------------------------------------------------------------------


@dataclass
class Atif(ChatFormat):
    """The Agent Trajectory Interchange Format. `seen`: a document for each window of the model's context; what an
    earlier one has already is marked as copied context, and costs nothing again."""

    seen: bool = False

    name: ClassVar[str] = "atif"
    about: ClassVar[str] = "Agent Trajectory Interchange Format 1.8, a document a line"
    bare: ClassVar[bool] = True  # it forbids keys of one's own but in `extra`
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("schema_version", "text", "ATIF-v1.8"),
        Feature("session_id", "text", "id of the run"),
        Feature("trajectory_id", "text", "run, conversation and window"),
        Feature("agent", "json", "name, version and model of the agent, and its tools"),
        Feature("steps", "json", "system, user and agent steps from 1, with calls, observations and metrics"),
        Feature("final_metrics", "json", "totals of tokens and US dollars, also of replies that are left out"),
        Feature("extra", "json", "task, verdict, speed-up, how it ended"),
    )

    def values(
        self, trajectory: Trajectory, talk: Transcript, its: Sequence[AttemptRecord], best: AttemptRecord | None
    ) -> Row:
        """The document."""
        run, facts = trajectory.run, summary(trajectory, talk, its, best)
        model = next((t.reply.model for t in talk.fresh if t.reply.model), run.author)
        steps: list[Row] = [{"source": "system", "message": talk.system}] if talk.system else []
        for part in talk.parts:
            steps += _atif_speech(part) if isinstance(part, Speech) else [_atif_step(part, model)]
        totals = usage_totals(talk.new)
        metrics = {
            "total_prompt_tokens": totals["input_tokens"],
            "total_completion_tokens": totals["output_tokens"],
            "total_cached_tokens": totals["cached_tokens"],
            "total_cost_usd": cost_usd(talk.new),
        }
        return {
            "schema_version": ATIF_VERSION,
            "session_id": run.run_id,
            "trajectory_id": f"{run.run_id}/{talk.key}{f'/{talk.window}' if talk.window else ''}",
            "agent": {
                "name": "kerneltune",
                "version": run.versions.get("kerneltune") or "unknown",
                "model_name": model,
                "tool_definitions": tool_schemas(),
            },
            "steps": [{"step_id": i, **step} for i, step in enumerate(steps, 1)],
            "final_metrics": _known(metrics) | {"total_steps": len(steps)},  # without those where one was not counted
            "extra": {"task": run.task, "task_sha256": run.task_sha256, "arch": run.arch, "gpu": run.gpu, **facts},
        }


def _atif_speech(part: Speech) -> Iterator[Row]:
    for message in part.messages:
        step: Row = {"timestamp": _iso(message.at), "source": "user", "message": message.text, **_copied(part)}
        yield step | ({"extra": {"history": True}} if message.history else {})


def _atif_step(part: Exchange, model: str) -> Row:
    reply = part.reply
    step: Row = {"timestamp": _iso(reply.at), "source": "agent", "message": reply.text, "llm_call_count": 1}
    step |= _copied(part)
    if reply.model and reply.model != model:
        step["model_name"] = reply.model
    if reply.thinking:
        step["reasoning_content"] = reply.thinking
    if part.calls:
        step["tool_calls"] = [
            {"tool_call_id": c.call_id, "function_name": c.name, "arguments": c.arguments} for c in part.calls
        ]
        pairs = zip(part.calls, part.results, strict=True)
        results = [
            {"source_call_id": c.call_id, "content": r.text, "extra": {"is_error": r.is_error}} for c, r in pairs
        ]
        step["observation"] = {"results": results}
    if not part.copied and (metrics := _metrics(reply)):
        step["metrics"] = metrics
    return step | {"extra": {"turn": reply.turn, "stop": reply.stop, "seconds": reply.seconds, "trains": part.trains}}


def _copied(part: Piece) -> Row:
    return {"is_copied_context": True} if part.copied else {}


def _metrics(reply: Message) -> Row:
    usage = reply.usage or {}
    thought = usage.get("thinking_tokens")
    return _known(
        {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "cached_tokens": usage.get("cached_tokens"),
            "cost_usd": reply.cost_usd,
            "extra": None if thought is None else {"thinking_tokens": thought},
        }
    )


def _known(values: Row) -> Row:
    return {name: value for name, value in values.items() if value is not None}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
