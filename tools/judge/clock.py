"""The judge's own clock, and whether a runner's device clock can be believed against it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RELATIVE = 0.03
ABSOLUTE_US = 1.0


@dataclass(frozen=True)
class Reading:
    """One block on both clocks: the runner's events, and the judge's clock around request and answer."""

    device_us: float
    host_us: float
    launches: int


@dataclass(frozen=True)
class Agreement:
    """Host time per device time (1: the clocks agree), and whether that is close enough."""

    ok: bool
    slope: float
    detail: str = ""


def agreement(readings: Sequence[Reading]) -> Agreement:
    """Compare the clocks over blocks of different lengths: the constant cost of a block cancels in the slope.

    They must agree within 3 % or 1 µs per launch; and no block may claim to take longer than it did.
    """
    slope = _slope(readings)
    if slope is None:
        return Agreement(False, float("nan"), "no two blocks differ in length")
    typical = median(r.device_us / r.launches for r in readings)
    allowed = max(RELATIVE, ABSOLUTE_US / typical)
    late = [r for r in readings if r.device_us > r.host_us * (1 + RELATIVE) + ABSOLUTE_US]
    if late:
        claim, seen = late[0].device_us, late[0].host_us
        return Agreement(False, slope, f"the device clock claims {claim:.0f} µs in {seen:.0f} µs of host time")
    if abs(slope - 1) > allowed:
        return Agreement(False, slope, f"the host clock runs {slope:.3f} times as long as the device clock")
    return Agreement(True, slope)


def least_delayed(readings: Sequence[Reading]) -> list[Reading]:
    """Of blocks with as many launches the one whose answer came least late: a busy host only ever adds time."""
    best: dict[int, Reading] = {}
    for reading in readings:
        kept = best.get(reading.launches)
        if kept is None or reading.host_us - reading.device_us < kept.host_us - kept.device_us:
            best[reading.launches] = reading
    return list(best.values())


def _slope(readings: Sequence[Reading]) -> float | None:
    """Theil-Sen: the median of the slopes between pairs of blocks that differ by at least a fifth in length."""
    slopes = [
        (b.host_us - a.host_us) / (b.device_us - a.device_us)
        for i, a in enumerate(readings)
        for b in readings[i + 1 :]
        if abs(b.device_us - a.device_us) > 0.2 * max(a.device_us, b.device_us)
    ]
    return median(slopes) if slopes else None
