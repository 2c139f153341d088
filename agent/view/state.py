"""What there is to see, as an immutable value, and the fold that makes it from events. Knows no terminal."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property
from typing import Literal, assert_never

from kerneltune.agent.attempt import Attempt, Limits, best
from kerneltune.agent.events import (
    AttemptEvent,
    AttemptSkipped,
    Event,
    GpuReading,
    GpuSampled,
    Judged,
    JudgingAgain,
    LimitsChanged,
    ModelAsked,
    ModelBusy,
    Note,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
    RunStopping,
    RunSuspended,
    Said,
    StageStarted,
    Updated,
    Verified,
    Warned,
    after,
    proposed_attempt,
)
from kerneltune.agent.view import text as words
from kerneltune.tools.backends.base import throttled
from kerneltune.tools.schema.codec import Json, counted, number

Who = Literal["author", "judge", "reflection", "warning", "run"]


@dataclass(frozen=True)
class Working:
    """What is being done to an attempt that has no verdict, and since when (Unix time)."""

    stage: str
    at: float


@dataclass(frozen=True)
class LogEntry:
    """A line of the log: a message, a verdict, a warning."""

    who: Who
    text: str


@dataclass(frozen=True)
class Budget:
    """How much of one limit is used."""

    name: Literal["attempts", "time", "patience", "cost"]
    used: float
    limit: float

    @property
    def fraction(self) -> float:
        """Used / limit, at most 1."""
        return min(1.0, self.used / self.limit) if self.limit > 0 else 1.0


_HOT = 0x20 | 0x40  # software and hardware thermal slowdown
_REASONS = ((0x8, "hardware slowdown"), (_HOT, "thermal"), (0x80, "power brake"), (0x4, "power cap"))  # worst first


def throttling(reading: GpuReading) -> str:
    """What holds the clocks down, in words; "" when it is not told."""
    if reading.throttle_reasons is None:
        return ""
    return ", ".join(word for bits, word in _REASONS if reading.throttle_reasons & bits) or "not throttled"


def is_slowed(reading: GpuReading) -> bool:
    """Whether a measurement now would be worth less."""
    return throttled(reading.throttle_reasons)


@dataclass(frozen=True)
class Spending:
    """What the models of a run were asked and what that cost. `unpriced`: replies whose cost is unknown."""

    replies: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0

    def and_(self, reply: Replied) -> "Spending":
        """Add one more reply."""
        usage = {k: v for k, v in (reply.usage or {}).items() if isinstance(v, int)}
        return Spending(
            self.replies + 1,
            self.input_tokens + usage.get("input_tokens", 0),
            self.cached_tokens + usage.get("cached_tokens", 0),
            self.output_tokens + usage.get("output_tokens", 0),
            self.cost_usd + (reply.cost_usd or 0.0),
            self.unpriced + (reply.cost_usd is None),
        )

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def usd(self) -> float | None:
        """The cost; None when no price is known."""
        return None if self.unpriced == self.replies else self.cost_usd


def format_reply(event: Replied) -> str:
    """Format a reply: its text, else its thinking, and the tools it called."""
    calls = [str(c.get("name")) for c in event.calls if isinstance(c, dict)] if isinstance(event.calls, list) else []
    told = event.text.strip() or event.thinking.strip()
    stopped = "" if event.stop in ("end", "tools") else f"[{event.stop}{': ' + event.detail if event.detail else ''}]"
    return " ".join(filter(None, [told, f"-> {', '.join(calls)}" if calls else "", stopped])) or "[nothing]"


def format_spending(spent: Spending) -> str:
    """Format tokens and dollars; an unknown price is not 0."""
    share = spent.cached_tokens / spent.input_tokens if spent.input_tokens else 0.0
    cached = f" ({share:.0%} cached)" if share else ""
    price = "price unknown" if spent.usd is None else words.dollars(spent.usd)
    more = f" and {spent.unpriced} of unknown price" if spent.usd is not None and spent.unpriced else ""
    counted = spent.input_tokens or spent.output_tokens
    told = f"{words.tokens(spent.input_tokens)} tokens in{cached}, {words.tokens(spent.output_tokens)} out"
    tokens = told if counted else "tokens not counted"
    return f"{tokens}, {price}{more}"


UNFINISHED = "unfinished"
SKIPPED = "skipped"
LEFT_STAGES = (UNFINISHED, SKIPPED)  # of attempts that nobody works on
_UNDER_WAY = 256  # more are never under way at once
_LOG_ENTRIES = 200
_LEAST_JUDGED, _LEAST_PACE_S = 3, 10.0  # before that a pace says nothing
_STREAM_CHARACTERS = 8000


@dataclass(frozen=True)
class ViewState:
    """Everything that the views show. `started` is the run's first event, `ended` its last."""

    started: RunStarted | None = None
    ended: RunEnded | None = None
    attempts: tuple[Attempt, ...] = ()
    under_way: Mapping[str, Working] = field(default_factory=dict)  # attempts without a verdict, by id
    best_id: str | None = None
    stage: str = "starting"
    log: tuple[LogEntry, ...] = ()
    speaking: tuple[tuple[str, str], ...] = ()  # conversations that are being answered, and their words so far
    warnings: tuple[str, ...] = ()
    gpu_reading: GpuReading | None = None
    asked: tuple[tuple[str, float], ...] = ()  # conversations that wait for the model, and since when
    judging_again: JudgingAgain | None = None  # since the last note
    limits: Limits | None = None  # as raised since the start; None: as given
    stopping: bool = False
    paused_at: float | None = None
    paused_s: float = 0.0  # of pauses that are over, in the process that runs now
    spending: Spending = field(default_factory=Spending)
    judge_s: float = 0.0  # time that the judge was busy
    improvements: int = 0  # attempts that were the best when they were judged
    unseen_attempts: int = 0  # finished before this process, when their events were not replayed
    waiting_at: float | None = None  # when the command was given that has not begun or resumed its run yet
    start_s: float = 0.0  # from there until the run began, in the process that runs now
    process_at: float | None = None  # when the run began, or was resumed, in that process
    earlier_s: float = 0.0  # elapsed in the processes before it
    last_at: float = 0.0

    @property
    def run_id(self) -> str | None:
        """The run, once it is known."""
        return self.started.run_id if self.started else self.ended.run_id if self.ended else None

    @property
    def task(self) -> str | None:
        """The task's name, once it is known."""
        return self.started.task if self.started else None

    @property
    def gpu(self) -> str | None:
        """The GPU that times this run; None: nothing is timed."""
        return self.started.gpu if self.started else None

    @cached_property
    def best(self) -> Attempt | None:
        """The best attempt so far."""
        return self.row(self.best_id)

    @property
    def current(self) -> Attempt | None:
        """The attempt whose source is worth showing: the newest one; of a run that ended, the best."""
        newest = self.attempts[-1] if self.attempts else None
        return self.best or newest if self.ended else newest

    @cached_property
    def finished(self) -> int:
        """How many attempts have a verdict."""
        return self.unseen_attempts + sum(a.verdict is not None for a in self.attempts)

    @cached_property
    def accepted(self) -> int:
        """How many attempts are right, as far as this machine can tell."""
        return sum(a.accepted for a in self.attempts)

    @cached_property
    def by_status(self) -> dict[str, int]:
        """Counts by verdict, most frequent first."""
        counts = Counter(a.verdict.status.value for a in self.attempts if a.verdict)
        return dict(counts.most_common())

    def row(self, attempt_id: str | None) -> Attempt | None:
        """The attempt of that id, when it was seen."""
        place = self.place_of(attempt_id)
        return None if place is None else self.attempts[place]

    def place_of(self, attempt_id: str | None) -> int | None:
        """Where the attempt of that id is, when it was seen: most often where its number says."""
        named = counted((attempt_id or "").rpartition("/")[2])
        if self.attempts and named is not None:
            likely = named - self.attempts[0].number
            if 0 <= likely < len(self.attempts) and self.attempts[likely].attempt_id == attempt_id:
                return likely
        places = reversed(range(len(self.attempts)))
        return next((place for place in places if self.attempts[place].attempt_id == attempt_id), None)

    def number_of(self, attempt_id: str) -> str:
        """`#3` for an attempt, also for one of a run whose events were not replayed."""
        row = self.row(attempt_id)
        return f"#{row.number if row else attempt_id.rpartition('/')[2]}"

    def elapsed_s(self, now: float) -> float:
        """Time spent on the run by all its processes, their start included, without the pause before a resume."""
        if self.process_at is None:
            return 0.0 if self.waiting_at is None else max(0.0, now - self.waiting_at)
        return self.earlier_s + self.start_s + (self.ended.elapsed_s if self.ended else self.process_s(now))

    def process_s(self, now: float) -> float:
        """Time spent by the process that runs now, without pauses: what the time limit counts."""
        end = self.ended.at if self.ended else now
        if self.process_at is None:
            return 0.0
        paused_s = self.paused_s + (0.0 if self.paused_at is None else max(0.0, end - self.paused_at))
        return max(0.0, end - self.process_at - paused_s)

    def left_s(self, now: float) -> float | None:
        """About how long the run goes on before its first limit, by the pace so far; None while that says nothing, and
        for a run that is ending. What is judged again at its end comes on top."""
        judged = [a.judged_at for a in self.attempts if self.process_at is not None and a.judged_at >= self.process_at]
        spent_s = self.process_s(now)
        if self.is_ending or len(judged) < _LEAST_JUDGED or spent_s < _LEAST_PACE_S:
            return None
        left = {b.name: b.limit - b.used for b in self.budgets(now)}
        found = [left["time"]] if "time" in left else []
        found += [left["attempts"] * spent_s / len(judged)] if "attempts" in left else []
        return max(0.0, min(found)) if found else None

    @property
    def is_ending(self) -> bool:
        """Whether no attempt begins any more."""
        return self.ended is not None or self.stopping or self.is_confirming

    @property
    def is_confirming(self) -> bool:
        """Whether the best attempt is judged for the last time."""
        return self.judging_again is not None and self.judging_again.tier == "confirmed"

    @property
    def streaming(self) -> str:
        """What the author is saying right now; of several at once, the one who began last."""
        return self.speaking[-1][1] if self.speaking else ""

    @property
    def working(self) -> tuple[Attempt, ...]:
        """Attempts that something is being done to, the oldest first; the ones that matter are among the newest."""
        return tuple(a for a in self.attempts[-_UNDER_WAY:] if self.stage_of(a) not in ("", *LEFT_STAGES))

    def stage_of(self, attempt: Attempt) -> str:
        """What is being done to an attempt; "" for one that has a verdict."""
        found = self.under_way.get(attempt.attempt_id)
        return found.stage if found else ""

    def budgets(self, now: float) -> tuple[Budget, ...]:
        """The limits that were given, in the order attempts, time, patience."""
        limits = (self.started.limits if self.started else {}) | (asdict(self.limits) if self.limits else {})
        best = self.best
        stale = sum(a.verdict is not None and a.number > best.number for a in self.attempts) if best else 0
        rows = (
            _budget("attempts", self.finished, limits.get("max_attempts")),
            _budget("time", self.process_s(now), limits.get("max_time_s")),
            _budget("patience", stale, limits.get("patience")),
            _budget("cost", self.spending.cost_usd, limits.get("max_cost_usd")),
        )
        return tuple(b for b in rows if b)


def _budget(name: Literal["attempts", "time", "patience", "cost"], used: float, limit: Json) -> Budget | None:
    return Budget(name, used, found) if (found := number(limit)) is not None else None


def fold(state: ViewState, event: Event) -> ViewState:
    """The state after one more event. Pure: the same events give the same state."""
    return replace(_fold(state, event), last_at=max(state.last_at, event.at))


def _fold(state: ViewState, event: Event) -> ViewState:
    match event:
        case RunStarted() | RunResumed() | RunEnded():
            return _fold_run(state, event)
        case Proposed() | Updated() | Judged() | Verified() | Reflected():
            return _fold_attempt(state, event)
        case Said():
            return _said(state, event)
        case Replied():
            asked = tuple(a for a in state.asked if a[0] != event.conversation)
            said = replace(_silent(state, event.conversation), spending=state.spending.and_(event), asked=asked)
            return _log(said, "author", format_reply(event))
        case Warned():
            return _log(replace(state, warnings=(*state.warnings, event.text)), "warning", event.text)
        case RunPaused() | RunStopping() | RunSuspended() | LimitsChanged():
            return _steered(state, event)
        case _:
            return _fold_shown(state, event)


def _fold_run(state: ViewState, event: RunStarted | RunResumed | RunEnded) -> ViewState:
    match event:
        case RunStarted():
            return replace(state, started=event, process_at=event.at, start_s=_start_s(state, event.at))
        case RunResumed():
            return _resumed(state, event)
        case RunEnded():
            stopped = replace(_stop_attempts(state), ended=event, stage="ended", speaking=(), asked=())
            stopped = _paused(stopped, event.at, paused=False)
            return replace(stopped, best_id=event.best_attempt_id)


def _resumed(state: ViewState, event: RunResumed) -> ViewState:
    seen = sum(a.verdict is not None for a in state.attempts)
    return replace(
        _stop_attempts(state),
        ended=None,
        stage="starting",
        speaking=(),
        unseen_attempts=max(0, event.finished_attempts - seen),
        asked=(),
        judging_again=None,
        limits=None,
        stopping=False,
        earlier_s=state.elapsed_s(state.last_at),
        process_at=event.at,
        start_s=_start_s(state, event.at),
        paused_at=None,
        paused_s=0.0,
    )


def _start_s(state: ViewState, at: float) -> float:
    return 0.0 if state.waiting_at is None else max(0.0, at - state.waiting_at)


def _stop_attempts(state: ViewState) -> ViewState:
    under_way = {
        attempt_id: its if its.stage == SKIPPED else replace(its, stage=UNFINISHED)
        for attempt_id, its in state.under_way.items()
    }
    return replace(state, under_way=under_way)


def _fold_attempt(state: ViewState, event: AttemptEvent) -> ViewState:
    match event:
        case Proposed():
            return _proposed(state, event)
        case Updated():
            return _staged(_change(state, event), event.attempt_id, "updated", event.at)
        case Judged():
            return _judged(state, event)
        case Verified():
            return _verified(state, event)
        case Reflected():
            told = f"{state.number_of(event.attempt_id)} {event.hypothesis}: {event.outcome}"
            return _log(_change(state, event), "reflection", told)


def _proposed(state: ViewState, event: Proposed) -> ViewState:
    is_next = bool(state.attempts) and event.number > state.attempts[-1].number
    place = None if is_next else state.place_of(event.attempt_id)
    others = state.attempts if place is None else (*state.attempts[:place], *state.attempts[place + 1 :])
    under_way = {**state.under_way, event.attempt_id: Working("proposed", event.at)}
    return replace(state, attempts=(*others, proposed_attempt(event)), under_way=under_way)


def _judged(state: ViewState, event: Judged) -> ViewState:
    under_way = dict(state.under_way)
    under_way.pop(event.attempt_id, None)
    state = replace(_change(state, event), under_way=under_way, judge_s=state.judge_s + event.bench_s)
    if event.best:
        state = replace(state, best_id=event.attempt_id, improvements=state.improvements + 1)
    told = f"{state.number_of(event.attempt_id)} {words.outcome(event.verdict)}"
    return _log(state, "judge", told)


def _verified(state: ViewState, event: Verified) -> ViewState:
    """A confirmation counts from now on; a verification and an unfinished look stand beside the verdict. The run's own
    looks are part of its judge's time; a verification, perhaps by another machine, is not."""
    state = _change(state, event)
    if event.purpose != "verify":
        state = replace(state, judge_s=state.judge_s + event.bench_s)
    if event.purpose == "confirm":
        state = replace(state, best_id=_best_id(state))
    told = f"{state.number_of(event.attempt_id)} {verification(event)}: {event.why}"
    return _log(state, "judge", told)


def _best_id(state: ViewState) -> str | None:
    """The best by the run's ranking, once a verdict has changed; who has not seen all attempts keeps what it was told
    while that is right."""
    told = state.best
    if told is None or (told.accepted and (state.unseen_attempts or not told.rank_key)):
        return state.best_id
    leader = best(row for row in state.attempts if row.rank_key)
    return leader.attempt_id if leader else None


def verification(event: Verified) -> str:
    """What became of a verdict that was repeated."""
    if event.purpose == "unfinished":
        return "unchanged"
    counts = "judged in full" if event.held and event.verdict.tier == "judged" else "confirmed"  # a search's finalist
    return f"{'' if event.held else 'not '}{counts if event.purpose == 'confirm' else 'verified'}"


def _said(state: ViewState, event: Said) -> ViewState:
    if event.role != "assistant":
        return state
    if event.final:
        return _log(_silent(state, event.conversation), "author", event.text)
    so_far = dict(state.speaking)  # who has begun keeps its place, so that what is shown does not jump
    so_far[event.conversation] = (so_far.get(event.conversation, "") + event.text)[-_STREAM_CHARACTERS:]
    return replace(state, speaking=tuple(so_far.items()))


def _silent(state: ViewState, conversation: str) -> ViewState:
    return replace(state, speaking=tuple(s for s in state.speaking if s[0] != conversation))


def _fold_shown(
    state: ViewState, event: StageStarted | AttemptSkipped | JudgingAgain | ModelAsked | ModelBusy | GpuSampled | Note
) -> ViewState:
    match event:
        case GpuSampled():
            return replace(state, gpu_reading=event.reading)
        case ModelAsked():
            others = tuple(a for a in state.asked if a[0] != event.conversation)
            return replace(state, asked=(*others, (event.conversation, event.at)))
        case ModelBusy():
            return _log(state, "run", model_busy(event))
        case Note():
            waiting_at = event.at if state.process_at is None and state.waiting_at is None else state.waiting_at
            return replace(state, stage=format_note(event), judging_again=None, waiting_at=waiting_at)
        case JudgingAgain():
            return replace(state, stage=judging_again(event), judging_again=event)
        case StageStarted():
            return _staged(state, event.attempt_id, event.stage, event.at)
        case AttemptSkipped():
            return _staged(state, event.attempt_id, SKIPPED, event.at)
        case _:
            assert_never(event)


def format_note(event: Note) -> str:
    """What is being done."""
    return f"{event.topic} {event.text}".strip()


def judging_again(event: JudgingAgain) -> str:
    """What is being done to which attempt."""
    return f"{'confirming' if event.tier == 'confirmed' else 'judging'} #{event.attempt_id.rpartition('/')[2]}"


def model_busy(event: ModelBusy) -> str:
    """When the model is asked again, and why."""
    wait = f"{event.wait_s:.0f}" if event.wait_s >= 10 else f"{event.wait_s:.1f}"
    return f"the model is asked again in {wait} s: {event.why}"


def _staged(state: ViewState, attempt_id: str, stage: str, at: float) -> ViewState:
    if attempt_id not in state.under_way:
        return state
    return replace(state, under_way={**state.under_way, attempt_id: Working(stage, at)})


def _steered(state: ViewState, event: RunPaused | RunStopping | RunSuspended | LimitsChanged) -> ViewState:
    match event:
        case LimitsChanged():
            return replace(state, limits=event.limits)
        case RunStopping():
            return replace(state, stopping=True)
        case RunPaused():
            return _paused(state, event.at, paused=event.paused)
        case RunSuspended():  # a pause counts the time itself, and before the run there is nothing to count
            counts = state.process_at is not None and state.paused_at is None
            return replace(state, paused_s=state.paused_s + event.seconds) if counts else state
        case _:
            assert_never(event)


def _paused(state: ViewState, at: float, *, paused: bool) -> ViewState:
    if paused:
        return replace(state, paused_at=at if state.paused_at is None else state.paused_at)
    over_s = 0.0 if state.paused_at is None else max(0.0, at - state.paused_at)
    return replace(state, paused_at=None, paused_s=state.paused_s + over_s)


def _change(state: ViewState, event: Updated | Judged | Verified | Reflected) -> ViewState:
    place = state.place_of(event.attempt_id)
    if place is None:
        return state
    changed = after(state.attempts[place], event)
    return replace(state, attempts=(*state.attempts[:place], changed, *state.attempts[place + 1 :]))


def _log(state: ViewState, who: Who, text: str) -> ViewState:
    return replace(state, log=(*state.log, LogEntry(who, text))[-_LOG_ENTRIES:])
