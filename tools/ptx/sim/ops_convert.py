"""cvt: between all types, with PTX's rounding."""

from collections.abc import Callable

import numpy as np

from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import base_of, bits_of, is_float, is_signed, parts_of
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.operands import Ins, Run
from tools.ptx.sim.rounding import flush, nearest, saturate, to_format
from tools.ttir.ir import Array

Values = Callable[[Array], Array]
_MODES = ("rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi")
_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(ins: Ins) -> Run:
    """cvt of every kind."""
    if len(ins.kinds) != 2:
        raise unsupported(ins.ins, "cvt takes two types")
    target, source = ins.kinds
    mode = ins.one_of(_MODES)
    ftz, sat, relu, finite = ins.flag("ftz"), ins.flag("sat"), ins.flag("relu"), ins.flag("satfinite")
    ins.understood()
    change = _Change(target, source, mode, sat=sat, finite=finite or target in ("e4m3x2", "e5m2x2"))

    def whole(x: Array) -> Array:
        if ftz and x.dtype == np.float32:
            x = flush(x)
        out = change(x)
        if ftz and base_of(target) == "f32":
            out = flush(out)
        return np.where((out > 0) | np.isnan(out), out, out.dtype.type(0)) if relu else out

    return _packing(ins, target, source, whole) if len(ins.operands) == 3 else _single(ins, target, source, whole)


class _Change:
    """Values of one type to values of another."""

    def __init__(self, target: str, source: str, mode: str, *, sat: bool, finite: bool) -> None:
        self.target, self.source, self.mode, self.sat, self.finite = base_of(target), base_of(source), mode, sat, finite

    def __call__(self, x: Array) -> Array:
        if is_float(self.source):
            return self._to_float(x) if is_float(self.target) else self._to_whole(x)
        return self._number(x) if is_float(self.target) else self._clamp(x)

    def _to_float(self, x: Array) -> Array:
        if self.mode in _WHOLE:
            x = _WHOLE[self.mode](x)
        mode = self.mode if self.mode in ("rz", "rm", "rp", "rna") else "rn"
        if bits_of(self.target) > bits_of(self.source):
            out = x.astype(np.float64 if self.target == "f64" else np.float16 if self.target == "f16" else np.float32)
        elif self.target == "bf16" and mode == "rn" and not self.finite and x.dtype == np.float32:
            out = nearest(x, "bf16")
        else:
            out = to_format(x.astype(np.float64), self.target, mode, satfinite=self.finite)
        return saturate(out) if self.sat else out

    def _to_whole(self, x: Array) -> Array:
        """Clamped to what the type holds; NaN is 0, or the lowest bit pattern with only the top bit for 64 bits."""
        bits, signed = bits_of(self.target), is_signed(self.target)
        whole = _WHOLE.get(self.mode, np.trunc)(x.astype(np.float64))
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        over, under, nan = whole >= float(high), whole <= float(low), np.isnan(whole)
        inside = np.where(over | under | nan, 0.0, whole)
        kind = np.int64 if signed else np.uint64
        out = np.where(over, kind(high), np.where(under, kind(low), inside.astype(kind)))
        top = bits == 64 or self.source == "f64"
        return np.where(nan, kind(low) if signed and top else kind(2 ** (bits - 1) if top else 0), out)

    def _number(self, x: Array) -> Array:
        if self.target in ("f32", "f64") and self.mode in ("rn", ""):
            out = x.astype(f"f{bits_of(self.target) // 8}")
        else:
            wide = x.astype(np.int64) if is_signed(self.source) else x.astype(np.uint64)
            out = to_format(_odd(wide), self.target, self.mode or "rn")
        return saturate(out) if self.sat else out

    def _clamp(self, x: Array) -> Array:
        wide = x.astype(np.int64) if is_signed(self.source) else x.astype(np.uint64)
        if not self.sat:
            return wide.view(np.uint64)
        bits, signed = bits_of(self.target), is_signed(self.target)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if wide.dtype == np.uint64:
            return np.minimum(wide, np.uint64(high))
        return np.clip(wide, low, min(high, 2**63 - 1)).view(np.uint64)


def _odd(x: Array) -> Array:
    """Whole numbers as float64, rounded to odd where they have more than 53 bits."""
    near = x.astype(np.float64)
    large = np.abs(near) >= 2.0**53
    if not large.any():
        return near
    sticky = (x & x.dtype.type(0x7FF)) != 0
    cut = x >> x.dtype.type(11) << x.dtype.type(11) | sticky.astype(x.dtype) << x.dtype.type(11)
    return np.where(large, cut.astype(np.float64), near)


def _single(ins: Ins, target: str, source: str, change: Values) -> Run:
    ins.expect(2)
    if parts_of(target) != parts_of(source):
        raise unsupported(ins.ins, "cvt between a packed type and another")
    read, write = ins.value(ins.operands[1], source), ins.write(ins.operands[0], target)
    return lambda m: write(m, change(read(m)))


def _packing(ins: Ins, target: str, source: str, change: Values) -> Run:
    """d = {a above, b below}."""
    if parts_of(target) != 2 or parts_of(source) != 1:
        raise unsupported(ins.ins, "cvt of two operands to one number")
    above, below = (ins.value(operand, source) for operand in ins.operands[1:])
    write = ins.write(ins.operands[0], target)

    def run(m: Machine) -> None:
        write(m, change(np.stack(np.broadcast_arrays(below(m), above(m)), axis=1)))

    return run


OPS = {"cvt": convert}
