"""Triton as a language: @triton.jit functions are lowered to TTIR in the tracer, and TTIR is compiled as text.

Inline assembly can declare variables of the module (`.global`, `.const`) or of the multiprocessor (`.shared`, which
holds what the kernel before left there), take in others (`.extern`), or close the function and begin something else.
The compiler writes all that it declares itself (strings of device_print and device_assert, libdevice's tables) before
the first function, and says in the text where assembly begins; so whatever is declared behind the first assembly comes
from there.
"""

import contextlib
import hashlib
import io
import re
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from kerneltune.tools.languages.base import (
    ArgEffect,
    LaunchRecorder,
    NotCompiled,
    NotInterpreted,
    OptionCheck,
    flag,
    forbidden_option,
    whole,
)
from kerneltune.tools.languages.ptxas import report, resources_of
from kerneltune.tools.languages.triton import ttir
from kerneltune.tools.languages.triton.effects import effects
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import arch_number
from kerneltune.tools.schema.messages import UNCHECKABLE, Compiled, Failure
from kerneltune.tools.schema.plan import Kernel, Launch
from kerneltune.tools.schema.verdict import Cause, Status, Verdict

_ASSEMBLY = "// begin inline asm"
_HIDDEN = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_DIRECTIVE = re.compile(
    r"(?:(?<![\w$.])|(?<=\.visible)|(?<=\.weak)|(?<=\.extern)|(?<=\.common))"  # but not ld.global
    r"\.(global|const|shared|local|extern|common|weak|visible|version|target|address_size|alias|"
    r"texref|samplerref|surfref|tex|entry|func)(?![\w$])"
)
_UNSET = re.compile(r"(?<![\w$.])\.(?:global|const)(?![\w$])([^;={]*);")
_POINTER = re.compile(r"\.ptr\s+\.(global|const|shared|local)\b")  # what a parameter points to, not a declaration
_FOREIGN = re.compile(r"(?<![\w.$#!@%^-])llvm\.(?!intr\.assume\b)[\w.$]+(?![\w.$]|\s*=)")
_QUOTED_FOREIGN = re.compile(r'"(llvm\.(?!intr\.assume")[\w.$]+)"\s*[(<]')
_AHEAD = re.compile(
    r"(?<![\w$.%])(?:prefetchu?\.(?:global\.|local\.)?L[12]|applypriority|discard|cp\.async\.bulk\.prefetch)"
)
_PRIVATE = re.compile(r"\btt\.func\s+(?:private|nested)\b|\btt\.func\s+@")
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
_PROBLEMS: dict[type[Exception], str] = {
    ttir.UnsupportedOp: UNCHECKABLE,
    ttir.OutOfBounds: "out_of_bounds",
    ttir.StepLimit: "step_limit",
    ttir.AssertFailed: "assert_failed",
}


class TritonLanguage:
    """See `languages.base.Language`."""

    title = "TTIR"
    wait = "gdc_wait()"
    max_bytes = 64 << 20
    warm_kernel = Kernel("warm", "ttir", _WARM_TTIR, ("*fp32",), {"num_warps": 4})

    def forbidden_option(self, options: Mapping[str, Json]) -> str | None:
        return forbidden_option(options, _OPTIONS)

    def waits(self, kernel: Kernel) -> bool:
        return "griddepcontrol.wait" in kernel.text

    def effects(self, kernel: Kernel) -> tuple[ArgEffect, ...]:
        return effects(kernel.text, kernel.signature)

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
        return Failure(Status.COMPILE_FAILED, str(error)[-4000:], _kernel_line(error), cause=Cause.COMPILER_ERROR)

    def compile(self, kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
        return _lowered(kernel, arch, folder)

    def ptx(self, kernel: Kernel, arch: str, folder: Path) -> tuple[str, int]:
        built, _ = _built(kernel, arch, folder)
        return built.asm["ptx"], int(built.metadata.shared)

    def interpret(self, kernel: Kernel, grid: tuple[int, int, int], values: Sequence[Any], launch: Launch) -> None:
        try:
            ttir.run(_parsed(kernel.text), grid, values, max_ops=MAX_OPS)
        except ttir.InterpreterError as error:
            if problem := _PROBLEMS.get(type(error)):
                raise NotInterpreted(str(error), problem) from error
            raise NotInterpreted(f"{type(error).__name__}: {error}") from error


LANGUAGE = TritonLanguage()


@lru_cache(maxsize=64)
def _parsed(text: str) -> ttir.TtirModule:
    return ttir.parse(text)


def _kernel_line(error: BaseException) -> int | None:
    """The line of a Triton compilation error: nodes count from the `def`, and `begin_line` is the one before it."""
    causes: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(causes) < 10:
        causes.append(current)
        current = current.__cause__ or current.__context__
    for cause in reversed(causes):
        node = getattr(cause, "node", None)
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            begin = getattr(frame.f_locals.get("self"), "begin_line", None)
            if begin is not None and node is not None:
                return int(begin) + int(node.lineno)
    return None


def foreign_ttir(text: str) -> str | None:
    """An operation of LLVM's own in TTIR, which Triton never writes there and which can declare module variables; in
    words, or None."""
    bare = _HIDDEN.sub(" ", text)
    found = _FOREIGN.search(bare)
    name = found[0] if found else next((m[1] for m in _QUOTED_FOREIGN.finditer(text)), None)
    return f"the kernel holds an operation {name!r:.60}, which is not one of Triton's" if name else None


def module_memory(ptx: str, ttir: str) -> str | None:
    """What a compiled kernel declares besides what the compiler declares, in words for the author; or None."""
    head, _, tail = ptx.partition(_ASSEMBLY)
    for unset in _UNSET.finditer(_bare(head)):
        return f"the kernel has a module variable without a value ({unset[1].strip()[:60]}): it is in no plan"
    names = [m[1] for m in _DIRECTIVE.finditer(_bare(tail))]
    entries, functions = int(".entry" not in _bare(head)), len(_PRIVATE.findall(ttir))  # each is written once
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


def _bare(ptx: str) -> str:
    """PTX without comments, strings and the state spaces of pointer parameters."""
    return _POINTER.sub(".ptr", _HIDDEN.sub(" ", ptx))


def _built(kernel: Kernel, arch: str, folder: Path) -> tuple[Any, str]:
    """What Triton makes of a kernel in TTIR, and what ptxas says of it."""
    import triton
    from triton.backends.compiler import GPUTarget

    if problem := foreign_ttir(kernel.text):
        raise NotCompiled(Failure(Status.REJECTED, problem))
    triton.knobs.compilation.always_compile = True
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
