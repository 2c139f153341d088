"""How long a source is, and how long a model thought about it: columns to filter and to sample by."""

from dataclasses import dataclass

from agent.export.normalise import Forms
from agent.record.trajectory import AttemptRecord, Trajectory


@dataclass(frozen=True)
class Lengths:
    """`n_lines`: as written. `n_tokens_source`: without comments and docstrings. `thinking_chars`: of the reply that
    proposed it; None without a model, or when conversations were not loaded."""

    n_lines: int
    n_tokens_source: int
    thinking_chars: int | None


def lengths(attempt: AttemptRecord, thought: dict[tuple[str, int], int], forms: Forms) -> Lengths:
    """Those of one attempt. thought: as `thinking` found it. forms: remembers lines, so keep it for many attempts."""
    source = attempt.source
    lines = source.count("\n") + (not source.endswith("\n")) if source else 0
    chars = thought.get((attempt.conversation, attempt.turn)) if attempt.turn is not None else None
    return Lengths(lines, forms.of(source).n_tokens, chars)


def thinking(trajectory: Trajectory) -> dict[tuple[str, int], int]:
    """Characters of reasoning, by conversation and turn."""
    return {
        (conversation.key, message.turn): len(message.thinking)
        for conversation in trajectory.conversations
        for message in conversation.messages
        if message.role == "assistant" and message.turn is not None
    }
