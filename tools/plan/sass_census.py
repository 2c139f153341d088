"""Counts what a disassembled kernel and its loops are made of, and names what may stall. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice

from tools.plan.sass_flow import Cycle, cycles
from tools.plan.sass_ir import Instruction, Loop, Part, Sass

_MOST_LOOPS = 12
_MOST_KINDS = 24
_FAR = 1_000  # instructions behind a load in which its first use is looked for
_WAIT_INSTRUCTIONS = 24  # a loop that only waits has no more

# class -> beginnings of opcodes; the first class that fits counts
_CLASSES = {
    "tensor core": tuple(
        "HMMA HGMMA IMMA IGMMA QGMMA QMMA OMMA BGMMA BMMA DMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA".split()
    ),
    "bulk load": ("UTMALDG",),
    "bulk store": ("UTMASTG", "UTMAREDG"),
    "bulk prefetch": ("UTMAPF", "UBLKPF"),
    "bulk copy": ("UBLKCP", "UBLKRED"),
    "bulk other": ("UTMA",),
    "matrix load": ("LDSM",),
    "matrix store": ("STSM",),
    "tensor memory": ("LDTM", "STTM", "UTCCP", "UTCATOMSWS"),
    "atomic": ("ATOM", "RED", "UATOM"),
    "shuffle": ("SHFL", "REDUX", "VOTE", "MATCH"),
    "barrier": ("BAR", "WARPSYNC", "SYNCS", "WARPGROUP", "UCGABAR", "ERRBAR", "CCTL"),
    "wait for copies": ("DEPBAR", "LDGDEPBAR", "ARRIVES", "UTMACMDFLUSH", "UTMACCTL"),
    "fence": ("MEMBAR", "FENCE"),
    "special function": ("MUFU",),
    "float": tuple(
        "FFMA FADD FMUL FMNMX FSET FSEL FCHK FSWZ HFMA2 HADD2 HMUL2 HMNMX2 HSET DFMA DADD DMUL DSET DMNMX".split()
    ),
    "convert": ("F2F", "F2I", "I2F", "I2I", "FRND"),
    "move": ("MOV", "UMOV", "CS2R", "S2R", "S2UR", "PRMT", "SEL", "R2UR", "P2R", "R2P"),
    "constant load": ("LDC", "ULDC", "LDCU"),
    "branch": ("BRA", "BRX", "BSSY", "BSYNC", "CALL", "RET", "EXIT", "JMP", "BREAK"),
}
_ACCESSES = {  # head -> class of an access that has a width
    "LDG": "global load",
    "STG": "global store",
    "LD": "generic load",
    "ST": "generic store",
    "LDS": "shared load",
    "STS": "shared store",
    "LDL": "spill load",
    "STL": "spill store",
    "LDGSTS": "async copy",
    "STAS": "cluster store",
}
_WIDTHS = ("256", "128", "64", "U8", "S8", "U16", "S16")
# parts of an access's name that say nothing of the cache: widths, types, and what nearly every access has
_USUAL = {
    *_WIDTHS,
    "E",
    "32",
    "U",
    "ENL2",
    "F32",
    "F16",
    "BF16",
    "BF16_V2",
    "F16x2",
    "ADD",
    "RN",
    "FTZ",
    "M88",
    "4",
    "2",
}
_CACHED = ("LDG", "STG", "LD", "ST", "LDGSTS", "LDL", "STL", "UTMALDG", "UTMASTG", "CCTL", "CCTLL")
_WORK = (
    "tensor core",
    "float",
    "special function",
    "shuffle",
    "bulk",
    "matrix",
    "shared",
    "global store",
    "async copy",
)
_ACQUIRES = ("SYNCS", "NANOSLEEP", "ATOM", "LDG", "LD", "LDS", "UCGABAR_WAIT")


def counted(name: str, code: Sequence[Instruction], cut: int = 0, ptx: str = "") -> Sass:
    """A kernel's instructions, counted, with its loops: that which most likely counts first, waits last."""
    found = {cycle.members[0]: (cycle, _loop(code, cycle)) for cycle in cycles(code)}
    busy = {head for head, (_, loop) in found.items() if not loop.waits}
    ranked = sorted(
        found.values(),
        # the smaller, the likelier it is that the kernel spends its time there
        key=lambda f: (f[1].waits, not busy.isdisjoint(f[0].inner), -f[1].depth, -f[1].part.issue_cycles),
    )
    return Sass(name, tuple(code), part(code), tuple(loop for _, loop in ranked[:_MOST_LOOPS]), cut, ptx)


def _loop(code: Sequence[Instruction], cycle: Cycle) -> Loop:
    body = [code[n] for n in cycle.members]
    waits = not cycle.inner and _only_waits(body)
    return Loop(cycle.members, cycle.depth, waits, part(body, () if waits else tuple(_stalls(body))))


def part(code: Sequence[Instruction], notes: tuple[str, ...] = ()) -> Part:
    """What some instructions are made of."""
    classes = Counter(class_of(i) for i in code)
    kinds = Counter(kind for i in code if (kind := _kind_of(i.opcode)))
    issue_cycles = sum(max(1, i.issue.stall) for i in code) if any(i.control >= 0 for i in code) else 0
    return Part(len(code), issue_cycles, dict(classes.most_common()), dict(kinds.most_common(_MOST_KINDS)), notes)


def class_of(instruction: Instruction) -> str:
    """ "global load 128", "tensor core"."""
    return _class_of(instruction.opcode)


@lru_cache(maxsize=4096)
def _class_of(opcode: str) -> str:
    head, *modifiers = opcode.split(".")
    if access := _ACCESSES.get(head):
        width = next((width.lstrip("US") for width in _WIDTHS if width in modifiers), "32")
        return f"{access} {width}"
    return next((name for name, heads in _CLASSES.items() if head.startswith(heads)), "integer and other")


@lru_cache(maxsize=4096)
def _kind_of(opcode: str) -> str:
    """Of a tensor-core operation its shape and types; of an access its cache hints and scope, if any; of a bulk copy,
    a fence or a barrier its name."""
    if _class_of(opcode).startswith(("tensor core", "bulk", "matrix", "barrier", "fence")):
        return opcode
    head, *modifiers = opcode.split(".")
    hints = [m for m in modifiers if m not in _USUAL] if head in _CACHED else []
    return ".".join([head, *hints]) if hints else ""


def _only_waits(body: Sequence[Instruction]) -> bool:
    """It asks again and again whether something has happened, and does nothing else."""
    if len(body) > _WAIT_INSTRUCTIONS or any(class_of(i).startswith(_WORK) for i in body):
        return False
    asks = [i for i in body if i.head in _ACQUIRES]
    polls = [i for i in asks if i.head not in ("LDG", "LD", "LDS") or "STRONG" in i.opcode]
    return bool(asks) and len(polls) == len(asks)


def _stalls(body: Sequence[Instruction]) -> Iterable[str]:
    """What in a loop may make it wait."""
    heads = Counter(i.head for i in body)
    if n := heads["BAR"]:
        yield f"BAR {n}x: all warps of the block meet in every turn"
    if n := heads["DEPBAR"]:
        yield f"DEPBAR {n}x: waits for asynchronous copies"
    if n := heads["LDL"] + heads["STL"]:
        yield f"local memory {n}x: spills, or an array with an index that varies"
    if n := heads["MEMBAR"] + heads["FENCE"]:
        yield f"fence {n}x"
    if n := heads["CALL"]:
        yield f"call {n}x"
    if n := heads["DFMA"] + heads["DADD"] + heads["DMUL"]:
        yield f"float64 operations {n}x"
    if distances := sorted(_distances(body)):
        near = distances[0]
        yield f"a global load is waited for {near} instructions after it (the nearest of {len(distances)})"


def _distances(body: Sequence[Instruction]) -> Iterable[int]:
    """For every global load, the instructions until one waits for it; the loop's next turn comes after its end."""
    turns = [*body, *body]
    for at, i in enumerate(body):
        board = i.issue.writes
        if i.head not in ("LDG", "LD") or board is None:
            continue
        after = enumerate(islice(turns, at + 1, at + min(len(body), _FAR)), 1)
        found = next((n for n, other in after if board in other.issue.waits), None)
        if found is not None:
            yield found
