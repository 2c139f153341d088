"""An attempt, who proposes it, which is the best, how thoroughly it is judged, and when a run is over. Pure.

A search ranks its attempts by their screenings. The time of a longer measurement does not compare with those: a product
that runs for seconds makes the GPU hot, so that what was confirmed at 790 µs had been screened at 759, others at 760.
So an attempt that is judged again keeps its place, unless it is now told from another one that was judged as
thoroughly. (A model's attempts are judged in full when they may be the best, and rank by that time.)
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import (
    CaseResult,
    CaseTime,
    Comparison,
    KernelReport,
    Status,
    Tier,
    Timing,
    Verdict,
)

if TYPE_CHECKING:
    from kerneltune.tools.update import Update  # with it comes numpy, which a list of runs need not wait for

FINALISTS = 3  # of a search
LASTING = 24  # attempts without a better one, 8 s of screening, after which a best is judged in full for 3 s
FINAL_S = 45.0  # for all that a search judges at its end; a matmul takes 6 s in full and 18 s to be confirmed
CONFIRMATION = 3.0  # times as long as judging in full takes: in three fresh processes
MOST_CONFIRMATIONS = 3  # of a run: when the best does not hold, the next best, and the one after it
_THOROUGH = {"judged": ("judged", "confirmed"), "confirmed": ("confirmed",)}


@dataclass(frozen=True)
class LlmTurn:
    """A model wrote it, in a reply of a conversation; the replies of a conversation are counted from 1."""

    conversation: str
    turn: int
    kind: Literal["llm_turn"] = "llm_turn"


@dataclass(frozen=True)
class SearchPoint:
    """A search made it: a sketch at these launch parameters."""

    sketch: str
    params: dict[str, int] = field(default_factory=dict)
    kind: Literal["search_point"] = "search_point"


@dataclass(frozen=True)
class RunStart:
    """The run was told to begin with it. `given`: what --from says, or "offline" where that author made it, at `point`;
    `as_ptx`: it is the PTX that another start was compiled to."""

    given: str
    as_ptx: bool = False
    point: SearchPoint | None = None
    kind: Literal["run_start"] = "run_start"


@dataclass(frozen=True)
class GivenFile:
    """A file of a person's. `problem`: why there is no source that could be traced; it is rejected with these words."""

    name: str
    problem: str = ""
    kind: Literal["given_file"] = "given_file"


Origin = LlmTurn | SearchPoint | RunStart | GivenFile


def point_of(origin: Origin | None) -> SearchPoint | None:
    """The point of a search that something was made at, if it was."""
    return origin.point if isinstance(origin, RunStart) else origin if isinstance(origin, SearchPoint) else None


@dataclass(frozen=True)
class Proposal:
    """A candidate source and why. `parent_id` is the attempt it was derived from, `origin` who wrote it (None: nobody
    said). `hypothesis`: what it claims about its parent, and `prediction`, what would show that; both are held against
    its verdict. `predicted_speedup`: the parent's time divided by its own, as its author expects it; it is stored
    beside what was measured."""

    source: str
    rationale: str
    parent_id: str | None = None
    origin: Origin | None = None
    hypothesis: str = ""
    prediction: str = ""
    predicted_speedup: float | None = None


Outcome = Literal["open", "confirmed", "refuted"]


@dataclass(frozen=True)
class Expectation:
    """A hypothesis about an attempt, what it predicts, and (where it could be scored) whether it held."""

    hypothesis: str
    prediction: str
    outcome: Outcome
    evidence: dict[str, Json]


@dataclass(frozen=True, kw_only=True)
class Attempt(Proposal):
    """A proposal with its number in a run and what became of it: in a run, on the screen, in the record and its
    exports. `verdict` is the one that counts (a confirmation instead of the first one), None before there is one;
    `tool`: whose it is, or will be. `at`: when it was proposed, Unix time. `update`: what it was compiled to, in the
    process that did it and until it is benched. `held`: whether the latest `optimize verify` bore its verdict out, None
    without one; `refuted`: that one did not find it right, which it had been. The times in seconds are None where that
    step was not reached."""

    attempt_id: str
    number: int
    at: float = 0.0
    verdict: Verdict | None = None
    tool: Literal["update", "bench", "confirm"] | None = None
    rank_key: tuple[float, ...] = ()  # smaller is better; () when not accepted
    best: bool = False  # of the run when it was judged
    kernels: tuple[KernelReport, ...] = ()
    library_ops: tuple[str, ...] = ()
    plan_sha256: str | None = None
    plans_sha256: str = ""  # of all cases' plans: `tools.update.Update`; "" when it is of an earlier process
    trace_s: float | None = None
    compile_s: float | None = None
    bench_s: float | None = None
    judged_at: float = 0.0
    update: "Update | None" = field(default=None, compare=False, repr=False)
    expectations: tuple[Expectation, ...] = ()
    held: bool | None = None
    refuted: bool = False

    @property
    def judged(self) -> Verdict:
        """The verdict of an attempt that has one."""
        assert self.verdict is not None
        return self.verdict

    @property
    def status(self) -> Status | None:
        """How it ended; None before it did."""
        return self.verdict.status if self.verdict else None

    @property
    def detail(self) -> str:
        """What its verdict says; "" without one."""
        return self.verdict.detail if self.verdict else ""

    @property
    def tier(self) -> Tier | None:
        """How thoroughly it was timed; None without a time."""
        return self.verdict.tier if self.verdict else None

    @property
    def timing(self) -> Timing | None:
        """Its time; None when it was not timed."""
        return self.verdict.timing if self.verdict else None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Its time against each baseline; none when it was not timed."""
        return self.verdict.comparisons if self.verdict else ()

    @property
    def case_times(self) -> tuple[CaseTime, ...]:
        """Each weighted case's time, where several were timed."""
        return self.verdict.case_times if self.verdict else ()

    @property
    def coverage(self) -> float | None:
        """Share of GPU time in its own kernels; None when it was not timed."""
        return self.verdict.coverage if self.verdict else None

    @property
    def sol_fraction(self) -> float | None:
        """Speed-of-light time / measured time; None when it was not timed."""
        return self.verdict.sol_fraction if self.verdict else None

    @property
    def cases(self) -> tuple[CaseResult, ...]:
        """What its outputs were compared on."""
        return self.verdict.cases if self.verdict else ()

    @property
    def variant(self) -> str:
        """The label of the autotuner's choice that was judged; "" without one."""
        return self.verdict.variant if self.verdict else ""

    @property
    def lines(self) -> tuple[int, ...]:
        """Lines of its source that its verdict is about."""
        return self.verdict.lines if self.verdict else ()

    @property
    def pending(self) -> tuple[str, ...]:
        """Baselines that were not ready when it was timed."""
        return self.verdict.pending if self.verdict else ()

    @property
    def accepted(self) -> bool:
        """Right as far as the machine that judged it could tell."""
        return self.verdict is not None and self.verdict.accepted

    @property
    def stands(self) -> bool:
        """Accepted, and not refuted since."""
        return self.accepted and not self.refuted

    @property
    def conversation(self) -> str:
        """The key of the conversation in which a model proposed it; "" without a model."""
        return self.origin.conversation if isinstance(self.origin, LlmTurn) else ""

    @property
    def turn(self) -> int | None:
        """The reply of that conversation, from 1; None without a model."""
        return self.origin.turn if isinstance(self.origin, LlmTurn) else None

    @property
    def hardest(self) -> Comparison | None:
        """The comparison with the fastest baseline; a NaN is no speed-up while there is a number."""
        return min(self.comparisons, key=lambda c: (math.isnan(c.speedup), c.speedup), default=None)

    @property
    def speedup(self) -> float | None:
        """Over the fastest baseline; None when nothing was timed, or not every baseline was there."""
        hardest = None if self.pending else self.hardest
        return hardest.speedup if hardest else None

    @property
    def speedup_low(self) -> float | None:
        """The lower end of the interval of `speedup`."""
        return None if self.pending else min((c.low for c in self.comparisons), default=None)


@dataclass(frozen=True)
class Earlier:
    """An attempt of an earlier run. `median_us` is None where it failed. `same_task`: the task file is the same one,
    byte for byte; `same_versions`: so are torch, Triton and the evaluator."""

    attempt_id: str
    same_task: bool
    same_versions: bool
    sketch: str
    params: Mapping[str, int]
    source_sha256: str
    median_us: float | None
    task: str = ""


@dataclass(frozen=True)
class Lesson:
    """What an attempt of an earlier run claimed about its parent, and what the clock said. `measured`, `predicted`: the
    parent's time divided by its own; `intensity`: the flops per byte of its task."""

    attempt_id: str
    task: str
    task_sha256: str
    task_source: str
    idea: str
    hypothesis: str
    confirmed: bool
    measured: float
    predicted: float | None = None
    intensity: float | None = None


class StopReason(StrEnum):
    """Why a run is over."""

    ATTEMPTS = "attempts"
    TIME = "time"
    PATIENCE = "patience"
    COST = "cost"
    GOAL = "goal"
    STOPPED = "stopped"  # a person wanted no more
    INTERRUPTED = "interrupted"  # Ctrl-C
    AUTHOR_DONE = "author_done"
    REFUSED = "refused"  # the model will not write kernels
    MODEL_ERROR = "model_error"  # the provider could not be asked any more
    NO_ACCESS = "no_access"  # it refuses the key, the account or the model's name
    FAILED = "failed"

    @property
    def exit_code(self) -> int | None:
        """Of the command whose run ended so; None where that is for its attempts to say."""
        return {StopReason.INTERRUPTED: 130, StopReason.MODEL_ERROR: 6, StopReason.NO_ACCESS: 3}.get(self)


@dataclass(frozen=True)
class UpdateAction:
    """Trace and compile a candidate; it becomes an attempt. Those of one step are carried out side by side."""

    proposal: Proposal


@dataclass(frozen=True)
class BenchAction:
    """Check and time what was compiled."""

    attempt: Attempt


@dataclass(frozen=True)
class ReflectAction:
    """Note what is thought to limit an attempt."""

    attempt: Attempt
    hypothesis: str


NO_ROOM = "no attempts are left in this run's budget; bench what is not benched yet, then stop"


@dataclass(frozen=True)
class Declined:
    """An action that was not carried out, and why. `number`: of the attempt that it cost, if it did."""

    why: str
    number: int | None = None


Action = UpdateAction | BenchAction | ReflectAction
ActionResult = Attempt | Declined
Actions = Generator[Sequence[Action], Sequence[ActionResult], StopReason | None]
"""A line of work that learns from every result: it yields steps, is sent what came of each, and returns why it ends
(None: no reason to end the run). An empty step says that it is about to ask a model, or to begin anew: there a run may
end, or wait."""


class Author(Protocol):
    """Writes kernels: the LLM in its conversations, a search, a list of files."""

    name: str

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> "Sequence[Proposal | Actions]":
        """Up to `width` candidates or lines of work to begin next. An empty list: nothing before more is known, and
        nothing ever when nothing is under way."""
        ...


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


def deserves_judging(screened: "Attempt | Verdict", leader: Attempt | None) -> bool:
    """Whether what was screened may be better than the best: its interval reaches that one's time, or lies below it in
    a weighted case, for a package chooses by shape."""
    if screened.timing is None:
        return False
    if leader is None or leader.timing is None or screened.timing.low_us <= leader.timing.median_us:
        return True
    least_us = {its.case: its.timing.low_us for its in leader.case_times}
    return any(its.timing.high_us < least_us.get(its.case, 0.0) for its in screened.case_times)


def lasting(attempts: Sequence[Attempt], tiers: Tiers) -> Attempt | None:
    """The best, when it was only screened and has been the best for so long that what comes next builds on it."""
    leader = best(attempts)
    if leader is None or not tiers.finalists or leader.tier != "screened":
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
    ) -> StopReason | None:
        """The first limit that is reached, or None. `next_usd`: what the next request is likely to cost."""
        if self._reached(best(attempts)):
            return StopReason.GOAL
        if self.max_cost_usd is not None and cost_usd + next_usd > self.max_cost_usd:
            return StopReason.COST
        if len(attempts) >= self.max_attempts:
            return StopReason.ATTEMPTS
        if self.max_time_s is not None and elapsed_s >= self.max_time_s:
            return StopReason.TIME
        if self.patience is not None and since_improvement(attempts) >= self.patience:
            return StopReason.PATIENCE
        return None

    def _reached(self, leader: Attempt | None) -> bool:
        if leader is None:
            return False
        lows = [c.low for c in leader.comparisons]
        compared = bool(lows) and not leader.judged.pending
        faster = self.target_speedup is not None and compared and min(lows) >= self.target_speedup
        fraction = leader.sol_fraction
        return faster or (self.target_sol is not None and fraction is not None and fraction >= self.target_sol)


@dataclass(frozen=True)
class Remaining:
    """What a run may still use: attempts that may begin, seconds and dollars, infinite where nothing limits them.
    `is_over`: a limit is reached, or a person wants no more."""

    attempts: float = math.inf
    time_s: float = math.inf
    cost_usd: float = math.inf
    is_over: bool = False


Change = Literal["paused", "resumed", "raised", "stopping"]
_POLL_S = 0.2


class Controls:
    """Safe to use from any thread. Nobody listens before `connect`, and a change made by then is told there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._raises = 0
        self._stopping = self._interrupted = False
        self._tell: Callable[[Change], None] = lambda _: None
        self._skip: Callable[[], int] = lambda: 0

    def connect(self, tell: Callable[[Change], None], skip: Callable[[], int]) -> None:
        """Give a run's ears: `tell` hears of each change, `skip` gives up what is under way and says how much."""
        with self._changed:
            self._tell, self._skip = tell, skip
            earlier: list[tuple[bool, Change]] = [
                (self.paused, "paused"), (self._raises > 0, "raised"), (self._stopping, "stopping"),
            ]  # fmt: skip
        for made, change in earlier:
            if made:
                tell(change)

    @property
    def paused(self) -> bool:
        """Whether nothing new may begin."""
        return self._paused_at is not None

    @property
    def stopping(self) -> bool:
        """Whether the run shall end when what is under way is finished."""
        return self._stopping

    @property
    def interrupted(self) -> bool:
        """Whether nobody waits for the run's end any more."""
        return self._interrupted

    @property
    def raises(self) -> int:
        """How often the limits were raised."""
        return self._raises

    @property
    def paused_s(self) -> float:
        """Seconds spent paused or suspended so far; the time limit does not count them."""
        with self._changed:
            since = 0.0 if self._paused_at is None else time.monotonic() - self._paused_at
            return self._paused_s + since

    @property
    def clock_s(self) -> float:
        """A monotonic clock that stands still while the run is paused or suspended."""
        with self._changed:
            return time.monotonic() - self.paused_s

    def suspended(self, seconds: float) -> None:
        """Count so many seconds, just over, in which the process was stopped by its shell (Ctrl-Z)."""
        with self._changed:
            if self._paused_at is None:  # else the pause counts them
                self._paused_s += seconds

    def pause(self) -> bool:
        """Pause, or go on; says whether the run is paused now. What is under way is finished either way."""
        with self._changed:
            if self._paused_at is None:
                self._paused_at = time.monotonic()
            else:
                self._paused_s += time.monotonic() - self._paused_at
                self._paused_at = None
            paused = self.paused
            self._changed.notify_all()
        self._tell("paused" if paused else "resumed")
        return paused

    def raise_limits(self) -> None:
        """A quarter more attempts and time than were given."""
        with self._changed:
            self._raises += 1
        self._tell("raised")

    def stop(self, *, interrupted: bool = False) -> None:
        """End the run after what is under way, also when it is paused. `interrupted`: as Ctrl-C does, without judging
        its best again."""
        with self._changed:
            self._stopping, self._interrupted = True, self._interrupted or interrupted
            self._changed.notify_all()
        self._tell("stopping")

    def skip(self) -> int:
        """Give up the attempts that are being traced, compiled or checked; says how many those are."""
        return self._skip()

    def wait(self, over: Callable[[], bool] = lambda: False) -> None:
        """Return at once, or when the run is no longer paused, shall stop, or is `over`."""
        with self._changed:
            while self.paused and not self._stopping and not over():
                self._changed.wait(_POLL_S)


def best(attempts: Iterable[Attempt]) -> Attempt | None:
    """The accepted attempt with the smallest rank key that nothing refuted since; the earlier one on a tie."""
    return min((a for a in attempts if a.stands), key=rank_order, default=None)


def rank_order(attempt: Attempt) -> tuple[bool, tuple[float, ...], int]:
    """Smaller is better, among accepted ones. Without a time, those that leave work to a library come last: the static
    model sees what such a call moves, not what it computes."""
    return attempt.timing is None and bool(attempt.library_ops), attempt.rank_key, attempt.number


def faster_in_a_case(leader: Attempt, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Those that are faster than the best one in a weighted case, the fastest for each case: by their whole intervals,
    and where both were timed in full."""
    found: dict[str, Attempt] = {}
    for its in leader.case_times if leader.tier in _THOROUGH else ():
        rivals = [
            (theirs.timing.median_us, a.number, a)
            for a in attempts
            for theirs in a.case_times
            if a.stands
            and a.tier in _THOROUGH
            and theirs.case == its.case
            and theirs.timing.high_us < its.timing.low_us
        ]
        if rivals:
            _, _, fastest = min(rivals)
            found[fastest.attempt_id] = fastest
    return list(found.values())


def since_improvement(attempts: Sequence[Attempt]) -> int:
    """How many attempts have finished since the best one; 0 while nothing is accepted yet."""
    leader = best(attempts)
    return 0 if leader is None else sum(a.number > leader.number for a in attempts)


_LAST = sys.float_info.max  # finite: it is stored as JSON


def rank_key(verdict: Verdict, update: "Update") -> tuple[float, ...]:
    """Smaller is better; () when the attempt is not accepted.

    Timed: the median; what could not be timed although there is a GPU comes behind. Without a GPU nothing is timed, so
    the order is that of a static model, `tools.schema.sass.effective_bytes`, to two digits, below which it tells
    nothing; then spills, resident warps, registers. It is an order, not a time.
    """
    if not verdict.accepted:
        return ()
    if verdict.timing is not None:
        return (verdict.timing.median_us,)
    if verdict.not_timed is not None:
        return (_LAST,)
    moved = update.traffic_bytes if update.effective_bytes is None else update.effective_bytes
    return (float(f"{moved:.2g}"), *static_key(update.kernels))


def static_key(kernels: Sequence[KernelReport]) -> tuple[float, ...]:
    """Spills, resident warps, registers: the smaller, the better."""
    spills = sum(k.spill_bytes for k in kernels)
    occupancy = min((k.occupancy for k in kernels), default=0.0)
    return (float(spills), -occupancy, float(sum(k.registers for k in kernels)))


def next_finalist(attempts: Sequence[Attempt], tiers: Tiers, tried: Collection[str]) -> Attempt | None:
    """The next to be judged in full: one that was only screened and may be better than all that were, at least in a
    weighted case, while there are tries left. Another file with the plans of one that was tried, judged in full, or
    refused, is not another one."""
    if len(tried) >= tiers.finalists:
        return None
    leader = _fastest([a for a in attempts if a.tier in _THOROUGH])
    untried = [a.tier == "screened" and a.attempt_id not in tried for a in attempts]
    known = {a.plans_sha256 for a, is_open in zip(attempts, untried, strict=True) if a.plans_sha256 and not is_open}
    open_ones = [a for a, is_open in zip(attempts, untried, strict=True) if is_open and a.plans_sha256 not in known]
    return best([a for a in open_ones if deserves_judging(a, leader)])


def next_to_confirm(attempts: Sequence[Attempt], tried: Collection[str]) -> Attempt | None:
    """The best attempt, when it still needs to be confirmed and there are tries left; when that was slower than another
    one's time in full, that one."""
    leader = best(attempts)
    if leader is None or leader.timing is None or len(tried) >= MOST_CONFIRMATIONS:
        return None
    if leader.tier == "confirmed":
        rivals = [a for a in attempts if a.tier == "judged" and a.attempt_id not in tried]
        leader = _fastest([a for a in rivals if a.accepted and _us(a) < _us(leader)])
    return None if leader is None or leader.attempt_id in tried else leader


def key_again(
    attempts: Sequence[Attempt], attempt: Attempt, verdict: Verdict, update: "Update", tiers: Tiers
) -> tuple[float, ...]:
    """The rank key of an attempt with the verdict that counts from now on: its place among the others."""
    key = rank_key(verdict, update)
    if key and verdict.timing is not None and tiers.finalists:
        return _place([a for a in attempts if a.attempt_id != attempt.attempt_id], attempt, verdict)
    return key


def twins(attempts: Sequence[Attempt], attempt: Attempt) -> list[Attempt]:
    """Those of other files with the same plans that still count as right."""
    same = [a for a in attempts if a.plans_sha256 == attempt.plans_sha256 and a.attempt_id != attempt.attempt_id]
    return [a for a in same if a.plans_sha256 and a.accepted]


def _place(others: Sequence[Attempt], attempt: Attempt, verdict: Verdict) -> tuple[float, ...]:
    """Its own among those that were only screened; before all others where it is the fastest of what was judged as
    thoroughly, else behind the one that is."""
    own = attempt.rank_key
    rival = _fastest([a for a in others if a.tier in _THOROUGH.get(verdict.tier or "", ())])
    if rival is not None and _us(rival) <= _us(verdict):
        return max(own, (math.nextafter(rival.rank_key[0], math.inf),))
    thorough = [a.rank_key for a in others if a.accepted and a.tier in _THOROUGH]
    return min([own, *((math.nextafter(key[0], 0.0),) for key in thorough)])


def _fastest(attempts: Sequence[Attempt]) -> Attempt | None:
    return min((a for a in attempts if a.accepted), key=lambda a: (_us(a), a.number), default=None)


def _us(judged: Attempt | Verdict) -> float:
    return judged.timing.median_us if judged.timing else math.inf
