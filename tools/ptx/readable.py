"""Triton's PTX made readable and small: what no person needs dropped, names that say what stands in them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Readable:
    """PTX text, and for its lines (from 1) the line of Triton source that each came from, where that is known."""

    text: str
    lines: Mapping[int, int]


def readable(ptx: str, *, names: Sequence[str] | None = None, source: str | None = None) -> Readable:
    """The same kernel as text for a person or a model: assembled, it gives the same machine code.

    `names`: of the arguments that are passed, in order, constexprs left out (else x0, x1, …). `source`: the file that
    the text's locations mean; its lines are then quoted where their instructions begin. Trailing parameters that
    `names` does not cover (Triton's scratch pointers) go where nothing uses them. Raises PtxError for text that is no PTX.
    """
    raise NotImplementedError
