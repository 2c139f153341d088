"""Judges specimens of the corpus in the real workers, two at a time, each once per session."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from kerneltune.tools.bench import CPU_JUDGE, CpuBench
from kerneltune.tools.corpus import Specimen, corpus_root, load_corpus
from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import Open, Opened
from kerneltune.tools.schema.plan import plan_hash
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import Verdict
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update, UpdateLimits, Updater
from tests import shared_fork_server

LIMITS = UpdateLimits(trace_s=2.5, compile_s=5.0, max_variants=2)
CASE_TIMEOUT_S = 3.0
ROOT = corpus_root() or Path(__file__).parent
ALL = {s.name: s for s in load_corpus(ROOT)}
CORPUS = {name: s for name, s in ALL.items() if s.kind == "attack"}
HONEST = {name: s for name, s in ALL.items() if s.kind == "honest"}
SHARE = 3  # one of so many specimens of a kind is judged by default, all of them with the marker `slow`
# An honest kernel must not fail on a busy machine: gluon_attention is traced in 12 s on two cores, and took more than
# 30 on a machine at a third of their speed.
PATIENT = UpdateLimits(trace_s=120.0, compile_s=120.0, max_variants=2)
PATIENT_CASE_TIMEOUT_S = 120.0


def spread(specimens: Iterable[Specimen], always: Collection[str] = ()) -> list[object]:
    """Their names as parameters of a test: of those of one family that are to end alike the first, fourth and so on,
    and `always`; the others are marked slow. In the order in which they are judged: by task."""
    seen: Counter[tuple[object, ...]] = Counter()
    found: list[object] = []
    for specimen in sorted(specimens, key=lambda s: str(s.task)):
        alike = (specimen.family, specimen.expect)
        kept = seen[alike] % SHARE == 0 or specimen.name in always
        seen[alike] += 1
        found.append(specimen.name if kept else pytest.param(specimen.name, marks=pytest.mark.slow))
    return found


def wanted(request: pytest.FixtureRequest) -> list[str]:
    """The specimens that tests of this session are about."""
    names = (item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec"))
    return [name for name in dict.fromkeys(names) if isinstance(name, str)]


@dataclass(frozen=True)
class Found:
    """What became of one candidate. `error` is what the evaluator itself raised, which no candidate may cause."""

    verdict: Verdict | None
    plan_sha256: str | None
    seconds: float
    error: Exception | None = None
    traced: bool = False


class Judge(threading.local):
    """The evaluator without a GPU; each thread has CPU judges of its own, since a CPU judge remembers what it drew.

    `cpu_judges` collects what has to be closed; `known` holds verdicts: the same plans on the same task are judged
    once.
    """

    def __init__(
        self,
        machine: Machine,
        cpu_judges: list[Worker],
        known: dict[tuple[str, ...], Verdict],
        limits: UpdateLimits = LIMITS,
        case_timeout_s: float = CASE_TIMEOUT_S,
    ) -> None:
        self._machine, self._all, self._known = machine, cpu_judges, known
        self._limits, self._case_timeout_s = limits, case_timeout_s
        self._cpu_judges: dict[str, tuple[Worker, TaskSpec]] = {}

    def _judge(self, task: Path | str) -> tuple[Worker, TaskSpec]:
        path = str(task)
        if path not in self._cpu_judges:
            file = find_task(path)
            judge = self._machine.task(CPU_JUDGE, [file.path])
            self._all.append(judge)
            opened = decode(Opened, judge.call(encode(Open(path, path, file.sha256)), timeout_s=60).body)
            assert opened.task is not None, opened.problem
            self._cpu_judges[path] = judge, opened.task
        return self._cpu_judges[path]

    def update(self, task: Path | str, source: str) -> Update:
        """Trace, and compile what is timed and what is held out: the others are interpreted alone, as in a run."""
        _, spec = self._judge(task)
        updater = Updater(spec, "sm_90", self._machine.tracer, self._machine.compiler, self._limits)
        updater.compile_cases = [case.name for case in spec.cases if case.held_out or case == spec.main]
        return updater.update(source)

    def judge(self, task: Path | str, source: str, *, bench: bool) -> Found:
        """Update and, unless it fails or `bench` is false, check every small case."""
        started = time.monotonic()
        try:
            update = self.update(task, source)
            verdict = update.failure or (self._bench(task, update) if bench else None)
            sha256 = None if update.failure else update.sha256
        except Exception as error:  # noqa: BLE001 - whatever the evaluator raises is the finding
            return Found(None, None, time.monotonic() - started, error)
        return Found(verdict, sha256, time.monotonic() - started, traced=update.failure is None)

    def _bench(self, task: Path | str, update: Update) -> Verdict:
        judge, spec = self._judge(task)
        key = (str(task), *(plan_hash(p) for plans in update.plans.values() for p in plans[:1]))
        if key not in self._known:
            bench = CpuBench(spec, judge, self._machine.interpreter, case_timeout_s=self._case_timeout_s)
            self._known[key] = bench.bench(update)
        return self._known[key]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """The real evaluator on this machine."""
    cpu_judges: list[Worker] = []
    with shared_fork_server.started() as machine:
        yield Judge(machine, cpu_judges, {})
        for worker in cpu_judges:
            worker.close()


@pytest.fixture(scope="session")
def patient_judge() -> Iterator[Judge]:
    """The same evaluator with time to spare, for candidates that mean no harm."""
    cpu_judges: list[Worker] = []
    with shared_fork_server.started() as machine:
        yield Judge(machine, cpu_judges, {}, PATIENT, PATIENT_CASE_TIMEOUT_S)
        for worker in cpu_judges:
            worker.close()


def _job(judge: Judge, specimen: Specimen) -> Found:
    return judge.judge(specimen.task, specimen.path.read_text(), bench=not specimen.needs_gpu)


@pytest.fixture(scope="session")
def found(judge: Judge, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Found]]:
    """What became of an attack, by name; those that were collected are under way at once."""
    with _under_way(judge, CORPUS, request) as result:
        yield result


@pytest.fixture(scope="session")
def found_honest(patient_judge: Judge, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Found]]:
    """What became of an honest kernel, by name; those that were collected are under way at once."""
    with _under_way(patient_judge, HONEST, request) as result:
        yield result


@contextlib.contextmanager
def _under_way(
    judge: Judge, corpus: dict[str, Specimen], request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Found]]:
    by_task: dict[Path | str, list[Specimen]] = {}  # all of one task in one thread: its CPU judge is opened once
    for specimen in (corpus[name] for name in wanted(request) if name in corpus):
        by_task.setdefault(specimen.task, []).append(specimen)
    found = {specimen.name: Future[Found]() for group in by_task.values() for specimen in group}
    with ThreadPoolExecutor(2) as pool:
        for group in by_task.values():
            pool.submit(_judge_all, judge, group, found)
        yield lambda name: found[name].result() if name in found else _job(judge, corpus[name])


def _judge_all(judge: Judge, specimens: list[Specimen], found: dict[str, Future[Found]]) -> None:
    for specimen in specimens:
        try:
            found[specimen.name].set_result(_job(judge, specimen))
        except BaseException as error:  # noqa: BLE001 - who waits for it gets it
            found[specimen.name].set_exception(error)


@pytest.fixture(scope="session")
def twin_sha256(judge: Judge) -> Callable[[Specimen], str | None]:
    """The plan hash of a specimen's honest twin."""
    known: dict[Path, str | None] = {}

    def sha256(specimen: Specimen) -> str | None:
        if specimen.twin is None:
            return None
        if specimen.twin not in known:
            known[specimen.twin] = judge.update(specimen.task, specimen.twin.read_text()).sha256
        return known[specimen.twin]

    return sha256
