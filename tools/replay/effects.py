"""What kernels read and write, which steps the outputs depend on, and the bytes that a plan moves. Pure.

A kernel's effects are read off its TTIR, without running it; off PTX by `tools.languages.ptx.checks`.
Every value carries the set of pointer arguments that it may point into; what a load or an atomic returns is data and
carries none. Whatever is not understood (text that does not parse, integers made into pointers, assembly that
addresses memory) may read and write everything: an effect that is not listed here is one that the kernel cannot have.

Liveness is followed backwards from the outputs, storage by storage: a step is live when it may write a storage whose
content is still wanted. What a later forward reads from memory that is kept between calls is wanted too. Where a
kernel's text does not say what it writes, it may write all of its arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kerneltune.tools.languages.ptx.checks import effects as ptx_effects
from kerneltune.tools.languages.triton.ttir import InterpreterError, parse
from kerneltune.tools.languages.triton.ttir.ir import Desc, Func, Op, Ptr, Region, TtirBlock, TtirModule, element_of
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

MOST_TEXT_BYTES = 4 << 20  # longer text is not looked into: it takes 0.4 s for each MB
MOST_PASSES = 8


@dataclass(frozen=True)
class ArgEffect:
    """What a kernel may do to the memory behind one of its arguments."""

    reads: bool
    writes: bool


NOTHING, EVERYTHING = ArgEffect(reads=False, writes=False), ArgEffect(reads=True, writes=True)

_LOADS = frozenset("tt.load tt.descriptor_load tt.descriptor_gather".split())
_STORES = frozenset("tt.store tt.descriptor_store tt.descriptor_scatter".split())
_UPDATES = frozenset("tt.atomic_rmw tt.atomic_cas tt.descriptor_reduce".split())
_PURE_DIALECTS = ("arith.", "math.", "scf.", "cf.", "ub.")
_PURE = frozenset(
    """
    tt.addptr tt.advance tt.assert tt.bitcast tt.broadcast tt.cat tt.clampf tt.dot tt.dot_scaled tt.expand_dims
    tt.fp_to_fp tt.gather tt.get_num_programs tt.get_program_id tt.histogram tt.join
    tt.make_range tt.make_tensor_descriptor tt.make_tensor_ptr tt.map_elementwise tt.map_elementwise.return
    tt.mulhiui tt.precise_divf tt.precise_sqrt tt.print tt.ptr_to_int tt.reduce tt.reduce.return tt.reshape tt.return
    tt.scan tt.scan.return tt.splat tt.split tt.trans tt.unsplat gpu.barrier ttg.barrier ttg.local_barrier
    llvm.intr.assume
    """.split()
)


def effects(kernel: Kernel) -> tuple[ArgEffect, ...]:
    """One effect per entry of `kernel.signature`; numbers have none. Remembered for each text."""
    if kernel.language == "ptx":
        return _of_ptx(kernel)
    return _effects(kernel.text, kernel.signature)


def _of_ptx(kernel: Kernel) -> tuple[ArgEffect, ...]:
    found = ptx_effects(kernel.text, kernel.name) or ((True, True),) * len(kernel.signature)
    pairs = zip(kernel.signature, found, strict=False)
    return tuple(ArgEffect(*both) if kind.startswith("*") else NOTHING for kind, both in pairs)


@lru_cache(maxsize=1024)
def _effects(text: str, signature: tuple[str, ...]) -> tuple[ArgEffect, ...]:
    places = [i for i, kind in enumerate(signature) if kind.startswith(("*", "tensordesc"))]
    found = _of_pointers(text)
    if found is None or len(found) != len(places):
        found = [EVERYTHING] * len(places)
    at = dict(zip(places, found, strict=True))
    return tuple(at.get(i, NOTHING) for i in range(len(signature)))


def _of_pointers(text: str) -> list[ArgEffect] | None:
    """One effect per pointer or descriptor among the kernel's arguments; None when the text cannot be followed."""
    if len(text) > MOST_TEXT_BYTES:
        return None
    try:
        module = parse(text)
        flow = _follow(module, module.kernel, {})
    except (InterpreterError, RecursionError, EffectsUnknown):
        return None
    return [
        ArgEffect(bool(flow.reads >> i & 1), bool(flow.writes >> i & 1))
        for i, kind in enumerate(module.kernel.types)
        if isinstance(kind, Ptr | Desc)
    ]


class EffectsUnknown(Exception):
    """The kernel may reach memory by an address that comes from none of its arguments, as far as can be told."""


class _Scope:
    """The values that a region names; names of the regions around it are seen, those of its siblings are not."""

    def __init__(self, outer: "_Scope | None") -> None:
        self.outer, self.values = outer, dict[str, int]()

    def __getitem__(self, name: str) -> int:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return 0


@dataclass
class PointerFlow:
    """Tracks which arguments the pointers of one function may come from. Sets of arguments are bits of an int,
    argument 0 the lowest."""

    module: TtirModule
    functions: "dict[str, PointerFlow | None]"  # those followed so far; None while they are being followed
    reads: int = 0
    writes: int = 0
    changed: bool = False
    settled: bool = False
    scopes: dict[int, _Scope] = field(default_factory=dict)

    def add(self, scope: _Scope, names: Iterable[str], sets: Iterable[int]) -> None:
        """Let values point there too."""
        for name, bits in zip(names, sets, strict=False):
            known = scope.values.setdefault(name, 0)
            if bits & ~known:
                scope.values[name] = known | bits
                self.changed = True

    def access(self, bits: int, *, reads: bool, writes: bool) -> None:
        """Note an access to memory. Raises AnyMemory for an address of unknown origin."""
        if not bits and self.settled:
            raise EffectsUnknown
        self.reads |= bits * reads
        self.writes |= bits * writes

    def region(self, region: Region, outer: _Scope, ins: Sequence[int], sink: Callable[[Sequence[int]], None]) -> None:
        """Follow a region that is entered with `ins`; `sink` takes what its terminators pass out."""
        scope = self.scopes.setdefault(id(region), _Scope(outer))
        self.add(scope, region.blocks[0].args, ins)
        labels = {block.label: block for block in region.blocks}
        for block in region.blocks:
            for op in block.ops:
                self.op(op, scope, sink, labels)

    def op(self, op: Op, scope: _Scope, sink: Callable[[Sequence[int]], None], labels: dict[str, TtirBlock]) -> None:
        """Follow one operation."""
        ins = [scope[name] for name in op.operands]
        if op.name.endswith(("yield", "return")):
            sink(ins)
        elif op.name == "scf.condition":
            sink(ins[1:])
        for successor in op.successors:
            if target := labels.get(successor.label):
                self.add(scope, target.args, [scope[name] for name in successor.operands])
        self.add(scope, op.results, self.regions(op, scope, ins) if op.regions else self.results(op, ins))

    def regions(self, op: Op, scope: _Scope, ins: list[int]) -> list[int]:
        """Follow what an operation holds; the sets of its results."""
        out = [0] * max(len(op.results), 1)
        union = _union(ins)

        def sink(sets: Sequence[int]) -> None:
            for i, bits in enumerate(sets[: len(out)]):
                out[i] |= bits

        if op.name == "scf.for":
            carried = self.scopes.get(id(op.regions[0]), scope)
            names = op.regions[0].blocks[0].args
            start = [0, *(a | carried.values.get(n, 0) for a, n in zip(ins[3:], names[1:], strict=False))]
            self.region(op.regions[0], scope, start, sink)
            out = [bits | first for bits, first in zip(out, start[1:], strict=False)]
            self.add(self.scopes[id(op.regions[0])], names[1:], out)
            return out
        for region in op.regions:
            width = len(region.blocks[0].args)
            self.region(region, scope, [union | _union(out)] * width, sink)
        return [bits | (0 if op.name == "scf.if" else union | _union(out)) for bits in out]

    def results(self, op: Op, ins: list[int]) -> list[int]:
        """The sets of a plain operation's results, its accesses noted."""
        union = _union(ins)
        if op.name in _LOADS | _STORES | _UPDATES:
            self.access(ins[0] if ins else 0, reads=op.name not in _STORES, writes=op.name not in _LOADS)
            union = 0
        elif op.name == "tt.call":
            self.call(op, ins)
        elif op.name not in _PURE and not op.name.startswith(_PURE_DIALECTS):
            self.other(op, union)
        if not union and self.settled and any(isinstance(element_of(kind), Ptr) for kind in op.outs):
            raise EffectsUnknown  # a pointer that was data
        return [union] * len(op.results)

    def other(self, op: Op, union: int) -> None:
        """An operation that is not known to be pure. Raises AnyMemory if it may make addresses of its own."""
        addresses = op.name == "tt.elementwise_inline_asm" and any("[" in w or "call" in w for w in op.words)
        if addresses or op.name == "tt.int_to_ptr" or not op.name.startswith(("tt.", "ttg.", "gpu.")):
            raise EffectsUnknown
        if union:
            self.access(union, reads=True, writes=True)

    def call(self, op: Op, ins: list[int]) -> None:
        """What a function of the same module does to what it is given. Raises AnyMemory when it cannot be followed."""
        name = str(op.attrs.get("callee", ""))
        if name not in self.module.funcs:
            raise EffectsUnknown
        if name not in self.functions:
            self.functions[name] = None
            self.functions[name] = _follow(self.module, self.module.funcs[name], self.functions)
        inner = self.functions[name]
        if inner is None:
            raise EffectsUnknown  # recursion
        for i, bits in enumerate(ins):
            self.reads |= bits * (inner.reads >> i & 1)
            self.writes |= bits * (inner.writes >> i & 1)


def _union(sets: Iterable[int]) -> int:
    union = 0
    for bits in sets:
        union |= bits
    return union


def _follow(module: TtirModule, func: Func, functions: dict[str, PointerFlow | None]) -> PointerFlow:
    """Follow a function until nothing new turns up. Raises AnyMemory."""
    flow, top = PointerFlow(module, functions), _Scope(None)
    starts = [1 << i if isinstance(kind, Ptr | Desc) else 0 for i, kind in enumerate(func.types)]
    for _ in range(MOST_PASSES):
        flow.changed = False
        flow.region(func.body, top, starts, lambda sets: None)
        if flow.settled:
            return flow
        flow.settled = not flow.changed
    raise EffectsUnknown


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
