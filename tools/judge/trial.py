"""Is a plan right? Every case with every battery, run several times in the runner and compared here in float64."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tools.codec import Json
from tools.judge.arena import Inputs, Outputs
from tools.judge.clock import now_s
from tools.judge.compare import Expected, compare
from tools.judge.inputs import case_seed
from tools.judge.problem import Drawn
from tools.judge.reference import Problem
from tools.judge.runner_link import RunnerFailed, RunnerLink
from tools.plan.schema import Plan, plan_hash
from tools.runner.protocol import Drop, RunOnce, Setup
from tools.spec import TaskSpec
from tools.task import TaskFile
from tools.verdict import CaseResult, Status, Verdict

SETUP_S = 30.0
RUN_S = 2.0
FIRST_RUN_S = 10.0  # libraries are loaded and choose their kernels
DROP_S = 10.0
HIDDEN = "a held-out case"


@dataclass(frozen=True)
class Compiled:
    """A kernel's launch metadata and cubin."""

    metadata: dict[str, Json]
    cubin: bytes


Images = Mapping[str, Compiled]  # by Kernel.sha256


class MissingImage(KeyError):
    """The supervisor sent a plan without one of its cubins."""


def setup_request(
    plan: Plan, images: Images, inputs: Inputs, outputs: Outputs, flush_bytes: int
) -> tuple[Setup, list[bytes]]:
    """What a runner needs to run a plan on these buffers, and the cubins."""
    missing = [k.name for k in plan.kernels if k.sha256 not in images]
    if missing:
        raise MissingImage(f"no cubin for {', '.join(missing)}")
    compiled = [images[k.sha256] for k in plan.kernels]
    shared, state = inputs.shared()
    request = Setup(
        plan=plan,
        metadata=tuple(c.metadata for c in compiled),
        inputs=shared,
        state=state,
        outputs=outputs.shared(),
        slots=inputs.slots,
        input_regions=inputs.regions,
        inputs_stride=inputs.stride,
        state_regions=inputs.state_regions,
        outputs_stride=outputs.stride,
        flush_bytes=flush_bytes,
    )
    return request, [c.cubin for c in compiled]


@contextlib.contextmanager
def staged(
    link: RunnerLink, plan: Plan, images: Images, inputs: Inputs, outputs: Outputs, flush_bytes: int
) -> Iterator[None]:
    """The plan loaded in the runner, for the length of a block; a runner that failed has nothing left to drop."""
    request, cubins = setup_request(plan, images, inputs, outputs, flush_bytes)
    torch.cuda.synchronize()  # what was written to the buffers must be there before another process reads it
    link.ask(request, cubins, timeout_s=SETUP_S)
    try:
        yield
    except RunnerFailed:
        raise
    except BaseException:
        link.distrust("the judge gave up on this plan")
        raise
    link.ask(Drop(), timeout_s=DROP_S)


class Trial:
    """Checks the plans of one candidate."""

    def __init__(
        self, link: RunnerLink, file: TaskFile, task: TaskSpec, secret: bytes, images: Images, *, repeats: int = 3
    ) -> None:
        self._link, self._file, self._task, self._secret = link, file, task, secret
        self._images, self._repeats = images, repeats
        self._problems: dict[str, Problem] = {}
        self.results: list[CaseResult] = []

    def run(self, plans: Sequence[Plan], batteries: Sequence[str]) -> Verdict | None:
        """Check all; the verdict at the first that fails, None when all are right."""
        for plan in plans:
            for battery in batteries:
                failed = self._guarded(plan, battery)
                if failed is not None:
                    return failed
        return None

    def close(self) -> tuple[CaseResult, ...]:
        """The results; the memory of the cases is needed for the slots."""
        self._problems.clear()
        torch.cuda.empty_cache()
        return tuple(self.results)

    def _guarded(self, plan: Plan, battery: str) -> Verdict | None:
        try:
            result = self._check(plan, battery)
        except RunnerFailed as failure:
            detail = f"{self._name(plan.case)} ({battery} inputs): {failure.detail}"
            return Verdict(failure.status, detail, cases=tuple(self.results))
        if result is None:
            return None
        self.results.append(result)
        if result.ok:
            return None
        where = HIDDEN if self._hidden(plan.case) else f"case {plan.case} ({battery} inputs)"
        return Verdict(Status.WRONG, f"{where}: {result.detail}", cases=tuple(self.results))

    def _hidden(self, case: str) -> bool:
        return self._task.case(case).held_out

    def _name(self, case: str) -> str:
        return HIDDEN if self._hidden(case) else f"case {case}"

    def _check(self, plan: Plan, battery: str) -> CaseResult | None:
        problem = self._problem(plan.case)
        drawn = problem.draw(case_seed(self._secret, plan_hash(plan), plan.case, battery), battery)
        return None if drawn is None else self._checked(problem, drawn, plan)

    def _problem(self, case: str) -> Problem:
        if case not in self._problems:
            self._problems[case] = Problem.load(self._file, case, device="cuda")
        return self._problems[case]

    def _checked(self, problem: Problem, drawn: Drawn, plan: Plan) -> CaseResult:
        inputs, outputs = Inputs(drawn, 1), Outputs(plan, 1)
        try:
            inputs.fill(0, drawn.inputs)
            with staged(self._link, plan, self._images, inputs, outputs, 0):
                started = now_s()
                expected = problem.expect(inputs.tree(0, pristine=True))
                torch.cuda.synchronize()
                limit_s = max(FIRST_RUN_S if plan.library_ops else RUN_S, 5 * (now_s() - started))
                return self._repeated(expected, inputs, outputs, plan.case, drawn.battery, limit_s)
        finally:
            outputs.close()
            inputs.close()

    def _repeated(
        self, expected: Expected, inputs: Inputs, outputs: Outputs, case: str, battery: str, limit_s: float
    ) -> CaseResult:
        """Several runs, each with other poison; every one must be right, and none may touch what is not its own."""
        worst = CaseResult(case, battery, True, 0.0, 0.0)
        for turn in range(self._repeats):
            self._link.ask(RunOnce(turn), timeout_s=limit_s)
            harmed = inputs.harmed()
            if harmed:
                detail = f"the candidate overwrites its {harmed}; write results to memory of your own"
                return CaseResult(case, battery, False, math.inf, math.inf, detail)
            result = judged(expected, outputs, 0, turn, case=case, battery=battery)
            if not result.ok:
                note = f"run {turn + 1} of {self._repeats}: " if turn else ""
                return replace(result, detail=note + result.detail)
            worst = max(worst, result, key=lambda r: r.error_ratio)
        return worst


def judged(expected: Expected, outputs: Outputs, slot: int, turn: int, *, case: str, battery: str) -> CaseResult:
    """Compare one slot; a failure is explained with what the outputs held before."""
    result = compare(expected, outputs.tree(slot), case=case, battery=battery)
    if result.ok:
        return result
    return compare(expected, outputs.tree(slot), case=case, battery=battery, poison=outputs.poisoned(slot, turn))
