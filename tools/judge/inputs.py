"""Seeds and input batteries. The caller draws the seed after the plan is frozen; values follow from it alone."""

import hashlib
import hmac
import math
from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from tools.judge.batteries import BATTERIES, PROBES
from tools.judge.discrete import DISCRETE, replaced_integers
from tools.judge.tree import Tree, leaves, map_leaves

_DECADES = 2.0  # rows of "scaled" are multiplied by 10^U(-2, 2), and both ends are among them
_PATTERNS = 8  # of rows in "structure"
_LARGEST_SPIKE = {torch.float16: 100.0, torch.bfloat16: 100.0}  # else 1,000
_OFFSET = {torch.float16: 128.0, torch.bfloat16: 16.0}  # else 10,000: the spread keeps a few bits in each format
_HUGE = {torch.float16: 2.0**12}  # else 2^50: squares and sums of a million squares stay finite in float32
_TINY = {torch.float16: (2.0**-14, 0.0)}  # else scales around 2^-60 and, one in 64, denormals


def case_seed(secret: bytes, plan_sha256: str, case: str, battery: str) -> int:
    """The seed of one case for one frozen plan: 63 bits that nobody without the secret can foresee."""
    message = "\0".join((plan_sha256, case, battery)).encode()
    return int.from_bytes(hmac.digest(secret, message, hashlib.sha256)[:8], "little") >> 1


def derived(own: Tree, battery: str, seed: int, kinds: Mapping[str, str]) -> Tree | None:
    """The task's own inputs turned into those of another battery; None when it would add nothing.

    `kinds` says by path what may be replaced (`tools.judge.contract`); shapes, dtypes, strides and plain numbers stay.
    Raises KeyError for a battery that is unknown, or that needs more than the inputs (the probes).
    """
    if battery == "own":
        return own
    if battery not in BATTERIES or battery in PROBES:
        raise KeyError(f"no battery {battery!r}; known: {', '.join(BATTERIES)}")
    changed = False
    generators: dict[torch.device, Generator] = {}

    def made(path: str, tensor: Tensor) -> Tensor:
        nonlocal changed
        if tensor.device not in generators:
            generators[tensor.device] = Generator(tensor.device).manual_seed(seed)
        new = _replaced(tensor, battery, kinds.get(path, "own"), generators[tensor.device])
        changed = changed or new is not None
        return tensor if new is None else new

    result = map_leaves(made, own)
    floats = [t for path, t in leaves(own) if kinds.get(path) in ("any", "special") and _is_float(t)]
    repeats = battery == "zero_mean" and all(map(_is_zero_mean, floats))
    return result if changed and not repeats else None


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _replaced(tensor: Tensor, battery: str, kind: str, generator: Generator) -> Tensor | None:
    """New values for one input; None when it keeps its own."""
    if kind == "own" or tensor.numel() == 0 or tensor.is_complex():
        return None
    if not tensor.is_floating_point():
        return replaced_integers(tensor, battery, generator) if battery in DISCRETE else None
    if battery in DISCRETE or (battery == "specials" and kind != "special"):
        return None
    if kind == "positive" and battery in ("zero_mean", "specials"):
        return None
    values = _FLOATS[battery](tensor, generator)
    if kind == "positive":
        least = 1.0 if battery == "integers" else float(torch.finfo(tensor.dtype).tiny)
        values = values.abs().clamp_min(least)
    if battery != "specials":
        largest = min(float(torch.finfo(dtype).max) for dtype in (tensor.dtype, values.dtype))
        values = values.clamp(-largest, largest)
    return torch.empty_like(tensor).copy_(values)


def _is_zero_mean(tensor: Tensor) -> bool:
    """Whether the values spread to both sides of zero at a scale of about one, as randn's do."""
    values = tensor.double()
    spread = float(values.std(correction=0)) if values.numel() else 0.0
    return abs(float(values.mean()) if values.numel() else 1.0) < max(0.1, 4 / math.sqrt(values.numel() or 1)) * spread


def _normal(tensor: Tensor, generator: Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, device=tensor.device)


def _uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _per_row(tensor: Tensor, generator: Generator) -> Tensor:
    """One uniform number per row, in [0, 1)."""
    return _uniform((*tensor.shape[:-1], 1) if tensor.dim() else (), generator)


def _scaled(tensor: Tensor, generator: Generator) -> Tensor:
    """Rows over four decades. The draws are stretched to their ends, since of two or three rows often none would be
    large: then exp(x - 1) in place of a safe softmax would pass by chance."""
    drawn = _per_row(tensor, generator).double()
    least, spread = drawn.min(), drawn.max() - drawn.min()
    drawn = (drawn - least) / spread if spread > 0 else drawn
    return tensor.double() * 10.0 ** (_DECADES * (2 * drawn - 1))


def _spikes(tensor: Tensor, generator: Generator) -> Tensor:
    """Student's t with two degrees of freedom, and one spike in each row."""
    largest = _LARGEST_SPIKE.get(tensor.dtype, 1000.0)
    chi = -torch.log(_uniform(tuple(tensor.shape), generator).clamp_min(1e-7))
    values = (_normal(tensor, generator) / chi.sqrt()).clamp(-largest, largest)
    if tensor.dim() == 0:
        return values
    columns = (_per_row(tensor, generator) * tensor.shape[-1]).long().clamp_max(tensor.shape[-1] - 1)
    signs = _uniform(tuple(columns.shape), generator).sub(0.5).sign()
    return values.scatter(-1, columns, largest * signs)


def _offset(tensor: Tensor, generator: Generator) -> Tensor:
    return _normal(tensor, generator) + _OFFSET.get(tensor.dtype, 1e4)


def _integers(tensor: Tensor, generator: Generator) -> Tensor:
    """Whole numbers up to 8; in every other row of both signs, else positive, so that sums pass 2,048 exactly."""
    values = (_uniform(tuple(tensor.shape), generator) * 17).floor().clamp_max(16) - 8
    return values if tensor.dim() == 0 else torch.where(_rows(tensor) % 2 == 1, values.abs().clamp_min(1), values)


def _rows(tensor: Tensor) -> Tensor:
    """The number of each row, to broadcast against the tensor; a vector is one row."""
    count = tensor.numel() // tensor.shape[-1]
    return torch.arange(count, device=tensor.device).reshape(*tensor.shape[:-1], 1)


def _structure(tensor: Tensor, generator: Generator) -> Tensor:
    """Rows of different structure side by side: dense, constant, repeated, ascending, sparse, diagonal, lower
    triangular, banded. A vector starts anywhere in that list."""
    values = _normal(tensor, generator)
    if tensor.dim() == 0:
        return values
    columns = torch.arange(tensor.shape[-1], device=tensor.device)
    row = _rows(tensor)
    start = int(_uniform((1,), generator) * _PATTERNS) if row.numel() == 1 else 0
    pattern = (row + start) % _PATTERNS
    diagonal = row * tensor.shape[-1] // max(1, row.numel()) if row.numel() > tensor.shape[-1] else row
    distance = (columns - diagonal % tensor.shape[-1]).expand(tensor.shape)
    sparse = _uniform(tuple(tensor.shape), generator) < 0.01
    kept = (pattern < 4) | ((pattern == 4) & sparse) | ((pattern == 5) & (distance == 0))
    kept = kept | ((pattern == 6) & (distance <= 0)) | ((pattern == 7) & (distance.abs() < 8))
    values = torch.where(pattern == 1, values[..., :1], values)
    if row.numel() > 2:
        flat = values.reshape(row.numel(), -1)
        values = torch.where(pattern == 2, flat.roll(1, 0).reshape(values.shape), values)
    values = torch.where(pattern == 3, values.sort(-1).values, values)
    return torch.where(kept, values, 0.0)


def _tiny(tensor: Tensor, generator: Generator) -> Tensor:
    values = _normal(tensor, generator).double()
    around, share = _TINY.get(tensor.dtype, (2.0**-60, 1 / 64))
    values = values * around * 2.0 ** (16 * _per_row(tensor, generator).double() - 8)
    if share:
        denormal = _uniform(tuple(tensor.shape), generator) < share
        values = torch.where(denormal, values.sign() * float(torch.finfo(tensor.dtype).tiny) / 8, values)
    return values


def _huge(tensor: Tensor, generator: Generator) -> Tensor:
    return _normal(tensor, generator) * _HUGE.get(tensor.dtype, 2.0**50)


def _specials(tensor: Tensor, generator: Generator) -> Tensor:
    """One element in 100 is NaN, one +Inf, one -Inf; every other row has none."""
    values, chance = _normal(tensor, generator), _uniform(tuple(tensor.shape), generator)
    marked = values.clone()
    for share, special in ((0.03, -math.inf), (0.02, math.inf), (0.01, math.nan)):
        marked = torch.where(chance < share, special, marked)
    return marked if tensor.dim() == 0 else torch.where(_rows(tensor) % 2 == 0, marked, values)


_FLOATS: Mapping[str, Callable[[Tensor, Generator], Tensor]] = {
    "zero_mean": _normal,
    "scaled": _scaled,
    "spikes": _spikes,
    "offset": _offset,
    "integers": _integers,
    "structure": _structure,
    "tiny": _tiny,
    "huge": _huge,
    "specials": _specials,
}
