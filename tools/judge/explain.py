"""Say what is wrong with an output so that the author of a kernel learns from it: where, how much, and what such a
pattern usually means."""

import math
from typing import Protocol

import torch
from torch import Tensor

_TWO_OPERANDS = math.sqrt(2)  # each disturbed by one roundoff
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Uneven(Protocol):
    """Marks of rows and tiles (`tools.judge.gates.Reached`)."""

    @property
    def uneven(self) -> Tensor: ...

    @property
    def tiles(self) -> Tensor: ...


def explain(
    exact: Tensor,
    got: Tensor,
    wrong: Tensor,
    *,
    uneven: Uneven | None = None,
    before: Tensor | None = None,
    operands: Tensor | None = None,
) -> str:
    """One line: share of wrong elements, the worst one, and the pattern. `wrong` marks elements, `uneven` rows and
    tiles whose error is too large as a whole; `before` is what the output held before the candidate ran; `operands` how
    much relative noise on the operands moves each element, by which the arithmetic is recognised."""
    hint = _pattern(exact, got, wrong, before) or _relation(exact, got, operands)
    if not bool(wrong.any()) and uneven is not None:
        size = f"error {_relative_error(exact, got):.1e} of the values (root mean square)"
        return "; ".join(filter(None, (f"too imprecise in {_blocks(uneven)}: {size}", hint)))
    share = f"{int(wrong.sum())} of {wrong.numel()} elements wrong ({_percent(wrong)})"
    return "; ".join(filter(None, (share, _worst(exact, got, wrong), hint)))


def _blocks(found: Uneven) -> str:
    rows, tiles = found.uneven, found.tiles
    if bool(rows.any()) or not bool(tiles.any()):
        return f"{int(rows.sum())} of {rows.numel()} rows"
    row, column = (64 * int(place) for place in tiles.nonzero()[0])
    place = f"the first at rows {row}.. and columns {column}.."
    return f"{int(tiles.sum())} of {tiles.numel()} tiles of 64 x 64, {place}"


def _percent(wrong: Tensor) -> str:
    return f"{100 * float(wrong.double().mean()):.3g} %"


def _worst(exact: Tensor, got: Tensor, wrong: Tensor) -> str:
    error = torch.nan_to_num((got.double() - exact.double()).abs(), nan=math.inf)
    flat = int(torch.where(wrong, error, -1.0).flatten().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), exact.shape)) if exact.dim() else ()
    where = f"at {list(index)}: " if index else ""
    return f"worst {where}expected {exact.flatten()[flat].item():.9g}, got {got.flatten()[flat].item():.9g}"


def _pattern(exact: Tensor, got: Tensor, wrong: Tensor, before: Tensor | None) -> str:
    """The first of the known patterns that fits, or nothing."""
    hints = (_unwritten(got, wrong, before), _not_finite(got, wrong), _constant(got), _place(wrong))
    return next(filter(None, hints), "")


def _unwritten(got: Tensor, wrong: Tensor, before: Tensor | None) -> str:
    if before is None or before.shape != got.shape or before.dtype != got.dtype or not bool(wrong.any()):
        return ""
    kind = _BITS[got.element_size()]
    same = before.to(got.device).contiguous().view(kind) == got.contiguous().view(kind)
    share = float((same & wrong).sum()) / float(wrong.sum())
    if share < 0.5:
        return ""
    return f"{100 * share:.3g} % of the wrong elements were never written: {_place(wrong) or 'check grid and mask'}"


def _not_finite(got: Tensor, wrong: Tensor) -> str:
    if not got.is_floating_point():
        return ""
    bad = ~torch.isfinite(got) & wrong
    if not bool(bad.any()):
        return ""
    kind = "NaN" if bool(torch.isnan(got[bad]).all()) else "NaN or Inf"
    if bool(bad.all()):
        return f"all {kind}"
    place = _place(bad)
    return f"{int(bad.sum())} of them are {kind}" + (f": {place}" if place else "")


def _constant(got: Tensor) -> str:
    if got.numel() < 2:
        return ""
    first = got.flatten()[0]
    if not bool((got == first).all()):
        return ""
    return "the output is all zeros" if first == 0 else f"the output is {first.item():.6g} everywhere"


def _place(wrong: Tensor) -> str:
    """Where the wrong elements lie, when they are a block at an edge of the matrix."""
    if wrong.dim() == 0 or wrong.numel() < 4 or bool(wrong.all()) or not bool(wrong.any()):
        return ""
    matrix = wrong.reshape(-1, wrong.shape[-1])
    columns, rows = matrix.any(0), matrix.any(1)
    if start := _suffix(columns):
        return f"only columns {start}..{columns.numel() - 1} are wrong, the tail of each row; check the mask"
    if start := _suffix(rows):
        return f"only rows {start}..{rows.numel() - 1} are wrong: the grid is too small, or the mask of the last rows"
    if (bad := int(rows.sum())) <= 0.5 * rows.numel() and bool(matrix[rows].all()):
        return f"{bad} of {rows.numel()} rows are wrong throughout, the first is row {int(rows.int().argmax())}"
    return ""


def _suffix(marks: Tensor) -> int:
    """Start of the last stretch of marks when nothing before it is marked, else 0."""
    start = int(marks.int().argmax())
    return start if start and bool(marks[start:].double().mean() > 0.9) else 0


def _relation(exact: Tensor, got: Tensor, operands: Tensor | None) -> str:
    """How values relate as a whole: a missing factor or constant, a transposition, a narrower arithmetic."""
    if not got.is_floating_point():
        return ""
    expected, actual = exact.double(), got.double()
    if not bool(torch.isfinite(expected).all() & torch.isfinite(actual).all()) or exact.numel() < 4:
        return ""
    error = _relative_error(exact, got)
    if got.dtype in (torch.float32, torch.float64) and error < 8e-3:
        return _narrow(error if operands is None else _relative_error(exact, got, to=operands / _TWO_OPERANDS))
    scale = float((expected * actual).sum() / expected.square().sum().clamp_min(1e-300))
    if _close(actual, scale * expected) and scale != 0:
        return f"every element is {scale:.6g} times the right value"
    offset = float((actual - expected).mean())
    if _close(actual, expected + offset):
        return f"every element is off by {offset:.6g}"
    if exact.dim() >= 2 and exact.shape[-1] == exact.shape[-2] and _close(actual.transpose(-1, -2), expected):
        return "the right values, transposed: check strides"
    return ""


def _narrow(error: float) -> str:
    if 5e-5 <= error < 9e-4:
        return f"relative error {error:.1e} looks like TF32 or float16 operands: {_IEEE}"
    if error >= 9e-4:
        return f"relative error {error:.1e} looks like bfloat16 arithmetic; compute and store in float32"
    return ""


_IEEE = "use input_precision='ieee' (or 'tf32x3') in tl.dot, whose default is TF32"
_MANTISSA = {"float64": 53, "float32": 24, "tf32_ok": 11, "float16": 11, "bfloat16": 8}
_NARROWER = ((9.5, 13.0, "TF32 (11 bits)", _IEEE), (6.5, 9.5, "bfloat16 (8 bits)", "keep operands as they are stored"))


def bits_of(exact: Tensor, got: Tensor) -> float:
    """How many bits of the answers are right: -log2 of the worst relative error; infinite when all are."""
    expected = exact.double()
    known = expected != 0
    error = torch.nan_to_num((got.double() - expected).abs(), nan=math.inf)
    if bool((error[~known] != 0).any()) or not bool(known.any()):
        return -math.inf
    worst = float((error[known] / expected[known].abs()).max())
    return -math.log2(worst) if worst else math.inf


def say_bits(bits: float, precision: str) -> str:
    """The arithmetic of a probed contraction in plain words; nothing when the answers are not merely imprecise."""
    if bits < 2:
        return ""
    task = f"this task is {precision.removesuffix('_ok')} ({_MANTISSA.get(precision, 24)} bits)"
    for low, high, name, remedy in _NARROWER:
        if low <= bits < high:
            return f"your kernel computes in {name}, {task}: {remedy}"
    return f"your kernel keeps {bits:.1f} bits of its operands, {task}: do not round them on the way"


def say_narrow_sum(exact: Tensor, got: Tensor, wrong: Tensor) -> str:
    """Whole numbers whose sums are nearly right, and wrong only where they are large: the accumulator is too narrow."""
    size = exact.double().abs()
    error = torch.nan_to_num((got.double() - exact.double()).abs(), nan=math.inf)
    if not bool(wrong.any()) or float((error / size.clamp_min(1.0)).max()) > 0.5 or float(size[wrong].min()) < 128:
        return ""
    limits = "float16 counts to 2,048, bfloat16 to 256"
    return f"sums of small integers are off: the accumulator is too narrow ({limits}); accumulate in float32"


def _close(a: Tensor, b: Tensor) -> bool:
    size = float(b.square().mean().sqrt())
    return size > 0 and float((a - b).square().mean().sqrt()) <= 1e-2 * size


def _relative_error(exact: Tensor, got: Tensor, *, to: Tensor | None = None) -> float:
    expected = exact.double()
    size = float((expected if to is None else to).square().mean().sqrt())
    return float((got.double() - expected).square().mean().sqrt()) / size if size else math.inf
