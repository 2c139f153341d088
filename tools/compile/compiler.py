"""The compiler's work: kernels to cubins for the target, with what the compiler says of them; cubins disassembled.
Runs confined.

The text comes from a hostile process, so this is a child that may crash, hang or be killed; it may start ptxas and
nvdisasm and write to its scratch folder, and nothing else.

The disassembler is the one that Triton ships. It is of another release than the assembler, and may know fewer
architectures: then that is said in words.
"""

import contextlib
import errno
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kerneltune.tools.languages import DEVICE_CODE
from kerneltune.tools.languages.base import ExceedsSharedMemory, NotCompiled, device_code, language, languages
from kerneltune.tools.languages.ptx import PtxError
from kerneltune.tools.languages.ptx.assemble import assemble, code_of, with_needed_labels
from kerneltune.tools.languages.ptxas import ptxas
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.errors import NO_ROOM
from kerneltune.tools.schema.messages import (
    Compiled,
    CompileReply,
    CompileRequest,
    EffectsReply,
    EffectsRequest,
    Failure,
    KernelEffects,
    Lowered,
    LoweringRequest,
    PtxReply,
    PtxRequest,
    SassReply,
    SassRequest,
)
from kerneltune.tools.schema.plan import Kernel
from kerneltune.tools.schema.sass import MOST_PTX, Sass, counted, instructions, sections
from kerneltune.tools.schema.verdict import Cause, Status

DISASSEMBLE_S = 20.0
_OPTIONS = ("-c", "-hex", "-gi", "-gp", "-ndf")
_KERNEL = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.MULTILINE)
_FULL = NO_ROOM - {errno.EFBIG}  # which is a limit of ours
_PTX_SECTION = ".nv_debug_ptx_txt"


def warm() -> None:
    """Compile a kernel of each device code, so that forks start with LLVM's tables built and ptxas found."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))
    languages()  # which forks could not read
    for name in DEVICE_CODE:
        _compile_one(device_code(name).warm_kernel, "sm_90", folder)


def main(channel: Any) -> None:
    """Answer requests for cubins, SASS, PTX and effects until the supervisor closes the socket."""
    folder = Path(os.environ["TMPDIR"])
    handlers = {
        CompileRequest: lambda request, _: compile_kernels(request, folder),
        SassRequest: lambda request, cubins: disassemble_all(request, cubins, folder),
        PtxRequest: lambda request, _: ptx_of(request, folder),
        EffectsRequest: lambda request, _: read(request),
        LoweringRequest: lambda request, _: lower(request, folder),
    }
    wire.serve(channel, handlers)


def read(request: EffectsRequest) -> EffectsReply:
    """What each kernel does by its text."""
    return EffectsReply(
        tuple(
            KernelEffects(device_code(k.language).effects(k), device_code(k.language).waits(k)) for k in request.kernels
        )
    )


def lower(request: LoweringRequest, folder: Path) -> Lowered:
    """A program's PTX, by the compiler of its language."""
    diagnostics: list[str] = []
    try:
        with _captured(folder, diagnostics):
            return language(request.program.language).lower(request.program, request.arch, folder)
    except Exception as error:  # noqa: BLE001 - any failure of a compiler on this text is the candidate's failure
        return Lowered(failure=_failure(error, "".join(diagnostics)))


def ptx_of(request: PtxRequest, folder: Path) -> PtxReply:
    """The PTX that Triton makes of each kernel, or its TTGIR."""
    texts: list[str] = []
    shared: list[int] = []
    for kernel in request.kernels:
        diagnostics: list[str] = []
        try:
            with _captured(folder, diagnostics):
                _check_options(kernel)
                text, shared_bytes = _text_of(kernel, request, folder)
        except PtxError as error:
            return PtxReply(problem=f"{kernel.name}: {error}"[:4000])
        except Exception as error:  # noqa: BLE001 - any failure of Triton on this text is the candidate's failure
            return PtxReply(problem=f"{kernel.name}: {_failure(error, ''.join(diagnostics)).message}"[:4000])
        texts.append(text)
        shared.append(shared_bytes)
    return PtxReply(tuple(texts), tuple(shared))


def _text_of(kernel: Kernel, request: PtxRequest, folder: Path) -> tuple[str, int]:
    its = device_code(kernel.language)
    if request.stage == "ttgir":
        return its.ttgir(kernel, request.arch, folder), 0
    written, shared_bytes = its.ptx(kernel, request.arch, folder)
    return with_needed_labels(written, lambda ptx: code_of(assemble(ptx, request.arch, folder).cubin)), shared_bytes


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
            if _is_full(folder, error):
                return CompileReply(disk_full=True), []
            failure = _failure(error, "".join(diagnostics))
            return CompileReply(tuple(done), too_large, failure, kernel.name), cubins
        done.append(compiled)
        cubins.append(cubin)
    return CompileReply(tuple(done), too_large), cubins


def _compile_one(kernel: Kernel, arch: str, folder: Path) -> tuple[Compiled, bytes]:
    _check_options(kernel)
    return device_code(kernel.language).compile(kernel, arch, folder)


def _check_options(kernel: Kernel) -> None:
    if problem := device_code(kernel.language).forbidden_option(kernel.options):
        raise NotCompiled(Failure(Status.REJECTED, problem, cause=Cause.COMPILE_OPTION))


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
    if isinstance(error, NotCompiled):
        return error.failure
    lines = [int(n) for n in re.findall(r"candidate\.py\"?:(\d+)", diagnostics + str(error))]
    useful = [x for x in diagnostics.splitlines() if "error" in x or "note" in x or "ptxas" in x]
    message = "\n".join([f"{type(error).__name__}: {str(error).split('Repro command')[0].strip()}", *useful[:20]])
    return Failure(Status.COMPILE_FAILED, message[:4000], lines[0] if lines else None, cause=Cause.COMPILER_ERROR)


def _is_full(folder: Path, error: Exception) -> bool:
    """Whether the disk is why: the error says so, or, as ptxas fails in words of its own, no 64 KiB can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError as now:
        return now.errno in _FULL
    return isinstance(error, OSError) and error.errno in _FULL


class CannotDisassemble(Exception):
    """No disassembler, or one that does not understand the file."""


def disassemble_all(request: SassRequest, cubins: Sequence[bytes], folder: Path) -> SassReply:
    """Every cubin disassembled; or why one cannot be."""
    try:
        _, release = disassembler()
        kernels = tuple(disassemble(cubin, folder) for cubin in cubins)
        return SassReply(kernels, f"ptxas {ptxas(request.arch)[1]}", f"nvdisasm {release}")
    except CannotDisassemble as error:
        return SassReply(problem=str(error))


def disassemble(cubin: bytes, folder: Path) -> Sass:
    """The kernel in a cubin, counted. Raises CannotDisassemble."""
    program, release = disassembler()
    given, told = folder / "kernel.cubin", folder / "kernel.sass"
    given.write_bytes(cubin)
    try:
        with told.open("wb") as out:
            done = subprocess.run(
                [program, *_OPTIONS, str(given)], stdout=out, stderr=subprocess.PIPE, timeout=DISASSEMBLE_S, check=False
            )
        with told.open(errors="replace") as listing:
            beginning = listing.read(1 << 16)
            listing.seek(0)
            code, cut = instructions(listing)
    except subprocess.TimeoutExpired as error:
        raise CannotDisassemble(f"nvdisasm {release} took longer than {DISASSEMBLE_S:g} s") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotDisassemble(f"nvdisasm {release}: {type(error).__name__}: {error}"[:300]) from error
    finally:
        for path in (given, told):
            path.unlink(missing_ok=True)
    if done.returncode or not code:
        raise CannotDisassemble(_refused(release, done.stderr.decode(errors="replace"), given))
    name = _KERNEL.search(beginning)
    return counted(name[1] if name else "?", code, cut, noted_ptx(cubin))


def _refused(release: str, said: str, path: Path) -> str:
    """What the disassembler has against a cubin: it may be of an architecture that is newer than it is."""
    words = (
        said.replace(f"file '{path}'", "file")
        .replace(f"File {path}", "this")
        .replace(str(path), "the cubin")
        .split("\n")
    )
    why = next((line.strip() for line in words if "fatal" in line or "error" in line), "it finds no instructions")
    return f"nvdisasm {release}, which comes with Triton, cannot read this cubin: {why[:200]}"


def noted_ptx(cubin: bytes) -> str:
    """The PTX that the assembler noted in a cubin, without debug information; empty where it did not. Lines count as
    the disassembler counts them."""
    with contextlib.suppress(ValueError):
        for section in sections(cubin):
            if section.name == _PTX_SECTION:
                text = section.data(cubin).replace(b"\0", b"\n").decode(errors="replace")
                return text.rstrip("\n")[:MOST_PTX] + "\n"
    return ""


@cache
def disassembler() -> tuple[str, str]:
    """The program and its release, "12.8". Raises CannotDisassemble."""
    if importlib.util.find_spec("triton") is None:
        raise CannotDisassemble("Triton, which brings nvdisasm, is not installed")
    from triton import knobs

    try:
        tool = knobs.nvidia.nvdisasm
    except (RuntimeError, OSError) as error:
        raise CannotDisassemble(str(error)[:300]) from error
    return str(tool.path), str(tool.version)
