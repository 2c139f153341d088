"""Labels and rewards of attempts, returns and advantages of turns, rejection sampling. Pure; see docs/rewards.md.

Three values where two would lie: a label is None when nobody found out (never judged, or not without a GPU). What was
not timed is right, and neither fast nor slow.

A reward is a function of one attempt, with three kinds of answers: what the formula says of a right one; what it says
of a failed one (0, for most); and None where it cannot be known: never judged, right but never timed where a time is
needed, no such baseline. None is never 0: an unknown reward that counts as 0 teaches that right kernels are worthless.

A refused attempt (`rejected`, `impossible`) gets what the formula gives to a cheat.
"""

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kerneltune.agent.attempt import Attempt, Expectation, Outcome, RunStart
from kerneltune.agent.events import RunStarted
from kerneltune.agent.export.base import near, option_types, options
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import RIGHT, Status

FASTEST: Final = "fastest"
Score = Callable[[Attempt], float | None]

# What is in neither is unknown: not judged, not checkable, or with a time that cannot be.
_FAILED = (Status.REJECTED, Status.COMPILE_FAILED, Status.CRASHED, Status.TIMED_OUT, Status.WRONG)


class Labels(NamedTuple):
    """The labels of one attempt.

    `compilable`: tracer and compiler accepted it. None: never judged, or found wrong before it was compiled.
    `correct`: right as far as known. None: never judged, nothing on the machine could run it, or a verification refuted
        that it is right.
    `timed`: `correct` rests on a GPU, where every timed output was checked; otherwise on an interpreter of small cases.
    `faster`: the lower end of its speed-up's interval is above 1 against the fastest baseline. None when not timed.
    `impossible`: faster than light, or the clocks disagree: a cheat, or a broken measurement.
    `why`: status/tool/cause of an attempt that is not right, as far as known; "" for one that is, or was never judged.
    `verified`: `optimize verify` bore its verdict out. None: nobody verified it.
    """

    compilable: bool | None
    correct: bool | None
    timed: bool
    faster: bool | None
    impossible: bool
    why: str
    verified: bool | None


def labels(attempt: Attempt) -> Labels:
    """The labels of an attempt."""
    status, timed = attempt.status, attempt.timing is not None
    failed = status is not None and status not in RIGHT
    return Labels(
        compilable(attempt),
        correct(attempt),
        timed,
        attempt.speedup_low > 1.0 if timed and attempt.speedup_low is not None and not attempt.refuted else None,
        status is Status.IMPOSSIBLE,
        "/".join(filter(None, (status, attempt.tool, attempt.judged.cause))) if failed else "",
        attempt.held,
    )


def compilable(attempt: Attempt) -> bool | None:
    """Whether tracer and compiler accepted it; None when it never came to that."""
    status = attempt.status
    if status is None or attempt.tool != "update":
        return None if status is None else status is not Status.COMPILE_FAILED
    return None if status is Status.WRONG else False


def correct(attempt: Attempt) -> bool | None:
    """Whether it is right, as far as the machine that judged it could tell; None when it could not, or when a later
    verification found something else."""
    status = attempt.status
    return None if status is None or status is Status.UNCHECKED or attempt.refuted else status in RIGHT


def right(attempt: Attempt) -> bool:
    """Known to be right."""
    return attempt.accepted and attempt.held is not False


def fails(attempt: Attempt) -> bool:
    """Known to fail."""
    return attempt.status in _FAILED and attempt.held is not False


def outcome(expected: Expectation, attempt: Attempt) -> Outcome:
    """What became of a hypothesis that was tested by this attempt. Without a clock one about speed is open, whatever
    was stored; that an attempt does not work at all refutes it without one."""
    decided = attempt.timing is not None or fails(attempt)
    return expected.outcome if decided else "open"


# Rewards --------------------------------------------------------------------------------------------------------------


def speedup_over(attempt: Attempt, baseline: str = FASTEST, *, low: bool = False) -> float | None:
    """Speed-up over the fastest baseline, or over a named one; `low`: the lower end of its 95 % interval. None when it
    was not timed against that one, when a faster one may have been missing, or when what is stored is no positive
    number."""
    if baseline == FASTEST and attempt.pending:
        return None
    values = [c.low if low else c.speedup for c in attempt.comparisons if baseline == FASTEST or c.baseline == baseline]
    found = min(values) if baseline == FASTEST and values else next(iter(values), None)
    return found if found is not None and 0.0 < found < math.inf else None


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _gated(formula: Callable[..., float | None]) -> Callable[..., float | None]:
    """0 for failed attempts, None for those of which nothing is known, else what the formula says of a right one."""

    @functools.wraps(formula)
    def score(attempt: Attempt, **given: Any) -> float | None:
        known = correct(attempt)
        if known:
            return formula(attempt, **given)
        return None if known is None else 0.0

    return score


@_gated
def fast_p(attempt: Attempt, *, p: float = 1.0, baseline: str = FASTEST) -> float | None:
    """1 when right and more than p times as fast, strictly; fast_1, fast_1.5 name a threshold."""
    if p == 0.0:
        return 1.0  # whatever the time is: fast_0 is the share of right ones
    speedup = speedup_over(attempt, baseline)
    return None if speedup is None else float(speedup > p)


@_gated
def kevin(attempt: Attempt, *, correct: float = 0.3, baseline: str = FASTEST) -> float | None:
    """0.3 for being right plus the speed-up; 0 when not right."""
    speedup = speedup_over(attempt, baseline)
    return None if speedup is None else correct + speedup


@_gated
def drkernel(
    attempt: Attempt,
    *,
    correct: float = 0.5,
    speed: float = 0.5,
    lambda_: float = 0.5,
    cap: float = 3.0,
    baseline: str = FASTEST,
) -> float | None:
    """Half for being right, half the capped speed-up, plus lambda times the coverage (PR)."""
    speedup = speedup_over(attempt, baseline)
    coverage = _known(attempt.coverage) if lambda_ else 0.0
    if speedup is None or coverage is None:
        return None
    return correct + speed * min(speedup, cap) + lambda_ * coverage


@_gated
def sol(attempt: Attempt, *, baseline: str = FASTEST) -> float | None:
    """How far it is from the baseline to the speed of light: 0.5 at the baseline, 1 at the limit."""
    speedup, fraction = speedup_over(attempt, baseline), _known(attempt.sol_fraction)
    if speedup is None or fraction is None or fraction <= 0.0:
        return None
    return sol_score(speedup, fraction)


def sol_score(speedup: float, sol_fraction: float) -> float:
    """1 / (1 + (T_k - T_sol) / (T_b - T_sol)) with T_sol = sol_fraction * T_k and T_b = speedup * T_k, in [0, 1].

    At or below T_sol (a kernel may measure a little below it, as both are measured): 1. Above it while the baseline
    is not: the score has no scale, and is 0.
    """
    if sol_fraction >= 1.0:
        return 1.0
    gap = speedup - sol_fraction
    return 0.0 if gap <= 0.0 else gap / (gap + (1.0 - sol_fraction))


@_gated
def proven(attempt: Attempt, *, correct: float = 0.3, cap: float = 4.0, baseline: str = FASTEST) -> float | None:
    """What is proven of it: the logarithm of the interval's lower end, times the coverage.

    correct + (1 - correct) * coverage * place; place goes from 0 at 1 / cap to 1 at cap. Unknown when a verification
    did not bear the verdict out."""
    low, coverage = speedup_over(attempt, baseline, low=True), _known(attempt.coverage)
    if low is None or coverage is None or attempt.held is False:
        return None
    place = min(max((math.log2(low) / math.log2(cap) + 1.0) / 2.0, 0.0), 1.0)
    return correct + (1.0 - correct) * min(max(coverage, 0.0), 1.0) * place


def stages(attempt: Attempt, *, compiles: float = 0.2) -> float | None:
    """1 for being right, a little for compiling: for the first steps of a model that gets nothing right."""
    known = correct(attempt)
    if known is None:
        return None
    pays = compilable(attempt) and attempt.status is not Status.IMPOSSIBLE
    return 1.0 if known else compiles if pays else 0.0


def hypothesis(attempt: Attempt) -> float | None:
    """The expectation that the attempt tested was confirmed, refuted, or undecided (0). Unknown without a clock."""
    worth = {"confirmed": 1.0, "refuted": -1.0, "open": 0.0}
    return _mean(worth[outcome(e, attempt)] for e in attempt.expectations if _was_tested(e, attempt))


def _was_tested(expected: Expectation, attempt: Attempt) -> bool:
    """Decided; or held against a measurement that showed no difference. One about an attempt to come was not."""
    if outcome(expected, attempt) != "open":
        return True
    if attempt.timing is None:
        return False
    seen = expected.evidence
    foretold = "predicted_speedup" in seen  # then the ratio to the parent is that of the attempt before
    return _number(seen.get("measured_speedup" if foretold else "time_ratio_to_parent")) > 0.0


def prediction(attempt: Attempt) -> float | None:
    """How near the predicted speed-up over the parent came to the measured one."""
    failed = correct(attempt) is False
    found = (_foreseen(e, failed=failed) for e in attempt.expectations)
    return _mean(value for value in found if value is not None)


def _foreseen(expected: Expectation, *, failed: bool) -> float | None:
    """1 when exact, -1 from two octaves on, or when it does not work."""
    seen = expected.evidence
    predicted, measured = _number(seen.get("predicted_speedup")), _number(seen.get("measured_speedup"))
    if "measured_speedup" not in seen or predicted <= 0.0:
        return None
    if measured <= 0.0:
        return -1.0 if failed else None
    return max(1.0 - abs(math.log2(predicted / measured)), -1.0)


def _number(value: object) -> float:
    """A positive finite number as stored; 0 for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 < value < 1e9
    return float(value) if good and isinstance(value, int | float) else 0.0


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


# How a command line names a reward ----------------------------------------------------------------------------------

REWARDS: Mapping[str, Callable[..., float | None]] = {
    f.__name__: f for f in (fast_p, kevin, drkernel, sol, proven, stages, hypothesis, prediction)
}
_LIMITS = {"stages": {"compiles": (0.0, 1.0)}, "proven": {"correct": (0.0, 1.0), "cap": (1.01, math.inf)}}


@dataclass(frozen=True)
class Reward:
    """A formula with its parameters. `name` says both in one spelling, and is what a column is called."""

    name: str
    about: str
    score: Score

    def __call__(self, attempt: Attempt) -> float | None:
        """The reward of an attempt, finite; None when it cannot be known."""
        return None if attempt.refuted else self.score(attempt)


def rewards_of(specs: Iterable[str]) -> tuple[Reward, ...]:
    """The rewards that specs name, in order. Raises UsageError, also when two of them are the same."""
    made: dict[str, Reward] = {}
    for spec in specs:
        reward = reward_of(spec)
        if reward.name in made:
            raise UsageError(f"reward {spec!r} is named twice: it is {reward.name}; leave one out")
        made[reward.name] = reward
    return tuple(made.values())


def reward_of(spec: str) -> Reward:
    """The reward that a spec names: `kevin`, `fast_1.5`, `drkernel:lambda=0.5,cap=3,baseline=eager`. Raises UsageError:
    which part of it is wrong, and what would work."""
    name, _, rest = (part.strip() for part in spec.partition(":"))
    if name.startswith("fast_") and name != "fast_p":
        rest = f"p={name.removeprefix('fast_')},{rest}"
        name = "fast_p"
    formula = REWARDS.get(name)
    if formula is None:
        raise UsageError(f"no reward {spec!r}; {near(name, [*REWARDS, 'a threshold such as fast_1.5'])}")
    given = options(f"reward {name}", rest, formula)
    for option, (argument, _) in option_types(formula).items():
        _check(name, option, given.get(argument))
    about = (formula.__doc__ or "").partition("\n")[0].rstrip(".")
    return Reward(_spelled(name, formula, given), about, functools.partial(formula, **given))


def _check(name: str, option: str, value: float | str | None) -> None:
    low, high = _LIMITS.get(name, {}).get(option, (0.0, math.inf))
    if isinstance(value, float) and not low <= value <= high:
        where = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
        raise UsageError(f"reward {name}: {option}={value:g} is not a number {where}")


def _spelled(name: str, formula: Callable[..., object], given: Mapping[str, float | str]) -> str:
    """3, not 3.0; defaults left out."""
    defaults: Mapping[str, object] = inspect.unwrap(formula).__kwdefaults__
    told = {}
    for option, (argument, _) in option_types(formula).items():
        value = given.get(argument, defaults[argument])
        if value != defaults[argument] or (name == "fast_p" and option == "p"):
            told[option] = f"{value:g}" if isinstance(value, float) else value
    name = f"fast_{told.pop('p')}" if name == "fast_p" else name
    return f"{name}:{','.join(f'{k}={v}' for k, v in told.items())}" if told else name


# Turns, returns, advantages ------------------------------------------------------------------------------------------
# A *turn* is a reply that proposed at least one attempt; they count from 1 within their conversation, which is a
# rollout. Replies in between (a bench, a reflection) prepare the next turn and are no turns of their own: a policy is
# neither rewarded nor discounted for how many calls it puts into one reply. Several attempts of one reply are worth
# what the best of them is, since that is what the turn achieved: their sum would pay for quantity.
#
# An author that is no conversation (the offline search) has no replies. There a turn is a generation: an attempt's is 1
# more than its parent's, and what follows an attempt is the mean of what follows from each of its children. In a chain
# that is the same as in a conversation.
#
# G_t = r_t + gamma * G_(t+1), Kevin's sum. A reward may be unknown; then so is every return that contains it.
#
# Advantages compare a return with those of the same task and turn in other rollouts. They need two passes: `Groups`
# adds every valid return up in the first, and says the advantage of each in the second. It holds three numbers a group.

GAMMA: Final = 0.4
_STD_FLOOR = 1e-6


@dataclass(frozen=True)
class RewardedTurn:
    """A turn. `conversation` is "" and `reply` None for a generation. `number` counts turns from 1, `reply` the replies
    of the conversation. `reward` and `to_go` (its return) are None when unknown; the turn is valid when `to_go` is
    known."""

    conversation: str
    number: int
    reply: int | None
    attempts: tuple[Attempt, ...]
    reward: float | None
    to_go: float | None


def returns(rewards: Sequence[float | None], gamma: float = GAMMA) -> list[float | None]:
    """The returns of the turns of one rollout, from their rewards in order."""
    found: list[float | None] = []
    later: float | None = 0.0
    for reward in reversed(rewards):
        later = None if reward is None or later is None else reward + gamma * later
        found.append(later)
    return found[::-1]


def turns_of(trajectory: Trajectory, reward: Score, gamma: float = GAMMA) -> list[RewardedTurn]:
    """The turns of all conversations of a run, in order; then the generations of attempts that no reply proposed, but
    those that the run began with, which were there before it."""
    talked: dict[str, dict[int, list[Attempt]]] = {}
    grown: list[Attempt] = []
    for attempt in (a for a in trajectory.attempts if not isinstance(a.origin, RunStart)):
        if attempt.turn is None:
            grown.append(attempt)
        else:
            talked.setdefault(attempt.conversation, {}).setdefault(attempt.turn, []).append(attempt)
    found = [turn for key, replies in talked.items() for turn in _conversation(key, replies, reward, gamma)]
    return found + (_generations(grown, trajectory, reward, gamma) if grown else [])


def _conversation(key: str, replies: dict[int, list[Attempt]], reward: Score, gamma: float) -> list[RewardedTurn]:
    order = sorted(replies)
    rewards = [_best([reward(a) for a in replies[n]]) for n in order]
    rows = zip(order, rewards, returns(rewards, gamma), strict=True)
    return [RewardedTurn(key, i, n, tuple(replies[n]), r, to_go) for i, (n, r, to_go) in enumerate(rows, 1)]


def _best(rewards: Sequence[float | None]) -> float | None:
    """The reward of a turn, unknown as soon as one of its attempts may be the best and nobody knows."""
    known = [r for r in rewards if r is not None]
    return max(known) if known and len(known) == len(rewards) else None


def _generations(grown: Sequence[Attempt], trajectory: Trajectory, reward: Score, gamma: float) -> list[RewardedTurn]:
    """Attempts come by number, and a parent has a smaller one than its child."""
    depth: dict[str, int] = {}
    children: dict[str, list[Attempt]] = {}
    for attempt in trajectory.attempts:
        parent = trajectory.parent(attempt)
        before = depth[parent.attempt_id] if parent else 0
        depth[attempt.attempt_id] = before + (not isinstance(attempt.origin, RunStart))
        if parent and attempt.turn is None:
            children.setdefault(parent.attempt_id, []).append(attempt)
    after: dict[str, float | None] = {}
    turns = []
    for attempt in reversed(grown):
        worth = reward(attempt)
        following = [after[c.attempt_id] for c in children.get(attempt.attempt_id, ())]
        known = [value for value in following if value is not None]
        later = math.fsum(known) / len(known) if known else 0.0
        unknown = worth is None or len(known) < len(following)
        found = after[attempt.attempt_id] = None if unknown or worth is None else worth + gamma * later
        turns.append(RewardedTurn("", depth[attempt.attempt_id], None, (attempt,), worth, found))
    return turns[::-1]


def group_of(run: RunStarted, turn: RewardedTurn) -> Hashable:
    """What a turn is compared with: the same turn of the same task on the same GPU in the same language, conversations
    with conversations.

    Rollouts of several models are compared with each other: a mean of others is a fair baseline whoever they are, for
    it does not depend on the turn's own return. Times of another GPU are on another scale."""
    return (run.task_sha256, run.gpu or "", run.language, turn.reply is not None, turn.number)


class ReturnGroups:
    """Counts, means and spreads of the returns of groups; two passes, see above."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[float]] = {}  # count, mean, sum of squared deviations

    def add(self, group: Hashable, to_go: float | None) -> None:
        """Pass one: a return; an unknown one is no part of its group. Raises ValueError when it is not finite."""
        if to_go is None:
            return
        if not math.isfinite(to_go):
            raise ValueError(f"a return of {to_go} in group {group!r}: returns are finite numbers")
        held = self._groups.setdefault(group, [0.0, 0.0, 0.0])
        held[0] += 1.0
        step = to_go - held[1]
        held[1] += step / held[0]  # Welford: sums of squares of large returns would cancel
        held[2] += step * (to_go - held[1])

    def size(self, group: Hashable) -> int:
        """How many valid turns a group has."""
        return int(self._groups.get(group, (0,))[0])

    def trloo(self, group: Hashable, to_go: float | None) -> float | None:
        """Pass two, turn-level leave-one-out: G minus the mean of the others, N / (N - 1) * (G - mean). None for an
        unknown return, and where there are no others. Raises ValueError for a group that pass one did not see."""
        if to_go is None:
            return None
        n, mean, _ = self._seen(group)
        return None if n == 1.0 else n / (n - 1.0) * (to_go - mean)

    def grpo(self, group: Hashable, to_go: float | None) -> float | None:
        """Pass two, normalised in the group: (G - mean) / (standard deviation + 1e-6); None as for `trloo`."""
        if to_go is None:
            return None
        n, mean, spread = self._seen(group)
        return None if n == 1.0 else (to_go - mean) / (math.sqrt(max(spread, 0.0) / (n - 1.0)) + _STD_FLOOR)

    def _seen(self, group: Hashable) -> Sequence[float]:
        held = self._groups.get(group)
        if held is None:
            raise ValueError(f"no return of group {group!r} was added in the first pass; add them all before asking")
        return held


# Rejection sampling ---------------------------------------------------------------------------------------------------

_DRAWS = 2**64


def draw(seed: int, attempt_id: str) -> float:
    """A number in [0, 1) that belongs to an attempt: a hash, not a state."""
    text = f"{seed}\0{attempt_id}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / _DRAWS


@dataclass(frozen=True)
class RejectionSampling:
    """Profiling-based rejection sampling (Dr.Kernel's PRS): a right attempt whose own kernels do little of the work is
    kept with a small probability, so that a policy does not learn to leave the work to the library.

    A right attempt is kept with probability clip((coverage - tau) / s, 0, 1); with s of 0, when its coverage is at
    least tau; always when its speed-up reaches `speedup`. What is not right is always kept: nobody learns a hack from
    a failure. A right attempt of unknown coverage (no GPU) is kept: a store without a GPU would be left nothing but
    failures. Raises UsageError for a wrong value.
    """

    tau: float = 0.3
    s: float = 0.1
    speedup: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("tau", self.tau), ("s", self.s), ("speedup", self.speedup)):
            if value is not None and not 0.0 <= value < math.inf:
                raise UsageError(f"{name}={value} is no threshold; it is a number of at least 0")

    def probability(self, attempt: Attempt) -> float:
        """With what probability it is kept."""
        if not correct(attempt):
            return 1.0
        if self.speedup is not None and (speedup_over(attempt) or 0.0) >= self.speedup:
            return 1.0
        coverage = attempt.coverage
        if coverage is None or not math.isfinite(coverage):
            return 1.0
        if self.s == 0.0:
            return float(coverage >= self.tau)
        return min(max((coverage - self.tau) / self.s, 0.0), 1.0)

    def keeps(self, attempt: Attempt) -> bool:
        """Whether it is kept."""
        p = self.probability(attempt)
        return p >= 1.0 or (p > 0.0 and draw(self.seed, attempt.attempt_id) < p)


def rejection_sampling(spec: str) -> RejectionSampling:
    """From options as a command line gives them, `tau=0.3,s=0.1`; `none` stands for no threshold. Raises UsageError."""
    spec = ",".join("s=0" if part.strip().lower() == "s=none" else part for part in spec.split(","))
    return RejectionSampling(**options("rejection sampling", spec, RejectionSampling))
