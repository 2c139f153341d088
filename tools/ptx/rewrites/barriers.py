"""Barriers that order nothing, or one warp only. Pure."""

from tools.ptx.ir import Instruction
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.flow import PURE

_REGISTERS_ONLY = PURE | frozenset(("shfl", "vote", "redux", "match", "activemask"))
WARP = 32


def _barriers(work: Work, value: str) -> None:
    block = work.spans.block
    lone = block is not None and block[0] * block[1] * block[2] == WARP
    for number, i in enumerate(work.instructions):
        if not _whole(i) or not work.free(i):
            continue
        if lone:
            work.replace(i, "bar.warp.sync 0xffffffff;")
        elif _repeats(work, number):
            work.replace(i)


def _whole(i: Instruction) -> bool:
    """bar.sync 0 of all threads."""
    return i.guard is None and i.name in ("bar.sync", "barrier.sync", "barrier.sync.aligned") and len(i.operands) == 1


def _repeats(work: Work, number: int) -> bool:
    """Whether the same barrier stood before it in its block, and nothing since touched memory."""
    flow = work.flow
    for before in range(number - 1, flow.blocks[flow.block_of[number]].start - 1, -1):
        other = flow.instructions[before]
        if _whole(other) and other.operands == flow.instructions[number].operands:
            return True
        if other.opcode not in _REGISTERS_ONLY and not (other.opcode == "ld" and other.modifiers[:1] == ("param",)):
            return False
    return False


REWRITES = (
    Rewrite(
        "barriers", ("fewer",), "bits", "barriers of a single warp are the warp's own; ones that order nothing go",
        "a barrier waits for the slowest warp", "fewer barriers", _barriers,
    ),
)  # fmt: skip
