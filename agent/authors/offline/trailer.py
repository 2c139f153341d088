"""The last line of a lowered code: facts about it that its text does not say, as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.codec import Json, decode

MARK = "# kerneltune: "


@dataclass(frozen=True)
class KernelFacts:
    """Launch configurations (the first is the default), grid type, and the hints they came from."""

    configs: list[dict[str, int]]
    grid: str
    size_hints: dict[str, int]


@dataclass(frozen=True)
class Arguments:
    """What a forward is called with in a case: shape and dtype by state_dict key and of each tensor among the inputs,
    and the attributes that differ between cases, as Python text."""

    state: Mapping[str, tuple[tuple[int, ...], str]]
    inputs: Sequence[tuple[tuple[int, ...], str]]
    attributes: Mapping[str, str]


@dataclass(frozen=True)
class Facts:
    """`state`: shape and dtype of each tensor that the model holds; `tensors`: shape, dtype, row-major? of each tensor
    input; `symbols`: size symbol -> (argument, dimension), arguments being the state's tensors, then the inputs'.

    Attributes that differ between cases: `sizes` has the symbols of those that the code reads at run time, `baked` the
    values, as text, of those that it took for constants; `cases` has all of them in each of the task's cases.
    """

    state: dict[str, tuple[list[int], str]]
    inputs: list[Json]
    tensors: list[tuple[list[int], str, bool]]
    symbols: dict[str, tuple[int, int]]
    guards: list[str]
    outputs: str
    kernels: dict[str, KernelFacts]
    helpers: dict[str, str]
    operators: list[str] = field(default_factory=list)  # of torch, in the order in which the forward calls them
    sizes: dict[str, str] = field(default_factory=dict)
    baked: dict[str, str] = field(default_factory=dict)
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)  # of the state, between cases, in shape or dtype

    @property
    def own(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of the state's tensors, then the inputs', as they were lowered."""
        return [*((tuple(s), d) for s, d in self.state.values()), *((tuple(s), d) for s, d, _ in self.tensors)]

    def covers(self, case: Arguments) -> bool:
        """Whether these kernels serve a case."""
        given = [*(case.state.get(n, o) for n, o in zip(self.state, self.own, strict=False)), *case.inputs]
        if len(given) != len(self.own) or not all(map(_alike, given, self.own)):
            return False
        free = set(self.symbols.values())
        places = ((i, d) for i, (shape, _) in enumerate(self.own) for d in range(len(shape)))
        if any(given[i][0][d] != self.own[i][0][d] for i, d in places if (i, d) not in free):
            return False
        if any(case.attributes.get(path, text) != text for path, text in self.baked.items()):
            return False
        values = {name: given[argument][0][dim] for name, (argument, dim) in self.symbols.items()}
        values |= {symbol: int(case.attributes[path]) for path, symbol in self.sizes.items()}
        names = {"max": max, "min": min, "float": float}
        return all(eval(guard, names, values) for guard in self.guards)  # arithmetic that our own child printed


def _alike(given: tuple[tuple[int, ...], str], own: tuple[tuple[int, ...], str]) -> bool:
    return len(given[0]) == len(own[0]) and given[1] == own[1]


def split(code: str) -> tuple[str, Facts]:
    """A lowered code without its last line, and that line's facts."""
    text, _, facts = code.rpartition(MARK)
    return text, decode(Facts, json.loads(facts))
