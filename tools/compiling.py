"""Has kernels compiled by a confined worker. What it says is checked here and made a value: artefacts or a verdict."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tools.codec import DecodeError, decode, encode
from tools.errors import WorkerError, WorkerTimeout
from tools.plan.messages import CensusReply, CensusRequest, Compiled, CompileReply, CompileRequest, KernelFacts
from tools.plan.schema import Kernel
from tools.tracing import end_of, verdict_of
from tools.verdict import MOST_OF_A_NAME, Status, Verdict
from tools.words import plain
from tools.workers import Worker

CENSUS_S = 20.0


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel: report, launch metadata, cubin."""

    compiled: Compiled
    cubin: bytes


@dataclass(frozen=True)
class Built:
    """Artefacts by Kernel.sha256, and why some kernels cannot be launched on the target at all; or the failure and the
    number of the group that it happened in."""

    artefacts: dict[str, Artefact] = field(default_factory=dict)
    too_large: dict[str, str] = field(default_factory=dict)
    failure: Verdict | None = None
    failed_group: int = 0


class Compiling:
    """Compiles kernels for one target, each set in a worker of its own."""

    def __init__(self, new_compiler: Callable[[], Worker], arch: str, *, compile_s: float) -> None:
        self._new_compiler, self._arch, self._compile_s = new_compiler, arch, compile_s

    def compile(self, groups: Sequence[Sequence[Kernel]]) -> Built:
        """Compile group after group in one worker; none after one that fails."""
        artefacts: dict[str, Artefact] = {}
        too_large: dict[str, str] = {}
        deadline = time.monotonic() + self._compile_s
        group, kernels = 0, groups[0] if groups else ()
        try:
            with self._new_compiler() as worker:
                for group, kernels in enumerate(groups):
                    built = self._one(worker, kernels, max(0.1, deadline - time.monotonic()))
                    artefacts |= built.artefacts
                    too_large |= built.too_large
                    if built.failure:
                        return Built(artefacts, too_large, built.failure, group)
        except WorkerTimeout:
            names = ", ".join(sorted({k.name for k in kernels}))
            words = f"compiling {names} took longer than {self._compile_s:g} s"
            return Built(artefacts, too_large, Verdict(Status.TIMED_OUT, words), group)
        except (WorkerError, DecodeError) as error:
            words = end_of(error) if isinstance(error, WorkerError) else f"sent a malformed reply: {error}"
            return Built(artefacts, too_large, Verdict(Status.COMPILE_FAILED, f"the compiler {words}"), group)
        return Built(artefacts, too_large)

    def _one(self, worker: Worker, kernels: Sequence[Kernel], timeout_s: float) -> Built:
        message = worker.call(encode(CompileRequest(tuple(kernels), self._arch)), timeout_s=timeout_s)
        reply, cubins = decode(CompileReply, message.body), message.blobs
        too_large = {kernels[number].sha256: words for number, words in _numbered(reply.too_large, len(kernels))}
        rest = [kernel for kernel in kernels if kernel.sha256 not in too_large]
        done = zip(rest, reply.compiled, cubins, strict=False)
        artefacts = {kernel.sha256: Artefact(compiled, cubin) for kernel, compiled, cubin in done}
        if reply.failure:
            name = plain(str(reply.failed_kernel), MOST_OF_A_NAME // 2)
            return Built(artefacts, too_large, verdict_of(reply.failure, f" (kernel {name})"))
        if not len(rest) == len(reply.compiled) == len(cubins):
            words = f"the compiler answered for {len(cubins)} of {len(rest)} kernels"
            return Built(failure=Verdict(Status.COMPILE_FAILED, words))
        return Built(artefacts, too_large)

    def census(self, artefacts: Sequence[Artefact]) -> tuple[dict[str, int], ...]:
        """Instructions by class of each kernel, counted by a confined worker; () where that fails."""
        try:
            with self._new_compiler() as worker:
                cubins = [a.cubin for a in artefacts]
                reply = worker.call(encode(CensusRequest()), cubins, timeout_s=CENSUS_S * max(1, len(cubins)))
                return decode(CensusReply, reply.body).counts
        except (WorkerError, DecodeError):
            return ()

    def facts(self, kernel: Kernel) -> KernelFacts:
        """What host code may know of one kernel."""
        built = self.compile([[kernel]])
        if built.failure:
            return KernelFacts(problem=f"it does not compile: {built.failure.detail}"[:500])
        if built.too_large:
            return KernelFacts(problem=built.too_large[kernel.sha256][:500])
        report = built.artefacts[kernel.sha256].compiled.report
        spilled = report.spill_store_bytes + report.spill_load_bytes
        return KernelFacts(report.registers, spilled, report.shared_bytes)


def _numbered(words: Mapping[str, str], count: int) -> Iterator[tuple[int, str]]:
    """What a compiler said of kernels by number. Raises DecodeError for a number that it was not asked about."""
    for number, said in words.items():
        if not number.isdecimal() or int(number) >= count:
            raise DecodeError(f"speaks of kernel {plain(number, 20)} of {count}")
        yield int(number), plain(said, MOST_OF_A_NAME)
