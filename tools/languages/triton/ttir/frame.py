"""Executes blocks of ops for a set of programs at once.

A frame is a scope: the values that ops have defined, for the programs that are active in it. Where programs part ways
(an `scf.if` they disagree on, loops of different length) child frames hold fewer programs and pick their elements out
of the parent's values when they first need them.

Control flow (scf.*, branches, calls) runs programs that disagree on a condition in groups that agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Func,
    InterpreterError,
    Misaligned,
    Op,
    OutOfBounds,
    OutOfTime,
    Region,
    StepLimit,
    TtirBlock,
    TtirModule,
    TtirSyntaxError,
    UnsupportedOp,
)
from kerneltune.tools.languages.triton.ttir.memory import AddressSpace
from kerneltune.tools.languages.triton.ttir.values import broadcast_size, check_size, merge, take, uniform_bool
from kerneltune.tools.languages.triton.ttir.waiting import SideBySide, asks_memory

MAX_CALLS = 32
TERMINATORS = frozenset(
    ["scf.yield", "scf.condition", "cf.br", "cf.cond_br"]
    + [f"tt.{name}return" for name in ("", "reduce.", "scan.", "map_elementwise.")]
)
# what numpy raises for operands whose shapes or types do not fit: well-formed TTIR never gets there
ILL_TYPED = (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, ArithmeticError)

Results: TypeAlias = "Array | Sequence[Array] | None"
Handler: TypeAlias = "Callable[[Frame, Op, list[Array]], Results]"


_LOOK_EVERY = 16  # ops, at the clock


@dataclass
class KernelExecution:
    """What all frames of one launch share."""

    module: TtirModule
    handlers: Mapping[str, Handler]
    grid: tuple[int, int, int]
    max_ops: int
    until_s: float = math.inf
    space: AddressSpace = field(default_factory=AddressSpace)
    used: frozenset[str] = frozenset()
    side_by_side: SideBySide | None = None
    ops: int = 0
    calls: int = 0

    def count(self) -> None:
        self.ops += 1
        if self.ops > self.max_ops:
            raise StepLimit(f"more than {self.max_ops} ops executed")
        if self.ops % _LOOK_EVERY == 0 and self.space.written and time.process_time() > self.until_s:
            if not self.space.overwrote():
                raise OutOfTime
            self.until_s = math.inf  # what it has written so far is not what it will leave there

    def wait(self) -> None:
        """Let other programs work, where they may be what a loop waits for."""
        if self.side_by_side is not None:
            calls = self.calls
            self.side_by_side.wait()
            self.calls = calls


class Frame:
    __slots__ = ("machine", "parent", "picks", "programs", "values")

    def __init__(
        self, machine: KernelExecution, programs: Array, parent: Frame | None = None, picks: Array | None = None
    ) -> None:
        self.machine, self.programs, self.parent, self.picks = machine, programs, parent, picks
        self.values: dict[str, Array] = {}

    @property
    def size(self) -> int:
        return len(self.programs)

    def get(self, name: str) -> Array:
        value = self.values.get(name)
        if value is None:
            if self.parent is None:
                raise TtirSyntaxError(f"{name} is used but not defined")
            value = self.parent.get(name)
            if self.picks is not None:
                value = self.values[name] = take(value, self.picks)
        return value

    def bind(self, names: Sequence[str], values: Sequence[Array]) -> None:
        if len(names) != len(values):
            raise TtirSyntaxError(f"{len(values)} values for {len(names)} names {tuple(names)[:4]}")
        self.values.update(zip(names, values, strict=True))

    def child(self, picks: Array | None = None) -> Frame:
        return Frame(self.machine, self.programs if picks is None else self.programs[picks], self, picks)

    def split(self, picks: Array) -> Frame:
        """A frame of its own for some of the programs; unlike a child's, its parent may then be dropped."""
        frame = Frame(self.machine, self.programs[picks])
        frame.values = {name: take(value, picks) for name, value in self.values.items()}
        return frame

    def run_region(self, region: Region, args: Sequence[Array] = ()) -> list[Array]:
        """Runs a single-block region and returns what it yields."""
        if len(region.blocks) != 1:
            raise UnsupportedOp("multi-block region")
        self.machine.count()  # an empty body takes a step too, or a loop around it would not end
        frame = self.child()
        frame.bind(region.blocks[0].args, args)
        return frame.run_block(region.blocks[0])[1]

    def run_block(self, block: TtirBlock) -> tuple[Op | None, list[Array]]:
        """Runs the ops up to the block's terminator; returns that and its operands (an empty yield may be left out)."""
        for op in block.ops:
            args = [self.get(name) for name in op.operands]
            self.machine.count()
            if op.name in TERMINATORS:
                return op, args
            self.run_op(op, args)
        return None, []

    def run_op(self, op: Op, args: list[Array]) -> None:
        handler = self.machine.handlers.get(op.name)
        if handler is None:
            raise UnsupportedOp(op.name)
        try:
            check_size(broadcast_size(args))
            results = handler(self, op, args)
        except (OutOfBounds, Misaligned) as error:
            error.op_line = error.op_line or op.line  # the innermost
            raise
        except InterpreterError:
            raise
        except ILL_TYPED as error:
            raise TtirSyntaxError(f"line {op.line}: ill-formed {op.name}: {error}") from error
        if op.results:
            values = [results] if isinstance(results, np.ndarray) else results or []
            check_size(max((value.size for value in values), default=0))
            self.bind(op.results, values)


class Gathered:
    """Results of all programs of a frame, filled in group by group."""

    def __init__(self, programs: int) -> None:
        self.programs = programs
        self.values: list[Array] | None = None

    def add(self, picks: Array, parts: Sequence[Array]) -> None:
        known: Sequence[Array | None] = self.values if self.values is not None else [None] * len(parts)
        self.values = [merge(full, part, picks, self.programs) for full, part in zip(known, parts, strict=True)]


def if_op(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    condition = args[0]
    agreed = uniform_bool(condition)
    if agreed is not None:
        return _branch(frame, op, agreed)
    gathered = Gathered(frame.size)
    for truth in (True, False):
        picks = np.flatnonzero(condition == truth)
        gathered.add(picks, _branch(frame.child(picks), op, truth))
    return gathered.values or []


def _branch(frame: Frame, op: Op, truth: bool) -> list[Array]:
    if truth:
        return frame.run_region(op.regions[0])
    return frame.run_region(op.regions[1]) if len(op.regions) > 1 else []


def for_op(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    lower, upper, step, *carried = args
    trips = _trip_counts(lower, upper, step, "unsigned" in op.words)
    if trips.shape[0] == 1 or trips.min() == trips.max():
        return _iterate(frame, op, (lower, step), (0, int(trips.flat[0])), carried)
    gathered, done = Gathered(frame.size), 0
    picks = np.arange(frame.size)
    # all programs run the first iterations together; at each distinct trip count some have finished
    for count in np.unique(trips):
        keep = trips[picks] >= count
        picks, carried = picks[keep], [take(value, np.flatnonzero(keep)) for value in carried]
        span = take(lower, picks), take(step, picks)
        carried = _iterate(frame.child(picks), op, span, (done, int(count)), carried)
        done = int(count)
        gathered.add(picks, carried)
    return gathered.values or []


def _trip_counts(lower: Array, upper: Array, step: Array, unsigned: bool) -> Array:
    # Python integers cannot overflow, and there are only as many as there are programs
    bits = lower.dtype.itemsize * 8
    lows, highs, steps = np.broadcast_arrays(lower, upper, step)
    counts = []
    for low, high, stride in zip(lows.tolist(), highs.tolist(), steps.tolist(), strict=True):
        if stride <= 0:
            raise TtirSyntaxError("scf.for with a step that is not positive")
        if unsigned:
            low, high = low % (1 << bits), high % (1 << bits)
        counts.append(max(0, -((low - high) // stride)))
    return np.array(counts, np.int64)


def _iterate(
    frame: Frame, op: Op, span: tuple[Array, Array], trips: tuple[int, int], carried: list[Array]
) -> list[Array]:
    lower, step = span
    for trip in range(*trips):
        induction = lower + step * step.dtype.type(trip)
        carried = frame.run_region(op.regions[0], [induction, *carried])
    return carried


def while_op(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    gathered, picks, active = Gathered(frame.size), np.arange(frame.size), frame
    carried: list[Array] = args
    waits = frame.machine.side_by_side is not None and asks_memory(op)
    while True:
        condition, *forwarded = active.run_region(op.regions[0], carried)
        agreed = uniform_bool(condition)
        if agreed is None:
            stop, go = np.flatnonzero(~condition), np.flatnonzero(condition)
            gathered.add(picks[stop], [take(value, stop) for value in forwarded])
            picks, forwarded = picks[go], [take(value, go) for value in forwarded]
            active = frame.child(picks)
        elif not agreed:
            gathered.add(picks, forwarded)
            return gathered.values or []
        carried = active.run_region(op.regions[1], forwarded)
        if waits:
            frame.machine.wait()


def call(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    machine, name = frame.machine, str(op.attrs.get("callee"))
    func = machine.module.funcs.get(name)
    if func is None:
        raise UnsupportedOp(f"tt.call {name}", "not defined in the module")
    machine.calls += 1
    if machine.calls > MAX_CALLS:
        raise StepLimit(f"more than {MAX_CALLS} nested calls")
    try:
        return run_func(Frame(machine, frame.programs), func, args)
    finally:
        machine.calls -= 1


def run_func(frame: Frame, func: Func, args: Sequence[Array]) -> list[Array]:
    if not func.body.blocks:
        raise TtirSyntaxError(f"{func.name} has no body")
    frame.bind(func.args, args)
    return run_blocks(frame, func.body)


def run_blocks(frame: Frame, region: Region) -> list[Array]:
    """Follows branches from the first block until every program has returned."""
    labels = {block.label: block for block in region.blocks}
    gathered = Gathered(frame.size)
    work = [(frame, region.blocks[0], np.arange(frame.size))]
    while work:
        here, block, where = work.pop()
        end, args = here.run_block(block)
        if end is None or end.name not in ("cf.br", "cf.cond_br"):
            gathered.add(where, args)
            continue
        for truth, picks in _directions(end, args, here.size):
            successor = end.successors[0 if truth else 1]
            target = labels[successor.label]
            there = here if len(picks) == here.size else here.split(picks)
            _enter(there, target, successor.operands)
            work.append((there, target, where[picks]))
    return gathered.values or []


def _enter(frame: Frame, target: TtirBlock, operands: Sequence[str]) -> None:
    # read before binding: a block may pass its own arguments to itself in another order
    frame.bind(target.args, [frame.get(name) for name in operands])


def _directions(end: Op, args: list[Array], size: int) -> list[tuple[bool, Array]]:
    everyone = np.arange(size)
    agreed = True if end.name == "cf.br" else uniform_bool(args[0])
    if agreed is not None:
        return [(agreed, everyone)]
    return [(truth, np.flatnonzero(args[0] == truth)) for truth in (False, True)]


def execute_region(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    return frame.run_region(op.regions[0])


CONTROL_OPS: dict[str, Handler] = {
    "scf.if": if_op,
    "scf.for": for_op,
    "scf.while": while_op,
    "scf.execute_region": execute_region,
    "tt.call": call,
}
