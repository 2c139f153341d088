"""Runs for the tests of reports: a timed one like those of a GPU, and one in which every word is hostile."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kerneltune.agent.attempt import LlmTurn, StopReason
from kerneltune.agent.events import (
    Event,
    Judged,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunStarted,
    Said,
    Updated,
    Verified,
    Warned,
)
from kerneltune.agent.export.privacy import PrivateNames
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.agent.report.data import RunData
from kerneltune.agent.report.text import Sanitizer
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Tier, Timing, Verdict

RUN = "20261121-093000-softmax-1a2b"
GPU = "NVIDIA H200"
BASELINES = {"compile-max": 100.0, "compile": 110.0, "eager": 250.0}  # microseconds
KERNEL = KernelReport("softmax_kernel", 55, 0, 0, 0, 16, 8, 3, 0.5, "c" * 64)
SOURCE = "import triton\n\n\nclass ModelNew:\n    # attempt {}\n    def forward(self, x):\n        return x\n"
CASES = (CaseResult("main", "own", True, 0.1, 1e-6), CaseResult("prime", "scaled", True, 0.2, 1e-6))
SANITIZER = Sanitizer(PrivateNames())


def correct(us: float, tier: Tier = "judged", **changes: Any) -> Verdict:
    """A right kernel of that time; its speed-ups follow, with intervals of 1 % to both sides."""
    against = tuple(
        Comparison(name, slow, slow / us, slow / us * 0.99, slow / us * 1.01) for name, slow in BASELINES.items()
    )
    timing = Timing(us, us * 0.999, us * 1.001, 40, 4000)
    made = Verdict(Status.CORRECT, "right", CASES, timing, against, 1.0, 40.0 / us, "default", tier)
    return replace(made, **changes)


def failed(status: Status, detail: str) -> Verdict:
    """A verdict without a time."""
    return Verdict(status, detail)


CHECKED = Verdict(Status.CHECKED, "right on small cases", CASES)
COURSE = (  # parent and verdict of each attempt
    (None, failed(Status.WRONG, "case ragged: 12 of 40 elements wrong")),
    (1, correct(130.0, "screened")),
    (2, failed(Status.COMPILE_FAILED, "line 4: no attribute 'expo'")),
    (2, correct(90.0)),
    (4, failed(Status.WRONG, "case ragged: 17 of 40 elements wrong")),
    (4, correct(80.0)),
)


def events(
    course: Sequence[tuple[int | None, Verdict]] = COURSE,
    *,
    run_id: str = RUN,
    task: str = "softmax",
    gpu: str | None = GPU,
    confirmed: Verdict | None = None,
    why: StopReason | None = StopReason.ATTEMPTS,
) -> list[Event]:
    """A run of these attempts; the fastest is the best, and `confirmed` is what was found when it was judged again."""
    made: list[Event] = [_started(run_id, task, gpu)]
    best: tuple[float, str] | None = None
    for number, (parent, verdict) in enumerate(course, 1):
        its = f"{run_id}/{number}"
        above = None if parent is None else f"{run_id}/{parent}"
        made.append(Proposed(run_id, its, number, above, SOURCE.format(number), f"idea {number}", at=float(number)))
        kernels = () if verdict.status is Status.COMPILE_FAILED else (KERNEL,)
        made.append(Updated(run_id, its, None, None, kernels, (), 1, 0.1, 0.2))
        us = verdict.timing.median_us if verdict.timing else 1.0
        better = verdict.accepted and (best is None or us < best[0])
        best = (us, its) if better else best
        made.append(Judged(run_id, its, verdict, 1.5, better, (us,) if verdict.accepted else ()))
    if confirmed is not None and best is not None:
        made.append(Verified(run_id, best[1], "confirm", confirmed, 2.0, True, "right again", gpu, {}, {}, (1.0,)))
    if why is not None:
        accepted = sum(verdict.accepted for _, verdict in course)
        made.append(RunEnded(run_id, why, len(course), accepted, best[1] if best else None, None, 61.0))
    return made


def verified(made: Sequence[Event], again: Verdict, number: int) -> list[Event]:
    """The run after `optimize verify` found something else than the run did of that attempt."""
    run_id = made[0].run_id
    why = "right again, but slower" if again.accepted else "was correct, is wrong now"
    return [*made, Verified(run_id, f"{run_id}/{number}", "verify", again, 2.0, False, why, GPU, {}, {})]


def _started(run_id: str, task: str, gpu: str | None) -> RunStarted:
    machine: dict[str, Json] = {"task_path": f"tools/tasks/{task}.py", "sandbox": {"landlock_abi": 7, "seccomp": True}}
    versions = {"kerneltune": "0.1.0", "torch": "2.11.0", "triton": "3.6.0", "python": "3.12.3"}
    limits: dict[str, Json] = {"max_attempts": 6, "patience": None}
    source = "class Model: ..."
    author = ("offline", "no key is set")
    return RunStarted(run_id, task, "0" * 64, source, *author, "sm_90", gpu, machine, limits, 3, versions, at=0.0)


def receipt(best_id: str, *, processes: int = 3) -> dict[str, Json]:
    """A receipt as the evaluator writes them, as far as a report reads it."""
    blocks = [{"candidate": [80.0, 80.1 + i / 100], "eager": [250.0, 251.0], "sm_mhz": 1980.0} for i in range(10)]
    case: dict[str, Json] = {"name": "main", "inputs": [], "held_out": False}
    process = {"rounds": blocks, "sm_clock_mhz": {"median": 1980.0, "p5": 1965.0}, "throttle_reasons": 0}
    return {
        "attempt_id": best_id,
        "date": "2026-11-21T09:31:00+00:00",
        "protocol": {"version": "2", "evaluator_sha256": "e" * 64},
        "task": {"name": "softmax", "precision": "float32", "cases": [case]},
        "candidate": {"source_sha256": "a" * 64, "plan_sha256": "b" * 64},
        "where": {"sandbox": {"runner": {"landlock_abi": 7, "seccomp": True}}, "warnings": []},
        "verdict": {"timing": {"n_blocks": 120, "n_launches": 9000}},
        "cases": [{"case": "main", "inputs": "own", "ok": True, "error_ratio": 0.19, "held_out": False}],
        "evidence": {"aa_resolution": 0.001, "copy_gbps": 4230.0, "processes": [process] * processes},
    }


def material(made: Sequence[Event], told: Json = None, note: str = "") -> RunData:
    """What a report of these events is made of."""
    return RunData(trajectory(made), [e for e in made if not isinstance(e, Proposed | Updated | Judged)], told, note)


def hostile(word: str, *, run_id: str = RUN, source: str | None = None) -> list[Event]:
    """A run that says `word` wherever somebody else chooses the words."""
    report = KernelReport(word, 255, 8, 8, 0, 0, 4, 3, 0.1, "c" * 64)
    timing = correct(80.0)
    against = tuple(replace(c, baseline=f"{c.baseline} {word}") for c in timing.comparisons)
    verdict = replace(timing, detail=word, variant=word, comparisons=against)
    started = _started(run_id, word, word)
    machine: dict[str, Json] = {"task_path": word, "gpu": {"driver": word}, "sandbox": {"landlock_abi": word}}
    started = replace(started, machine=machine, limits={"strategy": word}, versions={"torch": word, word: word})
    started = replace(started, author=word, author_why=word, arch=word, task_source=word)
    ids, source = (run_id, f"{run_id}/1"), word if source is None else source
    calls = [{"call_id": word, "name": word, "arguments": {word: word}, "problem": word}]
    usage: dict[str, Json] = {"input_tokens": 10, "output_tokens": 5}
    reply = Replied(run_id, word, 1, word, word, calls, word, word, usage, None, word, 1.0)
    return [
        started,
        Warned(run_id, word),
        Said(run_id, "system", word),
        Said(run_id, "user", word, conversation=word),
        reply,
        Said(run_id, "tool", word, conversation=word, raw={"call_id": word}),
        Proposed(*ids, 1, word, source, word, LlmTurn(word, 1), word, word),
        Updated(*ids, None, None, (report,), (word,), 1, 0.1, 0.1),
        Judged(*ids, verdict, 1.0, True, (80.0,)),
        Reflected(*ids, word, word, {"predicted_speedup": 2.0, word: word}, "refuted"),
        Proposed(run_id, f"{run_id}/2", 2, ids[1], word, word),
        Judged(run_id, f"{run_id}/2", failed(Status.CRASHED, word), 1.0, False),
        Verified(*ids, "verify", verdict, 1.0, False, word, word, {"host": word}, {}),
        RunEnded(run_id, StopReason.FAILED, 2, 1, ids[1], word, 10.0),
    ]
