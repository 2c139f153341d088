"""Loops that the compiler shall leave as they are. Pure."""

from tools.ptx.ir import Instruction, Label, Symbol
from tools.ptx.rewrites.base import Rewrite, Work


def _nounroll(work: Work, value: str) -> None:
    """The pragma stands at the head of the loop."""
    labels = {item.name: item.line for item in work.entry.body if isinstance(item, Label)}
    for i in work.instructions:
        if i.opcode == "bra" and any(labels.get(o.name, i.line) < i.line for o in i.operands if isinstance(o, Symbol)):
            _forbid(work, i)


def _forbid(work: Work, branch: Instruction) -> None:
    head = next(o.name for o in branch.operands if isinstance(o, Symbol))
    label = next(item for item in work.entry.body if isinstance(item, Label) and item.name == head)
    work.below(label, '.pragma "nounroll";')


REWRITES = (
    Rewrite(
        "unroll", ("none",), "bits", "loops are not unrolled", "a short loop needs fewer registers and fits the cache",
        "fewer registers and instructions", _nounroll,
    ),
)  # fmt: skip
