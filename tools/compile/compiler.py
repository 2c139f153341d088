"""The compiler farm's work: TTIR -> cubin for the target, with what the compiler says of it. Runs confined.

The text comes from a hostile process, so this is a child that may crash, hang or be killed; it may start ptxas and
write to its scratch folder, and nothing else.

Inline assembly can declare variables of the module (`.global`, `.const`) or of the multiprocessor (`.shared`, which
holds what the kernel before left there), take in others (`.extern`), or close the function and begin something else.
The compiler writes all that it declares itself (strings of device_print and device_assert, libdevice's tables) before
the first function, and says in the text where assembly begins; so whatever is declared behind the first assembly comes
from there.
"""

import contextlib
import hashlib
import io
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kerneltune.tools.compile.disassemble import disassemble_all
from kerneltune.tools.languages.ptx import PtxError, PtxLaunchError, parse
from kerneltune.tools.languages.ptx.assemble import Resources, assemble, code_of, resources_of, with_needed_labels
from kerneltune.tools.languages.ptx.checks import findings
from kerneltune.tools.languages.ptx.loader import block_of, entry_of, mismatch
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import arch_number, gpu_for_arch, occupancy
from kerneltune.tools.schema.messages import (
    Compiled,
    CompileReply,
    CompileRequest,
    Failure,
    PtxReply,
    PtxRequest,
    SassRequest,
)
from kerneltune.tools.schema.plan import Kernel, forbidden_option
from kerneltune.tools.schema.verdict import KernelReport, Status

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


MOST_FINDINGS = 8
_WARM_PTX = ".version 8.0\n.target sm_90\n.visible .entry warm()\n{\n    ret;\n}\n"
_METADATA = (
    "name shared num_warps num_ctas cluster_dims global_scratch_size global_scratch_align profile_scratch_size "
    "profile_scratch_align tensordesc_meta launch_cooperative_grid launch_pdl"
).split()


def warm() -> None:
    """Compile a kernel of each language, so that forks start with LLVM's tables built and ptxas found."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))
    _compile_one(Kernel("warm", "ttir", _WARM_TTIR, ("*fp32",), {"num_warps": 4}), "sm_90", folder)
    _compile_one(Kernel("warm", "ptx", _WARM_PTX, (), {"block": [32, 1, 1]}), "sm_90", folder)


def main(channel: Any) -> None:
    """Answer CompileRequests, SassRequests and PtxRequests until the supervisor closes the socket."""
    folder = Path(os.environ["TMPDIR"])
    handlers = {
        CompileRequest: lambda request, _: compile_kernels(request, folder),
        SassRequest: lambda request, cubins: disassemble_all(request, cubins, folder),
        PtxRequest: lambda request, _: ptx_of(request, folder),
    }
    wire.serve(channel, handlers)


def ptx_of(request: PtxRequest, folder: Path) -> PtxReply:
    """The PTX that Triton makes of each kernel."""
    texts: list[str] = []
    shared: list[int] = []
    for kernel in request.kernels:
        diagnostics: list[str] = []
        try:
            with _captured(folder, diagnostics):
                if problem := forbidden_option(kernel.options, kernel.language):
                    raise Forbidden(problem)
                if kernel.language == "ptx":
                    raise Forbidden("is PTX already")
                built, _ = _built(kernel, request.arch, folder)
                text = with_needed_labels(
                    built.asm["ptx"], lambda ptx: code_of(assemble(ptx, request.arch, folder).cubin)
                )
        except Exception as error:  # noqa: BLE001 - any failure of Triton on this text is the candidate's failure
            return PtxReply(problem=f"{kernel.name}: {_failure(error, ''.join(diagnostics)).message}"[:4000])
        texts.append(text)
        shared.append(int(built.metadata.shared))
    return PtxReply(tuple(texts), tuple(shared))


def compile_kernels(request: CompileRequest, folder: Path) -> tuple[CompileReply, list[bytes]]:
    """Compile each kernel; stop at the first that fails. One that is too large for the target does not stop it: an
    autotuner may have others."""
    done: list[Compiled] = []
    cubins: list[bytes] = []
    too_large: dict[str, int] = {}
    for number, kernel in enumerate(request.kernels):
        diagnostics: list[str] = []
        try:
            with _captured(folder, diagnostics):
                compiled, cubin = _compile_one(kernel, request.arch, folder)
        except ExceedsSharedMemory as error:
            too_large[str(number)] = error.needed_bytes
            continue
        except Exception as error:  # noqa: BLE001 - any failure of Triton on this text is the candidate's failure
            failure = _failure(error, "".join(diagnostics))
            return CompileReply(tuple(done), too_large, failure, kernel.name), cubins
        done.append(compiled)
        cubins.append(cubin)
    return CompileReply(tuple(done), too_large), cubins


def _compile_one(kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
    if problem := forbidden_option(kernel.options, kernel.language):
        raise Forbidden(problem)
    return (_assembled if kernel.language == "ptx" else _lowered)(kernel, arch, folder)


def _assembled(kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
    """PTX as its author wrote it."""
    started = time.perf_counter()
    module = parse(kernel.text)
    entry = entry_of(module, kernel.name)
    if problem := mismatch(entry, kernel.signature):
        raise Forbidden(problem)
    block = block_of(kernel.options["block"], entry.directives, entry.name)
    found = findings(module, entry, arch)
    if fatal := [finding for finding in found if finding.fatal][:MOST_FINDINGS]:
        raise Forbidden("\n".join(map(str, fatal)), tuple(finding.line for finding in fatal))
    done = assemble(kernel.text, arch, folder)
    used = done.resources.get(entry.name, Resources())
    if set(done.resources) != {e.name for e in module.entries}:
        raise Forbidden(f"ptxas reads entries {sorted(done.resources)!s:.200} where this text seems to have others")
    dynamic = int(kernel.options.get("shared_bytes", 0))
    shared, num_warps = used.static_shared_bytes + dynamic, -(-math.prod(block) // 32)
    held = _checked_occupancy(arch, used.registers, shared, num_warps)
    report = _report(
        entry.name, used, done.cubin, held, shared_bytes=shared, num_warps=num_warps, num_stages=0, started=started
    )
    metadata: dict[str, Json] = {"name": entry.name, "shared": dynamic, "static_shared": used.static_shared_bytes}
    notes = tuple(str(finding) for finding in found if not finding.fatal)
    return Compiled(report, metadata, notes[:MOST_FINDINGS]), done.cubin


def _built(kernel: Kernel, arch: str, folder: Path) -> tuple[Any, str]:
    """What Triton makes of a kernel in TTIR, and what ptxas says of it."""
    import triton
    from triton.backends.compiler import GPUTarget

    if problem := foreign_ttir(kernel.text):
        raise Forbidden(problem)
    triton.knobs.compilation.always_compile = True
    triton.knobs.nvidia.dump_ptxas_log = True
    path = folder / f"{hashlib.sha256(kernel.text.encode()).hexdigest()[:16]}.ttir"
    path.write_text(kernel.text)
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        target = GPUTarget("cuda", arch_number(arch), 32)
        built = triton.compile(str(path), target=target, options=_options(kernel))
    if problem := module_memory(built.asm["ptx"], kernel.text):
        raise Forbidden(problem)
    return built, log.getvalue()


def _lowered(kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
    """A Triton kernel in TTIR."""
    started = time.perf_counter()
    built, log = _built(kernel, arch, folder)
    cubin = built.asm["cubin"]
    metadata = {name: _plain(getattr(built.metadata, name)) for name in _METADATA if hasattr(built.metadata, name)}
    used, shared, num_warps = resources_of(log), int(metadata["shared"]), int(metadata["num_warps"])
    held = _checked_occupancy(arch, used.registers, shared, num_warps)
    report = _report(
        str(metadata["name"]),
        used,
        cubin,
        held,
        shared_bytes=shared,
        num_warps=num_warps,
        num_stages=built.metadata.num_stages,
        started=started,
    )
    return Compiled(report, metadata), cubin


def _options(kernel: Kernel) -> dict[str, Json]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in kernel.options.items()}


def _plain(value: Any) -> Json:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _report(
    name: str,
    used: Resources,
    cubin: bytes,
    occupancy: float,
    *,
    shared_bytes: int,
    num_warps: int,
    num_stages: int,
    started: float,
) -> KernelReport:
    return KernelReport(
        name=name,
        registers=used.registers,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        stack_bytes=used.stack_bytes,
        shared_bytes=shared_bytes,
        num_warps=num_warps,
        num_stages=num_stages,
        occupancy=occupancy,
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compile_s=round(time.perf_counter() - started, 4),
    )


class Forbidden(Exception):
    """The kernel asks for what no plan may have; `ptx_lines` where."""

    def __init__(self, message: str, ptx_lines: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ptx_lines = ptx_lines


class ExceedsSharedMemory(Exception):
    """No block of the target has the shared memory that the kernel needs."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"needs {needed_bytes} bytes of shared memory per block")
        self.needed_bytes = needed_bytes


def _checked_occupancy(arch: str, registers: int, shared: int, num_warps: int) -> float:
    if shared > gpu_for_arch(arch).shared_per_block_bytes:
        raise ExceedsSharedMemory(shared)
    return round(occupancy(arch, registers, shared, num_warps), 3)


@contextlib.contextmanager
def _captured(folder: Path, into: list[str]) -> Iterator[None]:
    """Collect what native code writes to stderr (MLIR diagnostics)."""
    sys.stderr.flush()
    saved = os.dup(2)
    with (folder / "diagnostics").open("w+b") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            into.append(file.read(64 << 10).decode(errors="replace"))


def _failure(error: Exception, diagnostics: str) -> Failure:
    if isinstance(error, Forbidden):
        return Failure(Status.REJECTED, str(error), ptx_lines=error.ptx_lines)
    if isinstance(error, PtxLaunchError):
        return Failure(Status.REJECTED, str(error))
    if isinstance(error, PtxError):
        return Failure(Status.COMPILE_FAILED, str(error), ptx_lines=error.lines)
    lines = [int(n) for n in re.findall(r"candidate\.py\"?:(\d+)", diagnostics + str(error))]
    useful = [x for x in diagnostics.splitlines() if "error" in x or "note" in x or "ptxas" in x]
    message = "\n".join([f"{type(error).__name__}: {str(error).split('Repro command')[0].strip()}", *useful[:20]])
    return Failure(Status.COMPILE_FAILED, message[:4000], lines[0] if lines else None)
