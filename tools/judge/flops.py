"""Counts the floating-point operations of contractions, as torch does, and attention with grouped heads as well.

torch 2.11's own counter refuses attention in which several query heads share a key head, and counts none of the CPU's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

_ATEN = torch.ops.aten
# Where each operator's arguments after query, key and value say that the mask is causal.
_CAUSAL_AT = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: 1,
    _ATEN._scaled_dot_product_flash_attention: 1,
    _ATEN._scaled_dot_product_efficient_attention: 3,
    _ATEN._scaled_dot_product_cudnn_attention: 3,
}


def counter(*, whole: bool = False) -> FlopCounterMode:
    """A context manager; `get_total_flops()` is what ran inside it. A causal mask leaves out what lies above the
    diagonal, unless the `whole` of the products is asked for."""
    counts = {operator: _attention(None if whole else at) for operator, at in _CAUSAL_AT.items()}
    return FlopCounterMode(display=False, custom_mapping=counts)


def _attention(causal_at: int | None) -> Callable[..., int]:
    def flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        (batch, heads, rows, depth), columns = query, key[-2]
        given = args[causal_at] if causal_at is not None and causal_at < len(args) else False
        causal = causal_at is not None and (kwargs.get("is_causal", given) is True)
        seen = sum(min(row + 1, columns) for row in range(rows)) if causal else rows * columns
        return int(2 * batch * heads * seen * (depth + value[-1]))

    return flops
