"""The launch plan: everything that a candidate does on the GPU, as data. Pure: knows neither torch nor triton.

A plan is for one case of a task (fixed shapes) and one variant of the candidate (one choice of autotune configs).
It is what crosses from the jail to the trusted side, what the runner replays, what the store keeps and what the
hash in a receipt is taken over. All tensors are (storage, dtype, shape, stride, offset), so views vanish.
`docs/launch-plan.md` is the prose of this file.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tools.codec import Json, encode

SCHEMA_VERSION = 1

Origin = Literal["input", "state", "constant", "prepared", "scratch"]


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a storage. `dtype` is torch's name without `torch.`; stride and offset count elements."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class Storage:
    """One allocation. `origin` says who fills it:

    input      an argument of forward; `name` is its path in the argument list ("0", "1", "2.mask")
    state      a parameter or buffer of the reference; `name` is its state_dict key
    constant   data made by host code; `data` holds the bytes (base64 of zlib)
    prepared   made by __init__ or by the first forward, kept between calls
    scratch    made by every forward; poisoned before each run when nothing else initialises it
    """

    id: int
    nbytes: int
    origin: Origin
    name: str | None = None
    data: str | None = None


@dataclass(frozen=True)
class Kernel:
    """A device kernel as text. `signature` has one type per argument ("*fp32", "i32", "tensordesc<…>")."""

    name: str
    language: Literal["ttir", "ptx"]
    text: str
    signature: tuple[str, ...]
    options: dict[str, Json] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Names the kernel with its options: what a cubin is filed under."""
        return hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TensorArg:
    """A pointer argument."""

    tensor: TensorRef
    kind: Literal["tensor"] = "tensor"


@dataclass(frozen=True)
class ScalarArg:
    """A number passed by value; `type` is Triton's name ("i32", "i64", "fp32", "u1", …)."""

    value: int | float | bool
    type: str
    kind: Literal["scalar"] = "scalar"


@dataclass(frozen=True)
class DescriptorArg:
    """A tensor descriptor built on the host (TMA). `tensor` gives base, shape and strides; `padding` zero or nan."""

    tensor: TensorRef
    block_shape: tuple[int, ...]
    padding: str = "zero"
    kind: Literal["descriptor"] = "descriptor"


LaunchArg = TensorArg | ScalarArg | DescriptorArg


@dataclass(frozen=True)
class Launch:
    """One kernel launch: `kernel` indexes Plan.kernels; `args` leave out constexprs, in the kernel's order."""

    kernel: int
    grid: tuple[int, int, int]
    args: tuple[LaunchArg, ...]
    cooperative: bool = False
    pdl: bool = False
    kind: Literal["launch"] = "launch"


@dataclass(frozen=True)
class Aten:
    """One ATen operator ("aten::add.Tensor") of the allow-list.

    `args`/`kwargs` are JSON with tagged objects for what JSON lacks: {"$tensor": TensorRef}, {"$dtype": name},
    {"$float": "inf"}, {"$memory_format": name}. Devices are dropped: there is one. `outs` are the results in order
    (None where an op returns nothing there); a result in a storage that no earlier step made is a new storage.
    `library` says that the op computes (and so counts as library time, not as the candidate's kernel).
    """

    op: str
    args: tuple[Json, ...]
    kwargs: dict[str, Json]
    outs: tuple[TensorRef | None, ...]
    library: bool = False
    kind: Literal["aten"] = "aten"


Step = Launch | Aten


@dataclass(frozen=True)
class Plan:
    """What one forward of a candidate does. `outputs` is the returned structure: {"$tensor": …}, lists, {"$dict": …},
    {"$tuple": […]}, scalars."""

    case: str
    variant: str
    arch: str
    storages: tuple[Storage, ...]
    kernels: tuple[Kernel, ...]
    prepare: tuple[Step, ...]
    run: tuple[Step, ...]
    outputs: Json
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"plan schema {self.schema_version}; this version reads {SCHEMA_VERSION}")

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches of one forward, in order."""
        return tuple(s for s in self.run if isinstance(s, Launch))

    @property
    def library_ops(self) -> tuple[str, ...]:
        """Names of the library operators that one forward calls, in order."""
        return tuple(s.op.removeprefix("aten::") for s in self.run if isinstance(s, Aten) and s.library)

    def storage(self, storage_id: int) -> Storage:
        """The storage with this id; raises KeyError."""
        for storage in self.storages:
            if storage.id == storage_id:
                return storage
        raise KeyError(storage_id)


# What decides where a location begins and ends: strings and comments hide brackets, and `@loc(`, `%x.loc(` are names.
_PIECE = re.compile(
    r"""(?P<hidden>"(?:[^"\\\n]|\\[^\n])*"?|//[^\n]*)
    | (?P<alias>^\#[\w$.-]+[ ]=[ ]loc\()
    | (?P<location>(?<![\w$.@%\#!^-])loc\()
    | (?P<bracket>[()])""",
    re.VERBOSE | re.MULTILINE,
)


def without_locations(text: str) -> str:
    """TTIR without its debug locations: the same kernel moved down a line must keep its hash.

    Only what MLIR reads as a location goes: not what looks like one in a string (inline assembly), a comment or a name.
    """
    kept: list[str] = []
    done = depth = 0
    alias = False
    for piece in _PIECE.finditer(text):
        if depth == 0 and piece.lastgroup in ("alias", "location"):
            kept.append(text[done : piece.start()].rstrip(" "))
            done, depth, alias = done + len(kept[-1]), 1, piece.lastgroup == "alias"
        elif depth and piece.lastgroup != "hidden":
            depth += -1 if piece[0] == ")" else 1
            if depth == 0:
                done = piece.end() + (alias and text.startswith("\n", piece.end()))
    return "".join(kept) + text[done:]


def plan_hash(plan: Plan) -> str:
    """sha256 over the plan without debug locations: names the work, whatever the source looked like."""
    bare = replace(plan, kernels=tuple(map(_without_locations, plan.kernels)))
    return hashlib.sha256(json.dumps(encode(bare), sort_keys=True).encode()).hexdigest()


def _without_locations(kernel: Kernel) -> Kernel:
    return replace(kernel, text=without_locations(kernel.text)) if kernel.language == "ttir" else kernel


def tensor_refs(value: Json) -> Iterator[TensorRef]:
    """All tensors inside an `Aten` argument or an `outputs` tree."""
    if isinstance(value, dict) and "$tensor" in value:
        ref = value["$tensor"]
        yield TensorRef(ref["storage"], ref["dtype"], tuple(ref["shape"]), tuple(ref["stride"]), ref["offset"])
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensor_refs(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensor_refs(item)
