"""Comparisons and choices: setp, set, selp, slct."""

from collections.abc import Callable

import numpy as np

from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import bits_of, is_float, parts_of
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.operands import Ins, Read, Run
from tools.ptx.sim.rounding import flush
from tools.ttir.ir import Array

Test = Callable[[Array, Array], Array]
_ORDERED: dict[str, Test] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_BOOLS: dict[str, Test] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_TESTS = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _test(name: str, *, floats: bool) -> Test:
    if name == "nan":
        return _unordered
    if name == "num":
        return lambda a, b: ~_unordered(a, b)
    if name == "ne" and floats:  # ordered: false where there is a NaN
        return lambda a, b: np.not_equal(a, b) & ~_unordered(a, b)
    if name in _ORDERED:
        return _ORDERED[name]
    plain = _ORDERED[name[:2]]
    return lambda a, b: plain(a, b) | _unordered(a, b)


def _comparison(ins: Ins, kind: str) -> Callable[[Machine], Array]:
    """The truth of `a op b`, combined with a predicate where the modifier says so."""
    name = ins.one_of(_TESTS)
    if not name:
        raise unsupported(ins.ins, "no comparison that is known")
    combine = ins.one_of(tuple(_BOOLS))
    ftz = ins.flag("ftz")
    ins.understood()
    ins.expect(4 if combine else 3)
    test = _test(name, floats=is_float(kind))
    a, b = ins.value(ins.operands[1], kind), ins.value(ins.operands[2], kind)
    if ftz:
        a, b = _flushed(a), _flushed(b)
    if not combine:
        return lambda m: test(a(m), b(m))
    third, both = ins.bits(ins.operands[3], "pred"), _BOOLS[combine]
    return lambda m: both(test(a(m), b(m)), third(m))


def _flushed(reader: Read) -> Read:
    return lambda m: flush(reader(m))


def set_predicate(ins: Ins) -> Run:
    """setp: p = a op b, and q = its opposite; for packed types p and q of the two parts."""
    first, second = ins.results()
    kind = ins.kind
    negated = len(ins.operands) == 4 and second is not None
    if negated:
        raise unsupported(ins.ins, "two results with a third operand")
    compare = _comparison(ins, kind)
    p = ins.write_bits(first, "pred")
    q = None if second is None else ins.write_bits(second, "pred")
    packed = parts_of(kind) == 2

    def run(m: Machine) -> None:
        truth = compare(m)
        p(m, truth[:, 0] if packed else truth)
        if q is not None:
            q(m, truth[:, 1] if packed else ~truth)

    return run


def set_value(ins: Ins) -> Run:
    """set: all ones, or 1.0."""
    result, kind = ins.kinds[0], ins.kinds[1]
    if parts_of(kind) == 2 or result not in ("u32", "s32", "f32"):
        raise unsupported(ins.ins, f"set of {result} by {kind}")
    compare = _comparison(ins, kind)
    write = ins.write_bits(ins.operands[0], result)
    yes = np.uint32(0x3F800000 if result == "f32" else 0xFFFFFFFF)
    return lambda m: write(m, np.where(compare(m), yes, np.uint32(0)))


def select(ins: Ins) -> Run:
    """selp: one of two by a predicate."""
    ins.expect(4)
    ins.understood()
    kind = ins.kind
    a, b = ins.bits(ins.operands[1], kind), ins.bits(ins.operands[2], kind)
    p, write = ins.bits(ins.operands[3], "pred"), ins.write_bits(ins.operands[0], kind)
    return lambda m: write(m, np.where(p(m), a(m), b(m)))


def select_by_sign(ins: Ins) -> Run:
    """slct: one of two by the sign of a third."""
    ins.expect(4)
    ftz = ins.flag("ftz")
    ins.understood()
    kind, by = ins.kinds
    a, b = ins.bits(ins.operands[1], kind), ins.bits(ins.operands[2], kind)
    c, write = ins.value(ins.operands[3], by), ins.write_bits(ins.operands[0], kind)
    if ftz:
        c = _flushed(c)
    return lambda m: write(m, np.where(c(m) >= 0, a(m), b(m)))


def test_property(ins: Ins) -> Run:
    """testp: finite, infinite, number, notanumber, normal, subnormal."""
    ins.expect(2)
    what, kind = ins.one_of(("finite", "infinite", "number", "notanumber", "normal", "subnormal")), ins.kind
    ins.understood()
    a, write = ins.value(ins.operands[1], kind), ins.write_bits(ins.operands[0], "pred")
    smallest = 2.0 ** (-126 if bits_of(kind) == 32 else -1022)
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= smallest),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < smallest),
    }
    return lambda m: write(m, tests[what](a(m)))


OPS = {"setp": set_predicate, "set": set_value, "selp": select, "slct": select_by_sign, "testp": test_property}
