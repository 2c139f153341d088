"""The `update` tool: a source becomes launch plans and cubins, or a verdict that says why not. Needs no GPU.

Confined workers trace (`trace.tracer`) and compile (`compile.compiler`). What they say is checked here and becomes a
value: plans under the cases' own names, compiled kernels, or a verdict.

A tracer's reply may have been written by the candidate's code, which ran in the same process. `malformed`: is it a set
of plans? What passes can be hashed, counted and handed on without raising, in time and memory that its limits bound.
`untrue`: do the plans say the truth about themselves, by what their kernels' texts say? Those are read by a confined
worker under a limit of time: a MB takes a second.
`mismatch`: does a plan return what the task's Model returns, as far as structure, shapes and dtypes tell? Trees are
those of a launch plan and of `schema.task`: {"$tensor": …} leaves in lists, {"$tuple"} and {"$dict"}; a list may stand
for a tuple, as the judge allows.
"""

import contextlib
import copy
import hashlib
import itertools
import math
import os
import re
import reprlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from tempfile import gettempdir
from typing import Self

from kerneltune.tools.languages.base import device_code, launch_effects
from kerneltune.tools.languages.ptx import PtxError
from kerneltune.tools.languages.ptx.candidate import CannotSay, ptx_candidate, short
from kerneltune.tools.sandbox.workers import Worker, tried_twice
from kerneltune.tools.schema.codec import MAX_SOURCE_BYTES, DecodeError, Json, counted, decode, encode, plain
from kerneltune.tools.schema.errors import Unfit, WorkerError, WorkerTimeout
from kerneltune.tools.schema.gpus import gpu_for_arch
from kerneltune.tools.schema.latest import Latest
from kerneltune.tools.schema.messages import (
    AskCompiler,
    AskForPtx,
    Compiled,
    CompileReply,
    CompileRequest,
    CompilerFacts,
    EffectsReply,
    EffectsRequest,
    Failure,
    KernelEffects,
    Lowered,
    LoweringRequest,
    Program,
    PtxReply,
    PtxRequest,
    PtxStage,
    SassReply,
    SassRequest,
    TraceReply,
    TraceRequest,
    traced_case,
)
from kerneltune.tools.schema.plan import (
    MOST_STEPS,
    DescriptorArg,
    ForwardPass,
    Kernel,
    Launch,
    LaunchArg,
    LaunchEffects,
    Plan,
    ScalarArg,
    TensorRef,
    is_allowed,
    is_library,
    live_steps,
    plan_hash,
    step_refs,
    tensor_refs,
)
from kerneltune.tools.schema.sass import MOST_PTX, effective_bytes, made_plain
from kerneltune.tools.schema.task import CaseSpec, Contract, TaskSpec
from kerneltune.tools.schema.verdict import MOST_OF_A_NAME, Cause, KernelReport, Status, Verdict

NUL = "\0"
_LONE = re.compile("[\\ud800-\\udfff]")  # half of a surrogate pair: not a character, and not UTF-8
HELD_OUT_FAILS = (
    "fails in a case with held-out shapes: the host code or a kernel does not handle all shapes of the declared domain"
)
HELD_OUT_TOO_LARGE = "too large for this GPU in a case with held-out shapes"
SASS_S = 20.0  # of one kernel
_MOST_BYTES = 1 << 40
MAX_QUESTIONS = 128  # that one trace may put to the compiler: 16 configs of each program
_MOST_LINES = 1 << 20  # of a source of 1 MiB
_MOST_DROPPED = 64
_MOST_REMEMBERED, _MOST_REMEMBERED_BYTES = 256, 1 << 20  # answers of compilers on a task, and the code in each
_MOST_LISTINGS = 8
_MOST_PTX_LINES = 8
MOST_OF_A_MESSAGE = 1800  # leaves room for a note behind it in a detail of 2000 characters
_FAILURES = (
    Status.REJECTED,
    Status.COMPILE_FAILED,
    Status.CRASHED,
    Status.TIMED_OUT,
)  # that tracer and compiler may claim


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel: report, launch metadata, cubin."""

    compiled: Compiled
    cubin: bytes


@dataclass(frozen=True)
class Built:
    """Artefacts by Kernel.sha256; the bytes of shared memory of kernels that no block of the target has room for; or
    the failure and the number of the group that it happened in."""

    artefacts: dict[str, Artefact] = field(default_factory=dict)
    too_large: dict[str, int] = field(default_factory=dict)
    failure: Verdict | None = None
    failed_group: int = 0


@dataclass(frozen=True)
class Traced:
    """Every plan of every case; or the failure and, if it is known, the case that it happened in."""

    plans: tuple[Plan, ...] = ()
    failure: Verdict | None = None
    failed_case: CaseSpec | None = None
    dropped_variants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Update:
    """What came of a source. `plans` by case name, the default variant first; `artefacts` by Kernel.sha256; `failure`
    when it got no further; `effective_bytes`: what orders it where nobody takes the time."""

    plans: Mapping[str, tuple[Plan, ...]] = field(default_factory=dict)
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)
    failure: Verdict | None = None
    trace_s: float = 0.0
    compile_s: float = 0.0
    dropped_variants: tuple[str, ...] = ()
    main_case: str = ""
    effective_bytes: float | None = None

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
        return tuple(artefact.compiled.report for _, artefact in self.compiled_of(plan))

    def compiled_of(self, plan: Plan | None) -> list[tuple[Kernel, Artefact]]:
        """The kernels of one of the plans that were compiled, and what came of them, in launch order of first use."""
        kernels = plan.kernels if plan else ()
        return [(k, self.artefacts[k.sha256]) for k in kernels if k.sha256 in self.artefacts]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found in the main plan's kernels without stopping them, each once, with the kernel's name."""
        made = self.compiled_of(self.main_plan)
        return tuple(dict.fromkeys(f"{kernel.name}: {note}" for kernel, a in made for note in a.compiled.notes))

    def judged_plans(self, variant: str) -> tuple[Plan, ...]:
        """Each case's plan of that variant; its default where the autotuner offered other configs for the shape."""
        return tuple(next((p for p in plans if p.variant == variant), plans[0]) for plans in self.plans.values())

    def judged_plan(self, variant: str) -> Plan | None:
        """The main case's among them: what is timed. Of a variant that has none, and of "", the default's."""
        return next((p for p in self.judged_plans(variant) if p.case == self.main_case), None)

    @property
    def traffic_bytes(self) -> int:
        """Bytes that one forward of the main plan touches at least."""
        return self.main_plan.traffic_bytes if self.main_plan else 0

    @property
    def sha256(self) -> str | None:
        """The hash of the main plan, which names the work done."""
        return plan_hash(self.main_plan) if self.main_plan else None

    @property
    def plans_sha256(self) -> str:
        """The hash of all plans, by which two sources are one candidate; "" when there is none."""
        hashes = [plan_hash(plan) for case in sorted(self.plans) for plan in self.plans[case]]
        return hashlib.sha256(" ".join(hashes).encode()).hexdigest() if hashes else ""


@dataclass(frozen=True)
class UpdateLimits:
    """Seconds for one candidate's tracing and compiling; how many autotune configs become variants."""

    trace_s: float = 60.0
    compile_s: float = 120.0
    max_variants: int = 16


class Updater:
    """Traces and compiles candidates, each in workers of its own.

    Code of a candidate that has seen a held-out shape could put it into any words, names or times. So such cases are
    traced in a process of their own, after the one for the others has ended, and of their failures only the status is
    passed on.
    """

    def __init__(
        self,
        task: TaskSpec,
        arch: str,
        new_tracer: Callable[[], Worker],
        new_compiler: Callable[[], Worker],
        limits: UpdateLimits | None = None,
    ) -> None:
        self.task, self.arch, self.limits = task, arch, limits or UpdateLimits()
        self._work_with(new_tracer, KernelCompiler(new_compiler, arch, compile_s=self.limits.compile_s))
        self.compile_cases: Sequence[str] = [c.name for c in task.cases]

    def _work_with(self, new_tracer: Callable[[], Worker], compiling: "KernelCompiler") -> None:
        self._compiling = compiling
        self._tracing = CandidateTracer(
            new_tracer, compiling, trace_s=self.limits.trace_s, variants=self.limits.max_variants
        )

    def apart(self, new_tracer: Callable[[], Worker], new_compiler: Callable[[], Worker], limits: UpdateLimits) -> Self:
        """The same for one of several runs on the task, with workers and limits of its own; what compilers answered is
        known to all of them."""
        apart = copy.copy(self)
        apart.limits = limits
        apart._work_with(new_tracer, self._compiling.apart(new_compiler, limits.compile_s))
        return apart

    def update(self, source: str, on_stage: Callable[[str], None] = lambda _: None) -> Update:
        """Trace every case, then compile every kernel of the cases that will be run or timed; `on_stage` is
        called with "tracing" and "compiling" when each begins."""
        if problem := _static_problem(source):
            return Update(failure=problem)
        on_stage("tracing")
        started = time.perf_counter()
        plans, dropped, failure = self._trace(source)
        trace_s = time.perf_counter() - started
        if failure:
            return Update(plans, failure=failure, trace_s=trace_s, main_case=self.task.main.name if plans else "")
        on_stage("compiling")
        started = time.perf_counter()
        built = self._compile(plans)
        plans, too_large, failure = self._without(plans, built.too_large)
        compile_s = time.perf_counter() - started
        return Update(
            plans,
            built.artefacts,
            _placed(built.failure, source, plans) or failure,
            trace_s,
            compile_s,
            (*dropped, *too_large),
            self.task.main.name,
        )

    def effective_bytes(self, update: Update, variant: str = "") -> float | None:
        """What orders the main plan (a variant's, if named) where nobody times it; None where its kernels cannot be
        disassembled."""
        plan = update.judged_plan(variant)
        made, reply = update.compiled_of(plan), self.sass(update, variant)
        if plan is None or (made and reply.problem):
            return None
        reports = {kernel.sha256: artefact.compiled.report for kernel, artefact in made}
        code = {kernel.sha256: sass for (kernel, _), sass in zip(made, reply.kernels, strict=False)}
        try:
            known = self._compiling.effects(_launched([plan]))
        except (WorkerError, DecodeError):
            return None
        return effective_bytes(plan, _effects(plan, known), reports, code, gpu_for_arch(self.arch))

    def _trace(self, source: str) -> tuple[dict[str, tuple[Plan, ...]], tuple[str, ...], Verdict | None]:
        """Plans by case, the variants left out, and what is wrong: the cases that are not held out come first."""
        found: list[Plan] = []
        dropped: tuple[str, ...] = ()
        groups = self._groups()
        with contextlib.closing(self._tracing.trace(source, groups, self.task.contracts)) as each:
            for cases, traced in zip(groups, each, strict=True):
                found += traced.plans
                if failure := self._refused(traced, cases) or self._returns_something_else(traced, cases):
                    return _by_case(found, self.task.cases), (), failure
                dropped = dropped if cases[0].held_out else traced.dropped_variants
        return _by_case(found, self.task.cases), dropped, None

    def sass(self, update: Update, variant: str = "") -> SassReply:
        """The kernels of an update's main plan disassembled, in the order of `kernels_of`; of a variant's, if named."""
        plan = update.judged_plan(variant)
        return self._compiling.sass([artefact for _, artefact in update.compiled_of(plan)])

    def ttgir(self, update: Update, variant: str = "") -> PtxReply:
        """Triton's own representation of the same kernels, with layouts, from which PTX is made."""
        plan = update.judged_plan(variant)
        reply = self._compiling.ptx([kernel for kernel, _ in update.compiled_of(plan)], "ttgir")
        return PtxReply(tuple(plain(text, MOST_PTX) for text in reply.texts), problem=plain(reply.problem))

    def as_ptx(self, source: str, update: Update, variant: str = "default") -> str:
        """A PTX candidate from one that launches Triton kernels, for its timed case and those of the others that may be
        told of and add little text. Raises CannotSay with words for a person."""
        shown = [case for case in self.task.cases if not case.held_out]
        plans = {plan.case: plan for plan in update.judged_plans(variant) if plan.case in {c.name for c in shown}}
        if self.task.main.name not in plans:
            raise CannotSay("its timed case has no launch plan")
        kernels = list({k.sha256: k for plan in plans.values() for k in plan.kernels}.values())
        reply = self._compiling.ptx(kernels)
        if reply.problem:
            raise CannotSay(f"its kernels give no PTX: the compiler {reply.problem}")
        names = [k.sha256 for k in kernels]
        texts = dict(zip(names, reply.texts, strict=True))
        shared = dict(zip(names, reply.shared_bytes, strict=True))
        try:
            return ptx_candidate(source, short(plans, texts), texts, cases=shown, shared_bytes=shared)
        except PtxError as error:
            raise CannotSay(f"its PTX cannot be read: {error}") from error

    def ptx_of(self, source: str) -> str:
        """The same of a source alone. Raises CannotSay, also for one that does not compile."""
        update = self.update(source)
        if update.failure is not None:
            raise CannotSay(f"it is refused: {update.failure.detail}")
        return self.as_ptx(source, update)

    def _groups(self) -> list[list[CaseSpec]]:
        """The cases that an author may know of; those that are held out."""
        groups = [[c for c in self.task.cases if c.held_out is hidden] for hidden in (False, True)]
        return [cases for cases in groups if cases]

    def _refused(self, traced: Traced, cases: Sequence[CaseSpec]) -> Verdict | None:
        if traced.failure is None:
            return None
        case = traced.failed_case or (cases[0] if cases[0].held_out else None)
        return self._public(traced.failure, case) if case else traced.failure

    def _returns_something_else(self, traced: Traced, cases: Sequence[CaseSpec]) -> Verdict | None:
        """Another structure, shape or dtype than the reference's is wrong before anything is compiled or run."""
        outputs = {case.name: case for case in cases}
        for plan in traced.plans:
            case = outputs[plan.case]
            if problem := mismatch(case.outputs, plan.outputs):
                return self._public(Verdict(Status.WRONG, problem, cause=Cause.RETURNS), case)
        return None

    def _public(self, verdict: Verdict, case: CaseSpec) -> Verdict:
        """A failure in a case, in words that an author may read; the receipt says which case it was."""
        if case.held_out:
            return Verdict(verdict.status, HELD_OUT_FAILS, receipt={"case": case.name}, case=case.name)
        note = "" if case.name == self.task.main.name else f" (in case {case.name!r})"
        return replace(verdict, detail=verdict.detail + note, receipt={"case": case.name}, case=case.name)

    def _without(
        self, plans: dict[str, tuple[Plan, ...]], too_large: Mapping[str, int]
    ) -> tuple[dict[str, tuple[Plan, ...]], tuple[str, ...], Verdict | None]:
        """The plans without the variants that no block of the target has room for, as an autotuner passes over them;
        what is said of those; and what is wrong when none is left. Of held-out cases only that it happened is told."""
        shown, hidden = (
            {
                plan.variant: (case, self._too_large(kernel, too_large[kernel.sha256]))
                for case in cases
                for plan in plans.get(case.name, ())
                for kernel in plan.kernels
                if kernel.sha256 in too_large
            }
            for cases in ([c for c in self.task.cases if c.held_out is held_out] for held_out in (False, True))
        )
        gone = hidden | shown
        kept = {name: tuple(p for p in its if p.variant not in gone) for name, its in plans.items()}
        if all(kept.values()):
            words = dict.fromkeys(hidden, HELD_OUT_TOO_LARGE) | {v: lost.detail for v, (_, lost) in shown.items()}
            return kept, tuple(f"{variant}: {why}" for variant, why in words.items()), None
        lost = next(its for name, its in plans.items() if not kept[name])
        variant = next((p.variant for p in lost if p.variant in hidden and p.variant not in shown), lost[0].variant)
        case, failure = gone[variant]
        return plans, (), self._public(failure, case)

    def _too_large(self, kernel: Kernel, needed_bytes: int) -> Verdict:
        detail = f"{needs_too_much(kernel, self.arch, needed_bytes)} (kernel {kernel.name})"
        return Verdict(
            Status.COMPILE_FAILED,
            detail,
            kernel=kernel.name,
            needed_shared_bytes=needed_bytes,
            cause=Cause.SHARED_MEMORY,
        )

    def _compile(self, plans: Mapping[str, Sequence[Plan]]) -> Built:
        shown = self._kernels(plans, held_out=False)
        hidden = {key: k for key, k in self._kernels(plans, held_out=True).items() if key not in shown}
        groups = [shown, hidden] if hidden else [shown]
        built = self._compiling.compile([list(group.values()) for group in groups])
        if built.failure is None or built.failed_group == 0:
            return built
        case = next(c for c in self.task.cases if c.held_out)
        return replace(built, failure=self._public(built.failure, case))

    def _kernels(self, plans: Mapping[str, Sequence[Plan]], *, held_out: bool) -> dict[str, Kernel]:
        names = [name for name in self.compile_cases if self.task.case(name).held_out is held_out]
        return {k.sha256: k for name in names for plan in plans[name] for k in plan.kernels}


def _by_case(plans: Sequence[Plan], cases: Sequence[CaseSpec]) -> dict[str, tuple[Plan, ...]]:
    """In the task's order; only cases that have been traced."""
    found = {case.name: tuple(p for p in plans if p.case == case.name) for case in cases}
    return {name: traced for name, traced in found.items() if traced}


def _placed(failure: Verdict | None, source: str, plans: Mapping[str, Sequence[Plan]]) -> Verdict | None:
    """A failure to compile, with the kernel's lines as lines of the source, too."""
    if failure is None or not failure.kernel:
        return failure
    named = {(k.language, k.text) for its in plans.values() for p in its for k in p.kernels if k.name == failure.kernel}
    if len(named) != 1:
        return failure
    name, text = named.pop()
    return device_code(name).in_source(failure, text, source)


def _static_problem(source: str) -> Verdict | None:
    """What can be said before anything runs."""
    if not source.strip():
        words = "the source is empty; send a Python file that defines class ModelNew(torch.nn.Module)"
        return Verdict(Status.REJECTED, words, cause=Cause.SOURCE)
    n_bytes = len(source.encode(errors="surrogatepass"))
    if n_bytes > MAX_SOURCE_BYTES:
        words = f"the source has {n_bytes} bytes; the limit is 1 MiB ({MAX_SOURCE_BYTES})"
        return Verdict(Status.REJECTED, words, cause=Cause.SOURCE)
    if NUL in source:
        return _no_text(source, source.index(NUL), "contains NUL bytes", "send Python text")
    if lone := _LONE.search(source):
        return _no_text(source, lone.start(), "is not valid Unicode text", "send UTF-8")
    return None


def _no_text(source: str, at: int, what: str, remedy: str) -> Verdict:
    line = source.count("\n", 0, at) + 1
    return Verdict(Status.REJECTED, f"the source {what} (line {line}); {remedy}", lines=(line,), cause=Cause.SOURCE)


class KernelCompiler:
    """Compiles kernels for one target in confined workers, each set in workers of its own. No group waits for another:
    one kernel of 3,000 unrolled steps takes 4 s of a core.

    A file with other comments, or one that is benched again, asks for the same kernels: of a softmax in five cases, 1.8
    of the 2.1 s that an update took (sm_90, one core). So what a worker answered for a set of kernels is remembered,
    for that very set alone: a kernel that takes over its compiler could lie about those compiled beside it. What a
    reader said of one text was read beside others, so that no run hears of it from another.
    """

    def __init__(
        self, new_compiler: Callable[[], Worker], arch: str, *, compile_s: float, width: int | None = None
    ) -> None:
        self._new_compiler, self._arch, self._compile_s = new_compiler, arch, compile_s
        self._width = max(1, _side_by_side() if width is None else width)
        self._effects: dict[str, KernelEffects] = {}
        self._remembered = Latest[tuple[str, ...], Built](_MOST_REMEMBERED)
        self._lowered = Latest[Program, Lowered](_MOST_REMEMBERED)
        self._listings = Latest[tuple[bytes, ...], SassReply](_MOST_LISTINGS)  # for the order, then to reflect

    def apart(self, new_compiler: Callable[[], Worker], compile_s: float) -> "KernelCompiler":
        """The same target and memory for one of several runs, with workers and a limit of its own."""
        apart = KernelCompiler(new_compiler, self._arch, compile_s=compile_s, width=self._width)
        apart._remembered, apart._lowered, apart._listings = self._remembered, self._lowered, self._listings
        return apart

    def compile(self, groups: Sequence[Sequence[Kernel]], most_s: float = math.inf) -> Built:
        """Compile all groups at once, each in workers of its own: the first on up to `width`, the others, of cases that
        are fewer, on one. Of several groups that fail, the first is told of. `most_s`: where there is less time than
        for a whole candidate."""
        done, limit_s = Built(), min(most_s, self._compile_s)
        deadline = time.monotonic() + limit_s
        widths = [self._width if number == 0 else 1 for number in range(len(groups))]
        shares = [
            (number, kernels[i::width])
            for number, (kernels, width) in enumerate(zip(groups, widths, strict=True))
            for i in range(min(width, len(kernels)))
        ]
        # On the way out workers end first, those that have answered in their threads; the pool waits for these.
        with ThreadPoolExecutor(max(1, len(shares))) as pool, contextlib.ExitStack() as stack:
            known = [self._remembered.get(_names(kernels)) for _, kernels in shares]
            sources = [built or stack.enter_context(self._new_compiler()) for built in known]
            made = pool.map(
                lambda by, share: by if isinstance(by, Built) else self._share(by, share[1], deadline, limit_s),
                sources,
                shares,
            )
            for (number, _), built in zip(shares, made, strict=True):
                if done.failure and number > done.failed_group:
                    break
                failure = done.failure or built.failure
                done = Built(done.artefacts | built.artefacts, done.too_large | built.too_large, failure, number)
        return done

    def _share(self, worker: Worker, kernels: Sequence[Kernel], deadline: float, limit_s: float) -> Built:
        try:
            with worker:
                built = tried_twice(
                    lambda by: self._one(by, kernels, max(0.1, deadline - time.monotonic())), worker, self._new_compiler
                )
        except WorkerTimeout:
            names = ", ".join(sorted({k.name for k in kernels}))
            words = f"compiling {names} took longer than {limit_s:.3g} s"
            return Built(failure=Verdict(Status.TIMED_OUT, words, cause=Cause.COMPILING))
        except (WorkerError, DecodeError) as error:
            return Built(
                failure=Verdict(Status.COMPILE_FAILED, f"the compiler {end_of(error)}", cause=Cause.COMPILER_DIED)
            )
        if not built.failure and sum(len(a.cubin) for a in built.artefacts.values()) <= _MOST_REMEMBERED_BYTES:
            self._remembered.keep(_names(kernels), built)
        return built

    def _one(self, worker: Worker, kernels: Sequence[Kernel], timeout_s: float) -> Built:
        request = encode(CompileRequest(tuple(kernels), self._arch))
        message = worker.call(request, timeout_s=timeout_s, max_blob_bytes=MOST_CUBIN_BYTES)
        reply, cubins = decode(CompileReply, message.body), message.blobs
        if reply.disk_full:
            raise Unfit(
                f"nothing can be compiled: the disk of {gettempdir()} is full; make room, or let TMPDIR name another"
            )
        too_large = {kernels[number].sha256: size for number, size in _numbered(reply.too_large, len(kernels))}
        rest = [kernel for kernel in kernels if kernel.sha256 not in too_large]
        done = zip(rest, reply.compiled, cubins, strict=False)
        artefacts = {kernel.sha256: Artefact(compiled, cubin) for kernel, compiled, cubin in done}
        if reply.failure:
            name = plain(str(reply.failed_kernel), MOST_OF_A_NAME // 2)
            return Built(artefacts, too_large, replace(verdict_of(reply.failure, f" (kernel {name})"), kernel=name))
        if not len(rest) == len(reply.compiled) == len(cubins):
            words = f"the compiler answered for {len(cubins)} of {len(rest)} kernels"
            return Built(failure=Verdict(Status.COMPILE_FAILED, words, cause=Cause.COMPILER_DIED))
        return Built(artefacts, too_large)

    def sass(self, artefacts: Sequence[Artefact]) -> SassReply:
        """Each kernel disassembled by a confined worker, under its report's name; or why it cannot be."""
        if not artefacts:
            return SassReply(problem="nothing was compiled")
        try:
            return _checked(self._disassembled(tuple(a.cubin for a in artefacts)), artefacts)
        except WorkerTimeout:
            return SassReply(problem=f"disassembling took longer than {SASS_S * len(artefacts):g} s")
        except (WorkerError, DecodeError) as error:
            return SassReply(problem=f"the disassembler {end_of(error)}")

    def _disassembled(self, cubins: tuple[bytes, ...]) -> SassReply:
        if (known := self._listings.get(cubins)) is not None:
            return known
        with self._new_compiler() as worker:
            message = worker.call(encode(SassRequest(self._arch)), list(cubins), timeout_s=SASS_S * len(cubins))
        return self._listings.keep(cubins, decode(SassReply, message.body))

    def ptx(self, kernels: Sequence[Kernel], stage: PtxStage = "ptx") -> PtxReply:
        """Triton's PTX of each kernel, or its TTGIR, or the problem."""
        try:
            with self._new_compiler() as worker:
                request = encode(PtxRequest(tuple(kernels), self._arch, stage))
                reply = worker.call(request, timeout_s=self._compile_s)
                found = decode(PtxReply, reply.body)
        except WorkerTimeout:
            return PtxReply(problem=f"took longer than {self._compile_s:g} s")
        except (WorkerError, DecodeError) as error:
            return PtxReply(problem=end_of(error))
        if not found.problem and not len(found.texts) == len(found.shared_bytes) == len(kernels):
            return PtxReply(problem=f"it answered for {len(found.texts)} of {len(kernels)} kernels")
        return found

    def reader(self) -> Worker:
        """A worker for `effects`, which the caller ends."""
        return self._new_compiler()

    def effects(self, kernels: Sequence[Kernel], reader: Worker | None = None) -> dict[str, KernelEffects]:
        """What each kernel does by its text, by Kernel.sha256; remembered, since variants and attempts share kernels.
        Raises WorkerError and DecodeError."""
        wanted = {kernel.sha256: kernel for kernel in kernels}
        known = {name: found for name in wanted if (found := self._effects.get(name)) is not None}
        if unknown := {name: kernel for name, kernel in wanted.items() if name not in known}:
            request = encode(EffectsRequest(tuple(unknown.values())))
            with contextlib.nullcontext(reader) if reader else self.reader() as worker:
                message = tried_twice(
                    lambda by: by.call(request, timeout_s=self._compile_s), worker, self._new_compiler
                )
            reply = decode(EffectsReply, message.body)
            if len(reply.kernels) != len(unknown):
                raise DecodeError(f"speaks of {len(reply.kernels)} of {len(unknown)} kernels")
            new = dict(zip(unknown, reply.kernels, strict=True))
            known |= new
            self._effects = (self._effects if len(self._effects) < MOST_KERNELS else {}) | new
        return known

    def answer(self, question: AskCompiler | AskForPtx, most_s: float) -> CompilerFacts | Lowered:
        """What a tracer asks in the middle of a trace."""
        if isinstance(question, AskCompiler):
            return self.facts(question.kernel, most_s)
        return self.lowered(question.program, most_s)

    def lowered(self, program: Program, most_s: float) -> Lowered:
        """A program's PTX; remembered, since cases and attempts share programs."""
        if (known := self._lowered.get(program)) is not None:
            return known
        limit_s = min(most_s, self._compile_s)
        try:
            with self._new_compiler() as worker:
                reply = worker.call(encode(LoweringRequest(program, self._arch)), timeout_s=limit_s)
                made = decode(Lowered, reply.body)
        except WorkerTimeout:
            words = f"lowering {program.entry or 'a kernel'} to PTX took longer than {limit_s:.3g} s"
            return Lowered(failure=Failure(Status.TIMED_OUT, words, cause=Cause.COMPILING))
        except (WorkerError, DecodeError) as error:
            words = f"the compiler {end_of(error)}"
            return Lowered(failure=Failure(Status.COMPILE_FAILED, words, cause=Cause.COMPILER_DIED))
        if not made.failure and len(made.ptx) <= _MOST_REMEMBERED_BYTES:
            self._lowered.keep(program, made)
        return made

    def facts(self, kernel: Kernel, most_s: float) -> CompilerFacts:
        """What host code may know of one kernel."""
        built = self.compile([[kernel]], most_s)
        if built.failure:
            return CompilerFacts(problem=f"it does not compile: {built.failure.detail}"[:500])
        if built.too_large:
            return CompilerFacts(problem=needs_too_much(kernel, self._arch, built.too_large[kernel.sha256])[:500])
        report = built.artefacts[kernel.sha256].compiled.report
        return CompilerFacts(report.registers, report.spill_bytes, report.shared_bytes)


def _checked(reply: SassReply, artefacts: Sequence[Artefact]) -> SassReply:
    """What a confined worker said, fit to be shown. Raises DecodeError."""
    if not reply.problem and len(reply.kernels) != len(artefacts):
        raise DecodeError(f"speaks of {len(reply.kernels)} of {len(artefacts)} kernels")
    try:
        kernels = tuple(made_plain(k) for k in reply.kernels)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    named = zip(kernels, artefacts, strict=False)
    return SassReply(
        tuple(replace(k, name=artefact.compiled.report.name) for k, artefact in named),
        plain(reply.assembler, MOST_OF_A_NAME),
        plain(reply.disassembler, MOST_OF_A_NAME),
        plain(reply.problem),
    )


def needs_too_much(kernel: Kernel, arch: str, needed_bytes: int) -> str:
    """Why a kernel cannot be launched on the target, and what would help."""
    limit = gpu_for_arch(arch).shared_per_block_bytes
    remedy = device_code(kernel.language).less_shared(kernel)
    return f"needs {needed_bytes} bytes of shared memory per block; {arch} has {limit}. {remedy}"


def _numbered(sizes: Mapping[str, int], count: int) -> Iterator[tuple[int, int]]:
    """What a compiler said of kernels by number. Raises DecodeError for a number that it was not asked about."""
    for number, size in sizes.items():
        its = counted(number)
        if its is None or its >= count:
            raise DecodeError(f"speaks of kernel {plain(number, 20)} of {count}")
        yield its, max(0, min(size, _MOST_BYTES))


def _names(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    return tuple(kernel.sha256 for kernel in kernels)


def _side_by_side() -> int:
    """Kernels of one candidate that are compiled at once: a kernel per case adds up (39 s for one of 3,000 unrolled
    steps), and where there are many cores some are idle."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))


class CandidateTracer:
    """Traces sources, each set of cases in a worker of its own. The compiler answers what host code asks of it, and
    reads the kernels."""

    def __init__(
        self, new_tracer: Callable[[], Worker], compiling: KernelCompiler, *, trace_s: float, variants: int
    ) -> None:
        self._new_tracer, self._compiling = new_tracer, compiling
        self._trace_s, self._variants = trace_s, variants

    def trace(
        self, source: str, groups: Sequence[Sequence[CaseSpec]], contracts: tuple[Contract, ...]
    ) -> Generator[Traced, None, None]:
        """Trace the source for one group of cases after the other. All workers start at once, since that takes time,
        but each gets its cases only when the one before has ended: two that run at once could talk by what they do to
        processor and memory."""
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(self._new_tracer()) for _ in groups]
            reader = stack.enter_context(self._compiling.reader())
            for worker, cases in zip(workers, groups, strict=True):
                yield self._trace(worker, reader, source, cases, contracts)

    def _trace(
        self,
        worker: Worker,
        reader: Worker,
        source: str,
        cases: Sequence[CaseSpec],
        contracts: tuple[Contract, ...],
    ) -> Traced:
        """The worker knows its cases by number only."""
        asked = {str(number): case for number, case in enumerate(cases)}
        blind = tuple(traced_case(case, number, contracts) for number, case in asked.items())
        reply = self._reply(worker, TraceRequest(source, blind, self._variants))
        if reply.failure:
            return Traced(failure=verdict_of(reply.failure), failed_case=asked.get(str(reply.failed_case)))
        if failure := self._forged(reader, reply, [replace(c, name=n) for n, c in asked.items()]):
            return Traced(failure=failure)
        plans = tuple(replace(p, case=asked[p.case].name, variant=plain(p.variant)) for p in reply.plans)
        return Traced(plans, dropped_variants=tuple(plain(d, 500) for d in reply.dropped_variants[:_MOST_DROPPED]))

    def _forged(self, reader: Worker, reply: TraceReply, cases: Sequence[CaseSpec]) -> Verdict | None:
        """What is wrong with plans that may have been written by the candidate."""
        problem = malformed(reply.plans, cases, self._variants)
        if problem is None:
            try:
                problem = untrue(reply.plans, self._compiling.effects(_launched(reply.plans), reader))
            except WorkerTimeout as error:
                return Verdict(
                    Status.TIMED_OUT, f"the texts of its kernels are too long to read: {error}", cause=Cause.COMPILING
                )
            except (WorkerError, DecodeError) as error:
                words = f"while it read the texts of its kernels, the compiler {end_of(error)}"
                return Verdict(Status.COMPILE_FAILED, words, cause=Cause.COMPILER_DIED)
        if problem is None:
            return None
        return Verdict(Status.REJECTED, f"its process sent {problem}", cause=Cause.FORGED_REPLY)

    def _reply(self, worker: Worker, request: TraceRequest) -> TraceReply:
        try:
            return tried_twice(lambda by: self._asked(by, request), worker, self._new_tracer)
        except WorkerTimeout:
            limit = f"importing and tracing the candidate took longer than {self._trace_s:g} s"
            return TraceReply(failure=Failure(Status.TIMED_OUT, limit, cause=Cause.TRACING))
        except WorkerError as error:
            return TraceReply(
                failure=Failure(Status.CRASHED, f"while tracing, the process {end_of(error)}", cause=Cause.TRACER_DIED)
            )
        except (DecodeError, RecursionError) as error:
            return TraceReply(
                failure=Failure(
                    Status.REJECTED, f"its process sent a malformed plan: {error}", cause=Cause.FORGED_REPLY
                )
            )

    def _asked(self, worker: Worker, request: TraceRequest) -> TraceReply:
        with worker:
            worker.send(encode(request))
            return self._answered(worker)

    def _answered(self, worker: Worker) -> TraceReply:
        """The tracer's reply; before it, it may ask for facts that only the compiler knows."""
        left_s = self._trace_s
        for _ in range(MAX_QUESTIONS):
            own_s = time.thread_time()  # goes on while nothing is waited for, and not while we are stopped
            received = worker.receive(timeout_s=max(0.1, left_s))
            message: TraceReply | AskCompiler | AskForPtx = decode(TraceReply | AskCompiler | AskForPtx, received.body)  # type: ignore[arg-type]
            if isinstance(message, TraceReply):
                return message
            began_s = time.monotonic()
            answer = self._compiling.answer(message, max(0.1, left_s))
            worker.send(encode(answer), timeout_s=max(0.1, left_s - (time.monotonic() - began_s)))
            left_s -= received.waited_s + time.monotonic() - began_s + time.thread_time() - own_s
        return TraceReply(
            failure=Failure(Status.REJECTED, f"host code asks the compiler more than {MAX_QUESTIONS} times")
        )


def end_of(error: WorkerError | DecodeError) -> str:
    """What a worker did wrong: how it ended, and its last words, or what it sent."""
    if isinstance(error, DecodeError):
        return f"sent a malformed reply: {error}"
    lines = error.log.strip().splitlines()[-3:]
    # what Python says of an exception comes after the places, which are indented, and which are ours
    tail = lines[max((n for n, line in enumerate(lines, 1) if line.startswith("  ")), default=0) :] or lines[-1:]
    return str(error).partition(" ")[2] + (": " + " | ".join(tail) if tail else "")


def verdict_of(failure: Failure, note: str = "") -> Verdict:
    """A tracer's or compiler's failure as a verdict; the candidate's own process may have written it."""
    if failure.status not in _FAILURES:
        return Verdict(Status.REJECTED, f"its process claims to be {failure.status.value!r} without a plan")
    line = failure.line if failure.line and 0 < failure.line <= _MOST_LINES else None
    where = f"line {line}: " if line else ""
    return Verdict(
        failure.status,
        f"{where}{plain(failure.message, MOST_OF_A_MESSAGE)}{note}",
        lines=(line,) if line else (),
        ptx_lines=tuple(n for n in failure.ptx_lines[:_MOST_PTX_LINES] if 0 < n <= _MOST_LINES),
        cause=failure.cause,
    )


# ---
# Whether a tracer's reply can be believed.

# What the largest honest plan needs, Swin Transformer lowered by TorchInductor: 301 steps, 66 kernels of 0.55 MB.
MOST_KERNELS = 2048  # of a reply; to compile one takes 0.1 s and more
MOST_OF_A_KERNEL_NAME = 2000  # characters
MOST_OUTPUTS = 1000
MOST_BYTES = 1 << 40  # in all storages of a plan
MOST_TEXT_BYTES = 8 << 20  # in all kernels of a reply
MOST_DIMENSIONS = 64  # torch's
LARGEST_GRID = (2**31 - 1, 65_535, 65_535)  # CUDA's
MOST_CUBIN_BYTES = 128 << 20
_LARGEST_NUMBER = 2**64


def malformed(plans: Sequence[Plan], cases: Sequence[CaseSpec], max_variants: int) -> str | None:
    """What is wrong with a reply's plans, or None."""
    names = [case.name for case in cases]
    if (kernels := sum(len(plan.kernels) for plan in plans)) > MOST_KERNELS:
        return f"{kernels} kernels; the limit is {MOST_KERNELS}"
    if strange := sorted({p.case for p in plans} - set(names)):
        return f"plans for an unknown case {strange[0]!r:.80}"
    for name in names:
        count = sum(p.case == name for p in plans)
        if not 1 <= count <= max(1, max_variants):
            return f"{count} plans for one case, of at most {max_variants}"
    if (longest := max((len(k.name) for p in plans for k in p.kernels), default=0)) > MOST_OF_A_KERNEL_NAME:
        return f"a kernel whose name has {longest} characters; the limit is {MOST_OF_A_KERNEL_NAME}"
    texts = {k.text: k.language for p in plans for k in p.kernels}
    if sum(map(len, texts)) > MOST_TEXT_BYTES:
        return f"kernels of more than {MOST_TEXT_BYTES >> 20} MB"
    for name in sorted(set(texts.values())):
        known = device_code(name)
        if sum(len(text) for text, its in texts.items() if its == name) > known.max_bytes:
            return f"more than {known.max_bytes >> 20} MB of {known.title}"
    return next(filter(None, map(_problem, plans)), None)


def _problem(plan: Plan) -> str | None:
    """The first rule that a plan breaks; later rules rely on earlier ones."""
    rules: tuple[Callable[[Plan], str | None], ...] = (_sizes, _bad_launches, _operators, _tensors, _inputs)
    return next(filter(None, (rule(plan) for rule in rules)), None)


def untrue(plans: Sequence[Plan], effects: Mapping[str, KernelEffects]) -> str | None:
    """In what plans that are not malformed differ from what their kernels do, by Kernel.sha256; or None."""
    return next(filter(None, (_overlaps(plan, effects) or _unused(plan, effects) for plan in plans)), None)


def _sizes(plan: Plan) -> str | None:
    known = {s.id for s in plan.storages if s.nbytes >= 0}
    if len(known) != len(plan.storages):
        return "a plan whose storages are not distinct"
    if (n_bytes := sum(s.nbytes for s in plan.storages)) > MOST_BYTES:
        needs = min(n_bytes, 1 << 100) / 2**40  # more may be no float
        return f"a plan that needs {needs:.3g} TiB of memory; the limit is {MOST_BYTES / 2**40:g} TiB"
    if (steps := len(plan.prepare) + len(plan.run)) > MOST_STEPS:
        return f"a plan of {steps} steps; the limit is {MOST_STEPS}"
    return None


def _overlaps(plan: Plan, effects: Mapping[str, KernelEffects]) -> str | None:
    """A programmatic dependent launch may begin before the launch before it has ended."""
    launches = [step for step in plan.run if isinstance(step, Launch) and min(step.grid) > 0]
    for step in launches[1:]:
        kernel = plan.kernels[step.kernel]
        if step.pdl and not effects[kernel.sha256].waits:
            wait = device_code(kernel.language).wait
            return f"a launch of {kernel.name:.60} with launch_pdl that never waits for the one before ({wait})"
    return None


def _bad_launches(plan: Plan) -> str | None:
    if problem := next(filter(None, (device_code(k.language).forbidden_option(k.options) for k in plan.kernels)), None):
        return f"a kernel with a forbidden option: {problem}"
    if not any(isinstance(step, Launch) and min(step.grid) > 0 for step in plan.run):
        return "a plan that launches no program of a kernel"
    launches = [step for step in (*plan.prepare, *plan.run) if isinstance(step, Launch)]
    if any(not 0 <= step.kernel < len(plan.kernels) for step in launches):
        return "a launch of a kernel that is not in the plan"
    return next(filter(None, (_launch(step, plan.kernels[step.kernel]) for step in launches)), None)


def _launch(step: Launch, kernel: Kernel) -> str | None:
    if any(not 0 <= size <= most for size, most in zip(step.grid, LARGEST_GRID, strict=True)):
        return f"a launch over the grid {step.grid!s:.100}; the largest that CUDA knows is {LARGEST_GRID}"
    cluster = kernel.options.get("cluster") or (1, 1, 1)
    if any(blocks % size for blocks, size in zip(step.grid, cluster, strict=True)):
        return f"a launch over the grid {step.grid!s:.100}, which clusters of {cluster!s:.100} do not divide"
    if len(step.args) != len(kernel.signature):
        return f"a launch with {len(step.args)} arguments of a kernel that takes {len(kernel.signature)}"
    for argument, kind in zip(step.args, kernel.signature, strict=True):
        if isinstance(argument, ScalarArg) == kind.startswith(("*", "tensordesc")):
            return f"a launch with {type(argument).__name__} for an argument of type {kind!r:.40}"
        if any(map(_is_huge, _numbers(argument))):
            return "a launch with a number of more than 64 bits"
    return None


def _numbers(argument: LaunchArg) -> Sequence[int]:
    if isinstance(argument, ScalarArg):
        return (argument.value,) if isinstance(argument.value, int) else ()
    return argument.block_shape if isinstance(argument, DescriptorArg) else ()


def _is_huge(value: int) -> bool:
    return not -_LARGEST_NUMBER // 2 <= value < _LARGEST_NUMBER


def _operators(plan: Plan) -> str | None:
    for step in (*plan.prepare, *plan.run):
        if isinstance(step, Launch):
            continue
        if not is_allowed(step.op):
            return f"a plan with operator {step.op!r:.80}, which no plan may hold"
        if step.library != is_library(step.op):
            return f"a plan that counts {step.op} as {'library work' if step.library else 'glue'}, which it is not"
    return None


def _tensors(plan: Plan) -> str | None:
    known = {s.id for s in plan.storages}
    try:
        outputs = list(itertools.islice(tensor_refs(plan.outputs), MOST_OUTPUTS + 1))
        refs = [*outputs, *(ref for step in (*plan.prepare, *plan.run) for ref in step_refs(step))]
    except DecodeError as error:
        return f"a plan with a tensor that is none: {error!s:.200}"
    if len(outputs) > MOST_OUTPUTS:
        return f"a plan of more than {MOST_OUTPUTS} outputs"
    bad = next((r for r in refs if not _is_sound(r, known)), None)
    return f"a plan with a tensor that is none: {bad!s:.200}" if bad else None


def _inputs(plan: Plan) -> str | None:
    inputs = {s.id for s in plan.storages if s.origin == "input"}
    if any(ref.storage in inputs for step in plan.prepare for ref in step_refs(step)):
        return "a plan that works on the inputs before it is timed"
    return None


def _unused(plan: Plan, effects: Mapping[str, KernelEffects]) -> str | None:
    """The tracer leaves launches out that no output depends on (`plan.build`); here they are counted again."""
    outputs = {ref.storage for ref in tensor_refs(plan.outputs)}
    if not outputs:
        return None  # the wrong structure, which is told in other words
    forward = ForwardPass(
        plan.run,
        _effects(plan, effects),
        outputs,
        inputs={s.id for s in plan.storages if s.origin == "input"},
        made={s.id for s in plan.storages if s.origin == "scratch"},
        nbytes={s.id: s.nbytes for s in plan.storages},
    )
    for step, alive in zip(plan.run, live_steps(forward), strict=True):
        if isinstance(step, Launch) and not alive:
            name = plan.kernels[step.kernel].name
            return f"a plan with a launch of {name!r:.60} that no output depends on"
    return None


def _launched(plans: Sequence[Plan]) -> list[Kernel]:
    """The kernels of forwards, each once a plan."""
    return [plan.kernels[n] for plan in plans for n in dict.fromkeys(step.kernel for step in plan.launches)]


def _effects(plan: Plan, known: Mapping[str, KernelEffects]) -> LaunchEffects:
    """What launches of the plan do: a kernel that none of them launches is not known, and not asked for."""
    by_number = [known[k.sha256].arguments if k.sha256 in known else () for k in plan.kernels]
    return lambda launch: launch_effects(launch, by_number)


def _is_sound(ref: TensorRef, known: set[int]) -> bool:
    """Sizes are multiplied with each other later, some as floats."""
    if ref.storage not in known or not len(ref.shape) == len(ref.stride) <= MOST_DIMENSIONS:
        return False
    sizes = (*ref.shape, ref.offset)
    return min(sizes) >= 0 and not any(map(_is_huge, (*sizes, *ref.stride))) and not _is_huge(math.prod(ref.shape))


MOST_SHOWN = 6


def mismatch(wanted: Json, got: Json) -> str | None:
    """What is returned instead of what, in words; None when it is the same as far as shapes can tell."""
    if wanted is None:
        return None  # a case that was described without its outputs
    return None if _alike(wanted, got) else f"forward returns {shown(got)}; the task's Model returns {shown(wanted)}"


def _alike(wanted: Json, got: Json) -> bool:
    ours, theirs = _items(wanted), _items(got)
    if ours is None or theirs is None:
        return ours is theirs and _fits(wanted, got)
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(a == b and _alike(one, other) for (a, one), (b, other) in pairs)


def _items(tree: Json) -> list[tuple[str, Json]] | None:
    """The children of a node; None for a leaf."""
    if isinstance(tree, dict) and isinstance(tree.get("$dict"), dict):
        return list(tree["$dict"].items())
    if isinstance(tree, dict) and "$tuple" in tree:
        tree = tree["$tuple"]
    return [(str(i), value) for i, value in enumerate(tree)] if isinstance(tree, list) else None


def _fits(wanted: Json, got: Json) -> bool:
    """Plain numbers are the judge's to compare; it takes a float for a 0-dim float64 tensor and the reverse."""
    ours, theirs = _tensor(wanted), _tensor(got)
    return ours == theirs or {ours, theirs} == {None, ("float64", ())}


def _tensor(leaf: Json) -> tuple[str, tuple[int, ...]] | None:
    if isinstance(leaf, dict) and "$tensor" in leaf:
        return leaf["$tensor"]["dtype"], tuple(leaf["$tensor"]["shape"])
    return None


def shown(tree: Json) -> str:
    """A tree in short: float32[4, 8], (float32[4], int64[4]), {mean: float32[]}."""
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        return f"{spec['dtype']:.20}{list(spec['shape'])}"
    items = _items(tree)
    if items is None:
        return reprlib.repr(tree)[:80]
    more = f", … {len(items) - MOST_SHOWN} more" if len(items) > MOST_SHOWN else ""
    parts = [(key, shown(value)) for key, value in items[:MOST_SHOWN]]
    if isinstance(tree, dict) and "$dict" in tree:
        return "{" + ", ".join(f"{key:.80}: {text}" for key, text in parts) + more + "}"
    inside = ", ".join(text for _, text in parts) + more
    if isinstance(tree, dict):
        return f"({inside},)" if len(items) == 1 else f"({inside})"
    return f"[{inside}]"
