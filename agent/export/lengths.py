"""How long a source is, and how long a model thought about it: columns to filter and to sample by."""

from agent.record.trajectory import Trajectory


def n_lines(source: str) -> int:
    """Lines of a text; an end of line at its end begins no other."""
    return source.count("\n") + (not source.endswith("\n")) if source else 0


def thinking(trajectory: Trajectory) -> dict[tuple[str, int], int]:
    """Characters of reasoning, by conversation and turn; empty where conversations were not loaded."""
    return {
        (conversation.key, message.turn): len(message.thinking)
        for conversation in trajectory.conversations
        for message in conversation.messages
        if message.role == "assistant" and message.turn is not None
    }
