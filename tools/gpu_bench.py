"""Bench on a GPU, the supervisor's part: it owns the processes, the judge owns the verdict.

The judge asks for runners; each is a fresh confined process whose line leads straight to the judge, so that the judge's
own clock runs around every request. What the supervisor sees are verdicts.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tools.codec import Json, decode, encode
from tools.errors import GpuLost, TaskError, WorkerError
from tools.judge.gpu_protocol import (
    Baselines,
    Bench,
    EndRunner,
    Judged,
    JudgeMessage,
    KernelImage,
    NeedRunner,
    OpenTask,
    Ready,
    Screen,
    Screened,
    Warm,
)
from tools.judge.runner_link import pass_runner
from tools.machine import Machine
from tools.plan.schema import Plan
from tools.spec import TaskSpec
from tools.task import TaskFile
from tools.update import Update
from tools.verdict import Tier, Verdict
from tools.workers import Worker

OPEN_TIMEOUT_S = 180.0
WARM_TIMEOUT_S = 900.0  # torch.compile of the baseline
BENCH_TIMEOUT_S = 600.0
Answer = TypeVar("Answer", Ready, Baselines, Screened, Judged)


class GpuBench:
    """Judges and times candidates of one task. Use `gpu_bench` to make one."""

    def __init__(self, machine: Machine, judge: Worker, door: socket.socket) -> None:
        self._machine, self._judge, self._door = machine, judge, door
        self._runner: Worker | None = None

    def open(self, task_file: TaskFile, task: TaskSpec) -> dict[str, Json]:
        """Load the task; returns the GPU as the judge found it. Raises TaskError."""
        ready = self._ask(OpenTask(str(task_file.path), task), Ready, timeout_s=OPEN_TIMEOUT_S)
        if ready.problem:
            raise TaskError(ready.problem)
        return ready.gpu

    def warm(self) -> Baselines:
        """Build and time the baselines. Raises TaskError when that cannot be done."""
        baselines = self._ask(Warm(), Baselines, timeout_s=WARM_TIMEOUT_S)
        if baselines.problem:
            raise TaskError(baselines.problem)
        return baselines

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """The verdict on the fastest variant of a candidate that compiled."""
        variant, failure = self._fastest(update)
        if failure:
            return failure
        plans = tuple(_of_variant(plans, variant) for plans in update.plans.values())
        images, cubins = _images(update, plans)
        return self._ask(Bench(plans, images), Judged, cubins, timeout_s=BENCH_TIMEOUT_S).verdict

    def _fastest(self, update: Update) -> tuple[str, Verdict | None]:
        """The label of the variant that screens fastest; the default when there is no choice."""
        plans = update.plans[update.main_case]
        if len(plans) == 1:
            return plans[0].variant, None
        images, cubins = _images(update, plans)
        screened = self._ask(Screen(plans, images), Screened, cubins, timeout_s=BENCH_TIMEOUT_S)
        times = [(t, plan.variant) for t, plan in zip(screened.times_us, plans, strict=True) if t is not None]
        return (min(times)[1], None) if times else (plans[0].variant, None)

    def _ask(self, request: Any, wanted: type[Answer], blobs: Sequence[bytes] = (), *, timeout_s: float) -> Answer:
        """Send a request and serve the judge's wishes for runners until it answers."""
        try:
            self._judge.send(encode(request), list(blobs))
            while True:
                body = self._judge.receive(timeout_s=timeout_s).body
                answer: Any = decode(JudgeMessage, body)  # type: ignore[arg-type]
                if isinstance(answer, NeedRunner):
                    self._new_runner()
                elif isinstance(answer, EndRunner):
                    self._end_runner()
                elif isinstance(answer, wanted):
                    return answer
                else:
                    raise GpuLost(f"the judge answered {body.get('kind')!r} to {request.kind!r}")
        except WorkerError as error:
            tail = error.log.strip().splitlines()[-3:]
            raise GpuLost(f"the judge's process ended: {error} {' | '.join(tail)}") from error

    def _new_runner(self) -> None:
        self._end_runner()
        judge_end, runner_end = socket.socketpair()
        with judge_end, runner_end:
            self._runner = self._machine.runner(runner_end)
            pass_runner(self._door, judge_end)

    def _end_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = None

    def close(self) -> None:
        """End the runner."""
        self._end_runner()


def _of_variant(plans: Sequence[Plan], variant: str) -> Plan:
    """A case's plan of that variant; its default where the autotuner offered other configs for this shape."""
    return next((p for p in plans if p.variant == variant), plans[0])


def _images(update: Update, plans: Sequence[Plan]) -> tuple[tuple[KernelImage, ...], list[bytes]]:
    kernels = dict.fromkeys(k.sha256 for plan in plans for k in plan.kernels)
    artefacts = [(name, update.artefacts[name]) for name in kernels]
    images = tuple(KernelImage(name, artefact.compiled.metadata) for name, artefact in artefacts)
    return images, [artefact.cubin for _, artefact in artefacts]


@contextlib.contextmanager
def gpu_bench(task_file: TaskFile, task: TaskSpec, machine: Machine) -> Iterator[GpuBench]:
    """Start the judge on the GPU and load the task; end judge and runner on the way out."""
    ours, theirs = socket.socketpair()
    with ours, theirs, machine.trusted("tools.judge.session:main", extra=[theirs]) as judge:
        bench = GpuBench(machine, judge, ours)
        try:
            bench.open(task_file, task)
            bench.warm()
            yield bench
        finally:
            bench.close()
