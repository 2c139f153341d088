"""What the threads of a warp tell one another: shfl, vote, match, redux, elect. All lanes of a mask are there."""

from collections.abc import Callable

import numpy as np

from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import POISON, decode, encode, is_float
from tools.ptx.sim.machine import WARP, Machine
from tools.ptx.sim.operands import Ins, Run
from tools.ptx.sim.ops_bits import ones
from tools.ttir.ir import Array

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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
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


SYNC: dict[str, tuple[Callable[[Ins], Run], int]] = {  # and the place of the mask among the operands
    "shfl": (shuffle, 4), "vote": (vote, 2), "match": (match, 2), "redux": (reduce, 2), "elect": (elect, 1),
    "bar.warp": (wait, 0),
}  # fmt: skip
OPS = {"activemask": active_mask}
