"""The compiler farm's work: TTIR -> cubin for the target, with what the compiler says of it. Runs confined.

The text comes from a hostile process, so this is a child that may crash, hang or be killed; it may start ptxas and
write to its scratch folder, and nothing else.
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

from tools.codec import Json, decode, encode
from tools.gpus import arch_number, gpu_for_arch, occupancy
from tools.plan.disassemble import disassemble_all
from tools.plan.messages import Compiled, CompileReply, CompileRequest, PtxReply, PtxRequest, SassRequest
from tools.plan.module_memory import foreign_ttir, module_memory
from tools.plan.options import forbidden_option
from tools.plan.refusal import Failure
from tools.plan.schema import Kernel
from tools.ptx import PtxError, PtxLaunchError, parse
from tools.ptx.assemble import Resources, assemble, code_of, resources_of, with_needed_labels
from tools.ptx.checks import findings
from tools.ptx.loader import block_of, entry_of, mismatch
from tools.verdict import KernelReport, Status

MOST_FINDINGS = 8
_WARM_PTX = ".version 8.0\n.target sm_90\n.visible .entry warm()\n{\n    ret;\n}\n"
_METADATA = (
    "name shared num_warps num_ctas cluster_dims global_scratch_size global_scratch_align profile_scratch_size "
    "profile_scratch_align tensordesc_meta launch_cooperative_grid launch_pdl"
).split()


def warm() -> None:
    """Compile a kernel of each language, so that forks start with LLVM's tables built and ptxas found."""
    from tools.plan import warm_ttir

    folder = Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))
    _compile_one(Kernel("warm", "ttir", warm_ttir.TEXT, ("*fp32",), {"num_warps": 4}), "sm_90", folder)
    _compile_one(Kernel("warm", "ptx", _WARM_PTX, (), {"block": [32, 1, 1]}), "sm_90", folder)


def main(channel: Any) -> None:
    """Answer CompileRequests, SassRequests and PtxRequests until the supervisor closes the socket."""
    folder = Path(os.environ["TMPDIR"])
    while True:
        message = channel.receive()
        if message.body.get("kind") == "sass":
            channel.send(encode(disassemble_all(decode(SassRequest, message.body), message.blobs, folder)))
            continue
        if message.body.get("kind") == "ptx":
            channel.send(encode(ptx_of(decode(PtxRequest, message.body), folder)))
            continue
        reply, cubins = compile_kernels(decode(CompileRequest, message.body), folder)
        channel.send(encode(reply), list(cubins))


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
    too_large: dict[str, str] = {}
    for number, kernel in enumerate(request.kernels):
        diagnostics: list[str] = []
        try:
            with _captured(folder, diagnostics):
                compiled, cubin = _compile_one(kernel, request.arch, folder)
        except TooLarge as error:
            too_large[str(number)] = str(error)
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
    if fatal := [str(finding) for finding in found if finding.fatal]:
        raise Forbidden("\n".join(fatal[:MOST_FINDINGS]))
    done = assemble(kernel.text, arch, folder)
    used = done.resources.get(entry.name, Resources())
    if set(done.resources) != {e.name for e in module.entries}:
        raise Forbidden(f"ptxas reads entries {sorted(done.resources)!s:.200} where this text seems to have others")
    dynamic = int(kernel.options.get("shared_bytes", 0))
    shared, num_warps = used.static_shared_bytes + dynamic, -(-math.prod(block) // 32)
    instead = f"launch with less than shared_bytes={dynamic}"
    held = _checked_occupancy(arch, used.registers, shared, num_warps, instead)
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
    """The kernel asks for what no plan may have."""


class TooLarge(Exception):
    """The kernel cannot be launched on the target."""


def _checked_occupancy(
    arch: str, registers: int, shared: int, num_warps: int, instead: str = "Use smaller blocks or fewer num_stages"
) -> float:
    gpu = gpu_for_arch(arch)
    if shared > gpu.shared_per_block_bytes:
        raise TooLarge(
            f"needs {shared} bytes of shared memory per block; {arch} has {gpu.shared_per_block_bytes}. {instead}"
        )
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
    if isinstance(error, Forbidden | PtxLaunchError):
        return Failure(Status.REJECTED, str(error))
    if isinstance(error, PtxError):
        return Failure(Status.COMPILE_FAILED, str(error))
    lines = [int(n) for n in re.findall(r"candidate\.py\"?:(\d+)", diagnostics + str(error))]
    useful = [x for x in diagnostics.splitlines() if "error" in x or "note" in x or "ptxas" in x]
    message = "\n".join([f"{type(error).__name__}: {str(error).split('Repro command')[0].strip()}", *useful[:20]])
    return Failure(Status.COMPILE_FAILED, message[:4000], lines[0] if lines else None)
