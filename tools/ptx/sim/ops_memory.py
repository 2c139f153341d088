"""Loads, stores, and what orders them."""

import numpy as np

from tools.ptx.ir import Address, Operand, Symbol, Vector
from tools.ptx.sim.errors import IllFormed, place, unsupported
from tools.ptx.sim.formats import UNSIGNED, bits_of
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.operands import Ins, Read, Run
from tools.ttir.ir import Array

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
    ins.words = [w for w in ins.words if not w.startswith(("L1::", "L2::"))]
    return hinted


def reach(ins: Ins, operand: Operand, space: str) -> Read:
    """Addresses of an operand in brackets, for Memory. A name that stands there means its own space."""
    return ins.address(operand, small=space in SMALL)


def own_space(ins: Ins, operand: Operand, space: str) -> str:
    """For an address without a space: that of the variable which it names."""
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

    def run(m: Machine) -> None:
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


def _deliver(m: Machine, raw: Array, element: int, writers: list) -> None:  # type: ignore[type-arg]
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

    def run(m: Machine) -> None:
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

    def run(m: Machine) -> None:
        upper = a(m) >> np.uint64(32)
        write(m, upper == window if window else upper >= 256)

    return run


def mapped(ins: Ins) -> Run:
    """mapa: the address in another block of the cluster; there is one."""
    ins.ignore("shared::cluster")
    ins.understood()
    a, rank = ins.bits(ins.operands[1], ins.kind), ins.bits(ins.operands[2], "u32")
    write = ins.write_bits(ins.operands[0], ins.kind)

    def run(m: Machine) -> None:
        if rank(m).any():
            raise unsupported(ins.ins, "clusters of several blocks")
        write(m, a(m))

    return run


OPS = {
    "ld": load, "ldu": load, "st": store, "isspacep": is_space, "createpolicy": policy, "mapa": mapped,
    "fence": fence,
    **dict.fromkeys(
        ("prefetch", "prefetchu", "applypriority", "discard", "membar", "griddepcontrol", "nanosleep",
         "setmaxnreg", "pmevent"), nothing),
}  # fmt: skip
