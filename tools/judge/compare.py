"""Does what a candidate returned equal the float64 reference, within what its declared arithmetic can reach?

Two gates per floating output, over all of its elements, both fail-closed (NaN passes neither):
  envelope   |y - y*| <= (4 u_op + max(6.5 sqrt(L), 16) u_acc) s + 2 u_out |y*| + 4 max_row|n - y*| + tiny
  row RMS    rms(y - y*) <= (2 u_op + max(4 sqrt(L/6), 8) u_acc) rms(s) + 2 u_out rms(y*) + 2 rms(n - y*) + tiny
where u are unit roundoffs (operands, accumulator, output), L the reduction length, n the trusted implementation in
its own dtype, and s how large the terms behind an element are: its own value and what relative noise on every
operation of the reference does to it, so that cancellation widens the budget exactly where it happens.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tools.judge.explain import explain
from tools.judge.tree import Tree, dtype_name, leaves
from tools.verdict import CaseResult

_CHUNK = 1 << 24  # elements compared at once: a 6 GB output needs no 50 GB of float64 temporaries
_ROW = 32  # a "row" has at least so many elements, or is the whole tensor
_OPERANDS = {
    "tf32_ok": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
_OUTPUTS = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}


@dataclass(frozen=True)
class Expected:
    """The answer and what its tolerance is made of. `values` and `noise` are float64 (`noise` may be missing);
    `native`, in the reference's own dtypes, also says which structure, shapes and dtypes are wanted."""

    values: Tree
    native: Tree
    precision: str
    reduction_length: int
    noise: Tree | None = None


@dataclass(frozen=True)
class Gate:
    """The outcome for one output. `ratio` is the worst error / budget."""

    ok: bool
    ratio: float = 0.0
    max_abs_error: float = 0.0
    detail: str = ""


class Drawn(Protocol):
    """Inputs of one check and the seed they are from (`tools.judge.problem.Drawn`)."""

    @property
    def seed(self) -> int: ...

    @property
    def inputs(self) -> tuple[Any, ...]: ...


class Reference(Protocol):
    """Who knows the answer (`tools.judge.reference.Problem`)."""

    def reseed(self, seed: int) -> None: ...

    def expect(self, inputs: tuple[Any, ...]) -> Expected: ...


def judge(problem: Reference, drawn: Drawn, actual: Tree, *, case: str, battery: str) -> CaseResult:
    """Compare what a candidate made of drawn inputs with the answer for them."""
    problem.reseed(drawn.seed)
    return compare(problem.expect(drawn.inputs), actual, case=case, battery=battery)


def compare(
    expected: Expected, actual: Tree, *, case: str = "", battery: str = "own", poison: Tree | None = None
) -> CaseResult:
    """Structure, shapes, dtypes, then every element. `poison` is what the outputs held before the candidate ran."""
    gates = _gates(expected, actual, poison)
    bad = [gate for gate in gates if not gate.ok]
    return CaseResult(
        case=case,
        inputs=battery,
        ok=not bad,
        error_ratio=max((gate.ratio for gate in gates), default=0.0),
        max_abs_error=max((gate.max_abs_error for gate in gates), default=0.0),
        detail="; ".join(gate.detail for gate in bad[:3]),
    )


def _gates(expected: Expected, actual: Tree, poison: Tree | None) -> list[Gate]:
    wanted, got = dict(leaves(expected.native)), dict(leaves(actual))
    if list(wanted) != list(got):
        return [Gate(False, math.inf, math.inf, f"expected {_shape_of(expected.native)}, got {_shape_of(actual)}")]
    exact, noise, before = (dict(leaves(tree)) for tree in (expected.values, expected.noise, poison))
    many = len(wanted) > 1
    gates = []
    for path, native in wanted.items():
        gate = _leaf(expected, native, exact[path], got[path], noise.get(path), before.get(path))
        where = f"output {path}: " if many else ""
        gates.append(Gate(gate.ok, gate.ratio, gate.max_abs_error, gate.detail and where + gate.detail))
    return gates


def _shape_of(tree: Tree) -> str:
    if isinstance(tree, Tensor):
        return f"a {dtype_name(tree.dtype)} tensor of shape {tuple(tree.shape)}"
    if isinstance(tree, dict):
        return f"a dict with keys {', '.join(map(str, tree))}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return f"{tree!r:.80}"


def _leaf(expected: Expected, native: Any, exact: Any, got: Any, noise: Tensor | None, before: Tensor | None) -> Gate:
    if not isinstance(native, Tensor):
        native, exact, got, noise = _scalar(native), _scalar(exact), _scalar(got), None
    if not isinstance(native, Tensor) or not isinstance(got, Tensor):
        ok = type(native) is type(got) and native == got
        return Gate(True) if ok else Gate(False, math.inf, math.inf, f"expected {native!r:.80}, got {_shape_of(got)}")
    if native.shape != got.shape or native.dtype != got.dtype:
        return Gate(False, math.inf, math.inf, f"expected {_shape_of(native)}, got {_shape_of(got)}")
    got = got.detach().to(exact.device)
    if native.is_complex():
        native, exact, got, noise = *map(torch.view_as_real, (native, exact, got)), None
    if not native.is_floating_point():
        return _exactly(exact, got, before)
    return _floating(expected, native, exact, got, noise, before)


def _scalar(value: Any) -> Any:
    """Plain numbers are compared as 0-dim tensors."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


def _exactly(exact: Tensor, got: Tensor, before: Tensor | None) -> Gate:
    wrong = got != exact
    if not bool(wrong.any()):
        return Gate(True)
    error = (got.double() - exact.double()).abs().max() if not got.is_complex() else torch.tensor(math.inf)
    return Gate(False, math.inf, float(error), explain(exact, got, wrong, before=before))


def _floating(
    expected: Expected, native: Tensor, exact: Tensor, got: Tensor, noise: Tensor | None, before: Tensor | None
) -> Gate:
    rows = [as_rows(exact), as_rows(native), as_rows(got)]
    disturbed = None if noise is None else as_rows(noise)
    step = max(1, _CHUNK // max(1, rows[0].shape[1]))
    chunks = []
    for at in range(0, rows[0].shape[0], step):
        part = slice(at, at + step)
        chunks.append(_chunk(expected, *(r[part] for r in rows), noise=None if disturbed is None else disturbed[part]))
    ratio = max((chunk.ratio for chunk in chunks), default=0.0)
    error = max((chunk.max_abs_error for chunk in chunks), default=0.0)
    if all(chunk.ok for chunk in chunks):
        return Gate(True, ratio, error)
    wrong = torch.cat([chunk.wrong for chunk in chunks]).reshape(exact.shape)
    uneven = torch.cat([chunk.uneven for chunk in chunks])
    return Gate(False, ratio, error, explain(exact, got, wrong, uneven=uneven, before=before))


def as_rows(tensor: Tensor) -> Tensor:
    """As a matrix of rows that are long enough for a statistic: trailing dimensions together, at least 32 elements."""
    length = 1
    for size in reversed(tensor.shape):
        length *= size
        if length >= _ROW:
            break
    return tensor.reshape(-1, length) if tensor.numel() else tensor.reshape(0, 1)


@dataclass(frozen=True)
class _Chunk:
    ok: bool
    ratio: float
    max_abs_error: float
    wrong: Tensor  # elements outside their envelope
    uneven: Tensor  # rows whose RMS error is over its budget


def _chunk(expected: Expected, exact: Tensor, native: Tensor, got: Tensor, *, noise: Tensor | None) -> _Chunk:
    rounded, actual = exact.to(native.dtype).double(), got.double()
    special = ~torch.isfinite(rounded) | ~torch.isfinite(actual)
    same = (torch.isnan(rounded) & torch.isnan(actual)) | (rounded == actual)
    error = torch.where(special, torch.where(same, 0.0, math.inf), (actual - exact).abs())
    value = torch.where(special, 0.0, exact.abs())
    trusted = torch.nan_to_num((native.double() - exact).abs(), 0.0, 0.0, 0.0)
    envelope, row_budget = _budgets(expected, native.dtype, value, trusted, noise)
    row_error = _rms(torch.where(torch.isfinite(error), error, 0.0))
    fits, rows_fit = error <= envelope, row_error <= row_budget
    ratio = max(float((error / envelope).max()), float((row_error / row_budget).max()))
    finite = error[torch.isfinite(error)]
    ok = bool(fits.all()) and bool(rows_fit.all())
    largest = float(finite.max()) if finite.numel() == error.numel() else math.inf
    return _Chunk(ok, ratio, largest, ~fits, ~rows_fit.squeeze(1))


def _budgets(
    expected: Expected, dtype: torch.dtype, value: Tensor, trusted: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    u_op = _OPERANDS.get(expected.precision, 0.0)
    u_acc = 2.0**-53 if expected.precision == "float64" else 2.0**-24
    u_out, length = _OUTPUTS[dtype], expected.reduction_length
    tiny = 2.0**-24 if dtype == torch.float16 else torch.finfo(dtype).tiny  # half a step where numbers are densest
    terms = (value.square() + (_rms(value) if noise is None else noise).square()).sqrt()
    envelope = (4 * u_op + max(6.5 * math.sqrt(length), 16) * u_acc) * terms + 2 * u_out * value
    rows = (2 * u_op + max(4 * math.sqrt(length / 6), 8) * u_acc) * _rms(terms) + 2 * u_out * _rms(value)
    widest = trusted.amax(dim=1, keepdim=True)
    return envelope + 4 * widest + tiny, rows + 2 * _rms(trusted) + tiny


def _rms(rows: Tensor) -> Tensor:
    return rows.square().mean(dim=1, keepdim=True).sqrt()
