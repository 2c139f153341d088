"""No modifier is taken and then not heeded: each changes a result, or is refused, or is known to change nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from kerneltune.tools.languages.ptx.sim.values import Unsupported
from kerneltune.tools.languages.ptxas import ptxas
from kerneltune.tools.languages.triton.ttir.ir import InterpreterError
from tests.tools.languages.ptx.sim.threads import HEAD, Array, compute, start, u32

WORDS = """
rn rz rm rp rna rni rzi rmi rpi ftz noftz sat satfinite relu approx full cc lo hi wide NaN xorsign.abs oob shiftamt
clamp wrap l r f4e b4e rc8 rc16 ecl ecr eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor popc
global shared local sync aligned volatile relaxed cta gpu ca cg v2 uni x2 trans
""".split()
# instructions | their types, one after another | of their operands, K that one | of the result, where it differs
TABLE = """
add sub mul min max | f16 bf16 f16x2 bf16x2 f32 f64 | K K
neg abs | f16 bf16 f16x2 bf16x2 f32 f64 | K
fma.rn | f16 bf16 f16x2 bf16x2 f32 f64 | K K K
mad.rn | f32 f64 | K K K
div.rn copysign | f32 f64 | K K
rcp.rn sqrt.rn | f32 f64 | K
ex2.approx lg2.approx sin.approx cos.approx tanh.approx rsqrt.approx rcp.approx sqrt.approx | f32 | K
div.approx div.full | f32 | K K
add sub mul.lo min max div rem | s16 u16 s32 u32 s64 u64 | K K
mad.lo mad.hi sad | s16 u16 s32 u32 s64 u64 | K K K
shr | s16 u16 s32 u32 s64 u64 | K u32
addc subc | s32 u32 s64 u64 | K K
bfe | s32 u32 s64 u64 | K u32 u32
bfind | s32 u32 s64 u64 | K | u32
and or | b32 b64 | K K
not mov brev | b32 b64 | K
shf.l.wrap | b32 | K K u32
prmt | b32 | K K u32
setp.eq | f16 bf16 f32 f64 s32 u64 | K K | pred
set.eq.u32 | f32 | K K | u32
slct.b32 | f32 | b32 b32 K | b32
cvt cvt.rn cvt.rni | f16.f32 bf16.f32 f32.f16 f32.f64 f64.f32 f32.f32 f64.f64 f16.f16 | K
cvt cvt.rmi | s32.f32 u16.f64 s64.f32 | K
cvt cvt.rn | f32.s64 f64.s64 f16.u32 | K
cvt | s16.s32 u32.s64 | K
cvt.rn | f16x2.f32 bf16x2.f32 | K K
"""


@dataclass(frozen=True)
class Base:
    """An instruction without the modifier in question, and the types of its operands and of its result."""

    text: str
    kinds: tuple[str, ...]
    result: str

    def with_word(self, word: str) -> str:
        """The instruction with it, before the types."""
        opcode, *modifiers = self.text.split(".")
        at = next(i for i, m in enumerate(modifiers) if re.fullmatch(r"(b?f|[bsu]|e\dm)\d+(x2|m3x2)?|e5m2x2", m))
        return ".".join([opcode, *modifiers[:at], word, *modifiers[at:]])


def _bases() -> Iterator[Base]:
    for line in TABLE.strip().splitlines():
        names, types, operands, *result = (part.split() for part in line.split("|"))
        for name, kind in product(names, types):
            kinds = tuple(kind.split(".")[-1] if operand == "K" else operand for operand in operands)
            yield Base(f"{name}.{kind}", kinds, result[0][0] if result else kind.split(".")[0])


def _bits(kind: str) -> int:
    return 8 if kind == "pred" else 16 * (1 + kind.endswith("x2")) if "f16" in kind else int(kind[1:])


def _operand(kind: str, seed: int) -> Array:
    """Any bits, small numbers, and those at the ends of the range."""
    draw, part = np.random.default_rng(seed), 16 if "f16" in kind else _bits(kind)
    if "f" in kind:
        some = np.array(
            [0, 1, 1.5, 2.5, 2.75, 0.3, 1e-40, 2e-320, 5e-6, 130.5, 40001, 65504, 3e38, 1e308, np.inf, np.nan]
        )
        size = 4 if kind[0] == "b" else part // 8
        with np.errstate(over="ignore"):
            bits = np.append(some, -some).astype(f"f{size}").view(f"u{size}")
        ends = bits.astype(np.uint64) >> np.uint64(16 if kind[0] == "b" else 0)
    else:
        ends = np.array(
            [0, 1, 2, 5, 31, 33, 2049, 4097, 2**64 - 1, 2**64 - 7, 1 << part - 1, (1 << part - 1) - 1], np.uint64
        )
    many = 256 * (2 if kind.endswith("x2") else 1)
    any_bits = draw.integers(0, 2**64, many, np.uint64)
    found = np.where(draw.random(many) < 0.7, ends[draw.integers(0, len(ends), many)], any_bits)
    return found.astype(f"u{part // 8}").view(f"u{_bits(kind) // 8}")


def _run(text: str, base: Base) -> Array:
    arrays = [_operand(kind, seed) for seed, kind in enumerate(base.kinds)]
    names = ", ".join("abc"[: len(arrays)])
    if base.result == "pred":
        return compute(f"{text} p, {names}; selp.b32 d, 1, 0, p;", *arrays)
    out = f"u{_bits(base.result) // 8}"  # with the carry of each lane behind it, which .cc sets
    body = f".reg .b32 x; add.cc.u32 x, %t, -1; {text} d, {names}; addc.u32 x, 0, 0; and.b32 x, x, 1;"
    add = {2: "cvt.u16.u32 y, x; add.u16 d, d, y;", 4: "xor.b32 d, d, x;", 8: "cvt.u64.u32 y, x; xor.b64 d, d, y;"}
    size = _bits(base.result) // 8
    return compute(body + add[size].replace("add.u16", "xor.b16"), *arrays, out=out, more=f".reg .b{8 * size} y;")


def _taken_by_ptxas(lines: list[tuple[str, Base]], folder: Path) -> list[tuple[str, Base]]:
    """Those that assemble."""
    register = {"pred": "pred", 16: "b16", 32: "b32", 64: "b64"}
    program, _ = ptxas("sm_90a")
    source = folder / "all.ptx"
    while True:
        text = [HEAD + ".visible .entry k() {"]
        for i, (instruction, base) in enumerate(lines):
            kinds = (base.result, *base.kinds)
            declared = "".join(
                f".reg .{register['pred' if kind == 'pred' else _bits(kind)]} r{i}_{n}; "
                for n, kind in enumerate(kinds)
            )
            text.append(f"{{ {declared}{instruction} {', '.join(f'r{i}_{n}' for n in range(len(kinds)))}; }}")
        source.write_text("\n".join([*text, "ret; }"]))
        done = subprocess.run(
            [program, "--gpu-name=sm_90a", "-O0", str(source), "-o", str(folder / "all.cubin")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        first = text[0].count("\n") + 2
        refused = {int(n) - first for n in re.findall(r"line (\d+); (?:error|fatal)", done.stderr)}
        if not refused:
            assert done.returncode == 0, done.stderr[-500:]
            return lines
        lines = [line for i, line in enumerate(lines) if i not in refused]


# modifier -> of which instructions it changes no result
NOTHING = {
    "rn": r".",  # sums, products and conversions are rounded so anyway
    "rzi": r"cvt\.rzi\.[su]",  # floats become whole numbers so anyway
    "rmi": r"cvt\.rmi\.u",
    **dict.fromkeys(("rz", "rm", "rp"), r"(f64\.f32|f32\.f16|(f\d+)\.\2)$"),  # the wider type holds every number
    "sat": r"cvt\.rmi\.sat\.[su]",  # floats become whole numbers in range anyway
    "ftz": r"cos|cvt\.(rn\.ftz\.f16|rni|ftz\.f32\.f16|rn\.ftz\.f32\.s64)",  # subnormal numbers have the same result
}


def test_every_modifier_that_ptxas_takes_changes_a_result_or_is_refused(tmp_path: Path) -> None:
    bases = list(_bases())
    asked = [(base.with_word(word), base) for base in bases for word in WORDS if word not in base.text.split(".")]
    taken = _taken_by_ptxas(asked, tmp_path)
    plain = {base: _run(base.text, base) for base in {base for _, base in taken}}
    refused, unheeded = [], []
    for text, base in taken:
        word = next(w for w in WORDS if base.with_word(w) == text)
        try:
            if (_run(text, base) == plain[base]).all() and not re.search(NOTHING.get(word, "$^"), text):
                unheeded.append(text)
        except InterpreterError:
            refused.append(text)
    assert unheeded == [], unheeded
    assert {text.rsplit(".", 1)[0] for text in refused} == {"fma.rn.oob", "addc.sat", "subc.sat"}
    assert len(taken) > 200


@pytest.mark.parametrize(
    "text",
    [
        "discard.global.L2 [%p0], 128;",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [x], [x], 16, [x];",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [x], 1, [x];",
        "mbarrier.init.strange.b64 [x], 1;",
    ],
)
def test_what_the_emulator_has_no_meaning_for_is_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        start(f".shared .align 16 .b8 room[256]; .reg .b64 x; mov.u64 x, room;\n{text} ret;", u32(0))
