"""What a move means, in words for a person; and what the compiler said of it, which is no time."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.authors.ptx.search import Move
from tools.compiling import MachineCode
from tools.ptx.rewrites import CATALOGUE

_KEEPS = {
    "bits": "the same results",
    "values": "the same results but for signs of zeros and bits of NaN",
    "tolerance": "rounding differs",
}
_KINDS = {
    "bundle": "rewrites that go well together",
    "winners": "the rewrites that helped alone, together",
    "jump": "a jump, to leave the neighbourhood of the best so far",
}


@dataclass(frozen=True)
class Words:
    """Of a proposal."""

    rationale: str
    hypothesis: str = ""
    prediction: str = ""


def describe(move: Move, now: Sequence[MachineCode], before: Sequence[MachineCode], idea: str = "") -> Words:
    """`before`: the machine code of the file without rewrites; `idea`: what the file does. What is
    expected is said where times can tell."""
    if not move.choices:
        return Words(f"{idea or 'the start as it is, in PTX'}{f' ({_size(now)})' if now else ''}")
    weakest = max((CATALOGUE[name].keeps for name in move.choices), key=list(_KEEPS).index)
    rationale = f"{_told(move)}: {_KEEPS[weakest]}; {_compared(now, before)}"
    rewrite, parent = CATALOGUE.get(move.changed), move.parent
    if rewrite is None or move.changed not in move.choices or parent is None or parent.verdict.timing is None:
        return Words(rationale)
    return Words(rationale, rewrite.hypothesis, rewrite.prediction)


def _told(move: Move) -> str:
    """What is rewritten: in a sentence where it is one thing, else by names."""
    names = ", ".join(_named(name, value) for name, value in move.choices.items())
    value = move.choices.get(move.changed)
    said = CATALOGUE[move.changed].says.format(value=value) if value else f"without {move.changed}"
    if move.kind == "single":
        return said
    if move.kind == "step" and move.parent:
        return f"attempt {move.parent.number}, and {said} ({names})"
    return f"{_KINDS[move.kind]} ({names})"


def _named(name: str, value: str) -> str:
    return name if len(CATALOGUE[name].values) == 1 else f"{name} {value}"


def _size(code: Sequence[MachineCode]) -> str:
    registers = max((c.registers for c in code), default=0)
    return f"{sum(c.instructions for c in code)} machine instructions, {registers} registers"


def _compared(now: Sequence[MachineCode], before: Sequence[MachineCode]) -> str:
    """Counts, no times."""
    spilled = sum(c.spill_bytes for c in now)
    spills = f", {spilled} bytes spilled" if spilled else ""
    return f"{_size(now)}{spills} (without rewrites {_size(before)})"
