"""The mantissa probe: one operand of a contraction is one-hot, so that each sum has a single term, whatever its length.

Arithmetic of p bits then returns the other operand's full mantissas with p bits right, and a downgrade (TF32 in a
float32 task, bfloat16, fp8) shows at once. Which elements of which inputs and parameters meet in a contraction is
found by running the reference on numbered elements: views, transpositions and copies need no special case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from tools.judge.precise import InFloat64
from tools.judge.tree import Tree, map_leaves, tensors

Leaves = Mapping[str, Tensor]  # floating inputs and parameters by origin and path: "input:0", "state:weight"

_ATEN = torch.ops.aten
_PRODUCTS = {  # the places of both operands among the arguments
    _ATEN.mm: (0, 1),
    _ATEN.bmm: (0, 1),
    _ATEN.mv: (0, 1),
    _ATEN.addmm: (1, 2),
    _ATEN.baddbmm: (1, 2),
    _ATEN.addmv: (1, 2),
    _ATEN.convolution: (0, 1),
}
_BITS = {"float32": 24, "tf32_ok": 11, "float16": 11, "bfloat16": 8}
_MARGIN_BITS = {24: 4.0}  # else 1.5; three TF32 products on tensor cores that truncate keep 21.4 of float32's 24
_LEAST_FILLED = 1 / 16  # of a probe's answers; with fewer, a bias of zero has silenced what it should show
_FIRST_NUMBER = 1 << 40  # far above the values that a reference makes by itself; all below 2^53
_OCTAVES = 2  # ones are ±2^k with |k| up to this


def required_bits(precision: str) -> float | None:
    """Of the answers to a probe; None for a precision that has none."""
    bits = _BITS.get(precision)
    return None if bits is None else bits - _MARGIN_BITS.get(bits, 1.5)


@dataclass(frozen=True)
class Operand:
    """One side of a contraction, when it is elements of one leaf moved about: `ids` has the operand's shape and holds
    the place in the flattened leaf, or -1 (padding). `over`: the dimensions that are summed over."""

    leaf: str
    ids: Tensor
    over: tuple[int, ...]
    impulses: tuple[int, ...] = ()  # of a convolution's image: how far apart ones must be, in each of its dimensions


@dataclass(frozen=True)
class Contraction:
    """A product of the reference; None for an operand that was computed."""

    left: Operand | None
    right: Operand | None


class Numbering(InFloat64):  # type: ignore[no-untyped-call]
    """Float64, noting every contraction whose operands are numbered elements of leaves."""

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._starts: dict[str, tuple[int, int]] = {}
        self.found: list[Contraction] = []
        start = _FIRST_NUMBER
        for name, tensor in leaves.items():
            self._starts[name] = (start, start + tensor.numel())
            start += tensor.numel()

    def numbered(self, leaves: Leaves) -> dict[str, Tensor]:
        """The leaves with their elements' numbers for values, in float64."""
        return {
            name: torch.arange(*self._starts[name], dtype=torch.float64, device=t.device).reshape(t.shape)
            for name, t in leaves.items()
        }

    def finish(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Note a contraction."""
        places = _PRODUCTS.get(func.overloadpacket)
        if places is not None:
            one, other = (args[place] for place in places)
            sides = _of_convolution(args) if func.overloadpacket is _ATEN.convolution else _of_product(one, other)
            left, right = (self._operand(t, *side) for t, side in zip((one, other), sides, strict=True))
            self.found.append(Contraction(left, right))
        return result

    def _operand(self, tensor: Tensor, over: tuple[int, ...], impulses: tuple[int, ...]) -> Operand | None:
        """None when the values are not the numbers of one leaf."""
        low, high = float(tensor.abs().max()), float(torch.where(tensor == 0, torch.inf, tensor).min())
        name = next((n for n, (start, end) in self._starts.items() if start <= high <= low < end), None)
        if name is None or not bool((tensor == tensor.round()).all()):
            return None
        ids = torch.where(tensor == 0, -1, tensor.long() - self._starts[name][0])
        return Operand(name, ids, over, impulses)


_Side = tuple[tuple[int, ...], tuple[int, ...]]


def _of_product(one: Tensor, other: Tensor) -> tuple[_Side, _Side]:
    return ((one.dim() - 1,), ()), ((max(0, other.dim() - 2),), ())


def _of_convolution(args: Sequence[Any]) -> tuple[_Side, _Side]:
    weight, dilation, transposed = args[1], args[5], args[6]
    spatial = weight.shape[2:]
    reach = tuple((size - 1) * step + 1 for size, step in zip(spatial, dilation, strict=True))
    summed = (0 if transposed else 1, *range(2, weight.dim()))
    return ((1,), reach), (summed, ())


def one_hot(operand: Operand, leaf: Tensor, generator: Generator) -> Tensor | None:
    """The leaf with ±2^k where the operand is chosen and zero elsewhere; None when no such leaf exists, because an
    element of it serves in several places."""
    chosen = _impulses(operand, generator) if operand.impulses else _one_per_row(operand, generator)
    chosen &= operand.ids >= 0
    size = leaf.numel()
    powers = torch.randint(-_OCTAVES, _OCTAVES + 1, (size,), generator=generator, device=leaf.device)
    signs = torch.randint(0, 2, (size,), generator=generator, device=leaf.device) * 2 - 1
    values = 2.0 ** powers.double() * signs
    flat = torch.zeros(size, dtype=torch.float64, device=leaf.device)
    marked = operand.ids[chosen]
    flat[marked] = values[marked]
    back = torch.where(operand.ids >= 0, flat[operand.ids.clamp_min(0)] != 0, False)
    alone = torch.equal(back, chosen) and bool(chosen.any())
    return torch.empty_like(leaf).copy_(flat.reshape(leaf.shape)) if alone else None


def _one_per_row(operand: Operand, generator: Generator) -> Tensor:
    """One element of those that each sum runs over: which, depends on the last of the other dimensions alone, so that
    operands that are repeated over a batch stay possible."""
    ids, device = operand.ids, operand.ids.device
    outer = [dim for dim in range(ids.dim()) if dim not in operand.over]
    inner = [ids.shape[dim] for dim in operand.over]
    length = 1
    for size in inner:
        length *= size
    rows = ids.shape[outer[-1]] if outer else 1
    order = torch.randperm(length, generator=generator, device=device)
    hot = torch.zeros(rows, length, dtype=torch.bool, device=device)
    hot[torch.arange(rows, device=device), order[torch.arange(rows, device=device) % length]] = True
    shape = [1] * ids.dim()
    for dim in (*outer[-1:], *operand.over):
        shape[dim] = ids.shape[dim]
    places = [*outer[-1:], *operand.over]
    hot = hot.reshape([ids.shape[dim] for dim in places]) if outer else hot.reshape(inner)
    ascending = sorted(range(len(places)), key=lambda at: places[at])
    return hot.permute(ascending).reshape(shape).expand(ids.shape).clone()


def _impulses(operand: Operand, generator: Generator) -> Tensor:
    """One channel at places so far apart that no window sees two of them."""
    ids, device = operand.ids, operand.ids.device
    batch, channels, *spatial = ids.shape
    hot = torch.ones(1, 1, *spatial, dtype=torch.bool, device=device)
    for dim, (size, step) in enumerate(zip(spatial, operand.impulses, strict=True)):
        shape = [1] * ids.dim()
        shape[dim + 2] = size
        start = int(torch.randint(0, min(step, size), (1,), generator=generator, device=device))
        hot = hot & (torch.arange(size, device=device) % step == start % step).reshape(shape)
    channel = torch.randint(0, channels, (batch, 1, *spatial), generator=generator, device=device)
    mine = torch.arange(channels, device=device).reshape(1, channels, *[1] * len(spatial)) == channel
    return (hot & mine).clone()


def mantissas(leaf: Tensor, generator: Generator) -> Tensor:
    """Values with all bits of the format in use, between 1 and 2 in magnitude; of a float32, the last bit is set."""
    values = torch.rand(leaf.shape, generator=generator, device=leaf.device, dtype=torch.float64) + 1
    if leaf.dtype == torch.float32:
        values = (values * 2.0**22).floor() / 2.0**22 + 2.0**-23
    signs = torch.randint(0, 2, leaf.shape, generator=generator, device=leaf.device) * 2 - 1
    return torch.empty_like(leaf).copy_(values * signs)


@dataclass(frozen=True)
class Probe:
    """Leaves with new values. `alone`: what is not an operand is zero where it may be."""

    leaves: dict[str, Tensor]
    alone: bool


def probes(found: Sequence[Contraction], leaves: Leaves, seed: int, *, left: bool) -> list[Probe]:
    """Ways to probe the first contraction that allows it, the sharpest first; none when none does. `leaves`: those
    whose values are free."""
    for contraction in found:
        hot, full = (contraction.left, contraction.right) if left else (contraction.right, contraction.left)
        if hot is None or (full is not None and full.leaf == hot.leaf):
            continue
        generator = Generator(leaves[hot.leaf].device).manual_seed(seed)
        ones = one_hot(hot, leaves[hot.leaf], generator)
        if ones is None:
            continue
        made = {hot.leaf: ones}
        if full is not None:
            made[full.leaf] = mantissas(leaves[full.leaf], generator)
        rest = {name: torch.zeros_like(tensor) for name, tensor in leaves.items() if name not in made}
        return [Probe(made | rest, alone=True), Probe(made, alone=False)] if rest else [Probe(made, alone=True)]
    return []


def with_leaves(tree: Tree, origin: str, leaves: Leaves) -> Tree:
    """The tree with new values for the tensors that are named."""
    return map_leaves(lambda path, tensor: leaves.get(f"{origin}:{path}", tensor), tree)


def is_exact(values: Tree, stored: Tree) -> bool:
    """Whether float64 answers lose nothing in the formats that they are stored in, and enough of them are not zero."""
    pairs = [(v, s) for v, s in zip(tensors(values), tensors(stored), strict=True) if v.is_floating_point()]
    same = all(torch.equal(v.to(s.dtype).double(), v) for v, s in pairs)
    filled = sum(int(v.count_nonzero()) for v, _ in pairs)
    return bool(pairs) and same and filled >= _LEAST_FILLED * sum(v.numel() for v, _ in pairs)
