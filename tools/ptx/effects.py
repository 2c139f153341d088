"""Which of its parameters a PTX entry reads memory through, and which it writes through. Pure.

Registers carry the set of parameters that went into them, in whatever order instructions run; what is loaded from
memory is data and carries none. An access through a register that carries none may go anywhere.
"""

from dataclasses import dataclass
from functools import lru_cache

from tools.ptx.binding import PtxLaunchError, entry_of
from tools.ptx.flow import waits
from tools.ptx.ir import (
    Address,
    Function,
    Instruction,
    Module,
    Operand,
    PtxError,
    Register,
    Symbol,
    leaves,
)
from tools.ptx.parser import parse

_INSIDE = ("shared", "local", "param", "const")
_LOADS = frozenset({"ld", "ldu", "ldmatrix"})
_STORES = frozenset({"st", "stmatrix"})
_UPDATES = frozenset({"atom", "red"})
_NO_MEMORY = frozenset({"prefetch", "prefetchu", "createpolicy", "isspacep", "mbarrier", "fence", "cvta", "mov"})
_FEWEST_PASSES, _MOST_STEPS = 8, 1 << 19  # of text that reads its registers before it writes them


class AnyMemory(Exception):
    """An access whose address comes from none of the parameters, as far as can be told."""


@dataclass
class _Flow:
    """Sets of parameters are bits of an int, parameter 0 the lowest; variables of the module follow them."""

    params: dict[str, int]
    variables: dict[str, int]
    carried: dict[str, int]
    reads: int = 0
    writes: int = 0

    def of(self, *operands: Operand) -> int:
        """What operands carry."""
        bits = 0
        for leaf in (leaf for operand in operands for leaf in leaves(operand)):
            if isinstance(leaf, Register):
                bits |= self.carried.get(leaf.name.partition(".")[0], 0)
            elif isinstance(leaf, Symbol):
                bits |= self.variables.get(leaf.name, 0)
        return bits

    def give(self, operand: Operand, bits: int) -> bool:
        """Let a result carry more; whether that was new."""
        news = False
        for leaf in () if isinstance(operand, Address) else leaves(operand):
            if isinstance(leaf, Register):
                name = leaf.name.partition(".")[0]
                before = self.carried.get(name, 0)
                self.carried[name] = before | bits
                news |= bool(bits & ~before)
        return news

    def step(self, instruction: Instruction) -> bool:
        """One instruction's results; whether anything new was learned."""
        if instruction.opcode == "ld" and instruction.modifiers[:1] == ("param",):
            address = instruction.operands[-1]
            base = address.base if isinstance(address, Address) else None
            bits = self.params.get(base.name, 0) if isinstance(base, Symbol) else 0
            return self.give(instruction.operands[0], bits | self.guarded(instruction))
        if instruction.opcode in _LOADS | _UPDATES or not instruction.operands:
            return False
        bits = self.of(*instruction.operands[1:]) | self.guarded(instruction)
        return self.give(instruction.operands[0], bits)

    def guarded(self, instruction: Instruction) -> int:
        """What decides whether an instruction runs goes into what it makes."""
        return self.carried.get(instruction.guard.register, 0) if instruction.guard else 0

    def access(self, instruction: Instruction) -> None:
        """Note what an instruction may do to memory. Raises AnyMemory."""
        places = [operand for operand in instruction.operands if isinstance(operand, Address)]
        space = next((m.partition("::")[0] for m in instruction.modifiers if m.partition("::")[0] in _INSIDE), None)
        if instruction.opcode == "call":
            raise AnyMemory
        if not places or instruction.opcode in _NO_MEMORY:
            return
        if instruction.opcode == "cp":
            self._copy(instruction, places)
        elif instruction.opcode in _LOADS | _STORES | _UPDATES:
            if space is None:
                self._through(
                    places[0], reads=instruction.opcode not in _STORES, writes=instruction.opcode not in _LOADS
                )
        elif space is None:
            raise AnyMemory

    def _copy(self, instruction: Instruction, places: list[Address]) -> None:
        """cp.async…: destination first, then source; which of them is global is said in that order too."""
        spaces = [m.partition("::")[0] for m in instruction.modifiers if m.partition("::")[0] in ("shared", "global")]
        if len(spaces) < 2 or len(places) < 2 or "tensor" in instruction.modifiers:
            raise AnyMemory
        if spaces[1] == "global":
            self._through(places[1], reads=True, writes=False)
        if spaces[0] == "global":
            self._through(places[0], reads="reduce" in instruction.modifiers, writes=True)

    def _through(self, place: Address, *, reads: bool, writes: bool) -> None:
        bits = self.of(place)
        if not bits:
            raise AnyMemory
        self.reads |= bits * reads
        self.writes |= bits * writes


@lru_cache(maxsize=256)
def effects(text: str, name: str) -> tuple[tuple[bool, bool], ...] | None:
    """(reads, writes) for each parameter; None when the text cannot be followed."""
    try:
        module = parse(text)
        entry = entry_of(module, name)
        flow = _followed(module, entry)
    except (PtxError, PtxLaunchError, AnyMemory, RecursionError):
        return None
    return tuple((bool(flow.reads >> i & 1), bool(flow.writes >> i & 1)) for i in range(len(entry.params)))


def written_variables(module: Module) -> frozenset[str] | None:
    """Names of the module's variables that its entries may write; None when that cannot be told."""
    written: set[str] = set()
    for entry in module.entries:
        try:
            flow = _followed(module, entry)
        except (AnyMemory, RecursionError):
            return None
        written |= {name for name, bit in flow.variables.items() if flow.writes & bit}
    return frozenset(written)


def _followed(module: Module, entry: Function) -> _Flow:
    params = {param.name: 1 << i for i, param in enumerate(entry.params)}
    held = (*module.variables, *(v for f in module.functions for v in f.variables))
    outside = [v.name for v in held if v.space in ("global", "const")]
    params = {name: bit for name, bit in params.items() if name not in {v.name for v in entry.variables}}
    flow = _Flow(params, {name: 1 << len(entry.params) + i for i, name in enumerate(outside)}, {})
    instructions = list(entry.instructions)
    for _ in range(max(_FEWEST_PASSES, _MOST_STEPS // (len(instructions) + 1))):
        if not any([flow.step(instruction) for instruction in instructions]):
            break
    else:
        raise AnyMemory
    for instruction in instructions:
        flow.access(instruction)
    return flow


@lru_cache(maxsize=256)
def waits_for_earlier(text: str, name: str) -> bool:
    """Whether an entry waits for the launches before it (griddepcontrol.wait), by what it does, not by its comments."""
    try:
        return waits(entry_of(parse(text), name))
    except (PtxError, PtxLaunchError):
        return False
