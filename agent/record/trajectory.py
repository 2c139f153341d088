"""A run as training data wants it: its attempts and its conversations, flat. A fold over the events of one run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kerneltune.agent.attempt import Attempt, RunStart, StopReason, best
from kerneltune.agent.events import Event, Proposed, Replied, RunEnded, RunResumed, RunStarted, Said, attempts_of
from kerneltune.agent.models.types import ToolCall
from kerneltune.tools.schema.codec import DecodeError, Json, decode

JUDGED_FILES = "files"  # the author of a run of `optimize bench`: nothing goes on, nothing repeats itself
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Message:
    """One message of a conversation. Of an assistant: `calls`, `thinking`, `turn`, what it cost; of a tool: `call_id`.
    `cost_usd`, `usage` and what is known of a reply's tokens are None when unknown."""

    role: Role
    text: str
    at: float
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    is_error: bool = False
    turn: int | None = None
    stop: str = ""
    model: str = ""
    seconds: float | None = None
    usage: dict[str, Json] | None = None
    cost_usd: float | None = None
    history: bool = False  # a table of what was tried, which took the place of older exchanges
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    kept: int | None = None  # of a history: how many of the messages before it the model still saw, None when unknown

    def tokens(self, name: str) -> int | None:
        """A count of `usage`; None when it is unknown, or no count, as a record from elsewhere may have it."""
        found = (self.usage or {}).get(name)
        return found if type(found) is int and found >= 0 else None


@dataclass(frozen=True)
class Conversation:
    """All messages in order, the system's first. Nothing is left out where the model was shown a `history` instead."""

    key: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Trajectory:
    """One run. `best`: as its ending says, or as far as it has come. `why`: how it ended, None when it did not, or
    went on after that. `others`: who wrote an attempt, by its id, where that is not the run's author."""

    run: RunStarted
    attempts: tuple[Attempt, ...]  # by number
    conversations: tuple[Conversation, ...] = ()
    best: Attempt | None = None
    why: StopReason | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def author_of(self, attempt: Attempt) -> str:
        """Who wrote an attempt of the run: its author, or whoever went on with it."""
        return self.others.get(attempt.attempt_id, self.run.author)

    def parent(self, attempt: Attempt) -> Attempt | None:
        """The attempt it was derived from, if that is one of this run; one that is not older than its child is none."""
        found = self._by_id.get(attempt.parent_id or "")
        return found if found is not None and found.number < attempt.number else None

    @cached_property
    def starts(self) -> tuple[Attempt, ...]:
        """What the run was told to begin with."""
        return tuple(a for a in self.attempts if isinstance(a.origin, RunStart))

    @cached_property
    def _by_id(self) -> dict[str, Attempt]:
        return {attempt.attempt_id: attempt for attempt in self.attempts}


def trajectory(events: Iterable[Event]) -> Trajectory:
    """The trajectory that the events of one run make. Raises ValueError when the run never started."""
    events = list(events)
    started = next((e for e in events if isinstance(e, RunStarted)), None)
    if started is None:
        raise ValueError("these events start no run")
    ended = ending(events)
    attempts = tuple(sorted(attempts_of(events), key=lambda a: a.number))
    return Trajectory(
        started,
        attempts,
        _conversations(e for e in events if isinstance(e, Said | Replied)),
        best_of(attempts, ended.best_attempt_id if ended else None),
        ended.why if ended else None,
        _others(events),
    )


def _others(events: Iterable[Event]) -> dict[str, str]:
    author, found = "", dict[str, str]()
    for event in events:
        if isinstance(event, RunResumed):
            author = event.other_author
        elif isinstance(event, Proposed) and author:
            found[event.attempt_id] = author
    return found


def ending(events: Iterable[Event]) -> RunEnded | None:
    """The last one, unless the run went on after it."""
    turn = None
    for event in events:
        if isinstance(event, RunEnded | RunResumed):
            turn = event
    return turn if isinstance(turn, RunEnded) else None


def best_of(attempts: Sequence[Attempt], named: str | None) -> Attempt | None:
    """The attempt that the run's ending names; without one, the best of those that are accepted: conversations side by
    side get their verdicts in another order than their numbers."""
    if named is not None:
        return next((a for a in attempts if a.attempt_id == named), None)
    return best(attempts)


def _conversations(messages: Iterable[Said | Replied]) -> tuple[Conversation, ...]:
    """From all messages of a run in order. The system's latest message (it need not name a conversation) opens those
    that begin after it: a resumed run may tell of another GPU."""
    system: list[Message] = []
    by_key: dict[str, list[Message]] = {}
    for event in messages:
        message = _replied(event) if isinstance(event, Replied) else _said(event)
        if message.role == "system":
            system = [message]
        elif event.conversation:
            by_key.setdefault(event.conversation, list(system)).append(message)
    return tuple(Conversation(key, tuple(its)) for key, its in by_key.items())


def _said(event: Said) -> Message:
    raw = event.raw if isinstance(event.raw, dict) else {}
    kept = raw.get("kept")
    return Message(
        event.role,
        event.text,
        event.at,
        call_id=str(raw.get("call_id") or ""),
        is_error=bool(raw.get("is_error")),
        history=bool(raw.get("history")),
        kept=kept if isinstance(kept, int) else None,
    )


def _replied(event: Replied) -> Message:
    """Raises DecodeError when its calls are none."""
    if not isinstance(event.calls or [], list):
        raise DecodeError(f"calls: wanted an array, got {event.calls!r:.100}")
    names = ("text", "at", "thinking", "turn", "stop", "model", "seconds", "usage", "cost_usd", "token_ids", "logprobs")
    facts = {name: getattr(event, name) for name in names}
    return Message(role="assistant", calls=tuple(map(_call, event.calls or ())), **facts)


def _call(stored: Json) -> ToolCall:
    match stored:  # the strict decoder takes ten times as long, and conversations are full of calls
        case {"call_id": str(call_id), "name": str(name), "arguments": dict(arguments), "problem": str(problem)} if (
            len(stored) == 4
        ):
            return ToolCall(call_id, name, arguments, problem)
    return decode(ToolCall, stored, "call")
