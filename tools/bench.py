"""The `bench` tool: a compiled candidate gets its verdict. Two ways to run a plan, one judge.

Without a GPU the plan is replayed by the TTIR interpreter in a confined child and judged outside it: `checked`, never
a time. With a GPU it is replayed from cubins in the runner and judged and timed by the judge: `correct`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kerneltune.tools.judge.correctness.batteries import HIDDEN_CASE, batteries_of, case_in_words
from kerneltune.tools.judge.service.protocol import Compare, ComparisonReply, NewInputs, PreparedInputs
from kerneltune.tools.sandbox.workers import Worker
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode
from kerneltune.tools.schema.errors import WorkerError, WorkerTimeout
from kerneltune.tools.schema.messages import UNCHECKABLE, InterpretReply, InterpretRequest
from kerneltune.tools.schema.plan import Launch, Plan, plan_hash
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.text import plain
from kerneltune.tools.schema.verdict import CaseResult, Status, Tier, Verdict, concluded
from kerneltune.tools.update import Update

_LONG_S = 60.0


class Bench(Protocol):
    """Judges compiled candidates."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """The verdict on a candidate that compiled, as thoroughly as `tier` asks (a CPU knows one way)."""
        ...


class CpuBench:
    """Checks plans in the interpreter. `judge` keeps seeds and answers; `new_interpreter` makes a confined child."""

    def __init__(
        self, task: TaskSpec, judge: Worker, new_interpreter: Callable[[], Worker], *, case_timeout_s: float = 120.0
    ) -> None:
        self.task, self.judge, self.timeout_s = task, judge, case_timeout_s
        self._new_interpreter = new_interpreter

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Replay every case that is small enough, with its batteries, and stop at the first that is wrong."""
        interpreter = _Interpreter(self._new_interpreter, self.timeout_s)
        try:
            return self._bench(update, interpreter)
        finally:
            interpreter.close()

    def _bench(self, update: Update, interpreter: "_Interpreter") -> Verdict:
        seen = _Seen()
        for case in self.task.cases:
            if not case.runs_on_cpu:
                continue
            outcome = self._case(update.plans[case.name][0], interpreter, seen)
            if outcome is not None:
                outcome = replace(outcome, left_out=tuple(seen.left_out))
                return concluded(outcome, {**outcome.receipt, **_receipt(update, seen.seeds)})
        results = seen.results
        if not results:
            return Verdict(Status.UNCHECKED, "compiled; no case of this task is small enough to be replayed on a CPU")
        worst = max(r.error_ratio for r in results)
        shapes = len({r.case for r in results})
        verdict = Verdict(
            Status.CHECKED,
            f"right on {shapes} small case{'s' * (shapes != 1)}, {len(results)} input sets; worst error {worst:.2g} of "
            "the tolerance; the timed shape is compiled, not run: no GPU",
            cases=tuple(results),
            left_out=tuple(seen.left_out),
        )
        return concluded(verdict, _receipt(update, seen.seeds))

    def _case(self, plan: Plan, interpreter: "_Interpreter", seen: "_Seen") -> Verdict | None:
        """Judge one case with its batteries; adds to what was `seen`, returns a verdict when it is not right."""
        sha256, results = plan_hash(plan), seen.results
        for battery in self._batteries(plan.case):
            prepared = self.judge.call(encode(NewInputs(plan.case, battery, sha256)), timeout_s=self.timeout_s)
            inputs = decode(PreparedInputs, prepared.body)
            if not inputs.applies:
                seen.left_out += [f"{plan.case}/{battery}"] * inputs.short
                continue
            reply, blobs = interpreter.replay(InterpretRequest(plan, inputs.names), prepared.blobs)
            if reply.problem:
                return _not_run(reply, plan.case, case_in_words(self.task, plan.case), results)
            judged = self.judge.call(encode(Compare(plan.case, battery, sha256, reply.outputs)), blobs, timeout_s=300.0)
            judgement = decode(ComparisonReply, judged.body)
            result = judgement.result
            results.append(result)
            seen.seeds[f"{plan.case}/{battery}"] = f"{judgement.seed:016x}"
            if not result.ok:
                detail = f"{case_in_words(self.task, plan.case, battery)}: {result.sentence}"
                return Verdict(Status.WRONG, detail, cases=tuple(results), case=plan.case)
            if len(results) == 1 and plan.library_ops and _idle(plan, interpreter, inputs.names, prepared.blobs, blobs):
                words = ", ".join(dict.fromkeys(plan.library_ops))
                why = f"the result is the same without your kernels: library operators ({words}) do the work"
                return Verdict(Status.REJECTED, why, cases=tuple(results), case=plan.case)
        return None

    def _batteries(self, case: str) -> tuple[str, ...]:
        """Those of the tier "judged", as if only the cases that run here existed."""
        here = tuple(c for c in self.task.cases if c.runs_on_cpu)
        return batteries_of(replace(self.task, cases=here), case)


@dataclass
class _Seen:
    """What the checks of one candidate have shown so far; seeds and what was left out, by case/battery."""

    results: list[CaseResult] = field(default_factory=list)
    seeds: dict[str, Json] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


class _Interpreter:
    """A confined child that replays the plans of one candidate; a new one after it failed, or worked for long: its
    processor time is limited as a whole."""

    def __init__(self, new: Callable[[], Worker], timeout_s: float) -> None:
        self._new, self._timeout_s = new, timeout_s
        self._worker: Worker | None = None
        self._retire_at_s = 0.0

    def replay(self, request: InterpretRequest, blobs: Sequence[bytes]) -> tuple[InterpretReply, list[bytes]]:
        """The outputs' bytes; what goes wrong on the way is a reply."""
        try:
            if self._worker is not None and time.monotonic() > self._retire_at_s:
                self.close()
            if self._worker is None:
                self._worker, self._retire_at_s = self._new(), time.monotonic() + _LONG_S
            message = self._worker.call(encode(request), list(blobs), timeout_s=self._timeout_s)
            return decode(InterpretReply, message.body), message.blobs
        except WorkerTimeout:
            reply = InterpretReply(problem="timed_out", detail=f"longer than {self._timeout_s:g} s in the interpreter")
        except WorkerError as error:
            reply = InterpretReply(problem="crashed", detail=str(error))
        except DecodeError as error:
            reply = InterpretReply(problem="crashed", detail=f"malformed reply: {error}")
        self.close()
        return reply, []

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None


def _idle(
    plan: Plan, interpreter: _Interpreter, names: tuple[str, ...], inputs: Sequence[bytes], outputs: list[bytes]
) -> bool:
    """Do the candidate's kernels contribute nothing? True when the same bytes come out without their launches."""
    without = replace(plan, run=tuple(step for step in plan.run if not isinstance(step, Launch)))
    reply, blobs = interpreter.replay(InterpretRequest(without, names), inputs)
    return not reply.problem and [bytes(b) for b in blobs] == [bytes(b) for b in outputs]


_PROBLEMS: dict[str | None, Status] = {
    UNCHECKABLE: Status.UNCHECKED,
    "out_of_bounds": Status.WRONG,
    "overwrites": Status.WRONG,
    "changes": Status.WRONG,
    "race": Status.WRONG,
    "assert_failed": Status.CRASHED,
    "step_limit": Status.TIMED_OUT,
    "deadlock": Status.TIMED_OUT,
    "timed_out": Status.TIMED_OUT,
}


def _receipt(update: Update, seeds: dict[str, Json]) -> dict[str, Json]:
    """What it takes to repeat the check: the plans and, now that it is over, the seeds."""
    batteries = list(dict.fromkeys(name.rpartition("/")[2] for name in seeds))
    languages = {kernel.language for plans in update.plans.values() for plan in plans for kernel in plan.kernels}
    return {"interpreter": "+".join(sorted(languages)), "plan": update.sha256, "batteries": batteries, "seeds": seeds}


def _not_run(reply: InterpretReply, case: str, where: str, results: list[CaseResult]) -> Verdict:
    """`where` says the case in words that may be told to the author."""
    status = _PROBLEMS.get(reply.problem, Status.CRASHED)
    problem = plain(str(reply.problem), 100)
    words = "not checkable without a GPU" if status is Status.UNCHECKED else problem.replace("_", " ")
    receipt: dict[str, Json] = {"problem": problem, "case": where if where == HIDDEN_CASE else case}
    return Verdict(status, f"{where}: {words}: {reply.detail}", cases=tuple(results), receipt=receipt, case=case)
