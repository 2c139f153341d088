"""How far an output may be from the float64 reference: the formulas behind the comparison.

Three gates per floating output, over all of its elements, all fail-closed (NaN passes none):
  envelope   |y - y*| <= (4 u_op + max(6.5 sqrt(L), 16) u_acc) s + 2 u_out |y*| + 4 max_row|n - y*| + floor
  RMS        rms(y - y*) <= (2 u_op + max(4 sqrt(L/6), 8) u_acc) rms(s) + 2 u_out rms(y*) + 2 rms(n - y*) + floor
             over each row, and over each 64 x 64 tile of a matrix
(an output of 8 bits: half a step of its format around y* in place of 2 u_out |y*|, and n - y* beyond that half step)
where u are unit roundoffs (operands, accumulator, output), L the reduction length, n the trusted implementation in
its own dtype, and s how large the terms behind an element are: its own value and what relative noise on every
operation of the reference does to it, so that cancellation widens the budget exactly where it happens. That is
estimated from a few samples, and taken for no less than a quarter of what is typical in the row. The floor is the
smallest normal number of the format, and what float64 itself resolves beside the largest value of the row: torch's gelu
of -9 is 0 in float64, as 1 + erf loses it there, and an honest erfc gives -1e-18.

A probe (`Expected.bits`) has a gate of its own: |y - y*| <= 2^-bits s + the smallest normal number, whatever L is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kerneltune.tools.judge.correctness.float64 import Rounding, Selection, half_step
from kerneltune.tools.judge.correctness.tree import Tree, is_float8, numel, tensors
from kerneltune.tools.schema.verdict import Limitation

CHUNK = 1 << 24  # elements compared at once: a 6 GB output needs no 50 GB of float64 temporaries
TILE = 64
_ROW = 32  # a "row" has at least so many elements, or is the whole tensor
_NOISE_OF_A_PRODUCT = math.sqrt(3)  # two operands and a result, each disturbed by one roundoff
_OPERANDS = {
    "tf32_ok": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
_SUMS_OF_FLOAT8 = 2.0**-6  # Hopper adds their products in 14 bits: up to 2 % over 4,096 terms (DeepSeek-V3's report)
_OUTPUTS = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
_SAMPLES = 6  # of an 8-sample estimate for the sum of 1,000 terms, 1 element in 10^4 is low by a factor of 4
# nothing but the noise widens the tolerance where operands are rounded and float32 is stored: 1 honest TF32 product of
# 20 was refused on 6 samples, by up to 1.6 times its tolerance (one that truncates, 1 of 3); on 32 none is above 0.7
MOST_SAMPLES = 32
NEAR_MISS = 8.0  # times the tolerance: a miss by less may be one of the noise's estimate, and more are drawn
_FEW_OUTPUTS = 1 << 22  # of a larger case, PyTorch's own product on a GPU is as imprecise and widens it
_LEAST_OF_TYPICAL = 0.25
_RESOLVED = 2.0**-50  # of a row's largest value: a few roundoffs of float64
_BIASED = 8.0  # standard errors of the mean error over rows
_FEWEST_ROWS = 32
# of so many rows one may miss its budget by so much, for its noise is estimated from six samples: of honest attentions
# with keys that nearly tie the worst of 16,384 rows came to 0.9 of it, and one of 500,000 to more than 1
_RARE_OF, _RARELY_BY = 8192, 2.0


@dataclass(frozen=True)
class Expected:
    """The answer and what its tolerance is made of. `values` and `noise` are float64 (`noise` may be missing);
    `native`, in the reference's own dtypes, also says which structure, shapes and dtypes are wanted.

    `slack`: absolute, on top (what flushing denormals may change). `exact_operands`: the inputs are whole numbers that
    no declared format rounds. `one_hot`: an operand of a contraction is, so that an answer may be one term, and the
    errors of a row do not average out. `bits`: of a probe, how many must be right. `selections`: of outputs that are
    indices. `read`: elements of the largest operand, where anything is added up: an output of few elements may be sums
    over all of them, beside others that are not. `float8_operands`: what is multiplied is stored in float8, so that
    declaring float8 rounds nothing and only the sums are less precise. `limitations`: what a comparison with it does
    without. `largest_input`: of the finite floating inputs, 1 at least; an intermediate below 2^-126, which kernels
    flush to zero, may be multiplied by it. `kept`: the budgets by output and row, of an answer that many outputs are
    compared with (8 bytes an element); None: they are worked out each time.
    """

    values: Tree
    native: Tree
    precision: str
    reduction_length: int
    noise: Tree | None = None
    slack: Tree | None = None
    exact_operands: bool = False
    one_hot: bool = False
    bits: float | None = None
    selections: Mapping[str, Selection | Rounding] = field(default_factory=dict)
    lenience: float = 1.0
    read: int = 0
    operand_noise: Tree | None = None
    float8_operands: bool = False
    limitations: tuple[Limitation, ...] = ()
    largest_input: float = 1.0
    kept: "dict[str, KeptBudgets] | None" = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class GateOutcome:
    """What the gates found over one output. `uneven` marks rows and `tiles` tiles whose RMS error is too large."""

    ok: bool
    ratio: float
    max_abs_error: float
    wrong: Tensor
    uneven: Tensor
    tiles: Tensor
    note: str = ""


def rounds_operands(precision: str) -> bool:
    """Whether the declared arithmetic rounds what it multiplies to fewer bits than float32 has."""
    return precision in _OPERANDS


def samples_for(native: Tree, precision: str) -> int:
    """Number of disturbed runs that the noise is estimated from."""
    wide = any(tensor.dtype == torch.float32 for tensor in tensors(native))
    return MOST_SAMPLES if wide and rounds_operands(precision) and numel(native) <= _FEW_OUTPUTS else _SAMPLES


def has_float8_matrices(operands: Tree) -> bool:
    """Whether all floating matrices are float8; vectors and columns, which hold scales and biases, do not count."""
    floats = [t for t in tensors(operands) if t.is_floating_point() and t.dim() > 1]
    matrices = [t for t in floats if min(t.shape[-2:]) > 1]
    return bool(matrices) and all(map(is_float8, matrices))


def rounding_of(expected: Expected, dtype: torch.dtype) -> float:
    """Relative change that honest arithmetic may give a value before an index is computed from it."""
    u_op, u_acc = _units(expected)
    return 4 * u_op + max(6.5 * math.sqrt(expected.reduction_length), 16) * u_acc + 2 * _OUTPUTS.get(dtype, 0.0)


def as_rows(tensor: Tensor) -> Tensor:
    """Reshape to a matrix of rows that are long enough for a statistic: trailing dimensions together, at least 32
    elements."""
    length = 1
    for size in reversed(tensor.shape):
        length *= size
        if length >= _ROW:
            break
    return tensor.reshape(-1, length) if tensor.numel() else tensor.reshape(0, 1)


def reached(
    expected: Expected,
    native: Tensor,
    exact: Tensor,
    got: Tensor,
    extra: Mapping[str, Tensor],
    kept: "KeptBudgets | None" = None,
) -> GateOutcome:
    """Put one output through the gates, a block of rows at a time. `extra`: its "noise" and "slack", if any; `kept`:
    its budgets where they are kept; those that are missing are added."""
    longest = max(expected.reduction_length, expected.read // max(1, exact.numel()))
    expected = replace(expected, reduction_length=longest)
    true, trusted, given = (as_rows(tensor) for tensor in (exact, native, got))
    more = {name: as_rows(tensor) for name, tensor in extra.items()}
    step = max(1, CHUNK // max(1, true.shape[1]))
    step = step // TILE * TILE or step  # tiles stay whole
    chunks = []
    for at in range(0, true.shape[0], step):
        part = slice(at, at + step)
        error = _Errors(given[part], true[part])
        if error.largest == 0:  # a copy, a choice, a transposition: right whatever is allowed
            chunks.append(_right(true[part]))
            continue
        budget = kept.get(at) if kept else None
        if budget is None:
            budget = _Budget(expected, true[part], trusted[part], {name: rows[part] for name, rows in more.items()})
        if kept is not None:
            kept[at] = budget
        chunks.append(_chunk(budget, error))
    if not chunks:
        nothing = torch.zeros(0, dtype=torch.bool)
        return GateOutcome(True, 0.0, 0.0, torch.zeros_like(exact, dtype=torch.bool), nothing, nothing)
    return GateOutcome(
        ok=all(chunk.ok for chunk in chunks),
        ratio=max(chunk.ratio for chunk in chunks),
        max_abs_error=max(chunk.max_abs_error for chunk in chunks),
        wrong=torch.cat([chunk.wrong for chunk in chunks]).reshape(exact.shape),
        uneven=torch.cat([chunk.uneven for chunk in chunks]),
        tiles=torch.cat([chunk.tiles for chunk in chunks]),
        note=next((chunk.note for chunk in chunks if chunk.note), ""),
    )


class _Errors:
    """By how much a block of rows misses its answers. `largest` is NaN or infinite when one of them, or of the answers,
    is."""

    def __init__(self, got: Tensor, exact: Tensor) -> None:
        self.exact, self._got = exact, got
        self._signed = _arithmetic(got) - exact  # float64, as the answers are
        self._size = self._signed.abs()
        self.largest = float(self._size.max())

    def sizes(self, budget: "_Budget") -> tuple[Tensor, Tensor]:
        """Infinite where a NaN or an infinity is not where it should be; and the same with 0 in place of these."""
        if budget.finite and math.isfinite(self.largest):
            return self._size, self._size
        rounded, actual = self.exact.to(budget.dtype).double(), self._got.double()
        special = ~torch.isfinite(rounded) | ~torch.isfinite(actual)
        same = (torch.isnan(rounded) & torch.isnan(actual)) | (rounded == actual)
        self._signed = torch.where(special, 0.0, self._signed)
        self._size = torch.where(special, 0.0, self._size)
        size = torch.where(special, torch.where(same, 0.0, math.inf), self._size)
        self.largest = float(size.max())
        return size, self._size

    def lean(self) -> Tensor:
        """Away from zero counts up: the mean of each row. Asked for last."""
        return self._signed.mul_(self.exact.sign()).mean(dim=1)


def _chunk(budget: "_Budget", error: _Errors) -> GateOutcome:
    ratios = budget.ratios(*error.sizes(budget))
    worst = torch.stack([ratio.max() for ratio in ratios]).tolist()
    if 1 < worst[1] <= _RARELY_BY and int((ratios[1] > 1).sum()) <= len(ratios[1]) // _RARE_OF:
        worst[1] = float(ratios[1].clamp_(max=1.0).max())
    if all(ratio <= 1 for ratio in worst):
        return replace(_right(error.exact), ratio=max(worst), max_abs_error=error.largest, note=_bias(error.lean()))
    return GateOutcome(
        ok=False,
        ratio=max(worst),
        max_abs_error=error.largest,
        wrong=~(ratios[0] <= 1),
        uneven=~(ratios[1] <= 1).squeeze(1),
        tiles=~(ratios[2] <= 1) if len(ratios) > 2 else _no_tiles(error.exact),
        note=_bias(error.lean()),
    )


def _right(rows: Tensor) -> GateOutcome:
    """Of a block of rows that do not miss their answers at all."""
    high, wide = (size // TILE for size in rows.shape)
    tiles = rows.new_zeros(high, wide, dtype=torch.bool) if high and wide else _no_tiles(rows)
    none = torch.zeros_like(rows, dtype=torch.bool)
    return GateOutcome(True, 0.0, 0.0, none, none.new_zeros(len(rows)), tiles)


class _Budget:
    """The tolerance of a block of rows: of each element, of each row and of each tile, where there are any. It follows
    from the answer alone, whatever is compared with it."""

    def __init__(self, expected: Expected, exact: Tensor, native: Tensor, extra: Mapping[str, Tensor]) -> None:
        terms = _Terms(expected, exact, native, extra)
        self.dtype, self.finite = native.dtype, terms.finite
        self._envelope, self._rows = terms.envelope(), terms.rms_budget(_row_rms)
        self._tiles = terms.rms_budget(_tile_rms) if min(exact.shape) >= TILE else None

    def ratios(self, size: Tensor, finite: Tensor) -> list[Tensor]:
        """Error by budget: of elements, of rows, and of tiles; the last two of `finite`."""
        of_tiles = [] if self._tiles is None else [_tile_rms(finite) / self._tiles]
        return [size / self._envelope, _row_rms(finite) / self._rows, *of_tiles]


KeptBudgets = dict[int, _Budget]  # of one output, by the first row of a block


class _Terms:
    """What the tolerance of a block of rows is made of. A memory's bandwidth bounds it, of which each pass over the
    block takes 8 to 24 bytes an element; hence the sums in place, and norms in place of means of squares."""

    def __init__(self, expected: Expected, exact: Tensor, native: Tensor, extra: Mapping[str, Tensor]) -> None:
        u_op, u_acc = _units(expected)
        dtype, self._slack = native.dtype, extra.get("slack")
        self._value = exact.abs()  # the size of the answers, 0 where they are not finite in the output's format
        self._trusted = (_arithmetic(native) - exact).abs_()
        top, missed = torch.stack([self._value.max(), self._trusted.max()])
        self.finite = bool(torch.isfinite(top.to(dtype).double()))
        if not self.finite:
            self._value = torch.where(torch.isfinite(exact.to(dtype).double()), self._value, 0.0)
        if not torch.isfinite(missed):
            self._trusted.nan_to_num_(0.0, 0.0, 0.0)
        eight = dtype.itemsize == 1
        if is_float8(native):  # all of these values were rounded so: it says nothing of the arithmetic
            self._trusted = (self._trusted - half_step(self._value, dtype)).clamp_min(0.0)
        # half a step where numbers are densest
        tiny = 2.0**-24 if dtype == torch.float16 else torch.finfo(torch.float32 if eight else dtype).tiny
        if dtype != torch.float64:  # tl.exp2 is ex2.approx.ftz: of a softmax's 4e-39, times a gradient of 1000, nothing
            tiny += torch.finfo(torch.float32).tiny * expected.largest_input
        self._floor = torch.full_like(self._value[:, :1], tiny)
        length, noise = expected.reduction_length, extra.get("noise")
        # times `_storing`, what storing an output may change: nothing of a probe, whose answers are exact in its format
        self._stored = half_step(self._value, dtype) if eight else self._value
        if expected.bits is None:
            self._terms = torch.hypot(self._value, _row_rms(self._value) if noise is None else _lifted(noise))
            self._widest = 4 * u_op + expected.lenience * max(6.5 * math.sqrt(length), 16) * u_acc
            self._typical = 2 * u_op + expected.lenience * max(4 * math.sqrt(length / 6), 8) * u_acc
            if expected.one_hot:
                self._typical = self._widest
            self._storing = 1.0 if eight else 2 * _OUTPUTS[dtype]
            self._floor += _RESOLVED * _largest(self._value)
        else:
            self._terms = self._value if noise is None else torch.maximum(self._value, noise / _NOISE_OF_A_PRODUCT)
            self._widest = self._typical = 2.0**-expected.bits
            self._storing = 0.0

    def envelope(self) -> Tensor:
        """Return the largest error that is allowed, of each element."""
        bound = (self._widest * self._terms).add_(self._stored, alpha=self._storing)
        bound += self._floor + 4 * self._trusted.amax(dim=1, keepdim=True)
        return bound if self._slack is None else bound.add_(self._slack)

    def rms_budget(self, rms: Callable[[Tensor], Tensor]) -> Tensor:
        """The largest root mean square of the errors that is allowed, of each row or tile."""
        budget = self._typical * rms(self._terms) + self._storing * rms(self._stored) + 2 * rms(self._trusted)
        if self._slack is not None:
            budget = budget + rms(self._slack)
        return budget + rms(self._floor.expand_as(self._terms))


def _units(expected: Expected) -> tuple[float, float]:
    u_op = 0.0 if expected.exact_operands else _OPERANDS.get(expected.precision, 0.0)
    if expected.float8_operands:
        u_op = min(u_op, _SUMS_OF_FLOAT8)
    return u_op, 2.0**-53 if expected.precision == "float64" else 2.0**-24


def _arithmetic(tensor: Tensor) -> Tensor:
    """Itself; of float8, which torch cannot subtract, as float64."""
    return tensor.double() if is_float8(tensor) else tensor


def _largest(value: Tensor) -> Tensor:
    """The largest value of each row; of a row of zeros, that of all rows: what made it zero was not smaller."""
    rows = value.amax(dim=1, keepdim=True)
    return torch.where(rows > 0, rows, rows.amax())


def _row_rms(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norm / math.sqrt(rows.shape[1])


def _lifted(noise: Tensor) -> Tensor:
    """At least a quarter of the row's geometric mean. A few samples are now and then ten times too low, for 1 element
    in 10^5: 22 of a million were refused of an honest normalisation. A mean that one large element does not raise."""
    typical = noise.clamp_min(torch.finfo(noise.dtype).tiny).log().mean(dim=1, keepdim=True).exp()
    return noise.maximum(_LEAST_OF_TYPICAL * typical)


def _no_tiles(rows: Tensor) -> Tensor:
    return torch.zeros(0, rows.shape[1] // TILE, dtype=torch.bool, device=rows.device)


def _tile_rms(rows: Tensor) -> Tensor:
    """Root mean square of each whole 64 x 64 tile; what is left over at the edges is covered by the rows."""
    high, wide = (size // TILE for size in rows.shape)
    tiles = rows[: high * TILE, : wide * TILE].view(high, TILE, wide, TILE)  # never a copy
    norm: Tensor = torch.linalg.vector_norm(tiles, dim=(1, 3))
    return norm / TILE


def _bias(means: Tensor) -> str:
    """A remark when errors lean towards zero or away from it in row after row: truncation, or a dropped term."""
    spread = float(means.std()) if means.numel() >= _FEWEST_ROWS else 0.0
    if not spread:
        return ""
    pull = float(means.mean()) * math.sqrt(means.numel()) / spread
    if abs(pull) <= _BIASED:
        return ""
    return f"errors lean {'away from' if pull > 0 else 'towards'} zero ({abs(pull):.0f} standard errors)"
