"""Runs an entry over its grid, many blocks at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tools.ptx.ir import Function, Instruction, Module, Param, Variable, type_bytes
from tools.ptx.sim.errors import IllFormed, SimError, Unsupported
from tools.ptx.sim.formats import bits_of, encode, is_float
from tools.ptx.sim.lanes import Words
from tools.ptx.sim.machine import Machine, Shape
from tools.ptx.sim.memory import PARAM, Memory
from tools.ptx.sim.operands import Scope
from tools.ptx.sim.ops_async import check_all_sent
from tools.ptx.sim.program import labels_of, steps_of
from tools.ptx.sim.rounding import nearest
from tools.ptx.sim.schedule import Schedule
from tools.ttir.ir import Array
from tools.ttir.memory import AddressSpace, Pointer

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
class Launch:
    """How an entry is started: `block` (x, y, z) threads, dynamic shared memory, blocks of a cluster. `cooperative`:
    all blocks are there at once."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


@dataclass(frozen=True)
class Stats:
    """What a run did. `work`: instructions, counted once for each 8192 threads that run them together."""

    ctas: int
    batches: int
    work: int


@dataclass
class _Layout:
    """Where variables lie."""

    symbols: dict[str, int] = field(default_factory=dict)
    spaces: dict[str, str] = field(default_factory=dict)
    shared_bytes: int = 0
    local_bytes: int = 0


def run(
    module: Module, launch: Launch, args: Sequence[Argument], *, entry: str = "", max_work: int = 50_000_000
) -> Stats:
    """Executes an entry (the only one, unless named) on `args`, one for each parameter, writing through its pointers.
    Raises SimError."""
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
        raise SimError(f"no single entry {name or '(unnamed)'!r}; entries: {names}")
    return found[0]


def _check(launch: Launch, function: Function, module: Module) -> None:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if min(launch.block) < 1 or threads > MOST_THREADS:
        raise SimError(f"a block of {launch.block} threads; it may have 1 to {MOST_THREADS}")
    ctas = launch.grid[0] * launch.grid[1] * launch.grid[2]
    if min(launch.grid) < 1 or ctas > MOST_CTAS:
        raise SimError(f"a grid of {launch.grid} blocks")
    required = function.directives.get("reqntid")
    if required is not None and (*required, 1, 1, 1)[:3] != launch.block:
        raise SimError(f"the block is {launch.block}, but the text says .reqntid {', '.join(map(str, required))}")
    most = function.directives.get("maxntid")
    if most is not None and threads > int(np.prod(most, dtype=np.int64)):
        raise SimError(f"{threads} threads in a block, but the text says .maxntid {', '.join(map(str, most))}")
    cluster = function.directives.get("reqnctapercluster", (1,))
    several = launch.cluster != (1, 1, 1) or int(np.prod(cluster, dtype=np.int64)) > 1
    if several and any(_knows_cluster(ins) for each in module.functions for ins in each.instructions):
        raise Unsupported("clusters whose blocks know of each other are not emulated")


def _knows_cluster(ins: Instruction) -> bool:
    """Whether it could tell that its block is one of several; without it they only begin together."""
    return ins.opcode in ("mapa", "getctarank") or "cluster" in f"{ins.name} {ins.operands}"


def _run(module: Module, function: Function, launch: Launch, args: Sequence[Argument], max_work: int) -> Stats:
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
        words = Words(launch.block, shape.padded, [_cta(int(n), launch.grid) for n in numbers])
        memory = Memory(space, params, sizes, len(numbers), len(numbers) * shape.padded, granule, words)
        machine = Machine(shape, kinds, memory)
        machine.work = work + BATCH_WORK
        Schedule(machine, steps, max_work).run()
        check_all_sent(machine)
        work, batches = machine.work, batches + 1
    return Stats(ctas, batches, work)


def _cta(number: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    return (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))


def _batches(ctas: int, launch: Launch, layout: _Layout, kinds: Sequence[str]) -> Iterator[Array]:
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


def _lay_out(module: Module, function: Function, launch: Launch, space: AddressSpace) -> _Layout:
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
        raise SimError(f"{layout.shared_bytes} bytes of shared memory; a block has at most {MOST_SHARED}")
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
        return encode(nearest(np.array([value], np.float64), kind), kind)
    return np.array([int(value) & (1 << bits_of(kind)) - 1], f"u{bits_of(kind) // 8}")


def _params(function: Function, args: Sequence[Argument], layout: _Layout, space: AddressSpace) -> Array:
    """The parameters' bytes, and their addresses in `layout`."""
    if len(args) != len(function.params):
        raise SimError(f"{function.name} takes {len(function.params)} arguments, {len(args)} were given")
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
            raise SimError(f"argument {number} is a tensor, but {param.name} is .{param.type}; pointers are .u64")
        return space.place(value).to_bytes(8, "little")
    if is_float(param.type):
        return encode(nearest(np.array([value], np.float64), param.type), param.type).tobytes()
    if isinstance(value, float):
        if param.type != "b32":
            raise SimError(f"argument {number} is the float {value}, but {param.name} is .{param.type}")
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
