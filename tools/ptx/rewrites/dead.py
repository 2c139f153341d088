"""What nothing reads any more. Rewrites leave such instructions; the compiler drops them as well, a reader should not
have to. Pure."""

from collections import Counter

from tools.ptx.ir import Instruction
from tools.ptx.rewrites.base import Work
from tools.ptx.rewrites.flow import PURE, reads, results


def sweep(work: Work) -> None:
    """Take out all that has no effect and no reader, directly or not."""
    readers: Counter[str] = Counter()
    for i in work.instructions:
        readers.update(name for name in reads(i) if name not in results(i))
    gone: set[int] = set()
    changed = True
    while changed:
        changed = False
        for i in reversed(work.instructions):
            if i.line in gone or not work.free(i):
                continue
            if _without_use(i, readers) or _overwritten(work, i):
                gone.add(i.line)
                work.replace(i)
                readers.subtract(name for name in reads(i) if name not in results(i))
                changed = True


def _overwritten(work: Work, i: Instruction) -> bool:
    """Whether a register gets another value, always and in the same block, before anything reads it."""
    written = results(i)
    if i.opcode != "mov" or i.guard or len(written) != 1:
        return False
    number = work.flow.number[id(i)]
    for other in work.instructions[number + 1 : work.flow.blocks[work.flow.block_of[number]].end]:
        if written[0] in reads(other):
            return False
        if written[0] in results(other):
            return other.guard is None
    return False


def _without_use(i: Instruction, readers: Counter[str]) -> bool:
    harmless = i.opcode in PURE or (i.opcode == "ld" and {"param", "shared", "global"} & set(i.modifiers[:1]))
    if not harmless or "volatile" in i.modifiers or "cc" in i.modifiers:
        return False
    written = results(i)
    return bool(written) and all(readers[name] <= 0 for name in written)
