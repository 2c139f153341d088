"""Runs made by hand, as lists of events that are folded as those of a store are."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from kerneltune.agent.attempt import LlmTurn
from kerneltune.agent.events import Event, Judged, Proposed, Replied, RunStarted, Said, Updated, Verified
from kerneltune.agent.export.base import Format, Row
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.schema.verdict import CaseResult, Comparison, Status, Timing, Verdict
from kerneltune.tools.task.load import builtin_tasks, visible_source

AT = 1_800_000_000.0
H200 = "NVIDIA H200"
SOFTMAX = next(task for task in builtin_tasks() if task.name == "softmax")
TASK = visible_source(SOFTMAX)
KERNEL = '''"""{what}"""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out, x, n_cols, BLOCK: tl.constexpr):
    """One row a program."""
    # the row stays in registers
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    values = tl.load(x + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * n_cols + cols, powers / tl.sum(powers, axis=0), mask=cols < n_cols)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](out, x, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
'''


def source(what: str) -> str:
    """A candidate that says what it is."""
    return KERNEL.format(what=what)


def timed(us: float, *, tier: str = "judged", width: float = 0.01, gain: float | None = None) -> Verdict:
    """Right in so many microseconds, with an interval of +- `width`; `gain`: speed-up, else over 200 us."""
    speedup = 200.0 / us if gain is None else gain
    comparisons = (Comparison("eager", 400.0, 2 * speedup, 1.98 * speedup, 2.02 * speedup),
                   Comparison("compile", 200.0, speedup, 0.99 * speedup, 1.01 * speedup))  # fmt: skip
    timing = Timing(us, us * (1 - width), us * (1 + width), 12, 4800)
    return Verdict(Status.CORRECT, "right", (), timing, comparisons, 1.0, 0.5, tier=tier)  # type: ignore[arg-type]


def tried(
    number: int,
    verdict: Verdict | Status,
    parent: int | str | None = None,
    *,
    what: str | None = None,
    run_id: str = "r1",
    rank: Sequence[float] = (),
    turn: int | None = None,
    confirmed: Verdict | None = None,
    held: bool | None = None,
    best: bool = False,
) -> list[Event]:
    """The events of one attempt. `parent`: a number of the same run, or an id; `held`: what was verified later."""
    judged = verdict if isinstance(verdict, Verdict) else Verdict(verdict, f"it is {verdict.value}")
    ids = (run_id, f"{run_id}/{number}")
    parent_id = f"{run_id}/{parent}" if isinstance(parent, int) else parent
    origin = LlmTurn("1", turn) if turn else None
    failure = judged if judged.status in (Status.REJECTED, Status.COMPILE_FAILED) else None
    key = tuple(rank) or ((judged.timing.median_us,) if judged.timing else ())
    events: list[Event] = [
        Proposed(*ids, number, parent_id, source(what or f"number {number}"), f"idea {number}", origin, at=AT + number),
        Updated(*ids, None, None, (), (), 1, 0.1, 0.2, failure, at=AT + number),
        Judged(*ids, judged, 1.0, best, key, at=AT + number),
    ]
    for purpose, found in (("confirm", confirmed), ("verify", judged if held is not None else None)):
        if found is not None:
            later = (found.timing.median_us,) if found.timing else ()
            events.append(Verified(*ids, purpose, found, 1.0, held is not False, "", H200, {}, {}, later))  # type: ignore[arg-type]
    return events


def run(
    *attempts: list[Event],
    run_id: str = "r1",
    gpu: str | None = None,
    arch: str = "sm_90",
    task: str = "softmax",
    task_source: str = TASK,
    path: str = "/home/someone/tools/tasks/softmax.py",
    at: float = AT,
    said: Sequence[Event] = (),
) -> Trajectory:
    """A run of these attempts."""
    sha256 = hashlib.sha256(task_source.encode()).hexdigest()
    started = RunStarted(run_id, task, sha256, task_source, "offline", "no API key is set", arch, gpu,
                         {"task_path": path}, {}, 0, {}, at=at)  # fmt: skip
    return trajectory([started, *said, *(event for its in attempts for event in its)])


def wrong(case: str, inputs: str = "own", detail: str = "17 elements wrong") -> Verdict:
    """Wrong in a case, as the judge says it of one that may be told of."""
    results = (CaseResult("main", "own", True, 0.1, 0.0), CaseResult(case, inputs, False, 7.5, 1.0, detail))
    return Verdict(Status.WRONG, f"case {case} ({inputs} inputs): {detail}", results)


def conversation(replies: Sequence[tuple[int, str]], run_id: str = "r1") -> list[Event]:
    """System, opening, and a reply for each turn with one `update` and its result."""
    events: list[Event] = [Said(run_id, "system", "You write kernels."), Said(run_id, "user", "Go.", conversation="1")]
    for turn, text in replies:
        calls: list[Any] = [{"call_id": f"c{turn}", "name": "update", "arguments": {"source": text, "parent": None}}]
        events.append(Replied(run_id, "1", turn, text, f"thinking {turn}", calls, "tools", "", None, None, "m", 1.0))
        events.append(Said(run_id, "tool", f"#{turn}", raw={"call_id": f"c{turn}"}, conversation="1"))
    return events


def rows(form: Format, *runs: Trajectory) -> list[Row]:
    """What an export of these runs makes, in both passes, without provenance."""
    return [made.values for made in _made(form, runs)]


def ids(form: Format, *runs: Trajectory) -> list[str]:
    """The attempts that the rows are of."""
    return [made.attempt.attempt_id for made in _made(form, runs) if made.attempt]


def _made(form: Format, runs: Sequence[Trajectory]) -> Iterator[Any]:
    if form.surveys:
        for each in runs:
            form.survey(each)
    for each in runs:
        yield from form.rows(each)
