"""Labels of attempts, and the reasons that are read from what the tools say."""

import random
import re

import pytest
import torch

from agent.export.labels import REASONS, compilable, labels, rejected_why
from agent.record.trajectory import AttemptRecord
from tests.agent.export.graded import graded, timed
from tests.agent.record.samples import WORDS
from tools.judge.correctness.comparison import explain, say_bits, say_narrow_sum
from tools.plan import messages
from tools.update import HELD_OUT_FAILS, _static_problem
from tools.verdict import Status


def reason(status: Status, detail: str, tool: str = "bench") -> str:
    why = rejected_why(graded(status, detail=detail, tool=tool))
    assert why.startswith(f"{status.value}/{tool}/")
    return why.rpartition("/")[2]


def test_a_right_attempt_without_a_gpu_is_right_and_untimed() -> None:
    found = labels(graded(Status.CHECKED))
    assert tuple(found) == (True, True, False, None, False, "", None)
    assert found._asdict()["compilable"] is True


def test_faster_is_what_the_whole_interval_is_against_every_baseline() -> None:
    assert labels(timed(3.0, 1.02, half=0.01)).faster is True
    assert labels(timed(3.0, 1.01, half=0.01)).faster is False  # its lower end is 1
    assert labels(timed(3.0, 0.9, half=0.01)).faster is False
    assert labels(timed()).faster is None
    assert labels(graded(Status.WRONG)).faster is None
    assert labels(timed(3.0)).timed


@pytest.mark.parametrize(
    ("attempt", "is_compilable", "is_correct"),
    [
        (graded(None), None, None),
        (graded(Status.UNCHECKED), True, None),
        (graded(Status.WRONG), True, False),
        (graded(Status.IMPOSSIBLE), True, False),
        (graded(Status.REJECTED), True, False),
        (graded(Status.CRASHED), True, False),
        (graded(Status.REJECTED, tool="update"), False, False),
        (graded(Status.COMPILE_FAILED, tool="update"), False, False),
        (graded(Status.TIMED_OUT, tool="update"), False, False),
        (graded(Status.WRONG, tool="update"), None, False),
        (graded(Status.CHECKED, tool="confirm"), True, True),
        (graded(Status.COMPILE_FAILED, tool="confirm"), False, False),
    ],
)
def test_what_nobody_found_out_has_no_label(
    attempt: AttemptRecord, is_compilable: bool | None, is_correct: bool | None
) -> None:
    found = labels(attempt)
    assert (found.compilable, found.correct) == (is_compilable, is_correct)
    assert compilable(attempt) is is_compilable
    assert found.impossible is (attempt.status is Status.IMPOSSIBLE)


def test_verified_is_what_the_latest_verification_found() -> None:
    assert [labels(timed(2.0, held=held)).verified for held in (None, True, False)] == [None, True, False]


NO_REFUSALS = ("MISSING_MODULE", "UNCHECKABLE")
REFUSALS = {
    name: text
    for name, text in vars(messages).items()
    if name.isupper() and isinstance(text, str) and name not in NO_REFUSALS
}


@pytest.mark.parametrize("name", REFUSALS)
def test_every_refusal_of_the_tracer_has_a_reason_of_its_own(name: str) -> None:
    others = {reason(Status.REJECTED, text, "update") for key, text in REFUSALS.items() if key != name}
    found = reason(Status.REJECTED, f"line 3: {REFUSALS[name]}", "update")
    assert found in REASONS - {"other"}
    assert found not in others


def test_what_the_update_tool_says_without_running_anything_has_a_reason() -> None:
    for source in ("", "x" * (2 << 20), "a\0b", "a\ud800b"):
        refused = _static_problem(source)
        assert refused is not None
        assert reason(Status.REJECTED, refused.detail, "update") == "source"
    assert reason(Status.REJECTED, "SyntaxError: invalid syntax: 'def f(:'", "update") == "syntax"
    assert reason(Status.WRONG, HELD_OUT_FAILS, "update") == "held_out"
    assert reason(Status.REJECTED, "ModelNew takes (n); the task makes its Model with ()", "update") == "signature"


RAMP = torch.arange(1.0, 65.0).reshape(8, 8) / 7.0


def told(got: torch.Tensor, before: torch.Tensor | None = None) -> str:
    return f"case rows (own inputs): {explain(RAMP, got, got != RAMP, before=before)}"


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.zeros(8, 8), "constant"),
        (torch.full((8, 8), 2.0), "constant"),
        (torch.full((8, 8), float("nan")), "not_finite"),
        (torch.where(torch.arange(8) < 5, RAMP, -1.0), "mask"),
        (torch.where(torch.arange(8)[:, None] < 5, RAMP, -1.0), "grid"),
        (torch.where(torch.arange(8)[:, None] == 2, -1.0, RAMP), "some_rows"),
        (2.0 * RAMP, "scale"),
        (RAMP + 3.0, "offset"),
        (RAMP.T.contiguous(), "transposed"),
        (RAMP * (1 + 3e-4 * torch.sign(torch.sin(RAMP * 50))), "precision"),
        (RAMP.flip(0, 1), "values"),
    ],
)
def test_what_the_judge_explains_becomes_a_reason(got: torch.Tensor, expected: str) -> None:
    assert reason(Status.WRONG, told(got)) == expected


def test_more_of_what_the_judge_says_becomes_a_reason() -> None:
    before = torch.full((8, 8), 5.0)
    half = torch.where(torch.arange(64).reshape(8, 8) % 3 == 0, before, RAMP)
    assert reason(Status.WRONG, told(half, before=before)) == "unwritten"
    assert reason(Status.WRONG, say_bits(10.2, "float32")) == "precision"
    assert reason(Status.WRONG, say_bits(17.5, "float32")) == "precision"
    sums = torch.tensor([[4096.0, 3.0], [5000.0, 2.0]])
    assert reason(Status.WRONG, say_narrow_sum(sums, sums - 1, sums > 100)) == "precision"


@pytest.mark.parametrize(
    ("status", "detail", "expected"),
    [
        (Status.WRONG, "a held-out case: out of bounds: kernel reads x[5]", "out_of_bounds"),
        (Status.WRONG, "case a: run 2 of 3: it is right in some runs and wrong in others: a race", "race"),
        (Status.CRASHED, "case a: an out-of-bounds access: check masks [illegal memory access]", "out_of_bounds"),
        (Status.CRASHED, "the process that ran the kernels died (eof)", "runner_died"),
        (Status.CRASHED, "host code raised AttributeError: no attribute 'x'", "AttributeError"),
        (Status.CRASHED, "line 4: host code raised MyFunnyError: ha", "own_exception"),
        (Status.CRASHED, "host code raised KeyError", "KeyError"),
        (Status.CRASHED, "case rows: assert failed: device_assert", "assertion"),
        (Status.TIMED_OUT, "importing and tracing the candidate took longer than 60 s", "tracing"),
        (Status.TIMED_OUT, "compiling softmax took longer than 60 s", "compiling"),
        (Status.TIMED_OUT, "a kernel ran longer than 2.0 s", "running"),
        (Status.TIMED_OUT, "case a: step limit: 10000000 steps", "running"),
        (Status.IMPOSSIBLE, "3.00 µs is below the speed of light of 9.00 µs", "speed_of_light"),
        (Status.IMPOSSIBLE, "clocks disagree: 4 %", "clocks"),
        (Status.IMPOSSIBLE, "faster on inputs that it has seen before: 1.00 µs per launch", "memoised"),
        (Status.UNCHECKED, "case a: not checkable without a GPU: inline assembly", "needs_gpu"),
        (Status.UNCHECKED, "right, but this GPU is not fit to time it: 9 of 12 rounds", "throttled"),
        (Status.COMPILE_FAILED, "line 12: at 5:8:\n e = tl.expo(v)\nAttributeError(\"'expo'\")", "AttributeError"),
        (Status.COMPILE_FAILED, "CompilationError: at 3:1\nIncompatibleTypeErrorImpl('invalid')", "CompilationError"),
        (Status.COMPILE_FAILED, "PTXASError: ptxas fatal", "PTXASError"),
        (Status.COMPILE_FAILED, "CompilationError: at 3:1\nexcept ValueError\nTypeError('a cause')", "TypeError"),
        (Status.COMPILE_FAILED, "OutOfResources: out of resource: shared memory", "OutOfResources"),
        (Status.COMPILE_FAILED, "the compiler died of signal 9", "compiler_died"),
        (Status.REJECTED, "its process sent a malformed plan: x", "forged_reply"),
        (Status.REJECTED, "", "other"),
    ],
)  # fmt: skip
def test_the_words_of_the_tools_become_reasons(status: Status, detail: str, expected: str) -> None:
    assert reason(status, detail) == expected


def test_reasons_come_from_a_closed_set_whatever_a_candidate_writes() -> None:
    rng = random.Random(0)
    texts = [*WORDS, *(f"host code raised {w}: {w}" for w in WORDS), "x" * 10_000, "A" * 900 + "Error"]
    for status in Status:
        for text in texts:
            why = rejected_why(graded(status, detail=text, tool=rng.choice(("update", "bench", "confirm"))))
            assert why == "" or why.rpartition("/")[2] in REASONS
    assert all(re.fullmatch(r"\w+", name) for name in REASONS)


def test_right_and_unjudged_attempts_have_no_reason() -> None:
    assert rejected_why(graded(Status.CHECKED, detail="right")) == rejected_why(timed(1.0)) == ""
    assert rejected_why(graded(None)) == ""
