"""How tensors lie in flat bytes: places for them, writing them as they are, seeing them there again."""

from collections.abc import Sequence

import torch

from tools.judge.tree import Tree, leaves, tensors
from tools.plan.replay import aligned
from tools.runner.protocol import Region


def extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the tensor's first element to its last."""
    if tensor.numel() == 0:
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


def write(region: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a tensor as it lies in memory, strides included, into flat bytes."""
    nbytes = extent_bytes(tensor)
    if nbytes:
        flat = tensor.as_strided((nbytes // tensor.element_size(),), (1,), tensor.storage_offset())
        region[:nbytes].copy_(flat.view(torch.uint8))


def like(region: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The region seen as a tensor of the same dtype, shape and strides."""
    if tensor.numel() == 0:
        return torch.empty_like(tensor)
    typed = region[: extent_bytes(tensor)].view(tensor.dtype)
    return typed.as_strided(tensor.shape, tensor.stride(), typed.storage_offset())


def regions_of(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[tuple[Region, ...], int]:
    """Places for named tensors one after the other, and where they end."""
    regions, end = [], 0
    for name, tensor in named:
        regions.append(Region(name, end, extent_bytes(tensor)))
        end += aligned(extent_bytes(tensor))
    return tuple(regions), aligned(end)


def tree_bytes(tree: Tree) -> int:
    """Bytes of all tensors of a tree as they lie in memory."""
    return sum(extent_bytes(leaf) for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor))


def same_bits(left: Tree, right: Tree) -> bool:
    """Whether two trees hold the same bits (NaN equals NaN)."""
    pairs = zip(tensors(left), tensors(right), strict=True)
    return all(torch.equal(_bits(a), _bits(b)) for a, b in pairs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor
