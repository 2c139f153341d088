"""The second stage of a reduction over a block, flattened: instead of one warp that combines what the warps left in
shared memory, writes it and makes all wait a second time, every thread combines it for itself. Pure.

Who reads and writes where is worked out for every thread by its number, and the order of the operations is that of the
thread whose result was passed on, so that the result is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.ptx.ir import Instruction, Register
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.flow import PURE
from tools.ptx.rewrites.shuffles import WARP, Chain, chain_from
from tools.ptx.rewrites.span import Span
from tools.ptx.rewrites.spans import Spans

_COUNTS = (32, 16, 8, 4, 2)
_COMBINED = ("add.f32", "max.f32", "min.f32", "max.NaN.f32", "min.NaN.f32")
_VECTOR = 4


@dataclass(frozen=True)
class _Stage:
    """A barrier, guarded loads of what the warps left, each reduced by shuffles and stored again, a second barrier, and
    loads of the results."""

    loads: tuple[Instruction, ...]
    chains: tuple[Chain, ...]
    stores: tuple[Instruction, ...]
    second: Instruction
    finals: tuple[Instruction, ...]


def _flat(work: Work, value: str) -> None:
    threads = _threads(work)
    for number, barrier in enumerate(work.instructions):
        if threads and _is_barrier(barrier):
            stage = _stage(work, number)
            if stage is not None:
                _flatten(work, stage, threads)


def _threads(work: Work) -> int:
    """How many, where their number alone tells them apart and all warps are whole."""
    block = work.spans.block
    return block[0] if block is not None and block[1:] == (1, 1) and block[0] % WARP == 0 else 0


def _is_barrier(i: Instruction) -> bool:
    return i.name == "bar.sync" and len(i.operands) == 1 and i.guard is None


def _is_shared(i: Instruction, opcode: str) -> bool:
    return i.opcode == opcode and i.modifiers in (("shared", "b32"), ("shared", "f32"))


def _stage(work: Work, first: int) -> _Stage | None:
    """The stage that begins behind the barrier with this number; None where it has another form."""
    block = work.flow.blocks[work.flow.block_of[first]]
    inside = work.instructions[first + 1 : block.end]
    at = next((n for n, i in enumerate(inside) if _is_barrier(i)), None)
    if at is None:
        return None
    before, after = inside[:at], inside[at + 1 :]
    loads, stores = _touching(before, "ld"), _touching(before, "st")
    finals = _reads_until_barrier(after)
    if not loads or len(loads) != len(stores) or finals is None:
        return None
    chains = [_reduction(work, load) for load in loads]
    found = tuple(chain for chain in chains if chain is not None)
    if len(found) != len(loads) or [_stored(s) for s in stores] != [c.end for c in found]:
        return None
    if any(i not in before for chain in found for i in chain.all):
        return None
    return _Stage(tuple(loads), found, tuple(stores), inside[at], tuple(finals))


def _touching(before: Sequence[Instruction], opcode: str) -> list[Instruction]:
    """The shared loads, or stores, between two barriers; [] where anything else touches memory or waits."""
    known = [i for i in before if _is_shared(i, "ld") or _is_shared(i, "st")]
    quiet = all(i.opcode in PURE or i.opcode == "shfl" or i in known or _is_param_load(i) for i in before)
    return [i for i in known if i.opcode == opcode] if quiet else []


def _is_param_load(i: Instruction) -> bool:
    return i.opcode == "ld" and i.modifiers[:1] == ("param",)


def _is_global_load(i: Instruction) -> bool:
    return i.opcode == "ld" and i.modifiers[:1] in (("global",), ("param",)) and "volatile" not in i.modifiers


def _reads_until_barrier(after: Sequence[Instruction]) -> list[Instruction] | None:
    """The shared loads up to the next barrier or the end of the kernel; None where shared memory is written before, or
    it is not seen whether it is."""
    found: list[Instruction] = []
    for i in after:
        if _is_barrier(i) or i.opcode in ("ret", "exit"):
            return found
        if _is_shared(i, "ld"):
            found.append(i)
        elif i.opcode not in PURE and i.opcode != "shfl" and not _is_global_load(i) and not _is_global_store(i):
            return None
    return None


def _is_global_store(i: Instruction) -> bool:
    return i.opcode == "st" and i.modifiers[:1] == ("global",)


def _reduction(work: Work, load: Instruction) -> Chain | None:
    """The reduction of what a load brings, over as many lanes as it goes."""
    result = load.operands[0]
    if not isinstance(result, Register) or len(work.flow.writers[result.name]) != 1:
        return None
    readers = work.flow.readers_of(result.name)
    shuffle = next((r for r in readers if r.opcode == "shfl"), None)
    if shuffle is None or len([r for r in readers if r is not load]) != 2:
        return None
    chains = (chain_from(work, shuffle, count) for count in _COUNTS)
    chain = next((c for c in chains if c is not None), None)
    return chain if chain is not None and chain.combine.name in _COMBINED else None


def _stored(store: Instruction) -> str:
    value = store.operands[1]
    return value.name if isinstance(value, Register) else ""


def _flatten(work: Work, stage: _Stage, threads: int) -> None:
    everything = [*stage.loads, *(i for c in stage.chains for i in c.all), *stage.stores, stage.second, *stage.finals]
    lone = all(len(work.flow.readers_of(c.end)) == 1 for c in stage.chains)
    spans = [Spans(work.entry, work.flow, work.launched, thread) for thread in range(threads)]
    plans = [_sources(work, stage, final, spans) for final in stage.finals]
    if not lone or not work.all_free(everything) or any(p is None for p in plans) or not plans:
        return
    if not all(_forgotten(work, stage, store, spans) for store in stage.stores):
        return
    for final, plan in zip(stage.finals, plans, strict=True):
        if plan is not None:
            chain, places = plan
            work.replace(final, *_combined(work, chain, places, final))
    for gone in everything:
        if gone not in stage.finals:
            work.replace(gone)


def _sources(work: Work, stage: _Stage, final: Instruction, spans: Sequence[Spans]) -> tuple[Chain, list[Span]] | None:
    """Which reduction a final load reads the result of, and the places of what went into it, in the order in which the
    lanes of the thread that stored it are told apart. None where that is not known for certain."""
    wanted = work.spans.of(final.operands[1])
    if final.guard is not None or wanted.step or not wanted.base:
        return None
    writers = [
        (thread, n)
        for n, store in enumerate(stage.stores)
        for thread, its in enumerate(spans)
        if _acts(its, store) is not False and _may_be(its.of(store.operands[0]), wanted)
    ]
    if len(writers) != 1:
        return None
    thread, n = writers[0]
    if _acts(spans[thread], stage.stores[n]) is not True or spans[thread].of(stage.stores[n].operands[0]) != wanted:
        return None
    chain, load = stage.chains[n], stage.loads[n]
    count = 2 ** (len(chain.all) // 2)
    lanes = [spans[thread ^ x] for x in range(count)]
    places = [its.of(load.operands[1]) for its in lanes]
    certain = all(_acts(its, load) is True for its in lanes) and not any(p.step or not p.base for p in places)
    return (chain, places) if certain else None


def _forgotten(work: Work, stage: _Stage, store: Instruction, spans: Sequence[Spans]) -> bool:
    """Whether what a store left is read by nobody but the final loads: the kernel ends, or for each place that it wrote
    there is a store that certainly writes it again, before any other load may read it."""
    places = {its.of(store.operands[0]) for its in spans if _acts(its, store) is not False}
    if any(p.step or not p.base for p in places):
        return False
    flow = work.flow
    last = flow.number[id(stage.finals[-1])]
    for i in work.instructions[last + 1 : flow.blocks[flow.block_of[last]].end]:
        if i.opcode in ("ret", "exit") and i.guard is None:
            return True
        if _is_shared(i, "st"):
            places -= {its.of(i.operands[0]) for its in spans if _acts(its, i) is True}
        elif _is_shared(i, "ld"):
            read = {its.of(i.operands[1]) for its in spans if _acts(its, i) is not False}
            if any(_may_be(r, p) for r in read for p in places):
                return False
        elif (
            i.opcode not in PURE
            and i.opcode not in ("shfl", "bar")
            and i.modifiers[:1] not in (("global",), ("param",))
        ):
            return False
        if not places:
            return True
    return False


def _acts(spans: Spans, i: Instruction) -> bool | None:
    """Whether a thread does it."""
    if i.guard is None:
        return True
    held = spans.truth(i.guard.register)
    return None if held is None else held is not i.guard.negated


def _may_be(place: Span, wanted: Span) -> bool:
    """Whether an address may be another one."""
    return not place.base or (place.base == wanted.base and place.lo <= wanted.lo <= place.hi)


def _combined(work: Work, chain: Chain, places: Sequence[Span], final: Instruction) -> list[str]:
    values, statements = _loaded(work, places)
    distance = len(values) // 2
    result = final.operands[0]
    while distance:
        for x in range(distance):
            last = distance == 1 and isinstance(result, Register)
            target = result.name if last and isinstance(result, Register) else values[x]
            statements.append(f"{chain.combine.name} {target}, {values[x]}, {values[x + distance]};")
        distance //= 2
    return statements


def _loaded(work: Work, places: Sequence[Span]) -> tuple[list[str], list[str]]:
    """Registers for all places and the loads that fill them, four at a time where they are neighbours."""
    names = [work.fresh("b32", "part") for _ in places]
    by_offset = sorted(zip((p.lo for p in places), names, strict=True))
    base, statements = places[0].base, list[str]()
    at = 0
    while at < len(by_offset):
        run = by_offset[at : at + _VECTOR]
        start = run[0][0]
        aligned = start % 16 == 0 and _aligned(work, base) and len(run) == _VECTOR
        if aligned and all(offset == start + 4 * n for n, (offset, _) in enumerate(run)):
            statements.append(f"ld.shared.v4.b32 {{{', '.join(name for _, name in run)}}}, [{base}{start:+d}];")
            at += _VECTOR
        else:
            statements.append(f"ld.shared.b32 {run[0][1]}, [{base}{start:+d}];")
            at += 1
    return names, statements


def _aligned(work: Work, name: str) -> bool:
    """Whether a variable begins at a multiple of 16 bytes."""
    variables = (*work.module.variables, *work.entry.variables)
    return any(v.name == name and (v.align or 1) % 16 == 0 for v in variables)


REWRITES = (
    Rewrite(
        "flat", ("on",), "bits", "each thread combines for itself what the warps left in shared memory",
        "a second barrier and three to five shuffles in a row give way to a few loads of the same words",
        "fewer barriers and shuffles", _flat,
    ),
)  # fmt: skip
