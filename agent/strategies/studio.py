"""What all strategies share: the model, the workbench, the budget, and how a conversation is begun."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from agent.authors.base import Attempt
from agent.controls import Controls
from agent.converse.conversation import Conversation, Hands, Trouble, Words
from agent.converse.ledger import Ledger
from agent.llm.types import LanguageModel, Tool
from agent.policy import Limits
from agent.record.events import Said
from agent.workbench import Workbench


class Prompts(Protocol):
    """The words of a run. `system` is the same for all of its conversations."""

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


NewHands = Callable[[str, Callable[[int], int]], Hands]  # of a conversation's key, and from how many attempts it made
# to how many more it may make


@dataclass
class Studio:
    """One run of a model. `finished_keys`: conversations of earlier processes, whose keys are taken."""

    bench: Workbench
    model: LanguageModel
    tools: tuple[Tool, ...]
    prompts: Prompts
    limits: Limits
    new_hands: NewHands
    width: int = 1
    context_tokens: int = 30_000
    max_tokens: int = 32_000
    ledger: Ledger = field(default_factory=Ledger)
    finished_keys: int = 0
    controls: Controls = field(default_factory=Controls)
    start: Attempt | None = None  # which the conversations begin at

    def __post_init__(self) -> None:
        self._started = self.controls.clock_s
        self._keys = itertools.count(self.finished_keys + 1)
        self.halted = threading.Event()  # set by Ctrl-C: no conversation asks again
        self.bench.emit(Said(self.bench.run_id, "system", self.prompts.system))

    def why_stop(self) -> str | None:
        """The limit that is reached, "stopped" when a person wants no more, or None."""
        if self.halted.is_set():
            return "interrupted"
        if self.controls.stopping:
            return "stopped"
        elapsed_s = self.controls.clock_s - self._started
        spent, following = self.ledger.cost_usd, self.ledger.next_usd
        return self.limits_now.why_stop(list(self.bench.attempts), elapsed_s, spent, following)

    @property
    def limits_now(self) -> Limits:
        """As given, or as raised since."""
        return self.limits.raised(self.controls.raises)

    def opening(self) -> str:
        """The first words of a conversation that knows of nothing but the start."""
        return self.prompts.opening((self.start,) if self.start else ())

    def room(self) -> int:
        """How many attempts the run may still make."""
        return max(0, self.limits_now.max_attempts - self.bench.begun)

    def conversation(
        self, opening: str, most_attempts: int | None = None, history: Callable[[], str] | None = None
    ) -> Conversation:
        """A conversation that begins with these words; with `most_attempts` it ends after so many. `history`: what it
        is told when it has become too long, if not that of the whole run."""
        key = str(next(self._keys))
        hands = self.new_hands(
            key, lambda made: min(self.room(), (most_attempts or self.limits_now.max_attempts) - made)
        )

        def why_stop() -> str | None:
            self.controls.wait(self.halted.is_set)
            full = most_attempts is not None and hands.made >= most_attempts
            return self.why_stop() or ("share" if full else None)

        return Conversation(
            self.bench.run_id,
            key,
            self.model,
            self.tools,
            hands,
            Words(self.prompts.system, opening, history or self.prompts.history, self.prompts.nudge),
            self.ledger,
            self.bench.emit,
            why_stop,
            self.context_tokens,
            self.max_tokens,
        )
