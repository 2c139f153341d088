"""Whom to breed from: parents by speed and by novelty, on islands that seldom meet. Pure.

Speed is the rank among the accepted attempts of an island. Novelty is how little an attempt's source has in common with
those that rank before it: 1 - the largest Jaccard similarity of token 5-grams.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from agent.authors.base import Attempt

_TOKEN = re.compile(r"\w+|[^\w\s]")
_GRAM = 5
SIZE = 8  # of an island: what ranks below is not bred from
_TOURNAMENT = 3
_NOVELTY = 0.5  # weight against speed, both within [0, 1]
CROSSOVER = 0.3  # share of conversations that join two attempts
MIGRATION = 0.2  # share of those that take the second from another island


@dataclass(frozen=True)
class Parents:
    """Where a conversation begins: nowhere, at one attempt, or at two that it shall join."""

    first: Attempt | None = None
    second: Attempt | None = None


def choose(islands: Sequence[Sequence[Attempt]], island: int, random: Random) -> Parents:
    """Parents for the next conversation of an island."""
    here = residents(islands[island])
    if not here:
        return Parents()
    first = _tournament(here, random)
    if random.random() >= CROSSOVER:
        return Parents(first)
    away = [a for number, others in enumerate(islands) if number != island for a in residents(others)]
    pool = away if away and random.random() < MIGRATION else here
    others = [a for a in pool if a.attempt_id != first.attempt_id]
    return Parents(first, _tournament(others, random)) if others else Parents(first)


def residents(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The accepted attempts that an island keeps, the fastest first; of equal sources the first one."""
    accepted = sorted((a for a in attempts if a.verdict.accepted), key=lambda a: (a.rank_key, a.number))
    unique = {a.proposal.source: a for a in reversed(accepted)}
    return [a for a in accepted if unique[a.proposal.source] is a][:SIZE]


def _tournament(ranked: Sequence[Attempt], random: Random) -> Attempt:
    entrants = random.sample(range(len(ranked)), min(_TOURNAMENT, len(ranked)))
    return ranked[max(entrants, key=lambda place: _fitness(ranked, place))]


def _fitness(ranked: Sequence[Attempt], place: int) -> float:
    speed = 1 - place / max(1, len(ranked) - 1)
    alike = (similarity(ranked[place].proposal.source, better.proposal.source) for better in ranked[:place])
    return speed + _NOVELTY * (1 - max(alike, default=0.0))


def similarity(source: str, other: str) -> float:
    """Jaccard similarity of the sources' token 5-grams, from 0 to 1."""
    ours, theirs = _grams(source), _grams(other)
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


@lru_cache(maxsize=256)
def _grams(source: str) -> frozenset[tuple[str, ...]]:
    tokens = _TOKEN.findall(source)
    return frozenset(tuple(tokens[i : i + _GRAM]) for i in range(max(1, len(tokens) - _GRAM + 1)))
