"""A conversation as every training format wants it: roles alternate, and every call has its result.

The whole transcript, or, where older exchanges gave way to a history, one talk for each window as the model saw it.
What is left out, and why: a reply that said nothing or refused (the model was not shown it again either); a reply that
broke off at the end of the context, when another follows at once; a call without a result, and all that comes after it
(the run was killed there); words that nobody answered. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from agent.llm.dialogue import Call
from agent.record.trajectory import Conversation, Message

_WHOLE = ("", "end", "tools")  # why a reply ended that says all it meant to say


@dataclass(frozen=True)
class Turn:
    """A reply with the results of its calls, in their order. The ids of `calls` are unique in it and not empty.
    `copied`: it was said in an earlier window already."""

    reply: Message
    calls: tuple[Call, ...]
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
class Words:
    """Words to the model, all that were said in a row."""

    messages: tuple[Message, ...]
    copied: bool

    @property
    def text(self) -> str:
        """As the model was shown them."""
        return "\n\n".join(m.text for m in self.messages).strip()


Part = Words | Turn


@dataclass(frozen=True)
class Talk:
    """`parts` begin with words; turns follow each other or words. `window` counts from 1, 0 for a whole transcript.

    new: replies that belong to this talk and to no earlier one, also those that are left out: what they cost.
    truncated: a call had no result, and the talk ends before it; or what the model was still shown is not known.
    """

    key: str
    window: int
    system: str
    parts: tuple[Part, ...]
    new: tuple[Message, ...]
    truncated: bool

    @cached_property
    def turns(self) -> list[Turn]:
        """The replies with their results."""
        return [part for part in self.parts if isinstance(part, Turn)]

    @cached_property
    def fresh(self) -> list[Turn]:
        """The turns that no earlier window has."""
        return [turn for turn in self.turns if not turn.copied]

    @property
    def left_out(self) -> int:
        """Replies of this talk that are not in it."""
        return len(self.new) - len(self.fresh)


def talks(conversation: Conversation, *, seen: bool = False) -> Iterator[Talk]:
    """The whole transcript, or with `seen` one talk for each window. None that has no reply."""
    made = _Reading(conversation.key, seen)
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
    calls: tuple[Call, ...] = ()  # of results: those that still wait for one
    words: list[Message] = field(default_factory=list)  # on top of results


_NOTHING = _Block("words")


class _Reading:
    """Plays a conversation again, by the rules of `agent.authors.llm.conversation`."""

    def __init__(self, key: str, seen: bool) -> None:
        self._key, self._seen = key, seen
        self._system = ""
        self._blocks: list[_Block] = []
        self._window = 1 if seen else 0
        self._new: list[Message] = []
        self.truncated = False

    def hear(self, message: Message) -> Iterator[Talk]:
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

    def over(self) -> Iterator[Talk]:
        """The last talk."""
        if self._waiting():
            self._cut()
        yield from self._talk()

    def _turn_page(self, history: Message) -> Iterator[Talk]:
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

    def _talk(self) -> Iterator[Talk]:
        parts = _parts(self._blocks)
        if isinstance(parts[0] if parts else None, Words) and any(isinstance(p, Turn) and not p.copied for p in parts):
            yield Talk(self._key, self._window, self._system, tuple(parts), tuple(self._new), self.truncated)


def _parts(blocks: Sequence[_Block]) -> list[Part]:
    """Of a reply that another follows at once, only the second stays; words in the end that nobody answered go."""
    parts: list[Part] = []
    for i, block in enumerate(blocks):
        following = blocks[i + 1] if i + 1 < len(blocks) else _NOTHING
        if block.kind == "words":
            parts.append(Words(tuple(block.messages), block.copied))
        elif block.kind == "results":
            if block.words:
                parts.append(Words(tuple(block.words), block.copied))
        elif following.kind != "reply":
            results = following if following.kind == "results" else _NOTHING
            parts.append(Turn(block.messages[0], results.calls, tuple(results.messages), block.copied))
    while parts and isinstance(parts[-1], Words):
        parts.pop()
    return parts


def _named(reply: Message) -> tuple[Call, ...]:
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
