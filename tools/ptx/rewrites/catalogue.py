"""All rewrites in the order in which they are applied, and their application. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from tools.ptx.ir import PtxError
from tools.ptx.rewrites import (
    barriers,
    flat,
    hints,
    loops_kept,
    masks,
    order,
    registers,
    reuse,
    selection,
    shuffles,
    trees,
    vectors,
)
from tools.ptx.rewrites.base import CannotRewrite, Rewrite, Work
from tools.ptx.rewrites.dead import sweep
from tools.ptx.rewrites.launched import Launched

_READ_ONLY, *_HINTS = hints.REWRITES
# Masks hide what others look for; what is loaded is decided before how it is loaded.
_ORDER = (
    *masks.REWRITES, *reuse.REWRITES, *selection.REWRITES, *flat.REWRITES, *shuffles.REWRITES, *trees.REWRITES,
    *barriers.REWRITES, *order.REWRITES,
    *vectors.REWRITES, *_HINTS, _READ_ONLY, *loops_kept.REWRITES, *registers.REWRITES,
)  # fmt: skip
CATALOGUE: Mapping[str, Rewrite] = {rewrite.name: rewrite for rewrite in _ORDER}


@dataclass(frozen=True)
class Rewritten:
    """A text and which of the wanted rewrites changed it."""

    text: str
    applied: tuple[str, ...] = ()


def rewritten(text: str, choices: Mapping[str, str], launched: Launched | None = None) -> Rewritten:
    """The text with rewrites by name and value, in the catalogue's order; where one's condition does not hold, nothing
    changes. Raises KeyError for an unknown one, CannotRewrite and PtxError for a text that is not understood."""
    unknown = [name for name, value in choices.items() if value not in CATALOGUE[name].values]
    if unknown:
        raise KeyError(f"{unknown[0]} = {choices[unknown[0]]!r}; there are {', '.join(CATALOGUE[unknown[0]].values)}")
    applied: list[str] = []
    work = Work(text, launched or Launched())
    for name, rewrite in CATALOGUE.items():
        if name in choices:
            work = work.next()
            rewrite.apply(work, choices[name])
            if work.changed:
                work = work.next()
                sweep(work)
                applied.append(name)
    return Rewritten(work.result() if work.changed else work.text, tuple(applied))


def _changes(work: Work, rewrite: Rewrite, value: str) -> bool:
    rewrite.apply(work, value)
    return work.changed


def options(text: str, launched: Launched | None = None) -> dict[str, tuple[str, ...]]:
    """The rewrites and the values that change this text when each is applied alone; {} where it is not understood."""
    found: dict[str, tuple[str, ...]] = {}
    try:
        read = Work(text, launched or Launched())
        for name, rewrite in CATALOGUE.items():
            values = tuple(value for value in rewrite.values if _changes(read.again(), rewrite, value))
            if values:
                found[name] = values
    except (CannotRewrite, PtxError):
        return {}
    return found
