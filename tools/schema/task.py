"""What a task looks like from outside, as data: shapes, dtypes and costs of every case, but no values and no code.

The judge makes it from the task file; the tracer, the authors, the screen and `optimize tasks` read it.
"""

from dataclasses import dataclass, field

from kerneltune.tools.schema.codec import Json


@dataclass(frozen=True)
class TensorSpec:
    """Shape and torch dtype name ("float32"), row-major unless `stride` says otherwise."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CaseSpec:
    """One case. `inputs`, `init_args` and `outputs` are JSON trees with {"$tensor": TensorSpec} leaves.

    bytes_moved: each input, parameter and output once; flops: contractions only, as counted by torch.
    """

    name: str
    inputs: tuple[Json, ...]
    init_args: tuple[Json, ...]
    outputs: Json
    state: dict[str, TensorSpec] = field(default_factory=dict)
    bytes_moved: int = 0
    flops: int = 0
    held_out: bool = False  # never shown to an author
    runs_on_cpu: bool = True  # small enough to be replayed by the interpreter


@dataclass(frozen=True)
class TaskSpec:
    """A task: cases[0] is the one that is timed."""

    name: str
    sha256: str
    precision: str  # "float32", "bfloat16", "tf32_ok", …: the arithmetic that a candidate may use
    source: str  # the task file, as the author sees it
    cases: tuple[CaseSpec, ...]
    notes: str = ""

    @property
    def main(self) -> CaseSpec:
        """The case that is timed."""
        return self.cases[0]

    def case(self, name: str) -> CaseSpec:
        """The case of that name; raises KeyError."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(name)
