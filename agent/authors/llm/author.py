"""The LLM as an author: its conversations, which the loop drives, begun as one of three strategies says.

`refine`: one at a time; each attempt builds on what the ones before have shown. `best-of`: independent samples; every
conversation begins with the task alone, or with the start, and knows nothing of the others. `evolve`: a population on
islands that seldom meet; short conversations, each of which begins at one or two of the attempts before it, chosen by
speed (the rank among the accepted attempts of an island) and by novelty (how little a source has in common with those
that rank before it: 1 - the largest Jaccard similarity of token 5-grams).

    opening -> reply -> tool results -> reply -> tool results … -> a limit, or a model that has no more to say

The length of a conversation is bounded: when a prompt exceeds `context_tokens`, or what it took in turn 10 by much, all
but the last few exchanges give way to a history that is made anew from the attempts. System prompt and tools stay the
same to the byte, so providers can cache them.
"""

import itertools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Protocol

from kerneltune.agent.attempt import Actions, Attempt, LlmTurn, StopReason, rank_order
from kerneltune.agent.authors.llm.prompts import Trouble
from kerneltune.agent.authors.llm.tool_calls import TOOLS, Steps, ToolExecutor
from kerneltune.agent.events import ModelAsked, Replied, Said
from kerneltune.agent.models.errors import ContextOverflow
from kerneltune.agent.models.types import Delta, LanguageModel, Message, ModelRequest, Reply, ToolResults, User
from kerneltune.agent.settings import Strategy
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.gpus import gpu_for_arch
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
KEPT_EXCHANGES = 3  # replies with their results that stay word for word when the rest becomes history
YARDSTICK_TURN, MOST_GROWTH = 10, 1.35  # later prompts are hardly longer than the one of that turn
MOST_VAIN = 8  # replies in a row of whose calls none could be carried out, after which it is over too
MOST_SILENT = 3  # replies in a row that call no tool, after which the conversation is over
_CHARACTERS_PER_TOKEN = 4  # where a server does not count


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


@dataclass
class LlmConversation:
    """A conversation of a run. `key` names it in the record; `history` is what the model is told in the place of what
    was forgotten. Before every request the loop may end it."""

    tracker: AttemptTracker
    key: str
    model: LanguageModel
    executor: ToolExecutor
    prompts: Prompts
    opening: str
    history: Callable[[], str]
    context_tokens: int = 30_000
    max_tokens: int = 32_000
    turn: int = 0
    _messages: list[Message] = field(default_factory=list)
    _silent: int = 0
    _vain: int = 0

    def __post_init__(self) -> None:
        self._longest = self.context_tokens

    def actions(self) -> Actions:
        """Ask, and want done what the model calls for, until it has no more to say or has made its share. Raises
        LlmError."""
        self._hear(self.opening)
        while True:
            yield ()
            why = yield from self._exchange()
            if why is not None or self.executor.is_full:
                return why

    def _hear(self, text: str, raw: Json = None) -> None:
        """Words to the model, after whatever comes last."""
        self.tracker.emit(Said(self.tracker.run_id, "user", text, raw=raw, conversation=self.key))
        last = self._messages[-1] if self._messages else None
        if isinstance(last, User | ToolResults):  # two messages of one side in a row are none
            self._messages[-1] = replace(last, text=f"{last.text}\n\n{text}".strip())
        else:
            self._messages.append(User(text))

    def _exchange(self) -> Actions:
        """One reply and what it leads to; why the conversation is over, or None."""
        reply = self._ask()
        if reply.calls or (reply.text.strip() and reply.stop != "refusal"):
            self._messages.append(reply)
        if reply.calls:
            self._silent = 0
            if (yield from self._answer(reply)) >= MOST_VAIN:
                return StopReason.AUTHOR_DONE
        elif reply.stop == "context":
            self._compact(KEPT_EXCHANGES - 1)
        elif over := self._prod(reply):
            return over
        length = self._length(reply)
        if self.turn == YARDSTICK_TURN:
            self._longest = min(self._longest, int(MOST_GROWTH * length))
        if length > self._longest:
            self._compact(KEPT_EXCHANGES)
        return None

    def _prod(self, reply: Reply) -> StopReason | None:
        """Answer a reply that called no tool, or give up on the model."""
        self._silent += 1
        trouble = _trouble(reply)
        if self._silent >= MOST_SILENT:
            return StopReason.REFUSED if trouble == "refused" else StopReason.AUTHOR_DONE
        self._hear(self.prompts.nudge(trouble))
        return None

    def _ask(self) -> Reply:
        started = time.perf_counter()
        self.tracker.emit(ModelAsked(self.tracker.run_id, self.key))
        try:
            reply = self._reply()
        except ContextOverflow:
            self._compact(0)
            reply = self._reply()
        self.turn += 1
        self.tracker.cost.add(reply.cost_usd)
        self.tracker.emit(self._replied(reply, time.perf_counter() - started))
        return reply

    def _reply(self) -> Reply:
        key = f"{self.tracker.run_id}/{self.key}"
        request = ModelRequest(self.prompts.system, tuple(self._messages), TOOLS, self.max_tokens, key)
        return self.model.ask(request, self._overheard)

    def _overheard(self, delta: Delta) -> None:
        if delta.kind != "arguments":
            self.tracker.emit(Said(self.tracker.run_id, "assistant", delta.text, final=False, conversation=self.key))

    def _replied(self, reply: Reply, seconds: float) -> Replied:
        return Replied(
            self.tracker.run_id,
            self.key,
            self.turn,
            text=reply.text,
            thinking=reply.thinking,
            calls=encode(reply.calls),
            stop=reply.stop,
            detail=reply.detail,
            usage=encode(reply.usage) if reply.usage else None,
            cost_usd=reply.cost_usd,
            model=reply.model,
            seconds=round(seconds, 3),
            raw=reply.raw,
        )

    def _answer(self, reply: Reply) -> Steps[int]:
        """Have the calls carried out; how many replies in a row have been in vain."""
        results = yield from self.executor.run(reply.calls, self.turn)
        for result in results:
            raw = {"call_id": result.call_id, "is_error": result.is_error}
            self.tracker.emit(Said(self.tracker.run_id, "tool", result.text, raw=raw, conversation=self.key))
        self._messages.append(ToolResults(results))
        self._vain = self._vain + 1 if all(r.is_error for r in results) else 0
        return self._vain

    def _length(self, reply: Reply) -> int:
        """Tokens of the next prompt, about: those of the last one and what came on top."""
        last = self._messages[-1]
        new = sum(len(r.text) for r in last.results) if isinstance(last, ToolResults) else 0
        if reply.usage is None:
            known = sum(map(_characters, self._messages)) + len(self.prompts.system)
            return known // _CHARACTERS_PER_TOKEN
        return reply.usage.input_tokens + reply.usage.output_tokens + new // _CHARACTERS_PER_TOKEN

    def _compact(self, kept: int) -> None:
        """Put a history in the place of all but the last exchanges."""
        replies = [i for i, message in enumerate(self._messages) if isinstance(message, Reply)]
        tail = self._messages[replies[-kept] :] if kept and len(replies) > kept else []
        if tail == self._messages[1:] and tail:
            return
        self._messages = []
        self._hear(self.history(), {"history": True, "kept": len(tail)})
        self._messages += tail


def _trouble(reply: Reply) -> Trouble:
    if reply.stop == "refusal":
        return "refused"
    if reply.stop == "max_tokens":
        return "cut_off"
    return "talk" if reply.text.strip() else "empty"


def _characters(message: Message) -> int:
    match message:
        case User(text):
            return len(text)
        case ToolResults(results, text):
            return len(text) + sum(len(r.text) for r in results)
        case Reply():
            return len(message.text) + sum(len(str(c.arguments)) for c in message.calls)


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
        opening = self._rules.opening(key)
        conversation = LlmConversation(
            self.tracker,
            key,
            self.model,
            ToolExecutor(self.tracker, key, gpu_for_arch(self.arch), self._rules.share),
            self.prompts,
            opening,
            self.prompts.history if self._rules.alone else lambda: opening,
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
