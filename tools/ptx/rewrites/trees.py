"""Long chains of one operation become trees, which wait for fewer results in a row. Pure."""

from tools.ptx.ir import Instruction, Register
from tools.ptx.rewrites.base import Rewrite, Work

_MAXIMA = ("max.f32", "min.f32", "max.NaN.f32", "min.NaN.f32", "max.s32", "min.s32", "max.u32", "min.u32")
_SUMS = ("add.f32", "add.rn.f32", "add.ftz.f32")
SHORTEST = 4  # links; a tree of fewer is no shorter


def _trees(work: Work, value: str) -> None:
    """`maxima`: of maxima and minima, which have no order; `sums`: of sums too, which then round otherwise."""
    names = (*_MAXIMA, *_SUMS) if value == "sums" else _MAXIMA
    inside: set[int] = set()
    for last in reversed(work.instructions):
        if last.name not in names or last.line in inside:
            continue
        chain = _chain(work, last)
        inside |= {link.line for link in chain}
        if len(chain) >= SHORTEST and work.all_free(chain):
            _replant(work, chain)


def _chain(work: Work, last: Instruction) -> list[Instruction]:
    """From the first to the last: each link's result is the next one's first or second operand, and nothing else's."""
    found = [last]
    while True:
        before = next((w for name in _operands(found[0]) if (w := _link(work, name, found[0])) is not None), None)
        if before is None:
            return found
        found.insert(0, before)


def _operands(link: Instruction) -> list[str]:
    return [o.name for o in link.operands[1:3] if isinstance(o, Register)]


def _link(work: Work, name: str, user: Instruction) -> Instruction | None:
    writer = work.flow.only_writer(name)
    if writer is None or writer.name != user.name or len(writer.operands) != 3 or user.guard is not None:
        return None
    lone = len(work.flow.readers_of(name)) == 1 and len(_operands(writer)) == 2
    return writer if lone and work.flow.comes_first(writer, user) else None


def _replant(work: Work, chain: list[Instruction]) -> None:
    leaves: list[str] = []
    result = ""
    for link in chain:
        mine = _operands(link)
        if len(mine) != 2 or mine.count(result) > 1:
            return
        leaves += [name for name in mine if name != result]
        head = link.operands[0]
        result = head.name if isinstance(head, Register) else ""
    nested = any(_link(work, leaf, chain[-1]) is not None for leaf in leaves)  # then it is a tree already
    if nested or not work.flow.unchanged(leaves, chain[0], chain[-1]):
        return
    spare = [name for link in chain[:-1] for name in (o.name for o in link.operands[:1] if isinstance(o, Register))]
    statements: list[str] = []
    level = leaves
    while len(level) > 1:
        above = []
        for a, b in zip(level[::2], level[1::2], strict=False):
            target = result if len(level) == 2 else spare.pop(0)
            statements.append(f"{chain[0].name} {target}, {a}, {b};")
            above.append(target)
        level = above + level[len(level) - len(level) % 2 :]
    for link in chain:
        work.replace(link, *(statements if link is chain[-1] else []))


REWRITES = (
    Rewrite(
        "trees", ("maxima", "sums"), "tolerance", "chains of one operation become trees ({value})",
        "in a chain each step waits for the one before; in a tree only as many as it has levels",
        "less waiting where few warps are resident", _trees,
    ),
)  # fmt: skip
