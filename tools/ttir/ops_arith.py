"""arith.*: constants, integer and float arithmetic, comparisons and conversions.

Integers are held signed and wrap like the hardware's; i1 is held as bool. f16 and bf16 results are rounded after every
op, f32 arithmetic is done in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tools.ttir.errors import TtirSyntaxError, UnsupportedOp
from tools.ttir.floats import decode, encode, round_to
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Literal, Op
from tools.ttir.types import Array, Type, bit_width, scalar_name, stored_dtype
from tools.ttir.values import constant, poison

Binary = Callable[[Array, Array], Array]


def unsigned(value: Array) -> Array:
    return value if value.dtype == np.bool_ else value.view(f"u{value.dtype.itemsize}")


def _signed(value: Array) -> Array:
    """i1 as the signed number it is (true is -1); other integers are held signed already."""
    return -value.astype(np.int8) if value.dtype == np.bool_ else value


def result_type(op: Op) -> Type:
    return (op.outs or op.ins)[-1]


def float_op(function: Callable[..., Array]) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> Array:
        return round_to(function(*args), result_type(op))

    return handler


def int_op(function: Binary, on_i1: Binary | None = None) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> Array:
        if args[0].dtype == np.bool_ and on_i1:
            return on_i1(args[0], args[1])
        return function(args[0], args[1])

    return handler


def unsigned_op(function: Binary) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> Array:
        return function(unsigned(args[0]), unsigned(args[1])).view(args[0].dtype)

    return handler


def _divsi(a: Array, b: Array) -> Array:
    # numpy floors, the hardware truncates: they differ where the remainder is not 0 and the signs differ
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & ((a < 0) != (b < 0))
    found: Array = quotient + inexact.astype(quotient.dtype)
    return found


def _ceildiv(a: Array, b: Array) -> Array:
    found: Array = -np.floor_divide(-a, b)
    return found


def _shift_left(a: Array, b: Array) -> Array:
    # a shift by the width or more is poison in LLVM; PTX shifts everything out
    bits = a.dtype.itemsize * 8
    found: Array = np.where(np.greater_equal(unsigned(b), bits), a.dtype.type(0), np.left_shift(a, b % bits))
    return found


def _shift_right(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    top = np.greater_equal(unsigned(b), bits)
    filler = (a < 0) * a.dtype.type(-1) if a.dtype.kind == "i" else a.dtype.type(0)
    found: Array = np.where(top, filler, np.right_shift(a, b % bits))
    return found


COMPARE: dict[str, Binary] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def cmpi(frame: Frame, op: Op, args: list[Array]) -> Array:
    predicate = op.words[0]
    if predicate in ("eq", "ne"):
        return COMPARE[predicate](args[0], args[1])
    view = unsigned if predicate[0] == "u" else _signed
    return COMPARE[predicate[1:]](view(args[0]), view(args[1]))


def cmpf(frame: Frame, op: Op, args: list[Array]) -> Array:
    """Ordered predicates are false on NaN, unordered ones true."""
    a, b = args
    predicate = op.words[0]
    if predicate in ("true", "false"):
        return np.full((1,) * a.ndim, predicate == "true")
    if predicate in ("ord", "uno"):
        nan = np.isnan(a) | np.isnan(b)
        return nan if predicate == "uno" else ~nan
    if predicate == "one":
        return (a < b) | (a > b)
    found = COMPARE[predicate[1:]](a, b)
    return found | np.isnan(a) | np.isnan(b) if predicate[0] == "u" and predicate != "une" else found


def select(frame: Frame, op: Op, args: list[Array]) -> Array:
    condition, yes, no = args
    # a scalar condition may choose between tensors
    return np.where(condition.reshape(condition.shape + (1,) * (yes.ndim - condition.ndim)), yes, no)


def constant_op(frame: Frame, op: Op, args: list[Array]) -> Array:
    if not isinstance(op.cache, np.ndarray):
        literal = op.attrs["value"]
        if not isinstance(literal, Literal):
            raise UnsupportedOp(op.name, f"value {literal!r}")
        op.cache = constant(literal, op.ins[0])
    return op.cache


def extsi(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _signed(args[0]).astype(stored_dtype(op.outs[0]))


def extui(frame: Frame, op: Op, args: list[Array]) -> Array:
    return unsigned(args[0]).astype(stored_dtype(op.outs[0]))


def trunci(frame: Frame, op: Op, args: list[Array]) -> Array:
    if scalar_name(op.outs[0]) == "i1":
        return (args[0] & 1).astype(np.bool_)
    return args[0].astype(stored_dtype(op.outs[0]))


def sitofp(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _from_int(_signed(args[0]), op.outs[0])


def uitofp(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _from_int(unsigned(args[0]), op.outs[0])


def _from_int(value: Array, kind: Type) -> Array:
    if scalar_name(kind) in ("f32", "f64"):
        return value.astype(stored_dtype(kind))
    return round_to(value.astype(np.float64), kind)


def float_to_int(value: Array, dtype: np.dtype[np.signedinteger], signed: bool) -> Array:
    """Truncation that saturates at 32 or 64 bits and maps NaN to 0, like PTX `cvt.rzi`; narrower types then wrap."""
    bits = max(32, dtype.itemsize * 8)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    wide = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    # the largest double below `high` keeps the cast itself in range; what was clipped becomes the maximum exactly
    inside = np.clip(wide, low, np.nextafter(float(high), 0)).astype(f"{'i' if signed else 'u'}{bits // 8}")
    return np.where(wide >= high, inside.dtype.type(high - 1), inside).view(f"i{bits // 8}").astype(dtype)


def fptosi(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _to_int(args[0], op.outs[0], True)


def fptoui(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _to_int(args[0], op.outs[0], False)


def _to_int(value: Array, kind: Type, signed: bool) -> Array:
    if scalar_name(kind) == "i1":
        return value.astype(np.bool_)
    return float_to_int(value, stored_dtype(kind), signed)


def convert_float(frame: Frame, op: Op, args: list[Array]) -> Array:
    """arith.extf, arith.truncf and tt.fp_to_fp."""
    rounding = str(op.attrs.get("rounding", "rtne"))
    toward_zero = rounding in ("rtz", "toward_zero") or "toward_zero" in op.words
    if not toward_zero and rounding != "rtne":
        raise UnsupportedOp(op.name, f"rounding {rounding}")
    return round_to(args[0], op.outs[0], toward_zero)


def bitcast(frame: Frame, op: Op, args: list[Array]) -> Array:
    source, target = op.ins[0], op.outs[0]
    if bit_width(source) != bit_width(target):
        raise TtirSyntaxError(f"line {op.line}: bitcast between different widths")
    return decode(encode(args[0], source), target)


def index_cast(frame: Frame, op: Op, args: list[Array]) -> Array:
    return _signed(args[0]).astype(stored_dtype(op.outs[0]))


def poison_op(frame: Frame, op: Op, args: list[Array]) -> Array:
    return poison(result_type(op))


def _extended(signed: bool) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
        return [args[0] * args[1], multiply_high(args[0], args[1], signed)]

    return handler


def multiply_high(a: Array, b: Array, signed: bool) -> Array:
    """The upper half of the double-width product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = f"{'i' if signed else 'u'}8"
        left, right = (a, b) if signed else (unsigned(a), unsigned(b))
        product: Array = left.astype(wide) * right.astype(wide)
        found: Array = np.right_shift(product, product.dtype.type(bits)).astype(a.dtype)
        return found
    high = _high64(unsigned(a), unsigned(b)).view(np.int64)
    return np.subtract(high, np.where(a < 0, b, 0) + np.where(b < 0, a, 0)) if signed else high


def _high64(a: Array, b: Array) -> Array:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & mask, b >> half, b & mask
    cross = (a_low * b_low >> half) + (a_high * b_low & mask) + a_low * b_high
    found: Array = a_high * b_high + (a_high * b_low >> half) + (cross >> half)
    return found


def addui_extended(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    total = args[0] + args[1]
    return [total, unsigned(total) < unsigned(args[0])]


_FLOAT: dict[str, Callable[..., Array]] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "remf": np.fmod,
    "negf": np.negative,
    "maximumf": np.maximum,
    "minimumf": np.minimum,
    "maxnumf": np.fmax,
    "minnumf": np.fmin,
}

OPS: dict[str, Handler] = {f"arith.{name}": float_op(function) for name, function in _FLOAT.items()}
OPS |= {
    "arith.constant": constant_op,
    "arith.addi": int_op(np.add, np.logical_xor),
    "arith.subi": int_op(np.subtract, np.logical_xor),
    "arith.muli": int_op(np.multiply, np.logical_and),
    "arith.divsi": int_op(_divsi),
    "arith.remsi": int_op(np.fmod),
    "arith.floordivsi": int_op(np.floor_divide),
    "arith.ceildivsi": int_op(_ceildiv),
    "arith.divui": unsigned_op(np.floor_divide),
    "arith.remui": unsigned_op(np.remainder),
    "arith.ceildivui": unsigned_op(lambda a, b: (a // b) + (a % b != 0).astype(a.dtype)),
    "arith.andi": int_op(np.bitwise_and),
    "arith.ori": int_op(np.bitwise_or),
    "arith.xori": int_op(np.bitwise_xor),
    "arith.shli": int_op(_shift_left),
    "arith.shrsi": int_op(_shift_right),
    "arith.shrui": unsigned_op(_shift_right),
    # i1 is signed -1 or 0, so its signed maximum is `and`
    "arith.maxsi": int_op(np.maximum, np.logical_and),
    "arith.minsi": int_op(np.minimum, np.logical_or),
    "arith.maxui": unsigned_op(np.maximum),
    "arith.minui": unsigned_op(np.minimum),
    "arith.cmpi": cmpi,
    "arith.cmpf": cmpf,
    "arith.select": select,
    "arith.extsi": extsi,
    "arith.extui": extui,
    "arith.trunci": trunci,
    "arith.sitofp": sitofp,
    "arith.uitofp": uitofp,
    "arith.fptosi": fptosi,
    "arith.fptoui": fptoui,
    "arith.extf": convert_float,
    "arith.truncf": convert_float,
    "tt.fp_to_fp": convert_float,
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
    "arith.index_cast": index_cast,
    "arith.index_castui": extui,
    "arith.mulsi_extended": _extended(True),
    "arith.mului_extended": _extended(False),
    "arith.addui_extended": addui_extended,
    "ub.poison": poison_op,
}
