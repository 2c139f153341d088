"""A function of PTX as steps that the scheduler runs: plain ones change registers and memory, the others say who goes
on.

An instruction that is not emulated becomes a step that says so when it is reached: what never runs does no harm.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tools.ptx.ir import Function, Instruction, Label, Operand, Symbol
from tools.ptx.sim import (
    ops_async,
    ops_atomic,
    ops_bits,
    ops_compare,
    ops_convert,
    ops_float,
    ops_int,
    ops_matrix,
    ops_memory,
    ops_warp,
    ops_wgmma,
)
from tools.ptx.sim.errors import IllFormed, SimError, Trap, place, unsupported
from tools.ptx.sim.formats import is_float
from tools.ptx.sim.machine import Machine
from tools.ptx.sim.operands import Ins, Read, Run, Scope
from tools.ttir.ir import Array

PLAIN, SYNC, BRANCH, EXIT, BARRIER = range(5)
Builder = Callable[[Ins], Run]
_OPS: dict[str, Builder] = {}
for _module in (ops_int, ops_bits, ops_compare, ops_convert, ops_memory, ops_atomic, ops_warp, ops_async):
    _OPS.update(_module.OPS)
_FLOAT_OPS: dict[str, Builder] = dict(ops_float.OPS)
_SYNC_OPS = {**ops_warp.SYNC, **ops_matrix.SYNC, **ops_wgmma.SYNC}
FULL_WARP = 0xFFFFFFFF


@dataclass(frozen=True)
class Barrier:
    """bar.sync and its kin: which barrier, how many threads (None: the whole block), and whether one waits there."""

    number: Read
    count: Read | None
    waits: bool
    reduce: Callable[[Machine], None] | None = None


@dataclass(frozen=True)
class Step:
    """One instruction. `guard` and what follows are for steps that are not plain; a plain one holds its guard in
    `run`."""

    ins: Instruction
    kind: int
    run: Run
    guard: Read | None = None
    mask: Read | None = None
    target: int = 0
    barrier: Barrier | None = None


def steps_of(function: Function, scope: Scope) -> list[Step]:
    """The body, and an exit behind it."""
    end = Instruction("ret", (), (), function.end_line)
    body = [item for item in function.body if isinstance(item, Instruction)]
    return [_step(ins, scope) for ins in (*body, end)]


def labels_of(function: Function) -> dict[str, int]:
    """Where each label leads: a number of a step."""
    found: dict[str, int] = {}
    count = 0
    for item in function.body:
        if isinstance(item, Label):
            found[item.name] = count
        count += isinstance(item, Instruction)
    return found


def _step(ins: Instruction, scope: Scope) -> Step:
    try:
        return _build(ins, scope)
    except SimError as error:
        return Step(ins, PLAIN, _guarded(_raiser(error), _guard(ins, scope)))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        wrong = IllFormed(f"{place(ins)}: ill-formed: {error}")
        return Step(ins, PLAIN, _guarded(_raiser(wrong), None))


def _raiser(error: SimError) -> Run:
    def run(m: Machine) -> None:
        raise error

    return run


def _guard(ins: Instruction, scope: Scope) -> Read | None:
    if ins.guard is None or ins.guard.register not in scope.slots:
        return None
    slot, negated = scope.slots[ins.guard.register], ins.guard.negated
    return (lambda m: ~m.get(slot)) if negated else (lambda m: m.get(slot))


def _build(ins: Instruction, scope: Scope) -> Step:
    guard = _guard(ins, scope)
    if ins.guard is not None and guard is None:
        raise IllFormed(f"{place(ins)}: {ins.guard.register!r} is not a declared predicate")
    what = Ins(ins, scope)
    if ins.opcode in ("ret", "exit"):
        return Step(ins, EXIT, _no_op, guard)
    if ins.opcode == "bra":
        return Step(ins, BRANCH, _no_op, guard, target=_label(ins, ins.operands[0], scope))
    if ins.opcode in ("bar", "barrier") and not what.flag("warp"):
        return Step(ins, BARRIER, _no_op, guard, barrier=_barrier(what))
    name = "bar.warp" if ins.opcode == "bar" else ins.opcode
    if name in _SYNC_OPS:
        builder, place_of_mask = _SYNC_OPS[name]
        mask = None if place_of_mask < 0 else what.bits(ins.operands[place_of_mask], "b32")
        return Step(ins, SYNC, builder(what), guard, mask)
    return Step(ins, PLAIN, _guarded(_plain(what), guard))


def _label(ins: Instruction, operand: Operand, scope: Scope) -> int:
    name = getattr(operand, "name", "")
    if name not in scope.labels:
        raise IllFormed(f"{place(ins)}: no label {name!r}")
    return scope.labels[name]


def _plain(what: Ins) -> Run:
    ins = what.ins
    if ins.opcode in ("trap", "brkpt"):
        return _raiser(Trap(f"{place(ins)} was reached"))
    if ins.opcode == "call":
        return _call(ins)
    table = _FLOAT_OPS if ins.opcode in _FLOAT_OPS and what.kinds and is_float(what.kind) else _OPS
    if ins.opcode not in table:
        raise unsupported(ins, "not emulated")
    return table[ins.opcode](what)


_SILENT = ("vprintf",)
_FAILS = ("__assertfail", "__assert_fail")


def _call(ins: Instruction) -> Run:
    """Only what the system offers: printing, which says nothing here, and failing."""
    names = [o.name for o in ins.operands if isinstance(o, Symbol)]
    if any(name in _FAILS for name in names):
        return _raiser(Trap(f"{place(ins)}: an assertion of the kernel failed"))
    if any(name in _SILENT for name in names):
        return _no_op
    raise unsupported(ins, "calls of functions")


def _no_op(m: Machine) -> None:
    """Nothing."""


def _barrier(what: Ins) -> Barrier:
    ins = what.ins
    what.ignore("cta", "aligned")
    mode = what.one_of(("sync", "arrive", "red"))
    if mode == "red":
        return _reducing(what)
    what.understood()
    if not mode or not 1 <= len(ins.operands) <= 2:
        raise unsupported(ins, "this barrier")
    count = what.bits(ins.operands[1], "b32") if len(ins.operands) == 2 else None
    return Barrier(what.bits(ins.operands[0], "b32"), count, mode == "sync")


def _reducing(what: Ins) -> Barrier:
    """bar.red: a barrier that counts, or joins, a predicate of all threads of the block."""
    ins, name = what.ins, what.one_of(("popc", "and", "or"))
    what.understood()
    result, number, *rest = ins.operands
    count = what.bits(rest[0], "b32") if len(rest) == 2 else None
    predicate = what.bits(rest[-1], "pred")
    write = what.write_bits(result, "u32" if name == "popc" else "pred")

    def run(m: Machine) -> None:
        yes, there = m.spread(predicate(m)), m.active()
        blocks = len(m.shape.ctas)
        total = np.bincount(m.blocks[yes & there], minlength=blocks)
        everyone = np.bincount(m.blocks[there], minlength=blocks)
        found: dict[str, Array] = {"popc": total.astype(np.uint32), "or": total > 0, "and": total == everyone}
        write(m, m.narrow(found[name][m.blocks]))

    return Barrier(what.bits(number, "b32"), count, True, run)


def _guarded(run: Run, guard: Read | None) -> Run:
    if guard is None:
        return run

    def guarded(m: Machine) -> None:
        truth = guard(m)
        if len(truth) == 1 or truth.all():
            if truth[0]:
                run(m)
            return
        which = np.flatnonzero(truth)
        if not len(which):
            return
        before = m.idx
        m.idx = which if before is None else before[which]
        try:
            run(m)
        finally:
            m.idx = before

    return guarded
