"""The judge's GPU session: owns seeds, answers, baselines and the clock for one task; drives disposable runners.

Entry `main(channel)`; its first extra socket is the door through which runners come (see `runner_link`).
"""

import contextlib
import functools
import importlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kerneltune.tools.backends import device_backend, gpu_info
from kerneltune.tools.backends.base import Backend, CompiledImage, DeviceError, GpuLock, SharedBuffer
from kerneltune.tools.judge.correctness.problem import expanded
from kerneltune.tools.judge.correctness.reference_model import free_cached
from kerneltune.tools.judge.execution.correctness_run import Images, images_for
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink
from kerneltune.tools.judge.service.admission import too_large
from kerneltune.tools.judge.service.tiers import CandidateJudge, QuickCheck, VerdictCache, name_of, weighted_us
from kerneltune.tools.judge.timing.baselines import keep_compiled
from kerneltune.tools.judge.timing.benchmark_setup import BaselineSettings, BenchmarkSetup
from kerneltune.tools.judge.timing.build_verdict import Refuted
from kerneltune.tools.judge.timing.counters import CounterReader, CountersUnavailable
from kerneltune.tools.judge.timing.gpu_use import GpuWatch
from kerneltune.tools.judge.timing.timing_run import TimingRun
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import OutOfMemory, TaskError
from kerneltune.tools.schema.gpus import compiled_path
from kerneltune.tools.schema.latest import Latest
from kerneltune.tools.schema.messages import (
    OTHER_BASELINES_S,
    SCREENING,
    Baselines,
    BenchReply,
    BenchRequest,
    EndRunner,
    GpuTaken,
    JudgeMessage,
    KernelImage,
    NeedRunner,
    OpenTask,
    Ready,
    Resolve,
    Resolved,
    Rules,
    Screened,
    ScreenVariants,
    TaskEnded,
    Warm,
)
from kerneltune.tools.schema.plan import Plan, plan_hash
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import COUNTERS, PROBES, Cause, Status, Tier, Verdict, task_failed
from kerneltune.tools.task.load import SMALL, TaskFile, unchanged_task, with_small

_MOST_FOUND = 256
_TELL_AGAIN_S = 30.0  # that the GPU is taken: the supervisor's patience with a silent judge is bounded


class JudgeSession:
    """Judges candidates of one task on one GPU; keeps its setup, secret and verdicts."""

    def __init__(self, backend: Backend, channel: Any, door: socket.socket) -> None:
        self._backend, self._channel = backend, channel
        self._link = RunnerLink(door, lambda why: self._tell(NeedRunner(why)), lambda why: self._tell(EndRunner(why)))
        self._secret = secrets.token_bytes(32)
        self._file: TaskFile | None = None
        self._task: TaskSpec | None = None
        self._plans = BaselineSettings(())
        self._made: list[BenchmarkSetup] = []  # one for each weighted case, the main one first
        self._quick_check: QuickCheck | None = None
        self._gpu: dict[str, Json] = {}
        self._gpu_watch = GpuWatch(backend)
        self._gpu_lock: GpuLock | None = None
        self._told_s = -_TELL_AGAIN_S
        self._first_tier: Tier = "screened"
        self._patience_s = OTHER_BASELINES_S
        self._verdicts = VerdictCache()
        self._held_back: SharedBuffer | None = None  # memory that a setting says is not ours
        self._counts = False  # whether counters are asked for
        self._reader: CounterReader | None = None
        self._found = Latest[str, dict[str, Json]](_MOST_FOUND)  # what counters and probes told of a plan, by its hash

    def _tell(self, message: JudgeMessage) -> None:
        self._channel.send(encode(message))

    def handlers(self) -> dict[type[Any], Callable[[Any, list[bytes]], JudgeMessage]]:
        """What the supervisor may ask."""
        return {
            OpenTask: lambda request, _: self._open(request),
            Warm: self._alone(lambda request, _: self._warm(request)),
            ScreenVariants: self._alone(self._screen),
            Resolve: self._alone(self._resolve),
            BenchRequest: self._alone(lambda request, blobs: BenchReply(self._bench(request, blobs))),
        }

    def _alone(self, handler: Callable[[Any, list[bytes]], JudgeMessage]) -> Callable[[Any, list[bytes]], JudgeMessage]:
        """The same once no other judge of this user is at work on the GPU."""

        @functools.wraps(handler)
        def answer(request: Any, blobs: list[bytes]) -> JudgeMessage:
            with self._turn():
                try:
                    return handler(request, blobs)
                except RuntimeError as error:
                    self._tell_if_cuda_ended(error)
                    raise

        return answer

    def _tell_if_cuda_ended(self, error: RuntimeError) -> None:
        """Say that it was the task's own code after which CUDA works in this process no longer (an assertion on the
        device, say), where the GPU is still there: no candidate's code runs here. The process ends either way."""
        try:
            self._backend.synchronize()
        except RuntimeError:
            if gpu_info() is not None:
                why = error.__context__ if isinstance(error.__context__, TaskError) else error
                self._tell(TaskEnded(f"its own code ended CUDA in the judge's process: {_first_line(why)}"))

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the GPU's lock, where there is one."""
        if self._gpu_lock is None:
            yield
            return
        with self._gpu_lock.held(self._taken):
            self._told_s = 0.0  # once is enough, unless a wait is long
            yield

    def _taken(self, waited_s: float) -> None:
        if waited_s - self._told_s >= _TELL_AGAIN_S:
            self._told_s = waited_s
            self._tell(GpuTaken())

    def afterwards(self, request: Any) -> None:
        """Between two requests: what the first verdict needs beside a baseline, and after it the baselines that it did
        not wait for. What fails here fails again for whoever asks for it."""
        if not self._made or not isinstance(request, Warm | BenchRequest):
            return
        with self._turn(), contextlib.suppress(TaskError, torch.OutOfMemoryError, DeviceError, OutOfMemory):
            if isinstance(request, BenchRequest):
                self._build()
            elif self._first_tier == "screened":
                self._checks().prepare()
            else:
                self._build_for_first_verdict()

    def _build(self) -> None:
        """Build what is pending, for every weighted case."""
        for setup in self._setups():
            setup.build()

    def _build_for_first_verdict(self) -> None:
        """Build what a verdict in full waits for, as long as the first one may wait at all: not for a slow reference to
        be compiled, which for 1,500 steps of a loop takes minutes."""
        for setup in self._setups():
            if setup.problem.slow:
                continue
            began_s = time.monotonic()
            setup.build(self._patience_s)
            self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began_s))

    def _open(self, request: OpenTask) -> Ready:
        self._gpu = self._backend.describe()
        self._gpu_watch = GpuWatch(self._backend, self._gpu.get("uuid"))
        try:
            self._file = _with_small(unchanged_task(request.path, request.task.sha256), request)
        except TaskError as error:
            return Ready(self._gpu, str(error))
        self._task = request.task
        try:
            memory_bytes = self._limited_to(request.memory_bytes)
        except DeviceError as error:
            return Ready(self._gpu, f"gpu-memory-gib: others use the GPU's memory that was to be left alone: {error}")
        if problem := too_large(request.task, memory_bytes):
            return Ready(self._gpu, problem)
        note = keep_compiled(compiled_path(Path(request.cache_dir), self._file.sha256)) if request.cache_dir else ""
        name = str(self._gpu.get("name"))
        notes = [note] if note else []
        self._first_tier, self._counts = request.first_tier, request.counters
        if self._counts:
            self._warm_reader()
        if request.cache_dir and self._gpu.get("uuid"):
            try:
                self._gpu_lock = GpuLock(Path(request.cache_dir) / "locks", str(self._gpu["uuid"]))
            except OSError as error:
                notes.append(f"this GPU is not locked against other runs of this user: {error}")
        self._plans = BaselineSettings(request.baselines, request.baseline_limit_s, request.ceilings, name, notes)
        return Ready(self._gpu)

    def _limited_to(self, memory_bytes: int) -> int:
        """Hold what the GPU has beyond these bytes (0: nothing), so that neither this process nor a runner can use it.
        Returns the bytes that there are for them."""
        if self._held_back is not None:
            self._held_back.close()
            self._held_back = None
        total = self._backend.memory_bytes()[1]
        if not 0 < memory_bytes < total:
            return total
        self._held_back = self._backend.allocate(total - memory_bytes)
        return memory_bytes

    def _opened(self) -> tuple[TaskFile, TaskSpec]:
        if self._file is None or self._task is None:
            raise TaskError("open a task first")
        return self._file, self._task

    def _setups(self) -> list[BenchmarkSetup]:
        """One for each weighted case, the main one first."""
        file, task = self._opened()
        for case in task.weighted[len(self._made) :]:
            use, led, seed = self._gpu_watch.seen(), task.led_by(case), secrets.randbits(62)
            made = BenchmarkSetup(self._backend, file, led, self._plans, seed, self._forget_answers, self._made)
            made.use = use.and_then(self._gpu_watch.seen())
            self._made.append(made)
        return self._made

    def _checks(self) -> QuickCheck:
        file, task = self._opened()
        if self._quick_check is None:
            self._quick_check = QuickCheck(self._backend, self._link, file, task, self._secret, self._forget_answers)
        return self._quick_check

    def _judge(self, images: Images) -> CandidateJudge:
        file, task = self._opened()
        return CandidateJudge(
            file=file,
            task=task,
            setups=self._setups(),
            quick_check=self._checks(),
            link=self._link,
            images=images,
            secret=self._secret,
            gpu_watch=self._gpu_watch,
            gpu=self._gpu,
            make_room=self._forget_answers,
        )

    def _warm(self, request: Warm) -> Baselines:
        try:
            setups = self._setups()
            if request.all:
                self._build()
        except TaskError as error:
            return Baselines(problem=str(error))
        except (torch.OutOfMemoryError, DeviceError) as error:
            self._backend.synchronize()
            return Baselines(problem=f"the timed case does not fit this GPU's memory beside its baselines: {error}")
        return Baselines(
            weighted_us(setups),
            notes=tuple(dict.fromkeys(note for setup in setups for note in setup.context.notes)),
            build_s={name: sum(s.build_s.get(name, 0.0) for s in setups) for name in setups[0].build_s},
            pending=tuple(dict.fromkeys(name for setup in setups for name in setup.pending)),
        )

    def _timing_run(self, plan: Plan, images: Images, rules: Rules) -> TimingRun:
        """A run on the setup of the plan's case."""
        setup = next(setup for setup in self._setups() if setup.task.main.name == plan.case)
        setup.place()
        return TimingRun(setup, self._link, images, rules, self._secret, self._gpu_watch)

    def _screen(self, request: ScreenVariants, blobs: Sequence[bytes]) -> Screened:
        images = images_of(request.images, blobs)
        times: list[float | None] = []
        details: list[str] = []
        for plan in request.plans:
            short = False
            try:
                times.append(self._timing_run(plan, images, SCREENING).screen(plan))
                details.append("")
            except RunnerFailed as failure:
                times.append(None)
                details.append(f"{failure.status.value}: {failure.detail}")
            except (torch.OutOfMemoryError, DeviceError, OutOfMemory) as error:
                short = True
                times.append(None)
                details.append(f"does not fit the GPU's memory: {_first_line(error)}")
            if short:
                self._make_room()
        return Screened(tuple(times), tuple(details))

    def _resolve(self, request: Resolve, blobs: Sequence[bytes]) -> Resolved:
        timing_run = self._timing_run(request.plan, images_of(request.images, blobs), request.rules)
        try:
            ratios = timing_run.against_itself(request.plan, request.pairs, request.pair_s)
        except (RunnerFailed, Refuted) as failure:
            return Resolved(problem=str(failure))
        slots = self._setups()[0].slots
        return Resolved(ratios, timing_run.pass_us / slots, slots)

    def _bench(self, request: BenchRequest, blobs: Sequence[bytes]) -> Verdict:
        name = name_of(request, blobs)
        known = self._verdicts.find(name) if request.reuse else None
        if known is not None:
            return known
        in_full, images = self._verdicts.find_in_full(request, blobs), images_of(request.images, blobs)
        verdict = self._bench_in_memory(request, images, in_full)
        if self._counts and request.tier != "screened" and verdict.status is Status.CORRECT:
            verdict = replace(verdict, receipt={**verdict.receipt, **self._evidence(request, images)})
        self._verdicts.keep(name, verdict, request.tier)
        return verdict

    def _evidence(self, request: BenchRequest, images: Images) -> dict[str, Json]:
        """Why the timed case's plan takes its time, for the receipt: found once, whatever it is judged again for."""
        main = self._opened()[1].main.name
        plan = next(plan for plan in request.plans if plan.case == main)
        name = plan_hash(plan)
        if (known := self._found.get(name)) is not None:
            return known
        found: dict[str, Json] = {COUNTERS: self._counters(plan, images)}
        if "problem" in found[COUNTERS]:
            found[PROBES] = self._probes(plan, images)
        return self._found.keep(name, found)

    def _counters(self, plan: Plan, images: Images) -> dict[str, Json]:
        """What ncu counts, or why it does not: the verdict stands without it. The GPU is still this judge's own; what
        ncu does would disturb another's times."""
        its, started_s = images_for(plan, images), time.monotonic()
        try:
            with self._reader or CounterReader() as reader:
                self._reader = None
                found = reader.read(plan, [i.metadata for i in its], [i.cubin for i in its], self._opened()[0].path)
        except CountersUnavailable as error:
            return {"problem": str(error)}
        self._warm_reader()
        return {"kernels": encode(found), "seconds": round(time.monotonic() - started_s, 3)}

    def _probes(self, plan: Plan, images: Images) -> dict[str, Json]:
        """What the judge can find out of the plan without counters, or why it did not come through."""
        try:
            found: dict[str, Json] = encode(self._timing_run(plan, images, SCREENING).probed(plan))
            return found
        except (RunnerFailed, Refuted, torch.OutOfMemoryError, DeviceError, OutOfMemory) as error:
            return {"problem": _first_line(error)}

    def _warm_reader(self) -> None:
        """A process for the next plan, which imports torch while the judge has other things to do."""
        with contextlib.suppress(CountersUnavailable):  # said where counters are read
            self._reader = CounterReader()

    def _bench_in_memory(self, request: BenchRequest, images: Images, known: Verdict | None) -> Verdict:
        """What is only kept to save time goes first when the memory is short."""
        first = ""
        for _ in range(2):
            try:
                verdict = self._judged(request, images, known)
                if verdict.cause is not Cause.MEMORY:
                    return verdict
                first = verdict.detail  # a runner may lack what the judge keeps to save time
            except (torch.OutOfMemoryError, DeviceError, OutOfMemory) as error:
                first = _first_line(error)
            except TaskError as error:  # of a reference that ran before, on other inputs
                self._link.distrust("the task's own code failed")
                self._backend.synchronize()  # raises where CUDA has ended with it
                return task_failed(_first_line(error))
            self._make_room()
        self._backend.synchronize()  # a GPU that is lost looks as if its memory were short
        detail = f"compiled; inputs, outputs and answers do not fit the GPU's memory: {first}"
        return Verdict(Status.UNCHECKED, detail, cause=Cause.MEMORY)

    def _make_room(self) -> None:
        """Free what can be had again. Not while the error is at hand: the frames that it came through hold what
        there should be room for."""
        self._link.distrust("the judge is out of memory")
        if self._quick_check is not None:
            self._quick_check.renew()
        self._forget_answers()
        if not any(setup.placed for setup in self._made):
            self._made.clear()
        elif len(self._made) > 1:  # then they are placed one at a time
            for setup in self._made:
                setup.vacate()
        free_cached()

    def _forget_answers(self) -> None:
        """What is only kept to save time: a part that needs memory has it first."""
        if self._quick_check is not None:
            self._quick_check.close()
        for setup in self._made:
            setup.answers.forget()
        free_cached()

    def _judged(self, request: BenchRequest, images: Images, known: Verdict | None) -> Verdict:
        task = self._opened()[1]
        main = next((p for p in request.plans if p.case == task.main.name), None)
        if main is None or not main.launches:
            detail = "no kernel of the candidate's own is launched in the main case"
            return Verdict(Status.REJECTED, detail, cause=Cause.NO_LAUNCH)
        if request.tier != "screened" or request.all_baselines:
            if request.tier == "confirmed":
                self._build()
            else:
                self._build_for_first_verdict()
        verdict = self._judge(images).of(request, main, known)
        return replace(verdict, variant=main.variant)


def _with_small(file: TaskFile, request: OpenTask) -> TaskFile:
    """The file with the small case of the task, if it has one of which the file does not know."""
    if file.declared or all(case.name != SMALL for case in request.task.cases):
        return file
    return with_small(file, request.small) if request.small else expanded(file)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def images_of(images: Sequence[KernelImage], blobs: Sequence[bytes]) -> dict[str, CompiledImage]:
    """Kernels by hash, with their cubins."""
    return {i.sha256: CompiledImage(i.metadata, bytes(b)) for i, b in zip(images, blobs, strict=True)}


def main(channel: Any) -> None:
    """Answer until the supervisor closes the socket."""
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    backend = device_backend()  # makes the context, while the task is being described elsewhere
    session = JudgeSession(backend, channel, channel.sockets[0])
    wire.serve(channel, session.handlers(), session.afterwards)


def main_early(channel: Any) -> None:
    """The same for a judge that waits for its task: what torch.compile needs is imported meanwhile. Here, after the
    fork, before which nothing may touch the device."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads = 1  # as for baselines; some versions start a pool of processes when the next is imported
    for name in ("compile_fx", "cudagraph_trees"):
        importlib.import_module(f"torch._inductor.{name}")
    main(channel)
