"""The judges of a Ray cluster: a suite's runs side by side, each on a judge of its own.

    with closing(Fleet.start("auto", settings, print)) as fleet:
        with fleet.session(shop, 0, task_file) as opened:
            ...                                     as with a session of this machine, but that benches elsewhere

A judge is an actor for each GPU (`num_gpus=1`; where a cluster has none, for each unit of the resource
`kerneltune_judge`): the supervisor of that machine, with its jails and its judge, as a command there would have them.
Ray starts it, carries bytes, and says when it is gone; no candidate runs in a process of Ray's. What travels are task
files, sources, plans and verdicts as JSON and machine code as bytes, which the receiver parses under a limit: Ray
itself would pickle. A judge's machine traces and compiles, too, which takes two cores; the driver alone writes the
record.

A judge that dies is lost for good, and what it had is judged by another one; a plan that two of them were lost over is
`crashed`. Ray waits for ever for what no node has, so every wait here has an end that names what is missing.
"""

import contextlib
import hashlib
import json
import os
import platform
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeVar

from kerneltune.agent.commands.service import MOST_OPEN, OpenTasks
from kerneltune.agent.commands.session import (
    Patience,
    Session,
    Workshop,
    memory_is_short,
    open_task,
    session,
    updater_for,
    workshop,
)
from kerneltune.agent.settings import Settings, chosen_settings
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.bench import BENCH_TIMEOUT_S, CPU_JUDGE, OPEN_TIMEOUT_S, WARM_TIMEOUT_S, calibrate
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode, one_line, parsed
from kerneltune.tools.schema.errors import GpuLost, JudgeKilled, KerneltuneError, TaskError, Unfit, WorkerError
from kerneltune.tools.schema.gpus import DEFAULT_ARCH
from kerneltune.tools.schema.messages import Compiled
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import Cause, Status, Tier, Verdict, evaluator_sha256, versions
from kerneltune.tools.task.load import TaskFile, read_task
from kerneltune.tools.update import Artefact, Update, Updater

GPU, CPU = "GPU", "kerneltune_judge"  # Ray's resources, of which a judge takes one
CONNECT_S, JOIN_S = 5.0, 30.0  # until a cluster answers, and has what a judge takes
START_S = 180.0  # imports, and 10 s of calibration
ANSWER_S = OPEN_TIMEOUT_S + WARM_TIMEOUT_S + 2 * BENCH_TIMEOUT_S + 60.0  # the judge's own limits, all of them used up
FRESH_S = 60.0  # for one that takes the place of a lost one, whose machine is there
CLOSE_S = 5.0  # in which a judge ends its workers
MOST_LOST = 2  # judges over one plan
AT_ONCE = 8  # calls of one judge: a bench, and updates as wide as a run is
SLOWEST = 0.98  # of the median copy bandwidth of its model, with which a GPU is still admitted
MOST_BYTES = 1 << 30  # of a message
_HEAD = struct.Struct("<Q")
_SAME = ("torch", "triton")  # whose versions decide what is compiled, and what a baseline is
T = TypeVar("T")


# What travels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgeSetup:
    """What a judge is told of the settings; all others are those of its machine."""

    arch: str
    allow_unsandboxed: bool
    counters: bool
    gpu_memory_gib: float | None


@dataclass(frozen=True)
class JudgeFacts:
    """What a judge says of itself. `gpu` by NVML, not by a label; `copy_gbps`: what it was measured to reach just now;
    `width`: candidates that its machine traces and compiles side by side; `problem`: why it cannot judge."""

    host: str = ""
    process: int = 0
    gpu: GpuInfo | None = None
    copy_gbps: float | None = None
    evaluator: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    width: int = 1
    problem: str = ""

    @property
    def name(self) -> str:
        """Which one it is, for a person."""
        what = f"{self.gpu.name} {self.gpu.uuid[:12]}" if self.gpu else f"process {self.process}"
        return one_line(f"{what} on {self.host}", 200)


@dataclass(frozen=True)
class TaskText:
    """A task file. What lies beside it does not travel."""

    name: str
    source: str


@dataclass(frozen=True)
class SentUpdate:
    """What came of a source. `compiled`: by Kernel.sha256; their machine code follows in that order."""

    plans: dict[str, tuple[Plan, ...]]
    compiled: dict[str, Compiled]
    failure: Verdict | None
    trace_s: float
    compile_s: float
    dropped_variants: tuple[str, ...]
    main_case: str
    effective_bytes: float | None

    @classmethod
    def of(cls, update: Update) -> tuple[Self, list[bytes]]:
        """An update, and its machine code."""
        compiled = {name: artefact.compiled for name, artefact in update.artefacts.items()}
        its = {one.name: getattr(update, one.name) for one in fields(cls) if one.name not in ("plans", "compiled")}
        made = cls(plans=dict(update.plans), compiled=compiled, **its)
        return made, [artefact.cubin for artefact in update.artefacts.values()]

    def received(self, cubins: Sequence[bytes]) -> Update:
        """The update. Raises DecodeError where there is more or less code than kernels."""
        if len(cubins) != len(self.compiled):
            raise DecodeError(f"it has code of {len(cubins)} of {len(self.compiled)} kernels")
        artefacts = {
            name: Artefact(compiled, code) for (name, compiled), code in zip(self.compiled.items(), cubins, strict=True)
        }
        its = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("plans", "compiled")}
        return Update(plans=self.plans, artefacts=artefacts, **its)


@dataclass(frozen=True)
class UpdateOrder:
    """A source to be traced and compiled."""

    task: TaskText
    source: str


@dataclass(frozen=True)
class BenchOrder:
    """A candidate to be judged. Its machine code follows."""

    task: TaskText
    update: SentUpdate
    tier: Tier


@dataclass(frozen=True)
class JudgeAnswer:
    """A verdict, an update (its machine code follows), or why there is none: what is wrong with the task, that the
    judge is of no use any more, or an error of ours."""

    verdict: Verdict | None = None
    update: SentUpdate | None = None
    task_problem: str = ""
    lost: str = ""
    error: str = ""


def packed(value: Any, blobs: Sequence[bytes] = ()) -> bytes:
    """A message: the length of its JSON, that, and the blobs."""
    header = json.dumps([encode(value), [len(blob) for blob in blobs]], allow_nan=False).encode()
    return b"".join([_HEAD.pack(len(header)), header, *blobs])


def unpacked(cls: type[T], data: object) -> tuple[T, list[bytes]]:
    """What `packed` made. Raises DecodeError for anything else, and for more than MOST_BYTES."""
    if not (isinstance(data, bytes) and _HEAD.size <= len(data) <= MOST_BYTES):
        raise DecodeError("not a valid message")
    at = _HEAD.size + _HEAD.unpack_from(data)[0]
    try:
        body, sizes = parsed(data[_HEAD.size : at].decode())
        if not all(type(size) is int and size >= 0 for size in sizes) or at + sum(sizes) != len(data):
            raise DecodeError("its blobs are not as long as it says")
    except (ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"not a valid message: {error}") from error
    blobs = []
    for size in sizes:
        blobs.append(data[at : at + size])
        at += size
    return decode(cls, body), blobs


def bench_order(task: TaskFile, update: Update, tier: Tier) -> bytes:
    """A candidate that compiled, as a message."""
    its, cubins = SentUpdate.of(update)
    return packed(BenchOrder(TaskText(task.path.name, task.source), its, tier), cubins)


# In the judge's process -----------------------------------------------------------------------------------------------


class JudgeActor:
    """A machine's supervisor, in a process that Ray starts. It takes and returns bytes, and raises nothing: an
    exception would be pickled. `facts` comes first, then several calls at a time."""

    def __init__(self, setup: bytes) -> None:
        self._setup, self._held, self._writing = setup, contextlib.ExitStack(), threading.Lock()

    def facts(self) -> bytes:
        """Start the workers, measure the GPU, and say what this is."""
        try:
            return packed(self._begun())
        except Exception as error:  # noqa: BLE001 - the driver says it
            return packed(JudgeFacts(platform.node(), os.getpid(), problem=_told(error)))

    def _begun(self) -> JudgeFacts:
        given = unpacked(JudgeSetup, self._setup)[0]
        settings = chosen_settings({name: value for name, value in encode(given).items() if value})
        self._folder = Path(self._held.enter_context(ScratchFolder()))
        shop = self._held.enter_context(workshop(settings, lambda _: None))
        self._host = platform.node()
        self._tasks = OpenTasks(partial(session, shop), MOST_OPEN, lambda: memory_is_short(shop.gpu))
        self._held.callback(self._tasks.close)
        copy_gbps = calibrate(shop.machine).copy_gbps if shop.gpu else None
        self._gpu = shop.gpu
        return JudgeFacts(self._host, os.getpid(), shop.gpu, copy_gbps, evaluator_sha256(), versions(), shop.width)

    def open(self, task: bytes) -> bytes:
        """Open a task, which takes 17 s on a GPU, before the first candidate comes."""

        def opened() -> bytes:
            self._opened(unpacked(TaskText, task)[0], lambda _: None)
            return packed(JudgeAnswer())

        return self._answered(opened)

    def update(self, order: bytes) -> bytes:
        """Trace and compile a candidate; others meanwhile, too."""

        def made() -> bytes:
            given = unpacked(UpdateOrder, order)[0]
            update = self._opened(given.task, lambda at: at.tools.ordered(at.tools.updater.update(given.source)))
            its, cubins = SentUpdate.of(update)
            return packed(JudgeAnswer(update=its), cubins)

        return self._answered(made)

    def bench(self, order: bytes) -> bytes:
        """Judge a candidate, when those before it have been."""

        def judged() -> bytes:
            given, cubins = unpacked(BenchOrder, order)
            update = given.update.received(cubins)

            def bench(opened: Session) -> Verdict:
                with opened.tools.judging:
                    return opened.tools.benches.bench(update, given.tier)

            verdict = self._opened(given.task, bench)
            judge: Json = {"host": self._host, "gpu": encode(self._gpu)}
            return packed(JudgeAnswer(replace(verdict, receipt={**verdict.receipt, "judge": judge})))

        return self._answered(judged)

    def close(self) -> None:
        """End the workers, and remove their folders."""
        self._held.close()

    def _opened(self, task: TaskText, use: Callable[[Session], T]) -> T:
        folder = self._folder / hashlib.sha256(f"{task.name}\0{task.source}".encode()).hexdigest()[:32]
        path = folder / Path(task.name).name
        with self._writing:
            if not path.exists():
                folder.mkdir()
                path.write_bytes(task.source.encode())
        with self._tasks.use(read_task(path)) as opened:
            return use(opened)

    def _answered(self, work: Callable[[], bytes]) -> bytes:
        try:
            return work()
        except (GpuLost, JudgeKilled, Unfit, WorkerError, OSError) as error:  # elsewhere it may go well
            return packed(JudgeAnswer(lost=_told(error)))
        except TaskError as error:
            return packed(JudgeAnswer(task_problem=_told(error)))
        except Exception as error:  # noqa: BLE001 - the driver raises it
            return packed(JudgeAnswer(error=f"{type(error).__name__}: {_told(error)}"))


def _told(error: BaseException) -> str:
    return one_line(str(error) or type(error).__name__, 1000)


# Which judges are taken -----------------------------------------------------------------------------------------------


def left_out(facts: Sequence[JudgeFacts], wants_gpu: bool, model: str = "") -> dict[int, str]:
    """Why some of these judges are not used, by place. Those that are used have GPUs of one `model`, else the one of
    most of them, since times of different ones do not compare; each GPU once; and none that copies slower than its
    like."""
    here, why = JudgeFacts(evaluator=evaluator_sha256(), versions=versions()), dict[int, str]()
    for at, its in enumerate(facts):
        if problem := its.problem or _other_software(here, its) or _lacking(its, facts[:at], wants_gpu):
            why[at] = problem
    for keep in (partial(_of_other_models, most=model), _slow):
        why |= keep({at: its for at, its in enumerate(facts) if at not in why})
    return why


def _other_software(here: JudgeFacts, its: JudgeFacts) -> str:
    """What of the software there is not as here, as far as verdicts depend on it."""
    if its.evaluator != here.evaluator:
        return "its kerneltune is not the same as the one here"
    other = [name for name in _SAME if its.versions.get(name) != here.versions.get(name)]
    return ", ".join(f"its {name} is {its.versions.get(name)}, here {here.versions.get(name)}" for name in other)


def _lacking(its: JudgeFacts, earlier: Sequence[JudgeFacts], wants_gpu: bool) -> str:
    if not wants_gpu:
        return ""
    if its.gpu is None or its.copy_gbps is None:
        return "Ray counts a GPU there, but NVML shows none"
    taken = [other.gpu.uuid for other in earlier if other.gpu]
    return f"another judge has its GPU {its.gpu.uuid}, which Ray counts twice" if its.gpu.uuid in taken else ""


def _of_other_models(judges: Mapping[int, JudgeFacts], most: str) -> dict[int, str]:
    models = {at: its.gpu.name if its.gpu else "" for at, its in judges.items()}
    most = most or max(models.values(), key=lambda name: sum(other == name for other in models.values()), default="")
    return {
        at: f"times of a {name} do not compare with those of a {most}" for at, name in models.items() if name != most
    }


def _slow(judges: Mapping[int, JudgeFacts]) -> dict[int, str]:
    rates = {at: its.copy_gbps for at, its in judges.items() if its.copy_gbps is not None}
    middle = median(rates.values()) if rates else 0.0
    return {
        at: f"it copies {rate:,.0f} GB/s, {1 - rate / middle:.1%} below the median of its model ({middle:,.0f} GB/s)"
        for at, rate in rates.items()
        if rate < SLOWEST * middle
    }


# The driver -----------------------------------------------------------------------------------------------------------


class JudgeLost(KerneltuneError):
    """A judge is gone, or of no use any more."""


@dataclass(eq=False)
class FleetJudge:
    """One judge, as the driver knows it. `users`: the slots that have it; `heard_s`: when it last answered one, on the
    monotonic clock."""

    actor: Any
    facts: JudgeFacts
    users: set[int] = field(default_factory=set)
    heard_s: float = 0.0


class Fleet:
    """The judges of a cluster, one for each of `width` slots. Any thread may use it; a slot is one thread's. Where a
    judge was lost, its slot shares another one until a fresh one can be had. Close it in the end."""

    def __init__(self, ray: Any, resource: str, setup: JudgeSetup, tell: Callable[[str], None]) -> None:
        self._ray, self._resource, self._setup, self._tell = ray, resource, setup, tell
        self._changing, self._starting = threading.RLock(), threading.Lock()
        self.judges: list[FleetJudge] = []  # that are not lost
        self._model = ""  # of GPU that all have that were ever taken; "" while there were none, and without GPUs
        self.width = 0

    @classmethod
    def start(
        cls, address: str, settings: Settings, tell: Callable[[str], None] = lambda _: None, join_s: float = JOIN_S
    ) -> Self:
        """Join a cluster ("auto": the one of this machine, or of RAY_ADDRESS) and start its judges. `tell` hears which
        are used, left out and lost. Raises Unfit when Ray, the cluster or any judge cannot be had."""
        ray = _joined(address)
        if ray._raylet.get_authentication_mode() != ray._raylet.AuthenticationMode.TOKEN:
            tell("warning: the Ray cluster asks for no token: whoever reaches its ports runs programs on its machines")
        setup = JudgeSetup(settings.arch, settings.allow_unsandboxed, settings.counters, settings.gpu_memory_gib)
        try:
            resource, count = _places(ray, join_s)
            fleet = cls(ray, resource, setup, tell)
            fleet.judges = fleet._begun(count, START_S)
        except BaseException:
            ray.shutdown()
            raise
        fleet.width = len(fleet.judges)
        for slot, judge in enumerate(fleet.judges):
            judge.users.add(slot)
            tell(f"judge {slot + 1}: {judge.facts.name}")
        return fleet

    @property
    def gpu(self) -> GpuInfo | None:
        """A GPU of the model that all judges have."""
        return self.judges[0].facts.gpu

    def workshop(self, shop: Workshop) -> Workshop:
        """The workers of this machine, for judges elsewhere."""
        arch = self._setup.arch or (f"sm_{self.gpu.arch}" if self.gpu else DEFAULT_ARCH)
        width = shop.settings.width or min(judge.facts.width for judge in self.judges)
        return replace(shop, gpu=self.gpu, arch=arch, settings=replace(shop.settings, width=width))

    def judge_of(self, slot: int) -> FleetJudge:
        """The judge that a slot has now. Raises GpuLost once none is left."""
        with self._changing:
            for judge in self.judges:
                if slot in judge.users:
                    return judge
            raise GpuLost("no judge is left, and no fresh one could be had")

    def slot_of(self, uuid: Json) -> int | None:
        """A slot whose judge has that GPU."""
        with self._changing:
            fit = [min(its.users) for its in self.judges if its.users and its.facts.gpu and its.facts.gpu.uuid == uuid]
        return fit[0] if fit else None

    @contextlib.contextmanager
    def session(self, shop: Workshop, slot: int, file: TaskFile) -> Iterator[Session]:
        """Open a task: described, traced and compiled here, judged by the slot's judge. Raises TaskError, GpuLost."""
        self._refresh(slot)
        shop = replace(shop, gpu=self.judge_of(slot).facts.gpu)
        machine, patience = shop.machine.apart(), Patience()
        self.judge_of(slot).actor.open.remote(packed(TaskText(file.path.name, file.source)))  # meanwhile
        memory = int((shop.settings.gpu_memory_gib or 0) * (1 << 30)) or (shop.gpu.memory_bytes if shop.gpu else 0)
        with machine.task(CPU_JUDGE, [file.path]) as judge:
            task, notes, _ = open_task(judge, file, gpu_memory_bytes=memory)
        updater = updater_for(shop, task, machine, patience, partial(FleetUpdater, self, slot, file))
        tools = Evaluator(updater, FleetBench(self, slot, file), "timing" if shop.gpu else "checking")
        yield Session(shop, file, task, tools, machine, notes, patience)

    def ask(self, judge: FleetJudge, call: Any, limit_s: float = ANSWER_S) -> tuple[JudgeAnswer, list[bytes]]:
        """What a judge answers to a call, and what follows. Raises JudgeLost when it is gone, does not answer this call
        or another in time, or is of no use; TaskError; and KerneltuneError for a fault of ours there."""
        asked_s = time.monotonic()
        try:
            left_s = limit_s
            while not self._ray.wait([call], timeout=left_s)[0]:
                left_s = max(asked_s, judge.heard_s) + limit_s - time.monotonic()
                if left_s <= 0:
                    raise JudgeLost(f"no answer within {limit_s:g} s")
            judge.heard_s = time.monotonic()
            answer, blobs = unpacked(JudgeAnswer, self._ray.get(call))
        except self._ray.exceptions.RayError as error:
            raise JudgeLost(_first_line(error)) from error
        except DecodeError as error:
            raise JudgeLost(f"its answer cannot be decoded: {error}") from error
        if answer.lost:
            raise JudgeLost(answer.lost)
        if answer.task_problem:
            raise TaskError(answer.task_problem)
        if answer.error:
            raise KerneltuneError(f"judge {judge.facts.name}: {answer.error}")
        return answer, blobs

    def lose(self, lost: FleetJudge, why: str) -> None:
        """End a judge, and give its slots to those that have the fewest, or to a fresh one. Raises GpuLost when none is
        left."""
        with self._changing:
            if lost not in self.judges:  # another slot that had it was faster
                return
            self._tell(f"judge {lost.facts.name} is lost: {why}")
            self._ray.kill(lost.actor)  # one that is not reached may still be at work
            self.judges.remove(lost)
            if not self.judges:
                self.judges += self._fresh(START_S)
            if not self.judges:
                raise GpuLost(f"no judge is left: the last one, {lost.facts.name}, was lost ({why})")
            for slot in lost.users:
                min(self.judges, key=lambda judge: len(judge.users)).users.add(slot)

    def _refresh(self, slot: int) -> None:
        """Give a slot that shares its judge one of its own, if the cluster has one."""
        with self._starting:
            shared = self.judge_of(slot)
            if len(shared.users) == 1 or self._ray.available_resources().get(self._resource, 0) < 1:
                return
            fresh = self._fresh(FRESH_S)
            with self._changing:
                self.judges += fresh
                for judge in fresh:
                    self.judge_of(slot).users.discard(slot)
                    judge.users.add(slot)

    def _fresh(self, start_s: float) -> list[FleetJudge]:
        """One more judge that compares with the others; none where none can be had."""
        try:
            return self._begun(1, start_s)
        except Unfit as error:
            self._tell(str(error))
            return []

    def _begun(self, count: int, start_s: float) -> list[FleetJudge]:
        """Start so many judges, and take those that are of use. Raises Unfit when none is."""
        ray, wanted = self._ray, {"num_gpus": 1} if self._resource == GPU else {"resources": {CPU: 1}}
        remote = ray.remote(JudgeActor).options(
            num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=AT_ONCE, **wanted
        )
        actors = [remote.remote(packed(self._setup)) for _ in range(count)]
        calls = [actor.facts.remote() for actor in actors]
        ready, _ = ray.wait(calls, num_returns=count, timeout=start_s)
        begun = [
            FleetJudge(actor, self._facts_of(call)) for actor, call in zip(actors, calls, strict=True) if call in ready
        ]
        for actor, call in zip(actors, calls, strict=True):
            if call not in ready:
                ray.kill(actor)
        known = [*self.judges, *begun]  # another thread may lose one of them
        why = left_out([judge.facts for judge in known], self._resource == GPU, self._model)
        taken = []
        for at, judge in enumerate(begun, len(known) - len(begun)):
            if at in why:
                self._tell(f"judge {judge.facts.name} is left out: {why[at]}")
                ray.kill(judge.actor)
            else:
                taken.append(judge)
        if late := count - len(ready):
            self._tell(f"{late} of {count} judges did not start within {start_s:g} s")
        if not taken:
            raise Unfit("no judge of the cluster can be used; why is said above")
        self._model = taken[0].facts.gpu.name if taken[0].facts.gpu else ""
        return taken

    def _facts_of(self, call: Any) -> JudgeFacts:
        try:
            return unpacked(JudgeFacts, self._ray.get(call))[0]
        except self._ray.exceptions.RayError as error:
            return JudgeFacts("?", problem=f"it failed at startup: {_first_line(error)}")
        except DecodeError as error:
            return JudgeFacts("?", problem=f"its description of itself cannot be decoded: {error}")

    def close(self) -> None:
        """End the judges, and leave the cluster."""
        if closing := [judge.actor.close.remote() for judge in self.judges]:  # one that is killed leaves its folders
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for judge in self.judges:
            self._ray.kill(judge.actor)
        self._ray.shutdown()


class FleetUpdater(Updater):
    """Traces and compiles one task's candidates on the machine of a slot's judge; here where that is lost on the way.
    All else that an updater does is done here."""

    def __init__(self, fleet: Fleet, slot: int, file: TaskFile, *as_here: Any) -> None:
        super().__init__(*as_here)
        self._fleet, self._slot, self._file = fleet, slot, file

    def update(self, source: str, on_stage: Callable[[str], None] = lambda _: None) -> Update:
        """As Updater's; "compiling" is not told apart."""
        on_stage("tracing")
        judge = self._fleet.judge_of(self._slot)
        order = packed(UpdateOrder(TaskText(self._file.path.name, self._file.source), source))
        try:
            answer, cubins = self._fleet.ask(judge, judge.actor.update.remote(order))
            if answer.update is None:
                raise JudgeLost("its answer to a source is no update")
            return answer.update.received(cubins)
        except (JudgeLost, DecodeError) as error:
            self._fleet.lose(judge, str(error))
        return super().update(source, on_stage)


class FleetBench:
    """Judges one task's candidates on the judge of a slot, and on another one when that is lost."""

    def __init__(self, fleet: Fleet, slot: int, file: TaskFile) -> None:
        self._fleet, self._slot, self._file = fleet, slot, file

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """The verdict on a candidate that compiled; `crashed` for one that MOST_LOST judges were lost over. Raises
        TaskError, and GpuLost when no judge is left."""
        order, lost = bench_order(self._file, update, tier), list[str]()
        while len(lost) < MOST_LOST:
            judge = self._fleet.judge_of(self._slot)
            try:
                verdict = self._fleet.ask(judge, judge.actor.bench.remote(order))[0].verdict
                if verdict is None:
                    raise JudgeLost("its answer to a candidate is no verdict")
            except JudgeLost as error:
                lost.append(judge.facts.name)
                self._fleet.lose(judge, str(error))
                continue
            return replace(verdict, receipt=verdict.receipt | ({"judges_lost": list[Json](lost)} if lost else {}))
        told = f"{MOST_LOST} judges were lost over it, one after the other: {', '.join(lost)}"
        return Verdict(Status.CRASHED, told, cause=Cause.RUNNER_DIED, receipt={"judges_lost": list[Json](lost)})


def _joined(address: str) -> Any:
    """Ray, joined to a cluster. Raises Unfit."""
    try:
        import ray  # of an extra, and half a second
    except ImportError as error:
        raise Unfit(f"--ray needs Ray, which is not installed ({error}): pip install 'kerneltune[ray]'") from error
    try:
        host, _, port = address.rpartition(":")
        if port.isdecimal():  # to find out that nobody listens takes Ray 40 s
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        with contextlib.chdir("/"):  # Ray's workers import from the folder that a driver begins in
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        # else what nodes say of themselves is printed as it is, on the stdout that has our JSON
        ray._private.worker._worker_logs_enabled = False
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise Unfit(
            f"--ray {address}: {_first_line(error)}. Start a cluster with `ray start --head`; docs/fleet.md says how"
        ) from error
    return ray


def _places(ray: Any, join_s: float) -> tuple[str, int]:
    """The resource that judges take here, and how much of it is free. Raises Unfit where there is none, which Ray would
    tell nobody who asks for it."""
    deadline_s = time.monotonic() + join_s
    while True:
        has, free = ray.cluster_resources(), ray.available_resources()
        resource = CPU if has.get(CPU) and not has.get(GPU) else GPU
        if (count := int(free.get(resource, 0))) >= 1:
            return resource, count
        if time.monotonic() >= deadline_s:
            break
        time.sleep(0.2)
    counts = ", ".join(f"{name}: {has.get(name, 0):g} ({free.get(name, 0):g} free)" for name in (GPU, CPU, "CPU"))
    raise Unfit(
        f"no judge can be had: for {join_s:g} s no node had the resource {resource}: 1 free; the cluster has {counts}. "
        f"Start Ray on machines with GPUs, or, to check without, with --resources '{{\"{CPU}\": 1}}'"
    )


def _first_line(error: BaseException) -> str:
    return one_line((str(error).strip() or type(error).__name__).splitlines()[0], 300).rstrip(".")
