"""Where the loops of a disassembled kernel are: basic blocks, dominators, natural loops. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tools.plan.sass_ir import Instruction

_ENDS = ("EXIT", "RET", "BRX", "JMX", "KILL", "BPT")
_JUMPS = ("BRA", "JMP")
_ALWAYS = ("", "PT", "UPT")


@dataclass(frozen=True)
class Cycle:
    """A natural loop: the numbers of its instructions, in order; `depth` 1 is outermost; `inner`: the numbers of the
    first instructions of the loops inside."""

    members: tuple[int, ...]
    depth: int
    inner: tuple[int, ...]


def cycles(code: Sequence[Instruction]) -> tuple[Cycle, ...]:
    """The natural loops, those with the same head joined, in order of their heads. What only an indirect branch leads
    to is taken for reachable."""
    starts = _starts(code)
    spans = [*starts, len(code)]
    following = _following(code, spans)
    order, above = _dominators(following)
    bodies = _bodies(following, order, above)
    found = {
        head: tuple(n for block in sorted(blocks) for n in range(spans[block], spans[block + 1]))
        for head, blocks in sorted(bodies.items())
    }
    heads = {head for head, members in found.items() if not _is_trap(code, members)}
    inner = {head: sorted(bodies[head] & heads - {head}) for head in heads}  # loops are nested or apart
    depth = Counter(held for its in inner.values() for held in its)
    return tuple(
        Cycle(members, depth[head] + 1, tuple(starts[held] for held in inner[head]))
        for head, members in found.items()
        if head in heads
    )


def _is_trap(code: Sequence[Instruction], members: Sequence[int]) -> bool:
    """The branch to itself that assemblers put behind the end of a kernel."""
    return len(members) == 1 and code[members[0]].head in _JUMPS and not _falls_through(code[members[0]])


def _starts(code: Sequence[Instruction]) -> list[int]:
    """The first instruction of each basic block."""
    leads = {n for n, i in enumerate(code) if n == 0 or i.label}
    leads |= {n + 1 for n, i in enumerate(code[:-1]) if i.head in (*_JUMPS, *_ENDS, "BSYNC")}
    return sorted(leads)


def _following(code: Sequence[Instruction], spans: Sequence[int]) -> list[list[int]]:
    """The blocks that may come after each; `spans` are their beginnings, and the end."""
    block_at = {start: n for n, start in enumerate(spans[:-1])}
    labels = {code[start].label: n for start, n in block_at.items() if code[start].label}
    joins = _joins(code)
    result: list[list[int]] = []
    for end in spans[1:]:
        last, after = code[end - 1], block_at.get(end)
        falls = after is not None and not code[end].label.startswith(".text.") and _falls_through(last)
        named = last.target if last.head in _JUMPS else joins.get(end - 1, "")
        result.append([b for b in (after if falls else None, labels.get(named)) if b is not None])
    return result


def _falls_through(last: Instruction) -> bool:
    if last.head in _JUMPS:  # "BRA.U UP0, `(.L_x_1)" names its condition among the operands
        return last.predicate not in _ALWAYS or not last.operands.startswith("`")
    return last.head not in _ENDS or last.predicate not in _ALWAYS


def _joins(code: Sequence[Instruction]) -> dict[int, str]:
    """Where each BSYNC leads: to what the latest BSSY of its register named."""
    opened: dict[str, str] = {}
    found: dict[int, str] = {}
    for n, i in enumerate(code):
        register = i.operands.partition(",")[0].strip()
        if i.head == "BSSY":
            opened[register] = i.target
        elif i.head == "BSYNC":
            found[n] = opened.get(register, "")
    return found


def _dominators(following: Sequence[Sequence[int]]) -> tuple[dict[int, int], dict[int, int]]:
    """Of each block its place in reverse postorder, and its immediate dominator (of a first block -1, which is above
    all), as Cooper, Harvey and Kennedy find them."""
    sequence = _reverse_postorder(following)
    roots = _roots(following)
    order = {block: place for place, block in enumerate(sequence)} | {-1: -1}
    before: dict[int, list[int]] = {block: [-1] if block in roots else [] for block in sequence}
    for block, its in enumerate(following):
        for after in its:
            before[after].append(block)
    above: dict[int, int] = {-1: -1}
    changed = True
    while changed:
        changed = False
        for block in sequence:
            known = [b for b in before[block] if b in above]
            nearest = known[0]
            for other in known[1:]:
                nearest = _common(nearest, other, order, above)
            changed |= above.get(block) != nearest
            above[block] = nearest
    return order, above


def _common(one: int, other: int, order: dict[int, int], above: dict[int, int]) -> int:
    while one != other:
        while order[one] > order[other]:
            one = above[one]
        while order[other] > order[one]:
            other = above[other]
    return one


def _roots(following: Sequence[Sequence[int]]) -> list[int]:
    """The first block, and in order the first of those that none of the former leads to."""
    roots, seen = [], set[int]()
    for block in range(len(following)):
        if block not in seen:
            roots.append(block)
            seen |= _reached(block, lambda b: following[b], seen)
    return roots


def _reached(start: int, following: Callable[[int], Sequence[int]], stop: set[int]) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        new = [b for b in following(waiting.pop()) if b not in found and b not in stop]
        found.update(new)
        waiting += new
    return found


def _reverse_postorder(following: Sequence[Sequence[int]]) -> list[int]:
    done: list[int] = []
    seen: set[int] = set()
    for root in _roots(following):
        waiting: list[tuple[int, Iterator[int]]] = []
        if root not in seen:
            seen.add(root)
            waiting.append((root, iter(following[root])))
        while waiting:
            new = next((b for b in waiting[-1][1] if b not in seen), None)
            if new is None:
                done.append(waiting.pop()[0])
            else:
                seen.add(new)
                waiting.append((new, iter(following[new])))
    return done[::-1]


def _bodies(
    following: Sequence[Sequence[int]], order: dict[int, int], above: dict[int, int]
) -> dict[int, frozenset[int]]:
    """By head: the blocks from which an edge leads back to a head that dominates them."""
    before: list[list[int]] = [[] for _ in following]
    for block, its in enumerate(following):
        for after in its:
            before[after].append(block)
    bodies: dict[int, set[int]] = {}
    for block, its in enumerate(following):
        for head in its:
            if _dominates(head, block, order, above):
                body = bodies.setdefault(head, {head})
                body |= _reached(block, lambda b: before[b], {head}) if block != head else set()
    return {head: frozenset(body) for head, body in bodies.items()}


def _dominates(head: int, block: int, order: dict[int, int], above: dict[int, int]) -> bool:
    while order[block] > order[head]:
        block = above[block]
    return block == head
