"""A PTX candidate from a Triton candidate: what its plans launch, each kernel as the PTX that Triton made. Pure."""

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kerneltune.tools.languages.ptx.host_code import CannotSay, ForwardSignature, Writer, condition, forward_of
from kerneltune.tools.languages.ptx.parser import parse
from kerneltune.tools.languages.ptx.readable import readable
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.task import CaseSpec

__all__ = ["CannotSay", "argument_names", "ptx_candidate", "short"]

MOST_MORE_BYTES = 40_000  # of Triton's text; it becomes half as long
_ARGUMENT = re.compile(r"%(\w+): [^%]*?(?=, %|$)")
_LOCATION = re.compile(r'loc\("(\w+)"')
_IMPORTS = ("import torch", "from kerneltune import PtxKernel")

_INTRODUCTION = """

# The kernels of the class above as PTX, for the shapes that its forward below names. All other shapes go the way above.
"""
_IS = '''

def _is(x, dtype, shape, stride):
    """Whether x is as the PTX takes it for granted, which counts on addresses that 16 divides too."""
    same = isinstance(x, torch.Tensor) and x.dtype == dtype and tuple(x.shape) == shape and x.stride() == stride
    return same and x.data_ptr() % 16 == 0
'''


def ptx_candidate(
    source: str,
    plans: Mapping[str, Plan],
    ptx: Mapping[str, str],
    *,
    cases: Sequence[CaseSpec],
    shared_bytes: Mapping[str, int] | None = None,
) -> str:
    """One Python file: `source`, then a ModelNew over its ModelNew that launches PTX for exactly the traced shapes.

    `plans`: by case, those that may be told to an author (never held-out ones), the best variant of each; those of a
    task's `cases`, whose inputs tell the shapes apart. `ptx`: Triton's text by Kernel.sha256. `shared_bytes`: dynamic
    shared memory by Kernel.sha256 (Compiled.metadata["shared"]), which PTX does not say; needed for kernels whose text
    declares `.extern .shared`. Other shapes go the Triton way. Raises CannotSay, and PtxError for text that is no PTX.
    """
    known = {case.name: case for case in cases}
    kernels = _Kernels(source, ptx, shared_bytes or {})
    forward = forward_of(source, "ModelNew", max((len(known[name].inputs) for name in plans), default=0))
    branches = [_branch(plans[name], known[name], forward, kernels) for name in plans]
    if not branches:
        raise CannotSay("there is no plan to say in PTX")
    made_with = any(known[name].init_args for name in plans)
    head = [line for line in _IMPORTS if line not in source.splitlines()]
    parts = [source.rstrip(), _INTRODUCTION.rstrip(), *head, *kernels.written, _IS.rstrip(), "", ""]
    return "\n".join([*parts, *_model(forward, branches, made_with=made_with)]) + "\n"


def short(plans: Mapping[str, Plan], ptx: Mapping[str, str]) -> dict[str, Plan]:
    """The first case's plan, those that launch nothing else, and others as long as their texts are short: whoever goes
    on from the candidate reads all of it."""
    chosen: dict[str, Plan] = {}
    kernels: set[str] = set()
    room = MOST_MORE_BYTES
    for name, plan in plans.items():
        new = {k.sha256 for k in plan.kernels} - kernels
        nbytes = sum(len(ptx[sha256].partition("\t.file")[0]) for sha256 in new) if chosen else 0
        if nbytes <= room:
            chosen[name], kernels, room = plan, kernels | new, room - nbytes
    return chosen


def argument_names(kernel: Kernel) -> list[str] | None:
    """What the source calls the arguments that are passed, from Triton's IR; None where that cannot be read."""
    if kernel.language != "ttir":
        return None
    head = re.search(rf"tt\.func public @{re.escape(kernel.name)}\((.*?)\) (?:attributes|\{{)", kernel.text)
    if head is None:
        return None
    names = []
    for argument in _ARGUMENT.finditer(head[1]):
        location = _LOCATION.search(argument[0])
        names.append(location[1] if location else argument[1])
    return names if len(names) == len(kernel.signature) else None


def _branch(plan: Plan, case: CaseSpec, forward: ForwardSignature, kernels: "_Kernels") -> list[str]:
    """The lines of one case: a condition and what it does."""
    writer = Writer(plan, case, forward, kernels.launched)
    body = writer.body()
    return [f"if {condition(case, forward, writer.states)}:", *(f"    {line}" for line in body)]


def _model(forward: ForwardSignature, branches: Sequence[Sequence[str]], *, made_with: bool) -> Iterator[str]:
    yield "class ModelNew(ModelNew):"
    if made_with:
        yield "    def __init__(self, *made_with):"
        yield "        super().__init__(*made_with)"
        yield "        self._made_with = made_with"
        yield ""
    yield f"    def forward({forward.signature}):"
    for branch in branches:
        yield from (f"        {line}" for line in branch)
    yield f"        return super().forward({forward.passed})"


@dataclass
class _Kernels:
    """The PTX texts of a candidate, each written once."""

    source: str
    ptx: Mapping[str, str]
    shared_bytes: Mapping[str, int]
    written: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)  # PTX text -> the name of its kernel

    def launched(self, kernel: Kernel) -> tuple[str, tuple[str, ...], int]:
        """The name of the PtxKernel, the types of its parameters, and the shared memory that it is launched with."""
        text = self.ptx.get(kernel.sha256)
        if text is None:
            raise CannotSay(f"there is no PTX of kernel {kernel.name!r}")
        if kernel.options.get("num_ctas", 1) != 1:
            raise CannotSay(f"kernel {kernel.name!r} runs in clusters (num_ctas {kernel.options['num_ctas']})")
        if kernel.options.get("enable_fp_fusion", True) is not True:
            raise CannotSay(f"kernel {kernel.name!r} must not fuse products and sums (enable_fp_fusion)")
        names = argument_names(kernel) or [f"x{i}" for i in range(len(kernel.signature))]
        plain = readable(text, names=names, source=self.source)
        (entry,) = parse(plain).entries[:1]
        if len(entry.params) > len(kernel.signature):
            raise CannotSay(f"kernel {kernel.name!r} needs memory that Triton sets aside for a launch (scratch)")
        types = tuple(p.type for p in entry.params)
        return self._named(kernel.name, plain), types, self._shared(kernel, plain)

    def _shared(self, kernel: Kernel, text: str) -> int:
        if not any(v.extern and v.space == "shared" for v in parse(text).variables):
            return 0
        if kernel.sha256 not in self.shared_bytes:
            raise CannotSay(f"how much shared memory kernel {kernel.name!r} is launched with is not known")
        return self.shared_bytes[kernel.sha256]

    def _named(self, name: str, text: str) -> str:
        if text not in self._names:
            stem = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "kernel"
            taken = set(self._names.values())
            called = next(n for n in _numbered(f"{stem}_ptx") if n not in taken and n not in self.source)
            self._names[text] = called
            self.written.append(f'\n{called} = PtxKernel(r"""\n{_quoted(text)}""")')
        return self._names[text]


def _quoted(text: str) -> str:
    """PTX as it may stand between three quotes: comments quote lines of Python."""
    return text.replace('"""', "'''")


def _numbered(name: str) -> Iterator[str]:
    yield name if not keyword.iskeyword(name) else f"{name}_"
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1
