"""Who writes and reads which register, and what runs before what. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tools.ptx.ir import (
    Both,
    Function,
    Group,
    Instruction,
    Label,
    Operand,
    Register,
    Symbol,
    Vector,
    leaves,
)

_NO_RESULT = frozenset(
    "st bra ret exit trap red cp membar fence prefetch prefetchu discard stmatrix nanosleep pmevent setmaxnreg brkpt "
    "griddepcontrol applypriority tensormap multimem".split()
)
_ENDS = frozenset(("bra", "ret", "exit", "trap", "brx"))
# Without an effect but their result, which depends on their operands only.
PURE = frozenset(
    "abs add addc and bfe bfi bfind bmsk brev clz cnot copysign cos createpolicy cvt cvta div dp2a dp4a ex2 fma fns "
    "lg2 lop3 mad mad24 madc max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl shr "
    "sin slct sqrt sub subc szext tanh testp xor".split()
)


def registers_in(operand: Operand) -> Iterator[str]:
    """All registers of an operand."""
    return (leaf.name for leaf in leaves(operand) if isinstance(leaf, Register))


def has_result(instruction: Instruction) -> bool:
    """Whether the first operand is what an instruction writes."""
    if not instruction.operands or instruction.opcode in _NO_RESULT:
        return False
    if instruction.opcode in ("bar", "barrier") and "red" not in instruction.modifiers:
        return False
    return isinstance(instruction.operands[0], Register | Vector | Both | Group | Symbol)


def results(instruction: Instruction) -> tuple[str, ...]:
    """The registers that it writes."""
    return tuple(registers_in(instruction.operands[0])) if has_result(instruction) else ()


def reads(instruction: Instruction) -> tuple[str, ...]:
    """The registers that it reads: those of a guarded or accumulating instruction's result too, which may stay."""
    found = [n for operand in instruction.operands[has_result(instruction) :] for n in registers_in(operand)]
    if instruction.guard:
        found += [instruction.guard.register, *results(instruction)]
    elif instruction.opcode == "wgmma":
        found += results(instruction)
    return tuple(found)


@dataclass
class Block:
    """Instructions that run one after the other, by their numbers; `follows`: the blocks that may come next."""

    start: int
    end: int
    labels: tuple[Label, ...] = ()
    follows: list[int] = field(default_factory=list)


class Flow:
    """A function's instructions by number, its registers' writers and readers, its blocks."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.instructions = list(function.instructions)
        self.number = {id(item): i for i, item in enumerate(self.instructions)}
        self.writers: dict[str, list[int]] = defaultdict(list)
        self.readers: dict[str, list[int]] = defaultdict(list)
        for i, instruction in enumerate(self.instructions):
            for name in results(instruction):
                self.writers[name].append(i)
            for name in reads(instruction):
                self.readers[name].append(i)

    def only_writer(self, register: str) -> Instruction | None:
        """The one instruction that writes a register, always; None where there are several, or a condition."""
        writers = self.writers.get(register, [])
        if len(writers) != 1 or self.instructions[writers[0]].guard:
            return None
        return self.instructions[writers[0]]

    def readers_of(self, register: str) -> list[Instruction]:
        """What reads a register, in order."""
        return [self.instructions[i] for i in self.readers.get(register, [])]

    @cached_property
    def blocks(self) -> list[Block]:
        """In the order of the text; a label that nothing names begins none."""
        named = {o.name for i in self.instructions for o in i.operands if isinstance(o, Symbol)}
        found: list[Block] = []
        labels: list[Label] = []
        start, number = 0, 0
        for item in self.function.body:
            if isinstance(item, Label) and item.name in named:
                if number > start:
                    found.append(Block(start, number, tuple(labels)))
                    start, labels = number, []
                labels.append(item)
            elif isinstance(item, Instruction):
                number += 1
                if item.opcode in _ENDS:
                    found.append(Block(start, number, tuple(labels)))
                    start, labels = number, []
        if number > start or labels:
            found.append(Block(start, number, tuple(labels)))
        self._connect(found)
        return found

    def _connect(self, blocks: list[Block]) -> None:
        at = {label.name: i for i, block in enumerate(blocks) for label in block.labels}
        for i, block in enumerate(blocks):
            last = self.instructions[block.end - 1] if block.end > block.start else None
            if last is not None and last.opcode == "bra":
                block.follows += [at[o.name] for o in last.operands if isinstance(o, Symbol) and o.name in at]
            goes_on = last is None or last.opcode not in _ENDS or last.guard is not None
            if goes_on and i + 1 < len(blocks):
                block.follows.append(i + 1)

    @cached_property
    def block_of(self) -> list[int]:
        """The block of each instruction."""
        return [i for i, block in enumerate(self.blocks) for _ in range(block.start, block.end)]

    @cached_property
    def comes_from(self) -> list[list[int]]:
        """For each block those that may run just before it."""
        found: list[list[int]] = [[] for _ in self.blocks]
        for i, block in enumerate(self.blocks):
            for j in block.follows:
                found[j].append(i)
        return found

    @cached_property
    def dominators(self) -> list[set[int]]:
        """For each block those that always ran before it, and itself. A block that nothing reaches has all."""
        everything = set(range(len(self.blocks)))
        found = [{0}] + [set(everything) for _ in self.blocks[1:]]
        before = self.comes_from
        changed = True
        while changed:
            changed = False
            for i in range(1, len(self.blocks)):
                new = set.intersection(*(found[j] for j in before[i])) if before[i] else set(everything)
                new |= {i}
                if new != found[i]:
                    found[i], changed = new, True
        return found

    def block(self, instruction: Instruction) -> int:
        """The number of the block that an instruction stands in."""
        return self.block_of[self.number[id(instruction)]]

    def precedes(self, first: int, second: int) -> bool:
        """Whether instruction `first` always ran before `second` does."""
        a, b = self.block_of[first], self.block_of[second]
        return first < second if a == b else a in self.dominators[b]

    def _is_before(self, first: int, second: int) -> bool:
        return first == second or self.precedes(first, second)

    def comes_first(self, first: Instruction, second: Instruction) -> bool:
        """Whether an instruction stands before another one in the same block."""
        a, b = self.number[id(first)], self.number[id(second)]
        return self.block_of[a] == self.block_of[b] and a < b

    def unchanged(self, names: Iterable[str], first: Instruction, last: Instruction) -> bool:
        """Whether registers hold at `last` what they held at `first`, which always ran before: each is written once,
        before both, or both stand in one block where nothing between writes it."""
        start, end = self.number[id(first)], self.number[id(last)]
        same_block = self.block_of[start] == self.block_of[end] and start <= end
        for name in names:
            once = self.only_writer(name) is not None and self._is_before(self.writers[name][0], start)
            once = once or name not in self.writers
            if not once and not (same_block and not any(start <= w < end for w in self.writers[name])):
                return False
        return same_block or self.precedes(start, end)
