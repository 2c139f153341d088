"""What a kernel reads and writes, read off its TTIR without running it. Pure.

Every value carries the set of pointer arguments that it may point into; what a load or an atomic returns is data and
carries none. Whatever is not understood (text that does not parse, integers made into pointers, assembly that
addresses memory) may read and write everything: an effect that is not listed here is one that the kernel cannot have.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kerneltune.tools.languages.base import EVERYTHING, NOTHING, ArgEffect
from kerneltune.tools.languages.triton.ttir import InterpreterError, parse
from kerneltune.tools.languages.triton.ttir.ir import Desc, Func, Op, Ptr, Region, TtirBlock, TtirModule, element_of

MOST_TEXT_BYTES = 4 << 20  # longer text is not looked into: it takes 0.4 s for each MB
MOST_PASSES = 8
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


@lru_cache(maxsize=1024)
def effects(text: str, signature: tuple[str, ...]) -> tuple[ArgEffect, ...]:
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
