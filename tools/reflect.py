"""The `reflect` tool: what the evidence says about an attempt, and whether a hypothesis held. Pure.

`roofline` says what holds an attempt back, from its time if there is one, its plan and the compiler's report. Bytes and
operations are the task's own, so achieved rates are what a perfect kernel would have needed in that time; what the
hardware did is in `schema.evidence`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, prod
from typing import Literal

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.evidence import BUSY, WORTH_A_HINT, bottlenecks, counted
from kerneltune.tools.schema.gpus import Gpu, rate_tflops, speed_of_light
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.sass import KernelFacts, kernel_facts
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import KernelReport, Verdict, launch_shares
from kerneltune.tools.update import Update

FLAT = 0.02  # a predicted speed-up nearer to 1 says that nothing will change
NOISE = 0.005  # a change below this share of the parent's time is no evidence either way


def evidence(
    task: TaskSpec, verdict: Verdict, kernels: Sequence[KernelReport], parent: Verdict | None
) -> dict[str, Json]:
    """Facts about an attempt: what the compiler reports, its place on the roofline, the change to its parent."""
    facts: dict[str, Json] = {
        "status": verdict.status.value,
        "arithmetic_intensity": round(task.main.flops / task.main.bytes_moved, 3) if task.main.bytes_moved else None,
        "registers": [k.registers for k in kernels],
        "spill_bytes": sum(k.spill_bytes for k in kernels),
        "occupancy": [k.occupancy for k in kernels],
        "shared_bytes": [k.shared_bytes for k in kernels],
        "source": "compiler report",
    }
    if verdict.timing and verdict.sol_fraction is not None:
        facts["speed_of_light_fraction"] = round(verdict.sol_fraction, 4)
        facts["coverage"] = verdict.coverage
    if verdict.timing and parent and parent.timing:
        facts["time_ratio_to_parent"] = round(verdict.timing.median_us / parent.timing.median_us, 4)
    return facts


def outcome(
    us: float | None, parent_us: float, predicted: float | None = None
) -> Literal["open", "confirmed", "refuted"]:
    """Whether what was predicted happened, by times (µs) that compare; None: the attempt is not accepted, which refutes
    its hypothesis. `predicted`: the speed-up that was; None: some improvement.

    A speed-up is confirmed within half of its logarithm (1.5 by 1.23 to 1.83), refuted by no change or one in the other
    direction, and open where it came otherwise too large or too small.
    """
    if us is None:
        return "refuted"
    measured = log(parent_us / us)
    if predicted is None:
        return "open" if abs(measured) < NOISE else "confirmed" if measured > 0 else "refuted"
    expected = log(predicted)
    if abs(measured - expected) <= max(FLAT, abs(expected) / 2):
        return "confirmed"
    happened = abs(measured) >= NOISE and abs(expected) >= FLAT and (measured > 0) == (expected > 0)
    return "open" if happened else "refuted"


Bound = Literal["memory", "compute", "latency"]
NEAR = 0.9  # of the speed of light: little is left
MOST_HINTS = 8
SHORT_US = 5.0  # below this the start of a kernel is a large part of its time


@dataclass(frozen=True)
class PlanWork:
    """What one forward of the timed case does, by its plan. `launches`: the kernel of each and its programs; None: no
    plan kept."""

    traffic_bytes: int | None = None
    launches: tuple[tuple[str, int], ...] = ()
    library_ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Roofline:
    """An attempt's place. Rates and shares are None without a time; shares are of the data sheet's ceilings."""

    bound: Bound
    reason: str
    intensity: float | None  # FLOP per byte
    ridge: float  # FLOP per byte from which on a perfect kernel is bound by arithmetic
    floor_us: float
    achieved_gbps: float | None = None
    achieved_tflops: float | None = None
    bandwidth_share: float | None = None
    compute_share: float | None = None
    hints: tuple[str, ...] = field(default=())


def work_of(update: Update, variant: str = "") -> PlanWork:
    """The work of the timed case's plan of that variant."""
    plan = update.judged_plan(variant)
    if plan is None:
        return PlanWork()
    launches = tuple((plan.kernels[s.kernel].name, prod(s.grid)) for s in plan.launches)
    return PlanWork(plan.traffic_bytes, launches, tuple(dict.fromkeys(plan.library_ops)))


def roofline(task: TaskSpec, gpu: Gpu, verdict: Verdict, kernels: Sequence[KernelReport], work: PlanWork) -> Roofline:
    """Where an attempt lies, why, and what to look at."""
    main = task.main
    light = speed_of_light(main, gpu, task.precision)
    rate = rate_tflops(gpu, task.precision)
    intensity = main.flops / main.bytes_moved if main.bytes_moved else None
    ridge = rate * 1e3 / gpu.bandwidth_gbps
    hints = tuple(_hints(gpu, main.bytes_moved, kernels, work, verdict))
    if verdict.timing is None:
        reason = f"a perfect kernel is bound by {light.bound}; nothing was timed, so this says nothing of the attempt"
        return Roofline(light.bound, reason, intensity, ridge, light.target_us, hints=hints)
    us = max(verdict.timing.median_us, 1e-9)
    gbps, tflops = main.bytes_moved / us / 1e3, main.flops / us / 1e6
    shares = (gbps / gpu.bandwidth_gbps, tflops / rate)
    bound, reason = _bound(*shares, us)
    return Roofline(bound, reason, intensity, ridge, light.target_us, gbps, tflops, *shares, hints)


def _bound(memory: float, compute: float, us: float) -> tuple[Bound, str]:
    shares = f"{memory:.0%} of the bandwidth, {compute:.0%} of the arithmetic rate"
    if max(memory, compute) >= BUSY:
        return ("memory" if memory >= compute else "compute"), shares
    if us < SHORT_US:
        return "latency", f"{shares}; {us:.2f} us is mostly the start and end of kernels"
    return (
        "latency",
        f"{shares}: neither is busy: threads wait (for loads, barriers, each other) or repeat work",
    )


def _hints(gpu: Gpu, least_bytes: int, kernels: Sequence[KernelReport], work: PlanWork, verdict: Verdict) -> list[str]:
    """What to look at next, the most telling first; each with its number. Of a kernel only where it takes time."""
    hints: list[str] = []
    shares = launch_shares(verdict.receipt)
    light = {name for name, share in shares.items() if share < WORTH_A_HINT}
    if verdict.sol_fraction is not None and verdict.sol_fraction >= NEAR:
        hints.append(
            f"{verdict.sol_fraction:.0%} of the speed of light: at most {1 / verdict.sol_fraction:.2f}x is left"
        )
    if verdict.coverage is not None and verdict.coverage < NEAR:
        most = f"; without it at most {1 / verdict.coverage:.2f}x" if verdict.coverage else ""
        hints.append(f"{1 - verdict.coverage:.0%} of the time is outside your kernels: {_library(work)}{most}")
    if work.traffic_bytes and least_bytes and work.traffic_bytes > 1.1 * least_bytes:
        ratio = work.traffic_bytes / least_bytes
        hints.append(f"its steps touch {ratio:.2f}x the task's least bytes: fuse steps, drop intermediate tensors")
    elif (moved := _moved_bytes(work, verdict)) > 1.2 * least_bytes > 0:
        hints.append(f"memory moved {moved / least_bytes:.2f}x the task's least bytes: something is read again")
    if len(work.launches) > 1 and _start_share(verdict) >= WORTH_A_HINT:
        hints.append(f"{len(work.launches)} launches a forward: each costs a start and a wait")
    hints += [_few(n, gpu) for name, n in work.launches if n < gpu.multiprocessors and name not in light]
    hints += [hint for kernel in kernels if kernel.name not in light for hint in _of_kernel(kernel)]
    return list(dict.fromkeys(hints))[:MOST_HINTS]


def _moved_bytes(work: PlanWork, verdict: Verdict) -> float:
    """What the counters saw of DRAM in a forward; 0 where they did not see every launch, or memory limits none."""
    seen = counted(verdict.receipt)
    limits = any(one.limit == "memory" for one in bottlenecks(verdict))
    return sum(one.dram_bytes for one in seen) if limits and len(seen) == len(work.launches) else 0.0


def _start_share(verdict: Verdict) -> float:
    """The share of the time that as many empty launches take; 1 where nothing was timed."""
    null_us = verdict.receipt.get("null_us")
    if verdict.timing is None or not isinstance(null_us, int | float):
        return 1.0
    return null_us / verdict.timing.median_us


def _library(work: PlanWork) -> str:
    return f"library steps {', '.join(work.library_ops[:6])}" if work.library_ops else "gaps between launches"


def _few(programs: int, gpu: Gpu) -> str:
    return f"a launch has {programs} programs for {gpu.multiprocessors} multiprocessors: split the work further"


def _of_kernel(kernel: KernelReport) -> list[str]:
    hints = []
    if spilled := kernel.spill_bytes:
        hints.append(f"{kernel.name} spills {spilled} bytes a thread: smaller blocks or more warps")
    if kernel.occupancy < 0.25 and kernel.shared_bytes < 64 << 10:
        hints.append(f"{kernel.name} keeps {kernel.occupancy:.0%} of the warps resident ({kernel.registers} registers)")
    return hints


def facts_of(update: Update, plan: Plan | None) -> tuple[KernelFacts, ...]:
    """The facts of a plan's kernels that were compiled, in the order of `Update.kernels_of`."""
    made = update.compiled_of(plan)
    return tuple(kernel_facts(kernel, artefact.compiled.report, plan) for kernel, artefact in made if plan)
