"""Runs a parsed kernel over its grid, many programs at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kerneltune.tools.languages.triton.ttir.frame import (
    CONTROL_OPS,
    ILL_TYPED,
    Frame,
    Handler,
    KernelExecution,
    run_func,
)
from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Desc,
    Func,
    InterpreterError,
    Op,
    Ptr,
    Scalar,
    StepLimit,
    TtirBlock,
    TtirModule,
    TtirSyntaxError,
    Type,
    scalar_name,
    shape_of,
)
from kerneltune.tools.languages.triton.ttir.memory import Argument, DescriptorValue, Pointer
from kerneltune.tools.languages.triton.ttir.ops_arith import ELEMENTWISE_OPS
from kerneltune.tools.languages.triton.ttir.ops_memory import MEMORY_OPS, PAD_NAN
from kerneltune.tools.languages.triton.ttir.ops_tensor import TENSOR_OPS
from kerneltune.tools.languages.triton.ttir.values import scalar_array
from kerneltune.tools.languages.triton.ttir.waiting import SideBySide, may_wait

HANDLERS: dict[str, Handler] = {**ELEMENTWISE_OPS, **TENSOR_OPS, **MEMORY_OPS, **CONTROL_OPS}
# elements of the widest value in one batch: enough to hide Python's overhead, few enough to stay in the caches
BATCH = 1 << 18


@dataclass(frozen=True)
class RunStats:
    """What a run did: ops are counted once per batch of programs that execute them together."""

    programs: int
    batches: int
    ops: int


MOST_PROGRAMS = 1 << 31  # whose numbers alone take 16 GiB, of the 20 that an interpreter has


def run(
    module: TtirModule,
    grid: tuple[int, int, int],
    args: Sequence[Argument],
    *,
    max_ops: int = 50_000_000,
    programs: Sequence[int] | None = None,
    cooperative: bool = False,
    until_s: float = math.inf,
) -> RunStats:
    """Executes the module's kernel on `args`, writing through its pointers.

    `args` follow the kernel's arguments, with one `Descriptor` for each host-made tensor descriptor: the shape and
    stride scalars that Triton appends to it are filled in. `programs` limits the run to some linear program ids (x is
    the fastest to change). `cooperative`: all of them run side by side, so that each may wait for any other. After
    `until_s` (by time.process_time) a run that has written something ends with OutOfTime.
    """
    machine = KernelExecution(module, HANDLERS, grid, max_ops, until_s)
    machine.used = frozenset().union(*(func.used for func in module.funcs.values()))
    kernel = module.kernel
    with np.errstate(all="ignore"):
        try:
            values = _bind(machine, kernel, args)
            ids = _program_ids(grid, programs)
            if len(ids) > 1 and may_wait(module):
                batches = [ids[at : at + 1] for at in range(len(ids))]
                _in_turns(machine, batches, values, cooperative=cooperative)
            else:
                batches = list(_batches(ids, module))
                for batch in batches:
                    run_func(Frame(machine, batch), kernel, values)
        except InterpreterError:
            raise
        except RecursionError as error:
            raise StepLimit("control flow nested too deeply") from error
        except ILL_TYPED as error:
            raise TtirSyntaxError(f"ill-formed kernel: {error}") from error
    return RunStats(len(ids), len(batches), machine.ops)


def _in_turns(
    machine: KernelExecution, programs: Sequence[Array], values: Sequence[Array], *, cooperative: bool
) -> None:
    """Run programs one by one, each until it ends or waits for another."""
    machine.space.watched = True
    machine.side_by_side = SideBySide(lambda: machine.space.changes, cooperative=cooperative)

    def work(program: Array) -> None:
        with np.errstate(all="ignore"):  # which each thread has of its own
            run_func(Frame(machine, program), machine.module.kernel, values)

    machine.side_by_side.run([partial(work, program) for program in programs])


def _program_ids(grid: tuple[int, int, int], programs: Sequence[int] | None) -> Array:
    total = grid[0] * grid[1] * grid[2]
    if programs is None and total > MOST_PROGRAMS:
        raise StepLimit(f"a grid of {grid} programs; at most {MOST_PROGRAMS:,} are run")
    ids = np.arange(total) if programs is None else np.array(programs, np.int64).reshape(-1)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < total:
        raise TtirSyntaxError(f"program ids outside the grid {grid}")
    return ids


def _batches(ids: Array, module: TtirModule) -> Iterator[Array]:
    size = max(1, BATCH // _widest(module))
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _widest(module: TtirModule) -> int:
    return max((_numel(op) for func in module.funcs.values() for op in _ops(func.body.blocks)), default=1)


def _ops(blocks: Sequence[TtirBlock]) -> Iterator[Op]:
    for block in blocks:
        for op in block.ops:
            yield op
            for region in op.regions:
                yield from _ops(region.blocks)


def _numel(op: Op) -> int:
    return max((int(np.prod(shape_of(kind), dtype=np.int64)) for kind in (*op.ins, *op.outs)), default=1)


# -- arguments --------------------------------------------------------------------------------------------------------


def _bind(machine: KernelExecution, kernel: Func, args: Sequence[Argument]) -> list[Array]:
    values: list[Array] = []
    for argument in args:
        left = kernel.types[len(values) :]
        if not left:
            raise TypeError(f"{kernel.name} takes {len(kernel.types)} arguments, more were given")
        values += _expand(machine, argument, left)
    if len(values) != len(kernel.types):
        raise TypeError(f"{kernel.name} takes {len(kernel.types)} arguments, {len(values)} were given")
    return values


def _expand(machine: KernelExecution, argument: Argument, kinds: Sequence[Type]) -> list[Array]:
    if isinstance(argument, DescriptorValue):
        return _descriptor(machine, argument, kinds)
    if isinstance(kinds[0], Ptr) != isinstance(argument, Pointer) or isinstance(kinds[0], Desc):
        raise TypeError(f"argument {argument!r:.60} for type {kinds[0]}")
    if isinstance(argument, Pointer):
        return [np.array([machine.space.place(argument)], np.int64)]
    return [scalar_array(argument, kinds[0])]


def _descriptor(machine: KernelExecution, argument: DescriptorValue, kinds: Sequence[Type]) -> list[Array]:
    """The descriptor and the scalars that Triton passes after it.

    With TMA these are i32 shapes and i64 strides. Without (targets before sm_90), a pointer stands for the descriptor,
    followed by i64 shapes and strides, the padding flag, from 3.7 on the TF32 flag, and then i32 shapes and i64
    strides once more.
    """
    address = machine.space.place(argument.base)
    nan = argument.padding == "nan"
    sizes, rank = [*argument.shape, *argument.strides], len(argument.shape)
    first = kinds[0]
    if isinstance(first, Desc):
        if first.block.shape != tuple(argument.block_shape) or scalar_name(first.block.element) != argument.dtype:
            raise TypeError(f"a descriptor of {argument.dtype} {tuple(argument.block_shape)} for type {first}")
        head = [np.array([[address, PAD_NAN if nan else 0, *sizes]], np.int64)]
        numbers = sizes
    else:
        head = [np.array([address], np.int64)]
        booleans = sum(kind == Scalar("i1") for kind in kinds[1 + 2 * rank : 3 + 2 * rank])
        numbers = [*sizes, *[nan, False][:booleans], *sizes]
    tail = kinds[1 : 1 + len(numbers)]
    return head + [scalar_array(number, kind) for number, kind in zip(numbers, tail, strict=True)]
