"""Which ATen operators are glue (allocation, copies, casts, fills, index tables) and which compute.

Both may be part of a plan; computing ones are counted as library time and never as the candidate's own work.
"""

from collections.abc import Sequence
from typing import Any

_GLUE = frozenset(
    """empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones
    full full_like new_full fill_ zero_ copy_ clone _to_copy arange linspace eye tril_indices triu_indices
    scalar_tensor resize_ set_ constant_pad_nd lift_fresh detach alias uniform_ normal_ rand randn randint
    rand_like randn_like random_ bernoulli_ trunc_normal_""".split()
)


def is_library(op: str) -> bool:
    """Whether the operator ("aten::mm", "aten::add.Tensor") computes."""
    return op.removeprefix("aten::").partition(".")[0] not in _GLUE


def fill_of(op: str, args: Sequence[Any]) -> list[Any] | None:
    """For an allocating operator what fills the result: [] nothing, [value] a number; None for any other operator."""
    name = op.removeprefix("aten::").partition(".")[0]
    if name.startswith(("empty", "new_empty")):
        return []
    if name in ("zeros", "zeros_like", "new_zeros"):
        return [0]
    if name in ("ones", "ones_like", "new_ones"):
        return [1]
    if name in ("full", "full_like", "new_full"):
        return [args[2 if name == "new_full" else 1]]
    return None
