"""A reduction over a warp by five shuffles becomes one instruction: of integers, and of floats as ordered integers.
Pure."""

from dataclasses import dataclass

from tools.ptx.ir import Immediate, Instruction, Register
from tools.ptx.rewrites.base import Rewrite, Work

_LANES = (16, 8, 4, 2, 1)
_INTEGER = {("add", "s32"), ("add", "u32"), ("min", "s32"), ("max", "s32"), ("min", "u32"), ("max", "u32")}
_BITWISE = {("and", "b32"), ("or", "b32"), ("xor", "b32")}


@dataclass(frozen=True)
class _Chain:
    """A reduction: what goes in, what comes out, and the instructions, shuffles and combinations in turn."""

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
        chain = _chain(work, shuffle)
        if chain is None or not work.all_free(chain.all):
            continue
        how = (chain.combine.opcode, chain.combine.modifiers[-1])
        if how in _INTEGER | _BITWISE:
            _put(work, chain, [f"redux.sync.{how[0]}.{how[1]} {chain.end}, {chain.start}, -1;"])
        elif value == "floats" and chain.combine.name in ("max.NaN.f32", "min.NaN.f32"):
            _put(work, chain, _ordered(work, chain))


def _put(work: Work, chain: _Chain, new: list[str]) -> None:
    for each in chain.all:
        work.replace(each, *(new if each is chain.all[-1] else []))


def _ordered(work: Work, chain: _Chain) -> list[str]:
    """A float as an integer of the same order: negative ones have their lower bits turned over. A NaN is made the one
    that max.NaN yields, so that it is above all others (below all, for the minimum)."""
    least = chain.combine.opcode == "min"
    nan = "0xffffffff" if least else "0x7fffffff"
    is_nan, source, sign, turned, found, sign2, mask = work.fresh("pred"), *(work.fresh("b32") for _ in range(6))
    statements = [
        f"setp.nan.f32 {is_nan}, {chain.start}, {chain.start};",
        f"mov.b32 {source}, {chain.start};",
        f"selp.b32 {source}, {nan}, {source}, {is_nan};",
        f"shr.s32 {sign}, {source}, 31;",
        f"and.b32 {sign}, {sign}, 0x7fffffff;",
        f"xor.b32 {turned}, {source}, {sign};",
        f"redux.sync.{chain.combine.opcode}.s32 {found}, {turned}, -1;",
        f"shr.s32 {sign2}, {found}, 31;",
        f"and.b32 {mask}, {sign2}, 0x7fffffff;",
        f"xor.b32 {found}, {found}, {mask};",
    ]
    if least:  # the NaN of min.NaN is the positive one again
        statements += [
            f"setp.nan.f32 {is_nan}, {found}, {found};",
            f"selp.b32 {found}, 0x7fffffff, {found}, {is_nan};",
        ]
    return [*statements, f"mov.b32 {chain.end}, {found};"]


def _chain(work: Work, shuffle: Instruction) -> _Chain | None:
    """The reduction that begins with this shuffle: over 16, 8, 4, 2 and 1 lanes, in one block, of what nothing else
    reads in between."""
    found: list[Instruction] = []
    start, how = "", ""
    for lanes in _LANES:
        step = _step(work, shuffle, lanes)
        if step is None or (how and step.name != how):
            return None
        source = shuffle.operands[1]
        start = start or (source.name if isinstance(source, Register) else "")
        found += [shuffle, step]
        how = step.name
        if lanes != _LANES[-1]:
            following = _next_shuffle(work, step)
            if following is None:
                return None
            shuffle = following
    same = work.flow.unchanged([start], found[0], found[-1])
    return _Chain(start, found[-1], tuple(found)) if start and same else None


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
                    if {a, b} == {got, source} and work.flow.block(step) == work.flow.block(shuffle):
                        return step
    return None


def _next_shuffle(work: Work, step: Instruction) -> Instruction | None:
    """The shuffle of a combination's result, which has no other readers than that and the next combination."""
    result = step.operands[0]
    if not isinstance(result, Register) or work.flow.only_writer(result.name) is not step:
        return None
    readers = work.flow.readers_of(result.name)
    if len(readers) == 2 and readers[0].opcode == "shfl" and work.flow.block(readers[0]) == work.flow.block(step):
        return readers[0]
    return None


REWRITES = (
    Rewrite(
        "redux", ("floats", "integers"), "values", "a reduction over a warp is one redux instruction ({value})",
        "five shuffles, each waiting for the one before, become one instruction", "fewer shuffles", _redux,
    ),
)  # fmt: skip
