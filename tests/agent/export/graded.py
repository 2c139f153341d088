"""Attempts with just what a reward looks at, and runs made of them."""

from collections.abc import Sequence
from typing import Any

from kerneltune.agent.attempt import Attempt, Expectation, LlmTurn, Outcome
from kerneltune.agent.events import RunStarted
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.schema.verdict import Comparison, Status, Timing, Verdict

RUN = "20261121-100000-softmax-77aa"


_SOURCE = "class ModelNew: ..."
_OF_VERDICT = (
    "detail",
    "timing",
    "comparisons",
    "coverage",
    "sol_fraction",
    "variant",
    "tier",
    "cases",
    "pending",
    "not_timed",
    "lines",
    "cause",
)


def graded(status: Status | None = Status.CORRECT, number: int = 1, **other: Any) -> Attempt:
    """An attempt of a run, judged by `bench` when it was judged."""
    if status is Status.CORRECT and other.get("timing") is None:
        status = Status.CHECKED  # nothing is correct without a time
    judged = {name: other.pop(name) for name in _OF_VERDICT if name in other}
    verdict = None if status is None else Verdict(status, **{"detail": "", **judged})
    given: dict[str, Any] = {
        "attempt_id": f"{RUN}/{number}",
        "at": 1_800_000_000.0 + number,
        "source": "class ModelNew: ...",
    }
    given |= {"tool": None if status is None else "bench", "trace_s": 0.1, "compile_s": 0.2, "bench_s": 0.3}
    return Attempt(**{"rationale": "", **given, **other}, number=number, verdict=verdict)


def timed(
    *speedups: float, baselines: Sequence[str] = ("eager", "compile", "compile-max"), half: float = 0.01, **other: Any
) -> Attempt:
    """A right attempt of 100 µs with these speed-ups; the intervals reach `half` to either side."""
    compared = tuple(
        Comparison(name, 100.0 * s, s, s - half, s + half) for name, s in zip(baselines, speedups, strict=False)
    )
    given: dict[str, Any] = {"coverage": 1.0, "sol_fraction": 0.5, "tier": "judged"}
    return graded(Status.CORRECT, timing=Timing(100.0, 99.0, 101.0, 12, 4800), comparisons=compared, **given | other)


def expected(outcome: Outcome, **evidence: Any) -> Expectation:
    """A hypothesis that was held against an attempt."""
    return Expectation("memory-bound", "10 % faster", outcome, evidence)


def replied(number: int, reply: int, conversation: str = "1", **other: Any) -> Attempt:
    """An attempt that a reply of a conversation proposed; see `stated`."""
    return graded(number=number, origin=LlmTurn(conversation, reply), **other)


def run_of(*attempts: Attempt, task: str = "a" * 64, gpu: str | None = "NVIDIA H200") -> Trajectory:
    """A run with these attempts."""
    started = RunStarted(RUN, "softmax", task, "", "offline", "", "sm_90", gpu, {}, {}, 0, {})
    return Trajectory(started, tuple(sorted(attempts, key=lambda a: a.number)))


def stated(attempt: Attempt) -> float | None:
    """A reward that a test wrote into an attempt, as its detail."""
    return float(attempt.detail) if attempt.detail else None


def documented() -> Trajectory:
    """The example of docs/rewards.md: the conversation of tests/agent/stories/softmax.jsonl, with times made up. A
    floor of 45 µs; baselines of 120, 68 and 62 µs; attempts 3, 4 and 5 take 100, 60 and 50 µs."""

    def right(number: int, reply: int, us: float, **other: Any) -> Attempt:
        compared = tuple(
            Comparison(name, base, base / us, 0.99 * base / us, 1.01 * base / us)
            for name, base in (("compile-max", 62.0), ("compile", 68.0), ("eager", 120.0))
        )
        timing = Timing(us, 0.99 * us, 1.01 * us, 12, 4800)
        return replied(number, reply, timing=timing, comparisons=compared, coverage=1.0, sol_fraction=45 / us, **other)

    foretold = expected("confirmed", predicted_speedup=3.0, measured_speedup=100 / 60)
    return run_of(
        replied(1, 1, status=Status.COMPILE_FAILED, tool="update", detail="AttributeError(\"no 'expo'\")"),
        replied(2, 2, status=Status.WRONG, detail="case ragged: 2183 of 257000 elements wrong; 2159 of them are NaN"),
        right(3, 4, 100.0),
        right(4, 6, 60.0, expectations=(foretold,)),
        right(5, 6, 50.0),
    )
