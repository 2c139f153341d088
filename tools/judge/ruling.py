"""From what was measured to the verdict and its receipt: floors, sentences, numbers."""

import math
from collections.abc import Sequence

from tools.codec import Json
from tools.judge.heat import Heat
from tools.judge.timing import comparisons_over, ratio_over, timing_over
from tools.judge.track import Track
from tools.verdict import Comparison, Status, Tier, Verdict

PROTOCOL_VERSION = "2"  # of everything that a quoted time depends on; receipts of other versions are not comparable
_PROTOCOL = "cold passes over rotating slots, CUDA graphs, blocks in palindromes, secret fresh contents, two clocks"
_WARM_TO_COLD = 0.5  # a cold pass cannot take less than half of a warm one: then time is hidden between the events
_NULL_TOLERANCE = 0.9
_OVERLAP = 0.5  # dependent launches may begin early: then a node costs less than an empty one in a row
_MOST_RATIO_DIGITS = 5


def ruled(heats: Sequence[Heat], track: Track, gpu: dict[str, Json], tier: Tier) -> Verdict:
    """The verdict on one or more races of one plan, each in a runner process of its own."""
    last = heats[-1]
    sessions = [heat.series for heat in heats]
    timing = timing_over(sessions, sum(heat.launches for heat in heats))
    impossible = too_fast(timing.median_us, last, track)
    receipt = receipt_of(heats, track, gpu, tier)
    if impossible:
        return Verdict(Status.IMPOSSIBLE, impossible, receipt=receipt)
    comparisons = comparisons_over(sessions)
    return Verdict(
        Status.CORRECT,
        sentence(comparisons, heats, track),
        cases=tuple(heat.results[-1] for heat in heats if heat.results),
        timing=timing,
        comparisons=comparisons,
        coverage=last.coverage,
        sol_fraction=track.light.us / timing.median_us,
        variant=last.variant,
        tier=tier,
        receipt=receipt,
    )


def too_fast(median_us: float, heat: Heat, track: Track) -> str:
    """Why a time cannot be, in words; "" when it can."""
    if not math.isfinite(median_us) or median_us <= 0:
        return f"{median_us} µs is no time"
    floor = floor_us(track)
    if median_us < heat.rules.floor_tolerance * floor:
        return f"{median_us:.2f} µs is below the speed of light of {floor:.2f} µs"
    if median_us < _WARM_TO_COLD * heat.warm_us:
        return f"{median_us:.2f} µs cold, but {heat.warm_us:.2f} µs back to back"
    least = null_us(heat, track)
    if median_us < _NULL_TOLERANCE * least:
        return f"{median_us:.2f} µs is less than {heat.nodes} empty launches take ({least:.2f} µs)"
    return ""


def floor_us(track: Track) -> float:
    """Below this a time is impossible; 0 when the reference itself is faster, so that not every byte must move."""
    floor = track.light.floor_us(track.l2_bytes, track.slots)
    return floor if track.best_us >= floor else 0.0


def null_us(heat: Heat, track: Track) -> float:
    """What as many empty kernels take in a graph."""
    return heat.nodes * track.null_launch_us * (_OVERLAP if heat.overlapping else 1.0)


def sentence(comparisons: Sequence[Comparison], heats: Sequence[Heat], track: Track) -> str:
    """What was found, against the fastest baseline."""
    if not comparisons:
        return "right; there is no baseline to compare with"
    best = comparisons[0]
    noise = ratio_over([heat.series for heat in heats], best.baseline).half_width
    if abs(math.log(best.speedup)) <= max(track.resolution, noise):
        return f"right; no difference from {best.baseline} measured"
    return f"right; {best.speedup:.3f} times the speed of {best.baseline}"


def receipt_of(heats: Sequence[Heat], track: Track, gpu: dict[str, Json], tier: Tier) -> dict[str, Json]:
    """Everything that the numbers follow from, as plain JSON."""
    last = heats[-1]
    notes = list(track.notes)
    if any(heat.strangers for heat in heats):
        count = max(heat.strangers for heat in heats)
        notes.append(f"{count} foreign process(es) use this GPU; times may be disturbed")
    receipt: dict[str, Json] = {
        "protocol": _PROTOCOL,
        "protocol_version": PROTOCOL_VERSION,
        "tier": tier,
        "rules": vars(last.rules).copy(),
        "plan": last.sha256,
        "gpu": gpu,
        "slots": track.slots,
        "flush_bytes": track.flush_bytes,
        "aa_resolution": track.resolution,
        "baselines_us": dict(track.times_us),
        "baselines_build_s": dict(track.build_s),
        "eager_launched_us": track.eager_us,
        "speed_of_light": track.light.facts(),
        "floor_us": floor_us(track),
        "null_us": null_us(last, track),
        "copy_gbps": track.copy_gbps,
        "contents_seeds": {name: seed for heat in heats for name, seed in heat.seeds.items()},
        "notes": notes,
    }
    if len(heats) == 1:
        return receipt | last.facts()
    return receipt | {"processes": [_process(heat) for heat in heats]}


def _process(heat: Heat) -> dict[str, Json]:
    """One runner process of a confirmation."""
    timing = timing_over([heat.series], heat.launches)
    ratios = {c.baseline: round(c.speedup, _MOST_RATIO_DIGITS) for c in comparisons_over([heat.series])}
    return {"median_us": timing.median_us, "speedups": ratios, **heat.facts()}
