"""Small real parts of a conversation: a model that reads replies from a list, hands that write down what they do."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerneltune.agent.attempt import Actions, Attempt, Remaining
from kerneltune.agent.authors.llm.prompts import RunPrompts, Trouble
from kerneltune.agent.models.types import Delta, Listen, ModelFacts, ModelRequest, Reply, ToolCall, ToolResult, Usage
from kerneltune.tools.schema.task import TaskSpec

PRICE_USD = 1e-6  # a token


def call(name: str, call_id: str = "c1", /, **arguments: object) -> ToolCall:
    return ToolCall(call_id, name, dict(arguments))


def calling(*calls: ToolCall, text: str = "") -> Reply:
    return Reply(text, "tools", calls)


@dataclass
class ListModel:
    """Answers with the next reply of a list, or raises it; then says that it is done. Counts a token for every four
    characters of the request, as far as it is not the same as the one before."""

    script: list[Reply | Exception]
    asked: list[ModelRequest] = field(default_factory=list)
    name: str = "list:model"

    def facts(self) -> ModelFacts:
        return ModelFacts("model")

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        self.asked.append(request)
        reply = self.script.pop(0) if self.script else Reply("done", "end")
        if isinstance(reply, Exception):
            raise reply
        listen(Delta("text", reply.text))
        usage = reply.usage or Usage(len(str(request.messages)) // 4, len(reply.text) // 4)
        return Reply(
            reply.text,
            reply.stop,
            reply.calls,
            reply.thinking,
            reply.detail,
            usage,
            self.price_usd(usage),
            None,
            "model",
        )

    def price_usd(self, usage: Usage) -> float | None:
        return (usage.input_tokens + usage.output_tokens) * PRICE_USD

    def close(self) -> None:
        pass


@dataclass
class NoteExecutor:
    """Says of every call that it was done, and wants nothing of the loop; an `update` makes an attempt."""

    made: int = 0
    done: list[tuple[str, int]] = field(default_factory=list)
    answer: str = "ok"
    is_error: bool = False
    is_full: bool = False
    drafts: tuple[Attempt, ...] = ()

    def room(self, of_run: float) -> float:
        return of_run

    def run(self, calls: Sequence[ToolCall], turn: int) -> Generator[Any, Any, tuple[ToolResult, ...]]:
        self.done += [(c.name, turn) for c in calls]
        self.made += sum(c.name == "update" for c in calls)
        yield from ()
        return tuple(ToolResult(c.call_id, f"{c.name}: {self.answer}", self.is_error) for c in calls)


@dataclass
class OneLine:
    """An author with one line of work."""

    work: list[Actions]
    name: str = "one"

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Actions]:
        taken, self.work = self.work, []
        return taken


class PlainPrompts(RunPrompts):
    """The shortest texts of a run."""

    def __init__(self) -> None:
        self.system = "system"

    def opening(self, seeds: tuple[Attempt, ...] = (), rounds: int | None = None) -> str:
        return "opening " + " ".join(f"#{a.number}" for a in seeds)

    def history(self) -> str:
        return "history"

    def standing(self, remaining: Remaining) -> str:
        return ""

    def drafts(self, drafts: Sequence[Attempt]) -> str:
        return " ".join(f"draft #{a.number}" for a in drafts)

    def crossover(self, first: Attempt, second: Attempt, rounds: int | None = None) -> str:
        return f"join #{first.number} #{second.number}"

    def nudge(self, trouble: Trouble) -> str:
        return f"nudge: {trouble}"
