"""The `bench` tool: a compiled candidate gets its verdict. Two ways to run a plan, one judge.

Without a GPU the plan is replayed by the TTIR interpreter in a confined child and judged outside it: `checked`, never
a time. With a GPU it is replayed from cubins in the runner and judged and timed by the judge: `correct`. There
the supervisor owns the processes and the judge owns the verdict: it asks for runners; each is a fresh confined process
whose line leads straight to the judge, so that the judge's own clock runs around every request.
"""

import contextlib
import math
import os
import signal
import socket
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kerneltune.tools.backends import RUNNER
from kerneltune.tools.judge.execution.runner_link import Runners
from kerneltune.tools.sandbox.wire import WireMessage
from kerneltune.tools.sandbox.workers import Machine, Worker, tried_twice
from kerneltune.tools.schema.codec import DecodeError, Json, decode, encode, plain, plural
from kerneltune.tools.schema.errors import GpuLost, JudgeKilled, TaskError, WorkerError, WorkerTimeout
from kerneltune.tools.schema.gpus import Ceilings, compiled_path
from kerneltune.tools.schema.latest import Latest
from kerneltune.tools.schema.messages import (
    ANSWER_LIMIT_S,
    BASELINE_LIMIT_S,
    BASELINES,
    SCREENING,
    UNCHECKABLE,
    Baselines,
    BenchReply,
    BenchRequest,
    Compare,
    ComparisonReply,
    EndRunner,
    GpuTaken,
    InterpretReply,
    InterpretRequest,
    JudgeMessage,
    KernelImage,
    NeedRunner,
    NewInputs,
    OpenTask,
    PreparedInputs,
    Ready,
    Resolve,
    Resolved,
    Rules,
    Screened,
    ScreenVariants,
    TaskEnded,
    Warm,
)
from kerneltune.tools.schema.plan import Launch, Plan, item_bytes, plan_hash, tensor_refs
from kerneltune.tools.schema.task import CORE, HIDDEN_CASE, CaseSpec, TaskSpec, batteries_of, case_in_words
from kerneltune.tools.schema.verdict import CaseResult, Cause, Status, Tier, Verdict, concluded, task_failed
from kerneltune.tools.task.load import TaskFile
from kerneltune.tools.update import Update

_LONG_S = 60.0
# programs at the timed shape, for how long others are begun beside the first four, and when they are given up
_SAMPLE, _SAMPLE_S, _SAMPLE_LIMIT_S = 12, 0.5, 20.0
_MOST_FLOPS, _MOST_PROGRAM_BYTES = 2e10, 1e9  # of one of them
_MOST_SAMPLED_BYTES = 256 << 20  # of what a sample's programs wrote
_MOST_WHOLE_BYTES = 256 << 20  # of one that is replayed whole, where there is no other case


class Bench(Protocol):
    """Judges compiled candidates."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """The verdict on a candidate that compiled, as thoroughly as `tier` asks (a CPU knows one way)."""
        ...


_ANSWER_TIMEOUT_S = ANSWER_LIMIT_S + 30.0  # one operator of torch's cannot be interrupted
_MOST_INPUT_BYTES = 1 << 36  # of a task that is trusted
_MOST_KNOWN = 1024
_LASTING = (Status.REJECTED, Status.WRONG, Status.CHECKED)  # the others may be the machine's fault
Told = TypeVar("Told")
_OWN_FAULT = 1  # the exit status of a worker that an exception of ours ended


def ask_judge(
    judge: Worker,
    task: str,
    request: Any,
    wanted: type[Told],
    blobs: Sequence[bytes] = (),
    *,
    timeout_s: float = _ANSWER_TIMEOUT_S,
    max_fds: int = 0,
) -> tuple[Told, WireMessage]:
    """What the CPU judge answers, and the message that it came in. Raises TaskError when the task's own code ends it,
    takes too long or speaks in its place: its worker has ended then."""
    try:
        message = judge.call(
            encode(request), list(blobs), timeout_s=timeout_s, max_fds=max_fds, max_blob_bytes=_MOST_INPUT_BYTES
        )
        return decode(wanted, message.body), message
    except WorkerTimeout as error:
        raise TaskError(f"task {task}: its own code takes longer than {timeout_s:g} s") from error
    except (WorkerError, DecodeError) as error:
        if isinstance(error, DecodeError) or (judge.ended and error.exit_status is None):
            raise _spoken(judge, task, str(error)) from error
        if not _ended_by_task(error):
            raise
        raise _ended(task, error) from error


def _spoken(judge: Worker, task: str, why: str) -> TaskError:
    """What is told of a judge that says what it would not; it is ended."""
    judge.kill()
    return TaskError(f"task {task}: its own code speaks in its judge's place: {why:.300}")


def _ended_by_task(error: WorkerError) -> bool:
    """Whether a judge ended by a signal or an exit, which in its process only the task's code can bring about."""
    return error.exit_status not in (None, _OWN_FAULT)


def _ended(task: str, error: WorkerError) -> TaskError:
    told = f"task {task}: its own code ended the process that computes what is right: {error}"
    if error.exit_status == -signal.SIGKILL:
        return JudgeKilled(f"{told}, as the system does when memory runs out")
    return TaskError(told)


class CpuBench:
    """Checks plans in the interpreter. `judge` keeps seeds and answers; `new_interpreter` makes a confined child."""

    def __init__(
        self, task: TaskSpec, judge: Worker, new_interpreter: Callable[[], Worker], *, case_timeout_s: float = 120.0
    ) -> None:
        self.task, self.judge, self.timeout_s = task, judge, case_timeout_s
        self._new_interpreter = new_interpreter
        self._known = Latest[str, Verdict](_MOST_KNOWN)  # that would come out the same again
        self._drawn: PreparedInputs | None = None  # of the timed shape, and the memory that they lie in
        self._memory: int | None = None

    def apart(self, new_interpreter: Callable[[], Worker], case_timeout_s: float) -> "CpuBench":
        """The same judge and task with interpreters of one's own."""
        apart = CpuBench(self.task, self.judge, new_interpreter, case_timeout_s=case_timeout_s)
        apart._known = self._known
        return apart

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Replay every case that is small enough, with its batteries, and stop at the first that is wrong. What has the
        same plans as a candidate before it gets that one's verdict: inputs are drawn by the plans and a secret, and
        would be the same."""
        name = update.plans_sha256
        if known := self._known.get(name):
            return replace(known, receipt={**known.receipt, "reused": True})
        interpreter = _Interpreter(self._new_interpreter, self.timeout_s)
        try:
            verdict = self._bench(update, interpreter)
        finally:
            interpreter.close()
        if verdict.status in _LASTING:
            self._known.keep(name, verdict)
        return verdict

    def _bench(self, update: Update, interpreter: "_Interpreter") -> Verdict:
        seen = _Seen()
        for case in self._cases():
            outcome = self._case(update.plans[case.name][0], interpreter, seen)
            if outcome is not None:
                outcome = replace(outcome, left_out=tuple(seen.left_out))
                return concluded(outcome, {**outcome.receipt, **_receipt(update, seen.seeds)})
        results = seen.results
        if not results:
            return Verdict(
                Status.UNCHECKED,
                "compiled; no case of this task is small enough to be replayed on a CPU",
                cause=Cause.NO_SMALL_CASE,
            )
        outcome = None
        if self.task.main.name not in {r.case for r in results}:
            outcome = self._sampled(update.plans[self.task.main.name][0], interpreter, seen)
        receipt = {**_receipt(update, seen.seeds), "timed_shape": seen.timed_shape}
        if outcome is not None:
            return concluded(replace(outcome, left_out=tuple(seen.left_out)), {**outcome.receipt, **receipt})
        worst = max(r.error_ratio for r in results)
        shapes = len({r.case for r in results})
        small = "small " * all(self.task.case(r.case).runs_on_cpu for r in results)
        verdict = Verdict(
            Status.CHECKED,
            f"right on {plural(shapes, f'{small}case')}, {len(results)} input sets; worst error {worst:.2g} "
            f"of the tolerance; {_of_timed_shape(seen.timed_shape)}",
            cases=tuple(results),
            left_out=tuple(seen.left_out),
        )
        return concluded(verdict, receipt)

    def _cases(self) -> list[CaseSpec]:
        """Those to replay whole: the small ones; where there is none, the one that is timed, if it fits."""
        small = [case for case in self.task.cases if case.runs_on_cpu]
        return small or [case for case in self.task.cases[:1] if case.bytes_moved <= _MOST_WHOLE_BYTES]

    def _sampled(self, plan: Plan, interpreter: "_Interpreter", seen: "_Seen") -> Verdict | None:
        """Replay some programs at the timed shape; a verdict when what they write is wrong, else `seen` says what was
        covered, or why nothing was. Its inputs are those of the whole session, so that their seed stays unknown."""
        started_s = time.monotonic()
        if why := self._too_much(plan) or self._draw_sample():
            seen.timed_shape = {"not_run": why}
            return None
        assert self._drawn is not None
        assert self._memory is not None
        request = InterpretRequest(plan, (), most_programs=_SAMPLE, parts=self._drawn.parts, sample_s=_SAMPLE_S)
        reply, blobs = interpreter.replay(request, (), timeout_s=_SAMPLE_LIMIT_S, fds=[self._memory])
        if reply.problem:
            seen.timed_shape = {"not_run": plain(reply.detail, 200)}
            wrong = _PROBLEMS.get(reply.problem, (None, None))[0] is Status.WRONG
            return _not_run(reply, plan.case, case_in_words(self.task, plan.case), seen.results) if wrong else None
        compare = Compare(plan.case, "own", plan_hash(plan), reply.outputs, sampled=True)
        judgement, _ = ask_judge(self.judge, self.task.name, compare, ComparisonReply, blobs)
        if why := judgement.problem or judgement.malformed:
            seen.timed_shape = {"not_run": why}
            return None
        seen.timed_shape = {
            "ran": reply.ran, "programs": reply.programs, "compared": judgement.compared,
            "in_part": reply.in_part, "seconds": round(time.monotonic() - started_s, 3),
        }  # fmt: skip
        if judgement.result.ok:
            return None
        where = f"{case_in_words(self.task, plan.case, 'own')}, where {reply.ran} of its programs wrote"
        cases = (*seen.results, judgement.result)
        return Verdict(Status.WRONG, f"{where}: {judgement.result.sentence}", cases=cases, case=plan.case)

    def _too_much(self, plan: Plan) -> str:
        """Why a program of the plan would take too long in the interpreter, where its share of the work says so."""
        programs = max((math.prod(launch.grid) for launch in plan.launches), default=1)
        flops, size = self.task.main.flops / programs, self.task.main.bytes_moved / programs
        if flops <= _MOST_FLOPS and size <= _MOST_PROGRAM_BYTES:
            return ""
        return f"each of {programs:,} programs does {flops / 1e9:.1f} GFLOP on {size / 1e6:.1f} MB"

    def _draw_sample(self) -> str:
        """Have the inputs of the timed shape drawn, once; why there are none, "" where there are."""
        if self._drawn is None:
            request = NewInputs(self.task.main.name, "own", "", sampled=True)
            drawn, message = ask_judge(self.judge, self.task.name, request, PreparedInputs, max_fds=1)
            if not message.fds and not drawn.problem:
                raise _spoken(self.judge, self.task.name, "it says of inputs where they lie, and gives no memory")
            self._drawn = drawn
            if message.fds:
                self._memory = message.fds[0]
                weakref.finalize(self, os.close, self._memory)
        return self._drawn.problem

    def _case(self, plan: Plan, interpreter: "_Interpreter", seen: "_Seen") -> Verdict | None:
        """Judge one case with its batteries; adds to what was `seen`, returns a verdict when it is not right."""
        sha256, results = plan_hash(plan), seen.results
        for battery in self._batteries(plan.case):
            draw = NewInputs(plan.case, battery, sha256)
            inputs, prepared = ask_judge(self.judge, self.task.name, draw, PreparedInputs)
            if inputs.problem:
                return task_failed(inputs.problem)
            if not inputs.applies:
                seen.left_out += [f"{plan.case}/{battery}"] * inputs.short
                continue
            reply, blobs = interpreter.replay(InterpretRequest(plan, inputs.names, inputs.leads), prepared.blobs)
            if reply.problem:
                verdict = _not_run(reply, plan.case, case_in_words(self.task, plan.case), results)
                slow = verdict.status is Status.TIMED_OUT and not self.task.case(plan.case).runs_on_cpu
                return replace(verdict, status=Status.UNCHECKED) if slow else verdict
            compare = Compare(plan.case, battery, sha256, reply.outputs)
            judgement, _ = ask_judge(self.judge, self.task.name, compare, ComparisonReply, blobs)
            if judgement.problem:
                return task_failed(judgement.problem)
            if judgement.malformed:
                malformed = _malformed(judgement.malformed)
                return _not_run(malformed, plan.case, case_in_words(self.task, plan.case), results)
            result = judgement.result
            results.append(result)
            seen.seeds[f"{plan.case}/{battery}"] = f"{judgement.seed:016x}"
            if not result.ok:
                detail = f"{case_in_words(self.task, plan.case, battery)}: {result.sentence}"
                return Verdict(Status.WRONG, detail, cases=tuple(results), case=plan.case, cause=result.cause)
            if len(results) == 1 and plan.library_ops and _idle(plan, interpreter, inputs.names, prepared.blobs, blobs):
                words = ", ".join(dict.fromkeys(plan.library_ops))
                why = f"the result is the same without your kernels: library operators ({words}) do the work"
                return Verdict(Status.REJECTED, why, cases=tuple(results), case=plan.case, cause=Cause.UNUSED_LAUNCHES)
        return None

    def _batteries(self, case: str) -> tuple[str, ...]:
        """Those of the tier "judged", as if only the cases that run here existed."""
        here = tuple(c for c in self.task.cases if c.runs_on_cpu)
        if not here:
            return CORE
        return batteries_of(replace(self.task, cases=here), case)


@dataclass
class _Seen:
    """What the checks of one candidate have shown so far; seeds and what was left out, by case/battery."""

    results: list[CaseResult] = field(default_factory=list)
    seeds: dict[str, Json] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    timed_shape: dict[str, Json] = field(default_factory=dict)  # what of it was run, or why nothing was


class _Interpreter:
    """A confined child that replays the plans of one candidate; a new one after it failed, or worked for long: its
    processor time is limited as a whole."""

    def __init__(self, new: Callable[[], Worker], timeout_s: float) -> None:
        self._new, self._timeout_s = new, timeout_s
        self._worker: Worker | None = None
        self._retire_at_s = 0.0

    def replay(
        self, request: InterpretRequest, blobs: Sequence[bytes], *, timeout_s: float = 0.0, fds: Sequence[int] = ()
    ) -> tuple[InterpretReply, list[bytes]]:
        """The outputs' bytes; what goes wrong on the way is a reply."""
        limit_s = timeout_s or self._timeout_s
        try:
            if self._worker is not None and time.monotonic() > self._retire_at_s:
                self.close()
            if self._worker is None:
                self._worker, self._retire_at_s = self._new(), time.monotonic() + _LONG_S
            message = tried_twice(
                lambda by: by.call(
                    encode(request), list(blobs), timeout_s=limit_s, fds=fds, max_blob_bytes=_most_bytes(request)
                ),
                self._worker,
                self._new,
            )
            return decode(InterpretReply, message.body), message.blobs
        except WorkerTimeout:
            reply = InterpretReply(problem="timed_out", detail=f"longer than {limit_s:g} s in the interpreter")
        except WorkerError as error:
            reply = InterpretReply(problem="crashed", detail=str(error))
        except DecodeError as error:
            reply = _malformed(str(error))
        self.close()
        return reply, []

    def close(self) -> None:
        """End the child."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None


def _malformed(why: str) -> InterpretReply:
    """What counts for a reply that is none: the candidate's plan is all that was carried out there."""
    return InterpretReply(problem="crashed", detail=f"malformed reply: {why}")


def _most_bytes(request: InterpretRequest) -> int:
    """What an interpreter may send: the plan's outputs; of a sample what was written, and where."""
    if request.most_programs:
        return _MOST_SAMPLED_BYTES
    return sum(math.prod(ref.shape) * item_bytes(ref.dtype) for ref in tensor_refs(request.plan.outputs))


def _idle(
    plan: Plan, interpreter: _Interpreter, names: tuple[str, ...], inputs: Sequence[bytes], outputs: list[bytes]
) -> bool:
    """Do the candidate's kernels contribute nothing? True when the same bytes come out without their launches."""
    without = replace(plan, run=tuple(step for step in plan.run if not isinstance(step, Launch)))
    reply, blobs = interpreter.replay(InterpretRequest(without, names), inputs)
    return not reply.problem and [bytes(b) for b in blobs] == [bytes(b) for b in outputs]


_PROBLEMS: dict[str | None, tuple[Status, Cause]] = {
    UNCHECKABLE: (Status.UNCHECKED, Cause.NEEDS_GPU),
    "out_of_bounds": (Status.WRONG, Cause.OUT_OF_BOUNDS),
    "overwrites": (Status.WRONG, Cause.OVERWRITES),
    "changes": (Status.WRONG, Cause.OVERWRITES),
    "race": (Status.WRONG, Cause.RACE),
    "assert_failed": (Status.CRASHED, Cause.ASSERTION),
    "step_limit": (Status.TIMED_OUT, Cause.RUNNING),
    "deadlock": (Status.TIMED_OUT, Cause.RUNNING),
    "timed_out": (Status.TIMED_OUT, Cause.RUNNING),
}


def _of_timed_shape(covered: Mapping[str, Json]) -> str:
    """What was run of the timed shape, in words."""
    if "ran" not in covered:
        return f"the timed shape is compiled, not run: {covered['not_run']}" if covered else "no GPU, so no time"
    return (
        f"at the timed shape {covered['ran']:,} of {covered['programs']:,} programs were run"
        f"{' in part' * bool(covered['in_part'])}, and "
        f"{covered['compared']:,} elements compared; no GPU, so no time"
    )


def _receipt(update: Update, seeds: dict[str, Json]) -> dict[str, Json]:
    """What it takes to repeat the check: the plans and, now that it is over, the seeds."""
    batteries = list(dict.fromkeys(name.rpartition("/")[2] for name in seeds))
    languages = {kernel.language for plans in update.plans.values() for plan in plans for kernel in plan.kernels}
    return {"interpreter": "+".join(sorted(languages)), "plan": update.sha256, "batteries": batteries, "seeds": seeds}


def _not_run(reply: InterpretReply, case: str, where: str, results: list[CaseResult]) -> Verdict:
    """`where` says the case in words that may be told to the author."""
    status, cause = _PROBLEMS.get(reply.problem, (Status.CRASHED, Cause.RUNNER_DIED))
    problem = plain(str(reply.problem), 100)
    words = "not checkable without a GPU" if status is Status.UNCHECKED else problem.replace("_", " ")
    receipt: dict[str, Json] = {"problem": problem, "case": where if where == HIDDEN_CASE else case}
    detail = f"{where}: {words}: {reply.detail}"
    return Verdict(status, detail, cases=tuple(results), receipt=receipt, case=case, cause=cause)


CPU_JUDGE = "kerneltune.tools.judge.service.cpu_judge:main"
JUDGE = "kerneltune.tools.judge.service.session:main"
EARLY_JUDGE = "kerneltune.tools.judge.service.session:main_early"  # imports what torch.compile needs while it waits
OPEN_TIMEOUT_S = 180.0
WARM_TIMEOUT_S = 900.0  # torch.compile of the baselines
BENCH_TIMEOUT_S = 600.0
CALIBRATE_TIMEOUT_S = 180.0
Answer = TypeVar("Answer", Ready, Baselines, Screened, BenchReply, Resolved)


class GpuBench:
    """Judges and times candidates of one task. Use `gpu_bench` to make one."""

    def __init__(
        self, machine: Machine, judge: Worker, door: socket.socket, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """`tell` hears what a person who waits should know."""
        self._judge, self._tell = judge, tell
        self._task, self._killed = "", False
        self._runners = Runners(door, lambda line: machine.runner(RUNNER, line), Worker.close)
        self.opening: Future[Baselines] | None = None  # of a task, in another thread: who asks something waits for it
        self._weights: dict[str, float] = {}  # of the cases that are timed
        self._choices = Latest[str, str](_MOST_KNOWN)  # the fastest variant of an autotuned candidate

    def open(
        self,
        task_file: TaskFile,
        task: TaskSpec,
        *,
        baselines: tuple[str, ...] = BASELINES,
        ceilings: Ceilings | None = None,
        cache_dir: Path | None = None,
        baseline_limit_s: float = BASELINE_LIMIT_S,
        counters: bool = False,
        memory_bytes: int = 0,
        first_tier: Tier = "screened",
        small: Mapping[str, Json] | None = None,
    ) -> dict[str, Json]:
        """Load the task; returns the GPU as the judge found it. Raises TaskError. With `counters`, what is judged in
        full and right has hardware counters in its receipt. `small`: constants of the small case, where they are known
        and the file does not say them; else they are found out anew."""
        self._task, kept = task_file.name, str(cache_dir) if cache_dir else ""
        self._weights = {case.name: case.weight for case in task.weighted}
        request = OpenTask(
            str(task_file.path), task, baselines, ceilings, kept, baseline_limit_s, memory_bytes, first_tier,
            dict(small or {}), counters,
        )  # fmt: skip
        ready = self._ask(request, Ready, timeout_s=OPEN_TIMEOUT_S)
        if ready.problem:
            raise TaskError(ready.problem)
        return ready.gpu

    def warm(self, *, every: bool = True) -> Baselines:
        """Build and time the baselines, or the first one alone. Raises TaskError when that cannot be done."""
        baselines = self._ask(Warm(every), Baselines, timeout_s=WARM_TIMEOUT_S)
        if baselines.problem:
            raise TaskError(baselines.problem)
        return baselines

    def bench(
        self, update: Update, tier: Tier = "judged", *, reuse: bool = True, all_baselines: bool = False
    ) -> Verdict:
        """The verdict on the fastest variant of a candidate that compiled, as thoroughly as `tier` asks. The same
        plans and cubins get the same verdict again without being run (receipt["reused"]), but without `reuse`. A
        confirmation is always timed anew, but what was judged in full is not checked again before it. A screening
        times against the fastest baseline alone, or `all_baselines`, as the other tiers always do."""
        self._wait_until_open()
        variant = self._fastest(update)
        plans = tuple(_of_variant(plans, variant) for plans in update.plans.values())
        images, cubins = _images(update, plans)
        rules = SCREENING if tier == "screened" else Rules()
        request = BenchRequest(plans, images, rules, tier=tier, reuse=reuse, all_baselines=all_baselines)
        timeout_s = BENCH_TIMEOUT_S * max(1, len(self._weights))
        return self._ask(request, BenchReply, cubins, timeout_s=timeout_s).verdict

    def resolution(self, update: Update, pairs: int = 30, pair_s: float = 0.3) -> Resolved:
        """Time a candidate against itself, to see what differences can be told apart."""
        self._wait_until_open()
        plan = update.plans[update.main_case][0]
        images, cubins = _images(update, [plan])
        return self._ask(Resolve(plan, images, pairs, pair_s), Resolved, cubins, timeout_s=BENCH_TIMEOUT_S)

    def prepare(self) -> None:
        """Start a runner while the judge is busy with other things."""
        self._runners.prepare()

    def first_baselines(self) -> Baselines | None:
        """Those that are timed before anything is benched, which is waited for; None where the task was opened in no
        thread of its own. Raises TaskError and GpuLost."""
        return self.opening.result() if self.opening is not None else None

    def _wait_until_open(self) -> None:
        """Raises TaskError and GpuLost for a task that could not be opened."""
        if self.opening is not None:
            self.opening.result()

    def _fastest(self, update: Update) -> str:
        """The label of the variant that screens fastest, over all weighted cases; the default when there is no
        choice."""
        offered = update.plans[update.main_case]
        if len(offered) == 1:
            return offered[0].variant
        plans = tuple(plan for case in self._weights for plan in update.plans[case])
        name = "/".join(map(plan_hash, plans))
        if (chosen := self._choices.get(name)) is not None:
            return chosen
        images, cubins = _images(update, plans)
        screened = self._ask(ScreenVariants(plans, images), Screened, cubins, timeout_s=BENCH_TIMEOUT_S)
        if len(screened.times_us) != len(plans):  # the task's code runs in its process
            raise GpuLost(f"the judge's process sent {len(screened.times_us)} times of {plural(len(plans), 'plan')}")
        us = {(plan.case, plan.variant): t for t, plan in zip(screened.times_us, plans, strict=True)}
        times: list[tuple[float, str]] = []
        for variant in (plan.variant for plan in offered):
            each = [us[case, _of_variant(update.plans[case], variant).variant] for case in self._weights]
            known = [weight * t for weight, t in zip(self._weights.values(), each, strict=True) if t is not None]
            times += [(sum(known), variant)] * (len(known) == len(each))
        return self._choices.keep(name, min(times)[1] if times else offered[0].variant)

    def _ask(self, request: Any, wanted: type[Answer], blobs: Sequence[bytes] = (), *, timeout_s: float) -> Answer:
        """Send a request and serve the judge's wishes for runners until it answers."""
        try:
            # between two requests it may wait for the GPU as long as others have it, and reads nothing meanwhile
            self._judge.send(encode(request), list(blobs), timeout_s=None)
            while True:
                body = self._judge.receive(timeout_s=timeout_s).body
                answer: Any = decode(JudgeMessage, body)  # type: ignore[arg-type]
                if isinstance(answer, NeedRunner):
                    self._need_runner()
                elif isinstance(answer, EndRunner):
                    self._runners.end()
                elif isinstance(answer, GpuTaken):
                    self._tell("another optimize is at work on this GPU; they take turns")
                elif isinstance(answer, TaskEnded):
                    raise TaskError(f"task {self._task}: {answer.problem}")
                elif isinstance(answer, wanted):
                    return answer
                else:
                    raise GpuLost(f"the judge answered {answer.kind!r} to {request.kind!r}")
        except DecodeError as error:  # the task's code runs in its process
            raise GpuLost(f"the judge's process sent no message of a judge: {error!s:.300}") from error
        except WorkerError as error:
            if _ended_by_task(error) and not self._killed:
                raise _ended(self._task, error) from error
            tail = error.log.strip().splitlines()[-3:]
            raise GpuLost(f"the judge's process ended: {error} {' | '.join(tail)}") from error

    def _need_runner(self) -> None:
        """Bring the judge a runner. Raises GpuLost where none starts, which is not the task's doing as the judge's end
        is."""
        try:
            self._runners.need()
        except WorkerError as error:
            raise GpuLost(f"no process that runs kernels can be started: {error}") from error

    def kill(self) -> None:
        """End the judge at once: who waits for it, in another thread, is told GpuLost."""
        self._killed = True
        self._judge.kill()

    def close(self) -> None:
        """End the runners."""
        self._runners.close()


def _of_variant(plans: Sequence[Plan], variant: str) -> Plan:
    """A case's plan of that variant; its default where the autotuner offered other configs for this shape."""
    return next((p for p in plans if p.variant == variant), plans[0])


def _images(update: Update, plans: Sequence[Plan]) -> tuple[tuple[KernelImage, ...], list[bytes]]:
    kernels = dict.fromkeys(k.sha256 for plan in plans for k in plan.kernels)
    artefacts = [(name, update.artefacts[name]) for name in kernels]
    images = tuple(KernelImage(name, artefact.compiled.metadata) for name, artefact in artefacts)
    return images, [artefact.cubin for _, artefact in artefacts]


@contextlib.contextmanager
def gpu_bench(
    task_file: TaskFile,
    task: TaskSpec,
    machine: Machine,
    *,
    baselines: tuple[str, ...] = BASELINES,
    ceilings: Ceilings | None = None,
    cache_dir: Path | None = None,
) -> Iterator[GpuBench]:
    """Start the judge on the GPU and load the task; end judge and runner on the way out. `ceilings` are what
    `calibrate` measured on this GPU; torch.compile keeps its work in `cache_dir`, for the next session."""
    with waiting_judge(machine, task_file=task_file, cache_dir=cache_dir) as bench:
        bench.open(task_file, task, baselines=baselines, ceilings=ceilings, cache_dir=cache_dir)
        bench.warm()
        yield bench


@contextlib.contextmanager
def opening(bench: GpuBench, ready: Callable[[], Baselines]) -> Iterator[GpuBench]:
    """Open a task with `ready` in a thread of its own: candidates are traced and compiled meanwhile, and the first that
    is benched waits for it."""
    with ThreadPoolExecutor(1, thread_name_prefix="opening") as pool:
        bench.opening = pool.submit(ready)
        try:
            yield bench
        finally:
            bench.kill()  # else an opening that nobody waits for any more would be waited for


@contextlib.contextmanager
def waiting_judge(
    machine: Machine,
    target: str = JUDGE,
    tell: Callable[[str], None] = lambda _: None,
    *,
    task_file: TaskFile | None,
    cache_dir: Path | None = None,
) -> Iterator[GpuBench]:
    """Start the judge, which opens a task when it is told one; end judge and runner on the way out. One that is started
    before there is a task is an EARLY_JUDGE. `tell` hears what a person who waits should know. It is confined to what
    `task_file` may read, and to what it keeps of it in `cache_dir`; with None it is not confined."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as held:
        held.enter_context(ours)
        held.enter_context(theirs)
        if task_file is None:
            judge = held.enter_context(machine.trusted(target, extra=[theirs]))
        else:
            kept = _kept_of(task_file, cache_dir) if cache_dir else ()
            judge = held.enter_context(machine.task(target, [task_file.path], kept, [theirs]))
        bench = GpuBench(machine, judge, ours, tell)
        try:
            yield bench
        finally:
            bench.close()


def _kept_of(task_file: TaskFile, cache_dir: Path) -> tuple[Path, ...]:
    """Make the folders that a judge of that task writes in; those that cannot be made it misses, and says so."""
    folders = (compiled_path(cache_dir, task_file.sha256), cache_dir / "locks")
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folders


def calibrate(machine: Machine) -> Ceilings:
    """Measure this GPU's ceilings in a worker; takes some ten seconds. Raises GpuLost when it cannot be done."""
    try:
        with machine.trusted("kerneltune.tools.judge.timing.ceilings:main") as worker:
            body = worker.call({"kind": "calibrate"}, timeout_s=CALIBRATE_TIMEOUT_S).body
    except WorkerError as error:
        raise GpuLost(f"the GPU could not be calibrated: {error}") from error
    if body.get("problem"):
        raise GpuLost(f"the GPU could not be calibrated: {body['problem']}")
    return decode(Ceilings, body)
