"""Messages between the supervisor and the judge's GPU session. Pure data.

The supervisor sends Open, Warm, Screen, Bench or Resolve and then receives until the answer comes; NeedRunner and
EndRunner may come before it. A runner is handed over through the door: `pass_runner(door, socket)`.
"""

from dataclasses import dataclass, field
from typing import Literal

from tools.calibration import Ceilings
from tools.codec import Json
from tools.judge.timing import Rules
from tools.plan.schema import Plan
from tools.spec import TaskSpec
from tools.verdict import Tier, Verdict

BASELINES = ("eager", "compile", "compile-max")
BASELINE_LIMIT_S = 60.0  # max-autotune takes 1 to 14 s for the built-in tasks; for 128 products of a mixture, over 120


@dataclass(frozen=True)
class OpenTask:
    """Load a task file for the GPU. The answer is Ready. `ceilings` are what this GPU was measured to reach (None: the
    data sheet); torch.compile keeps its work under `cache_dir` ("": nowhere); a baseline that takes longer than
    `baseline_limit_s` to build is left out."""

    path: str
    task: TaskSpec
    baselines: tuple[str, ...] = BASELINES
    ceilings: Ceilings | None = None
    cache_dir: str = ""
    baseline_limit_s: float = BASELINE_LIMIT_S
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
    build_s: dict[str, float] = field(default_factory=dict)
    null_launch_us: float = 0.0
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
    """Check the plans (one per case, in the order given), then time the main case's, as `tier` asks. The answer is
    Judged. With `reuse`, plans and cubins that had a verdict of this tier get the same again. A screening races the
    fastest baseline alone, or `all_baselines`."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    rules: Rules = field(default_factory=Rules)
    repeats: int = 3
    tier: Tier = "judged"
    reuse: bool = False
    all_baselines: bool = False
    kind: Literal["bench"] = "bench"


@dataclass(frozen=True)
class Judged:
    """The verdict."""

    verdict: Verdict
    kind: Literal["judged"] = "judged"


@dataclass(frozen=True)
class Resolve:
    """Time a plan of the main case against itself, `pairs` times for `pair_s` seconds each. The answer is Resolved."""

    plan: Plan
    images: tuple[KernelImage, ...]
    pairs: int = 30
    pair_s: float = 0.3
    rules: Rules = field(default_factory=Rules)
    kind: Literal["resolve"] = "resolve"


@dataclass(frozen=True)
class Resolved:
    """Ratios of a plan's time to its own, or why there are none."""

    ratios: tuple[float, ...] = ()
    median_us: float = 0.0
    slots: int = 0
    problem: str | None = None
    kind: Literal["resolved"] = "resolved"


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


SupervisorMessage = OpenTask | Warm | Screen | Bench | Resolve
JudgeMessage = Ready | Baselines | Screened | Judged | Resolved | NeedRunner | EndRunner
