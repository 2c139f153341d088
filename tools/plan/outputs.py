"""Where a plan's outputs go: which scratch storages can be the caller's own memory, and which must be copied out. Pure.

A storage that `run` allocates (or fills) itself, and that holds an output, is laid directly into the caller's buffer;
any other output (an input returned, a library operator's result) gets a region into which it is copied afterwards.
Two processes that hold the same plan compute the same layout.
"""

from dataclasses import dataclass

from tools.plan.operator_list import EMPTY, FILLS, base_name
from tools.plan.replay import dtype_bytes
from tools.plan.schema import Aten, Plan, TensorRef, tensor_refs

ALIGNMENT = 512


@dataclass(frozen=True)
class OutputLayout:
    """Offsets into one slot's output buffer of `nbytes`: of storages laid into it, and of outputs copied into it."""

    bound: dict[int, int]
    copied: tuple[tuple[TensorRef, int], ...]
    nbytes: int


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    """Rounded up, at least one unit."""
    return max(1, -(-nbytes // to)) * to


def output_layout(plan: Plan) -> OutputLayout:
    """Lay out the outputs of one forward."""
    made = _made_by_run(plan)
    bound: dict[int, int] = {}
    copied: dict[TensorRef, int] = {}
    end = 0
    for ref in tensor_refs(plan.outputs):
        if ref.storage in made and ref.storage not in bound:
            bound[ref.storage] = end
            end += aligned(plan.storage(ref.storage).nbytes)
        elif ref.storage not in made and ref not in copied:
            copied[ref] = end
            end += aligned(dense_bytes(ref))
    return OutputLayout(bound, tuple(copied.items()), aligned(end))


def dense_bytes(ref: TensorRef) -> int:
    """Bytes of a row-major copy."""
    count = 1
    for size in ref.shape:
        count *= size
    return count * dtype_bytes(ref.dtype)


def dense(ref: TensorRef) -> TensorRef:
    """The same tensor, row-major and from the start of its storage."""
    stride, step = [], 1
    for size in reversed(ref.shape):
        stride.append(step)
        step *= max(size, 1)
    return TensorRef(ref.storage, ref.dtype, ref.shape, tuple(reversed(stride)), 0)


def _made_by_run(plan: Plan) -> set[int]:
    """Scratch storages whose first mention in `run` is an allocation or a fill."""
    scratch = {s.id for s in plan.storages if s.origin == "scratch"}
    made: set[int] = set()
    other: set[int] = set()
    for step in plan.run:
        if isinstance(step, Aten):
            results = {r.storage for r in step.outs if r is not None}
            allocates = base_name(step.op) in EMPTY or base_name(step.op) in FILLS
            (made if allocates else other).update(results & scratch - made - other)
    return made
