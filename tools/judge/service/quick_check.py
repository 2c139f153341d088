"""Is a plan right as far as a quick look can tell? Small cases with inputs and answers that are kept for an epoch.

Plans are attested data, and no code of a candidate lives from one plan to the next, so the same secret inputs can
serve many candidates. They change every few minutes, and after a wrong answer that was nearly right.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kerneltune.tools.backends.base import Backend
from kerneltune.tools.judge.correctness.comparison import ExpectedOutputs, WholeExpectation
from kerneltune.tools.judge.correctness.inputs import case_seed
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.reference_model import Drawn, free_cached
from kerneltune.tools.judge.execution.correctness_run import Images, checking, images_for
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink
from kerneltune.tools.replay.replay import ReplayError
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.task import BATTERIES, CORE, PROBES, TaskSpec, case_in_words
from kerneltune.tools.schema.verdict import CaseResult, Status, Verdict
from kerneltune.tools.task.load import TaskFile

EPOCH_S = 180.0
TIMED = ("own", "zero_mean")  # batteries among the contents of the timed case
_CLOSE = 10.0  # times the tolerance: whoever is wrong by less may be feeling its way


class PreparedCase(NamedTuple):
    """Inputs of one battery and what a right candidate makes of them."""

    drawn: Drawn
    problem: Problem
    held: WholeExpectation | None  # None: of a case so large that its answers are worked out in parts

    def expectation(self, inputs: tuple[Any, ...]) -> ExpectedOutputs:
        """The answer, which was worked out once where it can be held."""
        if self.held is not None:
            return self.held
        self.problem.restore(self.drawn)
        return self.problem.expectation(inputs)


class QuickCheck:
    """Checks all cases of a candidate but the timed one, each with a few batteries."""

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
