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

from tools import wire
from tools.codec import Json, encode
from tools.cuda.driver import DriverError
from tools.device import Sampler
from tools.errors import OutOfMemory, TaskError
from tools.judge.building import keep_compiled
from tools.judge.gpu_facts import describe_gpu
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
    Resolve,
    Resolved,
    Screen,
    Screened,
    Warm,
)
from tools.judge.heat import Refuted
from tools.judge.race import Race
from tools.judge.reference import expanded
from tools.judge.room import free_cached
from tools.judge.runner_link import RunnerFailed, RunnerLink
from tools.judge.screening import Gate
from tools.judge.tiers import Judge
from tools.judge.timing import SCREENING, Rules
from tools.judge.track import Plans, Track
from tools.judge.trial import Compiled, Images
from tools.judge.verdicts import Verdicts, name_of
from tools.spec import TaskSpec
from tools.task import TaskFile, find_task
from tools.verdict import Status, Verdict


class Session:
    """One task on one GPU."""

    def __init__(self, channel: Any, door: socket.socket) -> None:
        self._channel = channel
        self._link = RunnerLink(door, lambda why: self._tell(NeedRunner(why)), lambda why: self._tell(EndRunner(why)))
        self._secret = secrets.token_bytes(32)
        self._file: TaskFile | None = None
        self._task: TaskSpec | None = None
        self._plans = Plans(())
        self._made: Track | None = None
        self._gate: Gate | None = None
        self._gpu: dict[str, Json] = {}
        self._sampler = Sampler()
        self._verdicts = Verdicts()

    def _tell(self, message: JudgeMessage) -> None:
        self._channel.send(encode(message))

    def handlers(self) -> dict[type[Any], Callable[[Any, list[bytes]], JudgeMessage]]:
        """What the supervisor may ask."""
        return {
            OpenTask: lambda request, _: self._open(request),
            Warm: lambda *_: self._warm(),
            Screen: self._screen,
            Resolve: self._resolve,
            Bench: lambda request, blobs: Judged(self._bench(request, blobs)),
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
        self._plans = Plans(request.baselines, request.baseline_limit_s, request.ceilings, name, notes)
        return Ready(self._gpu)

    def _opened(self) -> tuple[TaskFile, TaskSpec]:
        if self._file is None or self._task is None:
            raise TaskError("open a task first")
        return self._file, self._task

    def _track(self) -> Track:
        file, task = self._opened()
        if self._made is None:
            self._made = Track(file, task, self._plans, secrets.randbits(62), self._forget_answers)
        return self._made

    def _judge(self, images: Images) -> Judge:
        file, task = self._opened()
        if self._gate is None:
            self._gate = Gate(self._link, file, task, self._secret, self._forget_answers)
        return Judge(
            file=file,
            task=task,
            track=self._track(),
            gate=self._gate,
            link=self._link,
            images=images,
            secret=self._secret,
            sampler=self._sampler,
            gpu=self._gpu,
            make_room=self._forget_answers,
        )

    def _warm(self) -> Baselines:
        try:
            track = self._track()
        except TaskError as error:
            return Baselines(problem=str(error))
        except (torch.OutOfMemoryError, DriverError) as error:
            return Baselines(problem=f"the timed case does not fit this GPU's memory beside its baselines: {error}")
        return Baselines(
            dict(track.times_us),
            track.resolution,
            track.copy_gbps,
            tuple(track.notes),
            build_s=dict(track.build_s),
            null_launch_us=track.null_launch_us,
        )

    def _race(self, images: Images, rules: Rules) -> Race:
        return Race(self._track(), self._link, images, rules, self._secret, self._sampler)

    def _screen(self, request: Screen, blobs: Sequence[bytes]) -> Screened:
        images = images_of(request.images, blobs)
        times: list[float | None] = []
        details: list[str] = []
        for plan in request.plans:
            short = False
            try:
                times.append(self._race(images, SCREENING).screen(plan))
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
        race = self._race(images_of(request.images, blobs), request.rules)
        try:
            ratios = race.against_itself(request.plan, request.pairs, request.pair_s)
        except (RunnerFailed, Refuted) as failure:
            return Resolved(problem=str(failure))
        return Resolved(ratios, race.pass_us / self._track().slots, self._track().slots)

    def _bench(self, request: Bench, blobs: Sequence[bytes]) -> Verdict:
        name = name_of(request, blobs)
        known = self._verdicts.find(name) if request.reuse else None
        if known is not None:
            return known
        in_full = self._verdicts.find_in_full(request, blobs)
        verdict = self._bench_in_memory(request, images_of(request.images, blobs), in_full)
        self._verdicts.keep(name, verdict, request.tier)
        return verdict

    def _bench_in_memory(self, request: Bench, images: Images, known: Verdict | None) -> Verdict:
        """What is only kept to save time goes first when the memory is short."""
        first = ""
        for _ in range(2):
            try:
                return self._judged(request, images, known)
            except (torch.OutOfMemoryError, DriverError, OutOfMemory) as error:
                first = _first_line(error)
            self._make_room()
        return Verdict(Status.UNCHECKED, f"compiled; inputs, outputs and answers do not fit the GPU's memory: {first}")

    def _make_room(self) -> None:
        """Not while the error is at hand: the frames that it came through hold what there should be room for."""
        self._link.distrust("the judge is out of memory")
        if self._gate is not None:
            self._gate.renew()
        self._forget_answers()
        if self._made is not None and not self._made.placed:
            self._made = None
            free_cached()

    def _forget_answers(self) -> None:
        """What is only kept to save time: a part that needs memory has it first."""
        if self._gate is not None:
            self._gate.close()
        if self._made is not None:
            self._made.answers.forget()
        free_cached()

    def _judged(self, request: Bench, images: Images, known: Verdict | None) -> Verdict:
        task = self._opened()[1]
        main = next((p for p in request.plans if p.case == task.main.name), None)
        if main is None or not main.launches:
            return Verdict(Status.REJECTED, "no kernel of the candidate's own is launched in the main case")
        verdict = self._judge(images).of(request, main, known)
        return replace(verdict, variant=main.variant)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def images_of(images: Sequence[KernelImage], blobs: Sequence[bytes]) -> dict[str, Compiled]:
    """Kernels by hash, with their cubins."""
    return {i.sha256: Compiled(i.metadata, bytes(b)) for i, b in zip(images, blobs, strict=True)}


def main(channel: Any) -> None:
    """Answer until the supervisor closes the socket."""
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    session = Session(channel, channel.sockets[0])
    wire.serve(channel, session.handlers())


def main_early(channel: Any) -> None:
    """The same for a judge that waits for its task: what torch.compile needs is imported meanwhile. Here, after the
    fork, before which nothing may touch CUDA."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.compile_threads = 1  # as for baselines; some versions start a pool of processes when the next is imported
    importlib.import_module("torch._inductor.compile_fx")
    main(channel)
