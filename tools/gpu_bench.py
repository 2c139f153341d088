"""Bench on a GPU, the supervisor's part: it owns the processes, the judge owns the verdict.

The judge asks for runners; each is a fresh confined process whose line leads straight to the judge, so that the judge's
own clock runs around every request. What the supervisor sees are verdicts.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kerneltune.tools.backends.cuda.calibration import Ceilings
from kerneltune.tools.judge.execution.runner_link import Runners
from kerneltune.tools.judge.service.protocol import (
    Baselines,
    BenchReply,
    BenchRequest,
    EndRunner,
    JudgeMessage,
    KernelImage,
    NeedRunner,
    OpenTask,
    Ready,
    Resolve,
    Resolved,
    Screened,
    ScreenVariants,
    Warm,
)
from kerneltune.tools.judge.timing.statistics import BASELINE_LIMIT_S, BASELINES, SCREENING, Rules
from kerneltune.tools.sandbox.machine import Machine
from kerneltune.tools.sandbox.workers import Worker
from kerneltune.tools.schema.codec import Json, decode, encode
from kerneltune.tools.schema.errors import GpuLost, TaskError, WorkerError
from kerneltune.tools.schema.plan import Plan, plan_hash
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Tier, Verdict
from kerneltune.tools.task.load import TaskFile
from kerneltune.tools.update import Update

JUDGE = "kerneltune.tools.judge.service.session:main"
EARLY_JUDGE = "kerneltune.tools.judge.service.session:main_early"  # imports what torch.compile needs while it waits
OPEN_TIMEOUT_S = 180.0
WARM_TIMEOUT_S = 900.0  # torch.compile of the baselines
BENCH_TIMEOUT_S = 600.0
CALIBRATE_TIMEOUT_S = 180.0
Answer = TypeVar("Answer", Ready, Baselines, Screened, BenchReply, Resolved)


class GpuBench:
    """Judges and times candidates of one task. Use `gpu_bench` to make one."""

    def __init__(self, machine: Machine, judge: Worker, door: socket.socket) -> None:
        self._judge = judge
        self._runners = Runners(door, machine.runner, Worker.close)
        self._choices: dict[str, str] = {}  # the fastest variant of an autotuned candidate

    def open(
        self,
        task_file: TaskFile,
        task: TaskSpec,
        *,
        baselines: tuple[str, ...] = BASELINES,
        ceilings: Ceilings | None = None,
        cache_dir: Path | None = None,
        baseline_limit_s: float = BASELINE_LIMIT_S,
    ) -> dict[str, Json]:
        """Load the task; returns the GPU as the judge found it. Raises TaskError."""
        kept = str(cache_dir) if cache_dir else ""
        request = OpenTask(str(task_file.path), task, baselines, ceilings, kept, baseline_limit_s)
        ready = self._ask(request, Ready, timeout_s=OPEN_TIMEOUT_S)
        if ready.problem:
            raise TaskError(ready.problem)
        return ready.gpu

    def warm(self) -> Baselines:
        """Build and time the baselines. Raises TaskError when that cannot be done."""
        baselines = self._ask(Warm(), Baselines, timeout_s=WARM_TIMEOUT_S)
        if baselines.problem:
            raise TaskError(baselines.problem)
        return baselines

    def bench(
        self, update: Update, tier: Tier = "judged", *, reuse: bool = True, all_baselines: bool = False
    ) -> Verdict:
        """The verdict on the fastest variant of a candidate that compiled, as thoroughly as `tier` asks. The same
        plans and cubins get the same verdict again without being run (receipt["reused"]), but without `reuse`. A
        confirmation is always timed anew, but what was judged in full is not checked again before it. A screening
        times against the fastest baseline alone, or `all_baselines`, as the other tiers always do."""
        variant = self._fastest(update)
        plans = tuple(_of_variant(plans, variant) for plans in update.plans.values())
        images, cubins = _images(update, plans)
        rules = SCREENING if tier == "screened" else Rules()
        request = BenchRequest(plans, images, rules, tier=tier, reuse=reuse, all_baselines=all_baselines)
        return self._ask(request, BenchReply, cubins, timeout_s=BENCH_TIMEOUT_S).verdict

    def resolution(self, update: Update, pairs: int = 30, pair_s: float = 0.3) -> Resolved:
        """Time a candidate against itself, to see what differences can be told apart."""
        plan = update.plans[update.main_case][0]
        images, cubins = _images(update, [plan])
        return self._ask(Resolve(plan, images, pairs, pair_s), Resolved, cubins, timeout_s=BENCH_TIMEOUT_S)

    def _fastest(self, update: Update) -> str:
        """The label of the variant that screens fastest; the default when there is no choice."""
        plans = update.plans[update.main_case]
        if len(plans) == 1:
            return plans[0].variant
        name = "/".join(map(plan_hash, plans))
        if name not in self._choices:
            images, cubins = _images(update, plans)
            screened = self._ask(ScreenVariants(plans, images), Screened, cubins, timeout_s=BENCH_TIMEOUT_S)
            times = [(t, plan.variant) for t, plan in zip(screened.times_us, plans, strict=True) if t is not None]
            self._choices[name] = min(times)[1] if times else plans[0].variant
        return self._choices[name]

    def _ask(self, request: Any, wanted: type[Answer], blobs: Sequence[bytes] = (), *, timeout_s: float) -> Answer:
        """Send a request and serve the judge's wishes for runners until it answers."""
        try:
            self._judge.send(encode(request), list(blobs))
            while True:
                body = self._judge.receive(timeout_s=timeout_s).body
                answer: Any = decode(JudgeMessage, body)  # type: ignore[arg-type]
                if isinstance(answer, NeedRunner):
                    self._runners.need()
                elif isinstance(answer, EndRunner):
                    self._runners.end()
                elif isinstance(answer, wanted):
                    return answer
                else:
                    raise GpuLost(f"the judge answered {body.get('kind')!r} to {request.kind!r}")
        except WorkerError as error:
            tail = error.log.strip().splitlines()[-3:]
            raise GpuLost(f"the judge's process ended: {error} {' | '.join(tail)}") from error

    def kill(self) -> None:
        """End the judge at once: who waits for it, in another thread, is told GpuLost."""
        self._judge.kill()

    def close(self) -> None:
        """End the runners."""
        self._runners.close()


def _of_variant(plans: Sequence[Plan], variant: str) -> Plan:
    """A case's plan of that variant; its default where the autotuner offered other configs for this shape."""
    return next((p for p in plans if p.variant == variant), plans[0])


def _images(update: Update, plans: Sequence[Plan]) -> tuple[tuple[KernelImage, ...], list[bytes]]:
    kernels = dict.fromkeys(k.sha256 for plan in plans for k in plan.kernels)
    artefacts = [(name, update.artefacts[name]) for name in kernels]
    images = tuple(KernelImage(name, artefact.compiled.metadata) for name, artefact in artefacts)
    return images, [artefact.cubin for _, artefact in artefacts]


@contextlib.contextmanager
def gpu_bench(
    task_file: TaskFile,
    task: TaskSpec,
    machine: Machine,
    *,
    baselines: tuple[str, ...] = BASELINES,
    ceilings: Ceilings | None = None,
    cache_dir: Path | None = None,
) -> Iterator[GpuBench]:
    """Start the judge on the GPU and load the task; end judge and runner on the way out. `ceilings` are what
    `calibrate` measured on this GPU; torch.compile keeps its work in `cache_dir`, for the next session."""
    with waiting_judge(machine) as bench:
        bench.open(task_file, task, baselines=baselines, ceilings=ceilings, cache_dir=cache_dir)
        bench.warm()
        yield bench


@contextlib.contextmanager
def waiting_judge(machine: Machine, target: str = JUDGE) -> Iterator[GpuBench]:
    """Start the judge, which touches the GPU when a task is opened; end judge and runner on the way out. One that is
    started long before that is an EARLY_JUDGE."""
    ours, theirs = socket.socketpair()
    with ours, theirs, machine.trusted(target, extra=[theirs]) as judge:
        bench = GpuBench(machine, judge, ours)
        try:
            yield bench
        finally:
            bench.close()


def calibrate(machine: Machine) -> Ceilings:
    """Measure this GPU's ceilings in a worker; takes some ten seconds. Raises GpuLost when it cannot be done."""
    try:
        with machine.trusted("kerneltune.tools.judge.timing.ceilings:main") as worker:
            body = worker.call({"kind": "calibrate"}, timeout_s=CALIBRATE_TIMEOUT_S).body
    except WorkerError as error:
        raise GpuLost(f"the GPU could not be calibrated: {error}") from error
    if body.get("problem"):
        raise GpuLost(f"the GPU could not be calibrated: {body['problem']}")
    return decode(Ceilings, body)
