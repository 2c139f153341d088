"""The `update` tool: a source becomes launch plans and cubins, or a verdict that says why not. Needs no GPU."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tools.codec import DecodeError, Json, decode, encode
from tools.errors import WorkerError, WorkerTimeout
from tools.output_shapes import mismatch
from tools.plan.messages import (
    AskCompiler,
    Compiled,
    CompileReply,
    CompileRequest,
    KernelFacts,
    TraceReply,
    TraceRequest,
)
from tools.plan.refusal import Failure
from tools.plan.schema import Kernel, Plan, plan_hash
from tools.plan.traffic import traffic_bytes
from tools.received import malformed
from tools.spec import TaskSpec
from tools.verdict import KernelReport, Status, Verdict
from tools.workers import Worker

MAX_SOURCE_BYTES = 1 << 20
NUL = "\0"
_LONE = re.compile("[\\ud800-\\udfff]")  # half of a surrogate pair: not a character, and not UTF-8
_FAILURES = (
    Status.REJECTED,
    Status.COMPILE_FAILED,
    Status.CRASHED,
    Status.TIMED_OUT,
)  # that tracer and compiler may claim
MAX_QUESTIONS = 32  # that one trace may put to the compiler


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel: report, launch metadata, cubin."""

    compiled: Compiled
    cubin: bytes


@dataclass(frozen=True)
class Update:
    """What came of a source. `plans` by case name, the default variant first; `artefacts` by Kernel.sha256; `failure`
    when it got no further."""

    plans: Mapping[str, tuple[Plan, ...]] = field(default_factory=dict)
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)
    failure: Verdict | None = None
    trace_s: float = 0.0
    compile_s: float = 0.0
    dropped_variants: tuple[str, ...] = ()
    main_case: str = ""

    @property
    def main_plan(self) -> Plan | None:
        """The default variant's plan of the timed case."""
        plans = self.plans.get(self.main_case, ())
        return plans[0] if plans else None

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """Compile reports of the main plan, in launch order of first use."""
        return self.kernels_of(self.main_plan)

    def kernels_of(self, plan: Plan | None) -> tuple[KernelReport, ...]:
        """Compile reports of one of the plans, in launch order of first use; those that were compiled."""
        found = (self.artefacts.get(k.sha256) for k in plan.kernels) if plan else ()
        return tuple(a.compiled.report for a in found if a is not None)

    def judged_plans(self, variant: str) -> tuple[Plan, ...]:
        """Each case's plan of that variant; its default where the autotuner offered other configs for the shape."""
        return tuple(next((p for p in plans if p.variant == variant), plans[0]) for plans in self.plans.values())

    def judged_plan(self, variant: str) -> Plan | None:
        """The main case's among them: what is timed."""
        return next((p for p in self.judged_plans(variant) if p.case == self.main_case), None)

    @property
    def traffic_bytes(self) -> int:
        """Bytes that one forward of the main plan touches at least."""
        return traffic_bytes(self.main_plan) if self.main_plan else 0

    @property
    def sha256(self) -> str | None:
        """The hash of the main plan, which names the work done."""
        return plan_hash(self.main_plan) if self.main_plan else None


@dataclass(frozen=True)
class UpdateLimits:
    """Seconds for one candidate's tracing and compiling; how many autotune configs become variants."""

    trace_s: float = 60.0
    compile_s: float = 120.0
    max_variants: int = 16


class Updater:
    """Traces and compiles candidates, each in workers of its own."""

    def __init__(
        self,
        task: TaskSpec,
        arch: str,
        new_tracer: Callable[[], Worker],
        new_compiler: Callable[[], Worker],
        limits: UpdateLimits | None = None,
    ) -> None:
        self.task, self.arch, self.limits = task, arch, limits or UpdateLimits()
        self._new_tracer, self._new_compiler = new_tracer, new_compiler
        self.compile_cases: Sequence[str] = [c.name for c in task.cases]

    def update(self, source: str) -> Update:
        """Trace every case, then compile every kernel of the cases that will be run or timed."""
        if problem := _static_problem(source):
            return Update(failure=Verdict(Status.REJECTED, problem))
        started = time.perf_counter()
        reply = self._trace(source)
        trace_s = time.perf_counter() - started
        if reply.failure:
            return Update(failure=self._refused(reply.failure, reply.failed_case), trace_s=trace_s)
        if forged := malformed(reply.plans, self.task.cases, self.limits.max_variants):
            return Update(failure=Verdict(Status.REJECTED, f"its process sent {forged}"), trace_s=trace_s)
        plans = {c.name: tuple(p for p in reply.plans if p.case == c.name) for c in self.task.cases}
        if other := self._returns_something_else(plans):
            return Update(plans, failure=other, trace_s=trace_s, main_case=self.task.main.name)
        started = time.perf_counter()
        artefacts, failure = self._compile(plans)
        compile_s = time.perf_counter() - started
        return Update(plans, artefacts, failure, trace_s, compile_s, reply.dropped_variants, self.task.main.name)

    def _refused(self, failure: Failure, case: str | None) -> Verdict:
        verdict = _verdict(failure, self._case_note(case))
        return replace(verdict, receipt=verdict.receipt | {"case": case}) if case else verdict

    def _returns_something_else(self, plans: Mapping[str, Sequence[Plan]]) -> Verdict | None:
        """Another structure, shape or dtype than the reference's is wrong before anything is compiled or run."""
        for case in self.task.cases:
            for plan in plans[case.name]:
                if problem := mismatch(case.outputs, plan.outputs):
                    return Verdict(Status.WRONG, problem + self._case_note(case.name), receipt={"case": case.name})
        return None

    def _case_note(self, case: str | None) -> str:
        known = {c.name: c for c in self.task.cases[1:]}
        if case not in known:
            return ""
        return " (in a case with held-out shapes)" if known[case].held_out else f" (in case {case!r})"

    def _trace(self, source: str) -> TraceReply:
        request = TraceRequest(source, self.task.cases, self.limits.max_variants)
        try:
            with self._new_tracer() as worker:
                worker.send(encode(request))
                return self._answered(worker)
        except WorkerTimeout:
            limit = f"importing and tracing the candidate took longer than {self.limits.trace_s:g} s"
            return TraceReply(failure=Failure(Status.TIMED_OUT, limit))
        except WorkerError as error:
            return TraceReply(failure=Failure(Status.CRASHED, f"while tracing, the process {_end(error)}"))
        except (DecodeError, RecursionError) as error:
            return TraceReply(failure=Failure(Status.REJECTED, f"its process sent a malformed plan: {error}"))

    def _answered(self, worker: Worker) -> TraceReply:
        """The tracer's reply; before it, it may ask for facts that only the compiler knows."""
        deadline = time.monotonic() + self.limits.trace_s
        for _ in range(MAX_QUESTIONS):
            body = worker.receive(timeout_s=max(0.1, deadline - time.monotonic()), max_blob_bytes=0).body
            message: TraceReply | AskCompiler = decode(TraceReply | AskCompiler, body)  # type: ignore[arg-type]
            if isinstance(message, TraceReply):
                return message
            worker.send(encode(self._facts(message.kernel)))
        return TraceReply(
            failure=Failure(Status.REJECTED, f"host code asks the compiler more than {MAX_QUESTIONS} times")
        )

    def _facts(self, kernel: Kernel) -> KernelFacts:
        reply, _ = self._compiled([kernel])
        if isinstance(reply, Verdict) or reply.failure:
            return KernelFacts(problem=reply.detail if isinstance(reply, Verdict) else "it does not compile")
        report = reply.compiled[0].report
        spilled = report.spill_store_bytes + report.spill_load_bytes
        return KernelFacts(report.registers, spilled, report.shared_bytes)

    def _compile(self, plans: Mapping[str, Sequence[Plan]]) -> tuple[dict[str, Artefact], Verdict | None]:
        unique = {k.sha256: k for case in self.compile_cases for plan in plans[case] for k in plan.kernels}
        reply, cubins = self._compiled(list(unique.values()))
        if isinstance(reply, Verdict):
            return {}, reply
        if not reply.failure and not len(unique) == len(reply.compiled) == len(cubins):
            return {}, Verdict(
                Status.COMPILE_FAILED, f"the compiler answered for {len(cubins)} of {len(unique)} kernels"
            )
        done = zip(unique, reply.compiled, cubins, strict=False)
        artefacts = {key: Artefact(compiled, cubin) for key, compiled, cubin in done}
        return artefacts, _verdict(reply.failure, f" (kernel {reply.failed_kernel})") if reply.failure else None

    def _compiled(self, kernels: Sequence[Kernel]) -> tuple[CompileReply | Verdict, list[bytes]]:
        """Compile in a fresh worker; a verdict when the compiler died or took too long."""
        request = CompileRequest(tuple(kernels), self.arch)
        try:
            with self._new_compiler() as worker:
                message = worker.call(encode(request), timeout_s=self.limits.compile_s)
            return decode(CompileReply, message.body), message.blobs
        except WorkerTimeout:
            names = ", ".join(sorted({k.name for k in kernels}))
            return Verdict(Status.TIMED_OUT, f"compiling {names} took longer than {self.limits.compile_s:g} s"), []
        except WorkerError as error:
            return Verdict(Status.COMPILE_FAILED, f"the compiler {_end(error)}"), []


def _end(error: WorkerError) -> str:
    tail = error.log.strip().splitlines()[-3:]
    return str(error).partition(" ")[2] + (": " + " | ".join(tail) if tail else "")


def _verdict(failure: Failure, note: str = "") -> Verdict:
    if failure.status not in _FAILURES:  # the candidate's own process may have written the reply
        return Verdict(Status.REJECTED, f"its process claims to be {failure.status.value!r} without a plan")
    where = f"line {failure.line}: " if failure.line else ""
    detail: dict[str, Json] = {"line": failure.line} if failure.line else {}
    return Verdict(failure.status, f"{where}{failure.message}{note}", receipt=detail)


def _static_problem(source: str) -> str | None:
    """What can be said before anything runs."""
    if not source.strip():
        return "the source is empty; send a Python file that defines class ModelNew(torch.nn.Module)"
    n_bytes = len(source.encode(errors="surrogatepass"))
    if n_bytes > MAX_SOURCE_BYTES:
        return f"the source has {n_bytes} bytes; the limit is 1 MiB ({MAX_SOURCE_BYTES})"
    if NUL in source:
        return f"the source contains NUL bytes{_place(source, source.index(NUL))}; send Python text"
    if lone := _LONE.search(source):
        return f"the source is not valid Unicode text{_place(source, lone.start())}; send UTF-8"
    return None


def _place(source: str, at: int) -> str:
    line = source.count("\n", 0, at) + 1
    return f" (line {line})"
