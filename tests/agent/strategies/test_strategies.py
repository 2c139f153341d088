"""The strategies on a real workbench, with a model that reads from a list and hands that make every call an attempt."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agent.authors.base import Attempt, Proposal
from agent.llm.errors import KeyRejected, Unavailable
from agent.llm.types import Listen, ModelRequest, Reply, ToolCall, ToolResult, User
from agent.policy import Limits
from agent.record.events import Event, Replied, Said
from agent.strategies.best_of import SHARE, best_of
from agent.strategies.evolve import evolve
from agent.strategies.refine import refine
from agent.strategies.studio import Studio
from agent.workbench import Workbench
from tests.agent.converse.parts import ListModel, call, calling
from tests.agent.test_loop import TASK, Log, NoteBench, NoteUpdater
from tools.tooling import Tools


@dataclass
class BenchHands:
    """Every call is an attempt, whose source says how long it takes."""

    bench: Workbench
    key: str
    room: Callable[[int], int]
    made: int = 0

    def run(self, calls: Sequence[ToolCall], turn: int) -> tuple[ToolResult, ...]:
        return tuple(self._one(c) for c in calls)

    def _one(self, call: ToolCall) -> ToolResult:
        if self.room(self.made) <= 0:
            return ToolResult(call.call_id, "no attempts left", is_error=True)
        self.made += 1
        source = str(call.arguments["source"])
        draft = self.bench.update(Proposal(source, "", params={"conversation": self.key}))
        return ToolResult(call.call_id, self.bench.bench(draft).verdict.status.value)

    def finish(self) -> None:
        pass


class PlainPrompts:
    system = "system"

    def opening(self, seeds: tuple[Attempt, ...] = ()) -> str:
        return "opening " + " ".join(f"#{a.number}" for a in seeds)

    def history(self) -> str:
        return "history"

    def crossover(self, first: Attempt, second: Attempt) -> str:
        return f"join #{first.number} #{second.number}"

    def nudge(self, trouble: str) -> str:
        return trouble


class Endless(ListModel):
    """Always another kernel; times fall and rise."""

    numbers = itertools.count()

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        number = next(self.numbers)
        self.script.append(calling(call("update", source=str(10 + number * 7 % 13))))
        return super().ask(request, listen)


def studio(model: ListModel, width: int = 1, **limits: Any) -> tuple[Studio, list[Event]]:
    log = Log()
    bench = Workbench("r", TASK, Tools(NoteUpdater(), NoteBench(), "timing"), log)  # type: ignore[arg-type]
    limit = Limits(**{"max_attempts": 8, **limits})
    new_hands = lambda key, room: BenchHands(bench, key, room)  # noqa: E731
    return Studio(bench, model, (), PlainPrompts(), limit, new_hands, width), log.events


def openings(events: list[Event]) -> list[str]:
    """What each conversation began with."""
    first: dict[str, str] = {}
    for event in events:
        if isinstance(event, Said) and event.role == "user":
            first.setdefault(event.conversation, event.text)
    return list(first.values())


def test_refine_holds_one_conversation_until_the_limit() -> None:
    room, events = studio(Endless([]))
    assert refine(room) == "attempts"
    assert len(room.bench.attempts) == 8
    assert {e.conversation for e in events if isinstance(e, Replied)} == {"1"}


def test_refine_begins_again_with_the_history_when_the_model_says_that_it_is_done() -> None:
    update = calling(call("update", source="5"))
    room, events = studio(ListModel([update, *[Reply("done", "end")] * 3, update]), max_attempts=2)
    assert refine(room) == "attempts"
    assert openings(events) == ["opening ", "history"]


def test_refine_gives_up_on_a_model_that_makes_nothing() -> None:
    room, _ = studio(ListModel([]))
    assert refine(room) == "author_done"
    assert len(room.model.asked) == 6  # type: ignore[attr-defined]


def test_the_system_prompt_is_said_once_and_is_the_same_in_all_requests() -> None:
    model = Endless([])
    room, events = studio(model)
    refine(room)
    assert [e.text for e in events if isinstance(e, Said) and e.role == "system"] == ["system"]
    assert {r.system for r in model.asked} == {"system"}


@pytest.mark.parametrize("width", [1, 3])
def test_best_of_begins_every_conversation_with_the_task_alone(width: int) -> None:
    room, events = studio(Endless([]), width)
    assert best_of(room) == "attempts"
    assert len(room.bench.attempts) == 8
    assert set(openings(events)) == {"opening "}
    keys = [a.proposal.params["conversation"] for a in room.bench.attempts]
    assert all(keys.count(key) <= SHARE for key in keys)


def test_evolve_begins_conversations_at_attempts_and_joins_some() -> None:
    room, events = studio(Endless([]), 2, max_attempts=60)
    assert evolve(room) == "attempts"
    assert len(room.bench.attempts) == 60
    begun = openings(events)
    assert begun[0] == "opening "
    assert any(text.startswith("opening #") for text in begun)
    assert any(text.startswith("join #") for text in begun)


def test_conversations_side_by_side_are_under_way_at_once() -> None:
    meeting, begun = threading.Barrier(3, timeout=10), itertools.count()

    class Meeting(Endless):
        def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
            if isinstance(request.messages[-1], User) and next(begun) < 3:
                meeting.wait()
            return super().ask(request, listen)

    room, _ = studio(Meeting([]), 3, max_attempts=3 * SHARE)
    best_of(room)
    assert len(room.bench.attempts) == 3 * SHARE


def test_a_budget_is_looked_at_before_money_is_spent() -> None:
    room, _ = studio(Endless([]), max_attempts=100, max_cost_usd=0.001)
    assert refine(room) == "cost"
    assert room.ledger.cost_usd <= 0.001


@pytest.mark.parametrize("strategy", [refine, best_of, evolve])
def test_an_error_of_the_provider_ends_the_run_and_loses_nothing(strategy: Callable[[Studio], str]) -> None:
    update = calling(call("update", source="5"))
    room, _ = studio(ListModel([update, update, KeyRejected("expired")]), 2)
    with pytest.raises(KeyRejected):
        strategy(room)
    assert len(room.bench.attempts) == 2
    assert room.why_stop() == ("interrupted" if strategy is not refine else None)


@pytest.mark.parametrize("strategy", [best_of, evolve])
def test_a_model_that_makes_nothing_is_given_up(strategy: Callable[[Studio], str]) -> None:
    room, _ = studio(ListModel([]), 2)
    assert strategy(room) == "author_done"


def test_what_a_process_that_was_killed_left_unjudged_takes_no_room() -> None:
    room, _ = studio(Endless([]), max_attempts=4)
    room.bench.next_number = 4  # three were proposed by a process that is gone
    assert refine(room) == "attempts"
    assert [a.number for a in room.bench.attempts] == [4, 5, 6, 7]


def test_ctrl_c_does_not_wait_for_conversations_that_wait_for_a_reply() -> None:
    class Silent(Endless):
        closed = threading.Event()
        asking = threading.Event()

        def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
            self.asking.set()
            self.closed.wait(60)
            raise Unavailable("closed")

        def close(self) -> None:
            self.closed.set()

    model = Silent([])
    room, _ = studio(model, 2)

    def interrupt() -> None:
        model.asking.wait(10)
        os.kill(os.getpid(), signal.SIGINT)  # to the process, as a terminal does

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        best_of(room)
    assert time.monotonic() - started < 5
    assert room.why_stop() == "interrupted"
