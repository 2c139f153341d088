"""atom and red: threads take turns, by number."""

from collections.abc import Callable

import numpy as np

from tools.ptx.ir import Operand, Vector
from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import UNSIGNED, bits_of, decode, encode, is_float
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.operands import Ins, Run
from tools.ptx.sim.ops_memory import ORDERS, ignore_hints, own_space, reach, space_of
from tools.ptx.sim.rounding import nearest
from tools.ttir.ir import Array

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
    if ins.ins.opcode == "red" and ins.words[:1] == ["async"]:
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
    at: Callable[[Machine], Array],
    operands: tuple[Operand, ...],
    results: tuple[Operand, ...],
) -> Run:
    kind, bare = ins.kind, ins.ins
    if not name or bits_of(kind) == 128:
        raise unsupported(bare, "this atomic operation")
    width, combine = bits_of(kind) // 8, _combiner(name, kind)
    readers = [[ins.bits(item, kind) for item in _items(operand)] for operand in operands]
    writers = [ins.write_bits(item, kind) for item in results]

    def run(m: Machine) -> None:
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
    m: Machine, space: str, address: Array, values: list[Array], kind: str, combine: Combine, ins: Ins
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


OPS = {"atom": atomic, "red": atomic}
