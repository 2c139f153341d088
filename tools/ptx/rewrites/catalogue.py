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
    for name, rewrite in CATALOGUE.items():
        if name in choices:
            work = Work(text, launched or Launched())
            rewrite.apply(work, choices[name])
            if work.changed:
                text = _swept(work.result(), launched or Launched())
                applied.append(name)
    return Rewritten(text, tuple(applied))


def _swept(text: str, launched: Launched) -> str:
    work = Work(text, launched)
    sweep(work)
    return work.result()


def _changes(text: str, rewrite: Rewrite, value: str, launched: Launched) -> bool:
    work = Work(text, launched)
    rewrite.apply(work, value)
    return work.changed


def options(text: str, launched: Launched | None = None) -> dict[str, tuple[str, ...]]:
    """The rewrites and the values that change this text when each is applied alone; {} where it is not understood."""
    found: dict[str, tuple[str, ...]] = {}
    for name, rewrite in CATALOGUE.items():
        try:
            values = tuple(v for v in rewrite.values if _changes(text, rewrite, v, launched or Launched()))
        except (CannotRewrite, PtxError):
            return {}
        if values:
            found[name] = values
    return found
