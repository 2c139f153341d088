"""A run without a model, told as if one had called the tools. Nobody said this: every row that is made of it says so.

Told is what is stored: sources, rationales, predictions, what the compiler and the judge found, in the words of
`agent.authors.llm.feedback`. What is not stored (bytes touched, instruction counts, hints of the roofline) is not
spoken of, and no `reflect` call is made up. Nothing of a held-out case is told: the stored task lists the visible ones.
Pure.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agent.authors.llm.feedback import compiled_words, verdict_words
from agent.llm.dialogue import Call
from agent.record.events import Reflected
from agent.record.trajectory import AttemptRecord, Conversation, Message, Trajectory
from prompts import render
from tools.codec import Json
from tools.receipt import author_view
from tools.spec import CaseSpec, TaskSpec
from tools.verdict import Status, Verdict

KEY = "synthetic"
MOST_ATTEMPTS = 64  # of a run that are told, from the first: a search may make thousands
_MAIN = "main"  # the case that every task has


def synthetic_conversation(trajectory: Trajectory) -> tuple[Conversation, Trajectory]:
    """The conversation, and the run with its attempts as if they had been made in it."""
    judged = [a for a in trajectory.attempts if a.status is not None][:MOST_ATTEMPTS]
    told: list[AttemptRecord] = []
    messages = [_opening(trajectory)]
    leader: int | None = None
    task = _task(trajectory, judged)
    known = {a.attempt_id: a.number for a in judged}
    for attempt in judged:
        leader = attempt.number if attempt.best and attempt.accepted else leader
        mine = replace(attempt, conversation=KEY, turn=len(messages))
        messages += _messages(mine, known.get(attempt.parent_id or ""), leader, task)
        told.append(mine)
    best = next((a for a in told if trajectory.best and a.attempt_id == trajectory.best.attempt_id), None)
    return Conversation(KEY, tuple(messages)), replace(trajectory, attempts=tuple(told), best=best)


def _opening(trajectory: Trajectory) -> Message:
    run = trajectory.run
    words = render("synthetic.j2", task=run.task, gpu=run.gpu, arch=run.arch, source=run.task_source)
    return Message("user", words, run.at)


def _messages(attempt: AttemptRecord, parent: int | None, leader: int | None, task: TaskSpec) -> Iterator[Message]:
    """An `update`, and a `bench` if it compiled, with their results."""
    verdict = author_view(_verdict(attempt), task)
    held = _held(attempt)
    failed = attempt.tool == "update"
    arguments: dict[str, Json] = {
        "parent": parent,
        "rationale": attempt.rationale,
        "source": attempt.source,
        "edits": None,
    }
    yield from _exchange(
        attempt,
        Call(f"{KEY}_{attempt.number}_update", "update", arguments),
        _expected(held) if held else "",
        compiled_words(
            attempt.number, attempt.source, verdict if failed else None, attempt.kernels, attempt.library_ops
        ),
    )
    if not failed:
        call = Call(f"{KEY}_{attempt.number}_bench", "bench", {"attempt": attempt.number})
        yield from _exchange(attempt, call, "", verdict_words(attempt.number, verdict, leader, held))


def _exchange(attempt: AttemptRecord, call: Call, text: str, result: str) -> Iterator[Message]:
    turn = attempt.turn if call.name == "update" else None
    yield Message("assistant", text, attempt.at, calls=(call,), turn=turn, stop="tools")
    yield Message("tool", result, attempt.at, call_id=call.call_id)


def _verdict(attempt: AttemptRecord) -> Verdict:
    return Verdict(
        attempt.status or Status.UNCHECKED,
        attempt.detail,
        attempt.cases,
        attempt.timing,
        attempt.comparisons,
        attempt.coverage,
        attempt.sol_fraction,
        attempt.variant,
        attempt.tier,
    )


def _held(attempt: AttemptRecord) -> Reflected | None:
    """The latest that was expected of it and decided."""
    said = next((e for e in reversed(attempt.expectations) if e.outcome != "open"), None)
    if said is None:
        return None
    return Reflected("", attempt.attempt_id, said.hypothesis, said.prediction, said.evidence, said.outcome)


def _expected(held: Reflected) -> str:
    return "\n".join(filter(None, (held.hypothesis, held.prediction)))


def _task(trajectory: Trajectory, attempts: Sequence[AttemptRecord]) -> TaskSpec:
    """What `author_view` asks of a task: which cases are held out. Those are not in the source that is stored."""
    run = trajectory.run
    visible = {_MAIN, *_listed(run.task_source)}
    names = dict.fromkeys((_MAIN, *(c.case for a in attempts for c in a.cases)))
    cases = tuple(CaseSpec(name, (), (), None, held_out=name not in visible) for name in names)
    return TaskSpec(run.task, run.task_sha256, "", run.task_source, cases)


def _listed(source: str) -> list[str]:
    """Names of the cases in a task file; none when it cannot be read."""
    try:
        assigned = [n for n in ast.parse(source).body if isinstance(n, ast.Assign | ast.AnnAssign) and n.value]
        values = [n.value for n in assigned if n.value is not None and "CASES" in ast.unparse(n).split("=")[0]]
        return [str(case["name"]) for value in values for case in ast.literal_eval(value)]
    except (SyntaxError, ValueError, TypeError, KeyError):
        return []
