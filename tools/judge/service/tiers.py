"""How thoroughly one candidate is judged: screened, judged, confirmed; and verdicts that are given again, since search
loops hand in the same plan again and again."""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kerneltune.tools.backends.base import Backend
from kerneltune.tools.judge.correctness.comparison import ExpectedOutputs, WholeExpectation
from kerneltune.tools.judge.correctness.inputs import case_seed
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.reference_model import Drawn, free_cached
from kerneltune.tools.judge.execution.correctness_run import CorrectnessRun, Images, checking, images_for
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink
from kerneltune.tools.judge.timing.baselines import Baseline
from kerneltune.tools.judge.timing.benchmark_setup import BenchmarkSetup
from kerneltune.tools.judge.timing.build_verdict import (
    CaseRuns,
    Refuted,
    TimingResult,
    build_verdict,
    not_timed,
    over_cases,
)
from kerneltune.tools.judge.timing.gpu_use import GpuUse, GpuWatch, doubtful, stands
from kerneltune.tools.judge.timing.timing_run import TimingRun
from kerneltune.tools.replay.replay import ReplayError
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.latest import Latest
from kerneltune.tools.schema.messages import BenchRequest, Rules
from kerneltune.tools.schema.plan import Plan, plan_hash
from kerneltune.tools.schema.task import BATTERIES, CORE, PROBES, TaskSpec, batteries_of, case_in_words
from kerneltune.tools.schema.verdict import CaseResult, Status, Tier, Verdict, concluded
from kerneltune.tools.task.load import TaskFile

# in a receipt: the most that the judge held on the GPU, pages shared with the runner included
PEAK_MEMORY = "peak_memory_bytes"
PROCESSES = 3  # fresh runners of a confirmation
_MOST_MEASUREMENTS = 3  # until something doubtful is left untimed
EPOCH_S = 180.0
TIMED = ("own", "zero_mean")  # batteries among the contents of the timed case
_CLOSE = 10.0  # times the tolerance: whoever is wrong by less may be feeling its way


class PreparedCase(NamedTuple):
    """Inputs of one battery and what a right candidate makes of them."""

    drawn: Drawn
    problem: Problem
    held: WholeExpectation | None  # None: of a case so large that its answers are worked out in parts

    def expectation(self, inputs: tuple[Any, ...], *, least_samples: int = 0) -> ExpectedOutputs:
        """The answer, which was worked out once where it can be held."""
        if self.held is not None and not least_samples:
            return self.held
        self.problem.restore(self.drawn)
        return self.problem.expectation(inputs, least_samples=least_samples)


class QuickCheck:
    """Is a plan right as far as a quick look can tell? All its cases but the timed one, each with a few batteries.

    Plans are attested data, and no code of a candidate lives from one plan to the next, so the same secret inputs can
    serve many candidates. They change every few minutes, and after a wrong answer that was nearly right.
    """

    def __init__(
        self,
        backend: Backend,
        link: RunnerLink,
        file: TaskFile,
        task: TaskSpec,
        secret: bytes,
        make_room: Callable[[], None] = free_cached,
    ) -> None:
        self._backend, self._link, self._file, self._task, self._secret = backend, link, file, task, secret
        self._make_room = make_room
        self._left_out: dict[str, list[str]] = {}
        self._prepared: dict[str, tuple[PreparedCase, ...]] = {}
        self._drawn: dict[str, str] = {}
        self._ended: dict[str, Json] = {}
        others = (case for case in task.cases if case is not task.main)
        self._smallest = min(others, key=lambda c: c.bytes_moved + c.flops, default=task.main).name
        self.epoch = ""
        self.renew()

    def renew(self) -> None:
        """Begin a new epoch: other seeds for everything. Those of the old one may now be told."""
        self.close()
        if self._drawn:
            self._ended[self.epoch] = self._drawn
        self.epoch, self._drawn = secrets.token_hex(8), {}
        self._began_s = time.monotonic()

    def facts(self) -> dict[str, Json]:
        """For a receipt: this epoch's name, and the seeds of those that have ended since the last receipt."""
        ended, self._ended = self._ended, {}
        return {"epoch": self.epoch, "ended_epochs": ended}

    @property
    def left_out(self) -> list[str]:
        """Batteries that there was no memory for, as case/battery."""
        return [name for names in self._left_out.values() for name in names]

    def keep_fresh(self) -> None:
        """Begin a new epoch when this one has lasted long enough."""
        if time.monotonic() - self._began_s > EPOCH_S:
            self.renew()

    def prepare(self) -> None:
        """Draw inputs and answers of all cases before there is a candidate. Raises TaskError."""
        for case in self._task.cases:
            if case is not self._task.main:
                self._case(case.name)

    def seed(self, what: str) -> int:
        """A seed of this epoch."""
        seed = case_seed(self._secret, self.epoch, what, "screening")
        self._drawn[what] = f"{seed:x}"
        return seed

    def learn(self, verdict: Verdict) -> None:
        """A candidate that was wrong by a little may be one of a series that feels its way: new inputs for the next."""
        wrong = [c.error_ratio for c in verdict.cases if not c.ok]
        if verdict.status is Status.WRONG and wrong and max(wrong) < _CLOSE:
            self.renew()

    def verdict(
        self, plans: Sequence[Plan], images: Images, chosen: int
    ) -> tuple[Verdict | None, tuple[CaseResult, ...]]:
        """The verdict on a candidate that fails one of these cases, None for one that holds; and the results. `chosen`
        is a number of the plan's own: which batteries it meets beside the task's own inputs follows from it."""
        results: list[CaseResult] = []
        for plan in plans:
            try:
                results += self._checked(plan, images, None if plan.case == self._smallest else chosen)
            except (RunnerFailed, ReplayError) as failure:
                status = failure.status if isinstance(failure, RunnerFailed) else Status.REJECTED
                detail = f"{case_in_words(self._task, plan.case)}: {failure}"
                cause = failure.cause if isinstance(failure, RunnerFailed) else None
                failed = Verdict(status, detail, cases=tuple(results), case=plan.case, cause=cause)
                return failed, tuple(results)
            if bad := next((r for r in results if not r.ok), None):
                detail = f"{case_in_words(self._task, plan.case, bad.inputs)}: {bad.sentence}"
                failed = Verdict(Status.WRONG, detail, cases=tuple(results), case=plan.case, cause=bad.cause)
                return failed, tuple(results)
        return None, tuple(results)

    def _checked(self, plan: Plan, images: Images, chosen: int | None) -> list[CaseResult]:
        """Run one case, every tensor between guards: the task's own inputs twice, then one other battery (all of them
        without `chosen`). The last result may be wrong. Raises RunnerFailed and ReplayError."""
        own, *others = self._case(plan.case)
        if chosen is not None and others:
            others = [others[chosen % len(others)]]
        results: list[CaseResult] = []
        with checking(self._backend, self._link, plan, images_for(plan, images)) as checker:
            for kept, repeats in [(own, 2), *((other, 1) for other in others)]:
                results.append(checker.check(kept, kept.drawn, repeats))
                if not results[-1].ok:
                    break
        return results

    def _case(self, name: str) -> tuple[PreparedCase, ...]:
        if name not in self._prepared:
            self._prepared[name] = tuple(self._drawn_for(name))
        return self._prepared[name]

    def _drawn_for(self, name: str) -> Iterator[PreparedCase]:
        problem = Problem.load(self._file, name, device=self._backend.device, make_room=self._make_room)
        seed = self.seed(name)
        for battery in self._batteries(name):
            drawn = problem.draw(seed, battery)
            if drawn is not None:
                expectation = problem.expectation(drawn.inputs)
                held = expectation.for_many() if isinstance(expectation, WholeExpectation) else None
                yield PreparedCase(drawn, problem, held)
        self._left_out[name] = [f"{name}/{battery}" for battery in problem.left_out]

    def _batteries(self, name: str) -> tuple[str, ...]:
        """All for the smallest case; of one that is too large for a CPU the answers, in float64, take gigabytes."""
        if name == self._smallest:
            return BATTERIES
        return (*CORE, *PROBES) if self._task.case(name).runs_on_cpu else CORE[:2]

    def close(self) -> None:
        """Free the memory."""
        self._prepared.clear()


@dataclass(frozen=True)
class Measured:
    """A verdict from timing, who used the GPU meanwhile, and how the timed outputs compared."""

    verdict: Verdict
    use: GpuUse
    cases: tuple[CaseResult, ...]


@dataclass(frozen=True)
class Lap:
    """The weighted cases timed once, one after the other, in one runner process. `failed`: the verdict where one was
    refuted; else `runs` has each."""

    runs: tuple[TimingResult, ...]
    use: GpuUse
    cases: tuple[CaseResult, ...]
    failed: Verdict | None = None


@dataclass(frozen=True)
class CandidateJudge:
    """Judges one candidate as thoroughly as its tier asks. `setups`: of each weighted case, the main one first."""

    file: TaskFile
    task: TaskSpec
    setups: Sequence[BenchmarkSetup]
    quick_check: QuickCheck
    link: RunnerLink
    images: Images
    secret: bytes
    gpu_watch: GpuWatch
    gpu: dict[str, Json]
    make_room: Callable[[], None]

    def of(self, request: BenchRequest, main: Plan, known: Verdict | None = None) -> Verdict:
        """The verdict, as thoroughly as the request's tier asks. `known`: that of judging in full, if it is there."""
        started_s = time.monotonic()
        self._peak_bytes()
        if request.tier == "screened":
            verdict = self._screened(request, main)
            self.quick_check.learn(verdict)
        else:
            verdict = self._judged(request) if known is None else self._more_checked(request, known)
        if request.tier == "confirmed" and verdict.status is Status.CORRECT:
            verdict = self._confirmed(request, verdict)
        receipt = {**verdict.receipt, "wall_s": round(time.monotonic() - started_s, 4)}
        known_peak = receipt.get(PEAK_MEMORY)
        receipt[PEAK_MEMORY] = max(self._peak_bytes(), known_peak if isinstance(known_peak, int) else 0)
        return concluded(verdict, receipt)

    def _peak_bytes(self, pages: int | None = None) -> int:
        """`peak_bytes` of the main case's setup, and the slots of the others."""
        first, *others = self.setups
        return first.peak_bytes(pages) + sum(setup.inputs.nbytes for setup in others if setup.placed)

    def _screened(self, request: BenchRequest, main: Plan) -> Verdict:
        """The other cases, then a short timing run on inputs that serve a whole epoch, usually with the fastest
        baseline."""
        self.setups[0].place()
        self.quick_check.keep_fresh()
        started_s = time.monotonic()
        others = [plan for plan in request.plans if plan.case != main.case]
        failed, checked = self.quick_check.verdict(others, self.images, int(plan_hash(main)[:8], 16))
        if failed is not None:
            return replace(failed, receipt=self.quick_check.facts(), left_out=tuple(self.quick_check.left_out))
        checked_s = round(time.monotonic() - started_s, 4)
        self._touched()

        def new_run(setup: BenchmarkSetup) -> TimingRun:
            def refill() -> None:
                epoch, case = self.quick_check.epoch, setup.task.main.name
                setup.fill_for(epoch, lambda n: self.quick_check.seed(f"{case}.{n}"), TIMED)

            arms = setup.baselines if request.all_baselines else self._fastest(setup)
            rules, watch = request.rules, self.gpu_watch
            return TimingRun(setup, self.link, self.images, rules, self.secret, watch, arms, refill)

        verdict = self._timed(new_run, request, "screened")
        receipt = {**verdict.receipt, **self.quick_check.facts(), "checks_s": checked_s}
        left_out = (*self.quick_check.left_out, *(name for setup in self.setups for name in setup.left_out))
        return replace(verdict, cases=(*checked, *verdict.cases), receipt=receipt, left_out=left_out)

    def _fastest(self, setup: BenchmarkSetup) -> list[Baseline]:
        """A case's fastest baseline, and the one that is the fastest over all weighted cases."""
        overall = min(weighted_us(self.setups).items(), key=lambda named: named[1], default=("", 0.0))[0]
        return [b for b in setup.baselines if b.name == overall or b in setup.fastest]

    def _touched(self) -> None:
        for setup in self.setups:
            setup.touched()

    def _judged(self, request: BenchRequest) -> Verdict:
        """Every case with every battery, then the full timing run. Of a large case, slots and baselines make room for
        the checks and come back after them."""
        started_s = time.monotonic()
        checks = self._correctness_run(request)
        failed = checks.run(request.plans, lambda case: batteries_of(self.task, case, request.tier))
        facts: dict[str, Json] = {"seeds": dict(checks.seeds), "memory": checks.facts()}
        facts[PEAK_MEMORY] = self._peak_bytes(checks.most_bytes)
        if failed is not None:
            return replace(failed, receipt={**failed.receipt, **facts}, left_out=tuple(checks.left_out))
        results = checks.close()
        facts["checks_s"] = round(time.monotonic() - started_s, 4)
        self.setups[0].place()
        self._touched()
        verdict = self._timed(lambda setup: self._new_run(setup, request.rules), request, "judged")
        cases, receipt = (*results, *verdict.cases), {**verdict.receipt, **facts}
        return replace(verdict, cases=cases, receipt=receipt, left_out=tuple(checks.left_out))

    def _correctness_run(self, request: BenchRequest) -> CorrectnessRun:
        make_room, repeats = self.make_room, request.repeats
        if any(setup.large for setup in self.setups):
            for setup in self.setups:
                setup.vacate()
            self.quick_check.close()
        return CorrectnessRun(
            self.setups[0].backend, self.link, self.file, self.task, self.secret, self.images,
            repeats=repeats, make_room=make_room,
        )  # fmt: skip

    def _more_checked(self, request: BenchRequest, judged: Verdict) -> Verdict:
        """What was judged in full, checked with the batteries that only a confirmation has."""

        def more(case: str) -> tuple[str, ...]:
            before = batteries_of(self.task, case, "judged")
            return tuple(b for b in batteries_of(self.task, case, request.tier) if b not in before)

        checks = self._correctness_run(request)
        failed = checks.run([plan for plan in request.plans if more(plan.case)], more)
        if failed is not None:
            receipt = {**failed.receipt, "seeds": dict(checks.seeds)}
            return replace(failed, receipt=receipt, left_out=tuple(checks.left_out))
        results, seeds = checks.close(), judged.receipt.get("seeds")
        earlier = dict(seeds) if isinstance(seeds, dict) else {}
        receipt = {**judged.receipt, "seeds": {**earlier, **checks.seeds}}
        left_out = (*judged.left_out, *checks.left_out)
        return replace(judged, cases=(*judged.cases, *results), receipt=receipt, left_out=left_out)

    def _looked(self) -> GpuUse:
        """Look at the GPU with no candidate's process alive."""
        self.link.distrust("the judge looks who else uses the GPU")
        return self.gpu_watch.looked()

    def _new_run(self, setup: BenchmarkSetup, rules: Rules) -> TimingRun:
        return TimingRun(setup, self.link, self.images, rules, self.secret, self.gpu_watch)

    def _lap(self, new_run: Callable[[BenchmarkSetup], TimingRun], request: BenchRequest, label: str) -> Lap:
        """Time every weighted case, each in rounds of its own with its own baselines."""
        plans = {plan.case: plan for plan in request.plans}
        runs: list[TimingResult] = []
        use = GpuUse()
        cases: tuple[CaseResult, ...] = ()
        for setup in self.setups:
            setup.place()
            run = new_run(setup)
            failed: Verdict | None = None
            try:
                runs.append(run.run(plans[setup.task.main.name], label))
            except Refuted as refuted:
                failed = refuted.verdict
            except RunnerFailed as failure:
                failed = Verdict(failure.status, f"while timing: {failure.detail}", cause=failure.cause)
            self._touched()
            use, cases = use.and_then(run.use).and_then(setup.use), (*cases, *run.cases)
            if failed is not None:
                return Lap((), use, cases, self._in_case(failed, setup))
        return Lap(tuple(runs), use, cases)

    def _in_case(self, failed: Verdict, setup: BenchmarkSetup) -> Verdict:
        """A failure with the case that it is of, where several are timed."""
        if len(self.setups) == 1:
            return failed
        case = setup.task.main.name
        return replace(failed, detail=f"{case_in_words(self.task, case)}: {failed.detail}", case=case)

    def _verdict(self, laps: Sequence[Lap], tier: Tier) -> Verdict:
        """The verdict on laps that came through, each in a runner process of its own."""
        raced = [
            CaseRuns(setup.task.main.name, setup.task.main.weight, [lap.runs[number] for lap in laps], setup.context)
            for number, setup in enumerate(self.setups)
        ]
        verdicts = [build_verdict(its.timed_runs, its.context, self.gpu, tier) for its in raced]
        for verdict, setup in zip(verdicts, self.setups, strict=True):
            if verdict.status is not Status.CORRECT:
                return self._in_case(verdict, setup)
        return verdicts[0] if len(raced) == 1 else over_cases(raced, verdicts)

    def _settle(self) -> None:
        for setup in self.setups:
            setup.settle(self.gpu_watch)

    def _timed(self, new_run: Callable[[BenchmarkSetup], TimingRun], request: BenchRequest, tier: Tier) -> Verdict:
        """The verdict on one timing run of each weighted case."""

        def measure(number: int) -> Measured:
            self._settle()
            lap = self._lap(new_run, request, _named("timing", number))
            return Measured(lap.failed or self._verdict([lap], tier), lap.use, lap.cases)

        return said_alone(measure, self._looked, self.gpu_watch, self.gpu)

    def _confirmed(self, request: BenchRequest, judged: Verdict) -> Verdict:
        """Timed again in fresh processes at other addresses with other seeds; only that is quoted. What was chosen for
        being fast in one measurement was also lucky in it."""
        verdict = said_alone(lambda number: self._in_processes(request, number), self._looked, self.gpu_watch, self.gpu)
        if not verdict.accepted:
            return verdict
        first: dict[str, Json] = {"memory_probe": judged.receipt.get("memory_probe"), "seeds": judged.receipt["seeds"]}
        first[PEAK_MEMORY] = judged.receipt.get(PEAK_MEMORY)
        first["judged_us"] = judged.timing.median_us if judged.timing else None
        cases, receipt = (*judged.cases, *verdict.cases), {**verdict.receipt, **first}
        return replace(verdict, cases=cases, receipt=receipt, left_out=judged.left_out)

    def _in_processes(self, request: BenchRequest, number: int) -> Measured:
        """Laps in several fresh processes."""
        self._settle()
        again = replace(request.rules, memo_passes=0)
        laps: list[Lap] = []
        use = GpuUse()
        cases: tuple[CaseResult, ...] = ()
        for process in range(PROCESSES):
            self.link.distrust("a confirmation needs a fresh process")
            for setup in self.setups:  # other addresses
                setup.vacate()
            lap = self._lap(lambda setup: self._new_run(setup, again), request, _named(f"process{process}", number))
            use, cases = use.and_then(lap.use), (*cases, *lap.cases)
            if lap.failed is not None:
                return Measured(_not_confirmed(lap.failed, process), use, cases)
            laps.append(lap)
        return Measured(self._verdict(laps, "confirmed"), use, cases)


def weighted_us(setups: Sequence[BenchmarkSetup]) -> dict[str, float]:
    """The time of each baseline that all weighted cases have: the weighted mean over them, in µs."""
    if len(setups) == 1:
        return dict(setups[0].times_us)
    weights = [setup.task.main.weight for setup in setups]
    names = [name for name in setups[0].times_us if all(name in setup.times_us for setup in setups)]
    return {
        name: sum(w * s.times_us[name] for w, s in zip(weights, setups, strict=True)) / sum(weights) for name in names
    }


def said_alone(
    measure: Callable[[int], Measured], look: Callable[[], GpuUse], watch: GpuWatch, gpu: dict[str, Json]
) -> Verdict:
    """The verdict that a measurement leads to; `measure` is told how often it was made before. What it says against a
    candidate, or in spite of others on the GPU, is said only of a GPU that was the judge's own; else it is measured
    again, and at last left untimed."""
    before: GpuUse | None = None
    for number in range(_MOST_MEASUREMENTS):
        found = measure(number)
        if not doubtful(found.verdict.status, found.use):
            return found.verdict
        after = look()
        if stands(found.verdict.status, found.use, after, before=before):
            receipt = {**found.verdict.receipt, "gpu_use": found.use.facts(), "gpu_look": after.facts()}
            return replace(found.verdict, receipt=receipt)
        while not after.quiet and watch.wait():
            after = look()
        before = after
        if not before.quiet:
            break
    assert before is not None
    return not_timed(found.cases, found.use, before, gpu)


def _named(label: str, number: int) -> str:
    """The label of a measurement's seeds, which are other ones when it is made again."""
    return f"{label}.again{number}" if number else label


def _not_confirmed(verdict: Verdict, number: int) -> Verdict:
    return replace(verdict, detail=f"in fresh process {number + 1} of {PROCESSES}: {verdict.detail}")


_MOST = 1024
_LASTING = (Status.REJECTED, Status.WRONG, Status.IMPOSSIBLE, Status.CORRECT)  # the others may be the machine's fault


def name_of(request: BenchRequest, blobs: Sequence[bytes]) -> str:
    """The same for the same plans, cubins, launch metadata, tier and baselines, and for nothing else."""
    parts = [request.tier, repr(request.rules), str(request.repeats), str(request.all_baselines)]
    parts += [plan_hash(plan) for plan in request.plans]
    for image, blob in zip(request.images, blobs, strict=True):
        parts += [image.sha256, repr(sorted(image.metadata.items())), hashlib.sha256(blob).hexdigest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class VerdictCache:
    """The latest verdicts that would come out the same again."""

    def __init__(self, most: int = _MOST) -> None:
        self._held = Latest[str, Verdict](most)

    def find(self, name: str) -> Verdict | None:
        """The verdict of that name, marked as not judged anew; None when there is none."""
        known = self._held.get(name)
        return None if known is None else replace(known, receipt={**known.receipt, "reused": True})

    def find_in_full(self, request: BenchRequest, blobs: Sequence[bytes]) -> Verdict | None:
        """What a confirmation is to confirm, when that was judged in full already."""
        if request.tier != "confirmed" or not request.reuse:
            return None
        return self.find(name_of(replace(request, tier="judged"), blobs))

    def keep(self, name: str, verdict: Verdict, tier: Tier = "judged") -> None:
        """Remember a verdict on what was asked for in that tier. Neither a confirmation nor its refusal is reused: its
        point is to be measured anew. Nor is what was checked with less for want of memory, or compared with fewer
        baselines than there will be."""
        lasting = verdict.status in _LASTING and not verdict.lacked_memory and not verdict.pending
        if lasting and tier != "confirmed":
            self._held.keep(name, verdict)
