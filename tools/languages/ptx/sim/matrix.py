"""Products of matrices: mma, ldmatrix and stmatrix of a warp, wgmma of a group of warps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kerneltune.tools.languages.ptx.ir import Immediate, Operand, Vector, bits_of
from kerneltune.tools.languages.ptx.sim.exchange import nothing, space_of
from kerneltune.tools.languages.ptx.sim.machine import WARP, Ins, Lanes, Read, Run, WarpMachine
from kerneltune.tools.languages.ptx.sim.values import decode, encode, is_float, poison, to_format, unsupported
from kerneltune.tools.languages.triton.ttir.ir import Array

# ---
# Matrices as tensor cores take them: what their types hold, and how they lie in the registers of a warp.
#
# Products are exact and sums are made in float64 and rounded once to the accumulator's type; a GPU adds in an order and
# with guard bits of its own, so that its last bits differ.

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)\Z")
_GROUP, _MEMBER = np.arange(WARP)[:, None, None] // 4, np.arange(WARP)[:, None, None] % 4


def _factors(raw: Array, kind: str) -> Array:
    """Bytes as float64 or int64."""
    bits = np.ascontiguousarray(raw).reshape(-1).view(f"u{max(1, bits_of(kind) // 8)}")
    if kind == "tf32":
        bits = bits & np.uint32(0xFFFFE000)  # tensor cores do not look at the other bits
    return decode(bits, kind).astype(np.float64 if is_float(kind) else np.int64)


def _sums(total: Array, kind: str, *, saturates: bool) -> Array:
    """Sums as values that the accumulator's type holds."""
    if saturates:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return to_format(total, kind) if is_float(kind) else total


def _shape(ins: Ins, kinds: int) -> tuple[int, int, int]:
    """The numbers of .m16n8k16, in an instruction of so many types; .satfinite is left to be read."""
    shape = next((found for word in ins.unread if (found := _SHAPE.match(word))), None)
    if shape is None or len(ins.kinds) != kinds:
        raise unsupported(ins.ins, "this shape of matrices")
    ins.unread.remove(shape[0])
    rows, columns, depth = (int(n) for n in shape.groups())
    return rows, columns, depth


class Fragment:
    """How a matrix lies in the registers of a warp: row and column of each element, [lane, register, part]."""

    def __init__(self, kind: str, role: str, rows: int, columns: int) -> None:
        self.kind, self.rows, self.columns = kind, rows, columns
        width = bits_of(kind)
        self.parts = max(1, 32 // width)
        self.registers = rows * columns // (WARP * self.parts)
        number, part = np.arange(self.registers)[None, :, None], np.arange(self.parts)[None, None, :]
        if role == "C":
            at = number * self.parts + part
            row, column = _GROUP + 8 * (at // 2 % 2), _MEMBER * 2 + at % 2 + 8 * (at // 4)
        else:
            along, halves = rows if role == "B" else columns, 2 if role == "A" and rows == 16 else 1
            side = _GROUP + 8 * (number % halves)
            inner = (_MEMBER * self.parts + part + 4 * self.parts * (number // halves)) % along
            row, column = (side, inner) if role == "A" else (inner, side)
        shape = (WARP, self.registers, self.parts)
        self.row, self.column = np.broadcast_to(row, shape), np.broadcast_to(column, shape)
        self.element = f"b{width}" if width >= 32 else "b32"

    def check(self, ins: Ins, operand: Operand) -> tuple[Operand, ...]:
        """The registers. Raises Unsupported where they are not as many as the matrix takes."""
        items = ins.items(operand)
        if len(items) != self.registers or not items:
            raise unsupported(ins.ins, f"{len(items)} registers where {self.registers} belong")
        return items

    def load(self, m: WarpMachine, registers: Sequence[Array]) -> Array:
        """Values as float64 or int64, [warp, row, column]."""
        bits = np.stack([m.in_warps(register) for register in registers], axis=2)  # [warp, lane, register]
        values = _factors(bits, self.kind).reshape(len(bits), WARP, self.registers, self.parts)
        out = np.empty((len(bits), self.rows, self.columns), values.dtype)
        out[:, self.row, self.column] = values
        return out

    def store(self, m: WarpMachine, matrix: Array) -> list[Array]:
        """Values that the type holds to one array of bits for each register."""
        bits = encode(np.ascontiguousarray(matrix[:, self.row, self.column]).reshape(-1), self.kind)
        whole = bits.view(f"u{bits_of(self.element) // 8}").reshape(-1, WARP, self.registers)
        return [m.from_warps(np.ascontiguousarray(whole[:, :, i])) for i in range(self.registers)]


# ---
# Tensor cores of warps: mma.sync, ldmatrix, stmatrix, movmatrix.


def _multiply(ins: Ins) -> Run:
    """mma.sync: d = a * b + c."""
    ins.ignore("sync", "aligned", "row", "col")
    rows, columns, depth = _shape(ins, 4)
    saturates = ins.flag("satfinite")
    ins.understood()
    d_kind, a_kind, b_kind, c_kind = ins.kinds
    sums = ("f64",) if rows == 8 else ("f32", "f16", "s32", "f64")
    if (rows, columns) not in ((16, 8), (8, 8)) or d_kind not in sums:
        raise unsupported(ins.ins, "this shape of mma")
    d, a = Fragment(d_kind, "C", rows, columns), Fragment(a_kind, "A", rows, depth)
    b, c = Fragment(b_kind, "B", depth, columns), Fragment(c_kind, "C", rows, columns)
    operands = [fragment.check(ins, operand) for fragment, operand in zip((d, a, b, c), ins.operands, strict=True)]
    writers = [ins.write_bits(item, d.element) for item in operands[0]]
    sources = [
        (fragment, [ins.bits(item, fragment.element) for item in items])
        for fragment, items in zip((a, b, c), operands[1:], strict=True)
    ]

    def run(m: WarpMachine) -> None:
        left, right, start = (fragment.load(m, [reader(m) for reader in readers]) for fragment, readers in sources)
        total = _sums(np.matmul(left, right) + start, d_kind, saturates=saturates)
        for writer, bits in zip(writers, d.store(m, total), strict=True):
            writer(m, bits)

    return run


def _matrices(ins: Ins, registers: Operand) -> tuple[tuple[Operand, ...], bool, str]:
    """Of ldmatrix and stmatrix of 8x8 matrices of 16 bits: a register for each, .trans, the state space."""
    ins.ignore("sync", "aligned")
    if not ins.flag("m8n8") or ins.kind != "b16":
        raise unsupported(ins.ins, "this shape of matrix")
    count, flip, space = int(ins.one_of(("x1", "x2", "x4"), "x1")[1:]), ins.flag("trans"), space_of(ins)
    ins.understood()
    items = ins.items(registers)
    if len(items) != count:
        raise unsupported(ins.ins, f"{len(items)} registers for {count} matrices")
    return items, flip, space


def _rows(m: WarpMachine, address: Array, count: int) -> tuple[Lanes, Array]:
    """The lanes whose addresses count, and these: lanes 8i to 8i+7 say where the rows of matrix i lie."""
    chosen = (m.warps()[:, None] * WARP + np.arange(8 * count)).reshape(-1)
    return m.everyone.only(chosen), m.spread(m.full(address))[chosen]


def _turned(matrices: Array, dtype: str, *, flip: bool) -> Array:
    """Matrices of 16 bits, or their transposes, as elements of another type."""
    return np.ascontiguousarray(matrices.swapaxes(-1, -2) if flip else matrices).view(dtype)


def _load_matrix(ins: Ins) -> Run:
    """ldmatrix."""
    items, flip, space = _matrices(ins, ins.operands[0])
    count, at = len(items), ins.address(ins.operands[1], small=space == "shared")
    writers = [ins.write_bits(item, "b32") for item in items]

    def run(m: WarpMachine) -> None:
        who, address = _rows(m, at(m), count)
        raw = m.memory.read(space, address, 16, ins.ins, who)
        pairs = _turned(raw.view(np.uint16).reshape(-1, count, 8, 8), "u4", flip=flip).reshape(-1, count, WARP)
        for i, writer in enumerate(writers):
            writer(m, m.from_warps(np.ascontiguousarray(pairs[:, i])))

    return run


def _store_matrix(ins: Ins) -> Run:
    """stmatrix."""
    items, flip, space = _matrices(ins, ins.operands[1])
    count, at = len(items), ins.address(ins.operands[0], small=space == "shared")
    readers = [ins.bits(item, "b32") for item in items]

    def run(m: WarpMachine) -> None:
        who, address = _rows(m, at(m), count)
        pairs = np.stack([m.in_warps(reader(m)) for reader in readers], axis=1)
        matrices = np.ascontiguousarray(pairs).view(np.uint16).reshape(-1, count, 8, 8)
        m.memory.write(space, address, _turned(matrices, "u1", flip=flip).reshape(-1, 16), ins.ins, who)

    return run


def _move_matrix(ins: Ins) -> Run:
    """movmatrix: an 8x8 matrix turned around."""
    ins.ignore("sync", "aligned", "m8n8", "trans")
    ins.understood()
    a, write = ins.bits(ins.operands[1], "b32"), ins.write_bits(ins.operands[0], "b32")

    def run(m: WarpMachine) -> None:
        matrix = np.ascontiguousarray(m.in_warps(a(m))).view(np.uint16).reshape(-1, 8, 8)
        write(m, m.from_warps(_turned(matrix, "u4", flip=True).reshape(-1, WARP)))

    return run


# ---
# wgmma: tensor cores of four warps, with operands in shared memory.
#
# The sum is in the registers once a wait_group covers it; until then they hold what nothing has written.

_SPANS = {1: 128, 2: 64, 3: 32}  # bytes of a swizzled row, by the descriptor's mode
_GROUP_LANES = 4 * WARP
_CHUNK = 16  # bytes that a swizzle keeps together
Load = Callable[[WarpMachine, Array], Array]  # [warp group, row, k], for the first lanes of warp groups


def _tensor(ins: Ins) -> Run:
    """wgmma.fence, .commit_group, .wait_group, .mma_async."""
    ins.ignore("sync", "aligned")
    what = ins.one_of(("fence", "commit_group", "wait_group", "mma_async"))
    if what == "mma_async":
        return _multiply_groups(ins)
    ins.understood()
    if what == "wait_group":
        count = ins.bits(ins.operands[0], "b32")
        return lambda m: _wait(m, int(count(m).flat[0]))
    return (lambda m: m.tensors.commit(m)) if what == "commit_group" else nothing(ins)


def _wait(m: WarpMachine, still_open: int) -> None:
    """Give the sums of all but the last groups to their registers."""
    for one in m.tensors.waited(m, still_open):
        with m.among(one.lanes):
            for slot, bits in zip(one.slots, one.columns, strict=True):
                m.put(slot, bits)


@dataclass(frozen=True)
class _Side:
    """One operand in shared memory: `rows` of M or N, `trans`: these lie next to one another."""

    ins: Ins
    read: Read
    kind: str
    rows: int
    depth: int
    trans: bool

    def load(self, m: WarpMachine, firsts: Array) -> Array:
        """[warp group, row, k] as float64 or int64."""
        words = m.full(self.read(m))[::_GROUP_LANES].astype(np.uint64)
        outer, inner = (self.depth, self.rows) if self.trans else (self.rows, self.depth)
        chunks = inner * bits_of(self.kind) // 8 // _CHUNK  # of a line
        line, chunk = np.divmod(np.arange(outer * chunks), chunks)
        address = np.stack([self._addresses(int(word), line, chunk) for word in words])
        who = m.everyone.only(np.repeat(firsts, address.shape[1]))
        raw = m.memory.read("shared", address.reshape(-1), _CHUNK, self.ins.ins, who)
        matrix = _factors(raw, self.kind).reshape(len(words), outer, inner)
        return matrix.swapaxes(1, 2) if self.trans else matrix

    def _addresses(self, word: int, line: Array, chunk: Array) -> Array:
        """Return the addresses of chunks of 16 bytes, as the matrix descriptor says."""
        start, leading, stride = ((word >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        mode = word >> 62
        if word >> 49 & 7:
            raise unsupported(self.ins.ins, "a base offset in a matrix descriptor")
        if mode == 0 and self.trans:
            raise unsupported(self.ins.ins, "a transposed operand that is not swizzled")
        if mode == 0:
            return np.asarray(start + line // 8 * stride + line % 8 * _CHUNK + chunk * leading)
        span = _SPANS[mode]
        along, beyond = chunk * _CHUNK % span, chunk * _CHUNK // span
        at: Array = start + line // 8 * stride + line % 8 * span + along + beyond * leading
        return np.asarray(at ^ ((at >> 7 & (span // _CHUNK - 1)) << 4))


def _flag(operands: Sequence[Operand], place: int) -> int:
    operand = operands[place] if place < len(operands) else None
    return int(operand.value) if isinstance(operand, Immediate) else 0


def _multiply_groups(ins: Ins) -> Run:
    """wgmma.mma_async: d = a * b + d, of 64 rows."""
    rows, columns, depth = _shape(ins, 3)
    saturates = ins.flag("satfinite")
    ins.understood()
    d_kind, a_kind, b_kind = ins.kinds
    if rows != 64 or depth * bits_of(a_kind) != 256 or d_kind not in ("f32", "f16", "s32"):
        raise unsupported(ins.ins, "this shape of wgmma")
    d, a, b, scale, *flags = ins.operands
    signs = _flag(flags, 0) * _flag(flags, 1) if flags else 1
    trans_a, trans_b = (0, _flag(flags, 2)) if isinstance(a, Vector) else (_flag(flags, 2), _flag(flags, 3))
    right = _Side(ins, ins.bits(b, "b64"), b_kind, columns, depth, bool(trans_b))
    left = _left(ins, a, a_kind, depth, trans_a=bool(trans_a))
    adds, out = ins.bits(scale, "pred"), Fragment(d_kind, "C", 16, columns)
    slots = tuple(ins.slot(item) for item in out.check(ins, d))

    def run(m: WarpMachine) -> None:
        firsts = _warp_groups(m, ins)
        total = np.matmul(left(m, firsts), right.load(m, firsts).swapaxes(1, 2)) * signs
        before = out.load(m, _accumulator(m, ins, slots)).reshape(-1, rows, columns)
        total = total + np.where(m.full(adds(m))[::_GROUP_LANES, None, None], before, 0)
        found = out.store(m, _sums(total, d_kind, saturates=saturates).reshape(-1, 16, columns))
        m.tensors.begin(m, ins, tuple(found), slots=slots)
        for slot in slots:
            m.put(slot, poison("b32"))

    return run


def _left(ins: Ins, a: Operand, kind: str, depth: int, *, trans_a: bool) -> Load:
    """Reads [warp group, 64, k], from shared memory or from registers."""
    if not isinstance(a, Vector):
        return _Side(ins, ins.bits(a, "b64"), kind, 64, depth, trans_a).load
    fragment = Fragment(kind, "A", 16, depth)
    readers = [ins.bits(item, "b32") for item in a.items]
    return lambda m, firsts: fragment.load(m, [reader(m) for reader in readers]).reshape(-1, 64, depth)


def _warp_groups(m: WarpMachine, ins: Ins) -> Array:
    """The first lane of each warp group at work."""
    numbers = m.lanes.numbers
    firsts = numbers[::_GROUP_LANES]
    threads = firsts % m.shape.padded  # in their blocks, which may have more warps than those of whole groups
    begin = not (threads % _GROUP_LANES).any() and (threads + _GROUP_LANES <= m.shape.padded).all()
    whole = begin and len(numbers) % _GROUP_LANES == 0
    if not whole or (numbers.reshape(-1, _GROUP_LANES) - firsts[:, None] != np.arange(_GROUP_LANES)).any():
        raise unsupported(ins.ins, "threads that are not whole groups of four warps")
    return firsts


def _accumulator(m: WarpMachine, ins: Ins, slots: tuple[int, ...]) -> list[Array]:
    """Its bits in the lanes at work: in flight from products before, or in its registers."""
    here = m.active()
    values = [np.array(m.full(m.get(slot))) for slot in slots]
    place = np.cumsum(here) - 1  # of a lane among those at work
    if any(one.slots != slots and set(one.slots) & set(slots) and here[one.lanes].any() for one in m.tensors.items):
        raise unsupported(ins.ins, "products in flight that share some registers")
    for one in m.tensors.take(lambda one: here[one.lanes] & (one.slots == slots)):
        for value, bits in zip(values, one.columns, strict=True):
            value[place[one.lanes]] = bits
    return values


MATRIX_SYNC = {  # and the place of the mask among the operands: there is none
    "mma": (_multiply, -1), "ldmatrix": (_load_matrix, -1), "stmatrix": (_store_matrix, -1),
    "movmatrix": (_move_matrix, -1), "wgmma": (_tensor, -1),
}  # fmt: skip
