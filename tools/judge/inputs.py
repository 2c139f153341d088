"""Seeds and input batteries. The caller draws the seed after the plan is frozen; values follow from it alone."""

import hashlib
import hmac
import math

import torch
from torch import Generator, Tensor

from tools.judge.protocol import BATTERIES
from tools.judge.tree import Tree, map_tensors, tensors

_DECADES = 2.0  # rows of "scaled" are multiplied by 10^U(-2, 2)


def case_seed(secret: bytes, plan_sha256: str, case: str, battery: str) -> int:
    """The seed of one case for one frozen plan: 63 bits that nobody without the secret can foresee."""
    message = "\0".join((plan_sha256, case, battery)).encode()
    return int.from_bytes(hmac.digest(secret, message, hashlib.sha256)[:8], "little") >> 1


def derived(own: Tree, battery: str, seed: int) -> Tree | None:
    """The task's own inputs turned into those of another battery; None when it would add nothing.

    Integers, booleans and plain numbers stay as they are. Raises KeyError for an unknown battery.
    """
    generators = {t.device: Generator(t.device).manual_seed(seed) for t in tensors(own)}
    floating = [t for t in tensors(own) if t.is_floating_point()]
    if battery == "own":
        return own
    if battery not in BATTERIES:
        raise KeyError(f"no battery {battery!r}; known: {', '.join(BATTERIES)}")
    if not floating or (battery == "zero_mean" and all(map(_is_zero_mean, floating))):
        return None
    make = _zero_mean if battery == "zero_mean" else _scaled
    return map_tensors(lambda t: make(t, generators[t.device]) if t.is_floating_point() else t, own)


def _is_zero_mean(tensor: Tensor) -> bool:
    """Whether the values spread to both sides of zero at a scale of about one, as randn's do."""
    values = tensor.double()
    spread = float(values.std(correction=0)) if values.numel() else 0.0
    return abs(float(values.mean()) if values.numel() else 1.0) < max(0.1, 4 / math.sqrt(values.numel() or 1)) * spread


def _zero_mean(tensor: Tensor, generator: Generator) -> Tensor:
    values = torch.randn(tensor.shape, generator=generator, device=tensor.device)
    return torch.empty_like(tensor).copy_(values)


def _scaled(tensor: Tensor, generator: Generator) -> Tensor:
    rows = (*tensor.shape[:-1], 1) if tensor.dim() else ()
    exponents = torch.rand(rows, generator=generator, device=tensor.device, dtype=torch.float64) * 2 - 1
    return torch.empty_like(tensor).copy_(tensor.double() * 10.0 ** (_DECADES * exponents))
