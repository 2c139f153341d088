"""Starts what every command that judges needs: the workers, and per task the tools that this machine allows; the first
and the last event of what it stores as a run."""

import contextlib
import functools
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.commands import begun_workers
from kerneltune.agent.events import Emit, Note, RunEnded, RunStarted, Warned
from kerneltune.agent.record.folder import ReceiptBook, is_plain
from kerneltune.agent.settings import Settings
from kerneltune.agent.tracker import AttemptTracker, Place
from kerneltune.tools.backends import gpu_info, gpu_sampler
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.bench import (
    CPU_JUDGE,
    EARLY_JUDGE,
    JUDGE,
    Bench,
    CpuBench,
    GpuBench,
    ask_judge,
    opening,
    waiting_judge,
)
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.receipt import ReceiptContext
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.confine import available
from kerneltune.tools.sandbox.linux import memory_bytes
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.errors import CaseFailed, TaskError, Unconfined
from kerneltune.tools.schema.gpus import DEFAULT_ARCH, ceilings_path, load_ceilings
from kerneltune.tools.schema.messages import BASELINES, Baselines, Open, Opened
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import PROTOCOL_VERSION, Tier, evaluator_sha256, versions
from kerneltune.tools.task.load import TaskFile, builtin_names, find_task, read_task
from kerneltune.tools.update import UpdateLimits, Updater

DESCRIBE_TIMEOUT_S = 120.0
LOWER_TIMEOUT_S = 120.0
INDUCTOR = "kerneltune.agent.authors.search.inductor:main"
USUAL_WIDTH = 2
MOST_ON_A_GPU = 5  # tracing and compiling take 1.1 s and screening 0.35 s; each more knows one verdict less
CORES_EACH = 2  # a tracer and a compiler, each a process


def width_of(settings: Settings, *, gpu: bool, cores: int | None = None) -> int:
    """Candidates under way at a time. Without a GPU the cores check, too."""
    if settings.width is not None:
        return settings.width
    if not gpu:
        return USUAL_WIDTH
    cores = cores or len(os.sched_getaffinity(0))
    return max(USUAL_WIDTH, min(MOST_ON_A_GPU, cores // CORES_EACH))


def ceilings_file(cache_dir: Path, gpu: GpuInfo) -> Path:
    """Return where the ceilings of that GPU with the driver and torch of now belong."""
    return ceilings_path(cache_dir, gpu.uuid, gpu.driver, versions()["torch"])


class Lowering:
    """TorchInductor in a process of its own (`agent.authors.search.inductor`): kept from request to request, since its
    imports take seconds, and replaced when it failed. Any thread may ask. Close it in the end."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._worker: Worker | None = None
        self._beside: dict[Path, Path] = {}  # by folder a task file in it: there the worker may read
        self._asking = threading.Lock()
        self._answers: dict[str, dict[str, Json]] = {}

    def call(
        self, body: dict[str, Json], timeout_s: float = LOWER_TIMEOUT_S, task: TaskFile | None = None
    ) -> dict[str, Json]:
        """Its answer, the same again to what was asked before; the errors of `Worker.call`. After one of them the next
        request has a fresh worker: a late answer of the old one would be taken for the next request's. So has the first
        one for a `task` in another folder, where its code may read."""
        name = json.dumps(body, sort_keys=True)
        with self._asking:
            if name not in self._answers:
                if task and task.path.parent not in self._beside:
                    self.close()
                    self._beside[task.path.parent] = task.path
                self._answers[name] = self._asked(body, timeout_s)
            return self._answers[name]

    def _asked(self, body: dict[str, Json], timeout_s: float) -> dict[str, Json]:
        self._worker = worker = self._worker or self._machine.task(INDUCTOR, self._beside.values())
        try:
            return worker.call(body, timeout_s=timeout_s).body
        except BaseException:  # Ctrl-C leaves an answer on its way, too
            self.close()
            raise

    def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


@dataclass(frozen=True)
class Workshop:
    """The worker processes of this program run, and what this machine is. `sandbox`: what a tracer is held by;
    `lowering`: TorchInductor, for all tasks."""

    machine: Machine
    gpu: GpuInfo | None
    arch: str
    sandbox: Enforced
    settings: Settings
    lowering: Lowering
    show: Emit

    @property
    def width(self) -> int:
        """Candidates that are under way at a time."""
        return width_of(self.settings, gpu=self.gpu is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever reads a verdict of this machine must know."""
        return tuple(filter(None, [unconfined_warning(self.sandbox)]))

    @cached_property
    def evaluator(self) -> str:
        """The hash of the sources that judge."""
        return evaluator_sha256()

    @cached_property
    def place(self) -> Place:
        """Where this run's verdicts are reached."""
        facts: dict[str, Json] = {"gpu": encode(self.gpu), "sandbox": encode(self.sandbox)}
        return Place(self.gpu.name if self.gpu else None, facts, versions())


@dataclass(frozen=True)
class Session:
    """One task, opened. `notes`: how far verdicts on it can be trusted, where that is a question; `machine`:
    its workers, of which those that have a candidate can be asked for; `patience`: how long a candidate may take."""

    workshop: Workshop
    file: TaskFile
    task: TaskSpec
    tools: Evaluator
    machine: Machine
    notes: tuple[str, ...] = ()
    patience: "Patience" = field(default_factory=lambda: Patience())

    def apart(self, patience: "Patience | None" = None) -> "Session":
        """The same open task for one of several runs: with workers of its own, so that what one gives up is not the
        others', and the judge and what compilers answered, which they share. `patience`: of these workers, where it is
        another one."""
        machine, benches, patience = self.workshop.machine.apart(), self.tools.benches, patience or self.patience
        if isinstance(benches, CpuBench):
            benches = benches.apart(machine.interpreter, patience.replay_s)
        limits = replace(self.tools.updater.limits, trace_s=patience.trace_s, compile_s=patience.compile_s)
        updater = self.tools.updater.apart(machine.tracer, machine.compiler, limits)
        tools = replace(self.tools, updater=updater, benches=benches)
        return replace(self, machine=machine, tools=tools, patience=patience)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever reads a verdict of this machine on this task must know."""
        return (*self.workshop.warnings, *self.notes)

    @property
    def gpu(self) -> GpuInfo | None:
        """The GPU that times, if there is one."""
        return self.workshop.gpu

    def receipts(self, folder: Path | None) -> ReceiptBook:
        """The receipts of a run in this session; written into its folder, if it has one."""
        shop = self.workshop
        setting = ReceiptContext(
            task=self.task,
            arch=shop.arch,
            gpu=encode(shop.gpu),
            versions=shop.place.versions,
            protocol=PROTOCOL_VERSION,
            evaluator_sha256=shop.evaluator,
            warnings=self.warnings,
        )
        return ReceiptBook(folder, setting, shop.machine.enforced)


def unconfined_warning(sandbox: Enforced) -> str | None:
    """The loud words for a machine that does not confine LLM-written code; None where it does."""
    if sandbox.confined:
        return None
    return f"NOT CONFINED: LLM-written code runs with your files and the network within its reach ({_why(sandbox)})"


def require_confinement(sandbox: Enforced, *, allow: bool) -> None:
    """Raise Unconfined where nothing confines candidates, unless that is allowed."""
    if not sandbox.confined and not allow:
        raise Unconfined(
            f"this machine cannot confine LLM-written code ({_why(sandbox)}). "
            "Pass --allow-unsandboxed to run it anyway, with your files within its reach"
        )


def _why(sandbox: Enforced) -> str:
    return "; ".join(sandbox.notes or ("no Landlock",))


@contextlib.contextmanager
def workshop(settings: Settings, show: Emit, begun: workers.Workers | None = None) -> Iterator[Workshop]:
    """Start the workers, or go on with those that were `begun`. Raises Unconfined before that where they cannot be
    confined."""
    sandbox = available()
    require_confinement(sandbox, allow=settings.allow_unsandboxed)
    gpu = gpu_info()
    show(Note("", "starting", "importing torch and triton, once"))
    with contextlib.ExitStack() as held:
        machine = (begun or held.enter_context(begun_workers(settings))).machine()
        lowering = held.enter_context(contextlib.closing(Lowering(machine)))
        arch = settings.arch or (f"sm_{gpu.arch}" if gpu else DEFAULT_ARCH)
        yield Workshop(machine, gpu, arch, sandbox, settings, lowering, show)


@dataclass(frozen=True)
class Patience:
    """How long a candidate may take, and what it is compared with. `first_tier`: that of the first verdict, which when
    it is a screening waits for one baseline alone."""

    trace_s: float = 60.0
    compile_s: float = 120.0
    replay_s: float = 120.0  # of one case, in the interpreter
    baselines: tuple[str, ...] = BASELINES
    first_tier: Tier = "screened"


@contextlib.contextmanager
def session(shop: Workshop, task_file: TaskFile, patience: Patience | None = None) -> Iterator[Session]:
    """Load a task, and pick the bench that this machine allows. Raises TaskError."""
    patience, machine = patience or Patience(), shop.machine.apart()
    with contextlib.ExitStack() as held:
        target = JUDGE if patience.first_tier == "screened" else EARLY_JUDGE  # whose imports take 2 s
        gpu_judge = held.enter_context(_judge(shop, task_file, machine, target)) if shop.gpu else None
        judge = held.enter_context(machine.task(CPU_JUDGE, [task_file.path]))
        task, notes, small = open_task(judge, task_file, gpu_memory_bytes=_gpu_memory_bytes(shop))
        updater = updater_for(shop, task, machine, patience)
        bench: Bench = CpuBench(task, judge, machine.interpreter, case_timeout_s=patience.replay_s)
        if gpu_judge is not None:
            ready = functools.partial(_ready, gpu_judge, shop, task_file, task, patience, small)
            bench = held.enter_context(opening(gpu_judge, ready))
        tools = Evaluator(updater, bench, "timing" if shop.gpu else "checking")
        yield Session(shop, task_file, task, tools, machine, notes, patience)


OpenTask = Callable[[TaskFile], contextlib.AbstractContextManager[Session]]


def opened_alone(settings: Settings, show: Emit, begun: workers.Workers | None = None) -> OpenTask:
    """Opens a task with workers that are `begun`, or that end with it."""

    @contextlib.contextmanager
    def open_task(file: TaskFile) -> Iterator[Session]:
        with workshop(settings, show, begun) as shop, session(shop, file) as opened:
            yield opened

    return open_task


def _judge(
    shop: Workshop, task_file: TaskFile, machine: Machine, target: str
) -> contextlib.AbstractContextManager[GpuBench]:
    """The judge on the GPU, which runs the task's code: confined, unless it shall start ncu, which reads everything."""
    confined_to = None if shop.settings.counters else task_file
    return waiting_judge(machine, target, _teller(shop), task_file=confined_to, cache_dir=shop.settings.cache_dir)


def _teller(shop: Workshop) -> Callable[[str], None]:
    return lambda text: shop.show(Note("", "waiting", text))


def updater_for(
    shop: Workshop, task: TaskSpec, machine: Machine, patience: Patience, make: Callable[..., Updater] = Updater
) -> Updater:
    """Traces and compiles candidates for a task as this machine needs them."""
    limits = UpdateLimits(patience.trace_s, patience.compile_s, max_variants=16 if shop.gpu else 4)
    updater = make(task, shop.arch, machine.tracer, machine.compiler, limits)
    if shop.gpu is None:
        updater.compile_cases = [task.main.name]  # the small cases are interpreted, not compiled
    return updater


def _gpu_memory_bytes(shop: Workshop) -> int:
    """The memory that judging may take: the GPU's, or less where a setting says so; 0 with neither."""
    limits = [int((shop.settings.gpu_memory_gib or 0) * (1 << 30)), shop.gpu.memory_bytes if shop.gpu else 0]
    return min(filter(None, limits), default=0)


def memory_is_short(gpu: GpuInfo | None, least_free: float = 0.5) -> bool:
    """Whether less than this share is free of the memory that the next task needs: the GPU's, or without one the
    machine's. A GPU that does not tell is taken for free."""
    if gpu is None:
        free, total = memory_bytes()
        return free < least_free * total
    with gpu_sampler(gpu.uuid) as sampler:
        now = sampler.sample()
    used_bytes = (now and now.memory_used_bytes) or 0
    return gpu.memory_bytes - used_bytes < least_free * gpu.memory_bytes


def open_task(
    judge: Worker, task_file: TaskFile, timeout_s: float = DESCRIBE_TIMEOUT_S, gpu_memory_bytes: int = 0
) -> tuple[TaskSpec, tuple[str, ...], dict[str, Json]]:
    """The task as data, described by the CPU judge, what that has against it, and its small case. Raises TaskError,
    CaseFailed among them."""
    request = Open(task_file.name, str(task_file.path), task_file.sha256, gpu_memory_bytes)
    opened, _ = ask_judge(judge, task_file.name, request, Opened, timeout_s=timeout_s)
    if opened.task is None:
        problem = opened.problem or f"{task_file.path} cannot be used as a task"
        raise CaseFailed(problem, opened.failed_case) if opened.failed_case else TaskError(problem)
    return opened.task, opened.notes, opened.small


def _ready(
    bench: GpuBench, shop: Workshop, file: TaskFile, task: TaskSpec, patience: Patience, small: dict[str, Json]
) -> Baselines:
    """Open the task on the GPU, as far as a first verdict needs. Raises TaskError and GpuLost."""
    assert shop.gpu is not None
    cache_dir = shop.settings.cache_dir
    ceilings = load_ceilings(ceilings_file(cache_dir, shop.gpu))
    bench.prepare()
    bench.open(
        file,
        task,
        baselines=patience.baselines,
        ceilings=ceilings,
        cache_dir=cache_dir,
        counters=shop.settings.counters,
        memory_bytes=int((shop.settings.gpu_memory_gib or 0) * (1 << 30)),
        first_tier=patience.first_tier,
        small=small,
    )
    return bench.warm(every=False)


def run_started(opened: Session, author: str, why: str, limits: dict[str, Json], seed: int = 0) -> RunStarted:
    """The first event of a run of whatever kind. With 16 random bits some of 256 begun in one second had one id."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    place = opened.workshop.place
    return RunStarted(
        run_id=f"{stamp}-{opened.file.name}-{secrets.token_hex(4)}",
        task=opened.file.name,
        task_sha256=opened.file.sha256,
        task_source=opened.task.source,  # without the held-out cases
        author=author,
        author_why=why,
        arch=opened.workshop.arch,
        gpu=place.gpu,
        machine=place.machine | {"task_path": str(opened.file.path)},
        limits=limits,
        seed=seed,
        versions=place.versions,
    )


def warn(opened: Session, run_id: str, settings: Settings, emit: Emit, *, model: bool) -> None:
    """Say what the user must know of this machine and this task, and which settings do nothing here; `model`: whether
    one is asked."""
    for text in (*opened.warnings, *settings.idle(gpu=opened.gpu is not None, model=model)):
        emit(Warned(run_id, text))


def ended(tracker: AttemptTracker, why: StopReason, elapsed_s: float, best_path: Path | None = None) -> RunEnded:
    """The last event of a run of whatever kind."""
    leader = tracker.best
    return RunEnded(
        tracker.run_id,
        why,
        attempts=len(tracker.attempts),
        accepted=sum(a.accepted for a in tracker.attempts),
        best_attempt_id=leader.attempt_id if leader else None,
        best_path=str(best_path) if best_path else None,
        elapsed_s=elapsed_s,
    )


# The task of a stored run --------------------------------------------------------------------------------------------


def stored_task(
    run: RunStarted,
    given: str | None,
    scratch: Path,
    *,
    merged_from: str | None = None,
    trusted: bool = False,
    of_record: bool = True,
) -> tuple[TaskFile, tuple[str, ...]]:
    """The task of `run`, and what is different about it: of `given` (a name or path) if that is the same, of its old
    place, or, where `of_record` allows it, of the record. A file made from the record lies in `scratch`.

    Of a run that was `merged_from` another database somebody else chose place and source: neither is used, but the
    built-in task is that is the same. Both are used of a `trusted` one. Raises TaskError when none is that task."""
    if given is not None:
        return _same(find_task(given), run), ()
    if trusted:
        merged_from, of_record = None, True
    places = [str(run.machine.get("task_path") or ""), run.task]
    if merged_from is not None:
        places = [run.task] if run.task in builtin_names() else []
    for place in places:
        found = _at(place)
        if found is not None and found.sha256 == run.task_sha256:
            return found, ()
    if merged_from is not None:
        raise TaskError(_foreign(run, merged_from))
    whole = hashlib.sha256(run.task_source.encode()).hexdigest() == run.task_sha256
    if of_record and (whole or _was_builtin(run)):
        return _from_record(run, scratch), () if whole else (_without_held_out(run),)
    raise TaskError(_changed(run))


def _foreign(run: RunStarted, merged_from: str) -> str:
    return (
        f"run {run.run_id} came by a merge of {merged_from}, and the Python of its task, which `optimize report "
        f"{run.run_id}` shows, is not run unasked: --trust-task runs it; verify and --resume also take the same file "
        "from --task"
    )


def _was_builtin(run: RunStarted) -> bool:
    folder = Path(str(run.machine.get("task_path") or "")).parent
    return folder.parts[-2:] == ("tools", "tasks") and run.task in builtin_names()


def _at(place: str) -> TaskFile | None:
    try:
        return find_task(place) if place else None
    except TaskError:
        return None


def _same(found: TaskFile, run: RunStarted) -> TaskFile:
    if found.sha256 == run.task_sha256:
        return found
    raise TaskError(
        f"{found.path} is not the task of run {run.run_id}: "
        f"its sha256 is {found.sha256[:12]}, not {run.task_sha256[:12]}"
    )


def _from_record(run: RunStarted, scratch: Path) -> TaskFile:
    if not is_plain(run.task):  # a record that was not made here, and not merged either
        raise TaskError(f"run {run.run_id} names its task {run.task!r:.60}, which is no name of a file")
    path = scratch / f"{run.task}.py"
    path.write_bytes(run.task_source.encode())
    return read_task(path)


def _without_held_out(run: RunStarted) -> str:
    return (
        f"task: the built-in {run.task} has changed since; the source that the run kept is used, which has none of its "
        "held-out cases"
    )


def _changed(run: RunStarted) -> str:
    path = run.machine.get("task_path") or f"{run.task}.py"
    return (
        f"the task of run {run.run_id} was {path} with sha256 {run.task_sha256[:12]}; it has changed or is gone. "
        "Restore it, or pass --task with the same file's new place"
    )
