"""What one run adds to the statistics of a data set."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from agent.export.base import Row
from agent.export.statistics import AttemptFacts, ConversationFacts, RunFacts, Statistics
from agent.record.trajectory import AttemptRecord, Conversation, Trajectory

_LABELS = ("compilable", "correct", "faster", "impossible")


class Known(Protocol):
    """The provenance of attempts."""

    def of(self, attempt: AttemptRecord | None) -> Row:
        """Its common columns."""
        ...


def count_run(
    statistics: Statistics, trajectory: Trajectory, facts: Known, keep: Callable[[Mapping[str, object]], bool]
) -> None:
    """Count the attempts of a run that pass the filters; a run without any does not count."""
    kept = [_attempt(a, row) for a in trajectory.attempts if keep(row := facts.of(a))]
    if kept:
        statistics.add(_run(trajectory, facts.of(None)), kept, map(_conversation, trajectory.conversations))


def _run(trajectory: Trajectory, row: Row) -> RunFacts:
    run = trajectory.run
    versions = {name: run.versions[name] for name in ("kerneltune", "torch", "triton") if name in run.versions}
    return RunFacts(
        run.task,
        row["split"],
        row["provider"],
        row["model"] or "",
        run.gpu,
        run.at,
        trajectory.why,
        versions,
        row["leaked"],
    )


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
    return ConversationFacts(
        len(replies),
        sum(len(m.text) + len(m.thinking) for m in conversation.messages),
        *(_total(u.get(name) for u in (m.usage or {} for m in replies)) for name in _TOKENS),
        _total(m.cost_usd for m in replies),
    )


_TOKENS = ("input_tokens", "output_tokens", "thinking_tokens")


def _total(values: Iterator[object]) -> float | int | None:
    """The sum; None when one of them is unknown."""
    found = list(values)
    numbers = [v for v in found if isinstance(v, int | float)]
    return sum(numbers) if numbers and len(numbers) == len(found) else None
