"""Is a plan right as far as a quick look can tell? Small cases with inputs and answers that are kept for an epoch.

Plans are attested data, and no code of a candidate lives from one plan to the next, so the same secret inputs can
serve many candidates. They change every few minutes, and after a wrong answer that was nearly right.
"""

import math
import secrets
import time
from dataclasses import dataclass

import torch

from tools.codec import Json
from tools.judge.answers import Answers
from tools.judge.arena import Inputs, Outputs
from tools.judge.inputs import case_seed
from tools.judge.reference import Problem
from tools.judge.runner_link import RunnerFailed, RunnerLink
from tools.judge.tree import Tree, tensors
from tools.judge.trial import FIRST_RUN_S, HIDDEN, RUN_S, Images, judged, staged
from tools.plan.schema import Plan
from tools.runner.protocol import RunOnce
from tools.spec import TaskSpec
from tools.task import TaskFile
from tools.verdict import CaseResult, Status, Verdict

EPOCH_S = 180.0
REPEATS = 2
BATTERIES = ("own", "zero_mean")
_CLOSE = 10.0  # times the tolerance: whoever is wrong by less may be feeling its way
_ANSWERS_BYTES = 2 << 30


@dataclass
class Prepared:
    """A case on the GPU: one slot a battery, all with the same parameters."""

    problem: Problem
    inputs: Inputs
    batteries: tuple[str, ...]


class Gate:
    """Checks one small case of each candidate."""

    def __init__(self, link: RunnerLink, file: TaskFile, task: TaskSpec, secret: bytes) -> None:
        self._link, self._file, self._task, self._secret = link, file, task, secret
        self._prepared: dict[str, Prepared] = {}
        self._answers = Answers(_ANSWERS_BYTES)
        self._drawn: dict[str, str] = {}
        self._ended: dict[str, Json] = {}
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

    def keep_fresh(self) -> None:
        """Begin a new epoch when this one has lasted long enough."""
        if time.monotonic() - self._began_s > EPOCH_S:
            self.renew()

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

    def check(self, plan: Plan, images: Images) -> tuple[CaseResult, ...]:
        """Run one case with its batteries, twice with different poison. The results; the last one may be wrong.
        Raises RunnerFailed."""
        prepared = self._case(plan.case)
        outputs = Outputs(plan, prepared.inputs.slots)
        limit_s = FIRST_RUN_S if plan.library_ops else RUN_S
        first = secrets.randbelow(1 << 16)
        try:
            with staged(self._link, plan, images, prepared.inputs, outputs, 0):
                for turn in range(first, first + REPEATS):
                    self._link.ask(RunOnce(turn), timeout_s=limit_s)
                    results = self._compared(prepared, outputs, turn)
                    if not all(r.ok for r in results):
                        break
        finally:
            outputs.close()
        return results

    def _compared(self, prepared: Prepared, outputs: Outputs, turn: int) -> tuple[CaseResult, ...]:
        case = outputs.plan.case
        harmed = prepared.inputs.harmed()
        if harmed:
            detail = f"the candidate overwrites its {harmed}; write results to memory of your own"
            return (CaseResult(case, prepared.batteries[0], False, math.inf, math.inf, detail),)
        results = []
        for slot, battery in enumerate(prepared.batteries):
            expected = self._answers.of(
                f"{case}/{battery}",
                lambda s=slot: prepared.problem.expect(prepared.inputs.tree(s, pristine=True)),  # type: ignore[misc]
            )
            results.append(judged(expected, outputs, slot, turn, case=case, battery=battery))
            if not results[-1].ok:
                break
        return tuple(results)

    def _case(self, name: str) -> Prepared:
        if name not in self._prepared:
            self._prepared[name] = self._prepare(name)
        return self._prepared[name]

    def _prepare(self, name: str) -> Prepared:
        problem, seed = Problem.load(self._file, name, device="cuda"), self.seed(name)
        found = [drawn for battery in BATTERIES if (drawn := problem.draw(seed, battery)) is not None]
        found = [drawn for drawn in found if _same(drawn.state, found[0].state)]
        inputs = Inputs(found[0], len(found))
        for slot, drawn in enumerate(found):
            inputs.fill(slot, drawn.inputs)
        return Prepared(problem, inputs, tuple(drawn.battery for drawn in found))

    def verdict(self, plan: Plan, images: Images) -> tuple[Verdict | None, tuple[CaseResult, ...]]:
        """The verdict on a plan that fails, None for one that holds; and the results."""
        hidden = self._task.case(plan.case).held_out
        try:
            results = self.check(plan, images)
        except RunnerFailed as failure:
            where = HIDDEN if hidden else f"case {plan.case}"
            return Verdict(failure.status, f"{where}: {failure.detail}"), ()
        bad = next((r for r in results if not r.ok), None)
        if bad is None:
            return None, results
        where = HIDDEN if hidden else f"case {plan.case} ({bad.inputs} inputs)"
        return Verdict(Status.WRONG, f"{where}: {bad.detail}", cases=results), results

    def close(self) -> None:
        """Free the memory."""
        for prepared in self._prepared.values():
            prepared.inputs.close()
        self._prepared.clear()
        self._answers.forget()


def _same(left: Tree, right: Tree) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(left), tensors(right), strict=True))
