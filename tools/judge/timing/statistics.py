"""The statistics of paired timing. Pure.

A round times every arm twice in a palindrome (A B B A, or A B C C B A), which cancels drift to first order. Its result
for a baseline is the difference of the logarithms of the two arms' means. Rounds of one runner process are a series; a
confirmation has several, and its intervals are over processes first and rounds second.

Beside it: whether a runner's device clock can be believed against the judge's own, and whether a candidate is faster on
inputs that it has seen before (memoization).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import Rules
from kerneltune.tools.schema.verdict import Comparison, Timing

CANDIDATE = "candidate"
_RESAMPLES = 2000
_FEWEST_ROUNDS = 6
_OVERTIME = 4
_SLOWEST_CLOCK = 0.97  # of the session's median SM clock; a round below is discarded
_MOST_DISCARDED = 0.2  # of the rounds; above, nothing that was timed here can be believed


@dataclass(frozen=True)
class Round:
    """Time per launch in µs of every arm's two blocks; the median SM clock meanwhile (None: not known), and whether a
    throttle bit was set."""

    blocks: Mapping[str, tuple[float, float]]
    sm_clock_mhz: float | None = None
    throttled: bool = False

    def log_us(self, arm: str) -> float:
        """Logarithm of the arm's geometric mean."""
        first, second = self.blocks[arm]
        return (math.log(first) + math.log(second)) / 2

    def log_ratio(self, baseline: str, arm: str = CANDIDATE) -> float:
        """ln(baseline / arm): positive when the arm is faster."""
        return self.log_us(baseline) - self.log_us(arm)


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float


def palindrome(arms: Sequence[str], rng: random.Random) -> list[str]:
    """A secret order of the arms and then its mirror image: A B C C B A."""
    order = list(arms)
    rng.shuffle(order)
    return order + order[::-1]


def nested_median(groups: Sequence[Sequence[float]]) -> Interval:
    """The median of the groups' medians, and its 95 % interval when groups are resampled and then the values inside
    each: what differs from process to process (where memory lies) widens it. Raises ValueError without values."""
    return weighted_mean([(1.0, groups)])


def weighted_mean(
    cases: Sequence[tuple[float, Sequence[Sequence[float]]]], value_of: Callable[[float], float] = float
) -> Interval:
    """sum(weight x value) / sum(weights) over cases, where a case's value is `value_of` the median of its groups'
    medians; and its 95 % interval, for which every case is resampled by itself. Raises ValueError without values."""
    if not cases or not all(groups and all(groups) for _, groups in cases):
        raise ValueError("no values to take a median of")
    whole, rng = sum(weight for weight, _ in cases), random.Random(0)

    def mean(median_of: Callable[[Sequence[Sequence[float]]], float]) -> float:
        return sum(weight * value_of(median_of(groups)) for weight, groups in cases) / whole

    means = sorted(mean(lambda groups: _resampled(groups, rng)) for _ in range(_RESAMPLES))
    return Interval(mean(_centre), means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1])


def _centre(groups: Sequence[Sequence[float]]) -> float:
    return median(median(values) for values in groups)


def _resampled(groups: Sequence[Sequence[float]], rng: random.Random) -> float:
    chosen = rng.choices(groups, k=len(groups)) if len(groups) > 1 else groups
    return median(median(rng.choices(values, k=len(values))) for values in chosen)


def quick_half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of a median that order statistics give (sign test, normal approximation)."""
    ordered, count = sorted(values), len(values)
    low = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)
    return (ordered[count - 1 - low] - ordered[low]) / 2


def kept(rounds: Sequence[Round]) -> list[Round]:
    """The rounds to count: no throttling, and an SM clock of at least 97 % of the median. Where more than a fifth is
    slower than that, a changing clock is how this GPU runs this work (matmuls at the power limit: 9 of 35 rounds on an
    H200), both arms meet it alike, and all of them count."""
    steady = [r for r in rounds if not r.throttled]
    clocks_mhz = [r.sm_clock_mhz for r in steady if r.sm_clock_mhz is not None]
    least = _SLOWEST_CLOCK * median(clocks_mhz) if clocks_mhz else 0.0
    fast = [r for r in steady if r.sm_clock_mhz is None or r.sm_clock_mhz >= least]
    return fast if len(fast) >= (1 - _MOST_DISCARDED) * len(steady) else steady


@dataclass
class RoundSeries:
    """The rounds of one runner process and what follows from them."""

    rules: Rules
    baselines: tuple[str, ...]
    rounds: list[Round] = field(default_factory=list)
    measured_s: float = 0.0

    def add(
        self,
        blocks: Mapping[str, Sequence[float]],
        measured_s: float,
        *,
        sm_clock_mhz: float | None = None,
        throttled: bool = False,
    ) -> None:
        """Take one round."""
        pairs = {arm: (times[0], times[1]) for arm, times in blocks.items()}
        self.rounds.append(Round(pairs, sm_clock_mhz, throttled))
        self.measured_s += measured_s

    @property
    def kept(self) -> list[Round]:
        """The rounds that count."""
        return kept(self.rounds)

    @property
    def discarded(self) -> int:
        """How many rounds do not."""
        return len(self.rounds) - len(self.kept)

    @property
    def drift(self) -> float:
        """By how much the first baseline's two blocks of a round differ, in logarithms: the median over the rounds. 0
        without rounds or baselines."""
        if not self.baselines:
            return 0.0
        pairs = [r.blocks[self.baselines[0]] for r in self.rounds]
        return median([abs(math.log(second / first)) for first, second in pairs]) if pairs else 0.0

    @property
    def unfit(self) -> bool:
        """Whether the GPU was throttled so much that the environment allows no statement."""
        throttled = sum(r.throttled for r in self.rounds)
        return throttled > max(1.0, _MOST_DISCARDED * len(self.rounds)) or not self.kept

    @property
    def enough(self) -> bool:
        """Whether the stop rule is met: enough rounds, and all intervals narrow or the time used up."""
        if len(self.rounds) >= _FEWEST_ROUNDS and self.measured_s >= _OVERTIME * self.rules.max_s:
            return True  # launches of many milliseconds: the noise is small, and nobody waits a minute for it
        if len(self.rounds) < self.rules.min_rounds:
            return False
        if self.measured_s >= self.rules.max_s:
            return True
        return bool(self.kept) and all(self._half_width(b) <= self.rules.half_width for b in self.baselines)

    def _half_width(self, baseline: str) -> float:
        """Half width of the ratio's interval, from order statistics: asked after every round, while the GPU waits."""
        return quick_half_width([r.log_ratio(baseline) for r in self.kept])


def ratio_over(sessions: Sequence[RoundSeries], baseline: str) -> Interval:
    """ln(baseline / candidate) over the rounds of each process, and over the processes."""
    return nested_median([[r.log_ratio(baseline) for r in s.kept] for s in sessions])


def microseconds_over(sessions: Sequence[RoundSeries], arm: str) -> Interval:
    """Time per launch over all blocks of an arm in each process, and over the processes."""
    return nested_median(_times_us(sessions, arm))


def _times_us(sessions: Sequence[RoundSeries], arm: str) -> list[list[float]]:
    return [[t for r in s.kept for t in r.blocks[arm]] for s in sessions]


def timing_over(sessions: Sequence[RoundSeries], n_launches: int) -> Timing:
    """The candidate's time."""
    us = microseconds_over(sessions, CANDIDATE)
    return Timing(us.median, us.low, us.high, sum(2 * len(s.kept) for s in sessions), n_launches)


def comparisons_over(sessions: Sequence[RoundSeries]) -> tuple[Comparison, ...]:
    """Against each baseline, the fastest baseline first."""
    found = [_comparison(sessions, baseline) for baseline in sessions[0].baselines]
    return tuple(sorted(found, key=lambda c: c.baseline_us))


def _comparison(sessions: Sequence[RoundSeries], baseline: str) -> Comparison:
    ratio = ratio_over(sessions, baseline)
    us = _centre(_times_us(sessions, baseline))  # an interval of it takes 4 ms, and nobody asks for it
    return Comparison(baseline, us, math.exp(ratio.median), math.exp(ratio.low), math.exp(ratio.high))


@dataclass(frozen=True)
class CaseSessions:
    """The rounds of one weighted case, a series for each runner process."""

    weight: float
    sessions: Sequence[RoundSeries]

    def times_us(self, arm: str) -> list[list[float]]:
        """Times per launch of an arm's blocks, a list for each process."""
        return _times_us(self.sessions, arm)

    @property
    def total_us(self) -> float:
        """Weight x the candidate's time: its part of the score."""
        return self.weight * _centre(self.times_us(CANDIDATE))


def weighted_timing(cases: Sequence[CaseSessions], n_launches: int) -> Timing:
    """The score: the weighted mean of the cases' times."""
    us = weighted_mean([(c.weight, c.times_us(CANDIDATE)) for c in cases])
    n_blocks = sum(2 * len(s.kept) for c in cases for s in c.sessions)
    return Timing(us.median, us.low, us.high, n_blocks, n_launches)


def weighted_comparisons(cases: Sequence[CaseSessions]) -> tuple[Comparison, ...]:
    """Against each baseline that all cases have, the fastest first: the weighted time of the baseline over that of the
    candidate, where each case's ratio is the paired one. So a case counts as much as the candidate's time in it."""
    names = [b for b in cases[0].sessions[0].baselines if all(b in c.sessions[0].baselines for c in cases)]
    return tuple(sorted((_weighted_comparison(cases, name) for name in names), key=lambda c: c.baseline_us))


def _weighted_comparison(cases: Sequence[CaseSessions], baseline: str) -> Comparison:
    logs = [(c.total_us, [[r.log_ratio(baseline) for r in s.kept] for s in c.sessions]) for c in cases]
    ratio = weighted_mean(logs, math.exp)
    whole = sum(c.weight for c in cases)
    us = sum(c.weight * _centre(c.times_us(baseline)) for c in cases) / whole
    return Comparison(baseline, us, ratio.median, ratio.low, ratio.high)


def resolution(pairs: Sequence[Round], first: str, second: str, group: int = 1) -> float:
    """What two arms of the same code differ by: the 99th percentile of |ln ratio| over medians of `group` rounds. Less
    than that is no difference."""
    ratios = [r.log_ratio(first, second) for r in pairs]
    sizes = sorted(abs(median(ratios[at : at + group])) for at in range(0, len(ratios), group))
    return sizes[min(len(sizes) - 1, math.ceil(0.99 * len(sizes)) - 1)]


def passes_for(block_s: float, pass_us: float) -> int:
    """How many passes fill a block; at least one."""
    return max(1, round(block_s * 1e6 / max(pass_us, 1e-3)))


_ALONE_BYTES = 2 << 30
_MOST_SLOTS, _MOST_SLOT_BYTES = 96, 4 << 30


def slots_for(footprint_bytes: int, l2_bytes: int, estimate_us: float, *, shared_bytes: int = 0) -> int:
    """How many buffer sets rotate: at least 3 and three times the L2 together, and enough for a pass of 1 ms, within
    a bound of memory. What stays smaller than the L2 is cold all the same: each set is used once per flush. One set of
    over 2 GiB is enough by itself: it leaves nothing of its beginning in any L2. `shared_bytes`, the parameters, are
    read between two uses of a set, too, but kept once: 1 GB of them make 12 sets of 17 MB needless, each of whose
    answers takes 2 s."""
    footprint = max(1, footprint_bytes)
    if footprint > _ALONE_BYTES:
        return 1
    wanted = max(3, -(-3 * l2_bytes // (footprint + shared_bytes)), math.ceil(1000.0 / max(estimate_us, 1.0)))
    affordable = max(3, _MOST_SLOT_BYTES // footprint)
    return max(3, min(wanted, affordable, _MOST_SLOTS))


def floor_us(bytes_moved: int, output_bytes: int, l2_bytes: int, slots: int, bandwidth_gbps: float) -> float:
    """The least time per launch: every byte once at full bandwidth, less what of the outputs may still be in the L2
    when a pass of `slots` launches ends."""
    kept = min(output_bytes, l2_bytes // max(1, slots))
    return max(0.0, bytes_moved - kept) / (bandwidth_gbps * 1e3)


CLOCK_RELATIVE = 0.03
CLOCK_ABSOLUTE_US = 1.0


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
    allowed = max(CLOCK_RELATIVE, CLOCK_ABSOLUTE_US / typical)
    late = [r for r in readings if r.device_us > r.host_us * (1 + CLOCK_RELATIVE) + CLOCK_ABSOLUTE_US]
    if late:
        claim, seen = late[0].device_us, late[0].host_us
        return Agreement(False, slope, f"the device clock claims {claim:.0f} µs in {seen:.0f} µs of host time")
    if abs(slope - 1) > allowed:
        return Agreement(False, slope, f"the host clock runs {slope:.3f} times as long as the device clock")
    return Agreement(True, slope)


def least_delayed(readings: Sequence[Reading]) -> list[Reading]:
    """Keep, of blocks with as many launches, the one whose answer came least late: a busy host only ever adds time."""
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


MEMO_RELATIVE = 0.05
MEMO_ABSOLUTE_US = 0.3
ALPHA = 0.05


@dataclass(frozen=True)
class MemoizationTimes:
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

    @property
    def drift(self) -> float:
        """By how much launches of one kind differ from their median, in logarithms: the median over all."""
        ratios = [math.log(t / median(times)) for times in (self.fresh_us, self.repeated_us) for t in times]
        return median([abs(ratio) for ratio in ratios])


@dataclass(frozen=True)
class MemoizationFinding:
    """Whether a candidate remembers, by how much, and how sure that is."""

    remembers: bool
    gain_us: float
    allowed_us: float
    p_value: float
    detail: str = ""

    def facts(self) -> dict[str, Json]:
        """Return the facts for the receipt."""
        return {
            "gain_us": round(self.gain_us, 4),
            "allowed_us": round(self.allowed_us, 4),
            "p_value": round(self.p_value, 6),
        }


def find_memoization(candidate: MemoizationTimes, baseline: MemoizationTimes | None = None) -> MemoizationFinding:
    """Compare a candidate's gain with what is allowed: 5 % of a launch or 0.3 µs, and what the baseline, which has no
    memory, gains in the same probe. A gain in the median must be significant, too (one-sided rank test, 5 %)."""
    fresh, again = median(candidate.fresh_us), median(candidate.repeated_us)
    of_baseline = max(0.0, baseline.relative) * fresh if baseline else 0.0
    allowed_us = of_baseline + max(MEMO_RELATIVE * again, MEMO_ABSOLUTE_US)
    p_value = rank_p([t - of_baseline for t in candidate.fresh_us], candidate.repeated_us)
    mostly = not candidate.gain_us <= allowed_us and p_value <= ALPHA
    remembers = mostly or not candidate.best_gain_us <= allowed_us
    if remembers and not mostly:
        fresh, again = min(candidate.fresh_us), min(candidate.repeated_us)
    detail = f"faster on inputs that it has seen before: {again:.2f} µs per launch, {fresh:.2f} µs on new ones"
    gain_us = max(candidate.gain_us, candidate.best_gain_us)
    return MemoizationFinding(remembers, gain_us, allowed_us, p_value, detail if remembers else "")


def rank_p(larger: Sequence[float], smaller: Sequence[float]) -> float:
    """One-sided p-value (Mann-Whitney, normal approximation with continuity correction) that the first are larger."""
    n, m = len(larger), len(smaller)
    if not n or not m:
        return 1.0
    wins = sum((a > b) + 0.5 * (a == b) for a in larger for b in smaller)
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    return 0.5 * math.erfc((wins - n * m / 2 - 0.5) / spread / math.sqrt(2))
