"""Which steps of a forward have anything to do with what it returns? Pure.

Followed backwards from the outputs, storage by storage: a step is live when it may write a storage whose content is
still wanted. What a later forward reads from memory that is kept between calls is wanted too. Where a kernel's text
does not say what it writes, it may write all of its arguments (`effects`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tools.plan.effects import EVERYTHING, effects
from tools.plan.operator_list import base_name
from tools.plan.schema import Aten, DescriptorArg, Kernel, Launch, Step, TensorArg, TensorRef, tensor_refs
from tools.plan.traffic import item_bytes

# In-place operators that do not look at what they overwrite.
_OVERWRITE = frozenset("copy_ fill_ zero_ uniform_ normal_ random_ bernoulli_ exponential_".split())


@dataclass(frozen=True)
class Forward:
    """The steps of one call and what is around them: `outputs`, `inputs` and `made` (by these steps) are storages,
    `nbytes` their sizes. All other storages are kept between calls."""

    steps: Sequence[Step]
    kernels: Sequence[Kernel]
    outputs: Collection[int]
    inputs: Collection[int]
    made: Collection[int]
    nbytes: Mapping[int, int]


def live_steps(forward: Forward) -> list[bool]:
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


def _backwards(forward: Forward, usage: Sequence[_Usage], wanted: Iterable[int]) -> tuple[list[bool], set[int]]:
    """Which steps are live, and all storages that those read, when `wanted` is wanted at the end."""
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


def _usage(step: Step, forward: Forward) -> _Usage:
    return _launch(step, forward.kernels[step.kernel]) if isinstance(step, Launch) else _operator(step, forward)


def _launch(step: Launch, kernel: Kernel) -> _Usage:
    found = effects(kernel)
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


def _operator(step: Aten, forward: Forward) -> _Usage:
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
