"""What the judge draws for one check, and what the reference makes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tools.judge.roundings import Rounding
from tools.judge.ties import Selection
from tools.judge.tree import Tree, leaves, raw_bytes
from tools.verdict import Limitation, LimitationKind


@dataclass(frozen=True)
class Answer:
    """A reference's outputs. `exact`: computed in float64; else `note` says why not and `limitation` what
    a comparison with it does without.
    `selections`: of outputs that are indices. `whole`: every value on the way was an integer that float32 holds (looked
    at only when asked for)."""

    values: Tree
    exact: bool = True
    note: str = ""
    limitation: Limitation | None = None
    selections: Mapping[str, Selection | Rounding] = field(default_factory=dict)
    whole: bool = False

    @property
    def lacked_memory(self) -> bool:
        """Whether the memory for float64 was missing."""
        return self.limitation is not None and self.limitation.kind is LimitationKind.NOT_FLOAT64


@dataclass(frozen=True)
class Regime:
    """How strictly a battery is judged: see `tools.judge.gates.Expected`. `longest`: the reduction length, when the
    battery knows it better than the shapes; `one_hot`: an operand of a contraction is; `flushes`: denormal inputs may
    count as zeros; `lenience`: a factor on the arithmetic's share of the tolerance."""

    one_hot: bool = False
    bits: float | None = None
    longest: int | None = None
    exact_operands: bool = False
    flushes: bool = False
    lenience: float = 1.0


@dataclass(frozen=True)
class Drawn:
    """Inputs and parameters for one check, made from one seed. `alters`: the parameters are not the model's own."""

    seed: int
    battery: str
    inputs: tuple[Any, ...]
    state: dict[str, Tensor]
    regime: Regime = Regime()
    alters: bool = False

    def blobs(self) -> dict[str, memoryview]:
        """The bytes of every tensor, by origin and name as a launch plan says them ("input:0", "state:weight")."""
        inputs = {f"input:{path}": leaf for path, leaf in leaves(self.inputs) if isinstance(leaf, Tensor)}
        state = {f"state:{name}": tensor for name, tensor in self.state.items()}
        return {name: raw_bytes(tensor) for name, tensor in (inputs | state).items()}
