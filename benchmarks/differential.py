"""Generated kernels on all that runs them: do the interpreter of TTIR, the emulator of PTX and a GPU agree bit for bit?

    python -m benchmarks.differential [--kernels 1000] [--seed 0] [--gpu] [--jobs 2] [--out FOLDER]

Half of the kernels are TTIR from a grammar of ours: arithmetic of all types with overflow, shifts, casts, comparisons,
choices, reductions, scans, loops, masks, atomics. Each is interpreted, and what Triton makes of it is emulated. The
other half are PTX, with modifiers that no compiler writes: those are emulated. With `--gpu` all are run there, too.

Results must have the same bits, but that any NaN is any other, and that functions which PTX only approximates may differ
by what `_LOOSE` says: no other instruction sees their results. Nothing that a manual leaves open is generated: no
division by zero, no shift beyond the width in TTIR, no conversion out of range but where `cvt` saturates. Sums of floats
whose order is open have summands that every order sums exactly. TTIR is compiled without contraction to fused products,
which the interpreter does not make.

Prints each disagreement: the kernel's seed, the results that differ, and of a kernel that is made again with every value
stored the first instruction whose result differs. Ends with 1 where there is one.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kerneltune.tools.languages.base import NotCompiled, NotInterpreted, device_code
from kerneltune.tools.languages.ptx.loader import PtxLaunch
from kerneltune.tools.languages.ptx.sim.launch import run as emulate
from kerneltune.tools.languages.triton.ttir.interpreter import run as interpret
from kerneltune.tools.languages.triton.ttir.ir import parse
from kerneltune.tools.languages.triton.ttir.memory import Pointer
from kerneltune.tools.schema.plan import Kernel

Array = np.ndarray[Any, Any]
ARCH = "sm_90"
PROGRAMS = 3
SLOTS = 64  # of memory that atomics change

# type -> bytes of an element, and how NaN is told among its bits: the exponent's and the mantissa's mask
_BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f8E4M3FN": 1,
          "f8E5M2": 1, "b16": 2, "b32": 4, "b64": 8, "f16x2": 4, "bf16x2": 4}  # fmt: skip
_NAN = {"f16": (0x7C00, 0x3FF), "bf16": (0x7F80, 0x7F), "f32": (0x7F800000, 0x7FFFFF), "f8E5M2": (0x7C, 3),
        "f64": (0x7FF << 52, (1 << 52) - 1), "f8E4M3FN": (0x7F, 0)}  # fmt: skip
# approximate function -> what two results may differ by: relative, absolute. From the PTX manual's bounds, or the
# measured ones of CUDA's for what Triton builds of several instructions.
_LOOSE = {
    "div.full": (2.4e-7, 0.0), "div.approx": (2.4e-7, 0.0), "rcp.approx": (1.3e-7, 0.0), "sqrt.approx": (1.3e-7, 0.0),
    "rsqrt.approx": (2.4e-7, 0.0), "ex2.approx": (2.4e-7, 0.0), "lg2.approx": (1e-6, 2.4e-7), "sin.approx": (1e-6, 1e-6),
    "cos.approx": (1e-6, 1e-6), "tanh.approx": (1e-3, 0.0), "math.exp": (4e-6, 0.0), "math.exp2": (4e-7, 0.0),
    "math.log": (1e-6, 3e-7), "math.log2": (1e-6, 3e-7), "math.sqrt": (2.4e-7, 0.0), "math.rsqrt": (2.4e-7, 0.0),
    "arith.divf": (2.4e-7, 0.0), "math.erf": (1e-6, 1e-7), "math.sin": (1e-5, 1e-5), "math.cos": (1e-5, 1e-5),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """An array that a kernel writes: what its elements are, what made them, and by how much they may differ."""

    type: str
    count: int
    made_by: str
    loose: tuple[float, float] | None = None


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel and its arguments. `inputs` are arrays of bytes by type; then come `results`, in TTIR a number of elements
    last. `threads` of a block."""

    seed: int
    language: str
    text: str
    inputs: tuple[tuple[str, Array], ...]
    results: tuple[Result, ...]
    threads: int
    count: int

    def buffers(self) -> list[Array]:
        """Its arrays before a run, results as zeros."""
        made = [np.zeros(r.count * _BYTES[r.type], np.uint8) for r in self.results]
        return [*(data.copy() for _, data in self.inputs), *made]

    @property
    def kernel(self) -> Kernel:
        """As a launch plan has it."""
        signature = ("*i8",) * (len(self.inputs) + len(self.results))
        if self.language == "ptx":
            return Kernel("k", "ptx", self.text, signature, {"block": [self.threads, 1, 1]})
        options = {"num_warps": self.threads // 32, "enable_fp_fusion": False}
        return Kernel("k", "ttir", self.text, (*signature, "i32"), options)


# Inputs --------------------------------------------------------------------------------------------------------------


def _input(kind: str, count: int, rng: random.Random) -> Array:
    """Elements of a type: any bits, small numbers, and those at the ends of the range."""
    width = 8 * _BYTES[kind]
    bits = [rng.getrandbits(width) for _ in range(count)]
    for i in range(count):
        if rng.random() < 0.4:
            bits[i] = _special(kind, rng)
    return np.array(bits, f"u{_BYTES[kind]}").view(np.uint8).copy()


def _special(kind: str, rng: random.Random) -> int:
    width = 8 * _BYTES[kind]
    if kind[0] in "ib" and kind != "bf16":
        return rng.choice(
            (0, 1, 2, 3, width - 1, 1 << width - 1, (1 << width - 1) - 1, (1 << width) - 1, rng.randrange(40))
        ) % (1 << width)
    if kind in ("f32", "f64", "f16"):
        number = rng.choice(
            (
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                1.5,
                2.5,
                -2.5,
                3.0,
                65504.0,
                float("inf"),
                float("-inf"),
                float("nan"),
                rng.uniform(-4, 4),
                rng.uniform(-300, 300),
                2.0 ** rng.randrange(-24, 14),
            )
        )
        return int.from_bytes(np.array(number, f"f{width // 8}").tobytes(), "little")
    if kind == "bf16":
        return _special("f32", rng) >> 16
    return rng.choice((0, 0x80, 0x38, 0x7F, 0xFF, 0x7C, 0x7E, 0xFC, 1, 0x81))


# TTIR ----------------------------------------------------------------------------------------------------------------

_INTS, _FLOATS = ("i8", "i16", "i32", "i64"), ("f16", "bf16", "f32", "f64")
_LOADED = (*_INTS, *_FLOATS, "f8E4M3FN", "f8E5M2")


@dataclass
class _Ttir:
    """Writes one kernel. Values are elementwise tensors of `size`, by type; `raw` are those of which the bits are known
    even where they are NaN."""

    rng: random.Random
    size: int
    lines: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    raw: dict[str, list[str]] = field(default_factory=dict)
    stored: list[tuple[str, str, str, str]] = field(default_factory=list)  # value, type, shape, made by
    made: int = 0
    atomics: int = 0

    def of(self, kind: str) -> str:
        return f"tensor<{self.size}x{kind}>"

    def emit(self, text: str) -> str:
        name = f"%v{self.made}"
        self.made += 1
        self.lines.append(f"    {name} = {text}")
        return name

    def pick(self, kind: str) -> str:
        """A value of the type: one that there is, or a constant."""
        found = self.values.get(kind)
        if found and self.rng.random() < 0.92:
            return self.rng.choice(found[-6:] if self.rng.random() < 0.7 else found)
        return self.constant(kind)

    def constant(self, kind: str, number: int | None = None) -> str:
        if kind == "i1":
            text = self.rng.choice(("true", "false"))
        elif kind in _FLOATS:
            text = self.rng.choice(
                ("0.000000e+00", "1.000000e+00", "-1.500000e+00", "2.500000e-01", "-3.000000e+00", "6.400000e+01")
            )
        else:
            width = 8 * _BYTES[kind]
            text = str(
                number
                if number is not None
                else self.rng.choice((0, 1, -1, 3, 5, 7, width - 1, -(1 << width - 1), (1 << width - 1) - 1))
            )
        return self.emit(f"arith.constant dense<{text}> : {self.of(kind)}")

    def keep(self, kind: str, name: str, made_by: str) -> None:
        self.values.setdefault(kind, []).append(name)
        self.stored.append((name, kind, "", made_by))

    def last(self, kind: str, name: str, made_by: str) -> None:
        """A result that is stored and that nothing else sees."""
        self.stored.append((name, kind, "last", made_by))


def _int_binary(w: _Ttir) -> None:
    kind = w.rng.choice(_INTS)
    op = w.rng.choice("addi subi muli andi ori xori maxsi minsi maxui minui".split())
    t = w.of(kind)
    w.keep(kind, w.emit(f"arith.{op} {w.pick(kind)}, {w.pick(kind)} : {t}"), f"arith.{op} {kind}")


def _division(w: _Ttir) -> None:
    """By no negative number: Triton does not compile the lowest integer by -1 where both are constants."""
    kind = w.rng.choice(_INTS)
    t, op = w.of(kind), w.rng.choice(("divsi", "remsi", "divui", "remui"))
    most = 0x7F if op.endswith("si") else (1 << 8 * _BYTES[kind] - 1) - 1
    by = w.emit(f"arith.andi {w.pick(kind)}, {w.constant(kind, most)} : {t}")
    by = w.emit(f"arith.ori {by}, {w.constant(kind, 1)} : {t}")
    w.keep(kind, w.emit(f"arith.{op} {w.pick(kind)}, {by} : {t}"), f"arith.{op} {kind}")


def _shift(w: _Ttir) -> None:
    kind = w.rng.choice(_INTS)
    t, op = w.of(kind), w.rng.choice(("shli", "shrsi", "shrui"))
    by = w.emit(f"arith.andi {w.pick(kind)}, {w.constant(kind, 8 * _BYTES[kind] - 1)} : {t}")
    w.keep(kind, w.emit(f"arith.{op} {w.pick(kind)}, {by} : {t}"), f"arith.{op} {kind}")


def _truths(w: _Ttir) -> None:
    op = w.rng.choice(("andi", "ori", "xori", "addi", "muli"))
    w.keep("i1", w.emit(f"arith.{op} {w.pick('i1')}, {w.pick('i1')} : {w.of('i1')}"), f"arith.{op} i1")


def _compare(w: _Ttir) -> None:
    if w.rng.random() < 0.5:
        kind, word = w.rng.choice(_INTS), w.rng.choice("eq ne slt sle sgt sge ult ule ugt uge".split())
        w.keep(
            "i1",
            w.emit(f"arith.cmpi {word}, {w.pick(kind)}, {w.pick(kind)} : {w.of(kind)}"),
            f"arith.cmpi {word} {kind}",
        )
        return
    kind, word = w.rng.choice(_FLOATS), w.rng.choice("oeq one olt ole ogt oge ord ueq une ult ule ugt uge uno".split())
    w.keep(
        "i1", w.emit(f"arith.cmpf {word}, {w.pick(kind)}, {w.pick(kind)} : {w.of(kind)}"), f"arith.cmpf {word} {kind}"
    )


def _select(w: _Ttir) -> None:
    kind = w.rng.choice((*_INTS, *_FLOATS))
    text = f"arith.select {w.pick('i1')}, {w.pick(kind)}, {w.pick(kind)} : {w.of('i1')}, {w.of(kind)}"
    w.keep(kind, w.emit(text), f"arith.select {kind}")


def _resize(w: _Ttir) -> None:
    source, target = w.rng.sample(("i1", *_INTS), 2)
    wider = _BYTES[target] > _BYTES[source] or source == "i1"
    op = w.rng.choice(("extsi", "extui")) if wider else "trunci"
    w.keep(
        target,
        w.emit(f"arith.{op} {w.pick(source)} : {w.of(source)} to {w.of(target)}"),
        f"arith.{op} {source} to {target}",
    )


def _int_unary(w: _Ttir) -> None:
    kind = w.rng.choice(("i32", "i64"))
    op = w.rng.choice(("math.absi", "tt.mulhiui"))
    args = f"{w.pick(kind)}, {w.pick(kind)}" if op == "tt.mulhiui" else w.pick(kind)
    w.keep(kind, w.emit(f"{op} {args} : {w.of(kind)}"), f"{op} {kind}")


def _float_binary(w: _Ttir) -> None:
    kind = w.rng.choice(_FLOATS)
    op = w.rng.choice("addf subf mulf maximumf minimumf maxnumf minnumf".split())
    w.keep(kind, w.emit(f"arith.{op} {w.pick(kind)}, {w.pick(kind)} : {w.of(kind)}"), f"arith.{op} {kind}")


def _float_other(w: _Ttir) -> None:
    kind, op = w.rng.choice((
        ("f32", "tt.precise_divf"), ("f64", "arith.divf"), ("f32", "tt.precise_sqrt"), ("f32", "math.fma"), ("f64", "math.fma"),
        ("f32", "math.floor"), ("f32", "math.ceil"), ("f64", "math.floor"), ("f64", "math.ceil"), ("f32", "math.absf"), ("f64", "math.absf"),
        ("f64", "math.sqrt"),
    ))  # fmt: skip
    count = {"tt.precise_divf": 2, "arith.divf": 2, "math.fma": 3}.get(op, 1)
    w.keep(kind, w.emit(f"{op} {', '.join(w.pick(kind) for _ in range(count))} : {w.of(kind)}"), f"{op} {kind}")


def _clamp(w: _Ttir) -> None:
    kind = w.rng.choice(("f32", "f16"))
    low, high = (
        w.emit(f"arith.constant dense<-1.500000e+00> : {w.of(kind)}"),
        w.emit(f"arith.constant dense<2.000000e+00> : {w.of(kind)}"),
    )
    keeps = w.rng.choice(("none", "all"))
    w.keep(
        kind,
        w.emit(f"tt.clampf {w.pick(kind)}, {low}, {high}, propagateNan = {keeps} : {w.of(kind)}"),
        f"tt.clampf {keeps} {kind}",
    )


def _no_subnormal(w: _Ttir) -> str:
    """A number of which it makes no difference that approximate functions take subnormal ones for zero."""
    value, t = w.pick("f32"), w.of("f32")
    least, zero = (w.emit(f"arith.constant dense<{text}> : {t}") for text in ("0x00800000", "0.000000e+00"))
    size = w.emit(f"math.absf {value} : {t}")
    small = w.emit(f"arith.cmpf olt, {size}, {least} : {t}")
    return w.emit(f"arith.select {small}, {zero}, {value} : {w.of('i1')}, {t}")


def _approximate(w: _Ttir) -> None:
    op = w.rng.choice(
        "math.exp math.exp2 math.log math.log2 math.sqrt math.rsqrt arith.divf math.erf math.sin math.cos".split()
    )
    args = ", ".join(_no_subnormal(w) for _ in range(2 if op == "arith.divf" else 1))
    if op in ("math.sin", "math.cos"):
        three = w.emit(f"arith.constant dense<3.000000e+00> : {w.of('f32')}")
        minus = w.emit(f"arith.constant dense<-3.000000e+00> : {w.of('f32')}")
        args = w.emit(f"tt.clampf {args}, {minus}, {three}, propagateNan = all : {w.of('f32')}")
    w.last("f32", w.emit(f"{op} {args} : {w.of('f32')}"), op)


def _from_int(w: _Ttir) -> None:
    source, target = w.rng.choice(_INTS), w.rng.choice(_FLOATS)
    op = w.rng.choice(("sitofp", "uitofp"))
    w.keep(
        target,
        w.emit(f"arith.{op} {w.pick(source)} : {w.of(source)} to {w.of(target)}"),
        f"arith.{op} {source} to {target}",
    )


def _to_int(w: _Ttir) -> None:
    """Of numbers within the range of the result."""
    source, target, op = (
        w.rng.choice(("f16", "bf16", "f32", "f64")),
        w.rng.choice(_INTS),
        w.rng.choice(("fptosi", "fptoui")),
    )
    t = w.of(source)
    low = {"fptosi": "-1.200000e+02", "fptoui": "0.000000e+00"}[op]
    bounds = [w.emit(f"arith.constant dense<{text}> : {t}") for text in (low, "1.200000e+02")]
    inside = w.emit(f"arith.maxnumf {w.pick(source)}, {bounds[0]} : {t}")
    inside = w.emit(f"arith.minnumf {inside}, {bounds[1]} : {t}")
    w.keep(target, w.emit(f"arith.{op} {inside} : {t} to {w.of(target)}"), f"arith.{op} {source} to {target}")


def _saturating(w: _Ttir) -> None:
    """Of any number to 32 or 64 bits, where `cvt` says what comes of those out of range; LLVM says it of no constant."""
    source, target, op = w.rng.choice(("f32", "f64")), w.rng.choice(("i32", "i64")), w.rng.choice(("fptosi", "fptoui"))
    if not (known := w.raw.get(source)):
        return
    w.last(
        target,
        w.emit(f"arith.{op} {w.rng.choice(known)} : {w.of(source)} to {w.of(target)}"),
        f"arith.{op} {source} to {target}",
    )


def _float_to_float(w: _Ttir) -> None:
    order = ("f16", "bf16", "f32", "f64")
    source, target = w.rng.sample(order, 2)
    if {source, target} == {"f16", "bf16"} or ("f64" in (source, target) and "f32" not in (source, target)):
        source, target = w.rng.choice((("f32", "f16"), ("f32", "bf16"), ("f16", "f32"), ("bf16", "f32")))
    if _BYTES[target] > _BYTES[source]:
        text = f"arith.extf {w.pick(source)} : {w.of(source)} to {w.of(target)}"
    elif w.rng.random() < 0.4 and source == "f32":
        mode = w.rng.choice(("rtne", "rtz"))
        text = f"tt.fp_to_fp {w.pick(source)}, rounding = {mode} : {w.of(source)} -> {w.of(target)}"
    else:
        text = f"arith.truncf {w.pick(source)} : {w.of(source)} to {w.of(target)}"
    w.keep(target, w.emit(text), f"{text.split(' ')[0]} {source} to {target}")


def _eight_bits(w: _Ttir) -> None:
    eight, wide = w.rng.choice(("f8E4M3FN", "f8E5M2")), w.rng.choice(("f16", "bf16", "f32"))
    if (eight, wide) == ("f8E5M2", "bf16"):
        wide = "f32"  # on sm_90 Triton makes a finite bf16 of an infinity, which we do not imitate
    if w.rng.random() < 0.5 and w.values.get(eight):
        w.keep(
            wide,
            w.emit(f"tt.fp_to_fp {w.rng.choice(w.values[eight])} : {w.of(eight)} -> {w.of(wide)}"),
            f"tt.fp_to_fp {eight} to {wide}",
        )
        return
    text = f"tt.fp_to_fp {w.pick(wide)}, rounding = rtne : {w.of(wide)} -> {w.of(eight)}"
    w.keep(eight, w.emit(text), f"tt.fp_to_fp {wide} to {eight}")


def _bits(w: _Ttir) -> None:
    one, other = w.rng.choice((("i16", "f16"), ("i16", "bf16"), ("i32", "f32"), ("i64", "f64")))
    if w.rng.random() < 0.5 and w.raw.get(other):
        one, other = other, one
    source = w.rng.choice(w.raw[one]) if one in _FLOATS else w.pick(one)
    w.keep(other, w.emit(f"tt.bitcast {source} : {w.of(one)} -> {w.of(other)}"), f"tt.bitcast {one} to {other}")


def _region(kind: str, op: str, whole: str, tail: str, ins: str, out: str) -> str:
    return (
        f'"{whole}"({ins}) <{{{tail}}}> ({{\n    ^bb0(%a: {kind}, %b: {kind}):\n      %s = {op} %a, %b : {kind}\n'
        f"      {whole}.return %s : {kind}\n    }}) : {out}"
    )


def _combiner(w: _Ttir) -> tuple[str, str]:
    """A type and an operation whose order is open."""
    kind = w.rng.choice(("i8", "i16", "i32", "i64", "f32", "f16", "bf16"))
    if kind in _FLOATS:
        return kind, f"arith.{w.rng.choice(('maxnumf', 'minnumf', 'maximumf', 'minimumf'))}"
    return kind, f"arith.{w.rng.choice('addi muli andi ori xori maxsi minsi maxui minui'.split())}"


def _reduce(w: _Ttir) -> None:
    kind, op = _combiner(w)
    text = _region(kind, op, "tt.reduce", "axis = 0 : i32", w.pick(kind), f"({w.of(kind)}) -> {kind}")
    scalar = w.emit(text)
    w.keep(kind, w.emit(f"tt.splat {scalar} : {kind} -> {w.of(kind)}"), f"tt.reduce {op} {kind}")


def _reduce_rows(w: _Ttir) -> None:
    """Along either axis of the tensor as a matrix."""
    kind, op = _combiner(w)
    rows, axis = w.rng.choice((4, 8)), w.rng.choice((0, 1))
    shape = (rows, w.size // rows)
    left = shape[1 - axis]
    matrix = f"tensor<{shape[0]}x{shape[1]}x{kind}>"
    made = w.emit(f"tt.reshape {w.pick(kind)} : {w.of(kind)} -> {matrix}")
    tail = f"axis = {axis} : i32"
    made = w.emit(_region(kind, op, "tt.reduce", tail, made, f"({matrix}) -> tensor<{left}x{kind}>"))
    thin = f"tensor<{'1x' if axis == 0 else ''}{left}x{'1x' if axis == 1 else ''}{kind}>"
    made = w.emit(f"tt.expand_dims {made} {{axis = {axis} : i32}} : tensor<{left}x{kind}> -> {thin}")
    made = w.emit(f"tt.broadcast {made} : {thin} -> {matrix}")
    w.keep(kind, w.emit(f"tt.reshape {made} : {matrix} -> {w.of(kind)}"), f"tt.reduce of rows {op} {kind}")


def _float_sum(w: _Ttir) -> None:
    """Of quarters, which every order sums exactly."""
    kind = w.rng.choice(("f32", "f64"))
    small = w.emit(f"arith.andi {w.pick('i32')}, {w.constant('i32', 1023)} : {w.of('i32')}")
    quarter = w.emit(f"arith.constant dense<2.500000e-01> : {w.of(kind)}")
    summand = w.emit(f"arith.sitofp {small} : {w.of('i32')} to {w.of(kind)}")
    summand = w.emit(f"arith.mulf {summand}, {quarter} : {w.of(kind)}")
    if w.rng.random() < 0.5:
        text = _region(
            kind, "arith.addf", "tt.scan", "axis = 0 : i32, reverse = false", summand, f"({w.of(kind)}) -> {w.of(kind)}"
        )
        w.keep(kind, w.emit(text), f"tt.scan arith.addf {kind}")
        return
    scalar = w.emit(_region(kind, "arith.addf", "tt.reduce", "axis = 0 : i32", summand, f"({w.of(kind)}) -> {kind}"))
    w.keep(kind, w.emit(f"tt.splat {scalar} : {kind} -> {w.of(kind)}"), f"tt.reduce arith.addf {kind}")


def _scan(w: _Ttir) -> None:
    kind, op = _combiner(w)
    tail = f"axis = 0 : i32, reverse = {w.rng.choice(('true', 'false'))}"
    w.keep(
        kind,
        w.emit(_region(kind, op, "tt.scan", tail, w.pick(kind), f"({w.of(kind)}) -> {w.of(kind)}")),
        f"tt.scan {op} {kind}",
    )


def _turned(w: _Ttir) -> None:
    kind = w.rng.choice(("i8", "i16", "i32", "i64", "f32", "f16"))
    rows = w.rng.choice((2, 4, 8))
    matrix, other = f"tensor<{rows}x{w.size // rows}x{kind}>", f"tensor<{w.size // rows}x{rows}x{kind}>"
    made = w.emit(f"tt.reshape {w.pick(kind)} : {w.of(kind)} -> {matrix}")
    made = w.emit(f"tt.trans {made} {{order = array<i32: 1, 0>}} : {matrix} -> {other}")
    w.keep(kind, w.emit(f"tt.reshape {made} : {other} -> {w.of(kind)}"), f"tt.trans {kind}")


def _joined(w: _Ttir) -> None:
    kind = w.rng.choice(("i16", "i32", "f32"))
    pair = f"tensor<{w.size}x2x{kind}>"
    made = w.emit(f"tt.join {w.pick(kind)}, {w.pick(kind)} : {w.of(kind)} -> {pair}")
    line = f"tensor<{2 * w.size}x{kind}>"
    made = w.emit(f"tt.reshape {made} : {pair} -> {line}")
    two = f"tensor<{w.size}x2x{kind}>"
    made = w.emit(f"tt.reshape {made} : {line} -> {two}")
    name = f"%v{w.made}"
    w.made += 1
    w.lines.append(f"    {name}:2 = tt.split {made} : {two} -> {w.of(kind)}")
    w.keep(kind, f"{name}#{w.rng.randrange(2)}", f"tt.split {kind}")


def _gather(w: _Ttir) -> None:
    kind = w.rng.choice(("i32", "f32", "i16"))
    at = w.emit(f"arith.andi {w.pick('i32')}, {w.constant('i32', w.size - 1)} : {w.of('i32')}")
    w.keep(
        kind,
        w.emit(f"tt.gather {w.pick(kind)}[{at}] {{axis = 0 : i32}} : ({w.of(kind)}, {w.of('i32')}) -> {w.of(kind)}"),
        f"tt.gather {kind}",
    )


def _loop(w: _Ttir) -> None:
    """A few turns, as many as a scalar says."""
    kind = w.rng.choice(("i32", "i64", "f32", "i16"))
    op, other = (
        w.rng.choice("addf subf mulf maxnumf".split()) if kind == "f32" else w.rng.choice("addi subi muli xori".split())
        for _ in range(2)
    )
    low, step = (w.emit(f"arith.constant {n} : i32") for n in (0, w.rng.choice((1, 2))))
    high = w.emit(f"arith.addi %pid, {w.emit(f'arith.constant {w.rng.randrange(5)} : i32')} : i32")
    first, by = w.pick(kind), w.pick(kind)
    t = w.of(kind)
    name = w.emit(
        f"scf.for %i{w.made} = {low} to {high} step {step} iter_args(%x{w.made} = {first}) -> ({t})  : i32 {{\n"
        f"      %y{w.made} = arith.{op} %x{w.made}, {by} : {t}\n      %z{w.made} = arith.{other} %y{w.made}, %x{w.made} : {t}\n"
        f"      scf.yield %z{w.made} : {t}\n    }}"
    )
    w.keep(kind, name, f"scf.for {op} {other} {kind}")


def _branch(w: _Ttir) -> None:
    kind = w.rng.choice(("i32", "f32", "i64"))
    t = w.of(kind)
    asked = w.emit(f"arith.cmpi {w.rng.choice(('slt', 'eq', 'ugt'))}, %pid, {w.emit('arith.constant 1 : i32')} : i32")
    op = "addf" if kind == "f32" else w.rng.choice(("addi", "xori"))
    a, b = w.pick(kind), w.pick(kind)
    name = w.emit(
        f"scf.if {asked} -> ({t}) {{\n      %q{w.made} = arith.{op} {a}, {b} : {t}\n      scf.yield %q{w.made} : {t}\n"
        f"    }} else {{\n      scf.yield {b} : {t}\n    }}"
    )
    w.keep(kind, name, f"scf.if {op} {kind}")


def _atomic(w: _Ttir) -> None:
    """Of many programs to few places: the order is open, what is there in the end is not."""
    if w.atomics:
        return
    w.atomics = 1
    op = w.rng.choice("add and or xor max min umax umin".split())
    at = w.emit(f"arith.andi {w.pick('i32')}, {w.constant('i32', SLOTS - 1)} : {w.of('i32')}")
    p = w.emit(f"tt.splat %atomics : !tt.ptr<i32> -> {w.of('!tt.ptr<i32>')}")
    p = w.emit(f"tt.addptr {p}, {at} : {w.of('!tt.ptr<i32>')}, {w.of('i32')}")
    w.emit(
        f"tt.atomic_rmw {op}, relaxed, gpu, {p}, {w.pick('i32')}, %mask : ({w.of('!tt.ptr<i32>')}, {w.of('i32')}, {w.of('i1')}) -> {w.of('i32')}"
    )


_PRODUCTIONS: tuple[tuple[int, Callable[[_Ttir], None]], ...] = (
    (6, _int_binary), (2, _division), (3, _shift), (1, _truths), (3, _compare), (3, _select), (4, _resize), (1, _int_unary),
    (5, _float_binary), (4, _float_other), (1, _clamp), (2, _approximate), (3, _from_int), (2, _to_int), (1, _saturating),
    (3, _float_to_float), (2, _eight_bits), (2, _bits), (2, _reduce), (1, _reduce_rows), (1, _float_sum), (1, _scan), (1, _turned),
    (1, _joined), (1, _gather), (1, _loop), (1, _branch), (1, _atomic),
)  # fmt: skip


def ttir_kernel(seed: int, *, all_stored: bool = False) -> GeneratedKernel:
    """The TTIR kernel of a seed. `all_stored`: every value is a result, in the order of the instructions."""
    rng = random.Random(seed)
    size, warps = rng.choice(((64, 1), (128, 1), (128, 4), (256, 2), (64, 4)))
    count = PROGRAMS * size - rng.randrange(size)
    loaded = [rng.choice(_LOADED) for _ in range(rng.choice((3, 4, 5)))]
    w = _Ttir(rng, size)
    mask = w.of("i1")
    at = w.of("i32")
    w.lines += [
        "    %pid = tt.get_program_id x : i32",
        f"    %size = arith.constant {size} : i32",
        "    %first = arith.muli %pid, %size : i32",
        f"    %range = tt.make_range {{end = {size} : i32, start = 0 : i32}} : {at}",
        f"    %begin = tt.splat %first : i32 -> {at}",
        f"    %at = arith.addi %begin, %range : {at}",
        f"    %many = tt.splat %n : i32 -> {at}",
        f"    %mask = arith.cmpi slt, %at, %many : {at}",
    ]
    w.values |= {"i32": ["%at"], "i1": ["%mask"]}
    for i, kind in enumerate(loaded):
        p, t = w.of(f"!tt.ptr<{kind}>"), w.of(kind)
        w.lines += [
            f"    %s{i} = tt.splat %in{i} : !tt.ptr<{kind}> -> {p}",
            f"    %p{i} = tt.addptr %s{i}, %at : {p}, {at}",
        ]
        if kind.startswith("f8"):
            other = w.emit(f"tt.bitcast {w.constant('i8')} : {w.of('i8')} -> {t}")
        else:
            other = w.constant(kind)
        name = w.emit(f"tt.load %p{i}, %mask, {other} : {p}")
        w.values.setdefault(kind, []).append(name)
        w.raw.setdefault(kind, []).append(name)
    weights, productions = zip(*_PRODUCTIONS, strict=True)
    for production in rng.choices(productions, weights, k=rng.randrange(4, 16)):
        production(w)
    chosen = w.stored if all_stored else [s for s in w.stored[-8:] if s[2] or s in w.stored[-4:]]
    if not chosen:
        chosen = w.stored or [("%at", "i32", "", "tt.make_range")]
    results, params = [], []
    for i, (name, kind, _, made_by) in enumerate(chosen):
        if kind == "i1":
            name, kind = w.emit(f"arith.extui {name} : {mask} to {w.of('i8')}"), "i8"
        p = w.of(f"!tt.ptr<{kind}>")
        w.lines += [
            f"    %o{i} = tt.splat %out{i} : !tt.ptr<{kind}> -> {p}",
            f"    %q{i} = tt.addptr %o{i}, %at : {p}, {at}",
            f"    tt.store %q{i}, {name}, %mask : {p}",
        ]
        results.append(Result(kind, count, made_by, _LOOSE.get(made_by)))
        params.append(f"%out{i}: !tt.ptr<{kind}>")
    results.append(Result("i32", SLOTS, "tt.atomic_rmw"))
    params = [
        *(f"%in{i}: !tt.ptr<{kind}>" for i, kind in enumerate(loaded)),
        *params,
        "%atomics: !tt.ptr<i32>",
        "%n: i32",
    ]
    body = "\n".join(w.lines)
    text = f"module {{\n  tt.func public @k({', '.join(params)}) attributes {{noinline = false}} {{\n{body}\n    tt.return\n  }}\n}}\n"
    inputs = tuple((kind, _input(kind, count, rng)) for kind in loaded)
    return GeneratedKernel(seed, "ttir", text, inputs, tuple(results), 32 * warps, count)


# PTX -----------------------------------------------------------------------------------------------------------------

_REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}
_MODES4 = ("rn", "rz", "rm", "rp")


@dataclass
class _Ptx:
    """Writes one kernel. `values`: registers by the bits that they have, of floats by type; `raw`: those of which the
    bits are known even where they are NaN."""

    rng: random.Random
    threads: int
    lines: list[str] = field(default_factory=list)
    declared: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    raw: dict[str, list[str]] = field(default_factory=dict)
    stored: list[tuple[str, str, str]] = field(default_factory=list)  # register, type, made by
    made: int = 0

    def register(self, kind: str) -> str:
        name = f"%v{self.made}"
        self.made += 1
        self.declared.append(f"    .reg .{kind if kind == 'pred' else _REGISTER[_BYTES[kind]]} {name};")
        return name

    def pick(self, kind: str) -> str:
        """A register of the type, or with so many bits."""
        found = self.values.get(kind)
        if found and (kind not in ("b16", "b32", "b64") or self.rng.random() < 0.9):
            return self.rng.choice(found[-5:] if self.rng.random() < 0.6 else found)
        if kind in ("b16", "b32", "b64"):
            return str(self.rng.choice((0, 1, 3, 7, 15, 31, 127, 255, self.rng.getrandbits(8 * _BYTES[kind] - 1))))
        return self.cast(kind)

    def cast(self, kind: str) -> str:
        """A number of a type of which there is none yet."""
        name = self.register(kind)
        bits = f"b{8 * _BYTES[kind]}"
        self.lines.append(f"    mov.{bits} {name}, {self.rng.choice(('0', '1', '14336'))};")
        self.values.setdefault(kind, []).append(name)
        return name

    def do(self, text: str, result: str, made_by: str = "", *, seen: bool = True) -> str:
        """`text` with the result as {}."""
        name = self.register(result)
        self.lines.append("    " + text.replace("{}", name) + ";")
        if result != "pred":
            self.stored.append((name, result, made_by or text.split(" ")[0]))
        if seen:
            self.values.setdefault(result, []).append(name)
        return name


def _p_integer(w: _Ptx) -> None:
    bits = w.rng.choice((16, 32, 64))
    sign, b = w.rng.choice("su"), f"b{bits}"
    op = w.rng.choice("add sub mul.lo mul.hi min max mad.lo mad.hi sad abs neg".split())
    if op in ("abs", "neg"):
        sign = "s"
    count = 3 if op[:3] in ("mad", "sad") else 1 if op in ("abs", "neg") else 2
    w.do(f"{op}.{sign}{bits} {{}}, {', '.join(w.pick(b) for _ in range(count))}", b)


def _p_saturated(w: _Ptx) -> None:
    op = w.rng.choice(("add.sat.s32", "sub.sat.s32", "mad.hi.sat.s32"))
    w.do(f"{op} {{}}, {', '.join(w.pick('b32') for _ in range(3 if 'mad' in op else 2))}", "b32")


def _p_wide(w: _Ptx) -> None:
    bits, sign = w.rng.choice((16, 32)), w.rng.choice("su")
    add = w.rng.random() < 0.5
    extra = f", {w.pick(f'b{2 * bits}')}" if add else ""
    w.do(
        f"{'mad' if add else 'mul'}.wide.{sign}{bits} {{}}, {w.pick(f'b{bits}')}, {w.pick(f'b{bits}')}{extra}",
        f"b{2 * bits}",
    )


def _p_24(w: _Ptx) -> None:
    op, part, sign = w.rng.choice(("mul24", "mad24")), w.rng.choice(("lo", "hi")), w.rng.choice("su")
    w.do(f"{op}.{part}.{sign}32 {{}}, {', '.join(w.pick('b32') for _ in range(3 if op == 'mad24' else 2))}", "b32")


def _p_divide(w: _Ptx) -> None:
    bits, sign, op = w.rng.choice((16, 32, 64)), w.rng.choice("su"), w.rng.choice(("div", "rem"))
    b = f"b{bits}"
    by = w.pick(b)
    if sign == "s":
        by = w.do(f"and.{b} {{}}, {by}, 127", b)
    by = w.do(f"or.{b} {{}}, {by}, 1", b)
    w.do(f"{op}.{sign}{bits} {{}}, {w.pick(b)}, {by}", b)


def _p_carry(w: _Ptx) -> None:
    bits, op, sign = w.rng.choice((32, 64)), w.rng.choice(("add", "sub")), w.rng.choice("su")
    b = f"b{bits}"
    w.do(f"{op}.cc.{sign}{bits} {{}}, {w.pick(b)}, {w.pick(b)}", b)
    w.do(f"{op}c.cc.{sign}{bits} {{}}, {w.pick(b)}, {w.pick(b)}", b)
    w.do(f"{op}c.{sign}{bits} {{}}, {w.pick(b)}, {w.pick(b)}", b)


def _p_multiply_carry(w: _Ptx) -> None:
    sign, bits = w.rng.choice("su"), w.rng.choice((32, 64))
    b = f"b{bits}"
    w.do(f"mad.lo.cc.{sign}{bits} {{}}, {w.pick(b)}, {w.pick(b)}, {w.pick(b)}", b)
    w.do(f"madc.hi.{sign}{bits} {{}}, {w.pick(b)}, {w.pick(b)}, {w.pick(b)}", b)


def _p_dot(w: _Ptx) -> None:
    a, b = w.rng.choice("us"), w.rng.choice("us")
    op = w.rng.choice(("dp4a", "dp2a.lo", "dp2a.hi"))
    w.do(f"{op}.{a}32.{b}32 {{}}, {w.pick('b32')}, {w.pick('b32')}, {w.pick('b32')}", "b32")


def _p_logic(w: _Ptx) -> None:
    b = w.rng.choice(("b16", "b32", "b64"))
    op = w.rng.choice(("and", "or", "xor", "not", "cnot"))
    w.do(f"{op}.{b} {{}}, {', '.join(w.pick(b) for _ in range(1 if op in ('not', 'cnot') else 2))}", b)


def _p_shift(w: _Ptx) -> None:
    bits = w.rng.choice((16, 32, 64))
    op = w.rng.choice((f"shl.b{bits}", f"shr.u{bits}", f"shr.s{bits}", f"shr.b{bits}"))
    w.do(f"{op} {{}}, {w.pick(f'b{bits}')}, {w.pick('b32')}", f"b{bits}")


def _byte(w: _Ptx) -> str:
    """A place or a length: any register, but of numbers those that ptxas takes."""
    found = w.pick("b32")
    return found if found.startswith("%") else str(int(found) % 256)


def _p_bits(w: _Ptx) -> None:
    op = w.rng.choice((
        "shf.l.wrap.b32", "shf.l.clamp.b32", "shf.r.wrap.b32", "shf.r.clamp.b32", "prmt.b32", "prmt.b32.f4e", "prmt.b32.b4e",
        "prmt.b32.rc8", "prmt.b32.rc16", "prmt.b32.ecl", "prmt.b32.ecr", "lop3.b32", "bmsk.clamp.b32", "bmsk.wrap.b32", "brev.b32",
        "brev.b64", "bfe.u32", "bfe.s32", "bfe.u64", "bfe.s64", "bfi.b32", "bfi.b64", "popc.b32", "popc.b64", "clz.b32", "clz.b64",
        "bfind.u32", "bfind.s32", "bfind.u64", "bfind.s64", "bfind.shiftamt.u32", "bfind.shiftamt.s64",
    ))  # fmt: skip
    b = f"b{op[-2:]}" if op[-2:] in ("32", "64") else "b32"
    narrow = op.startswith(("popc", "clz", "bfind"))
    if op == "lop3.b32":
        args = f"{w.pick('b32')}, {w.pick('b32')}, {w.pick('b32')}, {w.rng.randrange(256)}"
    elif op.startswith(("shf", "prmt")):
        args = ", ".join(w.pick("b32") for _ in range(3))
    elif op.startswith("bfe"):
        args = f"{w.pick(b)}, {_byte(w)}, {_byte(w)}"
    elif op.startswith("bfi."):
        args = f"{w.pick(b)}, {w.pick(b)}, {_byte(w)}, {_byte(w)}"
    else:
        args = ", ".join(w.pick(b) for _ in range(2 if op.startswith("bmsk") else 1))
    w.do(f"{op} {{}}, {args}", "b32" if narrow else b)


def _p_compare(w: _Ptx) -> None:
    kind = w.rng.choice(("s16", "u16", "b16", "s32", "u32", "b32", "s64", "u64", "b64", "f32", "f64", "f16", "bf16"))
    if kind[0] in "sub" and kind != "bf16":
        names = (
            ["eq", "ne"]
            + (["lt", "le", "gt", "ge"] if kind[0] != "b" else [])
            + (["lo", "ls", "hi", "hs"] if kind[0] == "u" else [])
        )
        have = f"b{kind[1:]}"
    else:
        names, have = "eq ne lt le gt ge equ neu ltu leu gtu geu num nan".split(), kind
    op = w.rng.choice(names)
    ftz = ".ftz" if kind == "f32" and w.rng.random() < 0.3 else ""
    a, b = w.pick(have), w.pick(have)
    if w.values.get("pred") and w.rng.random() < 0.3:
        text = f"setp.{op}.{w.rng.choice(('and', 'or', 'xor'))}{ftz}.{kind} {{}}, {a}, {b}, {w.rng.choice(('', '!'))}{w.pick('pred')}"
    else:
        text = f"setp.{op}{ftz}.{kind} {{}}, {a}, {b}"
    truth = w.do(text, "pred")
    chosen = w.rng.choice(("b16", "b32", "b64", "f32"))
    w.do(
        f"selp.{chosen} {{}}, {w.pick(chosen)}, {w.pick(chosen)}, {truth}",
        chosen,
        f"{text.split(' ')[0]} with selp.{chosen}",
    )


def _p_set(w: _Ptx) -> None:
    kind, result = w.rng.choice(("s32", "u64", "f32", "f64")), w.rng.choice(("u32", "s32", "f32"))
    have = kind if kind[0] == "f" else f"b{kind[1:]}"
    w.do(
        f"set.{w.rng.choice(('lt', 'ge', 'ne', 'eq'))}.{result}.{kind} {{}}, {w.pick(have)}, {w.pick(have)}",
        "f32" if result == "f32" else "b32",
    )


def _p_slct(w: _Ptx) -> None:
    by = w.rng.choice(("s32", "f32", "ftz.f32"))
    kind = w.rng.choice(("b32", "b64", "u32"))
    have = f"b{kind[1:]}"
    op = f"slct.ftz.{kind}.f32" if by == "ftz.f32" else f"slct.{kind}.{by}"
    w.do(f"{op} {{}}, {w.pick(have)}, {w.pick(have)}, {w.pick('b32' if by == 's32' else 'f32')}", have)


def _p_test(w: _Ptx) -> None:
    kind = w.rng.choice(("f32", "f64"))
    test = f"testp.{w.rng.choice('finite infinite number notanumber normal subnormal'.split())}.{kind}"
    truth = w.do(f"{test} {{}}, {w.pick(kind)}", "pred")
    w.do(f"selp.b32 {{}}, {w.pick('b32')}, {w.pick('b32')}, {truth}", "b32", test)


def _p_float(w: _Ptx) -> None:
    kind = w.rng.choice(("f32", "f32", "f64"))
    op = w.rng.choice(("add", "sub", "mul", "fma", "fma"))
    mode = w.rng.choice(_MODES4)
    ftz = ".ftz" if kind == "f32" and w.rng.random() < 0.3 else ""
    sat = ".sat" if kind == "f32" and w.rng.random() < 0.2 else ""
    w.do(f"{op}.{mode}{ftz}{sat}.{kind} {{}}, {', '.join(w.pick(kind) for _ in range(3 if op == 'fma' else 2))}", kind)


def _p_exact(w: _Ptx) -> None:
    kind = w.rng.choice(("f32", "f32", "f64"))
    op = w.rng.choice(("div", "rcp", "sqrt"))
    ftz = ".ftz" if kind == "f32" and w.rng.random() < 0.3 else ""
    w.do(
        f"{op}.{w.rng.choice(_MODES4)}{ftz}.{kind} {{}}, {', '.join(w.pick(kind) for _ in range(2 if op == 'div' else 1))}",
        kind,
    )


def _p_approximate(w: _Ptx) -> None:
    """Of loaded numbers: of constants ptxas folds `div.full.ftz` otherwise than the GPU computes it (1e-45 by itself is
    infinite then)."""
    if not (loaded := w.raw.get("f32")):
        return
    op = w.rng.choice(
        "div.full div.approx rcp.approx sqrt.approx rsqrt.approx ex2.approx lg2.approx sin.approx cos.approx tanh.approx".split()
    )
    ftz = ".ftz" if w.rng.random() < 0.5 and op != "tanh.approx" else ""
    args = [w.rng.choice(loaded) for _ in range(2 if op.startswith("div") else 1)]
    if op in ("sin.approx", "cos.approx"):  # the manual bounds the error from -pi to pi only
        args = [w.do(f"max.f32 {{}}, {w.do(f'min.f32 {{}}, {args[0]}, 0f40400000', 'f32')}, 0fC0400000", "f32")]
    if op == "div.approx":  # of larger divisors it gives 0
        args[1] = w.do(f"max.f32 {{}}, {w.do(f'min.f32 {{}}, {args[1]}, 0f7E000000', 'f32')}, 0fFE000000", "f32")
    w.do(f"{op}{ftz}.f32 {{}}, {', '.join(args)}", "f32", op, seen=False)


def _p_half(w: _Ptx) -> None:
    kind = w.rng.choice(("f16", "bf16", "f16x2", "bf16x2"))
    op = w.rng.choice(("add", "sub", "mul", "fma", "fma"))
    style = (
        w.rng.choice(("", "", ".relu" if op == "fma" else ""))
        if "b" in kind
        else w.rng.choice(("", "", ".sat", ".ftz", ".relu" if op == "fma" else ""))
    )
    have = kind
    w.do(f"{op}.rn{style}.{kind} {{}}, {', '.join(w.pick(have) for _ in range(3 if op == 'fma' else 2))}", kind)


def _p_extreme(w: _Ptx) -> None:
    kind = w.rng.choice(("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"))
    op = w.rng.choice(("min", "max"))
    style = ""
    if kind != "f64":
        style = w.rng.choice(("", "", ".NaN")) + (".xorsign.abs" if w.rng.random() < 0.2 else "")
    if kind == "f32" and w.rng.random() < 0.3:
        style = ".ftz" + style
    known = ".xorsign" in style  # the sign of a NaN is seen
    args = [w.rng.choice(w.raw.get(kind) or [w.cast(kind)]) if known else w.pick(kind) for _ in range(2)]
    w.do(f"{op}{style}.{kind} {{}}, {', '.join(args)}", kind)


def _p_sign(w: _Ptx) -> None:
    kind = w.rng.choice(("f32", "f64", "f16", "bf16", "f16x2", "bf16x2"))
    if kind in ("f32", "f64") and w.rng.random() < 0.3:
        args = [w.rng.choice(w.raw.get(kind) or [w.cast(kind)]) for _ in range(2)]
        w.do(f"copysign.{kind} {{}}, {', '.join(args)}", kind)
        return
    ftz = ".ftz" if kind == "f32" and w.rng.random() < 0.4 else ""
    w.do(f"{w.rng.choice(('neg', 'abs'))}{ftz}.{kind} {{}}, {w.pick(kind)}", kind)


def _p_convert_integer(w: _Ptx) -> None:
    source, target = (w.rng.choice("su") + w.rng.choice(("16", "32", "64")) for _ in range(2))
    if source == target:
        return
    wider, other_sign = int(target[1:]) - int(source[1:]), source[0] != target[0]
    loses = wider < 0 or (other_sign and (wider == 0 or source[0] == "s"))  # what loses nothing takes no .sat
    sat = w.rng.choice(("", ".sat")) if loses else ""
    w.do(f"cvt{sat}.{target}.{source} {{}}, {w.pick(f'b{source[1:]}')}", f"b{target[1:]}")


def _p_from_integer(w: _Ptx) -> None:
    source, target = w.rng.choice("su") + w.rng.choice(("16", "32", "64")), w.rng.choice(("f16", "f32", "f64", "bf16"))
    w.do(f"cvt.{w.rng.choice(_MODES4)}.{target}.{source} {{}}, {w.pick(f'b{source[1:]}')}", target)


def _p_to_integer(w: _Ptx) -> None:
    source, target = w.rng.choice(("f16", "f32", "f64", "bf16")), w.rng.choice("su") + w.rng.choice(("16", "32", "64"))
    ftz = ".ftz" if source == "f32" and w.rng.random() < 0.3 else ""
    w.do(f"cvt.{w.rng.choice(_MODES4)}i{ftz}.{target}.{source} {{}}, {w.pick(source)}", f"b{target[1:]}")


def _p_convert_float(w: _Ptx) -> None:
    text, source, target = w.rng.choice((
        ("cvt.f32.f16", "f16", "f32"), ("cvt.f32.bf16", "bf16", "f32"), ("cvt.f64.f32", "f32", "f64"), ("cvt.f64.f16", "f16", "f64"),
        *((f"cvt.{m}.f32.f64", "f64", "f32") for m in _MODES4), *((f"cvt.{m}.f16.f32", "f32", "f16") for m in _MODES4),
        *((f"cvt.{m}.f16.f64", "f64", "f16") for m in _MODES4), ("cvt.rn.bf16.f32", "f32", "bf16"), ("cvt.rz.bf16.f32", "f32", "bf16"),
        ("cvt.rn.relu.f16.f32", "f32", "f16"), ("cvt.rn.relu.bf16.f32", "f32", "bf16"), ("cvt.rna.tf32.f32", "f32", "b32"),
        *((f"cvt.{m}i.f32.f32", "f32", "f32") for m in _MODES4), *((f"cvt.{m}i.f64.f64", "f64", "f64") for m in _MODES4),
        *((f"cvt.{m}i.f16.f16", "f16", "f16") for m in _MODES4), ("cvt.sat.f32.f32", "f32", "f32"), ("cvt.ftz.f32.f32", "f32", "f32"),
        ("cvt.rn.ftz.f16.f32", "f32", "f16"), ("cvt.rn.sat.f16.f32", "f32", "f16"), ("cvt.rn.sat.f32.f64", "f64", "f32"),
    ))  # fmt: skip
    w.do(f"{text} {{}}, {w.pick(source)}", target if target != "b32" else "f32", text)


def _p_pack(w: _Ptx) -> None:
    text, target = w.rng.choice((
        ("cvt.rn.f16x2.f32", "f16x2"), ("cvt.rz.f16x2.f32", "f16x2"), ("cvt.rn.bf16x2.f32", "bf16x2"), ("cvt.rz.bf16x2.f32", "bf16x2"),
        ("cvt.rn.relu.f16x2.f32", "f16x2"), ("cvt.rn.satfinite.e4m3x2.f32", "f8E4M3FN"), ("cvt.rn.satfinite.e5m2x2.f32", "f8E5M2"),
        ("cvt.rn.satfinite.relu.e4m3x2.f32", "f8E4M3FN"),
    ))  # fmt: skip
    if target.startswith("f8"):
        name = w.register("b16")
        w.lines.append(f"    {text} {name}, {w.pick('f32')}, {w.pick('f32')};")
        w.stored.append((name, f"{target} pair", text))
        if w.rng.random() < 0.5:
            w.do(f"cvt.rn.f16x2.{'e4m3x2' if '4' in target else 'e5m2x2'} {{}}, {name}", "f16x2")
        return
    w.do(f"{text} {{}}, {w.pick('f32')}, {w.pick('f32')}", target)


def _p_warp(w: _Ptx) -> None:
    kind = w.rng.choice(
        ("shfl.sync.up.b32", "shfl.sync.down.b32", "shfl.sync.bfly.b32", "shfl.sync.idx.b32", "redux", "vote", "match")
    )
    if kind == "redux":
        op = w.rng.choice(
            ("add.s32", "min.s32", "max.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32", "add.u32")
        )
        w.do(f"redux.sync.{op} {{}}, {w.pick('b32')}, 0xffffffff", "b32")
    elif kind == "vote":
        truth = w.do(f"setp.lt.s32 {{}}, {w.pick('b32')}, {w.pick('b32')}", "pred")
        w.do(f"vote.sync.ballot.b32 {{}}, {truth}, 0xffffffff", "b32")
    elif kind == "match":
        few = w.do(f"and.b32 {{}}, {w.pick('b32')}, 3", "b32")
        w.do(f"match.any.sync.b32 {{}}, {few}, 0xffffffff", "b32")
    else:
        limit = {"up": "0", "down": "31", "bfly": "31", "idx": "31"}[kind.split(".")[2]]
        mask = w.rng.choice((0, 0, 0x1800, 0x1C00))
        w.do(f"{kind} {{}}, {w.pick('b32')}, {w.pick('b32')}, {int(limit) | mask}, 0xffffffff", "b32")


def _p_exchange(w: _Ptx) -> None:
    """Through shared memory."""
    at = w.do("mov.u32 {}, %tid.x", "b32")
    from_ = w.do(f"xor.b32 {{}}, {at}, {w.rng.randrange(w.threads)}", "b32")
    places = []
    for place in (at, from_):
        far = w.do(f"shl.b32 {{}}, {place}, 2", "b32")
        places.append(w.do(f"add.u32 {{}}, {far}, %base", "b32"))
    del w.stored[-4:]  # addresses
    for name in places:
        w.values["b32"].remove(name)
    w.lines += ["    bar.sync 0;", f"    st.shared.b32 [{places[0]}], {w.pick('b32')};", "    bar.sync 0;"]
    w.do(f"ld.shared.b32 {{}}, [{places[1]}]", "b32")


def _p_branch(w: _Ptx) -> None:
    """One of two ways, or a loop of a few turns that is not the same for all."""
    b, label = w.rng.choice(("b32", "b64")), f"L{w.made}"
    out = w.do(f"mov.{b} {{}}, {w.pick(b)}", b)
    other, left = w.pick(b), w.do(f"and.b32 {{}}, {w.pick('b32')}, 7", "b32")
    kind = b.replace("b", "u")
    again = w.register("pred")
    if w.rng.random() < 0.5:
        w.lines += [
            f"    setp.gt.u32 {again}, {left}, 3;",
            f"    @{again} bra {label};",
            f"    mul.lo.{kind} {out}, {out}, {other};",
            f"{label}:",
            f"    add.{kind} {out}, {out}, 5;",
        ]
        return
    count = w.register("b32")
    w.lines += [
        f"    mov.u32 {count}, 0;", f"{label}:", f"    mad.lo.{kind} {out}, {out}, 3, {other};", f"    add.u32 {count}, {count}, 1;",
        f"    setp.lt.u32 {again}, {count}, {left};", f"    @{again} bra {label};",
    ]  # fmt: skip


_PTX_PRODUCTIONS: tuple[tuple[int, Callable[[_Ptx], None]], ...] = (
    (6, _p_integer), (2, _p_saturated), (2, _p_wide), (1, _p_24), (2, _p_divide), (2, _p_carry), (1, _p_multiply_carry), (2, _p_dot),
    (2, _p_logic), (3, _p_shift), (6, _p_bits), (4, _p_compare), (2, _p_set), (1, _p_slct), (1, _p_test), (6, _p_float), (3, _p_exact),
    (3, _p_approximate), (4, _p_half), (3, _p_extreme), (2, _p_sign), (3, _p_convert_integer), (3, _p_from_integer), (4, _p_to_integer),
    (6, _p_convert_float), (3, _p_pack), (3, _p_warp), (1, _p_exchange), (2, _p_branch),
)  # fmt: skip


def ptx_kernel(seed: int, *, all_stored: bool = False) -> GeneratedKernel:
    """The PTX kernel of a seed."""
    rng = random.Random(seed)
    threads = rng.choice((32, 64, 128))
    count = PROGRAMS * threads
    w = _Ptx(rng, threads)
    loaded = [
        *rng.sample(("b16", "b32", "b32", "b64"), 3),
        *rng.sample(("f32", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"), 4),
    ]
    body = []
    for i, kind in enumerate(loaded):
        name = w.register(kind)
        bits = 8 * _BYTES[kind]
        body += [
            f"    ld.param.u64 %p, [in{i}];",
            f"    mad.wide.u32 %p, %i, {bits // 8}, %p;",
            f"    ld.global.b{bits} {name}, [%p];",
        ]
        w.values.setdefault(kind, []).append(name)
        w.raw.setdefault(kind, []).append(name)
    weights, productions = zip(*_PTX_PRODUCTIONS, strict=True)
    for production in rng.choices(productions, weights, k=rng.randrange(6, 20)):
        production(w)
    chosen = w.stored if all_stored else w.stored[-10:]
    results, stores = [], []
    for i, (name, kind, made_by) in enumerate(chosen):
        pair = kind.endswith(" pair")
        kind = kind.removesuffix(" pair")
        bits = 16 if pair else 8 * _BYTES[kind]
        stores += [
            f"    ld.param.u64 %p, [out{i}];",
            f"    mad.wide.u32 %p, %i, {bits // 8}, %p;",
            f"    st.global.b{bits} [%p], {name};",
        ]
        several = 2 if pair or kind.endswith("x2") else 1
        results.append(Result(kind.removesuffix("x2"), count * several, made_by, _LOOSE.get(made_by)))
    params = ", ".join(
        f".param .u64 {name}{i}" for name, many in (("in", len(loaded)), ("out", len(chosen))) for i in range(many)
    )
    text = "\n".join([
        ".version 8.3", ".target sm_90", ".address_size 64", f".visible .entry k({params})", f".reqntid {threads}", "{",
        f"    .shared .align 16 .b8 room[{4 * threads}];", "    .reg .b64 %p;", "    .reg .b32 %i, %c, %base;", *w.declared,
        "    mov.u32 %i, %tid.x;", "    mov.u32 %c, %ctaid.x;", f"    mad.lo.u32 %i, %c, {threads}, %i;", "    mov.u32 %base, room;",
        *body, *w.lines, *stores, "    ret;", "}", "",
    ])  # fmt: skip
    inputs = tuple(
        (kind, np.concatenate([_input(kind.removesuffix("x2"), count * (2 if kind.endswith("x2") else 1), rng)]))
        for kind in loaded
    )
    return GeneratedKernel(seed, "ptx", text, inputs, tuple(results), threads, count)


# Running -------------------------------------------------------------------------------------------------------------


def interpreted(made: GeneratedKernel) -> list[Array]:
    """The arrays after a run of the TTIR."""
    buffers = made.buffers()
    interpret(parse(made.text), (PROGRAMS, 1, 1), [*_pointers(buffers), made.count])
    return buffers


def emulated(made: GeneratedKernel, ptx: str, shared_bytes: int, parameters: int) -> list[Array]:
    """The arrays after a run of the PTX; Triton's has two parameters more."""
    buffers = made.buffers()
    values = [*_pointers(buffers), *((made.count,) if made.language == "ttir" else ())]
    values += [0] * (parameters - len(values))
    emulate(PtxLaunch(ptx, "", (PROGRAMS, 1, 1), (made.threads, 1, 1), tuple(values), (), shared_bytes))
    return buffers


def _pointers(buffers: Sequence[Array]) -> list[Any]:
    return [Pointer(buffer, 0, f"argument {i}") for i, buffer in enumerate(buffers)]


def different(result: Result, one: Array, other: Array) -> Array:
    """Numbers of the elements that do not agree."""
    kind = f"u{_BYTES[result.type]}"
    a, b = one.view(kind), other.view(kind)
    unlike = a != b
    if result.type in _NAN and unlike.any():
        unlike &= ~(_is_nan(a, result.type) & _is_nan(b, result.type))
    if result.loose and unlike.any():
        relative, absolute = result.loose
        x, y = (v.view(f"f{_BYTES[result.type]}").astype(np.float64) for v in (one, other))
        with np.errstate(all="ignore"):
            close = np.abs(x - y) <= np.maximum(np.maximum(np.abs(x), np.abs(y)) * relative, absolute)
        tiny = (np.abs(x) < 2.4e-38) & (np.abs(y) < 2.4e-38)  # a subnormal number, or what `ftz` makes of it
        unlike &= ~(close | tiny | (x == y))
    return np.flatnonzero(unlike)


def _is_nan(bits: Array, kind: str) -> Array:
    exponent, mantissa = _NAN[kind]
    if kind == "f8E4M3FN":
        return np.asarray((bits & exponent) == exponent)
    return np.asarray(((bits & exponent) == exponent) & ((bits & mantissa) != 0))


@dataclass(frozen=True)
class Difference:
    """Where two ways of running a kernel do not agree: in which results, with the first element that differs."""

    seed: int
    language: str
    ways: str
    words: str


@dataclass(frozen=True)
class Ran:
    """What came of one kernel on the CPU. `expected`: the emulator's arrays; `left_out`: why there are none."""

    made: GeneratedKernel
    differences: tuple[Difference, ...] = ()
    expected: tuple[Array, ...] = ()
    cubin: bytes = b""
    shared_bytes: int = 0
    parameters: int = 0
    left_out: str = ""


def compared(made: GeneratedKernel, ways: str, one: Sequence[Array], other: Sequence[Array]) -> tuple[Difference, ...]:
    """The disagreement of two runs."""
    first = len(made.inputs)
    lines = []
    for result, x, y in zip(made.results, one[first:], other[first:], strict=False):
        if len(at := different(result, x, y)):
            kind, n = f"u{_BYTES[result.type]}", int(at[0])
            lines.append(
                f"{result.made_by}: {len(at)} of {result.count} {result.type}; element {n}: {x.view(kind)[n]:#x} and {y.view(kind)[n]:#x}"
            )
    return (Difference(made.seed, made.language, ways, "\n    ".join(lines)),) if lines else ()


def generated(seed: int, *, all_stored: bool = False) -> GeneratedKernel:
    """The kernel of a seed: TTIR of even ones, PTX of odd."""
    return (ptx_kernel if seed % 2 else ttir_kernel)(seed, all_stored=all_stored)


def on_cpu(seed: int, *, all_stored: bool = False, cubins: bool = False) -> Ran:
    """A kernel compiled, and run by all that need no GPU."""
    made = generated(seed, all_stored=all_stored)
    folder = Path(tempfile.gettempdir()) / f"differential-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    cubin, shared_bytes = b"", 0
    try:
        if made.language == "ttir":
            ptx, shared_bytes = device_code("ttir").ptx(made.kernel, ARCH, folder)
        else:
            ptx = made.text
        parameters = _parameters(ptx)
        if cubins or made.language == "ptx":
            compiled, cubin = device_code(made.kernel.language).compile(made.kernel, ARCH, folder)
            shared_bytes = int(compiled.metadata["shared"])
    except NotCompiled as error:
        return Ran(made, left_out=f"not compiled: {error.failure.message[:300]}")
    except RuntimeError as error:
        return Ran(made, left_out=f"not compiled: {error!s:.300}")
    try:
        with np.errstate(all="ignore"):
            expected = emulated(made, ptx, shared_bytes, parameters)
            found = (
                compared(made, "interpreter, emulator", interpreted(made), expected) if made.language == "ttir" else ()
            )
    except NotInterpreted as error:
        failed = Difference(made.seed, made.language, "not run", error.detail)
        return Ran(made, (failed,), (), cubin, shared_bytes, parameters)
    return Ran(made, found, tuple(expected), cubin, shared_bytes, parameters)


def _parameters(ptx: str) -> int:
    from kerneltune.tools.languages.ptx.ir import parse as parse_ptx

    return len(parse_ptx(ptx).entries[0].params)


def on_gpu(ran: Ran) -> tuple[Difference, ...]:
    """The same on the GPU of this process, by the driver calls of a runner."""
    import torch

    from kerneltune.tools.backends.cuda.driver import LaunchShape, LoadedKernel, pack_scalar

    made = ran.made
    buffers = [torch.from_numpy(b).cuda() for b in made.buffers()]
    loaded = LoadedKernel(ran.cubin, "k", ran.shared_bytes)
    values = [pack_scalar("*i8", b.data_ptr()) for b in buffers]
    values += [pack_scalar("i32", made.count)] if made.language == "ttir" else []
    values += [pack_scalar("*i8", 0)] * (ran.parameters - len(values))  # Triton's scratch
    loaded.launch(
        LaunchShape((PROGRAMS, 1, 1), (made.threads, 1, 1), ran.shared_bytes),
        values,
        torch.cuda.current_stream().cuda_stream,
    )
    torch.cuda.synchronize()
    found = [b.cpu().numpy() for b in buffers]
    loaded.unload()
    return compared(made, "emulator, GPU", ran.expected, found)


def culprit(seed: int, *, gpu: bool = False) -> str:
    """The first instruction whose result differs, of the kernel that stores every value; and what it is given."""
    ran = on_cpu(seed, all_stored=True, cubins=gpu)
    found = on_gpu(ran) if gpu and ran.expected else ran.differences
    if not found:
        return "with every value stored both agree" if not ran.left_out else ran.left_out
    return "first: " + found[0].words.splitlines()[0].strip()


def _quietly(seed: int, cubins: bool) -> Ran:
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            return on_cpu(seed, cubins=cubins)
    except Exception:  # noqa: BLE001 - that an interpreter fails otherwise than it says is a disagreement, too
        made = generated(seed)
        return Ran(made, (Difference(seed, made.language, "failed", traceback.format_exc()[-1500:]),))


def _all(seeds: Sequence[int], jobs: int, cubins: bool) -> Iterator[Ran]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        yield from pool.map(partial(_quietly, cubins=cubins), seeds, chunksize=8)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.differential", description=__doc__.partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=("ttir", "ptx"))
    parser.add_argument("--out", type=Path, help="a folder for the texts of kernels that disagree")
    given = parser.parse_args()
    seeds = list(range(given.seed, given.seed + given.kernels))
    if given.only:
        seeds = [2 * seed + (given.only == "ptx") for seed in seeds]
    began_s = time.monotonic()
    counts = {"ttir": 0, "ptx": 0}
    left_out: list[str] = []
    differences: list[Difference] = []
    for ran in _all(seeds, given.jobs, given.gpu):
        if ran.left_out:
            left_out.append(f"{ran.made.language} {ran.made.seed}: {ran.left_out}")
            continue
        counts[ran.made.language] += 1
        found = (*ran.differences, *(on_gpu(ran) if given.gpu and ran.expected else ()))
        differences += found
        for one in found:
            print(f"{one.language} {one.seed} ({one.ways}):\n    {one.words}")
            if one.ways in ("interpreter, emulator", "emulator, GPU"):
                print(f"    {culprit(one.seed, gpu=one.ways == 'emulator, GPU')}", flush=True)
        if found and given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{ran.made.seed}.{ran.made.language}").write_text(ran.made.text)
    for line in left_out[:20]:
        print(f"left out: {line}")
    print(
        json.dumps(
            {
                "kernels": counts,
                "left_out": len(left_out),
                "disagreements": len(differences),
                "gpu": given.gpu,
                "seconds": round(time.monotonic() - began_s, 1),
            }
        )
    )
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
