"""Special registers. Pure."""

from collections.abc import Callable

import numpy as np

from tools.ptx.sim.machine import WARP, Machine
from tools.ttir.ir import Array

_AXES = {"x": 0, "y": 1, "z": 2}


def special(machine: Machine, name: str) -> Array | None:
    """Bits (32, or 64 where the name says so) of a special register in all lanes or in one for all; None: unknown."""
    if name not in machine.specials:
        value = _value(machine, name)
        if value is None:
            return None
        machine.specials[name] = value
    return machine.specials[name]


def _value(machine: Machine, name: str) -> Array | None:
    head, _, axis = name.removeprefix("%").partition(".")
    if axis:
        return _vector(machine, head, axis)
    if head in ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
        return None  # time does not pass here as it does there
    maker = _SCALARS.get(head)
    return None if maker is None else np.asarray(maker(machine)).reshape(-1).astype(np.uint32)


def _vector(machine: Machine, head: str, axis: str) -> Array | None:
    if axis not in _AXES or head not in _VECTORS:
        return None
    found = _VECTORS[head](machine, _AXES[axis])
    return np.asarray(found).reshape(-1).astype(np.uint32)


def _split(number: Array, sizes: tuple[int, int, int], axis: int) -> Array:
    before = (1, sizes[0], sizes[0] * sizes[1])[axis]
    return number // before % sizes[axis]


_VECTORS: dict[str, Callable[[Machine, int], Array | int]] = {
    "tid": lambda m, axis: _split(m.thread, m.shape.block, axis),
    "ntid": lambda m, axis: m.shape.block[axis],
    "ctaid": lambda m, axis: _split(m.shape.ctas[m.blocks], m.shape.grid, axis),
    "nctaid": lambda m, axis: m.shape.grid[axis],
    "clusterid": lambda m, axis: _split(m.shape.ctas[m.blocks], m.shape.grid, axis),
    "nclusterid": lambda m, axis: m.shape.grid[axis],
    "cluster_ctaid": lambda m, axis: 0,
    "cluster_nctaid": lambda m, axis: 1,
}
_SCALARS: dict[str, Callable[[Machine], Array | int]] = {
    "laneid": lambda m: m.thread % WARP,
    "warpid": lambda m: m.thread // WARP,
    "nwarpid": lambda m: m.shape.padded // WARP,
    "smid": lambda m: m.shape.ctas[m.blocks] % 132,
    "nsmid": lambda m: 132,
    "gridid": lambda m: 0,
    "cluster_ctarank": lambda m: 0,
    "cluster_nctarank": lambda m: 1,
    "lanemask_eq": lambda m: 1 << (m.thread % WARP),
    "lanemask_le": lambda m: (2 << (m.thread % WARP)) - 1,
    "lanemask_lt": lambda m: (1 << (m.thread % WARP)) - 1,
    "lanemask_ge": lambda m: (1 << WARP) - (1 << (m.thread % WARP)),
    "lanemask_gt": lambda m: (1 << WARP) - (2 << (m.thread % WARP)),
    "dynamic_smem_size": lambda m: m.shape.shared_bytes,
    "total_smem_size": lambda m: m.shape.total_shared_bytes,
    "aggr_smem_size": lambda m: m.shape.total_shared_bytes,
}
