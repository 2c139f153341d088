"""Indices that may differ: where several elements tie for a maximum or a rank, each of them is a right answer.

Watches a float64 run for the operations that choose elements (argmax, max, topk, sort, …) or round, and remembers,
for each integer output that comes straight from one of them, the values that it points into or stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.judge.precise import InFloat64
from tools.judge.roundings import Rounding, rounded
from tools.judge.tree import Tree, leaves, tensors

_MOST_EXACT = 2.0**24  # integers up to here are exact in float32
_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Selection:
    """Where an index output points: `values` (float64) along `dim`. `distinct`: no element may be chosen twice;
    `ordered`: the ranks are in order; `given`: the values are inputs, so that no rounding moves them."""

    values: Tensor
    index: Tensor
    dim: int
    distinct: bool
    ordered: bool
    given: bool

    def accepts(self, got: Tensor, *, rounding: float) -> Tensor:
        """Which elements of an index output are as good as the reference's. `rounding`: relative, of computed values.

        The result has the shape of `got`.
        """
        ours, theirs = self.index, got.to(torch.int64).reshape(self.index.shape)
        inside = (theirs >= 0) & (theirs < self.values.shape[self.dim])
        chosen = self.values.gather(self.dim, ours)
        picked = self.values.gather(self.dim, torch.where(inside, theirs, ours))
        if not self.ordered:
            chosen, order = chosen.sort(self.dim)[0], picked.argsort(self.dim)
            picked, inside = picked.gather(self.dim, order), inside.gather(self.dim, order)
        slack = 0.0 if self.given else rounding * _size(self.values, self.dim)
        good = inside & (((picked - chosen).abs() <= slack) | (picked == chosen) | (picked.isnan() & chosen.isnan()))
        if not self.ordered:
            good = torch.zeros_like(good).scatter(self.dim, order, good)
        if self.distinct:
            good &= _distinct(theirs, self.dim)
        return good.reshape(got.shape)


def _size(values: Tensor, dim: int) -> Tensor:
    return torch.nan_to_num(values, 0.0, 0.0, 0.0).square().mean(dim, keepdim=True).sqrt()


def _distinct(index: Tensor, dim: int) -> Tensor:
    """Marks all of a row in which no index occurs twice."""
    ranks = index.sort(dim).values
    twice = ranks.diff(dim=dim) == 0
    return ~twice.any(dim, keepdim=True).expand_as(index)


class Watching(InFloat64):  # type: ignore[no-untyped-call]
    """Float64, remembering what selects; and whether every value was a whole number that float32 holds exactly."""

    def __init__(self, inputs: Tree, *, whole: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {_storage(t) for t in tensors(inputs)}
        self._found: dict[int, Selection | Rounding] = {}
        self._rounded: dict[int, Rounding] = {}  # floats that are whole numbers
        self._kept: list[Tensor] = []
        self.whole = whole

    def finish(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Look at a result."""
        packet = func.overloadpacket
        if packet in (_ATEN._to_copy, _ATEN.clone) and _storage(args[0]) in self._found:
            self._copied(args[0], result)
        elif packet in _SELECTING and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            self._selected(func, args, kwargs, result)
        elif isinstance(result, Tensor) and args and isinstance(args[0], Tensor):
            self._round(func, args, kwargs, result)
        if self.whole:
            self.whole = all(_is_whole(t) for t in tensors(result if isinstance(result, Tensor | tuple) else ()))
        return result

    def _copied(self, source: Tensor, copy: Tensor) -> None:
        if source.is_contiguous() and copy.is_contiguous():
            self._keep(copy, self._found[_storage(source)])

    def _round(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> None:
        before = self._rounded.get(_storage(args[0]))
        made = rounded(func, args, result) if before is None else before.then(func, args, kwargs, result)
        if made is not None and result.is_floating_point():
            self._rounded[_storage(result)] = made
            self._kept.append(result)
        elif made is not None:
            self._keep(result, made)

    def _selected(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = _selection(func, args, kwargs, result, given=_storage(args[0]) in self._given)
        if made is not None:
            self._keep(result if isinstance(result, Tensor) else result[1], made)

    def _keep(self, index: Tensor, selection: Selection | Rounding) -> None:
        self._found[_storage(index)] = selection
        self._kept.append(index)  # a freed address must not name another tensor

    def selections(self, outputs: Tree) -> dict[str, Selection | Rounding]:
        """The selections and roundings behind integer outputs, by path."""
        found = {}
        for path, leaf in leaves(outputs):
            if not isinstance(leaf, Tensor) or leaf.is_floating_point() or leaf.numel() == 0:
                continue
            one = self._found.get(_storage(leaf))
            if one is not None and leaf.numel() == one.index.numel():
                same = torch.equal(leaf.to(torch.int64).reshape(-1), one.index.reshape(-1))
                if same:  # nothing was added to it, and it is not transposed
                    found[path] = one
        return found


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr()) if isinstance(tensor, Tensor) else 0


def _is_whole(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return bool((tensor == tensor.round()).all()) and float(tensor.abs().max()) <= _MOST_EXACT


_SELECTING = frozenset(
    {_ATEN.max, _ATEN.min, _ATEN.argmax, _ATEN.argmin, _ATEN.topk, _ATEN.sort, _ATEN.kthvalue, _ATEN.median}
)


def _selection(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, *, given: bool) -> Selection | None:
    packet, values = func.overloadpacket, args[0]
    index = result if isinstance(result, Tensor) else result[1] if isinstance(result, tuple) else None
    if index is None or index.dtype != torch.int64 or values.dim() == 0 or _is_stable(args, kwargs):
        return None
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    dim = named.get("dim", -1 if packet in (_ATEN.topk, _ATEN.sort, _ATEN.kthvalue) else None)
    if dim is None:
        values, index, dim = values.reshape(-1), index.reshape(1), 0
    dim %= values.dim()
    if index.dim() < values.dim():
        index = index.unsqueeze(dim)
    several = packet in (_ATEN.topk, _ATEN.sort)
    ordered = packet is not _ATEN.topk or bool(named.get("sorted", True))
    return Selection(values, index.clone(), dim, several, ordered, given)


def _is_stable(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """A stable sort says itself which of equal elements comes first."""
    return bool(kwargs.get("stable"))
