"""Cubins: the sections of the ELF file, and disassembled kernels as values: what `nvdisasm` prints, read, counted by
kind of instruction, and put in words.

What the compiler did with what a source asks for is said here, too, in one line, and what orders plans that nobody can
time.

Pure; the text comes of a cubin that a candidate had made. What runs nvdisasm is `tools.compile.compiler`.
"""

import itertools
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import islice

from kerneltune.tools.schema.codec import one_line, plain, plural
from kerneltune.tools.schema.gpus import Gpu, gpu_for_arch
from kerneltune.tools.schema.plan import Kernel, Launch, LaunchEffects, Plan, distinct_bytes, step_bytes
from kerneltune.tools.schema.verdict import KernelReport

MOST_INSTRUCTIONS = 20_000
MOST_PTX = 1 << 20  # characters
_MOST_LOOPS = 1000  # of a kernel; further ones count as what is around them
_MOST_TEXT, _MOST_NAME = 300, 200
_LOADS = ("global load", "generic load", "async copy")
_STORES = ("global store", "generic store")
_PARTS = re.compile(r"(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*)", re.DOTALL)
_SECTION = re.compile(r"\.text\.(\S+):$")
_LABEL = re.compile(r"(\.L_\w+|[A-Za-z_$][\w$.]*):$")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,8})\*/\s+([^;]*?)\s*;\s*(?:/\*.*)?$")
_TARGET = re.compile(r"`\((\S+)\)")  # of a branch: BRA `(.L_x_1)
_HIGH = re.compile(r"/\* 0x([0-9a-f]{16}) \*/$")
_SCHEDULE = re.compile(r"\s{2,}[&?].*$", re.DOTALL)  # some releases print the control bits as words behind it
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)(?:.*inlined at "([^"]*)", line (\d+))?')
_PTX = ".nv_debug_ptx_txt"
_CONTROL_BIT = 41  # of the upper 64 bits
_MOST_KINDS = 24
LEGEND = """\
// line: of the candidate; ptx: of what the assembler was given (--ptx). issue: the scoreboards that it waits for
// (B0-5), frees when its operands are read (R) and sets when its result is there (W); cycles until the next (S)."""
_CANDIDATE = ("", "candidate.py")

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
    "LDG": "global load", "STG": "global store", "LD": "generic load", "ST": "generic store", "LDS": "shared load",
    "STS": "shared store", "LDL": "spill load", "STL": "spill store", "LDGSTS": "async copy", "STAS": "cluster store",
}  # fmt: skip
_WIDTHS = ("256", "128", "64", "U8", "S8", "U16", "S16")
# parts of an access's name that say nothing of the cache: widths, types, and what nearly every access has
_USUAL = {*_WIDTHS, *"E 32 U ENL2 F32 F16 BF16 BF16_V2 F16x2 ADD RN FTZ M88 4 2".split()}
_CACHED = ("LDG", "STG", "LD", "ST", "LDGSTS", "LDL", "STL", "UTMALDG", "UTMASTG", "CCTL", "CCTLL")


@dataclass(frozen=True)
class SassInstruction:
    """One instruction. `label` names the place before it; `line` of `file` and `ptx_line` are 0 where nobody knows;
    `control` is what the assembler decided about its issue, 17 bits, -1 where it was not read."""

    address: int
    text: str
    label: str = ""
    line: int = 0
    file: str = ""
    ptx_line: int = 0
    control: int = -1

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        found = _PARTS.match(self.text)
        return (found[1] or "", found[2], found[3]) if found else ("", "", "")

    @property
    def predicate(self) -> str:
        """ "P0", "!UP1"; empty where it always runs."""
        return self._parts[0]

    @property
    def opcode(self) -> str:
        """With its modifiers: "LDG.E.EF.128"."""
        return self._parts[1]

    @property
    def head(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def operands(self) -> str:
        """All that follows the opcode."""
        return self._parts[2]

    @property
    def stall(self) -> int:
        """Cycles until the next instruction of this warp, from Volta to Blackwell; 0 where nobody knows."""
        return self.control & 15 if self.control >= 0 else 0

    @property
    def issue(self) -> str:
        """Its control bits as text: "B0-2---:R-:W1:S04"."""
        bits = self.control if self.control >= 0 else 0x7E0  # what was not read: no scoreboard, no wait
        waits = "".join(str(n) if bits >> 11 + n & 1 else "-" for n in range(6))
        writes, reads = (str(n) if (n := bits >> at & 7) < 7 else "-" for at in (5, 8))
        return f"B{waits}:R{reads}:W{writes}:S{bits & 15:02}"


@dataclass(frozen=True)
class Census:
    """What some instructions are made of: `classes` and `kinds` (of tensor-core operations, and the cache hints of
    accesses) with their numbers, most frequent first; `issue_cycles`: what one warp alone needs at least to issue them
    once."""

    instructions: int = 0
    issue_cycles: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def loaded_bytes(self) -> int:
        """What a thread loads of global memory if it runs every instruction once."""
        return self._bytes(_LOADS)

    @property
    def stored_bytes(self) -> int:
        """What it stores there."""
        return self._bytes(_STORES)

    @property
    def spilled_bytes(self) -> int:
        """What it puts into local memory, and reads of it."""
        return self._bytes(("spill",))

    def _bytes(self, accesses: tuple[str, ...]) -> int:
        found = (name.rpartition(" ") for name in self.classes if name.startswith(accesses))
        return sum(self.classes[f"{access} {bits}"] * int(bits) // 8 for access, _, bits in found if bits.isdecimal())


@dataclass(frozen=True)
class Sass:
    """A disassembled kernel; `whole` counts all that it holds. `cut`: instructions that are left out; `ptx`: what the
    assembler was given, where the cubin holds it, line by line as `ptx_line` counts."""

    name: str
    instructions: tuple[SassInstruction, ...]
    whole: Census
    cut: int = 0
    ptx: str = ""


def made_plain(sass: Sass) -> Sass:
    """The same, fit to be stored and shown. Raises ValueError for too many instructions."""
    count = len(sass.instructions)
    if count > MOST_INSTRUCTIONS:
        raise ValueError(f"{count} instructions, where {MOST_INSTRUCTIONS} are kept")
    return replace(
        sass,
        name=one_line(sass.name, _MOST_NAME),
        instructions=tuple(
            replace(
                i,
                text=one_line(i.text, _MOST_TEXT),
                label=one_line(i.label, _MOST_NAME),
                file=one_line(i.file, _MOST_NAME),
            )
            for i in sass.instructions
        ),
        whole=_plain_census(sass.whole),
        ptx=plain(sass.ptx, MOST_PTX),
    )


def _plain_census(part: Census) -> Census:
    return replace(
        part,
        classes={one_line(name, _MOST_NAME): n for name, n in part.classes.items()},
        kinds={one_line(name, _MOST_NAME): n for name, n in part.kinds.items()},
    )


def counted(name: str, code: Sequence[SassInstruction], cut: int = 0, ptx: str = "") -> Sass:
    """A kernel's instructions, counted."""
    return Sass(name, tuple(code), census(code), cut, ptx)


def census(code: Sequence[SassInstruction]) -> Census:
    """What some instructions are made of."""
    classes = Counter(class_of(i) for i in code)
    kinds = Counter(kind for i in code if (kind := _kind_of(i.opcode)))
    issue_cycles = sum(max(1, i.stall) for i in code) if any(i.control >= 0 for i in code) else 0
    return Census(len(code), issue_cycles, dict(classes.most_common()), dict(kinds.most_common(_MOST_KINDS)))


def _loops(code: Sequence[SassInstruction]) -> Iterator[tuple[int, int]]:
    """Places of the first and the last instruction of each loop: a branch backwards and its target."""
    places = {i.label: n for n, i in enumerate(code) if i.label}
    for last, i in enumerate(code):
        found = _TARGET.search(i.operands) if i.head == "BRA" else None
        if found and (begin := places.get(found[1], last)) < last:
            yield begin, last


def hot_loop(code: Sequence[SassInstruction]) -> Sequence[SassInstruction]:
    """The loop in which tensor-core operations lie closest together; empty where none is in a loop. A branch backwards
    over the end of a program is no loop: what waits for long lies behind it."""
    products = list(itertools.accumulate((class_of(i) == "tensor core" for i in code), initial=0))
    density = {(a, b): (products[b] - products[a]) / (b - a) for a, b in _spans(code)}
    first, after = max(density, key=lambda its: density[its], default=(0, 0))
    return code[first:after] if density.get((first, after)) else ()


def _spans(code: Sequence[SassInstruction]) -> list[tuple[int, int]]:
    """The first instruction of each loop and the one after it, but for branches over the end of a program."""
    ends = list(itertools.accumulate((i.head in ("EXIT", "RET") and not i.predicate for i in code), initial=0))
    return [(begin, last + 1) for begin, last in _loops(code) if ends[begin] == ends[last + 1]]


def hot_code(code: Sequence[SassInstruction], most: int) -> Sequence[SassInstruction]:
    """What of a kernel is worth reading, `most` instructions of it: all of a short one; of a longer one its hot loop,
    else its innermost loops, else nothing."""
    if len(code) <= most:
        return code
    return (hot_loop(code) or [i for a, b in innermost(_spans(code)[:_MOST_LOOPS]) for i in code[a:b]])[:most]


def innermost(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of a kernel's loops, each from its beginning to its end, that hold no other."""
    return [(a, b) for a, b in spans if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in spans)]


def by_line(code: Sequence[SassInstruction]) -> list[tuple[int, Census]]:
    """What each line of the candidate came to, those first that take the longest to issue."""
    lines: dict[int, list[SassInstruction]] = {}
    for i in code:
        if i.line and i.file in _CANDIDATE:
            lines.setdefault(i.line, []).append(i)
    counts = ((line, census(part)) for line, part in lines.items())
    return sorted(counts, key=lambda its: (-its[1].issue_cycles, -its[1].instructions, its[0]))


def excerpt(code: Iterable[SassInstruction]) -> str:
    """Instructions with their source line, the cycles until the next, and the scoreboards that they wait for."""
    lines = []
    for i in code:
        lines += [f"{i.label}:"] if i.label else []
        lines.append(f"{i.line or '':>5} {i.stall:>2} {i.issue[:7]} {_code(i).lstrip()}")
    return "\n".join(lines)


def widths(part: Census, *accesses: str) -> tuple[int, int] | None:
    """Bits of the narrowest and the widest of these accesses ("global load"); None where there is none."""
    found = (name.rpartition(" ") for name in part.classes if name.startswith(accesses))
    bits = [int(width) for _, _, width in found if width.isdecimal()]
    return (min(bits), max(bits)) if bits else None


def phases(code: Sequence[SassInstruction]) -> list[Census]:
    """What is outside of all loops, then what each loop holds outside of loops within it."""
    begins = dict(islice(_loops(code), _MOST_LOOPS))  # of several branches to one place the last
    owner = [0] * len(code)
    for number, (begin, end) in enumerate(sorted(begins.items(), key=lambda loop: loop[0] - loop[1]), 1):
        owner[begin : end + 1] = [number] * (end + 1 - begin)
    parts: list[list[SassInstruction]] = [[] for _ in range(len(begins) + 1)]
    for number, instruction in zip(owner, code, strict=True):
        parts[number].append(instruction)
    return list(map(census, parts))


def class_of(instruction: SassInstruction) -> str:
    """ "global load 128", "tensor core"."""
    return class_of_opcode(instruction.opcode)


@lru_cache(maxsize=4096)
def class_of_opcode(opcode: str) -> str:
    """The class of an instruction by its opcode alone."""
    head, *modifiers = opcode.split(".")
    if access := _ACCESSES.get(head):
        width = next((width.lstrip("US") for width in _WIDTHS if width in modifiers), "32")
        return f"{access} {width}"
    return next((name for name, heads in _CLASSES.items() if head.startswith(heads)), "integer and other")


@lru_cache(maxsize=4096)
def _kind_of(opcode: str) -> str:
    """Of a tensor-core operation its shape and types; of an access its cache hints and scope, if any; of a bulk copy,
    a fence or a barrier its name."""
    if class_of_opcode(opcode).startswith(("tensor core", "bulk", "matrix", "barrier", "fence")):
        return opcode
    head, *modifiers = opcode.split(".")
    hints = [m for m in modifiers if m not in _USUAL] if head in _CACHED else []
    return ".".join([head, *hints]) if hints else ""


def instructions(lines: Iterable[str]) -> tuple[tuple[SassInstruction, ...], int]:
    """All instructions of a listing in order, without padding, and how many more there are than are kept."""
    found = _read(lines)
    kept = tuple(islice(found, MOST_INSTRUCTIONS))
    return kept, sum(1 for _ in found)


def _read(lines: Iterable[str]) -> Iterator[SassInstruction]:
    """One behind: the upper half of an encoding stands in the line after its instruction."""
    last: SassInstruction | None = None
    label, place, ptx_line = "", ("", 0), 0
    for line in lines:
        text = line.strip()
        if last and (high := _HIGH.match(text)):
            last = replace(last, control=int(high[1], 16) >> _CONTROL_BIT & 0x1FFFF)
        elif found := _INSTRUCTION.match(text):
            if last:
                yield last
            words = " ".join(_SCHEDULE.sub("", found[2]).split())
            last = SassInstruction(int(found[1], 16), words, label, place[1], place[0], ptx_line)
            label = "" if not words.startswith("NOP") else label
            last = last if words and not words.startswith("NOP") else None
        elif where := _PLACE.match(text):
            if where[1] == _PTX:
                ptx_line = int(where[2][:9])
            else:
                place = _base(where[3] or where[1]), int((where[4] or where[2])[:9])
        elif section := _SECTION.match(text):
            label, place, ptx_line = f".text.{section[1]}", ("", 0), 0
        elif (named := _LABEL.match(text)) and not label.startswith(".text."):
            label = named[1]
    if last:
        yield last


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def listing(sass: Sass) -> str:
    """Every instruction with its place, source line and issue control, under a summary."""
    lines = [f"// {sass.name}: {made_of(sass.whole)}", "//       line   ptx  addr  issue"]
    for i in sass.instructions:
        if i.label:
            lines.append(f"{i.label}:")
        lines.append(f"{_place(i):>13} {i.ptx_line or '':>5}  {i.address:04x}  {i.issue}  {_code(i)}")
    if sass.cut:
        lines.append(f"… {sass.cut} more instructions")
    return "\n".join(lines) + "\n"


def made_of(part: Census) -> str:
    """ "70 instructions, 155 issue cycles: 40 float, …"; what is special of them."""
    told = ", ".join(f"{n} {name}" for name, n in part.classes.items())
    special = ", ".join(f"{n} {name}" for name, n in part.kinds.items())
    return f"{numbers(part)}: {told}" + (f"; among them {special}" if special else "")


def numbered_ptx(text: str) -> str:
    """PTX with the line numbers that a listing gives, for a window; empty lines are left out."""
    lines = enumerate(text.split("\n"), 1)
    return "".join(f"{number:5}  {line}\n" for number, line in lines if line.strip())


def _place(i: SassInstruction) -> str:
    if not i.line:
        return ""
    return str(i.line) if i.file in _CANDIDATE else f"{i.file[-8:]}:{i.line}"[-13:]


def _code(i: SassInstruction) -> str:
    guard = f"@{i.predicate}" if i.predicate else ""
    return f"{guard:>5} {i.opcode} {i.operands}".rstrip()


def numbers(part: Census) -> str:
    """ "70 instructions, 155 issue cycles, 32 B loaded"."""
    cycles = f", {part.issue_cycles} issue cycles" if part.issue_cycles else ""
    loaded = f", {part.loaded_bytes} B loaded" if part.loaded_bytes else ""
    return f"{plural(part.instructions, 'instruction')}{cycles}{loaded}"


@dataclass(frozen=True)
class KernelFacts:
    """What the compiler made of one kernel and of what its source asks for. `blocks`: that a multiprocessor holds;
    `programs`: of its largest launch; `multiprocessors` of the GPU that times; `asked_warps`: where the source asks for
    specialised warps, those that it has without; `descriptors`: whether it makes or takes tensor descriptors."""

    report: KernelReport
    blocks: int = 0
    programs: int = 0
    multiprocessors: int = 1
    asked_warps: int | None = None
    descriptors: bool = False

    @property
    def waves(self) -> float:
        """How often the GPU is filled with blocks."""
        return self.programs / max(1, self.blocks * self.multiprocessors)

    @property
    def last_wave(self) -> float:
        """How much of the GPU the last wave fills."""
        return self.waves - math.ceil(self.waves) + 1 if self.programs else 0.0


def kernel_facts(kernel: Kernel, report: KernelReport, plan: Plan) -> KernelFacts:
    """The facts of one of a plan's kernels, on the first known GPU of the plan's target."""
    gpu = gpu_for_arch(plan.arch)
    grids = (math.prod(s.grid) for s in plan.launches if plan.kernels[s.kernel] == kernel)
    asked = kernel.options.get("num_warps")
    specialised = kernel.language == "ttir" and _SPECIALISE in kernel.text
    described = any(t.startswith("tensordesc") for t in kernel.signature) or _DESCRIBE[kernel.language] in kernel.text
    return KernelFacts(
        report,
        round(report.occupancy * gpu.warps_per_sm / max(1, report.num_warps)),
        max(grids, default=0),
        gpu.multiprocessors,
        asked if specialised and isinstance(asked, int) else None,
        described,
    )


_SPECIALISE = "tt.warp_specialize"
_DESCRIBE = {"ttir": "tt.make_tensor_descriptor", "ptx": "cp.async.bulk.tensor"}
_MOST_OF_A_LINE, _LEAST_OF_A_NAME = 160, 8


def facts_in_words(facts: KernelFacts, sass: Sass | None = None) -> str:
    """One line of what the compiler did, of 160 characters at most for all but absurd numbers; longer where the
    instructions are known, by what is said of them.

    "mm: 90 registers, 98328 B shared, occupancy 25 %, 8 warps, 3 stages; 2 blocks/SM, 256 programs: 0.97 waves (last
    97 %)"
    """
    of = facts.report
    taken = {"registers": of.registers, "B spilled": of.spill_bytes, "B shared": of.shared_bytes}
    words = [f"{n} {what}" for what, n in taken.items() if n]
    words += [f"occupancy {100 * of.occupancy:.0f} %", plural(of.num_warps, "warp")]
    parts = [", ".join([*words, *([plural(of.num_stages, "stage")] if of.num_stages else [])])]
    if facts.programs:
        waves = f"{facts.waves:.{0 if facts.waves >= 100 else 2}f} waves (last {100 * facts.last_wave:.0f} %)"
        parts.append(f"{plural(facts.blocks, 'block')}/SM, {plural(facts.programs, 'program')}: {waves}")
    if facts.asked_warps is not None:
        done = of.num_warps > facts.asked_warps
        parts.append(f"specialised from {plural(facts.asked_warps, 'warp')}" if done else "not specialised as asked")
    said = "; ".join(parts)
    name = of.name[: max(_LEAST_OF_A_NAME, _MOST_OF_A_LINE - len(said) - 2)]
    return f"{name}: {'; '.join([said, *(_instructions(facts, sass) if sass else [])])}"


def _instructions(facts: KernelFacts, sass: Sass) -> Iterator[str]:
    """What was asked for, found among a kernel's instructions or not."""
    loop = census(hot_loop(sass.instructions))
    part, where = (loop, " in the loop") if loop.instructions else (sass.whole, "")
    products = ", ".join(f"{n} {kind}" for kind, n in part.kinds.items() if class_of_opcode(kind) == "tensor core")
    if products:
        yield products + where
    classes = sass.whole.classes
    if facts.descriptors:
        moved = [name for name in ("bulk load", "bulk store") if name in classes]
        yield f"TMA ({' and '.join(moved)})" if moved else "tensor descriptors without TMA: emulated"
    if "bulk load" not in classes:
        if any(name.startswith(("async copy", "bulk copy")) for name in classes):
            yield "asynchronous copies"
        elif facts.report.num_stages > 1 and loop.instructions:
            yield f"{facts.report.num_stages} stages asked, no asynchronous copy"
    for word, accesses in _TOLD_ACCESSES.items():
        if bits := widths(sass.whole, *accesses):
            yield f"{word} of {' to '.join(map(str, dict.fromkeys(bits)))} bits"


_TOLD_ACCESSES = {"loads": ("global load", "generic load", "async copy"), "stores": ("global store", "generic store")}


def changes(before: Sequence[Sass], after: Sequence[Sass]) -> str:
    """How the counts of `after` differ from those of `before`, kernel by kernel, in their order."""
    lines = []
    for old, its in itertools.zip_longest(before, after):
        if old is None or its is None:
            lines.append(f"{old.name} is gone" if old else f"{its.name} is new: {numbers(its.whole)}")
            continue
        name = its.name if old.name == its.name else f"{old.name} -> {its.name}"
        changed = deltas(old.whole.classes, its.whole.classes) or "the same classes of instructions"
        lines.append(f"{name}: the kernel {numbers(old.whole)} -> {numbers(its.whole)}: {changed}")
        if kinds := deltas(old.whole.kinds, its.whole.kinds):
            lines.append(f"  kinds: {kinds}")
    return "\n".join(lines)


def deltas(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """ "+16 global load 128, -64 global load 32"; the largest first; empty where nothing differs."""
    changed = {name: after.get(name, 0) - before.get(name, 0) for name in [*after, *before]}
    told = sorted(((n, name) for name, n in changed.items() if n), key=lambda c: -abs(c[0]))
    return ", ".join(f"{n:+} {name}" for n, name in told)


_CLOCK_HZ = 1.7e9  # about what H100, H200 and A100 hold under load; their data sheets give no more than a boost clock
_SCHEDULERS = 4  # of a multiprocessor, from Volta on
_LAUNCH_S = 2e-6  # of one step behind another in a graph, about
_MOVED_OTHERWISE = ("bulk", "tensor")  # beginnings of classes whose bytes or repetitions no instruction tells
_IN_FLIGHT = {10: 64 << 10, 9: 48 << 10, 8: 16 << 10}  # generation -> bytes a multiprocessor must have asked for


def effective_bytes(
    plan: Plan, effects: LaunchEffects, reports: Mapping[str, KernelReport], sass: Mapping[str, Sass], gpu: Gpu
) -> float:
    """What orders kernels that nobody can time: a plan's memory traffic, issue and launches in bytes that the GPU's
    memory would move meanwhile at its full rate. `reports`, `sass`: by Kernel.sha256. It is an order, not a time.

    A roofline (Williams et al., 2009), with Little's law (Volkov, 2016) for memory. A launch takes the longer of
        memory  (bytes loaded / min(1, bytes in flight / bytes needed in flight) + bytes stored and spilled)
        issue   waves x max(instructions x warps per scheduler, issue cycles of one warp) / clock
    In flight are a trip's loads of all resident threads, so 2-byte loads and few warps cost; what is needed is CUB's
    (`arch_to_min_bytes_in_flight`: 48 KiB on an H200). A loop that stores runs until its outputs are written, one that
    only loads until the largest tensor is read: so one that reads it a second time counts twice. Bulk copies and
    tensor cores say no such numbers: there each tensor counts once, as in `Plan.traffic_bytes`.
    """
    total = 0.0
    parts = cache(lambda name: phases(sass[name].instructions))
    for step in plan.run:
        moved = float(step_bytes(step))
        kernel = plan.kernels[step.kernel] if isinstance(step, Launch) else None
        if isinstance(step, Launch) and kernel is not None and kernel.sha256 in sass:
            named = list(effects(step))
            read = max((ref.nbytes for ref, effect in named if effect.reads), default=0)
            written = distinct_bytes(ref for ref, effect in named if effect.writes)
            its = reports[kernel.sha256], parts(kernel.sha256) if _tells_traffic(sass[kernel.sha256]) else []
            moved = max(moved, _launch_bytes(math.prod(step.grid), read, written, *its, gpu))
        total += moved + _LAUNCH_S * gpu.bandwidth_gbps * 1e9 * (moved > 0)
    return total


def _tells_traffic(sass: Sass) -> bool:
    return not sass.cut and not any(name.startswith(_MOVED_OTHERWISE) for name in sass.whole.classes)


def _launch_bytes(
    programs: int, read: int, written: int, report: KernelReport, parts: Sequence[Census], gpu: Gpu
) -> float:
    """Of one launch. `read`: bytes of the largest tensor that it may read; `written`: of all that it may write; `parts`
    of its code: see `phases`."""
    warps = programs * report.num_warps
    resident = max(1.0, min(report.occupancy * gpu.warps_per_sm, warps / gpu.multiprocessors))  # of a multiprocessor
    needed = _IN_FLIGHT.get(gpu.arch // 10, 12 << 10)
    memory = instructions = cycles = 0.0
    for number, phase in enumerate(parts):
        trips = _trips(phase, read, written, warps * 32) if number else 1.0
        share = min(1.0, resident * 32 * phase.loaded_bytes / needed) or 1.0
        memory += trips * warps * 32 * (phase.loaded_bytes / share + phase.stored_bytes + phase.spilled_bytes)
        instructions += trips * phase.instructions
        cycles += trips * phase.issue_cycles
    waves = warps / gpu.multiprocessors / resident
    issue_s = waves * max(instructions * resident / _SCHEDULERS, cycles) / _CLOCK_HZ
    return max(memory, issue_s * gpu.bandwidth_gbps * 1e9)


def _trips(loop: Census, read: int, written: int, threads: int) -> float:
    """How often each thread runs a loop, at least once: see `effective_bytes`."""
    nbytes, of = (written, loop.stored_bytes) if loop.stored_bytes else (read, loop.loaded_bytes)
    return max(1.0, nbytes / (threads * of)) if of and threads else 1.0


_HEADER = struct.Struct("<40xQ10xHHH")  # where the section headers begin; their size and number; which holds the names
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Section:
    """One section: what it is called, its ELF type, where its bytes begin and how many they are, the section it links
    to."""

    name: str
    type: int
    offset: int
    nbytes: int
    link: int

    def data(self, cubin: bytes) -> bytes:
        """What it holds, as far as the file goes."""
        return cubin[self.offset : self.offset + self.nbytes]


def sections(cubin: bytes) -> list[Section]:
    """All sections, in order. Raises ValueError for what is no 64-bit ELF file, or one whose tables lead outside."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a cubin is a little-endian 64-bit ELF file")
    try:
        begin, size, count, names = _HEADER.unpack_from(cubin)
        headers = [_SECTION_HEADER.unpack_from(cubin, begin + i * size) for i in range(count)]
        return [Section(text_at(cubin, headers[names][4] + h[0]), h[1], h[4], h[5], h[6]) for h in headers]
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"a cubin whose tables lead outside: {error}") from error


def text_at(data: bytes, at: int) -> str:
    """The text that ends with a zero byte, or with the data."""
    end = data.find(b"\0", at)
    return data[at : len(data) if end < 0 else end].decode(errors="replace")
