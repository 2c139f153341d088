"""An earlier run's attempts, proposed again."""

from pathlib import Path

import pytest

from kerneltune.agent.attempt import Attempt, Limits, LlmTurn, SearchPoint
from kerneltune.agent.commands.lifecycle import ReplayAuthor
from kerneltune.agent.loop import Run, optimize
from kerneltune.agent.record.store import Store
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent import shell
from tests.agent.test_loop import TASK, Log, NoteBench, NoteUpdater


def old(number: int, source: str, parent: int | None, origin: LlmTurn | SearchPoint) -> Attempt:
    parent_id = f"old/{parent}" if parent else None
    return Attempt(
        source, f"idea {number}", parent_id, origin, "it waits", "faster",
        attempt_id=f"old/{number}", number=number, verdict=Verdict(Status.WRONG, ""),
    )  # fmt: skip


# in the order of their verdicts; 3 was skipped
OLD = [
    old(2, "8", 1, SearchPoint("s", {"W": 4})),
    old(1, "9", None, LlmTurn("1", 1)),
    old(4, "7", 2, LlmTurn("1", 3)),
    old(5, "6", 3, LlmTurn("1", 4)),
]


def replayed(history: list[Attempt], next_number: int, width: int) -> list[Attempt]:
    tools = Evaluator(NoteUpdater(), NoteBench(), "timing")  # type: ignore[arg-type]
    tracker = AttemptTracker("new", TASK, tools, Log(), history, next_number)
    optimize(Run(tracker, ReplayAuthor(tracker, "replay:old", OLD), Limits(99), width))
    return sorted(tracker.attempts, key=lambda a: a.number)


@pytest.mark.parametrize("width", [1, 3])
def test_every_attempt_comes_again_in_order_with_its_parent_in_this_run(width: int) -> None:
    made = replayed([], 1, width)
    assert [a.source for a in made] == ["9", "8", "7", "6"]
    assert [a.parent_id for a in made] == [None, "new/1", "new/2", None]
    assert [a.origin for a in made] == [None, SearchPoint("s", {"W": 4}), None, None]
    assert all((a.hypothesis, a.prediction) == ("it waits", "faster") for a in made)


def test_a_resumed_replay_goes_on_where_it_was_and_finds_the_parents() -> None:
    before = replayed([], 1, 1)[:2]
    made = replayed(list(before), 7, 2)  # numbers 3 to 6 were lost with a process
    assert [(a.number, a.source, a.parent_id) for a in made[2:]] == [(7, "7", "new/2"), (8, "6", None)]


STORY = Path(shell.ROOT / "tests" / "agent" / "stories" / "softmax.jsonl")


@pytest.mark.timeout(300)
def test_a_stored_run_is_replayed_from_the_command_line(tmp_path: Path) -> None:
    flags = ("--task", shell.SOFTMAX, "--plain", "--runs-dir", "runs")
    first = shell.optimize(*flags, "--model", f"scripted:{STORY}", "--max-attempts", "3", cwd=tmp_path, timeout_s=280)
    with Store.open(tmp_path / "runs") as store:
        (run_id,) = store.run_ids()
    done = shell.optimize(*flags, "--model", f"replay:{run_id}", cwd=tmp_path, timeout_s=280)
    assert done.returncode == first.returncode, done.stdout + done.stderr
    with Store.open(tmp_path / "runs") as store:
        again = next(other for other in store.run_ids() if other != run_id)
        ways = [
            [(a.number, a.source, a.status, (a.parent_id or "/").rpartition("/")[2]) for a in its]
            for its in (store.attempts(run_id), store.attempts(again))
        ]
        assert store.load_run(again).author == f"replay:{run_id}"
    assert sorted(ways[0]) == sorted(ways[1])
    assert len(ways[0]) == 3
    unknown = shell.optimize(*flags, "--model", "replay:nothing-like-it", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "nothing-like-it" in unknown.stderr
