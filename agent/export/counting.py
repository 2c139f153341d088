"""What one run adds to the statistics of a data set."""

from collections.abc import Sequence

from agent.export.base import Row
from agent.export.passing import Facts, Passing
from agent.export.statistics import AttemptFacts, ConversationFacts, RunFacts, Statistics
from agent.record.trajectory import AttemptRecord, Conversation, Message, Trajectory

_VERSIONS = ("kerneltune", "torch", "triton")
_LABELS = ("compilable", "correct", "faster", "impossible")


def count_run(statistics: Statistics, trajectory: Trajectory, facts: Facts, passing: Passing) -> None:
    """Count the attempts of a run that pass; a run none of whose attempts do does not count."""
    kept = [_attempt(a, row) for a in trajectory.attempts if passing.passes(a, row := facts.of(a))]
    talk_alone = not trajectory.attempts and bool(trajectory.conversations) and passing.passes(None, facts.of(None))
    if kept or talk_alone:
        statistics.add(_run(trajectory, facts), kept, map(_conversation, trajectory.conversations))


def _run(trajectory: Trajectory, facts: Facts) -> RunFacts:
    run, row = trajectory.run, facts.of(None)
    versions = {name: version for name, version in run.versions.items() if name in _VERSIONS}
    written = (row["provider"], row["model"] or "", row["gpu"])
    return RunFacts(row["task"], row["split"], *written, run.at, facts.why, versions, row["leaked"])


def _attempt(attempt: AttemptRecord, row: Row) -> AttemptFacts:
    duplicate = None
    if row.get("exact_first") is False:
        duplicate = "exact"
    elif row.get("near_first") is False:
        duplicate = "near"
    return AttemptFacts(
        attempt.attempt_id,
        attempt.number,
        attempt.turn,
        row["status"],
        row["speedup"],
        row["speedup_low"],
        tuple(label for label in _LABELS if row[label]),
        tuple(e.outcome for e in attempt.expectations),
        len(attempt.source),
        duplicate,
        row["leaked"] is not None,
        attempt.held,
    )


def _conversation(conversation: Conversation) -> ConversationFacts:
    replies = [m for m in conversation.messages if m.role == "assistant"]
    costs = [m.cost_usd for m in replies if m.cost_usd is not None]
    return ConversationFacts(
        len(replies),
        sum(len(m.text) + len(m.thinking) for m in conversation.messages),
        _tokens(replies, "input_tokens"),
        _tokens(replies, "output_tokens"),
        _tokens(replies, "thinking_tokens"),
        sum(costs) if costs and len(costs) == len(replies) else None,
    )


def _tokens(replies: Sequence[Message], name: str) -> int | None:
    """The sum; None when one of them is unknown."""
    found = [m.usage.get(name) for m in replies if m.usage]
    known = [n for n in found if isinstance(n, int)]
    return sum(known) if known and len(known) == len(replies) else None
