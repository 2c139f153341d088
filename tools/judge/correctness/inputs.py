"""What a reference is fed: seeds, input batteries, and the mantissa probe.

The caller draws the seed after the plan is frozen; values follow from it alone. Which values may replace a task's own
is what its file declares (INPUTS), else what several of its own draws show. A wrong guess in one direction rejects
honest kernels (a rope table whose halves differ, a negative variance), in the other it only weakens a battery. So a
tensor counts as free only if nothing at all speaks for a structure.

The mantissa probe makes one operand of a contraction one-hot, so that each sum has a single term, whatever its length.
Arithmetic of p bits then returns the other operand's full mantissas with p bits right, and a downgrade (TF32 in a
float32 task, bfloat16, fp8) shows at once. Which elements of which inputs and parameters meet in a contraction is found
by running the reference on numbered elements: views, transpositions and copies need no special case.
"""

import hashlib
import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from kerneltune.tools.judge.correctness.float64 import InFloat64
from kerneltune.tools.judge.correctness.tree import AT_ONCE, Tree, laid_out, leaves, map_leaves, portions, tensors
from kerneltune.tools.schema.task import BATTERIES, PROBES

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

    `kinds` says by path what may be replaced (`tools.judge.correctness.inputs`); shapes, dtypes, strides and plain
    numbers stay. Raises KeyError for a battery that is unknown, or that needs more than the inputs (the probes).
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
        return tensor if new is None else laid_out(new, tensor)

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
    new = torch.empty_like(tensor)
    for place in portions(tensor):
        new[place].copy_(_floats(tensor[place], battery, kind, generator))
    return new


def _floats(tensor: Tensor, battery: str, kind: str, generator: Generator) -> Tensor:
    """New values for a floating tensor, within the range of its format."""
    values = _FLOATS[battery](tensor, generator)
    if kind == "positive":
        least = 1.0 if battery == "integers" else float(torch.finfo(tensor.dtype).tiny)
        values = values.abs().clamp_min(least)
    if battery != "specials":
        largest = min(float(torch.finfo(dtype).max) for dtype in (tensor.dtype, values.dtype))
        values = values.clamp(-largest, largest)
    return values


def _is_zero_mean(tensor: Tensor) -> bool:
    """Whether the values spread to both sides of zero at a scale of about one, as randn's do."""
    values = (tensor if tensor.numel() <= AT_ONCE else sampled(tensor)).double()
    spread = float(values.std(correction=0)) if values.numel() else 0.0
    return abs(float(values.mean()) if values.numel() else 1.0) < max(0.1, 4 / math.sqrt(values.numel() or 1)) * spread


def _normal(tensor: Tensor, generator: Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, device=tensor.device)


def _uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _per_row(tensor: Tensor, generator: Generator) -> Tensor:
    """Draw one uniform number per row, in [0, 1)."""
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
    """Normal values with 1 % NaN, 1 % +Inf and 1 % -Inf in every other row."""
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
    """Bits that the answers to a mantissa probe must have right; None for a precision without one."""
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

    def numbered(self, name: str, tensor: Tensor) -> Tensor:
        """The leaf of that name with its elements' numbers for values, in float64; another tensor as it is."""
        if name not in self._starts:
            return tensor
        return torch.arange(*self._starts[name], dtype=torch.float64, device=tensor.device).reshape(tensor.shape)

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
        """Trace an operand back to the leaf whose elements it holds; None when it holds others."""
        parts = [tensor[place] for place in portions(tensor)]
        high = max(float(part.abs().max()) for part in parts)
        low = min(float(torch.where(part == 0, torch.inf, part).min()) for part in parts)
        name = next((n for n, (start, end) in self._starts.items() if start <= low <= high < end), None)
        if name is None or not all(bool((part == part.round()).all()) for part in parts):
            return None
        ids = torch.empty_like(tensor, dtype=torch.int64)
        for place in portions(tensor):
            ids[place] = torch.where(tensor[place] == 0, -1, tensor[place].long() - self._starts[name][0])
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
    marked = torch.unique(operand.ids[chosen])  # few: values for all elements of 4 GiB of weights took 40 GiB
    powers = torch.randint(-_OCTAVES, _OCTAVES + 1, marked.shape, generator=generator, device=leaf.device)
    signs = torch.randint(0, 2, marked.shape, generator=generator, device=leaf.device) * 2 - 1
    hot = torch.zeros(leaf.numel(), dtype=torch.bool, device=leaf.device)
    hot[marked] = True
    for place in portions(operand.ids):
        ids = operand.ids[place]
        if not torch.equal(hot[ids.clamp_min(0)] & (ids >= 0), chosen[place]):
            return None
    if not marked.numel():
        return None
    flat = torch.zeros(
        leaf.numel(), dtype=torch.float64 if leaf.dtype == torch.float64 else torch.float32, device=leaf.device
    )
    flat[marked] = (2.0 ** powers.double() * signs).to(flat.dtype)
    return torch.empty_like(leaf).copy_(flat.reshape(leaf.shape))


def _one_per_row(operand: Operand, generator: Generator) -> Tensor:
    """Choose one element of those that each sum runs over: which, depends on the last of the other dimensions alone,
    so that operands that are repeated over a batch stay possible."""
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
    """Choose one channel at places so far apart that no window sees two of them."""
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
    made = torch.empty_like(leaf)
    for place in portions(leaf):
        part = made[place]
        values = torch.rand(part.shape, generator=generator, device=leaf.device, dtype=torch.float64) + 1
        if leaf.dtype == torch.float32:
            values = (values * 2.0**22).floor() / 2.0**22 + 2.0**-23
        signs = torch.randint(0, 2, part.shape, generator=generator, device=leaf.device) * 2 - 1
        part.copy_(values * signs)
    return made


@dataclass(frozen=True)
class MantissaProbe:
    """Leaves with new values. `alone`: what is not an operand is zero where it may be."""

    leaves: dict[str, Tensor]
    alone: bool


def probes(found: Sequence[Contraction], leaves: Leaves, seed: int, *, left: bool) -> list[MantissaProbe]:
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
        return (
            [MantissaProbe(made | rest, alone=True), MantissaProbe(made, alone=False)]
            if rest
            else [MantissaProbe(made, alone=True)]
        )
    return []


def with_leaves(tree: Tree, leaves: Leaves) -> Tree:
    """The inputs with new values for the tensors that are named."""
    return map_leaves(lambda path, tensor: laid_out(leaves.get(f"input:{path}", tensor), tensor), tree)


def is_exact(values: Tree, stored: Tree) -> bool:
    """Whether float64 answers lose nothing in the formats that they are stored in, and enough of them are not zero."""
    pairs = [(v, s) for v, s in zip(tensors(values), tensors(stored), strict=True) if v.is_floating_point()]
    same = all(torch.equal(v.to(s.dtype).double(), v) for v, s in pairs)
    filled = sum(int(v.count_nonzero()) for v, _ in pairs)
    return bool(pairs) and same and filled >= _LEAST_FILLED * sum(v.numel() for v, _ in pairs)
