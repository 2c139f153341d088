"""What single ops mean: rounding, wrapping, NaN, atomics, masks and the errors of memory."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from kerneltune.tools.languages.triton.ttir.interpreter import run
from kerneltune.tools.languages.triton.ttir.ir import (
    AssertFailed,
    Misaligned,
    OutOfBounds,
    OutOfTime,
    Scalar,
    StepLimit,
    UnsupportedOp,
    parse,
)
from kerneltune.tools.languages.triton.ttir.memory import Argument, Pointer
from kerneltune.tools.languages.triton.ttir.values import encode, fma_f64, round_bf16, round_tf32, round_to
from tests.tools.languages.triton.ttir import kernels
from tests.tools.languages.triton.ttir.lowering import launch, lower, pointer


def evaluate(body: str, kind: str, *values: int | float) -> Any:
    """Runs ops that turn scalar arguments %a, %b... into %r of type `kind` and returns the result."""
    dtype = {"i1": torch.bool, "i8": torch.int8, "i32": torch.int32, "i64": torch.int64, "f32": torch.float32}[kind]
    names = "abcd"[: len(values)]
    kinds = ["f32" if isinstance(value, float) else "i32" for value in values]
    args = "".join(f", %{name}: {kind}" for name, kind in zip(names, kinds, strict=True))
    lines = "\n".join(line.strip() for line in body.strip().splitlines())
    end = f"tt.store %out, %r : !tt.ptr<{kind}>\ntt.return"
    text = f"tt.func public @f(%out: !tt.ptr<{kind}>{args}) {{\n{lines}\n{end}\n}}"
    out = torch.zeros(1, dtype=dtype)
    run(parse(text), (1, 1, 1), [pointer("out", out), *values])
    return out.item()


# -- numbers ----------------------------------------------------------------------------------------------------------

EVERY = torch.cat([torch.randn(4000) * scale for scale in (1e-8, 1e-3, 1.0, 100.0, 1e5)])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("f16", torch.float16),
        ("f8E4M3FN", torch.float8_e4m3fn),
        ("f8E5M2", torch.float8_e5m2),
    ],
)
def test_rounding_to_narrow_floats_equals_torch_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    ties = torch.arange(0, 20000).float() / 512
    finite = torch.finfo(dtype).max
    x = torch.cat([EVERY, ties, -ties, torch.tensor([0.0, -0.0])]).clamp(-finite, finite)
    found = encode(round_to(x.numpy(), Scalar(name)), Scalar(name))
    wanted = x.to(dtype).view(torch.int8 if dtype.itemsize == 1 else torch.int16).numpy()
    assert (found.view(wanted.dtype) == wanted).all()


def test_every_fp8_code_survives_a_round_trip() -> None:
    for name, dtype in (("f8E4M3FN", torch.float8_e4m3fn), ("f8E5M2", torch.float8_e5m2)):
        codes = torch.arange(256, dtype=torch.uint8)
        values = codes.view(dtype).float()
        finite = values.isfinite().numpy()
        found = encode(values.numpy(), Scalar(name))
        assert (found[finite] == codes.numpy()[finite]).all()


def test_fp8_casts_saturate_and_keep_nan() -> None:
    x = np.array([1e9, -np.inf, np.nan], np.float32)
    assert np.array_equal(round_to(x, Scalar("f8E4M3FN")), np.array([448, -448, np.nan]), equal_nan=True)


def test_bf16_rounds_nan_to_nan_and_overflow_to_infinity() -> None:
    x = np.array([np.nan, 3.4e38, 1.0], np.float32)
    assert np.array_equal(round_bf16(x), np.array([np.nan, np.inf, 1.0]), equal_nan=True)


def test_tf32_keeps_ten_bits_of_mantissa() -> None:
    x = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -1 - 2**-11], np.float32)
    assert round_tf32(x).tolist() == [1 + 2**-10, 1 + 2**-10, 1.0, -1 - 2**-10]


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_kernel_that_casts_rounds_like_torch(target: torch.dtype) -> None:
    x, y = torch.randn(100) * 10, torch.empty(100, dtype=target)
    launch(kernels.cast, (2,), x=x, y=y, n=100, B=64)
    assert torch.equal(y.float(), x.to(target).float())


def test_bf16_arithmetic_rounds_after_each_op() -> None:
    body = """%x = arith.truncf %a : f32 to bf16
              %y = arith.addf %x, %x : bf16
              %z = arith.addf %y, %x : bf16
              %r = arith.extf %z : bf16 to f32"""
    x = torch.tensor(1.2345).bfloat16()
    assert evaluate(body, "f32", 1.2345) == float((x + x) + x)


def test_f32_arithmetic_is_not_done_in_double() -> None:
    body = "%x = arith.addf %a, %b : f32\n%r = arith.subf %x, %a : f32"
    assert evaluate(body, "f32", 1e8, 1.0) == 0.0


@pytest.mark.parametrize(
    ("op", "wanted"), [("maximumf", math.nan), ("minimumf", math.nan), ("maxnumf", 1.0), ("minnumf", 1.0)]
)
def test_only_maximumf_and_minimumf_propagate_nan(op: str, wanted: float) -> None:
    assert evaluate(f"%r = arith.{op} %a, %b : f32", "f32", math.nan, 1.0) == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize("predicate", "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno".split())
def test_float_comparisons_with_nan_are_false_if_ordered_and_true_if_unordered(predicate: str) -> None:
    assert evaluate(f"%r = arith.cmpf {predicate}, %a, %b : f32", "i1", math.nan, 1.0) == (predicate[0] == "u")


def test_integer_comparisons_are_signed_or_unsigned() -> None:
    assert evaluate("%r = arith.cmpi slt, %a, %b : i32", "i1", -1, 1)
    assert not evaluate("%r = arith.cmpi ult, %a, %b : i32", "i1", -1, 1)


@pytest.mark.parametrize(
    ("op", "a", "b", "wanted"),
    [
        ("addi", 2**31 - 1, 1, -(2**31)),
        ("muli", 65537, 65537, 131073),
        ("divsi", -7, 2, -3),
        ("remsi", -7, 2, -1),
        ("floordivsi", -7, 2, -4),
        ("ceildivsi", 7, 2, 4),
        ("ceildivsi", -(2**31), 2, -(2**30)),
        ("ceildivsi", -7, 2, -3),
        ("divui", -1, 2, 2**31 - 1),
        ("remui", -1, 10, 5),
        ("shli", 1, 31, -(2**31)),
        ("shli", 1, 32, 0),
        ("shrsi", -8, 1, -4),
        ("shrui", -8, 1, 2**31 - 4),
        ("maxui", -1, 1, -1),
        ("minsi", -1, 1, -1),
    ],
)
def test_integer_arithmetic_wraps_and_truncates(op: str, a: int, b: int, wanted: int) -> None:
    assert evaluate(f"%r = arith.{op} %a, %b : i32", "i32", a, b) == wanted


def test_high_halves_of_products_are_exact_in_64_bits() -> None:
    body = """%x = arith.extsi %a : i32 to i64
              %y = arith.muli %x, %x : i64
              %z = arith.addi %y, %x : i64
              %lo, %r = arith.{}_extended %z, %y : i64"""
    y = (-123456789) ** 2
    z = y - 123456789
    assert evaluate(body.format("mulsi"), "i64", -123456789) == (z * y) >> 64
    assert evaluate(body.format("mului"), "i64", -123456789) == (z * y) >> 64


@pytest.mark.parametrize(("value", "wanted"), [(3e9, 2**31 - 1), (-3e9, -(2**31)), (math.nan, 0), (-1.9, -1)])
def test_float_to_int_saturates_like_the_hardware(value: float, wanted: int) -> None:
    assert evaluate("%r = arith.fptosi %a : f32 to i32", "i32", value) == wanted


@pytest.mark.parametrize(("source", "target"), [("f32", "i64"), ("f64", "i32"), ("f64", "i64")])
@pytest.mark.parametrize("op", ["fptosi", "fptoui"])
def test_nan_of_64_bits_or_to_64_bits_becomes_the_highest_bit_as_cvt_has_it(op: str, source: str, target: str) -> None:
    wide = (
        "%x = arith.extf %a : f32 to f64"
        if source == "f64"
        else "%z = arith.constant 0.0 : f32\n%x = arith.addf %a, %z : f32"
    )
    bits = int(target[1:])
    assert evaluate(f"{wide}\n%r = arith.{op} %x : {source} to {target}", target, math.nan) == -(1 << bits - 1)


@pytest.mark.parametrize(
    ("op", "value", "wanted"),
    [
        ("ceil", 1e-40, 0.0),
        ("floor", -1e-40, -0.0),
        ("sqrt", -1e-40, -0.0),
        ("rsqrt", -1e-40, -math.inf),
        ("ceil", 1.5e-38, 1.0),
    ],
)
def test_subnormal_numbers_are_zero_to_functions_that_jump_there(op: str, value: float, wanted: float) -> None:
    found = evaluate(f"%r = math.{op} %a : f32", "f32", value)
    assert (found, math.copysign(1, found)) == (wanted, math.copysign(1, wanted))


@pytest.mark.parametrize(("op", "wanted"), [("maximumf", 0.0), ("maxnumf", 0.0), ("minimumf", -0.0), ("minnumf", -0.0)])
@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0)])
def test_minus_zero_is_below_zero(op: str, wanted: float, values: tuple[float, float]) -> None:
    def same(found: float) -> bool:
        return found == 0 and math.copysign(1, found) == math.copysign(1, wanted)

    assert same(evaluate(f"%r = arith.{op} %a, %b : f32", "f32", *values))
    body = f"""%j = tt.join %a, %b : f32 -> tensor<2xf32>
        %k = tt.join %j, %j : tensor<2xf32> -> tensor<2x2xf32>
        %x = tt.reshape %k : tensor<2x2xf32> -> tensor<4xf32>
        %r = "tt.reduce"(%x) <{{axis = 0 : i32}}> ({{
        ^bb0(%p: f32, %q: f32):
        %s = arith.{op} %p, %q : f32
        tt.reduce.return %s : f32
        }}) : (tensor<4xf32>) -> f32"""
    assert same(evaluate(body, "f32", *values))


def test_fused_products_are_rounded_once() -> None:
    rng = random.Random(5)
    for _ in range(200):
        a, b = (rng.uniform(-1, 1) * 2.0 ** rng.randrange(-30, 30) for _ in range(2))
        c = -a * b * (1 + rng.randrange(-3, 4) * 2.0**-52) if rng.random() < 0.5 else rng.uniform(-9, 9)
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        assert fma_f64(*(np.array([x]) for x in (a, b, c)))[0] == exact.numerator / exact.denominator


@pytest.mark.parametrize("span", [500, 1020])
def test_fused_products_are_rounded_once_where_parts_overflow_or_are_subnormal(span: int) -> None:
    rng = random.Random(6)
    for _ in range(300):
        a, b, c = (rng.uniform(-2, 2) * 2.0 ** rng.randrange(-span, span) for _ in range(3))
        if rng.random() < 0.3 and math.isfinite(a * b):
            c = -a * b * (1 + rng.randrange(-3, 4) * 2.0**-52)
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        try:
            wanted = exact.numerator / exact.denominator
        except OverflowError:
            wanted = math.inf if exact > 0 else -math.inf
        with np.errstate(all="ignore"):
            assert fma_f64(*(np.array([x]) for x in (a, b, c)))[0] == wanted


def test_a_fused_product_that_vanishes_keeps_its_sign() -> None:
    tiny, zeros = np.array([-5e-324, -0.0, 0.0]), np.array([0.0, -0.0, -0.0])
    found = fma_f64(tiny, np.array([0.25, 3.0, 3.0]), zeros)
    assert np.signbit(found).tolist() == [True, True, False]
    assert (found == 0).all()


@pytest.mark.parametrize("op", ["tt.reduce", "tt.scan"])
def test_a_signalling_nan_does_not_hide_the_numbers_before_it(op: str) -> None:
    bits = np.full(256, 0x3F800000, np.uint32)
    bits[0], bits[254] = 0xFF800000, 0xFFAB0000  # -inf, and a NaN that signals
    out, axis = ("f32", "") if op == "tt.reduce" else ("tensor<256xf32>", ", reverse = false")
    body = f"""%x = arith.constant dense<"0x{bits.tobytes().hex()}"> : tensor<256xf32>
        %r = "{op}"(%x) <{{axis = 0 : i32{axis}}}> ({{
        ^bb0(%p: f32, %q: f32):
        %s = arith.minnumf %p, %q : f32
        {op}.return %s : f32
        }}) : (tensor<256xf32>) -> {out}"""
    if op == "tt.scan":
        body = (
            body.replace("%r =", "%y =")
            + """
        %r = "tt.reduce"(%y) <{axis = 0 : i32}> ({
        ^bb0(%u: f32, %v: f32):
        %w = arith.maxnumf %u, %v : f32
        tt.reduce.return %w : f32
        }) : (tensor<256xf32>) -> f32"""
        )
    assert evaluate(body, "f32") == -math.inf


def test_hex_constants_are_bit_patterns() -> None:
    assert evaluate("%r = arith.constant 0xFF800000 : f32", "f32") == -math.inf
    assert evaluate("%x = arith.constant 0x7FC0 : bf16\n%r = arith.extf %x : bf16 to f32", "f32") != 0


def test_i1_is_minus_one_when_sign_extended() -> None:
    body = "%t = arith.constant true\n%r = arith.extsi %t : i1 to i32"
    assert evaluate(body, "i32") == -1


def test_bitcasts_keep_bits() -> None:
    assert evaluate("%r = arith.bitcast %a : f32 to i32", "i32", 1.0) == 0x3F800000
    body = """%x = arith.truncf %a : f32 to bf16
              %y = tt.bitcast %x : bf16 -> i16
              %r = arith.extsi %y : i16 to i32"""
    assert evaluate(body, "i32", 1.0) == 0x3F80


@pytest.mark.parametrize(
    ("op", "value", "wanted"),
    [("ctpop", 255, 8), ("ctlz", 1, 31), ("ctlz", 0, 32), ("cttz", 8, 3), ("cttz", 0, 32), ("absi", -5, 5)],
)
def test_bit_counts(op: str, value: int, wanted: int) -> None:
    assert evaluate(f"%r = math.{op} %a : i32", "i32", value) == wanted


def test_float_functions_match_torch() -> None:
    x, y = torch.randn(32), torch.empty(9, 32)
    launch(kernels.float_math, (1,), x=x, y=y, B=32)
    d = x.double()
    wanted = [
        d.exp(),
        d.abs().log() + d.abs().log2(),
        d.sin() * d.cos(),
        d.erf() + d.floor() - d.ceil(),
        d.abs().sqrt() + d.abs().rsqrt(),
        d / 3 + (d * d + d),
        d.sigmoid(),
        d.clamp(max=0.5),
        d.clamp(min=0.5),
    ]
    torch.testing.assert_close(y.double(), torch.stack(wanted), rtol=1e-5, atol=1e-5)


def test_libdevice_functions_match_torch() -> None:
    x, y = torch.randn(32), torch.empty(5, 32)
    x[0] = math.nan
    launch(kernels.libdevice_math, (1,), x=x, y=y, B=32)
    d = x.double()
    wanted = torch.stack([d.tanh(), d.abs().log1p(), d.expm1(), d.abs() ** 1.5, d.isnan().double()])
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("tgammaf", (-0.5,), math.gamma(-0.5)),
        ("tgammaf", (5.5,), math.gamma(5.5)),
        ("tgammaf", (-2.0,), math.nan),
        ("sinpif", (1000000.5,), 1.0),
        ("cospif", (3000001.0,), -1.0),
        ("logbf", (0.0,), -math.inf),
        ("logbf", (-10.0,), 3.0),
        ("fdimf", (math.nan, 1.0), math.nan),
        ("fdimf", (3.0, 1.0), 2.0),
        ("remainderf", (5.0, math.inf), 5.0),
        ("remainderf", (2.5, 1.0), math.remainder(2.5, 1.0)),
        ("remainderf", (-3.5, 1.0), math.remainder(-3.5, 1.0)),
        ("remainderf", (2.0**30 + 128, 7.0), math.remainder(2.0**30 + 128, 7.0)),
    ],
)
def test_libdevice_functions_are_right_where_simple_formulas_are_not(
    name: str, values: tuple[float, ...], wanted: float
) -> None:
    names, kinds = ", ".join(["%a", "%b"][: len(values)]), ", ".join(["f32"] * len(values))
    found = evaluate(
        f'%r = tt.extern_elementwise {names} {{symbol = "__nv_{name}"}} : ({kinds}) -> f32', "f32", *values
    )
    assert found == pytest.approx(wanted, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize(("value", "wanted"), [(0.0, -(2**31)), (math.nan, -(2**31)), (math.inf, 2**31 - 1), (10.0, 3)])
def test_the_whole_logarithm_of_what_has_none_is_an_extreme(value: float, wanted: int) -> None:
    assert evaluate('%r = tt.extern_elementwise %a {symbol = "__nv_ilogbf"} : (f32) -> i32', "i32", value) == wanted


def test_integer_kernels_match_torch() -> None:
    x = torch.randint(-(2**31), 2**31, (32,), dtype=torch.int32)
    y = torch.randint(1, 1000, (32,), dtype=torch.int32) * torch.tensor([1, -1], dtype=torch.int32).repeat(16)
    out = torch.empty(8, 32, dtype=torch.int32)
    launch(kernels.int_math, (1,), x=x, y=y, out=out, B=32)
    a, b = x.long(), y.long()
    ua, ub = a % 2**32, b % 2**32
    wanted = [
        torch.div(a, b, rounding_mode="trunc"),
        torch.fmod(a, b),
        a >> 3,
        a * 1103515245 + 12345,
        torch.tensor([int(p) * int(q) >> 32 for p, q in zip(ua, ub, strict=True)]),
        ua // ub,
        ua > ub,
        a.to(torch.int8),
    ]
    assert out.tolist() == torch.stack([each.to(torch.int32) for each in wanted]).tolist()


# -- memory -----------------------------------------------------------------------------------------------------------


def test_a_load_past_the_end_names_the_argument_and_the_offset() -> None:
    x, y = torch.zeros(20), torch.zeros(32)
    with pytest.raises(OutOfBounds, match=r"load outside argument 'x': byte offset 80 of 80, element 20 of 20"):
        launch(kernels.copy_unmasked, (2,), x=x, y=y, B=16)


def test_a_store_past_the_end_changes_nothing() -> None:
    x, y = torch.ones(32), torch.zeros(20)
    with pytest.raises(OutOfBounds, match="store outside argument 'y'"):
        launch(kernels.copy_unmasked, (2,), x=x, y=y, B=16)
    assert y.tolist() == [0] * 20


def test_masked_lanes_may_point_anywhere() -> None:
    x, y = torch.randn(2, 100), torch.zeros(2, 100)
    launch(kernels.softmax_row, (2,), x=x, y=y, n=100, B=1024)
    torch.testing.assert_close(y, x.softmax(1))


def test_masked_lanes_without_other_poison_what_depends_on_them() -> None:
    x, y = torch.ones(16), torch.zeros(1)
    launch(kernels.sum_without_other, (1,), x=x, y=y, n=10, B=16)
    assert y.isnan().all()
    launch(kernels.sum_without_other, (1,), x=x, y=y, n=16, B=16)
    assert y.item() == 16


def test_pointers_into_one_buffer_alias() -> None:
    x = torch.arange(32).float()
    storage = pointer("x", x)
    text = "tt.func public @f(%a: !tt.ptr<f32>, %b: !tt.ptr<f32>) {\n%v = tt.load %a : !tt.ptr<f32>\n"
    text += "tt.store %b, %v : !tt.ptr<f32>\n%w = tt.load %a : !tt.ptr<f32>\ntt.return\n}"
    run(parse(text), (1, 1, 1), [Pointer(storage.buffer, 64, "a"), Pointer(storage.buffer, 0, "b")])
    assert x[0] == 16


@pytest.mark.parametrize(("source", "target", "words"), [(1, 0, "1 of argument 'a'"), (4, 2, "2 of argument 'b'")])
def test_an_address_that_is_no_multiple_of_the_element_is_misaligned(source: int, target: int, words: str) -> None:
    raw = np.arange(16, dtype=np.uint8)
    text = "tt.func public @f(%a: !tt.ptr<i32>, %b: !tt.ptr<i32>) {\n%v = tt.load %a : !tt.ptr<i32>\n"
    text += "tt.store %b, %v : !tt.ptr<i32>\ntt.return\n}"
    with pytest.raises(Misaligned, match=f"4 bytes at byte offset {words}: no multiple of 4"):
        run(parse(text), (1, 1, 1), [Pointer(raw[:8], source, "a"), Pointer(raw[8:], target, "b")])
    assert raw.tolist() == list(range(16))


def test_addresses_read_from_memory_are_not_checkable() -> None:
    table, y = torch.tensor([0x7F0000000000]), torch.zeros(16)
    with pytest.raises(UnsupportedOp, match="int_to_ptr"):
        launch(kernels.pointer_table, (1,), table=table, y=y, B=16)


# -- atomics ----------------------------------------------------------------------------------------------------------


def test_atomic_adds_of_all_programs_arrive() -> None:
    x, y = torch.randn(1000), torch.zeros(1)
    launch(kernels.total, (8,), x=x, y=y, n=1000, B=128)
    torch.testing.assert_close(y, x.sum()[None], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "name", "one"), [("f32", "fadd", "1.0"), ("i32", "add", "1")])
def test_a_lane_whose_atomic_is_masked_off_is_told_nothing_that_it_could_count_on(
    kind: str, name: str, one: str
) -> None:
    body = f"""
    %m = arith.constant false
    %v = arith.constant {one} : {kind}
    %r = tt.atomic_rmw {name}, acq_rel, gpu, %out, %v, %m : (!tt.ptr<{kind}>, {kind}, i1) -> {kind}
    """
    found = evaluate(body, kind)
    assert math.isnan(found) if kind == "f32" else found not in (0, 1)


def test_every_kind_of_integer_atomic_combines_colliding_lanes() -> None:
    x = torch.randint(0, 1000, (100,), dtype=torch.int32)
    bins = torch.tensor([0, 0, 999, 0, 2**31 - 1, 0], dtype=torch.int32).repeat_interleave(4)
    launch(kernels.atomic_kinds, (2,), x=x, bins=bins, n=100, B=64)
    for lane in range(4):
        mine = x[x % 4 == lane].tolist()
        folded = [np.bitwise_or.reduce(mine), np.bitwise_and.reduce(mine), np.bitwise_xor.reduce(mine)]
        assert bins.reshape(6, 4)[:, lane].tolist() == [len(mine), max(mine), min(mine), *folded]


def test_a_ticket_counter_gives_every_program_its_own_number() -> None:
    counter, y = torch.zeros(2, dtype=torch.int32), torch.full((50,), -1, dtype=torch.int32)
    launch(kernels.ticket, (50,), counter=counter, y=y)
    assert counter.tolist() == [50, 7]
    assert sorted(y.tolist()) == list(range(50))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_float_atomic_max_works_for_both_signs(sign: float) -> None:
    x, y = sign * (torch.rand(200) + 1), torch.full((1,), -math.inf)
    launch(kernels.float_atomic_max, (4,), x=x, y=y, n=200, B=64)
    assert y.item() == x.max().item()


def test_compare_and_swap_lets_one_program_win() -> None:
    lock, y = torch.zeros(1, dtype=torch.int32), torch.empty(8, dtype=torch.int32)
    launch(kernels.compare_and_swap, (8,), lock=lock, y=y)
    assert y.tolist().count(0) == 1
    assert set(y.tolist()) == {0, lock.item()}


def test_bf16_and_f16_atomic_adds_round_each_step() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x, y = torch.full((64,), 0.001), torch.full((1,), 256.0, dtype=dtype)
        x = x.to(dtype)
        launch(kernels.total, (2,), x=x, y=y, n=64, B=32)
        assert y.item() == 256.0


# -- limits and side effects ------------------------------------------------------------------------------------------


def test_an_endless_loop_ends_in_a_step_limit() -> None:
    with pytest.raises(StepLimit):
        launch(kernels.spin_forever, (1,), max_ops=10_000, lock=torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("programs", [2, 5, 132])
def test_programs_of_a_cooperative_launch_may_wait_for_all_others(programs: int) -> None:
    x = torch.randint(-9, 9, (programs * 16,)).float()
    parts, y, arrived = torch.full((programs,), math.nan), torch.zeros(programs), torch.zeros(1, dtype=torch.int32)
    values: dict[str, Any] = {"x": x, "parts": parts, "y": y, "arrived": arrived, "B": 16, "PARTS": 256}
    launch(kernels.sum_behind_a_barrier, (programs,), cooperative=True, **values)
    assert torch.equal(y, x.sum().expand(programs))
    arrived.zero_()
    with pytest.raises(UnsupportedOp, match="launch_cooperative_grid=True"):
        launch(kernels.sum_behind_a_barrier, (programs,), **values)


def test_a_program_may_wait_for_those_before_it_in_any_launch_and_none_does_so_for_ever() -> None:
    x, y, flags = torch.randint(-9, 9, (40 * 16,)).float(), torch.zeros(640), torch.zeros(40, dtype=torch.int32)
    launch(kernels.running_sum_behind_the_program_before, (40,), x=x, y=y, flags=flags, B=16)
    assert torch.equal(y, x.cumsum(0))
    arrived = torch.full((1,), -5, dtype=torch.int32)
    before = threading.active_count()
    with pytest.raises(StepLimit, match="8 programs wait for what none of them does"):
        launch(
            kernels.sum_behind_a_barrier, (8,), cooperative=True, x=x, parts=y, y=y, arrived=arrived, B=16, PARTS=16
        )  # fmt: skip
    assert threading.active_count() == before


def test_a_queue_of_tiles_is_worked_off_by_programs_in_turns() -> None:
    x, y = torch.randn(300 * 16), torch.zeros(300 * 16)
    launch(kernels.tiles_from_a_queue, (7,), x=x, y=y, next_tile=torch.zeros(1, dtype=torch.int32), TILES=300, B=16)
    assert torch.equal(y, x * 2)


def test_an_error_of_one_program_that_waits_is_that_of_the_launch() -> None:
    x, y, flags = torch.zeros(32), torch.zeros(32), torch.zeros(3, dtype=torch.int32)
    with pytest.raises(OutOfBounds):
        launch(kernels.running_sum_behind_the_program_before, (3,), x=x, y=y, flags=flags, B=16)


def test_inline_assembly_does_what_its_instructions_do() -> None:
    x = torch.arange(32, dtype=torch.int32)
    y = torch.empty_like(x)
    launch(kernels.inline_asm, (1,), x=x, y=y, TEXT="shl.b32 $0, $1, 3;", B=32)
    assert torch.equal(y, x * 8)
    values, both = torch.randn(256), torch.empty(512)
    launch(kernels.inline_asm_of_two_results, (1,), x=values, y=both, B=256)
    assert torch.equal(both[:256], (values * 3).abs() + 1)
    torch.testing.assert_close(both[256:], values.exp2(), rtol=3e-7, atol=0)


def test_inline_assembly_is_read_wherever_its_operation_holds_it() -> None:
    held = '<{asm_string = "add.s32 $0, $1, 7;", constraints = "=r,r", packed_element = 1 : i32, pure = true}>'
    assert evaluate(f'%r = "tt.elementwise_inline_asm"(%a) {held} : (i32) -> i32', "i32", 5) == 12


def test_inline_assembly_finds_short_elements_side_by_side_in_a_register() -> None:
    x = torch.randn(4 * 64)
    y, z = torch.empty(4 * 64, dtype=torch.bfloat16), torch.empty(4 * 64, dtype=torch.bfloat16)
    launch(kernels.inline_asm_of_pairs, (4,), x=x, y=y, z=z, B=64)
    assert torch.equal(y, x.bfloat16())
    assert torch.equal(z, (y.double() * y.double() + y.double()).bfloat16())


@pytest.mark.parametrize(
    "text",
    ["ld.global.b32 $0, [$1];", "mov.u32 $0, %tid.x;", "{ bar.sync 0; mov.b32 $0, $1; }", "no.such.thing $0, $1;", "}"],
)
def test_inline_assembly_that_asks_for_more_than_registers_is_not_checkable(text: str) -> None:
    x = torch.zeros(32, dtype=torch.int32)
    with pytest.raises(UnsupportedOp) as caught:
        launch(kernels.inline_asm, (1,), x=x, y=x.clone(), TEXT=text, B=32)
    assert caught.value.op == "tt.elementwise_inline_asm"


def test_prints_and_barriers_are_ignored_and_failed_assertions_are_errors() -> None:
    x = torch.arange(32, dtype=torch.int32)
    launch(kernels.side_effects, (1,), x=x, B=32)
    assert x.tolist() == list(range(1, 33))
    with pytest.raises(AssertFailed, match="too big"):
        launch(kernels.side_effects, (1,), x=x + 100, B=32)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_program_may_be_stopped_before_its_end_unless_it_writes_over_what_it_wrote(kept: int) -> None:
    steps = 2000
    text = lower(kernels.running_total, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {"B": 16, "KEPT": kept})
    x, y = torch.ones(steps * 16), torch.zeros(steps * 16)
    args: list[Argument] = [pointer("x", x), replace(pointer("y", y), writes=[]), steps]
    try:
        run(parse(text), (1, 1, 1), args, until_s=time.process_time() + 0.05)
        ended = True
    except OutOfTime:
        ended = False
    assert ended == (not kept)
    assert y[0] == (1 if kept else steps)


def test_a_run_can_be_limited_to_some_programs() -> None:
    text = "tt.func public @f(%out: !tt.ptr<i32>) {\n%i = tt.get_program_id y : i32\n"
    text += "%p = tt.addptr %out, %i : !tt.ptr<i32>, i32\ntt.store %p, %i : !tt.ptr<i32>\ntt.return\n}"
    out = torch.full((4,), -1, dtype=torch.int32)
    stats = run(parse(text), (2, 4, 1), [pointer("out", out)], programs=[2, 6])
    assert (out.tolist(), stats.programs) == ([-1, 1, -1, 3], 2)
