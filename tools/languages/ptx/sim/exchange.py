"""Instructions between threads and memory: loads and stores, atomics, and exchanges inside a warp."""

from collections.abc import Callable

import numpy as np

from kerneltune.tools.languages.ptx.ir import Address, Operand, Symbol, Vector
from kerneltune.tools.languages.ptx.sim.arithmetic import ones
from kerneltune.tools.languages.ptx.sim.machine import WARP, Ins, Read, Run, WarpMachine
from kerneltune.tools.languages.ptx.sim.values import (
    POISON,
    UNSIGNED,
    IllFormed,
    bits_of,
    decode,
    encode,
    is_float,
    nearest,
    place,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array

# ---
# Loads, stores, and what orders them.

SPACES = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "shared::cluster": "shared", "local": "local",
    "const": "global", "param": "param", "param::entry": "param",
}  # fmt: skip
SMALL = ("shared", "local")  # windows of 32 bits
ORDERS = ("weak", "relaxed", "volatile", "acquire", "release", "acq_rel", "mmio")
SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHES = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified")
SYNCHRONISING = ("volatile", "acquire", "acq_rel", "relaxed")


def space_of(ins: Ins) -> str:
    """The state space; "generic" without one."""
    return SPACES.get(ins.one_of(tuple(SPACES)), "generic")


def ignore_hints(ins: Ins) -> bool:
    """Caches and policies, which change no value. Whether a cache policy follows as an operand."""
    ins.ignore(*_CACHES, *SCOPES)
    hinted = ins.flag("L2::cache_hint")
    ins.unread = [w for w in ins.unread if not w.startswith(("L1::", "L2::"))]
    return hinted


def reach(ins: Ins, operand: Operand, space: str) -> Read:
    """Addresses of an operand in brackets, for Memory. A name that stands there means its own space."""
    return ins.address(operand, small=space in SMALL)


def own_space(ins: Ins, operand: Operand, space: str) -> str:
    """Return the state space of an address that says none: that of the variable which it names."""
    if space == "generic" and isinstance(operand, Address) and isinstance(operand.base, Symbol):
        return ins.scope.spaces.get(operand.base.name, space)
    return space


def _vector(ins: Ins, operand: Operand) -> tuple[Operand, ...]:
    """The registers of a vector, as many as the modifier says."""
    count = int(ins.one_of(("v2", "v4", "v8"), "v1")[1:])
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise IllFormed(f"{place(ins.ins)}: {len(items)} registers where {count} belong")
    return items


def load(ins: Ins) -> Run:
    """ld, ldu."""
    orders = ins.one_of(ORDERS) in SYNCHRONISING
    hinted = ignore_hints(ins)
    space = own_space(ins, ins.operands[1], space_of(ins))
    items = _vector(ins, ins.operands[0])
    ins.understood()
    ins.expect(3 if hinted else 2)
    kind = ins.kind
    element = max(1, bits_of(kind) // 8)
    width = element * len(items)
    at = reach(ins, ins.operands[1], space)
    writers = [ins.write_bits(item, kind) for item in items]
    bare = ins.ins

    def run(m: WarpMachine) -> None:
        address = at(m)
        if space in ("shared", "local") or len(address) > 1:
            address, lanes = m.full(address), m.lanes
        else:
            lanes = m.lanes.only(np.zeros(1, np.int64))  # one for all
        raw = m.memory.read(space, address, width, bare, lanes)
        if orders and space != "global":
            m.memory.shadow.barrier(np.unique(lanes.blocks))
        _deliver(m, raw, element, writers)

    if element == 16:
        raise unsupported(bare, "128-bit registers")
    return run


def _deliver(m: WarpMachine, raw: Array, element: int, writers: list) -> None:  # type: ignore[type-arg]
    parts = raw.view(UNSIGNED[element * 8])
    for i, writer in enumerate(writers):
        writer(m, np.ascontiguousarray(parts[:, i]))


def store(ins: Ins) -> Run:
    """st."""
    ins.one_of(ORDERS)
    hinted = ignore_hints(ins)
    space = own_space(ins, ins.operands[0], space_of(ins))
    items = _vector(ins, ins.operands[1])
    ins.understood()
    ins.expect(3 if hinted else 2)
    kind, bare = ins.kind, ins.ins
    if bits_of(kind) == 128:
        raise unsupported(bare, "128-bit registers")
    at = reach(ins, ins.operands[0], space)
    readers = [ins.bits(item, kind) for item in items]

    def run(m: WarpMachine) -> None:
        columns = [m.full(reader(m)) for reader in readers]
        raw = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
        m.memory.write(space, m.full(at(m)), raw, bare, m.lanes)

    return run


def nothing(ins: Ins) -> Run:
    """Hints and fences: threads here see memory in one order. What cp.async copies, no fence completes."""
    return lambda m: None


def fence(ins: Ins) -> Run:
    """fence.proxy.async lets bulk copies see what threads have stored; the others tell nobody anything new."""
    if not ins.flag("proxy") or not ins.flag("async"):
        return nothing(ins)
    return lambda m: m.memory.shadow.fence(m.lanes.blocks)


def policy(ins: Ins) -> Run:
    """createpolicy: a number that only hints use."""
    write = ins.write_bits(ins.operands[0], "b64")
    one = np.zeros(1, np.uint64)
    return lambda m: write(m, one)


def is_space(ins: Ins) -> Run:
    """isspacep: which window a generic address lies in."""
    space = space_of(ins)
    ins.understood()
    a, write = ins.bits(ins.operands[1], "b64"), ins.write_bits(ins.operands[0], "pred")
    window = {"shared": 1, "local": 2, "param": 3}.get(space)

    def run(m: WarpMachine) -> None:
        upper = a(m) >> np.uint64(32)
        write(m, upper == window if window else upper >= 256)

    return run


def mapped(ins: Ins) -> Run:
    """mapa: the address in another block of the cluster; there is one."""
    ins.ignore("shared::cluster")
    ins.understood()
    a, rank = ins.bits(ins.operands[1], ins.kind), ins.bits(ins.operands[2], "u32")
    write = ins.write_bits(ins.operands[0], ins.kind)

    def run(m: WarpMachine) -> None:
        if rank(m).any():
            raise unsupported(ins.ins, "clusters of several blocks")
        write(m, a(m))

    return run


MEMORY_OPS = {
    "ld": load, "ldu": load, "st": store, "isspacep": is_space, "createpolicy": policy, "mapa": mapped,
    "fence": fence,
    **dict.fromkeys(
        ("prefetch", "prefetchu", "applypriority", "discard", "membar", "griddepcontrol", "nanosleep",
         "setmaxnreg", "pmevent"), nothing),
}  # fmt: skip


# ---
# atom and red: threads take turns, by number.

Combine = Callable[..., Array]
_NAMES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _combiner(name: str, kind: str) -> Combine:
    """New value from the old one, and the operands."""
    base = kind.removesuffix("x2")
    if name == "add" and is_float(kind):
        return lambda old, b: nearest(old + b, base) if base == "bf16" else old + b
    combine: dict[str, Combine] = {
        "add": np.add,
        "min": np.fmin if is_float(kind) else np.minimum,
        "max": np.fmax if is_float(kind) else np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, b: b,
        "cas": lambda old, b, c: np.asarray(np.where(old == b, c, old)),
        "inc": lambda old, b: np.asarray(np.where(old >= b, 0, old + 1), old.dtype),
        "dec": lambda old, b: np.asarray(np.where((old == 0) | (old > b), b, old - 1), old.dtype),
    }
    return combine[name]


def atomic(ins: Ins) -> Run:
    """atom and red of one element, or of a vector of elements."""
    ins.one_of(ORDERS)
    hinted = ignore_hints(ins)
    space, name = space_of(ins), ins.one_of(_NAMES)
    ins.ignore("noftz")
    vector = int(ins.one_of(("v2", "v4", "v8"), "v1")[1:])
    if ins.ins.opcode == "red" and ins.unread[:1] == ["async"]:
        raise unsupported(ins.ins, "red.async")
    ins.understood()
    operands = ins.operands[: len(ins.operands) - hinted]
    results, operands = ((), operands) if ins.opcode == "red" else (_items(operands[0]), operands[1:])
    ins.kinds = (ins.kind,)
    space = own_space(ins, operands[0], space)
    at = reach(ins, operands[0], space)
    return _steps(ins, space, name, vector, at, operands[1:], results)


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _steps(
    ins: Ins,
    space: str,
    name: str,
    vector: int,
    at: Callable[[WarpMachine], Array],
    operands: tuple[Operand, ...],
    results: tuple[Operand, ...],
) -> Run:
    kind, bare = ins.kind, ins.ins
    if not name or bits_of(kind) == 128:
        raise unsupported(bare, "this atomic operation")
    width, combine = bits_of(kind) // 8, _combiner(name, kind)
    readers = [[ins.bits(item, kind) for item in _items(operand)] for operand in operands]
    writers = [ins.write_bits(item, kind) for item in results]

    def run(m: WarpMachine) -> None:
        address = m.full(at(m))
        if writers:  # may be a lock: what it guards does not race
            m.memory.shadow.barrier(np.unique(m.lanes.blocks))
        m.memory.check(space, address, width * vector, bare, m.lanes)
        for i in range(vector):
            values = [m.full(reader[i](m)) for reader in readers]
            old = _in_turns(m, space, address + i * width, values, kind, combine, ins)
            if writers:
                writers[i](m, old)

    return run


def _in_turns(
    m: WarpMachine, space: str, address: Array, values: list[Array], kind: str, combine: Combine, ins: Ins
) -> Array:
    """What each lane found. Lanes with one address go one after the other."""
    width, lanes = bits_of(kind) // 8, m.lanes
    block = lanes.blocks if space in ("shared", "generic") else np.zeros(len(lanes), np.int64)
    order = np.lexsort((np.arange(len(address)), address, block))
    same = (np.diff(address[order]) == 0) & (np.diff(block[order]) == 0)
    starts = np.concatenate([[True], ~same])
    turn = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    old = np.empty(len(address), UNSIGNED[width * 8])
    by_turn = order[np.argsort(turn, kind="stable")]
    bounds = np.cumsum(np.bincount(turn))
    for low, high in zip(np.concatenate([[0], bounds[:-1]]), bounds, strict=True):
        mine = by_turn[low:high]
        with m.memory.shadow.off():
            found = m.memory.read(space, address[mine], width, ins.ins, lanes.only(mine)).view(old.dtype)[:, 0]
            new = combine(decode(found, kind), *(decode(v[mine], kind) for v in values))
            raw = encode(np.asarray(new), kind)
            m.memory.write(space, address[mine], raw[:, None].view(np.uint8), ins.ins, lanes.only(mine))
        old[mine] = found
    return old


ATOMIC_OPS = {"atom": atomic, "red": atomic}


# ---
# What the threads of a warp tell one another: shfl, vote, match, redux, elect. All lanes of a mask are there.

_LANE = np.arange(WARP)


def shuffle(ins: Ins) -> Run:
    """shfl.sync: another lane's value; a lane that is not there gives what nothing has written."""
    ins.ignore("sync")
    mode = ins.one_of(("up", "down", "bfly", "idx"))
    ins.understood()
    ins.expect(5)
    first, second = ins.results()
    a, b, c = ins.bits(ins.operands[1], "b32"), ins.bits(ins.operands[2], "b32"), ins.bits(ins.operands[3], "b32")
    write = ins.write_bits(first, "b32")
    valid = None if second is None else ins.write_bits(second, "pred")

    def run(m: WarpMachine) -> None:
        source, inside = _source(mode, m.in_warps(b(m)).astype(np.int64), m.in_warps(c(m)).astype(np.int64))
        values = m.in_warps(a(m), POISON & 0xFFFFFFFF)
        write(m, m.from_warps(np.take_along_axis(values, source, axis=1)))
        if valid is not None:
            valid(m, m.from_warps(inside))

    return run


def _source(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """[warp, lane]: whose value, and whether that is within the segment (else its own)."""
    segment, clamp, by = c >> 8 & 31, c & 31, b & 31
    low = _LANE & segment
    top = low | clamp & ~segment
    at = {"up": _LANE - by, "down": _LANE + by, "bfly": _LANE ^ by, "idx": low | by & ~segment}[mode]
    inside = at >= (_LANE & segment | clamp & ~segment if mode == "up" else 0)
    inside = inside & (at <= top) if mode != "up" else inside
    return np.where(inside, at, _LANE + 0 * b), inside


def vote(ins: Ins) -> Run:
    """vote.sync: all, any, uni, ballot."""
    ins.ignore("sync")
    mode = ins.one_of(("all", "any", "uni", "ballot"))
    ins.understood()
    p, mask = ins.bits(ins.operands[1], "pred"), ins.bits(ins.operands[-1], "b32")
    write = ins.write_bits(ins.operands[0], "b32" if mode == "ballot" else "pred")

    def run(m: WarpMachine) -> None:
        yes = m.narrow(m.ballots(m.spread(p(m)))) & m.full(mask(m))
        here = m.narrow(m.ballots(m.active())) & m.full(mask(m))
        results = {"ballot": yes, "all": yes == here, "any": yes != 0, "uni": (yes == here) | (yes == 0)}
        write(m, results[mode])

    return run


def match(ins: Ins) -> Run:
    """match.sync: which lanes hold the same."""
    ins.ignore("sync")
    mode = ins.one_of(("any", "all"))
    ins.understood()
    first, second = ins.results()
    a, mask, write = ins.bits(ins.operands[1], ins.kind), ins.bits(ins.operands[2], "b32"), ins.write_bits(first, "b32")
    truth = None if second is None else ins.write_bits(second, "pred")

    def run(m: WarpMachine) -> None:
        values, there = m.in_warps(a(m)), m.in_warps(m.full(mask(m)))
        active = m.active().reshape(-1, WARP)[m.warps()]
        same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        bits = (same * (np.uint32(1) << np.arange(WARP, dtype=np.uint32))).sum(axis=2, dtype=np.uint32) & there
        if mode == "any":
            write(m, m.from_warps(bits))
            return
        everyone = (active * (np.uint32(1) << np.arange(WARP, dtype=np.uint32))).sum(axis=1, dtype=np.uint32)
        whole = bits == everyone[:, None] & there
        write(m, m.from_warps(np.where(whole, bits, np.uint32(0))))
        if truth is not None:
            truth(m, m.from_warps(whole))

    return run


_REDUCE: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def reduce(ins: Ins) -> Run:
    """redux.sync: over the lanes of the mask."""
    ins.ignore("sync")
    name, kind = ins.one_of(tuple(_REDUCE)), ins.kind
    if is_float(kind) or not name:
        raise unsupported(ins.ins, "a reduction of floats")
    ins.understood()
    a, mask, write = (
        ins.bits(ins.operands[1], kind),
        ins.bits(ins.operands[2], "b32"),
        ins.write_bits(ins.operands[0], kind),
    )

    def run(m: WarpMachine) -> None:
        values, masks = m.in_warps(a(m)), m.in_warps(m.full(mask(m)))
        active = m.active().reshape(-1, WARP)[m.warps()]
        out = np.zeros(values.shape, np.uint32)
        for warp in range(len(values)):
            for one in np.unique(masks[warp][active[warp]]):
                mine = active[warp] & (masks[warp] == one)
                out[warp, mine] = encode(_REDUCE[name].reduce(decode(values[warp, mine], kind), keepdims=True), kind)
        write(m, m.from_warps(out))

    return run


def active_mask(ins: Ins) -> Run:
    """activemask."""
    write = ins.write_bits(ins.operands[0], "b32")
    return lambda m: write(m, m.narrow(m.ballots(m.active())))


def elect(ins: Ins) -> Run:
    """elect.sync: the lowest lane leads."""
    ins.ignore("sync")
    ins.understood()
    leader, chosen = ins.results()
    d = ins.write_bits(leader, "b32")
    p = None if chosen is None else ins.write_bits(chosen, "pred")

    def run(m: WarpMachine) -> None:
        ballots = m.narrow(m.ballots(m.active()))
        low = ballots & (~ballots + np.uint32(1))
        number = ones(low - np.uint32(1))
        d(m, number)
        if p is not None:
            p(m, number == m.narrow(m.thread) % WARP)

    return run


def wait(ins: Ins) -> Run:
    """bar.warp.sync: being there is all."""
    return lambda m: None


WARP_SYNC: dict[str, tuple[Callable[[Ins], Run], int]] = {  # and the place of the mask among the operands
    "shfl": (shuffle, 4), "vote": (vote, 2), "match": (match, 2), "redux": (reduce, 2), "elect": (elect, 1),
    "bar.warp": (wait, 0),
}  # fmt: skip
WARP_OPS = {"activemask": active_mask}
