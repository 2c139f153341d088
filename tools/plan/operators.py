"""Recorded ATen operators become torch's again, and their arguments become values.

Which operators a plan may hold is in `operator_list`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tools.codec import Json
from tools.plan.operator_list import is_allowed
from tools.plan.schema import TensorRef


class NotAllowed(ValueError):
    """The plan holds an operator, an argument or a dtype that no plan may hold."""


@cache
def resolve(op: str) -> Any:
    """The torch operator named "aten::name.overload". Raises NotAllowed."""
    if not is_allowed(op):
        raise NotAllowed(f"operator {op} is not on the list of operators that a plan may hold")
    name, _, overload = op.removeprefix("aten::").partition(".")
    try:
        return getattr(getattr(torch.ops.aten, name), overload or "default")
    except AttributeError as error:
        raise NotAllowed(f"operator {op} does not exist in torch {torch.__version__}") from error


@cache
def takes_device(op: str) -> bool:
    """Whether the operator has a `device` argument."""
    return any(a.name == "device" for a in resolve(op)._schema.arguments)


@cache
def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of that name ("float32"). Raises NotAllowed."""
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise NotAllowed(f"no dtype {name!r}")
    return dtype


def tensor_ref(data: Json) -> TensorRef:
    """The TensorRef inside a {"$tensor": …} object."""
    try:
        return TensorRef(
            int(data["storage"]),
            str(data["dtype"]),
            tuple(int(n) for n in data["shape"]),
            tuple(int(n) for n in data["stride"]),
            int(data["offset"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotAllowed(f"not a tensor reference: {data!r:.100}") from error


def decode_argument(value: Json, view: Callable[[TensorRef], torch.Tensor]) -> Any:
    """Tagged JSON back to an operator argument; `view` finds tensors. Raises NotAllowed on an unknown tag."""
    if isinstance(value, list | tuple):
        return [decode_argument(v, view) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag == "$tensor":
            return view(tensor_ref(inner))
        if tag == "$dtype":
            return dtype_named(str(inner))
        if tag == "$float":
            return float(inner)
        if tag == "$memory_format":
            return _memory_format(str(inner))
    raise NotAllowed(f"unknown argument {value!r:.100}")


def _memory_format(name: str) -> torch.memory_format:
    found = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(found, torch.memory_format):
        raise NotAllowed(f"no memory format {name!r}")
    return found
