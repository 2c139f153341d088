"""Inline assembly: a few instructions of PTX from registers to registers, for many elements at once.

They are evaluated by the interpreter of PTX, as a kernel in which each thread loads the operands of one instance, runs
the text and stores its results. A text that asks for more than registers (memory, other threads, where it runs) means
something else there, so it is not evaluated.
"""

from __future__ import annotations

import re

import numpy as np

from kerneltune.tools.languages.base import NotInterpreted, language
from kerneltune.tools.languages.triton.ttir.frame import Frame, Handler
from kerneltune.tools.languages.triton.ttir.ir import (
    Array,
    Op,
    StepLimit,
    UnsupportedOp,
    raw_dtype,
    shape_of,
    stored_dtype,
)
from kerneltune.tools.languages.triton.ttir.memory import Pointer
from kerneltune.tools.languages.triton.ttir.values import decode, encode, materialise
from kerneltune.tools.schema.plan import Kernel, Launch

# Programmatic dependent launch (tl.extra.cuda.gdc_*): when a kernel may start. Launches run in order here anyway.
_DEPENDENT_LAUNCH = re.compile(r"griddepcontrol\.(?:wait|launch_dependents); // dummy \$0\Z")
_BEYOND_REGISTERS = re.compile(
    r"(?<![\w.%$])(?:ld|ldu|st|atom|red|multimem|cp|bar|barrier|mbarrier|shfl|vote|match|activemask|redux|elect|w?mma|"
    r"wgmma|ldmatrix|stmatrix|tcgen05|call|prefetchu?|membar|fence|griddepcontrol|nanosleep|trap|brkpt|exit|ret|"
    r"setmaxnreg|discard|applypriority|createpolicy|mapa|getctarank|tex|tld4|suld|sust|sured|txq|suq)(?=[.\s;])"
    r"|%(?:tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|smid|nsmid|gridid|clock|globaltimer|lanemask|pm|envreg|cluster|"
    r"is_explicit|total_smem|aggr_smem|dynamic_smem|reserved_smem|current_graph)"
)
_PLACE = re.compile(r"\$(?:(\$)|(\d+)|\{(\d+)(?::\w+)?\})")
_REGISTERS = {"b": ("b8", 1), "h": ("b16", 2), "r": ("b32", 4), "f": ("f32", 4), "l": ("b64", 8), "d": ("f64", 8)}
_BLOCK = 128
_HEAD = ".version 8.7\n.target sm_90a\n.address_size 64"
_INDEX = """.reg .u32 %asm_i, %asm_n;
mov.u32 %asm_i, %ctaid.x; mov.u32 %asm_n, %ntid.x;
mul.lo.u32 %asm_i, %asm_i, %asm_n; mov.u32 %asm_n, %tid.x; add.u32 %asm_i, %asm_i, %asm_n;"""


def inline_asm(frame: Frame, op: Op, args: list[Array]) -> list[Array]:
    """Results of tt.elementwise_inline_asm, of every element or of as few as the operands differ in."""
    text = _text(op)
    if _DEPENDENT_LAUNCH.match(text) and not args:
        return [np.zeros(1, stored_dtype(op.outs[0]))]
    pack = op.attrs.get("packed_element")
    if _BEYOND_REGISTERS.search(text) or not args or not isinstance(pack, int) or not 1 <= pack <= 16:
        raise UnsupportedOp(op.name, text[:60])
    if pack > 1:  # elements beside each other share a register
        args = [materialise(value, shape_of(op.ins[0])) for value in args]
    whole = np.broadcast_shapes(*(value.shape for value in args))
    count = int(np.prod(whole, dtype=np.int64))
    threads = -(-count // (pack * _BLOCK)) * _BLOCK
    raw = [encode(np.broadcast_to(value, whole), kind) for value, kind in zip(args, op.ins, strict=True)]
    operands = [_padded(bits, threads * pack) for bits in raw]
    results = [np.zeros(threads * pack * raw_dtype(kind).itemsize, np.uint8) for kind in op.outs]
    registers = [_registers(raw_dtype(kind).itemsize, pack) for kind in (*op.outs, *op.ins)]
    kernel = _kernel(text, _constraints(op), registers, len(results))
    pointers = [Pointer(buffer, 0, f"operand {at}") for at, buffer in enumerate((*results, *operands))]
    try:
        language("ptx").interpret(kernel, (threads // _BLOCK, 1, 1), pointers, Launch(0, (1, 1, 1), ()))
    except NotInterpreted as error:
        if error.problem == "step_limit":
            raise StepLimit(f"{op.name}: {error}") from error
        raise UnsupportedOp(op.name, f"{text[:60]}: {error}") from error
    pairs = zip(results, op.outs, strict=True)
    return [decode(bits.view(raw_dtype(kind))[:count], kind).reshape(whole) for bits, kind in pairs]


def _text(op: Op) -> str:
    """The assembly as its author wrote it."""
    text = op.words[0] if op.words else ""
    return re.sub(r"\\([0-9A-Fa-f]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], text)


def _constraints(op: Op) -> list[str]:
    """One for each register, without marks; clobbers say nothing about values."""
    given = (word.strip() for word in str(op.attrs.get("constraints", "")).strip('"').split(","))
    return [word.lstrip("=&+") for word in given if not word.startswith("~")]


def _registers(nbytes: int, pack: int) -> tuple[int, int]:
    """How many registers hold `pack` elements of so many bytes, and the bytes of each: short ones share 32 bits."""
    together = min(pack, max(1, 4 // nbytes))
    return -(-pack // together), nbytes * together


def _padded(raw: Array, count: int) -> Array:
    """The bytes of so many elements: these, and then zeros."""
    out = np.zeros(count, raw.dtype)
    out[: raw.size] = raw.reshape(-1)
    return out.view(np.uint8)


def _kernel(text: str, constraints: list[str], registers: list[tuple[int, int]], results: int) -> Kernel:
    """A kernel of one thread for each instance of the text. Its parameters are arrays: of results, then of operands.
    `registers`: of each of them, how many an instance has and their bytes."""
    if len(constraints) != sum(count for count, _ in registers):
        raise UnsupportedOp("tt.elementwise_inline_asm", f"{len(constraints)} constraints: {constraints}")
    names: list[str] = []
    params, before, loads, stores = [], [], [], []
    for place, (count, nbytes) in enumerate(registers):
        params.append(f".param .u64 asm_p{place}")
        before.append(f".reg .b64 %asm_at{place}; ld.param.u64 %asm_at{place}, [asm_p{place}];")
        before.append(f"mad.wide.u32 %asm_at{place}, %asm_i, {count * nbytes}, %asm_at{place};")
        for at in range(count):
            letter, name = constraints[len(names)], f"%asm_r{len(names)}"
            if letter.isdecimal() and int(letter) < len(names):
                name = names[int(letter)]  # the register of that result
            elif letter in _REGISTERS and _REGISTERS[letter][1] >= nbytes:
                before.append(f".reg .{_REGISTERS[letter][0]} {name};")
            else:
                raise UnsupportedOp("tt.elementwise_inline_asm", f"an operand of {nbytes} bytes as {letter!r}")
            names.append(name)
            address = f"[%asm_at{place} + {at * nbytes}]"
            if place < results:
                stores.append(f"st.global.b{8 * nbytes} {address}, {name};")
            else:
                loads.append(f"ld.global.b{8 * nbytes} {name}, {address};")

    def named(found: re.Match[str]) -> str:
        number = found[2] or found[3]
        if number is not None and int(number) >= len(names):
            raise UnsupportedOp("tt.elementwise_inline_asm", f"${number} of {len(names)}")
        return "$" if number is None else names[int(number)]

    body = [_INDEX, *before, *loads, "{", _PLACE.sub(named, text), "}", *stores, "ret;"]
    lines = "\n".join([_HEAD, f".visible .entry asm_elements({', '.join(params)})", "{", *body, "}"])
    return Kernel("asm_elements", "ptx", lines, (), {"block": [_BLOCK, 1, 1]})


ASSEMBLY_OPS: dict[str, Handler] = {"tt.elementwise_inline_asm": inline_asm}
