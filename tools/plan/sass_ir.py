"""What a cubin says when it is disassembled, as values. Pure: what runs nvdisasm is `sass`, what reads its text
`sass_parse`.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from tools.words import plain

MOST_INSTRUCTIONS = 20_000
MOST_PTX = 1 << 20  # characters
_MOST_TEXT, _MOST_NAME = 300, 200
_LOADS = ("global load", "generic load", "async copy")
_PARTS = re.compile(r"(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*)", re.DOTALL)
_TARGET = re.compile(r"`\(([^)]*)\)")


@dataclass(frozen=True)
class Instruction:
    """One instruction. `label` names the place before it; `line` of `file` and `ptx_line` are 0 where nobody knows;
    `control` is what the assembler decided about its issue (see `Control`), -1 where it was not read."""

    address: int
    text: str
    label: str = ""
    line: int = 0
    file: str = ""
    ptx_line: int = 0
    control: int = -1

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        found = _PARTS.match(self.text)
        return (found[1] or "", found[2], found[3]) if found else ("", "", "")

    @property
    def predicate(self) -> str:
        """ "P0", "!UP1"; empty where it always runs."""
        return self._parts[0]

    @property
    def opcode(self) -> str:
        """With its modifiers: "LDG.E.EF.128"."""
        return self._parts[1]

    @property
    def head(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def operands(self) -> str:
        """All that follows the opcode."""
        return self._parts[2]

    @property
    def target(self) -> str:
        """The label that it names, if any."""
        found = _TARGET.search(self.operands)
        return found[1] if found else ""

    @property
    def issue(self) -> "Control":
        """Its control bits, read."""
        return Control.of(self.control)


@dataclass(frozen=True)
class Control:
    """How an instruction is issued, from Volta to Blackwell: `stall` cycles before the next one of this warp, the
    scoreboards (0 to 5) it sets when its result is there (`writes`) or its operands were read (`reads`), and those it
    waits for."""

    stall: int = 0
    yields: bool = False
    writes: int | None = None
    reads: int | None = None
    waits: tuple[int, ...] = ()

    @classmethod
    def of(cls, bits: int) -> "Control":
        """From the 17 bits above bit 105 of an instruction; from -1, nothing."""
        if bits < 0:
            return cls()
        writes, reads, mask = bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63
        return cls(
            bits & 15,
            not bits >> 4 & 1,
            None if writes == 7 else writes,
            None if reads == 7 else reads,
            tuple(n for n in range(6) if mask >> n & 1),
        )


@dataclass(frozen=True)
class Part:
    """What some instructions are made of: `classes` and `kinds` (of tensor-core operations, and the cache hints of
    accesses) with their numbers, most frequent first; `issue_cycles`: what one warp alone needs at least to issue them
    once; `notes`: what may stall."""

    instructions: int = 0
    issue_cycles: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def loaded_bytes(self) -> int:
        """What a thread loads of global memory if it runs every instruction once."""
        found = (name.rpartition(" ") for name in self.classes if name.startswith(_LOADS))
        return sum(self.classes[f"{access} {bits}"] * int(bits) // 8 for access, _, bits in found if bits.isdecimal())

    @property
    def cycles_per_byte(self) -> float | None:
        """Issue cycles per byte loaded, by which loops compare that are unrolled differently; None without either."""
        return self.issue_cycles / self.loaded_bytes if self.issue_cycles and self.loaded_bytes else None


@dataclass(frozen=True)
class Loop:
    """A natural loop: `members` are the numbers of its instructions, in order; `depth` is 1 for an outermost one;
    `waits`: it does nothing but wait for a barrier or a lock."""

    members: tuple[int, ...]
    depth: int
    waits: bool
    part: Part


@dataclass(frozen=True)
class Sass:
    """A disassembled kernel. `loops`: the one that most likely counts first; `cut`: instructions that are left out;
    `ptx`: what the assembler was given, where the cubin holds it, line by line as `ptx_line` counts."""

    name: str
    instructions: tuple[Instruction, ...]
    whole: Part
    loops: tuple[Loop, ...] = ()
    cut: int = 0
    ptx: str = ""

    @property
    def hot(self) -> Loop | None:
        """The innermost loop that most likely counts; None where nothing is repeated."""
        return next((loop for loop in self.loops if not loop.waits), None)

    def of(self, loop: Loop) -> tuple[Instruction, ...]:
        """The instructions of one of the loops."""
        return tuple(self.instructions[n] for n in loop.members)


def made_plain(sass: Sass) -> Sass:
    """The same, fit to be stored and shown. Raises ValueError for too many instructions, and for a loop of some that
    there are not."""
    count = len(sass.instructions)
    if count > MOST_INSTRUCTIONS:
        raise ValueError(f"{count} instructions, where {MOST_INSTRUCTIONS} are kept")
    if any(not 0 <= n < count for loop in sass.loops for n in loop.members):
        raise ValueError(f"a loop of {plain(sass.name, _MOST_NAME)} has an instruction that there is not")
    return replace(
        sass,
        name=_one_line(sass.name, _MOST_NAME),
        instructions=tuple(
            replace(
                i,
                text=_one_line(i.text, _MOST_TEXT),
                label=_one_line(i.label, _MOST_NAME),
                file=_one_line(i.file, _MOST_NAME),
            )
            for i in sass.instructions
        ),
        whole=_plain_part(sass.whole),
        loops=tuple(replace(loop, part=_plain_part(loop.part)) for loop in sass.loops),
        ptx=plain(sass.ptx, MOST_PTX),
    )


def _plain_part(part: Part) -> Part:
    return replace(
        part,
        classes={_one_line(name, _MOST_NAME): n for name, n in part.classes.items()},
        kinds={_one_line(name, _MOST_NAME): n for name, n in part.kinds.items()},
        notes=tuple(_one_line(note, _MOST_TEXT) for note in part.notes),
    )


def _one_line(text: str, most: int) -> str:
    return plain(text, most).replace("\n", " ").replace("\t", " ")
