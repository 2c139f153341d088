"""The tracer: turns one candidate source into launch plans. Runs in the jail, in a process that ends afterwards.

Entry points for a worker: `warm` (in the tracer's fork server) and `main` (in the forked, confined child).
"""

import inspect
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import _disable_current_modes

from kerneltune.tools.backends import stand_ins
from kerneltune.tools.backends.base import StandIns
from kerneltune.tools.languages.base import FILE, NotCompiled, languages
from kerneltune.tools.replay.replay import Replay
from kerneltune.tools.schema.codec import Json, decode, encode
from kerneltune.tools.schema.messages import (
    MISSING_MODULE,
    READS_VALUE,
    AskCompiler,
    AskForPtx,
    CompilerFacts,
    Failure,
    Lowered,
    Program,
    Refused,
    TraceCase,
    TraceReply,
    TraceRequest,
)
from kerneltune.tools.schema.plan import Aten, Kernel, Plan, Step, Storage, TensorRef
from kerneltune.tools.schema.task import TensorSpec, contract_of, rebuilt, row_major, tagged
from kerneltune.tools.schema.verdict import Cause, Status
from kerneltune.tools.trace.build import Recording, Segment, build_plan, reads, writes
from kerneltune.tools.trace.recorder import CopiedFakes, LaunchLog, Recorder, Tape, copies_are_clones

MOST_SHOWN = 8


def require_call(function: Callable[..., Any], arguments: Sequence[Any], message: str) -> None:
    """Raise Refused with `message` ({takes}, {given} filled in) when `function` does not take these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables have none: the call itself will tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        takes = ", ".join(str(p) for p in signature.parameters.values())
        given = ", ".join(shown(a) for a in arguments)
        raise Refused(message.format(takes=takes, given=given), Cause.SIGNATURE) from error


def require_module(model: Any) -> None:
    """Raise Refused when what ModelNew made is no nn.Module with a forward of its own."""
    if not isinstance(model, torch.nn.Module):
        raise Refused(
            f"ModelNew(...) makes a {type(model).__name__}, which is not an nn.Module: write "
            "class ModelNew(torch.nn.Module), so that parameters can be given to it",
            Cause.NO_MODEL,
        )
    if type(model).forward is torch.nn.Module.forward:
        raise Refused("ModelNew defines no forward; give it the arguments of the task's Model.forward", Cause.NO_MODEL)


def shown(value: Any) -> str:
    """An argument in short: float32[4, 8] for a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in list(value.items())[:MOST_SHOWN]) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value[:MOST_SHOWN]))
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return repr(value)[:80]


_RANDOM = ("uniform", "normal", "rand", "bernoulli")


def constant_scalar(tape: Tape, tensor: torch.Tensor) -> Any:
    """The Python value of a one-element tensor that depends on constants only. Raises Refused otherwise."""
    ref = tape.ref(tensor)
    steps = _producers(tape, ref)
    storages = tuple(
        Storage(n, size, "constant" if n in tape.constants else "scratch", data=tape.constants.get(n))
        for n, size in tape.nbytes.items()
    )
    outputs = {"$tensor": ref.__dict__ | {"shape": list(ref.shape), "stride": list(ref.stride)}}
    plan = Plan("", "", "", storages, (), (), tuple(steps), outputs)
    with _disable_current_modes():
        value: Any = Replay(plan, "cpu", None, {}).run()
        return value.item()


def _producers(tape: Tape, ref: TensorRef) -> list[Aten]:
    needed, kept = {ref.storage}, []
    for step in reversed(tape.steps):
        if not writes(step) & needed:
            continue
        if not isinstance(step, Aten) or any(word in step.op for word in _RANDOM):
            raise Refused(READS_VALUE, Cause.READS_VALUE)
        kept.append(step)
        needed |= reads(step)
    made = set().union(*map(writes, kept)) if kept else set()
    if needed - made - set(tape.constants):
        raise Refused(READS_VALUE, Cause.READS_VALUE)
    return kept[::-1]


@dataclass
class TracingSession:
    """The process-wide recording state that the stand-ins write to."""

    arch: int
    stand_ins: StandIns
    tape: Tape = field(init=False)
    log: LaunchLog = field(init=False)

    def __post_init__(self) -> None:
        self.tape = Tape(self.stand_ins.DEVICE)
        self.log = LaunchLog(self.tape)

    def reset(self) -> None:
        """Forget everything recorded, in place: the stand-ins hold references."""
        self.tape.clear()
        self.log.kernels.clear()
        self.log.choices.clear()
        self.log.offered.clear()


def install(arch: int, gpu: dict[str, Any]) -> TracingSession:
    """Turn this process into a tracer for good."""
    session = TracingSession(arch, stand_ins())
    copies_are_clones()
    target = session.stand_ins.install(session.tape, arch, gpu)
    for known in languages():
        known.record(session.log, target)
    return session


# A small trusted candidate: the first kernel costs 2-3 s of compiler start-up.
_WARM_CASE = TraceCase(
    name="warm",
    inputs=({"$tensor": {"shape": [64, 64], "dtype": "float32", "stride": None}},),
    init_args=(),
)

_WARM_SOURCE = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    total = tl.sum(tl.exp(x), axis=0)
    tl.store(y_ptr + offsets, x * 2 / total, mask=offsets < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""


def warm() -> TracingSession:
    """Install for the default target and trace a small kernel, so that forks start with a warm compiler."""
    from kerneltune.tools.schema.gpus import gpu_named

    gpu = gpu_named("H200")
    session = install(gpu.arch, gpu.served())
    reply = trace(session, TraceRequest(_WARM_SOURCE, (_WARM_CASE,)))
    if reply.failure:
        raise RuntimeError(f"the tracer does not work here: {reply.failure.message}")
    return session


def main(channel: Any) -> None:
    """Answer one TraceRequest, then end: a candidate's process is never reused. Its fork server has called `warm`."""
    (session,) = channel.prepared
    request = decode(TraceRequest, channel.receive().body)

    def ask_compiler(kernel: Kernel) -> dict[str, Json]:
        channel.send(encode(AskCompiler(kernel)))
        facts = decode(CompilerFacts, channel.receive().body)
        if facts.problem:
            raise Refused(
                f"host code asks for registers or shared memory of a kernel: {facts.problem}", Cause.ASKS_COMPILER
            )
        return {"n_regs": facts.n_regs, "n_spills": facts.n_spills, "shared": facts.shared}

    def ask_for_ptx(program: Program) -> Lowered:
        channel.send(encode(AskForPtx(replace(program, line=_first_line(program.text)))))
        lowered = decode(Lowered, channel.receive().body)
        if lowered.failure:
            raise NotCompiled(lowered.failure)
        return lowered

    session.log.ask_compiler, session.log.ask_for_ptx = ask_compiler, ask_for_ptx
    channel.send(encode(trace(session, request)))


def trace(session: TracingSession, request: TraceRequest) -> TraceReply:
    """Trace every case of a candidate. A failure of the candidate is part of the reply; only ours raise."""
    plans: list[Plan] = []
    dropped: list[str] = []
    for case in request.cases:
        try:
            plans += _trace_case(session, request, case, dropped)
        except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is its failure, SystemExit too
            return TraceReply(failure=describe(error), failed_case=case.name)
    return TraceReply(tuple(plans), dropped_variants=tuple(dropped))


def _trace_case(session: TracingSession, request: TraceRequest, case: TraceCase, dropped: list[str]) -> list[Plan]:
    session.reset()
    tracer = CaseTracer(session, case)
    with tracer.fake, Recorder(tracer.fake, session.tape, constant_scalar), torch.no_grad():
        tracer.construct(request.source)
        plans = [tracer.plan("default")]
        for key, offered in list(session.log.offered.items()):
            for index, config in enumerate(offered):
                if index and len(plans) < request.max_variants:
                    session.log.choices[key] = index
                    _variant(tracer, f"{key}: {config}", plans, dropped)
            session.log.choices.pop(key, None)
    return plans


def _variant(tracer: "CaseTracer", label: str, plans: list[Plan], dropped: list[str]) -> None:
    try:
        plans.append(tracer.plan(label))
    except Exception as error:  # noqa: BLE001 - a config that does not compile is left out, as Triton's autotuner does
        dropped.append(f"{label}: {describe(error).message}"[:500])


class CaseTracer:
    """Traces one candidate for one case."""

    def __init__(self, session: TracingSession, case: TraceCase) -> None:
        self.session, self.case = session, case
        self.fake = CopiedFakes()
        self.init: tuple[Step, ...] = ()
        self.state: dict[int, str] = {}
        self.model: Any = None

    def construct(self, source: str) -> None:
        """Import the candidate and build ModelNew(*init_args) on the (fake) GPU."""
        module = load_candidate(source)
        if not callable(getattr(module, "ModelNew", None)):
            raise Refused(
                "the file defines no class ModelNew(nn.Module) with Model's constructor and forward", Cause.NO_MODEL
            )
        with torch.device(self.session.tape.device):
            arguments = self._arguments(self.case.init_args, "init")
            require_call(
                module.ModelNew, arguments, "ModelNew takes ({takes}); the task makes its Model with ({given})"
            )
            self.model = module.ModelNew(*arguments)
        require_module(self.model)
        self.model = self.model.to(f"{self.session.tape.device}:0").eval()
        extra = self._match_state(dict(self.model.state_dict(keep_vars=True)))
        self.init = (*self.session.tape.steps, *extra)

    def _arguments(self, trees: Any, prefix: str) -> list[Any]:
        self._inputs: dict[int, str] = {}
        leaves = {
            "$tensor": lambda leaf, name: self._fake_input(decode(TensorSpec, leaf["$tensor"]), name),
            "$dtype": lambda leaf, _: getattr(torch, leaf["$dtype"]),
        }
        return [rebuilt(tree, leaves, f"{prefix}{i}") for i, tree in enumerate(trees)]

    def _fake_input(self, spec: TensorSpec, name: str) -> torch.Tensor:
        stride = spec.stride or row_major(spec.shape)
        steps = len(self.session.tape.steps)
        tensor = torch.empty_strided(
            spec.shape, stride, dtype=getattr(torch, spec.dtype), device=self.session.tape.device
        )
        del self.session.tape.steps[steps:]
        number = self.session.tape.storage(tensor)
        self._inputs[number] = name
        if (contract := contract_of(self.case.contracts, name)) and contract.lead_bytes:
            self.session.tape.leads[number] = contract.lead_bytes
        return tensor

    def _paired(self, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Pair by name or shape; a parameter of another dtype than this case's is converted, as `.to(dtype)` would."""
        wanted = dict(self.case.state)
        paired = _pair(own, wanted)
        names = {id(t): n for n, t in own.items()}
        for key, tensor in paired.items():
            dtype = getattr(torch, wanted[key].dtype)
            if tensor.dtype != dtype:
                _convert(self.model, names[id(tensor)], dtype)
        return _pair(dict(self.model.state_dict(keep_vars=True)), wanted)

    def _match_state(self, own: dict[str, torch.Tensor]) -> list[Step]:
        """Tie parameters to the reference's by name, else (as KernelBench's seeding does) by order and shape."""
        tape = self.session.tape
        extra: list[Step] = []
        for name, tensor in self._paired(own).items():
            ref = tape.ref(tensor)
            whole = tensor.is_contiguous() and ref.offset == 0 and tape.nbytes[ref.storage] == tensor.nbytes
            if whole and ref.storage not in self.state:
                self.state[ref.storage] = name
                continue
            stride = row_major(tuple(tensor.shape))
            source = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=self.session.tape.device)
            self.state[tape.storage(source)] = name
            arguments = ({"$tensor": encode(ref)}, {"$tensor": encode(tape.ref(source))})
            extra.append(Aten("aten::copy_", arguments, {}, (ref,)))
        return extra

    def forward(self) -> Segment:
        """Record one forward over fresh inputs."""
        arguments = self._arguments(self.case.inputs, "")
        require_call(self.model.forward, arguments, "forward takes ({takes}); the task calls it with ({given})")
        inputs, tape = dict(self._inputs), self.session.tape
        tape.call_start = len(tape.steps)
        outputs = tagged(self.model(*arguments), self._output)
        return Segment(tuple(tape.steps[tape.call_start :]), inputs, outputs)

    def _output(self, value: Any) -> Json:
        if isinstance(value, torch.Tensor):
            if value.device.type != self.session.tape.device:
                raise Refused(
                    f"forward returns a tensor on the {value.device.type} device; return it on the inputs' "
                    f"({self.session.tape.device})",
                    Cause.RETURNS,
                )
            return {"$tensor": encode(self.session.tape.ref(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise Refused(
            f"forward returns {type(value).__name__}; return tensors, or tuples, lists or dicts of them", Cause.RETURNS
        )

    def plan(self, variant: str) -> Plan:
        """The plan for the autotuner choices in force."""
        first, second, third = self.forward(), self.forward(), self.forward()
        if "tf32" in (torch.backends.cuda.matmul.fp32_precision, getattr(torch.backends, "fp32_precision", "")):
            raise Refused(
                "sets TF32 for all products of torch's own: they are judged in float32, and whoever imports this file "
                "would get less. Leave torch's settings alone; a kernel says input_precision where the task allows it"
            )
        tape = self.session.tape
        recording = Recording(
            self.init, first, second, third, self.state, tape.constants, tape.nbytes, tuple(self.session.log.kernels)
        )
        return build_plan(recording, case=self.case.name, variant=variant, arch=f"sm_{self.session.arch}")


def _pair(own: dict[str, torch.Tensor], wanted: dict[str, TensorSpec]) -> dict[str, torch.Tensor]:
    """Reference key -> the candidate's tensor: by equal name and shape, the rest in order of equal shapes."""
    paired = {k: own[k] for k, s in wanted.items() if k in own and tuple(own[k].shape) == s.shape}
    used = {id(t) for t in paired.values()}
    rest = [t for t in own.values() if id(t) not in used]
    for key, spec in wanted.items():
        if key not in paired:
            match = next((t for t in rest if tuple(t.shape) == spec.shape), None)
            if match is not None:
                paired[key] = match
                rest = [t for t in rest if t is not match]
    return paired


def _convert(model: torch.nn.Module, name: str, dtype: torch.dtype) -> None:
    """Give one parameter or buffer another dtype."""
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    old = getattr(owner, leaf)
    new = old.detach().to(dtype)
    if leaf in owner._parameters:
        owner._parameters[leaf] = torch.nn.Parameter(new, requires_grad=old.requires_grad)
    else:
        owner._buffers[leaf] = new


def load_candidate(source: str) -> types.ModuleType:
    """Execute the candidate's file as module `candidate`. Its text is served from memory: the jail has no disk."""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    module = types.ModuleType("candidate")
    module.__file__ = FILE
    sys.modules["candidate"] = module
    exec(_compiled(source), module.__dict__)  # noqa: S102 - what the jail is for
    return module


def _compiled(source: str) -> types.CodeType:
    try:
        return compile(source, FILE, "exec")
    except (MemoryError, RecursionError) as error:
        raise Refused("the source is nested too deeply for Python's parser", Cause.SOURCE) from error


def _first_line(text: str) -> int:
    """The line of the candidate's file on which a text begins; 0 unless it stands there once as it is."""
    source = "".join(linecache.getlines(FILE))
    return source[: source.index(text)].count("\n") + 1 if text and source.count(text) == 1 else 0


def describe(error: BaseException) -> Failure:
    """A failure in words that help the candidate's author."""
    try:
        return _described(error)
    except BaseException:  # noqa: BLE001 - the candidate's exception, whose name and words may raise as well
        return Failure(
            Status.CRASHED,
            "host code raised an exception whose name and message cannot be read",
            cause=Cause.HOST_EXCEPTION,
        )


def _described(error: BaseException) -> Failure:
    if isinstance(error, Refused):
        return Failure(Status.REJECTED, str(error), _line(error), cause=error.cause)
    if isinstance(error, NotCompiled):
        return error.failure
    if isinstance(error, SyntaxError) and error.filename == FILE:
        quoted = f": {error.text.strip()[:200]!r}" if error.text and error.text.strip() else ""
        return Failure(
            Status.REJECTED, f"{type(error).__name__}: {error.msg}{quoted}", error.lineno, cause=Cause.SOURCE
        )
    source = "".join(linecache.getlines(FILE))
    if found := next(filter(None, (known.describe(error, source) for known in languages())), None):
        return replace(found, line=found.line or _line(error))
    if isinstance(error, DataDependentOutputException):
        return Failure(Status.REJECTED, READS_VALUE, _line(error), cause=Cause.READS_VALUE)
    refused = next((e for e in _causes(error) if isinstance(e, Refused)), None)
    if refused is not None:
        return Failure(Status.REJECTED, str(refused), _line(error), cause=refused.cause)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = MISSING_MODULE if isinstance(error, ModuleNotFoundError) else ""
    return Failure(Status.CRASHED, f"host code raised {text[:4000]}{hint}", _line(error), cause=Cause.HOST_EXCEPTION)


def _causes(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and len(chain) < 10:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _line(error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == FILE:
        return error.lineno
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == FILE]
    return lines[-1] if lines else None
