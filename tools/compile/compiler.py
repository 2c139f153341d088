"""The compiler's work: kernels to cubins for the target, with what the compiler says of them. Runs confined.

The text comes from a hostile process, so this is a child that may crash, hang or be killed; it may start ptxas and
write to its scratch folder, and nothing else.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kerneltune.tools.compile.disassemble import disassemble_all
from kerneltune.tools.languages.base import ExceedsSharedMemory, NotCompiled, language, languages
from kerneltune.tools.languages.ptx import PtxError
from kerneltune.tools.languages.ptx.assemble import assemble, code_of, with_needed_labels
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.messages import (
    Compiled,
    CompileReply,
    CompileRequest,
    Failure,
    PtxReply,
    PtxRequest,
    SassRequest,
)
from kerneltune.tools.schema.plan import Kernel
from kerneltune.tools.schema.verdict import Cause, Status


def warm() -> None:
    """Compile a kernel of each language, so that forks start with LLVM's tables built and ptxas found."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))
    for known in languages():
        _compile_one(known.warm_kernel, "sm_90", folder)


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
                _check_options(kernel)
                written, shared_bytes = language(kernel.language).ptx(kernel, request.arch, folder)
                text = with_needed_labels(written, lambda ptx: code_of(assemble(ptx, request.arch, folder).cubin))
        except PtxError as error:
            return PtxReply(problem=f"{kernel.name}: {error}"[:4000])
        except Exception as error:  # noqa: BLE001 - any failure of Triton on this text is the candidate's failure
            return PtxReply(problem=f"{kernel.name}: {_failure(error, ''.join(diagnostics)).message}"[:4000])
        texts.append(text)
        shared.append(shared_bytes)
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
    _check_options(kernel)
    return language(kernel.language).compile(kernel, arch, folder)


def _check_options(kernel: Kernel) -> None:
    if problem := language(kernel.language).forbidden_option(kernel.options):
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
