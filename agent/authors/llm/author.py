"""The LLM as an author: its conversations, which the loop drives, begun as one of three strategies says.

`refine`: one at a time; each attempt builds on what the ones before have shown. `best-of`: independent samples; every
conversation begins with the task alone, or with the start, and knows nothing of the others. `evolve`: a population on
islands that seldom meet; short conversations, each of which begins at one or two of the attempts before it, chosen by
speed (the rank among the accepted attempts of an island) and by novelty (how little a source has in common with those
that rank before it: 1 - the largest Jaccard similarity of token 5-grams).
"""

import itertools
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Protocol

from kerneltune.agent.attempt import Actions, Attempt, LlmTurn, rank_order
from kerneltune.agent.authors.llm.conversation import ConversationTexts, LlmConversation
from kerneltune.agent.authors.llm.prompts import Trouble
from kerneltune.agent.authors.llm.tool_calls import ToolExecutor
from kerneltune.agent.authors.llm.tool_schemas import TOOLS
from kerneltune.agent.events import Said
from kerneltune.agent.models.types import LanguageModel
from kerneltune.agent.settings import Strategy
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.schema.task import TaskSpec

BEST_OF_SHARE = 4  # attempts of a conversation: the first idea, and repairs
EVOLVE_SHARE = 2  # a child, and its repair
ISLANDS = 3
_TOKEN = re.compile(r"\w+|[^\w\s]")
_GRAM = 5
SIZE = 8  # of an island: what ranks below is not bred from
_TOURNAMENT = 3
_NOVELTY = 0.5  # weight against speed, both within [0, 1]
CROSSOVER = 0.3  # share of conversations that join two attempts
MIGRATION = 0.2  # share of those that take the second from another island


class Prompts(Protocol):
    """The texts of a run. `system` is the same for all of its conversations."""

    system: str

    def opening(self, seeds: tuple[Attempt, ...] = ()) -> str:
        """The first words of a conversation; `seeds` are attempts to start from."""
        ...

    def history(self) -> str:
        """What has been tried in this run so far, and what came of it."""
        ...

    def crossover(self, first: Attempt, second: Attempt) -> str:
        """The first words of a conversation that shall join two attempts."""
        ...

    def nudge(self, trouble: Trouble) -> str:
        """The answer to a reply that called no tool."""
        ...


@dataclass(frozen=True)
class _Rules:
    """How a strategy holds conversations. `opening`: the first words of the conversation of that key; `alone`: one at a
    time, each told the history of the whole run when it has become too long, where others are told their opening again;
    `share`: of attempts; `most_fruitless`: conversations in a row that end without an attempt."""

    opening: Callable[[str], str]
    alone: bool = False
    share: int | None = None
    most_fruitless: int = 3


@dataclass
class LlmAuthor:
    """One run of a model. `finished_keys`: conversations of earlier processes, whose keys are taken; `start`: the
    attempt that the conversations begin at, once it is made."""

    tracker: AttemptTracker
    model: LanguageModel
    prompts: Prompts
    arch: str
    strategy: Strategy = "refine"
    seed: int = 0
    context_tokens: int = 30_000
    max_tokens: int = 32_000
    finished_keys: int = 0
    start: Callable[[], Attempt | None] = lambda: None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.model.name
        self._keys = itertools.count(self.finished_keys + 1)
        self._ending = threading.Lock()
        self._held = self._fruitless = 0
        self._given_up = False
        self._rules = _STRATEGIES[self.strategy](self)
        self.tracker.emit(Said(self.tracker.run_id, "system", self.prompts.system))

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Actions]:
        """Conversations to hold now: none while one is held alone, or after too many came to nothing."""
        room = min(width, 1 - self._held) if self._rules.alone else width
        return [self._conversation() for _ in range(0 if self._given_up else room)]

    def _conversation(self) -> Actions:
        key = str(next(self._keys))
        opening, bench = self._rules.opening(key), self.tracker
        conversation = LlmConversation(
            bench.run_id,
            key,
            self.model,
            TOOLS,
            ToolExecutor(bench, key, self.arch, self._rules.share),
            ConversationTexts(
                self.prompts.system,
                opening,
                self.prompts.history if self._rules.alone else lambda: opening,
                self.prompts.nudge,
            ),
            bench.cost,
            bench.emit,
            self.context_tokens,
            self.max_tokens,
        )
        self._held += 1
        return self._counted(conversation)

    def _counted(self, conversation: LlmConversation) -> Actions:
        """The conversation, and a note of whether anything came of it."""
        try:
            return (yield from conversation.actions())
        finally:
            with self._ending:
                self._held -= 1
                self._fruitless = 0 if conversation.executor.made else self._fruitless + 1
                self._given_up |= self._fruitless >= self._rules.most_fruitless

    def begin_at(self) -> str:
        """The first words of a conversation that knows of nothing but the start."""
        start = self.start()
        return self.prompts.opening((start,) if start else ())


def _refine(author: LlmAuthor) -> _Rules:
    """A model that has no more to say begins again with the history of its attempts."""

    def opening(key: str) -> str:
        last = author.tracker.attempts[-1:]
        is_first = key == str(author.finished_keys + 1) and (not last or last == [author.start()])
        return author.begin_at() if is_first else author.prompts.history()

    return _Rules(opening, alone=True, most_fruitless=2)


def _best_of(author: LlmAuthor) -> _Rules:
    return _Rules(lambda _: author.begin_at(), share=BEST_OF_SHARE)


def _evolve(author: LlmAuthor) -> _Rules:
    random, turns = Random(author.seed), itertools.count()
    home: dict[str, int] = {}  # island of each conversation

    def opening(key: str) -> str:
        island = home[key] = next(turns) % ISLANDS
        parents = choose(_islands(author.tracker.attempts, home), island, random)
        if parents.first and parents.second:
            return author.prompts.crossover(parents.first, parents.second)
        return author.prompts.opening((parents.first,) if parents.first else ())

    return _Rules(opening, share=EVOLVE_SHARE)


_STRATEGIES: dict[Strategy, Callable[[LlmAuthor], _Rules]] = {
    "refine": _refine,
    "best-of": _best_of,
    "evolve": _evolve,
}


def _islands(attempts: list[Attempt], home: dict[str, int]) -> list[list[Attempt]]:
    """Attempts by island; those of earlier processes are spread by number."""
    islands: list[list[Attempt]] = [[] for _ in range(ISLANDS)]
    for attempt in list(attempts):
        origin = attempt.origin
        key = origin.conversation if isinstance(origin, LlmTurn) else ""
        islands[home.get(key, attempt.number % ISLANDS)].append(attempt)
    return islands


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
    accepted = sorted((a for a in attempts if a.accepted), key=rank_order)
    unique = {a.source: a for a in reversed(accepted)}
    return [a for a in accepted if unique[a.source] is a][:SIZE]


def _tournament(ranked: Sequence[Attempt], random: Random) -> Attempt:
    entrants = random.sample(range(len(ranked)), min(_TOURNAMENT, len(ranked)))
    return ranked[max(entrants, key=lambda place: _fitness(ranked, place))]


def _fitness(ranked: Sequence[Attempt], place: int) -> float:
    speed = 1 - place / max(1, len(ranked) - 1)
    alike = (similarity(ranked[place].source, better.source) for better in ranked[:place])
    return speed + _NOVELTY * (1 - max(alike, default=0.0))


def similarity(source: str, other: str) -> float:
    """Jaccard similarity of the sources' token 5-grams, from 0 to 1."""
    ours, theirs = _grams(source), _grams(other)
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


@lru_cache(maxsize=256)
def _grams(source: str) -> frozenset[tuple[str, ...]]:
    tokens = _TOKEN.findall(source)
    return frozenset(tuple(tokens[i : i + _GRAM]) for i in range(max(1, len(tokens) - _GRAM + 1)))
