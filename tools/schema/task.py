"""What a task looks like from outside, as data: shapes, dtypes and costs of every case, but no values and no code.

The judge makes it from the task file; the tracer, the authors, the screen and `optimize tasks` read it.
`batteries_of` says with which input batteries a case is checked, `case_in_words` how it is named to an author.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from kerneltune.tools.schema.codec import Json, decode
from kerneltune.tools.schema.verdict import Tier


@dataclass(frozen=True)
class TensorSpec:
    """Shape and torch dtype name ("float32"), row-major unless `stride` says otherwise."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None


Way = tuple[str | int, ...]  # the keys that lead to a leaf of a tree


def tensors_of(tree: Json, way: Way = ()) -> Iterator[tuple[Way, TensorSpec]]:
    """The tensors of a tree of JSON with {"$tensor": TensorSpec} leaves, in order, and the way to each."""
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        yield way, spec if isinstance(spec, TensorSpec) else decode(TensorSpec, spec)
        return
    inner = tree.get("$tuple", tree.get("$dict", tree)) if isinstance(tree, dict) else tree
    parts = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list | tuple) else ()
    for key, part in parts:
        yield from tensors_of(part, (*way, key))


def reached(name: str, way: Way) -> str:
    """A leaf as Python says it: batch['mask'][0]."""
    return name + "".join(f"[{key!r}]" for key in way)


def tagged(tree: Any, leaf: Callable[[Any], Json]) -> Json:
    """A tree of Python as JSON, with {"$tuple": …} and {"$dict": …}. `leaf`: what else stands in it, as JSON."""
    if isinstance(tree, tuple):
        return {"$tuple": [tagged(part, leaf) for part in tree]}
    if isinstance(tree, dict):
        return {"$dict": {str(key): tagged(part, leaf) for key, part in tree.items()}}
    return [tagged(part, leaf) for part in tree] if isinstance(tree, list) else leaf(tree)


def rebuilt(tree: Json, leaves: Mapping[str, Callable[[Any, str], Any]], path: str = "") -> Any:
    """A tree of JSON as Python has it: {"$tuple": …} and {"$dict": …} become tuples and dicts. `leaves`: by its tag,
    such as "$tensor", what makes a leaf of its JSON and its path in a launch plan ("0", "2.mask")."""

    def part(key: str | int, value: Json) -> Any:
        return rebuilt(value, leaves, f"{path}.{key}" if path else str(key))

    if isinstance(tree, dict):
        if tag := next((tag for tag in leaves if tag in tree), None):
            return leaves[tag](tree, path)
        if "$float" in tree:
            return float(tree["$float"])
        if "$tuple" in tree:
            return tuple([part(i, value) for i, value in enumerate(tree["$tuple"])])
        return {key: part(key, value) for key, value in tree.get("$dict", tree).items()}
    return [part(i, value) for i, value in enumerate(tree)] if isinstance(tree, list | tuple) else tree


POINTER_ALIGNMENT = 16  # bytes: what kernels are compiled for unless a task says otherwise


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    return tuple(prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last of a tensor, as they lie in memory."""
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return 0 if 0 in shape else 1 + reach


@dataclass(frozen=True)
class Contract:
    """What a task promises of the memory of an argument of forward, for each tensor of it.

    slack: elements behind the last one that may be read; pitch: rows lie a multiple of so many elements apart, and may
    be read to where the next would begin; what is read there is undefined. alignment: the bytes that the address is
    a multiple of; it need not be one of more."""

    position: int
    name: str
    slack: int = 0
    pitch: int = 1
    alignment: int = POINTER_ALIGNMENT

    def padded(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape that memory is laid out for: that of the tensor with its rows as far apart as they lie."""
        return (*shape[:-1], -(-shape[-1] // self.pitch) * self.pitch) if shape else ()

    def readable(self, shape: Sequence[int]) -> int:
        """Elements that may be read behind the last one of a tensor of that shape."""
        return max(self.slack, self.padded(shape)[-1] - shape[-1] if shape else 0)

    @property
    def lead_bytes(self) -> int:
        """Bytes from a multiple of 16 to the address, where that need not be one."""
        return self.alignment % POINTER_ALIGNMENT

    @property
    def sentence(self) -> str:
        """What kernels may rely on, in words."""
        parts = []
        if self.pitch > 1:
            parts.append(f"rows lie a multiple of {self.pitch} elements apart and may be read to where the next begins")
        if self.slack:
            parts.append(f"{self.slack} elements behind its end may be read")
        words = f"{', and '.join(parts)} (undefined values: no result may depend on them)" if parts else ""
        if self.alignment != POINTER_ALIGNMENT or not parts:
            words += f"{'; ' if words else ''}its address is a multiple of {self.alignment} bytes"
            words += ", of no more for certain" if self.alignment < POINTER_ALIGNMENT else ""
        return f"{self.name}: {words}"


def contracts_in_words(contracts: Sequence[Contract]) -> str:
    """What a task promises of its inputs' memory, as one sentence; "" for nothing."""
    return "; ".join(contract.sentence for contract in contracts)


def contract_of(contracts: Sequence[Contract], name: str) -> Contract | None:
    """The contract of a tensor, by its path among the inputs ("0", "2.mask") or by its name in a launch plan
    ("input:2.mask"; "state:weight" has none)."""
    position = name.removeprefix("input:").partition(".")[0]
    return next((contract for contract in contracts if str(contract.position) == position), None)


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
    weight: float = 0.0  # how often it occurs, compared with other cases; those above 0 are timed


@dataclass(frozen=True)
class BatchDims:
    """Leading dimensions along which a reference does the same for each element by itself, as was found by running it.

    All outputs have them, and the inputs at `paths` ("0", "2.mask"). `folds`: whether the reference gives the same for
    an input with more dimensions before them."""

    count: int
    paths: tuple[str, ...]
    folds: bool


@dataclass(frozen=True)
class TaskSpec:
    """A task: cases[0] is timed, and so are others with a weight. `batch`: None where there are no such dimensions, or
    no case is small enough to find out. `contracts`: what is promised of the memory of its inputs."""

    name: str
    sha256: str
    precision: str  # "float32", "bfloat16", "tf32_ok", …: the arithmetic that a candidate may use
    source: str  # the task file, as the author sees it
    cases: tuple[CaseSpec, ...]
    notes: str = ""
    batch: BatchDims | None = None
    contracts: tuple[Contract, ...] = ()  # at most one for an argument of forward

    @property
    def weighted(self) -> tuple[CaseSpec, ...]:
        """The cases that are timed; the first is the main one."""
        return tuple(case for case in self.cases if case.weight or case is self.main)

    def led_by(self, case: CaseSpec) -> "TaskSpec":
        """The same task with another of its cases as the main one."""
        return replace(self, cases=(case, *(other for other in self.cases if other is not case)))

    @property
    def main(self) -> CaseSpec:
        """The case that is timed in any task."""
        return self.cases[0]

    def case(self, name: str) -> CaseSpec:
        """The case of that name; raises KeyError."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(name)


CORE = ("own", "zero_mean", "scaled")  # every case is checked with them
PROBES = (
    "one_hot_left",
    "one_hot_right",
)  # tools.judge.correctness.inputs makes them: how many bits a contraction keeps
EXOTIC = ("spikes", "offset", "integers", "structure", "tiny", "huge", "specials", "indices", "one_index")
BATTERIES = (*CORE, *PROBES, *EXOTIC)  # tools.judge.correctness.inputs makes the rest; one may not apply to a case
_FEW = 2  # cases that share the exotic batteries


def batteries_of(task: TaskSpec, case: str, tier: Tier = "judged") -> tuple[str, ...]:
    """The batteries that a case is checked with.

    Judged: every case with the task's own, zero-mean and scaled inputs; the main case also with the probes, since a
    kernel may choose another path for it; the rest is shared by the cheapest cases, each battery on one of them.
    Confirmed: each on all of those. (Screening chooses for itself: `tools.judge.service.tiers`.)
    """
    main = task.main.name
    cheapest = [c.name for c in sorted(task.cases, key=lambda c: (c.bytes_moved + c.flops, c.name))]
    sharing = cheapest[:_FEW]
    shared: tuple[str, ...] = ()
    if case in sharing:
        shared = EXOTIC if tier == "confirmed" else EXOTIC[sharing.index(case) :: len(sharing)]
    wanted = {*CORE, *shared, *(PROBES if case in (main, sharing[0]) else ())}
    return tuple(b for b in BATTERIES if b in wanted)


HIDDEN_CASE = "a held-out case"


def case_in_words(task: TaskSpec, case: str, battery: str = "") -> str:
    """A case as an author may read of it, with the inputs of a visible one if they are given."""
    if task.case(case).held_out:
        return HIDDEN_CASE
    return f"case {case} ({battery} inputs)" if battery else f"case {case}"
