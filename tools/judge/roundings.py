"""Integers that a reference rounds to: where a value is within rounding of a half, both of its neighbours are right.

A quantiser's q = round(x / scale) is one. `tools.judge.ties` watches the float64 run and uses this. Floors and casts of
fractions are left exact: there, a whole number is the common case, and its lower neighbour is no answer.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten
_CLAMPS = frozenset({_ATEN.clamp, _ATEN.clamp_min, _ATEN.clamp_max})


@dataclass(frozen=True)
class Rounding:
    """How an output came about: `index` = clamp(round(`values`), `low`, `high`); values are float64."""

    values: Tensor
    index: Tensor
    low: float = -math.inf
    high: float = math.inf

    def accepts(self, got: Tensor, *, rounding: float) -> Tensor:
        """Which elements are what a value near the reference's rounds to. `rounding`: relative, of its own size or of
        its row's. The result has the shape of `got`."""
        values, theirs = self.values, got.double().reshape(self.values.shape)
        row = values.square().mean(-1, keepdim=True).sqrt() if values.dim() else values.abs()
        slack = rounding * torch.maximum(values.abs(), row)
        good = (theirs >= self._of(values - slack)) & (theirs <= self._of(values + slack))
        return good.reshape(got.shape)

    def _of(self, values: Tensor) -> Tensor:
        return torch.round(values).clamp(self.low, self.high)

    def then(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> "Rounding | None":
        """After one more operation on the rounded values: a clamp by numbers, or a conversion to integers. None after
        any other, and where something was written to the values in between."""
        made = self
        if func.overloadpacket in _CLAMPS:
            named = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
            low, high = named.get("min"), named.get("max")
            if isinstance(low, Tensor) or isinstance(high, Tensor):
                return None
            low = self.low if low is None else max(self.low, float(low))
            made = replace(self, low=low, high=self.high if high is None else min(self.high, float(high)))
        elif func.overloadpacket is not _ATEN._to_copy:
            return None
        same = torch.equal(made._of(made.values), result.double())
        return replace(made, index=result.clone()) if same else None


def rounded(func: Any, args: Any, result: Any) -> Rounding | None:
    """The rounding that an operation is, if it is one."""
    return Rounding(args[0].clone(), result) if func is _ATEN.round.default else None


def half_step(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Half of the distance between neighbours of an 8-bit float format around each value (float64)."""
    limits = torch.finfo(dtype)
    bits, least = round(-math.log2(limits.eps)), round(math.log2(limits.tiny))
    exponents = torch.where(values == 0, least, torch.frexp(values).exponent - 1).clamp_min(least)
    return torch.ldexp(torch.ones_like(values), exponents - bits - 1)
