"""What a row says of its conversation besides the messages: how long it was, what came of it, what it cost."""

from collections.abc import Iterable, Iterator, Sequence

from agent.export.base import Column, Row
from agent.export.formats.talk import Talk, talks
from agent.record.trajectory import AttemptRecord, Message, Trajectory
from tools.verdict import Status

COLUMNS = (
    Column("conversation", "text", "key of the conversation in its run"),
    Column("window", "int", "which window of the model's context, from 1; 0 for a whole transcript"),
    Column("n_turns", "int", "replies of the model, without those of earlier windows"),
    Column("n_calls", "int", "tool calls in them"),
    Column("n_errors", "int", "calls that could not be carried out"),
    Column("n_attempts", "int", "candidates that they made"),
    Column("n_untrained", "int", "replies in `messages` that a model should not learn to say"),
    Column("left_out", "int", "replies that are not in the row: empty, refused, broken off, or without results"),
    Column("best_status", "text", "verdict of the best candidate; null without one"),
    Column("final_speedup", "float", "of the best candidate over the fastest baseline; null when not timed"),
    Column("reasoning_chars", "int", "characters of reasoning in the replies"),
    Column("input_tokens", "int", "prompts in all, cached or not; null when a reply was not counted"),
    Column("output_tokens", "int", "replies in all, with reasoning; null when a reply was not counted"),
    Column("cached_tokens", "int", "of `input_tokens`; null when a reply was not counted"),
    Column("cost_usd", "float", "US dollars for all replies; null when a price is not known"),
    Column("why", "text", "how the run ended; null when it did not"),
    Column("last_stop", "text", "how the last reply ended: end, tools, max_tokens, context, refusal"),
    Column("truncated", "bool", "the run was killed during a call, which is cut off with all that follows"),
    Column("complete", "bool", "the run ended, and nothing is cut off"),
)
_RANKS = {status: rank for rank, status in enumerate(Status)}  # from rejected to correct


class Attempts:
    """The attempts of a run by the conversation that made them."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._best = trajectory.best
        self._by_key: dict[str, list[AttemptRecord]] = {}
        for attempt in trajectory.attempts:
            self._by_key.setdefault(attempt.conversation, []).append(attempt)

    def of(self, talk: Talk) -> list[AttemptRecord]:
        """Those that the replies of a talk made."""
        turns = {turn.reply.turn for turn in talk.fresh}
        return [a for a in self._by_key.get(talk.key, ()) if a.turn in turns]

    def best(self, attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
        """The run's best if it is among them; else the fastest, else the last that was the best so far, else the one
        that came furthest. None when none was judged."""
        if self._best is not None and any(a is self._best for a in attempts):
            return self._best
        judged = [a for a in attempts if a.status is not None]
        timed = [a for a in judged if a.timing is not None]
        if timed:
            return min(timed, key=lambda a: a.timing.median_us if a.timing else 0.0)
        led = [a for a in judged if a.accepted and a.best]
        return led[-1] if led else max(judged, key=_rank, default=None)


def judged_talks(
    trajectory: Trajectory, *, seen: bool = False
) -> Iterator[tuple[Talk, list[AttemptRecord], AttemptRecord | None]]:
    """Each conversation of a run, or (`seen`) each window of one, with the attempts that it made and their best."""
    attempts = Attempts(trajectory)
    for conversation in trajectory.conversations:
        for talk in talks(conversation, seen=seen):
            its = attempts.of(talk)
            yield talk, its, attempts.best(its)


def _rank(attempt: AttemptRecord) -> int:
    return _RANKS[attempt.status] if attempt.status is not None else -1


def summary(trajectory: Trajectory, talk: Talk, attempts: Sequence[AttemptRecord], best: AttemptRecord | None) -> Row:
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
