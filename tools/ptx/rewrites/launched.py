"""What the launches of a kernel have in common: a rewrite may count on it, since the candidate's file launches the text
for these shapes only. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Launched:
    """`block`: threads of a CTA (x, y, z); `grid`: the most CTAs in each direction. By the parameter's number:
    `scalars` the least and the largest integer, `aligned` bytes that a pointer is a multiple of, `shares` the other
    pointers whose storage it is in some launch. `known`: false where nothing but the text is known, then no two
    pointers are told apart. `early`: a launch may begin before the one before it ended."""

    block: tuple[int, int, int] | None = None
    grid: tuple[int, int, int] | None = None
    scalars: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    aligned: Mapping[int, int] = field(default_factory=dict)
    shares: Mapping[int, frozenset[int]] = field(default_factory=dict)
    known: bool = False
    early: bool = False
