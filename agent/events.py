"""What happened, as one union of frozen events. The store, the screen and the exports are folds over these. What is
only shown, of the moment (`ShownEvent`), is not stored.

A run is `RunStarted … RunEnded`; a resumed run adds `RunResumed` and goes on. Each attempt is
`Proposed -> Updated -> Judged [-> Reflected]`; attempts of one run may interleave. A finished attempt may be judged
again (`Verified`): by its run, to confirm the best, and at any time later by `optimize verify`. `at` is Unix time in
seconds.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, assert_never

from kerneltune.agent.attempt import Attempt, Expectation, Limits, Origin, StopReason
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import KernelReport, Tier, Verdict

_END_OF_TIME_S = 253_402_300_800  # the end of the year 9999, and of the calendar


@dataclass(frozen=True)
class RunEvent:
    """What every event says: of which run it is, and when it was."""

    run_id: str
    at: float = field(default_factory=time.time, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.at < _END_OF_TIME_S:
            raise ValueError(f"{self.at} is no time of an event")


@dataclass(frozen=True)
class OfAttempt(RunEvent):
    """What every event of one attempt says besides."""

    attempt_id: str


@dataclass(frozen=True)
class RunStarted(RunEvent):
    """A run begins. `limits` are the budgets as given; `machine` names the GPU, the sandbox and the task file."""

    task: str
    task_sha256: str
    task_source: str
    author: str
    author_why: str  # why this author: "no API key is set", "--model given", …
    arch: str  # compile target, "sm_90"
    gpu: str | None  # None: no GPU, so nothing is timed
    machine: dict[str, Json]
    limits: dict[str, Json]
    seed: int
    versions: dict[str, str]
    kind: Literal["run_started"] = "run_started"

    @property
    def language(self) -> str:
        """What the author was asked to write, as `--language` names it."""
        return str(self.limits.get("language") or "triton")


@dataclass(frozen=True)
class RunResumed(RunEvent):
    """The same run goes on in a new process. `other_author`: who writes from now on where that is not the run's."""

    finished_attempts: int
    other_author: str = ""
    kind: Literal["run_resumed"] = "run_resumed"


@dataclass(frozen=True)
class Said(RunEvent):
    """One message to a model (a prompt, a tool result), or a piece of its reply on the way, with `final=False`; only
    final ones are stored. `raw`: of a tool result, {"call_id", "is_error", "attempt_id" of what it is about, or None};
    of a history that took the place of older exchanges, {"history": True, "kept": exchanges' messages that the model
    still saw}."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    attempt_id: str | None = None
    final: bool = True
    usage: dict[str, Json] | None = None
    raw: Json = None
    conversation: str = ""
    kind: Literal["said"] = "said"


@dataclass(frozen=True)
class Replied(RunEvent):
    """A model's reply, whole. `calls`: [{"call_id", "name", "arguments", "problem"}]; `usage` and `cost_usd` are None
    when unknown; `raw`: the provider's own items; `turn` counts the replies of a conversation from 1. `token_ids`,
    `logprobs`: of every token that was written, where they were asked for and told, else None."""

    conversation: str
    turn: int
    text: str
    thinking: str
    calls: Json
    stop: str
    detail: str
    usage: dict[str, Json] | None
    cost_usd: float | None
    model: str
    seconds: float
    raw: Json = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    kind: Literal["replied"] = "replied"


@dataclass(frozen=True)
class Proposed(OfAttempt):
    """An author wrote a candidate. `number` counts attempts of the run from 1; the id is "<run_id>/<number>"."""

    number: int
    parent_id: str | None
    source: str
    rationale: str
    origin: Origin | None = None  # None: nobody said who wrote it
    hypothesis: str = ""  # why it should be better, and what would show it
    prediction: str = ""
    predicted_speedup: float | None = None  # over its parent; None: none was given
    kind: Literal["proposed"] = "proposed"


@dataclass(frozen=True)
class Updated(OfAttempt):
    """The `update` tool ran: traced and compiled, or failed with a verdict. `plan` is None when tracing failed."""

    plan: Json | None
    plan_sha256: str | None
    kernels: tuple[KernelReport, ...]
    library_ops: tuple[str, ...]
    variants: int
    trace_s: float
    compile_s: float
    failure: Verdict | None = None
    kind: Literal["updated"] = "updated"


@dataclass(frozen=True)
class Judged(OfAttempt):
    """The attempt is finished: its verdict. An `Updated` with a failure is followed by the same verdict here."""

    verdict: Verdict
    bench_s: float
    best: bool  # the best so far, by the run's ranking
    rank_key: tuple[float, ...] = ()  # smaller is better; how this attempt compares
    kind: Literal["judged"] = "judged"


@dataclass(frozen=True)
class Verified(OfAttempt):
    """A finished attempt was judged again, with fresh seeds. A confirmation counts from then on instead of the verdict
    in `Judged`; a verification, perhaps by another machine, and a look that came to no end ("unfinished": `unchecked`
    after the attempt was accepted) stand beside it. `held`: the new verdict bears the old one
    out, and `why` says by how much, or what differs."""

    purpose: Literal["confirm", "verify", "unfinished"]
    verdict: Verdict
    bench_s: float
    held: bool
    why: str
    gpu: str | None  # None: no GPU, so nothing was timed
    machine: dict[str, Json]
    versions: dict[str, str]
    rank_key: tuple[float, ...] = ()
    kind: Literal["verified"] = "verified"


@dataclass(frozen=True)
class Reflected(OfAttempt):
    """A hypothesis: held against the attempt that tested it (`evidence` has `predicted_speedup` and `measured_speedup`
    then), or, from the `reflect` tool, about what limits an attempt, which stays open."""

    hypothesis: str
    prediction: str
    evidence: dict[str, Json]
    outcome: Literal["open", "confirmed", "refuted"] = "open"
    kind: Literal["reflected"] = "reflected"


@dataclass(frozen=True)
class Warned(RunEvent):
    """Something the user should know (no GPU, no sandbox, an absurd baseline): one line, and the way out."""

    text: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True)
class RunEnded(RunEvent):
    """The run is over. `elapsed_s`: of this process."""

    why: StopReason
    attempts: int
    accepted: int
    best_attempt_id: str | None
    best_path: str | None
    elapsed_s: float
    kind: Literal["run_ended"] = "run_ended"


class Stage(StrEnum):
    """What is being done to an attempt."""

    TRACING = "tracing"
    COMPILING = "compiling"
    CHECKING = "checking"  # without a GPU
    TIMING = "timing"  # after it was checked, on a GPU


@dataclass(frozen=True)
class StageStarted(OfAttempt):
    """An attempt enters a stage."""

    stage: Stage
    kind: Literal["stage_started"] = "stage_started"


@dataclass(frozen=True)
class AttemptSkipped(OfAttempt):
    """A person gave up an attempt; it gets no verdict."""

    kind: Literal["attempt_skipped"] = "attempt_skipped"


@dataclass(frozen=True)
class JudgingAgain(OfAttempt):
    """A finished attempt is judged more thoroughly."""

    tier: Tier
    kind: Literal["judging_again"] = "judging_again"


@dataclass(frozen=True)
class ModelAsked(RunEvent):
    """A request to the model begins; its `Replied` ends it."""

    conversation: str
    kind: Literal["model_asked"] = "model_asked"


@dataclass(frozen=True)
class ModelBusy(RunEvent):
    """A request to the model failed in a way that may pass: it is sent again in `wait_s` seconds."""

    conversation: str
    wait_s: float
    why: str
    kind: Literal["model_busy"] = "model_busy"


@dataclass(frozen=True)
class GpuReading:
    """The GPU at one moment, as far as it tells. Clocks in MHz, memory in bytes."""

    utilisation_percent: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    memory_used_bytes: int | None = None
    throttle_reasons: int | None = None  # NVML's clocks-event-reasons bit mask
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class GpuSampled(RunEvent):
    """The run's GPU was looked at, once a second."""

    reading: GpuReading
    kind: Literal["gpu_sampled"] = "gpu_sampled"


@dataclass(frozen=True)
class LimitsChanged(RunEvent):
    """Other limits count from now on: a person raised them, or resumed the run with others."""

    limits: Limits
    kind: Literal["limits_changed"] = "limits_changed"


@dataclass(frozen=True)
class RunPaused(RunEvent):
    """A person paused the run, or (`paused` false) lets it go on."""

    paused: bool
    kind: Literal["run_paused"] = "run_paused"


@dataclass(frozen=True)
class RunSuspended(RunEvent):
    """The process was stopped by its shell (Ctrl-Z) for so many seconds, which are over."""

    seconds: float
    kind: Literal["run_suspended"] = "run_suspended"


@dataclass(frozen=True)
class RunStopping(RunEvent):
    """A person wants the run to end when what is under way is finished."""

    kind: Literal["run_stopping"] = "run_stopping"


@dataclass(frozen=True)
class Note(RunEvent):
    """What the machine is busy with, for a person who waits. `topic`: starting, search, verifying, …"""

    topic: str
    text: str = ""
    kind: Literal["note"] = "note"


AttemptEvent = Proposed | Updated | Judged | Verified | Reflected
StoredEvent = RunStarted | RunResumed | RunEnded | Warned | Said | Replied | AttemptEvent
ShownEvent = (
    StageStarted
    | AttemptSkipped
    | JudgingAgain
    | ModelAsked
    | ModelBusy
    | GpuSampled
    | LimitsChanged
    | RunPaused
    | RunSuspended
    | RunStopping
    | Note
)
Event = StoredEvent | ShownEvent


def proposed_attempt(event: Proposed) -> Attempt:
    """The attempt that a proposal begins."""
    return Attempt(
        event.source,
        event.rationale,
        event.parent_id,
        event.origin,
        event.hypothesis,
        event.prediction,
        event.predicted_speedup,
        attempt_id=event.attempt_id,
        number=event.number,
        at=event.at,
    )


def after(attempt: Attempt, event: Updated | Judged | Verified | Reflected) -> Attempt:
    """The attempt after one more event of it. A confirmation counts from then on; a verification, which may be another
    machine's, and a look that came to no end stand beside the verdict. What a damaged record says twice counts once."""
    match event:
        case Updated() | Judged() if attempt.verdict is not None:
            return attempt
        case Updated():
            return replace(
                attempt,
                tool="update" if event.failure else None,
                kernels=event.kernels,
                library_ops=event.library_ops,
                plan_sha256=event.plan_sha256,
                trace_s=event.trace_s,
                compile_s=event.compile_s,
            )
        case Judged():
            return replace(
                attempt,
                verdict=event.verdict,
                tool=attempt.tool or "bench",
                rank_key=event.rank_key,
                best=event.best,
                bench_s=event.bench_s,
                judged_at=event.at,
            )
        case Verified(purpose="confirm"):
            return replace(attempt, verdict=event.verdict, tool="confirm", rank_key=event.rank_key)
        case Verified():
            refuted = attempt.accepted and not event.verdict.accepted
            return replace(attempt, held=event.held, refuted=refuted) if event.purpose == "verify" else attempt
        case Reflected():
            said = Expectation(event.hypothesis, event.prediction, event.outcome, event.evidence)
            return replace(attempt, expectations=(*attempt.expectations, said))
        case _:
            assert_never(event)


def attempts_of(events: Iterable[Event]) -> list[Attempt]:
    """The attempts of a run's events: those that have a verdict in the order in which they got it, then the others."""
    made: dict[str, Attempt] = {}
    finished: dict[str, None] = {}
    for event in events:
        if isinstance(event, Proposed):
            made.setdefault(event.attempt_id, proposed_attempt(event))
        elif isinstance(event, AttemptEvent) and event.attempt_id in made:
            made[event.attempt_id] = after(made[event.attempt_id], event)
            if isinstance(event, Judged):
                finished[event.attempt_id] = None
    return [made[attempt_id] for attempt_id in dict.fromkeys((*finished, *made))]


def is_stored(event: Event) -> bool:
    """Whether an event is part of the record; the others, and the pieces of a streamed message, are only shown."""
    return isinstance(event, StoredEvent) and not (isinstance(event, Said) and not event.final)


Emit = Callable[[Event], None]


class UntilEnded:
    """Hands events on until the run has ended: threads that are still at work then have nothing more to say."""

    def __init__(self, emit: Emit) -> None:
        self._emit, self._lock, self._ended = emit, threading.RLock(), False

    def __call__(self, event: Event) -> None:
        with self._lock:
            if not self._ended:
                self._ended = isinstance(event, RunEnded)
                self._emit(event)


def fan_out(*sinks: Emit) -> Emit:
    """One sink that hands each event to all, in this order. What one cannot store, as on a full disk, the others get
    all the same, so that a verdict that was reached is shown; then the StoreError is raised."""

    def emit(event: Event) -> None:
        failed: StoreError | None = None
        for sink in sinks:
            try:
                sink(event)
            except StoreError as error:
                failed = error
        if failed is not None:
            raise failed

    return emit
