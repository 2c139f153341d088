"""Functions of torch that a trace without a GPU, or with symbols for sizes, cannot take as they are."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """A norm of a symbol's groups is written out, padding by a symbol becomes padding by its value (which is then a
    condition), and a number that becomes a tensor on the GPU is filled in there, as long as this lasts."""
    before = F.group_norm, F.pad, torch.tensor
    F.group_norm, F.pad, torch.tensor = _group_norm(F.group_norm), _pad(F.pad), _tensor(torch.tensor)
    try:
        yield
    finally:
        F.group_norm, F.pad, torch.tensor = before


def _pad(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def pad(x: torch.Tensor, pad: Sequence[Any], *rest: Any, **options: Any) -> torch.Tensor:
        return usual(x, [int(amount) for amount in pad], *rest, **options)

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
