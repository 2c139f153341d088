"""One conversation at a time: each attempt builds on what the ones before have shown."""

from agent.strategies.studio import Studio

MOST_FRUITLESS = 2  # conversations in a row that end without an attempt


def refine(studio: Studio) -> str:
    """Hold conversations until a limit is reached; returns why it ended. A model that has no more to say begins again
    with the history of its attempts. Raises LlmError."""
    fruitless = 0
    last = studio.bench.attempts[-1:]
    opening = studio.opening() if not last or last == [studio.start] else studio.prompts.history()
    while True:
        conversation = studio.conversation(opening)
        why = conversation.hold()
        fruitless = 0 if conversation.hands.made else fruitless + 1
        if why not in ("author_done", "refused") or fruitless >= MOST_FRUITLESS:
            return why
        opening = studio.prompts.history()
