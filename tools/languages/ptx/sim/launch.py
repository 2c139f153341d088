"""Launches: a function as steps, their schedule over warps and barriers, and blocks with their arguments."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kerneltune.tools.languages.ptx.ir import (
    Function,
    Instruction,
    Label,
    Module,
    Operand,
    PtxError,
    Symbol,
    Variable,
    bits_of,
    parse,
    type_bytes,
)
from kerneltune.tools.languages.ptx.loader import PtxLaunch, PtxLaunchError, block_of, entry_of
from kerneltune.tools.languages.ptx.sim.arithmetic import FLOAT_OPS, REGISTER_OPS
from kerneltune.tools.languages.ptx.sim.exchange import MEMORY_OPS, WARP_SYNC, check_all_sent, nothing
from kerneltune.tools.languages.ptx.sim.machine import (
    AT_BARRIER,
    AT_WARP,
    EXITED,
    PARAM,
    RUNNING,
    WARP,
    DecodedTensorMap,
    Ins,
    Memory,
    Read,
    Run,
    Scope,
    Shape,
    WarpMachine,
)
from kerneltune.tools.languages.ptx.sim.matrix import MATRIX_SYNC
from kerneltune.tools.languages.ptx.sim.values import (
    Deadlock,
    IllFormed,
    Unsupported,
    is_float,
    lane_of,
    place,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array, AssertFailed, InterpreterError, StepLimit
from kerneltune.tools.languages.triton.ttir.memory import AddressSpace, DescriptorValue, Pointer
from kerneltune.tools.schema.gpus import LARGEST_BLOCK

# ---
# A function of PTX as steps that the scheduler runs: plain ones change registers and memory, the others say who goes
# on.
#
# An instruction that is not emulated becomes a step that says so when it is reached: what never runs does no harm.

PLAIN, SYNC, BRANCH, EXIT, BARRIER = range(5)
_OPS = {**REGISTER_OPS, **MEMORY_OPS}
_SYNC_OPS = {**WARP_SYNC, **MATRIX_SYNC}
FULL_WARP = 0xFFFFFFFF


@dataclass(frozen=True)
class Barrier:
    """bar.sync and its kin: which barrier, how many threads (None: the whole block), and whether one waits there."""

    number: Read
    count: Read | None
    waits: bool
    reduce: Callable[[WarpMachine], None] | None = None


@dataclass(frozen=True)
class EmulatedStep:
    """One instruction. `guard` and what follows are for steps that are not plain; a plain one holds its guard in
    `run`."""

    ins: Instruction
    kind: int
    run: Run
    guard: Read | None = None
    mask: Read | None = None
    target: int = 0
    barrier: Barrier | None = None
    targets: tuple[int, ...] = ()  # of a branch that `index` chooses
    index: Read | None = None


def steps_of(function: Function, scope: Scope) -> list[EmulatedStep]:
    """The body, and an exit behind it."""
    end = Instruction("ret", (), (), function.end_line)
    body = [item for item in function.body if isinstance(item, Instruction)]
    return [_step(ins, scope) for ins in (*body, end)]


def labels_of(function: Function) -> dict[str, int]:
    """Return label -> number of the step that follows it."""
    found: dict[str, int] = {}
    count = 0
    for item in function.body:
        if isinstance(item, Label):
            found[item.name] = count
        count += isinstance(item, Instruction)
    return found


def _step(ins: Instruction, scope: Scope) -> EmulatedStep:
    try:
        return _build(ins, scope)
    except InterpreterError as error:
        return EmulatedStep(ins, PLAIN, _guarded(_raiser(error), _guard(ins, scope)))
    except (ValueError, IndexError, KeyError, TypeError) as error:
        wrong = IllFormed(f"{place(ins)}: ill-formed: {error}")
        return EmulatedStep(ins, PLAIN, _guarded(_raiser(wrong), None))


def _raiser(error: InterpreterError) -> Run:
    def run(m: WarpMachine) -> None:
        raise error

    return run


def _guard(ins: Instruction, scope: Scope) -> Read | None:
    if ins.guard is None or ins.guard.register not in scope.slots:
        return None
    slot, negated = scope.slots[ins.guard.register], ins.guard.negated
    return (lambda m: ~m.get(slot)) if negated else (lambda m: m.get(slot))


def _build(ins: Instruction, scope: Scope) -> EmulatedStep:
    guard = _guard(ins, scope)
    if ins.guard is not None and guard is None:
        raise IllFormed(f"{place(ins)}: {ins.guard.register!r} is not a declared predicate")
    what = Ins(ins, scope)
    if ins.opcode in ("ret", "exit"):
        return EmulatedStep(ins, EXIT, nothing(what), guard)
    if ins.opcode == "bra":
        return EmulatedStep(ins, BRANCH, nothing(what), guard, target=_label(ins, ins.operands[0], scope))
    if ins.opcode == "brx":
        what.ignore("idx", "uni")
        places = scope.tables.get(getattr(ins.operands[1], "name", ""), ())
        targets = tuple(_label(ins, Symbol(name), scope) for name in places)
        return EmulatedStep(ins, BRANCH, nothing(what), guard, targets=targets, index=what.bits(ins.operands[0], "b32"))
    if ins.opcode in ("bar", "barrier") and not what.flag("warp"):
        return EmulatedStep(ins, BARRIER, nothing(what), guard, barrier=_barrier(what))
    name = "bar.warp" if ins.opcode == "bar" else ins.opcode
    if name in _SYNC_OPS:
        builder, place_of_mask = _SYNC_OPS[name]
        mask = None if place_of_mask < 0 else what.bits(ins.operands[place_of_mask], "b32")
        return EmulatedStep(ins, SYNC, builder(what), guard, mask)
    return EmulatedStep(ins, PLAIN, _guarded(_plain(what), guard))


def _label(ins: Instruction, operand: Operand, scope: Scope) -> int:
    name = getattr(operand, "name", "")
    if name not in scope.labels:
        raise IllFormed(f"{place(ins)}: no label {name!r}")
    return scope.labels[name]


def _plain(what: Ins) -> Run:
    ins = what.ins
    if ins.opcode in ("trap", "brkpt"):
        return _raiser(AssertFailed(f"{place(ins)} was reached"))
    if ins.opcode == "call":
        return _call(what)
    table = FLOAT_OPS if ins.opcode in FLOAT_OPS and what.kinds and is_float(what.kind) else _OPS
    if ins.opcode not in table:
        raise unsupported(ins, "not emulated")
    return table[ins.opcode](what)


_SILENT, _FAILS = {"vprintf"}, {"__assertfail", "__assert_fail"}


def _call(what: Ins) -> Run:
    """Build a call of what the system offers: printing, which does nothing here, and failing."""
    names = {o.name for o in what.operands if isinstance(o, Symbol)}
    if names & _FAILS:
        return _raiser(AssertFailed(f"{place(what.ins)}: an assertion of the kernel failed"))
    if names & _SILENT:
        return nothing(what)
    raise unsupported(what.ins, "calls of functions")


def _barrier(what: Ins) -> Barrier:
    """bar.sync, bar.arrive, and bar.red, which counts, or joins, a predicate of all threads of the block."""
    what.ignore("cta", "aligned")
    mode = what.one_of(("sync", "arrive", "red"))
    name = what.one_of(("popc", "and", "or")) if mode == "red" else ""
    what.understood()
    result, operands = (what.operands[0], what.operands[1:]) if name else (None, what.operands)
    if not mode or not 1 <= len(operands) - bool(name) <= 2:
        raise unsupported(what.ins, "this barrier")
    count = what.bits(operands[1], "b32") if len(operands) - bool(name) == 2 else None
    reduce = None if result is None else _reducing(what, name, result, operands[-1])
    return Barrier(what.bits(operands[0], "b32"), count, mode != "arrive", reduce)


def _reducing(what: Ins, name: str, result: Operand, operand: Operand) -> Run:
    predicate, write = what.bits(operand, "pred"), what.write_bits(result, "u32" if name == "popc" else "pred")

    def run(m: WarpMachine) -> None:
        yes, there = m.spread(predicate(m)), m.active()
        blocks = len(m.shape.ctas)
        total = np.bincount(m.blocks[yes & there], minlength=blocks)
        everyone = np.bincount(m.blocks[there], minlength=blocks)
        found: dict[str, Array] = {"popc": total.astype(np.uint32), "or": total > 0, "and": total == everyone}
        write(m, m.narrow(found[name][m.blocks]))

    return run


def _guarded(run: Run, guard: Read | None) -> Run:
    if guard is None:
        return run

    def guarded(m: WarpMachine) -> None:
        truth = guard(m)
        if len(truth) == 1 or truth.all():
            if truth[0]:
                run(m)
        elif len(which := np.flatnonzero(truth)):
            with m.among(which if m.idx is None else m.idx[which]):
                run(m)

    return guarded


# ---
# Who runs when. Threads at the same place run together; of several places the first in the text comes first, so that
# threads which went different ways meet again where the ways join. Warp-wide instructions wait for all lanes of their
# mask, barriers for their threads; where nobody can go on, that is a deadlock.

SPINS = 256  # jumps back of one group before others get their turn: they may be what it waits for
LANES_PER_WORK = 1 << 13
_BARRIERS = 64


class Schedule:
    """Runs one batch to its end. `limit`: how much work, in instructions, may be done."""

    def __init__(self, machine: WarpMachine, steps: Sequence[EmulatedStep], limit: int) -> None:
        self.m, self.steps, self.limit = machine, steps, limit
        self.alone, self.until = True, len(steps)
        # what each makes of a step, its place, and the positions of the lanes at work that take it (None: all): where
        # these go on together; -1 where they do not
        self.goes_on = {BRANCH: self._branch, SYNC: self._sync, BARRIER: self._barrier, EXIT: self._exit}
        self.spins = 0
        self.pushed_back: set[int] = set()  # where groups wait in loops: those elsewhere come first

    def run(self) -> None:
        """Run the steps until all threads have ended. Raises InterpreterError."""
        while (pc := self._choose()) is not None:
            self._straight(pc)

    def _straight(self, pc: int) -> None:
        """Run from one step on, until the group splits, waits, ends or meets others."""
        m, steps = self.m, self.steps
        cost = 1 + m.n // LANES_PER_WORK
        while 0 <= pc < self.until:
            step = steps[pc]
            m.work += cost
            if m.work > self.limit:
                raise StepLimit(f"no end in sight after {m.work} instructions; the last was {place(step.ins)}")
            if step.kind == PLAIN:
                step.run(m)
                pc += 1
            elif (taking := self._taking(step)) is None or len(taking):
                pc = self.goes_on[step.kind](step, pc, taking)
            else:
                pc += 1
        if pc >= 0:
            m.pcs[m.lanes.numbers] = pc

    # -- choosing --------------------------------------------------------------------------------------------------

    def _choose(self) -> int | None:
        m = self.m
        running = m.status == RUNNING
        if not running.any():
            return self._stuck()
        if self.pushed_back:
            others = running & ~np.isin(m.pcs, list(self.pushed_back))
            if others.any():
                running = others
            else:
                self.pushed_back.clear()
        pc = int(m.pcs[running].min())
        group = (m.pcs == pc) & (m.status <= AT_WARP)
        m.status[group] = RUNNING
        rest = m.pcs[(m.status <= AT_WARP) & ~group]
        self.alone = not len(rest)
        later = rest[rest > pc]
        self.until = int(later.min()) if len(later) else len(self.steps)
        m.idx = None if group.all() else np.flatnonzero(group)
        return pc

    def _stuck(self) -> int | None:
        """Nobody runs: all have ended, or a lane that others waited for has, or it is a deadlock."""
        m = self.m
        waiting = m.status == AT_WARP
        for pc in np.unique(m.pcs[waiting]):
            group = waiting & (m.pcs == pc)
            m.idx = np.flatnonzero(group)
            complete = self._complete(self.steps[pc], m.idx)
            if complete.any():
                m.status[m.idx[complete]] = RUNNING
                return self._choose()
        if (m.status == EXITED).all():
            return None
        raise self._deadlock()

    def _deadlock(self) -> Deadlock:
        m = self.m
        lane = int(np.flatnonzero((m.status == AT_BARRIER) | (m.status == AT_WARP))[0])
        mine = m.blocks == m.blocks[lane]
        at_warp = m.status[lane] == AT_WARP
        pc = int(m.pcs[lane]) - (not at_warp)
        together = at_warp | (m.barrier_of == m.barrier_of[lane])
        here = int((mine & (m.status == m.status[lane]) & (m.pcs == m.pcs[lane]) & together).sum())
        ended = int((mine & (m.status == EXITED)).sum()) - (m.shape.padded - m.shape.threads)
        lines = [
            f"{int((mine & (m.pcs == other) & (m.status != EXITED)).sum())} at PTX line {self._line(int(other), m)}"
            for other in np.unique(m.pcs[mine & (m.status != EXITED)])
            if other != m.pcs[lane]
        ]
        rest = ", ".join([*lines, *([f"{ended} have ended"] if ended else [])])
        missed = "all are there, but the barrier expects more"
        if not rest and here < m.shape.threads:
            missed = "the others wait at another barrier"
        return Deadlock(
            f"{place(self.steps[pc].ins)}: {here} of {m.shape.threads} threads of CTA "
            f"{m.shape.cta(int(m.blocks[lane]))} wait there for others that "
            f"never come ({rest or missed})"
        )

    def _line(self, pc: int, m: WarpMachine) -> int:
        waits = bool(((m.pcs == pc) & (m.status == AT_BARRIER)).any())
        return self.steps[max(0, pc - waits)].ins.line

    # -- going on ----------------------------------------------------------------------------------------------------

    def _taking(self, step: EmulatedStep) -> Array | None:
        """Positions of the lanes at work whose guard holds; None for all."""
        if step.guard is None:
            return None
        truth = step.guard(self.m)
        if len(truth) == 1:
            return None if truth[0] else np.zeros(0, np.int64)
        return None if truth.all() else np.flatnonzero(truth)

    def _branch(self, step: EmulatedStep, pc: int, taking: Array | None) -> int:
        m, numbers = self.m, self.m.lanes.numbers
        if step.index is not None:
            which, some = m.full(step.index(m)).astype(np.int64), slice(None) if taking is None else taking
            if (which[some] >= len(step.targets)).any():
                raise IllFormed(f"{place(step.ins)}: entry {int(which[some].max())} of {len(step.targets)}")
            m.pcs[numbers] = pc + 1
            m.pcs[numbers[some]] = np.array(step.targets)[which[some]]
            return -1
        if taking is None:
            if self.alone or pc < step.target <= self.until:
                return step.target
            m.pcs[numbers] = step.target
        else:
            m.pcs[numbers] = pc + 1
            m.pcs[numbers[taking]] = step.target
        if step.target <= pc:
            self.spins += 1
            if self.spins > SPINS or m.yields:
                self.pushed_back.add(step.target)
                self.spins, m.yields = 0, False
        return -1

    def _complete(self, step: EmulatedStep, numbers: Array) -> Array:
        """Whether all lanes of the mask are there, for each of `numbers`, which are."""
        m = self.m
        mask = np.full(1, FULL_WARP, np.uint32) if step.mask is None else step.mask(m)
        with m.among(numbers):
            here, gone = m.ballots(m.active()), m.ballots(m.status == EXITED)
        return np.asarray((mask & ~gone & ~here) == 0)

    def _sync(self, step: EmulatedStep, pc: int, taking: Array | None) -> int:
        m = self.m
        if m.idx is None and taking is None:
            step.run(m)
            return pc + 1
        everyone = m.lanes.numbers
        numbers = everyone if taking is None else everyone[taking]
        with m.among(numbers):
            complete = self._complete(step, numbers)
            there = numbers if complete.all() else numbers[np.broadcast_to(complete, len(numbers))]
            if len(there):
                m.idx = there
                step.run(m)
        if len(there) == len(numbers):
            return pc + 1
        m.pcs[everyone] = pc + 1
        waiting = numbers[~complete]
        m.pcs[waiting], m.status[waiting] = pc, AT_WARP
        return -1

    def _exit(self, step: EmulatedStep, pc: int, taking: Array | None) -> int:
        m, numbers = self.m, self.m.lanes.numbers
        m.pcs[numbers] = pc + 1
        m.status[numbers if taking is None else numbers[taking]] = EXITED
        self._release()
        return -1

    # -- barriers ----------------------------------------------------------------------------------------------------

    def _barrier(self, step: EmulatedStep, pc: int, taking: Array | None) -> int:
        m, barrier = self.m, step.barrier
        assert barrier is not None
        everyone = m.lanes.numbers
        numbers = everyone if taking is None else everyone[taking]
        with m.among(None if taking is None and m.idx is None else numbers):
            number = barrier.number(m).astype(np.int64)
            count = None if barrier.count is None else barrier.count(m)
            if (number > 15).any():
                raise unsupported(step.ins, f"barrier {int(number.max())}: there are 16")
            whole = len(numbers) == int((m.status != EXITED).sum()) and bool((number == number[0]).all())
            if whole and barrier.waits and (count is None or (len(count) == 1 and count[0] == m.shape.threads)):
                m.memory.shadow.barrier(slice(None))
                if barrier.reduce:
                    barrier.reduce(m)
                return pc + 1
            if barrier.reduce:
                raise unsupported(step.ins, "a block whose threads reach it at different times")
            self._arrive(barrier, numbers, m.full(number), None if count is None else m.full(count))
        m.pcs[everyone] = pc + 1
        self._release()
        return -1

    def _arrive(self, barrier: Barrier, numbers: Array, number: Array, count: Array | None) -> None:
        m = self.m
        keys = m.blocks[numbers] * _BARRIERS + number
        if count is not None:
            firsts = np.unique(keys, return_index=True)[1]
            for key, n in zip(keys[firsts].tolist(), count[firsts].tolist(), strict=True):
                m.wanted[divmod(key, _BARRIERS)] = n
        if barrier.waits:
            m.status[numbers], m.barrier_of[numbers] = AT_BARRIER, number
            return
        for key, n in zip(*(found.tolist() for found in np.unique(keys, return_counts=True)), strict=True):
            at = divmod(key, _BARRIERS)
            m.arrived[at] = m.arrived.get(at, 0) + n

    def _release(self) -> None:
        """Let threads go on whose barrier has what it wants."""
        m = self.m
        waiting = np.flatnonzero(m.status == AT_BARRIER)
        if not len(waiting):
            return
        keys = m.blocks[waiting] * _BARRIERS + m.barrier_of[waiting]
        found, where, counts = np.unique(keys, return_inverse=True, return_counts=True)
        live = np.bincount(m.blocks[m.status != EXITED], minlength=len(m.shape.ctas))
        needs = live[found // _BARRIERS]
        for i, key in enumerate(found.tolist()) if m.wanted or m.arrived else ():
            at = divmod(key, _BARRIERS)
            needs[i] = m.wanted.get(at, needs[i])
            counts[i] += m.arrived.get(at, 0)
        full = counts >= needs
        if not full.any():
            return
        m.status[waiting[full[where]]] = RUNNING
        m.memory.shadow.barrier(np.unique(found[full] // _BARRIERS))
        for key in found[full].tolist():
            m.wanted.pop(divmod(key, _BARRIERS), None)
            m.arrived.pop(divmod(key, _BARRIERS), None)


# ---
# Runs an entry over its grid, many blocks at a time.


@dataclass(frozen=True)
class HostMap:
    """An argument that is a tensor map: the descriptor that it is of, and what the compiler chose for it."""

    descriptor: DescriptorValue
    choice: Mapping[str, Any]


Argument = Pointer | int | float | bool | HostMap
LANES = 1 << 15  # of a batch: enough to hide Python's overhead, few enough to stay in the caches
REGISTER_BYTES = 1 << 29  # of a batch, if every register were used
BATCH_WORK = 250  # what setting up a batch costs, in instructions
MEMORY_BYTES = 1 << 26  # shared and local memory of a batch
MOST_SHARED = 228 << 10  # of a block, on any GPU that there is
MOST_CTAS = 1 << 31
ILL_TYPED = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)  # numpy's words for bad text


def run(launch: PtxLaunch, *, max_work: int = 50_000_000) -> None:
    """Executes an entry (the only one, unless named) on the values of a launch, one for each parameter, writing through
    its pointers. `max_work`: instructions, counted once for each 8192 threads that run them together. Raises
    InterpreterError."""
    try:
        module = parse(launch.text)
        function = entry_of(module, launch.entry or None)
        block_of(launch.block, function.directives, function.name)
    except (PtxError, PtxLaunchError) as error:
        raise InterpreterError(str(error)) from error
    _require_emulated(module, function, launch)
    with np.errstate(all="ignore"):
        try:
            _run(module, function, launch, max_work)
        except ILL_TYPED as error:
            raise IllFormed(f"{function.name} is ill-formed: {type(error).__name__}: {error}") from error


def _require_emulated(module: Module, function: Function, launch: PtxLaunch) -> None:
    if min(launch.grid) < 1 or math.prod(launch.grid) > MOST_CTAS:
        raise InterpreterError(f"a grid of {launch.grid} blocks")
    several = launch.cluster != (1, 1, 1) or math.prod(function.directives.get("reqnctapercluster", (1,))) > 1
    if several and any(_knows_cluster(ins) for each in module.functions for ins in each.instructions):
        raise Unsupported("clusters whose blocks know of each other are not emulated")


def _knows_cluster(ins: Instruction) -> bool:
    """Whether it could tell that its block is one of several; without it they only begin together."""
    return ins.opcode in ("mapa", "getctarank") or "cluster" in f"{ins.name} {ins.operands}"


def _run(module: Module, function: Function, launch: PtxLaunch, max_work: int) -> None:
    space = AddressSpace()
    scope = _lay_out(module, function, launch, space)
    params = _params(function, launch.values, scope, space)
    steps, granule = _steps(launch.text, function.name, tuple(scope.symbols.items()), tuple(scope.spaces.items()))
    sizes = {**scope.sizes, "param": len(params)}
    work = 0
    for numbers in _batches(launch, scope):
        shape = Shape(launch.block, launch.grid, numbers, launch.shared_bytes, scope.sizes["shared"])
        machine = WarpMachine(shape, scope.kinds, Memory(space, params, sizes, shape, granule), scope.maps)
        machine.work = work + BATCH_WORK
        Schedule(machine, steps, max_work).run()
        check_all_sent(machine)
        work = machine.work


@lru_cache(maxsize=8)
def _steps(
    text: str, entry: str, symbols: tuple[tuple[str, int], ...], spaces: tuple[tuple[str, str], ...]
) -> tuple[list[EmulatedStep], int]:
    """An entry's steps and the granule of its accesses, remembered: a check launches a kernel twice for each case and
    battery, and making the steps took half of a launch's time."""
    function = entry_of(parse(text), entry)
    steps = steps_of(function, replace(_names(function), symbols=dict(symbols), spaces=dict(spaces)))
    return steps, _granule([step.ins for step in steps])


def _batches(launch: PtxLaunch, scope: Scope) -> Iterator[Array]:
    ctas = math.prod(launch.grid)
    padded = -(-math.prod(launch.block) // WARP) * WARP
    per_thread = sum(max(1, bits_of(kind) // 8) for kind in scope.kinds) + 1
    lanes = min(LANES, REGISTER_BYTES // per_thread)
    size = max(1, lanes // padded)
    if per_block := scope.sizes["shared"] + scope.sizes["local"] * padded:
        size = max(1, min(size, MEMORY_BYTES // per_block))
    if launch.cooperative and ctas > size:
        raise Unsupported(f"a cooperative launch of {ctas} blocks: at most {size} of these run at once here")
    for start in range(0, ctas, size):
        yield np.arange(start, min(start + size, ctas))


# -- memory -----------------------------------------------------------------------------------------------------------


def _names(function: Function) -> Scope:
    """Its registers and labels."""
    slots = {name: i for i, name in enumerate(function.registers)}
    tables = {item.name: item.targets for item in function.body if isinstance(item, Label) and item.targets}
    return Scope(slots, list(function.registers.values()), labels_of(function), tables=tables)


def _lay_out(module: Module, function: Function, launch: PtxLaunch, space: AddressSpace) -> Scope:
    scope, dynamic = _names(function), []
    for variable in (*module.variables, *function.variables):
        if variable.space == "shared" and variable.extern:
            dynamic.append(variable)
        elif variable.space in scope.sizes:
            at = _aligned(scope.sizes[variable.space], variable.align or type_bytes(variable.type) * variable.vector)
            scope.name(variable, variable.space, at)
            scope.sizes[variable.space] = at + variable.nbytes
        elif variable.space in ("global", "const"):
            _place(scope, variable, space)
        else:
            scope.spaces[variable.name] = variable.space  # .param of calls
    start = _aligned(scope.sizes["shared"], 16)
    for variable in dynamic:  # all begin at one place
        at = _aligned(start, variable.align or type_bytes(variable.type))
        scope.name(variable, "shared", at)
        scope.sizes["shared"] = max(scope.sizes["shared"], at + launch.shared_bytes)
    if scope.sizes["shared"] > MOST_SHARED:
        raise InterpreterError(f"{scope.sizes['shared']} bytes of shared memory; a block has at most {MOST_SHARED}")
    if scope.sizes["local"] > MEMORY_BYTES // LARGEST_BLOCK:
        raise Unsupported(f"{scope.sizes['local']} bytes of local memory for each thread")
    return scope


def _aligned(at: int, align: int) -> int:
    return -(-at // align) * align


def _place(scope: Scope, variable: Variable, space: AddressSpace) -> None:
    """A variable of the module: a region of its own, with the values that the text gives."""
    if variable.nbytes > MEMORY_BYTES:
        raise Unsupported(f"the module variable {variable.name!r} of {variable.nbytes} bytes")
    buffer = np.zeros(variable.nbytes, np.uint8)
    if variable.values:
        raw = np.concatenate([lane_of(value, variable.type) for value in variable.values]).view(np.uint8)
        buffer[: len(raw)] = raw[: len(buffer)]
    scope.name(variable, "global", space.place(Pointer(buffer, 0, f"the module variable {variable.name!r}")))


def _params(function: Function, args: Sequence[Argument], scope: Scope, space: AddressSpace) -> Array:
    """The parameters' bytes, and their addresses in `scope`."""
    if len(args) != len(function.params):
        raise InterpreterError(f"{function.name} takes {len(function.params)} arguments, {len(args)} were given")
    data = bytearray()
    for number, (param, value) in enumerate(zip(function.params, args, strict=True)):
        align = param.align if param.align and not param.ptr else type_bytes(param.type)
        data += bytes(-len(data) % align)
        scope.name(param, "param", PARAM + len(data))
        if isinstance(value, HostMap):
            scope.maps[PARAM + len(data)] = _mapped(value, space)
        data += _packed(param, value, number, space)
    data += bytes(-len(data) % 16)
    return np.frombuffer(data, np.uint8)


def _mapped(value: HostMap, space: AddressSpace) -> DecodedTensorMap:
    """A tensor map as the driver would encode it: see `backends.cuda.driver.tensor_map`."""
    its, item = value.descriptor, int(value.choice["elem_size"])
    sizes = tuple(its.shape[::-1])
    if value.choice["fp4_padded"] or not len(sizes) == len(its.strides) == len(value.choice["block_size"]):
        raise Unsupported("a tensor map of this kind")
    strides, box = tuple(item * n for n in its.strides[::-1]), tuple(value.choice["block_size"][::-1])
    if box[0] * item % 16:
        raise Unsupported("a tensor map whose boxes have no whole lines of 16 bytes")
    fill = 0xFF if its.padding == "nan" else 0
    return DecodedTensorMap(space.place(its.base), item, sizes, strides, box, int(value.choice["swizzle"]), fill)


def _packed(param: Variable, value: Argument, number: int, space: AddressSpace) -> bytes:
    if isinstance(value, HostMap):
        return bytes(param.nbytes)  # nothing but copies can tell what it holds
    if param.count is not None:
        raise Unsupported(f"argument {number} ({param.name}) is an array of {param.nbytes} bytes")
    if isinstance(value, Pointer):
        if param.nbytes != 8 or is_float(param.type):
            raise InterpreterError(
                f"argument {number} is a tensor, but {param.name} is .{param.type}; pointers are .u64"
            )
        return space.place(value).to_bytes(8, "little")
    if not isinstance(value, float) or is_float(param.type):
        return lane_of(value, param.type).tobytes()
    if param.type != "b32":
        raise InterpreterError(f"argument {number} is the float {value}, but {param.name} is .{param.type}")
    return lane_of(value, "f32").tobytes()


# -- account of shared memory -----------------------------------------------------------------------------------------


def _granule(body: Sequence[Instruction]) -> int:
    """The narrowest access of shared memory that the text may make, in bytes."""
    sizes = [16]
    for ins in body:
        if ins.opcode in ("ld", "st", "atom", "red", "mbarrier"):
            sizes += [max(1, bits_of(m) // 8) for m in ins.modifiers if m[:1] in "busf" and m[1:].isdecimal()]
        elif ins.opcode == "cp" and "bulk" not in ins.modifiers:
            sizes.append(4)
    return min(sizes)
