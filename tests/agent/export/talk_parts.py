"""Conversations for the tests of the chat formats: said by hand, or held by the real strategy with a scripted model."""

from dataclasses import dataclass, field, replace
from typing import Any

from kerneltune.agent.attempt import Limits, StopReason
from kerneltune.agent.authors.llm.author import LlmAuthor
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.events import Event, Replied, RunEnded, Said
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.models.types import Listen, ModelFacts, ModelRequest, Reply, ToolCall, Usage
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.codec import Json, encode
from tests.agent.authors.llm.test_toolbox import TASKS, WordBench, WordUpdater
from tests.agent.record.samples import started
from tests.agent.test_loop import Log

RUN = "20261121-093000-softmax-1a2b"


@dataclass
class Speaker:
    """Events of one conversation, as `agent.authors.llm.conversation` would emit them."""

    key: str = "1"
    events: list[Event] = field(default_factory=list)
    turn: int = 0
    at: float = 1_800_000_000.0

    def system(self, text: str) -> "Speaker":
        return self._add(Said(RUN, "system", text, at=self._tick()))

    def user(self, text: str, raw: Json = None) -> "Speaker":
        return self._add(Said(RUN, "user", text, raw=raw, conversation=self.key, at=self._tick()))

    def history(self, text: str, kept: int | None) -> "Speaker":
        return self.user(text, {"history": True} | ({"kept": kept} if kept is not None else {}))

    def reply(self, text: str = "", *calls: ToolCall, **more: Any) -> "Speaker":
        self.turn += 1
        usage = encode(more.pop("usage", None))
        facts: dict[str, Any] = {"thinking": "", "detail": "", "cost_usd": None, "model": "m", "seconds": 1.5} | more
        stop = facts.pop("stop", "tools" if calls else "end")
        told = Replied(
            RUN, self.key, self.turn, text, calls=encode(calls), stop=stop, usage=usage, at=self._tick(), **facts
        )
        return self._add(told)

    def result(self, call_id: str, text: str, is_error: bool = False) -> "Speaker":
        raw = {"call_id": call_id, "is_error": is_error}
        return self._add(Said(RUN, "tool", text, raw=raw, conversation=self.key, at=self._tick()))

    def trajectory(self, *more: Event) -> Trajectory:
        return trajectory([started(RUN), *self.events, *more])

    def _add(self, event: Event) -> "Speaker":
        self.events.append(event)
        return self

    def _tick(self) -> float:
        self.at += 0.25
        return self.at


def bench(call_id: str, attempt: int = 1) -> ToolCall:
    return ToolCall(call_id, "bench", {"attempt": attempt})


def update(call_id: str, source: str, **more: Json) -> ToolCall:
    arguments = {"parent": None, "rationale": "why", "source": source, "edits": None}
    return ToolCall(call_id, "update", arguments | more)


def ended(why: StopReason = StopReason.ATTEMPTS, best: int | None = None) -> RunEnded:
    return RunEnded(RUN, why, 1, 1, f"{RUN}/{best}" if best else None, None, 9.0)


@dataclass
class Asked:
    """Answers with the next reply of a list, and keeps what it was asked."""

    script: list[Reply]
    asked: list[ModelRequest] = field(default_factory=list)
    name: str = "list:model"

    def facts(self) -> ModelFacts:
        return ModelFacts("model")

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        self.asked.append(request)
        reply = self.script.pop(0) if self.script else Reply("done", "end")
        usage = Usage(sum(len(str(m)) for m in request.messages) // 4, len(str(reply)) // 4, 3)
        return replace(reply, usage=usage, cost_usd=0.5, model="model")

    def price_usd(self, usage: Usage) -> float | None:
        return None

    def close(self) -> None:
        pass


def held(script: list[Reply], context_tokens: int = 30_000, attempts: int = 100) -> tuple[Trajectory, Asked]:
    """A run of the real strategy, conversation and tools over a tracker whose judge goes by words."""
    log, model = Log([started(RUN)]), Asked(script)
    bench = AttemptTracker(RUN, TASKS, Evaluator(WordUpdater(), WordBench(), "timing"), log)  # type: ignore[arg-type]
    prompts = RunPrompts(bench, "sm_90", "NVIDIA H200", outcomes=lambda: bench.predictions)
    author = LlmAuthor(bench, model, prompts, "sm_90", context_tokens=context_tokens)
    why = optimize(Run(bench, author, Limits(attempts)))
    best = bench.best
    log(RunEnded(RUN, why, len(bench.attempts), 1, best.attempt_id if best else None, None, 1.0))
    return trajectory(log.events), model


def long_script(turns: int = 50) -> list[Reply]:
    """Each turn writes a source; every attempt is benched in the turn after. Some replies go wrong."""
    said: list[Reply] = []
    for n in range(1, turns + 1):
        calls = [update(f"u{n}", f"{200 - n}  # us\n" + "x = 1\n" * 60)]
        if n > 1:
            calls.append(bench(f"b{n}", n - 1))
        said.append(Reply(f"I change what result {n} suggests.", "tools", tuple(calls), thinking=f"thought {n}"))
        if n % 7 == 3:
            said.append(Reply("", "end"))
        if n % 11 == 4:
            said.append(Reply("I cannot go on with", "refusal"))
        if n % 13 == 5:
            said.append(Reply("A long explanation that is cut", "max_tokens"))
        if n % 17 == 6:
            said.append(Reply("", "tools", (ToolCall("bad", "update", {}, "no JSON"), ToolCall("bad", "nonsense", {}))))
    return said
