"""A population on islands: short conversations, each of which begins at one or two of the attempts before it."""

import itertools
from random import Random

from agent.authors.base import Attempt
from agent.converse.conversation import Conversation
from agent.strategies.parallel import side_by_side
from agent.strategies.population import choose
from agent.strategies.studio import Studio

ISLANDS = 3
SHARE = 2  # attempts of a conversation: a child, and its repair


def evolve(studio: Studio, seed: int = 0) -> str:
    """Breed until a limit is reached; returns why it ended. Raises LlmError."""
    random, turns = Random(seed), itertools.count()
    home: dict[str, int] = {}  # island of each conversation

    def begin() -> Conversation:
        island = next(turns) % ISLANDS
        parents = choose(_islands(studio.bench.attempts, home), island, random)
        if parents.first and parents.second:
            opening = studio.prompts.crossover(parents.first, parents.second)
        else:
            opening = studio.prompts.opening((parents.first,) if parents.first else ())
        conversation = studio.conversation(opening, SHARE, history=lambda: opening)
        home[conversation.key] = island
        return conversation

    return side_by_side(studio, begin)


def _islands(attempts: list[Attempt], home: dict[str, int]) -> list[list[Attempt]]:
    """Attempts by island; those of earlier processes are spread by number."""
    islands: list[list[Attempt]] = [[] for _ in range(ISLANDS)]
    for attempt in list(attempts):
        key = str(attempt.proposal.params.get("conversation"))
        islands[home.get(key, attempt.number % ISLANDS)].append(attempt)
    return islands
