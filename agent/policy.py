"""Pure choices: when to stop, and which attempt is better."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.authors.base import Attempt
from tools.update import Update
from tools.verdict import KernelReport, Verdict


@dataclass(frozen=True)
class Limits:
    """When a run ends. None: no limit. `patience` counts attempts since the last improvement."""

    max_attempts: int
    max_time_s: float | None = None
    patience: int | None = None

    def why_stop(self, attempts: Sequence[Attempt], elapsed_s: float) -> str | None:
        """The first limit that is reached, or None."""
        if len(attempts) >= self.max_attempts:
            return "attempts"
        if self.max_time_s is not None and elapsed_s >= self.max_time_s:
            return "time"
        if self.patience is not None and since_improvement(attempts) >= self.patience:
            return "patience"
        return None


def best(attempts: Sequence[Attempt]) -> Attempt | None:
    """The accepted attempt with the smallest rank key; the earlier one on a tie."""
    accepted = [a for a in attempts if a.verdict.accepted]
    return min(accepted, key=lambda a: (a.rank_key, a.number), default=None)


def since_improvement(attempts: Sequence[Attempt]) -> int:
    """How many attempts have finished since the best one; 0 while nothing is accepted yet."""
    leader = best(attempts)
    return 0 if leader is None else sum(a.number > leader.number for a in attempts)


def rank_key(verdict: Verdict, update: Update) -> tuple[float, ...]:
    """Smaller is better; () when the attempt is not accepted.

    Timed: the median. Without a GPU nothing is timed, so the order is what the plan and the compiler say: bytes that
    the plan's steps move at least, then spills, then resident warps, then registers. It is an order, not a time.
    """
    if not verdict.accepted:
        return ()
    if verdict.timing is not None:
        return (verdict.timing.median_us,)
    return (float(update.traffic_bytes), *_static_key(update.kernels))


def _static_key(kernels: Sequence[KernelReport]) -> tuple[float, ...]:
    spills = sum(k.spill_store_bytes + k.spill_load_bytes for k in kernels)
    occupancy = min((k.occupancy for k in kernels), default=0.0)
    return (float(spills), -occupancy, float(sum(k.registers for k in kernels)))
