"""Check a plan: every case with its batteries, each run several times in the runner and compared here in float64.

From run to run the outputs hold other things beforehand (NaN, huge numbers, the right answer to other inputs), and the
tensors lie at the other end of their pages. Every run must be right; of one that is not, the reason is looked into.
"""

import contextlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kerneltune.tools.backends.base import MAX_PLAN_SHARE, Backend, CompiledImage, DeviceError
from kerneltune.tools.backends.runner_messages import Drop, Load, RunOnce
from kerneltune.tools.judge.correctness.comparison import (
    ExpectedOutputs,
    ExpectsAnswer,
    WholeExpectation,
    compare_closely,
    compare_in_parts,
)
from kerneltune.tools.judge.correctness.inputs import case_seed
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.reference_model import Drawn, empty_cache, free_cached
from kerneltune.tools.judge.execution.guard_pages import GuardedMemory, Harm, same_bits
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink, now_s
from kerneltune.tools.replay.replay import ReplayError
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Kernel, Plan, plan_hash, without_locations
from kerneltune.tools.schema.task import TaskSpec, case_in_words
from kerneltune.tools.schema.verdict import CaseResult, Status, Verdict, standing_for
from kerneltune.tools.task.load import TaskFile

SETUP_S = 30.0
RUN_S = 2.0
FIRST_RUN_S = 10.0  # libraries are loaded and choose their kernels
DROP_S = 10.0
_NATIVE_OF_WHOLE = 16  # times what the reference takes in its own dtype: its float64 answer and seven disturbed runs
_ATOMIC = re.compile(r"atomic_(?:rmw|cas|poll)|\b(?:atom|red|multimem)\.")
_FAULT = re.compile(r"illegal memory access|ILLEGAL_ADDRESS", re.IGNORECASE)
_HINTS = {
    "misaligned address": "tensors lie at multiples of 16 bytes, and a wider access needs more",
    "illegal instruction": "a trap or a failed assertion in a kernel ends with this error",
    "unspecified launch failure": "a trap or a failed assertion in a kernel ends with this error",
    "device-side assert": "an assertion in a kernel failed",
}


@dataclass(frozen=True)
class MemoryState:
    """What a run finds: poison (index of `tools.replay.replay.POISONS`), the answer to other inputs instead in outputs
    (`stale`), tensors at the right end of their pages or the left one."""

    words: str
    turn: int
    right: bool
    stale: bool = False


def befores() -> Iterator[MemoryState]:
    """Endless; eight in a row pair every filling with both ends."""
    fillings = (("NaN", 0, False), ("the answer to other inputs", 1, True), ("huge", 1, False), ("-huge", 2, False))
    for number in itertools.count():
        words, turn, stale = fillings[number % len(fillings)]
        yield MemoryState(words, turn, (number + number // len(fillings)) % 2 == 0, stale)


def may_vary(plan: Plan) -> bool:
    """Whether two right runs may differ in their last bits: atomics add in any order, libraries do as they like."""
    return bool(plan.library_ops) or any(map(_is_atomic, plan.kernels))


def _is_atomic(kernel: Kernel) -> bool:
    return bool(_ATOMIC.search(without_locations(kernel.text)))


class PlanChecker:
    """A plan and the memory that it is checked in. Use `checking`. Raises RunnerFailed wherever the plan fails."""

    def __init__(self, backend: Backend, link: RunnerLink, plan: Plan, images: Sequence[CompiledImage]) -> None:
        self._backend, self._link, self._plan, self._images = backend, link, plan, images
        self._memory: GuardedMemory | None = None
        self._befores = befores()
        self._stale: Mapping[int, torch.Tensor] = {}
        self._comparing = False  # the outputs lie in the plan's memory, which must stay while they are looked at
        self.runs = self.most_bytes = 0
        self.varied = False
        self.guarded = True
        self.seen: set[str] = set()

    def check(self, problem: ExpectsAnswer, drawn: Drawn, repeats: int) -> CaseResult:
        """Run the plan on these inputs and parameters; every run has to be right."""
        self._loaded(drawn)  # first, since what is wrong with it costs no answer
        started_s = now_s()
        expected = problem.expectation(drawn.inputs)
        memory = self._loaded(drawn)  # again, where `unload` has made room for the answer
        self._backend.synchronize()
        work = 1 if isinstance(expected, WholeExpectation) else _NATIVE_OF_WHOLE
        self._limit_s = max(FIRST_RUN_S if self._plan.library_ops else RUN_S, 5 * work * (now_s() - started_s))
        try:
            result = self._repeated(memory, problem, expected, drawn, max(1, repeats))
        except RunnerFailed as failure:
            raise self._looked_into(failure, drawn) from failure
        memory.forget_inputs()
        return result

    def _loaded(self, drawn: Drawn) -> GuardedMemory:
        if self._memory is not None and not self._memory.fits(drawn):
            self.unload()
        if self._memory is None:
            self._memory = self._load(drawn, strict=True)
            self.guarded = self._memory.guarded
            self.most_bytes = max(self.most_bytes, self._memory.nbytes)
        return self._memory

    def unload(self) -> None:
        """Free the plan's memory until it is run again: what a plan asks for must not cost the check its answer. Not
        while its outputs are compared: then no more than a part of the answer is worked out at a time."""
        if self._memory is not None and not self._comparing:
            self._link.ask(Drop(), timeout_s=DROP_S)
            self._forget()

    def _load(self, drawn: Drawn, *, strict: bool) -> GuardedMemory:
        most_bytes = int(MAX_PLAN_SHARE * self._backend.memory_bytes()[1])
        scratch = self._backend.scratch_bytes(self._plan, self._images)
        memory = GuardedMemory(self._plan, drawn, scratch, self._backend.allocate, most_bytes=most_bytes, strict=strict)
        fds: list[int] = []
        try:
            rooms, pieces = memory.share(fds)
            load = Load(self._plan, tuple(dict(i.metadata) for i in self._images), rooms, pieces)
            self._link.ask(load, [i.cubin for i in self._images], timeout_s=SETUP_S, fds=fds)
        except BaseException:
            memory.close()
            raise
        finally:
            close_all(fds)
        return memory

    def _run(self, memory: GuardedMemory, drawn: Drawn, before: MemoryState) -> None:
        memory.lay(drawn, right=before.right, turn=before.turn, stale=self._stale if before.stale else None)
        self._backend.synchronize()
        self._last = before
        self._link.ask(RunOnce(memory.offsets()), timeout_s=self._limit_s)
        self.runs += 1

    def _repeated(
        self, memory: GuardedMemory, problem: ExpectsAnswer, expected: ExpectedOutputs, drawn: Drawn, repeats: int
    ) -> CaseResult:
        worst = CaseResult(self._plan.case, drawn.battery, True, 0.0, 0.0)
        first: tuple[MemoryState, dict[int, torch.Tensor]] | None = None
        for number, before in zip(range(repeats), self._befores, strict=False):
            self._run(memory, drawn, before)
            self.seen.add(before.words)
            harmed = memory.harmed()
            if harmed:
                return replace(worst, ok=False, error_ratio=math.inf, max_abs_error=math.inf, detail=harmed.words)
            if first and same_bits(memory.outputs(), memory.outputs(first[1])):
                continue
            result = self._judged(memory, problem, expected, drawn, before)
            if not result.ok:
                why = self._why(memory, expected, drawn, first[0]) if first else ""
                note = f"run {number + 1} of {repeats}: {why}" if first else ""
                return replace(result, detail=note + result.detail)
            worst = standing_for(max(result, worst, key=lambda r: r.error_ratio), (worst, result))
            self.varied |= first is not None
            first = first or (before, memory.kept())
            self._stale = self._stale or {n: _shifted(flat) for n, flat in first[1].items()}
        self._stale = first[1] if first else {}
        return worst

    def _judged(
        self,
        memory: GuardedMemory,
        problem: ExpectsAnswer,
        expected: ExpectedOutputs,
        drawn: Drawn,
        before: MemoryState,
    ) -> CaseResult:
        """Compare; a failure is explained with what the outputs held before."""
        case, battery, outputs = self._plan.case, drawn.battery, memory.outputs()
        with self._holding_outputs():
            result, expected = compare_closely(problem, drawn, expected, outputs, case=case, battery=battery)
        if result.ok:
            return result
        held = memory.kept()
        memory.lay(drawn, right=before.right, turn=before.turn, stale=self._stale if before.stale else None)
        with self._holding_outputs():
            return compare_in_parts(
                expected, memory.outputs(held), case=case, battery=battery, poison=memory.outputs(), strictly=True
            )

    @contextlib.contextmanager
    def _holding_outputs(self) -> Iterator[None]:
        self._comparing = True
        try:
            yield
        finally:
            self._comparing = False

    def _why(self, memory: GuardedMemory, expected: ExpectedOutputs, drawn: Drawn, good: MemoryState) -> str:
        """Why a run is wrong after one that was right: both again and again, and with one thing changed at a time."""
        bad = self._last
        same_end = replace(good, right=bad.right)
        tries = [self._is_right(memory, expected, drawn, before) for before in (good, bad, good, bad)]
        if tries != [True, False, True, False]:
            return "it is right in some runs and wrong in others: a race, or a result that depends on the time; "
        if self._is_right(memory, expected, drawn, same_end):
            return f"it depends on what its memory held before (right after {good.words}, wrong after {bad.words}); "
        if bad.right != good.right and self._is_right(memory, expected, drawn, replace(bad, right=good.right)):
            return "it depends on what lies beside its tensors: it reads outside of them; "
        return "it depends on what its memory held before, and on what lies beside its tensors; "

    def _is_right(self, memory: GuardedMemory, expected: ExpectedOutputs, drawn: Drawn, before: MemoryState) -> bool:
        self._run(memory, drawn, before)
        with self._holding_outputs():
            return compare_in_parts(expected, memory.outputs(), battery=drawn.battery).ok

    def _looked_into(self, failure: RunnerFailed, drawn: Drawn) -> RunnerFailed:
        """The failure in words that help. After a fault once more, with mapped margins full of canaries around every
        tensor and everything writable: what the kernel writes to then shows."""
        if failure.status is not Status.CRASHED:
            return failure
        if not _FAULT.search(failure.detail):
            hint = next((text for sign, text in _HINTS.items() if sign in failure.detail.lower()), "")
            return RunnerFailed(failure.status, f"{failure.detail} ({hint})") if hint else failure
        self._forget()
        harm = self._seen_with_margins(drawn) if self.guarded else None
        if harm is None:
            harm = Harm(
                "an out-of-bounds access: a kernel reads or writes outside of its tensors; check masks and offsets"
            )
        status = Status.WRONG if harm.overwrites else Status.CRASHED
        return RunnerFailed(status, f"{harm.words} [{failure.detail}]")

    def _seen_with_margins(self, drawn: Drawn) -> Harm | None:
        """What a run that faulted does where it can; None when that cannot be found out."""
        try:
            memory = self._load(drawn, strict=False)
        except (RunnerFailed, DeviceError, torch.OutOfMemoryError):
            return None
        try:
            self._run(memory, drawn, self._last)
            where = "past the end" if self._last.right else "before the start"
            silent = f"an out-of-bounds access: a kernel reads {where} of a tensor; check masks and offsets"
            return memory.harmed() or Harm(silent)
        except RunnerFailed as failure:
            far = "an out-of-bounds access: a kernel reads or writes far outside of its tensors (2 MiB or more); check "
            far += "how it computes addresses (offsets of 2^31 and more need int64)"
            return Harm(far) if _FAULT.search(failure.detail) else None
        finally:
            memory.close()
            self._link.distrust("its plan left its memory")

    def _forget(self) -> None:
        if self._memory is not None:
            self._backend.synchronize()
            self._memory.close()
        self._memory = None

    def finish(self) -> None:
        """Unload the plan; the runner stays."""
        if self._memory is not None:
            self._link.ask(Drop(), timeout_s=DROP_S)

    def close(self) -> None:
        """Free the memory."""
        self._forget()
        self._stale = {}

    def facts(self) -> dict[str, Json]:
        """What was done, for the receipt."""
        return {
            "runs": self.runs,
            "guards": "unmapped pages, read-only inputs" if self.guarded else "canaries only",
            "outputs_held_before": sorted(self.seen),
            "bit_identical": not self.varied,
            "may_vary": may_vary(self._plan),
        }


@contextlib.contextmanager
def checking(backend: Backend, link: RunnerLink, plan: Plan, images: Sequence[CompiledImage]) -> Iterator[PlanChecker]:
    """A checker for the length of a block; its memory is freed, and a runner that is still there is empty again."""
    checker = PlanChecker(backend, link, plan, images)
    try:
        yield checker
        checker.finish()
    except RunnerFailed:
        raise
    except BaseException:
        link.distrust("the judge gave up on this plan")
        raise
    finally:
        checker.close()


def close_all(fds: list[int]) -> None:
    """Close descriptors that another process has got by now."""
    while fds:
        os.close(fds.pop())


def _shifted(flat: torch.Tensor) -> torch.Tensor:
    """The same numbers in other places: by half the tensor, in steps of 16 bytes."""
    return torch.roll(flat, flat.numel() // 2 // 16 * 16)


Images = Mapping[str, CompiledImage]  # by Kernel.sha256


def images_for(plan: Plan, images: Images) -> list[CompiledImage]:
    """The plan's kernels as the launcher takes them, in the plan's order."""
    return [images[k.sha256] for k in plan.kernels]


Batteries = Sequence[str] | Mapping[str, Sequence[str]] | Callable[[str], Sequence[str]]


class CorrectnessRun:
    """Checks the plans of one candidate: every case once loaded, then one battery after the other."""

    def __init__(
        self,
        backend: Backend,
        link: RunnerLink,
        file: TaskFile,
        task: TaskSpec,
        secret: bytes,
        images: Images,
        *,
        repeats: int = 3,
        make_room: Callable[[], None] = free_cached,
    ) -> None:
        self._link, self._file, self._task, self._secret = link, file, task, secret
        self._backend, self._images, self._repeats = backend, images, repeats
        self._room = make_room
        self._checker: PlanChecker | None = None
        self._problems: dict[str, Problem] = {}
        self._facts: dict[str, dict[str, Json]] = {}
        self.most_bytes = 0  # of pages that the plans were checked in
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
            self._problems.clear()  # they know this run: the cycle would keep their parameters in the GPU's memory

    def close(self) -> tuple[CaseResult, ...]:
        """The results; the memory of the cases is needed for the slots."""
        empty_cache()
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
            with checking(self._backend, self._link, plan, images_for(plan, self._images)) as checker:
                self._checker = checker
                for battery in batteries:
                    where = f"{name} ({battery} inputs)"
                    failed = self._check(checker, plan, battery)
                    if failed is not None:
                        return failed
                self._facts[plan.case] = checker.facts()
                self.most_bytes = max(self.most_bytes, checker.most_bytes)
        except RunnerFailed as failure:
            return Verdict(
                failure.status,
                f"{where}: {failure.detail}",
                cases=tuple(self.results),
                case=plan.case,
                cause=failure.cause,
            )
        except ReplayError as error:
            return Verdict(Status.REJECTED, f"{where}: {error}", cases=tuple(self.results), case=plan.case)
        finally:
            self._checker = None
        return None

    def _make_room(self) -> None:
        if self._checker is not None:
            self._checker.unload()
        self._room()

    def _check(self, checker: PlanChecker, plan: Plan, battery: str) -> Verdict | None:
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
        detail = f"{where}: {result.sentence}"
        return Verdict(Status.WRONG, detail, cases=tuple(self.results), case=plan.case, cause=result.cause)

    def _hash_of(self, plan: Plan) -> str:
        if self._hashed is None or self._hashed[0] is not plan:
            self._hashed = (plan, plan_hash(plan))
        return self._hashed[1]

    _hashed: tuple[Plan, str] | None = None

    def _problem(self, case: str) -> Problem:
        if case not in self._problems:
            self._problems[case] = Problem.load(
                self._file, case, device=self._backend.device, make_room=self._make_room
            )
        return self._problems[case]


def _batteries_of(batteries: Batteries, case: str) -> Sequence[str]:
    if isinstance(batteries, Mapping):
        return batteries[case]
    return batteries(case) if callable(batteries) else batteries
