"""The judge's GPU session: owns seeds, answers, baselines and the clock for one task; drives disposable runners.

Entry `main(channel)`; its first extra socket is the door through which runners come (see `runner_link`).
"""

import importlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kerneltune.tools.backends.cuda.device import Sampler
from kerneltune.tools.backends.cuda.driver import DriverError
from kerneltune.tools.judge.correctness.problem import expanded
from kerneltune.tools.judge.correctness.reference_model import free_cached
from kerneltune.tools.judge.execution.correctness_run import CompiledImage, Images
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink
from kerneltune.tools.judge.service.quick_check import QuickCheck
from kerneltune.tools.judge.service.tiers import CandidateJudge, VerdictCache, name_of
from kerneltune.tools.judge.timing.baselines import keep_compiled
from kerneltune.tools.judge.timing.benchmark_setup import BaselineSettings, BenchmarkSetup
from kerneltune.tools.judge.timing.build_verdict import Refuted
from kerneltune.tools.judge.timing.ceilings import describe_gpu
from kerneltune.tools.judge.timing.timing_run import TimingRun
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import OutOfMemory, TaskError
from kerneltune.tools.schema.messages import (
    SCREENING,
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
    Rules,
    Screened,
    ScreenVariants,
    Warm,
)
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Cause, Status, Verdict
from kerneltune.tools.task.load import TaskFile, find_task


class JudgeSession:
    """Judges candidates of one task on one GPU; keeps its setup, secret and verdicts."""

    def __init__(self, channel: Any, door: socket.socket) -> None:
        self._channel = channel
        self._link = RunnerLink(door, lambda why: self._tell(NeedRunner(why)), lambda why: self._tell(EndRunner(why)))
        self._secret = secrets.token_bytes(32)
        self._file: TaskFile | None = None
        self._task: TaskSpec | None = None
        self._plans = BaselineSettings(())
        self._made: BenchmarkSetup | None = None
        self._quick_check: QuickCheck | None = None
        self._gpu: dict[str, Json] = {}
        self._sampler = Sampler()
        self._verdicts = VerdictCache()

    def _tell(self, message: JudgeMessage) -> None:
        self._channel.send(encode(message))

    def handlers(self) -> dict[type[Any], Callable[[Any, list[bytes]], JudgeMessage]]:
        """What the supervisor may ask."""
        return {
            OpenTask: lambda request, _: self._open(request),
            Warm: lambda *_: self._warm(),
            ScreenVariants: self._screen,
            Resolve: self._resolve,
            BenchRequest: lambda request, blobs: BenchReply(self._bench(request, blobs)),
        }

    def _open(self, request: OpenTask) -> Ready:
        self._gpu = describe_gpu()
        self._sampler = Sampler(self._gpu.get("uuid"))
        try:
            self._file = expanded(find_task(request.path))
        except TaskError as error:
            return Ready(self._gpu, str(error))
        self._task = request.task
        note = keep_compiled(Path(request.cache_dir)) if request.cache_dir else ""
        name = str(self._gpu.get("name"))
        notes = [note] if note else []
        self._plans = BaselineSettings(request.baselines, request.baseline_limit_s, request.ceilings, name, notes)
        return Ready(self._gpu)

    def _opened(self) -> tuple[TaskFile, TaskSpec]:
        if self._file is None or self._task is None:
            raise TaskError("open a task first")
        return self._file, self._task

    def _setup(self) -> BenchmarkSetup:
        file, task = self._opened()
        if self._made is None:
            self._made = BenchmarkSetup(file, task, self._plans, secrets.randbits(62), self._forget_answers)
        return self._made

    def _judge(self, images: Images) -> CandidateJudge:
        file, task = self._opened()
        if self._quick_check is None:
            self._quick_check = QuickCheck(self._link, file, task, self._secret, self._forget_answers)
        return CandidateJudge(
            file=file,
            task=task,
            setup=self._setup(),
            quick_check=self._quick_check,
            link=self._link,
            images=images,
            secret=self._secret,
            sampler=self._sampler,
            gpu=self._gpu,
            make_room=self._forget_answers,
        )

    def _warm(self) -> Baselines:
        try:
            setup = self._setup()
        except TaskError as error:
            return Baselines(problem=str(error))
        except (torch.OutOfMemoryError, DriverError) as error:
            return Baselines(problem=f"the timed case does not fit this GPU's memory beside its baselines: {error}")
        return Baselines(
            dict(setup.times_us),
            setup.resolution,
            setup.copy_gbps,
            tuple(setup.notes),
            build_s=dict(setup.build_s),
            null_launch_us=setup.null_launch_us,
        )

    def _timing_run(self, images: Images, rules: Rules) -> TimingRun:
        return TimingRun(self._setup(), self._link, images, rules, self._secret, self._sampler)

    def _screen(self, request: ScreenVariants, blobs: Sequence[bytes]) -> Screened:
        images = images_of(request.images, blobs)
        times: list[float | None] = []
        details: list[str] = []
        for plan in request.plans:
            short = False
            try:
                times.append(self._timing_run(images, SCREENING).screen(plan))
                details.append("")
            except RunnerFailed as failure:
                times.append(None)
                details.append(f"{failure.status.value}: {failure.detail}")
            except (torch.OutOfMemoryError, DriverError, OutOfMemory) as error:
                short = True
                times.append(None)
                details.append(f"does not fit the GPU's memory: {_first_line(error)}")
            if short:
                self._make_room()
        return Screened(tuple(times), tuple(details))

    def _resolve(self, request: Resolve, blobs: Sequence[bytes]) -> Resolved:
        timing_run = self._timing_run(images_of(request.images, blobs), request.rules)
        try:
            ratios = timing_run.against_itself(request.plan, request.pairs, request.pair_s)
        except (RunnerFailed, Refuted) as failure:
            return Resolved(problem=str(failure))
        return Resolved(ratios, timing_run.pass_us / self._setup().slots, self._setup().slots)

    def _bench(self, request: BenchRequest, blobs: Sequence[bytes]) -> Verdict:
        name = name_of(request, blobs)
        known = self._verdicts.find(name) if request.reuse else None
        if known is not None:
            return known
        in_full = self._verdicts.find_in_full(request, blobs)
        verdict = self._bench_in_memory(request, images_of(request.images, blobs), in_full)
        self._verdicts.keep(name, verdict, request.tier)
        return verdict

    def _bench_in_memory(self, request: BenchRequest, images: Images, known: Verdict | None) -> Verdict:
        """What is only kept to save time goes first when the memory is short."""
        first = ""
        for _ in range(2):
            try:
                return self._judged(request, images, known)
            except (torch.OutOfMemoryError, DriverError, OutOfMemory) as error:
                first = _first_line(error)
            self._make_room()
        detail = f"compiled; inputs, outputs and answers do not fit the GPU's memory: {first}"
        return Verdict(Status.UNCHECKED, detail, cause=Cause.MEMORY)

    def _make_room(self) -> None:
        """Free what can be had again. Not while the error is at hand: the frames that it came through hold what
        there should be room for."""
        self._link.distrust("the judge is out of memory")
        if self._quick_check is not None:
            self._quick_check.renew()
        self._forget_answers()
        if self._made is not None and not self._made.placed:
            self._made = None
            free_cached()

    def _forget_answers(self) -> None:
        """What is only kept to save time: a part that needs memory has it first."""
        if self._quick_check is not None:
            self._quick_check.close()
        if self._made is not None:
            self._made.answers.forget()
        free_cached()

    def _judged(self, request: BenchRequest, images: Images, known: Verdict | None) -> Verdict:
        task = self._opened()[1]
        main = next((p for p in request.plans if p.case == task.main.name), None)
        if main is None or not main.launches:
            return Verdict(
                Status.REJECTED, "no kernel of the candidate's own is launched in the main case", cause=Cause.NO_LAUNCH
            )
        verdict = self._judge(images).of(request, main, known)
        return replace(verdict, variant=main.variant)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def images_of(images: Sequence[KernelImage], blobs: Sequence[bytes]) -> dict[str, CompiledImage]:
    """Kernels by hash, with their cubins."""
    return {i.sha256: CompiledImage(i.metadata, bytes(b)) for i, b in zip(images, blobs, strict=True)}


def main(channel: Any) -> None:
    """Answer until the supervisor closes the socket."""
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    session = JudgeSession(channel, channel.sockets[0])
    wire.serve(channel, session.handlers())


def main_early(channel: Any) -> None:
    """The same for a judge that waits for its task: what torch.compile needs is imported meanwhile. Here, after the
    fork, before which nothing may touch CUDA."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads = 1  # as for baselines; some versions start a pool of processes when the next is imported
    importlib.import_module("torch._inductor.compile_fx")
    main(channel)
