"""Other instructions for the same mathematics: division, exponential, maximum. Pure."""

from collections import defaultdict

from tools.ptx.ir import Immediate, Instruction, Register
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.written import operand

_LOG2E = 1.4426950216293335  # 0f3FB8AA3B


def _division(work: Work, value: str) -> None:
    """`approx` and `approx.ftz`: no scaling for divisors beyond 2^126; `rn`: exact; `reciprocal`: divisions by the same
    number share one reciprocal."""
    divisions = [
        i for i in work.instructions
        if i.opcode == "div" and i.modifiers[0] in ("full", "approx") and i.modifiers[-1] == "f32" and work.free(i)
    ]  # fmt: skip
    if value == "reciprocal":
        _reciprocals(work, divisions)
        return
    wanted = ("rn", "f32") if value == "rn" else (*value.split("."), "f32")
    for division in divisions:
        if division.modifiers != wanted:
            work.replace(division, Instruction("div", wanted, division.operands, division.line, division.guard))


def _reciprocals(work: Work, divisions: list[Instruction]) -> None:
    by_divisor: dict[tuple[str, int], list[Instruction]] = defaultdict(list)
    for division in divisions:
        divisor = division.operands[2]
        if isinstance(divisor, Register) and division.guard is None:
            by_divisor[divisor.name, work.flow.block(division)].append(division)
    for (name, _), users in by_divisor.items():
        if not work.flow.unchanged([name], users[0], users[-1]):
            continue
        inverse = work.fresh("b32", "inverse")
        work.before(users[0], f"rcp.approx.ftz.f32 {inverse}, {name};")
        for division in users:
            result, numerator, _ = division.operands
            work.replace(division, f"mul.f32 {operand(result)}, {operand(numerator)}, {inverse};")


def _exponential(work: Work, value: str) -> None:
    """ex2.approx scales arguments below -126, whose results are subnormal; .ftz makes those results zero."""
    for i in work.instructions:
        if i.opcode == "ex2" and i.modifiers == ("approx", "f32") and work.free(i):
            work.replace(i, Instruction("ex2", ("approx", "ftz", "f32"), i.operands, i.line, i.guard))


def _folded(work: Work, value: str) -> None:
    """(x - m) * log2(e) -> fma(x, log2 e, -m * log2 e), where the product is shared by several x."""
    by_shift: dict[tuple[str, str, int], list[tuple[Instruction, Instruction]]] = defaultdict(list)
    for scaled in work.instructions:
        found = _scaled_difference(work, scaled)
        if found is not None:
            difference, factor, shift = found
            by_shift[shift, factor, work.flow.block(scaled)].append((difference, scaled))
    for (shift, factor, _), pairs in by_shift.items():
        if not work.flow.unchanged([shift], pairs[0][0], pairs[-1][1]):
            continue
        product, negative = work.fresh("b32", "scaled"), work.fresh("b32", "shift")
        work.before(pairs[0][1], f"mul.f32 {product}, {shift}, {factor};", f"neg.f32 {negative}, {product};")
        for difference, scaled in pairs:
            x, result = operand(difference.operands[1]), operand(scaled.operands[0])
            work.replace(scaled, f"fma.rn.f32 {result}, {x}, {factor}, {negative};")


def _scaled_difference(work: Work, scaled: Instruction) -> tuple[Instruction, str, str] | None:
    """`mul d, (sub x, m), constant` whose operands are still what they were; the difference, the constant and m."""
    match scaled:
        case Instruction("mul", ("f32",), (Register(), Register(source), Immediate(float() as factor) as constant)):
            if abs(factor - _LOG2E) > 1e-6 or scaled.guard or not work.free(scaled):
                return None
            difference = work.flow.only_writer(source)
            match difference:
                case Instruction("sub", ("f32",), (_, Register(x), Register(shift))):
                    if work.flow.unchanged([x, shift, source], difference, scaled):
                        return difference, operand(constant), shift
    return None


def _maximum(work: Work, value: str) -> None:
    """setp.gt, setp.nan and two selp, as Triton propagates NaN -> max.NaN (and min.NaN)."""
    for outer in work.instructions:
        found = _nan_pick(work, outer)
        if found is not None:
            a, b, name = found
            work.replace(outer, f"{name}.NaN.f32 {operand(outer.operands[0])}, {a}, {b};")


def _nan_pick(work: Work, outer: Instruction) -> tuple[str, str, str] | None:
    """The two numbers of which `outer` picks the larger or the smaller, or a that is NaN."""
    match outer:
        case Instruction(
            "selp", ("f32" | "b32",), (Register(), Register(a), Register(inner_name), Register(p)), _, None
        ):
            inner, first = work.flow.only_writer(inner_name), work.flow.only_writer(p)
            if inner is None or first is None or not work.free(outer):
                return None
            match inner:
                case Instruction("selp", ("f32" | "b32",), (_, Register(a2), Register(b), Register(q))) if a2 == a != b:
                    second = work.flow.only_writer(q)
                    if second is not None and _steady(work, (a, b), (first, second, inner), outer):
                        return _picked(first, second, a, b)
    return None


def _steady(work: Work, names: tuple[str, ...], earlier: tuple[Instruction, ...], last: Instruction) -> bool:
    """Whether registers hold the same from the first of some instructions to the last."""
    return all(work.flow.unchanged(names, each, last) for each in earlier)


def _picked(first: Instruction, second: Instruction, a: str, b: str) -> tuple[str, str, str] | None:
    for compare, nan in ((first, second), (second, first)):
        match compare, nan:
            case (
                Instruction("setp", ("gt" | "lt" as how, "f32"), (_, Register(x), Register(y))),
                Instruction("setp", ("nan", "f32"), (_, Register(n), Register(m))),
            ) if (x, y, n, m) == (a, b, a, a):
                return a, b, "max" if how == "gt" else "min"
    return None


REWRITES = (
    Rewrite(
        "maximum", ("nan",), "values", "comparisons that pass a NaN on become one max.NaN",
        "one instruction takes the place of four, and of two predicates", "fewer instructions in the reduction",
        _maximum,
    ),
    Rewrite(
        "fold", ("on",), "tolerance", "(x - m) * log2 e becomes one fma with a product that is computed once",
        "one instruction an element less before the exponential", "fewer float instructions",
        _folded,
    ),
    Rewrite(
        "exponential", ("ftz",), "tolerance", "exponentials that would be subnormal become zero (ex2.approx.ftz)",
        "ex2.approx without .ftz tests and scales each argument", "three instructions an element fewer",
        _exponential,
    ),
    Rewrite(
        "division", ("reciprocal", "approx.ftz", "approx", "full.ftz", "rn"), "tolerance", "division by {value}",
        "div.full tests and scales both of its arguments", "fewer instructions at the end of a row",
        _division,
    ),
)  # fmt: skip
