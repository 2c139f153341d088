"""Messages between the supervisor and the workers that trace, compile and replay. Pure data: no torch, no triton.

A trace that does not end in a plan ends in a `Failure`, whose words give the author a way out.
"""

from dataclasses import dataclass, field
from typing import Literal

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.sass import Sass
from kerneltune.tools.schema.task import CaseSpec, TensorSpec
from kerneltune.tools.schema.verdict import KernelReport, Status


class Refused(Exception):
    """The candidate does what a plan cannot say. The message tells the author what to write instead."""


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
    "@triton.jit kernel on every call"
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
FOREIGN_TENSOR = "a kernel argument is on the {device} device; move it to the GPU with .to(x.device) first"
MISSING_MODULE = "; a candidate may import torch, triton, numpy and the standard library"
GLUON = "Gluon kernels are not supported yet: write the kernel with triton.language"


@dataclass(frozen=True)
class TraceCase:
    """What a candidate may know of a case: what its host code is called with, and the parameters to match. Not what it
    is called in the task, nor whether it is held out."""

    name: str
    inputs: tuple[Json, ...]
    init_args: tuple[Json, ...]
    state: dict[str, TensorSpec] = field(default_factory=dict)


def traced_case(case: CaseSpec, name: str) -> TraceCase:
    """The case under another name, without all that a tracer does not need."""
    return TraceCase(name, case.inputs, case.init_args, case.state)


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
    target has room for, by number in the request, and the bytes of shared memory that it needs."""

    compiled: tuple[Compiled, ...] = ()
    too_large: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    failed_kernel: str | None = None


@dataclass(frozen=True)
class PtxRequest:
    """Asks a compiler for the PTX that Triton makes of kernels for "sm_90" and the like."""

    kernels: tuple[Kernel, ...]
    arch: str
    kind: Literal["ptx"] = "ptx"


@dataclass(frozen=True)
class PtxReply:
    """PTX of the kernels, in the order of the request: each text, and the bytes of dynamic shared memory that its
    launch gives; or why there are none."""

    texts: tuple[str, ...] = ()
    shared_bytes: tuple[int, ...] = ()
    problem: str = ""


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
class InterpretRequest:
    """A plan to replay; `names` label the blobs: "input:0", "state:weight"."""

    plan: Plan
    names: tuple[str, ...]
    repeats: int = 1


@dataclass(frozen=True)
class InterpretReply:
    """`outputs` is the tree with {"$blob": index, dtype, shape} leaves; or why there is none."""

    outputs: Json = None
    problem: str | None = None  # "uncheckable", "out_of_bounds", "overwrites", "step_limit", "failed" …
    detail: str = ""
