"""Which steps of a plan its outputs depend on, and the bytes that it moves. Pure.

Liveness is followed backwards from the outputs, storage by storage: a step is live when it may write a storage whose
content is still wanted. What a later forward reads from memory that is kept between calls is wanted too. Where a
kernel's text does not say what it writes, it may write all of its arguments.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kerneltune.tools.languages.base import EVERYTHING, language
from kerneltune.tools.schema.gpus import Gpu
from kerneltune.tools.schema.plan import (
    Aten,
    DescriptorArg,
    Kernel,
    Launch,
    Plan,
    Step,
    TensorArg,
    TensorRef,
    base_name,
    step_refs,
    tensor_refs,
)
from kerneltune.tools.schema.sass import Census, Sass, phases
from kerneltune.tools.schema.verdict import KernelReport

_ALLOCATIONS = ("aten::empty", "aten::new_empty")
_ITEM_BYTES = {"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "uint32": 4}
_HALF_BYTES = {"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a torch dtype name."""
    return _ITEM_BYTES.get(dtype) or _HALF_BYTES.get(dtype) or 1


def traffic_bytes(plan: Plan) -> int:
    """Bytes that the steps of one forward touch, each tensor once per step: a lower bound on its memory traffic when
    nothing stays in cache between steps. Allocations move nothing."""
    return sum(_step_bytes(step) for step in plan.run)


def _step_bytes(step: Step) -> int:
    allocates = isinstance(step, Aten) and step.op.startswith(_ALLOCATIONS)
    return 0 if allocates else _distinct_bytes(step_refs(step))


def _distinct_bytes(refs: Iterable[TensorRef]) -> int:
    """Bytes of the tensors; of several views of one storage the largest counts."""
    largest: dict[int, int] = {}
    for ref in refs:
        largest[ref.storage] = max(largest.get(ref.storage, 0), _view_bytes(ref))
    return sum(largest.values())


def _view_bytes(ref: TensorRef) -> int:
    elements = 1
    for size, stride in zip(ref.shape, ref.stride, strict=True):
        elements *= size if stride else 1  # an expanded dimension is read from cache
    return elements * item_bytes(ref.dtype)


_CLOCK_HZ = 1.7e9  # about what H100, H200 and A100 hold under load; their data sheets give no more than a boost clock
_SCHEDULERS = 4  # of a multiprocessor, from Volta on
_LAUNCH_S = 2e-6  # of one step behind another in a graph, about
_MOVED_OTHERWISE = ("bulk", "tensor")  # beginnings of classes whose bytes or repetitions no instruction tells
_IN_FLIGHT = {10: 64 << 10, 9: 48 << 10, 8: 16 << 10}  # generation -> bytes a multiprocessor must have asked for


def effective_bytes(plan: Plan, reports: Mapping[str, KernelReport], sass: Mapping[str, Sass], gpu: Gpu) -> float:
    """What orders kernels that nobody can time: a plan's memory traffic, issue and launches in bytes that the GPU's
    memory would move meanwhile at its full rate. `reports`, `sass`: by Kernel.sha256. It is an order, not a time.

    A roofline (Williams et al., 2009), with Little's law (Volkov, 2016) for memory. A launch takes the longer of
        memory  (bytes loaded / min(1, bytes in flight / bytes needed in flight) + bytes stored and spilled)
        issue   waves x max(instructions x warps per scheduler, issue cycles of one warp) / clock
    In flight are a trip's loads of all resident threads, so 2-byte loads and few warps cost; what is needed is CUB's
    (`arch_to_min_bytes_in_flight`: 48 KiB on an H200). A loop that stores runs until its outputs are written, one that
    only loads until the largest tensor is read: so one that reads it a second time counts twice. Bulk copies and
    tensor cores say no such numbers: there each tensor counts once, as in `traffic_bytes`.
    """
    total = 0.0
    for step in plan.run:
        moved = float(_step_bytes(step))
        kernel = plan.kernels[step.kernel] if isinstance(step, Launch) else None
        if isinstance(step, Launch) and kernel is not None and kernel.sha256 in sass:
            moved = max(moved, _launch_bytes(step, kernel, reports[kernel.sha256], sass[kernel.sha256], gpu))
        total += moved + _LAUNCH_S * gpu.bandwidth_gbps * 1e9 * (moved > 0)
    return total


def _launch_bytes(step: Launch, kernel: Kernel, report: KernelReport, sass: Sass, gpu: Gpu) -> float:
    if any(name.startswith(_MOVED_OTHERWISE) for name in sass.whole.classes) or sass.cut:
        return 0.0
    warps = math.prod(step.grid) * report.num_warps
    resident = max(1.0, min(report.occupancy * gpu.warps_per_sm, warps / gpu.multiprocessors))  # of a multiprocessor
    needed, read, written = _IN_FLIGHT.get(gpu.arch // 10, 12 << 10), *_read_and_written(step, kernel)
    memory = instructions = cycles = 0.0
    for number, phase in enumerate(phases(sass.instructions)):
        trips = _trips(phase, read, written, warps * 32) if number else 1.0
        share = min(1.0, resident * 32 * phase.loaded_bytes / needed) or 1.0
        memory += trips * warps * 32 * (phase.loaded_bytes / share + phase.stored_bytes + phase.spilled_bytes)
        instructions += trips * phase.instructions
        cycles += trips * phase.issue_cycles
    waves = warps / gpu.multiprocessors / resident
    issue_s = waves * max(instructions * resident / _SCHEDULERS, cycles) / _CLOCK_HZ
    return max(memory, issue_s * gpu.bandwidth_gbps * 1e9)


def _trips(loop: Census, read: int, written: int, threads: int) -> float:
    """How often each thread runs a loop, at least once: see `effective_bytes`."""
    nbytes, of = (written, loop.stored_bytes) if loop.stored_bytes else (read, loop.loaded_bytes)
    return max(1.0, nbytes / (threads * of)) if of and threads else 1.0


def _read_and_written(step: Launch, kernel: Kernel) -> tuple[int, int]:
    """Bytes of the largest tensor that a launch may read, and of all that it may write."""
    found = language(kernel.language).effects(kernel)
    read, written = 0, list[TensorRef]()
    for i, argument in enumerate(step.args):
        if isinstance(argument, TensorArg | DescriptorArg):
            effect = found[i] if len(found) == len(step.args) else EVERYTHING
            read = max(read, _view_bytes(argument.tensor)) if effect.reads else read
            written += [argument.tensor] if effect.writes else []
    return read, _distinct_bytes(written)


# In-place operators that do not look at what they overwrite.
_OVERWRITE = frozenset("copy_ fill_ zero_ uniform_ normal_ random_ bernoulli_ exponential_".split())


@dataclass(frozen=True)
class ForwardPass:
    """The steps of one call and what is around them: `outputs`, `inputs` and `made` (by these steps) are storages,
    `nbytes` their sizes. All other storages are kept between calls."""

    steps: Sequence[Step]
    kernels: Sequence[Kernel]
    outputs: Collection[int]
    inputs: Collection[int]
    made: Collection[int]
    nbytes: Mapping[int, int]


def live_steps(forward: ForwardPass) -> list[bool]:
    """For each step whether it has to stay: its results reach an output, or it makes a storage that a live step
    mentions, or it is an operator that changes memory which was there before the call."""
    usage = [_usage(step, forward) for step in forward.steps]
    wanted = set(forward.outputs)
    while True:
        alive, read = _backwards(forward, usage, wanted)
        kept = read - set(forward.made) - set(forward.inputs)
        if kept <= wanted:
            return alive
        wanted |= kept


@dataclass(frozen=True)
class _Usage:
    reads: set[int]
    writes: set[int]
    replaces: set[int]
    makes: bool = False
    stays: bool = False
    names: frozenset[int] = frozenset()  # what it is given, though it may neither read nor write it

    @property
    def mentions(self) -> set[int]:
        return self.reads | self.writes | self.names


def _backwards(forward: ForwardPass, usage: Sequence[_Usage], wanted: Iterable[int]) -> tuple[list[bool], set[int]]:
    """Find the live steps, and all storages that those read, when `wanted` is wanted at the end."""
    needed, mentioned, read = set(wanted), set(wanted), set[int]()
    alive = [False] * len(usage)
    for i in reversed(range(len(usage))):
        step = usage[i]
        if step.stays or step.writes & needed:
            needed = (needed - step.replaces) | step.reads
            read |= step.reads
        elif not (step.makes and step.writes & mentioned):  # memory that is overwritten before anybody looks
            continue
        alive[i] = True
        mentioned |= step.mentions
    return alive, read


def _usage(step: Step, forward: ForwardPass) -> _Usage:
    return _launch(step, forward.kernels[step.kernel]) if isinstance(step, Launch) else _operator(step, forward)


def _launch(step: Launch, kernel: Kernel) -> _Usage:
    found = language(kernel.language).effects(kernel)
    if min(step.grid) <= 0:
        return _Usage(set(), set(), set())
    reads, writes, names = set[int](), set[int](), set[int]()
    for i, argument in enumerate(step.args):
        if isinstance(argument, TensorArg | DescriptorArg):
            effect = found[i] if len(found) == len(step.args) else EVERYTHING
            names.add(argument.tensor.storage)
            reads |= {argument.tensor.storage} if effect.reads else set()
            writes |= {argument.tensor.storage} if effect.writes else set()
    return _Usage(reads, writes, set(), names=frozenset(names))


def _operator(step: Aten, forward: ForwardPass) -> _Usage:
    outs = {r.storage for r in step.outs if r is not None}
    named, positional = list(tensor_refs(step.kwargs)), list(tensor_refs(list(step.args)))
    given = {r.storage for r in [*named, *positional]}
    if not outs & given and outs:
        return _Usage(given, outs, outs, makes=True, stays=not outs <= set(forward.made))
    # in place, `out=`, or nothing returned: which arguments change is in the schema, which is not at hand here
    changed = given if not outs or "batch_norm" in step.op else outs
    unseen = {r.storage for r in filter(None, step.outs) if _covers(r, forward.nbytes.get(r.storage, -1))}
    if base_name(step.op) in _OVERWRITE:
        seen = positional[1:]
    elif "out" in step.op.partition(".")[2]:
        seen = positional
    else:
        seen, unseen = positional, set()
    reads = {r.storage for r in seen} | (given - unseen)
    return _Usage(reads, changed | outs, unseen, stays=not (changed | outs) <= set(forward.made))


def _covers(ref: TensorRef, nbytes: int) -> bool:
    """Whether the view is all of its storage."""
    elements = 1
    for size, stride in sorted(zip(ref.shape, ref.stride, strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != elements:
            return False
        elements *= size
    return ref.offset == 0 and elements * item_bytes(ref.dtype) >= nbytes
