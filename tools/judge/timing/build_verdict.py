"""From what was measured to the verdict and its receipt: floors, sentences, numbers."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kerneltune.tools.backends.base import GpuSample
from kerneltune.tools.backends.runner_messages import Shares
from kerneltune.tools.judge.timing.gpu_use import GpuUse, why_not_timed
from kerneltune.tools.judge.timing.statistics import (
    Agreement,
    CaseSessions,
    MemoizationFinding,
    Reading,
    RoundSeries,
    comparisons_over,
    floor_us,
    timing_over,
    weighted_comparisons,
    weighted_timing,
)
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.gpus import Ceilings, gpu_named, speed_of_light
from kerneltune.tools.schema.messages import Rules
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import (
    NOT_TIMED,
    PROTOCOL_VERSION,
    CaseResult,
    CaseTime,
    Cause,
    Comparison,
    LaunchTime,
    Status,
    Tier,
    Verdict,
    losses_in_words,
    standing_for,
)

_READ_OVER_COPY = 1.15  # a pure read may be that much faster than a measured copy


@dataclass(frozen=True)
class RooflineBound:
    """The speed of light of the timed case: `us` is what a perfect kernel takes; `fastest_gbps` is the rate that no
    byte exceeds, and `bytes_moved` and `output_bytes` what has to move. `source` says whose figures these are."""

    us: float
    fastest_gbps: float
    bytes_moved: int
    output_bytes: int
    source: Literal["measured on this GPU", "data sheet", "measured copy"]
    ceilings: Ceilings | None = None

    def floor_us(self, l2_bytes: int, slots: int) -> float:
        """Shortest possible time in µs with cold caches."""
        return floor_us(self.bytes_moved, self.output_bytes, l2_bytes, slots, self.fastest_gbps)

    def facts(self) -> dict[str, Json]:
        """Return the facts for the receipt."""
        found: dict[str, Json] = {"us": self.us, "source": self.source, "fastest_gbps": self.fastest_gbps}
        return found | ({"ceilings": encode(self.ceilings)} if self.ceilings else {})


def roofline_bound(
    task: TaskSpec, gpu_name: str, ceilings: Ceilings | None, output_bytes: int, copy_gbps: float
) -> RooflineBound:
    """The best that is known: measured ceilings, the data sheet, or the copy that this session measured (GB/s)."""
    case = task.main
    measured = ceilings.light_us(case, output_bytes, task.precision) if ceilings else None
    if ceilings is not None and measured is not None:
        fastest = max(ceilings.fastest_gbps, copy_gbps)
        return RooflineBound(measured, fastest, case.bytes_moved, output_bytes, "measured on this GPU", ceilings)
    try:
        gpu = gpu_named(gpu_name)
        us = speed_of_light(case, gpu, task.precision).us
    except KeyError:
        fastest = _READ_OVER_COPY * copy_gbps
        return RooflineBound(
            case.bytes_moved / (fastest * 1e3), fastest, case.bytes_moved, output_bytes, "measured copy"
        )
    return RooflineBound(us, max(gpu.bandwidth_gbps, copy_gbps), case.bytes_moved, output_bytes, "data sheet")


@dataclass(frozen=True)
class TimingContext:
    """What a verdict needs to know of the benchmark setup. Times in µs per forward; `eager_us` is eager launched
    from Python, the baselines' are device times. `resolution` is the relative difference below which nothing can be
    told apart."""

    roofline: RooflineBound
    slots: int
    l2_bytes: int
    flush_bytes: int
    resolution: float
    eager_us: float
    null_launch_us: float
    copy_gbps: float
    times_us: dict[str, float] = field(default_factory=dict)
    build_s: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()  # baselines that are not built yet

    @property
    def best_us(self) -> float:
        """The fastest baseline's time."""
        return min(self.times_us.values(), default=self.eager_us)

    @property
    def floor_us(self) -> float:
        """Shortest possible time; 0 when the reference itself is faster, so that not every byte must move."""
        floor = self.roofline.floor_us(self.l2_bytes, self.slots)
        return floor if self.best_us >= floor else 0.0


_MOST_ROUNDS_KEPT = 200


class Refuted(Exception):
    """A timing run ends with this verdict: the plan is not right, or its time not credible."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


@dataclass
class TimingResult:
    """What one timing run in one runner process has measured. Times in µs per launch (one forward)."""

    series: RoundSeries
    sha256: str
    variant: str = ""
    passes: int = 1  # that fill a block
    nodes: int = 1  # kernel launches of a forward
    overlapping: bool = False  # launches may begin before the one before has ended
    readings: list[Reading] = field(default_factory=list)
    clocks: Agreement = field(default_factory=lambda: Agreement(True, 1.0))
    results: list[CaseResult] = field(default_factory=list)
    launches: int = 0
    warm_us: float = 0.0
    shares: Shares | None = None  # None: all that there is is one kernel of the candidate's
    launch_times: tuple[LaunchTime, ...] = ()  # where there are several launches
    memory: MemoizationFinding | None = None
    seeds: dict[str, str] = field(default_factory=dict)
    sm_clocks_mhz: list[float] = field(default_factory=list)
    samples: list[GpuSample] = field(default_factory=list)
    throttle_reasons: int | None = None
    foreign_processes: int = 0
    gpu_use: dict[str, Json] = field(default_factory=dict)
    idle_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """Return the rules for when enough was measured."""
        return self.series.rules

    @property
    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels."""
        others_us = self.shares.library_us + self.shares.glue_us if self.shares else 0.0
        return self.shares.own_us / (self.shares.own_us + others_us) if self.shares and others_us else 1.0

    def facts(self) -> dict[str, Json]:
        """Return the facts for the receipt."""
        series, clocks = self.series, self.sm_clocks_mhz
        slow = statistics.quantiles(clocks, n=20)[0] if len(clocks) > 1 else None
        return {
            "rounds": [_round_facts(r.blocks, r.sm_clock_mhz) for r in series.rounds[:_MOST_ROUNDS_KEPT]],
            "n_rounds": len(series.rounds),
            "discarded_rounds": series.discarded,
            "measured_s": round(series.measured_s, 4),
            "passes_per_block": self.passes,
            "launches": self.launches,
            "launch_nodes": self.nodes,
            "host_slope": _finite(self.clocks.slope),
            "host_readings": len(self.readings),
            "warm_us": self.warm_us,
            "memory_probe": self.memory.facts() if self.memory else None,
            "verified_groups": len(self.results),
            "own_us": self.shares.own_us if self.shares else None,
            "library_us": self.shares.library_us if self.shares else 0.0,
            "glue_us": self.shares.glue_us if self.shares else 0.0,
            "launches_us": encode(self.launch_times),
            "sm_clock_mhz": {"median": statistics.median(clocks), "p5": slow, "n": len(clocks)} if clocks else None,
            "throttle_reasons": self.throttle_reasons,
            "power_w": _range([s.power_w for s in self.samples]),
            "temperature_c": _range([s.temperature_c for s in self.samples]),
            "foreign_processes": self.foreign_processes,
            "gpu_use": self.gpu_use,
            "idle_before_s": round(self.idle_s, 3),
            "phases_s": {name: round(seconds, 4) for name, seconds in self.phases_s.items()},
        }


def _round_facts(blocks: Json, sm_clock_mhz: float | None) -> dict[str, Json]:
    facts: dict[str, Json] = {arm: [round(us, 4) for us in times] for arm, times in blocks.items()}
    return facts | {"sm_mhz": sm_clock_mhz}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _range(values: Sequence[float | None]) -> list[float] | None:
    known = [v for v in values if v is not None]
    return [min(known), max(known)] if known else None


_PROTOCOL = "cold passes over rotating slots, CUDA graphs, blocks in palindromes, secret fresh contents, two clocks"
_WARM_TO_COLD = 0.5  # a cold pass cannot take less than half of a warm one: then time is hidden between the events
_NULL_TOLERANCE = 0.9
_OVERLAP = 0.5  # dependent launches may begin early: then a node costs less than an empty one in a row
_MOST_RATIO_DIGITS = 5


def build_verdict(
    timed_runs: Sequence[TimingResult], context: TimingContext, gpu: dict[str, Json], tier: Tier
) -> Verdict:
    """The verdict on one or more timing runs of one plan, each in a runner process of its own."""
    last = timed_runs[-1]
    sessions = [timed.series for timed in timed_runs]
    timing = timing_over(sessions, sum(timed.launches for timed in timed_runs))
    impossible = too_fast(timing.median_us, last, context)
    receipt = receipt_of(timed_runs, context, gpu, tier)
    if impossible:
        cause, detail = impossible
        return Verdict(Status.IMPOSSIBLE, detail, receipt=receipt, cause=cause)
    comparisons = comparisons_over(sessions)
    return Verdict(
        Status.CORRECT,
        sentence(comparisons, context),
        cases=tuple(standing_for(timed.results[-1], timed.results) for timed in timed_runs if timed.results),
        timing=timing,
        comparisons=comparisons,
        coverage=last.coverage,
        sol_fraction=context.roofline.us / timing.median_us,
        variant=last.variant,
        tier=tier,
        receipt=receipt,
        pending=context.pending,
    )


@dataclass(frozen=True)
class CaseRuns:
    """What was measured of one weighted case: its timing runs, each in a runner process of its own."""

    case: str
    weight: float
    timed_runs: Sequence[TimingResult]
    context: TimingContext


def over_cases(raced: Sequence[CaseRuns], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over several weighted cases, of which each was found `correct`; the first is the main one. Its score
    is sum(weight x median time) / sum(weights). Its receipt is the main case's, with the others' in it."""
    each = [CaseSessions(its.weight, [timed.series for timed in its.timed_runs]) for its in raced]
    first, total_us = verdicts[0], sum(case.total_us for case in each)
    pending = tuple(dict.fromkeys(name for its in raced for name in its.context.pending))
    resolution = max(its.context.resolution for its in raced)
    case_times = tuple(
        CaseTime(its.case, its.weight, v.timing, v.comparisons, v.sol_fraction)
        for its, v in zip(raced, verdicts, strict=True)
        if v.timing is not None
    )
    comparisons = weighted_comparisons(each)
    found = sentence(comparisons, replace(raced[0].context, resolution=resolution, pending=pending))
    others = {its.case: v.receipt for its, v in zip(raced[1:], verdicts[1:], strict=True)}
    return replace(
        first,
        detail="; ".join(filter(None, (f"{found} over {len(raced)} weighted cases", losses_in_words(case_times)))),
        cases=tuple(result for v in verdicts for result in v.cases),
        timing=weighted_timing(each, sum(v.timing.n_launches for v in verdicts if v.timing)),
        comparisons=comparisons,
        coverage=sum(c.total_us * (v.coverage or 0.0) for c, v in zip(each, verdicts, strict=True)) / total_us,
        sol_fraction=sum(its.weight * its.context.roofline.us for its in raced) / total_us,
        receipt={**first.receipt, "aa_resolution": resolution, "weighted_cases": others},
        pending=pending,
        case_times=case_times,
    )


def not_timed(cases: Sequence[CaseResult], during: GpuUse, after: GpuUse, gpu: dict[str, Json]) -> Verdict:
    """The verdict on a candidate that is right, where no time could be had, nor anything said against one."""
    why = why_not_timed(during, after)
    receipt: dict[str, Json] = {"gpu": gpu, "gpu_use": during.facts(), "gpu_look": after.facts()}
    return Verdict(
        Status.CHECKED,
        f"right; not timed: {NOT_TIMED[why]}",
        cases=tuple(cases),
        receipt=receipt,
        not_timed=why,
    )


def too_fast(median_us: float, timed: TimingResult, context: TimingContext) -> tuple[Cause, str] | None:
    """Why a time cannot be, and in words; None when it can."""
    if not math.isfinite(median_us) or median_us <= 0:
        return Cause.NO_TIME, f"{median_us} µs is no time"
    floor = context.floor_us
    if median_us < timed.rules.floor_tolerance * floor:
        return Cause.SPEED_OF_LIGHT, f"{median_us:.2f} µs is below the speed of light of {floor:.2f} µs"
    if median_us < _WARM_TO_COLD * timed.warm_us:
        return Cause.HIDDEN_TIME, f"{median_us:.2f} µs cold, but {timed.warm_us:.2f} µs back to back"
    least = null_us(timed, context)
    if median_us < _NULL_TOLERANCE * least:
        detail = f"{median_us:.2f} µs is less than {timed.nodes} empty launches take ({least:.2f} µs)"
        return Cause.NULL_LAUNCH, detail
    return None


def null_us(timed: TimingResult, context: TimingContext) -> float:
    """What as many empty kernels take in a graph."""
    return timed.nodes * context.null_launch_us * (_OVERLAP if timed.overlapping else 1.0)


def sentence(comparisons: Sequence[Comparison], context: TimingContext) -> str:
    """What was found, against the fastest baseline."""
    later = f"; not ready yet: {', '.join(context.pending)}" if context.pending else ""
    if not comparisons:
        return f"right; there is no baseline to compare with{later}"
    best = comparisons[0]
    noise = math.log(best.high / best.low) / 2
    if abs(math.log(best.speedup)) <= max(context.resolution, noise):
        return f"right; no difference from {best.baseline} measured{later}"
    return f"right; {best.speedup:.3f} times the speed of {best.baseline}{later}"


def receipt_of(
    timed_runs: Sequence[TimingResult], context: TimingContext, gpu: dict[str, Json], tier: Tier
) -> dict[str, Json]:
    """The receipt: everything that the numbers follow from, as plain JSON."""
    last = timed_runs[-1]
    notes = list(context.notes)
    if any(timed.foreign_processes for timed in timed_runs):
        count = max(timed.foreign_processes for timed in timed_runs)
        notes.append(f"{count} foreign process(es) use this GPU; times may be disturbed")
    receipt: dict[str, Json] = {
        "protocol": _PROTOCOL,
        "protocol_version": PROTOCOL_VERSION,
        "tier": tier,
        "rules": vars(last.rules).copy(),
        "plan": last.sha256,
        "gpu": gpu,
        "slots": context.slots,
        "flush_bytes": context.flush_bytes,
        "aa_resolution": context.resolution,
        "baselines_us": dict(context.times_us),
        "baselines_build_s": dict(context.build_s),
        "baselines_pending": list(context.pending),
        "eager_launched_us": context.eager_us,
        "speed_of_light": context.roofline.facts(),
        "floor_us": context.floor_us,
        "null_us": null_us(last, context),
        "copy_gbps": context.copy_gbps,
        "contents_seeds": {name: seed for timed in timed_runs for name, seed in timed.seeds.items()},
        "notes": notes,
    }
    if len(timed_runs) == 1:
        return receipt | last.facts()
    return receipt | {"processes": [_process(timed) for timed in timed_runs]}


def _process(timed: TimingResult) -> dict[str, Json]:
    """Facts of one runner process of a confirmation."""
    timing = timing_over([timed.series], timed.launches)
    ratios = {c.baseline: round(c.speedup, _MOST_RATIO_DIGITS) for c in comparisons_over([timed.series])}
    return {"median_us": timing.median_us, "speedups": ratios, **timed.facts()}
