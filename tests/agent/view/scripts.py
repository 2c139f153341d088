"""Two runs as lists of events, as a store would replay them: one without a GPU, one on a GPU. Times are fixed."""

import math
from dataclasses import replace

from kerneltune.agent.attempt import Limits, StopReason
from kerneltune.agent.events import (
    AttemptSkipped,
    Event,
    GpuReading,
    GpuSampled,
    Judged,
    LimitsChanged,
    ModelAsked,
    Note,
    Proposed,
    Reflected,
    RunEnded,
    RunPaused,
    RunStarted,
    Said,
    Stage,
    StageStarted,
    Updated,
    Warned,
)
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Timing, Verdict

START = 1_800_000_000.0
SOURCE = '''"""{what}: one program a row, the row stays in registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out, x, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    values = tl.load(x + row * n_cols + cols, mask=mask, other=-float("inf"))
    shifted = values - tl.max(values, axis=0)
    powers = tl.exp(shifted)
    tl.store(out + row * n_cols + cols, powers / tl.sum(powers, axis=0), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](out, x, x.shape[1], BLOCK=8192, num_warps={warps})
        return out
'''
TRIED = (
    ("what TorchInductor writes", None, Status.CHECKED),
    ("three passes over the row", None, Status.CHECKED),
    ("single-pass rows, 8 warps", 1, Status.CHECKED),
    ("single-pass rows, exp2 with a folded scale and a rationale that is far too long to fit", 3, Status.WRONG),
    ("\x1b[2J\x1b]0;owned\x07rows kept as bfloat16", 3, Status.REJECTED),
    ("two rows a program", 3, Status.COMPILE_FAILED),
)
DETAILS = {
    Status.CHECKED: "right on 3 small cases, 6 input sets; worst error 0.12 of the tolerance; not timed: no GPU",
    Status.CORRECT: "right on 5 cases, 20 input sets; worst error 0.12 of the tolerance",
    Status.WRONG: "case rows_1024 (zero_mean inputs): 17 of 1048576 elements beyond the tolerance",
    Status.REJECTED: "forward reads a tensor's value (.item()); compute it in a kernel instead",
    Status.COMPILE_FAILED: "line 14: tl.sum over axis 2 of a tensor with 2 axes",
}
GPU_READING = GpuReading(41, 1980, 2619, 612.3, 54, 9_771_050_598, 0x4, 150_323_855_360)
CASES = (
    CaseResult("rows_1024", "own", True, 0.08, 1e-8),
    CaseResult("rows_1024", "zero_mean", True, 0.12, 2e-8),
    CaseResult("one_row", "own", True, 0.02, 1e-9),
)


def kernel(number: int) -> KernelReport:
    """What the compiler said of attempt `number`."""
    return KernelReport(
        "softmax_kernel", 32 + 8 * (number % 24), 8 * (number % 2), 0, 0, 1056, 8, 3, 0.75, "c" * 64, 0.31
    )


def started(gpu: str | None) -> RunStarted:
    """The first event of both runs."""
    versions = {"torch": "2.13.0", "triton": "3.7.1", "kerneltune": "0.1.0"}
    machine = {"driver": "580.95", "cpu": "AMD EPYC 9654", "sandbox": {"landlock": 7}}
    limits = {"max_attempts": 24, "max_time_s": 600.0, "patience": 8}
    return RunStarted("r-7f3a", "softmax", "a" * 64, "class Model: …", "offline", "no API key is set", "sm_90", gpu,
                      machine, limits, 0, versions, at=START)  # fmt: skip


def verdict(number: int, status: Status) -> Verdict:
    """The judgement of attempt `number`; between 110 and 200 µs when it is timed."""
    if status is not Status.CORRECT:
        return Verdict(status, DETAILS[status], cases=CASES if status is Status.CHECKED else ())
    us = 200.0 - 30.0 * (number % 4)
    return Verdict(
        status,
        DETAILS[status],
        cases=CASES,
        timing=Timing(us, us * 0.998, us * 1.003, 120, 4800),
        comparisons=tuple(
            Comparison(name, baseline, baseline / us, baseline / us * 0.998, baseline / us * 1.002)
            for name, baseline in (("eager", 280.2), ("torch.compile", 158.4), ("torch.compile max-autotune", 140.1))
        ),
        coverage=1.0,
        sol_fraction=92.5 / us,
    )


def attempt(number: int, what: str, parent: int | None, status: Status) -> list[Event]:
    """Proposed, updated, judged."""
    run_id, attempt_id, at = "r-7f3a", f"r-7f3a/{number}", START + 10.0 * number
    parent_id = f"r-7f3a/{parent}" if parent else None
    code = SOURCE.format(what="softmax", warps=4 * number)
    broken = status in (Status.REJECTED, Status.COMPILE_FAILED)
    judged = verdict(number, status)
    return [
        Proposed(run_id, attempt_id, number, parent_id, code, what, at=at),
        StageStarted(run_id, attempt_id, Stage.TRACING, at=at),
        Updated(
            run_id,
            attempt_id,
            None,
            None,
            () if broken else (kernel(number),),
            (),
            1,
            0.1,
            0.3,
            failure=judged if broken else None,
            at=at + 1,
        ),
        StageStarted(run_id, attempt_id, Stage.CHECKING, at=at + 1),
        Judged(
            run_id,
            attempt_id,
            judged,
            2.5,
            best=number in (1, 3) and judged.accepted,
            rank_key=(1e9 / number,) if judged.accepted else (),
            at=at + 4,
        ),
    ]


def _events(gpu: str | None) -> list[Event]:
    events: list[Event] = [started(gpu), Note("r-7f3a", "starting", "workers", at=START + 1)]
    events.append(Warned("r-7f3a", "no user namespaces: the tracer runs under Landlock and seccomp only", at=START + 2))
    for number, (what, parent, status) in enumerate(TRIED, 1):
        timed = Status.CORRECT if gpu and status is Status.CHECKED else status
        events += attempt(number, what, parent, timed)
    held = "one pass moves a third fewer bytes"
    events.append(Reflected("r-7f3a", "r-7f3a/3", held, "faster than #1", {}, "confirmed", at=START + 66))
    if gpu:
        events.append(GpuSampled("r-7f3a", GPU_READING, at=START + 67))
    thought = "The row fits in registers.\nNext: eight rows a program, so that loads of one hide the exp of another."
    events.append(Said("r-7f3a", "assistant", thought, at=START + 68))
    code = SOURCE.format(what="eight rows", warps=28)
    events.append(Proposed("r-7f3a", "r-7f3a/7", 7, "r-7f3a/3", code, "eight rows a program", at=START + 70))
    events.append(StageStarted("r-7f3a", "r-7f3a/7", Stage.TRACING, at=START + 70))
    events.append(Said("r-7f3a", "assistant", "Or split the row over", final=False, at=START + 71))
    return events


CPU_RUN: list[Event] = _events(None)
GPU_RUN: list[Event] = _events("NVIDIA H200")
NOW = START + 72.0
ENDED = RunEnded("r-7f3a", StopReason.ATTEMPTS, 6, 3, "r-7f3a/3", "runs/r-7f3a/best.py", 72.0, at=NOW)


STEERED: list[Event] = [
    ModelAsked("r-7f3a", "1", at=START + 60),
    AttemptSkipped("r-7f3a", "r-7f3a/7", at=START + 71),
    LimitsChanged("r-7f3a", Limits(30, 750.0, 8), at=START + 71),
    RunPaused("r-7f3a", paused=True, at=START + 71.5),
]


def many_attempts(n: int) -> list[Event]:
    """A GPU run with `n` finished attempts; the first that takes 110 µs stays the best."""
    events: list[Event] = [started("NVIDIA H200")]
    best_us = math.inf
    for number in range(1, n + 1):
        what, parent, status = TRIED[number % len(TRIED)]
        for event in attempt(number, what, parent, status if status is not Status.CHECKED else Status.CORRECT):
            us = event.verdict.timing.median_us if isinstance(event, Judged) and event.verdict.timing else math.inf
            events.append(replace(event, best=us < best_us) if isinstance(event, Judged) else event)
            best_us = min(best_us, us)
    return events
