"""Conversations as every training format wants them: roles alternate, every call has its result.

The whole transcript, or, where older exchanges gave way to a history, one for each window as the model saw it. What is
left out, and why: a reply that said nothing or refused (the model was not shown it again either); a reply that broke
off at the end of the context, when another follows at once; a call without a result, and all that comes after it (the
run was killed there); words that nobody answered. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from kerneltune.agent.attempt import LlmTurn
from kerneltune.agent.authors.llm.feedback import compiled_words, verdict_words
from kerneltune.agent.events import Reflected
from kerneltune.agent.export.base import Feature, Row
from kerneltune.agent.export.instructions import declared_cases
from kerneltune.agent.export.outcome import leading, outcome
from kerneltune.agent.models.types import ToolCall
from kerneltune.agent.record.trajectory import AttemptRecord, Conversation, Message, Trajectory
from kerneltune.prompts import render
from kerneltune.tools.receipt import author_view
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Status, Verdict

_WHOLE = ("", "end", "tools")  # why a reply ended that says all it meant to say


@dataclass(frozen=True)
class Exchange:
    """A reply with the results of its calls, in their order. The ids of `calls` are unique in it and not empty.
    `copied`: it was said in an earlier window already."""

    reply: Message
    calls: tuple[ToolCall, ...]
    results: tuple[Message, ...]
    copied: bool

    @property
    def whole(self) -> bool:
        """Whether it says what the model meant: not cut off, not refused, with arguments that can be read."""
        return self.reply.stop in _WHOLE and not any(call.problem for call in self.calls)

    @property
    def trains(self) -> bool:
        """Whether a model should learn to say it."""
        return self.whole and not self.copied

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
class Transcript:
    """`parts` begin with words; turns follow each other or words. `window` counts from 1, 0 for a whole transcript.

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


def transcripts(conversation: Conversation, *, seen: bool = False) -> Iterator[Transcript]:
    """The whole transcript, or with `seen` one talk for each window. None that has no reply."""
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


_NOTHING = _Block("words")


class _Replay:
    """Plays a conversation again, by the rules of `agent.authors.llm.conversation`."""

    def __init__(self, key: str, seen: bool) -> None:
        self._key, self._seen = key, seen
        self._system = ""
        self._blocks: list[_Block] = []
        self._window = 1 if seen else 0
        self._new: list[Message] = []
        self.truncated = False

    def hear(self, message: Message) -> Iterator[Transcript]:
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

    def over(self) -> Iterator[Transcript]:
        """The last talk."""
        if self._waiting():
            self._cut()
        yield from self._talk()

    def _turn_page(self, history: Message) -> Iterator[Transcript]:
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
        if self._waiting():
            self._cut()
        elif message.calls or (message.text.strip() and message.stop != "refusal"):
            self._blocks.append(_Block("reply", [message]))
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

    def _talk(self) -> Iterator[Transcript]:
        parts = _parts(self._blocks)
        if isinstance(parts[0] if parts else None, Speech) and any(
            isinstance(p, Exchange) and not p.copied for p in parts
        ):
            yield Transcript(self._key, self._window, self._system, tuple(parts), tuple(self._new), self.truncated)


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
            parts.append(Exchange(block.messages[0], results.calls, tuple(results.messages), block.copied))
    while parts and isinstance(parts[-1], Speech):
        parts.pop()
    return parts


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
    Feature("window", "int", "which window of the model's context, from 1; 0 for a whole transcript"),
    Feature("n_turns", "int", "replies of the model, without those of earlier windows"),
    Feature("n_calls", "int", "tool calls in them"),
    Feature("n_errors", "int", "calls that could not be carried out"),
    Feature("n_attempts", "int", "candidates that they made"),
    Feature("n_untrained", "int", "replies in `messages` that a model should not learn to say"),
    Feature("left_out", "int", "replies that are not in the row: empty, refused, broken off, or without results"),
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


def best_attempt(attempts: Sequence[AttemptRecord], run_best: AttemptRecord | None) -> AttemptRecord | None:
    """The fastest, the run's own best before others; where nothing was timed the first right one; else the one that
    came furthest. None when none was judged."""
    judged = [a for a in attempts if a.status is not None]
    timed = [a for a in judged if a.timing is not None]
    if run_best is not None and any(a is run_best for a in timed):
        return run_best
    if timed:
        return min(timed, key=lambda a: a.timing.median_us if a.timing else 0.0)
    return next((a for a in judged if a.accepted), None) or max(judged, key=_rank, default=None)


def judged_transcripts(
    trajectory: Trajectory, *, seen: bool = False
) -> Iterator[tuple[Transcript, list[AttemptRecord], AttemptRecord | None]]:
    """Each conversation of a run, or (`seen`) each window of one, with the attempts that it made and their best."""
    for conversation in trajectory.conversations:
        made = [a for a in trajectory.attempts if a.conversation == conversation.key]
        for talk in transcripts(conversation, seen=seen):
            turns = {part.reply.turn for part in talk.fresh}
            its = [a for a in made if a.turn in turns]
            yield talk, its, best_attempt(its, trajectory.best)


def _rank(attempt: AttemptRecord) -> int:
    return _RANKS[attempt.status] if attempt.status is not None else -1


def summary(
    trajectory: Trajectory, talk: Transcript, attempts: Sequence[AttemptRecord], best: AttemptRecord | None
) -> Row:
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
    counts = [m.usage.get(name) if m.usage else None for m in replies]
    known = [n for n in counts if isinstance(n, int)]
    return sum(known) if len(known) == len(counts) else None


# A run without a model, told as if one had called the tools ---------------------------------------------------------
#
# Nobody said this: every row that is made of it says so. Told is what is stored: sources, rationales, predictions, what
# the compiler and the judge found, in the words of `agent.authors.llm.feedback`. What is not stored (bytes touched,
# instruction counts, hints of the roofline) is not spoken of, and no `reflect` call is made up. Nothing of a held-out
# case is told: the stored task lists the visible ones.

KEY = "synthetic"
MOST_ATTEMPTS = 64  # of a run that are told, from the first: a search may make thousands


def synthetic_conversation(trajectory: Trajectory) -> tuple[Conversation, Trajectory]:
    """The conversation, and the run with its attempts as if they had been made in it."""
    judged = [a for a in trajectory.attempts if a.status is not None][:MOST_ATTEMPTS]
    made: list[AttemptRecord] = []
    messages = [_opening(trajectory)]
    leader: int | None = None
    led = leading(judged)
    task = _task(trajectory, judged)
    known = {a.attempt_id: a.number for a in judged}
    for attempt in judged:
        leader = attempt.number if attempt.attempt_id in led else leader
        mine = replace(attempt, origin=LlmTurn(KEY, len(messages)))
        messages += _messages(mine, known.get(attempt.parent_id or ""), leader, task)
        made.append(mine)
    best = next((a for a in made if trajectory.best and a.attempt_id == trajectory.best.attempt_id), None)
    return Conversation(KEY, tuple(messages)), replace(trajectory, attempts=tuple(made), best=best)


def _opening(trajectory: Trajectory) -> Message:
    run = trajectory.run
    words = render("synthetic.j2", task=run.task, gpu=run.gpu, arch=run.arch, source=run.task_source)
    return Message("user", words, run.at)


def _messages(attempt: AttemptRecord, parent: int | None, leader: int | None, task: TaskSpec) -> Iterator[Message]:
    """An `update`, and a `bench` if it compiled, with their results."""
    verdict = author_view(_verdict(attempt), task)
    held = _held(attempt)
    failed = attempt.tool == "update"
    arguments: dict[str, Json] = {
        "parent": parent,
        "rationale": attempt.rationale,
        "source": attempt.source,
        "edits": None,
    }
    yield from _exchange(
        attempt,
        ToolCall(f"{KEY}_{attempt.number}_update", "update", arguments),
        _expected(held) if held else "",
        compiled_words(
            attempt.number, attempt.source, verdict if failed else None, attempt.kernels, attempt.library_ops
        ),
    )
    if not failed:
        call = ToolCall(f"{KEY}_{attempt.number}_bench", "bench", {"attempt": attempt.number})
        yield from _exchange(attempt, call, "", verdict_words(attempt.number, verdict, leader, held))


def _exchange(attempt: AttemptRecord, call: ToolCall, text: str, result: str) -> Iterator[Message]:
    turn = attempt.turn if call.name == "update" else None
    yield Message("assistant", text, attempt.at, calls=(call,), turn=turn, stop="tools")
    yield Message("tool", result, attempt.at, call_id=call.call_id)


def _verdict(attempt: AttemptRecord) -> Verdict:
    return Verdict(
        attempt.status or Status.UNCHECKED,
        attempt.detail,
        attempt.cases,
        attempt.timing,
        attempt.comparisons,
        attempt.coverage,
        attempt.sol_fraction,
        attempt.variant,
        attempt.tier,
        lines=attempt.lines,
    )


def _held(attempt: AttemptRecord) -> Reflected | None:
    """The latest that was expected of it and decided."""
    said = next((e for e in reversed(attempt.expectations) if outcome(e, attempt) != "open"), None)
    if said is None:
        return None
    return Reflected("", attempt.attempt_id, said.hypothesis, said.prediction, said.evidence, said.outcome)


def _expected(held: Reflected) -> str:
    return "\n".join(filter(None, (held.hypothesis, held.prediction)))


def _task(trajectory: Trajectory, attempts: Sequence[AttemptRecord]) -> TaskSpec:
    """What `author_view` asks of a task: which cases are held out. Those are not in the source that is stored."""
    run = trajectory.run
    visible, _ = declared_cases(run.task_source)
    names = dict.fromkeys(("main", *(c.case for a in attempts for c in a.cases)))
    cases = tuple(CaseSpec(name, (), (), None, held_out=name not in visible) for name in names)
    return TaskSpec(run.task, run.task_sha256, "", run.task_source, cases)
