"""What a verdict claims, as one sentence that can be quoted, made of the facts that exist and of no others. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.codec import Json
from tools.spec import TaskSpec
from tools.verdict import Comparison, Status, Verdict, limitations_by_sentence, limitations_in_words

_BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, thermal (software, hardware), power brake


def statement(task: TaskSpec, verdict: Verdict, gpu: Json) -> str:
    """One sentence: the claim first, then how it was reached."""
    if not verdict.accepted:
        return f"{verdict.status.value}: {verdict.detail}"
    parts = [*_timed(verdict, gpu), *_evidence(task, verdict)]
    return "; ".join(filter(None, parts))


def _timed(verdict: Verdict, gpu: Json) -> Iterator[str]:
    timing, facts = verdict.timing, verdict.receipt
    if timing is None:
        yield "right in the CPU interpreter, not timed (no GPU)"
        return
    if verdict.comparisons:
        yield _speedup(verdict)
    name = gpu.get("name", "a GPU") if isinstance(gpu, Mapping) else "a GPU"
    interval = f"{timing.median_us:.2f} us [{timing.low_us:.2f}, {timing.high_us:.2f}]"
    yield ", ".join([f"{interval} device time", "cold L2", str(name), *_clocks(_of_a_process(facts))])
    if verdict.tier:
        yield _tier(verdict.tier, timing.n_blocks, facts)
    if verdict.sol_fraction is not None:
        yield f"{verdict.sol_fraction:.0%} of speed of light"
    if verdict.coverage is not None:
        yield f"{verdict.coverage:.0%} of device time in its own kernels"
    if (resolution := _number(facts, "aa_resolution")) is not None:
        yield f"session resolution {resolution:.2%}"


def _speedup(verdict: Verdict) -> str:
    ordered = sorted(verdict.comparisons, key=lambda c: (c.baseline_us, c.baseline))
    best = ordered[0]
    others = ", ".join(f"{c.baseline} {c.speedup:.3f}x" for c in ordered)
    of = f" (best of {len(ordered)} baselines: {others})" if len(ordered) > 1 else ""
    return f"{_ratio(best, _number(verdict.receipt, 'aa_resolution') or 0.0)} vs {best.baseline}{of}"


def _ratio(best: Comparison, resolution: float) -> str:
    interval = f"{best.speedup:.3f}x [{best.low:.3f}, {best.high:.3f}]"
    if best.low <= 1.0 <= best.high or abs(best.speedup - 1.0) <= resolution:
        return f"no difference measured, {interval}"
    return interval


def _tier(tier: str, n_blocks: int, facts: Mapping[str, Json]) -> str:
    processes = facts.get("processes")
    where = f" in {len(processes)} fresh processes" if isinstance(processes, list) else ""
    return f"{tier}{where} ({n_blocks} blocks)"


def _of_a_process(facts: Mapping[str, Json]) -> Mapping[str, Json]:
    """A confirmation tells of each of its processes; the clocks of the last stand for them."""
    processes = facts.get("processes")
    return processes[-1] if isinstance(processes, list) and processes else facts


def _clocks(facts: Mapping[str, Json]) -> Iterator[str]:
    clocks = facts.get("sm_clock_mhz")
    if isinstance(clocks, Mapping) and clocks.get("median") is not None:
        slow = f" (p5 {clocks['p5']:.0f})" if clocks.get("p5") is not None else ""
        yield f"SM {clocks['median']:.0f} MHz median{slow}"
    reasons = facts.get("throttle_reasons")
    if isinstance(reasons, int):
        yield "no throttle" if not reasons & _BAD_THROTTLE else f"throttled (reasons {reasons:#x})"


def _evidence(task: TaskSpec, verdict: Verdict) -> Iterator[str]:
    yield f"precision {task.precision}"
    if verdict.cases:
        shapes = len({c.case for c in verdict.cases})
        worst = max(c.error_ratio for c in verdict.cases)
        failures = sum(not c.ok for c in verdict.cases)
        yield (
            f"{shapes} case{'s' * (shapes != 1)}, {len(verdict.cases)} input sets, {failures} failures, worst error "
            f"{worst:.2g} of the tolerance"
        )
    if found := limitations_by_sentence(verdict):
        yield f"not checked in full: {limitations_in_words(found)}"
    plan = verdict.receipt.get("plan")
    if isinstance(plan, str) and verdict.status in (Status.CORRECT, Status.CHECKED):
        yield f"plan sha256 {plan[:16]}"


def _number(facts: Mapping[str, Any], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
