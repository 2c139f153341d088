"""math.*, the float helpers of tt.*, and elementwise calls of libdevice functions or of single PTX instructions."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tools.ttir.errors import UnsupportedOp
from tools.ttir.floats import round_to
from tools.ttir.frame import Frame, Handler
from tools.ttir.ir import Op
from tools.ttir.ops_arith import float_op, float_to_int, multiply_high, result_type, unsigned
from tools.ttir.types import Array, is_float, stored_dtype

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
    """One rounding: the product of two float32 numbers is exact in float64."""
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

# PTX that kernels inline for speed: one instruction from one register to another
_PTX: dict[str, Function] = {
    "tanh": np.tanh,
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "rsqrt": _rsqrt,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
}
_PTX_LINE = re.compile(r"\s*(\w+)\.approx(?:\.ftz)?\.f32\s+\$0,\s*\$1\s*;?\s*\Z")
# Programmatic dependent launch (tl.extra.cuda.gdc_*): when a kernel may start. Launches run in order here anyway.
_DEPENDENT_LAUNCH = re.compile(r"griddepcontrol\.(?:wait|launch_dependents); // dummy \$0\Z")


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


def inline_asm(frame: Frame, op: Op, args: list[Array]) -> Array:
    text = op.words[0] if op.words else ""
    if _DEPENDENT_LAUNCH.match(text) and not args:
        return np.zeros(1, stored_dtype(result_type(op)))
    found = _PTX_LINE.match(text)
    if not found or found[1] not in _PTX or op.attrs.get("packed_element") != 1 or len(args) != 1:
        raise UnsupportedOp(op.name, text[:60])
    return _as_result(_PTX[found[1]](*args), op)


def clampf(frame: Frame, op: Op, args: list[Array]) -> Array:
    value, low, high = args
    if op.attrs.get("propagateNan") == "all":
        return np.minimum(np.maximum(value, low), high)
    return np.fmin(np.fmax(value, low), high)


def mulhiui(frame: Frame, op: Op, args: list[Array]) -> Array:
    return multiply_high(args[0], args[1], False)


def _int_handler(function: Function) -> Handler:
    return lambda frame, op, args: function(*args)


OPS: dict[str, Handler] = {f"math.{name}": float_op(function) for name, function in FLOAT.items()}
OPS |= {f"math.{name}": _int_handler(function) for name, function in INT.items()}
OPS |= {
    "tt.clampf": clampf,
    "tt.precise_sqrt": float_op(np.sqrt),
    "tt.precise_divf": float_op(np.divide),
    "tt.mulhiui": mulhiui,
    "tt.extern_elementwise": extern_elementwise,
    "tt.elementwise_inline_asm": inline_asm,
}
