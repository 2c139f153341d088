"""A run as training data wants it: its attempts and its conversations, flat. A fold over the events of one run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from kerneltune.agent.attempt import LlmTurn, Origin, StopReason
from kerneltune.agent.events import (
    Event,
    Judged,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunResumed,
    RunStarted,
    Said,
    Updated,
    Verified,
)
from kerneltune.agent.models.types import ToolCall
from kerneltune.tools.schema.codec import Json, decode
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Tier, Timing, Verdict

Outcome = Literal["open", "confirmed", "refuted"]
JUDGED_FILES = "files"  # the author of a run of `optimize bench`: nothing goes on, nothing repeats itself
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class Expectation:
    """A hypothesis about an attempt, what it predicts, and (where it could be scored) whether it held."""

    hypothesis: str
    prediction: str
    outcome: Outcome
    evidence: dict[str, Json]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt with the verdict that counts (a confirmation instead of the first one). `status` is None when it was
    never judged. `tool`: the one whose verdict it is. `held`: what the latest `optimize verify` found, None
    without one."""

    attempt_id: str
    number: int
    parent_id: str | None
    at: float
    source: str
    rationale: str
    origin: Origin | None
    status: Status | None
    tool: Literal["update", "bench", "confirm"] | None
    detail: str
    timing: Timing | None
    comparisons: tuple[Comparison, ...]
    coverage: float | None
    sol_fraction: float | None
    variant: str
    tier: Tier | None
    best: bool
    kernels: tuple[KernelReport, ...]
    library_ops: tuple[str, ...]
    trace_s: float | None
    compile_s: float | None
    bench_s: float | None
    expectations: tuple[Expectation, ...] = ()
    held: bool | None = None
    cases: tuple[CaseResult, ...] = ()
    rank_key: tuple[float, ...] = ()  # smaller is better, of the verdict that counts; () when not accepted
    lines: tuple[int, ...] = ()  # of its source, that its verdict is about
    pending: tuple[str, ...] = ()  # baselines that were not ready when it was timed

    @property
    def conversation(self) -> str:
        """The key of the conversation in which a model proposed it; "" without a model."""
        return self.origin.conversation if isinstance(self.origin, LlmTurn) else ""

    @property
    def turn(self) -> int | None:
        """The reply of that conversation, from 1; None without a model."""
        return self.origin.turn if isinstance(self.origin, LlmTurn) else None

    @property
    def compiled(self) -> bool:
        """Whether the tracer and the compiler accepted it."""
        return self.status is not None and self.tool != "update"

    @property
    def accepted(self) -> bool:
        """Right as far as the machine that judged it could tell."""
        return self.status in (Status.CHECKED, Status.CORRECT)

    @property
    def speedup(self) -> float | None:
        """Over the fastest baseline; None when nothing was timed, or not every baseline was there."""
        return None if self.pending else min((c.speedup for c in self.comparisons), default=None)

    @property
    def speedup_low(self) -> float | None:
        """The lower end of the interval of `speedup`."""
        return None if self.pending else min((c.low for c in self.comparisons), default=None)


@dataclass(frozen=True)
class Message:
    """One message of a conversation. Of an assistant: `calls`, `thinking`, `turn`, what it cost; of a tool: `call_id`.
    `cost_usd` and `usage` are None when unknown."""

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
    kept: int | None = None  # of a history: how many of the messages before it the model still saw, None when unknown


@dataclass(frozen=True)
class Conversation:
    """All messages in order, the system's first. Nothing is left out where the model was shown a `history` instead."""

    key: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Trajectory:
    """One run. `best`: as its ending says, or as far as it has come. `why`: how it ended, None when it did not, or
    went on after that."""

    run: RunStarted
    attempts: tuple[AttemptRecord, ...]  # by number
    conversations: tuple[Conversation, ...] = ()
    best: AttemptRecord | None = None
    why: StopReason | None = None

    def parent(self, attempt: AttemptRecord) -> AttemptRecord | None:
        """The attempt it was derived from, if that is one of this run."""
        return self._by_id.get(attempt.parent_id or "")

    @cached_property
    def _by_id(self) -> dict[str, AttemptRecord]:
        return {attempt.attempt_id: attempt for attempt in self.attempts}


def trajectory(events: Iterable[Event]) -> Trajectory:
    """The trajectory that the events of one run make. Raises ValueError when the run never started."""
    events = list(events)
    started = next((e for e in events if isinstance(e, RunStarted)), None)
    if started is None:
        raise ValueError("these events start no run")
    ended = ending(events)
    attempts = tuple(sorted(_attempts(events), key=lambda a: a.number))
    return Trajectory(
        started,
        attempts,
        conversations([(e.conversation, _message(e)) for e in events if isinstance(e, Said | Replied)]),
        best_of(attempts, ended.best_attempt_id if ended else None),
        ended.why if ended else None,
    )


def ending(events: Iterable[Event]) -> RunEnded | None:
    """The last one, unless the run went on after it."""
    turn = None
    for event in events:
        if isinstance(event, RunEnded | RunResumed):
            turn = event
    return turn if isinstance(turn, RunEnded) else None


def best_of(attempts: Sequence[AttemptRecord], named: str | None) -> AttemptRecord | None:
    """The attempt that the run's ending names; without one, the last accepted that was the best when it was judged."""
    if named is not None:
        return next((a for a in attempts if a.attempt_id == named), None)
    return next((a for a in reversed(attempts) if a.accepted and a.best), None)


def _attempts(events: Sequence[Event]) -> Iterable[AttemptRecord]:
    by_attempt: dict[str, list[Event]] = {}
    for event in events:
        if attempt_id := getattr(event, "attempt_id", None):
            by_attempt.setdefault(attempt_id, []).append(event)
    for its in by_attempt.values():
        proposed = next((e for e in its if isinstance(e, Proposed)), None)
        if proposed is not None:
            yield _attempt(proposed, its)


def _attempt(proposed: Proposed, events: Sequence[Event]) -> AttemptRecord:
    updated = next((e for e in events if isinstance(e, Updated)), None)
    judged = next((e for e in events if isinstance(e, Judged)), None)
    confirmed = [e for e in events if isinstance(e, Verified) and e.purpose == "confirm"]
    verified = [e for e in events if isinstance(e, Verified) and e.purpose == "verify"]
    verdict = confirmed[-1].verdict if confirmed else judged.verdict if judged else None
    failed = updated is not None and updated.failure is not None
    tool: Literal["update", "bench", "confirm"] = "confirm" if confirmed else "update" if failed else "bench"
    return AttemptRecord(
        proposed.attempt_id,
        proposed.number,
        proposed.parent_id,
        proposed.at,
        proposed.source,
        proposed.rationale,
        proposed.origin,
        tool=tool if verdict else None,
        **_judged(verdict),
        best=judged is not None and judged.best,
        kernels=updated.kernels if updated else (),
        library_ops=updated.library_ops if updated else (),
        trace_s=updated.trace_s if updated else None,
        compile_s=updated.compile_s if updated else None,
        bench_s=judged.bench_s if judged else None,
        expectations=tuple(_expectation(e) for e in events if isinstance(e, Reflected)),
        held=verified[-1].held if verified else None,
        rank_key=confirmed[-1].rank_key if confirmed else judged.rank_key if judged else (),
        lines=verdict.lines if verdict else (),
    )


def _judged(verdict: Verdict | None) -> dict[str, Json]:
    names = (
        *("timing", "comparisons", "coverage", "sol_fraction", "variant", "tier", "cases", "status", "detail"),
        "pending",
    )
    if verdict is None:
        none: dict[str, Json] = dict.fromkeys(names)
        return none | {"comparisons": (), "cases": (), "variant": "", "detail": "", "pending": ()}
    return {name: getattr(verdict, name) for name in names}


def _expectation(said: Reflected) -> Expectation:
    return Expectation(said.hypothesis, said.prediction, said.outcome, said.evidence)


def conversations(messages: Sequence[tuple[str, Message]]) -> tuple[Conversation, ...]:
    """From all messages of a run in order, each with the key of its conversation. The system's latest message (it need
    not name a conversation) opens those that begin after it: a resumed run may tell of another GPU."""
    system: list[Message] = []
    by_key: dict[str, list[Message]] = {}
    for key, message in messages:
        if message.role == "system":
            system = [message]
        elif key:
            by_key.setdefault(key, list(system)).append(message)
    return tuple(Conversation(key, tuple(its)) for key, its in by_key.items())


def _message(event: Said | Replied) -> Message:
    if isinstance(event, Said):
        return said(event.role, event.text, event.at, event.raw)
    return replied(
        event.text,
        event.at,
        thinking=event.thinking,
        calls=event.calls,
        turn=event.turn,
        stop=event.stop,
        model=event.model,
        seconds=event.seconds,
        usage=event.usage,
        cost_usd=event.cost_usd,
    )


def said(role: Role, text: str, at: float, raw: Json) -> Message:
    """The message of a `Said`."""
    if not isinstance(raw, dict):
        return Message(role, text, at)
    call_id, is_error, history, kept = (raw.get(name) for name in ("call_id", "is_error", "history", "kept"))
    return Message(
        role,
        text,
        at,
        call_id=str(call_id or ""),
        is_error=bool(is_error),
        history=bool(history),
        kept=kept if isinstance(kept, int) else None,
    )


def replied(text: str, at: float, *, calls: Json, **facts: Any) -> Message:
    """The message of a `Replied`; `calls` as stored. Raises DecodeError when they are no calls."""
    return Message("assistant", text, at, calls=tuple(map(_call, calls or ())), **facts)


def _call(stored: Json) -> ToolCall:
    match stored:  # the strict decoder takes ten times as long, and conversations are full of calls
        case {"call_id": str(call_id), "name": str(name), "arguments": dict(arguments), "problem": str(problem)} if (
            len(stored) == 4
        ):
            return ToolCall(call_id, name, arguments, problem)
    return decode(ToolCall, stored, "call")
