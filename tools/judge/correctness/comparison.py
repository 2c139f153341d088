"""Compare what a candidate returned with the float64 reference, within what its declared arithmetic can reach.

Structure, shapes and dtypes exactly; then every element: floats by the gates of `tools.judge.correctness.gates`, NaN
and infinities by where they are (-0 equals +0), indices by the values they choose, all else exactly. What is wrong is
said so that the author of a kernel learns from it: where, how much, and what such a pattern usually means.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from kerneltune.tools.judge.correctness.float64 import Rounding, Selection
from kerneltune.tools.judge.correctness.gates import (
    MOST_SAMPLES,
    NEAR_MISS,
    Expected,
    KeptBudgets,
    as_rows,
    reached,
    rounding_of,
)
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.judge.correctness.tree import Tree, dtype_name, is_float8, leaves, map_tensors, stored_as
from kerneltune.tools.schema.task import PROBES
from kerneltune.tools.schema.verdict import CaseResult, Limitation, LimitationKind, standing_for

_TWO_OPERANDS = math.sqrt(2)  # each disturbed by one roundoff
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Uneven(Protocol):
    """Marks of rows and tiles (`tools.judge.correctness.gates.Reached`)."""

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
    """Explain a miss in one line: share of wrong elements, the worst one, and the pattern. `wrong` marks elements,
    `uneven` rows and tiles whose error is too large as a whole; `before` is what the output held before the
    candidate ran; `operands` how much relative noise on the operands moves each element, by which the arithmetic is
    recognised."""
    hint = _pattern(got, wrong, before) or _relation(exact, got, operands)
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


def _pattern(got: Tensor, wrong: Tensor, before: Tensor | None) -> str:
    """The first of the known patterns that fits, or nothing."""
    hints = (_unwritten(got, wrong, before), _not_finite(got, wrong), _constant(got), _region(wrong))
    return next(filter(None, hints), "")


def _unwritten(got: Tensor, wrong: Tensor, before: Tensor | None) -> str:
    if before is None or before.shape != got.shape or before.dtype != got.dtype or not bool(wrong.any()):
        return ""
    kind = _BITS[got.element_size()]
    same = before.to(got.device).contiguous().view(kind) == got.contiguous().view(kind)
    share = float((same & wrong).sum()) / float(wrong.sum())
    if share < 0.5:
        return ""
    return f"{100 * share:.3g} % of the wrong elements were never written: {_region(wrong) or 'check grid and mask'}"


def _not_finite(got: Tensor, wrong: Tensor) -> str:
    if not got.is_floating_point():
        return ""
    bad = ~torch.isfinite(got) & wrong
    if not bool(bad.any()):
        return ""
    kind = "NaN" if bool(torch.isnan(got[bad]).all()) else "NaN or Inf"
    if bool(bad.all()):
        return f"all {kind}"
    place = _region(bad)
    return f"{int(bad.sum())} of them are {kind}" + (f": {place}" if place else "")


def _constant(got: Tensor) -> str:
    if got.numel() < 2:
        return ""
    first = got.flatten()[0]
    if not bool((got == first).all()):
        return ""
    return "the output is all zeros" if first == 0 else f"the output is {first.item():.6g} everywhere"


def _region(wrong: Tensor) -> str:
    """Describe where the wrong elements lie, when they are a block at an edge of the matrix."""
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
    wide = got.dtype in (torch.float32, torch.float64)
    of_operands = error if operands is None else _relative_error(exact, got, to=operands / _TWO_OPERANDS)
    if wide and error < 8e-3:
        return _narrow(of_operands)
    scale = float((expected * actual).sum() / expected.square().sum().clamp_min(1e-300))
    if _close(actual, scale * expected) and scale != 0:
        return f"every element is {scale:.6g} times the right value"
    offset = float((actual - expected).mean())
    if _close(actual, expected + offset):
        return f"every element is off by {offset:.6g}"
    if exact.dim() >= 2 and exact.shape[-1] == exact.shape[-2] and _close(actual.transpose(-1, -2), expected):
        return "the right values, transposed: check strides"
    return _one_sided(expected, actual) or (_narrow(of_operands) if wide and operands is not None else "")


def _one_sided(expected: Tensor, actual: Tensor) -> str:
    """Whether nearly all values miss in one direction, as no rounding to nearest makes them: a softmax whose divisor is
    one too large has a relative error of 2e-2, like float8."""
    differs = actual.abs() != expected.abs()
    smaller = float((actual.abs() < expected.abs())[differs].double().mean()) if bool(differs.any()) else 0.5
    if 0.01 < smaller < 0.99:
        return ""
    return f"nearly all are too {'small' if smaller > 0.5 else 'large'}: check what they are divided by or summed over"


def _narrow(error: float) -> str:
    """The format whose rounding of operands makes such an error (relative, root mean square), if there is one."""
    for low, high, name, remedy in _ROUNDINGS:
        if low <= error < high:
            return f"relative error {error:.1e} looks like {name}{remedy}"
    return ""


_IEEE = "use input_precision='ieee' (or 'tf32x3') in tl.dot, whose default is TF32"
# of randn, rounded to nearest: TF32 and float16 2.9e-4, bfloat16 2.3e-3, e4m3 3.7e-2, e5m2 7.4e-2
_ROUNDINGS = (
    (5e-5, 9e-4, "TF32 or float16 operands", f": {_IEEE}"),
    (9e-4, 1e-2, "bfloat16 arithmetic", "; compute and store in float32"),
    (1e-2, 5e-2, "float8 operands (e4m3, 4 bits)", "; keep operands as they are stored"),
    (5e-2, 0.12, "float8 operands (e5m2, 3 bits)", "; keep operands as they are stored"),
)
_MANTISSA = {"float64": 53, "float32": 24, "tf32_ok": 11, "float16": 11, "bfloat16": 8}
_NARROWER = (
    (9.5, 13.0, "TF32 (11 bits)", _IEEE),
    (6.5, 9.5, "bfloat16 (8 bits)", "keep operands as they are stored"),
    (3.5, 5.5, "float8 e4m3 (4 bits)", "keep operands as they are stored"),
    (2.0, 3.5, "float8 e5m2 (3 bits)", "keep operands as they are stored"),
)


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


_AS_MUCH = 4.0  # times the trusted implementation's largest error, and its share of elements that miss
_MOST = 0.5  # of the elements; torch's own misses are allowed for where they are


@dataclass(frozen=True)
class GateResult:
    """The outcome for one output. `ratio` is the worst error / budget; `detail` of one that is right is a remark;
    `share`: of elements that are wrong, or in a row that is."""

    ok: bool
    ratio: float = 0.0
    max_abs_error: float = 0.0
    detail: str = ""
    share: float = 0.0


class ExpectedOutputs(Protocol):
    """What a right candidate may return for drawn inputs. Of a large case it is worked out some rows at a time, anew
    whenever it is asked for (`tools.judge.correctness.problem.ExpectationInParts`)."""

    @property
    def native(self) -> Tree: ...

    def parts(self) -> Iterator[tuple[slice | None, Expected]]: ...


@dataclass(frozen=True)
class WholeExpectation:
    """An answer that is at hand for all rows at once."""

    expected: Expected

    def for_many(self) -> "WholeExpectation":
        """The same, to compare many outputs with: what of the tolerance follows from it alone is worked out once."""
        return WholeExpectation(replace(self.expected, kept={}))

    @property
    def native(self) -> Tree:
        """The answer in the reference's own dtypes."""
        return self.expected.native

    def parts(self) -> Iterator[tuple[slice | None, Expected]]:
        """All of it."""
        yield None, self.expected


class ExpectsAnswer(Protocol):
    """Gives the expected answer for inputs (`tools.judge.correctness.problem.Problem`)."""

    def expectation(self, inputs: tuple[Any, ...], *, least_samples: int = 0) -> ExpectedOutputs: ...


class AnswersInputs(ExpectsAnswer, Protocol):
    """Gives the answer to drawn inputs, too."""

    def restore(self, drawn: Any) -> None: ...


def judge(problem: AnswersInputs, drawn: Drawn, actual: Tree, *, case: str, battery: str) -> CaseResult:
    """Compare what a candidate made of drawn inputs with the answer for them."""
    problem.restore(drawn)
    expected = problem.expectation(drawn.inputs)
    return compare_closely(problem, drawn, expected, actual, case=case, battery=battery)[0]


def compare_closely(
    problem: ExpectsAnswer, drawn: Drawn, expected: ExpectedOutputs, actual: Tree, *, case: str, battery: str
) -> tuple[CaseResult, ExpectedOutputs]:
    """The comparison with the answer to drawn inputs, and that answer. Before anybody is accused of missing it by
    little, its noise is estimated from more samples. Of a sum that a kernel rounds to bfloat16 in one place and not in
    another, as TorchInductor's loops over long rows do, 6 samples put the noise of 3 in 1,326,080 elements too low by a
    factor of 5: they were refused by 1.11 times the tolerance."""
    result = compare_in_parts(expected, actual, case=case, battery=battery)
    if result.ok or not result.error_ratio < NEAR_MISS:  # NaN is no near miss
        return result, expected
    closer = problem.expectation(drawn.inputs, least_samples=MOST_SAMPLES)
    return compare_in_parts(closer, actual, case=case, battery=battery), closer


def rows_of(tree: Tree, rows: slice | None) -> Tree:
    """Those rows of every tensor."""
    return tree if rows is None else map_tensors(lambda tensor: tensor[rows], tree)


def compare_in_parts(
    expectation: ExpectedOutputs,
    actual: Tree,
    *,
    case: str = "",
    battery: str = "own",
    poison: Tree | None = None,
    strictly: bool = False,
) -> CaseResult:
    """Compare as `compare_drawn` does, or `strictly` as `compare` does, one part of the rows after the other up to the
    first that is wrong."""
    if not isinstance(expectation, WholeExpectation) and (misfit := _misfit(expectation.native, actual)):
        return CaseResult(case, battery, False, math.inf, math.inf, misfit)
    seen: list[CaseResult] = []
    for rows, expected in expectation.parts():
        got = rows_of(actual, rows)
        if strictly:
            result = compare(expected, got, case=case, battery=battery, poison=rows_of(poison, rows))
        else:
            result = compare_drawn(expected, got, case=case, battery=battery)
        seen.append(result)
        if not result.ok:
            where = f"rows {rows.start}..{rows.stop - 1}, counted from {rows.start}: " if rows else ""
            return replace(result, detail=where + result.detail)
    return standing_for(max(seen, key=lambda result: result.error_ratio), seen)


def _misfit(native: Tree, actual: Tree) -> str:
    """What is wrong with structure, shapes and dtypes as a whole; "" when nothing is."""
    wanted, got = dict(leaves(native)), dict(leaves(actual))
    if list(wanted) != list(got):
        return f"expected {_shape_of(native)}, got {_shape_of(actual)}"
    for path, leaf in wanted.items():
        other = got[path]
        if not isinstance(other, Tensor) or (leaf.shape, leaf.dtype) != (other.shape, other.dtype):
            return f"{f'output {path}: ' if path else ''}expected {_shape_of(leaf)}, got {_shape_of(other)}"
    return ""


def compare(
    expected: Expected, actual: Tree, *, case: str = "", battery: str = "own", poison: Tree | None = None
) -> CaseResult:
    """Structure, shapes, dtypes, then every element. `poison` is what the outputs held before the candidate ran. What
    the answer lacks is said whatever comes of it."""
    return _result(_gates(expected, actual, poison), expected, case, battery)


def _result(gates: Sequence[GateResult], expected: Expected, case: str, battery: str) -> CaseResult:
    bad = [gate for gate in gates if not gate.ok]
    said = bad or [gate for gate in gates if gate.detail]
    return CaseResult(
        case=case,
        inputs=battery,
        ok=not bad,
        error_ratio=max((gate.ratio for gate in gates), default=0.0),
        max_abs_error=max((gate.max_abs_error for gate in gates), default=0.0),
        detail="; ".join(gate.detail for gate in said[:3]),
        limitations=expected.limitations,
    )


def native_holds(expected: Expected) -> bool:
    """Whether the trusted implementation in its own dtype is within what is allowed without it. Huge inputs make a norm
    of few elements a step: of two that are 2^40 and cancel, a roundoff decides on the sign."""
    return all(gate.ok for gate in _of_native(expected))


def compare_drawn(expected: Expected, actual: Tree, *, case: str = "", battery: str = "own") -> CaseResult:
    """Compare as `compare` does; but where other inputs than the task's own make the trusted implementation miss the
    answer, too, in each output that misses, by about as much and in about as many places, a miss says nothing, and
    the result says so. An attention over 1,024 channels of 10,000 + randn is a choice of one key; where two nearly
    tie a roundoff chooses, and too rarely for samples of noise to show it. Not by its size alone: there torch is off
    by 5 in 3 to 8 rows of 100, and the mean of all values by 4 in every row."""
    gates = _gates(expected, actual, None)
    result = _result(gates, expected, case, battery)
    if result.ok or battery == "own" or battery in PROBES:
        return result
    found = zip(gates, _of_native(expected), strict=False)  # another structure is a gate of its own
    if not all(gate.ok or _no_worse(gate, native) for gate, native in found):
        return result
    limitations = (Limitation(LimitationKind.NATIVE_MISSES), *expected.limitations)
    return replace(result, ok=True, error_ratio=0.0, detail="", limitations=limitations)


def _no_worse(gate: GateResult, trusted: GateResult) -> bool:
    if trusted.ok or not gate.max_abs_error <= _AS_MUCH * trusted.max_abs_error < math.inf:
        return False
    return gate.share <= min(_AS_MUCH * trusted.share, _MOST)


def _of_native(expected: Expected) -> list[GateResult]:
    """The trusted implementation's own gates, with nothing allowed for what it misses."""
    own = replace(expected, native=stored_as(expected.native, expected.values), kept=None)
    return _gates(own, expected.native, None)


def _gates(expected: Expected, actual: Tree, poison: Tree | None) -> list[GateResult]:
    wanted, got = dict(leaves(expected.native)), dict(leaves(actual))
    if list(wanted) != list(got):
        return [
            GateResult(False, math.inf, math.inf, f"expected {_shape_of(expected.native)}, got {_shape_of(actual)}")
        ]
    exact, before = dict(leaves(expected.values)), dict(leaves(poison))
    extra = {
        "noise": dict(leaves(expected.noise)),
        "slack": dict(leaves(expected.slack)),
        "operands": dict(leaves(expected.operand_noise)),
    }
    many = len(wanted) > 1
    gates = []
    for path, native in wanted.items():
        more = {name: found[path] for name, found in extra.items() if isinstance(found.get(path), Tensor)}
        kept = None if expected.kept is None else expected.kept.setdefault(path, {})
        selection = expected.selections.get(path)
        gate = _leaf(_Leaf(expected, native, exact[path], before.get(path), more, selection, kept), got[path])
        where = f"output {path}: " if many else ""
        gates.append(replace(gate, detail=gate.detail and where + gate.detail))
    return gates


def _shape_of(tree: Tree) -> str:
    if isinstance(tree, Tensor):
        return f"a {dtype_name(tree.dtype)} tensor of shape {tuple(tree.shape)}"
    if isinstance(tree, dict):
        return f"a dict with keys {', '.join(map(str, tree))}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return f"{tree!r:.80}"


@dataclass(frozen=True)
class _Leaf:
    """What one output should be; `before`: what it held; `extra`: its noise, slack and operands' noise; `kept`: its
    budgets, where they are kept."""

    expected: Expected
    native: Any
    exact: Any
    before: Tensor | None
    extra: dict[str, Tensor]
    selection: Selection | Rounding | None
    kept: KeptBudgets | None


def _leaf(wanted: _Leaf, got: Any) -> GateResult:
    native, exact, got = (_scalar(value) for value in (wanted.native, wanted.exact, got))
    if not isinstance(native, Tensor) or not isinstance(got, Tensor):
        ok = type(native) is type(got) and native == got
        return (
            GateResult(True)
            if ok
            else GateResult(False, math.inf, math.inf, f"expected {native!r:.80}, got {_shape_of(got)}")
        )
    if native.shape != got.shape or native.dtype != got.dtype:
        return GateResult(False, math.inf, math.inf, f"expected {_shape_of(native)}, got {_shape_of(got)}")
    got = got.detach().to(exact.device)
    before = wanted.before
    if is_float8(got):  # torch knows no arithmetic of these
        got, before = got.float(), before.float() if isinstance(before, Tensor) else before
    if native.is_complex():
        native, exact, got = map(torch.view_as_real, (native, exact, got))
        return _floating(replace(wanted, native=native, exact=exact, extra={}), got)
    if native.is_floating_point():
        return _floating(replace(wanted, native=native, exact=exact, before=before), got)
    return _exactly(wanted, exact, got)


def _scalar(value: Any) -> Any:
    """Plain numbers are compared as 0-dim tensors."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


def _exactly(wanted: _Leaf, exact: Tensor, got: Tensor) -> GateResult:
    wrong = got != exact
    if not bool(wrong.any()):
        return GateResult(True)
    if wanted.selection is not None:
        stored = getattr(torch, wanted.expected.precision, torch.float32)
        wrong = wrong & ~wanted.selection.accepts(got, rounding=rounding_of(wanted.expected, stored))
        if not bool(wrong.any()):
            return GateResult(True)
    error = torch.where(wrong, (got.double() - exact.double()).abs(), 0.0).max()
    words = explain(exact, got, wrong, before=wanted.before)
    return GateResult(False, math.inf, float(error), words, _share(wrong))


def _share(marked: Tensor) -> float:
    return int(marked.sum()) / max(1, marked.numel())


def _floating(wanted: _Leaf, got: Tensor) -> GateResult:
    expected, exact, extra = wanted.expected, wanted.exact, wanted.extra
    widens = {name: extra[name] for name in extra.keys() & {"noise", "slack"}}
    found = reached(expected, wanted.native, exact, got, widens, wanted.kept)
    if found.ok:
        return GateResult(True, found.ratio, found.max_abs_error, found.note)
    words = explain(exact, got, found.wrong, uneven=found, before=wanted.before, operands=extra.get("operands"))
    if expected.bits is not None:
        words = say_bits(bits_of(exact, got), expected.precision) or words
    elif expected.exact_operands:
        words = say_narrow_sum(exact, got, found.wrong) or words
    misses = as_rows(found.wrong) | found.uneven[:, None]
    return GateResult(False, found.ratio, found.max_abs_error, words, _share(misses))
