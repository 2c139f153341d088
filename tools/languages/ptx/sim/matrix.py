"""Products of matrices: mma, ldmatrix and stmatrix of a warp, wgmma of a group of warps."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kerneltune.tools.languages.ptx.ir import Immediate, Operand, Vector
from kerneltune.tools.languages.ptx.sim.exchange import space_of
from kerneltune.tools.languages.ptx.sim.machine import WARP, Ins, PendingSum, Read, Run, WarpMachine
from kerneltune.tools.languages.ptx.sim.values import bits_of, decode, encode, is_float, poison, to_format, unsupported
from kerneltune.tools.languages.triton.ttir.ir import Array

# ---
# Tensor cores of warps: mma.sync, ldmatrix, stmatrix, movmatrix.
#
# Products are exact and sums are made in float64 and rounded once to the accumulator's type; a GPU adds in an order and
# with guard bits of its own, so that its last bits differ.

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

    def load(self, m: WarpMachine, registers: list[Array]) -> Array:
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

    def store(self, m: WarpMachine, matrix: Array) -> list[Array]:
        """Values that the type holds to one array of bits for each register."""
        picked = np.ascontiguousarray(matrix[:, self.row, self.column])
        bits = encode(picked.reshape(-1), self.kind)
        whole = bits.view(f"u{bits_of(self.element) // 8}").reshape(-1, WARP, self.registers)
        return [m.from_warps(np.ascontiguousarray(whole[:, :, i])) for i in range(self.registers)]


def multiply(ins: Ins) -> Run:
    """mma.sync: d = a * b + c."""
    ins.ignore("sync", "aligned", "row", "col")
    shape = next((found for word in ins.unread if (found := _SHAPE.match(word))), None)
    if shape is None or len(ins.kinds) != 4:
        raise unsupported(ins.ins, "this shape of mma")
    ins.unread.remove(shape[0])
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

    def run(m: WarpMachine) -> None:
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

    def run(m: WarpMachine) -> None:
        who, address = _rows(m, at(m), count)
        raw = m.memory.read(space, address, 16, ins.ins, who)
        matrices = raw.view(np.uint16).reshape(-1, count, 8, 8)
        if flip:
            matrices = matrices.swapaxes(-1, -2)
        pairs = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
        for i, writer in enumerate(writers):
            writer(m, m.from_warps(np.ascontiguousarray(pairs[:, i])))

    return run


def _rows(m: WarpMachine, address: Array, count: int) -> tuple:  # type: ignore[type-arg]
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

    def run(m: WarpMachine) -> None:
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

    def run(m: WarpMachine) -> None:
        matrix = np.ascontiguousarray(m.in_warps(a(m))).view(np.uint16).reshape(-1, 8, 8).swapaxes(-1, -2)
        write(m, m.from_warps(np.ascontiguousarray(matrix).view(np.uint32).reshape(-1, WARP)))

    return run


MMA_SYNC = {
    "mma": (multiply, -1), "ldmatrix": (load_matrix, -1), "stmatrix": (store_matrix, -1), "movmatrix": (move_matrix, -1)
}  # fmt: skip


# ---
# wgmma: tensor cores of four warps, with operands in shared memory.
#
# The sum is in the registers once a wait_group covers it; until then they hold what nothing has written. Sums are made
# in float64 and rounded once, as for mma.

_WGMMA_SHAPE = re.compile(r"m64n(\d+)k(\d+)\Z")
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


def _commit(m: WarpMachine) -> None:
    m.tensor_groups[m.lanes.numbers] += 1


def _wait(m: WarpMachine, still_open: int) -> None:
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

    def load(self, m: WarpMachine, ins: Ins, firsts: Array) -> Array:
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
        """Return the addresses of chunks of 16 bytes, as the matrix descriptor says."""
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
    shape = next((found for word in ins.unread if (found := _WGMMA_SHAPE.match(word))), None)
    if shape is None or len(ins.kinds) != 3:
        raise unsupported(ins.ins, "this shape of wgmma")
    ins.unread.remove(shape[0])
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

    def run(m: WarpMachine) -> None:
        firsts = _warp_groups(m, ins)
        total = np.matmul(left(m, firsts), right.load(m, ins, firsts).swapaxes(1, 2)) * signs
        total = total + np.where(m.full(adds(m))[::_GROUP_LANES, None, None], out.load(_now(m, ins, slots)), 0)
        if saturates:
            total = np.clip(total, -(2**31), 2**31 - 1)
        numbers = m.lanes.numbers
        m.tensors.append(PendingSum(slots, numbers, m.tensor_groups[numbers], out.store(total)))
        for slot in slots:
            m.put(slot, poison("b32"))

    return run


def _left(ins: Ins, a: Operand, kind: str, depth: int, *, trans_a: bool) -> Callable[[WarpMachine, Array], Array]:
    """Reads [warp group, 64, k], from shared memory or from registers."""
    if not isinstance(a, Vector):
        side = _Side(ins.bits(a, "b64"), kind, 64, depth, trans_a)
        return lambda m, firsts: side.load(m, ins, firsts)
    fragment = Fragment(kind, "A", 16, depth)
    readers = [ins.bits(item, "b32") for item in a.items]
    return lambda m, firsts: fragment.load(m, [reader(m) for reader in readers]).reshape(-1, 64, depth)


def _warp_groups(m: WarpMachine, ins: Ins) -> Array:
    """The first lane of each warp group at work."""
    numbers = m.lanes.numbers
    firsts = numbers[::_GROUP_LANES]
    whole = len(numbers) % _GROUP_LANES == 0 and m.shape.padded % _GROUP_LANES == 0
    if not whole or (numbers.reshape(-1, _GROUP_LANES) - firsts[:, None] != np.arange(_GROUP_LANES)).any():
        raise unsupported(ins.ins, "threads that are not whole groups of four warps")
    return firsts


def _now(m: WarpMachine, ins: Ins, slots: tuple[int, ...]) -> list[Array]:
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


WGMMA_SYNC = {"wgmma": (tensor, -1)}
