"""Small PTX kernels written by hand: each thread computes `d` from its elements `a`, `b`, `c`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kerneltune.tools.languages.ptx.loader import PtxLaunch
from kerneltune.tools.languages.ptx.sim.launch import run
from kerneltune.tools.languages.triton.ttir.memory import Pointer

Array = npt.NDArray[Any]
HEAD = ".version 8.3\n.target sm_90a\n.address_size 64\n"


def pointer(array: Array, name: str) -> Pointer:
    """The array's own memory."""
    return Pointer(array.view(np.uint8).reshape(-1), 0, name)


def start(body: str, *arrays: Array, threads: int = 32, grid: int = 1, shared_bytes: int = 0, **options: Any) -> None:
    """Run a body whose parameters p0, p1 … point to arrays, with 64-bit registers %p0 … that hold them."""
    params = ", ".join(f".param .u64 p{i}" for i in range(len(arrays)))
    loads = "".join(f".reg .b64 %p{i}; ld.param.u64 %p{i}, [p{i}];" for i in range(len(arrays)))
    text = f"{HEAD}.extern .shared .align 16 .b8 dynamic[];\n.visible .entry k({params}) {{ {loads}\n{body}\n}}"
    args = tuple(pointer(array, f"p{i}") for i, array in enumerate(arrays))
    run(PtxLaunch(text, "", (grid, 1, 1), (threads, 1, 1), args, (), shared_bytes), **options)


def compute(body: str, *arrays: Array, out: str = "u4", more: str = "") -> Array:
    """What each thread leaves in `d`. Arrays of 1, 2, 4 or 8 bytes an element are `a`, `b` and `c`."""
    count = len(arrays[0])
    result = np.zeros(count, out)
    width = result.dtype.itemsize * 8
    text = [f".reg .b32 %t; .reg .pred p, q; .reg .b64 %at; mov.u32 %t, %tid.x; .reg .b{max(16, width)} d; {more}"]
    for i, array in enumerate(arrays):
        bits = array.dtype.itemsize * 8
        text.append(
            f".reg .b{max(16, bits)} {'abc'[i]}; mad.wide.u32 %at, %t, {bits // 8}, %p{i + 1};"
            f"ld.global.b{bits} {'abc'[i]}, [%at];"
        )
    text.append(f"{body}\nmad.wide.u32 %at, %t, {width // 8}, %p0; st.global.b{width} [%at], d; ret;")
    start("\n".join(text), result, *(np.ascontiguousarray(a) for a in arrays), threads=count)
    return result


def f32(*numbers: float) -> Array:
    """float32 numbers."""
    return np.array(numbers, np.float32)


def u32(*numbers: int) -> Array:
    """32 bits each; negative ones in two's complement."""
    return np.array([n & 0xFFFFFFFF for n in numbers], np.uint32)


def u64(*numbers: int) -> Array:
    """64 bits each."""
    return np.array([n & (1 << 64) - 1 for n in numbers], np.uint64)


def u16(*numbers: int) -> Array:
    """16 bits each."""
    return np.array([n & 0xFFFF for n in numbers], np.uint16)
