"""A reduction over a warp by five shuffles becomes one instruction: of integers, and of floats as ordered integers.
Pure."""

from dataclasses import dataclass

from tools.ptx.ir import Immediate, Instruction, Register
from tools.ptx.rewrites.base import Rewrite, Work

WARP = 32
_INTEGER = {("add", "s32"), ("add", "u32"), ("min", "s32"), ("max", "s32"), ("min", "u32"), ("max", "u32")}
_ORDERED = ("max.f32", "min.f32", "max.NaN.f32", "min.NaN.f32")
_BITWISE = {("and", "b32"), ("or", "b32"), ("xor", "b32")}


@dataclass(frozen=True)
class Chain:
    """A reduction by shuffles: what goes in, what comes out, and the shuffles and combinations in turn."""

    start: str
    combine: Instruction
    all: tuple[Instruction, ...]

    @property
    def end(self) -> str:
        """The register of the result."""
        result = self.combine.operands[0]
        return result.name if isinstance(result, Register) else ""


def _redux(work: Work, value: str) -> None:
    for shuffle in work.instructions:
        chain = chain_from(work, shuffle, WARP)
        if chain is None or not work.all_free(chain.all):
            continue
        how = (chain.combine.opcode, chain.combine.modifiers[-1])
        if how in _INTEGER | _BITWISE:
            _put(work, chain, [f"redux.sync.{how[0]}.{how[1]} {chain.end}, {chain.start}, -1;"])
        elif value == "floats" and chain.combine.name in _ORDERED:
            _put(work, chain, _ordered(work, chain))


def _put(work: Work, chain: Chain, new: list[str]) -> None:
    for each in chain.all:
        work.replace(each, *(new if each is chain.all[-1] else []))


def _ordered(work: Work, chain: Chain) -> list[str]:
    """A float as an integer of the same order: negative ones have their lower bits turned over. A NaN becomes what the
    instruction takes it for: above all others where it passes NaN on, else below all (the other way around for min)."""
    least, passes = chain.combine.opcode == "min", "NaN" in chain.combine.modifiers
    nan = "0xffffffff" if least is passes else "0x7fffffff"
    is_nan, number, sign = work.fresh("pred", "is_nan"), work.fresh("b32", "number"), work.fresh("b32", "sign")
    return [
        f"setp.nan.f32 {is_nan}, {chain.start}, {chain.start};",
        f"selp.b32 {number}, {nan}, {chain.start}, {is_nan};",
        f"shr.s32 {sign}, {number}, 31;",
        f"and.b32 {sign}, {sign}, 0x7fffffff;",
        f"xor.b32 {number}, {number}, {sign};",
        f"redux.sync.{chain.combine.opcode}.s32 {number}, {number}, -1;",
        f"shr.s32 {sign}, {number}, 31;",
        f"and.b32 {sign}, {sign}, 0x7fffffff;",
        f"xor.b32 {chain.end}, {number}, {sign};",
    ]


def chain_from(work: Work, shuffle: Instruction, count: int) -> Chain | None:
    """The reduction over so many lanes that begins with this shuffle, over halves, quarters and so on, in one block,
    whose results in between nothing else reads."""
    found: list[Instruction] = []
    distance, start = count // 2, shuffle.operands[1] if len(shuffle.operands) > 1 else None
    while distance:
        step = _step(work, shuffle, distance)
        if step is None or (found and step.name != found[-1].name):
            return None
        found += [shuffle, step]
        distance //= 2
        if distance:
            following = _next_shuffle(work, step)
            if following is None:
                return None
            shuffle = following
    if not isinstance(start, Register) or not work.flow.unchanged([start.name], found[0], found[-1]):
        return None
    return Chain(start.name, found[-1], tuple(found))


def _step(work: Work, shuffle: Instruction, lanes: int) -> Instruction | None:
    """The only reader of a shuffle's result, which combines it with the shuffle's source."""
    match shuffle:
        case Instruction(
            "shfl",
            ("sync", "bfly", "b32"),
            (Register(got), Register(source), Immediate(int(distance)), Immediate(31), Immediate(mask)),
            _,
            None,
        ) if distance == lanes and mask in (-1, 0xFFFFFFFF):
            readers = work.flow.readers_of(got)
            if work.flow.only_writer(got) is not shuffle or len(readers) != 1:
                return None
            match readers[0]:
                case Instruction(_, _, (Register(), Register(a), Register(b)), _, None) as step:
                    if {a, b} == {got, source} and work.flow.comes_first(shuffle, step):
                        return step
    return None


def _next_shuffle(work: Work, step: Instruction) -> Instruction | None:
    """The shuffle of a combination's result, which has no other readers than that and the next combination."""
    result = step.operands[0]
    if not isinstance(result, Register) or work.flow.only_writer(result.name) is not step:
        return None
    readers = work.flow.readers_of(result.name)
    if len(readers) == 2 and readers[0].opcode == "shfl" and work.flow.comes_first(step, readers[0]):
        return readers[0]
    return None


REWRITES = (
    Rewrite(
        "redux", ("floats", "integers"), "values", "a reduction over a warp is one redux instruction ({value})",
        "five shuffles, each waiting for the one before, become one instruction", "fewer shuffles", _redux,
    ),
)  # fmt: skip
