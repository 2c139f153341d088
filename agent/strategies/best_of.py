"""Independent samples: every conversation begins with the task alone, or with the start, and knows nothing of the
others."""

from agent.strategies.parallel import side_by_side
from agent.strategies.studio import Studio

SHARE = 4  # attempts of a conversation: the first idea, and repairs


def best_of(studio: Studio) -> str:
    """Sample until a limit is reached; returns why it ended. Raises LlmError."""
    opening = studio.opening()
    return side_by_side(studio, lambda: studio.conversation(opening, SHARE, history=lambda: opening))
