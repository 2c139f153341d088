"""How far a loop's counter gets: the one register that has two writers and still a known span. Pure."""

from collections.abc import Callable

from tools.ptx.ir import Immediate, Instruction, Operand, Register, Symbol
from tools.ptx.rewrites.flow import Flow
from tools.ptx.rewrites.span import Span

Of = Callable[[Operand], Span]


def counted(name: str, flow: Flow, of: Of) -> Span | None:
    """The span of `i` in `mov i, first; L: … add j, i, step; … mov i, j; @(j < end) bra L`, of a loop that alone
    reads i.

    What `i` holds when the loop ends is one step further, so a reader behind the loop makes it unknown.
    """
    writers = [flow.instructions[i] for i in flow.writers.get(name, [])]
    if len(writers) != 2 or any(w.guard or w.opcode != "mov" for w in writers):
        return None
    begin, again = writers
    step = _step(again, name, flow)
    loop = _back(flow.writers[name][1], flow)
    if step is None or loop is None:
        return None
    branch, first = loop
    last = flow.writers[name][1]
    inside = all(first <= reader < last for reader in flow.readers[name])
    if not inside or not _enters(flow.writers[name][0], last, first, flow):
        return None
    end = _end(branch, again.operands[1], flow, of)
    start = of(begin.operands[1]).within(32, signed=True)
    if end is None or start.step or end.hi - 1 + step >= 1 << 31:
        return None
    return Span(start.lo, max(start.hi, end.hi - 1), step)


def _enters(begin: int, last: int, first: int, flow: Flow) -> bool:
    """Whether all ways into a loop from outside come straight from the block of instruction `begin`."""
    head, end = flow.block_of[first], flow.block_of[last]
    ways = [i for i in flow.comes_from[head] if not head <= i <= end]
    for _ in flow.blocks:
        if len(ways) != 1 or ways[0] > end:
            return False
        if ways[0] == flow.block_of[begin]:
            return True
        ways = flow.comes_from[ways[0]]
    return False


def _step(again: Instruction, name: str, flow: Flow) -> int | None:
    """What is added to `name` from turn to turn."""
    source = again.operands[1]
    adds = flow.only_writer(source.name) if isinstance(source, Register) else None
    match adds:
        case Instruction("add", ("s32",), (_, Register(counter), Immediate(int(step)))) if counter == name and step > 0:
            return step
    return None


def _back(number: int, flow: Flow) -> tuple[Instruction, int] | None:
    """The branch back that ends the block of an instruction, and the loop's first instruction."""
    here = flow.block_of[number]
    block = flow.blocks[here]
    branch = flow.instructions[block.end - 1]
    if branch.opcode != "bra" or branch.guard is None or branch.guard.negated:
        return None
    match branch.operands:
        case (Symbol(label),):
            head = next((i for i, b in enumerate(flow.blocks) if any(x.name == label for x in b.labels)), None)
            if (
                head is not None
                and head <= here
                and all(head in flow.dominators[inside] for inside in range(head, here + 1))
            ):
                return branch, flow.blocks[head].start
    return None


def _end(branch: Instruction, next_value: object, flow: Flow, of: Of) -> Span | None:
    """What the next value is less than when the loop goes on."""
    compare = flow.only_writer(branch.guard.register) if branch.guard else None
    match compare:
        case Instruction("setp", ("lt", "s32"), (_, Register() as left, bound)) if left == next_value:
            return of(bound).within(32, signed=True)
    return None
