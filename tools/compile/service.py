"""Has kernels compiled by a confined worker. What it says is checked here and made a value: artefacts or a verdict."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from kerneltune.tools.sandbox.workers import Worker
from kerneltune.tools.schema.codec import DecodeError, decode, encode
from kerneltune.tools.schema.errors import WorkerError, WorkerTimeout
from kerneltune.tools.schema.gpus import gpu_for_arch
from kerneltune.tools.schema.messages import (
    Compiled,
    CompileReply,
    CompileRequest,
    CompilerFacts,
    PtxReply,
    PtxRequest,
    SassReply,
    SassRequest,
)
from kerneltune.tools.schema.plan import Kernel
from kerneltune.tools.schema.sass import made_plain
from kerneltune.tools.schema.text import plain
from kerneltune.tools.schema.verdict import MOST_OF_A_NAME, Status, Verdict
from kerneltune.tools.trace.service import end_of, verdict_of

SASS_S = 20.0  # of one kernel
_MOST_BYTES = 1 << 40


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel: report, launch metadata, cubin."""

    compiled: Compiled
    cubin: bytes


@dataclass(frozen=True)
class Built:
    """Artefacts by Kernel.sha256; the bytes of shared memory of kernels that no block of the target has room for; or
    the failure and the number of the group that it happened in."""

    artefacts: dict[str, Artefact] = field(default_factory=dict)
    too_large: dict[str, int] = field(default_factory=dict)
    failure: Verdict | None = None
    failed_group: int = 0


class Compiling:
    """Compiles kernels for one target, each set in workers of its own."""

    def __init__(
        self, new_compiler: Callable[[], Worker], arch: str, *, compile_s: float, width: int | None = None
    ) -> None:
        self._new_compiler, self._arch, self._compile_s = new_compiler, arch, compile_s
        self._width = _side_by_side() if width is None else width

    def compile(self, groups: Sequence[Sequence[Kernel]]) -> Built:
        """Compile group after group, none after one that fails; the kernels of a group `width` side by side."""
        done, deadline = Built(), time.monotonic() + self._compile_s
        width = max(1, min(self._width, max(map(len, groups), default=0)))
        # On the way out workers end first; the pool waits for threads that wait for them.
        with ThreadPoolExecutor(width) as pool, contextlib.ExitStack() as stack:
            workers = [stack.enter_context(self._new_compiler()) for _ in range(width)]
            for number, kernels in enumerate(groups):
                shares = [kernels[i::width] for i in range(width)]
                for built in pool.map(lambda w, its: self._share(w, its, deadline), workers, shares):
                    failure = done.failure or built.failure
                    done = Built(done.artefacts | built.artefacts, done.too_large | built.too_large, failure, number)
                if done.failure:
                    break
        return done

    def _share(self, worker: Worker, kernels: Sequence[Kernel], deadline: float) -> Built:
        try:
            return self._one(worker, kernels, max(0.1, deadline - time.monotonic())) if kernels else Built()
        except WorkerTimeout:
            names = ", ".join(sorted({k.name for k in kernels}))
            words = f"compiling {names} took longer than {self._compile_s:g} s"
            return Built(failure=Verdict(Status.TIMED_OUT, words))
        except (WorkerError, DecodeError) as error:
            words = end_of(error) if isinstance(error, WorkerError) else f"sent a malformed reply: {error}"
            return Built(failure=Verdict(Status.COMPILE_FAILED, f"the compiler {words}"))

    def _one(self, worker: Worker, kernels: Sequence[Kernel], timeout_s: float) -> Built:
        message = worker.call(encode(CompileRequest(tuple(kernels), self._arch)), timeout_s=timeout_s)
        reply, cubins = decode(CompileReply, message.body), message.blobs
        too_large = {kernels[number].sha256: size for number, size in _numbered(reply.too_large, len(kernels))}
        rest = [kernel for kernel in kernels if kernel.sha256 not in too_large]
        done = zip(rest, reply.compiled, cubins, strict=False)
        artefacts = {kernel.sha256: Artefact(compiled, cubin) for kernel, compiled, cubin in done}
        if reply.failure:
            name = plain(str(reply.failed_kernel), MOST_OF_A_NAME // 2)
            return Built(artefacts, too_large, replace(verdict_of(reply.failure, f" (kernel {name})"), kernel=name))
        if not len(rest) == len(reply.compiled) == len(cubins):
            words = f"the compiler answered for {len(cubins)} of {len(rest)} kernels"
            return Built(failure=Verdict(Status.COMPILE_FAILED, words))
        return Built(artefacts, too_large)

    def sass(self, artefacts: Sequence[Artefact]) -> SassReply:
        """Each kernel disassembled by a confined worker, under its report's name; or why it cannot be."""
        if not artefacts:
            return SassReply(problem="nothing of it was compiled")
        try:
            with self._new_compiler() as worker:
                cubins = [a.cubin for a in artefacts]
                message = worker.call(encode(SassRequest(self._arch)), cubins, timeout_s=SASS_S * len(cubins))
                return _checked(decode(SassReply, message.body), artefacts)
        except WorkerTimeout:
            return SassReply(problem=f"disassembling took longer than {SASS_S * len(artefacts):g} s")
        except (WorkerError, DecodeError) as error:
            words = end_of(error) if isinstance(error, WorkerError) else f"sent a malformed reply: {error}"
            return SassReply(problem=f"the disassembler {words}")

    def ptx(self, kernels: Sequence[Kernel]) -> PtxReply:
        """Triton's PTX of each kernel, or the problem."""
        try:
            with self._new_compiler() as worker:
                reply = worker.call(encode(PtxRequest(tuple(kernels), self._arch)), timeout_s=self._compile_s)
                found = decode(PtxReply, reply.body)
        except WorkerTimeout:
            return PtxReply(problem=f"took longer than {self._compile_s:g} s")
        except (WorkerError, DecodeError) as error:
            return PtxReply(problem=end_of(error) if isinstance(error, WorkerError) else f"a malformed reply: {error}")
        if not found.problem and not len(found.texts) == len(found.shared_bytes) == len(kernels):
            return PtxReply(problem=f"it answered for {len(found.texts)} of {len(kernels)} kernels")
        return found

    def facts(self, kernel: Kernel) -> CompilerFacts:
        """What host code may know of one kernel."""
        built = self.compile([[kernel]])
        if built.failure:
            return CompilerFacts(problem=f"it does not compile: {built.failure.detail}"[:500])
        if built.too_large:
            return CompilerFacts(problem=needs_too_much(kernel, self._arch, built.too_large[kernel.sha256])[:500])
        report = built.artefacts[kernel.sha256].compiled.report
        spilled = report.spill_store_bytes + report.spill_load_bytes
        return CompilerFacts(report.registers, spilled, report.shared_bytes)


def _checked(reply: SassReply, artefacts: Sequence[Artefact]) -> SassReply:
    """What a confined worker said, fit to be shown. Raises DecodeError."""
    if not reply.problem and len(reply.kernels) != len(artefacts):
        raise DecodeError(f"speaks of {len(reply.kernels)} of {len(artefacts)} kernels")
    try:
        kernels = tuple(made_plain(k) for k in reply.kernels)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    named = zip(kernels, artefacts, strict=False)
    return SassReply(
        tuple(replace(k, name=artefact.compiled.report.name) for k, artefact in named),
        plain(reply.assembler, MOST_OF_A_NAME),
        plain(reply.disassembler, MOST_OF_A_NAME),
        plain(reply.problem),
    )


def needs_too_much(kernel: Kernel, arch: str, needed_bytes: int) -> str:
    """Why a kernel cannot be launched on the target, and what would help."""
    limit = gpu_for_arch(arch).shared_per_block_bytes
    remedy = "Use smaller blocks or fewer num_stages"
    if kernel.language == "ptx":
        remedy = f"launch with less than shared_bytes={int(kernel.options.get('shared_bytes', 0))}"
    return f"needs {needed_bytes} bytes of shared memory per block; {arch} has {limit}. {remedy}"


def _numbered(sizes: Mapping[str, int], count: int) -> Iterator[tuple[int, int]]:
    """What a compiler said of kernels by number. Raises DecodeError for a number that it was not asked about."""
    for number, size in sizes.items():
        if len(number) > 9 or not number.isdecimal() or int(number) >= count:
            raise DecodeError(f"speaks of kernel {plain(number, 20)} of {count}")
        yield int(number), max(0, min(size, _MOST_BYTES))


def _side_by_side() -> int:
    """Kernels of one candidate that are compiled at once: a kernel per case adds up (39 s for one of 3,000 unrolled
    steps), and where there are many cores some are idle."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 4))
