"""What the text of a PTX kernel tells before it runs: what is wrong with it, and which parameters it reads and writes
memory through. Pure.

A finding either stops the kernel, or is a note that its author should read: the evaluator's own protections (time
limits, guard pages, a process that may die) hold either way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kerneltune.tools.languages.ptx.ir import (
    Address,
    Function,
    Immediate,
    Instruction,
    Item,
    Label,
    Module,
    Operand,
    PtxError,
    Register,
    Symbol,
    Variable,
    Vector,
    leaves,
    parse,
    type_bytes,
)
from kerneltune.tools.languages.ptx.loader import PtxLaunchError, entry_of
from kerneltune.tools.schema.gpus import arch_number

# ---
# Which instructions PTX has, and which of them no plan can hold, with the reason. Pure.
#
# Opcodes are those of the PTX ISA, version 9.0; ptxas knows which of them a target has.

OPCODES = frozenset(
    """
    abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx call clz
    clusterlaunchcontrol cnot copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma fns
    getctarank griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar
    min mma mov movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux
    rem ret rsqrt sad selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix sub
    subc suld suq sured sust szext tanh tcgen05 tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd
    vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4
    wgmma wmma xor
    """.split()
)

_AHEAD = "what it brings into the L2 or drops from it may be another run's, so it is not timed; remove it"
_BOUND = "it needs an object that a driver binds, which no launch here does; use ld and st"
FORBIDDEN = {
    "brkpt": "it stops the GPU for a debugger; remove it",
    "pmevent": "it triggers events of a profiler; remove it",
    "multimem": "it addresses the memory of several GPUs; there is one",
    "prefetchu": _AHEAD,
    "applypriority": _AHEAD,
    "discard": _AHEAD,
    **dict.fromkeys(("tex", "tld4", "txq", "suld", "sust", "sured", "suq"), _BOUND),
}

# What other languages call it, and what a near name would not say.
SLIPS = {
    "exp": "'ex2' is 2^x: multiply by log2 e, 0f3FB8AA3B, first",
    "log": "'lg2' is the logarithm to the base of 2: multiply by ln 2, 0f3F317218, after it",
    "load": "it is 'ld'",
    "store": "it is 'st'",
    "jmp": "it is 'bra'",
    "cmp": "it is 'setp'",
    "syncthreads": "it is 'bar.sync 0'",
    "fadd": "it is 'add.f32'",
    "fmul": "it is 'mul.f32'",
    "ffma": "it is 'fma.rn.f32'",
}

# Functions that a driver supplies. Memory that outlives a launch is in no plan.
EXTERNAL_FUNCTIONS = frozenset({"__assertfail"})
EXTERNAL = {
    "malloc": "its memory outlives the launch; pass a tensor",
    "free": "it frees memory that is in no plan",
    "vprintf": "nobody reads what it prints; remove it",
}


# ---
# Loops that cannot end, and loops that wait for others, read off the text of a function. Pure.

_LEAVES = frozenset({"ret", "exit", "trap", "brx", "call"})
_FROM_OTHERS = frozenset({"volatile", "acquire", "relaxed"})
_MOST_LOOKED_AT = 1 << 20  # items of loops within loops
_ENDLESS = "this loop has no way out: the branch back is unconditional and nothing inside leaves it"
_SPIN = (
    "this loop waits for memory that another block writes: unless all blocks run at once (cooperative=True), it may "
    "wait for ever"
)


def loops(function: Function) -> Iterator[tuple[int, int]]:
    """(first, last): places in the body of each label and a branch back to it; no more of them than can be looked at
    in a second."""
    places: dict[str, int] = {}
    looked_at = 0
    for place, item in enumerate(function.body):
        if isinstance(item, Label):
            places[item.name] = place
        elif (target := target_of(item)) in places:
            first = places[str(target)]
            looked_at += place - first
            if looked_at > _MOST_LOOKED_AT:
                return
            yield first, place


def target_of(item: Item) -> str | None:
    """Return the label that a branch goes to; None for other items."""
    if isinstance(item, Instruction) and item.opcode == "bra" and item.operands:
        target = item.operands[-1]
        return target.name if isinstance(target, Symbol | Register) else None
    return None


def endless(function: Function) -> Iterator[tuple[int, str]]:
    """Yield line and message of each loop that nothing can leave."""
    for first, last in loops(function):
        inside = function.body[first : last + 1]
        labels = {item.name for item in inside if isinstance(item, Label)}
        back = inside[-1]
        if isinstance(back, Instruction) and back.guard is None and not any(_leaves(item, labels) for item in inside):
            yield back.line, _ENDLESS


def _leaves(item: Item, labels: set[str]) -> bool:
    if not isinstance(item, Instruction):
        return False
    target = target_of(item)
    return item.opcode in _LEAVES or (target is not None and target not in labels)


def spins(function: Function) -> Iterator[tuple[int, str]]:
    """Yield line and message of each short loop whose way out depends on memory that others write."""
    for first, last in loops(function):
        inside = [item for item in function.body[first : last + 1] if isinstance(item, Instruction)]
        waits = any(_reads_others(instruction) for instruction in inside)
        works = any(i.opcode in ("st", "red", "fma", "mma", "wgmma", "bar", "barrier") for i in inside)
        if waits and not works and inside:
            yield inside[-1].line, _SPIN


def _reads_others(instruction: Instruction) -> bool:
    shared = any(m.startswith("shared") for m in instruction.modifiers)
    if instruction.opcode == "atom":
        return not shared
    return instruction.opcode == "ld" and not shared and bool(_FROM_OTHERS & set(instruction.modifiers))


def waits(function: Function) -> bool:
    """Whether a launch that may begin early waits for the launch before it, whatever else it does."""
    return any(i.name == "griddepcontrol.wait" and i.guard is None for i in function.instructions)


# ---
# Accesses whose address cannot be aligned, read off the text. Pure.
#
# Followed are addresses that are a pointer parameter or a shared variable plus a constant; the others are seen when
# the kernel runs.

_POINTER_ALIGN = 16  # of what torch allocates; a view that begins elsewhere is declared `.ptr .global .align 4`
_COPIES = ("mov", "cvta", "ld")


def misaligned(module: Module, function: Function) -> Iterator[tuple[int, str]]:
    """Yield line and message of each access that no address of its form can satisfy."""
    declared, lasting = _declared(module, function), _lasting(function)
    known = dict(declared)
    for item in function.body:
        if isinstance(item, Label):  # reached from elsewhere too: what holds is what never changes again
            known = {name: place for name, place in known.items() if name in lasting or name in declared}
        elif isinstance(item, Instruction):
            if (offset := _off(item, known)) is not None:
                nbytes = access_bytes(item)
                yield (
                    item.line,
                    f"{item.name} needs {nbytes}-byte alignment, and this address is {offset} bytes past it; use a "
                    "narrower access or another offset",
                )
            _follow(item, known)


def _off(instruction: Instruction, known: dict[str, tuple[int, int]]) -> int | None:
    """Return by how many bytes an access misses its alignment; None where it does not, or that is not known."""
    if instruction.opcode not in ("ld", "st", "atom", "red"):
        return None
    place = next((operand for operand in instruction.operands if isinstance(operand, Address)), None)
    if place is None or place.more or (found := _known(place, known)) is None:
        return None  # what follows the first is the barrier of st.async, which has another size
    nbytes, (offset, align) = access_bytes(instruction), found
    return (offset % nbytes or None) if align >= nbytes else None


def access_bytes(instruction: Instruction) -> int:
    vector = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    try:
        return vector * type_bytes(instruction.modifiers[-1])
    except (ValueError, IndexError):
        return 1


def _declared(module: Module, function: Function) -> dict[str, tuple[int, int]]:
    """Parameters and variables: (offset from a base, the base's alignment)."""
    known = {p.name: (0, p.align or _POINTER_ALIGN) for p in function.params if p.type in ("u64", "b64", "s64")}
    for variable in (*module.variables, *function.variables):
        known[variable.name] = (0, variable.align or type_bytes(variable.type) * variable.vector)
    return known


def _lasting(function: Function) -> set[str]:
    """Return the registers that are not written again behind the first label, or only once in all: their value is the
    same wherever they have one."""
    times: dict[str, int] = {}
    behind: set[str] = set()
    label = False
    for item in function.body:
        label |= isinstance(item, Label)
        for name in _written(item) if isinstance(item, Instruction) else ():
            times[name] = times.get(name, 0) + 1
            behind |= {name} if label else set()
    return {name for name, count in times.items() if count == 1 or name not in behind}


def _written(instruction: Instruction) -> Iterator[str]:
    for operand in instruction.operands[:1]:
        if not isinstance(operand, Address):
            yield from (leaf.name.partition(".")[0] for leaf in leaves(operand) if isinstance(leaf, Register))


def _follow(instruction: Instruction, known: dict[str, tuple[int, int]]) -> None:
    """Note the offset and alignment that the results have from now on."""
    source = instruction.operands[1] if len(instruction.operands) > 1 else None
    found = None
    if instruction.guard is None and isinstance(source, Address | Register | Symbol):
        if instruction.opcode in _COPIES and (instruction.opcode != "ld" or instruction.modifiers[:1] == ("param",)):
            found = _known(source, known)
        elif instruction.opcode == "add" and isinstance(more := instruction.operands[-1], Immediate):
            base = _known(source, known)
            found = (base[0] + int(more.value), base[1]) if base and not more.bits else None
    for name in _written(instruction):
        known.pop(name, None)
        if found is not None and isinstance(instruction.operands[0], Register):
            known[name] = found


def _known(operand: Operand, known: dict[str, tuple[int, int]]) -> tuple[int, int] | None:
    inner = operand.base if isinstance(operand, Address) else operand
    if not isinstance(inner, Register | Symbol) or inner.name not in known:
        return None
    offset, align = known[inner.name]
    return offset + getattr(inner, "offset", 0) + (operand.offset if isinstance(operand, Address) else 0), align


_ADDRESS_MAKERS = ("mov", "cvta", "cvt", "add", "sub", "mad", "selp")


def followed_params(entry: Function) -> dict[str, str]:
    """Return register -> parameter, for registers that hold a parameter or an address made of one: what is multiplied
    is an offset, not the address."""
    origins: dict[str, str] = {}
    for instruction in (*entry.instructions, *entry.instructions):  # twice, for what a loop carries round
        if not instruction.operands or not isinstance(result := instruction.operands[0], Register):
            continue
        sources = instruction.operands[3 if instruction.opcode == "mad" else 1 :]
        found: list[str] = []
        if instruction.opcode == "ld" and "param" in instruction.modifiers:
            found = [o.base.name for o in sources if isinstance(o, Address) and isinstance(o.base, Symbol)]
        elif instruction.opcode in _ADDRESS_MAKERS:
            found = [origins[o.name] for o in sources if isinstance(o, Register) and o.name in origins]
        if found:
            origins.setdefault(result.name, found[0])
    return origins


# ---
# Which of its parameters a PTX entry reads memory through, and which it writes through. Pure.
#
# Registers carry the set of parameters that went into them, in whatever order instructions run; what is loaded from
# memory is data and carries none. An access through a register that carries none may go anywhere.

_INSIDE = ("shared", "local", "param", "const")
_LOADS = frozenset({"ld", "ldu", "ldmatrix"})
_STORES = frozenset({"st", "stmatrix"})
_UPDATES = frozenset({"atom", "red"})
_NO_MEMORY = frozenset({"prefetch", "prefetchu", "createpolicy", "isspacep", "mbarrier", "fence", "cvta", "mov"})
_FEWEST_PASSES, _MOST_STEPS = 8, 1 << 19  # of text that reads its registers before it writes them


class UnknownAddress(Exception):
    """An access whose address comes from none of the parameters, as far as can be told."""


def _space(instruction: Instruction) -> str | None:
    """The memory of a block's own, or of a launch's parameters, that an instruction names."""
    return next((m.partition("::")[0] for m in instruction.modifiers if m.partition("::")[0] in _INSIDE), None)


@dataclass
class _Flow:
    """Sets of parameters are bits of an int, parameter 0 the lowest; variables of the module follow them. `maps`: those
    of the parameters that are tensor maps, whose own address is what copies are given. `callable`: functions whose
    calls change nothing that is followed: a driver's, and those that are followed by themselves. `handed`: what the
    driver's alone are given. `sizes`: of the parameters, in bytes; `kept`: what was stored in a block's own memory."""

    params: dict[str, int]
    sizes: dict[str, int]
    maps: dict[str, int]
    variables: dict[str, int]
    carried: dict[str, int]
    callable: frozenset[str] = frozenset()
    handed: frozenset[str] = frozenset()
    reads: int = 0
    writes: int = 0
    kept: int = 0

    def of(self, *operands: Operand) -> int:
        """Return the parameters that operands carry, as bits."""
        bits = 0
        for leaf in (leaf for operand in operands for leaf in leaves(operand)):
            if isinstance(leaf, Register):
                bits |= self.carried.get(leaf.name.partition(".")[0], 0)
            elif isinstance(leaf, Symbol):
                bits |= self.variables.get(leaf.name, self.maps.get(leaf.name, 0))
        return bits

    def give(self, operand: Operand, bits: int) -> bool:
        """Let a result carry more; return whether that was new."""
        news = False
        for leaf in () if isinstance(operand, Address) else leaves(operand):
            if isinstance(leaf, Register):
                name = leaf.name.partition(".")[0]
                before = self.carried.get(name, 0)
                self.carried[name] = before | bits
                news |= bool(bits & ~before)
        return news

    def step(self, instruction: Instruction) -> bool:
        """Let an instruction's results carry what went in; return whether anything new was learned."""
        if not instruction.operands:
            return False
        space, kept = _space(instruction), self.kept
        values = [operand for operand in instruction.operands if not isinstance(operand, Address)]
        if instruction.opcode in _STORES | _UPDATES and space is not None:
            self.kept |= self.of(*values) | self.guarded(instruction)
        if instruction.opcode not in _LOADS | _UPDATES:
            bits = self.of(*instruction.operands[1:])
        elif space in (None, "const"):
            return False
        else:
            bits = self._passed(instruction) if space == "param" else self.kept
        return self.give(instruction.operands[0], bits | self.guarded(instruction)) or self.kept != kept

    def _passed(self, load: Instruction) -> int:
        """What a load of parameters gives: that of its name alone where it stays inside."""
        address = load.operands[-1]
        base, offset = (address.base, address.offset) if isinstance(address, Address) else (None, 0)
        if isinstance(base, Symbol) and base.name not in self.params:
            return self.kept  # of a call
        if isinstance(base, Symbol) and 0 <= base.offset + offset <= self.sizes[base.name] - access_bytes(load):
            return self.params[base.name]
        return self.kept | sum(self.params.values())

    def guarded(self, instruction: Instruction) -> int:
        """Return what the guard carries: it goes into the results too."""
        return self.carried.get(instruction.guard.register, 0) if instruction.guard else 0

    def access(self, instruction: Instruction) -> None:
        """Note what an instruction may do to memory. Raises UnknownAddress."""
        places = [operand for operand in instruction.operands if isinstance(operand, Address)]
        space = _space(instruction)
        if instruction.opcode == "call":
            name = called(instruction)
            passed = self.of(*instruction.operands) if name not in EXTERNAL_FUNCTIONS else 0
            if name not in self.callable or passed & sum(self.variables.values()):
                raise UnknownAddress
            return
        if instruction.opcode == "st" and space == "param":
            self._hand_over(instruction)
        if not places or instruction.opcode in _NO_MEMORY:
            return
        if instruction.opcode == "cp":
            self._copy(instruction, places)
        elif instruction.opcode in _LOADS | _STORES | _UPDATES:
            if space is None:
                self._through(
                    places[0], reads=instruction.opcode not in _STORES, writes=instruction.opcode not in _LOADS
                )
        elif space is None:
            raise UnknownAddress

    def _hand_over(self, instruction: Instruction) -> None:
        """A value for a call, or of one. Raises UnknownAddress where it may lead to a variable of the module."""
        given = {leaf.name for leaf in leaves(instruction.operands[0]) if isinstance(leaf, Symbol)}
        if not given & self.handed and self.of(*instruction.operands[1:]) & sum(self.variables.values()):
            raise UnknownAddress

    def _copy(self, instruction: Instruction, places: list[Address]) -> None:
        """cp.async…: destination first, then source; which of them is global is said in that order too."""
        spaces = [m.partition("::")[0] for m in instruction.modifiers if m.partition("::")[0] in ("shared", "global")]
        if len(spaces) < 2 or len(places) < 2:
            raise UnknownAddress
        if "tensor" in instruction.modifiers:  # a map that a kernel made itself may lead anywhere
            places = [replace(place, more=()) for place in places]
            described = self.of(places[spaces[1] == "global"])
            if described & ~sum(self.maps.values()):
                raise UnknownAddress
        if spaces[1] == "global":
            self._through(places[1], reads=True, writes=False)
        if spaces[0] == "global":
            self._through(places[0], reads="reduce" in instruction.modifiers, writes=True)

    def _through(self, place: Address, *, reads: bool, writes: bool) -> None:
        bits = self.of(place)
        if not bits:
            raise UnknownAddress
        self.reads |= bits * reads
        self.writes |= bits * writes


@lru_cache(maxsize=256)
def effects(text: str, name: str) -> tuple[tuple[bool, bool], ...] | None:
    """(reads, writes) for each parameter; None when the text cannot be followed."""
    try:
        module = parse(text)
        entry = entry_of(module, name)
        flow = _followed(module, entry)
    except (PtxError, PtxLaunchError, UnknownAddress, RecursionError):
        return None
    return tuple((bool(flow.reads >> i & 1), bool(flow.writes >> i & 1)) for i in range(len(entry.params)))


def written_variables(module: Module) -> frozenset[str] | None:
    """Names of the module's variables that its entries may write; None when that cannot be told."""
    written: set[str] = set()
    functions = [f for f in module.functions if f.defined]
    for function in functions:
        try:
            flow = _followed(module, function, module.functions)
        except (UnknownAddress, RecursionError):
            return None
        if len(functions) > 1 and flow.kept & sum(flow.variables.values()):  # where another one may find it
            return None
        written |= {name for name, bit in flow.variables.items() if flow.writes & bit}
    return frozenset(written)


def called(call: Instruction) -> str:
    """The name of the function that an instruction calls; "" where that is known only when it runs."""
    target = next((operand for operand in call.operands if not isinstance(operand, Vector)), None)
    return target.name if isinstance(target, Symbol) else ""


def _followed(module: Module, entry: Function, followed: Sequence[Function] = ()) -> _Flow:
    """`followed`: functions that are followed by themselves."""
    outside = EXTERNAL_FUNCTIONS - {f.name for f in module.functions if f.defined}
    calls = [i for i in entry.instructions if i.opcode == "call"]
    handed, shared = (
        {leaf.name for i in its for operand in i.operands for leaf in leaves(operand) if isinstance(leaf, Symbol)}
        for its in ([i for i in calls if called(i) in outside], [i for i in calls if called(i) not in outside])
    )
    params = {param.name: 1 << i for i, param in enumerate(entry.params)}
    held = (*module.variables, *(v for f in module.functions for v in f.variables))
    lasting = [v.name for v in held if v.space in ("global", "const")]
    params = {name: bit for name, bit in params.items() if name not in {v.name for v in entry.variables}}
    maps = {
        param.name: params[param.name] for param in entry.params if param.count is not None and param.name in params
    }
    variables = {name: 1 << len(entry.params) + i for i, name in enumerate(lasting)}
    known = outside | {f.name for f in followed if f.defined}
    sizes = {param.name: param.nbytes for param in entry.params}
    flow = _Flow(params, sizes, maps, variables, {}, known, frozenset(handed - shared))
    instructions = list(entry.instructions)
    for _ in range(max(_FEWEST_PASSES, _MOST_STEPS // (len(instructions) + 1))):
        if not any([flow.step(instruction) for instruction in instructions]):
            break
    else:
        raise UnknownAddress
    for instruction in instructions:
        flow.access(instruction)
    return flow


@lru_cache(maxsize=256)
def waits_for_earlier(text: str, name: str) -> bool:
    """Whether an entry waits for the launches before it (griddepcontrol.wait), by what it does, not by its comments."""
    try:
        return waits(entry_of(parse(text), name))
    except (PtxError, PtxLaunchError):
        return False


# ---
# What is wrong with a PTX kernel before it runs, as far as its text tells. Pure.

_MOST_DIGITS = 4  # of an architecture's number
_TABLES = ("global", "const")
_MOST_TABLE_BYTES = 16 << 20  # what the runner restores before each pass


@dataclass(frozen=True)
class PtxFinding:
    """A problem in a line of PTX, and what to do about it. `fatal`: the kernel is not run."""

    line: int
    message: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"PTX line {self.line}: {self.message}"


def findings(module: Module, entry: Function, arch: str) -> list[PtxFinding]:
    """Return everything that can be said of a kernel without running it, in the order of its lines."""
    found = [*_head(module, arch), *_memory(module), *_functions(module)]
    for function in module.functions:
        found += _instructions(function)
        found += [PtxFinding(line, words) for line, words in (*endless(function), *misaligned(module, function))]
        found += [PtxFinding(line, words, fatal=False) for line, words in spins(function)]
    return sorted([*found, *_unused(entry)], key=lambda f: f.line)


def _head(module: Module, arch: str) -> Iterator[PtxFinding]:
    wanted, number = arch_number(arch), module.target.removeprefix("sm_")
    digits = number.rstrip("af")
    if not module.target.startswith("sm_") or not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        yield PtxFinding(module.target_line, f".target {module.target} is no GPU's; write .target sm_{wanted}a")
    elif int(digits) > wanted or (number != digits and int(digits) != wanted):
        yield PtxFinding(
            module.target_line,
            f"the text is for {module.target}, this run's GPU is {arch}; write .target sm_{wanted}a, use what it has",
        )
    if module.address_size != 64:
        yield PtxFinding(module.target_line, f".address_size {module.address_size}: addresses have 64 bits here")


def _memory(module: Module) -> Iterator[PtxFinding]:
    """Variables of the module outlive a launch; tables that nobody can write may."""
    held = (*module.variables, *(v for f in module.functions for v in f.variables))
    tables = [v for v in held if v.space in _TABLES]
    written = written_variables(module) if tables else frozenset()
    if (nbytes := sum(v.nbytes for v in tables)) > _MOST_TABLE_BYTES:
        largest = max(tables, key=lambda v: v.nbytes)
        yield PtxFinding(largest.line, f"{nbytes} bytes of tables; the limit is {_MOST_TABLE_BYTES}: pass a tensor")
    for variable in held:
        yield from (PtxFinding(variable.line, words) for words in _kept(variable, written))


def _kept(variable: Variable, written: frozenset[str] | None) -> Iterator[str]:
    name, space = variable.name, variable.space  # "kept@1" for one of an inner scope
    changes = space in _TABLES and name in (written or ())
    if changes or (space == "global" and (not variable.has_value or written is None)):
        yield _outlives(variable)
    elif variable.extern and space != "shared":
        yield f".extern .{space} {name} is defined nowhere; define it here"
    elif space == "const" and not variable.has_value:
        yield f".const {name} has no value; give it one, or pass a tensor"


def _outlives(variable: Variable) -> str:
    name = variable.name.partition("@")[0]
    return (
        f".{variable.space} {name} is memory that outlives a launch, which no plan knows; pass a tensor (a table must "
        "have a value and only be read)"
    )


def _functions(module: Module) -> Iterator[PtxFinding]:
    defined = {f.name for f in module.functions if f.defined}
    for function in module.functions:
        if function.name not in defined | EXTERNAL_FUNCTIONS:
            reason = EXTERNAL.get(function.name, "it is defined nowhere; define it in this text")
            yield PtxFinding(function.line, f"the function {function.name} comes from elsewhere: {reason}")


def _instructions(function: Function) -> Iterator[PtxFinding]:
    for instruction in function.instructions:
        if instruction.opcode not in OPCODES:
            yield PtxFinding(
                instruction.line, f"{instruction.opcode!r:.60} is no PTX instruction{_near(instruction.opcode)}"
            )
        elif reason := _forbidden(instruction):
            yield PtxFinding(instruction.line, f"{instruction.name}: {reason}")
        elif instruction.opcode == "trap" and instruction.guard is None:
            yield PtxFinding(instruction.line, "trap without a condition ends the launch when it is reached", False)


def _near(opcode: str) -> str:
    from difflib import get_close_matches

    if slip := SLIPS.get(opcode):
        return f"; {slip}"
    close = get_close_matches(opcode, OPCODES - FORBIDDEN.keys(), 1)
    return f"; is {close[0]!r} meant?" if close else ""


def _forbidden(instruction: Instruction) -> str | None:
    if instruction.opcode == "prefetch" and not {"param", "const", "tensormap"} & set(instruction.modifiers):
        return _AHEAD
    if instruction.opcode == "cp" and instruction.modifiers[:3] == ("async", "bulk", "prefetch"):
        return _AHEAD
    return FORBIDDEN.get(instruction.opcode)


def _unused(entry: Function) -> Iterator[PtxFinding]:
    """A parameter that nobody reads is honest, but most often a slip."""
    operands = (operand for instruction in entry.instructions for operand in instruction.operands)
    named = {leaf.name for operand in operands for leaf in leaves(operand) if not isinstance(leaf, Immediate)}
    for param in entry.params:
        if param.name not in named:
            yield PtxFinding(param.line, f"the parameter {param.name} is never read", False)
