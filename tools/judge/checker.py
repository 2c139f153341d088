"""One plan in the runner, checked with one set of inputs after the other: several runs each, no two alike.

From run to run the outputs hold other things beforehand (NaN, huge numbers, the right answer to other inputs), and the
tensors lie at the other end of their pages. Every run must be right; of one that is not, the reason is looked into.
"""

import contextlib
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from tools.codec import Json
from tools.cuda.driver import DriverError
from tools.judge.compare import Expected, compare, compare_drawn
from tools.judge.guarded import Allocate, Guarded
from tools.judge.layout import same_bits
from tools.judge.problem import Drawn
from tools.judge.runner_link import RunnerFailed, RunnerLink, now_s
from tools.plan.schema import Kernel, Plan, without_locations
from tools.runner.launcher import Image, scratch_bytes
from tools.runner.memory import settle
from tools.runner.protocol import Drop, Load, RunOnce
from tools.verdict import CaseResult, Status, standing_for

SETUP_S = 30.0
RUN_S = 2.0
FIRST_RUN_S = 10.0  # libraries are loaded and choose their kernels
DROP_S = 10.0
_ATOMIC = re.compile(r"atomic_(?:rmw|cas|poll)|\b(?:atom|red|multimem)\.")
_FAULT = re.compile(r"illegal memory access|ILLEGAL_ADDRESS", re.IGNORECASE)
_HINTS = {
    "misaligned address": "tensors lie at multiples of 16 bytes, and a wider access needs more",
    "illegal instruction": "a trap or a failed assertion ends a kernel so",
    "unspecified launch failure": "a trap or a failed assertion ends a kernel so",
    "device-side assert": "an assertion in a kernel failed",
}


@dataclass(frozen=True)
class Before:
    """What a run finds: poison (index of `tools.plan.replay.POISONS`), the answer to other inputs instead in outputs
    (`stale`), tensors at the right end of their pages or the left one."""

    words: str
    turn: int
    right: bool
    stale: bool = False


def befores() -> Iterator[Before]:
    """Endless; eight in a row pair every filling with both ends."""
    fillings = (("NaN", 0, False), ("the answer to other inputs", 1, True), ("huge", 1, False), ("-huge", 2, False))
    for number in itertools.count():
        words, turn, stale = fillings[number % len(fillings)]
        yield Before(words, turn, (number + number // len(fillings)) % 2 == 0, stale)


def may_vary(plan: Plan) -> bool:
    """Whether two right runs may differ in their last bits: atomics add in any order, libraries do as they like."""
    return bool(plan.library_ops) or any(map(_is_atomic, plan.kernels))


def _is_atomic(kernel: Kernel) -> bool:
    return bool(_ATOMIC.search(without_locations(kernel.text)))


class Oracle(Protocol):
    """Who knows the answers (`tools.judge.reference.Problem`)."""

    def expect(self, inputs: tuple[Any, ...]) -> Expected: ...


class Checker:
    """A plan and the memory that it is checked in. Use `checking`. Raises RunnerFailed wherever the plan fails."""

    def __init__(self, link: RunnerLink, plan: Plan, images: Sequence[Image], allocate: Allocate) -> None:
        self._link, self._plan, self._images, self._allocate = link, plan, images, allocate
        self._memory: Guarded | None = None
        self._befores = befores()
        self._stale: Mapping[int, torch.Tensor] = {}
        self.runs = 0
        self.varied = False
        self.guarded = True
        self.seen: set[str] = set()

    def check(self, problem: Oracle, drawn: Drawn, repeats: int) -> CaseResult:
        """Run the plan on these inputs and parameters; every run has to be right."""
        self._loaded(drawn)  # first, since what is wrong with it costs no answer
        started_s = now_s()
        expected = problem.expect(drawn.inputs)
        memory = self._loaded(drawn)  # again, where `unload` has made room for the answer
        settle()
        self._limit_s = max(FIRST_RUN_S if self._plan.library_ops else RUN_S, 5 * (now_s() - started_s))
        try:
            return self._repeated(memory, expected, drawn, max(1, repeats))
        except RunnerFailed as failure:
            raise self._looked_into(failure, drawn) from failure

    def _loaded(self, drawn: Drawn) -> Guarded:
        if self._memory is not None and not self._memory.fits(drawn):
            self.unload()
        if self._memory is None:
            self._memory = self._load(drawn, strict=True)
            self.guarded = self._memory.guarded
        return self._memory

    def unload(self) -> None:
        """Free the plan's memory until it is run again: what a plan asks for must not cost the check its answer."""
        if self._memory is not None:
            self._link.ask(Drop(), timeout_s=DROP_S)
            self._forget()

    def _load(self, drawn: Drawn, *, strict: bool) -> Guarded:
        most_bytes = torch.cuda.mem_get_info()[0] // 2 if torch.cuda.is_available() else 1 << 32
        scratch = scratch_bytes(self._plan, self._images)
        memory = Guarded(self._plan, drawn, scratch, self._allocate, most_bytes=most_bytes, strict=strict)
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

    def _run(self, memory: Guarded, drawn: Drawn, before: Before) -> None:
        memory.lay(drawn, right=before.right, turn=before.turn, stale=self._stale if before.stale else None)
        settle()
        self._last = before
        self._link.ask(RunOnce(memory.offsets()), timeout_s=self._limit_s)
        self.runs += 1

    def _repeated(self, memory: Guarded, expected: Expected, drawn: Drawn, repeats: int) -> CaseResult:
        worst = CaseResult(self._plan.case, drawn.battery, True, 0.0, 0.0, limitations=expected.limitations)
        first: tuple[Before, dict[int, torch.Tensor]] | None = None
        for number, before in zip(range(repeats), self._befores, strict=False):
            self._run(memory, drawn, before)
            self.seen.add(before.words)
            harmed = memory.harmed()
            if harmed:
                return replace(worst, ok=False, error_ratio=math.inf, max_abs_error=math.inf, detail=harmed)
            if first and same_bits(memory.outputs(), memory.outputs(first[1])):
                continue
            result = self._judged(memory, expected, drawn, before)
            if not result.ok:
                why = self._why(memory, expected, drawn, first[0]) if first else ""
                note = f"run {number + 1} of {repeats}: {why}" if first else ""
                return replace(result, detail=note + result.detail)
            worst = standing_for(max(worst, result, key=lambda r: r.error_ratio), (worst, result))
            self.varied |= first is not None
            first = first or (before, memory.kept())
            self._stale = self._stale or {n: _shifted(flat) for n, flat in first[1].items()}
        self._stale = first[1] if first else {}
        return worst

    def _judged(self, memory: Guarded, expected: Expected, drawn: Drawn, before: Before) -> CaseResult:
        """Compare; a failure is explained with what the outputs held before."""
        case, battery, outputs = self._plan.case, drawn.battery, memory.outputs()
        result = compare_drawn(expected, outputs, case=case, battery=battery)
        if result.ok:
            return result
        held = memory.kept()
        memory.lay(drawn, right=before.right, turn=before.turn, stale=self._stale if before.stale else None)
        return compare(expected, memory.outputs(held), case=case, battery=battery, poison=memory.outputs())

    def _why(self, memory: Guarded, expected: Expected, drawn: Drawn, good: Before) -> str:
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

    def _is_right(self, memory: Guarded, expected: Expected, drawn: Drawn, before: Before) -> bool:
        self._run(memory, drawn, before)
        return compare_drawn(expected, memory.outputs(), battery=drawn.battery).ok

    def _looked_into(self, failure: RunnerFailed, drawn: Drawn) -> RunnerFailed:
        """The failure in words that help. After a fault once more, with mapped margins full of canaries around every
        tensor and everything writable: what the kernel writes to then shows."""
        if failure.status is not Status.CRASHED:
            return failure
        if not _FAULT.search(failure.detail):
            hint = next((text for sign, text in _HINTS.items() if sign in failure.detail.lower()), "")
            return RunnerFailed(failure.status, f"{failure.detail} ({hint})") if hint else failure
        self._forget()
        words = "an out-of-bounds access: a kernel reads or writes outside of its tensors; check masks and offsets"
        if self.guarded:
            words = self._seen_with_margins(drawn) or words
        status = Status.WRONG if "overwrites" in words else Status.CRASHED
        return RunnerFailed(status, f"{words} [{failure.detail}]")

    def _seen_with_margins(self, drawn: Drawn) -> str:
        """What a run that faulted does where it can; "" when that cannot be found out."""
        try:
            memory = self._load(drawn, strict=False)
        except (RunnerFailed, DriverError, torch.OutOfMemoryError):
            return ""
        try:
            self._run(memory, drawn, self._last)
            where = "past the end" if self._last.right else "before the start"
            silent = f"an out-of-bounds access: a kernel reads {where} of a tensor; check masks and offsets"
            return memory.harmed() or silent
        except RunnerFailed as failure:
            far = "an out-of-bounds access: a kernel reads or writes far outside of its tensors (2 MiB or more); check "
            far += "how it computes addresses (offsets of 2^31 and more need int64)"
            return far if _FAULT.search(failure.detail) else ""
        finally:
            memory.close()
            self._link.distrust("its plan left its memory")

    def _forget(self) -> None:
        if self._memory is not None:
            settle()
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
def checking(link: RunnerLink, plan: Plan, images: Sequence[Image], allocate: Allocate) -> Iterator[Checker]:
    """A checker for the length of a block; its memory is freed, and a runner that is still there is empty again."""
    checker = Checker(link, plan, images, allocate)
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
