"""From what was measured to the verdict and its receipt: floors, sentences, numbers."""

import math
from collections.abc import Sequence

from tools.codec import Json
from tools.judge.ground import Ground
from tools.judge.heat import Heat
from tools.judge.timing import comparisons_over, ratio_over, timing_over
from tools.verdict import Comparison, Status, Tier, Verdict, standing_for
from tools.versions import PROTOCOL_VERSION

_PROTOCOL = "cold passes over rotating slots, CUDA graphs, blocks in palindromes, secret fresh contents, two clocks"
_WARM_TO_COLD = 0.5  # a cold pass cannot take less than half of a warm one: then time is hidden between the events
_NULL_TOLERANCE = 0.9
_OVERLAP = 0.5  # dependent launches may begin early: then a node costs less than an empty one in a row
_MOST_RATIO_DIGITS = 5


def ruled(heats: Sequence[Heat], ground: Ground, gpu: dict[str, Json], tier: Tier) -> Verdict:
    """The verdict on one or more races of one plan, each in a runner process of its own."""
    last = heats[-1]
    sessions = [heat.series for heat in heats]
    timing = timing_over(sessions, sum(heat.launches for heat in heats))
    impossible = too_fast(timing.median_us, last, ground)
    receipt = receipt_of(heats, ground, gpu, tier)
    if impossible:
        return Verdict(Status.IMPOSSIBLE, impossible, receipt=receipt)
    comparisons = comparisons_over(sessions)
    return Verdict(
        Status.CORRECT,
        sentence(comparisons, heats, ground),
        cases=tuple(standing_for(heat.results[-1], heat.results) for heat in heats if heat.results),
        timing=timing,
        comparisons=comparisons,
        coverage=last.coverage,
        sol_fraction=ground.light.us / timing.median_us,
        variant=last.variant,
        tier=tier,
        receipt=receipt,
    )


def too_fast(median_us: float, heat: Heat, ground: Ground) -> str:
    """Why a time cannot be, in words; "" when it can."""
    if not math.isfinite(median_us) or median_us <= 0:
        return f"{median_us} µs is no time"
    floor = ground.floor_us
    if median_us < heat.rules.floor_tolerance * floor:
        return f"{median_us:.2f} µs is below the speed of light of {floor:.2f} µs"
    if median_us < _WARM_TO_COLD * heat.warm_us:
        return f"{median_us:.2f} µs cold, but {heat.warm_us:.2f} µs back to back"
    least = null_us(heat, ground)
    if median_us < _NULL_TOLERANCE * least:
        return f"{median_us:.2f} µs is less than {heat.nodes} empty launches take ({least:.2f} µs)"
    return ""


def null_us(heat: Heat, ground: Ground) -> float:
    """What as many empty kernels take in a graph."""
    return heat.nodes * ground.null_launch_us * (_OVERLAP if heat.overlapping else 1.0)


def sentence(comparisons: Sequence[Comparison], heats: Sequence[Heat], ground: Ground) -> str:
    """What was found, against the fastest baseline."""
    if not comparisons:
        return "right; there is no baseline to compare with"
    best = comparisons[0]
    noise = ratio_over([heat.series for heat in heats], best.baseline).half_width
    if abs(math.log(best.speedup)) <= max(ground.resolution, noise):
        return f"right; no difference from {best.baseline} measured"
    return f"right; {best.speedup:.3f} times the speed of {best.baseline}"


def receipt_of(heats: Sequence[Heat], ground: Ground, gpu: dict[str, Json], tier: Tier) -> dict[str, Json]:
    """Everything that the numbers follow from, as plain JSON."""
    last = heats[-1]
    notes = list(ground.notes)
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
        "slots": ground.slots,
        "flush_bytes": ground.flush_bytes,
        "aa_resolution": ground.resolution,
        "baselines_us": dict(ground.times_us),
        "baselines_build_s": dict(ground.build_s),
        "eager_launched_us": ground.eager_us,
        "speed_of_light": ground.light.facts(),
        "floor_us": ground.floor_us,
        "null_us": null_us(last, ground),
        "copy_gbps": ground.copy_gbps,
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
