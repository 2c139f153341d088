"""Operands as functions of the machine: what reads one as values of a type, what writes a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tools.ptx.ir import Address, Both, Immediate, Instruction, Not, Operand, Register, Symbol, Vector
from tools.ptx.sim.errors import IllFormed, place, unsupported
from tools.ptx.sim.formats import (
    UNSIGNED,
    base_of,
    bits_of,
    decode,
    encode,
    is_float,
    is_kind,
    is_signed,
    parts_of,
    resize,
)
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.rounding import nearest
from tools.ptx.sim.specials import special
from tools.ttir.ir import Array

Run = Callable[[Machine], None]
Read = Callable[[Machine], Array]
Write = Callable[[Machine, Array], None]


@dataclass(frozen=True)
class Scope:
    """What names mean in a function. `symbols`: address of each variable and parameter; `labels`: where they stand."""

    slots: Mapping[str, int]
    kinds: Sequence[str]
    symbols: Mapping[str, int]
    labels: Mapping[str, int]
    spaces: Mapping[str, str]


class Ins:
    """One instruction and what its names mean; the builders of operations ask it for their operands."""

    def __init__(self, ins: Instruction, scope: Scope) -> None:
        self.ins, self.scope = ins, scope
        self.opcode, self.operands, self.line = ins.opcode, ins.operands, ins.line
        self.kinds = tuple(m for m in ins.modifiers if is_kind(m))
        self.words = [m for m in ins.modifiers if not is_kind(m)]

    @property
    def kind(self) -> str:
        """The one type, or the last."""
        if not self.kinds:
            raise IllFormed(f"{place(self.ins)}: a type is missing")
        return self.kinds[-1]

    def flag(self, *names: str) -> bool:
        """Whether a modifier is there; it counts as understood then."""
        found = [name for name in names if name in self.words]
        for name in found:
            self.words.remove(name)
        return bool(found)

    def one_of(self, names: Sequence[str], default: str = "") -> str:
        """The modifier of these that is there; it counts as understood then."""
        found = next((name for name in names if name in self.words), default)
        if found in self.words:
            self.words.remove(found)
        return found

    def ignore(self, *names: str) -> None:
        """Modifiers that change nothing here."""
        self.flag(*names)

    def understood(self) -> None:
        """Raise Unsupported where modifiers are left."""
        if self.words:
            raise unsupported(self.ins, f"'.{self.words[0]}' is not emulated")

    def expect(self, *counts: int) -> None:
        """Raise IllFormed unless there are so many operands."""
        if len(self.operands) not in counts:
            raise IllFormed(f"{place(self.ins)}: {len(self.operands)} operands; it takes {counts[0]}")

    def slot(self, operand: Operand) -> int:
        """Number of a register."""
        if isinstance(operand, Register) and operand.name in self.scope.slots:
            return self.scope.slots[operand.name]
        name = operand.name if isinstance(operand, Register | Symbol) else type(operand).__name__.lower()
        raise IllFormed(f"{place(self.ins)}: {name!r} is not a declared register")

    def width(self, operand: Operand) -> int:
        """Bits of a register."""
        return bits_of(self.scope.kinds[self.slot(operand)])

    # -- reading ---------------------------------------------------------------------------------------------------

    def bits(self, operand: Operand, kind: str) -> Read:
        """Reads bits as wide as the type."""
        width = bits_of(kind)
        if isinstance(operand, Immediate):
            return _constant(_immediate(operand, kind))
        if isinstance(operand, Not):
            inner = self.bits(operand.operand, kind)
            return lambda m: ~inner(m)
        if isinstance(operand, Vector):
            return self._packed(operand, width)
        if isinstance(operand, Symbol):
            return _constant(np.array([self.address_of(operand) & (1 << width) - 1], UNSIGNED[width]))
        if not isinstance(operand, Register):
            raise IllFormed(f"{place(self.ins)}: a {type(operand).__name__.lower()} where a number belongs")
        if operand.name.startswith("%") and operand.name not in self.scope.slots:
            return self._special(operand.name, width)
        slot, have = self.slot(operand), self.width(operand)
        if have == width:
            return lambda m: m.get(slot)
        if have < width or have == 128 or width == 1:
            raise IllFormed(f"{place(self.ins)}: the register {operand.name!r} has {have} bits, not {width}")
        return lambda m: resize(m.get(slot), width)

    def _special(self, name: str, width: int) -> Read:
        def read(m: Machine) -> Array:
            found = special(m, name)
            if found is None:
                raise unsupported(self.ins, f"{name} is not emulated")
            return resize(found if len(found) == 1 else m.narrow(found), width)

        return read

    def _packed(self, vector: Vector, width: int) -> Read:
        """{low, high} as one number."""
        part = width // len(vector.items)
        if part not in (8, 16, 32, 64) or width > 64:
            raise unsupported(self.ins, f"packing {len(vector.items)} registers into {width} bits")
        readers = [self.bits(item, f"b{part}") for item in vector.items]

        def read(m: Machine) -> Array:
            total: Array = np.zeros(1, UNSIGNED[width])
            for i, reader in enumerate(readers):
                total = np.bitwise_or(total, reader(m).astype(UNSIGNED[width]) << UNSIGNED[width].type(i * part))
            return total

        return read

    def value(self, operand: Operand, kind: str) -> Read:
        """Reads values of a type."""
        reader = self.bits(operand, kind)
        if not is_float(kind) and not is_signed(kind) and parts_of(kind) == 1:
            return reader
        return lambda m: decode(reader(m), kind)

    def address_of(self, symbol: Symbol) -> int:
        """Where a variable or parameter lies, in its own space."""
        if symbol.name not in self.scope.symbols:
            raise IllFormed(f"{place(self.ins)}: {symbol.name!r} is not declared")
        return self.scope.symbols[symbol.name] + symbol.offset

    def address(self, operand: Operand, *, small: bool = False) -> Read:
        """Reads addresses as int64. `small`: of a window of 32 bits."""
        if not isinstance(operand, Address):
            raise IllFormed(f"{place(self.ins)}: an address stands in brackets")
        offset = operand.offset
        if operand.base is None:
            return _constant(np.array([offset], np.int64))
        if isinstance(operand.base, Symbol):
            return _constant(np.array([self.address_of(operand.base) + offset], np.int64))
        reader = self.bits(operand.base, f"b{min(64, self.width(operand.base))}")
        mask = 0xFFFFFFFF if small else (1 << 63) - 1

        def read(m: Machine) -> Array:
            at = reader(m).astype(np.int64)
            return (at + offset) & mask if offset or small else at & mask

        return read

    # -- writing ---------------------------------------------------------------------------------------------------

    def write_bits(self, operand: Operand, kind: str) -> Write:
        """Writes bits as wide as the type; a wider register gets them extended."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda m, bits: None
        if isinstance(operand, Vector):
            return self._unpack(operand, bits_of(kind))
        slot, width, signed = self.slot(operand), self.width(operand), is_signed(kind)
        if width == bits_of(kind):
            return lambda m, bits: m.put(slot, bits)
        if width < bits_of(kind) or bits_of(kind) == 1:
            raise IllFormed(f"{place(self.ins)}: the register for the result has {width} bits, not {bits_of(kind)}")
        return lambda m, bits: m.put(slot, resize(bits, width, signed=signed))

    def _unpack(self, vector: Vector, width: int) -> Write:
        part = width // len(vector.items)
        if part not in (8, 16, 32, 64) or width > 64:
            raise unsupported(self.ins, f"unpacking {width} bits into {len(vector.items)} registers")
        writers = [self.write_bits(item, f"b{part}") for item in vector.items]

        def write(m: Machine, bits: Array) -> None:
            for i, writer in enumerate(writers):
                writer(m, (bits >> bits.dtype.type(i * part)).astype(UNSIGNED[part]))

        return write

    def write(self, operand: Operand, kind: str) -> Write:
        """Writes values of a type, which it holds exactly."""
        writer = self.write_bits(operand, kind)
        return lambda m, value: writer(m, encode(value, kind))

    def results(self) -> tuple[Operand, Operand | None]:
        """p|q in two, and d alone."""
        first = self.operands[0]
        return (first.first, first.second) if isinstance(first, Both) else (first, None)


def _constant(value: Array) -> Read:
    return lambda m: value


def _immediate(operand: Immediate, kind: str) -> Array:
    """One lane of a number in the text."""
    width, value = bits_of(kind), operand.value
    if width == 1:
        return np.array([bool(value)])
    if width == 128:
        raise IllFormed(f"{operand.value} where 128 bits belong")
    if isinstance(value, int):
        return np.array([value & (1 << width) - 1], UNSIGNED[width])
    if operand.bits and not (is_float(kind) and bits_of(base_of(kind)) < operand.bits):
        bits = np.array([value], f"f{operand.bits // 8}").view(UNSIGNED[operand.bits])
        if width == 64 and operand.bits == 32 and kind == "f64":
            return np.array([value], np.float64).view(np.uint64)
        return resize(bits, width)
    target = kind if is_float(kind) else {16: "f16", 32: "f32", 64: "f64"}[width]
    one = nearest(np.array([[value] * parts_of(target)], np.float64), base_of(target))
    return encode(one if parts_of(target) > 1 else one[0], target)
