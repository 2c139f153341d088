"""Tensor cores of warps: mma.sync, ldmatrix, stmatrix, movmatrix.

Products are exact and sums are made in float64 and rounded once to the accumulator's type; a GPU adds in an order and
with guard bits of its own, so that its last bits differ.
"""

import re

import numpy as np

from tools.ptx.ir import Operand, Vector
from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import bits_of, decode, encode, is_float
from tools.ptx.sim.machine import WARP, Machine
from tools.ptx.sim.operands import Ins, Run
from tools.ptx.sim.ops_memory import space_of
from tools.ptx.sim.rounding import to_format
from tools.ttir.ir import Array

_GROUP, _MEMBER = np.arange(WARP) // 4, np.arange(WARP) % 4
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)\Z")
_ACCUMULATORS = ("f32", "f16", "s32", "f64")


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


class Fragment:
    """How a matrix lies in the registers of a warp: row and column of each element, [lane, register, part]."""

    def __init__(self, kind: str, role: str, rows: int, columns: int) -> None:
        self.kind, self.rows, self.columns = kind, rows, columns
        width = bits_of(kind)
        self.parts = max(1, 32 // width)
        self.registers = rows * columns // (WARP * self.parts)
        lane = (slice(None), None, None)
        number, part = np.arange(self.registers)[None, :, None], np.arange(self.parts)[None, None, :]
        group, member = _GROUP[lane], _MEMBER[lane]
        if role == "C":
            at = number * self.parts + part
            row, column = group + 8 * (at // 2), member * 2 + at % 2
        else:
            along = rows if role == "B" else columns
            halves = 2 if role == "A" and rows == 16 else 1
            side, inner = (
                group + 8 * (number % halves),
                member * self.parts + part + 4 * self.parts * (number // halves),
            )
            inner = inner % along
            row, column = (side, inner) if role == "A" else (inner, side)
        shape = (WARP, self.registers, self.parts)
        self.row, self.column = np.broadcast_to(row, shape), np.broadcast_to(column, shape)
        self.element = f"b{width}" if width >= 32 else "b32"

    def load(self, m: Machine, registers: list[Array]) -> Array:
        """Values as float64 or int64, [warp, row, column]."""
        bits = np.stack([m.in_warps(register) for register in registers], axis=2)  # [warp, lane, register]
        warps = len(bits)
        flat = np.ascontiguousarray(bits).reshape(-1).view(f"u{max(1, bits_of(self.kind) // 8)}")
        if self.kind == "tf32":
            flat = flat & np.uint32(0xFFFFE000)  # tensor cores do not look at the other bits
        values = decode(flat, self.kind).reshape(warps, WARP, self.registers, self.parts)
        out = np.empty((warps, self.rows, self.columns), np.float64 if is_float(self.kind) else np.int64)
        out[:, self.row, self.column] = values
        return out

    def store(self, m: Machine, matrix: Array) -> list[Array]:
        """Values that the type holds to one array of bits for each register."""
        picked = np.ascontiguousarray(matrix[:, self.row, self.column])
        bits = encode(picked.reshape(-1), self.kind)
        whole = bits.view(f"u{bits_of(self.element) // 8}").reshape(-1, WARP, self.registers)
        return [m.from_warps(np.ascontiguousarray(whole[:, :, i])) for i in range(self.registers)]


def multiply(ins: Ins) -> Run:
    """mma.sync: d = a * b + c."""
    ins.ignore("sync", "aligned", "row", "col")
    shape = next((found for word in ins.words if (found := _SHAPE.match(word))), None)
    if shape is None or len(ins.kinds) != 4:
        raise unsupported(ins.ins, "this shape of mma")
    ins.words.remove(shape[0])
    saturates = ins.flag("satfinite")
    ins.understood()
    rows, columns, depth = (int(n) for n in shape.groups())
    d_kind, a_kind, b_kind, c_kind = ins.kinds
    if d_kind not in _ACCUMULATORS or (rows, columns) not in ((16, 8), (8, 8)) or (rows == 8 and d_kind != "f64"):
        raise unsupported(ins.ins, "this shape of mma")
    a, b = Fragment(a_kind, "A", rows, depth), Fragment(b_kind, "B", depth, columns)
    c, d = Fragment(c_kind, "C", rows, columns), Fragment(d_kind, "C", rows, columns)
    for fragment, operand in zip((d, a, b, c), ins.operands, strict=True):
        if len(_items(operand)) != fragment.registers or fragment.registers == 0:
            raise unsupported(ins.ins, f"{len(_items(operand))} registers where {fragment.registers} belong")
    sources = [
        [ins.bits(item, fragment.element) for item in _items(operand)]
        for fragment, operand in zip((a, b, c), ins.operands[1:], strict=True)
    ]
    writers = [ins.write_bits(item, d.element) for item in _items(ins.operands[0])]

    def run(m: Machine) -> None:
        left, right, start = (
            fragment.load(m, [reader(m) for reader in readers])
            for fragment, readers in zip((a, b, c), sources, strict=True)
        )
        total = np.matmul(left, right) + start
        if saturates:
            total = np.clip(total, -(2**31), 2**31 - 1)
        rounded = to_format(total, d_kind) if is_float(d_kind) else total
        for writer, bits in zip(writers, d.store(m, rounded), strict=True):
            writer(m, bits)

    return run


def _count(ins: Ins) -> int:
    """.x1, .x2, .x4 of 8x8 matrices of 16 bits."""
    ins.ignore("sync", "aligned")
    if not ins.flag("m8n8") or ins.kind != "b16":
        raise unsupported(ins.ins, "this shape of matrix")
    return int(ins.one_of(("x1", "x2", "x4"), "x1")[1:])


def load_matrix(ins: Ins) -> Run:
    """ldmatrix: lanes 8i to 8i+7 say where the rows of matrix i lie."""
    count, flip, space = _count(ins), ins.flag("trans"), space_of(ins)
    ins.understood()
    at = ins.address(ins.operands[1], small=space == "shared")
    writers = [ins.write_bits(item, "b32") for item in _items(ins.operands[0])]
    if len(writers) != count:
        raise unsupported(ins.ins, f"{len(writers)} registers for {count} matrices")

    def run(m: Machine) -> None:
        who, address = _rows(m, at(m), count)
        raw = m.memory.read(space, address, 16, ins.ins, who)
        matrices = raw.view(np.uint16).reshape(-1, count, 8, 8)
        if flip:
            matrices = matrices.swapaxes(-1, -2)
        pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
        for i, writer in enumerate(writers):
            writer(m, m.from_warps(np.ascontiguousarray(pairs[:, i])))

    return run


def _rows(m: Machine, address: Array, count: int) -> tuple:  # type: ignore[type-arg]
    """The lanes whose addresses count, and these."""
    chosen = (m.warps()[:, None] * WARP + np.arange(8 * count)).reshape(-1)
    return m.everyone.only(chosen), m.spread(m.full(address))[chosen]


def store_matrix(ins: Ins) -> Run:
    """stmatrix."""
    count, flip, space = _count(ins), ins.flag("trans"), space_of(ins)
    ins.understood()
    at = ins.address(ins.operands[0], small=space == "shared")
    readers = [ins.bits(item, "b32") for item in _items(ins.operands[1])]
    if len(readers) != count:
        raise unsupported(ins.ins, f"{len(readers)} registers for {count} matrices")

    def run(m: Machine) -> None:
        who, address = _rows(m, at(m), count)
        pairs = np.stack([m.in_warps(reader(m)) for reader in readers], axis=1)
        matrices = np.ascontiguousarray(pairs).view(np.uint16).reshape(-1, count, 8, 8)
        if flip:
            matrices = matrices.swapaxes(-1, -2)
        raw = np.ascontiguousarray(matrices).view(np.uint8).reshape(-1, 16)
        m.memory.write(space, address, raw, ins.ins, who)

    return run


def move_matrix(ins: Ins) -> Run:
    """movmatrix: an 8x8 matrix turned around."""
    ins.ignore("sync", "aligned", "m8n8", "trans")
    ins.understood()
    a, write = ins.bits(ins.operands[1], "b32"), ins.write_bits(ins.operands[0], "b32")

    def run(m: Machine) -> None:
        matrix = np.ascontiguousarray(m.in_warps(a(m))).view(np.uint16).reshape(-1, 8, 8).swapaxes(-1, -2)
        write(m, m.from_warps(np.ascontiguousarray(matrix).view(np.uint32).reshape(-1, WARP)))

    return run


SYNC = {
    "mma": (multiply, -1), "ldmatrix": (load_matrix, -1), "stmatrix": (store_matrix, -1), "movmatrix": (move_matrix, -1)
}  # fmt: skip
