"""Does what a candidate returned equal the float64 reference, within what its declared arithmetic can reach?

Structure, shapes and dtypes exactly; then every element: floats by the gates of `tools.judge.gates`, NaN and infinities
by where they are (-0 equals +0), indices by the values they choose, all else exactly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tools.judge.batteries import PROBES
from tools.judge.explain import bits_of, explain, say_bits, say_narrow_sum
from tools.judge.gates import Expected, as_rows, reached, rounding_of
from tools.judge.roundings import Rounding
from tools.judge.ties import Selection
from tools.judge.tree import Tree, dtype_name, is_float8, leaves, stored_as
from tools.verdict import CaseResult, Limitation, LimitationKind

__all__ = ["Expected", "as_rows", "compare", "compare_drawn", "judge", "native_holds"]

_AS_MUCH = 4.0  # times the trusted implementation's largest error, and its share of elements that miss
_MOST = 0.5  # of the elements; torch's own misses are allowed for where they are


@dataclass(frozen=True)
class Gate:
    """The outcome for one output. `ratio` is the worst error / budget; `detail` of one that is right is a remark;
    `share`: of elements that are wrong, or in a row that is."""

    ok: bool
    ratio: float = 0.0
    max_abs_error: float = 0.0
    detail: str = ""
    share: float = 0.0


class Drawn(Protocol):
    """Inputs of one check (`tools.judge.problem.Drawn`)."""

    @property
    def inputs(self) -> tuple[Any, ...]: ...


class Reference(Protocol):
    """Who knows the answer (`tools.judge.reference.Problem`)."""

    def restore(self, drawn: Any) -> None: ...

    def expect(self, inputs: tuple[Any, ...]) -> Expected: ...


def judge(problem: Reference, drawn: Drawn, actual: Tree, *, case: str, battery: str) -> CaseResult:
    """Compare what a candidate made of drawn inputs with the answer for them."""
    problem.restore(drawn)
    return compare_drawn(problem.expect(drawn.inputs), actual, case=case, battery=battery)


def compare(
    expected: Expected, actual: Tree, *, case: str = "", battery: str = "own", poison: Tree | None = None
) -> CaseResult:
    """Structure, shapes, dtypes, then every element. `poison` is what the outputs held before the candidate ran. What
    the answer lacks is said whatever comes of it."""
    return _result(_gates(expected, actual, poison), expected, case, battery)


def _result(gates: Sequence[Gate], expected: Expected, case: str, battery: str) -> CaseResult:
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
    """As `compare`; but where other inputs than the task's own make the trusted implementation miss the answer, too, in
    each output that misses, by about as much and in about as many places, a miss says nothing, and the result says so.
    An attention over 1,024 channels of 10,000 + randn is a choice of one key; where two nearly tie a roundoff chooses,
    and too rarely for samples of noise to show it. Not by its size alone: there torch is off by 5 in 3
    to 8 rows of 100, and the mean of all values by 4 in every row."""
    gates = _gates(expected, actual, None)
    result = _result(gates, expected, case, battery)
    if result.ok or battery == "own" or battery in PROBES:
        return result
    found = zip(gates, _of_native(expected), strict=False)  # another structure is a gate of its own
    if not all(gate.ok or _no_worse(gate, native) for gate, native in found):
        return result
    limitations = (Limitation(LimitationKind.NATIVE_MISSES), *expected.limitations)
    return replace(result, ok=True, error_ratio=0.0, detail="", limitations=limitations)


def _no_worse(gate: Gate, trusted: Gate) -> bool:
    if trusted.ok or not gate.max_abs_error <= _AS_MUCH * trusted.max_abs_error < math.inf:
        return False
    return gate.share <= min(_AS_MUCH * trusted.share, _MOST)


def _of_native(expected: Expected) -> list[Gate]:
    """The trusted implementation's own gates, with nothing allowed for what it misses."""
    return _gates(replace(expected, native=stored_as(expected.native, expected.values)), expected.native, None)


def _gates(expected: Expected, actual: Tree, poison: Tree | None) -> list[Gate]:
    wanted, got = dict(leaves(expected.native)), dict(leaves(actual))
    if list(wanted) != list(got):
        return [Gate(False, math.inf, math.inf, f"expected {_shape_of(expected.native)}, got {_shape_of(actual)}")]
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
        gate = _leaf(
            _Leaf(expected, native, exact[path], before.get(path), more, expected.selections.get(path)), got[path]
        )
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
    """What one output should be; `before`: what it held; `extra`: its noise, slack and operands' noise."""

    expected: Expected
    native: Any
    exact: Any
    before: Tensor | None
    extra: dict[str, Tensor]
    selection: Selection | Rounding | None


def _leaf(wanted: _Leaf, got: Any) -> Gate:
    native, exact, got = (_scalar(value) for value in (wanted.native, wanted.exact, got))
    if not isinstance(native, Tensor) or not isinstance(got, Tensor):
        ok = type(native) is type(got) and native == got
        return Gate(True) if ok else Gate(False, math.inf, math.inf, f"expected {native!r:.80}, got {_shape_of(got)}")
    if native.shape != got.shape or native.dtype != got.dtype:
        return Gate(False, math.inf, math.inf, f"expected {_shape_of(native)}, got {_shape_of(got)}")
    got = got.detach().to(exact.device)
    before = wanted.before
    if is_float8(got):  # torch knows no arithmetic of these
        got, before = got.float(), before.float() if isinstance(before, Tensor) else before
    if native.is_complex():
        native, exact, got = map(torch.view_as_real, (native, exact, got))
        return _floating(wanted.expected, native, exact, got, {}, wanted.before)
    if native.is_floating_point():
        return _floating(wanted.expected, native, exact, got, wanted.extra, before)
    return _exactly(wanted, exact, got)


def _scalar(value: Any) -> Any:
    """Plain numbers are compared as 0-dim tensors."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


def _exactly(wanted: _Leaf, exact: Tensor, got: Tensor) -> Gate:
    wrong = got != exact
    if not bool(wrong.any()):
        return Gate(True)
    if wanted.selection is not None:
        stored = getattr(torch, wanted.expected.precision, torch.float32)
        wrong = wrong & ~wanted.selection.accepts(got, rounding=rounding_of(wanted.expected, stored))
        if not bool(wrong.any()):
            return Gate(True)
    error = torch.where(wrong, (got.double() - exact.double()).abs(), 0.0).max()
    words = explain(exact, got, wrong, before=wanted.before)
    return Gate(False, math.inf, float(error), words, _share(wrong))


def _share(marked: Tensor) -> float:
    return int(marked.sum()) / max(1, marked.numel())


def _floating(
    expected: Expected, native: Tensor, exact: Tensor, got: Tensor, extra: dict[str, Tensor], before: Tensor | None
) -> Gate:
    found = reached(expected, native, exact, got, {name: extra[name] for name in extra.keys() & {"noise", "slack"}})
    if found.ok:
        return Gate(True, found.ratio, found.max_abs_error, found.note)
    words = explain(exact, got, found.wrong, uneven=found, before=before, operands=extra.get("operands"))
    if expected.bits is not None:
        words = say_bits(bits_of(exact, got), expected.precision) or words
    elif expected.exact_operands:
        words = say_narrow_sum(exact, got, found.wrong) or words
    misses = as_rows(found.wrong) | found.uneven[:, None]
    return Gate(False, found.ratio, found.max_abs_error, words, _share(misses))
