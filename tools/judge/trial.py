"""Is a plan right? Every case with its batteries, each run several times in the runner and compared here in float64.

Also how a plan is loaded to be timed, which shares the rules of how memory is handed to a runner.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from tools.codec import Json
from tools.judge.arena import Inputs, Outputs
from tools.judge.batteries import case_in_words
from tools.judge.checker import DROP_S, FIRST_RUN_S, RUN_S, SETUP_S, Checker, checking, close_all
from tools.judge.compare import Expected, compare
from tools.judge.guarded import Allocate
from tools.judge.inputs import case_seed
from tools.judge.reference import Problem
from tools.judge.room import free_cached
from tools.judge.runner_link import RunnerFailed, RunnerLink
from tools.plan.replay import ReplayError
from tools.plan.schema import Plan, plan_hash
from tools.runner.launcher import Image
from tools.runner.memory import DeviceBuffer
from tools.runner.protocol import Drop, Setup
from tools.spec import TaskSpec
from tools.task import TaskFile
from tools.verdict import CaseResult, Status, Verdict

__all__ = [
    "FIRST_RUN_S", "RUN_S", "Batteries", "Compiled", "Images", "MissingImage", "Trial", "judged", "setup_request",
    "staged",
]  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """A kernel's launch metadata and cubin."""

    metadata: dict[str, Json]
    cubin: bytes


Images = Mapping[str, Compiled]  # by Kernel.sha256


class MissingImage(KeyError):
    """The supervisor sent a plan without one of its cubins."""


def images_for(plan: Plan, images: Images) -> list[Image]:
    """The plan's kernels as the launcher takes them, in the plan's order."""
    missing = [k.name for k in plan.kernels if k.sha256 not in images]
    if missing:
        raise MissingImage(f"no cubin for {', '.join(missing)}")
    return [Image(images[k.sha256].cubin, images[k.sha256].metadata) for k in plan.kernels]


def setup_request(
    plan: Plan, images: Images, inputs: Inputs, outputs: Outputs, flush_bytes: int, fds: list[int]
) -> tuple[Setup, list[bytes]]:
    """What a runner needs to time a plan on these buffers, and the cubins. New descriptors are appended to `fds`."""
    compiled = images_for(plan, images)
    shared, state = inputs.shared(fds)
    request = Setup(
        plan=plan,
        metadata=tuple(dict(i.metadata) for i in compiled),
        inputs=shared,
        state=state,
        outputs=outputs.shared(fds),
        slots=inputs.slots,
        input_regions=inputs.regions,
        inputs_stride=inputs.stride,
        state_regions=inputs.state_regions,
        outputs_stride=outputs.stride,
        flush_bytes=flush_bytes,
    )
    return request, [i.cubin for i in compiled]


@contextlib.contextmanager
def staged(
    link: RunnerLink, plan: Plan, images: Images, inputs: Inputs, outputs: Outputs, flush_bytes: int
) -> Iterator[None]:
    """The plan loaded in the runner, for the length of a block; a runner that failed has nothing left to drop."""
    fds: list[int] = []
    try:
        request, cubins = setup_request(plan, images, inputs, outputs, flush_bytes, fds)
        torch.cuda.synchronize()  # what was written to the buffers must be there before another process reads it
        link.ask(request, cubins, timeout_s=SETUP_S, fds=fds)
    finally:
        close_all(fds)
    try:
        yield
    except RunnerFailed:
        raise
    except BaseException:
        link.distrust("the judge gave up on this plan")
        raise
    link.ask(Drop(), timeout_s=DROP_S)


Batteries = Sequence[str] | Mapping[str, Sequence[str]] | Callable[[str], Sequence[str]]


class Trial:
    """Checks the plans of one candidate: every case once loaded, then one battery after the other."""

    def __init__(
        self,
        link: RunnerLink,
        file: TaskFile,
        task: TaskSpec,
        secret: bytes,
        images: Images,
        *,
        repeats: int = 3,
        device: str = "cuda",
        allocate: Allocate = DeviceBuffer.allocate,
        make_room: Callable[[], None] = free_cached,
    ) -> None:
        self._link, self._file, self._task, self._secret = link, file, task, secret
        self._images, self._repeats, self._device, self._allocate = images, repeats, device, allocate
        self._room = make_room
        self._checker: Checker | None = None
        self._problems: dict[str, Problem] = {}
        self._facts: dict[str, dict[str, Json]] = {}
        self.results: list[CaseResult] = []
        self.seeds: dict[str, str] = {}
        self.left_out: list[str] = []  # case/battery, for want of memory

    def run(self, plans: Sequence[Plan], batteries: Batteries) -> Verdict | None:
        """Check all; the verdict at the first that fails, None when all are right. `batteries`: the same for every
        case, or by the case's name."""
        try:
            for plan in plans:
                failed = self._guarded(plan, _batteries_of(batteries, plan.case))
                if failed is not None:
                    return failed
            return None
        finally:
            self._problems.clear()  # they know this trial: the circle would keep their parameters in the GPU's memory

    def close(self) -> tuple[CaseResult, ...]:
        """The results; the memory of the cases is needed for the slots."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return tuple(self.results)

    def facts(self) -> dict[str, Json]:
        """How it was checked, for a receipt: per case, and whether two runs ever differed without a reason."""
        unexplained = [c for c, f in self._facts.items() if not f["bit_identical"] and not f["may_vary"]]
        return {
            "repeats": self._repeats,
            "alignments": ["right end of the pages", "left end of the pages"],
            "cases": dict(self._facts),
            "not_deterministic": unexplained,
        }

    def _guarded(self, plan: Plan, batteries: Sequence[str]) -> Verdict | None:
        name = where = case_in_words(self._task, plan.case)
        try:
            with checking(self._link, plan, images_for(plan, self._images), self._allocate) as checker:
                self._checker = checker
                for battery in batteries:
                    where = f"{name} ({battery} inputs)"
                    failed = self._check(checker, plan, battery)
                    if failed is not None:
                        return failed
                self._facts[plan.case] = checker.facts()
        except RunnerFailed as failure:
            return Verdict(failure.status, f"{where}: {failure.detail}", cases=tuple(self.results), case=plan.case)
        except ReplayError as error:
            return Verdict(Status.REJECTED, f"{where}: {error}", cases=tuple(self.results), case=plan.case)
        finally:
            self._checker = None
        return None

    def _make_room(self) -> None:
        if self._checker is not None:
            self._checker.unload()
        self._room()

    def _check(self, checker: Checker, plan: Plan, battery: str) -> Verdict | None:
        problem, seed = self._problem(plan.case), case_seed(self._secret, self._hash_of(plan), plan.case, battery)
        drawn = problem.draw(seed, battery)
        if battery in problem.left_out:
            self.left_out.append(f"{plan.case}/{battery}")
        if drawn is None:
            return None
        self.seeds[f"{plan.case}/{battery}"] = f"{seed:016x}"
        result = checker.check(problem, drawn, self._repeats)
        self.results.append(result)
        if result.ok:
            return None
        where = case_in_words(self._task, plan.case, battery)
        return Verdict(Status.WRONG, f"{where}: {result.sentence}", cases=tuple(self.results), case=plan.case)

    def _hash_of(self, plan: Plan) -> str:
        if self._hashed is None or self._hashed[0] is not plan:
            self._hashed = (plan, plan_hash(plan))
        return self._hashed[1]

    _hashed: tuple[Plan, str] | None = None

    def _problem(self, case: str) -> Problem:
        if case not in self._problems:
            self._problems[case] = Problem.load(self._file, case, device=self._device, make_room=self._make_room)
        return self._problems[case]


def _batteries_of(batteries: Batteries, case: str) -> Sequence[str]:
    if isinstance(batteries, Mapping):
        return batteries[case]
    return batteries(case) if callable(batteries) else batteries


def judged(expected: Expected, outputs: Outputs, slot: int, turn: int, *, case: str, battery: str) -> CaseResult:
    """Compare one slot; a failure is explained with what the outputs held before."""
    result = compare(expected, outputs.tree(slot), case=case, battery=battery)
    if result.ok:
        return result
    return compare(expected, outputs.tree(slot), case=case, battery=battery, poison=outputs.poisoned(slot, turn))
