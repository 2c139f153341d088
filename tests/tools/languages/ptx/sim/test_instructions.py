"""Single instructions of PTX with answers worked out by hand, or by Python's exact integers and fractions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.tools.languages.ptx.sim.threads import Array, compute, f32, u16, u32, u64

M = 0xFFFFFFFF


def floats(bits: Array) -> list[float]:
    return [float(x) for x in bits.view(np.float32)]


@pytest.mark.parametrize(
    ("text", "a", "b", "wanted"),
    [
        ("add.s32", 0x7FFFFFFF, 1, 0x80000000),
        ("add.sat.s32", 0x7FFFFFFF, 1, 0x7FFFFFFF),
        ("sub.sat.s32", -(2**31), 1, 0x80000000),
        ("sub.u32", 0, 1, M),
        ("mul.lo.s32", 0x10001, 0x10001, 0x20001),
        ("mul.hi.u32", M, M, 0xFFFFFFFE),
        ("mul.hi.s32", -1, -1, 0),
        ("mul.hi.s32", -(2**31), 3, M - 1),
        ("mul24.lo.u32", 0xFF000003, 5, 15),
        ("mul24.hi.s32", 0x800000, 0x400000, M & (-(2**45) >> 16)),
        ("div.s32", -7, 2, -3 & M),
        ("div.s32", -(2**31), -1, 0x80000000),
        ("div.s32", -(2**31), 3, -715827882 & M),
        ("div.u32", 7, 0, M),
        ("rem.s32", -7, 2, -1 & M),
        ("rem.s32", -(2**31), -1, 0),
        ("rem.u32", 7, 4, 3),
        ("min.s32", -5, 3, -5 & M),
        ("min.u32", -5, 3, 3),
        ("max.s32", -5, 3, 3),
        ("and.b32", 0xF0F0, 0xFF00, 0xF000),
        ("xor.b32", 0xF0F0, 0xFF00, 0x0FF0),
        ("shl.b32", 1, 31, 0x80000000),
        ("shl.b32", 1, 32, 0),
        ("shr.u32", 0x80000000, 40, 0),
        ("shr.s32", 0x80000000, 40, M),
        ("shr.s32", 0x80000000, 4, 0xF8000000),
        ("add.u16x2", 0x0001FFFF, 0x00010001, 0x00020000),
        ("max.s16x2", 0x0001FFFF, 0xFFFF0001, 0x00010001),
        ("bmsk.clamp.b32", 4, 8, 0xFF0),
    ],
)
def test_integers_of_32_bits(text: str, a: int, b: int, wanted: int) -> None:
    assert compute(f"{text} d, a, b;", u32(a), u32(b)).tolist() == [wanted]


@pytest.mark.parametrize(
    ("text", "a", "b", "wanted"),
    [
        ("mul.hi.u64", -1, -1, 2**64 - 2),
        ("mul.hi.s64", -1, 5, 2**64 - 1),
        ("mul.hi.s64", -(2**63), -(2**63), 2**62),
        ("mul.lo.s64", 3 << 62, 3, 9 << 62 & 2**64 - 1),
        ("div.s64", -(2**63), 10, -922337203685477580 & 2**64 - 1),
        ("rem.u64", 2**64 - 1, 10, 5),
        ("min.s64", -1, 1, 2**64 - 1),
    ],
)
def test_integers_of_64_bits(text: str, a: int, b: int, wanted: int) -> None:
    assert compute(f"{text} d, a, b;", u64(a), u64(b), out="u8").tolist() == [wanted]


@pytest.mark.parametrize(
    ("text", "a", "b", "c", "wanted"),
    [
        ("mad.lo.s32", 3, -4, 5, -7 & M),
        ("mad.hi.u32", M, M, 1, M),
        ("sad.s32", -3, 4, 10, 17),
        ("bfe.u32", 0xABCD1234, 8, 8, 0x12),
        ("bfe.s32", 0x0000F000, 12, 4, M),
        ("bfe.s32", 0x80000000, 28, 8, 0xFFFFFFF8),
        ("bfe.u32", 0xABCD1234, 8, 0, 0),
        ("prmt.b32", 0x33221100, 0x77665544, 0x7531, 0x77553311),
        ("prmt.b32", 0x000000FF, 0, 0x8888, M),
        ("prmt.b32.rc16", 0x33221100, 0, 1, 0x33223322),
        ("prmt.b32.f4e", 0x33221100, 0x77665544, 3, 0x66554433),
        ("shf.l.wrap.b32", 0x80000001, 0x7, 4, 0x78),
        ("shf.r.clamp.b32", 0x12345678, 0xABCD, 40, 0xABCD),
        ("dp4a.u32.u32", 0x01020304, 0x01010101, 100, 110),
        ("dp4a.s32.u32", 0xFF020304, 0x02010101, 0, 7),
        ("slct.b32.s32", 7, 9, -1, 9),
    ],
)
def test_three_operands(text: str, a: int, b: int, c: int, wanted: int) -> None:
    assert compute(f"{text} d, a, b, c;", u32(a), u32(b), u32(c)).tolist() == [wanted]


def test_any_function_of_three_bits() -> None:
    a, b, c = 0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA
    for table, wanted in ((0x80, a & b & c), (0xFE, a | b | c), (0x96, a ^ b ^ c), (0xCA, (a & b) | (~a & M & c))):
        assert compute(f"lop3.b32 d, a, b, c, {table};", u32(a), u32(b), u32(c)).tolist() == [wanted]


def test_a_field_is_put_into_others() -> None:
    assert compute("bfi.b32 d, a, b, 4, 8;", u32(0x1FF), u32(0)).tolist() == [0xFF0]
    assert compute("bfi.b32 d, a, b, 28, 8;", u32(0xFF), u32(1)).tolist() == [0xF0000001]


@pytest.mark.parametrize(
    ("text", "a", "wanted"),
    [
        ("popc.b32", 0xF00F, 8), ("clz.b32", 0x00800000, 8), ("clz.b32", 0, 32), ("brev.b32", 1, 0x80000000),
        ("bfind.u32", 0x00800000, 23), ("bfind.s32", -1, M), ("bfind.shiftamt.u32", 0x00800000, 8), ("not.b32", 0, M),
        ("cnot.b32", 5, 0), ("abs.s32", -5, 5), ("neg.s32", 5, -5 & M), ("cvt.s32.s8", 0x80, 0xFFFFFF80),
        ("cvt.u32.u8", 0x1FF, 0xFF), ("cvt.sat.u8.s32", -3, 0), ("cvt.sat.u8.s32", 300, 255),
        ("cvt.sat.s8.s32", 300, 127),
    ],
)  # fmt: skip
def test_one_operand(text: str, a: int, wanted: int) -> None:
    assert compute(f"{text} d, a;", u32(a)).tolist() == [wanted]


def test_a_product_of_128_bits_by_carries_is_exact() -> None:
    x, y = 0xFEDCBA9876543210, 0x0F1E2D3C4B5A6978
    body = """
    .reg .b32 al, ah, bl, bh, r0, r1, r2, r3;
    mov.b64 {al, ah}, a; mov.b64 {bl, bh}, b;
    mul.lo.u32 r0, al, bl; mul.hi.u32 r1, al, bl;
    mad.lo.cc.u32 r1, al, bh, r1; madc.hi.u32 r2, al, bh, 0;
    mad.lo.cc.u32 r1, ah, bl, r1; madc.hi.cc.u32 r2, ah, bl, r2; addc.u32 r3, 0, 0;
    mad.lo.cc.u32 r2, ah, bh, r2; madc.hi.u32 r3, ah, bh, r3;
    """
    low = compute(body + "mov.b64 d, {r0, r1};", u64(x), u64(y), out="u8")
    high = compute(body + "mov.b64 d, {r2, r3};", u64(x), u64(y), out="u8")
    assert int(low[0]) | int(high[0]) << 64 == x * y


def test_borrows_run_through_chains() -> None:
    body = "sub.cc.u32 d, a, 1; subc.u32 d, b, 0;"
    assert compute(body, u32(0, 1), u32(7, 7)).tolist() == [6, 7]


# -- floats -----------------------------------------------------------------------------------------------------------


def rounded(exact: Fraction, mode: str) -> float:
    """An exact number as float32, rounded as PTX says; finite and normal."""
    near = np.float32(float(exact))
    around = [float(x) for x in (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))]
    if mode == "rm":
        return max(x for x in around if Fraction(x) <= exact)
    if mode == "rp":
        return min(x for x in around if Fraction(x) >= exact)
    if mode == "rz":
        return rounded(exact, "rm" if exact > 0 else "rp")
    best = min(abs(Fraction(x) - exact) for x in around)
    ties = [x for x in around if abs(Fraction(x) - exact) == best]
    even = [x for x in ties if struct.unpack("<I", struct.pack("<f", x))[0] % 2 == 0]
    return (even or ties)[0] if len(ties) > 1 else ties[0]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma", "div"])
def test_sums_products_and_quotients_are_rounded_once_in_every_direction(op: str, mode: str) -> None:
    draw = np.random.default_rng(7)
    a, b, c = ((draw.standard_normal(512) * 2.0 ** draw.integers(-30, 30, 512)).astype(np.float32) for _ in range(3))
    operands = "a, b, c" if op == "fma" else "a, b"
    found = compute(f"{op}.{mode}.f32 d, {operands};", a, b, c, out="f4")
    exacts: dict[str, Callable[..., Fraction]] = {
        "add": lambda x, y, z: x + y,
        "sub": lambda x, y, z: x - y,
        "mul": lambda x, y, z: x * y,
        "fma": lambda x, y, z: x * y + z,
        "div": lambda x, y, z: x / y,
    }
    wanted = [
        rounded(exacts[op](*(Fraction(float(v)) for v in row)), mode) for row in zip(a, b, c, strict=True)
    ]  # fmt: skip
    assert found.tolist() == wanted


def test_a_fused_product_is_rounded_once_where_two_roundings_differ() -> None:
    a, c = f32(1 + 2**-12), f32(-(1 + 2**-11))
    assert compute("fma.rn.f32 d, a, a, c;", a, a, c, out="f4").tolist() == [2**-24]
    assert compute("mul.f32 d, a, a; add.f32 d, d, c;", a, a, c, out="f4").tolist() == [0.0]


@pytest.mark.parametrize(
    ("text", "a", "b", "wanted"),
    [
        ("min.f32", float("nan"), 1.0, 1.0), ("max.NaN.f32", float("nan"), 1.0, float("nan")),
        ("max.f32", -0.0, 0.0, 0.0), ("min.f32", 0.0, -0.0, -0.0), ("add.ftz.f32", 1e-40, 0.0, 0.0),
        ("add.f32", 1e-40, 0.0, 1e-40), ("add.sat.f32", 0.75, 0.5, 1.0), ("add.sat.f32", float("nan"), 0.0, 0.0),
        ("mul.rz.f32", 3e38, 10.0, 3.4028234663852886e38), ("mul.f32", 3e38, 10.0, float("inf")),
        ("copysign.f32", -1.0, 5.0, -5.0), ("div.full.f32", 1.0, 4.0, 0.25), ("min.xorsign.abs.f32", -2.0, 3.0, -2.0),
    ],
)  # fmt: skip
def test_special_values_of_floats(text: str, a: float, b: float, wanted: float) -> None:
    found = compute(f"{text} d, a, b;", f32(a), f32(b))
    assert found.view(np.uint32).tolist() == f32(wanted).view(np.uint32).tolist() or (np.isnan(wanted) and np.isnan(
        found.view(np.float32)
    ).all())  # fmt: skip


@pytest.mark.parametrize(
    ("text", "a", "wanted"),
    [
        ("ex2.approx.f32", 3.0, 8.0), ("lg2.approx.f32", 8.0, 3.0), ("rcp.rn.f32", 4.0, 0.25),
        ("sqrt.rn.f32", 2.25, 1.5),
        ("rsqrt.approx.f32", 4.0, 0.5), ("sin.approx.f32", 0.0, 0.0), ("cos.approx.f32", 0.0, 1.0),
        ("tanh.approx.f32", 0.0, 0.0), ("neg.f32", 1.5, -1.5), ("abs.f32", -1.5, 1.5), ("cvt.rmi.f32.f32", -1.5, -2.0),
        ("cvt.rni.f32.f32", 2.5, 2.0), ("cvt.rna.tf32.f32", 1 + 2**-11, 1 + 2**-10),
    ],
)  # fmt: skip
def test_functions_of_one_float(text: str, a: float, wanted: float) -> None:
    assert floats(compute(f"{text} d, a;", f32(a))) == [wanted]


@pytest.mark.parametrize(
    ("text", "a", "wanted"),
    [
        ("cvt.rni.s32.f32", 2.5, 2), ("cvt.rzi.s32.f32", -2.9, -2 & M), ("cvt.rmi.s32.f32", -2.1, -3 & M),
        ("cvt.rpi.u32.f32", -0.5, 0), ("cvt.rzi.s32.f32", 1e20, 0x7FFFFFFF), ("cvt.rzi.u32.f32", -5.0, 0),
        ("cvt.rzi.s32.f32", float("nan"), 0), ("cvt.rzi.s8.f32", 200.0, 127),
    ],
)  # fmt: skip
def test_floats_become_whole_numbers_clamped(text: str, a: float, wanted: int) -> None:
    assert compute(f"{text} d, a;", f32(a)).tolist() == [wanted]


def test_large_integers_become_floats_rounded_once() -> None:
    values = u64(2**63 - 1, 2**53 + 1, 2**60 + 2**36 + 1, (1 << 24) + 1)
    found = compute(".reg .f32 f; cvt.rz.f32.u64 f, a; mov.b32 d, f;", values)
    wanted = [float(2**63 - 2**39), float(2**53), float(2**60), float(2**24)]
    assert floats(found) == wanted
    near = compute(".reg .f32 f; cvt.rn.f32.u64 f, a; mov.b32 d, f;", values)
    assert floats(near) == [float(2**63), float(2**53), float(2**60 + 2**37), float(2**24)]


@pytest.mark.parametrize(
    ("text", "a", "wanted"),
    [
        ("cvt.rn.f16.f32", 1 + 2**-11, 0x3C00), ("cvt.rz.f16.f32", 1.9999, 0x3FFF),
        ("cvt.rn.bf16.f32", 1 + 2**-8, 0x3F80),
        ("cvt.rn.bf16.f32", 1 + 3 * 2**-8, 0x3F82), ("cvt.rz.bf16.f32", 1 + 3 * 2**-8, 0x3F81),
        ("cvt.rn.f16.f32", 1e6, 0x7C00), ("cvt.rn.f16.f32", 2.0**-24, 0x0001), ("cvt.rn.relu.bf16.f32", -3.0, 0),
    ],
)  # fmt: skip
def test_floats_of_16_bits_are_rounded(text: str, a: float, wanted: int) -> None:
    assert compute(f"{text} d, a;", f32(a), out="u2").tolist() == [wanted]


def test_pairs_of_halves_are_packed_upper_first_and_computed_apart() -> None:
    one_two = compute("cvt.rn.f16x2.f32 d, a, b;", f32(1.0), f32(2.0))
    assert one_two.tolist() == [0x3C004000]
    assert compute("add.rn.f16x2 d, a, b;", one_two, u32(0x40003C00)).tolist() == [0x42004200]
    assert compute("fma.rn.bf16x2 d, a, b, c;", u32(0x3F804000), u32(0x40004000), u32(0x3F800000)).tolist() == [
        0x40404080
    ]
    assert compute("cvt.rn.satfinite.e4m3x2.f32 d, a, b;", f32(1000.0), f32(1.0), out="u2").tolist() == [0x7E38]
    assert compute("cvt.rn.f16x2.e4m3x2 d, a;", u16(0x7E38)).tolist() == [0x5F003C00]


def test_the_float_of_a_bf16_is_itself() -> None:
    assert floats(compute("cvt.f32.bf16 d, a;", u16(0x3F80, 0xC040))) == [1.0, -3.0]
    assert compute("mul.bf16 d, a, b;", u16(0x3F81), u16(0x3F81), out="u2").tolist() == [0x3F82]


# -- comparisons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "truth"),
    [
        ("lt.f32", [1, 0, 0, 0]), ("ltu.f32", [1, 0, 0, 1]), ("ne.f32", [1, 0, 1, 0]), ("neu.f32", [1, 0, 1, 1]),
        ("equ.f32", [0, 1, 0, 1]), ("num.f32", [1, 1, 1, 0]), ("nan.f32", [0, 0, 0, 1]), ("ge.f32", [0, 1, 1, 0]),
    ],
)  # fmt: skip
def test_comparisons_with_nan_follow_their_names(test: str, truth: list[int]) -> None:
    a, b = f32(1, 2, 3, float("nan")), f32(2, 2, 2, 2)
    assert compute(f"setp.{test} p, a, b; selp.b32 d, 1, 0, p;", a, b).tolist() == truth


def test_a_comparison_has_an_opposite_and_joins_a_predicate() -> None:
    a, b = u32(1, 5), u32(3, 3)
    assert compute("setp.lt.u32 p|q, a, b; selp.b32 d, 1, 0, q;", a, b).tolist() == [0, 1]
    body = "setp.eq.u32 p, a, a; setp.gt.or.u32 q, a, b, !p; selp.b32 d, 1, 0, q;"
    assert compute(body, a, b).tolist() == [0, 1]
    assert compute("set.lt.u32.u32 d, a, b;", a, b).tolist() == [M, 0]
    assert compute("setp.lt.s32 p, a, 0; @p mov.b32 a, 9; @!p mov.b32 a, 4; mov.b32 d, a;", u32(-1, 1)).tolist() == [
        9,
        4,
    ]


# -- warps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("bfly.b32 d, a, 1, 31, -1", lambda i: i ^ 1), ("up.b32 d, a, 2, 0, -1", lambda i: i - 2 if i > 1 else i),
        ("down.b32 d, a, 4, 31, -1", lambda i: i + 4 if i < 28 else i), ("idx.b32 d, a, 5, 31, -1", lambda i: 5),
        ("idx.b32 d, a, 1, 0x181f, -1", lambda i: i // 8 * 8 + 1),
        ("down.b32 d, a, 1, 0x181f, -1", lambda i: i + 1 if i % 8 < 7 else i),
    ],
)  # fmt: skip
def test_lanes_read_one_another(mode: str, wanted: object) -> None:
    assert callable(wanted)
    found = compute(f"shfl.sync.{mode};", np.arange(32, dtype=np.uint32))
    assert found.tolist() == [wanted(i) for i in range(32)]


def test_warps_vote_match_reduce_and_elect() -> None:
    a = np.arange(64, dtype=np.uint32)
    odd = "and.b32 a, a, 1; setp.eq.u32 p, a, 1;"
    assert set(compute(odd + "vote.sync.ballot.b32 d, p, -1;", a).tolist()) == {0xAAAAAAAA}
    assert set(compute(odd + "vote.sync.all.pred q, p, -1; selp.b32 d, 1, 0, q;", a).tolist()) == {0}
    assert set(compute(odd + "vote.sync.any.pred q, p, -1; selp.b32 d, 1, 0, q;", a).tolist()) == {1}
    assert compute(odd + "match.any.sync.b32 d, a, -1;", a).tolist() == [0x55555555, 0xAAAAAAAA] * 32
    assert compute("redux.sync.add.s32 d, a, -1;", a).tolist() == [496] * 32 + [496 + 1024] * 32
    assert compute("redux.sync.max.u32 d, a, -1;", a).tolist() == [31] * 32 + [63] * 32
    chosen = compute("elect.sync d|p, -1; @!p mov.b32 d, 99;", a)
    assert chosen.tolist() == ([0] + [99] * 31) * 2
    assert (
        compute("setp.gt.u32 p, a, 40; mov.b32 d, 0; @p activemask.b32 d;", a).tolist() == [0] * 41 + [0xFFFFFE00] * 23
    )


def test_a_partial_mask_shuffles_among_its_lanes() -> None:
    body = """
    setp.lt.u32 p, a, 16; mov.b32 d, 7;
    @!p bra done; shfl.sync.bfly.b32 d, a, 8, 31, 0xffff;
    done:
    """
    found = compute(body, np.arange(32, dtype=np.uint32))
    assert found.tolist() == [i ^ 8 for i in range(16)] + [7] * 16


# -- constants and memory ---------------------------------------------------------------------------------------------


def test_numbers_of_every_spelling_are_read() -> None:
    zero = u32(0)
    for text, wanted in (
        ("0x7b", 123),
        ("0b101", 5),
        ("017", 15),
        ("-1", M),
        ("0f3F800000", 0x3F800000),
        ("123U", 123),
    ):
        assert compute(f"mov.b32 d, {text};", zero).tolist() == [wanted]
    assert floats(compute("mov.f32 d, 1.5;", zero)) == [1.5]
    assert compute("mov.f64 d, 0d3FF8000000000000;", zero, out="f8").tolist() == [1.5]


def test_what_nothing_wrote_is_not_a_number() -> None:
    assert np.isnan(compute(".reg .f32 x; mov.b32 d, x;", u32(0), out="f4")).all()
    shared = compute(
        ".shared .align 4 .b8 s[256]; .reg .b32 w; mov.b32 w, s; ld.shared.b32 d, [w+16];", u32(0), out="f4"
    )
    assert np.isnan(shared).all()
    assert np.isnan(compute(".local .b32 s; ld.local.b32 d, [s];", u32(0), out="f4")).all()


def test_generic_addresses_reach_every_window() -> None:
    body = """
    .shared .align 8 .b32 s[32]; .local .b32 l; .reg .b64 x, y; .reg .b32 o, v;
    mov.u64 x, s; cvta.shared.u64 x, x; mad.wide.u32 x, %t, 4, x; st.b32 [x], a; ld.b32 v, [x];
    mov.u64 y, l; cvta.local.u64 y, y; st.b32 [y], v; setp.lt.u32 p, a, 16; selp.b64 x, x, y, p;
    ld.b32 d, [x]; add.u32 d, d, 1;
    """
    found = compute(body, np.arange(32, dtype=np.uint32))
    assert found.tolist() == list(range(1, 33))


def test_bytes_are_extended_and_cut_by_loads_and_stores() -> None:
    body = ".local .b8 l[8]; st.local.u8 [l+1], a; ld.local.s8 d, [l+1];"
    assert compute(body, u32(0x1FE)).tolist() == [0xFFFFFFFE]
    assert compute(body.replace("ld.local.s8", "ld.local.u8"), u32(0x1FE)).tolist() == [0xFE]
