"""What happened, as one union of frozen events. The store, the screen and the exports are folds over these. What is
only shown, of the moment (`ShownEvent`), is not stored.

A run is `RunStarted … RunEnded`; a resumed run adds `RunResumed` and goes on. Each attempt is
`Proposed -> Updated -> Judged [-> Reflected]`; attempts of one run may interleave. A finished attempt may be judged
again (`Verified`): by its run, to confirm the best, and at any time later by `optimize verify`. `at` is Unix time in
seconds.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, assert_never

from kerneltune.agent.attempt import Attempt, Expectation, Limits, Origin, StopReason
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import KernelReport, Tier, Verdict


def now() -> float:
    """Unix time in seconds, the `at` of every event."""
    return time.time()


@dataclass(frozen=True)
class RunStarted:
    """A run begins. `limits` are the budgets as given; `machine` names the GPU, the sandbox and the task file."""

    run_id: str
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
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class RunResumed:
    """The same run goes on in a new process."""

    run_id: str
    finished_attempts: int
    kind: Literal["run_resumed"] = "run_resumed"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Said:
    """One message to a model (a prompt, a tool result), or a piece of its reply on the way, with `final=False`; only
    final ones are stored. `raw`: of a tool result, {"call_id", "is_error"}; of a history that took the place of older
    exchanges, {"history": True, "kept": exchanges' messages that the model still saw}."""

    run_id: str
    role: Literal["system", "user", "assistant", "tool"]
    text: str
    attempt_id: str | None = None
    final: bool = True
    usage: dict[str, Json] | None = None
    raw: Json = None
    conversation: str = ""
    kind: Literal["said"] = "said"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Replied:
    """A model's reply, whole. `calls`: [{"call_id", "name", "arguments", "problem"}]; `usage` and `cost_usd` are None
    when unknown; `raw`: the provider's own items; `turn` counts the replies of a conversation from 1."""

    run_id: str
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
    kind: Literal["replied"] = "replied"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Proposed:
    """An author wrote a candidate. `number` counts attempts of the run from 1; the id is "<run_id>/<number>"."""

    run_id: str
    attempt_id: str
    number: int
    parent_id: str | None
    source: str
    rationale: str
    origin: Origin | None = None  # None: nobody said who wrote it
    hypothesis: str = ""  # why it should be better, and what would show it
    prediction: str = ""
    kind: Literal["proposed"] = "proposed"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Updated:
    """The `update` tool ran: traced and compiled, or failed with a verdict. `plan` is None when tracing failed."""

    run_id: str
    attempt_id: str
    plan: Json | None
    plan_sha256: str | None
    kernels: tuple[KernelReport, ...]
    library_ops: tuple[str, ...]
    variants: int
    trace_s: float
    compile_s: float
    failure: Verdict | None = None
    kind: Literal["updated"] = "updated"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Judged:
    """The attempt is finished: its verdict. An `Updated` with a failure is followed by the same verdict here."""

    run_id: str
    attempt_id: str
    verdict: Verdict
    bench_s: float
    best: bool  # the best so far, by the run's ranking
    rank_key: tuple[float, ...] = ()  # smaller is better; how this attempt compares
    kind: Literal["judged"] = "judged"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Verified:
    """A finished attempt was judged again, with fresh seeds. A confirmation counts from then on instead of the verdict
    in `Judged`; a verification, perhaps by another machine, and a look that came to no end ("unfinished": `unchecked`
    after the attempt was accepted) stand beside it. `held`: the new verdict bears the old one
    out, and `why` says by how much, or what differs."""

    run_id: str
    attempt_id: str
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
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Reflected:
    """The `reflect` tool ran: a hypothesis, what it predicted, the evidence and (later) whether it held."""

    run_id: str
    attempt_id: str
    hypothesis: str
    prediction: str
    evidence: dict[str, Json]
    outcome: Literal["open", "confirmed", "refuted"] = "open"
    kind: Literal["reflected"] = "reflected"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Warned:
    """Something the user should know (no GPU, no sandbox, an absurd baseline): one line, and the way out."""

    run_id: str
    text: str
    kind: Literal["warned"] = "warned"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class RunEnded:
    """The run is over. `elapsed_s`: of this process."""

    run_id: str
    why: StopReason
    attempts: int
    accepted: int
    best_attempt_id: str | None
    best_path: str | None
    elapsed_s: float
    kind: Literal["run_ended"] = "run_ended"
    at: float = field(default_factory=now)


class Stage(StrEnum):
    """What is being done to an attempt."""

    TRACING = "tracing"
    COMPILING = "compiling"
    CHECKING = "checking"  # without a GPU
    TIMING = "timing"  # after it was checked, on a GPU


@dataclass(frozen=True)
class StageStarted:
    """An attempt enters a stage."""

    run_id: str
    attempt_id: str
    stage: Stage
    kind: Literal["stage_started"] = "stage_started"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class AttemptSkipped:
    """A person gave up an attempt; it gets no verdict."""

    run_id: str
    attempt_id: str
    kind: Literal["attempt_skipped"] = "attempt_skipped"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class JudgingAgain:
    """A finished attempt is judged more thoroughly."""

    run_id: str
    attempt_id: str
    tier: Tier
    kind: Literal["judging_again"] = "judging_again"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class ModelAsked:
    """A request to the model begins; its `Replied` ends it."""

    run_id: str
    conversation: str
    kind: Literal["model_asked"] = "model_asked"
    at: float = field(default_factory=now)


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
class GpuSampled:
    """The run's GPU was looked at, once a second."""

    run_id: str
    reading: GpuReading
    kind: Literal["gpu_sampled"] = "gpu_sampled"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class LimitsChanged:
    """Other limits count from now on: a person raised them, or resumed the run with others."""

    run_id: str
    limits: Limits
    kind: Literal["limits_changed"] = "limits_changed"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class RunPaused:
    """A person paused the run, or (`paused` false) lets it go on."""

    run_id: str
    paused: bool
    kind: Literal["run_paused"] = "run_paused"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class RunSuspended:
    """The process was stopped by its shell (Ctrl-Z) for so many seconds, which are over."""

    run_id: str
    seconds: float
    kind: Literal["run_suspended"] = "run_suspended"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class RunStopping:
    """A person wants the run to end when what is under way is finished."""

    run_id: str
    kind: Literal["run_stopping"] = "run_stopping"
    at: float = field(default_factory=now)


@dataclass(frozen=True)
class Note:
    """What the machine is busy with, for a person who waits. `topic`: starting, search, verifying, …"""

    run_id: str
    topic: str
    text: str = ""
    kind: Literal["note"] = "note"
    at: float = field(default_factory=now)


AttemptEvent = Proposed | Updated | Judged | Verified | Reflected
StoredEvent = RunStarted | RunResumed | RunEnded | Warned | Said | Replied | AttemptEvent
ShownEvent = (
    StageStarted
    | AttemptSkipped
    | JudgingAgain
    | ModelAsked
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
                variants=event.variants,
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
            return replace(attempt, held=event.held) if event.purpose == "verify" else attempt
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
