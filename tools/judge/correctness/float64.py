"""Runs of a reference in float64: the answer, its sensitivity to rounding, and which of its indices may differ.

The spread of runs with rounding noise on every operation tells, element by element, how far an honest evaluation in
less precise arithmetic may be from the answer (cancellation, long sums, steep functions), whatever the operation is.

Where several elements tie for a maximum or a rank, each of them is a right answer; where a value is within rounding of
a half, both of its neighbours are. So a float64 run is watched for the operations that choose elements (argmax, max,
topk, sort, …) or round, and the values behind integer outputs are remembered. Floors and casts of fractions are left
exact: there, a whole number is the common case, and its lower neighbour is no answer.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from kerneltune.tools.judge.correctness.tree import AT_ONCE, Tree, leaves, map_tensors, portions, tensors

NOISE = 2.0**-24  # small enough to stay linear, far above float64's own rounding
_SUMS = frozenset(
    getattr(torch.ops.aten, name) for name in "sum mean var var_mean std std_mean linalg_vector_norm".split()
)
_NORMALISATIONS = frozenset(
    getattr(torch.ops.aten, name)
    for name in "native_group_norm native_layer_norm native_batch_norm _native_batch_norm_legit".split()
)
_SOFTMAXES = frozenset(getattr(torch.ops.aten, name) for name in "_softmax _safe_softmax _log_softmax".split())
# Operations whose documented formula adds to 1 or subtracts 1 (1 + erf(x) of gelu, exp(x) - 1 of elu), and what that 1
# is worth in their result. A kernel that follows the formula may be wrong by a roundoff of it: gelu of -5.4 is -1.6e-7,
# and came out as 0 where PyTorch's own did not miss; each elu by exp(x) - 1, tanh by 2 sigmoid(2x) - 1 and mish by
# log(1 + exp(x)) was refused on "scaled" inputs, for some of its rows are near 0.
_BESIDE_ONE: dict[str, Callable[..., Tensor]] = {
    "celu": lambda x, alpha=1.0: torch.where(x <= 0, alpha, x),
    "elu": lambda x, alpha=1.0, scale=1.0, input_scale=1.0: torch.where(x <= 0, alpha * scale, x),
    "gelu": lambda x, approximate="none": x / 2,
    "gelu_backward": lambda gradient, x, approximate="none": gradient * (1 + x.abs().clamp_max(5)) / 2,
    "log_sigmoid_forward": torch.ones_like,
    "mish": lambda x: x,
    "mish_backward": lambda gradient, x: gradient * (1 + x.clamp(0, 9)),
    "softplus": lambda x, beta=1.0, threshold=20.0: torch.full_like(x, 1 / beta),
    "tanh": torch.ones_like,
}
# noise is drawn as bytes, which are 64 to 127 and, as int8, -128 to -65: their root mean square, and as a word of eight
_SIZE_OF_BYTES = 97.8
_RANDOM_BITS, _LEAST_BYTE = 0x7F7F7F7F7F7F7F7F, 0x4040404040404040
# partial sums that a kernel adds up side by side, at least. 32 lanes of a warp, each adding 4,096 terms in turn, came
# to 0.98 of the tolerance in 1 of 6 honest group normalisations when this was 32
_SIDE_BY_SIDE = 16
_LEAST = torch.iinfo(torch.int64).min
_NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every narrower floating tensor, cast or factory dtype becomes float64; integers stay."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.view.dtype and any(
            t.is_floating_point() for t in (args[0], torch.empty((), dtype=args[1]))
        ):
            raise TypeError("the reference reinterprets the bits of a float, which have another meaning in float64")
        keep = func._schema.is_mutable  # an in-place or out= operation must hit the tensor that it names
        wide = {k: _wide(v, keep=keep) for k, v in (kwargs or {}).items()}
        arguments = tree_map(lambda a: _wide(a, keep=keep), args)
        return self.finish(func, arguments, wide, self.compute(func, arguments, wide))

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation makes of widened arguments."""
        return func(*args, **kwargs)

    def finish(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """What becomes of an operation's result."""
        return result


class WithNoise(InFloat64):  # type: ignore[no-untyped-call]
    """Float64 as above, and each result multiplied by 1 + NOISE times a random number of mean 0 and variance 1, element
    by element: 0.65 to 1.3 up or down. With ±1 every other pair is moved alike: an attention whose two best keys nearly
    tie seemed to bear no noise, and an honest kernel was called wrong in 1 of 32,768 rows.

    Whoever reads the spread multiplies it by the square root of `longest`, the length of the reference's sums as its
    sizes suggest. A sum that is longer (a group's of several channels, of which only the last dimension was counted)
    is disturbed the more: its terms by as much as the rounding of partial sums is of their size, its result by what
    adding terms of one sign in turn loses. Normalisations in one operation are taken apart for that: of a group of
    65,536 the mean is 0.01 of its spread, so that noise on the mean's value says nothing of how its sum was rounded.
    """

    def __init__(self, generator: Generator, longest: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator, self.longest = generator, longest

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operation makes of its arguments, with more noise where it adds up more than `longest` terms."""
        sizes = _BESIDE_ONE.get(func._schema.name.partition("::")[2].rstrip("_"))
        if sizes and func._overloadname == "default":
            return self._beside_one(func, args, kwargs, sizes)
        result = func(*args, **kwargs)
        if func.overloadpacket in _SOFTMAXES:
            return self._of_two_roundings(result, args[0], is_log=func.overloadpacket is torch.ops.aten._log_softmax)
        excess = _terms(func, args, result) / self.longest
        if excess <= 1:
            return result
        if func.overloadpacket in _NORMALISATIONS:
            with self:
                return decomposition_table[func](*args, **kwargs)
        result = func(self.disturb(args[0], math.sqrt(excess)), *args[1:], **kwargs)
        if excess <= _SIDE_BY_SIDE:
            return result
        return tree_map(lambda value: self.disturb(value, math.sqrt(excess / _SIDE_BY_SIDE)), result)

    def _beside_one(self, func: Any, args: Any, kwargs: Any, sizes: Callable[..., Tensor]) -> Any:
        """The result of an operation, moved by what a roundoff of that one is worth, or by all of itself: gelu of -9 is
        -1e-18, and 0 where one is added up."""
        given = [args[0].clone(), *args[1:]] if func._schema.is_mutable else args
        result = func(*args, **kwargs)
        value = result if isinstance(result, Tensor) else result[0]
        for place in portions(value):
            size = sizes(*(a[place] if isinstance(a, Tensor) else a for a in given), **kwargs)
            size = size.abs().minimum(value[place].abs() / NOISE)
            value[place] += self.disturb(size).sub_(size)
        return result

    def _of_two_roundings(self, result: Tensor, of: Tensor, *, is_log: bool) -> Tensor:
        """A softmax whose argument is rounded otherwise where its maximum is taken than where that is subtracted: a
        kernel works it out twice, and the compiler contracts the second to fma(x, scale, -maximum). An exponent of
        1,000 is then off by 6e-5 even at the maximum, where other noise cancels."""
        for place in portions(result):
            moved = torch.nan_to_num_(self.disturb(of[place]).sub_(of[place]), 0.0, 0.0, 0.0)  # a mask's -inf stays
            result[place] = result[place] + moved if is_log else result[place] * moved.exp_()
        return result

    def finish(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Disturb new values; views, and what an in-place operation wrote, stay."""
        if any(r.alias_info is not None for r in func._schema.returns):
            return result
        return tree_map(self.disturb, result)

    def disturb(self, value: Any, by: float = 1.0) -> Any:
        """The value with relative noise, `by` times NOISE, when it is a floating tensor; of a large one, a part at a
        time. Moves 34 bytes an element (70 if it computed the factors): an attention's scores are gigabytes in float64,
        and a judgement needs fifteen such runs."""
        if not isinstance(value, Tensor) or value.dtype != torch.float64:
            return value
        with torch.utils._python_dispatch._disable_current_modes():
            if value.numel() <= AT_ONCE:
                return value * self._factors(value, by)
            made = torch.empty_like(value)
            for place in portions(value):
                torch.mul(value[place], self._factors(value[place], by), out=made[place])
            return made

    def _factors(self, value: Tensor, by: float) -> Tensor:
        size = by * NOISE / _SIZE_OF_BYTES
        if value.device.type == "cpu":  # where bytes are cheap: 0.4 ms for 257,000 elements, 4.2 ms as below
            words = torch.empty(-(-value.numel() // 8), dtype=torch.int64).random_(
                _LEAST, None, generator=self.generator
            )
            words.bitwise_and_(_RANDOM_BITS).add_(_LEAST_BYTE)
            drawn = words.view(torch.int8)[: value.numel()].view(value.shape)
            return drawn.double().mul_(size).add_(1)
        drawn = torch.randint(64, 192, value.shape, generator=self.generator, device=value.device, dtype=torch.uint8)
        return torch.add(value.new_ones(()), drawn.view(torch.int8), alpha=size)


class Disturbances:
    """A float64 reference, run again and again with relative noise. `run` calls a model; `exact` is the answer."""

    def __init__(
        self, run: Callable[[Any, Any], Tree], model: Any, inputs: Tree, exact: Tree, noise: WithNoise
    ) -> None:
        self._run, self._model, self._inputs, self._exact = run, model, inputs, exact
        self._noise = noise

    def spread(self, samples: int) -> Tree:
        """Root mean square change of each output by noise on every operation, relative to the noise."""
        total = map_tensors(torch.zeros_like, self._exact)
        for _ in range(samples):
            changes = self._changes(self._noise)
            for so_far, change in zip(tensors(total), changes, strict=True):
                if change.is_floating_point():
                    so_far += torch.nan_to_num(change, 0.0, 0.0, 0.0).square()
        return map_tensors(lambda t: (t / samples).sqrt() if t.is_floating_point() else t, total)

    def of_operands(self) -> Tree:
        """Change of each output by noise on inputs and parameters alone, relative to the noise; one sample."""
        changes = iter(self._changes(InFloat64()))  # type: ignore[no-untyped-call]
        return map_tensors(lambda _: next(changes), self._exact)

    def _changes(self, mode: InFloat64) -> list[Tensor]:
        noise = self._noise
        model = copy.deepcopy(self._model).double()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(noise.disturb(tensor))
        arguments = map_tensors(lambda t: noise.disturb(widened(t)), self._inputs)
        with mode:
            outputs = self._run(model, arguments)
        pairs = zip(tensors(outputs), tensors(self._exact), strict=True)
        return [(t - exact) / NOISE if exact.is_floating_point() else exact for t, exact in pairs]


def _terms(func: Any, args: Any, result: Any) -> float:
    """How many elements an operation adds up for each of its sums; 0 where it is not known to be one that does."""
    packet = func.overloadpacket
    if packet not in _SUMS and packet not in _NORMALISATIONS:
        return 0.0
    sums = result if isinstance(result, Tensor) else result[-1]
    return float(args[0].numel() / sums.numel()) if sums.numel() else 0.0


def widened(tensor: Tensor) -> Tensor:
    """A copy, in float64 when it is floating."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _wide(value: Any, *, keep: bool) -> Any:
    if isinstance(value, torch.dtype) and value in _NARROW:
        return torch.float64
    if isinstance(value, Tensor) and value.dtype in _NARROW and not keep:
        return value.double()
    return value


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """Factories without a dtype make float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def plain_arithmetic(*, tf32: bool) -> Iterator[None]:
    """Library calls at the precision of their dtype: TF32 only where declared, no narrow accumulators."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def flushed(tensor: Tensor) -> Tensor:
    """Denormals of float32's range as zeros, as kernels that flush see them."""
    if not tensor.is_floating_point() or torch.finfo(tensor.dtype).tiny > 2.0**-126:
        return tensor
    return torch.where(tensor.abs() < 2.0**-126, torch.zeros_like(tensor), tensor)


def largest(values: Tree) -> float:
    """The largest absolute value of all floating leaves whose values are finite, 1 at least; no copy of any is made."""
    found = 1.0
    for tensor in tensors(values):
        if tensor.is_floating_point() and tensor.numel() and tensor.dtype.itemsize > 1:  # torch orders no float8
            low, high = tensor.aminmax()
            found = max(found, *(abs(x) for x in (float(low), float(high)) if math.isfinite(x)))
    return found


def differences(values: Tree, others: Tree) -> Tree:
    """|a - b| of each floating leaf, in the structure of `values`; other leaves stay."""
    pairs = zip(tensors(values), tensors(others), strict=True)
    changes = iter([(a - b).abs() if a.is_floating_point() else a for a, b in pairs])
    return map_tensors(lambda _: next(changes), values)


_ATEN_OPS = torch.ops.aten
_CLAMPS = frozenset({_ATEN_OPS.clamp, _ATEN_OPS.clamp_min, _ATEN_OPS.clamp_max})


@dataclass(frozen=True)
class Rounding:
    """How an output came about: `index` = clamp(round(`values`), `low`, `high`); values are float64."""

    values: Tensor
    index: Tensor
    low: float = -math.inf
    high: float = math.inf

    def accepts(self, got: Tensor, *, rounding: float) -> Tensor:
        """Mark the elements that are what a value near the reference's rounds to. `rounding`: relative, of its own
        size or of its row's. The result has the shape of `got`."""
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
        elif func.overloadpacket is not _ATEN_OPS._to_copy:
            return None
        same = torch.equal(made._of(made.values), result.double())
        return replace(made, index=result.clone()) if same else None


def rounded(func: Any, args: Any, result: Any) -> Rounding | None:
    """The rounding that an operation is, if it is one."""
    return Rounding(args[0].clone(), result) if func is _ATEN_OPS.round.default else None


def half_step(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Half of the distance between neighbours of an 8-bit float format around each value (float64)."""
    limits = torch.finfo(dtype)
    bits, least = round(-math.log2(limits.eps)), round(math.log2(limits.tiny))
    exponents = torch.where(values == 0, least, torch.frexp(values).exponent - 1).clamp_min(least)
    return torch.ldexp(torch.ones_like(values), exponents - bits - 1)


_MOST_EXACT = 2.0**24  # integers up to here are exact in float32
_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Selection:
    """What an index output points into: `values` (float64) along `dim`. `distinct`: no element may be chosen twice;
    `ordered`: the ranks are in order; `given`: the values are inputs, so that no rounding moves them."""

    values: Tensor
    index: Tensor
    dim: int
    distinct: bool
    ordered: bool
    given: bool

    def accepts(self, got: Tensor, *, rounding: float) -> Tensor:
        """Mark the elements of an index output that are as good as the reference's. `rounding`: relative, of computed
        values.

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
