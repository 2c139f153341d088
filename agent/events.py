"""What happened, as one union of frozen events. The store, the screen and the exports are folds over these.

A run is `RunStarted … RunEnded`; a resumed run adds `RunResumed` and goes on. Each attempt is
`Proposed -> Updated -> Judged [-> Reflected]`; attempts of one run may interleave. A finished attempt may be judged
again (`Verified`): by its run, to confirm the best, and at any time later by `optimize verify`. `at` is Unix time in
seconds.
"""

import time
from dataclasses import dataclass, field
from typing import Literal

from kerneltune.agent.attempt import Origin
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import KernelReport, Verdict


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
class Progress:
    """What the machine is doing now; shown, not stored. `stage`: starting, tracing, compiling, checking, timing, …"""

    run_id: str
    stage: str
    detail: str = ""
    attempt_id: str | None = None
    data: dict[str, Json] = field(default_factory=dict)  # what a screen shows in its own words: a GPU's readings, …
    kind: Literal["progress"] = "progress"
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
    """The run is over. `why`: attempts, time, patience, cost, goal, stopped (a person wanted no more),
    interrupted, author_done, model_error, failed."""

    run_id: str
    why: str
    attempts: int
    accepted: int
    best_attempt_id: str | None
    best_path: str | None
    elapsed_s: float
    kind: Literal["run_ended"] = "run_ended"
    at: float = field(default_factory=now)


Event = (
    RunStarted
    | RunResumed
    | Said
    | Replied
    | Proposed
    | Updated
    | Judged
    | Verified
    | Reflected
    | Progress
    | Warned
    | RunEnded
)
