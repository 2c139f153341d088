"""Executes blocks of ops for a set of programs at once.

A frame is a scope: the values that ops have defined, for the programs that are active in it. Where programs part ways
(an `scf.if` they disagree on, loops of different length) child frames hold fewer programs and pick their elements out
of the parent's values when they first need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tools.ttir.errors import StepLimit, TtirError, TtirSyntaxError, UnsupportedOp
from tools.ttir.ir import Block, Module, Op, Region
from tools.ttir.memory import Space
from tools.ttir.types import Array
from tools.ttir.values import broadcast_size, check_size, take

MAX_CALLS = 32
TERMINATORS = frozenset(
    ["scf.yield", "scf.condition", "cf.br", "cf.cond_br"]
    + [f"tt.{name}return" for name in ("", "reduce.", "scan.", "map_elementwise.")]
)
# what numpy raises for operands whose shapes or types do not fit: well-formed TTIR never gets there
ILL_TYPED = (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, ArithmeticError)

Results: TypeAlias = "Array | Sequence[Array] | None"
Handler: TypeAlias = "Callable[[Frame, Op, list[Array]], Results]"


@dataclass
class Machine:
    """What all frames of one launch share."""

    module: Module
    handlers: Mapping[str, Handler]
    grid: tuple[int, int, int]
    max_ops: int
    space: Space = field(default_factory=Space)
    used: frozenset[str] = frozenset()
    ops: int = 0
    calls: int = 0

    def count(self) -> None:
        self.ops += 1
        if self.ops > self.max_ops:
            raise StepLimit(f"more than {self.max_ops} ops executed")


class Frame:
    __slots__ = ("machine", "parent", "picks", "programs", "values")

    def __init__(
        self, machine: Machine, programs: Array, parent: Frame | None = None, picks: Array | None = None
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

    def run_block(self, block: Block) -> tuple[Op | None, list[Array]]:
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
        except TtirError:
            raise
        except ILL_TYPED as error:
            raise TtirSyntaxError(f"line {op.line}: ill-formed {op.name}: {error}") from error
        if op.results:
            values = [results] if isinstance(results, np.ndarray) else results or []
            check_size(max((value.size for value in values), default=0))
            self.bind(op.results, values)
