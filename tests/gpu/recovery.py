"""Plays the judge in the self-check: how long a trial takes, and how soon a runner is back after a plan that ends one.

An entry for `harness.Supervisor`; the cubins come with the fork. Answers one message with the numbers, as text.
"""

import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from kerneltune.tools.backends.base import Backend, CompiledImage
from kerneltune.tools.backends.cuda.backend import CudaBackend
from kerneltune.tools.backends.cuda.memory import DeviceBuffer
from kerneltune.tools.judge.correctness.problem import describe, expanded
from kerneltune.tools.judge.execution.correctness_run import CorrectnessRun
from kerneltune.tools.judge.execution.runner_link import RunnerLink
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.messages import EndRunner, NeedRunner, Screened
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.task import CORE
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.task.load import TaskFile, find_task
from tests.gpu import harness

SECRET = bytes(32)
BACK_WITHIN_S = 1.0
LEFT_MIB = 64
LARGE_TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2


def get_inputs():
    return [torch.randn(32768, 32768)]


def get_init_inputs():
    return []
"""


class WithoutGuards(CudaBackend):
    """The GPU where the driver cannot map pages with rights."""

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Plain device memory."""
        return DeviceBuffer.plain(nbytes)


class Judge:
    """Trials on runners that the harness brings."""

    def __init__(self, channel: Any, images: dict[str, harness.Image]) -> None:
        self.channel = channel
        need, end = (lambda why: self._tell(NeedRunner(why))), (lambda why: self._tell(EndRunner(why)))
        self.link = RunnerLink(channel.sockets[0], need, end)
        self.images = {sha: CompiledImage(metadata, cubin) for sha, (metadata, cubin) in images.items()}

    def _tell(self, message: NeedRunner | EndRunner) -> None:
        self.channel.send(encode(message))

    def trial(
        self,
        file: TaskFile,
        plans: Sequence[Plan],
        repeats: int,
        batteries: Sequence[str] = CORE,
        backend: Backend | None = None,
    ) -> tuple[float, Verdict | None, CorrectnessRun]:
        """Seconds, the verdict, and the trial."""
        spec = describe_once(file)
        started_s = time.perf_counter()
        trial = CorrectnessRun(backend or CudaBackend(), self.link, file, spec, SECRET, self.images, repeats=repeats)
        verdict = trial.run(plans, batteries)
        trial.close()
        return time.perf_counter() - started_s, verdict, trial


_described: dict[str, Any] = {}


def describe_once(file: TaskFile) -> Any:
    """The task's spec; described once, since that takes seconds."""
    if file.sha256 not in _described:
        _described[file.sha256] = describe(file)
    return _described[file.sha256]


def softmax_plans(kernels: dict[str, Kernel], file: TaskFile) -> list[Plan]:
    """One plan for every float32 case of the built-in task."""
    shapes = {c.name: c.inputs[0]["$tensor"]["shape"] for c in describe_once(file).cases}
    return [harness.row_plan(n, rows, columns, kernels[n]) for n, (rows, columns) in shapes.items() if n in kernels]


def trials(judge: Judge, kernels: dict[str, Kernel]) -> list[str]:
    """Times of whole trials of the built-in softmax."""
    file = expanded(find_task("softmax"))
    plans = softmax_plans(kernels, file)
    lines = []
    for name, repeats, batteries in (
        ("cold, 3 batteries x 3 runs", 3, CORE),
        ("3 batteries x 3 runs", 3, CORE),
        ("screening, 3 batteries x 1 run", 1, CORE),
        ("screening, 1 battery x 2 runs", 2, CORE[:1]),
    ):
        taken_s, verdict, trial = judge.trial(file, plans, repeats, batteries)
        assert verdict is None, verdict
        lines.append(f"{len(plans)} cases, {name}: {taken_s:.3f} s")
    facts = trial.facts()
    assert not facts["not_deterministic"], facts
    lines += [f"seeds {len(trial.seeds)}; {facts['cases'][plans[0].case]}"]
    return lines


def recoveries(judge: Judge, good: list[Plan], bad: dict[str, list[Plan]], path: str) -> list[str]:
    """After each plan that ends its runner: seconds until another plan has been checked, and memory that is gone."""
    file, lines = find_task(path), []
    judge.trial(file, good, 1)
    usual_s, _, _ = judge.trial(file, good, 1, CORE[:1])
    free = torch.cuda.mem_get_info()[0]
    for name, plans in bad.items():
        time.sleep(0.5)  # the spare warms up, as it does beside a real bench
        taken_s, verdict, _ = judge.trial(file, plans, 1)
        assert verdict is not None
        assert verdict.status in (Status.CRASHED, Status.TIMED_OUT, Status.WRONG), verdict
        back_s, after, _ = judge.trial(file, good, 1, CORE[:1])
        assert after is None, after
        lost = (free - torch.cuda.mem_get_info()[0]) >> 20  # below zero while the next spare is not up yet
        assert lost < LEFT_MIB, f"{lost} MiB did not come back after {name}"
        lines.append(
            f"{name}: {verdict.status.value} after {taken_s:.2f} s; next trial {back_s - usual_s:.3f} s longer "
            f"than {usual_s:.3f} s; memory is back"
        )
        assert back_s - usual_s < BACK_WITHIN_S, lines[-1]
    return lines


def plain(judge: Judge, plans: dict[str, list[Plan]], path: str) -> list[str]:
    """The same trials where pages have neither guards nor rights: canaries and copies find what they can."""
    file, lines = find_task(path), []
    for name, statuses in (
        ("softmax_rows", [None]),
        ("scribbling_softmax", [Status.WRONG]),
        ("writes_before_the_start", [Status.WRONG]),
        ("writes_past_the_end", [Status.WRONG, Status.CRASHED]),  # what lies beyond may be unmapped, or somebody's
        ("memoising_softmax", [Status.WRONG]),
        ("far_out_of_bounds", [Status.CRASHED]),
    ):
        taken_s, verdict, trial = judge.trial(file, plans[name], 3, backend=WithoutGuards())
        assert (verdict.status if verdict else None) in statuses, f"{name}: {verdict}"
        lines.append(f"{name}: {taken_s:.3f} s, {verdict.detail[:120] if verdict else trial.facts()['cases']['odd']}")
    return lines


def large(judge: Judge, kernel: Kernel) -> list[str]:
    """An input of 4 GiB."""
    file = find_task(str(harness.task_file(LARGE_TASK)))
    plan = harness.row_plan("main", 32768, 32768, kernel)
    torch.cuda.reset_peak_memory_stats()
    taken_s, verdict, _ = judge.trial(file, [plan], 2, CORE[:1])
    assert verdict is None, verdict
    return [f"4 GiB in, 4 GiB out: {taken_s:.2f} s, torch's peak {torch.cuda.max_memory_allocated() >> 20} MiB"]


def answer(channel: Any, work: Any) -> None:
    """Do the work and send its lines, or what it raised."""
    torch.zeros(1, device="cuda")
    channel.receive()
    try:
        lines = work()
        channel.send(encode(Screened((), tuple(lines))))
    except Exception as error:  # noqa: BLE001 - told to the parent, whose report goes on
        traceback.print_exc()
        channel.send(encode(Screened((0.0,), (f"{type(error).__name__}: {error}",))))
