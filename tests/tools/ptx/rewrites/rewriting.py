"""A kernel that Triton lowered, rewritten, and both emulated on equal tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.tools.ptx.sim.both import Lowered, emulate, lower
from tools.ptx.rewrites import Launched, rewritten

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kernel:
    """A lowered kernel with its arguments and what is known of its launch."""

    lowered: Lowered
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    launched: Launched

    def tensors(self, ptx: str | None = None) -> Tensors:
        """All tensors after the kernel, or another text in its place, has run on fresh copies."""
        mine = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in self.arguments.items()}
        emulate(replace(self.lowered, ptx=ptx) if ptx else self.lowered, self.grid, mine)
        return {n: v for n, v in mine.items() if isinstance(v, torch.Tensor)}

    def rewritten(self, choices: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """The text with those rewrites, and which of them changed it."""
        done = rewritten(self.lowered.ptx, choices, self.launched)
        return done.text, done.applied


def kernel_of(kernel: Any, grid: tuple[int, ...], values: dict[str, Any], **options: Any) -> Kernel:
    """`options`: as `lower` takes them."""
    lowered = lower(kernel, **options, **values)
    constexprs = {p.name for p in kernel.params if p.is_constexpr}
    arguments = {name: values[name] for name in kernel.arg_names if name not in constexprs}
    numbered = list(enumerate(arguments.values()))
    x, y, z = (*grid, 1, 1)[:3]
    launched = Launched(
        (lowered.threads, 1, 1),
        (x, y, z),
        {i: (v, v) for i, v in numbered if isinstance(v, int)},
        {
            i: 16 if options.get("aligned", True) else v.element_size()
            for i, v in numbered
            if isinstance(v, torch.Tensor)
        },
        known=True,
    )
    return Kernel(lowered, grid, arguments, launched)


def difference(keeps: str, before: Tensors, after: Tensors) -> str:
    """Where results differ by more than a rewrite says that it keeps; "" where they do not."""
    for name, old in before.items():
        new = after[name]
        if keeps == "bits" and not torch.equal(old.view(torch.uint8), new.view(torch.uint8)):
            return f"{name}: {int((old != new).sum())} elements differ"
        if keeps == "values" and not torch.equal(torch.nan_to_num(old), torch.nan_to_num(new)):
            return f"{name}: {int((old != new).sum())} elements differ"
        if keeps == "tolerance" and not torch.allclose(
            old.double(),
            new.double(),
            rtol=2e-2 if old.element_size() < 4 else 1e-4,
            atol=1e-3 if old.element_size() < 4 else 1e-6,
            equal_nan=True,
        ):
            return f"{name}: off by {float((old.double() - new.double()).abs().max()):.2g}"
    return ""
