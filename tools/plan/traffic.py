"""What a plan moves and launches, counted from the plan alone. Pure."""

from collections.abc import Iterable

from tools.plan.schema import DescriptorArg, Launch, Plan, Step, TensorArg, TensorRef, tensor_refs

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
