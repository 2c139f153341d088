"""The last line of a lowered code: facts about it that its text does not say, as JSON."""

import json
from dataclasses import dataclass

from tools.codec import Json, decode

MARK = "# kerneltune: "


@dataclass(frozen=True)
class KernelFacts:
    """Launch configurations (the first is the default), grid type, and the hints they came from."""

    configs: list[dict[str, int]]
    grid: str
    size_hints: dict[str, int]


@dataclass(frozen=True)
class Facts:
    """`tensors`: shape, dtype, row-major? of each tensor input; `symbols`: size symbol -> (argument, dimension),
    where the arguments are the state's tensors, then the inputs'."""

    state: dict[str, str]
    inputs: list[Json]
    tensors: list[tuple[list[int], str, bool]]
    symbols: dict[str, tuple[int, int]]
    guards: list[str]
    outputs: str
    kernels: dict[str, KernelFacts]
    helpers: dict[str, str]

    def covers(self, shapes: list[tuple[int, ...]], dtypes: list[str]) -> bool:
        """Whether these kernels serve arguments of these shapes (state, then inputs) and inputs of these dtypes."""
        own = [tuple(shape) for shape, _, _ in self.tensors]
        inputs = shapes[len(self.state) :]
        if dtypes != [dtype for _, dtype, _ in self.tensors] or [len(s) for s in inputs] != [len(s) for s in own]:
            return False
        free = set(self.symbols.values())
        places = ((i, d) for i, shape in enumerate(own) for d in range(len(shape)))
        fixed = ((i, d) for i, d in places if (i + len(self.state), d) not in free)
        if any(inputs[i][d] != own[i][d] for i, d in fixed):
            return False
        sizes = {name: shapes[argument][dim] for name, (argument, dim) in self.symbols.items()}
        names = {"max": max, "min": min, "float": float}
        return all(eval(guard, names, sizes) for guard in self.guards)  # arithmetic that our own child printed


def split(code: str) -> tuple[str, Facts]:
    """A lowered code without its last line, and that line's facts."""
    text, _, facts = code.rpartition(MARK)
    return text, decode(Facts, json.loads(facts))
