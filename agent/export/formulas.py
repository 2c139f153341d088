"""The formulas of the rewards, as functions of one attempt; `agent.export.rewards` names and documents them. Pure.

A formula takes the values of its parameters and returns a function of an attempt.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from agent.export.labels import compilable
from agent.record.trajectory import AttemptRecord, Expectation
from tools.verdict import Status

FASTEST: Final = "fastest"
Options = Mapping[str, float | str]
Score = Callable[[AttemptRecord], float | None]

# What is known of an attempt: True, right; False, failed; missing, nobody knows.
_RIGHT: Final = {
    Status.REJECTED: False,
    Status.COMPILE_FAILED: False,
    Status.CRASHED: False,
    Status.TIMED_OUT: False,
    Status.WRONG: False,
    Status.IMPOSSIBLE: False,
    Status.CHECKED: True,
    Status.CORRECT: True,
}


def speedup_over(attempt: AttemptRecord, baseline: str = FASTEST, *, low: bool = False) -> float | None:
    """Speed-up over the fastest baseline, or over a named one; `low`: the lower end of its 95 % interval. None when it
    was not timed against that one, or when what is stored is no positive number."""
    found: float | None = None
    for c in attempt.comparisons:
        value = c.low if low else c.speedup
        if baseline == FASTEST:
            found = value if found is None or value < found else found
        elif c.baseline == baseline:
            found = value
            break
    return found if found is not None and 0.0 < found < math.inf else None


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _gated(right: Score) -> Score:
    """0 for failed attempts, None for those of which nothing is known, else what `right` says."""

    def score(attempt: AttemptRecord) -> float | None:
        known = _RIGHT.get(attempt.status) if attempt.status is not None else None
        if known:
            return right(attempt)
        return None if known is None else 0.0

    return score


def fast_p(o: Options) -> Score:
    """1 when right and its speed-up is above p (strictly), else 0."""
    p, baseline = float(o["p"]), str(o["baseline"])

    def right(attempt: AttemptRecord) -> float | None:
        if p == 0.0:
            return 1.0  # whatever the time is: fast_0 is the share of right ones
        speedup = speedup_over(attempt, baseline)
        return None if speedup is None else float(speedup > p)

    return _gated(right)


def kevin(o: Options) -> Score:
    """S = correct + T_b / T_k."""
    correct, baseline = float(o["correct"]), str(o["baseline"])

    def right(attempt: AttemptRecord) -> float | None:
        speedup = speedup_over(attempt, baseline)
        return None if speedup is None else correct + speedup

    return _gated(right)


def _with_coverage(o: Options, gain: Callable[[float], float]) -> Score:
    """Dr.Kernel's frame: weights for being right and for the speed, and λ times the coverage."""
    correct, speed, share, baseline = float(o["correct"]), float(o["speed"]), float(o["lambda"]), str(o["baseline"])

    def right(attempt: AttemptRecord) -> float | None:
        speedup = speedup_over(attempt, baseline)
        coverage = _known(attempt.coverage) if share else 0.0
        if speedup is None or coverage is None:
            return None
        return correct + speed * gain(speedup) + share * coverage

    return _gated(right)


def drkernel(o: Options) -> Score:
    """correct + speed * min(speed-up, cap) + lambda * coverage; a speed-up below floor counts as 0."""
    cap, floor = float(o["cap"]), float(o["floor"])

    def gain(speedup: float) -> float:
        capped = min(speedup, cap)
        return 0.0 if capped < floor else capped

    return _with_coverage(o, gain)


def drkernel_weighted(o: Options) -> Score:
    """correct + speed * [speed-up >= 1 + eps] + lambda * coverage."""
    least = 1.0 + float(o["eps"])
    return _with_coverage(o, lambda speedup: float(speedup >= least))


_STAIRS = ((3.0, 1.0), (2.0, 0.8), (1.5, 0.6), (1.2, 0.4), (1.0, 0.2))
_UNFINISHED = (Status.REJECTED, Status.IMPOSSIBLE, Status.TIMED_OUT)


def drkernel_like_kernel(o: Options) -> Score:
    """Stairs. What the environment did not finish, or refused, is worth less than what does not compile."""
    baseline = str(o["baseline"])

    def score(attempt: AttemptRecord) -> float | None:
        status = attempt.status
        known = _RIGHT.get(status) if status is not None else None
        if known is None:
            return None
        if not known:
            return -1.0 if status in _UNFINISHED else -0.3 if compilable(attempt) else -0.5
        speedup = speedup_over(attempt, baseline)
        return None if speedup is None else next((r for least, r in _STAIRS if speedup >= least), -0.1)

    return score


def sol(o: Options) -> Score:
    """The SOL score, see `sol_score`."""
    baseline = str(o["baseline"])

    def right(attempt: AttemptRecord) -> float | None:
        speedup, fraction = speedup_over(attempt, baseline), _known(attempt.sol_fraction)
        if speedup is None or fraction is None or fraction <= 0.0:
            return None
        return sol_score(speedup, fraction)

    return _gated(right)


def sol_score(speedup: float, sol_fraction: float) -> float:
    """1 / (1 + (T_k - T_sol) / (T_b - T_sol)) with T_sol = sol_fraction * T_k and T_b = speedup * T_k, in [0, 1].

    At or below T_sol (a kernel may measure a little below it, as both are measured): 1. Above it while the baseline
    is not: the score has no scale, and is 0.
    """
    if sol_fraction >= 1.0:
        return 1.0
    gap = speedup - sol_fraction
    return 0.0 if gap <= 0.0 else gap / (gap + (1.0 - sol_fraction))


def agent_kernel_arena(o: Options) -> Score:
    """20 for compiling, 100 for being right, 100 * speed-up."""
    return _staged(str(o["baseline"]), 20.0, lambda speedup: 120.0 + 100.0 * speedup)


def tritonforge(o: Options) -> Score:
    """compile; or correct + (speed-up - 1), at least correct and at most cap."""
    correct, most = float(o["correct"]), float(o["cap"]) - float(o["correct"])
    return _staged(str(o["baseline"]), float(o["compile"]), lambda s: correct + min(max(s - 1.0, 0.0), most))


def _staged(baseline: str, for_compiling: float, of_right: Callable[[float], float]) -> Score:
    """Something for compiling, unless it was refused; more for being right and fast."""

    def score(attempt: AttemptRecord) -> float | None:
        status = attempt.status
        known = _RIGHT.get(status) if status is not None else None
        if known:
            speedup = speedup_over(attempt, baseline)
            return None if speedup is None else of_right(speedup)
        if known is None:
            return None
        refused = status is Status.REJECTED or status is Status.IMPOSSIBLE
        return for_compiling if not refused and compilable(attempt) else 0.0

    return score


def proven(o: Options) -> Score:
    """correct + (1 - correct) * coverage * place; place follows the logarithm of the lower end of the speed-up's
    interval, from 0 at 1 / cap to 1 at cap. Unknown when a verification did not bear the verdict out."""
    correct, octaves, baseline = float(o["correct"]), math.log2(float(o["cap"])), str(o["baseline"])

    def right(attempt: AttemptRecord) -> float | None:
        low, coverage = speedup_over(attempt, baseline, low=True), _known(attempt.coverage)
        if low is None or coverage is None or attempt.held is False:
            return None
        place = min(max((math.log2(low) / octaves + 1.0) / 2.0, 0.0), 1.0)
        return correct + (1.0 - correct) * min(max(coverage, 0.0), 1.0) * place

    return _gated(right)


def hypothesis(o: Options) -> Score:
    """The mean over the expectations that this attempt tested."""
    worth = {"confirmed": float(o["confirmed"]), "refuted": float(o["refuted"]), "open": 0.0}
    return lambda attempt: _mean(worth[e.outcome] for e in attempt.expectations if _was_tested(e))


def _was_tested(expected: Expectation) -> bool:
    """Decided; or held against a measurement that showed no difference. One about an attempt to come was not."""
    if expected.outcome != "open":
        return True
    seen = expected.evidence
    foretold = "predicted_speedup" in seen  # then the ratio to the parent is that of the attempt before
    return _number(seen.get("measured_speedup" if foretold else "time_ratio_to_parent")) > 0.0


def prediction(o: Options) -> Score:
    """The mean of `_foreseen` over the expectations that this attempt tested."""
    octaves = float(o["octaves"])

    def score(attempt: AttemptRecord) -> float | None:
        failed = attempt.status is not None and _RIGHT.get(attempt.status) is False
        found = (_foreseen(e, octaves, failed=failed) for e in attempt.expectations)
        return _mean(value for value in found if value is not None)

    return score


def _foreseen(expected: Expectation, octaves: float, *, failed: bool) -> float | None:
    """How near a predicted speed-up came: 1 when exact, -1 from two times `octaves` on, or when it does not work."""
    seen = expected.evidence
    predicted, measured = _number(seen.get("predicted_speedup")), _number(seen.get("measured_speedup"))
    if "measured_speedup" not in seen or predicted <= 0.0:
        return None
    if measured <= 0.0:
        return -1.0 if failed else None
    return max(1.0 - abs(math.log2(predicted / measured)) / octaves, -1.0)


def _number(value: object) -> float:
    """A positive finite number as stored; 0 for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 < value < 1e9
    return float(value) if good and isinstance(value, int | float) else 0.0


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
