"""Launches: a function as steps, their schedule over warps and barriers, and blocks with their arguments."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kerneltune.tools.languages.ptx.ir import (
    Function,
    Instruction,
    Label,
    Module,
    Operand,
    Param,
    Symbol,
    Variable,
    bits_of,
    type_bytes,
)
from kerneltune.tools.languages.ptx.sim.arithmetic import BIT_OPS, COMPARE_OPS, CONVERT_OPS, FLOAT_OPS, INT_OPS
from kerneltune.tools.languages.ptx.sim.bulk import ASYNC_OPS, check_all_sent
from kerneltune.tools.languages.ptx.sim.exchange import ATOMIC_OPS, MEMORY_OPS, WARP_OPS, WARP_SYNC, nothing
from kerneltune.tools.languages.ptx.sim.machine import (
    AT_BARRIER,
    AT_WARP,
    EXITED,
    PARAM,
    RUNNING,
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
    encode,
    is_float,
    place,
    to_format,
    unsupported,
)
from kerneltune.tools.languages.triton.ttir.ir import Array, AssertFailed, InterpreterError, StepLimit
from kerneltune.tools.languages.triton.ttir.memory import AddressSpace, Pointer

# ---
# A function of PTX as steps that the scheduler runs: plain ones change registers and memory, the others say who goes
# on.
#
# An instruction that is not emulated becomes a step that says so when it is reached: what never runs does no harm.

PLAIN, SYNC, BRANCH, EXIT, BARRIER = range(5)
_OPS = {**INT_OPS, **BIT_OPS, **COMPARE_OPS, **CONVERT_OPS, **MEMORY_OPS, **ATOMIC_OPS, **WARP_OPS, **ASYNC_OPS}
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
        self.spins, self.pushed_back = 0, -1

    def run(self) -> None:
        """Until all threads have ended. Raises InterpreterError."""
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
            elif step.kind == BRANCH:
                pc = self._branch(step, pc)
            elif step.kind == SYNC:
                pc = self._sync(step, pc)
            elif step.kind == BARRIER:
                pc = self._barrier(step, pc)
            else:
                pc = self._exit(step, pc)
        if pc >= 0:
            m.pcs[m.lanes.numbers] = pc

    # -- choosing --------------------------------------------------------------------------------------------------

    def _choose(self) -> int | None:
        m = self.m
        running = m.status == RUNNING
        if not running.any():
            return self._stuck()
        pc = int(m.pcs[running].min())
        if pc == self.pushed_back and (others := running & (m.pcs != pc)).any():
            pc = int(m.pcs[others].min())
        self.pushed_back = -1
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
        here = int((mine & (m.status == m.status[lane]) & (m.pcs == m.pcs[lane])).sum())
        ended = int((mine & (m.status == EXITED)).sum()) - (m.shape.padded - m.shape.threads)
        lines = [
            f"{int((mine & (m.pcs == other) & (m.status != EXITED)).sum())} at PTX line {self._line(int(other), m)}"
            for other in np.unique(m.pcs[mine & (m.status != EXITED)])
            if other != m.pcs[lane]
        ]
        rest = ", ".join([*lines, *([f"{ended} have ended"] if ended else [])])
        return Deadlock(
            f"{place(self.steps[pc].ins)}: {here} of {m.shape.threads} threads of CTA "
            f"{m.shape.cta(int(m.blocks[lane]))} wait there for others that "
            f"never come ({rest or 'all are there, it wants more'})"
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

    def _branch(self, step: EmulatedStep, pc: int) -> int:
        m, taking = self.m, self._taking(step)
        if taking is not None and not len(taking):
            return pc + 1
        numbers = m.lanes.numbers
        if taking is None:
            if self.alone or pc < step.target <= self.until:
                return step.target
            m.pcs[numbers] = step.target
        else:
            m.pcs[numbers] = pc + 1
            m.pcs[numbers[taking]] = step.target
        self._count_spin(step, pc)
        return -1

    def _count_spin(self, step: EmulatedStep, pc: int) -> None:
        if step.target > pc:
            return
        self.spins += 1
        if self.spins > SPINS or self.m.yields:
            self.pushed_back, self.spins, self.m.yields = step.target, 0, False

    def _complete(self, step: EmulatedStep, numbers: Array) -> Array:
        """Whether all lanes of the mask are there, for each of `numbers`, which are."""
        m = self.m
        mask = np.full(1, FULL_WARP, np.uint32) if step.mask is None else step.mask(m)
        with m.among(numbers):
            here, gone = m.ballots(m.active()), m.ballots(m.status == EXITED)
        return np.asarray((mask & ~gone & ~here) == 0)

    def _sync(self, step: EmulatedStep, pc: int) -> int:
        m, taking = self.m, self._taking(step)
        if taking is not None and not len(taking):
            return pc + 1
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

    def _exit(self, step: EmulatedStep, pc: int) -> int:
        m, taking = self.m, self._taking(step)
        if taking is not None and not len(taking):
            return pc + 1
        numbers = m.lanes.numbers
        m.pcs[numbers] = pc + 1
        m.status[numbers if taking is None else numbers[taking]] = EXITED
        self._release()
        return -1

    # -- barriers ----------------------------------------------------------------------------------------------------

    def _barrier(self, step: EmulatedStep, pc: int) -> int:
        m, taking, barrier = self.m, self._taking(step), step.barrier
        assert barrier is not None
        if taking is not None and not len(taking):
            return pc + 1
        everyone = m.lanes.numbers
        numbers = everyone if taking is None else everyone[taking]
        with m.among(None if taking is None and m.idx is None else numbers):
            number, count = self._named(barrier, step)
            whole = len(numbers) == int((m.status != EXITED).sum())
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

    def _named(self, barrier: Barrier, step: EmulatedStep) -> tuple[Array, Array | None]:
        number = barrier.number(self.m)
        count = None if barrier.count is None else barrier.count(self.m)
        if (number > 15).any():
            raise unsupported(step.ins, f"barrier {int(number.max())}: there are 16")
        return number.astype(np.int64), count

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

Argument = Pointer | int | float | bool
LANES = 1 << 15  # of a batch: enough to hide Python's overhead, few enough to stay in the caches
REGISTER_BYTES = 1 << 29  # of a batch, if every register were used
BATCH_WORK = 250  # what setting up a batch costs, in instructions
MEMORY_BYTES = 1 << 26  # shared and local memory of a batch
MOST_SHARED = 228 << 10  # of a block, on any GPU that there is
MOST_THREADS = 1024
MOST_CTAS = 1 << 31
ILL_TYPED = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError)  # numpy's words for bad text


@dataclass(frozen=True)
class EmulatedLaunch:
    """How an entry is started: `block` (x, y, z) threads, dynamic shared memory, blocks of a cluster. `cooperative`:
    all blocks are there at once."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


@dataclass(frozen=True)
class EmulationStats:
    """What a run did. `work`: instructions, counted once for each 8192 threads that run them together."""

    ctas: int
    batches: int
    work: int


@dataclass
class _Layout:
    """The addresses of variables."""

    symbols: dict[str, int] = field(default_factory=dict)
    spaces: dict[str, str] = field(default_factory=dict)
    shared_bytes: int = 0
    local_bytes: int = 0


def run(
    module: Module, launch: EmulatedLaunch, args: Sequence[Argument], *, entry: str = "", max_work: int = 50_000_000
) -> EmulationStats:
    """Executes an entry (the only one, unless named) on `args`, one for each parameter, writing through its pointers.
    Raises InterpreterError."""
    function = _entry(module, entry)
    _check(launch, function, module)
    with np.errstate(all="ignore"):
        try:
            return _run(module, function, launch, args, max_work)
        except ILL_TYPED as error:
            raise IllFormed(f"{function.name} is ill-formed: {type(error).__name__}: {error}") from error


def _entry(module: Module, name: str) -> Function:
    found = [f for f in module.entries if name in ("", f.name)]
    if len(found) != 1:
        names = ", ".join(f.name for f in module.entries) or "none"
        raise InterpreterError(f"no single entry {name or '(unnamed)'!r}; entries: {names}")
    return found[0]


def _check(launch: EmulatedLaunch, function: Function, module: Module) -> None:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if min(launch.block) < 1 or threads > MOST_THREADS:
        raise InterpreterError(f"a block of {launch.block} threads; it may have 1 to {MOST_THREADS}")
    ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if min(launch.grid) < 1 or ctas > MOST_CTAS:
        raise InterpreterError(f"a grid of {launch.grid} blocks")
    required = function.directives.get("reqntid")
    if required is not None and (*required, 1, 1, 1)[:3] != launch.block:
        raise InterpreterError(
            f"the block is {launch.block}, but the text says .reqntid {', '.join(map(str, required))}"
        )
    most = function.directives.get("maxntid")
    if most is not None and threads > int(np.prod(most, dtype=np.int64)):
        raise InterpreterError(f"{threads} threads in a block, but the text says .maxntid {', '.join(map(str, most))}")
    cluster = function.directives.get("reqnctapercluster", (1,))
    several = launch.cluster != (1, 1, 1) or int(np.prod(cluster, dtype=np.int64)) > 1
    if several and any(_knows_cluster(ins) for each in module.functions for ins in each.instructions):
        raise Unsupported("clusters whose blocks know of each other are not emulated")


def _knows_cluster(ins: Instruction) -> bool:
    """Whether it could tell that its block is one of several; without it they only begin together."""
    return ins.opcode in ("mapa", "getctarank") or "cluster" in f"{ins.name} {ins.operands}"


def _run(
    module: Module, function: Function, launch: EmulatedLaunch, args: Sequence[Argument], max_work: int
) -> EmulationStats:
    space = AddressSpace()
    layout = _lay_out(module, function, launch, space)
    params = _params(function, args, layout, space)
    kinds = list(function.registers.values())
    slots = {name: i for i, name in enumerate(function.registers)}
    scope = Scope(slots, kinds, layout.symbols, labels_of(function), layout.spaces)
    steps = steps_of(function, scope)
    granule = _granule([step.ins for step in steps])
    sizes = {"shared": layout.shared_bytes, "local": layout.local_bytes, "param": len(params)}
    ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
    work = batches = 0
    for numbers in _batches(ctas, launch, layout, kinds):
        shape = Shape(launch.block, launch.grid, numbers, launch.shared_bytes, layout.shared_bytes)
        machine = WarpMachine(shape, kinds, Memory(space, params, sizes, shape, granule))
        machine.work = work + BATCH_WORK
        Schedule(machine, steps, max_work).run()
        check_all_sent(machine)
        work, batches = machine.work, batches + 1
    return EmulationStats(ctas, batches, work)


def _batches(ctas: int, launch: EmulatedLaunch, layout: _Layout, kinds: Sequence[str]) -> Iterator[Array]:
    padded = -(-launch.block[0] * launch.block[1] * launch.block[2] // 32) * 32
    per_thread = sum(max(1, bits_of(kind) // 8) for kind in kinds) + 1
    lanes = min(LANES, REGISTER_BYTES // per_thread)
    size = max(1, lanes // padded)
    if per_block := layout.shared_bytes + layout.local_bytes * padded:
        size = max(1, min(size, MEMORY_BYTES // per_block))
    if launch.cooperative and ctas > size:
        raise Unsupported(f"a cooperative launch of {ctas} blocks: at most {size} of these run at once here")
    for start in range(0, ctas, size):
        yield np.arange(start, min(start + size, ctas))


# -- memory -----------------------------------------------------------------------------------------------------------


def _lay_out(module: Module, function: Function, launch: EmulatedLaunch, space: AddressSpace) -> _Layout:
    layout, dynamic = _Layout(), []
    for variable in (*module.variables, *function.variables):
        if variable.space == "shared" and variable.extern:
            dynamic.append(variable)
        elif variable.space in ("shared", "local"):
            _reserve(layout, variable)
        elif variable.space in ("global", "const"):
            _place(layout, variable, space)
        else:
            layout.spaces[variable.name] = variable.space  # .param of calls
    start = -(-layout.shared_bytes // 16) * 16
    for variable in dynamic:  # all begin at one place
        align = variable.align or type_bytes(variable.type)
        layout.symbols[variable.name], layout.spaces[variable.name] = -(-start // align) * align, "shared"
    layout.shared_bytes = max([layout.shared_bytes, *(layout.symbols[v.name] + launch.shared_bytes for v in dynamic)])
    if layout.shared_bytes > MOST_SHARED:
        raise InterpreterError(f"{layout.shared_bytes} bytes of shared memory; a block has at most {MOST_SHARED}")
    if layout.local_bytes > MEMORY_BYTES // MOST_THREADS:
        raise Unsupported(f"{layout.local_bytes} bytes of local memory for each thread")
    return layout


def _reserve(layout: _Layout, variable: Variable) -> None:
    align = variable.align or type_bytes(variable.type) * variable.vector
    used = layout.shared_bytes if variable.space == "shared" else layout.local_bytes
    at = -(-used // align) * align
    layout.symbols[variable.name], layout.spaces[variable.name] = at, variable.space
    if variable.space == "shared":
        layout.shared_bytes = at + variable.nbytes
    else:
        layout.local_bytes = at + variable.nbytes


def _place(layout: _Layout, variable: Variable, space: AddressSpace) -> None:
    """A variable of the module: a region of its own, with the values that the text gives."""
    if variable.nbytes > MEMORY_BYTES:
        raise Unsupported(f"the module variable {variable.name!r} of {variable.nbytes} bytes")
    buffer = np.zeros(variable.nbytes, np.uint8)
    if variable.values:
        bits = [_element(value, variable.type) for value in variable.values]
        raw = np.concatenate(bits).view(np.uint8)[: len(buffer)]
        buffer[: len(raw)] = raw
    layout.symbols[variable.name] = space.place(Pointer(buffer, 0, f"the module variable {variable.name!r}"))
    layout.spaces[variable.name] = "global"


def _element(value: int | float, kind: str) -> Array:
    if is_float(kind):
        return encode(to_format(np.array([value], np.float64), kind), kind)
    return np.array([int(value) & (1 << bits_of(kind)) - 1], f"u{bits_of(kind) // 8}")


def _params(function: Function, args: Sequence[Argument], layout: _Layout, space: AddressSpace) -> Array:
    """The parameters' bytes, and their addresses in `layout`."""
    if len(args) != len(function.params):
        raise InterpreterError(f"{function.name} takes {len(function.params)} arguments, {len(args)} were given")
    data = bytearray()
    for number, (param, value) in enumerate(zip(function.params, args, strict=True)):
        align = param.align if param.align and not param.ptr else type_bytes(param.type)
        data += bytes(-len(data) % align)
        layout.symbols[param.name], layout.spaces[param.name] = PARAM + len(data), "param"
        data += _packed(param, value, number, space)
    data += bytes(-len(data) % 16)
    return np.frombuffer(data, np.uint8)


def _packed(param: Param, value: Argument, number: int, space: AddressSpace) -> bytes:
    if param.count is not None:
        raise Unsupported(f"argument {number} ({param.name}) is an array of {param.nbytes} bytes")
    if isinstance(value, Pointer):
        if param.nbytes != 8 or is_float(param.type):
            raise InterpreterError(
                f"argument {number} is a tensor, but {param.name} is .{param.type}; pointers are .u64"
            )
        return space.place(value).to_bytes(8, "little")
    if is_float(param.type):
        return encode(to_format(np.array([value], np.float64), param.type), param.type).tobytes()
    if isinstance(value, float):
        if param.type != "b32":
            raise InterpreterError(f"argument {number} is the float {value}, but {param.name} is .{param.type}")
        return np.float32(value).tobytes()
    return (int(value) & (1 << 8 * param.nbytes) - 1).to_bytes(param.nbytes, "little")


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
