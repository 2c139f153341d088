"""arith.* and math.*: constants, arithmetic, comparisons, conversions, libdevice calls; inline assembly.

Integers are held signed and wrap like the hardware's; i1 is held as bool. f16 and bf16 results are rounded after every
op, f32 arithmetic is done in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from kerneltune.tools.languages.base import NotInterpreted, device_code
from kerneltune.tools.languages.triton.ttir.frame import Frame, Handler
from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Literal,
    Op,
    StepLimit,
    TtirSyntaxError,
    Type,
    UnsupportedOp,
    bit_width,
    is_float,
    raw_dtype,
    scalar_name,
    shape_of,
    stored_dtype,
)
from kerneltune.tools.languages.triton.ttir.memory import Pointer
from kerneltune.tools.languages.triton.ttir.values import (
    constant,
    decode,
    divide,
    encode,
    extreme,
    float_to_int,
    flush,
    fma_f64,
    leading_zeros,
    materialise,
    multiply_high,
    odd_fma,
    poison,
    round_to,
    saturate,
    shift,
    unsigned,
)
from kerneltune.tools.schema.plan import Kernel, Launch

Binary = Callable[[Array, Array], Array]


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


def _ceildiv(a: Array, b: Array) -> Array:
    found: Array = np.floor_divide(a, b) + (np.remainder(a, b) != 0)
    return found.astype(a.dtype)


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


def trunci(frame: Frame, op: Op, args: list[Array]) -> Array:
    if scalar_name(op.outs[0]) == "i1":
        return (args[0] & 1).astype(np.bool_)
    return args[0].astype(stored_dtype(op.outs[0]))


def _resized(view: Callable[[Array], Array]) -> Handler:
    return lambda frame, op, args: view(args[0]).astype(stored_dtype(op.outs[0]))


def _from_int(view: Callable[[Array], Array]) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> Array:
        wide = np.float32 if scalar_name(op.outs[0]) == "f32" else np.float64
        return round_to(view(args[0]).astype(wide), op.outs[0])

    return handler


def truncated(value: Array, kind: Type, signed: bool) -> Array:
    """Whole numbers, clamped to 32 or 64 bits like PTX's `cvt.rzi`; narrower types then wrap."""
    return float_to_int(value, max(32, bit_width(kind)), signed).astype(stored_dtype(kind))


def _to_int(signed: bool) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> Array:
        if scalar_name(op.outs[0]) == "i1":
            return args[0].astype(np.bool_)
        return truncated(args[0], op.outs[0], signed)

    return handler


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


def poison_op(frame: Frame, op: Op, args: list[Array]) -> Array:
    return poison(result_type(op))


def _extended(signed: bool) -> Handler:
    def handler(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
        return [args[0] * args[1], multiply_high(args[0], args[1], signed)]

    return handler


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
    "maximumf": partial(extreme, np.maximum),
    "minimumf": partial(extreme, np.minimum),
    "maxnumf": partial(extreme, np.fmax),
    "minnumf": partial(extreme, np.fmin),
}

ELEMENTWISE_OPS: dict[str, Handler] = {f"arith.{name}": float_op(function) for name, function in _FLOAT.items()}
ELEMENTWISE_OPS |= {
    "arith.constant": constant_op,
    "arith.addi": int_op(np.add, np.logical_xor),
    "arith.subi": int_op(np.subtract, np.logical_xor),
    "arith.muli": int_op(np.multiply, np.logical_and),
    "arith.divsi": int_op(divide),
    "arith.remsi": int_op(np.fmod),
    "arith.floordivsi": int_op(np.floor_divide),
    "arith.ceildivsi": int_op(_ceildiv),
    "arith.divui": unsigned_op(np.floor_divide),
    "arith.remui": unsigned_op(np.remainder),
    "arith.ceildivui": unsigned_op(lambda a, b: (a // b) + (a % b != 0).astype(a.dtype)),
    "arith.andi": int_op(np.bitwise_and),
    "arith.ori": int_op(np.bitwise_or),
    "arith.xori": int_op(np.bitwise_xor),
    "arith.shli": int_op(lambda a, b: shift(np.left_shift, a, unsigned(b))),
    "arith.shrsi": int_op(lambda a, b: shift(np.right_shift, a, unsigned(b))),
    "arith.shrui": unsigned_op(partial(shift, np.right_shift)),
    # i1 is signed -1 or 0, so its signed maximum is `and`
    "arith.maxsi": int_op(np.maximum, np.logical_and),
    "arith.minsi": int_op(np.minimum, np.logical_or),
    "arith.maxui": unsigned_op(np.maximum),
    "arith.minui": unsigned_op(np.minimum),
    "arith.cmpi": cmpi,
    "arith.cmpf": cmpf,
    "arith.select": select,
    "arith.extsi": _resized(_signed),
    "arith.extui": _resized(unsigned),
    "arith.trunci": trunci,
    "arith.sitofp": _from_int(_signed),
    "arith.uitofp": _from_int(unsigned),
    "arith.fptosi": _to_int(True),
    "arith.fptoui": _to_int(False),
    "arith.extf": convert_float,
    "arith.truncf": convert_float,
    "tt.fp_to_fp": convert_float,
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
    "arith.index_cast": _resized(_signed),
    "arith.index_castui": _resized(unsigned),
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


def _flushing(function: Function) -> Function:
    """Of float32, a subnormal number counts as zero: Triton has libdevice compiled so, and takes `sqrt.approx.ftz`. It
    shows where a function is not continuous there: the ceiling of 1e-40 is 0, the root of -1e-40 is -0."""

    def flushed(value: Array) -> Array:
        return function(flush(value) if value.dtype == np.float32 else value)

    return flushed


def _rsqrt(value: Array) -> Array:
    return np.reciprocal(np.sqrt(value))


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Multiply and add, to be rounded once more, which leaves it rounded once: see `odd_sum`."""
    return fma_f64(a, b, c) if a.dtype == np.float64 else odd_fma(a, b, c)


def _round_half_away(value: Array) -> Array:
    size = np.abs(value)
    rounded: Array = np.floor(size) + (size - np.floor(size) >= 0.5)
    signed: Array = np.copysign(rounded, value)
    return signed.astype(value.dtype)


def _popcount(value: Array) -> Array:
    return np.bitwise_count(unsigned(value)).astype(value.dtype)


def _trailing_zeros(value: Array) -> Array:
    return _popcount((value & -value) - value.dtype.type(1))


def _sincospi(function: Function) -> Function:
    """Of a whole turn's rest, which is exact: of a float32 above a million, pi times it is wrong by a radian."""
    return lambda value: function(np.fmod(value.astype(np.float64), 2) * np.pi)


def _tgamma(value: Array) -> Array:
    wide = value.astype(np.float64)
    below, size = np.floor(wide), np.exp(_torch("gammaln")(wide))
    signed = np.where((wide < 0) & (below % 2 != 0), -size, size)
    return np.where(wide == 0, np.copysign(np.inf, wide), np.where((wide < 0) & (below == wide), np.nan, signed))


def _logb(value: Array) -> Array:
    exponent = np.frexp(value)[1] - 1.0
    return np.where(value == 0, -np.inf, np.where(np.isfinite(value), exponent, np.abs(value)))


def _ilogb(value: Array) -> Array:
    return np.where(np.isnan(value), -np.inf, _logb(value))  # the lowest number


def _remainder(a: Array, b: Array) -> Array:
    """What is left of the nearest multiple, the even one of two: exact, as IEEE 754 has it."""
    size, step = np.abs(a), np.abs(b)
    rest, odd = np.fmod(size, step), np.fmod(size, step + step) >= step
    nearer = np.where((rest > step - rest) | ((rest == step - rest) & odd), rest - step, rest)
    return np.copysign(1, a).astype(a.dtype) * nearer


# what numpy has under the same name
_OF_NUMPY = """
exp exp2 expm1 log log2 log10 log1p cbrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh trunc
copysign
"""
FLOAT: dict[str, Function] = {name: getattr(np, name) for name in _OF_NUMPY.split()}
FLOAT |= {
    **{name: _flushing(getattr(np, name)) for name in ("floor", "ceil", "sqrt")},
    "rsqrt": _flushing(_rsqrt),
    "erf": _torch("erf"),
    "erfc": _torch("erfc"),
    "round": _round_half_away,
    "roundeven": np.rint,
    "fma": _fma,
    "absf": np.abs,
    "powf": np.power,
}

INT: dict[str, Function] = {
    "absi": np.abs,
    "ctpop": _popcount,
    "ctlz": leading_zeros,
    "cttz": _trailing_zeros,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}

# libdevice has the above, some under other names, and more
_MORE_OF_NUMPY = "rint fmod hypot nextafter ldexp isnan isinf signbit"
_LIBDEVICE: dict[str, Function] = FLOAT | {name: getattr(np, name) for name in _MORE_OF_NUMPY.split()}
_LIBDEVICE |= {
    "fmin": partial(extreme, np.fmin),
    "fmax": partial(extreme, np.fmax),
    "fabs": np.abs,
    "pow": np.power,
    "powi": np.power,
    "exp10": lambda value: np.power(value.dtype.type(10), value),
    "nearbyint": np.rint,
    "remainder": _remainder,
    "fdim": lambda a, b: np.where(a <= b, a.dtype.type(0), a - b),
    "rcbrt": lambda value: np.reciprocal(np.cbrt(value)),
    "sinpi": _sincospi(np.sin),
    "cospi": _sincospi(np.cos),
    "erfinv": _torch("erfinv"),
    "lgamma": _torch("gammaln"),
    "tgamma": _tgamma,
    "normcdf": _torch("ndtr"),
    **{name: _torch(f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")},
    "cyl_bessel_i0": _torch("i0"),
    "cyl_bessel_i1": _torch("i1"),
    "saturate": saturate,
    "finite": np.isfinite,
    "isfinited": np.isfinite,
    "ilogb": _ilogb,
    "logb": _logb,
}

_EXACT: dict[str, Function] = {
    "abs": np.abs,
    "llabs": np.abs,
    "popc": _popcount,
    "popcll": _popcount,
    "clz": leading_zeros,
    "clzll": leading_zeros,
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
        return truncated(found, kind, signed)
    return found.astype(stored_dtype(kind), copy=False)


def clampf(frame: Frame, op: Op, args: list[Array]) -> Array:
    value, low, high = args
    if op.attrs.get("propagateNan") == "all":
        return extreme(np.minimum, extreme(np.maximum, value, low), high)
    return extreme(np.fmin, extreme(np.fmax, value, low), high)


def mulhiui(frame: Frame, op: Op, args: list[Array]) -> Array:
    return multiply_high(args[0], args[1], False)


def _int_handler(function: Function) -> Handler:
    return lambda frame, op, args: function(*args)


ELEMENTWISE_OPS |= {f"math.{name}": float_op(function) for name, function in FLOAT.items()}
ELEMENTWISE_OPS |= {f"math.{name}": _int_handler(function) for name, function in INT.items()}
ELEMENTWISE_OPS |= {
    "tt.clampf": clampf,
    "tt.precise_sqrt": float_op(np.sqrt),
    "tt.precise_divf": float_op(np.divide),
    "tt.mulhiui": mulhiui,
    "tt.extern_elementwise": extern_elementwise,
}


# ---
# Inline assembly: a few instructions of PTX from registers to registers, for many elements at once.
#
# They are evaluated by the interpreter of PTX, as a kernel in which each thread loads the operands of one instance,
# runs the text and stores its results. A text that asks for more than registers (memory, other threads, where it runs)
# means something else there, so it is not evaluated.

# Programmatic dependent launch (tl.extra.cuda.gdc_*): when a kernel may start. Launches run in order here anyway.
_DEPENDENT_LAUNCH = re.compile(r"griddepcontrol\.(?:wait|launch_dependents); // dummy \$0\Z")
_BEYOND_REGISTERS = re.compile(
    r"(?<![\w.%$])(?:ld|ldu|st|atom|red|multimem|cp|bar|barrier|mbarrier|shfl|vote|match|activemask|redux|elect|w?mma|"
    r"wgmma|ldmatrix|stmatrix|tcgen05|call|prefetchu?|membar|fence|griddepcontrol|nanosleep|trap|brkpt|exit|ret|"
    r"setmaxnreg|discard|applypriority|createpolicy|mapa|getctarank|tex|tld4|suld|sust|sured|txq|suq)(?=[.\s;])"
    r"|%(?:tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|smid|nsmid|gridid|clock|globaltimer|lanemask|pm|envreg|cluster|"
    r"is_explicit|total_smem|aggr_smem|dynamic_smem|reserved_smem|current_graph)"
)
_PLACE = re.compile(r"\$(?:(\$)|(\d+)|\{(\d+)(?::\w+)?\})")
_REGISTERS = {"b": ("b8", 1), "h": ("b16", 2), "r": ("b32", 4), "f": ("f32", 4), "l": ("b64", 8), "d": ("f64", 8)}
_BLOCK = 128
_HEAD = ".version 8.7\n.target sm_90a\n.address_size 64"
_INDEX = """.reg .u32 %asm_i, %asm_n;
mov.u32 %asm_i, %ctaid.x; mov.u32 %asm_n, %ntid.x;
mul.lo.u32 %asm_i, %asm_i, %asm_n; mov.u32 %asm_n, %tid.x; add.u32 %asm_i, %asm_i, %asm_n;"""


def inline_asm(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    """Results of tt.elementwise_inline_asm, of every element or of as few as the operands differ in."""
    text = _text(op)
    if _DEPENDENT_LAUNCH.match(text) and not args:
        return [np.zeros(1, stored_dtype(op.outs[0]))]
    pack = op.attrs.get("packed_element")
    if _BEYOND_REGISTERS.search(text) or not args or not isinstance(pack, int) or not 1 <= pack <= 16:
        raise UnsupportedOp(op.name, text[:60])
    if pack > 1:  # elements beside each other share a register
        args = [materialise(value, shape_of(op.ins[0])) for value in args]
    whole = np.broadcast_shapes(*(value.shape for value in args))
    count = int(np.prod(whole, dtype=np.int64))
    threads = -(-count // (pack * _BLOCK)) * _BLOCK
    raw = [encode(np.broadcast_to(value, whole), kind) for value, kind in zip(args, op.ins, strict=True)]
    operands = [_padded(bits, threads * pack) for bits in raw]
    results = [np.zeros(threads * pack * raw_dtype(kind).itemsize, np.uint8) for kind in op.outs]
    registers = [_registers(raw_dtype(kind).itemsize, pack) for kind in (*op.outs, *op.ins)]
    kernel = _kernel(text, _constraints(op), registers, len(results))
    pointers = [Pointer(buffer, 0, f"operand {at}") for at, buffer in enumerate((*results, *operands))]
    try:
        device_code("ptx").interpret(kernel, (threads // _BLOCK, 1, 1), pointers, Launch(0, (1, 1, 1), ()))
    except NotInterpreted as error:
        if error.problem == "step_limit":
            raise StepLimit(f"{op.name}: {error}") from error
        raise UnsupportedOp(op.name, f"{text[:60]}: {error}") from error
    pairs = zip(results, op.outs, strict=True)
    return [decode(bits.view(raw_dtype(kind))[:count], kind).reshape(whole) for bits, kind in pairs]


def _text(op: Op) -> str:
    """The assembly as its author wrote it."""
    text = op.words[0] if op.words else str(op.attrs.get("asm_string", ""))
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], text)


def _constraints(op: Op) -> list[str]:
    """One for each register, without marks; clobbers say nothing about values."""
    given = (word.strip() for word in str(op.attrs.get("constraints", "")).strip('"').split(","))
    return [word.lstrip("=&+") for word in given if not word.startswith("~")]


def _registers(nbytes: int, pack: int) -> tuple[int, int]:
    """How many registers hold `pack` elements of so many bytes, and the bytes of each: short ones share 32 bits."""
    together = min(pack, max(1, 4 // nbytes))
    return -(-pack // together), nbytes * together


def _padded(raw: Array, count: int) -> Array:
    """The bytes of so many elements: these, and then zeros."""
    out = np.zeros(count, raw.dtype)
    out[: raw.size] = raw.reshape(-1)
    return out.view(np.uint8)


def _kernel(text: str, constraints: list[str], registers: list[tuple[int, int]], results: int) -> Kernel:
    """A kernel of one thread for each instance of the text. Its parameters are arrays: of results, then of operands.
    `registers`: of each of them, how many an instance has and their bytes."""
    if len(constraints) != sum(count for count, _ in registers):
        raise UnsupportedOp("tt.elementwise_inline_asm", f"{len(constraints)} constraints: {constraints}")
    names: list[str] = []
    params, before, loads, stores = [], [], [], []
    for place, (count, nbytes) in enumerate(registers):
        params.append(f".param .u64 asm_p{place}")
        before.append(f".reg .b64 %asm_at{place}; ld.param.u64 %asm_at{place}, [asm_p{place}];")
        before.append(f"mad.wide.u32 %asm_at{place}, %asm_i, {count * nbytes}, %asm_at{place};")
        for at in range(count):
            letter, name = constraints[len(names)], f"%asm_r{len(names)}"
            if letter.isdecimal() and int(letter) < len(names):
                name = names[int(letter)]  # the register of that result
            elif letter in _REGISTERS and _REGISTERS[letter][1] >= nbytes:
                before.append(f".reg .{_REGISTERS[letter][0]} {name};")
            else:
                raise UnsupportedOp("tt.elementwise_inline_asm", f"an operand of {nbytes} bytes as {letter!r}")
            names.append(name)
            address = f"[%asm_at{place} + {at * nbytes}]"
            if place < results:
                stores.append(f"st.global.b{8 * nbytes} {address}, {name};")
            else:
                loads.append(f"ld.global.b{8 * nbytes} {name}, {address};")

    def named(found: re.Match[str]) -> str:
        number = found[2] or found[3]
        if number is not None and int(number) >= len(names):
            raise UnsupportedOp("tt.elementwise_inline_asm", f"${number} of {len(names)}")
        return "$" if number is None else names[int(number)]

    body = [_INDEX, *before, *loads, "{", _PLACE.sub(named, text), "}", *stores, "ret;"]
    lines = "\n".join([_HEAD, f".visible .entry asm_elements({', '.join(params)})", "{", *body, "}"])
    return Kernel("asm_elements", "ptx", lines, (), {"block": [_BLOCK, 1, 1]})


ELEMENTWISE_OPS["tt.elementwise_inline_asm"] = inline_asm
