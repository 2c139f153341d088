"""Arithmetic on floats of every width, plain and packed.

Sums, products, fused products, quotients and roots are rounded once, as the modifier says (fma.f64 and the directed
modes of f64: about). The `.approx` and `.full` functions are computed in float64 and rounded once: a GPU's differ
from that by the few last bits that PTX allows. NaNs have other payloads than on a GPU.
"""

from collections.abc import Callable

import numpy as np

from tools.ptx.sim.formats import base_of
from tools.ptx.sim.operands import Ins, Run
from tools.ptx.sim.rounding import flush, fma_f64, nearest, odd_fma, odd_sum, saturate, to_format
from tools.ttir.ir import Array

Fn = Callable[..., Array]
_MODES = ("rn", "rz", "rm", "rp")


class Style:
    """How operands are taken and the result is given: .ftz, .sat, .relu, rounding."""

    def __init__(self, ins: Ins) -> None:
        self.kind = ins.kind
        self.base = base_of(self.kind)
        self.mode = ins.one_of(_MODES, "rn")
        self.ftz = ins.flag("ftz") and self.base == "f32"
        self.sat = ins.flag("sat")
        self.relu = ins.flag("relu")

    def build(self, ins: Ins, fn: Fn, count: int) -> Run:
        """d = fn(operands), where fn gives values that the format holds."""
        ins.expect(1 + count)
        ins.understood()
        readers = [ins.value(operand, self.kind) for operand in ins.operands[1:]]
        write = ins.write(ins.operands[0], self.kind)
        if not (self.ftz or self.sat or self.relu):
            if count == 2:
                a, b = readers
                return lambda m: write(m, fn(a(m), b(m)))
            return lambda m: write(m, fn(*(reader(m) for reader in readers)))
        return lambda m: write(m, self._finish(fn(*(self._start(reader(m)) for reader in readers))))

    def _start(self, x: Array) -> Array:
        return flush(x) if self.ftz else x

    def _finish(self, x: Array) -> Array:
        if self.ftz:
            x = flush(x)
        if self.sat:
            x = saturate(x)
        return np.where(x > 0, x, np.where(np.isnan(x), x, x.dtype.type(0))) if self.relu else x

    def rounded(self, plain: Fn, exact: Fn) -> Fn:
        """`plain` rounds to nearest in the operands' own type (float32 for bf16); `exact` is in float64."""
        kind, mode = self.base, self.mode
        if mode != "rn":
            return lambda *xs: to_format(exact(*(x.astype(np.float64) for x in xs)), kind, mode)
        if kind == "bf16":
            return lambda *xs: nearest(plain(*xs), kind)
        return plain


_EXACT: dict[str, Fn] = {
    "add": odd_sum,
    "sub": lambda a, b: odd_sum(a, -b),
    "mul": lambda a, b: odd_fma(a, b, np.zeros(1)),
    "div": np.divide,  # never so near to a number of the format that float64 would hide on which side it lies
}
_PLAIN: dict[str, Fn] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def arithmetic(ins: Ins) -> Run:
    """add, sub, mul, div."""
    style = Style(ins)
    ins.ignore("approx", "full")
    return style.build(ins, style.rounded(_PLAIN[ins.opcode], _EXACT[ins.opcode]), 2)


def fused(ins: Ins) -> Run:
    """fma, and mad of floats."""
    style = Style(ins)
    kind, mode = style.base, style.mode
    if kind == "f64":
        return style.build(ins, fma_f64, 3)
    return style.build(ins, lambda a, b, c: to_format(odd_fma(a, b, c), kind, mode), 3)


def extreme(ins: Ins) -> Run:
    """min and max: of a number and a NaN the number, but .NaN; -0 is below +0. .xorsign.abs: of magnitudes, with the
    product's sign."""
    style = Style(ins)
    keeps_nan = ins.flag("NaN")
    crossed = ins.flag("xorsign", "abs")
    least = ins.opcode == "min"
    fn = (np.minimum if least else np.maximum) if keeps_nan else (np.fmin if least else np.fmax)

    def run(*xs: Array) -> Array:
        if crossed:
            signs = np.signbit(xs[0]) != np.signbit(xs[1])
            found = fn(np.abs(xs[0]), np.abs(xs[1]))
            return np.where(signs, -found, found)
        found = fn(xs[0], xs[1])
        for x in xs[2:]:
            found = fn(found, x)
        zero = found == 0
        if zero.any():
            negative = [np.signbit(x) & (x == 0) for x in xs]
            minus = (
                np.logical_or.reduce(np.broadcast_arrays(*negative))
                if least
                else np.logical_and.reduce(np.broadcast_arrays(*negative))
            )
            found = np.where(zero, np.where(minus, found.dtype.type(-0.0), found.dtype.type(0)), found)
        return found

    return style.build(ins, run, len(ins.operands) - 1)


def sign(ins: Ins) -> Run:
    """neg, abs."""
    style = Style(ins)
    return style.build(ins, np.negative if ins.opcode == "neg" else np.abs, 1)


def copy_sign(ins: Ins) -> Run:
    """copysign d, a, b: |b| with the sign of a."""
    style = Style(ins)
    return style.build(ins, lambda a, b: np.copysign(b, a), 2)


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def function(ins: Ins) -> Run:
    """rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh: through float64, rounded once."""
    style = Style(ins)
    ins.ignore("approx")
    fn, kind, mode = _FUNCTIONS[ins.opcode], style.base, style.mode

    def run(x: Array) -> Array:
        wide = fn(x.astype(np.float64))
        return nearest(wide, kind) if mode == "rn" else to_format(wide, kind, mode)

    return style.build(ins, run, 1)


OPS = {
    **dict.fromkeys(_PLAIN, arithmetic), **dict.fromkeys(_FUNCTIONS, function),
    "fma": fused, "mad": fused, "min": extreme, "max": extreme, "neg": sign, "abs": sign, "copysign": copy_sign,
}  # fmt: skip
