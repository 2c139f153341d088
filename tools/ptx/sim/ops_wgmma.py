"""wgmma: tensor cores of four warps, with operands in shared memory.

The sum is in the registers once a wait_group covers it; until then they hold what nothing has written. Sums are made in
float64 and rounded once, as for mma.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tools.ptx.ir import Immediate, Operand, Vector
from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import bits_of, decode, encode, is_float, poison
from tools.ptx.sim.machine import WARP, Machine, Tensor
from tools.ptx.sim.operands import Ins, Read, Run
from tools.ptx.sim.ops_matrix import Fragment
from tools.ptx.sim.rounding import to_format
from tools.ttir.ir import Array

_SHAPE = re.compile(r"m64n(\d+)k(\d+)\Z")
_SPANS = {1: 128, 2: 64, 3: 32}  # bytes of a swizzled row, by the descriptor's mode
_GROUP_LANES = 4 * WARP
_CHUNK = 16  # bytes that a swizzle keeps together


def tensor(ins: Ins) -> Run:
    """wgmma.fence, .commit_group, .wait_group, .mma_async."""
    ins.ignore("sync", "aligned")
    what = ins.one_of(("fence", "commit_group", "wait_group", "mma_async"))
    if what == "mma_async":
        return _multiply(ins)
    ins.understood()
    if what == "wait_group":
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _wait(m, int(count(m).flat[0]))
    return _commit if what == "commit_group" else lambda m: None


def _commit(m: Machine) -> None:
    m.tensor_groups[m.lanes.numbers] += 1


def _wait(m: Machine, still_open: int) -> None:
    """Give the sums of all but the last groups to their registers."""
    here, left = m.active(), []
    for one in m.tensors:
        ready = here[one.lanes] & (one.groups < m.tensor_groups[one.lanes] - still_open)
        if ready.any():
            done = one.only(ready)
            with m.among(done.lanes):
                for slot, bits in zip(done.slots, done.values, strict=True):
                    m.put(slot, bits)
        if not ready.all():
            left.append(one.only(~ready))
    m.tensors = left


@dataclass(frozen=True)
class _Side:
    """One operand in shared memory: `rows` of M or N, `trans`: these lie next to one another."""

    read: Read
    kind: str
    rows: int
    depth: int
    trans: bool

    def load(self, m: Machine, ins: Ins, firsts: Array) -> Array:
        """[warp group, row, k] as float64 or int64."""
        words = m.full(self.read(m))[::_GROUP_LANES].astype(np.uint64)
        size = bits_of(self.kind) // 8
        per_chunk = _CHUNK // size
        outer, inner = (self.depth, self.rows) if self.trans else (self.rows, self.depth)
        line, chunk = np.divmod(np.arange(outer * (inner // per_chunk)), inner // per_chunk)
        address = np.stack([self._addresses(ins, int(word), line, chunk) for word in words])
        who = m.everyone.only(np.repeat(firsts, address.shape[1]))
        raw = m.memory.read("shared", address.reshape(-1), _CHUNK, ins.ins, who)
        flat = np.ascontiguousarray(raw).reshape(-1).view(f"u{size}")
        if self.kind == "tf32":
            flat = flat & np.uint32(0xFFFFE000)
        values = decode(flat, self.kind).astype(np.float64 if is_float(self.kind) else np.int64)
        matrix = values.reshape(len(words), outer, inner)
        return matrix.swapaxes(1, 2) if self.trans else matrix

    def _addresses(self, ins: Ins, word: int, line: Array, chunk: Array) -> Array:
        """Where chunks of 16 bytes lie, as the matrix descriptor says."""
        start, leading, stride = ((word >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        mode = word >> 62
        if word >> 49 & 7:
            raise unsupported(ins.ins, "a base offset in a matrix descriptor")
        if mode == 0 and self.trans:
            raise unsupported(ins.ins, "a transposed operand that is not swizzled")
        if mode == 0:
            return np.asarray(start + line // 8 * stride + line % 8 * _CHUNK + chunk * leading)
        span = _SPANS[mode]
        along, beyond = chunk * _CHUNK % span, chunk * _CHUNK // span
        at: Array = start + line // 8 * stride + line % 8 * span + along + beyond * leading
        return np.asarray(at ^ ((at >> 7 & (span // _CHUNK - 1)) << 4))


def _flag(operands: tuple[Operand, ...], place: int) -> int:
    operand = operands[place] if place < len(operands) else Immediate(0)
    return int(operand.value) if isinstance(operand, Immediate) else 0


def _multiply(ins: Ins) -> Run:
    shape = next((found for word in ins.words if (found := _SHAPE.match(word))), None)
    if shape is None or len(ins.kinds) != 3:
        raise unsupported(ins.ins, "this shape of wgmma")
    ins.words.remove(shape[0])
    saturates = ins.flag("satfinite")
    ins.understood()
    columns, depth = int(shape[1]), int(shape[2])
    d_kind, a_kind, b_kind = ins.kinds
    if depth * bits_of(a_kind) != 256 or d_kind not in ("f32", "f16", "s32"):
        raise unsupported(ins.ins, "this shape of wgmma")
    d, a, b, scale, *rest = ins.operands
    flags = tuple(rest)
    in_registers = isinstance(a, Vector)
    signs = _flag(flags, 0) * _flag(flags, 1) if flags else 1
    trans_a, trans_b = (0, _flag(flags, 2)) if in_registers else (_flag(flags, 2), _flag(flags, 3))
    right = _Side(ins.bits(b, "b64"), b_kind, columns, depth, bool(trans_b))
    left = _left(ins, a, a_kind, depth, trans_a=bool(trans_a))
    adds = ins.bits(scale, "pred")
    out = _Sum(d_kind, columns)
    items = d.items if isinstance(d, Vector) else (d,)
    if len(items) != out.registers:
        raise unsupported(ins.ins, f"{len(items)} registers where {out.registers} belong")
    slots = tuple(ins.slot(item) for item in items)

    def run(m: Machine) -> None:
        firsts = _warp_groups(m, ins)
        total = np.matmul(left(m, firsts), right.load(m, ins, firsts).swapaxes(1, 2)) * signs
        total = total + np.where(m.full(adds(m))[::_GROUP_LANES, None, None], out.load(_now(m, ins, slots)), 0)
        if saturates:
            total = np.clip(total, -(2**31), 2**31 - 1)
        numbers = m.lanes.numbers
        m.tensors.append(Tensor(slots, numbers, m.tensor_groups[numbers], out.store(total)))
        for slot in slots:
            m.put(slot, poison("b32"))

    return run


def _left(ins: Ins, a: Operand, kind: str, depth: int, *, trans_a: bool) -> Callable[[Machine, Array], Array]:
    """Reads [warp group, 64, k], from shared memory or from registers."""
    if not isinstance(a, Vector):
        side = _Side(ins.bits(a, "b64"), kind, 64, depth, trans_a)
        return lambda m, firsts: side.load(m, ins, firsts)
    fragment = Fragment(kind, "A", 16, depth)
    readers = [ins.bits(item, "b32") for item in a.items]
    return lambda m, firsts: fragment.load(m, [reader(m) for reader in readers]).reshape(-1, 64, depth)


def _warp_groups(m: Machine, ins: Ins) -> Array:
    """The first lane of each warp group at work."""
    numbers = m.lanes.numbers
    firsts = numbers[::_GROUP_LANES]
    whole = len(numbers) % _GROUP_LANES == 0 and m.shape.padded % _GROUP_LANES == 0
    if not whole or (numbers.reshape(-1, _GROUP_LANES) - firsts[:, None] != np.arange(_GROUP_LANES)).any():
        raise unsupported(ins.ins, "threads that are not whole groups of four warps")
    return firsts


def _now(m: Machine, ins: Ins, slots: tuple[int, ...]) -> list[Array]:
    """The accumulator in the lanes at work: in flight from products before, or in its registers."""
    here, left = m.active(), []
    values = [np.array(m.full(m.get(slot))) for slot in slots]
    place = np.cumsum(here) - 1  # of a lane among those at work
    for one in m.tensors:
        mine = here[one.lanes]
        if one.slots != slots and mine.any() and set(one.slots) & set(slots):
            raise unsupported(ins.ins, "products in flight that share some registers")
        if one.slots != slots or not mine.any():
            left.append(one)
            continue
        for value, bits in zip(values, one.values, strict=True):
            value[place[one.lanes[mine]]] = bits[mine]
        if not mine.all():
            left.append(one.only(~mine))
    m.tensors = left
    return values


class _Sum:
    """How the accumulator lies in the registers of four warps."""

    def __init__(self, kind: str, columns: int) -> None:
        self.kind, self.columns = kind, columns
        self.parts = 32 // bits_of(kind)
        self.registers = columns // 2 // self.parts
        lane = np.arange(_GROUP_LANES)[:, None]
        at = np.arange(columns // 2)[None, :]
        self.row = lane // WARP * 16 + lane % WARP // 4 + 8 * (at // 2 % 2)
        self.column = at // 4 * 8 + lane % 4 * 2 + at % 2

    def load(self, registers: list[Array]) -> Array:
        """[warp group, 64, column] of bits by register and lane."""
        bits = np.ascontiguousarray(np.stack(registers, axis=1)).reshape(-1).view(f"u{bits_of(self.kind) // 8}")
        values = decode(bits, self.kind).reshape(-1, _GROUP_LANES, self.columns // 2)
        out = np.empty((len(values), 64, self.columns), np.float64 if is_float(self.kind) else np.int64)
        out[:, self.row, self.column] = values
        return out

    def store(self, total: Array) -> list[Array]:
        """The other way round, rounded."""
        rounded = to_format(total, self.kind) if is_float(self.kind) else total
        bits = encode(np.ascontiguousarray(rounded[:, self.row, self.column]).reshape(-1), self.kind)
        whole = bits.view(np.uint32).reshape(-1, self.registers)
        return [np.ascontiguousarray(whole[:, i]) for i in range(self.registers)]


SYNC = {"wgmma": (tensor, -1)}
