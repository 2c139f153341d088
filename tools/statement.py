"""What a verdict claims, as one sentence that can be quoted, made of the facts that exist and of no others. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from tools.codec import Json
from tools.spec import TaskSpec
from tools.verdict import Comparison, Status, Verdict

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
    yield ", ".join([f"{interval} device time", "cold L2", str(name), *_clocks(facts)])
    if verdict.tier:
        yield f"{verdict.tier} ({timing.n_blocks} blocks)"
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


def _clocks(facts: Mapping[str, Json]) -> Iterator[str]:
    clocks = facts.get("sm_clock_mhz")
    if isinstance(clocks, list) and len(clocks) == 3:
        yield f"SM {clocks[1]:.0f} MHz median (least {clocks[0]:.0f})"
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
    plan = verdict.receipt.get("plan")
    if isinstance(plan, str) and verdict.status in (Status.CORRECT, Status.CHECKED):
        yield f"plan sha256 {plan[:16]}"


def _number(facts: Mapping[str, Any], name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
