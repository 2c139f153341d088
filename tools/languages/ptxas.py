"""NVIDIA's assembler as Triton ships it: where it is, and what it says of a kernel."""

import errno
import hashlib
import re
import time
from dataclasses import dataclass
from functools import lru_cache

from kerneltune.tools.languages.base import ExceedsSharedMemory, NotCompiled
from kerneltune.tools.schema.gpus import LARGEST_BLOCK, arch_number, gpu_for_arch, occupancy
from kerneltune.tools.schema.messages import Failure
from kerneltune.tools.schema.verdict import Cause, KernelReport, Status


@dataclass(frozen=True)
class Resources:
    """What one entry takes. Bytes per thread for stack and spills, per block for static shared memory."""

    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0


@lru_cache(maxsize=8)
def ptxas(arch: str) -> tuple[str, str]:
    """The assembler for "sm_90a" and its release; once, as Triton starts it to ask for that. Of two, the one for
    Blackwell knows newer PTX, and is used from sm_100 on."""
    from triton.backends.nvidia.compiler import get_ptxas

    tool = get_ptxas(arch_number(arch))
    return str(tool.path), str(tool.version)


def resources_of(said: str) -> Resources:
    """What ptxas -v says ("Used 40 registers, …", "0 bytes stack frame, 0 bytes spill stores, …"); the most of each.
    Raises OSError where it does not say how many registers: its log is lost."""
    if "registers" not in said:
        raise OSError(errno.ENOSPC, "no room for ptxas's log")

    def number(pattern: str) -> int:
        return max((int(n) for n in re.findall(pattern, said)), default=0)

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_store_bytes=number(r"(\d+) bytes spill stores"),
        spill_load_bytes=number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        static_shared_bytes=number(r"(\d+) bytes smem"),
    )


def report(
    name: str,
    arch: str,
    cubin: bytes,
    used: Resources,
    *,
    shared_bytes: int,
    num_warps: int,
    num_stages: int,
    started_s: float,
) -> KernelReport:
    """The compile report of one kernel; `started_s` by perf_counter. Raises ExceedsSharedMemory, and NotCompiled where
    its blocks have more threads than any GPU starts: neither compiler minds."""
    if 32 * num_warps > LARGEST_BLOCK:
        why = f"num_warps={num_warps} is a block of {32 * num_warps} threads; the most is {LARGEST_BLOCK}"
        raise NotCompiled(Failure(Status.COMPILE_FAILED, why, cause=Cause.COMPILE_OPTION))
    if shared_bytes > gpu_for_arch(arch).shared_per_block_bytes:
        raise ExceedsSharedMemory(shared_bytes)
    return KernelReport(
        name=name,
        registers=used.registers,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        stack_bytes=used.stack_bytes,
        shared_bytes=shared_bytes,
        num_warps=num_warps,
        num_stages=num_stages,
        occupancy=round(occupancy(arch, used.registers, shared_bytes, num_warps), 3),
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        compile_s=round(time.perf_counter() - started_s, 4),
    )
