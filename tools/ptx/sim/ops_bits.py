"""Bits: logic, shifts, fields, permutations, moves."""

from collections.abc import Callable

import numpy as np

from tools.ptx.ir import Symbol
from tools.ptx.sim.errors import unsupported
from tools.ptx.sim.formats import bits_of, is_signed, resize
from tools.ptx.sim.operands import Ins, Run
from tools.ttir.ir import Array


def _simple(ins: Ins, fn: Callable[..., Array], kinds: list[str], result: str) -> Run:
    """d = fn(operands), with operands as bits of some types."""
    ins.expect(1 + len(kinds))
    ins.understood()
    readers = [ins.bits(operand, kind) for operand, kind in zip(ins.operands[1:], kinds, strict=True)]
    write = ins.write_bits(ins.operands[0], result)
    if len(readers) == 1:
        only = readers[0]
        return lambda m: write(m, fn(only(m)))
    if len(readers) == 2:
        a, b = readers
        return lambda m: write(m, fn(a(m), b(m)))
    return lambda m: write(m, fn(*np.broadcast_arrays(*(reader(m) for reader in readers))))


_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def logic(ins: Ins) -> Run:
    """and, or, xor."""
    return _simple(ins, _LOGIC[ins.opcode], [ins.kind] * 2, ins.kind)


def invert(ins: Ins) -> Run:
    """not, cnot."""
    fn = np.invert if ins.opcode == "not" else lambda x: (x == 0).astype(x.dtype)
    return _simple(ins, fn, [ins.kind], ins.kind)


def shift(ins: Ins) -> Run:
    """shl, shr: by more than the width is by the width."""
    kind = ins.kind
    width = bits_of(kind)
    left, signed = ins.opcode == "shl", is_signed(kind)

    def run(x: Array, by: Array) -> Array:
        by = np.minimum(by, width - 1 if signed else width).astype(x.dtype)
        if signed:
            return np.asarray(x.view(f"i{width // 8}") >> by.view(f"i{width // 8}")).view(x.dtype)
        amount = np.minimum(by, width - 1).astype(x.dtype)
        moved = x << amount if left else x >> amount
        return np.asarray(np.where(by >= width, x.dtype.type(0), moved))

    return _simple(ins, run, [kind, "u32"], kind)


def funnel(ins: Ins) -> Run:
    """shf: 32 bits out of 64."""
    left = ins.one_of(("l", "r")) == "l"
    clamp = ins.one_of(("wrap", "clamp")) == "clamp"

    def run(low: Array, up: Array, by: Array) -> Array:
        amount = (np.minimum(by, 32) if clamp else by & 31).astype(np.uint64)
        both = up.astype(np.uint64) << np.uint64(32) | low
        return ((both << amount >> np.uint64(32)) if left else both >> amount).astype(np.uint32)

    return _simple(ins, run, ["b32", "b32", "u32"], "b32")


def lookup(ins: Ins) -> Run:
    """lop3: any function of three bits."""
    if ins.flag("and", "or"):
        raise unsupported(ins.ins, "lop3 with a predicate")

    def run(a: Array, b: Array, c: Array, table: Array) -> Array:
        out = np.zeros(a.shape, np.uint32)
        for i in range(8):
            if int(table.flat[0]) >> i & 1:
                out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return out

    return _simple(ins, run, ["b32", "b32", "b32", "u32"], "b32")


_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


def permute(ins: Ins) -> Run:
    """prmt: four bytes out of eight, or their signs."""
    mode = ins.one_of(_MODES)

    def run(a: Array, b: Array, c: Array) -> Array:
        eight = np.stack([a, b], axis=1).astype(np.uint32).view(np.uint8)
        choice = _selectors(c, mode)
        picked = np.take_along_axis(eight, (choice & 7).astype(np.int64), axis=1)
        signs = np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0))
        return np.ascontiguousarray(np.where(choice & 8, signs, picked).astype(np.uint8)).view(np.uint32).reshape(-1)

    return _simple(ins, run, ["b32", "b32", "b32"], "b32")


def _selectors(c: Array, mode: str) -> Array:
    """[lane, 4]: which byte, and 8 where its sign is meant."""
    if not mode:
        return np.stack([c >> np.uint32(4 * i) & np.uint32(15) for i in range(4)], axis=1)
    low, i = (c & 3).astype(np.int64)[:, None], np.arange(4)
    if mode in ("f4e", "b4e"):
        return (low + i) % 8 if mode == "f4e" else (low - i) % 8
    if mode == "rc8":
        return np.repeat(low, 4, axis=1)
    if mode == "rc16":
        return (low & 1) * 2 + i % 2
    return np.maximum(low, i) if mode == "ecl" else np.minimum(low, i)


def extract(ins: Ins) -> Run:
    """bfe: a field of bits."""
    kind = ins.kind
    width, signed = bits_of(kind), is_signed(kind)

    def run(x: Array, start: Array, length: Array) -> Array:
        at, count = (start & 255).astype(np.int64), (length & 255).astype(np.int64)
        one = x.dtype.type(1)
        end = np.minimum(at + count, width)
        moved = np.where(at >= width, x.dtype.type(0), x >> np.minimum(at, width - 1).astype(x.dtype))
        have = np.clip(end - at, 0, width)
        mask = np.where(have >= width, ~x.dtype.type(0), (one << np.minimum(have, width - 1).astype(x.dtype)) - one)
        field: Array = moved & mask
        if not signed:
            return field
        top = np.clip(np.minimum(at + count - 1, width - 1), 0, width - 1).astype(x.dtype)
        negative = (x >> top & one).astype(bool) & (count > 0)
        return np.asarray(np.where(negative, field | ~mask, field))

    return _simple(ins, run, [kind, "u32", "u32"], kind)


def insert(ins: Ins) -> Run:
    """bfi: a field of bits put into others."""
    kind = ins.kind
    width = bits_of(kind)

    def run(a: Array, b: Array, start: Array, length: Array) -> Array:
        at, count = (start & 255).astype(np.int64), (length & 255).astype(np.int64)
        one = a.dtype.type(1)
        have = np.clip(np.minimum(at + count, width) - at, 0, width)
        mask = np.where(have >= width, ~a.dtype.type(0), (one << np.minimum(have, width - 1).astype(a.dtype)) - one)
        by = np.minimum(at, width - 1).astype(a.dtype)
        mask = np.where(at >= width, a.dtype.type(0), mask << by)
        return np.asarray(b & ~mask | (a << by) & mask)

    return _simple(ins, run, [kind, kind, "u32", "u32"], kind)


def _bit_matrix(x: Array) -> Array:
    """[lane, bit], the lowest bit first."""
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
    return np.unpackbits(raw, axis=1, bitorder="little")


def reverse(x: Array) -> Array:
    """brev."""
    flipped = np.packbits(_bit_matrix(x)[:, ::-1], axis=1, bitorder="little")
    return np.ascontiguousarray(flipped).view(x.dtype).reshape(-1)


def leading_zeros(x: Array) -> Array:
    """clz."""
    bits = _bit_matrix(x)[:, ::-1]
    return np.asarray(np.where(x == 0, bits.shape[1], bits.argmax(axis=1)), np.uint32)


def ones(x: Array) -> Array:
    """popc."""
    return np.asarray(_bit_matrix(x).sum(axis=1, dtype=np.uint32))


def find_leading(ins: Ins) -> Run:
    """bfind: the place of the highest bit that is not the sign; all ones where there is none."""
    amount = ins.flag("shiftamt")
    kind = ins.kind
    width = bits_of(kind)

    def run(x: Array) -> Array:
        if is_signed(kind):
            x = np.where(x >> x.dtype.type(width - 1), ~x, x)
        zeros = leading_zeros(x)
        place = zeros if amount else np.uint32(width - 1) - zeros
        return np.where(x == 0, np.uint32(0xFFFFFFFF), place).astype(np.uint32)

    return _simple(ins, run, [kind], "u32")


def count(ins: Ins) -> Run:
    """popc, clz."""
    return _simple(ins, ones if ins.opcode == "popc" else leading_zeros, [ins.kind], "u32")


def mirror(ins: Ins) -> Run:
    """brev."""
    return _simple(ins, reverse, [ins.kind], ins.kind)


def mask(ins: Ins) -> Run:
    """bmsk: ones from a place on."""
    wrap = ins.one_of(("clamp", "wrap")) == "wrap"

    def run(start: Array, length: Array) -> Array:
        at, many = (start & 31, length & 31) if wrap else (np.minimum(start, 32), np.minimum(length, 32))
        one = np.uint64(1)
        all_ones = (one << many.astype(np.uint64)) - one
        return (all_ones << at.astype(np.uint64)).astype(np.uint32)

    return _simple(ins, run, ["b32", "b32"], "b32")


def move(ins: Ins) -> Run:
    """mov: registers, numbers, addresses; packing and unpacking of {…}."""
    source = ins.operands[1] if len(ins.operands) == 2 else None
    if isinstance(source, Symbol) and source.name in ins.scope.labels:
        raise unsupported(ins.ins, "the address of a label")
    return _simple(ins, lambda x: x, [ins.kind], ins.kind)


def window(ins: Ins) -> Run:
    """cvta: between a window's addresses and generic ones."""
    to = ins.flag("to")
    space = ins.one_of(
        ("shared", "shared::cta", "shared::cluster", "local", "global", "const", "param", "param::entry")
    )
    base = {"shared": 1 << 32, "shared::cta": 1 << 32, "shared::cluster": 1 << 32, "local": 2 << 32}.get(space, 0)
    kind = ins.kind

    def run(x: Array) -> Array:
        at = x.astype(np.uint64)
        moved = at & np.uint64(0xFFFFFFFF) if to and base else at if to else at + np.uint64(base)
        return resize(moved, bits_of(kind))

    return _simple(ins, run, [kind], kind)


OPS = {
    **dict.fromkeys(_LOGIC, logic),
    "not": invert, "cnot": invert, "shl": shift, "shr": shift, "shf": funnel, "lop3": lookup, "prmt": permute,
    "bfe": extract, "bfi": insert, "bfind": find_leading, "popc": count, "clz": count, "brev": mirror, "bmsk": mask,
    "mov": move, "cvta": window,
}  # fmt: skip
