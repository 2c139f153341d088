"""Instructions whose results an H200 gave, bit for bit: where `benchmarks.differential --gpu` found the emulator
wrong, by cause. Functions that PTX only approximates are not here."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.tools.languages.ptx.sim.threads import compute, u32

INF = 0x7FF0000000000000


def result(text: str, *operands: int) -> int:
    """The bits of an instruction's result, of the bits of its operands."""
    kind = text.rsplit(".", 1)[1]
    width = 4 if kind.endswith("x2") else int(kind.strip("sufb")) // 8
    return int(compute(f"{text} d, {', '.join(map(hex, operands))};", u32(0), out=f"u{width}")[0])


@pytest.mark.parametrize(
    ("text", "operands", "wanted"),
    [
        ("add.rz.f64", (0x1ECDEEEA11683F4A, 0x1ECDEEEA11683F4A), 0x1EDDEEEA11683F4A),
        ("mul.rz.f64", (0xBFF578FF346B6E54, 0xBFF578FF346B6E54), 0x3FFCD130ED92E49F),
        ("mul.rz.f64", (0xEAAF84E32ACC0FC2, 0xEAAF84E32ACC0FC2), INF - 1),
        ("mul.rm.f64", (0xF926816DF5DE8E53, 0xF926816DF5DE8E53), INF - 1),
        ("mul.rm.f64", (0x457FC4E7140704D5, 0x457FC4E7140704D5), 0x4B0F8A3B4C079889),
        ("mul.rp.f64", (0x3800, 0x3800), 1),
        ("mul.rp.f64", (0x4F96F89250F1B2FA, 0x4F96F89250F1B2FA), 0x5F407D540DCFFBD9),
        ("fma.rm.f64", (0x51C4948C0F921404,) * 3, 0x639A78C14AD75107),
        ("fma.rm.f64", (0x73F1B904D5C1F7A3,) * 3, INF - 1),
        ("fma.rm.f64", (0xD165A9DA60DF3716,) * 3, 0x62DD54E85F2CEE12),
        ("fma.rp.f64", (1, 1, 1), 2),
        ("fma.rp.f64", (0x929CC52BF82D67BB,) * 3, 0x929CC52BF82D67BA),
        ("fma.rp.f64", (0x4007987EBC2C707C, 0x3E70000000000000, 0x4007987EBC2C707C), 0x4007987ED3C4EF39),
        ("fma.rz.f64", (0x3F87DFBAA0000000, 0x3F87DFBAA0000000, 0xA3E0D0D6DFCA3B8D), 0x3F21CFB87B56671F),
        ("fma.rz.f64", (0x876BFAE84DD8E2C6,) * 3, 0x876BFAE84DD8E2C5),
        ("fma.rz.f64", (0xF2E427D7290F7067,) * 3, INF - 1),
        ("rcp.rm.f64", (2,), INF - 1),
        ("rcp.rm.f64", (0xBB97B50E6D3E33D4,), 0xC44598C5C3EDC3E9),
        ("rcp.rp.f64", (0xC3BDBA48BECB36ED,), 0xBC2139172E78B127),
        ("rcp.rz.f64", (0x1D62936BFF93E0C9,), 0x627B90096FCDA8C2),
        ("sqrt.rm.f64", (0x4004000000000000,), 0x3FF94C583ADA5B52),
        ("sqrt.rm.f64", (0x0DB243C3EC9B2E08,), 0x26D1184AD7DCF084),
        ("sqrt.rp.f64", (0x3800,), 0x1ECDEEEA11683F4A),
        ("sqrt.rz.f64", (0x608CAA3C15F6CEE6,), 0x503E495FEA415926),
        ("cvt.rp.f64.s64", (0x2895BAEED31D3020,), 0x43C44ADD77698E99),
        ("cvt.rz.f64.s64", (0xA66703EDDCF8421A,), 0xC3D6663F0488C1EF),
    ],
)
def test_float64_is_rounded_in_the_direction_that_is_asked_for(
    text: str, operands: tuple[int, ...], wanted: int
) -> None:
    assert result(text, *operands) == wanted


@pytest.mark.parametrize(
    ("text", "operands", "wanted"),
    [
        ("sub.rm.f32", (0x43929A5F, 0x43929A5F), 0x80000000), ("sub.rm.f32", (0, 0), 0x80000000),
        ("sub.rm.ftz.f32", (0x40400000, 0x40400000), 0x80000000), ("add.rm.ftz.f32", (0, 0x80000000), 0x80000000),
        ("fma.rm.f32", (0, 0, 0x80000000), 0x80000000), ("fma.rm.f32", (0x80000000,) * 3, 0x80000000),
        ("fma.rm.ftz.f32", (0x3F800000, 0xBF800000, 0x3F800000), 0x80000000),
        ("sub.rm.f64", (0x66BAC4C2513BF806, 0x66BAC4C2513BF806), 1 << 63), ("sub.rm.f64", (0x3800, 0x3800), 1 << 63),
        ("mul.rz.f32", (0, 0xA97A76D8), 0x80000000), ("mul.rp.f32", (0, 0x8BD2859F), 0x80000000),
        ("mul.rp.ftz.f32", (0x80000000, 0x3F800000), 0x80000000),
        ("fma.rp.f64", (1 << 63, 0x406FE00000000000, 1 << 63), 1 << 63),
    ],
)  # fmt: skip
def test_zeros_have_the_sign_of_the_product_and_cancelled_sums_that_are_rounded_down_are_negative(
    text: str, operands: tuple[int, ...], wanted: int
) -> None:
    assert result(text, *operands) == wanted


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("add.rn.sat.f32", (0x80000000, 0x80000000)), ("mul.rn.sat.f32", (0xB09369E3, 0)),
        ("mul.rz.sat.f32", (0x0155CE35, 0x8CC795A9)), ("fma.rm.ftz.sat.f32", (0xA85D38B9, 0x113F2AFB, 0)),
        ("fma.rn.sat.f32", (0x80000000, 0x477FE000, 0x80000000)), ("add.rn.sat.f16", (0x8000, 0x8000)),
        ("add.rn.sat.f16x2", (0x80008000, 0x80008000)), ("cvt.sat.f32.f32", (0x80000000,)),
    ],
)  # fmt: skip
def test_what_is_saturated_is_never_minus_zero(text: str, operands: tuple[int, ...]) -> None:
    assert result(text, *operands) == 0


@pytest.mark.parametrize("number", [0x80000000, 0x806A17FF, 0x92344CDB, 0xA7A8ED6A])
def test_a_conversion_that_saturates_gives_no_minus_zero(number: int) -> None:
    assert compute("cvt.rn.sat.f16.f32 d, a;", u32(number), out="u2").tolist() == [0]
    wide = np.array([np.uint32(number)]).view(np.float32).astype(np.float64)
    assert compute("cvt.rn.sat.f32.f64 d, a;", wide).tolist() == [0]


@pytest.mark.parametrize(
    ("text", "operands", "wanted"),
    [
        ("mul.rn.ftz.f16", (0x176E, 0x176E), 0), ("fma.rn.ftz.f16", (0x8001, 0x3800, 0x8001), 0x8000),
        ("mul.rn.ftz.f16x2", (0x68006800, 0x00013800), 0x00006400),
        ("add.rn.ftz.f16x2", (0x017D03D2, 0x017D3C00), 0x00003C00),
    ],
)  # fmt: skip
def test_subnormal_halves_are_flushed(text: str, operands: tuple[int, ...], wanted: int) -> None:
    assert result(text, *operands) == wanted


@pytest.mark.parametrize(
    ("text", "operands", "wanted"),
    [
        ("bfe.s64", (0x0342A18FBAA7603D, 3, 0x80000000), 0x00685431F754EC07),
        ("bfe.s64", (0x9E, 0xA29DEF05, 3), 0),
        ("bfe.s64", (0xE351BAD4E2A16725, 0x76C1CB0C, 10), (1 << 64) - 1),
        ("bfe.s64", (0x4F3D45028BFDE89A, 0xB5AE560E, 0xB5AE560E), 0),
        ("bfe.u64", (3, 0xA901D201, 0xE94A533A), 0),
        ("bfe.u64", (0x8FB90F5CA03957CD, 7, 0xC000), 0x011F721EB94072AF),
        ("bfe.u64", (0x9CE44E540685616C, 0, 0xA1151E12), 0x9CE44E540685616C),
        ("bfe.u64", (0x8D46C3CEB4734852, 0xA0B26C20, 0xA0B26C20), 0),
        ("bfi.b64", (0x01153AF9B5EE289C, 0x8A9D7CDAF7144E61, 0xF0000000, 210), 0x8A9D7CDAF7144E61),
        ("bfi.b64", (0x202A29924EAFAAE5, 0x8FE539E8E64DB94D, 15, 0x4C274C20), 0x14C92757D572B94D),
        ("bfi.b64", (0x3CBD309A8F253F26, 0x3CBD309A8F253F26, 3, 0x188A871A), 0xE5E984D47929F936),
        ("bfi.b64", (0x7F, 0x0F, 0x14971303, 0x38), 0x0F),
    ],
)
def test_fields_of_64_bits_take_place_and_length_whole(text: str, operands: tuple[int, ...], wanted: int) -> None:
    assert result(text, *operands) == wanted


@pytest.mark.parametrize(
    ("kind", "number"), [("f32", 0), ("f32", 0x80000000), ("f64", 0), ("f64", 1 << 63), ("f32", 0x00800000)]
)
def test_zeros_are_normal_and_subnormal_numbers_are_not(kind: str, number: int) -> None:
    for bits, normal in ((number, 1), (number | 1, int(number == 0x00800000))):
        body = f"testp.normal.{kind} p, {bits:#x}; selp.b32 d, 1, 0, p;"
        assert compute(body, u32(0)).tolist() == [normal]


@pytest.mark.parametrize("count", [1, 3, 32])
def test_a_minimum_with_a_signalling_nan_is_the_number(count: int) -> None:
    for text, number, signalling in (("min.f32", 0x40000000, 0xFFAB0000), ("max.f32", 0xFF800000, 0x7F800001)):
        for operands in ((number, signalling), (signalling, number)):
            arrays = (u32(*[bits] * count) for bits in operands)
            assert compute(f"{text} d, a, b;", *arrays).tolist() == [number] * count


# -- exactly ----------------------------------------------------------------------------------------------------------

_EXACT = {
    "add": lambda x, y, z: x + y,
    "sub": lambda x, y, z: x - y,
    "mul": lambda x, y, z: x * y,
    "fma": lambda x, y, z: x * y + z,
    "div": lambda x, y, z: x / y,
    "rcp": lambda x, y, z: 1 / x,
}


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", _EXACT)
def test_float64_is_rounded_once_whatever_overflows_or_is_subnormal(op: str, mode: str) -> None:
    draw = np.random.default_rng(3)
    spans = (draw.integers(-span, span + 1, 40) for span in (1020, 540, 30))
    a, b, c = np.ldexp(draw.uniform(-2, 2, (3, 120)), np.concatenate([draw.permutation(s) for s in spans]))
    if op == "fma":
        c[80:] = -a[80:] * b[80:] * (1 + 2.0**-50)
    operands = {"fma": "a, b, c", "rcp": "a"}.get(op, "a, b")
    found = compute(f"{op}.{mode}.f64 d, {operands};", a, b, c, out="f8")
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), found.tolist(), strict=True):
        assert got == _rounded(_EXACT[op](Fraction(x), Fraction(y), Fraction(z)), mode)


def _rounded(exact: Fraction, mode: str) -> float:
    """An exact number as float64."""
    try:
        near = exact.numerator / exact.denominator
    except OverflowError:
        near = float("inf") if exact > 0 else float("-inf")
    too_high, too_low = (near > exact, near < exact) if np.isfinite(near) else (near > 0, near < 0)
    if too_high and (mode == "rm" or (mode == "rz" and exact > 0)):
        return float(np.nextafter(near, -np.inf))
    if too_low and (mode == "rp" or (mode == "rz" and exact < 0)):
        return float(np.nextafter(near, np.inf))
    return near
