"""Runs of every author pass through the one loop."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kerneltune.agent import loop
from kerneltune.agent.attempt import Attempt, Author, Limits
from kerneltune.agent.authors.llm.author import LlmAuthor
from kerneltune.agent.commands.bench import FilesAuthor
from kerneltune.agent.commands.lifecycle import ReplayAuthor
from kerneltune.agent.events import Event, Judged, Proposed, Updated
from kerneltune.agent.loop import Run
from kerneltune.agent.settings import Strategy
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Candidate, Evaluator
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.authors.llm.parts import PlainPrompts
from tests.agent.authors.llm.test_strategies import Endless
from tests.agent.test_loop import TASK, ListAuthor, Log, NoteBench, NoteUpdater

STRATEGIES: tuple[Strategy, ...] = ("refine", "best-of", "evolve")


def files(_: AttemptTracker) -> Author:
    return FilesAuthor([Candidate("a.py", "5"), Candidate("b.py", "4"), Candidate("c.bin", "", "the file is binary")])


def model(strategy: Strategy) -> Callable[[AttemptTracker], Author]:
    return lambda tracker: LlmAuthor(tracker, Endless([]), PlainPrompts(), "sm_90", strategy)


def replay(tracker: AttemptTracker) -> Author:
    made = [
        Attempt(str(5 - n), "", attempt_id=f"x/{n}", number=n, verdict=Verdict(Status.WRONG, "")) for n in (1, 2, 3)
    ]
    return ReplayAuthor(tracker, "replay:x", made)


AUTHORS = [lambda _: ListAuthor(["5", "4", "3"]), files, replay, *map(model, STRATEGIES)]


@pytest.mark.parametrize("make", AUTHORS, ids=["search", "files", "replay", *STRATEGIES])
def test_the_loop_makes_every_attempt_of_every_author(make: Callable[[AttemptTracker], Author]) -> None:
    log, entered = Log(), Counter[str]()
    tracker = AttemptTracker("r", TASK, Evaluator(NoteUpdater(), NoteBench(), "timing"), log)  # type: ignore[arg-type]
    run = Run(tracker, make(tracker), Limits(3))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename == loop.__file__:
            entered[frame.f_code.co_name] += 1

    sys.setprofile(profile)
    try:
        loop.optimize(run)
    finally:
        sys.setprofile(None)
    assert (entered["optimize"], entered["conclude"]) == (1, 1)
    assert entered["why_stop"] > 1
    assert len(tracker.attempts) == 3
    for kind in (Proposed, Updated, Judged):
        assert numbers(log.events, kind) == ["r/1", "r/2", "r/3"]


def numbers(events: list[Event], kind: type[Proposed] | type[Updated] | type[Judged]) -> list[str]:
    return sorted(e.attempt_id for e in events if isinstance(e, kind))
