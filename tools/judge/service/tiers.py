"""How thoroughly one candidate is judged: screened, judged, confirmed; and verdicts that are given again, since search
loops hand in the same plan again and again."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kerneltune.tools.backends.cuda.device import Sampler
from kerneltune.tools.judge.execution.correctness_run import CorrectnessRun, Images
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink
from kerneltune.tools.judge.service.quick_check import TIMED, QuickCheck
from kerneltune.tools.judge.timing.benchmark_setup import BenchmarkSetup
from kerneltune.tools.judge.timing.build_verdict import Refuted, TimingResult, build_verdict
from kerneltune.tools.judge.timing.timing_run import TimingRun
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import BenchRequest, Rules
from kerneltune.tools.schema.plan import Plan, plan_hash
from kerneltune.tools.schema.task import TaskSpec, batteries_of
from kerneltune.tools.schema.verdict import Status, Tier, Verdict, concluded
from kerneltune.tools.task.load import TaskFile

PROCESSES = 3  # fresh runners of a confirmation


@dataclass(frozen=True)
class CandidateJudge:
    """Judges one candidate as thoroughly as its tier asks."""

    file: TaskFile
    task: TaskSpec
    setup: BenchmarkSetup
    quick_check: QuickCheck
    link: RunnerLink
    images: Images
    secret: bytes
    sampler: Sampler
    gpu: dict[str, Json]
    make_room: Callable[[], None]

    def of(self, request: BenchRequest, main: Plan, known: Verdict | None = None) -> Verdict:
        """The verdict, as thoroughly as the request's tier asks. `known`: that of judging in full, if it is there."""
        started_s = time.monotonic()
        if request.tier == "screened":
            verdict = self._screened(request, main)
            self.quick_check.learn(verdict)
        else:
            verdict = self._judged(request, main) if known is None else self._more_checked(request, known)
        if request.tier == "confirmed" and verdict.status is Status.CORRECT:
            verdict = self._confirmed(request.rules, main, verdict)
        receipt = {**verdict.receipt, "wall_s": round(time.monotonic() - started_s, 4)}
        return concluded(verdict, receipt)

    def _screened(self, request: BenchRequest, main: Plan) -> Verdict:
        """The other cases, then a short timing run on inputs that serve a whole epoch, usually with the fastest
        baseline."""
        self.quick_check.keep_fresh()
        started_s = time.monotonic()
        others = [plan for plan in request.plans if plan.case != main.case]
        failed, checked = self.quick_check.verdict(others, self.images, int(plan_hash(main)[:8], 16))
        if failed is not None:
            return replace(failed, receipt=self.quick_check.facts(), left_out=tuple(self.quick_check.left_out))
        checked_s = round(time.monotonic() - started_s, 4)
        self.setup.touched()

        def refill() -> None:
            self.setup.fill_for(self.quick_check.epoch, lambda n: self.quick_check.seed(f"{main.case}.{n}"), TIMED)

        setup = self.setup
        arms = setup.baselines if request.all_baselines else setup.fastest
        timing_run = TimingRun(setup, self.link, self.images, request.rules, self.secret, self.sampler, arms, refill)
        verdict = self._measured(timing_run, main, "screened")
        receipt = {**verdict.receipt, **self.quick_check.facts(), "checks_s": checked_s}
        left_out = (*self.quick_check.left_out, *self.setup.left_out)
        return replace(verdict, cases=(*checked, *verdict.cases), receipt=receipt, left_out=left_out)

    def _judged(self, request: BenchRequest, main: Plan) -> Verdict:
        """Every case with every battery, then the full timing run."""
        started_s = time.monotonic()
        checks = self._correctness_run(request)
        failed = checks.run(request.plans, lambda case: batteries_of(self.task, case, request.tier))
        facts: dict[str, Json] = {"seeds": dict(checks.seeds), "memory": checks.facts()}
        if failed is not None:
            return replace(failed, receipt={**failed.receipt, **facts}, left_out=tuple(checks.left_out))
        results = checks.close()
        facts["checks_s"] = round(time.monotonic() - started_s, 4)
        self.setup.touched()
        timing_run = TimingRun(self.setup, self.link, self.images, request.rules, self.secret, self.sampler)
        verdict = self._measured(timing_run, main, "judged")
        cases, receipt = (*results, *verdict.cases), {**verdict.receipt, **facts}
        return replace(verdict, cases=cases, receipt=receipt, left_out=tuple(checks.left_out))

    def _correctness_run(self, request: BenchRequest) -> CorrectnessRun:
        make_room, repeats = self.make_room, request.repeats
        return CorrectnessRun(
            self.link, self.file, self.task, self.secret, self.images, repeats=repeats, make_room=make_room
        )

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

    def _measured(self, timing_run: TimingRun, main: Plan, tier: Tier) -> Verdict:
        try:
            return build_verdict([timing_run.run(main)], self.setup.context, self.gpu, tier)
        except Refuted as refuted:
            return refuted.verdict
        except RunnerFailed as failure:
            return Verdict(failure.status, f"while timing: {failure.detail}", cause=failure.cause)

    def _confirmed(self, rules: Rules, main: Plan, judged: Verdict) -> Verdict:
        """Timed again in fresh processes at other addresses with other seeds; only that is quoted. What was chosen for
        being fast in one measurement was also lucky in it."""
        timed_runs: list[TimingResult] = []
        again = replace(rules, memo_passes=0)
        for number in range(PROCESSES):
            self.link.distrust("a confirmation needs a fresh process")
            self.setup.relocate()
            timing_run = TimingRun(self.setup, self.link, self.images, again, self.secret, self.sampler)
            try:
                timed_runs.append(timing_run.run(main, f"process{number}"))
            except Refuted as refuted:
                return _not_confirmed(refuted.verdict, number)
            except RunnerFailed as failure:
                return _not_confirmed(Verdict(failure.status, failure.detail, cause=failure.cause), number)
        verdict = build_verdict(timed_runs, self.setup.context, self.gpu, "confirmed")
        first: dict[str, Json] = {"memory_probe": judged.receipt.get("memory_probe"), "seeds": judged.receipt["seeds"]}
        first["judged_us"] = judged.timing.median_us if judged.timing else None
        cases, receipt = (*judged.cases, *verdict.cases), {**verdict.receipt, **first}
        return replace(verdict, cases=cases, receipt=receipt, left_out=judged.left_out)


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
        self._most = most
        self._held: OrderedDict[str, Verdict] = OrderedDict()

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
        point is to be measured anew. Nor is what was checked with less for want of memory, which may be there then."""
        if verdict.status in _LASTING and tier != "confirmed" and not verdict.lacked_memory:
            self._held[name] = verdict
            while len(self._held) > self._most:
                self._held.popitem(last=False)
