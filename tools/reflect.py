"""The `reflect` tool: what the evidence says about an attempt, and whether a hypothesis held. Pure.

Two looks at why a kernel takes its time. `bottlenecks` and `evidence_in_words` read in the receipt what the hardware
did: times by launch, hardware counters, probes; what cannot be read says nothing. `roofline` needs no GPU: it has the
compiler's report, the plan, and the time if there is one. Its bytes and operations are the task's own, so achieved
rates are what a perfect kernel would have needed in that time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import TYPE_CHECKING, Literal, TypeVar

from kerneltune.tools.schema.codec import DecodeError, Json, decode, number, plain
from kerneltune.tools.schema.gpus import Gpu, rate_tflops, speed_of_light
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.sass import KernelFacts, kernel_facts
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import (
    BEYOND_LIGHT,
    COUNTERS,
    PROBES,
    STALLS,
    KernelCounters,
    KernelReport,
    Probes,
    Verdict,
    launch_shares,
    launches_in_words,
    light_in_words,
    of_a_process,
)

if TYPE_CHECKING:
    from kerneltune.tools.update import Update  # half a second of imports, which showing a stored attempt does without

T = TypeVar("T")

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


Unit = Literal["memory", "tensor cores", "instruction issue"]
Limit = Unit | Literal["latency", "not memory"]
BUSY = 0.6  # share of its peak rate from which on a unit is called the limit
WORTH_A_HINT = 0.1  # share of the time from which on something is worth a hint
_STAYS = 0.85  # of the time without DRAM, from which on DRAM is not the limit
_UNITS: Mapping[str, Unit] = {
    "dram_percent": "memory",
    "tensor_percent": "tensor cores",
    "issue_percent": "instruction issue",
}


@dataclass(frozen=True)
class Bottleneck:
    """What limits a kernel, or the whole forward (`kernel` ""), of which probes tell memory from the rest. `share`: of
    the forward's time; `unit`: the busiest, and `used`, its share of its peak rate (`of_copy`: memory's of the rate of
    a copy); with the same work, the kernel becomes 1 / `used` times as fast at most. `stall`: what warps wait for most
    (STALLS), `stall_share` of all waiting; `warps`: the share that is resident (None: not known)."""

    limit: Limit
    unit: Unit
    used: float
    kernel: str = ""
    share: float = 1.0
    stall: str = ""
    stall_share: float = 0.0
    warps: float | None = None
    of_copy: bool = False

    @property
    def most_gain(self) -> float:
        """How many times as fast the kernel can become at most."""
        return 1.0 / self.used

    @property
    def most_gain_in_all(self) -> float:
        """The same of the forward, of which only this kernel becomes faster."""
        return 1.0 / (1.0 - self.share + self.share * self.used)


def counted(receipt: Mapping[str, Json]) -> tuple[KernelCounters, ...]:
    """The kernels that were looked at by ncu."""
    entry = receipt.get(COUNTERS)
    return _read(tuple[KernelCounters, ...], entry.get("kernels")) or () if isinstance(entry, Mapping) else ()


def probed(receipt: Mapping[str, Json]) -> Probes | None:
    """What the probes took, where they were made."""
    found = _read(Probes, receipt.get(PROBES))
    return found if found and min(found.cold_us, found.copy_us, found.resident_us or found.cold_us) > 0 else None


def _read(kind: type[T], value: Json) -> T | None:
    try:
        return None if value is None else decode(kind, value)
    except DecodeError:
        return None


def bottlenecks(verdict: Verdict) -> list[Bottleneck]:
    """What limits the kernels that take a tenth of the time or more, the longest first; without counters what limits
    the forward as a whole, by its probes."""
    shares = launch_shares(verdict.receipt)
    alone = verdict.coverage if verdict.coverage is not None else 1.0
    found: dict[str, Bottleneck] = {}
    for one in counted(verdict.receipt):
        share = shares.get(one.kernel, 0.0) if shares else alone
        if share >= WORTH_A_HINT and (limit := _limit_of(one, share, verdict.receipt.get("copy_gbps"))) is not None:
            found.setdefault(one.kernel, limit)
    probes = probed(verdict.receipt)
    if not found and probes is not None and probes.resident_us is not None:
        stays = probes.resident_us >= _STAYS * probes.cold_us
        used = min(1.0, probes.copy_us / probes.cold_us)
        return [Bottleneck("not memory" if stays else "memory", "memory", used, of_copy=True)]
    return sorted(found.values(), key=lambda b: -b.share)


def _limit_of(one: KernelCounters, share: float, copy_gbps: Json) -> Bottleneck | None:
    used = {unit: one.values[name] / 100 for name, unit in _UNITS.items() if one.values.get(name, 0.0) > 0}
    copied = number(copy_gbps) or 0.0
    of_copy = copied > 0 and one.dram_gbps > 0
    if of_copy:  # no kernel gets the data sheet's rate: a copy reaches 88 % of it on an H200
        used["memory"] = one.dram_gbps / copied
    if not used:
        return None
    unit = max(used, key=lambda u: used[u])
    stall = max(one.stalls, key=lambda name: one.stalls[name], default="")
    waiting = sum(one.stalls.values())
    warps = one.values.get("warps_percent")
    return Bottleneck(
        unit if used[unit] >= BUSY else "latency",
        unit,
        min(1.0, used[unit]),
        one.kernel,
        share,
        stall,
        one.stalls[stall] / waiting if waiting else 0.0,
        None if warps is None else warps / 100,
        of_copy,
    )


def evidence_in_words(verdict: Verdict) -> list[tuple[str, str]]:
    """Lines with their names: the time by launch, what limits the kernels, and what was counted or probed."""
    return [*limits_in_words(verdict), *counters_in_words(verdict.receipt)]


def limits_in_words(verdict: Verdict, most: int | None = None) -> list[tuple[str, str]]:
    """The time by launch, and what limits the kernels, `most` of them, and by how much."""
    launches = launches_in_words(verdict.receipt)
    return [
        *([("by launch", launches)] if launches else []),
        *(("bottleneck", bottleneck_in_words(one)) for one in bottlenecks(verdict)[:most]),
        *(("empty launches", line) for line in _empty_launches(verdict)),
    ]


def counters_in_words(receipt: Mapping[str, Json]) -> list[tuple[str, str]]:
    """What was counted or probed, with its name."""
    return [
        *(("counters", line) for line in _counters_in_words(receipt)),
        *(("probes", line) for line in _probes_in_words(receipt)),
    ]


def bottleneck_in_words(one: Bottleneck) -> str:
    """ "rows (62 % of the time): memory, 88 % of its peak rate: with the same bytes at most 1.14x, 1.08x in all"."""
    if one.limit == "not memory":
        return f"not memory, which would allow {one.most_gain:.2f}x: instructions, or what they wait for"
    part = one.share < 0.995
    of_all = f" ({100 * one.share:.0f} % of the time)" if part else ""
    name = f"{plain(one.kernel, 80)}{of_all}: " if one.kernel else ""
    in_all = f", {one.most_gain_in_all:.2f}x in all" if part else ""
    gain = f"at most {one.most_gain:.2f}x{in_all}"
    peak = "the rate of a copy" if one.of_copy and one.unit == "memory" else _PEAKS[one.unit]
    busy = f"{100 * one.used:.0f} % of {peak}"
    if one.limit != "latency":
        return f"{name}{one.limit}, {busy}: with the same {_WORK[one.unit]} {gain}"
    waits = f", {100 * one.stall_share:.0f} % of the waiting is {STALLS.get(one.stall, one.stall)}" if one.stall else ""
    warps = f", {100 * one.warps:.0f} % of the warps are resident" if one.warps is not None else ""
    return f"{name}latency, no unit is busy ({one.unit} {busy}){waits}{warps}: {gain} until {one.unit} is the limit"


_PEAKS: Mapping[Unit, str] = {
    "memory": "its peak rate",
    "tensor cores": "their peak rate",
    "instruction issue": "all slots",
}
_WORK: Mapping[Unit, str] = {
    "memory": "bytes",
    "tensor cores": "products",
    "instruction issue": "instructions",
}


def _empty_launches(verdict: Verdict) -> Iterator[str]:
    """The share of empty launches, where it matters."""
    null_us, nodes = number(verdict.receipt.get("null_us")), of_a_process(verdict.receipt).get("launch_nodes")
    if verdict.timing is None or null_us is None or not isinstance(nodes, int):
        return
    us = verdict.timing.median_us
    if nodes > 0 and WORTH_A_HINT * us <= null_us < us:
        kernels = "an empty kernel takes" if nodes == 1 else f"{nodes} empty kernels take"
        gain = "" if nodes == 1 else f"; as one kernel at most {us / (us - null_us * (1 - 1 / nodes)):.2f}x"
        yield f"{kernels} {null_us:.1f} of the {us:.1f} µs{gain}"


def _counters_in_words(receipt: Mapping[str, Json]) -> Iterable[str]:
    """A line for each kernel that was counted, the reasons for waiting that matter first; one line where it could not
    be done; nothing where nobody asked.

    "rows: 126.6 µs under ncu, 4.2 TB/s of DRAM (88 %), 256 MiB read, 256 MiB written; L2 hits 3 %, issue 21 %, …"
    """
    return [_problem(receipt, COUNTERS)] if _problem(receipt, COUNTERS) else map(_kernel_in_words, counted(receipt))


def _problem(receipt: Mapping[str, Json], name: str) -> str:
    """Why there is none of it; "" where there is, or nobody asked."""
    entry = receipt.get(name)
    problem = entry.get("problem") if isinstance(entry, Mapping) else None
    return f"none: {plain(str(problem), 300)}" if problem else ""


def _kernel_in_words(one: KernelCounters) -> str:
    v = one.values
    parts = [f"{v['time_ns'] / 1e3:.1f} µs under ncu"] if "time_ns" in v else []
    moved = [(v[name], word) for name, word in _MOVED.items() if name in v]
    if one.dram_gbps:
        share = f" ({v['dram_percent']:.0f} % of its peak)" if "dram_percent" in v else ""
        parts.append(f"{one.dram_gbps / 1e3:.2f} TB/s of DRAM{share}")
    parts += [f"{n / (1 << 20):.1f} MiB {word}" for n, word in moved]
    parts += [f"{word} {v[name]:.0f} %" for name, word in _SHARES.items() if name in v]
    parts += [f"{v['shared_bank_conflicts']:.0f} bank conflicts"] if v.get("shared_bank_conflicts") else []
    waits = sorted(((n, name) for name, n in one.stalls.items() if n >= _LEAST_STALL), reverse=True)[:3]
    words = ", ".join(f"{n:.1f} {STALLS.get(name, name)}" for n, name in waits)
    return f"{plain(one.kernel, 80)}: {', '.join(parts)}" + (f"; warps waiting at an issue: {words}" if words else "")


_MOVED = {"dram_read_bytes": "read", "dram_written_bytes": "written"}
_SHARES = {
    "l2_hit_percent": "L2 hits", "issue_percent": "issue slots used", "tensor_percent": "tensor cores busy",
    "warps_percent": "warps resident",
}  # fmt: skip
_LEAST_STALL = 0.2


def _probes_in_words(receipt: Mapping[str, Json]) -> Iterator[str]:
    """ "128.7 µs; 61.3 µs with its tensors in the L2; a copy of its 512.0 MiB takes 121.0 µs"."""
    if problem := _problem(receipt, PROBES):
        yield problem
    elif (probes := probed(receipt)) is not None:
        resident = probes.resident_us
        held = f"{resident:.1f} µs with its tensors in the L2; " if resident is not None else ""
        size = f"{probes.copied_bytes / (1 << 20):.1f} MiB"
        yield f"{probes.cold_us:.1f} µs; {held}a copy of its {size} takes {probes.copy_us:.1f} µs"


Bound = Literal["memory", "compute", "latency"]
NEAR = 0.9  # of the speed of light: little is left
MOST_HINTS = 8
_LEAST_START_US = 1.0  # of one launch
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
    """An attempt's place. Rates are None without a time."""

    bound: Bound
    reason: str
    floor_us: float
    achieved_gbps: float | None = None
    achieved_tflops: float | None = None
    hints: tuple[str, ...] = ()


def work_of(update: "Update", variant: str = "") -> PlanWork:
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
    hints = tuple(_hints(gpu, main.bytes_moved, light.target_us, kernels, work, verdict))
    if verdict.timing is None:
        reason = f"a perfect kernel is bound by {light.bound}; nothing was timed, so this says nothing of the attempt"
        return Roofline(light.bound, reason, light.target_us, hints=hints)
    us = max(verdict.timing.median_us, 1e-9)
    gbps, tflops = main.bytes_moved / us / 1e3, main.flops / us / 1e6
    bound, reason = _bound(gbps / gpu.bandwidth_gbps, tflops / rate_tflops(gpu, task.precision), us)
    return Roofline(bound, reason, light.target_us, gbps, tflops, hints)


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


def _hints(
    gpu: Gpu, least_bytes: int, light_us: float, kernels: Sequence[KernelReport], work: PlanWork, verdict: Verdict
) -> list[str]:
    """What to look at next, the most telling first; each with its number, and only what is a tenth of the time, or of
    the speed of light where nothing is timed."""
    hints: list[str] = []
    us = verdict.timing.median_us if verdict.timing else light_us
    shares = launch_shares(verdict.receipt)
    light = {name for name, share in shares.items() if share < WORTH_A_HINT}
    if verdict.sol_fraction is not None and verdict.sol_fraction >= NEAR:
        hints.append(_near(verdict.sol_fraction))
    if verdict.coverage is not None and verdict.coverage < NEAR:
        most = f"; without it at most {1 / verdict.coverage:.2f}x" if verdict.coverage else ""
        hints.append(f"{1 - verdict.coverage:.0%} of the time is outside your kernels: {_library(work)}{most}")
    touched = work.traffic_bytes or 0
    more_us = (touched - least_bytes) / (gpu.measured_copy_gbps or gpu.bandwidth_gbps) / 1e3
    if least_bytes and more_us >= WORTH_A_HINT * us:
        ratio = touched / least_bytes
        hints.append(f"its steps touch {ratio:.2f}x the task's least bytes, {more_us:.0f} us of a copy: fuse steps")
    elif (moved := _moved_bytes(work, verdict)) > 1.2 * least_bytes > 0:
        hints.append(f"memory moved {moved / least_bytes:.2f}x the task's least bytes: something is read again")
    if len(work.launches) > 1 and _start_us(verdict, len(work.launches)) >= WORTH_A_HINT * us:
        hints.append(f"{len(work.launches)} launches a forward: each costs a start and a wait")
    hints += [_few(n, gpu) for name, n in work.launches if n < gpu.multiprocessors and name not in light]
    hints += [hint for kernel in kernels if kernel.name not in light for hint in _of_kernel(kernel)]
    return list(dict.fromkeys(hints))[:MOST_HINTS]


def _near(share: float) -> str:
    """What a time near the speed of light says, or one beyond it, which right kernels reach by products left out."""
    if share > BEYOND_LIGHT:
        return light_in_words(share)
    return f"{light_in_words(share)}: at most {1 / share:.2f}x is left"


def _moved_bytes(work: PlanWork, verdict: Verdict) -> float:
    """What the counters saw of DRAM in a forward; 0 where they did not see every launch, or memory limits none."""
    seen = counted(verdict.receipt)
    limits = any(one.limit == "memory" for one in bottlenecks(verdict))
    return sum(one.dram_bytes for one in seen) if limits and len(seen) == len(work.launches) else 0.0


def _start_us(verdict: Verdict, launches: int) -> float:
    """The time that as many empty launches take, as far as it is known."""
    null_us = number(verdict.receipt.get("null_us"))
    return _LEAST_START_US * launches if null_us is None else null_us


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


def facts_of(update: "Update", plan: Plan | None) -> tuple[KernelFacts, ...]:
    """The facts of a plan's kernels that were compiled, in the order of `Update.kernels_of`."""
    made = update.compiled_of(plan)
    return tuple(kernel_facts(kernel, artefact.compiled.report, plan) for kernel, artefact in made if plan)
