"""Conversations with tool calls as training data: `sft-chat`, `openai`, `sharegpt` and `atif`. Pure.

Every format is made of the same `Dialogue`: roles alternate, every call has its result. It is the whole conversation,
or, where older exchanges gave way to a history, one for each window as the model saw it. What is left out, and why: a
reply that said nothing or refused (the model was not shown it again either); a reply that broke off at the end of the
context, when another follows at once; a call without a result, and all that comes after it (the run was killed there);
words that nobody answered. Shown but not to be learned: a reply without a call that the loop answered with a nudge, and
the reply to that nudge. docs/formats.md says what the readers of each format expect.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import ClassVar, Literal

import orjson

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.authors.llm.author import TOOLS
from kerneltune.agent.export import instructions
from kerneltune.agent.export.base import ExportRow, Feature, Format, Row
from kerneltune.agent.models.types import ToolCall
from kerneltune.agent.record.trajectory import Conversation, Message, Trajectory
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import Status

Reasoning = Literal["reasoning_content", "thinking", "inline", "none"]
ATIF_VERSION = "ATIF-v1.8"
_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"  # as LLaMA-Factory joins those of its OpenAI format
_WHOLE = ("", "end", "tools")  # why a reply ended that says all it meant to say


@dataclass(frozen=True)
class Exchange:
    """A reply with the results of its calls, in their order. The ids of `calls` are unique in it and not empty.
    `copied`: it was said in an earlier window already. `idle`: it called no tool and was nudged to, or answers that.
    `rest`: a further call of the reply before it, which was asked for and paid once."""

    reply: Message
    calls: tuple[ToolCall, ...]
    results: tuple[Message, ...]
    copied: bool
    idle: bool = False
    rest: bool = False

    @property
    def whole(self) -> bool:
        """Whether it says what the model meant: not cut off, not refused, with arguments that can be read."""
        return self.reply.stop in _WHOLE and not any(call.problem for call in self.calls)

    @property
    def trains(self) -> bool:
        """Whether a model should learn to say it."""
        return self.whole and not self.copied and not self.idle

    @property
    def n_errors(self) -> int:
        """How many calls could not be carried out."""
        return sum(result.is_error for result in self.results)


@dataclass(frozen=True)
class Speech:
    """Speech to the model, all that were said in a row."""

    messages: tuple[Message, ...]
    copied: bool

    @property
    def text(self) -> str:
        """As the model was shown them."""
        return "\n\n".join(m.text for m in self.messages).strip()


Piece = Speech | Exchange


@dataclass(frozen=True)
class Dialogue:
    """`parts` begin with words; turns follow each other or words. `window` counts from 1, 0 for a whole conversation.

    new: replies that belong to this talk and to no earlier one, also those that are left out: what they cost.
    truncated: a call had no result, and the talk ends before it; or what the model was still shown is not known.
    """

    key: str
    window: int
    system: str
    parts: tuple[Piece, ...]
    new: tuple[Message, ...]
    truncated: bool

    @cached_property
    def turns(self) -> list[Exchange]:
        """The replies with their results."""
        return [part for part in self.parts if isinstance(part, Exchange)]

    @cached_property
    def fresh(self) -> list[Exchange]:
        """The turns that no earlier window has."""
        return [turn for turn in self.turns if not turn.copied]

    @property
    def left_out(self) -> int:
        """Replies of this talk that are not in it."""
        return len(self.new) - len(self.fresh)


def dialogues(conversation: Conversation, *, seen: bool = False) -> Iterator[Dialogue]:
    """The whole conversation, or with `seen` one talk for each window. None that has no reply."""
    made = _Replay(conversation.key, seen)
    for message in conversation.messages:
        if made.truncated:
            made.account(message)
        else:
            yield from made.hear(message)
    yield from made.over()


@dataclass
class _Block:
    """What counted as one message of the live conversation: words, a reply, or results with words on top."""

    kind: Literal["words", "reply", "results"]
    messages: list[Message] = field(default_factory=list)
    copied: bool = False
    calls: tuple[ToolCall, ...] = ()  # of results: those that still wait for one
    words: list[Message] = field(default_factory=list)  # on top of results
    idle: bool = False  # of a reply: see `Exchange`


_NOTHING = _Block("words")


class _Replay:
    """Plays a conversation again, by the rules of `agent.authors.llm.author`."""

    def __init__(self, key: str, seen: bool) -> None:
        self._key, self._seen = key, seen
        self._system = ""
        self._blocks: list[_Block] = []
        self._window = 1 if seen else 0
        self._new: list[Message] = []
        self._called = True  # whether the last reply called a tool; where none did, the words that follow are a nudge
        self._nudged = False
        self.truncated = False

    def hear(self, message: Message) -> Iterator[Dialogue]:
        """One message more; a history closes a window."""
        if message.role == "system":
            self._system = message.text
        elif message.role == "assistant":
            self._reply(message)
        elif message.role == "tool":
            self._result(message)
        elif not message.history or not self._blocks:
            self._words(message)
        elif self._seen:
            yield from self._turn_page(message)

    def account(self, message: Message) -> None:
        """What comes after the end costs all the same."""
        if message.role == "assistant":
            self._new.append(message)

    def over(self) -> Iterator[Dialogue]:
        """The last talk."""
        if self._waiting():
            self._cut()
        yield from self._talk()

    def _turn_page(self, history: Message) -> Iterator[Dialogue]:
        if self._waiting():
            self._cut()
        yield from self._talk()
        if history.kept is None:
            self.truncated = True
        kept = self._blocks[-history.kept :] if history.kept else []
        self._blocks = [_Block("words", [history]), *(replace(block, copied=True) for block in kept)]
        self._window += 1
        self._new = []

    def _reply(self, message: Message) -> None:
        self._new.append(message)
        nudged, self._nudged, self._called = self._nudged, False, bool(message.calls)
        if self._waiting():
            self._cut()
        elif message.calls or (message.text.strip() and message.stop != "refusal"):
            self._blocks.append(_Block("reply", [message], idle=nudged))
            if message.calls:
                self._blocks.append(_Block("results", calls=_named(message)))

    def _result(self, message: Message) -> None:
        """The result of the first call of that id that waits for one; anything else is nobody's result."""
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.kind == "results" and not last.words and len(last.messages) < len(last.calls):
            expected = last.calls[len(last.messages)]
            if message.call_id in (expected.call_id, self._raw_id(last)):
                last.messages.append(message)

    def _raw_id(self, results: _Block) -> str:
        """The id as the model gave it, of the call that waits."""
        reply = self._blocks[-2].messages[0]
        return reply.calls[len(results.messages)].call_id

    def _words(self, message: Message) -> None:
        last = self._blocks[-1] if self._blocks else None
        self._nudged = not self._called
        if last is not None and last.kind == "reply":
            last.idle = True
        if last is not None and last.kind == "words":
            last.messages.append(message)
        elif last is not None and last.kind == "results":
            last.words.append(message)
        else:
            self._blocks.append(_Block("words", [message]))

    def _waiting(self) -> bool:
        """Whether the last reply has calls without a result."""
        last = self._blocks[-1] if self._blocks else None
        return last is not None and last.kind == "results" and len(last.messages) < len(last.calls)

    def _cut(self) -> None:
        del self._blocks[-2:]
        self.truncated = True

    def _talk(self) -> Iterator[Dialogue]:
        parts = _parts(self._blocks)
        if isinstance(parts[0] if parts else None, Speech) and any(
            isinstance(p, Exchange) and not p.copied for p in parts
        ):
            yield Dialogue(self._key, self._window, self._system, tuple(parts), tuple(self._new), self.truncated)


def _parts(blocks: Sequence[_Block]) -> list[Piece]:
    """Of a reply that another follows at once, only the second stays; words in the end that nobody answered go."""
    parts: list[Piece] = []
    for i, block in enumerate(blocks):
        following = blocks[i + 1] if i + 1 < len(blocks) else _NOTHING
        if block.kind == "words":
            parts.append(Speech(tuple(block.messages), block.copied))
        elif block.kind == "results":
            if block.words:
                parts.append(Speech(tuple(block.words), block.copied))
        elif following.kind != "reply":
            results = following if following.kind == "results" else _NOTHING
            parts.append(Exchange(block.messages[0], results.calls, tuple(results.messages), block.copied, block.idle))
    while parts and isinstance(parts[-1], Speech):
        parts.pop()
    return parts


def without_idle_end(talk: Dialogue) -> Dialogue | None:
    """The talk up to the last reply that did something: nobody learns from the rest. None when none did."""
    parts = list(talk.parts)
    while parts and (isinstance(parts[-1], Speech) or parts[-1].idle):
        parts.pop()
    return replace(talk, parts=tuple(parts)) if parts else None


def one_call_each(talk: Dialogue) -> Dialogue:
    """The talk with every reply of several calls as so many replies, each with its result; the words and the reasoning
    stand before the first."""
    parts: list[Piece] = []
    for part in talk.parts:
        if not isinstance(part, Exchange) or len(part.calls) < 2:
            parts.append(part)
            continue
        for i, (call, result) in enumerate(zip(part.calls, part.results, strict=True)):
            reply = replace(part.reply, text="", thinking="") if i else part.reply
            parts.append(replace(part, reply=reply, calls=(call,), results=(result,), rest=i > 0))
    return replace(talk, parts=tuple(parts))


def _named(reply: Message) -> tuple[ToolCall, ...]:
    """The calls of a reply with ids that tell them apart."""
    taken: set[str] = set()
    named = []
    for i, call in enumerate(reply.calls):
        call_id = call.call_id or f"call_{reply.turn or 0}_{i}"
        while call_id in taken:
            call_id += "_"
        taken.add(call_id)
        named.append(call if call_id == call.call_id else replace(call, call_id=call_id))
    return tuple(named)


# What a row says of its conversation besides the messages ------------------------------------------------------------

COLUMNS = (
    Feature("conversation", "text", "key of the conversation in its run"),
    Feature("window", "int", "which window of the model's context, from 1; 0 for a whole conversation"),
    Feature("n_turns", "int", "replies of the model, without those of earlier windows"),
    Feature("n_calls", "int", "tool calls in them"),
    Feature("n_errors", "int", "calls that could not be carried out"),
    Feature("n_attempts", "int", "candidates that they made"),
    Feature("n_untrained", "int", "replies in `messages` that a model should not learn to say"),
    Feature("left_out", "int", "replies not in the row: empty, refused, broken off, without results, or an idle end"),
    Feature("best_status", "text", "verdict of the best candidate; null without one"),
    Feature("final_speedup", "float", "of the best candidate over the fastest baseline; null when not timed"),
    Feature("reasoning_chars", "int", "characters of reasoning in the replies"),
    Feature("input_tokens", "int", "prompts in all, cached or not; null when a reply was not counted"),
    Feature("output_tokens", "int", "replies in all, with reasoning; null when a reply was not counted"),
    Feature("cached_tokens", "int", "of `input_tokens`; null when a reply was not counted"),
    Feature("cost_usd", "float", "US dollars for all replies; null when a price is not known"),
    Feature("why", "text", "how the run ended; null when it did not"),
    Feature("last_stop", "text", "how the last reply ended: end, tools, max_tokens, context, refusal"),
    Feature("truncated", "bool", "the run was killed during a call, which is cut off with all that follows"),
    Feature("complete", "bool", "the run ended, and nothing is cut off"),
)
_RANKS = {status: rank for rank, status in enumerate(Status)}  # from rejected to correct


def best_attempt(attempts: Sequence[Attempt], run_best: Attempt | None) -> Attempt | None:
    """The fastest, the run's own best before others; where nothing was timed the first right one; else the one that
    came furthest. None when none was judged."""
    judged = [a for a in attempts if a.status is not None]
    timed = [a for a in judged if a.timing is not None]
    if run_best is not None and any(a is run_best for a in timed):
        return run_best
    if timed:
        return min(timed, key=lambda a: a.timing.median_us if a.timing else 0.0)
    return next((a for a in judged if a.accepted), None) or max(judged, key=_rank, default=None)


def judged_dialogues(
    trajectory: Trajectory, *, seen: bool = False, whole: bool = True
) -> Iterator[tuple[Dialogue, list[Attempt], Attempt | None]]:
    """Each conversation of a run, or (`seen`) each window of one, with the attempts that it made and their best.
    `whole`: with the end in which nothing was done."""
    for conversation in trajectory.conversations:
        made = [a for a in trajectory.attempts if a.conversation == conversation.key]
        for said in dialogues(conversation, seen=seen):
            talk = said if whole else without_idle_end(said)
            if talk is None or not talk.fresh:
                continue
            turns = {part.reply.turn for part in talk.fresh}
            its = [a for a in made if a.turn in turns]
            yield talk, its, best_attempt(its, trajectory.best)


def _rank(attempt: Attempt) -> int:
    return _RANKS[attempt.status] if attempt.status is not None else -1


def summary(trajectory: Trajectory, talk: Dialogue, attempts: Sequence[Attempt], best: Attempt | None) -> Row:
    """The values of COLUMNS. `attempts`: those that the talk made; `best` of them."""
    fresh = talk.fresh
    return {
        "conversation": talk.key,
        "window": talk.window,
        "n_turns": len(fresh),
        "n_calls": sum(len(t.calls) for t in fresh),
        "n_errors": sum(t.n_errors for t in fresh),
        "n_attempts": len(attempts),
        "n_untrained": sum(not t.trains for t in talk.turns),
        "left_out": talk.left_out,
        "best_status": best.status.value if best is not None and best.status is not None else None,
        "final_speedup": best.speedup if best is not None else None,
        "reasoning_chars": sum(len(t.reply.thinking) for t in fresh),
        **usage_totals(talk.new),
        "cost_usd": cost_usd(talk.new),
        "why": trajectory.why,
        "last_stop": talk.new[-1].stop,
        "truncated": talk.truncated,
        "complete": trajectory.why is not None and not talk.truncated,
    }


def cost_usd(replies: Iterable[Message]) -> float | None:
    """US dollars for all of them; None when one has no price."""
    costs = [m.cost_usd for m in replies]
    return sum(c for c in costs if c is not None) if None not in costs else None


def usage_totals(replies: Sequence[Message]) -> Row:
    """Tokens by name; None when a reply was not counted."""
    return {name: _total(replies, name) for name in ("input_tokens", "output_tokens", "cached_tokens")}


def _total(replies: Sequence[Message], name: str) -> int | None:
    counts = [m.tokens(name) for m in replies]
    return sum(n for n in counts if n is not None) if None not in counts else None


# The formats ----------------------------------------------------------------------------------------------------------


@cache
def tool_schemas() -> list[Json]:
    """The four tools as function definitions; one object for all rows, never to be changed."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in TOOLS
    ]


def json_text(value: Json) -> str:
    """JSON in one line; huge integers and lone surrogates as Python's own encoder writes them."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


@dataclass
class ChatFormat(Format):
    """A row for each conversation, or (`seen`) for each window of the model's context, with the history that it was
    shown. `empty`: whether conversations in which nothing was attempted are rows, too. `calls`: "one" makes of a reply
    with several calls as many replies with one each, for templates that render no more (the default where `reasoning`
    is "thinking": gpt-oss' template renders the first alone). `system`: "short" puts a prompt of some hundred words and
    the task in the place of the one that the model had."""

    conversations: ClassVar[bool] = True
    facts: ClassVar[tuple[Feature, ...]] = COLUMNS
    whole: ClassVar[bool] = False  # whether the end is told in which nothing was done any more
    seen: bool = False
    empty: Literal["drop", "keep"] = "drop"
    calls: Literal["all", "one"] | None = None
    system: Literal["full", "short"] = "full"
    _unknown: list[str] = field(default_factory=list, init=False)  # languages of runs without a short prompt

    def notes(self) -> Iterator[str]:
        """Of runs without a short prompt."""
        yield from instructions.left_out(self.name, self._unknown)

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """One row a conversation, or one a window; none where the dialect makes nothing of it."""
        if self.system == "short" and trajectory.run.language not in FOLDERS:
            self._unknown.append(trajectory.run.language)
            return
        tried = {attempt.conversation for attempt in trajectory.attempts}
        for shown, its, best in judged_dialogues(trajectory, seen=self.seen, whole=self.whole):
            if self.empty == "drop" and shown.key not in tried:
                continue
            facts = summary(trajectory, shown, its, best)
            shown = one_call_each(shown) if self.calls == "one" else shown
            if self.system == "short":
                shown = replace(shown, system=instructions.talk(trajectory.run))
            if (values := self.values(trajectory, shown, facts)) is not None:
                yield ExportRow(values, best, facts)

    def values(self, trajectory: Trajectory, talk: Dialogue, facts: Row) -> Row | None:
        """The row of one conversation, of which these facts are known."""
        raise NotImplementedError


# sft-chat -----------------------------------------------------------------------------------------------------------


@dataclass
class SftChat(ChatFormat):
    """`reasoning`: the key for it in a reply. "reasoning_content" is what most templates read (Qwen, GLM, Nemotron);
    "thinking" is that of gpt-oss, which refuses words beside it where tools are called, so that they join it there;
    "inline" puts it in <think> tags before the text; "none" leaves it out.

    Each reply says in `train` whether a model should learn it: not when it was cut off, could not be read, or was in an
    earlier window already (Axolotl: `message_field_training: train`; with TRL, drop rows with `n_untrained`, or split
    `messages` at `n_context`)."""

    reasoning: Reasoning = "reasoning_content"

    def __post_init__(self) -> None:
        if self.calls is None and self.reasoning == "thinking":
            self.calls = "one"

    name: ClassVar[str] = "sft-chat"
    about: ClassVar[str] = "whole conversations with tool calls (TRL messages + tools)"
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("messages", "messages", "the conversation; `train` of a reply: whether it should be learned"),
        Feature("tools", "json", "the tools as JSON Schemas"),
        Feature("n_context", "int", "messages in the beginning that hold nothing new to learn"),
        *COLUMNS,
    )

    def values(self, trajectory: Trajectory, talk: Dialogue, facts: Row) -> Row:
        """Messages, tools and the summary."""
        messages = chat_messages(talk, self.reasoning)
        context = next((i for i, m in enumerate(messages) if m.get("train")), len(messages))
        row: Row = {"messages": messages, "tools": tool_schemas(), "n_context": context}
        return row | facts


def chat_messages(talk: Dialogue, reasoning: Reasoning = "reasoning_content", *, upto: int | None = None) -> list[Row]:
    """System, user, assistant and tool messages in the keys of chat templates, of all parts or those before `upto`."""
    messages: list[Row] = [{"role": "system", "content": talk.system}] if talk.system else []
    for part in talk.parts[:upto]:
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
    """Every reply that says what the model meant has weight. A conversation in which none has makes no row."""

    name: ClassVar[str] = "openai"
    about: ClassVar[str] = "conversations as fine-tuning files of OpenAI's API"
    bare: ClassVar[bool] = True  # unknown keys are refused there
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("messages", "messages", "ends with a reply; `weight` 0: context only"),
        Feature("tools", "json", "the tools as JSON Schemas"),
        Feature("parallel_tool_calls", "bool", "a reply in it calls several tools"),
    )

    def values(self, trajectory: Trajectory, talk: Dialogue, facts: Row) -> Row | None:
        """Arguments are JSON strings, reasoning has no place, and `weight` says which replies count."""
        replies = iter(talk.turns)
        messages = [
            _openai_reply(next(replies))
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


def _openai_reply(turn: Exchange) -> Row:
    reply: Row = {"role": "assistant"}
    if turn.reply.text or not turn.calls:
        reply["content"] = turn.reply.text
    if turn.calls:
        reply["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": json_text(c.arguments)}}
            for c in turn.calls
        ]
    return reply | {"weight": int(turn.trains)}


# sharegpt -----------------------------------------------------------------------------------------------------------


@dataclass
class ShareGpt(ChatFormat):
    """By the rules of LLaMA-Factory: odd places belong to `human` and `observation`, even ones to `gpt` and
    `function_call`, the last one is even; else the whole example is skipped there. So the calls of a reply are one
    `function_call` (an object, or a list for several), and their results one `observation`; words after results are at
    its end. Reasoning, and words beside calls, have no place."""

    name: ClassVar[str] = "sharegpt"
    about: ClassVar[str] = "conversations in ShareGPT's tags (LLaMA-Factory)"
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "conversations",
            "structs",
            "human first and gpt or function_call last",
            (
                Feature("from", "text", "human, observation, gpt or function_call"),
                Feature("value", "text", "its words"),
            ),
        ),
        Feature("system", "text", "the system prompt"),
        Feature("tools", "text", "JSON list of function definitions"),
        *COLUMNS,
    )

    def values(self, trajectory: Trajectory, talk: Dialogue, facts: Row) -> Row:
        """The conversation in its tags, the tools without their envelope, the summary."""
        tagged: list[Row] = []
        for part in talk.parts:
            if isinstance(part, Exchange):
                calls = [{"name": c.name, "arguments": c.arguments} for c in part.calls]
                said = json_text(calls[0] if len(calls) == 1 else calls) if calls else part.reply.text
                tagged.append({"from": "function_call" if calls else "gpt", "value": said})
                if part.results:
                    tagged.append({"from": "observation", "value": _BETWEEN_RESULTS.join(r.text for r in part.results)})
            elif tagged and tagged[-1]["from"] == "observation":
                tagged[-1]["value"] += f"\n\n{part.text}"
            else:
                tagged.append({"from": "human", "value": part.text})
        if tagged[-1]["from"] == "observation":
            tagged.pop()
        tools = json_text([tool["function"] for tool in tool_schemas()])
        return {"conversations": tagged, "system": talk.system, "tools": tools} | facts


# atif ---------------------------------------------------------------------------------------------------------------


@dataclass
class Atif(ChatFormat):
    """The Agent Trajectory Interchange Format. What an earlier window has already is marked as copied context, and
    costs nothing again."""

    name: ClassVar[str] = "atif"
    about: ClassVar[str] = "Agent Trajectory Interchange Format 1.8, a document a line"
    bare: ClassVar[bool] = True  # it forbids keys of one's own but in `extra`
    whole: ClassVar[bool] = True
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("schema_version", "text", "ATIF-v1.8"),
        Feature("session_id", "text", "id of the run"),
        Feature("trajectory_id", "text", "run, conversation and window"),
        Feature("agent", "json", "name, version and model of the agent, and its tools"),
        Feature("steps", "json", "system, user and agent steps from 1, with calls, observations and metrics"),
        Feature("final_metrics", "json", "totals of tokens and US dollars, also of replies that are left out"),
        Feature("extra", "json", "task, verdict, speed-up, how it ended"),
    )

    def values(self, trajectory: Trajectory, talk: Dialogue, facts: Row) -> Row:
        """The document."""
        run = trajectory.run
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
    asked = int(not part.rest)
    step: Row = {"timestamp": _iso(reply.at), "source": "agent", "message": reply.text, "llm_call_count": asked}
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
    if asked and not part.copied and (metrics := _metrics(reply)):
        step["metrics"] = metrics
    seconds = reply.seconds if asked else None
    return step | {"extra": {"turn": reply.turn, "stop": reply.stop, "seconds": seconds, "trains": part.trains}}


def _copied(part: Piece) -> Row:
    return {"is_copied_context": True} if part.copied else {}


def _metrics(reply: Message) -> Row:
    thought = reply.tokens("thinking_tokens")
    return _known(
        {
            "prompt_tokens": reply.tokens("input_tokens"),
            "completion_tokens": reply.tokens("output_tokens"),
            "cached_tokens": reply.tokens("cached_tokens"),
            "cost_usd": reply.cost_usd,
            "extra": None if thought is None else {"thinking_tokens": thought},
        }
    )


def _known(values: Row) -> Row:
    return {name: value for name, value in values.items() if value is not None}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
