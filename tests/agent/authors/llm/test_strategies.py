"""The strategies, with the loop, the tools and a model that reads from a list."""

import itertools
import os
import re
import signal
import threading
import time
from typing import Any

import pytest

from kerneltune.agent.attempt import Limits, LlmTurn, tiers_for
from kerneltune.agent.authors.llm.author import BEST_OF_ROUNDS, EVOLVE_ROUNDS, LlmAuthor, designs_of
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.events import Event, JudgingAgain, Replied, Said
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.models.types import (
    KeyRejected,
    Listen,
    ModelRequest,
    Reply,
    ToolCall,
    ToolResults,
    Unavailable,
    User,
)
from kerneltune.agent.settings import Strategy
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from tests.agent.authors.llm.parts import ListModel, PlainPrompts, call, calling
from tests.agent.test_loop import TASK, Log, NoteBench, NoteUpdater


def written(us: float) -> ToolCall:
    return call("update", rationale="", source=str(us))


class Endless(ListModel):
    """Always another kernel, once those before it are benched; times fall and rise."""

    numbers = itertools.count()

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        number = next(self.numbers)
        last = request.messages[-1]
        told = last.results if isinstance(last, ToolResults) else ()
        made = [int(m[1]) for m in (re.match(r"#(\d+) compiled", r.text) for r in told) if m]
        benches = [call("bench", f"b{n}", attempt=n) for n in made]
        self.script.append(calling(*benches, written(10 + number * 7 % 13 + number / 1000)))
        return super().ask(request, listen)


def going(model: ListModel, strategy: Strategy = "refine", width: int = 1, **limits: Any) -> tuple[Run, list[Event]]:
    log = Log()
    bench = AttemptTracker("r", TASK, Evaluator(NoteUpdater(), NoteBench(), "timing"), log)  # type: ignore[arg-type]
    limit = Limits(**{"max_attempts": 8, **limits})
    return Run(bench, LlmAuthor(bench, model, PlainPrompts(), "sm_90", strategy), limit, width), log.events


def openings(events: list[Event]) -> list[str]:
    """What each conversation began with."""
    first: dict[str, str] = {}
    for event in events:
        if isinstance(event, Said) and event.role == "user":
            first.setdefault(event.conversation, event.text)
    return list(first.values())


def test_refine_holds_one_conversation_until_the_limit() -> None:
    room, events = going(Endless([]))
    assert optimize(room) == "attempts"
    assert len(room.tracker.attempts) == 8
    assert {e.conversation for e in events if isinstance(e, Replied)} == {"1"}


def test_refine_begins_again_with_the_history_when_a_model_falls_silent() -> None:
    update, other = calling(written(5)), calling(written(4))
    room, events = going(ListModel([update, *[Reply("", "end")] * 3, other]), max_attempts=2)
    assert optimize(room) == "attempts"
    assert openings(events) == ["opening ", "history"]


def test_refine_asks_a_model_that_says_it_is_done_once_more_and_ends() -> None:
    model = ListModel([calling(written(5)), *[Reply("done", "end")] * 9])
    room, events = going(model)
    assert optimize(room) == "author_done"
    assert len(model.asked) == 3
    assert openings(events) == ["opening "]


def test_refine_gives_up_on_a_model_that_makes_nothing() -> None:
    room, _ = going(ListModel([]))
    assert optimize(room) == "author_done"
    assert len(room.author.model.asked) == 6  # type: ignore[attr-defined]


def test_the_system_prompt_is_said_once_and_is_the_same_in_all_requests() -> None:
    model = Endless([])
    room, events = going(model)
    optimize(room)
    assert [e.text for e in events if isinstance(e, Said) and e.role == "system"] == ["system"]
    assert {r.system for r in model.asked} == {"system"}


@pytest.mark.parametrize("width", [1, 3])
def test_best_of_begins_every_conversation_with_the_task_alone(width: int) -> None:
    room, events = going(Endless([]), "best-of", width)
    assert optimize(room) == "attempts"
    assert len(room.tracker.attempts) == 8
    assert set(openings(events)) == {"opening "}
    keys = [a.origin.conversation for a in room.tracker.attempts if isinstance(a.origin, LlmTurn)]
    assert all(keys.count(key) <= designs_of(BEST_OF_ROUNDS) for key in keys)


def test_evolve_begins_conversations_at_attempts_and_joins_some() -> None:
    room, events = going(Endless([]), "evolve", 2, max_attempts=60)
    assert optimize(room) == "attempts"
    assert len(room.tracker.attempts) == 60
    begun = openings(events)
    assert begun[0] == "opening "
    assert any(text.startswith("opening #") for text in begun)
    assert any(text.startswith("join #") for text in begun)


@pytest.mark.parametrize(("strategy", "rounds"), [("best-of", BEST_OF_ROUNDS), ("evolve", EVOLVE_ROUNDS)])
def test_a_short_conversation_sees_verdicts_before_it_ends_and_is_told_how_short_it_is(
    strategy: Strategy, rounds: int
) -> None:
    """A model that sends four designs at once, as the opening of a long conversation asks for, then their benches."""
    seen: dict[str, int] = {}

    class Eager(ListModel):
        numbers = itertools.count(1)

        def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
            last = request.messages[-1]
            told = last.results if isinstance(last, ToolResults) else ()
            seen[request.key] = seen.get(request.key, 0) + any("correct" in r.text for r in told)
            made = [int(m[1]) for m in (re.match(r"#(\d+) compiled", r.text) for r in told) if m]
            designs = [
                call("update", f"u{n}", rationale="", source=str(10 + next(self.numbers) / 100)) for n in range(4)
            ]
            benches = [call("bench", f"b{n}", attempt=n) for n in made]
            self.script = [calling(*(benches or designs))]
            return super().ask(request, listen)

    model = Eager([])
    room, events = going(model, strategy, max_attempts=40)
    room.author.prompts = RunPrompts(room.tracker, "sm_90", "NVIDIA H200")  # type: ignore[attr-defined]
    assert optimize(room) == "attempts"
    assert len(seen) > 2
    assert all(count >= 1 for count in list(seen.values())[:-1])
    made = [a.origin.conversation for a in room.tracker.attempts if isinstance(a.origin, LlmTurn)]
    assert max(map(made.count, made)) == designs_of(rounds)
    for opening in openings(events):
        assert (
            f"ends after {rounds} replies that verdicts follow, and has room for {designs_of(rounds)} attempts"
            in opening
        )
    refused = [e.text for e in events if isinstance(e, Said) and e.role == "tool" and "may make" in e.text]
    assert all(f"this conversation may make {designs_of(rounds)} attempts" in text for text in refused)


def test_conversations_side_by_side_are_under_way_at_once() -> None:
    meeting, begun = threading.Barrier(3, timeout=10), itertools.count()

    class Meeting(Endless):
        def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
            if isinstance(request.messages[-1], User) and next(begun) < 3:
                meeting.wait()
            return super().ask(request, listen)

    room, _ = going(Meeting([]), "best-of", 3, max_attempts=3 * BEST_OF_ROUNDS)
    optimize(room)
    assert len(room.tracker.attempts) == 3 * BEST_OF_ROUNDS


def test_a_budget_is_looked_at_before_money_is_spent() -> None:
    room, _ = going(Endless([]), max_attempts=100, max_cost_usd=0.001)
    assert optimize(room) == "cost"
    assert room.tracker.cost.cost_usd <= 0.001


@pytest.mark.parametrize("strategy", ["refine", "best-of", "evolve"])
def test_an_error_of_the_provider_ends_the_run_and_loses_nothing(strategy: Strategy) -> None:
    room, _ = going(ListModel([calling(written(5)), calling(written(4)), KeyRejected("expired")]), strategy, 2)
    with pytest.raises(KeyRejected):
        optimize(room)
    assert len(room.tracker.attempts) == 2
    assert room.why_stop() == "interrupted"  # no other conversation asks again


def test_the_best_is_confirmed_although_the_provider_is_gone() -> None:
    room, events = going(ListModel([calling(written(5), written(4)), Unavailable("overloaded")]))
    room.tracker.tiers = tiers_for(True)
    with pytest.raises(Unavailable):
        optimize(room)
    assert [e.attempt_id for e in events if isinstance(e, JudgingAgain) and e.tier == "confirmed"] == ["r/2"]


@pytest.mark.parametrize("strategy", ["best-of", "evolve"])
def test_a_model_that_makes_nothing_is_given_up(strategy: Strategy) -> None:
    room, _ = going(ListModel([]), strategy, 2)
    assert optimize(room) == "author_done"
    assert len(room.author.model.asked) <= 4 * 3  # type: ignore[attr-defined]  # of three words each


def test_what_a_process_that_was_killed_left_unjudged_takes_no_room() -> None:
    room, _ = going(Endless([]), max_attempts=4)
    room.tracker.next_number = 4  # three were proposed by a process that is gone
    assert optimize(room) == "attempts"
    assert [a.number for a in room.tracker.attempts] == [4, 5, 6, 7]


@pytest.mark.parametrize("strategy", ["refine", "best-of"])
def test_ctrl_c_does_not_wait_for_conversations_that_wait_for_a_reply(strategy: Strategy) -> None:
    class Silent(Endless):
        closed, asking = threading.Event(), threading.Event()

        def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
            self.asking.set()
            self.closed.wait(60)
            raise Unavailable("closed")

        def close(self) -> None:
            self.closed.set()

    model = Silent([])
    room, _ = going(model, strategy, 2)

    def interrupt() -> None:
        model.asking.wait(10)
        os.kill(os.getpid(), signal.SIGINT)  # to the process, as a terminal does

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        optimize(room)
    assert time.monotonic() - started < 5
    assert room.why_stop() == "interrupted"
    model.close()  # as the command does
