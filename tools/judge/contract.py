"""Which values may replace a task's own: what its file declares (INPUTS), else what several of its own draws show.

A wrong guess in one direction rejects honest kernels (a rope table whose halves differ, a negative variance), in the
other it only weakens a battery. So a tensor counts as free only if nothing at all speaks for a structure. Judges
plain numbers on a sample of each tensor; runs no reference itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tools.judge.tree import Tree, leaves, map_leaves

Kinds = Mapping[str, str]  # by path of the input: "any", "positive", "special" or "own"
InDomain = Callable[[Tree], bool]  # whether the reference is defined on these inputs

_SAMPLE = 1 << 20  # elements looked at
_FEWEST = 8  # elements; fewer tell nothing
_COMMONEST = 0.1  # share of the most frequent value, above which it means something (padding, a mask, sparsity)
_SLICE = 8  # elements of a row or column before its repetition is no accident
_TRIAL = 100.0  # scale at which a domain with an end (probabilities, cosines) shows


def declared_kinds(own: Tree, positions: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Kinds of all tensors below the declared arguments; "special" is for floats, an integer of that kind is "any"."""
    kinds = dict(positions)
    found = {}
    for path, leaf in leaves(own):
        kind = kinds.get(int(path.partition(".")[0])) if path else None
        if kind is not None and isinstance(leaf, Tensor):
            found[path] = kind if leaf.is_floating_point() or kind == "own" else "any"
    return found


def inferred_kinds(draws: Sequence[Tree], in_domain: InDomain) -> dict[str, str]:
    """Kinds of all tensors, from several draws of the task's own inputs with different seeds."""
    by_path: dict[str, list[Tensor]] = {}
    for draw in draws:
        for path, leaf in leaves(draw):
            if isinstance(leaf, Tensor):
                by_path.setdefault(path, []).append(sampled(leaf))
    varying = {path for path, samples in by_path.items() if not _same(samples)}
    kinds = {}
    for path, samples in by_path.items():
        moves = path in varying or not varying  # a file that seeds its own draws repeats all of them
        kinds[path] = _kind(samples) if moves and len({s.shape for s in samples}) == 1 else "own"
    return {path: _tried(draws[0], path, kind, in_domain) for path, kind in kinds.items()}


def _same(samples: Sequence[Tensor]) -> bool:
    return all(torch.equal(samples[0], other) for other in samples[1:])


def sampled(tensor: Tensor) -> Tensor:
    """A block of the tensor with all of its dimensions, small enough to be looked at closely, on the CPU."""
    for dim in range(tensor.dim()):
        if tensor.numel() > _SAMPLE:
            rest = tensor.numel() // tensor.shape[dim]
            tensor = tensor.narrow(dim, 0, max(1, min(tensor.shape[dim], max(64, _SAMPLE // max(1, rest)))))
    tensor = tensor.detach().cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def _kind(samples: Sequence[Tensor]) -> str:
    first = samples[0]
    if first.numel() < _FEWEST or first.is_complex():
        return "own"
    is_free = _is_free_float if first.is_floating_point() else _is_free_index
    if first.dtype == torch.bool:
        is_free = _is_free_mask
    return "any" if any(is_free(sample) for sample in samples) else "own"  # a structure shows in every draw


def _tried(own: Tree, path: str, kind: str, in_domain: InDomain) -> str:
    """Narrow a free float to where the reference is defined: some functions end at zero or at one."""
    tensor = dict(leaves(own))[path]
    if kind != "any" or not tensor.is_floating_point():
        return kind

    def with_factor(factor: float) -> Tree:
        return map_leaves(lambda p, t: (t.double() * factor).to(t.dtype) if p == path else t, own)

    if not in_domain(with_factor(_TRIAL)):
        return "own"
    if bool((tensor.double() >= 0).all()) and not in_domain(with_factor(-1.0)):
        return "positive"
    return "any"


def _is_free_float(x: Tensor) -> bool:
    """No sign of a structure: neither in single values nor along any dimension."""
    if not bool(torch.isfinite(x).all()) or bool((x == x.round()).all()):
        return False
    counts = torch.unique(x, return_counts=True)[1]
    if float(counts.max()) > max(_COMMONEST * x.numel(), 2):
        return False
    along = (_repeats, _is_sorted, _adds_up, _is_smooth)
    return not _is_symmetric(x) and not any(sign(x, dim) for dim in range(x.dim()) for sign in along)


def _is_free_index(x: Tensor) -> bool:
    """Integers as randint makes them: neither sorted nor distinct, and none with a meaning of its own below zero."""
    low, high = int(x.min()), int(x.max())
    if low == high or (low < 0 and x.dtype != torch.int8):
        return False
    if any(_is_sorted(x, dim) for dim in range(x.dim())) or _is_symmetric(x):
        return False
    flat = x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x.reshape(1, -1)
    ranks = flat.sort(dim=1).values
    distinct = bool((ranks[:, 1:] != ranks[:, :-1]).all())
    pairs = flat.shape[0] * flat.shape[1] * (flat.shape[1] - 1) / 2
    return not (distinct and pairs / (high - low + 1) > 4)


def _is_free_mask(x: Tensor) -> bool:
    share = float(x.double().mean())
    sorted_somewhere = any(_is_sorted(x.to(torch.int8), dim) for dim in range(x.dim()))
    return 0.02 < share < 0.98 and not sorted_somewhere and not _is_symmetric(x)


def _is_symmetric(x: Tensor) -> bool:
    return x.dim() >= 2 and x.shape[-1] == x.shape[-2] >= 4 and torch.equal(x, x.mT)


def _repeats(x: Tensor, dim: int) -> bool:
    """Two equal slices across a dimension: repeated rows or columns, or two equal halves of each row."""
    size = x.shape[dim]
    if size < 2:
        return False
    if size % 2 == 0 and size >= _FEWEST and torch.equal(*x.chunk(2, dim)):
        return True
    slices = x.movedim(dim, 0).reshape(size, -1)
    if slices.shape[1] < _SLICE:
        return False
    weights = torch.rand(slices.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    marks = (slices @ weights).sort().values
    return bool((marks[1:] == marks[:-1]).any())


def _is_sorted(x: Tensor, dim: int) -> bool:
    if x.shape[dim] < _FEWEST:
        return False
    steps = x.diff(dim=dim)
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def _adds_up(x: Tensor, dim: int) -> bool:
    """Sums, or sums of squares, that vary far less than those of independent values: probabilities, unit vectors,
    whitened rows."""
    size = x.shape[dim]
    if size < _FEWEST or x.numel() // size < 4:
        return False
    return any(float(v.sum(dim).std()) < 0.1 * float(v.std()) * math.sqrt(size) for v in (x, x.square(), x.abs()))


def _is_smooth(x: Tensor, dim: int) -> bool:
    """Neighbours that resemble each other: tables of angles, cumulated sums."""
    size = x.shape[dim]
    if size < 4 * _FEWEST:
        return False
    centred = x - x.mean()
    left, right = centred.narrow(dim, 0, size - 1), centred.narrow(dim, 1, size - 1)
    likely = max(0.3, 4 / math.sqrt(left.numel()))
    return abs(float((left * right).mean())) > likely * float(centred.square().mean())
