"""Messages between the supervisor and its workers: tracer, compiler, interpreter and judge. Pure data.

A trace that does not end in a plan ends in a `Failure`, whose words give the author a way out.

From the judge values leave as blobs of inputs only; a seed leaves with the result for its inputs, answers never leave
at all. To the GPU session the supervisor sends OpenTask, Warm, ScreenVariants, BenchRequest or Resolve and then
receives until the answer comes; NeedRunner, EndRunner and GpuTaken may come before it. A runner is handed over through
the door: `pass_runner(door, socket)`.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import Ceilings
from kerneltune.tools.schema.plan import ArgEffect, Kernel, Plan
from kerneltune.tools.schema.sass import Sass
from kerneltune.tools.schema.task import CaseSpec, Contract, TaskSpec, TensorSpec
from kerneltune.tools.schema.verdict import CaseResult, Cause, KernelReport, Status, Tier, Verdict


class Refused(Exception):
    """The candidate does what a plan cannot say. The message tells the author what to write instead."""

    def __init__(self, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Failure:
    """A candidate that did not become a plan: status is rejected, compile_failed, crashed or timed_out.

    `line` is the line of the candidate's source that was running, when it is known; `ptx_lines` those of the kernel's
    PTX that the message is about.
    """

    status: Status
    message: str
    line: int | None = None
    ptx_lines: tuple[int, ...] = ()
    cause: Cause | None = None


READS_VALUE = (
    "forward reads a tensor's value on the host (`.item()`, `int(t)`, `if t:`, `.tolist()`, `.cpu()` then Python): "
    "a launch plan is fixed before the data exists. Keep the value on the device and let the kernel read it"
)
DATA_DEPENDENT_SHAPE = (
    "forward makes a tensor whose shape depends on values (nonzero, boolean indexing, unique): a launch plan needs "
    "fixed shapes. Use masks, or a padded output and a device-side count"
)
NO_LAUNCH = (
    "forward launches no kernel of yours ({ops}): nothing here was written by the candidate. Launch at least one "
    "kernel on every call"
)
UNUSED_LAUNCHES = (
    "its kernels' results are not used: the output {source}, and without the launches it would be the same. Return "
    "what your kernel computes"
)
CACHED_RESULT = (
    "the second forward reuses a tensor that the first one computed from its inputs: results must not be cached "
    "between calls. Compute from the arguments on every call (weights may be packed once)"
)
UNSTABLE = (
    "two traces of forward with the same shapes differ ({what}): host code must do the same launches on every call. "
    "Remove counters, randomness and call-dependent branches from the host code"
)
NOT_ALLOWED = (
    "operator {op} cannot be part of a launch plan; compute it in a kernel, or with one of torch's tensor operators"
)
UNKNOWN_OPERATOR = (
    "operator {op} has no Python body that can be traced: write it as a torch.library.custom_op or call the kernel "
    "directly"
)
COMPILED = (
    "torch.compile / torch.jit inside a candidate: TorchInductor is a baseline, not a kernel of yours. Write the "
    "Triton kernel and launch it directly"
)
BACKWARD = (
    "forward runs autograd (`backward()`, `torch.autograd.grad`): a plan is one forward. Launch the backward kernels "
    "directly"
)
POINTER_TABLE = (
    "host code puts device addresses into a tensor: a plan is replayed on other memory. Pass the tensors as arguments, "
    "or stack them into one and index it"
)
UNRESOLVED = (
    "a tensor whose sign changes only when it is read (z.conj(), z.conj().imag): a launch plan has what lies "
    "in memory. Write the sign out, as in torch.complex(z.real, -z.imag)"
)
GIVEN_TO_CONSTRUCTOR = (
    "forward reads a tensor that the constructor was given: a launch plan has the values of inputs, parameters and "
    "buffers alone. The task's Model has to register it (register_buffer), or take it as an input"
)
FOREIGN_TENSOR = "a kernel argument is on the {device} device; move it to the GPU with .to(x.device) first"
MISSING_MODULE = "; a candidate may import torch, triton, numpy and the standard library"


@dataclass(frozen=True)
class TraceCase:
    """What a candidate may know of a case: what its host code is called with, and the parameters to match. Not what it
    is called in the task, nor whether it is held out."""

    name: str
    inputs: tuple[Json, ...]
    init_args: tuple[Json, ...]
    state: dict[str, TensorSpec] = field(default_factory=dict)
    contracts: tuple[Contract, ...] = ()


def traced_case(case: CaseSpec, name: str, contracts: tuple[Contract, ...] = ()) -> TraceCase:
    """The case under another name, without all that a tracer does not need."""
    return TraceCase(name, case.inputs, case.init_args, case.state, contracts)


@dataclass(frozen=True)
class TraceRequest:
    """What the tracer is asked: a source, the cases to trace it for, and how many autotune variants to keep."""

    source: str
    cases: tuple[TraceCase, ...]
    max_variants: int = 1


@dataclass(frozen=True)
class TraceReply:
    """Plans by case (the first is the default variant), or the failure that ended tracing."""

    plans: tuple[Plan, ...] = ()
    failure: Failure | None = None
    failed_case: str | None = None
    dropped_variants: tuple[str, ...] = ()
    kind: Literal["trace_reply"] = "trace_reply"


@dataclass(frozen=True)
class AskCompiler:
    """Sent by a tracer in the middle of a trace, when host code asks for registers or shared memory of a kernel (the
    official softmax tutorial does). The answer is KernelFacts; the tracer itself may not start ptxas."""

    kernel: Kernel
    kind: Literal["ask_compiler"] = "ask_compiler"


@dataclass(frozen=True)
class Program:
    """A kernel's source in a language that is lowered to PTX by a compiler of its own, which only a confined compiler
    may run. `entry` names the kernel, "" the only one; `options` are the language's; `line` is that of the candidate's
    file on which the text begins, or 0 if it is not known."""

    language: str
    text: str
    entry: str = ""
    options: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class AskForPtx:
    """Sent by a tracer when host code launches a program. The answer is Lowered."""

    program: Program
    kind: Literal["ask_for_ptx"] = "ask_for_ptx"


@dataclass(frozen=True)
class LoweringRequest:
    """Asks a compiler to lower a program for "sm_90" and the like."""

    program: Program
    arch: str
    kind: Literal["lowering"] = "lowering"


@dataclass(frozen=True)
class Lowered:
    """A program's PTX, with one entry, and what its launches say: block, shared_bytes and the like, as its language
    knows them; or why there is none."""

    ptx: str = ""
    launch: dict[str, Json] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(frozen=True)
class CompilerFacts:
    """What host code may know of a compiled kernel; or why there is nothing to know."""

    n_regs: int = 0
    n_spills: int = 0
    shared: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class CompileRequest:
    """Kernels to compile for "sm_90" and the like."""

    kernels: tuple[Kernel, ...]
    arch: str


@dataclass(frozen=True)
class Compiled:
    """One kernel's result; its cubin travels as a blob. `metadata` is what a launcher must know; `notes` what the
    author of its PTX should."""

    report: KernelReport
    metadata: dict[str, Json]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileReply:
    """Results in the order of the request, up to the first failure, without those in `too_large`: what no block of the
    target has room for, by number in the request, and the bytes of shared memory that it needs. `disk_full`: nothing of
    the kind; the compiler could not write."""

    compiled: tuple[Compiled, ...] = ()
    too_large: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    failed_kernel: str | None = None
    disk_full: bool = False


PtxStage = Literal["ttgir", "ptx"]


@dataclass(frozen=True)
class PtxRequest:
    """Asks a compiler for the PTX that Triton makes of kernels for "sm_90" and the like, or for its own representation
    just before that (`stage`)."""

    kernels: tuple[Kernel, ...]
    arch: str
    stage: PtxStage = "ptx"
    kind: Literal["ptx"] = "ptx"


@dataclass(frozen=True)
class PtxReply:
    """PTX of the kernels (or TTGIR), in the order of the request: each text, and the bytes of dynamic shared memory
    that its launch gives; or why there are none."""

    texts: tuple[str, ...] = ()
    shared_bytes: tuple[int, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class EffectsRequest:
    """Asks a compiler what kernels do by their texts, which are read and not compiled."""

    kernels: tuple[Kernel, ...]
    kind: Literal["effects"] = "effects"


@dataclass(frozen=True)
class KernelEffects:
    """What a kernel may do to its arguments, one effect each (less, if that is unknown); whether it `waits` for the
    launch before (programmatic dependent launch)."""

    arguments: tuple[ArgEffect, ...]
    waits: bool


@dataclass(frozen=True)
class EffectsReply:
    """Of each kernel, in the order of the request."""

    kernels: tuple[KernelEffects, ...] = ()


@dataclass(frozen=True)
class SassRequest:
    """Asks a compiler what cubins for "sm_90" and the like, which travel as blobs, are made of."""

    arch: str
    kind: Literal["sass"] = "sass"


@dataclass(frozen=True)
class SassReply:
    """Each cubin disassembled, what assembles for the target here ("ptxas 12.8") and what disassembled it; or why it
    cannot be."""

    kernels: tuple[Sass, ...] = ()
    assembler: str = ""
    disassembler: str = ""
    problem: str = ""


UNCHECKABLE = "uncheckable"


@dataclass(frozen=True)
class MemoryPart:
    """Where a tensor lies in a memory that processes share: its `nbytes` repeat the `period` bytes from `offset`."""

    name: str
    offset: int
    nbytes: int
    period: int


@dataclass(frozen=True)
class InterpretRequest:
    """A plan to replay; `names` label the blobs: "input:0", "state:weight"; `leads` say how many bytes past a multiple
    of 16 their addresses are, where any is. Of a sample nothing is a blob: its inputs are `parts` of a memory whose
    descriptor comes along; so many programs of each launch are run as `most_programs` says (0: all), further ones only
    within `sample_s`."""

    plan: Plan
    names: tuple[str, ...]
    leads: dict[str, int] = field(default_factory=dict)
    most_programs: int = 0
    parts: tuple[MemoryPart, ...] = ()
    sample_s: float = 0.0


@dataclass(frozen=True)
class InterpretReply:
    """`outputs` is the tree with {"$blob": index, dtype, shape} leaves; or why there is none. Of a sample two blobs
    belong to a leaf: numbers of the elements that were written, and those; `ran` of `programs` programs were run,
    `in_part` where they were stopped."""

    outputs: Json = None
    problem: str | None = None  # "uncheckable", "out_of_bounds", "overwrites", "step_limit", "failed" …
    detail: str = ""
    ran: int = 0
    programs: int = 0
    in_part: bool = False


BaselineName = Literal["eager", "compile", "compile-max"]
BASELINES: tuple[BaselineName, ...] = get_args(BaselineName)
BASELINE_LIMIT_S = 60.0  # max-autotune takes 1 to 14 s for the built-in tasks; for 128 products of a mixture, over 120
FIRST_BASELINE_S = 15.0  # to build the one that the first verdict waits for
OTHER_BASELINES_S = 15.0  # that judging in full waits for the others; with the first one less than 30 s in all
_SLOW_TO_VERIFY_S = 1.0


@dataclass(frozen=True)
class Rules:
    """When enough has been measured. Seconds are device time of all arms."""

    min_rounds: int = 20
    half_width: float = 0.003
    max_s: float = 2.0
    block_s: float = 0.006
    rounds_per_group: int = 10  # then the outputs are verified and the contents replaced
    preheat_s: float = 0.3  # after the GPU has been idle
    warm_preheat_s: float = 0.05  # when it has not
    slope_s: float = 0.006  # the short blocks by which the two clocks are compared; the long ones take four times that
    memo_passes: int = 8  # passes on contents never seen, and as many on repeated ones; 0: not looked for
    floor_tolerance: float = 0.98

    def group(self, ready_s: float) -> int:
        """After how many rounds the outputs are verified and the contents replaced, where all up to the first look at
        them took so long: ten rounds of an attention take 0.6 s, and its three answers 3.6. Once at least before the
        fewest rounds are over."""
        return self.rounds_per_group * 3 // 2 if ready_s > _SLOW_TO_VERIFY_S else self.rounds_per_group


SCREENING = Rules(
    min_rounds=5,
    half_width=0.01,
    max_s=0.06,
    block_s=0.002,
    preheat_s=0.05,
    warm_preheat_s=0.0,
    slope_s=0.002,
    memo_passes=3,
)


@dataclass(frozen=True)
class Open:
    """Load a task file that has this sha256, to be judged in so much memory of a GPU (0: there is none). The answer is
    Opened."""

    name: str
    path: str
    sha256: str
    gpu_memory_bytes: int = 0
    kind: Literal["open"] = "open"


@dataclass(frozen=True)
class Opened:
    """The task as seen from outside, or why it cannot be used. `failed_case`: the case with whose sizes its code fails,
    where that is why; `notes`: how far verdicts on it can be trusted; `small`: the constants of its small case, where
    its file does not say them."""

    task: TaskSpec | None = None
    problem: str | None = None
    failed_case: str = ""
    notes: tuple[str, ...] = ()
    small: dict[str, Json] = field(default_factory=dict)
    kind: Literal["opened"] = "opened"


ANSWER_LIMIT_S = 60.0  # that the CPU judge may take for the inputs of one battery, or for their answer


@dataclass(frozen=True)
class NewInputs:
    """Draw inputs for a frozen plan: the seed depends on the plan's hash and the judge's secret. Those for a sample of
    programs are drawn once a session."""

    case: str
    battery: str
    plan_sha256: str
    sampled: bool = False
    kind: Literal["new_inputs"] = "new_inputs"


@dataclass(frozen=True)
class PreparedInputs:
    """Names of the blobs that follow ("input:0", "state:weight"), with `leads` as InterpretRequest has them; None of
    them when the battery does not apply, is left out because the memory is `short`, or the task's own code fails, as
    the `problem` says. Of a sample not blobs follow but the descriptor of a memory, and where in it each lies."""

    names: tuple[str, ...]
    leads: dict[str, int] = field(default_factory=dict)
    applies: bool = True
    short: bool = False
    problem: str = ""
    parts: tuple[MemoryPart, ...] = ()
    kind: Literal["prepared_inputs"] = "prepared_inputs"


@dataclass(frozen=True)
class Compare:
    """Judge outputs: the tree has {"$blob": i, "dtype", "shape"} leaves; the blobs follow. `sampled`: as a sample's
    reply has them."""

    case: str
    battery: str
    plan_sha256: str
    outputs: Json
    sampled: bool = False
    kind: Literal["compare"] = "compare"


@dataclass(frozen=True)
class ComparisonReply:
    """The result of a comparison, and the seed that its inputs were drawn from, which is no secret any more. Of a
    sample, how many elements were `compared`. `problem` says why nothing could be, `malformed` why the outputs are
    none."""

    result: CaseResult
    seed: int = 0
    compared: int = 0
    problem: str = ""
    malformed: str = ""
    kind: Literal["judgement"] = "judgement"


@dataclass(frozen=True)
class OpenTask:
    """Load a task file for the GPU. The answer is Ready. `ceilings` are what this GPU was measured to reach (None: the
    data sheet); torch.compile keeps its work under `cache_dir` ("": nowhere), where processes of one user also lock a
    GPU; a baseline that takes longer than `baseline_limit_s` to build is left out. `memory_bytes` of the GPU may be
    used by judge and runner together (0: all of it). `first_tier`: what will be asked for first; a screening waits for
    one baseline alone. `small`: the constants of the small case that the task has and its file does not. With
    `counters`, what is judged in full and right has ncu's counters in its receipt."""

    path: str
    task: TaskSpec
    baselines: tuple[str, ...] = BASELINES
    ceilings: Ceilings | None = None
    cache_dir: str = ""
    baseline_limit_s: float = BASELINE_LIMIT_S
    memory_bytes: int = 0
    first_tier: Tier = "screened"
    small: dict[str, Json] = field(default_factory=dict)
    counters: bool = False
    kind: Literal["open_task"] = "open_task"


@dataclass(frozen=True)
class Ready:
    """The GPU as the judge found it, or the user's mistake in one line."""

    gpu: dict[str, Json] = field(default_factory=dict)
    problem: str | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True)
class TaskEnded:
    """Instead of an answer: the task's own code has left the judge unable to give another, and why."""

    problem: str
    kind: Literal["task_ended"] = "task_ended"


@dataclass(frozen=True)
class Warm:
    """Build and time the first baseline of the main case now (it is built anyway at the first Bench), or `all` of them.
    The answer is Baselines."""

    all: bool = False

    kind: Literal["warm"] = "warm"


@dataclass(frozen=True)
class Baselines:
    """Time per forward of each baseline, and how long each took to build; those that are `pending` are not ready."""

    times_us: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str | None = None
    build_s: dict[str, float] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    kind: Literal["baselines"] = "baselines"


@dataclass(frozen=True)
class KernelImage:
    """A compiled kernel; its cubin is the blob of the same index."""

    sha256: str
    metadata: dict[str, Json]


@dataclass(frozen=True)
class ScreenVariants:
    """Rank variants of the main case. The answer is Screened."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    kind: Literal["screen"] = "screen"


@dataclass(frozen=True)
class Screened:
    """Time per forward of each variant in µs; None where it failed, and then why."""

    times_us: tuple[float | None, ...]
    details: tuple[str, ...]
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True)
class BenchRequest:
    """Check the plans (one per case, in the order given), then time the main case's, as `tier` asks. The answer is
    Judged. With `reuse`, plans and cubins that had a verdict of this tier get the same again. A screening times the
    fastest baseline alone, or `all_baselines`."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    rules: Rules = field(default_factory=Rules)
    repeats: int = 3
    tier: Tier = "judged"
    reuse: bool = False
    all_baselines: bool = False
    kind: Literal["bench"] = "bench"


@dataclass(frozen=True)
class BenchReply:
    """The verdict."""

    verdict: Verdict
    kind: Literal["judged"] = "judged"


@dataclass(frozen=True)
class Resolve:
    """Time a plan of the main case against itself, `pairs` times for `pair_s` seconds each. The answer is Resolved."""

    plan: Plan
    images: tuple[KernelImage, ...]
    pairs: int = 30
    pair_s: float = 0.3
    rules: Rules = field(default_factory=Rules)
    kind: Literal["resolve"] = "resolve"


@dataclass(frozen=True)
class Resolved:
    """Ratios of a plan's time to its own, or why there are none."""

    ratios: tuple[float, ...] = ()
    median_us: float = 0.0
    slots: int = 0
    problem: str | None = None
    kind: Literal["resolved"] = "resolved"


@dataclass(frozen=True)
class NeedRunner:
    """End the present runner, if any, start a fresh one and pass it through the door. Sends no answer."""

    why: str
    kind: Literal["need_runner"] = "need_runner"


@dataclass(frozen=True)
class EndRunner:
    """SIGKILL the present runner now: it hangs, or it is no longer trusted. Sends no answer."""

    why: str
    kind: Literal["end_runner"] = "end_runner"


@dataclass(frozen=True)
class GpuTaken:
    """Another process of this user works on the GPU; the judge waits for its turn. Sends no answer."""

    kind: Literal["gpu_taken"] = "gpu_taken"


SupervisorMessage = OpenTask | Warm | ScreenVariants | BenchRequest | Resolve
JudgeMessage = Ready | Baselines | Screened | BenchReply | Resolved | NeedRunner | EndRunner | GpuTaken | TaskEnded
