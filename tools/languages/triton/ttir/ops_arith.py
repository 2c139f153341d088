"""arith.* and math.*: constants, arithmetic, comparisons, conversions, libdevice calls.

Integers are held signed and wrap like the hardware's; i1 is held as bool. f16 and bf16 results are rounded after every
op, f32 arithmetic is done in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from kerneltune.tools.languages.triton.ttir.frame import Frame, Handler
from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Literal,
    Op,
    TtirSyntaxError,
    Type,
    UnsupportedOp,
    bit_width,
    is_float,
    scalar_name,
    stored_dtype,
)
from kerneltune.tools.languages.triton.ttir.values import constant, decode, encode, poison, round_to

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

ARITH_OPS: dict[str, Handler] = {f"arith.{name}": float_op(function) for name, function in _FLOAT.items()}
ARITH_OPS |= {
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


Function = Callable[..., Array]


def _torch(name: str) -> Function:
    """A special function that numpy lacks, from torch (imported only when a kernel needs it)."""

    def function(value: Array) -> Array:
        import torch

        found: Array = getattr(torch.special, name)(torch.from_numpy(np.array(value))).numpy()
        return found

    return function


def _rsqrt(value: Array) -> Array:
    return np.reciprocal(np.sqrt(value))


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Multiply and add with one rounding: the product of two float32 numbers is exact in float64."""
    wide: Array = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return wide.astype(a.dtype)


def _round_half_away(value: Array) -> Array:
    size = np.abs(value)
    rounded: Array = np.floor(size) + (size - np.floor(size) >= 0.5)
    signed: Array = np.copysign(rounded, value)
    return signed.astype(value.dtype)


def _popcount(value: Array) -> Array:
    return np.bitwise_count(unsigned(value)).astype(value.dtype)


def _leading_zeros(value: Array) -> Array:
    width = value.dtype.itemsize * 8
    left, count = unsigned(value), np.zeros(value.shape, value.dtype)
    for step in (32, 16, 8, 4, 2, 1):
        if step < width:
            empty = left < left.dtype.type(1) << left.dtype.type(width - step)
            count += empty * value.dtype.type(step)
            left = np.where(empty, left << left.dtype.type(step), left)
    total: Array = np.add(count, left == 0)
    return total


def _trailing_zeros(value: Array) -> Array:
    return _popcount((value & -value) - value.dtype.type(1))


def _sincospi(function: Function) -> Function:
    return lambda value: function(value * value.dtype.type(np.pi))


FLOAT: dict[str, Function] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "cbrt": np.cbrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _torch("erf"),
    "erfc": _torch("erfc"),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": _round_half_away,
    "roundeven": np.rint,
    "fma": _fma,
    "absf": np.abs,
    "powf": np.power,
    "copysign": np.copysign,
}

INT: dict[str, Function] = {
    "absi": np.abs,
    "ctpop": _popcount,
    "ctlz": _leading_zeros,
    "cttz": _trailing_zeros,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}

# libdevice has the above, some under other names, and more
_LIBDEVICE: dict[str, Function] = dict(FLOAT)
_LIBDEVICE |= {
    "fabs": np.abs,
    "pow": np.power,
    "powi": np.power,
    "exp10": lambda value: np.power(value.dtype.type(10), value),
    "rint": np.rint,
    "nearbyint": np.rint,
    "fmod": np.fmod,
    "remainder": lambda a, b: a - b * np.rint(a / b),
    "fmin": np.fmin,
    "fmax": np.fmax,
    "fdim": lambda a, b: np.where(a > b, a - b, a.dtype.type(0)),
    "hypot": np.hypot,
    "rcbrt": lambda value: np.reciprocal(np.cbrt(value)),
    "sinpi": _sincospi(np.sin),
    "cospi": _sincospi(np.cos),
    "erfinv": _torch("erfinv"),
    "lgamma": _torch("gammaln"),
    "tgamma": lambda value: np.exp(_torch("gammaln")(value)),
    "normcdf": _torch("ndtr"),
    "j0": _torch("bessel_j0"),
    "j1": _torch("bessel_j1"),
    "y0": _torch("bessel_y0"),
    "y1": _torch("bessel_y1"),
    "cyl_bessel_i0": _torch("i0"),
    "cyl_bessel_i1": _torch("i1"),
    "saturate": lambda value: np.clip(np.nan_to_num(value, nan=0.0), 0, 1),
    "nextafter": np.nextafter,
    "ldexp": np.ldexp,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "signbit": np.signbit,
    "ilogb": lambda value: np.frexp(value)[1] - 1,
    "logb": lambda value: np.frexp(value)[1] - 1,
}

_EXACT: dict[str, Function] = {
    "abs": np.abs,
    "llabs": np.abs,
    "popc": _popcount,
    "popcll": _popcount,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "mulhi": lambda a, b: multiply_high(a, b, True),
    "umulhi": lambda a, b: multiply_high(a, b, False),
    "mul64hi": lambda a, b: multiply_high(a, b, True),
    "umul64hi": lambda a, b: multiply_high(a, b, False),
    "min": np.minimum,
    "max": np.maximum,
    "float_as_int": lambda value: value.view(np.int32),
    "int_as_float": lambda value: value.view(np.float32),
    "double_as_longlong": lambda value: value.view(np.int64),
    "longlong_as_double": lambda value: value.view(np.float64),
    "frcp_rn": np.reciprocal,
    "fsqrt_rn": np.sqrt,
    "frsqrt_rn": _rsqrt,
    "fadd_rn": np.add,
    "fsub_rn": np.subtract,
    "fmul_rn": np.multiply,
    "fdiv_rn": np.divide,
    "fmaf_rn": _fma,
    "fma_rn": _fma,
    "dadd_rn": np.add,
    "dmul_rn": np.multiply,
    "ddiv_rn": np.divide,
    "dsqrt_rn": np.sqrt,
    "fast_fdividef": np.divide,
}
# float to integer: libdevice spells the rounding out
_TO_INT: dict[str, Function] = {"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}
_ROUNDED_TO_INT: dict[str, Function] = {
    "lrint": np.rint,
    "llrint": np.rint,
    "lround": _round_half_away,
    "llround": _round_half_away,
}
_CONVERT = re.compile(r"(?:float|double)2(?:int|uint|ll|ull)_(rn|rz|ru|rd)\Z")


def libdevice(symbol: str) -> Function:
    name = symbol.removeprefix("__nv_")
    for table, key in ((_EXACT, name), (_LIBDEVICE, name), (_LIBDEVICE, name.removeprefix("fast_").removesuffix("f"))):
        if key in table:
            return table[key]
    if found := _CONVERT.match(name):
        return _TO_INT[found[1]]
    if (rounder := _ROUNDED_TO_INT.get(name.removesuffix("f"))) is not None:
        return rounder
    raise UnsupportedOp("tt.extern_elementwise", f"symbol {symbol}")


def extern_elementwise(frame: Frame, op: Op, args: list[Array]) -> Array:
    symbol = str(op.attrs.get("symbol"))
    if not symbol.startswith("__nv_"):
        raise UnsupportedOp(op.name, f"symbol {symbol}")
    return _as_result(libdevice(symbol)(*args), op, "2u" not in symbol)


def _as_result(found: Array, op: Op, signed: bool = True) -> Array:
    kind = result_type(op)
    if is_float(kind):
        return round_to(found, kind)
    if found.dtype.kind == "f":
        return float_to_int(found, stored_dtype(kind), signed)
    return found.astype(stored_dtype(kind), copy=False)


def clampf(frame: Frame, op: Op, args: list[Array]) -> Array:
    value, low, high = args
    if op.attrs.get("propagateNan") == "all":
        return np.minimum(np.maximum(value, low), high)
    return np.fmin(np.fmax(value, low), high)


def mulhiui(frame: Frame, op: Op, args: list[Array]) -> Array:
    return multiply_high(args[0], args[1], False)


def _int_handler(function: Function) -> Handler:
    return lambda frame, op, args: function(*args)


MATH_OPS: dict[str, Handler] = {f"math.{name}": float_op(function) for name, function in FLOAT.items()}
MATH_OPS |= {f"math.{name}": _int_handler(function) for name, function in INT.items()}
MATH_OPS |= {
    "tt.clampf": clampf,
    "tt.precise_sqrt": float_op(np.sqrt),
    "tt.precise_divf": float_op(np.divide),
    "tt.mulhiui": mulhiui,
    "tt.extern_elementwise": extern_elementwise,
}
