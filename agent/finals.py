"""What is judged again at the end of a run, and what place that gives it among the others. Pure.

A search ranks its attempts by their screenings. The time of a longer measurement does not compare with those: a product
that runs for seconds makes the GPU hot, so that what was confirmed at 790 µs had been screened at 759, others at 760.
So an attempt that is judged again keeps its place, unless it is now told from another one that was judged as
thoroughly. (A model's attempts are judged in full when they may be the best, and rank by that time.)
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.authors.base import Attempt
from agent.policy import Tiers, best, deserves_judging, rank_key
from tools.verdict import Verdict

if TYPE_CHECKING:
    from tools.update import Update  # with it comes numpy, which a list of runs need not wait for

MOST_CONFIRMATIONS = 3  # of a run: when the best does not hold, the next best, and the one after it
_THOROUGH = {"judged": ("judged", "confirmed"), "confirmed": ("confirmed",)}


def next_finalist(attempts: Sequence[Attempt], tiers: Tiers, tried: Collection[str]) -> Attempt | None:
    """The next of the best to be judged in full: one that was only screened and may be better than all that were, while
    there are tries left. Another file with the plans of one that was tried, judged in full, or refused, is not another
    one."""
    if len(tried) >= tiers.finalists:
        return None
    leader = _fastest([a for a in attempts if a.verdict.tier in _THOROUGH])
    untried = [a.verdict.tier == "screened" and a.attempt_id not in tried for a in attempts]
    known = {a.plans_sha256 for a, is_open in zip(attempts, untried, strict=True) if a.plans_sha256 and not is_open}
    open_ones = [a for a, is_open in zip(attempts, untried, strict=True) if is_open and a.plans_sha256 not in known]
    return best([a for a in open_ones if deserves_judging(a.verdict, leader)])


def next_to_confirm(attempts: Sequence[Attempt], tried: Collection[str]) -> Attempt | None:
    """The best attempt, when it still needs to be confirmed and there are tries left; when that was slower than another
    one's time in full, that one."""
    leader = best(attempts)
    if leader is None or leader.verdict.timing is None or len(tried) >= MOST_CONFIRMATIONS:
        return None
    if leader.verdict.tier == "confirmed":
        rivals = [a for a in attempts if a.verdict.tier == "judged" and a.attempt_id not in tried]
        leader = _fastest([a for a in rivals if a.verdict.accepted and _us(a.verdict) < _us(leader.verdict)])
    return None if leader is None or leader.attempt_id in tried else leader


def judged_again(
    attempts: Sequence[Attempt], attempt: Attempt, verdict: Verdict, update: "Update", tiers: Tiers
) -> Attempt:
    """The attempt with the verdict that counts from now on, and its place among the others."""
    key = rank_key(verdict, update)
    if key and verdict.timing is not None and tiers.finalists:
        key = _place([a for a in attempts if a.attempt_id != attempt.attempt_id], attempt, verdict)
    return replace(attempt, verdict=verdict, rank_key=key)


def twins(attempts: Sequence[Attempt], attempt: Attempt) -> list[Attempt]:
    """Those of other files with the same plans that still count as right."""
    same = [a for a in attempts if a.plans_sha256 == attempt.plans_sha256 and a.attempt_id != attempt.attempt_id]
    return [a for a in same if a.plans_sha256 and a.verdict.accepted]


def _place(others: Sequence[Attempt], attempt: Attempt, verdict: Verdict) -> tuple[float, ...]:
    """Its own among those that were only screened; before all others where it is the fastest of what was judged as
    thoroughly, else behind the one that is."""
    own = attempt.rank_key
    rival = _fastest([a for a in others if a.verdict.tier in _THOROUGH.get(verdict.tier or "", ())])
    if rival is not None and _us(rival.verdict) <= _us(verdict):
        return max(own, (math.nextafter(rival.rank_key[0], math.inf),))
    thorough = [a.rank_key for a in others if a.verdict.accepted and a.verdict.tier in _THOROUGH]
    return min([own, *((math.nextafter(key[0], 0.0),) for key in thorough)])


def _fastest(attempts: Sequence[Attempt]) -> Attempt | None:
    return min((a for a in attempts if a.verdict.accepted), key=lambda a: (_us(a.verdict), a.number), default=None)


def _us(verdict: Verdict) -> float:
    return verdict.timing.median_us if verdict.timing else math.inf
