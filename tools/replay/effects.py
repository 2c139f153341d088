"""Which steps of a plan its outputs depend on, and the bytes that it moves. Pure.

Liveness is followed backwards from the outputs, storage by storage: a step is live when it may write a storage whose
content is still wanted. What a later forward reads from memory that is kept between calls is wanted too. Where a
kernel's text does not say what it writes, it may write all of its arguments.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kerneltune.tools.languages.base import EVERYTHING, language
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
    tensor_refs,
)

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
    if isinstance(step, Launch):
        return _distinct_bytes(a.tensor for a in step.args if isinstance(a, TensorArg | DescriptorArg))
    if step.op.startswith(_ALLOCATIONS):
        return 0
    return _distinct_bytes([*tensor_refs([list(step.args), step.kwargs]), *filter(None, step.outs)])


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
