"""Messages between the supervisor and the workers that trace, compile and replay. Pure data: no torch, no triton."""

from dataclasses import dataclass, field
from typing import Literal

from tools.codec import Json
from tools.plan.refusal import Failure
from tools.plan.sass import Sass
from tools.plan.schema import Kernel, Plan
from tools.spec import CaseSpec, TensorSpec
from tools.verdict import KernelReport


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
class KernelFacts:
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
    target has room for, by number in the request, and what it would need."""

    compiled: tuple[Compiled, ...] = ()
    too_large: dict[str, str] = field(default_factory=dict)
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
    """In the order of the request: each text, and the bytes of dynamic shared memory that its launch gives; or why
    there are none."""

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
