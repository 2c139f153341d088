"""A candidate with its launch parameters left open: a complete file whose parameters are `NAME = value` lines."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Params = Mapping[str, int]


class CannotLower(Exception):
    """TorchInductor, or our reading of what it wrote, does not cover this task; the message says why."""


@dataclass(frozen=True)
class Sketch:
    """`params` are the defaults and `space` the values worth trying, in order; `starts` are whole points to try
    beside the defaults; `says` explains the idea to a person."""

    name: str
    source: str
    says: str
    params: dict[str, int] = field(default_factory=dict)
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)
    starts: tuple[Params, ...] = ()

    def render(self, params: Params) -> str:
        """The candidate with these parameters. Raises KeyError for one that the file does not have."""
        text = self.source
        for name, value in params.items():
            text, count = re.subn(rf"(?m)^{name} = -?\d+\b", f"{name} = {value}", text)
            if count != 1:
                raise KeyError(f"{self.name}: {count} lines '{name} = …' instead of one")
        return text


def fingerprint(source: str) -> str:
    """Equal for sources that differ in comments' and lines' trailing space only."""
    lines = (line.split("  # ")[0].rstrip() for line in source.splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()
