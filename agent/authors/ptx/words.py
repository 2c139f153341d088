"""What a move means, in words for a person; and what the compiler said of it, which is no time."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.authors.ptx.search import Move
from tools.compiling import MachineCode
from tools.ptx.rewrites import CATALOGUE

_KEEPS = {
    "bits": "all results stay the same bits",
    "values": "results stay the same, but for the sign of a zero and the bits of a NaN",
    "tolerance": "rounding differs",
}
_KINDS = {
    "start": "the kernels as they are",
    "bundle": "rewrites that go well together",
    "single": "one rewrite",
    "winners": "the rewrites that helped alone, together",
    "step": "one rewrite changed",
    "jump": "a jump, to leave the neighbourhood of the best so far",
}


@dataclass(frozen=True)
class Words:
    """Of a proposal."""

    rationale: str
    hypothesis: str = ""
    prediction: str = ""


def describe(move: Move, now: Sequence[MachineCode], before: Sequence[MachineCode]) -> Words:
    """`before`: the machine code of the file without rewrites."""
    if not move.choices:
        return Words(f"the start as it is, in PTX ({_size(now)})")
    told = "; ".join(CATALOGUE[name].says.format(value=value) for name, value in move.choices.items())
    weakest = max((CATALOGUE[name].keeps for name in move.choices), key=list(_KEEPS).index)
    of = f" of attempt {move.parent.number}" if move.parent and move.kind == "step" else ""
    rationale = f"{_KINDS[move.kind]}{of}: {told}. By construction {_KEEPS[weakest]}. {_compared(now, before)}"
    value = move.choices.get(move.changed, "")
    if not value or move.parent is None:
        return Words(rationale)
    rewrite = CATALOGUE[move.changed]
    return Words(rationale, rewrite.hypothesis, rewrite.prediction)


def _size(code: Sequence[MachineCode]) -> str:
    registers = max((c.registers for c in code), default=0)
    return f"{_instructions(code)} machine instructions, {registers} registers"


def _compared(now: Sequence[MachineCode], before: Sequence[MachineCode]) -> str:
    if not now or not before:
        return "Its machine code was not listed."
    change = _instructions(now) - _instructions(before)
    less = f"{abs(change)} {'fewer' if change < 0 else 'more'}" if change else "as many"
    spilled = sum(c.spill_bytes for c in now)
    spills = f", {spilled} bytes spilled" if spilled else ""
    cycles = (sum(c.issue_cycles for c in now), sum(c.issue_cycles for c in before))
    return (
        f"{_size(now)}{spills}: {less} instructions than without, and a warp issues them once in {cycles[0]} cycles at "
        f"least, not {cycles[1]}. These are counts, not times."
    )


def _instructions(code: Sequence[MachineCode]) -> int:
    return sum(c.instructions for c in code)
