"""Batteries of integers and masks, inside the range that the task's own inputs show."""

import torch
from torch import Generator, Tensor

DISCRETE = ("indices", "one_index")


def replaced_integers(own: Tensor, battery: str, generator: Generator) -> Tensor:
    """New integers or booleans of the same shape: several patterns side by side, or all the same."""
    if own.dtype == torch.bool:
        return _masks(own, generator) if battery == "indices" else torch.zeros_like(own)
    low, high = int(own.min()), int(own.max())
    if battery == "one_index":
        return torch.full_like(own, high)
    return torch.empty_like(own).copy_(_indices(own, low, high, generator))


def _masks(own: Tensor, generator: Generator) -> Tensor:
    """Rows that are all true, random, or true at the last element alone; in turn."""
    values = torch.rand(own.shape, generator=generator, device=own.device) < 0.5
    if own.dim() == 0:
        return values
    rows = torch.arange(own.numel() // own.shape[-1], device=own.device).reshape(*own.shape[:-1], 1)
    last = torch.arange(own.shape[-1], device=own.device) == own.shape[-1] - 1
    chosen = torch.where(rows % 3 == 1, values, last)
    return torch.empty_like(own).copy_((rows % 3 == 0) | chosen)


def _indices(own: Tensor, low: int, high: int, generator: Generator) -> Tensor:
    """A quarter each: all the lowest, ascending, the lowest and the highest in turn, and very few different ones."""
    count = own.numel()
    values = torch.randint(low, high + 1, (count,), generator=generator, device=own.device)
    quarter = torch.arange(count, device=own.device) * 4 // max(1, count)
    ends = torch.where(torch.arange(count, device=own.device) % 2 == 0, low, high)
    few = values[:3][values.remainder(min(3, count))]
    ascending = values.sort().values
    mixed = torch.where(quarter == 0, low, torch.where(quarter == 1, ascending, torch.where(quarter == 2, ends, few)))
    return mixed.reshape(own.shape)
