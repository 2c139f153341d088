"""The small intermediate representation that TTIR text is parsed into."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tools.ttir.types import Type


@dataclass(frozen=True)
class Literal:
    """Constant text whose meaning depends on its type: a number, a hex bit pattern or `dense<...>`."""

    text: str


Attr: TypeAlias = "int | float | bool | str | Literal | tuple[Attr, ...] | dict[str, Attr]"


@dataclass
class Successor:
    """A branch target and the values it passes to the block's arguments."""

    label: str
    operands: tuple[str, ...]


@dataclass
class Op:
    """One operation; `words` are its bare keywords in order (`slt`, `acq_rel`, a printed string...)."""

    name: str
    line: int
    results: tuple[str, ...] = ()
    operands: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    attrs: dict[str, Attr] = field(default_factory=dict)
    ins: tuple[Type, ...] = ()
    outs: tuple[Type, ...] = ()
    regions: list[Region] = field(default_factory=list)
    successors: list[Successor] = field(default_factory=list)
    # constants are computed once and kept here, by the interpreter
    cache: object = None


@dataclass
class Block:
    label: str
    args: tuple[str, ...]
    types: tuple[Type, ...]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Region:
    blocks: list[Block]


@dataclass
class Func:
    name: str
    public: bool
    args: tuple[str, ...]
    types: tuple[Type, ...]
    body: Region
    # every value name that occurs as an operand: an atomic whose result is not here may run faster
    used: set[str] = field(default_factory=set)


@dataclass
class Module:
    funcs: dict[str, Func]

    @property
    def kernel(self) -> Func:
        public = [func for func in self.funcs.values() if func.public]
        return (public or list(self.funcs.values()))[0]
