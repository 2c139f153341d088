"""Functions of torch that a trace without a GPU, or with symbols for sizes, cannot take as they are."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as functional


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """As long as this lasts: a norm of a symbol's groups is written out; padding is joining with zeros where sizes are
    symbols, whose values the operator would take, and its amounts become numbers; and a number that becomes a tensor on
    the GPU is filled in there."""
    instead: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (functional, "group_norm", _group_norm),
        (functional, "pad", _pad),
        (torch, "tensor", _tensor),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, wrap in instead:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, wrap(getattr(owner, name)))
        yield


def _pad(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def pad(x: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> torch.Tensor:
        amounts = [int(amount) for amount in pad]
        known = not any(isinstance(size, torch.SymInt) for size in x.shape)
        if known or mode != "constant" or min(amounts, default=0) < 0:
            return usual(x, amounts, mode, value)
        for place, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
            dim = x.dim() - 1 - place
            ends = [x.new_full([*x.shape[:dim], n, *x.shape[dim + 1 :]], value or 0.0) for n in (before, after)]
            x = torch.cat([end for end in (ends[0], x, ends[1]) if end is x or end.shape[dim] > 0], dim)
        return x

    return pad


def _group_norm(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def group_norm(
        x: torch.Tensor,
        num_groups: Any,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not isinstance(num_groups, torch.SymInt):
            return usual(x, num_groups, weight, bias, eps)
        grouped = x.float().reshape(x.shape[0], num_groups, x.shape[1] // num_groups, *x.shape[2:])
        variance, mean = torch.var_mean(grouped, tuple(range(2, grouped.dim())), correction=0, keepdim=True)
        y = ((grouped - mean) * torch.rsqrt(variance + eps)).reshape(x.shape)
        for value, apply in ((weight, torch.mul), (bias, torch.add)):
            y = y if value is None else apply(y, _per_channel(value, x.dim()))
        return y.to(x.dtype)

    return group_norm


def _per_channel(value: torch.Tensor, dims: int) -> torch.Tensor:
    return value.reshape(-1, *[1] * (dims - 2))


def _tensor(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def tensor(data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda" or not isinstance(data, bool | int | float):
            return usual(data, dtype=dtype, device=device, **options)
        return torch.full((), data, dtype=dtype, device=device)

    return tensor
