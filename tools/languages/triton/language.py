"""Triton as a language: @triton.jit functions are lowered to TTIR in the tracer, and TTIR is compiled as text.

Inline assembly can declare variables of the module (`.global`, `.const`) or of the multiprocessor (`.shared`, which
holds what the kernel before left there), take in others (`.extern`), or close the function and begin something else.
The compiler writes all that it declares itself (strings of device_print and device_assert, libdevice's tables) before
the first function, or promises it there (a function of libdevice's), and says in the text where assembly begins; so
whatever else is declared behind the first assembly comes from there.
"""

import contextlib
import hashlib
import io
import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kerneltune.tools.languages.base import (
    FILE,
    LaunchRecorder,
    NotCompiled,
    OptionCheck,
    flag,
    forbidden_option,
    whole,
)
from kerneltune.tools.languages.ptxas import report, resources_of
from kerneltune.tools.languages.triton.ttir.interpreter import run
from kerneltune.tools.languages.triton.ttir.ir import (
    Desc,
    Func,
    InterpreterError,
    Misaligned,
    Op,
    OutOfBounds,
    OutOfTime,
    Ptr,
    Region,
    TtirBlock,
    TtirModule,
    UnsupportedOp,
    element_of,
    parse,
)
from kerneltune.tools.languages.triton.ttir.memory import Pointer
from kerneltune.tools.languages.triton.ttir.waiting import may_wait
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import arch_number
from kerneltune.tools.schema.messages import Compiled, Failure, Lowered, Program
from kerneltune.tools.schema.plan import EVERYTHING, NOTHING, ArgEffect, Kernel, Launch
from kerneltune.tools.schema.verdict import Cause, Status, Verdict

_FOLDER = re.compile(r"^(?:/[^/:\n]*)*/(?=[^/:\n]+:\d+:)", re.MULTILINE)
_ASSEMBLY = re.compile(r"// (?:begin inline asm|Start of file scope inline assembly)")
_HIDDEN = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
# of PTX, whose strings have no escapes: they end at the next quote
_HIDDEN_IN_PTX = re.compile(r'"[^"]*(?:"|\Z)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_WAITS = re.compile(r"(?:\A|[;{}:])\s*griddepcontrol\.wait\s*;")  # one with a predicate may not wait
_DIRECTIVE = re.compile(
    r"(?:(?<![\w$.])|(?<=\.visible)|(?<=\.weak)|(?<=\.extern)|(?<=\.common))"  # but not ld.global
    r"\.(global|const|shared|local|extern|common|weak|visible|version|target|address_size|alias|"
    r"texref|samplerref|surfref|tex|entry|func)(?![\w$])"
)
_UNSET = re.compile(r"(?<![\w$.])\.(?:global|const)(?![\w$])([^;={]*);")
_VARIABLE = re.compile(r"(?<![\w$.])\.(?:global|const)(?![\w$])[^;={]*?([A-Za-z_$%][\w$]*)\s*(?:\[[^\]]*\]\s*)?=")
_ASSEMBLES = re.compile(r'\belementwise_inline_asm\b(?: "((?:[^"\\\n]|\\[^\n])*)")?')
_REGISTERS = re.compile(r"\.reg\s+(?:\.\w+\s+)+([^;]*);")
_REGISTER = re.compile(r"(%[a-z]{1,2})\d+(?![\w$])")  # as the compiler calls its own
_GLUED = re.compile(r"\[|[\w%]\$[^$]|\$\d+[A-Za-z_$]|\$\{[^}]*\}[\w$]|\$[(|)]")
_POINTER = re.compile(r"\.ptr\s+\.(global|const|shared|local)\b")  # what a parameter points to, not a declaration
_FOREIGN = re.compile(r"(?<![\w.$#!@%^-])llvm\.(?!intr\.assume\b|loop_annotation\s*=)[\w.$]+(?![\w.$])")
_QUOTED = re.compile(
    r'"((?:[^"\\\n]|\\[^\n])*)"(\s*[(<=])?'
)  # a string, and whether it names an operation or attribute
_ESCAPED = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
# A function of libdevice's that stands behind the kernel: `pow` in float64 calls one.
_LIBDEVICE = re.compile(r"\.func\s*(?:\([^()]*\)\s*)?(__(?:internal|nv)_[\w$]+)\s*\([^()]*\)\s*([;{])")
_AHEAD = re.compile(
    r"(?<![\w$.%])(?:prefetchu?\.(?:global\.|local\.)?L[12]|applypriority|discard|cp\.async\.bulk\.prefetch)"
)
_PRIVATE = re.compile(r"\btt\.func\s+(?:private|nested)\b")
WORDS = "inline assembly declares {what}: memory that outlives a launch, or functions from elsewhere, belong to no plan"
_WARM_TTIR = """
module {
  tt.func public @warm(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %r = tt.make_range {end = 256 : i32, start = 0 : i32} : tensor<256xi32>
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>>
    %a = tt.addptr %p, %r : tensor<256x!tt.ptr<f32>>, tensor<256xi32>
    %v = tt.load %a : tensor<256x!tt.ptr<f32>>
    %w = arith.addf %v, %v : tensor<256xf32>
    tt.store %a, %w : tensor<256x!tt.ptr<f32>>
    tt.return
  }
}
"""
_METADATA = (
    "name shared num_warps num_ctas cluster_dims global_scratch_size global_scratch_align profile_scratch_size "
    "profile_scratch_align tensordesc_meta launch_cooperative_grid launch_pdl"
).split()
MAX_OPS = 2_000_000  # batched operations; an endless loop costs 28 µs each, so this ends it after about a minute
# What `ptx_options` may hold: optimisation and register limits, nothing that names a file.
_ASSEMBLER = re.compile(
    r"-O[0-3]|--opt-level=[0-3]|--?maxrregcount=[0-9]{1,3}|--fmad=(true|false)|-v|--verbose|--warn-on-spills|"
    r"--allow-expensive-optimizations=(true|false)|--disable-optimizer-constants|--suppress-stack-size-warning|"
    r"--(def-load-cache|def-store-cache|dlcm|dscm)=(ca|cg|cs|lu|cv|wb|wt)"
)
_PRECISIONS = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")


def _assembler(value: Json) -> bool:
    return isinstance(value, str) and all(_ASSEMBLER.fullmatch(word) for word in value.split(" ") if word)


_OPTIONS: Mapping[str, OptionCheck] = {
    "num_warps": lambda value: value in (1, 2, 4, 8, 16, 32, 64) and not isinstance(value, bool | float),
    "num_stages": whole(0, 64),
    "num_ctas": whole(1, 16),
    "maxnreg": lambda value: value is None or whole(1, 1024)(value),
    "cluster_dims": lambda value: isinstance(value, list | tuple) and list(map(whole(1, 16), value)) == [True] * 3,
    "enable_fp_fusion": flag,
    "launch_cooperative_grid": flag,
    "launch_pdl": flag,
    "sanitize_overflow": flag,
    "default_dot_input_precision": lambda value: value in _PRECISIONS,
    "ptx_options": lambda value: value is None or _assembler(value),
    "minRegAutoWS": whole(0, 1024),
    "maxRegAutoWS": whole(0, 1024),
}


class TritonLanguage:
    """See `languages.base.Language` and `DeviceCode`."""

    name = "Triton"
    imports = ""
    title = "TTIR"
    wait = "gdc_wait()"
    max_bytes = 8 << 20
    warm_kernel = Kernel("warm", "ttir", _WARM_TTIR, ("*fp32",), {"num_warps": 4})

    def wrote(self, source: str) -> bool:
        return True

    def forbidden_option(self, options: Mapping[str, Json]) -> str | None:
        return forbidden_option(options, _OPTIONS)

    def waits(self, kernel: Kernel) -> bool:
        pieces = (_unescaped(operation[1] or "") for operation in _ASSEMBLES.finditer(_uncommented(kernel.text)))
        return any(_WAITS.search(_HIDDEN_IN_PTX.sub(" ", piece)) for piece in pieces)

    def effects(self, kernel: Kernel) -> tuple[ArgEffect, ...]:
        return _effects(kernel.text, kernel.signature)

    def less_shared(self, kernel: Kernel) -> str:
        return "Use smaller blocks or fewer num_stages"

    def in_source(self, failure: Verdict, text: str, source: str) -> Verdict:
        return failure  # Triton names lines of the candidate

    def record(self, log: LaunchRecorder, target: Any) -> None:
        from kerneltune.tools.languages.triton.recorder import install

        install(log, target, self.forbidden_option)

    def describe(self, error: BaseException, source: str) -> Failure | None:
        from triton.compiler.errors import CompilationError

        if not isinstance(error, CompilationError):
            return None
        first: BaseException = error  # of a function that was called; those around it only say where
        while isinstance(first.__cause__, CompilationError):
            first = first.__cause__
        notes = (_FOLDER.sub("", str(note)[:4096]).strip() for note in getattr(error, "__notes__", ()))
        message = "\n".join([*notes, str(first)[-3000:]])[:4000]
        return Failure(Status.COMPILE_FAILED, message, _kernel_line(error), cause=Cause.COMPILER_ERROR)

    def lower(self, program: Program, arch: str, folder: Path) -> Lowered:
        raise NotCompiled(Failure(Status.REJECTED, "Triton comes out of the tracer as it is compiled"))

    def compile(self, kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
        return _lowered(kernel, arch, folder)

    def ptx(self, kernel: Kernel, arch: str, folder: Path) -> tuple[str, int]:
        built, _ = _built(kernel, arch, folder)
        return built.asm["ptx"], int(built.metadata.shared)

    def ttgir(self, kernel: Kernel, arch: str, folder: Path) -> str:
        built, _ = _built(kernel, arch, folder)
        return str(built.asm["ttgir"])

    def interpret(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        values: Sequence[Any],
        launch: Launch,
        programs: Sequence[int] | None = None,
        until_s: float = math.inf,
    ) -> bool:
        module = _parsed(kernel.text)
        if programs is not None and may_wait(module):
            raise UnsupportedOp("a sample of programs that wait for each other")
        try:
            run(
                module, grid, _named(values, module), max_ops=MAX_OPS, programs=programs,
                cooperative=launch.cooperative,
                until_s=until_s if _stores_once(kernel, self.effects(kernel)) else math.inf,
            )  # fmt: skip
        except OutOfTime:
            return False
        except (OutOfBounds, Misaligned) as error:
            line = _source_line(kernel.text, error.op_line) if error.op_line else None
            place = f"line {line}, kernel {kernel.name}" if line else f"kernel {kernel.name}"
            raise type(error)(f"{place}: {error}") from error
        return True


LANGUAGE = TritonLanguage()


def _stores_once(kernel: Kernel, effects: Sequence[ArgEffect]) -> bool:
    """Whether no store can overwrite what another has written: there is one for each argument that is written."""
    stores = len(re.findall(r"\btt\.(?:store|descriptor_store)\b", kernel.text))
    return stores == sum(effect.writes for effect in effects)


def _named(values: Sequence[Any], module: TtirModule) -> list[Any]:
    """The arguments of a launch, pointers under the names that the kernel has for them. A descriptor is several
    arguments of the text, whose places are not counted here: then all keep the names that they have."""
    names = module.kernel.args
    if len(names) != len(values):
        return list(values)
    pairs = zip(values, names, strict=True)
    return [replace(value, name=name.lstrip("%")) if isinstance(value, Pointer) else value for value, name in pairs]


_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_PLACE = re.compile(r'"candidate\.py":(\d+):')
_MOST_HOPS = 16  # from the location of an operation to the lines that it stands for


def _source_line(text: str, op_line: int) -> int | None:
    """The line of the candidate's file that an operation of a kernel's text comes from; of an inlined function, its
    own. None without debug locations."""
    lines, aliases = text.split("\n"), dict(_ALIAS.findall(text))
    words = lines[op_line - 1].rpartition(" loc(")[2] if op_line <= len(lines) else ""
    for _ in range(_MOST_HOPS):
        if found := _PLACE.search(words):
            return int(found[1])
        words = " ".join(aliases.get(name, "") for name in re.findall(r"#loc\d*", words))
    return None


@lru_cache(maxsize=64)
def _parsed(text: str) -> TtirModule:
    return parse(text)


def _kernel_line(error: BaseException) -> int | None:
    """The candidate's innermost line of a Triton compilation error: nodes count from the `def`, and `begin_line` is the
    one before it."""
    line: int | None = None
    current: BaseException | None = error
    for _ in range(10):
        if current is None:
            break
        frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(current.__traceback__)]
        its = next((each for each in reversed(frames) if hasattr(each, "begin_line")), None)
        node = getattr(current, "node", None)
        if its is not None and node is not None and its.file_name == FILE:
            line = int(its.begin_line) + int(node.lineno)
        current = current.__cause__ or current.__context__
    return line


def foreign_ttir(text: str) -> str | None:
    """An operation or attribute of LLVM's own in TTIR, which Triton never writes there and which can declare module
    variables; in words, or None."""
    bare = _HIDDEN.sub(" ", text)
    found = _FOREIGN.search(bare)
    name = found[0] if found else next(_quoted_foreign(text), None)
    return f"the kernel holds {name!r:.60}, an operation or attribute that is not one of Triton's" if name else None


def _quoted_foreign(text: str) -> Iterator[str]:
    """Those whose names stand in quotes, as MLIR reads them: letters may be escaped, and a comment may follow."""
    for quoted, named in _QUOTED.findall(_uncommented(text)):
        name = _unescaped(quoted) if named else ""
        if name != quoted * bool(named) or (name.startswith("llvm.") and name != "llvm.intr.assume"):
            yield name  # nobody who means well escapes one


def _uncommented(ttir: str) -> str:
    return _HIDDEN.sub(lambda m: m[0] if m[0][0] == '"' else " ", ttir)


def _unescaped(quoted: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], quoted)


def module_memory(ptx: str, ttir: str) -> str | None:
    """What a compiled kernel declares besides what the compiler declares, in words for the author; or None."""
    head, *rest = _ASSEMBLY.split(ptx, maxsplit=1)
    tail = "".join(rest)
    for unset in _UNSET.finditer(_bare(head)):
        return f"the kernel has a module variable without a value ({unset[1].strip()[:60]}): it is in no plan"
    if (kept := _VARIABLE.findall(_bare(head))) and (piece := _beyond_operands(ttir, kept)):
        return (
            f"inline assembly beside {kept[0]!r:.60} (of a print, an assertion or a table of libdevice's) holds "
            f"{piece!r:.60}, which may reach that memory: it outlives a launch. Leave out one of the two"
        )
    names = [m[1] for m in _DIRECTIVE.finditer(_bare(tail))]
    promised, made = (
        {name for name, end in _LIBDEVICE.findall(_bare(part)) if end == which and name not in ttir}
        for part, which in ((head, ";"), (tail, "{"))
    )
    entries, functions = (
        int(".entry" not in _bare(head)),
        len(_PRIVATE.findall(ttir)) + len(promised & made),
    )  # each once
    allowed = {"entry": entries, "func": functions, "visible": entries + functions, "local": entries + functions}
    for name in names:
        allowed[name] = allowed.get(name, 0) - 1
        if allowed[name] < 0:
            return WORDS.format(what=f".{name}")
    if ahead := _AHEAD.search(_bare(tail)):
        return (
            f"inline assembly holds {ahead[0]!r}: what it brings into the L2 may be another run's, so it is not timed"
        )
    return None


def _beyond_operands(ttir: str, kept: Sequence[str]) -> str | None:
    """What the assembly of a text holds that may be no operand of its own: memory, a name of those that are kept,
    registers that it does not declare, names that are put together from operands."""
    for operation in _ASSEMBLES.finditer(_uncommented(ttir)):
        if operation[1] is None:
            return operation[0]  # its text stands elsewhere
        text = _unescaped(operation[1])
        declared = {name.partition("<")[0].strip() for group in _REGISTERS.findall(text) for name in group.split(",")}
        registers = [m[0] for m in _REGISTER.finditer(text) if m[0] not in declared and m[1] not in declared]
        named = (name for name in kept if re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text))
        if found := next(named, None) or next(iter(registers), None) or _glued(text):
            return found
    return None


def _glued(text: str) -> str | None:
    found = _GLUED.search(text)
    return found[0] if found else None


def _bare(ptx: str) -> str:
    """PTX without comments, strings and the state spaces of pointer parameters."""
    return _POINTER.sub(".ptr", _HIDDEN_IN_PTX.sub(" ", ptx))


def _built(kernel: Kernel, arch: str, folder: Path) -> tuple[Any, str]:
    """What Triton makes of a kernel in TTIR, and what ptxas says of it."""
    import triton
    from triton.backends.compiler import GPUTarget

    if problem := foreign_ttir(kernel.text):
        raise NotCompiled(Failure(Status.REJECTED, problem))
    triton.knobs.compilation.always_compile = True
    triton.runtime.cache.triton_key = lambda: ""  # for results that are kept: hashes Triton's libraries for 0.25 s
    triton.knobs.nvidia.dump_ptxas_log = True
    path = folder / f"{hashlib.sha256(kernel.text.encode()).hexdigest()[:16]}.ttir"
    path.write_text(kernel.text)
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        target = GPUTarget("cuda", arch_number(arch), 32)
        built = triton.compile(str(path), target=target, options=_options(kernel))
    if problem := module_memory(built.asm["ptx"], kernel.text):
        raise NotCompiled(Failure(Status.REJECTED, problem))
    return built, log.getvalue()


def _lowered(kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
    started = time.perf_counter()
    built, log = _built(kernel, arch, folder)
    cubin = built.asm["cubin"]
    metadata = {name: _plain(getattr(built.metadata, name)) for name in _METADATA if hasattr(built.metadata, name)}
    made = report(
        str(metadata["name"]),
        arch,
        cubin,
        resources_of(log),
        shared_bytes=int(metadata["shared"]),
        num_warps=int(metadata["num_warps"]),
        num_stages=built.metadata.num_stages,
        started_s=started,
    )
    return Compiled(made, metadata), cubin


def _options(kernel: Kernel) -> dict[str, Json]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in kernel.options.items()}


def _plain(value: Any) -> Json:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ---
# What a kernel reads and writes, read off its TTIR without running it. Pure.
#
# Every value carries the set of pointer arguments that it may point into; what a load or an atomic returns is data and
# carries none. Whatever is not understood (text that does not parse, integers made into pointers, assembly that
# addresses memory) may read and write everything: an effect that is not listed here is one that the kernel cannot have.

MOST_TEXT_BYTES = 4 << 20  # longer text is not looked into: it takes 0.4 s for each MB
MOST_PASSES = 8
_WITHOUT_POINTERS = re.compile(r"__nv_(?!(?:fast_)?(?:frexp|modf|remquo|sincos|sincospi|nan)f?\Z)\w+")
_LOADS = frozenset("tt.load tt.descriptor_load tt.descriptor_gather".split())
_STORES = frozenset("tt.store tt.descriptor_store tt.descriptor_scatter".split())
_UPDATES = frozenset("tt.atomic_rmw tt.atomic_cas tt.descriptor_reduce".split())
_PURE_DIALECTS = ("arith.", "math.", "scf.", "cf.", "ub.")
_PURE = frozenset(
    """
    tt.addptr tt.advance tt.assert tt.bitcast tt.broadcast tt.cat tt.clampf tt.dot tt.dot_scaled tt.expand_dims
    tt.fp_to_fp tt.gather tt.get_num_programs tt.get_program_id tt.histogram tt.join
    tt.make_range tt.make_tensor_descriptor tt.make_tensor_ptr tt.map_elementwise tt.map_elementwise.return
    tt.mulhiui tt.precise_divf tt.precise_sqrt tt.print tt.ptr_to_int tt.reduce tt.reduce.return tt.reshape tt.return
    tt.scan tt.scan.return tt.splat tt.split tt.trans tt.unsplat gpu.barrier ttg.barrier ttg.local_barrier
    llvm.intr.assume
    """.split()
)


@lru_cache(maxsize=1024)
def _effects(text: str, signature: tuple[str, ...]) -> tuple[ArgEffect, ...]:
    places = [i for i, kind in enumerate(signature) if kind.startswith(("*", "tensordesc"))]
    found = _of_pointers(text)
    if found is None or len(found) != len(places):
        found = [EVERYTHING] * len(places)
    at = dict(zip(places, found, strict=True))
    return tuple(at.get(i, NOTHING) for i in range(len(signature)))


def _of_pointers(text: str) -> list[ArgEffect] | None:
    """One effect per pointer or descriptor among the kernel's arguments; None when the text cannot be followed."""
    if len(text) > MOST_TEXT_BYTES:
        return None
    try:
        module = parse(text)
        flow = _follow(module, module.kernel, {})
    except (InterpreterError, RecursionError, EffectsUnknown):
        return None
    return [
        ArgEffect(bool(flow.reads >> i & 1), bool(flow.writes >> i & 1))
        for i, kind in enumerate(module.kernel.types)
        if isinstance(kind, Ptr | Desc)
    ]


class EffectsUnknown(Exception):
    """The kernel may reach memory by an address that comes from none of its arguments, as far as can be told."""


class _Scope:
    """The values that a region names; names of the regions around it are seen, those of its siblings are not."""

    def __init__(self, outer: "_Scope | None") -> None:
        self.outer, self.values = outer, dict[str, int]()

    def __getitem__(self, name: str) -> int:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return 0


@dataclass
class PointerFlow:
    """Tracks which arguments the pointers of one function may come from. Sets of arguments are bits of an int,
    argument 0 the lowest."""

    module: TtirModule
    functions: "dict[str, PointerFlow | None]"  # those followed so far; None while they are being followed
    reads: int = 0
    writes: int = 0
    changed: bool = False
    settled: bool = False
    scopes: dict[int, _Scope] = field(default_factory=dict)

    def add(self, scope: _Scope, names: Iterable[str], sets: Iterable[int]) -> None:
        """Add arguments that values may point into."""
        for name, bits in zip(names, sets, strict=False):
            known = scope.values.setdefault(name, 0)
            if bits & ~known:
                scope.values[name] = known | bits
                self.changed = True

    def access(self, bits: int, *, reads: bool, writes: bool) -> None:
        """Note an access to memory. Raises EffectsUnknown for an address of unknown origin."""
        if not bits and self.settled:
            raise EffectsUnknown
        self.reads |= bits * reads
        self.writes |= bits * writes

    def region(self, region: Region, outer: _Scope, ins: Sequence[int], sink: Callable[[Sequence[int]], None]) -> None:
        """Follow a region that is entered with `ins`; `sink` takes what its terminators pass out."""
        scope = self.scopes.setdefault(id(region), _Scope(outer))
        self.add(scope, region.blocks[0].args, ins)
        labels = {block.label: block for block in region.blocks}
        for block in region.blocks:
            for op in block.ops:
                self.op(op, scope, sink, labels)

    def op(self, op: Op, scope: _Scope, sink: Callable[[Sequence[int]], None], labels: dict[str, TtirBlock]) -> None:
        """Follow one operation."""
        ins = [scope[name] for name in op.operands]
        if op.name.endswith(("yield", "return")):
            sink(ins)
        elif op.name == "scf.condition":
            sink(ins[1:])
        for successor in op.successors:
            if target := labels.get(successor.label):
                self.add(scope, target.args, [scope[name] for name in successor.operands])
        self.add(scope, op.results, self.regions(op, scope, ins) if op.regions else self.results(op, ins))

    def regions(self, op: Op, scope: _Scope, ins: list[int]) -> list[int]:
        """Follow what an operation holds; the sets of its results."""
        out = [0] * max(len(op.results), 1)
        union = _union(ins)

        def sink(sets: Sequence[int]) -> None:
            for i, bits in enumerate(sets[: len(out)]):
                out[i] |= bits

        if op.name == "scf.for":
            carried = self.scopes.get(id(op.regions[0]), scope)
            names = op.regions[0].blocks[0].args
            start = [0, *(a | carried.values.get(n, 0) for a, n in zip(ins[3:], names[1:], strict=False))]
            self.region(op.regions[0], scope, start, sink)
            out = [bits | first for bits, first in zip(out, start[1:], strict=False)]
            self.add(self.scopes[id(op.regions[0])], names[1:], out)
            return out
        for region in op.regions:
            width = len(region.blocks[0].args)
            self.region(region, scope, [union | _union(out)] * width, sink)
        return [bits | (0 if op.name == "scf.if" else union | _union(out)) for bits in out]

    def results(self, op: Op, ins: list[int]) -> list[int]:
        """The sets of a plain operation's results, its accesses noted."""
        union = _union(ins)
        if op.name in _LOADS | _STORES | _UPDATES:
            self.access(ins[0] if ins else 0, reads=op.name not in _STORES, writes=op.name not in _LOADS)
            union = 0
        elif op.name == "tt.call":
            self.call(op, ins)
        elif op.name not in _PURE and not op.name.startswith(_PURE_DIALECTS):
            self.other(op, union)
        if not union and self.settled and any(isinstance(element_of(kind), Ptr) for kind in op.outs):
            raise EffectsUnknown  # a pointer that was data
        return [union] * len(op.results)

    def other(self, op: Op, union: int) -> None:
        """An operation that is not known to be pure. Raises EffectsUnknown if it may make addresses of its own."""
        if _addresses(op) or op.name == "tt.int_to_ptr" or not op.name.startswith(("tt.", "ttg.", "gpu.")):
            raise EffectsUnknown
        if union:
            self.access(union, reads=True, writes=True)

    def call(self, op: Op, ins: list[int]) -> None:
        """What a function of the same module does to what it is given. Raises EffectsUnknown for recursion."""
        name = str(op.attrs.get("callee", ""))
        if name not in self.module.funcs:
            raise EffectsUnknown
        if name not in self.functions:
            self.functions[name] = None
            self.functions[name] = _follow(self.module, self.module.funcs[name], self.functions)
        inner = self.functions[name]
        if inner is None:
            raise EffectsUnknown  # recursion
        for i, bits in enumerate(ins):
            self.reads |= bits * (inner.reads >> i & 1)
            self.writes |= bits * (inner.writes >> i & 1)


def _addresses(op: Op) -> bool:
    """Whether an operation may reach memory by a number that it is given: assembly, wherever the operation has its
    text, or a function that is none of libdevice's without pointers."""
    if op.name == "tt.extern_elementwise":
        return _WITHOUT_POINTERS.fullmatch(str(op.attrs.get("symbol"))) is None
    texts = map(_unescaped, [*op.words, *map(str, op.attrs.values())])
    return op.name == "tt.elementwise_inline_asm" and any("[" in text or "call" in text for text in texts)


def _union(sets: Iterable[int]) -> int:
    union = 0
    for bits in sets:
        union |= bits
    return union


def _follow(module: TtirModule, func: Func, functions: dict[str, PointerFlow | None]) -> PointerFlow:
    """Follow a function until nothing new turns up. Raises EffectsUnknown."""
    flow, top = PointerFlow(module, functions), _Scope(None)
    starts = [1 << i if isinstance(element_of(kind), Ptr | Desc) else 0 for i, kind in enumerate(func.types)]
    for _ in range(MOST_PASSES):
        flow.changed = False
        flow.region(func.body, top, starts, lambda sets: None)
        if flow.settled:
            return flow
        flow.settled = not flow.changed
    raise EffectsUnknown
