"""Is a kernel faster on inputs that it has seen before? Then it remembers answers instead of computing them. Pure.

A kernel can keep answers where they outlive a launch (a persistent buffer, shared memory, memory beyond its own),
keyed by a fingerprint of its inputs. Every output is then right, and every address and launch is honest; only the time
gives it away. So the same graph is timed on contents of which no two slots are alike and none was ever seen before
(fresh), and on contents that repeat from slot to slot and pass to pass, as they do while a candidate is timed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tools.codec import Json

RELATIVE = 0.05
ABSOLUTE_US = 0.3
ALPHA = 0.05


@dataclass(frozen=True)
class Probe:
    """Time per launch in µs of single passes, fresh and repeated ones taking turns."""

    fresh_us: tuple[float, ...]
    repeated_us: tuple[float, ...]

    @property
    def gain_us(self) -> float:
        """How much less a repeated launch takes."""
        return median(self.fresh_us) - median(self.repeated_us)

    @property
    def best_gain_us(self) -> float:
        """How much less the fastest repeated launch takes than the fastest fresh one: noise only adds to a time, and a
        memory that is used now and then shows here."""
        return min(self.fresh_us) - min(self.repeated_us)

    @property
    def relative(self) -> float:
        """The gain as a share of a fresh launch."""
        return self.gain_us / median(self.fresh_us)


@dataclass(frozen=True)
class Finding:
    """Whether a candidate remembers, by how much, and how sure that is."""

    remembers: bool
    gain_us: float
    allowed_us: float
    p_value: float
    detail: str = ""

    def facts(self) -> dict[str, Json]:
        """For the receipt."""
        return {
            "gain_us": round(self.gain_us, 4),
            "allowed_us": round(self.allowed_us, 4),
            "p_value": round(self.p_value, 6),
        }


def judge_memory(candidate: Probe, baseline: Probe | None = None) -> Finding:
    """Compare a candidate's gain with what is allowed: 5 % of a launch or 0.3 µs, and what the baseline, which has no
    memory, gains in the same probe. A gain in the median must be significant, too (one-sided rank test, 5 %)."""
    fresh, again = median(candidate.fresh_us), median(candidate.repeated_us)
    of_baseline = max(0.0, baseline.relative) * fresh if baseline else 0.0
    allowed_us = of_baseline + max(RELATIVE * again, ABSOLUTE_US)
    p_value = rank_p([t - of_baseline for t in candidate.fresh_us], candidate.repeated_us)
    mostly = not candidate.gain_us <= allowed_us and p_value <= ALPHA
    remembers = mostly or not candidate.best_gain_us <= allowed_us
    if remembers and not mostly:
        fresh, again = min(candidate.fresh_us), min(candidate.repeated_us)
    detail = f"faster on inputs that it has seen before: {again:.2f} µs per launch, {fresh:.2f} µs on new ones"
    gain_us = max(candidate.gain_us, candidate.best_gain_us)
    return Finding(remembers, gain_us, allowed_us, p_value, detail if remembers else "")


def rank_p(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """One-sided p-value (Mann-Whitney, normal approximation with continuity correction) that the first are larger."""
    n, m = len(larger), len(smaller)
    if not n or not m:
        return 1.0
    wins = sum((a > b) + 0.5 * (a == b) for a in larger for b in smaller)
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return 0.5 * math.erfc((wins - n * m / 2 - 0.5) / spread / math.sqrt(2))
