"""One conversation with a model: ask, run its tool calls, tell what came of them, until somebody has had enough.

    opening -> reply -> tool results -> reply -> tool results … -> a limit, or a model that has no more to say

Its length is bounded: when a prompt exceeds `context_tokens`, or what it took in turn 10 by much, all but the last few
exchanges give way to a history that is made anew from the attempts. System prompt and tools stay the same to the byte,
so providers can cache them.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

from kerneltune.agent.attempt import Action, ActionResult, Actions, StopReason
from kerneltune.agent.authors.llm.prompts import Trouble
from kerneltune.agent.authors.llm.tool_calls import ToolExecutor
from kerneltune.agent.events import Event, ModelAsked, Replied, Said
from kerneltune.agent.models.errors import ContextOverflow
from kerneltune.agent.models.types import Delta, LanguageModel, Message, ModelRequest, Reply, Tool, ToolResults, User
from kerneltune.agent.tracker import CostTracker
from kerneltune.tools.schema.codec import Json, encode

KEPT_EXCHANGES = 3  # replies with their results that stay word for word when the rest becomes history
YARDSTICK_TURN, MOST_GROWTH = 10, 1.35  # later prompts are hardly longer than the one of that turn
MOST_VAIN = 8  # replies in a row of whose calls none could be carried out, after which it is over too
MOST_SILENT = 3  # replies in a row that call no tool, after which the conversation is over
_CHARACTERS_PER_TOKEN = 4  # where a server does not count


@dataclass(frozen=True)
class ConversationTexts:
    """What the model is told. `history` replaces what was forgotten; `nudge` answers a reply that called no tool."""

    system: str
    opening: str
    history: Callable[[], str]
    nudge: Callable[[Trouble], str]


@dataclass
class LlmConversation:
    """A conversation of a run. `key` names it in the record. Before every request the loop may end it."""

    run_id: str
    key: str
    model: LanguageModel
    tools: tuple[Tool, ...]
    executor: ToolExecutor
    texts: ConversationTexts
    cost: CostTracker
    emit: Callable[[Event], None]
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
        self._hear(self.texts.opening)
        while True:
            yield ()
            why = yield from self._exchange()
            if why is not None or self.executor.is_full:
                return why

    def _hear(self, text: str, raw: Json = None) -> None:
        """Words to the model, after whatever comes last."""
        self.emit(Said(self.run_id, "user", text, raw=raw, conversation=self.key))
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
        self._hear(self.texts.nudge(trouble))
        return None

    def _ask(self) -> Reply:
        started = time.perf_counter()
        self.emit(ModelAsked(self.run_id, self.key))
        try:
            reply = self._reply()
        except ContextOverflow:
            self._compact(0)
            reply = self._reply()
        self.turn += 1
        self.cost.add(reply.cost_usd)
        self.emit(self._replied(reply, time.perf_counter() - started))
        return reply

    def _reply(self) -> Reply:
        key = f"{self.run_id}/{self.key}"
        request = ModelRequest(self.texts.system, tuple(self._messages), self.tools, self.max_tokens, key)
        return self.model.ask(request, self._overheard)

    def _overheard(self, delta: Delta) -> None:
        if delta.kind != "arguments":
            self.emit(Said(self.run_id, "assistant", delta.text, final=False, conversation=self.key))

    def _replied(self, reply: Reply, seconds: float) -> Replied:
        return Replied(
            self.run_id,
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

    def _answer(self, reply: Reply) -> Generator[Sequence[Action], Sequence[ActionResult], int]:
        """Have the calls carried out; how many replies in a row have been in vain."""
        results = yield from self.executor.run(reply.calls, self.turn)
        for result in results:
            raw = {"call_id": result.call_id, "is_error": result.is_error}
            self.emit(Said(self.run_id, "tool", result.text, raw=raw, conversation=self.key))
        self._messages.append(ToolResults(results))
        self._vain = self._vain + 1 if all(r.is_error for r in results) else 0
        return self._vain

    def _length(self, reply: Reply) -> int:
        """Tokens of the next prompt, about: those of the last one and what came on top."""
        last = self._messages[-1]
        new = sum(len(r.text) for r in last.results) if isinstance(last, ToolResults) else 0
        if reply.usage is None:
            known = sum(map(_characters, self._messages)) + len(self.texts.system)
            return known // _CHARACTERS_PER_TOKEN
        return reply.usage.input_tokens + reply.usage.output_tokens + new // _CHARACTERS_PER_TOKEN

    def _compact(self, kept: int) -> None:
        """Put a history in the place of all but the last exchanges."""
        replies = [i for i, message in enumerate(self._messages) if isinstance(message, Reply)]
        tail = self._messages[replies[-kept] :] if kept and len(replies) > kept else []
        if tail == self._messages[1:] and tail:
            return
        self._messages = []
        self._hear(self.texts.history(), {"history": True, "kept": len(tail)})
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
