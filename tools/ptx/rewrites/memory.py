"""What a kernel reads and writes through which parameter, and where two accesses are to the same place. Pure."""

from dataclasses import dataclass
from functools import cached_property

from tools.ptx.ir import Address, Instruction, Operand, Register, Vector
from tools.ptx.rewrites.base import Work
from tools.ptx.rewrites.span import Span

_ATOMIC = ("atom", "red")
_OPAQUE = frozenset(("tensormap", "tcgen05", "multimem", "clusterlaunchcontrol", "discard"))


@dataclass(frozen=True)
class Place:
    """What an address is: a register's own value and bytes behind it. Equal places are equal addresses at any one
    time, since the register is written once."""

    root: str
    offset: int


class Memory:
    """The accesses of a text to global memory."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def is_global(self, instruction: Instruction) -> bool:
        """Whether it is an ld or st of global memory by a thread."""
        return instruction.opcode in ("ld", "st") and instruction.modifiers[:1] == ("global",)

    def is_plain_load(self, instruction: Instruction) -> bool:
        """Whether it is a load that may be done at another time: weak, and of global memory."""
        strong = {"volatile", "relaxed", "acquire", "mmio", "cv"}
        return (
            instruction.opcode == "ld" and "global" in instruction.modifiers and not strong & set(instruction.modifiers)
        )

    @cached_property
    def read_only(self) -> frozenset[int]:
        """The parameters through which the kernel never writes, nor through one that may point to the same memory;
        empty where that is not known."""
        work, written = self._work, set[int]()
        if not work.launched.known or work.launched.early:
            return frozenset()
        for instruction in work.instructions:
            spans = self._written(instruction)
            for span in spans:
                if span.base in self._variables:
                    continue
                number = work.spans.param_of(span)
                if number is None:
                    return frozenset()
                written.add(number)
        shared = {other for number in written for other in work.launched.shares.get(number, ())}
        return frozenset(range(len(work.entry.params))) - written - shared

    @cached_property
    def _variables(self) -> set[str]:
        """Names of memory that is not global."""
        found = (*self._work.module.variables, *self._work.entry.variables)
        return {v.name for v in found if v.space in ("shared", "local")}

    def _written(self, instruction: Instruction) -> list[Span]:
        """The addresses that an instruction may write in global memory; one without a base where they are unknown."""
        opcode, modifiers = instruction.opcode, instruction.modifiers
        if opcode in _OPAQUE:
            return [Span(0, 0)]
        if opcode == "cp":
            return self._copied(instruction)
        if opcode not in ("st", *_ATOMIC) or any(m.startswith(("shared", "local", "param")) for m in modifiers):
            return []
        return [self._work.spans.of(o) for o in instruction.operands if isinstance(o, Address)][:1]

    def _copied(self, instruction: Instruction) -> list[Span]:
        target = next((m for m in instruction.modifiers if m.startswith(("shared", "global"))), "")
        waits = not any(isinstance(o, Address) for o in instruction.operands)
        return [] if waits or target.startswith("shared") else [Span(0, 0)]

    def is_read_only(self, load: Instruction) -> bool:
        """Whether a load reads what nothing writes while the kernel runs."""
        address = load.operands[1]
        number = self._work.spans.param_of(self._work.spans.of(address))
        return number is not None and number in self.read_only

    def place(self, address: Operand) -> Place | None:
        """An address as a register that is written once, and bytes behind it; None of others."""
        if not isinstance(address, Address) or not isinstance(address.base, Register):
            return None
        name, offset = address.base.name, address.offset
        while True:
            writer = self._work.flow.only_writer(name)
            if writer is None:
                return Place(name, offset) if name not in self._work.flow.writers else None
            match writer:
                case Instruction("add", ("s64" | "u64",), (_, Register(source), added)):
                    span = self._work.spans.of(added)
                    if span.step or span.base:
                        return Place(name, offset)
                    name, offset = source, offset + span.within(64, signed=True).lo
                case Instruction("mov", ("b64" | "u64" | "s64",), (_, Register(source))):
                    name = source
                case _:
                    return Place(name, offset)


def parts(load: Instruction) -> tuple[str, ...]:
    """The registers that a load fills or a store writes out; () where there is something else."""
    value = load.operands[1] if load.opcode == "st" else load.operands[0]
    items = value.items if isinstance(value, Vector) else (value,)
    return (
        tuple(i.name for i in items if isinstance(i, Register)) if all(isinstance(i, Register) for i in items) else ()
    )
