"""A PTX candidate's file and the kernels in it: what rewrites change, while the rest of the file stays. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from agent.authors.ptx.launches import launches_of
from tools.plan.schema import Kernel, Plan
from tools.ptx.ir import PtxError
from tools.ptx.rewrites import CannotRewrite, Launched, options, rewritten

# What `tools.ptx_files.from_plan` writes above kernels that are launched for exactly the shapes that its file names.
FOR_THESE_SHAPES = "# The kernels of the class above as PTX, for the shapes that its forward below names."
Choices = Mapping[str, str]


@dataclass(frozen=True)
class Base:
    """A file, and the PTX kernels that stand in it word for word, with what is known of their launches. `timed`: the
    first so many are those of the timed case."""

    source: str
    kernels: tuple[Kernel, ...] = ()
    launched: tuple[Launched, ...] = ()
    timed: int = 0

    @cached_property
    def name(self) -> str:
        """Short, the same for the same file."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:12]

    @property
    def heard(self) -> tuple[Kernel, ...]:
        """The kernels that a time can tell of: what changes others only is not worth an attempt."""
        return self.kernels[: self.timed] or self.kernels

    @cached_property
    def options(self) -> dict[str, tuple[str, ...]]:
        """The rewrites that change one of its kernels, each alone, and their values."""
        found: dict[str, dict[str, None]] = {}
        for kernel, launched in zip(self.kernels, self.launched, strict=True):
            for name, values in options(kernel.text, launched).items():
                found.setdefault(name, {}).update(dict.fromkeys(values))
        return {name: tuple(values) for name, values in found.items()}

    def with_choices(self, choices: Choices) -> "Base | None":
        """The file with its kernels rewritten; None where nothing changes or a text is not understood."""
        source, kernels = self.source, []
        try:
            for kernel, launched in zip(self.kernels, self.launched, strict=True):
                new = rewritten(kernel.text, choices, launched).text
                source = source.replace(kernel.text, new)
                kernels.append(replace(kernel, text=new))
        except (CannotRewrite, PtxError):
            return None
        if choices and source == self.source:
            return None
        return Base(source, tuple(kernels), self.launched, self.timed)


def base_of(source: str, plans: Sequence[Plan]) -> Base:
    """A candidate's file as a base for rewrites; `plans` are those of the cases that may be told of, the timed one
    first. Kernels that come out of a template, or stand in the file more than once, are left as they are."""
    launched = launches_of(plans, only=FOR_THESE_SHAPES in source)
    found = {k.sha256: k for plan in plans for k in plan.kernels if k.language == "ptx" and source.count(k.text) == 1}
    kernels = tuple(k for k in found.values() if k.sha256 in launched)
    first = {k.sha256 for plan in plans[:1] for k in plan.kernels}
    return Base(source, kernels, tuple(launched[k.sha256] for k in kernels), sum(k.sha256 in first for k in kernels))
