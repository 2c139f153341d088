"""The judge's GPU session: owns seeds, answers, baselines and the clock for one task; drives disposable runners.

Entry `main(channel)`; its first extra socket is the door through which runners come (see `runner_link`).
"""

import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any

import torch

from tools.codec import Json, decode, encode
from tools.errors import TaskError
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
    SupervisorMessage,
    Warm,
)
from tools.judge.race import Race
from tools.judge.reference import expanded
from tools.judge.runner_link import RunnerFailed, RunnerLink
from tools.judge.timing import SCREENING, Rules
from tools.judge.track import Track
from tools.judge.trial import Compiled, Images, Trial
from tools.runner.driver import DriverError
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
        self._names: tuple[str, ...] = ()
        self._made: Track | None = None
        self._gpu: dict[str, Json] = {}

    def _tell(self, message: JudgeMessage) -> None:
        self._channel.send(encode(message))

    def answer(self, request: SupervisorMessage, blobs: list[bytes]) -> JudgeMessage:
        """Do what the supervisor asks."""
        match request:
            case OpenTask():
                return self._open(request)
            case Warm():
                return self._warm()
            case Screen():
                return self._screen(request, blobs)
            case Bench():
                return Judged(self._bench_in_memory(request, blobs))

    def _open(self, request: OpenTask) -> Ready:
        self._gpu = describe_gpu()
        try:
            self._file = expanded(find_task(request.path))
        except TaskError as error:
            return Ready(self._gpu, str(error))
        self._task, self._names = request.task, request.baselines
        return Ready(self._gpu)

    def _track(self) -> Track:
        file, task = self._opened()
        if self._made is None:
            self._made = Track(file, task, self._names, secrets.randbits(62))
        return self._made

    def _opened(self) -> tuple[TaskFile, TaskSpec]:
        if self._file is None or self._task is None:
            raise TaskError("open a task first")
        return self._file, self._task

    def _warm(self) -> Baselines:
        try:
            track = self._track()
        except TaskError as error:
            return Baselines(problem=str(error))
        except (torch.OutOfMemoryError, DriverError) as error:
            return Baselines(problem=f"the timed case does not fit this GPU's memory beside its baselines: {error}")
        return Baselines(dict(track.times_us), track.resolution, track.copy_gbps, tuple(track.notes))

    def _screen(self, request: Screen, blobs: Sequence[bytes]) -> Screened:
        images = images_of(request.images, blobs)
        times: list[float | None] = []
        details: list[str] = []
        for plan in request.plans:
            try:
                times.append(self._race(images, SCREENING).screen(plan))
                details.append("")
            except RunnerFailed as failure:
                times.append(None)
                details.append(f"{failure.status.value}: {failure.detail}")
        return Screened(tuple(times), tuple(details))

    def _race(self, images: Images, rules: Rules) -> Race:
        return Race(self._track(), self._link, images, rules, self._secret, self._gpu)

    def _bench_in_memory(self, request: Bench, blobs: Sequence[bytes]) -> Verdict:
        try:
            return self._bench(request, blobs)
        except (torch.OutOfMemoryError, DriverError) as error:
            self._link.distrust("the judge is out of memory")
            torch.cuda.empty_cache()
            first = str(error).partition("\n")[0]
            return Verdict(
                Status.UNCHECKED, f"compiled; inputs, outputs and answers do not fit the GPU's memory: {first}"
            )

    def _bench(self, request: Bench, blobs: Sequence[bytes]) -> Verdict:
        file, task = self._opened()
        images = images_of(request.images, blobs)
        main = next((p for p in request.plans if p.case == task.main.name), None)
        if main is None or not main.launches:
            return Verdict(Status.REJECTED, "no kernel of the candidate's own is launched in the main case")
        trial = Trial(self._link, file, task, self._secret, images, repeats=request.repeats)
        failed = trial.run(request.plans, request.batteries)
        if failed is not None:
            return failed
        results = trial.close()
        return self._race(images, request.rules).run(main, results)


def images_of(images: Sequence[KernelImage], blobs: Sequence[bytes]) -> dict[str, Compiled]:
    """Kernels by hash, with their cubins."""
    return {i.sha256: Compiled(i.metadata, bytes(b)) for i, b in zip(images, blobs, strict=True)}


def describe_gpu() -> dict[str, Json]:
    """The GPU as CUDA sees it."""
    torch.zeros(1, device="cuda")  # makes the primary context, and makes it current
    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    return {
        "name": properties.name,
        "uuid": f"GPU-{uuid}" if uuid and not uuid.startswith("GPU-") else uuid or None,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": int(properties.L2_cache_size),
        "memory_bytes": int(properties.total_memory),
        "torch": torch.__version__,
    }


def main(channel: Any) -> None:
    """Answer until the supervisor closes the socket."""
    torch.set_num_threads(min(8, os.cpu_count() or 1))
    session = Session(channel, channel.sockets[0])
    while True:
        message = channel.receive()
        request: SupervisorMessage = decode(SupervisorMessage, message.body)  # type: ignore[arg-type]
        channel.send(encode(session.answer(request, message.blobs)))
