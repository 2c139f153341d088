"""Pure choices: when to stop, which attempt is better, how thoroughly to judge it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent.authors.base import Attempt
from tools.verdict import KernelReport, Tier, Verdict

if TYPE_CHECKING:
    from tools.update import Update  # with it comes numpy, which a list of runs need not wait for

FINALISTS = 3  # of a search
LASTING = 24  # attempts without a better one, 8 s of screening, after which a best is judged in full for 3 s
FINAL_S = 45.0  # for all that a search judges at its end; a matmul takes 6 s in full and 18 s to be confirmed
CONFIRMATION = 3.0  # times as long as judging in full takes: in three fresh processes


@dataclass(frozen=True)
class Tiers:
    """How a run judges. `first`: the tier of every attempt; `promote`: those that may be the best are judged in full at
    once; `finalists`: at the end so many of the best are, and before it a best that lasts; `confirm`: at the end the
    best is confirmed. `final_s`: what comes at the end takes so long at most, but the best is confirmed all the same.
    Without a GPU there is one way to judge, and `first` is None."""

    first: Tier | None = None
    promote: bool = False
    finalists: int = 0
    confirm: bool = False
    final_s: float = math.inf

    @property
    def again(self) -> bool:
        """Whether some attempts are judged again."""
        return self.confirm or self.finalists > 0


def tiers_for(gpu: bool, tier: Tier | None = None, *, confirm: bool = True) -> Tiers:
    """Screen all, judge the promising, confirm the best; with `tier`, that tier for every attempt."""
    if not gpu:
        return Tiers()
    return Tiers(tier or "screened", promote=tier is None, confirm=confirm and tier != "confirmed")


def search_tiers(gpu: bool, tier: Tier | None = None, *, confirm: bool = True) -> Tiers:
    """The same for a search of many cheap attempts, of which a new best is nothing special: judging takes ten times as
    long as screening and tells no other order (an A/A resolution of 0.1 % against one of 0.3 %)."""
    found = tiers_for(gpu, tier, confirm=confirm)
    return replace(found, promote=False, finalists=FINALISTS, final_s=FINAL_S) if found.promote else found


def deserves_judging(screened: Verdict, leader: Attempt | None) -> bool:
    """Whether a screened attempt may be better than the best: its interval reaches that one's time."""
    if screened.timing is None:
        return False
    best_so_far = leader.verdict.timing if leader else None
    return best_so_far is None or screened.timing.low_us <= best_so_far.median_us


def lasting(attempts: Sequence[Attempt], tiers: Tiers) -> Attempt | None:
    """The best, when it was only screened and has been the best for so long that what comes next builds on it."""
    leader = best(attempts)
    if leader is None or not tiers.finalists or leader.verdict.tier != "screened":
        return None
    return leader if since_improvement(attempts) == LASTING else None


@dataclass(frozen=True)
class Limits:
    """When a run ends. None: no limit. `patience` counts attempts since the last improvement."""

    max_attempts: int
    max_time_s: float | None = None
    patience: int | None = None
    max_cost_usd: float | None = None
    target_speedup: float | None = None  # over the fastest baseline, by the lower end of its interval
    target_sol: float | None = None  # fraction of the speed of light

    def raised(self, times: int) -> "Limits":
        """With a quarter more attempts and time than were given, so many times. Dollars are never raised."""
        time_s = None if self.max_time_s is None else self.max_time_s * (1 + 0.25 * times)
        more = times * max(1, self.max_attempts // 4)
        return replace(self, max_attempts=self.max_attempts + more, max_time_s=time_s)

    def why_stop(
        self, attempts: Sequence[Attempt], elapsed_s: float, cost_usd: float = 0.0, next_usd: float = 0.0
    ) -> str | None:
        """The first limit that is reached, or None. `next_usd`: what the next request is likely to cost."""
        if self._reached(best(attempts)):
            return "goal"
        if self.max_cost_usd is not None and cost_usd + next_usd > self.max_cost_usd:
            return "cost"
        if len(attempts) >= self.max_attempts:
            return "attempts"
        if self.max_time_s is not None and elapsed_s >= self.max_time_s:
            return "time"
        if self.patience is not None and since_improvement(attempts) >= self.patience:
            return "patience"
        return None

    def _reached(self, leader: Attempt | None) -> bool:
        if leader is None:
            return False
        lows = [c.low for c in leader.verdict.comparisons]
        faster = self.target_speedup is not None and bool(lows) and min(lows) >= self.target_speedup
        fraction = leader.verdict.sol_fraction
        return faster or (self.target_sol is not None and fraction is not None and fraction >= self.target_sol)


def best(attempts: Sequence[Attempt]) -> Attempt | None:
    """The accepted attempt with the smallest rank key; the earlier one on a tie."""
    return min((a for a in attempts if a.verdict.accepted), key=rank_order, default=None)


def rank_order(attempt: Attempt) -> tuple[tuple[float, ...], int]:
    """Smaller is better, among accepted ones."""
    return attempt.rank_key, attempt.number


def since_improvement(attempts: Sequence[Attempt]) -> int:
    """How many attempts have finished since the best one; 0 while nothing is accepted yet."""
    leader = best(attempts)
    return 0 if leader is None else sum(a.number > leader.number for a in attempts)


def rank_key(verdict: Verdict, update: "Update") -> tuple[float, ...]:
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
