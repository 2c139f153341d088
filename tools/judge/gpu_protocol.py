"""Messages between the supervisor and the judge's GPU session. Pure data.

The supervisor sends Open, Warm, Screen or Bench and then receives until the answer comes; NeedRunner and EndRunner
may come before it. A runner is handed over through the door: `pass_runner(door, socket)`.
"""

from dataclasses import dataclass, field
from typing import Literal

from tools.codec import Json
from tools.judge.protocol import BATTERIES
from tools.judge.timing import Rules
from tools.plan.schema import Plan
from tools.spec import TaskSpec
from tools.verdict import Verdict


@dataclass(frozen=True)
class OpenTask:
    """Load a task file for the GPU. The answer is Ready."""

    path: str
    task: TaskSpec
    baselines: tuple[str, ...] = ("eager", "compile")
    kind: Literal["open_task"] = "open_task"


@dataclass(frozen=True)
class Ready:
    """The GPU as the judge found it, or the user's mistake in one line."""

    gpu: dict[str, Json] = field(default_factory=dict)
    problem: str | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True)
class Warm:
    """Build and time the baselines of the main case now (they are built anyway at the first Bench). The answer is
    Baselines."""

    kind: Literal["warm"] = "warm"


@dataclass(frozen=True)
class Baselines:
    """Time per forward of each baseline, what this session can tell apart (relative), and measured copy bandwidth."""

    times_us: dict[str, float] = field(default_factory=dict)
    resolution: float = 0.0
    copy_gbps: float = 0.0
    notes: tuple[str, ...] = ()
    problem: str | None = None
    kind: Literal["baselines"] = "baselines"


@dataclass(frozen=True)
class KernelImage:
    """A compiled kernel; its cubin is the blob of the same index."""

    sha256: str
    metadata: dict[str, Json]


@dataclass(frozen=True)
class Screen:
    """Rank variants of the main case. The answer is Screened."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    kind: Literal["screen"] = "screen"


@dataclass(frozen=True)
class Screened:
    """Time per forward of each variant in µs; None where it failed, and then why."""

    times_us: tuple[float | None, ...]
    details: tuple[str, ...]
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True)
class Bench:
    """Check the plans (one per case, in the order given), then time the main case's. The answer is Judged."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    rules: Rules = field(default_factory=Rules)
    batteries: tuple[str, ...] = BATTERIES
    repeats: int = 3
    kind: Literal["bench"] = "bench"


@dataclass(frozen=True)
class Judged:
    """The verdict."""

    verdict: Verdict
    kind: Literal["judged"] = "judged"


@dataclass(frozen=True)
class NeedRunner:
    """End the present runner, if any, start a fresh one and pass it through the door. Sends no answer."""

    why: str
    kind: Literal["need_runner"] = "need_runner"


@dataclass(frozen=True)
class EndRunner:
    """SIGKILL the present runner now: it hangs, or it is no longer trusted. Sends no answer."""

    why: str
    kind: Literal["end_runner"] = "end_runner"


SupervisorMessage = OpenTask | Warm | Screen | Bench
JudgeMessage = Ready | Baselines | Screened | Judged | NeedRunner | EndRunner
