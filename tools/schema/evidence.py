"""Why a right kernel takes the time that it takes: what was counted and probed, what bounds each kernel and how much
could be gained there, and all of it in words. Pure.

The facts are a verdict's and its receipt's: times by launch, hardware counters, probes. What cannot be read says
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from kerneltune.tools.schema.codec import DecodeError, Json, decode, plain
from kerneltune.tools.schema.verdict import Verdict, launch_shares, launches_in_words, of_a_process

COUNTERS, PROBES = "counters", "probes"  # entries of a receipt
T = TypeVar("T")

# why a warp that could not issue waited, as the profiler calls it: what it waited for
STALLS = {
    "long_scoreboard": "for global memory",
    "short_scoreboard": "for shared memory or special functions",
    "barrier": "at a barrier",
    "math_pipe_throttle": "for an arithmetic unit",
    "lg_throttle": "for a place in the queue to global memory",
    "mio_throttle": "for a place in the queue to shared memory",
    "wait": "for a fixed latency",
    "not_selected": "for other warps to issue",
    "membar": "at a memory fence",
    "gmma": "for a warp group's matrix product",
}


@dataclass(frozen=True)
class KernelCounters:
    """What one launch of a kernel did. `values` by the names of `counters.METRICS`; `stalls`: warps that waited for
    each reason, on average per instruction issued, by the names of STALLS. What this GPU has no counter for is
    absent."""

    kernel: str
    values: dict[str, float] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)

    @property
    def dram_bytes(self) -> float:
        """What it moved to and from memory."""
        return self.values.get("dram_read_bytes", 0.0) + self.values.get("dram_written_bytes", 0.0)

    @property
    def dram_gbps(self) -> float:
        """The rate of that; 0 where it is not known."""
        time_ns = self.values.get("time_ns", 0.0)
        return self.dram_bytes / time_ns if time_ns > 0 else 0.0


@dataclass(frozen=True)
class Probes:
    """A forward timed again with one thing changed, in µs. `resident_us`: every large tensor is a few pages that the L2
    holds, over and over; None where that cannot be. `copy_us`: what copying as many bytes takes at the rate that was
    measured, and `copied_bytes` those bytes, each tensor once a step."""

    cold_us: float
    resident_us: float | None
    copy_us: float
    copied_bytes: int


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
    of_copy = isinstance(copy_gbps, int | float) and copy_gbps > 0 and one.dram_gbps > 0
    if of_copy:  # no kernel gets the data sheet's rate: a copy reaches 88 % of it on an H200
        used["memory"] = one.dram_gbps / copy_gbps
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


def in_words(verdict: Verdict) -> list[tuple[str, str]]:
    """Lines with their names: the time by launch, what limits the kernels, and what was counted or probed."""
    receipt = verdict.receipt
    launches = launches_in_words(receipt)
    return [
        *([("by launch", launches)] if launches else []),
        *(("bottleneck", bottleneck_in_words(one)) for one in bottlenecks(verdict)),
        *(("empty launches", line) for line in _empty_launches(verdict)),
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
    null_us, nodes = verdict.receipt.get("null_us"), of_a_process(verdict.receipt).get("launch_nodes")
    if verdict.timing is None or not isinstance(null_us, int | float) or not isinstance(nodes, int):
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
